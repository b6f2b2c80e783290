//! Few segments instead of many: a key is looked for in each.
//!
//! After an append, the newest segments become one, as long as the one before is not much larger: so a table has about as many segments
//! as its number of rows has bits, and each row is written about as often. Transactions that began before see the segments that
//! were there.

use std::ops::Range;

use pgrx::pg_sys;
use shared_tables::segment::MOST_ROWS;
use udf_types::Result;

use super::new_segment::NewSegment;
use super::rows::{self, Row};
use super::{Table, memory};
use crate::report;

/// A segment of more bytes stays as it is, and what is merged has twice as many at most, so that no append waits for long.
const LARGE_BYTES: u64 = 16 << 20;
/// Most segments that are merged at a time.
const MOST_MERGED: usize = 64;
/// With more segments, some are merged that are smallest together: appends at the same time, and transactions that saw an older version,
/// have left them.
const MANY: usize = 32;
/// How many of them, at least, and at most: half of all, since others append meanwhile, the more the longer it takes.
const SOME: usize = 16;
const MOST_OF_MANY: usize = 256;
/// Most that a table may have: each is two maps of a session that reads it, of which the system allows some 65,000 in all.
pub(super) const MOST_SEGMENTS: usize = 4096;

/// Merges segments of a table to which the transaction has just added one, and that has these now, if it sees what there is, and nobody
/// else does; or once nobody else does any more, where there are more than a table may have. How many there are then.
///
/// # Safety
/// The table is open, and locked for writing.
pub(super) unsafe fn compact(table: &Table, segments: &[Row]) -> usize {
    let lock = pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: the caller says so. Where something was merged, the lock is kept until the transaction ends, so that nobody else merges that.
    unsafe {
        // There, what one transaction reads of all tables and another writes would be a conflict.
        let is_serializable = (&raw const pg_sys::XactIsoLevel).read() >= pg_sys::XACT_SERIALIZABLE as i32;
        if to_merge(segments).is_empty() || is_serializable && segments.len() <= MANY {
            return segments.len();
        }
        if segments.len() > MOST_SEGMENTS {
            pg_sys::LockRelationOid(table.relation, lock);
        } else if !pg_sys::ConditionalLockRelationOid(table.relation, lock) {
            return segments.len();
        }
        let (count, has_merged) = match rows::list_latest(table.relation) {
            Some(found) => merge(table, &found),
            None => (segments.len(), false),
        };
        if !has_merged {
            pg_sys::UnlockRelationOid(table.relation, lock);
        }
        count
    }
}

/// Merges some of all segments that a table has, which nobody else does; how many there are then, and whether it has.
///
/// # Safety
/// As for [`compact`].
unsafe fn merge(table: &Table, found: &[Row]) -> (usize, bool) {
    let merged = &found[to_merge(found)];
    let Some(first) = merged.first() else { return (found.len(), false) };
    // SAFETY: the caller says so. The snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let opened: Result<Vec<_>> = merged.iter().map(|row| memory::open(row, table, snapshot)).collect();
        // Without memory for them, they stay as they are.
        let has_merged = opened.is_ok();
        if let Ok(opened) = opened {
            let ids: Vec<_> = merged.iter().map(|row| row.id).collect();
            rows::delete(table.relation, &ids, snapshot);
            // In the place of the oldest: rows keep their order.
            let mut segment = NewSegment::new(table, first.id);
            for opened in &opened {
                report::unwrap(table.check(opened));
                for batch in opened.batches() {
                    pgrx::check_for_interrupts!();
                    segment.add(batch);
                }
            }
            rows::insert_segments(table.relation, &[segment.finish()]);
            memory::remove(&merged.iter().map(|row| row.digest).collect::<Vec<_>>());
        }
        pg_sys::UnregisterSnapshot(snapshot);
        (if has_merged { found.len() - merged.len() + 1 } else { found.len() }, has_merged)
    }
}

