//! The processes that decode files: what they read, what they say of files that are broken, and what they may not do.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, FixedSizeBinaryArray, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, TimestampNanosecondArray, UInt32Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::Schema;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::data_type::{FixedLenByteArray, FixedLenByteArrayType, Int96, Int96Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use udf_client::channel::{Channel, path_beside};
use udf_client::file_rows::{FileRows, Message, SUFFIX};
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
            .stderr(File::create(folder.path().join("log")).unwrap())
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

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
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
    let nanosecond = |at: i64| Arc::new(TimestampNanosecondArray::from_iter_values([at])) as ArrayRef;
    let encoded = |at: i64| {
        let column = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(0), None]), nanosecond(at));
        arrow_of(&batch_of(vec![("a", Arc::new(column) as ArrayRef)]))
    };
    let durations =
        batch_of(vec![("a", Arc::new(arrow_array::DurationSecondArray::from_iter_values([1])) as ArrayRef)]);
    for (file, kind, fact) in [
        (b"".to_vec(), Kind::OutOfRange, "neither"),
        (b"a,b\n1,2\n".to_vec(), Kind::OutOfRange, "neither"),
        (b"PAR1PAR1".to_vec(), Kind::OutOfRange, "broken"),
        (b"ARROW1\0\0".to_vec(), Kind::OutOfRange, "broken"),
        (whole[..whole.len() - 9].to_vec(), Kind::OutOfRange, "broken"),
        (parquet_of(&nanoseconds, Compression::UNCOMPRESSED), Kind::OutOfRange, "Rows 1 to 1 of column \"a\""),
        (arrow_of(&batch_of(vec![("a", nanosecond(1001))])), Kind::OutOfRange, "Rows 1 to 1 of column \"a\""),
        (encoded(1001), Kind::OutOfRange, "of column \"a\""),
        (arrow_of(&durations), Kind::UnsupportedType, "Column \"a\""),
    ] {
        let error = manager.read(&file).unwrap_err();
        assert_eq!(error.message(), "could not read file \"file\"");
        assert!(error.kind() == kind && error.detail().unwrap().contains(fact), "{error} {:?}", error.detail());
    }
    // Its author's texts command no terminal, and end.
    let name = "\u{1b}[2J".repeat(10_000);
    let named = batch_of(vec![(&name, durations.column(0).clone())]);
    let error = manager.read(&arrow_of(&named)).unwrap_err();
    let detail = error.detail().unwrap();
    assert!(detail.contains("u{1b}") && detail.len() < 100_000 && !detail.contains('\u{1b}'), "{detail}");
    let (types, batches) = manager.read(&encoded(1000)).unwrap();
    let found: Vec<_> = batches.iter().flat_map(|b| b.column(0).as_primitive::<TimestampMicrosecondType>()).collect();
    assert_eq!((types, found), (vec![Type::Timestamp], vec![Some(1), None]));
    // Anything may be wrong with it, and nothing may be read that is not in it.
    for position in (4..whole.len()).step_by(whole.len() / 150) {
        let mut broken = whole.clone();
        broken[position] ^= 0xff;
        if let Err(error) = manager.read(&broken) {
            assert_ne!(error.kind(), Kind::ProtocolViolation, "{error} {:?}", error.detail());
            assert!(!error.detail().unwrap().ends_with(".."), "{error} {:?}", error.detail());
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
    let deadline = Instant::now() + Duration::from_secs(20);
    while !manager.log().contains("died of SIGABRT") {
        assert!(Instant::now() < deadline, "{}", manager.log());
        sleep(Duration::from_millis(10));
    }
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
    assert_eq!(fs::read_link(format!("/proc/{decoder}/fd/2")).unwrap(), PathBuf::from("/dev/null"));
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

#[test]
fn a_decoder_ends_whose_client_reads_no_more() {
    let flags = SocketFlags::CLOEXEC;
    let (client, served) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (client, manager) = (Channel::from(client), std::process::id().to_string());
    let mut decoder = Command::new(env!("CARGO_BIN_EXE_transshipd"));
    let mut decoder = decoder.args(["decode-file", &manager, "1"]).stdin(served).spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, parquet_of(&sample(200_000), Compression::SNAPPY)).unwrap();
    client.send_with_file(&[], File::open(&path).unwrap().as_fd()).unwrap();
    // Who reads slowly is waited for.
    for _ in 0..3 {
        assert!(client.receive().unwrap().is_some());
        sleep(Duration::from_millis(500));
        assert!(decoder.try_wait().unwrap().is_none());
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while decoder.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            decoder.kill().unwrap();
            panic!("the decoder waits for a client that reads nothing");
        }
        sleep(Duration::from_millis(10));
    }
}

