//! Rows for tests, and segments of them.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::types::{Date32Type, Time64MicrosecondType, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Float64Array, Int16Array, Int32Array, Int64Array,
    PrimitiveArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{Field, Fields, Schema, SchemaRef};
use proptest::prelude::*;
use shared_tables::dictionary::{decoded, encoded_type, value_type};
use shared_tables::segment::{Digest, SegmentWriter};

/// Columns of [`batch`] that may be keys, which come first.
pub const COLUMNS: usize = 10;

pub fn aligned(bytes: &[u8]) -> Buffer {
    let mut buffer = MutableBuffer::new(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer.into()
}

/// Rows whose keys are these numbers in every type that keys may have, and columns that cannot be keys behind them.
pub fn batch(values: &[Option<u8>]) -> RecordBatch {
    let of = |number: fn(u8) -> i64| values.iter().map(move |value| value.map(number)).collect::<Vec<Option<i64>>>();
    let texts: Vec<Option<String>> =
        values.iter().map(|value| value.map(|value| "é".repeat(value as usize % 7))).collect();
    let uuids = values.iter().map(|value| value.map(|value| [value; 16]));
    let mut lists = ListBuilder::new(Int32Builder::new());
    for value in values {
        lists.append_option(value.map(|value| (0..i32::from(value % 3)).map(|item| (item != 1).then_some(item))));
    }
    let numbers = Int64Array::from(of(|value| i64::from(value) << 40));
    let parts: ArrayRef = Arc::new(numbers.clone());
    let small = |number: &Option<i64>| number.map(|number| number as i32);
    let columns: [(&str, ArrayRef); 13] = [
        ("bool", Arc::new(values.iter().map(|value| value.map(|value| value % 2 == 0)).collect::<BooleanArray>())),
        ("int2", Arc::new(values.iter().map(|value| value.map(i16::from)).collect::<Int16Array>())),
        ("int4", Arc::new(of(|value| -i64::from(value)).iter().map(small).collect::<Int32Array>())),
        ("int8", Arc::new(numbers)),
        ("date", Arc::new(of(i64::from).iter().map(small).collect::<PrimitiveArray<Date32Type>>())),
        ("time", Arc::new(PrimitiveArray::<Time64MicrosecondType>::from(of(i64::from)))),
        ("timestamptz", Arc::new(PrimitiveArray::<TimestampMicrosecondType>::from(of(i64::from)).with_timezone("UTC"))),
        ("text", Arc::new(StringArray::from(texts.clone()))),
        ("bytea", Arc::new(texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect::<BinaryArray>())),
        ("uuid", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(uuids, 16).unwrap())),
        ("float8", Arc::new(values.iter().map(|value| value.map(f64::from)).collect::<Float64Array>())),
        ("int4[]", Arc::new(lists.finish())),
        (
            "composite",
            Arc::new(StructArray::from(vec![(Arc::new(Field::new("a", parts.data_type().clone(), true)), parts)])),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

pub fn write(batches: &[RecordBatch], key: &[usize]) -> Vec<u8> {
    write_as(&batches[0].schema(), batches, key)
}

/// The segment of columns of this schema, which has dictionaries where the batches may have none.
pub fn write_as(schema: &SchemaRef, batches: &[RecordBatch], key: &[usize]) -> Vec<u8> {
    let mut writer = SegmentWriter::new(Vec::new(), schema, key).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    let finished = writer.finish().unwrap();
    assert_eq!((finished.bytes, finished.digest), (finished.out.len() as u64, Digest::of(&finished.out)));
    assert_eq!(finished.rows, batches.iter().map(RecordBatch::num_rows).sum::<usize>());
    finished.out
}

/// The schema of [`batch`] in which these columns have dictionaries.
pub fn with_dictionaries(columns: &[usize]) -> SchemaRef {
    let schema = batch(&[]).schema();
    let field = |(position, field): (usize, &Arc<Field>)| match columns.contains(&position) {
        true => Arc::new(field.as_ref().clone().with_data_type(encoded_type(field.data_type()))),
        false => field.clone(),
    };
    Arc::new(Schema::new(schema.fields().iter().enumerate().map(field).collect::<Fields>()))
}

/// A batch whose columns have no dictionaries, but the same values.
pub fn decoded_batch(batch: &RecordBatch) -> RecordBatch {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
        let values = field.as_ref().clone().with_data_type(value_type(field.data_type()).clone());
        (values, decoded(column).unwrap())
    });
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns.unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

pub fn values() -> impl Strategy<Value = Vec<Option<u8>>> {
    prop_oneof![
        prop::collection::vec(prop::option::of(0..6_u8), 0..80),
        prop::collection::vec(prop::option::of(any::<u8>()), 0..80),
    ]
}
