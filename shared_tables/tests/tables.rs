//! Tables of segments of random rows: look-ups find what a scan finds, in the order of the keys and of the rows, and what they are given
//! wrongly is an error.

#[allow(dead_code, reason = "other tests use the rest")]
mod rows;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray,
    PrimitiveArray, RecordBatch, StringArray, StringViewArray, StructArray, UInt32Array,
};
use arrow_select::concat::concat_batches;
use arrow_select::take::{take, take_record_batch};
use proptest::prelude::*;
use rows::{COLUMNS, aligned, batch, decoded_batch, values, with_dictionaries, write, write_as};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use shared_tables::index::Index;
use shared_tables::segment::{ROWS_PER_BATCH, Segment};
use shared_tables::table::Table;
use udf_types::error::Kind;

/// A segment with its index, whose hashes have this seed.
fn segment(parts: &[RecordBatch], key: &[usize], seed: u64) -> Arc<Segment> {
    indexed(&write(parts, key), seed)
}

fn indexed(bytes: &[u8], seed: u64) -> Arc<Segment> {
    let segment = Segment::open(aligned(bytes)).unwrap();
    Arc::new(match segment.build_index(seed).unwrap() {
        Some(index) => segment.with_index(Index::open(aligned(&index)).unwrap()).unwrap(),
        None => segment,
    })
}

