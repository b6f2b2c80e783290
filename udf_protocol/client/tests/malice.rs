//! Servers that mean harm, beside the liars of `dialogue.rs`, `columns.rs`, `memory.rs` and `flight_memory.rs`: each ends in one
//! error, before its time is over, and without the memory that it announces.

mod support;

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_flight::FlightData;
use arrow_flight::flight_service_server::FlightServiceServer;
use arrow_ipc::root_as_message;
use arrow_schema::{Field, Schema};
use serde_json::{Value, json};
use support::{Answers, MockContainer, Script, schema_of, table_reply};
use tonic::codec::CompressionEncoding;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::{Host, PlainHost};
use udf_client::transport::credentials::Credentials;
use udf_codec::arrow_ipc::{BatchEncoder, encode_schema};
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_codec::columns::{Layout, ReplyHeader, decode_reply};
use udf_codec::wire::COLUMNS;
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Error, Kind};

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;
/// What a batch waits for its answer here, and no test much longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same of one whose time is to be over.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
const GZIP: CompressionEncoding = CompressionEncoding::Gzip;
const LIMIT: usize = 8 << 20;

fn signature(kind: FunctionKind, result: &str) -> Signature {
    let arguments = vec![Argument { name: "x".into(), ty: Type::Int8 }];
    Signature { kind, ..Signature::scalar("f", arguments, Type::from_name(result).unwrap()) }
}

fn two_calls(signature: &Signature) -> CallBatch {
    let mut builder = BatchBuilder::new(signature);
    for value in 0..2 {
        let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
        column.append_value(value);
        builder.finish_row();
    }
    builder.finish_batch()
}

fn open(client: &Client, endpoint: Endpoint, transport: TransportName, signature: Signature) -> Exchange {
    open_within(PATIENCE, client, endpoint, transport, signature)
}

fn open_within(
    batch_timeout: Duration,
    client: &Client,
    endpoint: Endpoint,
    transport: TransportName,
    signature: Signature,
) -> Exchange {
    let is_compressed = transport == TransportName::Auto;
    client.limit_replies(LIMIT);
    client.open(Arc::new(Call {
        target: Target::Remote {
            remote: endpoint.into(),
            credentials: Credentials { compression: is_compressed, ..Credentials::default() },
        },
        transport,
        signature,
        volatility: Volatility::Volatile,
        batch_timeout,
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }))
}

fn error_of(exchange: &mut Exchange, calls: CallBatch) -> Error {
    let begun = Instant::now();
    exchange.send(calls);
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert!(begun.elapsed() < PATIENCE, "{error}");
    error
}

fn said(error: &Error) -> String {
    format!("{} {}", error.message(), error.detail().unwrap_or_default())
}

/// A Flight server, and its runtime.
fn serve(
    signature: Signature,
    is_compressed: bool,
    answer: impl Fn(&Answers) + Send + Sync + 'static,
) -> (Endpoint, tokio::runtime::Runtime) {
    let answer = Arc::new(answer);
    let script: Script = Arc::new(move |mut calls, answers| {
        let answer = answer.clone();
        Box::pin(async move {
            if calls.next().await.is_some() {
                answer(&answers);
                // The stream stays open, so that only what was said decides.
                let _ = calls.next().await;
            }
        })
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mock = MockContainer { hello: Some(HELLO.to_string()), signature, script };
    let authority = runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let service = FlightServiceServer::new(mock);
        let service = if is_compressed { service.send_compressed(GZIP).accept_compressed(GZIP) } else { service };
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));
        authority
    });
    (Endpoint::FlightTcp(authority), runtime)
}

fn flight_error(signature: &Signature, answer: impl Fn(&Answers) + Send + Sync + 'static) -> Error {
    let (endpoint, _runtime) = serve(signature.clone(), false, answer);
    let client = Client::start().unwrap();
    error_of(&mut open(&client, endpoint, TransportName::Flight, signature.clone()), two_calls(signature))
}

fn message(column: ArrayRef) -> [FlightData; 2] {
    let batch = RecordBatch::try_from_iter_with_nullable([("f", column, true)]).unwrap();
    [encode_schema(&batch.schema()), BatchEncoder::default().encode(&batch).unwrap()]
}

