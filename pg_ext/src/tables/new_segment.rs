//! A segment on its way into the database.

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use shared_tables::keys::Keys;
use shared_tables::segment::{MOST_ROWS, ROWS_PER_BATCH, SegmentWriter};

use super::Table;
use super::rows::{Id, Inserter, Row};
use crate::report;

/// Bytes after which a segment ends. It has its place in memory as a whole, and is read, checked and indexed without a
/// pause.
const MOST_BYTES: u64 = 128 << 20;

/// A segment that is being written.
pub(super) struct NewSegment {
    writer: SegmentWriter<Inserter>,
    key: Vec<usize>,
    keys: KeyCount,
}

impl NewSegment {
    pub(super) fn new(table: &Table, id: Id) -> NewSegment {
        let writer = report::unwrap(SegmentWriter::new(Inserter::new(id), &table.schema(), &table.key));
        NewSegment { writer, key: table.key.clone(), keys: KeyCount::default() }
    }

    /// Adds rows.
    pub(super) fn add(&mut self, batch: &RecordBatch) {
        report::unwrap(self.writer.write(batch));
        if !self.key.is_empty() {
            let columns: Vec<_> = self.key.iter().map(|position| batch.column(*position).clone()).collect();
            let keys = report::unwrap(Keys::new(&columns));
            (0..batch.num_rows()).filter_map(|row| keys.hash(row, 0)).for_each(|hash| self.keys.add(hash));
        }
    }

    /// Whether the next rows should go to another segment.
    pub(super) fn is_full(&self) -> bool {
        self.writer.bytes() >= MOST_BYTES || self.writer.rows() >= MOST_ROWS - 2 * ROWS_PER_BATCH
    }

    /// Writes the rest; the row with which the segment is there is to be inserted.
    pub(super) fn finish(self) -> Row {
        let keys = if self.key.is_empty() { 0 } else { self.keys.estimate() };
        let finished = report::unwrap(self.writer.finish());
        finished.out.finish(finished.digest, finished.rows as u64, keys, finished.bytes)
    }
}

/// Counts distinct hashes, from the smallest of them (Bar-Yossef et al., Counting Distinct Elements in a Data Stream, 2002, k minimum
/// values); exactly while they are few.
#[derive(Default)]
struct KeyCount {
    smallest: BTreeSet<u64>,
}

impl KeyCount {
    const KEPT: usize = 1024;

    fn add(&mut self, hash: u64) {
        let is_full = self.smallest.len() == KeyCount::KEPT;
        if is_full && self.smallest.last().is_some_and(|largest| hash >= *largest) {
            return;
        }
        if self.smallest.insert(hash) && is_full {
            self.smallest.pop_last();
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    fn estimate(&self) -> u64 {
        match self.smallest.last() {
            Some(largest) if self.smallest.len() == KeyCount::KEPT => {
                let share = *largest as f64 / u64::MAX as f64;
                ((KeyCount::KEPT - 1) as f64 / share) as u64
            }
            _ => self.smallest.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_counted_and_many_are_estimated() {
        let count = |keys: u64| {
            let mut count = KeyCount::default();
            // A multiplication spreads the numbers (Knuth, The Art of Computer Programming, 6.4).
            (0..3 * keys).for_each(|i| count.add((i % keys).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            count.estimate()
        };
        assert_eq!([count(1), count(10), count(1000)], [1, 10, 1000]);
        let many = count(1_000_000);
        assert!((800_000..1_200_000).contains(&many), "{many}");
        assert_eq!(KeyCount::default().estimate(), 0);
    }
}
