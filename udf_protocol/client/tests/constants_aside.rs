//! Constants over Flight (docs/protocol.md §4.10) and in JSON (§6): what travels, and what a server gets that does not take them, one of
//! another dialect among them.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_flight::decode::DecodedPayload;
use futures_util::StreamExt;
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_codec::batch::CallBatch;
use udf_codec::constants::Constants;
use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_project::remote::Remote;
use udf_types::Result;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

use support::{MockContainer, reply, schema_of, table_reply};

const MODEL_BYTES: usize = 100_000;
const SIZE: i64 = MODEL_BYTES as i64;

fn signature(kind: FunctionKind) -> Signature {
    let argument = |name: &str, ty| Argument { name: name.into(), ty };
    let arguments = vec![argument("x", Type::Int8), argument("model", Type::Bytea)];
    Signature { kind, ..Signature::scalar("f", arguments, Type::Int8) }
}

fn model(byte: u8) -> ArrayRef {
    Arc::new(BinaryArray::from_vec(vec![&[byte; MODEL_BYTES]]))
}

/// A batch with a constant, or with a model of its own in each row.
fn batch(number: u64, values: &[i64], model: Option<&ArrayRef>) -> CallBatch {
    let signature = signature(FunctionKind::Scalar);
    let constants = Constants::new(model.map(|model| (1, model.clone())).into_iter().collect());
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values.to_vec()))];
    if model.is_none() {
        columns.push(Arc::new(BinaryArray::from_iter_values((1..=values.len()).map(|size| vec![0; size]))));
    }
    let schema = Arc::new(constants.schema_of_others(&signature.call_schema()));
    CallBatch { constants, ..CallBatch::new(number, RecordBatch::try_new(schema, columns).unwrap()) }
}

/// What a server was told: a stream with or without constants, a constant, or a batch of so many rows, and the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Stream { with_constants: bool },
    Constant { is_large: bool },
    Batch { rows: usize, is_large: bool },
}

const OPENED: Told = Told::Stream { with_constants: true };
const PLAIN: Told = Told::Stream { with_constants: false };
const CONSTANT: Told = Told::Constant { is_large: true };

fn told(rows: usize) -> Told {
    Told::Batch { rows, is_large: false }
}

fn flight(folder: &Path, kind: FunctionKind, constants: bool) -> (Endpoint, Arc<Mutex<Vec<Told>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = log.clone();
    let functions = signature(kind);
    let offered = functions.clone();
    let server = MockContainer {
        hello: Some(json!({"protocol": 1, "server": "mock", "constants": constants}).to_string()),
        signature: functions,
        script: Arc::new(move |calls, answers| {
            let (note, signature) = (note.clone(), offered.clone());
            Box::pin(async move {
                let seen = note.clone();
                let mut messages = calls.into_decoder(move |message| {
                    let header = arrow_ipc::root_as_message(&message.data_header).unwrap().header_type();
                    if header == arrow_ipc::MessageHeader::DictionaryBatch {
                        assert!(message.app_metadata.is_empty());
                        seen.lock().unwrap().push(Told::Constant { is_large: message.data_body.len() >= MODEL_BYTES });
                    }
                });
                let _ = answers.send(Ok(schema_of(&signature)));
                while let Some(Ok(message)) = messages.next().await {
                    let is_large = message.inner.data_body.len() >= MODEL_BYTES;
                    let batch = match message.payload {
                        DecodedPayload::None => continue,
                        DecodedPayload::Schema(schema) => {
                            let with_constants = schema
                                .fields()
                                .iter()
                                .any(|field| matches!(field.data_type(), arrow_schema::DataType::Dictionary(..)));
                            note.lock().unwrap().push(Told::Stream { with_constants });
                            continue;
                        }
                        DecodedPayload::RecordBatch(batch) => batch,
                    };
                    note.lock().unwrap().push(Told::Batch { rows: batch.num_rows(), is_large });
                    let size = |row: usize| match batch.column(1).as_dictionary_opt::<Int8Type>() {
                        Some(constant) => {
                            assert_eq!((constant.values().len(), constant.keys().value(row)), (1, 0));
                            constant.values().as_binary::<i32>().value(0).len()
                        }
                        None => batch.column(1).as_binary::<i32>().value(row).len(),
                    };
                    let x = batch.column(0).as_primitive::<Int64Type>();
                    let sums: Vec<i64> = (0..batch.num_rows()).map(|row| x.value(row) + size(row) as i64).collect();
                    let metadata = String::from_utf8(message.inner.app_metadata.to_vec()).unwrap();
                    let answer = match signature.kind {
                        FunctionKind::Table => {
                            table_reply(&signature, (0..sums.len() as i32).collect(), sums, &metadata)
                        }
                        _ => reply(&signature, sums.into_iter().map(Some).collect(), &metadata),
                    };
                    let _ = answers.send(Ok(answer));
                }
            })
        }),
    };
    (Endpoint::FlightUnix(server.start(folder)), log)
}