/// Two texts, of which `buffer` says that it lies elsewhere, and a `body` that was changed.
fn texts(
    buffer: Option<(usize, i64, i64)>,
    node: Option<(i64, i64)>,
    change: impl Fn(&mut Vec<u8>, usize),
) -> FlightData {
    let [_, mut message] = message(Arc::new(StringArray::from(vec!["ab", "cd"])));
    let mut header = message.data_header.to_vec();
    let read = root_as_message(&message.data_header).unwrap().header_as_record_batch().unwrap();
    let place = |number: usize| {
        let buffer = read.buffers().unwrap().get(number);
        (buffer.offset(), buffer.length())
    };
    let mut replace = |old: (i64, i64), new: (i64, i64)| {
        let bytes = |(a, b): (i64, i64)| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let old = bytes(old);
        let at = header.windows(16).rposition(|window| window == old).unwrap();
        header[at..at + 16].copy_from_slice(&bytes(new));
    };
    if let Some((number, offset, length)) = buffer {
        replace(place(number), (offset, length));
    }
    if let Some(new) = node {
        replace((2, 0), new);
    }
    let mut body = message.data_body.to_vec();
    change(&mut body, place(1).0 as usize);
    (message.data_header, message.data_body) = (header.into(), body.into());
    message
}

#[test]
fn messages_of_flight_that_lie_are_errors() {
    let text = signature(FunctionKind::Scalar, "text");
    let keep = |_: &mut Vec<u8>, _: usize| {};
    let write = |number: usize, value: i32| {
        move |body: &mut Vec<u8>, offsets: usize| {
            body[offsets + 4 * number..offsets + 4 * number + 4].copy_from_slice(&value.to_le_bytes());
        }
    };
    for (what, lie) in [
        ("offsets that descend", texts(None, None, write(1, 5))),
        ("an offset below zero", texts(None, None, write(0, -1))),
        ("an offset behind the end", texts(None, None, write(2, 1 << 20))),
        ("the last offset", texts(None, None, write(2, i32::MAX))),
        ("no UTF-8", texts(None, None, |body, offsets| body[offsets + 64..].fill(0xff))),
        (
            "a character in two",
            texts(None, None, |body, offsets| {
                body[offsets + 64..offsets + 68].copy_from_slice("aéx".as_bytes());
            }),
        ),
        ("ten gigabytes", texts(Some((2, 0, 10 << 30)), None, keep)),
        ("a length below zero", texts(Some((2, 0, -4)), None, keep)),
        ("an offset of a buffer below zero", texts(Some((1, -8, 12)), None, keep)),
        ("the end of all numbers", texts(Some((1, i64::MAX, i64::MAX)), None, keep)),
        ("rows without end", texts(None, Some((i64::MAX, 0)), keep)),
        ("rows below zero", texts(None, Some((-1, 0)), keep)),
        ("more NULLs than rows", texts(None, Some((2, 1 << 40)), keep)),
        ("one row of two", texts(None, Some((1, 0)), keep)),
        ("no batch", FlightData { data_body: vec![0; 64].into(), ..encode_schema(&Schema::empty()) }),
        ("no message", FlightData { data_header: vec![0x7f; 64].into(), ..FlightData::default() }),
    ] {
        let opening = schema_of(&text);
        let error = flight_error(&text, move |answers| {
            let _ = answers.send(Ok(opening.clone()));
            let _ = answers.send(Ok(lie.clone()));
        });
        assert_eq!(error.kind(), Kind::ProtocolViolation, "{what}: {error}");
    }
}

