//! Columns with dictionaries: their values are those that were written, and whatever is wrong with a dictionary is an error.

#[allow(dead_code, reason = "other tests use the rest")]
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{Array, ArrayRef, BinaryArray, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use proptest::prelude::*;
use rows::{aligned, batch, decoded_batch, values, with_dictionaries, write, write_as};
use shared_tables::dictionary::{decoded, encoded_type};
use shared_tables::segment::{ROWS_PER_BATCH, Segment, SegmentWriter};
use udf_types::error::{Error, Kind};

/// Reads all of a segment, if it opens.
fn look_at(bytes: &[u8]) -> bool {
    let segment = match Segment::open(aligned(bytes)) {
        Ok(segment) => segment,
        Err(error) => {
            // The words for a panic of Arrow's reader, which should never see such bytes.
            assert_ne!(error.detail(), Some("It cannot be read."));
            return false;
        }
    };
    for batch in segment.batches() {
        for column in batch.columns() {
            column.to_data().validate_full().unwrap();
            decoded(column).unwrap().to_data().validate_full().unwrap();
        }
    }
    true
}

proptest! {
    #[test]
    fn values_come_back_from_whatever_they_came_in(
        rows in values(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let whole = batch(&rows);
        let schema = with_dictionaries(&[7, 8]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(rows.len() + 1)).collect();
        cuts.extend([0, rows.len()]);
        cuts.sort_unstable();
        let parts: Vec<RecordBatch> = cuts.windows(2).map(|ends| whole.slice(ends[0], ends[1] - ends[0])).collect();
        let bytes = write_as(&schema, &parts, &[3]);
        let segment = Segment::open(aligned(&bytes)).unwrap();
        prop_assert_eq!(segment.schema().fields(), schema.fields());
        let read = segment.batches().iter().map(decoded_batch).collect::<Vec<_>>();
        let read = concat_batches(&whole.schema(), &read).unwrap();
        prop_assert_eq!(read.columns(), whole.columns());
        // From segments with dictionaries of their own, as they are merged.
        let merged: Vec<RecordBatch> = parts.iter().flat_map(|part| {
            let part = Segment::open(aligned(&write_as(&schema, std::slice::from_ref(part), &[]))).unwrap();
            part.batches().to_vec()
        }).collect();
        if !merged.is_empty() {
            prop_assert_eq!(write_as(&schema, &merged, &[3]), bytes.clone());
        }
        // Other readers of Arrow files find the same.
        let others: Vec<_> = FileReader::try_new(std::io::Cursor::new(bytes), None).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(&others[..], segment.batches());
    }

    #[test]
    fn damaged_bytes_are_an_error_or_other_rows(
        rows in values(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = write_as(&with_dictionaries(&[7, 8]), &[batch(&rows)], &[3]);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        look_at(&bytes);
    }
}

fn texts(values: impl IntoIterator<Item = Option<String>>) -> RecordBatch {
    let texts: ArrayRef = Arc::new(values.into_iter().collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([("city", texts, true)]).unwrap()
}

fn schema(values: DataType) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("city", encoded_type(&values), true)]))
}

#[test]
fn every_byte_may_be_wrong() {
    let rows: Vec<Option<u8>> = (0..20).map(|row| (row % 4 > 0).then_some(row)).collect();
    let two = batch(&rows).project(&[7, 8]).unwrap();
    let schema = Arc::new(with_dictionaries(&[7, 8]).project(&[7, 8]).unwrap());
    let bytes = write_as(&schema, &[two], &[]);
    assert!(look_at(&bytes));
    let mut opened = 0;
    for place in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[place] = value;
            opened += usize::from(look_at(&changed));
        }
    }
    assert!(opened > 0 && opened < 5 * bytes.len());
    assert!((0..bytes.len()).all(|length| !look_at(&bytes[..length])));
}

