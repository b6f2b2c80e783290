//! What opening a segment of 1,000,000 rows, building its index and finding a row take: `cargo bench -p shared_tables`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use shared_tables::keys::Keys;
use shared_tables::segment::{Segment, SegmentWriter};
use shared_tables::store::{Begun, Store};

const ROWS: i64 = 1_000_000;
const REPEATS: usize = 5;

fn text_of(number: i64) -> String {
    format!("customer-{number:08}")
}

/// Prints the shortest of several times, per `count` units.
fn measure<T>(what: &str, unit: &str, count: f64, mut action: impl FnMut() -> T) -> T {
    let mut shortest = f64::INFINITY;
    let mut last = None;
    for _ in 0..REPEATS {
        drop(last.take());
        let start = Instant::now();
        last = Some(black_box(action()));
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    println!("{what:<44} {:>10.2} {unit}", shortest / count);
    last.expect("it was measured")
}

fn main() {
    // Keys in an order that has nothing to do with that of the rows.
    let shuffled = |row: i64| row * 611_953 % ROWS;
    let columns: [(&str, ArrayRef); 3] = [
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| text_of(shuffled(row)))))),
        ("int4", Arc::new(Int32Array::from_iter_values((0..ROWS).map(|row| row as i32)))),
        ("int8", Arc::new(Int64Array::from_iter_values((0..ROWS).map(shuffled)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let probed = (0..ROWS).map(|row| row * 378_551 % ROWS);
    let probes: [(usize, ArrayRef); 2] = [
        (2, Arc::new(Int64Array::from_iter_values(probed.clone()))),
        (0, Arc::new(StringArray::from_iter_values(probed.map(text_of)))),
    ];
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open(&folder.path().join("tables"), 1 << 30).unwrap();
    for (key, probe) in probes {
        println!("key: {}", batch.schema().field(key).name());
        let finished = measure("write", "ms", 1e-3, || {
            let mut writer = SegmentWriter::new(Vec::new(), &batch.schema(), &[key]).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap()
        });
        println!("{:<44} {:>10.2} MB", "segment", finished.bytes as f64 / 1e6);
        measure("begin, write, finish", "ms", 1e-3, || {
            store.remove(&finished.digest).unwrap();
            let Begun::Incoming(mut incoming) = store.begin(&finished.digest, finished.bytes).unwrap() else {
                panic!("nobody else loads it")
            };
            incoming.append(&finished.out).unwrap();
            incoming.finish().unwrap()
        });
        println!("{:<44} {:>10.2} MB", "segment and index", store.bytes().unwrap() as f64 / 1e6);
        let mut aligned = arrow_buffer::MutableBuffer::new(finished.out.len());
        aligned.extend_from_slice(&finished.out);
        let bytes: arrow_buffer::Buffer = aligned.into();
        let checked = measure("open with all checks", "ms", 1e-3, || Segment::open(bytes.clone()).unwrap());
        measure("build the index", "ms", 1e-3, || checked.build_index(finished.digest.seed()).unwrap());
        let segment = measure("get", "ms", 1e-3, || store.get(&finished.digest).unwrap().unwrap());
        let probe = Keys::new(&[probe]).unwrap();
        let found = measure("hash", "ns", ROWS as f64 * 1e-9, || {
            (0..ROWS as usize).map(|row| probe.hash(row, finished.digest.seed()).unwrap()).fold(0, u64::wrapping_add)
        });
        black_box(found);
        let found = measure("find, random keys", "ns", ROWS as f64 * 1e-9, || {
            (0..ROWS as usize).map(|row| segment.find(&probe.probe(row).unwrap()).len()).sum::<usize>()
        });
        assert_eq!(found as i64, ROWS);
        store.remove(&finished.digest).unwrap();
    }
}