#[test]
fn other_types_and_schemas_are_errors() {
    let scalar = signature(FunctionKind::Scalar, "text");
    let table = signature(FunctionKind::Table, "int8");
    let texts = || -> ArrayRef { Arc::new(StringArray::from(vec!["ab", "cd"])) };
    let encoded = DictionaryArray::new(Int32Array::from(vec![0, 0]), texts());
    let encoded = Schema::new(vec![Field::new("f", encoded.data_type().clone(), true)]);
    let [right, batch] = message(texts());
    let [of_numbers, numbers] = message(Arc::new(Int64Array::from(vec![1, 2])));
    // The result comes before the numbers of its rows.
    let turned = RecordBatch::try_from_iter_with_nullable([
        ("f", Arc::new(Int64Array::from(vec![1])) as ArrayRef, true),
        ("row", Arc::new(Int32Array::from(vec![0])) as ArrayRef, true),
    ]);
    let turned = turned.unwrap();
    let turned = [encode_schema(&turned.schema()), BatchEncoder::default().encode(&turned).unwrap()];
    let dictionary = [encode_schema(&encoded), batch.clone()];
    for (what, signature, messages, kind) in [
        ("numbers", &scalar, vec![of_numbers.clone(), numbers.clone()], Kind::BadResult),
        ("numbers without their schema", &scalar, vec![right.clone(), numbers.clone()], Kind::ProtocolViolation),
        ("a dictionary", &scalar, dictionary.to_vec(), Kind::BadResult),
        ("columns in another order", &table, turned.to_vec(), Kind::BadResult),
        ("a batch before its schema", &scalar, vec![batch.clone(), right.clone()], Kind::ProtocolViolation),
    ] {
        let error = flight_error(signature, move |answers| {
            messages.iter().for_each(|message| drop(answers.send(Ok(message.clone()))));
        });
        assert_eq!(error.kind(), kind, "{what}: {error}");
    }
    // The first reply is right; then comes another schema.
    let (endpoint, _runtime) = serve(scalar.clone(), false, move |answers| {
        for message in [&right, &batch, &of_numbers, &numbers] {
            let _ = answers.send(Ok(message.clone()));
        }
    });
    let client = Client::start().unwrap();
    let mut exchange = open(&client, endpoint, TransportName::Flight, scalar.clone());
    exchange.send(two_calls(&scalar));
    exchange.send(CallBatch { number: 1, ..two_calls(&scalar) });
    assert_eq!(exchange.receive(&PlainHost).unwrap().columns.num_rows(), 2);
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert_eq!(error.kind(), Kind::ProtocolViolation, "{error}");
}

#[test]
fn messages_without_end_do_not_put_off_the_deadline() {
    let text = signature(FunctionKind::Scalar, "text");
    let opening = schema_of(&text);
    let (endpoint, _runtime) = serve(text.clone(), false, move |answers| {
        let (answers, opening) = (answers.clone(), opening.clone());
        std::thread::spawn(move || {
            let mut is_there = answers.send(Ok(opening)).is_ok();
            while is_there {
                std::thread::sleep(Duration::from_millis(5));
                is_there = answers.send(Ok(FlightData::default().with_app_metadata("{\"batch\": 0}"))).is_ok();
            }
        });
    });
    let client = Client::start().unwrap();
    let mut exchange = open_within(SHORT_PATIENCE, &client, endpoint, TransportName::Flight, text.clone());
    let error = error_of(&mut exchange, two_calls(&text));
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
}

#[test]
fn parts_without_rows_do_not_keep_an_engine_from_ending_its_wait() {
    /// An engine whose user gives up after so many looks.
    struct Impatient(Cell<u32>);
    impl Host for Impatient {
        fn wait(&self, doorbell: BorrowedFd<'_>, timeout: Duration) -> udf_types::Result<()> {
            PlainHost.wait(doorbell, timeout)
        }

        fn check(&self) -> udf_types::Result<()> {
            self.0.set(self.0.get().checked_sub(1).ok_or_else(Error::cancelled)?);
            Ok(())
        }
    }
    let table = signature(FunctionKind::Table, "int8");
    let messages = [schema_of(&table), table_reply(&table, Vec::new(), Vec::new(), r#"{"batch": 0, "more": true}"#)];
    let (endpoint, _runtime) = serve(table.clone(), false, move |answers| {
        let parts = std::iter::repeat_n(&messages[1], 1000);
        messages[..1].iter().chain(parts).for_each(|message| drop(answers.send(Ok(message.clone()))));
    });
    let client = Client::start().unwrap();
    let mut exchange = open(&client, endpoint, TransportName::Flight, table.clone());
    exchange.send(two_calls(&table));
    assert!(exchange.receive(&Impatient(Cell::new(500))).unwrap_err().is_cancelled());
}

#[test]
fn what_is_compressed_counts_as_what_it_becomes() {
    let text = signature(FunctionKind::Scalar, "text");
    let [opening, bomb] = message(Arc::new(StringArray::from(vec!["\0".repeat(24 << 20), String::new()])));
    let (endpoint, _runtime) = serve(text.clone(), true, move |answers| {
        let _ = answers.send(Ok(opening.clone()));
        let _ = answers.send(Ok(bomb.clone()));
    });
    let client = Client::start().unwrap();
    let error = error_of(&mut open(&client, endpoint, TransportName::Auto, text.clone()), two_calls(&text));
    assert_eq!(error.kind(), Kind::OutOfMemory, "{error}");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"{\"columns\":[[\"").unwrap();
    packed.write_all(&vec![b'x'; 24 << 20]).unwrap();
    packed.write_all(b"\",null]]}").unwrap();
    let packed = packed.finish().unwrap();
    let endpoint = serve_http(move |stream| {
        let length = packed.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), &packed].concat())
    });
    let error = error_of(&mut open(&client, endpoint, TransportName::Auto, text.clone()), two_calls(&text));
    assert_eq!(error.kind(), Kind::OutOfMemory, "{error}");
}