struct Caller {
    client: Client,
    call: Arc<Call>,
    _folder: tempfile::TempDir,
}

impl Caller {
    fn new(
        remote: impl Into<Remote>,
        transport: TransportName,
        kind: FunctionKind,
        folder: tempfile::TempDir,
    ) -> Caller {
        let call = Call {
            target: Target::Remote { remote: remote.into(), credentials: Default::default() },
            transport,
            signature: signature(kind),
            volatility: Volatility::Stable,
            batch_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        };
        Caller { client: Client::start().unwrap(), call: Arc::new(call), _folder: folder }
    }

    fn open(&self) -> Exchange {
        self.client.open(self.call.clone())
    }
}

fn receive(exchange: &mut Exchange) -> Result<Vec<i64>> {
    let reply = exchange.receive(&PlainHost)?;
    let last = reply.columns.num_columns() - 1;
    Ok(reply.columns.column(last).as_primitive::<Int64Type>().values().to_vec())
}

fn over_flight(kind: FunctionKind, constants: bool) -> (tokio::runtime::Runtime, Caller, Arc<Mutex<Vec<Told>>>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (endpoint, log) = runtime.block_on(async { flight(folder.path(), kind, constants) });
    (runtime, Caller::new(endpoint, TransportName::Flight, kind, folder), log)
}

#[test]
fn a_constant_travels_once_per_stream() {
    for kind in [FunctionKind::Scalar, FunctionKind::Table] {
        let (_runtime, caller, log) = over_flight(kind, true);
        let (first, second) = (model(1), model(2));
        for _ in 0..2 {
            let mut exchange = caller.open();
            for (number, model) in [&first, &first, &second, &second, &first].into_iter().enumerate() {
                exchange.send(batch(number as u64, &[1, 2, 3], Some(model)));
            }
            for _ in 0..5 {
                assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2, SIZE + 3]);
                assert!(exchange.takes_constants());
            }
            let said = std::mem::take(&mut *log.lock().unwrap());
            let expected = [OPENED, CONSTANT, told(3), told(3), CONSTANT, told(3), told(3), CONSTANT, told(3)];
            assert_eq!(said, expected);
        }
    }
}

#[test]
fn another_stream_takes_columns_that_are_no_constants_any_more() {
    for kind in [FunctionKind::Scalar, FunctionKind::Table] {
        let (_runtime, caller, log) = over_flight(kind, true);
        let model = model(1);
        let mut exchange = caller.open();
        for (number, model) in [Some(&model), Some(&model), None, None].into_iter().enumerate() {
            exchange.send(batch(number as u64, &[10, 20], model));
        }
        for expected in [[SIZE + 10, SIZE + 20], [SIZE + 10, SIZE + 20], [11, 22], [11, 22]] {
            assert_eq!(receive(&mut exchange).unwrap(), expected);
        }
        let said = std::mem::take(&mut *log.lock().unwrap());
        assert_eq!(said, [OPENED, CONSTANT, told(2), told(2), PLAIN, told(2), told(2)]);
        // In such a stream a constant is a column like others.
        exchange.send(batch(4, &[5], Some(&model)));
        assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 5]);
        assert_eq!(*log.lock().unwrap(), [Told::Batch { rows: 1, is_large: true }]);
    }
}

#[test]
fn a_flight_server_that_does_not_take_constants_gets_whole_columns() {
    let (_runtime, caller, log) = over_flight(FunctionKind::Scalar, false);
    let mut exchange = caller.open();
    for number in 0..2 {
        exchange.send(batch(number, &[1, 2], Some(&model(1))));
        assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2]);
        assert!(!exchange.takes_constants());
    }
    let whole = Told::Batch { rows: 2, is_large: true };
    assert_eq!(*log.lock().unwrap(), [PLAIN, whole.clone(), whole]);
}

/// A server of columns in JSON, which notes the requests.
fn over_json(constants: bool) -> (Caller, Arc<Mutex<Vec<Value>>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = log.clone();
    std::thread::spawn(move || {
        for stream in std::iter::from_fn(|| listener.accept().ok()) {
            let note = note.clone();
            std::thread::spawn(move || {
                serve_json(&stream.0, |is_greeting, body| answer_in_json(is_greeting, body, constants, &note))
            });
        }
    });
    (Caller::new(Endpoint::JsonUnix(path), TransportName::Json, FunctionKind::Scalar, folder), log)
}

/// Answers the greeting and the requests of a connection.
fn serve_json<S>(stream: &S, answer: impl Fn(bool, &[u8]) -> Value) -> Option<()>
where
    for<'a> &'a S: Read + Write,
{
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        let is_greeting = line.starts_with("GET /v1 ");
        while line.trim() != "" {
            line.clear();
            reader.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let answer = answer(is_greeting, &body).to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", answer.len());
        { stream }.write_all(&[head.as_bytes(), answer.as_bytes()].concat()).ok()?;
    }
}

