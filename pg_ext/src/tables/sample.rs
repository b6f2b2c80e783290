//! Samples of shared tables for ANALYZE.

use std::ffi::c_int;

use pgrx::{pg_guard, pg_sys};

use super::scan::Scan;
use super::{Table, callback, rows, with_snapshot};
use crate::pg::memory::{OwnedContext, within};
use crate::report;

/// Bytes of the rows of a sample, which are in memory together.
const SAMPLE_BYTES: u64 = 64 << 20;
/// A multiplier that spreads numbers (Knuth, The Art of Computer Programming, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a page, for estimates.
const PAGE_BYTES: u64 = pg_sys::BLCKSZ as u64;

callback!(pub(super) begin, begin_analyze, (
    relation: pg_sys::Relation,
    acquire: *mut pg_sys::AcquireSampleRowsFunc,
    pages: *mut pg_sys::BlockNumber
) -> bool);
callback!(acquire, sample_rows, (
    relation: pg_sys::Relation,
    level: c_int,
    rows: *mut pg_sys::HeapTuple,
    wanted: c_int,
    total: *mut f64,
    dead: *mut f64
) -> c_int);

#[pg_guard]
unsafe extern "C-unwind" fn begin_analyze(
    relation: pg_sys::Relation,
    sampler: *mut pg_sys::AcquireSampleRowsFunc,
    pages: *mut pg_sys::BlockNumber,
) -> bool {
    // SAFETY: PostgreSQL passes a table that it has opened, and room for the answers.
    unsafe {
        let found = with_snapshot(|snapshot| rows::list((*relation).rd_id, snapshot));
        let bytes: u64 = found.iter().map(|row| row.bytes).sum();
        *pages = u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX).max(1);
        *sampler = Some(acquire);
    }
    true
}

/// Rows from all parts of the table, equal ones of equal tables. A table that cannot be read keeps the statistics that it has.
#[pg_guard]
unsafe extern "C-unwind" fn sample_rows(
    relation: pg_sys::Relation,
    _level: c_int,
    sample: *mut pg_sys::HeapTuple,
    wanted: c_int,
    total: *mut f64,
    dead: *mut f64,
) -> c_int {
    // SAFETY: PostgreSQL passes a table that it has opened, and room for so many rows, which are made in its memory.
    unsafe {
        let table = Table::of(relation);
        let found = with_snapshot(|snapshot| rows::list(table.relation, snapshot));
        let (all_rows, all_bytes) =
            found.iter().fold((0, 0), |(rows, bytes), row| (rows + row.rows, bytes + row.bytes));
        #[expect(clippy::cast_precision_loss, reason = "PostgreSQL counts rows in floats")]
        let float_rows = all_rows as f64;
        (*total, *dead) = (float_rows, 0.0);
        let descriptor = (*relation).rd_att;
        let count = usize::try_from((*descriptor).natts).unwrap_or(0);
        let columns = table.columns.iter().enumerate();
        let columns = columns.map(|(position, column)| (position, usize::try_from(column.number - 1).unwrap_or(0)));
        let columns = columns.collect();
        let scan = match with_snapshot(|snapshot| Scan::new(table, columns, snapshot)) {
            Ok(scan) => scan,
            Err(error) => {
                report::warn(&error);
                return 0;
            }
        };
        let rows: usize = scan.rows().sum();
        let affordable = SAMPLE_BYTES / (all_bytes / all_rows.max(1)).max(1);
        let mut wanted =
            usize::try_from(wanted).unwrap_or(0).min(rows).min(usize::try_from(affordable).unwrap_or(0).max(1));
        // As many are read that the values which they have in dictionaries are affordable, too. Fewer rows are other ones.
        let in_dictionaries =
            |wanted| -> u64 { places(&scan, wanted).map(|(segment, row)| scan.dictionary_bytes(segment, row)).sum() };
        while wanted > 1 && in_dictionaries(wanted) > SAMPLE_BYTES {
            pgrx::check_for_interrupts!();
            wanted /= 2;
        }
        let values_context = OwnedContext::new(pg_sys::CurrentMemoryContext);
        let (mut values, mut nulls) = (vec![pg_sys::Datum::from(0usize); count], vec![true; count]);
        for (number, (segment, row)) in places(&scan, wanted).enumerate() {
            pgrx::check_for_interrupts!();
            within(values_context.as_ptr(), || scan.read(segment, row, &mut values, &mut nulls));
            *sample.add(number) = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            values_context.reset();
        }
        c_int::try_from(wanted).unwrap_or(0)
    }
}

/// Where rows from all parts of a table lie, so many if it has them: a segment, and a row of it.
fn places(scan: &Scan, wanted: usize) -> impl Iterator<Item = (usize, u32)> {
    let (mut starts, mut rows) = (Vec::with_capacity(scan.rows().len()), 0);
    for of_segment in scan.rows() {
        starts.push(rows);
        rows += of_segment;
    }
    (0..wanted).map(move |number| {
        let (start, end) = (number * rows / wanted, (number + 1) * rows / wanted);
        // Somewhere in this part, since a constant step would see one phase of what repeats.
        let row = start + (number as u64).wrapping_mul(GOLDEN).rotate_left(32) as usize % (end - start).max(1);
        // No segment is without rows.
        let segment = starts.partition_point(|start| *start <= row).saturating_sub(1);
        (segment, u32::try_from(row - starts[segment]).unwrap_or(0))
    })
}