/// The file with other numbers of rows: that of the file, and that of its only group.
fn miscounted(file: &[u8], rows: u64, of_file: i64, of_group: i64) -> Vec<u8> {
    // Thrift's numbers, which are longer here than they must be.
    let number = |value: i64| {
        let bits = (value << 1 ^ value >> 63) as u64;
        [bits as u8 | 0x80, u8::try_from(bits >> 7).unwrap()]
    };
    let mut file = file.to_vec();
    let end = file.len() - 8;
    let start = end - u32::from_le_bytes(file[end..end + 4].try_into().unwrap()) as usize;
    let is_rows = |at: &usize| file[*at] == 0x16 && file[at + 1..at + 3] == number(rows as i64);
    let places: Vec<usize> = (start..end - 3).filter(is_rows).collect();
    for (at, value) in [(places[0], of_file), (places[places.len() - 1], of_group)] {
        file[at + 1..at + 3].copy_from_slice(&number(value));
    }
    file
}

#[test]
fn a_file_that_miscounts_its_rows_is_refused() {
    let (manager, rows) = (Manager::new(), 4660);
    let count = |(_, batches): (_, Vec<RecordBatch>)| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    for columns in [&[1][..], &[0, 1, 3, 4]] {
        let file = parquet_of(&sample(rows).project(columns).unwrap(), Compression::UNCOMPRESSED);
        let with = |of_file: i64, of_group: i64| manager.read(&miscounted(&file, rows as u64, of_file, of_group));
        assert_eq!(with(4660, 4660).map(count).unwrap(), 4660);
        for (of_file, of_group) in
            [(0, 4660), (4659, 4660), (4661, 4660), (-1, 4660), (-1, -1), (4661, 4661), (4659, 4659)]
        {
            let error = with(of_file, of_group).map(count).unwrap_err();
            let detail = error.detail().unwrap();
            assert!(error.kind() == Kind::OutOfRange && detail.starts_with("It is broken: "), "{error} {detail}");
        }
    }
}

#[test]
fn rows_of_several_groups_are_complete() {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(7)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), sample(1).schema(), Some(properties)).unwrap();
    writer.write(&sample(100)).unwrap();
    let (_, batches) = Manager::new().read(&writer.into_inner().unwrap()).unwrap();
    let rows = batches.iter().flat_map(|batch| batch.column(3).as_primitive::<TimestampMicrosecondType>());
    assert!(rows.eq((0..100).map(Some)));
}

#[test]
fn narrow_rows_come_many_at_a_time() {
    let manager = Manager::new();
    let numbers = |columns: i64, rows: i64| {
        let names: Vec<String> = (0..columns).map(|i| i.to_string()).collect();
        let column = |i: i64| Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row ^ i))) as ArrayRef;
        batch_of(names.iter().zip(0..).map(|(name, i)| (name.as_str(), column(i))).collect())
    };
    let (narrow, wide) = (numbers(3, 1_000_000), numbers(64, 100_000));
    for (file, whole) in [(arrow_of(&narrow), narrow), (parquet_of(&wide, Compression::UNCOMPRESSED), wide)] {
        let batches = manager.read(&file).unwrap().1;
        assert!(batches.len() < 500, "{}", batches.len());
        let mut start = 0;
        for batch in batches {
            assert!(batch.columns() == whole.slice(start, batch.num_rows()).columns());
            start += batch.num_rows();
        }
        assert_eq!(start, whole.num_rows());
    }
}

