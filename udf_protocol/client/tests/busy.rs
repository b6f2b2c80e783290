//! Servers that have no room for another call, streams that nobody needs, and answers that are not gRPC.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::Int64Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use support::{MockContainer, Script, reply, schema_of, table_reply};
use tonic::Status;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::Kind;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;
const THREADS: usize = 32;

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

fn open(client: &Client, endpoint: &Endpoint, kind: FunctionKind, volatility: Volatility) -> Exchange {
    open_for(client, endpoint, kind, volatility, Duration::from_secs(20))
}

fn open_for(
    client: &Client,
    endpoint: &Endpoint,
    kind: FunctionKind,
    volatility: Volatility,
    batch_timeout: Duration,
) -> Exchange {
    client.open(Arc::new(Call {
        target: Target::Remote { remote: endpoint.clone().into(), credentials: Credentials::default() },
        transport: TransportName::Auto,
        signature: Signature { kind, ..signature() },
        volatility,
        batch_timeout,
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }))
}

fn send(exchange: &mut Exchange, builder: &mut BatchBuilder, value: i64) {
    let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
    column.append_value(value);
    builder.finish_row();
    exchange.send(builder.finish_batch());
}

fn answer(exchange: &mut Exchange) -> i64 {
    exchange.receive(&PlainHost).unwrap().columns.column(0).as_primitive::<Int64Type>().value(0)
}

/// A runtime with a Flight server on it.
fn serve(script: Script, kind: FunctionKind) -> (tokio::runtime::Runtime, Endpoint) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let signature = Signature { kind, ..signature() };
    let mock = MockContainer { hello: Some(HELLO.to_string()), signature, script };
    let authority = runtime.block_on(mock.start_tcp());
    (runtime, Endpoint::FlightTcp(authority))
}

/// A server that has so many threads, each of which a stream takes until it ends, and adds one.
fn with_threads(threads: usize) -> (Script, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let running = open.clone();
    let script: Script = Arc::new(move |mut calls, answers| {
        let running = running.clone();
        Box::pin(async move {
            if running.fetch_add(1, SeqCst) >= threads {
                let _ = answers.send(Err(Status::resource_exhausted("Server Threadpool Exhausted")));
            } else {
                let _ = answers.send(Ok(schema_of(&signature())));
                while let Some((batch, metadata)) = calls.next().await {
                    let values: &Int64Array = batch.column(0).as_primitive();
                    let sums = values.iter().map(|value| value.map(|value| value + 1)).collect();
                    let _ = answers.send(Ok(reply(&signature(), sums, &metadata)));
                }
            }
            running.fetch_sub(1, SeqCst);
        })
    });
    (script, open)
}

#[test]
fn many_exchanges_of_one_query_share_few_streams() {
    let (script, open_streams) = with_threads(THREADS);
    let (_runtime, endpoint) = serve(script, FunctionKind::Scalar);
    let client = Client::start().unwrap();
    let mut exchanges: Vec<_> = (0..130)
        .map(|_| {
            (open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile), BatchBuilder::new(&signature()))
        })
        .collect();
    for round in 0..4 {
        // All are asked, some twice, before the first is answered; they are answered in the order in which a node reads them.
        for (number, (exchange, builder)) in exchanges.iter_mut().enumerate() {
            send(exchange, builder, round * 1000 + number as i64);
            send(exchange, builder, -1);
        }
        for (number, (exchange, _)) in exchanges.iter_mut().enumerate().rev() {
            assert_eq!(answer(exchange), round * 1000 + number as i64 + 1);
            assert_eq!(answer(exchange), 0);
        }
        assert!(open_streams.load(SeqCst) <= THREADS);
    }
}