/// How many bytes a text in base64 stands for.
fn decoded_length(text: &Value) -> i64 {
    (text.as_str().unwrap().trim_end_matches('=').len() * 3 / 4) as i64
}

fn answer_in_json(is_greeting: bool, body: &[u8], constants: bool, note: &Mutex<Vec<Value>>) -> Value {
    if is_greeting {
        return json!({"protocol": 1, "server": "s", "functions": ["f"], "transports": ["json"], "constants": constants});
    }
    let request: Value = serde_json::from_slice(body).unwrap();
    let texts = request["columns"][1].as_array().unwrap();
    let sums = request["columns"][0].as_array().unwrap().iter().enumerate().map(|(row, x)| {
        let text = if texts.len() == 1 { &texts[0] } else { &texts[row] };
        x.as_i64().unwrap() + decoded_length(text)
    });
    let answer = json!({"batch": request["batch"], "rows": request["rows"], "columns": [sums.collect::<Vec<_>>()]});
    note.lock().unwrap().push(request);
    answer
}

#[test]
fn in_json_a_constant_is_one_value() {
    for constants in [true, false] {
        let (caller, log) = over_json(constants);
        let mut exchange = caller.open();
        for number in 0..3 {
            exchange.send(batch(number, &[1, 2], Some(&model(1))));
            assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2]);
            assert_eq!(exchange.takes_constants(), constants);
        }
        for request in log.lock().unwrap().iter() {
            let said = (request.get("constants").cloned(), request["columns"][1].as_array().unwrap().len());
            assert_eq!(said, if constants { (Some(json!([1])), 1) } else { (None, 2) });
        }
    }
}

/// The answer of a server of a dialect, which finds both arguments in each row.
fn answer_in_dialect(dialect: Dialect, body: &[u8]) -> Value {
    let request: Value = serde_json::from_slice(body).unwrap();
    let number = |value: &Value| value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap();
    let sums = |rows: &Value, first: usize| -> Vec<i64> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| match row.get("x") {
            Some(x) => number(x) + decoded_length(&row["model"]),
            // Snowflake's bytes are in hexadecimal.
            None if dialect == Dialect::Snowflake => number(&row[1]) + row[2].as_str().unwrap().len() as i64 / 2,
            None => number(&row[first]) + decoded_length(&row[first + 1]),
        })
        .collect()
    };
    let numbered = || -> Vec<Value> {
        sums(&request["data"], 1).into_iter().enumerate().map(|(row, sum)| json!([row, sum])).collect()
    };
    match dialect {
        Dialect::Snowflake | Dialect::Singlestore => json!({"data": numbered()}),
        Dialect::Redshift => json!({"success": true, "results": sums(&request["arguments"], 0)}),
        Dialect::Bigquery => json!({"replies": sums(&request["calls"], 0)}),
        Dialect::Mlflow => json!({"predictions": sums(&request["dataframe_split"]["data"], 0)}),
        Dialect::MlflowRecords => json!({"predictions": sums(&request["dataframe_records"], 0)}),
        Dialect::MlflowInputs => {
            let (x, models) = (&request["inputs"]["x"], &request["inputs"]["model"]);
            let rows = x.as_array().unwrap().iter().zip(models.as_array().unwrap());
            json!({"predictions": rows.map(|(x, model)| number(x) + decoded_length(model)).collect::<Vec<_>>()})
        }
        Dialect::MlflowSplit | Dialect::AzureMl => json!(sums(&request["data"], 0)),
        _ => json!(sums(&request, 0)),
    }
}

#[test]
fn in_each_dialect_a_constant_stands_in_every_row() {
    for dialect in [
        Dialect::Snowflake,
        Dialect::Singlestore,
        Dialect::Redshift,
        Dialect::Bigquery,
        Dialect::Mlflow,
        Dialect::MlflowRecords,
        Dialect::MlflowInputs,
        Dialect::MlflowSplit,
        Dialect::Array,
        Dialect::AzureMl,
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in std::iter::from_fn(|| listener.accept().ok()) {
                std::thread::spawn(move || serve_json(&stream.0, |_, body| answer_in_dialect(dialect, body)));
            }
        });
        let remote = Remote::parse(&endpoint, dialect).unwrap();
        let caller = Caller::new(remote, TransportName::Json, FunctionKind::Scalar, tempfile::tempdir().unwrap());
        let mut exchange = caller.open();
        for (number, rows) in [vec![1, 2], vec![3], vec![4, 5, 6]].into_iter().enumerate() {
            exchange.send(batch(number as u64, &rows, Some(&model(1))));
            let expected: Vec<i64> = rows.iter().map(|x| x + SIZE).collect();
            assert_eq!(receive(&mut exchange).unwrap(), expected, "{}", dialect.name());
            assert!(!exchange.takes_constants());
        }
    }
}