/// Which of a table's segments, oldest first, are to become one; none if there is nothing to do.
fn to_merge(segments: &[Row]) -> Range<usize> {
    let may_be_one = |range: Range<usize>| {
        let (bytes, rows) = sums(&segments[range]);
        bytes <= 2 * LARGE_BYTES && rows <= MOST_ROWS as u64
    };
    if segments.len() > MANY {
        for count in [(segments.len() / 2).min(MOST_OF_MANY), SOME] {
            let ranges = (0..=segments.len() - count).map(|start| start..start + count);
            let smallest = ranges.min_by_key(|range| sums(&segments[range.clone()])).unwrap_or(0..0);
            if may_be_one(smallest.clone()) {
                return smallest;
            }
        }
    }
    let (mut start, mut rows) = (segments.len(), 0);
    while let Some(segment) = start.checked_sub(1).map(|previous| &segments[previous]) {
        let is_much_larger = segment.rows > 2 * rows && start < segments.len();
        let is_large = segment.bytes > LARGE_BYTES || !may_be_one(start - 1..segments.len());
        if is_much_larger || is_large || segments.len() - start == MOST_MERGED {
            break;
        }
        (start, rows) = (start - 1, rows + segment.rows);
    }
    if segments.len() - start > 1 { start..segments.len() } else { 0..0 }
}

/// Bytes and rows of some segments.
fn sums(segments: &[Row]) -> (u64, u64) {
    segments.iter().fold((0, 0), |(bytes, rows), segment| (bytes + segment.bytes, rows + segment.rows))
}

#[cfg(test)]
mod tests {
    use shared_tables::segment::Digest;

    use super::*;

    fn segment(rows: u64) -> Row {
        Row { id: [0; 16], digest: Digest::from([0; 32]), rows, keys: 0, bytes: rows * 100 }
    }

    #[test]
    fn appended_rows_are_in_few_segments_and_seldom_written() {
        let (mut segments, mut written) = (vec![segment(100_000)], 0);
        for _ in 0..10_000 {
            segments.push(segment(1));
            written += 1;
            let range = to_merge(&segments);
            if !range.is_empty() {
                let merged: Vec<Row> = segments.drain(range).collect();
                let rows = merged.iter().map(|segment| segment.rows).sum();
                segments.push(segment(rows));
                written += rows;
            }
            assert!(segments.len() <= 14, "{}", segments.len());
        }
        assert_eq!(segments.iter().map(|segment| segment.rows).sum::<u64>(), 110_000);
        assert!(written < 10_000 * 14, "{written}");
    }

    #[test]
    fn large_segments_stay_as_they_are() {
        let of = |rows: &[u64]| to_merge(&rows.iter().map(|rows| segment(*rows)).collect::<Vec<_>>());
        assert_eq!((of(&[200_000, 200_000]), of(&[200_000, 100_000, 100_000])), (0..0, 1..3));
        assert_eq!((of(&[]), of(&[1])), (0..0, 0..0));
        // Not more than twice as many bytes together.
        assert_eq!(of(&[160_000; 10]), 8..10);
    }

    #[test]
    fn very_many_segments_become_fewer() {
        let mut segments = vec![segment(100_000)];
        segments.extend((0..10_000).map(|_| segment(1)));
        for _ in 0..100 {
            let range = to_merge(&segments);
            let rows = segments[range.clone()].iter().map(|segment| segment.rows).sum();
            segments.splice(range.clone(), (!range.is_empty()).then(|| segment(rows)));
        }
        assert!(segments.len() <= MANY, "{}", segments.len());
        assert_eq!(segments[0].rows, 100_000);
        // Many that are large do not keep small ones apart.
        let mut segments = vec![segment(200_000); 100];
        segments.extend([segment(1), segment(1)]);
        assert_eq!(to_merge(&segments), 100..102);
        // Nor do small ones become one of more rows than a segment may have.
        let narrow = Row { bytes: 1, ..segment(2_200_000) };
        assert_eq!(to_merge(&[narrow.clone(), narrow.clone()]), 0..0);
        assert_eq!(to_merge(&vec![narrow; 100]), 0..0);
    }
}