/// More answers than the engine has room for wait in each of them until it comes to it.
#[test]
fn exchanges_with_many_batches_out_share_few_streams() {
    let (script, open_streams) = with_threads(THREADS);
    let (_runtime, endpoint) = serve(script, FunctionKind::Scalar);
    let client = Client::start().unwrap();
    let mut exchanges: Vec<_> = (0..2 * THREADS as i64)
        .map(|_| {
            (open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile), BatchBuilder::new(&signature()))
        })
        .collect();
    for round in 0..2 {
        for (number, (exchange, builder)) in exchanges.iter_mut().enumerate() {
            (0..20).for_each(|batch| send(exchange, builder, round * 10_000 + number as i64 * 100 + batch));
        }
        for (number, (exchange, _)) in exchanges.iter_mut().enumerate().rev() {
            for batch in 0..20 {
                assert_eq!(answer(exchange), round * 10_000 + number as i64 * 100 + batch + 1);
            }
        }
        assert!(open_streams.load(SeqCst) <= THREADS);
    }
}

/// As many streams as there may be have answers that the engine takes later, for want of memory.
#[test]
fn answers_that_wait_for_memory_keep_no_other_exchange_waiting() {
    let (script, _) = with_threads(THREADS);
    let (_runtime, endpoint) = serve(script, FunctionKind::Scalar);
    let client = Client::start().unwrap();
    client.limit_replies(64 << 10);
    let mut exchanges: Vec<_> = (0..THREADS as i64 + 1)
        .map(|number| {
            let mut builder = BatchBuilder::new(&signature());
            let patience = Duration::from_secs(5);
            let mut exchange = open_for(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile, patience);
            for batch in 0..3 {
                let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
                column.append_slice(&vec![10 * number + batch; 2999]);
                (0..2999).for_each(|_| builder.finish_row());
                send(&mut exchange, &mut builder, 0);
            }
            exchange
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    for (number, exchange) in exchanges.iter_mut().enumerate().rev() {
        (0..3).for_each(|batch| assert_eq!(answer(exchange), 10 * number as i64 + batch + 1));
    }
}

#[test]
fn a_stream_that_has_nothing_to_do_ends_and_another_goes_on() {
    let (script, open_streams) = with_threads(1);
    let (_runtime, endpoint) = serve(script, FunctionKind::Scalar);
    let clients = [Client::start().unwrap(), Client::start().unwrap()];
    let mut exchanges = clients.each_ref().map(|client| {
        (open(client, &endpoint, FunctionKind::Scalar, Volatility::Volatile), BatchBuilder::new(&signature()))
    });
    // The other session's transaction is open, and idle.
    for round in 0..2 {
        for (exchange, builder) in &mut exchanges {
            let deadline = Instant::now() + Duration::from_secs(20);
            while open_streams.load(SeqCst) > 0 {
                assert!(Instant::now() < deadline, "a stream that nobody uses stays open");
                std::thread::sleep(Duration::from_millis(10));
            }
            send(exchange, builder, round);
            assert_eq!(answer(exchange), round + 1);
        }
    }
}

#[test]
fn a_server_without_a_thread_left_is_asked_again_and_then_called_busy() {
    let (script, _) = with_threads(0);
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = attempts.clone();
    let counted: Script = Arc::new(move |calls, answers| {
        seen.fetch_add(1, SeqCst);
        script(calls, answers)
    });
    let (_runtime, endpoint) = serve(counted, FunctionKind::Scalar);
    let client = Client::start().unwrap();
    // Nobody has seen the batch, so that of a VOLATILE function may be sent again too.
    for volatility in [Volatility::Immutable, Volatility::Volatile] {
        attempts.store(0, SeqCst);
        let mut exchange = open(&client, &endpoint, FunctionKind::Scalar, volatility);
        send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
        let error = exchange.receive(&PlainHost).unwrap_err();
        assert_eq!((error.kind(), attempts.load(SeqCst)), (Kind::Busy, 3), "{error}");
        assert_eq!(error.message(), "too many calls to the container of function \"f\"");
    }
}

/// A server of the JSON form that says a number of times that it is busy, and counts what it was asked.
fn busy_over_http(times: usize) -> (Endpoint, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::JsonTcp(listener.local_addr().unwrap().to_string());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen) = (stream.unwrap(), seen.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let (mut length, mut line) = (0, String::new());
                    while reader.read_line(&mut line).is_ok_and(|size| size > 2) {
                        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = text.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    if length == 0 || reader.read_exact(&mut body).is_err() {
                        return;
                    }
                    let (status, answer, closes) = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(String::from_utf8_lossy(&body).into_owned());
                        let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
                        match seen.len() <= times {
                            true => (
                                "503 Service Unavailable",
                                r#"{"error":{"kind":"busy","message":"full"}}"#.to_string(),
                                true,
                            ),
                            false => (
                                "200 OK",
                                format!(r#"{{"batch":{},"rows":1,"columns":[[7]]}}"#, request["batch"]),
                                false,
                            ),
                        }
                    };
                    let head = if closes { "Connection: close\r\n" } else { "" };
                    let length = answer.len();
                    let _ = write!(stream, "HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\n\r\n{answer}");
                    if closes {
                        return;
                    }
                }
            });
        }
    });
    (endpoint, asked)
}