/// A Parquet file of a column, as the format's own types.
fn column_of<T: parquet::data_type::DataType>(column: &str, values: &[T::T]) -> Vec<u8> {
    let schema = parse_message_type(&format!("message m {{ {column} }}")).unwrap();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut cells = group.next_column().unwrap().unwrap();
    cells.typed::<T>().write_batch(values, Some(&vec![1; values.len()]), None).unwrap();
    cells.close().unwrap();
    group.close().unwrap();
    file.into_inner().unwrap()
}

#[test]
fn uuids_of_both_kinds_of_files_are_read() {
    let manager = Manager::new();
    let values: Vec<[u8; 16]> = (0..10).map(|i| [i; 16]).collect();
    let column: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(values.iter()).unwrap());
    let schema = Arc::new(Schema::new(vec![Type::Uuid.field("a")]));
    let arrow = arrow_of(&RecordBatch::try_new(schema, vec![column.clone()]).unwrap());
    let bytes: Vec<_> = values.iter().map(|value| FixedLenByteArray::from(value.to_vec())).collect();
    let parquet = column_of::<FixedLenByteArrayType>("optional fixed_len_byte_array(16) a (UUID);", &bytes);
    for file in [arrow, parquet] {
        let (types, batches) = manager.read(&file).unwrap();
        assert_eq!(types, [Type::Uuid]);
        let found = batches.iter().flat_map(|batch| batch.column(0).as_fixed_size_binary().iter().flatten());
        assert!(found.eq(values.iter()));
    }
    // Other bytes of that length are none.
    let plain = batch_of(vec![("a", column)]);
    for file in [arrow_of(&plain), parquet_of(&plain, Compression::UNCOMPRESSED)] {
        assert_eq!(manager.read(&file).unwrap_err().kind(), Kind::UnsupportedType);
    }
}

#[test]
fn clients_that_say_nothing_stop_nobody() {
    let manager = Manager::new();
    let connect = || Channel::connect_beside(&manager.socket(), SUFFIX).unwrap();
    let file = arrow_of(&sample(3));
    let silent: Vec<Channel> = (0..6).map(|_| connect()).collect();
    let start = Instant::now();
    assert_eq!(manager.read(&file).unwrap().1.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    // Too many of them are sent away, and the others after a while.
    let more: Vec<Channel> = (0..80).map(|_| connect()).collect();
    let deadline = start + Duration::from_secs(25);
    let first_word = |channel: &Channel| loop {
        match channel.receive() {
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "a silent client is kept");
                sleep(Duration::from_millis(10));
            }
            other => return other.unwrap(),
        }
    };
    let last = first_word(&more[79]).expect("a reason");
    assert!(matches!(Message::from_bytes(&last), Ok(Message::Failed { kind: Kind::Busy, .. })));
    let error = manager.read(&file).unwrap_err();
    assert!(matches!(error.kind(), Kind::Busy | Kind::Unreachable), "{error} {:?}", error.detail());
    assert!(silent.iter().all(|channel| first_word(channel).is_none()));
    assert!(first_word(&more[0]).is_none());
    assert!(manager.decoders().is_empty());
    assert!(manager.read(&file).is_ok());
}

#[test]
fn instants_of_96_bits_are_read_of_any_year() {
    let manager = Manager::new();
    let epoch = 2_440_588;
    let instant = |day: i64, nanos: u32| {
        let mut value = Int96::new();
        value.set_data(nanos, 0, u32::try_from(epoch + day).unwrap());
        value
    };
    // Of 1600, 1969, 1970 and 2500.
    let days = [-135_140, -1, 0, 193_580];
    let file = column_of::<Int96Type>("optional int96 a;", &days.map(|day| instant(day, 5000)));
    let (types, batches) = manager.read(&file).unwrap();
    assert_eq!(types, [Type::Timestamp]);
    let found = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<TimestampMicrosecondType>());
    assert!(found.eq(days.map(|day| Some(day * 86_400_000_000 + 5))));
    for day in days {
        let error = manager.read(&column_of::<Int96Type>("optional int96 a;", &[instant(day, 5001)])).unwrap_err();
        assert!(error.detail().unwrap().contains("fractions of a microsecond"), "{:?}", error.detail());
    }
}
