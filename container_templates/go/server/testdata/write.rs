//! Writes the files of this folder into a folder that is named: README.md.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, Int32Builder, ListBuilder, StringBuilder};
use arrow_array::types::{Int32Type, IntervalMonthDayNano};
use arrow_array::*;
use arrow_buffer::MutableBuffer;
use arrow_schema::{Field, Schema};
use shared_tables::segment::{Segment, SegmentWriter};

const LENGTHS: [usize; 8] = [0, 1, 3, 9, 17, 129, 241, 1025];
// Row 8 is NULL, and row 9 has the key of row 1.
const ROWS: i64 = 10;

fn column<T>(value: impl Fn(i64) -> T) -> Vec<Option<T>> {
    (0..ROWS)
        .map(|row| match row {
            8 => None,
            9 => Some(value(1)),
            row => Some(value(row)),
        })
        .collect()
}

fn text(row: i64) -> String {
    String::from((b'a' + row as u8) as char).repeat(LENGTHS[row as usize])
}

fn write(name: &str, fields: &[(&str, ArrayRef, Option<&str>)], key: &[usize]) {
    let metadata = |name: &Option<&str>| {
        name.iter().map(|name| ("ARROW:extension:name".to_string(), name.to_string())).collect::<HashMap<_, _>>()
    };
    let schema: Vec<Field> = fields
        .iter()
        .map(|(name, array, extension)| {
            Field::new(*name, array.data_type().clone(), true).with_metadata(metadata(extension))
        })
        .collect();
    let schema = Arc::new(Schema::new(schema));
    let rows = RecordBatch::try_new(schema.clone(), fields.iter().map(|field| field.1.clone()).collect()).unwrap();
    let mut writer = SegmentWriter::new(Vec::new(), &schema, key).unwrap();
    writer.write(&rows).unwrap();
    let finished = writer.finish().unwrap();
    let mut bytes = MutableBuffer::new(finished.out.len());
    bytes.extend_from_slice(&finished.out);
    let index = Segment::open(bytes.into()).unwrap().build_index(finished.digest.seed()).unwrap();
    let folder = std::env::args().nth(1).unwrap();
    std::fs::write(format!("{folder}/{name}.segment"), &finished.out).unwrap();
    if let Some(index) = index {
        std::fs::write(format!("{folder}/{name}.index"), index).unwrap();
    }
}

fn main() {
    let uuids = {
        let mut builder = FixedSizeBinaryBuilder::new(16);
        for value in column(|row| [row as u8; 16]) {
            match value {
                Some(value) => builder.append_value(value).unwrap(),
                None => builder.append_null(),
            }
        }
        builder.finish()
    };
    let bytes: Vec<Option<Vec<u8>>> = column(|row| vec![row as u8; LENGTHS[row as usize]]);
    let keys: Vec<(&str, ArrayRef, Option<&str>)> = vec![
        ("bool", Arc::new(BooleanArray::from(column(|row| row % 2 == 0))), None),
        ("int2", Arc::new(Int16Array::from(column(|row| row as i16 - 3))), None),
        ("int4", Arc::new(Int32Array::from(column(|row| row as i32 * 1000 - 3))), None),
        ("int8", Arc::new(Int64Array::from(column(|row| row * 1_000_000_000_000 - 3))), None),
        ("date", Arc::new(Date32Array::from(column(|row| row as i32 - 1))), None),
        ("time", Arc::new(Time64MicrosecondArray::from(column(|row| row * 1_000_000 + 7))), None),
        ("timestamp", Arc::new(TimestampMicrosecondArray::from(column(|row| row * 1_000_000_000 - 5))), None),
        (
            "timestamptz",
            Arc::new(TimestampMicrosecondArray::from(column(|row| row * 1_000_000_000 - 5)).with_timezone("UTC")),
            None,
        ),
        ("text", Arc::new(StringArray::from(column(text))), None),
        ("bytea", Arc::new(BinaryArray::from_iter(bytes)), None),
        ("uuid", Arc::new(uuids), Some("arrow.uuid")),
    ];
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..ROWS as i32));
    for key in &keys {
        write(key.0, &[("k", key.1.clone(), key.2), ("n", numbers.clone(), None)], &[0]);
    }
    let mut lists = ListBuilder::new(Int32Builder::new());
    let mut texts = ListBuilder::new(StringBuilder::new());
    for row in 0..ROWS as i32 {
        (0..row).for_each(|item| lists.values().append_option((item % 3 > 0).then_some(item)));
        lists.append(row != 2);
        (0..row % 4).for_each(|item| texts.values().append_value("z".repeat(item as usize)));
        texts.append(true);
    }
    let mut all = keys.clone();
    all.extend([
        ("n", numbers.clone(), None),
        ("float4", Arc::new(Float32Array::from(column(|row| row as f32 / 2.0))) as ArrayRef, None),
        ("float8", Arc::new(Float64Array::from(column(|row| row as f64 / 3.0))), None),
        ("numeric", Arc::new(StringArray::from(column(|row| format!("{row}.50")))), Some("arrowudf.decimal")),
        ("json", Arc::new(StringArray::from(column(|row| format!("{{\"n\": {row}}}")))), Some("arrowudf.json")),
        (
            "interval",
            Arc::new(IntervalMonthDayNanoArray::from(column(|row| IntervalMonthDayNano::new(row as i32, 2, 3)))),
            None,
        ),
        ("list", Arc::new(lists.finish()), None),
        ("texts", Arc::new(texts.finish()), None),
    ]);
    // The key's columns are not in the order of the table's.
    write("all", &all, &(0..keys.len()).rev().collect::<Vec<_>>());
    write("keyless", &all, &[]);
    let numbers = |from: i64, to: i64| -> (ArrayRef, ArrayRef) {
        (
            Arc::new(Int64Array::from_iter_values(from..to)),
            Arc::new(StringArray::from_iter_values((from..to).map(|n| format!("number {n}")))),
        )
    };
    for (name, from, to) in [("first", 0, 20), ("second", 20, 30), ("none", 0, 0)] {
        let (keys, names) = numbers(from, to);
        write(name, &[("key", keys, None), ("name", names, None)], &[0]);
    }
    let cities: DictionaryArray<Int32Type> = (0..ROWS).map(|row| (row != 8).then_some(["Oslo", "Lagos", ""][row as usize % 3])).collect();
    let codes = BinaryArray::from_vec(vec![b"\xff", b"", b"unused"]);
    let codes = DictionaryArray::new(Int32Array::from(column(|row| row as i32 % 2)), Arc::new(codes));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    write("dictionaries", &[("key", keys, None), ("city", Arc::new(cities), None), ("code", Arc::new(codes), None)], &[0]);
}
