//! The processes that decode files: what they read, what they say of files that are broken, and what they may not do.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, ListArray, RecordBatch, StringArray, TimestampNanosecondArray,
    UInt32Array,
};
use arrow_ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use udf_client::channel::{Channel, path_beside};
use udf_client::file_rows::{FileRows, SUFFIX};
use udf_client::host::PlainHost;
use udf_types::types::Type;
use udf_types::{Kind, Result};

/// A manager.
struct Manager {
    process: Child,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_transshipd"))
            .env("TRANSSHIP_SOCKET", folder.path().join("m.sock"))
            .env("TRANSSHIP_STATE_DIR", folder.path().join("state"))
            .env("TRANSSHIP_RUN_DIR", folder.path().join("r"))
            .env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"))
            .env("TRANSSHIP_RUNTIME", "process")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let manager = Manager { process, folder };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !path_beside(&manager.socket(), SUFFIX).exists() {
            assert!(Instant::now() < deadline, "the manager listens");
            sleep(Duration::from_millis(10));
        }
        manager
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    fn open(&self, bytes: &[u8]) -> Result<FileRows> {
        let path = self.folder.path().join("file");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        FileRows::open(&PlainHost, &self.socket(), File::open(&path).unwrap().as_fd(), "file")
    }

    /// Columns, and rows.
    fn read(&self, bytes: &[u8]) -> Result<(Vec<Type>, Vec<RecordBatch>)> {
        let mut rows = self.open(bytes)?;
        let types = rows.columns().iter().map(|(_, ty)| ty.clone()).collect();
        let mut batches = Vec::new();
        while let Some(batch) = rows.next(&PlainHost)? {
            batches.push(batch);
        }
        Ok((types, batches))
    }

    fn decoders(&self) -> Vec<i32> {
        let manager = self.process.id();
        let mut found = Vec::new();
        for task in fs::read_dir(format!("/proc/{manager}/task")).unwrap().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        found
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn parquet_of(batch: &RecordBatch, compression: Compression) -> Vec<u8> {
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn batch_of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

fn sample(rows: i32) -> RecordBatch {
    let texts: DictionaryArray<Int32Type> =
        (0..rows).map(|i| (i % 3 > 0).then_some(["x", "größe"][i as usize % 2])).collect();
    let instants = (0..i64::from(rows)).map(|i| i * 1000);
    batch_of(vec![
        ("number", Arc::new(Int32Array::from_iter((0..rows).map(|i| (i % 5 > 0).then_some(i))))),
        ("text", Arc::new(texts)),
        ("unsigned", Arc::new(UInt32Array::from_iter_values((0..rows as u32).map(|i| u32::MAX - i)))),
        ("instant", Arc::new(TimestampNanosecondArray::from_iter_values(instants).with_timezone("Europe/Berlin"))),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>((0..rows).map(|i| Some(vec![Some(i), None])))),
        ),
    ])
}

#[test]
fn both_kinds_of_files_have_the_same_rows() {
    let (manager, sample) = (Manager::new(), sample(20_000));
    let files =
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default()), Compression::LZ4_RAW]
            .map(|compression| parquet_of(&sample, compression));
    for file in files.into_iter().chain([parquet_of(&sample, Compression::GZIP(Default::default())), arrow_of(&sample)])
    {
        let (types, batches) = manager.read(&file).unwrap();
        assert_eq!(types, [Type::Int4, Type::Text, Type::Int8, Type::TimestampTz, Type::Array(Arc::new(Type::Int4))]);
        let mut row = 0;
        for batch in &batches {
            let numbers = batch.column(0).as_primitive::<Int32Type>();
            let texts: &StringArray = batch.column(1).as_string();
            let instants = batch.column(3).as_primitive::<TimestampMicrosecondType>();
            for i in 0..batch.num_rows() {
                assert_eq!(numbers.is_valid(i).then(|| numbers.value(i)), (row % 5 > 0).then_some(row));
                assert_eq!(
                    texts.is_valid(i).then(|| texts.value(i)),
                    (row % 3 > 0).then_some(["x", "größe"][row as usize % 2])
                );
                assert_eq!(instants.value(i), i64::from(row));
                row += 1;
            }
        }
        assert_eq!(row, 20_000);
    }
    // None is left.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !manager.decoders().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", manager.decoders());
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_decoded_is_an_error() {
    let manager = Manager::new();
    let whole = parquet_of(&sample(1000), Compression::SNAPPY);
    let nanoseconds = batch_of(vec![("a", Arc::new(TimestampNanosecondArray::from_iter_values([1])) as ArrayRef)]);
    let durations =
        batch_of(vec![("a", Arc::new(arrow_array::DurationSecondArray::from_iter_values([1])) as ArrayRef)]);
    for (file, kind, fact) in [
        (b"".to_vec(), Kind::OutOfRange, "neither"),
        (b"a,b\n1,2\n".to_vec(), Kind::OutOfRange, "neither"),
        (b"PAR1PAR1".to_vec(), Kind::OutOfRange, "broken"),
        (b"ARROW1\0\0".to_vec(), Kind::OutOfRange, "broken"),
        (whole[..whole.len() - 9].to_vec(), Kind::OutOfRange, "broken"),
        (parquet_of(&nanoseconds, Compression::UNCOMPRESSED), Kind::OutOfRange, "Rows 1 to 1 of column \"a\""),
        (arrow_of(&durations), Kind::UnsupportedType, "Column \"a\""),
    ] {
        let error = manager.read(&file).unwrap_err();
        assert_eq!(error.message(), "could not read file \"file\"");
        assert!(error.kind() == kind && error.detail().unwrap().contains(fact), "{error} {:?}", error.detail());
    }
    // Anything may be wrong with it, and nothing may be read that is not in it.
    for position in (4..whole.len()).step_by(whole.len() / 150) {
        let mut broken = whole.clone();
        broken[position] ^= 0xff;
        if let Err(error) = manager.read(&broken) {
            assert_ne!(error.kind(), Kind::ProtocolViolation, "{error} {:?}", error.detail());
        }
    }
    // Another file after all of them.
    assert_eq!(manager.read(&whole).unwrap().1.iter().map(RecordBatch::num_rows).sum::<usize>(), 1000);
}