/// A server that answers each request over HTTP as it likes, and keeps the connection.
fn serve_http(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut reader = BufReader::new(stream.try_clone()?);
                loop {
                    let (mut line, mut length, mut is_greeting) = (String::new(), 0, false);
                    while reader.read_line(&mut line)? > 2 {
                        is_greeting |= line.starts_with("GET /v1 ");
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    reader.read_exact(&mut vec![0; length])?;
                    if is_greeting {
                        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{HELLO}", HELLO.len())?;
                        continue;
                    }
                    answer(&mut stream)?;
                    // Until the client ends it.
                    let _ = reader.read(&mut [0]);
                    return Ok(());
                }
            });
        }
    });
    Endpoint::JsonTcp(authority)
}

#[test]
fn answers_over_http_that_lie_about_their_length_are_errors() {
    type Lie = fn(&mut TcpStream) -> std::io::Result<()>;
    fn drip(stream: &mut TcpStream, piece: &[u8]) -> std::io::Result<()> {
        loop {
            stream.write_all(piece)?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let (json, socket) = (TransportName::Json, TransportName::Socket);
    let lies: [(&str, TransportName, &str, Kind, Lie); 13] = [
        ("the same text in every column", socket, "(a text, b text, c text, d text)", Kind::OutOfMemory, |stream| {
            let text = 4 << 20;
            let places = [0, 0, 0, 12, 64, text].repeat(4);
            let buffers: Vec<usize> = [0, 0].into_iter().chain(places).collect();
            let header = json!({"rows": 2, "buffers": buffers}).to_string();
            let mut body = [&(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat();
            body.resize(body.len().next_multiple_of(8), 0);
            body.extend([0, text as i32, text as i32].into_iter().flat_map(i32::to_le_bytes));
            body.resize(body.len() + 52, 0);
            body.resize(body.len() + text, b'x');
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: {length}\r\n\r\n")?;
            stream.write_all(&body)
        }),
        ("ten gigabytes that do not come", json, "text", Kind::Timeout, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n{{\"columns\":[[\"")
        }),
        ("ten gigabytes of columns that do not come", socket, "text", Kind::OutOfMemory, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: 10737418240\r\n\r\n")
        }),
        ("ten gigabytes of numbers", socket, "int8", Kind::ProtocolViolation, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: 10737418240\r\n\r\n")
        }),
        ("more than there are numbers for", socket, "int8", Kind::ProtocolViolation, |stream| {
            let length = "9".repeat(40);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: {length}\r\n\r\n")
        }),
        ("less than nothing", socket, "int8", Kind::ProtocolViolation, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: -1\r\n\r\n")
        }),
        ("chunks without end", json, "text", Kind::OutOfMemory, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
            loop {
                stream.write_all(&chunk)?;
            }
        }),
        ("a body without end", json, "text", Kind::OutOfMemory, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[b' '; 0x10000])?;
            }
        }),
        ("a body in drops", json, "text", Kind::Timeout, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
            drip(stream, b" ")
        }),
        ("a head in drops", json, "text", Kind::Timeout, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nX: ")?;
            drip(stream, b"x")
        }),
        ("columns in drops", socket, "text", Kind::Timeout, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {COLUMNS}\r\nContent-Length: 1000000\r\n\r\n")?;
            drip(stream, b" ")
        }),
        ("their head in drops", socket, "text", Kind::Timeout, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nX: ")?;
            drip(stream, b"x")
        }),
        ("bytes that are no text", json, "text", Kind::ProtocolViolation, |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{{\"columns\":[[\"a\",\"")?;
            stream.write_all(b"\xff\xfe\"]]}")
        }),
    ];
    for (what, transport, result, kind, lie) in lies {
        let client = Client::start().unwrap();
        let signature = signature(FunctionKind::Scalar, result);
        let patience = if kind == Kind::Timeout { SHORT_PATIENCE } else { PATIENCE };
        let mut exchange = open_within(patience, &client, serve_http(lie), transport, signature.clone());
        let error = error_of(&mut exchange, two_calls(&signature));
        assert_eq!(error.kind(), kind, "{what}: {}", said(&error));
    }
}

