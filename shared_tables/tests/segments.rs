//! Segments of random rows: they are read as they were written, lookups find what a scan finds, and no damage to the bytes does more
//! than an error.

#[allow(dead_code, reason = "other tests use the rest")]
mod rows;

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray};
use arrow_ipc::writer::FileWriter;
use arrow_schema::Schema;
use arrow_select::concat::concat_batches;
use proptest::prelude::*;
use rows::{COLUMNS, aligned, batch, values, write};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_tables::index::Index;
use shared_tables::keys::Keys;
use shared_tables::segment::{KEY_METADATA, MOST_ROWS, ROWS_PER_BATCH, Segment, SegmentWriter};
use udf_types::error::Kind;

/// Of indexes.
const SEED: u64 = 0x0123_4567_89ab_cdef;
/// Set for a child of a test.
const CHILD: &str = "SHARED_TABLES_CHILD";

fn indexed(segment: Segment) -> Segment {
    let index = segment.build_index(SEED).unwrap().unwrap();
    segment.with_index(Index::open(aligned(&index)).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn lookups_find_what_a_scan_finds(
        rows in values(),
        probes in values(),
        key in prop::sample::subsequence((0..COLUMNS).collect::<Vec<_>>(), 1..4).prop_shuffle(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (rows, probes) = (batch(&rows), batch(&probes));
        // Batches that begin in the middle of others.
        let cut = cut.index(rows.num_rows() + 1);
        let parts = [rows.slice(0, cut), rows.slice(cut, rows.num_rows() - cut)];
        let segment = indexed(Segment::open(aligned(&write(&parts, &key))).unwrap());
        prop_assert_eq!(segment.key(), &key[..]);
        let keys_of = |batch: &RecordBatch| {
            Keys::new(&key.iter().map(|position| batch.column(*position).clone()).collect::<Vec<_>>()).unwrap()
        };
        let (held, probe) = (keys_of(&rows), keys_of(&probes));
        for row in 0..probes.num_rows() {
            let is_equal = |held_row: &u32| {
                key.iter().all(|position| {
                    let (one, two) = (rows.column(*position), probes.column(*position));
                    let equal = one.slice(*held_row as usize, 1).to_data() == two.slice(row, 1).to_data();
                    equal && two.is_valid(row)
                })
            };
            let expected: Vec<u32> = (0..rows.num_rows() as u32).filter(is_equal).collect();
            let key = probe.probe(row);
            prop_assert_eq!(key.as_ref().map(|key| key.hash(SEED)), probe.hash(row, SEED));
            prop_assert_eq!(key.map_or(Vec::new(), |key| segment.find(&key).to_vec()), &expected[..]);
            for held_row in 0..rows.num_rows() {
                prop_assert_eq!(held.equals(held_row, &probe, row), expected.contains(&(held_row as u32)));
            }
        }
    }

    #[test]
    fn damaged_bytes_are_an_error_or_other_rows(
        rows in values(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = write(&[batch(&rows)], &[7, 3]);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(length) = length {
            bytes.truncate(length.index(bytes.len()));
        }
        look_at(&bytes);
    }
}

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
        }
        assert!(format!("{batch:?}").len() > 10);
    }
    let Ok(Some(index)) = segment.build_index(SEED) else { return true };
    let segment = segment.with_index(Index::open(aligned(&index)).unwrap()).unwrap();
    for batch in segment.batches() {
        let columns: Vec<ArrayRef> = segment.key().iter().map(|position| batch.column(*position).clone()).collect();
        let keys = Keys::new(&columns).unwrap();
        (0..batch.num_rows()).for_each(|row| assert!(keys.probe(row).is_none_or(|key| !segment.find(&key).is_empty())));
    }
    true
}

#[test]
fn every_byte_of_the_footer_and_the_messages_may_be_wrong() {
    let rows: Vec<Option<u8>> = (0..20).map(|row| (row % 4 > 0).then_some(row)).collect();
    let bytes = write(&[batch(&rows)], &[7]);
    assert!(look_at(&bytes));
    let mut opened = 0;
    for place in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[place] = value;
            opened += usize::from(look_at(&changed));
        }
    }
    // Most bytes are padding and names.
    assert!(opened > 0 && opened < 5 * bytes.len());
    assert!((0..bytes.len()).all(|length| !look_at(&bytes[..length])));
}

#[test]
fn batches_are_cut_anew_and_lie_in_the_bytes() {
    let rows: Vec<Option<u8>> = (0..200_000_u32).map(|row| (row % 11 > 0).then_some((row % 251) as u8)).collect();
    let whole = batch(&rows);
    let mut parts = vec![whole.slice(0, 3), whole.slice(3, 0), whole.slice(3, 70_001), whole.slice(70_004, 65_532)];
    parts.push(whole.slice(135_536, 64_464));
    let bytes = aligned(&write(&parts, &[]));
    let segment = Segment::open(bytes.clone()).unwrap();
    let lengths: Vec<usize> = segment.batches().iter().map(RecordBatch::num_rows).collect();
    assert_eq!(lengths, [ROWS_PER_BATCH, ROWS_PER_BATCH, ROWS_PER_BATCH, 3392]);
    assert_eq!((segment.rows(), segment.key(), segment.place(65_536)), (200_000, &[][..], (1, 0)));
    assert!(segment.build_index(SEED).unwrap().is_none());
    let read = concat_batches(segment.schema(), segment.batches()).unwrap();
    assert_eq!(read.columns(), whole.columns());
    let range = bytes.as_ptr_range();
    let mut data: Vec<_> =
        segment.batches().iter().flat_map(RecordBatch::columns).map(|column| column.to_data()).collect();
    while let Some(one) = data.pop() {
        for buffer in one.buffers().iter().chain(one.nulls().map(|nulls| nulls.buffer())) {
            assert!(buffer.is_empty() || range.contains(&buffer.as_ptr()));
        }
        data.extend(one.child_data().to_vec());
    }
}

