//! How much memory servers of Flight can make a client use, counted by an allocator of this binary's own: one test, since it
//! counts all. The servers are processes of their own, whose memory it does not count.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::StringViewBuilder;
use arrow_array::{
    ArrayRef, Int32Array, Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::{DataType, Field, Schema};
use peak_alloc::PeakAlloc;
use support::{MockContainer, Script, Verb};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::inbox::Reply;
use udf_client::transport::credentials::Credentials;
use udf_codec::arrow_ipc::{BatchEncoder, encode_schema};
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MB: usize = 1 << 20;
/// What a reply may have here.
const LIMIT: usize = 64 * MB;
/// What reading one may take beyond its columns: of the default limit of 256 MB, 200 MB.
const MOST_ABOVE: usize = LIMIT / 256 * 200;
/// What the library reads ahead, of a window of 16 MB, and its own.
const READ_AHEAD: usize = 24 * MB;

const FOLDER: &str = "FLIGHT_MEMORY_FOLDER";
const ANSWER: &str = "FLIGHT_MEMORY_ANSWER";

/// What a server answers.
struct Answer {
    name: &'static str,
    kind: FunctionKind,
    result: &'static str,
    dialect: Dialect,
    /// Whether it speaks this protocol.
    is_native: bool,
    messages: fn() -> Vec<FlightData>,
}

const NATIVE: Answer = Answer {
    name: "",
    kind: FunctionKind::Scalar,
    result: "text",
    dialect: Dialect::Transship,
    is_native: true,
    messages: Vec::new,
};
const FOREIGN: Answer = Answer { is_native: false, ..NATIVE };
const PUT_GET: Answer = Answer { dialect: Dialect::PutGet, ..FOREIGN };

const TEXT: Answer = Answer { name: "text", messages: || vec![of_text(47 * MB)], ..NATIVE };
const LARGER_TEXT: Answer = Answer { name: "larger text", messages: || vec![of_text(60 * MB)], ..NATIVE };
const NUMBERS: Answer =
    Answer { name: "numbers", result: "int8[]", messages: || vec![message(vec![numbers(30 * MB)])], ..NATIVE };
const SAME_NUMBERS: Answer =
    Answer { name: "same numbers", result: SIXTEEN_LISTS, messages: || vec![of_same_numbers()], ..NATIVE };
const FEW_VIEWS: Answer = Answer { name: "few views", messages: || vec![message(vec![views(2)])], ..FOREIGN };
const MANY_VIEWS: Answer = Answer { name: "many views", messages: || vec![message(vec![views(800)])], ..FOREIGN };
// Nothing of it is looked at but its schema.
const DICTIONARY: Answer = Answer { name: "dictionary", messages: || vec![of_text(1)], ..FOREIGN };
const PUT: Answer = Answer { name: "put", messages: || vec![message(vec![large_text(4 * MB, 1)]); 2], ..PUT_GET };
const PUT_MORE: Answer =
    Answer { name: "put more", messages: || vec![message(vec![large_text(4 * MB, 1)]); 9], ..PUT_GET };
const PUT_VIEWS: Answer = Answer { name: "put views", messages: || vec![message(vec![views(800)])], ..PUT_GET };
const DESCRIPTOR: Answer = Answer { name: "descriptor", messages: || vec![of_many_names()], ..NATIVE };
const SEVERAL: Answer = Answer { name: "several", messages: || vec![of_text(30 * MB)], ..NATIVE };
const PARTS: Answer = Answer {
    name: "parts",
    kind: FunctionKind::Table,
    // All of them are of the same row, since none goes back.
    messages: || vec![message(vec![Arc::new(Int32Array::from(vec![1, 1])), text(30 * MB)]); 12],
    ..NATIVE
};
const ANSWERS: [Answer; 13] = [
    TEXT,
    LARGER_TEXT,
    NUMBERS,
    SAME_NUMBERS,
    FEW_VIEWS,
    MANY_VIEWS,
    DICTIONARY,
    PUT,
    PUT_MORE,
    PUT_VIEWS,
    DESCRIPTOR,
    SEVERAL,
    PARTS,
];

const SIXTEEN_LISTS: &str = "(a int8[], b int8[], c int8[], d int8[], e int8[], f int8[], g int8[], h int8[], i int8[], \
                             j int8[], k int8[], l int8[], m int8[], n int8[], o int8[], p int8[])";

fn signature(answer: &Answer) -> Signature {
    let argument = Argument { name: "x".into(), ty: Type::Int8 };
    let signature = Signature::scalar("f", vec![argument], Type::from_name(answer.result).unwrap());
    Signature { kind: answer.kind, ..signature }
}

fn message(columns: Vec<ArrayRef>) -> FlightData {
    let batch = RecordBatch::try_from_iter(columns.into_iter().map(|column| ("x", column))).unwrap();
    BatchEncoder::default().encode(&batch).unwrap()
}

/// Two texts, one of which is empty.
fn text(bytes: usize) -> ArrayRef {
    Arc::new(StringArray::from(vec!["x".repeat(bytes), String::new()]))
}

fn of_text(bytes: usize) -> FlightData {
    message(vec![text(bytes)])
}

fn large_text(bytes: usize, rows: usize) -> ArrayRef {
    Arc::new(LargeStringArray::from(vec!["x".repeat(bytes); rows]))
}

/// Two lists, one of which is empty.
fn numbers(bytes: usize) -> ArrayRef {
    let elements = Arc::new(Int64Array::from(vec![7; bytes / 8]));
    let offsets = OffsetBuffer::from_lengths([elements.len(), 0]);
    Arc::new(ListArray::new(Arc::new(Type::Int8.field("item")), offsets, elements, None))
}

/// Lists all of whose elements are the same bytes, which lie where no number should.
fn of_same_numbers() -> FlightData {
    let ty = Type::from_name(SIXTEEN_LISTS).unwrap();
    let parts: Vec<ArrayRef> = (0..16).map(|part| numbers(if part == 0 { 20 * MB } else { 8 })).collect();
    let fields: Vec<Field> = ty.attributes().iter().map(|part| part.ty.field(&part.name)).collect();
    let mut message = message(vec![Arc::new(StructArray::new(fields.into(), parts, None))]);
    let header = message.data_header.to_vec();
    let parsed = arrow_ipc::root_as_message(&header).unwrap().header_as_record_batch().unwrap();
    let places: Vec<(i64, i64)> = parsed.buffers().unwrap().iter().map(|it| (it.offset(), it.length())).collect();
    let bytes = |(offset, length): (i64, i64)| [offset.to_le_bytes(), length.to_le_bytes()].concat();
    let (start, length) = *places.iter().max_by_key(|(_, length)| length).unwrap();
    let same = bytes((start + 4, length - 8));
    let mut patched = header.clone();
    // Of each list: validity and offsets, and of its elements validity and values.
    for place in places.iter().skip(1 + 3).step_by(4) {
        let at = header.windows(16).position(|window| window == bytes(*place)).unwrap();
        patched[at..at + 16].copy_from_slice(&same);
    }
    message.data_header = patched.into();
    message
}

/// Two texts, beside 10 MB of names that are empty, of which each takes 24 bytes of memory and two of the message.
fn of_many_names() -> FlightData {
    of_text(100_000).with_descriptor(FlightDescriptor::new_path(vec![String::new(); 5 * MB]))
}

/// Texts of 1 MB that are all the same bytes.
fn views(rows: u32) -> ArrayRef {
    let mut builder = StringViewBuilder::new();
    let block = builder.append_block(Buffer::from(vec![b'x'; MB]));
    for _ in 0..rows {
        builder.try_append_view(block, 0, MB as u32).unwrap();
    }
    Arc::new(builder.finish())
}

/// The schema of a message's columns, which are those of the answer's type but for some.
fn schema_of(answer: &Answer) -> FlightData {
    let ty = match answer.name {
        "few views" | "many views" | "put views" => DataType::Utf8View,
        "put" | "put more" => DataType::LargeUtf8,
        "dictionary" => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        _ => {
            let types = signature(answer).reply_types();
            return encode_schema(&Schema::new(types.iter().map(|ty| ty.field("x")).collect::<Vec<_>>()));
        }
    };
    encode_schema(&Schema::new(vec![Field::new("x", ty, true)]))
}

/// Not a test, but the server of the one below.
#[test]
#[ignore = "is started by the other test"]
fn serve() {
    let (Ok(folder), Ok(name)) = (std::env::var(FOLDER), std::env::var(ANSWER)) else { return };
    let answer = ANSWERS.into_iter().find(|answer| answer.name == name).unwrap();
    let signature = signature(&answer);
    let hello = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;
    let hello = answer.is_native.then(|| hello.to_string());
    let (opening, messages, kind) = (schema_of(&answer), (answer.messages)(), answer.kind);
    let script: Script = Arc::new(move |mut calls, answers| {
        let (opening, messages) = (opening.clone(), messages.clone());
        Box::pin(async move {
            if matches!(calls.verb, Verb::Put | Verb::Score) {
                while calls.next().await.is_some() {}
                return;
            }
            let _ = answers.send(Ok(opening));
            let is_put_get = calls.next().await.is_none();
            loop {
                let last = messages.len() - 1;
                for (number, message) in messages.iter().cloned().enumerate() {
                    let more = kind == FunctionKind::Table && number < last;
                    let metadata = if more { r#"{"more": true}"# } else { "{}" };
                    let _ = answers.send(Ok(message.with_app_metadata(metadata)));
                }
                if is_put_get || calls.next().await.is_none() {
                    return;
                }
            }
        })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        MockContainer { hello, signature, script }.start(Path::new(&folder));
        // Until the client ends it, or has forgotten to.
        tokio::time::sleep(Duration::from_secs(600)).await;
    });
}

struct Stage {
    folder: tempfile::TempDir,
    server: Child,
    client: Client,
    answer: Answer,
}

impl Stage {
    fn new(answer: Answer) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["serve", "--exact", "--ignored"])
            .env(FOLDER, folder.path())
            .env(ANSWER, answer.name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !folder.path().join("flight.sock").exists() {
            assert!(server.try_wait().unwrap().is_none(), "the server has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = Client::start().unwrap();
        client.limit_replies(LIMIT);
        Stage { folder, server, client, answer }
    }

    fn open(&self) -> Exchange {
        let socket = self.folder.path().join("flight.sock");
        let remote = Remote::parse(&format!("unix:{}", socket.display()), self.answer.dialect).unwrap();
        self.client.open(Arc::new(Call {
            target: Target::Remote { remote, credentials: Credentials::default() },
            transport: TransportName::Auto,
            signature: signature(&self.answer),
            volatility: Volatility::Volatile,
            batch_timeout: Duration::from_secs(120),
            start_timeout: Duration::from_secs(20),
            tables: Vec::new(),
        }))
    }

    /// The replies to one batch, and the most memory that they took.
    fn ask(&self) -> (Result<Vec<Reply>>, usize) {
        let mut exchange = self.open();
        measure(|| {
            batches(&self.answer, 1).into_iter().for_each(|batch| exchange.send(batch));
            exchange.receive(&PlainHost).map(|reply| vec![reply])
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn batches(answer: &Answer, count: usize) -> Vec<CallBatch> {
    let mut builder = BatchBuilder::new(&signature(answer));
    let mut make = |_| {
        for value in 0..2 {
            let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
            column.append_value(value);
            builder.finish_row();
        }
        builder.finish_batch()
    };
    (0..count).map(&mut make).collect()
}

fn measure<T>(work: impl FnOnce() -> T) -> (T, usize) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let outcome = work();
    (outcome, ALLOCATOR.peak_usage() - before)
}

#[test]
fn replies_over_flight_cost_what_their_rows_need() {
    // Replies that are read: bytes of their rows, and what may be taken beside.
    for (answer, needed, above) in [
        // It is not copied.
        (TEXT, 47 * MB, MOST_ABOVE / 2),
        (NUMBERS, 30 * MB, MOST_ABOVE),
        (FEW_VIEWS, 2 * MB, 20 * MB),
        (PUT, 8 * MB, MOST_ABOVE),
    ] {
        let stage = Stage::new(answer);
        let (replies, peak) = stage.ask();
        println!("{}: {} kB for {} kB", stage.answer.name, peak >> 10, needed >> 10);
        let reply = &replies.unwrap()[0];
        assert!(reply.bytes_needed >= needed && reply.columns.num_rows() == 2, "{}", stage.answer.name);
        assert!(peak < needed + above, "{}: {peak} bytes for {needed}", stage.answer.name);
    }
    for (answer, kind, most) in [
        (LARGER_TEXT, Kind::OutOfMemory, READ_AHEAD),
        (SAME_NUMBERS, Kind::ProtocolViolation, 20 * MB + READ_AHEAD),
        (MANY_VIEWS, Kind::OutOfMemory, 20 * MB),
        (DICTIONARY, Kind::BadResult, 10 * MB),
        (PUT_MORE, Kind::OutOfMemory, 16 * MB + READ_AHEAD),
        (PUT_VIEWS, Kind::OutOfMemory, 20 * MB),
        (DESCRIPTOR, Kind::ProtocolViolation, 10 * MB + READ_AHEAD),
    ] {
        let stage = Stage::new(answer);
        let (outcome, peak) = stage.ask();
        let error = outcome.unwrap_err();
        println!("{}: {} kB: {error}", stage.answer.name, peak >> 10);
        assert_eq!(error.kind(), kind, "{}: {error:?}", stage.answer.name);
        assert!(peak < most, "{}: {peak} bytes", stage.answer.name);
    }
    // Replies to several batches, and the parts of one, wait until the engine takes those before.
    for (answer, count) in [(SEVERAL, 8), (PARTS, 1)] {
        let stage = Stage::new(answer);
        let mut exchange = stage.open();
        let (replies, peak) = measure(|| {
            batches(&stage.answer, count).into_iter().for_each(|batch| exchange.send(batch));
            // All that may come comes before the first is taken.
            std::thread::sleep(Duration::from_secs(2));
            let mut replies = 0;
            while exchange.in_flight() > 0 {
                exchange.receive(&PlainHost).unwrap();
                replies += 1;
            }
            replies
        });
        println!("{}: {replies} replies of 30 MB: {} kB", stage.answer.name, peak >> 10);
        assert!(replies >= 8);
        // All of them are 240 MB and more.
        assert!(peak < 200 * MB, "{}: {peak} bytes", stage.answer.name);
    }
}