/// Two rows of columns, whose buffers `data` has as they are given: each at the next multiple of 64.
fn columns(result: &str, header: Value, buffers: &[&[u8]]) -> Result<RecordBatch, String> {
    let (mut data, mut places) = (Vec::new(), Vec::new());
    for buffer in buffers {
        data.resize(data.len().next_multiple_of(64), 0);
        places.extend([data.len(), buffer.len()]);
        data.extend_from_slice(buffer);
    }
    let mut header = header;
    header["buffers"] = places.into();
    let header: ReplyHeader = serde_json::from_value(header).unwrap();
    let call = Layout::of(&[], &RecordBatch::new_empty(Schema::empty().into()));
    decode_reply(&signature(FunctionKind::Scalar, result), &header, &Buffer::from(data), &call)
}

#[test]
fn columns_in_memory_that_lie_are_errors() {
    let numbers = |numbers: &[i32]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_le_bytes()).collect() };
    let two = json!({"rows": 2});
    let encoded = |size: usize| json!({"rows": 2, "dictionaries": [0, size]});
    let right = columns("text", two.clone(), &[&[], &numbers(&[0, 1, 3]), b"abc"]).unwrap();
    assert_eq!(right.column(0).as_ref(), &StringArray::from(vec!["a", "bc"]));
    let right = columns("text", encoded(1), &[&[], &numbers(&[0, 0]), &numbers(&[0, 3]), b"abc"]);
    assert_eq!(right.unwrap().column(0).len(), 2);
    for (what, result, header, buffers) in [
        ("descend", "text", &two, vec![vec![], numbers(&[0, 3, 1]), b"abc".to_vec()]),
        ("descend", "text", &two, vec![vec![], numbers(&[-1, 1, 3]), b"abc".to_vec()]),
        ("", "text", &two, vec![vec![], numbers(&[0, 1, i32::MAX]), b"abc".to_vec()]),
        ("", "text", &two, vec![vec![], numbers(&[0, 1, 3]), b"a\xff\xff".to_vec()]),
        ("", "text", &two, vec![vec![], numbers(&[0, 1, 3]), "éa".as_bytes().to_vec()]),
        ("", "bytea", &two, vec![vec![], numbers(&[0, 1, 4]), b"abc".to_vec()]),
        ("bytes, not", "int8[]", &two, vec![vec![], numbers(&[0, 1, i32::MAX]), vec![], vec![0; 64]]),
        ("bytes, not", "int8[][]", &two, vec![vec![], numbers(&[0, 1, 2]), vec![], numbers(&[0, 1]), vec![]]),
        ("bytes, not", "int4", &json!({"rows": 9}), vec![vec![0], vec![0; 36]]),
        ("", "text", &encoded(1), vec![vec![], numbers(&[0, 1]), numbers(&[0, 3]), b"abc".to_vec()]),
        ("", "text", &encoded(1), vec![vec![], numbers(&[0, -1]), numbers(&[0, 3]), b"abc".to_vec()]),
        ("", "text", &encoded(0), vec![vec![], numbers(&[0, 0]), vec![], vec![]]),
        ("too many rows", "text", &encoded(usize::MAX), vec![vec![], numbers(&[0, 0]), vec![], vec![]]),
        ("bytes, not", "text", &encoded(1 << 40), vec![vec![], numbers(&[0, 0]), vec![0; 64], vec![]]),
        ("dictionary", "int8", &encoded(1), vec![vec![], vec![0; 16]]),
        ("dictionary", "text", &json!({"rows": 2, "dictionaries": [0]}), vec![]),
        ("dictionary", "text", &json!({"rows": 2, "dictionaries": [7, 1]}), vec![]),
    ] {
        let buffers: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let fact = columns(result, header.clone(), &buffers).unwrap_err();
        assert!(fact.contains(what) && fact.ends_with('.'), "{result} {header}: {fact}");
    }
}