#[test]
fn only_segments_are_opened() {
    let rows = batch(&[Some(1), Some(2)]);
    let file = |batches: &[RecordBatch], key: &str| {
        let schema = Schema::new_with_metadata(
            batches[0].schema().fields().clone(),
            [(KEY_METADATA.to_string(), key.to_string())],
        );
        let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        Segment::open(aligned(&writer.into_inner().unwrap()))
    };
    assert_eq!(file(std::slice::from_ref(&rows), "3,2").unwrap().key(), [3, 2]);
    assert!(file(&[rows.clone(), rows.clone()], "").unwrap_err().to_string().contains("2 rows in batch 1"));
    assert!(file(&[rows.slice(0, 0)], "").is_err());
    for key in ["3,3", "13", "10", "-1", "a", "3,", ",", "99999999999999999999"] {
        assert!(file(std::slice::from_ref(&rows), key).is_err(), "{key}");
    }
    let views: ArrayRef = Arc::new(StringViewArray::from(vec!["a"]));
    let views = RecordBatch::try_from_iter([("v", views)]).unwrap();
    assert_eq!(file(std::slice::from_ref(&views), "").unwrap_err().kind(), Kind::UnsupportedType);
    assert!(SegmentWriter::new(Vec::new(), &views.schema(), &[]).is_err());
    assert!(SegmentWriter::new(Vec::new(), &rows.schema(), &[10]).is_err());
    let mut writer = SegmentWriter::new(Vec::new(), &rows.schema(), &[]).unwrap();
    assert!(writer.write(&rows.project(&[1, 0]).unwrap()).is_err());
}

#[test]
fn a_segment_may_have_no_rows_or_no_columns() {
    let segment = indexed(Segment::open(aligned(&write(&[batch(&[])], &[3]))).unwrap());
    assert_eq!((segment.rows(), segment.batches().len()), (0, 0));
    let probe = Keys::new(&[Arc::new(Int64Array::from(vec![1])) as ArrayRef]).unwrap();
    assert!(segment.find(&probe.probe(0).unwrap()).is_empty());
    let none = batch(&[Some(1); 3]).project(&[]).unwrap();
    assert_eq!(Segment::open(aligned(&write(&[none], &[]))).unwrap().rows(), 3);
}

#[test]
fn the_most_rows_are_written_and_read_and_no_more() {
    let rows: ArrayRef = Arc::new(BooleanArray::from(vec![true; ROWS_PER_BATCH]));
    let batch = RecordBatch::try_from_iter([("b", rows)]).unwrap();
    let mut writer = SegmentWriter::new(Vec::new(), &batch.schema(), &[]).unwrap();
    (0..MOST_ROWS / ROWS_PER_BATCH).for_each(|_| writer.write(&batch).unwrap());
    assert_eq!(writer.write(&batch.slice(0, 1)).unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(Segment::open(aligned(&writer.finish().unwrap().out)).unwrap().rows(), MOST_ROWS);
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    (0..MOST_ROWS / ROWS_PER_BATCH).for_each(|_| file.write(&batch).unwrap());
    file.write(&batch.slice(0, 1)).unwrap();
    assert_eq!(Segment::open(aligned(&file.into_inner().unwrap())).unwrap_err().kind(), Kind::OutOfRange);
}

#[test]
fn child_lacks_memory() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000_000));
    let keys: Vec<Keys> = (0..1_000_000)
        .step_by(ROWS_PER_BATCH)
        .map(|start| Keys::new(&[rows.slice(start, ROWS_PER_BATCH.min(1_000_000 - start))]).unwrap())
        .collect();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.strip_suffix("kB")).unwrap();
    let size: u64 = size.trim().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    // The index has 16 MiB. Its build takes 2.5 times as much at most, and the process more or less beside.
    for (more, is_enough) in [(0, false), (4, false), (12, false), (24, false), (64, true)] {
        let current = Some((size << 10) + (more << 20));
        setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
        match Index::build(&keys, SEED) {
            Ok(index) => assert!(is_enough && index.len() == 64 + (16 << 20), "{more} MiB"),
            Err(error) => assert!(!is_enough && error.kind() == Kind::OutOfMemory, "{more} MiB"),
        }
    }
}

#[test]
fn too_little_memory_for_an_index_is_an_error() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    // Each vector is mapped by itself, and not cut from what the process has mapped already.
    command.env("MALLOC_MMAP_THRESHOLD_", "65536").env("MALLOC_ARENA_MAX", "1");
    let output = command.args(["--exact", "child_lacks_memory"]).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}