#[test]
fn a_dictionary_is_there_once_in_the_bytes_of_a_segment() {
    let cities = ["Oslo", "Lagos", "", "Łódź"];
    let value = |row: usize| (!row.is_multiple_of(7)).then(|| cities[row % 4].to_string());
    let parts: Vec<RecordBatch> = (0..4).map(|part| texts((0..50_000).map(|row| value(part * 50_000 + row)))).collect();
    let mut writer = SegmentWriter::new(Vec::new(), &schema(DataType::Utf8), &[]).unwrap();
    parts.iter().for_each(|part| writer.write(part).unwrap());
    let told = writer.bytes();
    assert!(told.abs_diff(writer.finish().unwrap().bytes) < 4096, "{told}");
    let (encoded, plain) = (write_as(&schema(DataType::Utf8), &parts, &[]), write(&parts, &[]));
    assert!(encoded.len() < 200_000 * 4 + 200_000 / 8 + 4096 && encoded.len() < plain.len(), "{}", encoded.len());
    let bytes = aligned(&encoded);
    let segment = Segment::open(bytes.clone()).unwrap();
    assert_eq!(segment.batches().iter().map(RecordBatch::num_rows).collect::<Vec<_>>()[..3], [ROWS_PER_BATCH; 3]);
    let range = bytes.as_ptr_range();
    for (number, batch) in segment.batches().iter().enumerate() {
        let column = batch.column(0).as_dictionary::<Int32Type>();
        assert!(column.values().to_data().ptr_eq(&segment.batches()[0].column(0).to_data().child_data()[0]));
        assert_eq!(
            column.values().as_string::<i32>().iter().flatten().collect::<Vec<_>>(),
            ["Lagos", "", "Łódź", "Oslo"]
        );
        for data in [column.keys().to_data(), column.values().to_data()] {
            assert!(data.buffers().iter().all(|buffer| range.contains(&buffer.as_ptr())));
        }
        let read = decoded(batch.column(0)).unwrap();
        let expected = (0..read.len()).map(|row| value(number * ROWS_PER_BATCH + row)).collect::<StringArray>();
        assert_eq!(read.as_string::<i32>(), &expected);
    }
    // Without rows there is a dictionary of no values.
    let none = Segment::open(aligned(&write_as(&schema(DataType::Binary), &[], &[]))).unwrap();
    assert_eq!((none.rows(), none.schema().field(0).data_type()), (0, &encoded_type(&DataType::Binary)));
}

#[test]
fn a_dictionary_saves_nothing_where_all_values_differ_and_is_right() {
    let whole = texts((0..70_000).map(|row| Some(row.to_string())));
    let segment =
        Segment::open(aligned(&write_as(&schema(DataType::Utf8), std::slice::from_ref(&whole), &[]))).unwrap();
    let read: Vec<RecordBatch> = segment.batches().iter().map(decoded_batch).collect();
    assert_eq!(concat_batches(&whole.schema(), &read).unwrap(), whole);
}