#[test]
fn a_busy_server_is_asked_again_over_http() {
    let client = Client::start().unwrap();
    let (endpoint, asked) = busy_over_http(2);
    let mut exchange = open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile);
    send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
    assert_eq!(answer(&mut exchange), 7);
    assert_eq!(asked.lock().unwrap().len(), 3);
    let (endpoint, asked) = busy_over_http(usize::MAX);
    let mut exchange = open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile);
    send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert_eq!((error.kind(), asked.lock().unwrap().len()), (Kind::Busy, 3), "{error}");
    assert_eq!(error.detail(), Some("The server said: full."));
}

/// An HTTP/2 server that answers the first request with these frames of stream 1.
fn serve_frames(frames: &'static [u8]) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::FlightTcp(listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        // SETTINGS.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).unwrap();
            if head[3] == 1 {
                break;
            }
        }
        stream.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).unwrap();
        stream.write_all(frames).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    endpoint
}

#[test]
fn an_answer_that_is_not_grpc_is_no_exception_of_the_handler() {
    // HEADERS with :status 200, which may end the stream, and then DATA.
    let cases: [(&str, &[u8]); 4] = [
        ("compression flag", &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 5, 0, 0, 0, 0, 0, 1, 7, 0, 0, 0, 0]),
        ("compressed-flag", &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 5, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]),
        ("Protobuf", &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0xff]),
        ("EOF", &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 6, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 9, 0xff]),
    ];
    for (fact, frames) in cases {
        let endpoint = serve_frames(frames);
        let client = Client::start().unwrap();
        let mut exchange = open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile);
        send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
        let error = exchange.receive(&PlainHost).unwrap_err();
        assert_eq!(error.kind(), Kind::ProtocolViolation, "{fact}: {error}");
        assert!(error.detail().unwrap().contains(fact), "{error}");
    }
}

#[test]
fn an_answer_of_a_gateway_is_no_exception_of_the_handler() {
    // HEADERS with :status alone, or with 200 and a grpc-status, which end the stream.
    let cases: [(Kind, &[u8]); 5] = [
        (Kind::NotAllowed, b"\0\0\x05\x01\x05\0\0\0\x01\x08\x03401"),
        (Kind::NotAllowed, b"\0\0\x05\x01\x05\0\0\0\x01\x08\x03403"),
        (Kind::NotAllowed, b"\0\0\x11\x01\x05\0\0\0\x01\x88\0\x0bgrpc-status\x0216"),
        (Kind::Unreachable, b"\0\0\x11\x01\x05\0\0\0\x01\x88\0\x0bgrpc-status\x0214"),
        (Kind::Unreachable, b"\0\0\x05\x01\x05\0\0\0\x01\x08\x03502"),
    ];
    for (kind, frames) in cases {
        let endpoint = serve_frames(frames);
        let client = Client::start().unwrap();
        let mut exchange = open(&client, &endpoint, FunctionKind::Scalar, Volatility::Volatile);
        send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
        let error = exchange.receive(&PlainHost).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().ends_with("container function \"f\"") || kind == Kind::Unreachable, "{error}");
    }
}