/// A column of one text, which is in the file once.
fn repeated(text: &str, times: usize) -> RecordBatch {
    let texts: DictionaryArray<Int32Type> = [text].into_iter().collect();
    let keys = Int32Array::from(vec![0; times]);
    batch_of(vec![("a", Arc::new(DictionaryArray::new(keys, texts.values().clone())) as ArrayRef)])
}

#[test]
fn long_texts_are_decoded_a_few_at_a_time() {
    let (manager, text) = (Manager::new(), "x".repeat(8 << 20));
    let mut rows = manager.open(&arrow_of(&repeated(&text, 100))).unwrap();
    let mut count = 0;
    while let Some(batch) = rows.next(&PlainHost).unwrap() {
        assert!(batch.column(0).as_string::<i32>().iter().all(|found| found == Some(&text)));
        count += batch.num_rows();
    }
    assert_eq!(count, 100);
}

#[test]
fn a_file_that_needs_too_much_memory_ends_its_decoder_alone() {
    let manager = Manager::new();
    let file = parquet_of(&repeated(&"x".repeat(200_000), 8192), Compression::ZSTD(Default::default()));
    let error = manager.read(&file).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory, "{error} {:?}", error.detail());
    assert_eq!(manager.read(&parquet_of(&sample(1), Compression::SNAPPY)).unwrap().1.len(), 1);
}

#[test]
fn a_decoder_ends_with_its_client_and_reads_files_alone() {
    let manager = Manager::new();
    let rows = manager.open(&parquet_of(&sample(2_000_000), Compression::SNAPPY)).unwrap();
    assert_eq!(manager.decoders().len(), 1);
    let decoder = manager.decoders()[0];
    let status = fs::read_to_string(format!("/proc/{decoder}/status")).unwrap();
    let says = |name: &str, value: &str| {
        status
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim_start_matches(':').trim() == value))
    };
    assert!(says("Seccomp", "2") && says("NoNewPrivs", "1"), "{status}");
    if nix::unistd::Uid::effective().is_root() {
        assert!(says("Uid", "65534\t65534\t65534\t65534") && says("Groups", ""), "{status}");
    }
    drop(rows);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !manager.decoders().is_empty() {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(10));
    }
    // A pipe never ends, a folder has no bytes, and a message without a file is none.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let folder = File::open("/tmp").unwrap();
    for file in [pipe.as_fd(), folder.as_fd()] {
        assert!(FileRows::open(&PlainHost, &manager.socket(), file, "file").is_err());
    }
    let channel = Channel::connect_beside(&manager.socket(), SUFFIX).unwrap();
    channel.send(b"x").unwrap();
    while channel.receive().is_err_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock) {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(10));
    }
    assert_eq!(manager.open(&arrow_of(&sample(3))).unwrap().columns().len(), 5);
}