#[test]
fn columns_that_cannot_have_a_dictionary_are_refused() {
    let field = |ty: DataType| Schema::new(vec![Field::new("c", ty, true)]);
    let begin = |schema: Schema, key: &[usize]| SegmentWriter::new(Vec::new(), &Arc::new(schema), key).map(|_| ());
    let of = |index: DataType, values: DataType| DataType::Dictionary(Box::new(index), Box::new(values));
    begin(field(encoded_type(&DataType::Utf8)), &[]).unwrap();
    for ty in [
        encoded_type(&DataType::Int64),
        encoded_type(&DataType::LargeUtf8),
        encoded_type(&encoded_type(&DataType::Utf8)),
        of(DataType::Int8, DataType::Utf8),
        of(DataType::UInt32, DataType::Utf8),
        DataType::new_list(encoded_type(&DataType::Utf8), true),
    ] {
        assert_eq!(begin(field(ty.clone()), &[]).unwrap_err().kind(), Kind::UnsupportedType, "{ty}");
    }
    let numeric = HashMap::from([("ARROW:extension:name".to_string(), "transship.numeric".to_string())]);
    let numeric = Field::new("c", encoded_type(&DataType::Utf8), true).with_metadata(numeric);
    assert_eq!(begin(Schema::new(vec![numeric]), &[]).unwrap_err().kind(), Kind::UnsupportedType);
    assert_eq!(begin(field(encoded_type(&DataType::Utf8)), &[0]).unwrap_err().kind(), Kind::UnsupportedType);
    // Nor do other columns become those of the segment.
    let mut writer = SegmentWriter::new(Vec::new(), &schema(DataType::Binary), &[]).unwrap();
    assert!(writer.write(&texts([Some("a".to_string())])).is_err());
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xff"[..]]));
    let mut writer = SegmentWriter::new(Vec::new(), &schema(DataType::Utf8), &[]).unwrap();
    assert!(writer.write(&RecordBatch::try_from_iter([("city", bytes)]).unwrap()).is_err());
}

/// What a file of Arrow's writer is refused for, whose dictionaries lie where it puts them.
fn refused(batches: &[RecordBatch]) -> Error {
    let mut writer = FileWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    Segment::open(aligned(&writer.into_inner().unwrap())).unwrap_err()
}

#[test]
fn other_dictionaries_are_refused() {
    let of = |column: ArrayRef| RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap();
    let before = refused(&[of(Arc::new(DictionaryArray::<Int32Type>::from_iter(["a", "b"])))]);
    assert_eq!(before.detail(), Some("It has a batch where none can be."));
    let small = refused(&[of(Arc::new(DictionaryArray::<Int8Type>::from_iter(["a", "b"])))]);
    assert_eq!(small.kind(), Kind::UnsupportedType);
}

/// A segment of one column, of which `change` changes the bytes at the only place where these lie.
fn changed(found: &[u8], change: impl Fn(&mut [u8])) -> Error {
    let values = ["Copenhagen-Copenhagen", "Reykjavik-Reykjavik"].map(|city| Some(city.to_string()));
    let rows = texts(values.into_iter().chain([None]));
    let mut bytes = write_as(&schema(DataType::Utf8), &[rows], &[]);
    assert!(look_at(&bytes));
    let places: Vec<usize> =
        (0..bytes.len() - found.len()).filter(|place| bytes[*place..].starts_with(found)).collect();
    let [place] = places[..] else { panic!("{found:?} lies at {places:?}") };
    change(&mut bytes[place..place + found.len()]);
    Segment::open(aligned(&bytes)).unwrap_err()
}

#[test]
fn values_that_lead_nowhere_are_refused() {
    let indexes = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for wrong in [2_i32, -1, i32::MAX, i32::MIN] {
        let error = changed(&indexes, |bytes| bytes[..4].copy_from_slice(&wrong.to_le_bytes()));
        assert!(error.detail().unwrap().contains("cannot be read: "), "{error:?}");
    }
    let offsets: Vec<u8> = [0_i32, 21, 40].iter().flat_map(|offset| offset.to_le_bytes()).collect();
    for wrong in [41_i32, -1, i32::MAX] {
        changed(&offsets, |bytes| bytes[4..8].copy_from_slice(&wrong.to_le_bytes()));
        changed(&offsets, |bytes| bytes[8..].copy_from_slice(&wrong.max(0).saturating_add(100).to_le_bytes()));
    }
    changed(b"Copenhagen-Copenhagen", |bytes| bytes[3] = 0xff);
}

#[test]
fn what_does_not_fit_into_one_array_is_an_error() {
    let long: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(40_000)]));
    let column = DictionaryArray::<Int32Type>::try_new(Int32Array::from(vec![0; 60_000]), long).unwrap();
    assert_eq!(decoded(&(Arc::new(column) as ArrayRef)).unwrap_err().kind(), Kind::OutOfRange);
}