#[test]
fn parts_without_rows_do_not_prolong_the_wait() {
    for kind in [FunctionKind::Table, FunctionKind::Map] {
        let script: Script = Arc::new(move |mut calls, answers| {
            Box::pin(async move {
                let signature = Signature { kind, ..signature() };
                let _ = calls.next().await;
                let _ = answers.send(Ok(schema_of(&signature)));
                while !answers.is_closed() {
                    let part = match kind {
                        FunctionKind::Table => table_reply(&signature, vec![], vec![], r#"{"batch":0,"more":true}"#),
                        _ => reply(&signature, vec![], "{}"),
                    };
                    let _ = answers.send(Ok(part));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        });
        let (_runtime, endpoint) = serve(script, kind);
        let client = Client::start().unwrap();
        let mut exchange = open_for(&client, &endpoint, kind, Volatility::Stable, Duration::from_millis(300));
        send(&mut exchange, &mut BatchBuilder::new(&signature()), 1);
        let (start, mut error) = (Instant::now(), None);
        while error.is_none() && start.elapsed() < Duration::from_secs(10) {
            error = match kind {
                FunctionKind::Table => exchange.receive(&PlainHost).err(),
                _ => exchange.receive_from_map(&PlainHost).err(),
            };
        }
        assert_eq!(error.expect("an end to the wait").kind(), Kind::Timeout);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

/// A proxy over TCP before two servers: of two requests that come one behind the other, it gives the first to a server that is busy,
/// and the second to one that runs it. How many requests were run.
fn two_servers_behind_a_proxy() -> (Endpoint, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::JsonTcp(listener.local_addr().unwrap().to_string());
    let run = Arc::new(AtomicUsize::new(0));
    let counted = run.clone();
    std::thread::spawn(move || {
        let is_first = Arc::new(AtomicUsize::new(0));
        for stream in listener.incoming() {
            let (mut stream, counted, is_first) = (stream.unwrap(), counted.clone(), is_first.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut read = || {
                    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
                    while reader.read_line(&mut line).is_ok_and(|size| size > 2) {
                        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = text.trim().parse().unwrap();
                        }
                        first = if first.is_empty() { line.clone() } else { first };
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).ok().filter(|()| !first.is_empty()).map(|()| (first, body))
                };
                let greeting = HELLO.replace('}', r#", "transports": ["json", "socket"]}"#);
                while let Some((first, _)) = read() {
                    let (status, answer) = if first.starts_with("GET") {
                        ("200 OK", greeting.clone())
                    } else if is_first.fetch_add(1, SeqCst) == 0 {
                        // What lies behind it is in another server's hands.
                        let behind = read();
                        counted.fetch_add(usize::from(behind.is_some()), SeqCst);
                        ("503 Service Unavailable", r#"{"error":{"kind":"busy","message":"full"}}"#.to_string())
                    } else {
                        counted.fetch_add(1, SeqCst);
                        ("500 Internal Server Error", r#"{"error":{"kind":"user_code","message":"again"}}"#.to_string())
                    };
                    let length = answer.len();
                    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{answer}");
                }
            });
        }
    });
    (endpoint, run)
}

#[test]
fn what_was_sent_behind_a_busy_call_over_tcp_may_have_been_run() {
    for (volatility, kind, times) in [(Volatility::Volatile, Kind::Busy, 1), (Volatility::Immutable, Kind::UserCode, 3)]
    {
        let client = Client::start().unwrap();
        let (endpoint, run) = two_servers_behind_a_proxy();
        let mut exchange = client.open(Arc::new(Call {
            target: Target::Remote { remote: endpoint.into(), credentials: Credentials::default() },
            transport: TransportName::Socket,
            signature: signature(),
            volatility,
            batch_timeout: Duration::from_secs(20),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        }));
        let mut builder = BatchBuilder::new(&signature());
        send(&mut exchange, &mut builder, 1);
        send(&mut exchange, &mut builder, 2);
        assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), kind);
        drop(exchange);
        assert!(run.load(SeqCst) <= times, "{volatility:?}");
    }
}