fn table(segments: &[RecordBatch], key: &[usize]) -> Table {
    let of = |(seed, rows): (usize, &RecordBatch)| segment(std::slice::from_ref(rows), key, seed as u64);
    Table::new("t", segments.iter().enumerate().map(of).collect()).unwrap()
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn numbers(numbers: Vec<i64>) -> RecordBatch {
    let texts: ArrayRef = Arc::new(numbers.iter().map(|number| Some(number.to_string())).collect::<StringArray>());
    RecordBatch::try_from_iter([("id", array(Int64Array::from(numbers))), ("name", texts)]).unwrap()
}

proptest! {
    #[test]
    fn lookups_find_what_a_scan_finds(
        segments in prop::collection::vec(values(), 1..4),
        probes in values(),
        start in any::<prop::sample::Index>(),
        key in prop::sample::subsequence((0..COLUMNS).collect::<Vec<_>>(), 1..4).prop_shuffle(),
        has_dictionaries in any::<bool>(),
    ) {
        let segments: Vec<RecordBatch> = segments.iter().map(|values| batch(values)).collect();
        let held = concat_batches(&segments[0].schema(), &segments).unwrap();
        // Keys that begin in the middle of their arrays.
        let probes = batch(&probes);
        let start = start.index(probes.num_rows() + 1);
        let probes = probes.slice(start, probes.num_rows() - start);
        let encoded: Vec<usize> = [7, 8].into_iter().filter(|column| has_dictionaries && !key.contains(column)).collect();
        let schema = with_dictionaries(&encoded);
        let of = |(seed, rows): (usize, &RecordBatch)| indexed(&write_as(&schema, std::slice::from_ref(rows), &key), seed as u64);
        let table = Table::new("t", segments.iter().enumerate().map(of).collect()).unwrap();
        prop_assert_eq!((table.rows(), table.key()), (held.num_rows(), &key[..]));
        prop_assert_eq!(table.batch_schema().fields(), schema.fields());
        prop_assert!(table.batches().all(|batch| batch.schema() == *table.batch_schema()));
        let batches: Vec<RecordBatch> = table.batches().map(|batch| decoded_batch(&batch)).collect();
        let read = concat_batches(&held.schema(), &batches).unwrap();
        prop_assert_eq!(read.columns(), held.columns());
        let mut expected = Vec::new();
        for row in 0..probes.num_rows() {
            let is_equal = |held_row: &u32| {
                key.iter().all(|position| {
                    let (one, two) = (held.column(*position), probes.column(*position));
                    one.slice(*held_row as usize, 1) == two.slice(row, 1) && two.is_valid(row)
                })
            };
            expected.push((0..held.num_rows() as u32).filter(is_equal).collect::<Vec<_>>());
        }
        let keys: Vec<ArrayRef> = key.iter().map(|position| probes.column(*position).clone()).collect();

        let (positions, rows) = table.matches(&keys).unwrap();
        let of = |(key, rows): (usize, &Vec<u32>)| vec![key as i32; rows.len()];
        let expected_positions: Vec<i32> = expected.iter().enumerate().flat_map(of).collect();
        prop_assert_eq!(positions, Int32Array::from(expected_positions));
        let expected_rows = take_record_batch(&held, &UInt32Array::from(expected.concat())).unwrap();
        prop_assert_eq!(rows.columns(), expected_rows.columns());

        match (table.lookup(&keys), expected.iter().position(|rows| rows.len() > 1)) {
            (Ok(rows), None) => {
                let first = UInt32Array::from_iter(expected.iter().map(|rows| rows.first().copied()));
                prop_assert_eq!(rows.len(), first.len());
                prop_assert!((0..rows.len()).all(|row| rows.is_valid(row) == first.is_valid(row)));
                for (found, column) in rows.columns().iter().zip(held.columns()) {
                    prop_assert_eq!(found, &take(column, &first, None).unwrap());
                }
                rows.to_data().validate_full().unwrap();
            }
            (Err(error), Some(first)) => {
                let message = format!("table \"t\" has {} rows with the key (", expected[first].len());
                let detail = format!("It is key {first}, ");
                prop_assert!(error.message().starts_with(&message));
                prop_assert!(error.detail().unwrap().starts_with(&detail));
            }
            (found, first) => prop_assert!(false, "{found:?} where key {first:?} has several rows"),
        }
    }
}

#[test]
fn many_rows_in_many_batches_are_found_in_time() {
    let start = Instant::now();
    let values: Vec<i64> = (0..400_000_i64).map(|row| row * 7919 % 300_007).collect();
    let segments = [0..150_000, 150_000..150_000, 150_000..400_000].map(|rows| numbers(values[rows].to_vec()));
    let table = table(&segments, &[0]);
    assert_eq!((table.rows(), table.batch_count()), (400_000, 3 + 4));
    assert!(table.batch(7).is_none());
    assert_eq!(table.batch(3).unwrap().columns(), segments[2].slice(0, ROWS_PER_BATCH).columns());
    let mut rows_of: HashMap<i64, Vec<i32>> = HashMap::new();
    values.iter().enumerate().for_each(|(row, value)| rows_of.entry(*value).or_default().push(row as i32));
    let keys: Vec<i64> = (0..100_000).map(|key| key * 31 % 400_000).collect();
    let (positions, rows) = table.matches(&[array(Int64Array::from(keys.clone()))]).unwrap();
    let found = |key: &i64| rows_of.get(key).map_or(0, Vec::len);
    assert_eq!(positions.len(), keys.iter().map(found).sum::<usize>());
    let (ids, names) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_string::<i32>());
    for (row, position) in positions.values().iter().enumerate() {
        assert_eq!(ids.value(row), keys[*position as usize]);
        assert_eq!(names.value(row), ids.value(row).to_string());
    }
    let once: Vec<i64> = keys.into_iter().filter(|key| found(key) < 2).collect();
    let rows = table.lookup(&[array(Int64Array::from(once.clone()))]).unwrap();
    let ids = rows.column(0).as_primitive::<Int64Type>();
    for (row, key) in once.iter().enumerate() {
        assert_eq!(rows.is_valid(row), found(key) == 1);
        assert!(rows.is_null(row) == ids.is_null(row) && (ids.is_null(row) || ids.value(row) == *key));
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn tables_and_keys_may_be_empty() {
    let none = numbers(vec![]);
    for segments in [&[none.clone()][..], &[none.clone(), none.clone()], &[none, numbers(vec![7])]] {
        let table = table(segments, &[0]);
        let rows = table.lookup(&[array(Int64Array::from(vec![Some(5), None]))]).unwrap();
        assert_eq!((rows.len(), rows.null_count()), (2, 2));
        assert!(rows.columns().iter().all(|column| column.null_count() == 2));
        let (positions, rows) = table.matches(&[array(Int64Array::from(vec![Some(5), None]))]).unwrap();
        assert_eq!((positions.len(), rows.num_rows(), rows.num_columns()), (0, 0, 2));
        let nothing = array(Int64Array::from(Vec::<i64>::new()));
        assert_eq!(table.lookup(std::slice::from_ref(&nothing)).unwrap().len(), 0);
        assert_eq!(table.matches(&[nothing]).unwrap().1.num_rows(), 0);
    }
    // A segment of rows that have a key needs no index if there are no rows.
    let segment = Segment::open(aligned(&write(&[numbers(vec![])], &[0]))).unwrap();
    let table = Table::new("t", vec![Arc::new(segment)]).unwrap();
    assert_eq!(table.lookup(&[array(Int64Array::from(vec![1]))]).unwrap().null_count(), 1);
    assert!(Table::new("t", vec![]).is_err());
}

#[test]
fn columns_that_may_not_be_null_are_null_where_nothing_is_found() {
    let ids = numbers(vec![1]);
    assert!(!ids.schema().field(1).is_nullable());
    let table = table(&[ids], &[0]);
    let rows: StructArray = table.lookup(&[array(Int64Array::from(vec![2]))]).unwrap();
    rows.to_data().validate_full().unwrap();
    assert_eq!(rows.fields(), table.schema().fields());
    assert!(table.batch(0).unwrap().schema() == *table.schema());
}

#[test]
fn segments_of_other_columns_make_no_table() {
    let (ids, key) = (numbers(vec![1]), &[0][..]);
    let of = |rows: &RecordBatch, key: &[usize]| segment(std::slice::from_ref(rows), key, 0);
    for other in [of(&ids, &[1]), of(&ids.project(&[0]).unwrap(), key), of(&batch(&[Some(1)]), &[3])] {
        let error = Table::new("t", vec![of(&ids, key), of(&ids, key), other]).unwrap_err();
        assert_eq!(error.message(), "segment 3 of table \"t\" has other columns than the one before it");
    }
}

#[test]
fn keys_have_the_columns_and_types_of_the_table() {
    let values = batch(&[Some(1), Some(2), Some(3)]);
    let text = || array(StringArray::from(vec!["é"]));
    let message = |key: &[usize], keys: &[ArrayRef]| {
        let table = table(std::slice::from_ref(&values), key);
        let (one, all) = (table.lookup(keys).unwrap_err(), table.matches(keys).unwrap_err());
        assert_eq!((one.kind(), all.message()), (Kind::UserCode, one.message()));
        one.message().to_string()
    };
    let id = || array(Int64Array::from(vec![1_i64 << 40]));
    assert_eq!(message(&[], &[id()]), "table \"t\" has no key");
    assert_eq!(message(&[3], &[]), "the key of table \"t\" has 1 column (int8), not 0");
    assert_eq!(message(&[3, 7], &[id()]), "the key of table \"t\" has 2 columns (int8, text), not 1");
    let mistyped = "key column \"int8\" of table \"t\" has type Int64, and the keys have Utf8";
    assert_eq!(message(&[3], &[text()]), mistyped);
    let small = array(Int32Array::from(vec![1]));
    assert!(message(&[3], std::slice::from_ref(&small)).ends_with("has type Int64, and the keys have Int32"));
    assert!(message(&[7], &[small]).ends_with("has type Utf8, and the keys have Int32"));
    assert!(message(&[8], &[text()]).ends_with("has type Binary, and the keys have Utf8"));
    let two = array(StringArray::from(vec!["é", "é"]));
    assert!(message(&[3, 7], &[id(), two]).ends_with(": the key of a shared table has columns of different lengths"));
}

#[test]
fn other_layouts_of_text_and_other_time_zones_are_taken() {
    let values = batch(&[Some(1), Some(2), None, Some(3)]);
    let texts = ["éé", "x", "é", "ééé"];
    let bytes = texts.map(str::as_bytes);
    let times = |zone: Option<&str>| -> ArrayRef {
        let times = PrimitiveArray::<TimestampMicrosecondType>::from(vec![2, 99, 1, 3]);
        array(times.with_timezone_opt(zone))
    };
    for (column, keys) in [
        (7, array(StringArray::from_iter_values(texts))),
        (7, array(LargeStringArray::from_iter_values(texts))),
        (7, array(StringViewArray::from_iter_values(texts))),
        (8, array(BinaryArray::from_iter_values(bytes))),
        (8, array(LargeBinaryArray::from_iter_values(bytes))),
        (8, array(BinaryViewArray::from_iter_values(bytes))),
        (6, times(None)),
        (6, times(Some("UTC"))),
        (6, times(Some("Europe/Berlin"))),
    ] {
        let rows = table(std::slice::from_ref(&values), &[column]).lookup(std::slice::from_ref(&keys)).unwrap();
        let found = rows.column(3).as_primitive::<Int64Type>();
        let expected = [Some(2), None, Some(1), Some(3)].map(|value: Option<i64>| value.map(|value| value << 40));
        assert_eq!(found, &Int64Array::from(expected.to_vec()), "{}", keys.data_type());
    }
}

#[test]
fn results_that_are_too_large_are_errors() {
    let start = Instant::now();
    let ids: ArrayRef = array(Int64Array::from(vec![7; ROWS_PER_BATCH]));
    let same = table(&[RecordBatch::try_from_iter([("id", ids)]).unwrap()], &[0]);
    let keys = array(Int64Array::from(vec![7; 32_768]));
    assert_eq!(same.matches(&[keys]).unwrap_err().kind(), Kind::OutOfRange);
    let text: ArrayRef = array(StringArray::from(vec!["x".repeat(4 << 20)]));
    let columns = [("id", array(Int64Array::from(vec![7]))), ("name", text)];
    let large = table(&[RecordBatch::try_from_iter(columns).unwrap()], &[0]);
    let keys = array(Int64Array::from(vec![7; 512]));
    for error in [large.lookup(std::slice::from_ref(&keys)).unwrap_err(), large.matches(&[keys]).unwrap_err()] {
        assert_eq!(error.kind(), Kind::OutOfRange, "{error}");
        assert!(error.detail().unwrap().starts_with("Column \"name\": "), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_key_of_several_rows_is_named_in_short() {
    let names: ArrayRef = array(StringArray::from(vec!["a".repeat(500); 2]));
    let same = table(&[RecordBatch::try_from_iter([("name", names.clone())]).unwrap()], &[0]);
    let error = same.lookup(&[names]).unwrap_err();
    assert_eq!(error.message(), format!("table \"t\" has 2 rows with the key ({}...", "a".repeat(99)));
}

/// Files of a segment and its index.
struct Files {
    segment: File,
    index: Option<File>,
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn files(rows: &RecordBatch, key: &[usize], seed: u64) -> Files {
    let bytes = write(std::slice::from_ref(rows), key);
    let index = Segment::open(aligned(&bytes)).unwrap().build_index(seed).unwrap();
    Files { segment: file(&bytes), index: index.map(|index| file(&index)) }
}

fn open(segment: &File, index: Option<&File>) -> udf_types::error::Result<Segment> {
    // SAFETY: `write` makes whole segments, and nobody else has the files.
    unsafe { Segment::from_files(segment, index) }
}

#[test]
fn segments_are_mapped_from_files() {
    let rows = numbers((0..1000).map(|row| row % 700).collect());
    let Files { segment, index } = files(&rows, &[0], 5);
    let mapped = open(&segment, index.as_ref()).unwrap();
    let table = Table::new("t", vec![Arc::new(mapped)]).unwrap();
    // What was taken outlives the files.
    let batch = table.batch(0).unwrap();
    let (positions, found) = table.matches(&[array(Int64Array::from(vec![3, 1000]))]).unwrap();
    drop((segment, index, table));
    assert_eq!(batch.columns(), rows.columns());
    assert_eq!((positions.values().as_ref(), found.num_rows()), (&[0, 0][..], 2));
    // Files that are sealed.
    let sealed = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let memory = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::write(&memory, &bytes).unwrap();
        fcntl_add_seals(&memory, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
        File::from(memory)
    };
    let Files { segment, index } = files(&rows, &[0], 5);
    assert_eq!(open(&sealed(segment), index.map(sealed).as_ref()).unwrap().rows(), 1000);
    // Without a key or rows, there is no index.
    assert!(open(&files(&rows, &[], 0).segment, None).is_ok());
    assert!(open(&files(&rows.slice(0, 0), &[0], 0).segment, None).is_ok());
}

#[test]
fn files_that_are_no_segment_and_its_index_are_refused() {
    let rows = numbers((0..1000).collect());
    let own = files(&rows, &[0], 5);
    let message = |segment: &File, index: Option<&File>| open(segment, index).unwrap_err().to_string();
    assert!(message(&own.segment, None).ends_with("It has a key and no index."));
    assert!(message(&own.segment, Some(&own.segment)).contains("It does not begin as an index does."));
    assert!(message(own.index.as_ref().unwrap(), None).contains("invalid segment"));
    // Those of others: of more rows, and of as many.
    for values in [0..1001, 1..1001, -1000..0] {
        let other = files(&numbers(values.collect()), &[0], 5);
        assert!(message(&own.segment, other.index.as_ref()).ends_with("It is that of another segment."));
    }
    assert!(message(&files(&rows, &[], 0).segment, own.index.as_ref()).ends_with("It is that of another segment."));
    let length = own.segment.metadata().unwrap().len();
    for cut in [0, 1, 9, 64, length / 2, length - 1] {
        let cut_off = files(&rows, &[0], 5);
        cut_off.segment.set_len(cut).unwrap();
        assert!(message(&cut_off.segment, cut_off.index.as_ref()).contains("invalid segment"), "{cut}");
        let index = cut_off.index.as_ref().unwrap();
        let length = index.metadata().unwrap().len();
        index.set_len(cut.min(length - 1)).unwrap();
        assert!(message(&own.segment, Some(index)).contains("invalid index"), "{cut}");
    }
    own.segment.set_len(shared_tables::segment::MOST_BYTES + 1).unwrap();
    assert_eq!(open(&own.segment, own.index.as_ref()).unwrap_err().kind(), Kind::OutOfRange);
    let (pipe, _other_end) = std::io::pipe().unwrap();
    for other in
        [File::open("/").unwrap(), File::open("/dev/null").unwrap(), File::from(std::os::fd::OwnedFd::from(pipe))]
    {
        assert!(message(&other, None).ends_with("It is not a regular file."));
        assert!(message(&files(&rows, &[0], 5).segment, Some(&other)).contains("invalid index"));
    }
    let path = tempfile::NamedTempFile::new().unwrap();
    let written = File::options().write(true).open(path.path()).unwrap();
    written.set_len(1000).unwrap();
    assert!(message(&written, None).starts_with("could not map the segment of a shared table: "));
}
