//! Segments of shared tables and their indexes, as a dump, a disk or another process may have them.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Schema};
use shared_tables::dictionary::{decoded, encoded_type};
use shared_tables::index::Index;
use shared_tables::keys::{Keys, check_key_field};
use shared_tables::segment::{Segment, SegmentWriter};
use shared_tables::table::Table;
use udf_types::types::EXTENSION_KEY;

use crate::generate::{change, column, ty};
use crate::memory::{LIMIT, within};

/// The seed of indexes, which is no segment's own here.
const SEED: u64 = 7;

/// A segment and its index, each as it was written or changed, and look-ups of all rows' keys in them.
pub fn segment(input: &[u8]) {
    let _: Result<()> = (|| {
        let u = &mut Unstructured::new(input);
        let (rows, columns) = (u.int_in_range(0..=20)?, u.int_in_range(1..=3)?);
        let mut fields = Vec::new();
        let mut values: Vec<ArrayRef> = Vec::new();
        for number in 0..columns {
            let ty = ty(u, 2)?;
            fields.push(ty.field(&format!("c{number}")));
            values.push(column(u, &ty, rows)?);
        }
        let may_be_key = |position: &usize| check_key_field(&fields[*position]).is_ok();
        let most_key_columns: usize = u.int_in_range(0..=2)?;
        let key: Vec<usize> = (0..columns).filter(may_be_key).take(most_key_columns).collect();
        let has_dictionaries = u.arbitrary()?;
        let may_have_one = |(position, field): &(usize, &mut arrow_schema::Field)| {
            let is_text = matches!(field.data_type(), DataType::Utf8 | DataType::Binary);
            has_dictionaries && is_text && !key.contains(position) && !field.metadata().contains_key(EXTENSION_KEY)
        };
        for (_, field) in fields.iter_mut().enumerate().filter(may_have_one) {
            *field = field.clone().with_data_type(encoded_type(field.data_type()));
        }
        let given: Vec<_> = fields
            .iter()
            .zip(&values)
            .map(|(field, column)| field.clone().with_data_type(column.data_type().clone()))
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(given)), values, &options);
        let batch = batch.expect("the columns have these types");

        // Columns without any bytes are in no segment.
        let Ok(mut writer) = SegmentWriter::new(Vec::new(), &Arc::new(Schema::new(fields)), &key) else {
            return Ok(());
        };
        writer.write(&batch).expect("the rows fit the segment");
        let mut bytes = writer.finish().expect("the segment is small").out;
        let is_changed = change(u, &mut bytes, 4)?;
        let Ok(segment) = within(LIMIT, || Segment::open(aligned(&bytes))) else {
            assert!(is_changed, "a segment is read as it was written");
            return Ok(());
        };
        for batch in segment.batches() {
            batch.columns().iter().for_each(|column| {
                column.to_data().validate_full().expect("what was accepted is valid");
            });
        }
        if !is_changed {
            let read = segment.batches().iter().map(|batch| {
                let columns = batch.columns().iter().map(|column| decoded(column).expect("the values are few"));
                columns.collect::<Vec<_>>()
            });
            assert_eq!(read.collect::<Vec<_>>(), if rows > 0 { vec![batch.columns().to_vec()] } else { Vec::new() });
        }

        let Some(mut index) = within(LIMIT, || segment.build_index(SEED)).expect("an index is small") else {
            return Ok(());
        };
        let is_index_changed = change(u, &mut index, 4)?;
        let Ok(index) = within(LIMIT, || Index::open(aligned(&index))) else {
            assert!(is_index_changed, "an index is read as it was written");
            return Ok(());
        };
        let Ok(segment) = segment.with_index(index) else {
            assert!(is_index_changed, "an index is its segment's");
            return Ok(());
        };
        look_up(segment, is_index_changed);
        Ok(())
    })();
}

/// Looks for the key of each row. With a changed index it may not be found, but what is found is of the segment.
fn look_up(segment: Segment, is_index_changed: bool) {
    let table = Table::new("t", vec![Arc::new(segment.clone())]).expect("it is one segment");
    for (number, batch) in segment.batches().iter().enumerate() {
        let columns: Vec<ArrayRef> = segment.key().iter().map(|position| batch.column(*position).clone()).collect();
        let keys = Keys::new(&columns).expect("the segment's own key is one");
        let mut found = Vec::new();
        for row in 0..keys.rows() {
            let rows = segment.rows_of(&keys, row);
            assert!(rows.iter().all(|row| (*row as usize) < segment.rows()), "a row that is found is there");
            let has_null = keys.hash(row, SEED).is_none();
            let is_own = rows.iter().any(|found| segment.place(*found) == (number, row));
            assert!(is_index_changed || has_null != is_own, "a row is found by its key");
            found.push(rows.len());
        }
        // An index that names many rows for many keys is one of few rows here.
        let matches = within(LIMIT, || table.matches(&columns)).expect("the rows are few");
        assert_eq!(matches.0.len(), found.iter().sum::<usize>());
        let rows: Option<StructArray> = within(LIMIT, || table.lookup(&columns)).ok();
        assert_eq!(rows.is_some(), found.iter().all(|rows| *rows <= 1), "a key of several rows is an error");
        assert!(
            rows.is_none_or(|rows| found.iter().enumerate().all(|(row, found)| rows.is_null(row) == (*found == 0)))
        );
    }
}

/// A copy that begins where files are mapped: at a multiple of 64.
fn aligned(bytes: &[u8]) -> Buffer {
    let mut buffer = MutableBuffer::with_capacity(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer.into()
}
