//! The client against a scripted container: what it sends, and what it makes of answers right and wrong.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use support::{Answers, Calls, MockContainer, Script, reply, schema_of, table_reply};
use tonic::Status;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::{Exchange, MapEvent};
use udf_client::host::{Host, PlainHost};
use udf_client::transport::credentials::{Credentials, Token};
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Advice, Error, Kind, Origin};

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;

fn signature() -> Signature {
    let arguments = vec![Argument { name: "x".into(), ty: Type::Int8 }];
    Signature::scalar("f", arguments, Type::Int8)
}

/// A mock container on a thread of its own, and a client.
struct Stage {
    client: Client,
    endpoint: Endpoint,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new(
        hello: Option<&str>,
        script: impl Fn(Calls, Answers) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Stage {
        Stage::of(signature(), hello, script)
    }

    fn of(
        signature: Signature,
        hello: Option<&str>,
        script: impl Fn(Calls, Answers) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Stage {
        Stage::within(None, signature, hello, script)
    }

    /// With a server that takes so many bytes of a stream before it reads them.
    fn within(
        window: Option<u32>,
        signature: Signature,
        hello: Option<&str>,
        script: impl Fn(Calls, Answers) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let script: Script = Arc::new(script);
        let mock = MockContainer { hello: hello.map(str::to_string), signature, script };
        let path: PathBuf = runtime.block_on(async { mock.start_within(folder.path(), window) });
        Stage { client: Client::start().unwrap(), endpoint: Endpoint::FlightUnix(path), runtime, _folder: folder }
    }

    fn open(&self, volatility: Volatility, batch_timeout: Duration) -> Exchange {
        self.open_as(FunctionKind::Scalar, None, volatility, batch_timeout)
    }

    fn open_as(
        &self,
        kind: FunctionKind,
        token: Option<Token>,
        volatility: Volatility,
        batch_timeout: Duration,
    ) -> Exchange {
        self.client.open(Arc::new(Call {
            target: Target::Remote {
                remote: self.endpoint.clone().into(),
                credentials: Credentials { token, ..Credentials::default() },
            },
            transport: TransportName::Flight,
            signature: Signature { kind, ..signature() },
            volatility,
            batch_timeout,
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        }))
    }
}

fn batches(rows_of_each: &[i64]) -> Vec<CallBatch> {
    let mut builder = BatchBuilder::new(&signature());
    let mut next = 0;
    let mut made = Vec::new();
    for rows in rows_of_each {
        for _ in 0..*rows {
            let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
            column.append_value(next);
            builder.finish_row();
            next += 1;
        }
        made.push(builder.finish_batch());
    }
    made
}

fn values_of(batch: &arrow_array::RecordBatch) -> Vec<Option<i64>> {
    batch.column(0).as_primitive::<Int64Type>().iter().collect()
}

#[test]
fn several_batches_in_flight_come_back_in_order() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let mut waiting = Vec::new();
            // Nothing is answered, not even the schema, before three batches have come.
            while let Some(call) = calls.next().await {
                waiting.push(call);
                if waiting.len() == 3 {
                    break;
                }
            }
            assert_eq!(calls.descriptor.as_ref().unwrap().path, ["f"]);
            let _ = answers.send(Ok(schema_of(&signature())));
            for (batch, metadata) in waiting {
                let doubled = values_of(&batch).into_iter().map(|value| value.map(|value| value * 2)).collect();
                let _ = answers.send(Ok(reply(&signature(), doubled, &metadata)));
            }
        })
    });
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(10));
    for batch in batches(&[1, 2, 3]) {
        exchange.send(batch);
    }
    assert_eq!(exchange.in_flight(), 3);
    let mut seen = Vec::new();
    for number in 0..3 {
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!(reply.number, number);
        seen.extend(values_of(&reply.columns).into_iter().flatten());
    }
    assert_eq!(seen, [0, 2, 4, 6, 8, 10]);
    assert_eq!(exchange.in_flight(), 0);
}

#[test]
fn server_of_the_arrow_udf_family_needs_no_metadata() {
    let stage = Stage::new(None, |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while let Some((batch, _)) = calls.next().await {
                let _ = answers.send(Ok(reply(&signature(), values_of(&batch), "")));
            }
        })
    });
    let target = Target::Remote { remote: stage.endpoint.clone().into(), credentials: Credentials::default() };
    let offered =
        stage.client.signature(&PlainHost, &target, TransportName::Flight, "f", Duration::from_secs(10)).unwrap();
    assert_eq!(offered.to_string(), "f(int8) returns int8");
    let missing = stage.client.signature(&PlainHost, &target, TransportName::Flight, "g", Duration::from_secs(10));
    assert_eq!(missing.unwrap_err().kind(), Kind::FunctionNotFound);
    let mut exchange = stage.open(Volatility::Immutable, Duration::from_secs(10));
    for batch in batches(&[2, 2]) {
        exchange.send(batch);
    }
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(0), Some(1)]);
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(2), Some(3)]);
}

#[test]
fn flight_works_over_tcp_as_over_a_unix_socket() {
    let mut stage = Stage::new(Some(HELLO), |_, _| Box::pin(async {}));
    let script: Script = Arc::new(|mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while let Some((batch, metadata)) = calls.next().await {
                let _ = answers.send(Ok(reply(&signature(), values_of(&batch), &metadata)));
            }
        })
    });
    let mock = MockContainer { hello: Some(HELLO.to_string()), signature: signature(), script };
    stage.endpoint = Endpoint::FlightTcp(stage.runtime.block_on(mock.start_tcp()));
    let mut exchange = stage.open(Volatility::Immutable, Duration::from_secs(10));
    exchange.send(batches(&[2]).remove(0));
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(0), Some(1)]);
}

/// Sends one batch to a container that answers it as `answer` says, and gives the error.
#[test]
fn an_engine_learns_whether_an_answer_is_there_without_waiting() {
    let may_answer = Arc::new(AtomicBool::new(false));
    let scripted = may_answer.clone();
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let may_answer = scripted.clone();
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while let Some((batch, metadata)) = calls.next().await {
                while !may_answer.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if batch.num_rows() == 3 {
                    let _ = answers.send(Err(Status::internal("no")));
                    return;
                }
                let _ = answers.send(Ok(reply(&signature(), values_of(&batch), &metadata)));
            }
        })
    });
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(10));
    assert!(!exchange.is_answered());
    for batch in batches(&[1, 2, 3]) {
        exchange.send(batch);
    }
    assert!(!exchange.is_answered());
    may_answer.store(true, Ordering::SeqCst);
    let exchange = std::cell::RefCell::new(exchange);
    let is_answered = || exchange.borrow_mut().is_answered();
    for rows in [1, 2] {
        wait_until("there is an answer", is_answered);
        // Asking again changes nothing.
        assert!(is_answered());
        assert_eq!(exchange.borrow_mut().receive(&PlainHost).unwrap().columns.num_rows(), rows);
    }
    wait_until("there is an error", is_answered);
    let error = exchange.borrow_mut().receive(&PlainHost).unwrap_err();
    assert!(is_answered());
    assert_eq!(exchange.borrow_mut().receive(&PlainHost).unwrap_err(), error);
}

fn error_after(answer: impl Fn(Vec<Option<i64>>, &Answers) + Send + Sync + Clone + 'static) -> Error {
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let answer = answer.clone();
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            if let Some((batch, _)) = calls.next().await {
                answer(values_of(&batch), &answers);
            }
        })
    });
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(10));
    exchange.send(batches(&[3]).remove(0));
    let error = exchange.receive(&PlainHost).unwrap_err();
    // Once failed, always failed.
    assert_eq!(exchange.receive(&PlainHost).unwrap_err(), error);
    error
}

#[test]
fn exception_arrives_with_row_and_traceback() {
    let error = error_after(|_, answers| {
        let metadata = r#"{"batch": 0, "error": {"kind": "user_code", "message": "ValueError: no", "row": 2, "traceback": "Traceback"}}"#;
        let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(metadata.to_string())));
    });
    assert_eq!((error.kind(), error.origin(), error.row()), (Kind::UserCode, Origin::Function, Some(2)));
    assert_eq!(error.message(), "container function \"f\" raised an exception: ValueError: no");
    assert_eq!(error.detail(), Some("Traceback"));
}

#[test]
fn an_error_is_told_whatever_schema_came_before_it() {
    // A server that does not know the function knows no type either, and may have opened its stream already.
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let schema = arrow_schema::Schema::new(vec![arrow_schema::Field::new(
                "unknown",
                arrow_schema::DataType::Null,
                true,
            )]);
            let _ = answers.send(Ok(udf_codec::arrow_ipc::encode_schema(&schema)));
            calls.next().await;
            let metadata = r#"{"batch": 0, "error": {"kind": "function_not_found", "message": "there is no f"}}"#;
            let _ = answers.send(Ok(arrow_flight::FlightData::new().with_app_metadata(metadata.to_string())));
        })
    });
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(10));
    exchange.send(batches(&[3]).remove(0));
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::FunctionNotFound);
}

#[test]
fn status_of_a_foreign_server_is_the_exception() {
    let error = error_after(|_, answers| {
        let text = "'key'. Detail: Python exception: Traceback (most recent call last)";
        let _ = answers.send(Err(Status::not_found(text)));
    });
    assert_eq!(error.kind(), Kind::UserCode);
    assert_eq!(error.detail(), Some("Traceback (most recent call last)"));
}

#[test]
fn a_server_that_lets_nobody_in_has_run_no_function() {
    for (denial, detail) in [
        (Status::unauthenticated("who are you"), "It said: who are you."),
        (Status::permission_denied(""), "Its gRPC status is PermissionDenied."),
    ] {
        let error = error_after(move |_, answers| drop(answers.send(Err(denial.clone()))));
        assert_eq!(error.kind(), Kind::NotAllowed);
        assert_eq!(error.message(), "permission denied by the server of container function \"f\"");
        assert_eq!(error.detail(), Some(detail));
        assert_eq!(error.advice(), Some(Advice::Token), "{error}");
    }
}

#[test]
fn broken_replies_are_protocol_errors() {
    type Answer = fn(Vec<Option<i64>>, &Answers);
    let cases: [(Answer, Kind, &str); 6] = [
        (
            |values, answers| drop(answers.send(Ok(reply(&signature(), values, r#"{"batch": 1}"#)))),
            Kind::ProtocolViolation,
            "It answered batch 1 when batch 0 was due.",
        ),
        (
            |_, answers| drop(answers.send(Ok(reply(&signature(), vec![None; 2], r#"{"batch": 0}"#)))),
            Kind::ProtocolViolation,
            "Its reply has 2 rows for 3 calls.",
        ),
        (
            |values, answers| drop(answers.send(Ok(reply(&signature(), values, "{")))),
            Kind::ProtocolViolation,
            "A reply's metadata cannot be read",
        ),
        (
            |values, answers| {
                let mut message = reply(&signature(), values, r#"{"batch": 0}"#);
                message.data_header = message.data_header.slice(..message.data_header.len() / 2);
                drop(answers.send(Ok(message)));
            },
            Kind::ProtocolViolation,
            "A reply cannot be read",
        ),
        (
            |values, answers| {
                let mut message = reply(&signature(), values, r#"{"batch": 0}"#);
                message.data_body = message.data_body.slice(..8);
                drop(answers.send(Ok(message)));
            },
            Kind::ProtocolViolation,
            "A reply cannot be read",
        ),
        (|_, _| {}, Kind::Unreachable, "The server ended the exchange early."),
    ];
    for (answer, kind, detail) in cases {
        let error = error_after(answer);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.detail().unwrap_or_default().starts_with(detail), "{error}");
    }
}

/// How often a container is asked that loses every connection after a batch.
fn attempts_of(volatility: Volatility) -> usize {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let counter = counter.clone();
        Box::pin(async move {
            if calls.next().await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            let _ = answers.send(Err(Status::unavailable("going away")));
        })
    });
    let mut exchange = stage.open(volatility, Duration::from_secs(10));
    exchange.send(batches(&[1]).remove(0));
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::Unreachable);
    seen.load(Ordering::SeqCst)
}

#[test]
fn only_calls_without_side_effects_are_sent_again() {
    assert_eq!(attempts_of(Volatility::Volatile), 1);
    assert_eq!(attempts_of(Volatility::Immutable), 3);
}

#[test]
fn lost_batches_are_sent_again_and_answered_once() {
    let exchanges = Arc::new(AtomicUsize::new(0));
    let counter = exchanges.clone();
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while let Some((batch, metadata)) = calls.next().await {
                let _ = answers.send(Ok(reply(&signature(), values_of(&batch), &metadata)));
                if is_first {
                    let _ = answers.send(Err(Status::unavailable("going away")));
                    return;
                }
            }
        })
    });
    let mut exchange = stage.open(Volatility::Stable, Duration::from_secs(10));
    for batch in batches(&[1, 1, 1]) {
        exchange.send(batch);
    }
    for number in 0..3 {
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!((reply.number, values_of(&reply.columns)), (number, vec![Some(number as i64)]));
    }
    assert_eq!(exchanges.load(Ordering::SeqCst), 2);
}

/// A container that says when the client has gone, and never answers.
/// How far a silent container has come.
#[derive(Default)]
struct Seen {
    batches: AtomicUsize,
    is_gone: AtomicBool,
}

fn silent_stage() -> (Stage, Arc<Seen>) {
    let seen = Arc::<Seen>::default();
    let noted = seen.clone();
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let noted = noted.clone();
        Box::pin(async move {
            while calls.next().await.is_some() {
                noted.batches.fetch_add(1, Ordering::Relaxed);
            }
            noted.is_gone.store(true, Ordering::Relaxed);
            drop(answers);
        })
    });
    (stage, seen)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_until_gone(seen: &Seen) {
    wait_until("the container still waits", || seen.is_gone.load(Ordering::Relaxed));
}

#[test]
fn silent_container_ends_at_the_deadline_and_is_cancelled() {
    let (stage, seen) = silent_stage();
    // Long enough for the batch to be there.
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(2));
    exchange.send(batches(&[1]).remove(0));
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    drop(exchange);
    wait_until_gone(&seen);
}

#[test]
fn engine_that_cancels_ends_the_wait_and_the_call() {
    struct Impatient(Arc<Seen>);
    impl Host for Impatient {
        fn wait(&self, _: std::os::fd::BorrowedFd<'_>, _: Duration) -> udf_types::Result<()> {
            wait_until("the batch does not come", || self.0.batches.load(Ordering::Relaxed) > 0);
            Err(Error::cancelled())
        }
    }
    let (stage, seen) = silent_stage();
    let mut exchange = stage.open(Volatility::Volatile, Duration::from_secs(100));
    exchange.send(batches(&[1]).remove(0));
    assert!(exchange.receive(&Impatient(seen.clone())).unwrap_err().is_cancelled());
    drop(exchange);
    wait_until_gone(&seen);
}

#[test]
fn newer_protocol_is_refused() {
    let stage = Stage::new(Some(r#"{"protocol": 2}"#), |_, _| Box::pin(async {}));
    let target = Target::Remote { remote: stage.endpoint.clone().into(), credentials: Credentials::default() };
    let offered = stage.client.signature(&PlainHost, &target, TransportName::Flight, "f", Duration::from_secs(10));
    assert_eq!(offered.unwrap_err().kind(), Kind::ProtocolViolation);
}

/// Answers one HTTP request per connection, each by `answer(request body)`: status line and body.
fn http_exchange(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> (Client, Exchange) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().take(8).flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).unwrap() > 2 {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let (status, text) = answer(&String::from_utf8(body).unwrap());
                let head =
                    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
                let _ = (&stream).write_all((head + &text).as_bytes());
            });
        }
    });
    let client = Client::start().unwrap();
    let exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote: Endpoint::JsonTcp(authority).into(), credentials: Credentials::default() },
        transport: TransportName::Json,
        signature: signature(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    (client, exchange)
}

#[test]
fn json_replies_that_overtake_each_other_are_put_in_order() {
    let (_client, mut exchange) = http_exchange(|body| {
        if body.starts_with(r#"{"batch":0,"#) {
            std::thread::sleep(Duration::from_millis(150));
            assert_eq!(body, r#"{"batch":0,"rows":2,"columns":[[0,1]]}"#);
            return (200, r#"{"batch": 0, "rows": 2, "columns": [[10, null]]}"#.to_string());
        }
        (200, r#"{"batch": 1, "columns": [["20"]]}"#.to_string())
    });
    for batch in batches(&[2, 1]) {
        exchange.send(batch);
    }
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(10), None]);
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(20)]);
}

#[test]
fn json_failure_waits_for_its_turn() {
    let (_client, mut exchange) = http_exchange(|body| {
        if body.starts_with(r#"{"batch":0,"#) {
            std::thread::sleep(Duration::from_millis(150));
            return (200, r#"{"batch": 0, "columns": [[1]]}"#.to_string());
        }
        (500, r#"{"error": {"kind": "user_code", "message": "ValueError: no", "row": 0}}"#.to_string())
    });
    for batch in batches(&[1, 1]) {
        exchange.send(batch);
    }
    assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [Some(1)]);
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::UserCode);
}

#[test]
fn broken_json_replies_are_errors() {
    for (status, body, kind) in [
        (200, "", Kind::ProtocolViolation),
        (200, r#"{"batch": 5, "columns": [[1, 2]]}"#, Kind::ProtocolViolation),
        (200, r#"{"batch": 0, "columns": [[1]]}"#, Kind::ProtocolViolation),
        (200, r#"{"batch": 0, "columns": [[1, 2], [1, 2]]}"#, Kind::BadResult),
        (200, r#"{"batch": 0, "columns": [[1, "x"]]}"#, Kind::BadResult),
        (500, "<html>", Kind::ProtocolViolation),
        // A gateway says these.
        (401, "<html>", Kind::NotAllowed),
        (502, "<html>", Kind::Unreachable),
        (500, r#"{"error": {"kind": "user_code", "message": "ValueError: no", "row": 1}}"#, Kind::UserCode),
        (404, r#"{"error": {"kind": "function_not_found", "message": "no"}}"#, Kind::FunctionNotFound),
    ] {
        let (_client, mut exchange) = http_exchange(move |_| (status, body.to_string()));
        exchange.send(batches(&[2]).remove(0));
        let error = exchange.receive(&PlainHost).unwrap_err();
        assert_eq!(error.kind(), kind, "{status} {body}: {error}");
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

fn table() -> Signature {
    Signature { kind: FunctionKind::Table, ..signature() }
}

#[test]
fn table_functions_answer_in_parts() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            let mut number = 0;
            while calls.next().await.is_some() {
                let more = format!(r#"{{"batch": {number}, "more": true}}"#);
                let _ = answers.send(Ok(table_reply(&table(), vec![0, 0], vec![1, 2], &more)));
                let last = format!(r#"{{"batch": {number}, "micros": 7}}"#);
                let _ = answers.send(Ok(table_reply(&table(), vec![0, 1], vec![3, 4], &last)));
                number += 1;
            }
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    for batch in batches(&[2, 2]) {
        exchange.send(batch);
    }
    let replies: Vec<_> = (0..4).map(|_| exchange.receive(&PlainHost).unwrap()).collect();
    let seen: Vec<_> = replies.iter().map(|reply| (reply.number, reply.is_last, reply.compute_us)).collect();
    assert_eq!(seen, [(0, false, 0), (0, true, 7), (1, false, 0), (1, true, 7)]);
    assert_eq!(exchange.in_flight(), 0);
}

#[test]
fn table_functions_of_the_arrow_udf_family_get_one_batch_per_exchange() {
    let stage = Stage::of(table(), None, |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            let (batch, _) = calls.next().await.unwrap();
            let first = batch.column(0).as_primitive::<Int64Type>().value(0);
            let _ = answers.send(Ok(table_reply(&table(), vec![0], vec![first], "")));
            let _ = answers.send(Ok(table_reply(&table(), vec![1], vec![first], "")));
            // Only then does the stream end, which says that there is no more.
            assert!(calls.next().await.is_none());
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    for batch in batches(&[2, 2]) {
        exchange.send(batch);
    }
    let replies: Vec<_> = (0..6).map(|_| exchange.receive(&PlainHost).unwrap()).collect();
    let seen: Vec<_> = replies.iter().map(|reply| (reply.number, reply.is_last, reply.columns.num_rows())).collect();
    assert_eq!(seen, [(0, false, 1), (0, false, 1), (0, true, 0), (1, false, 1), (1, false, 1), (1, true, 0)]);
}

/// Not even a schema.
#[test]
fn a_stream_of_the_arrow_udf_family_that_says_nothing_has_no_results() {
    let stage = Stage::of(table(), None, |mut calls, answers| {
        Box::pin(async move {
            while calls.next().await.is_some() {}
            drop(answers);
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    exchange.send(batches(&[2]).remove(0));
    let reply = exchange.receive(&PlainHost).unwrap();
    let types: Vec<_> = reply.columns.columns().iter().map(|column| column.data_type().clone()).collect();
    assert_eq!((reply.is_last, reply.columns.num_rows()), (true, 0));
    assert_eq!(types, [Type::Int4.data_type(), Type::Int8.data_type()]);
}

#[test]
fn a_stream_that_is_not_read_keeps_no_other_from_being_answered() {
    let stage = Stage::of(table(), Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            while let Some((batch, _)) = calls.next().await {
                let is_large = batch.num_rows() == 1;
                // 48 MB, more than a stream's window and what waits in the client.
                for _ in 0..if is_large { 40 } else { 0 } {
                    let part =
                        table_reply(&table(), vec![0; 100_000], vec![7; 100_000], r#"{"batch": 0, "more": true}"#);
                    let _ = answers.send(Ok(part));
                }
                let _ = answers.send(Ok(table_reply(&table(), vec![0], vec![7], r#"{"batch": 0}"#)));
            }
        })
    });
    let open = || stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    let mut large = open();
    large.send(batches(&[1]).remove(0));
    assert_eq!(large.receive(&PlainHost).unwrap().columns.num_rows(), 100_000);
    // Until the window of the first is full.
    std::thread::sleep(Duration::from_secs(1));
    let mut small = open();
    small.send(batches(&[2]).remove(0));
    assert_eq!(small.receive(&PlainHost).unwrap().columns.num_rows(), 1);
    let rest: usize = (0..40).map(|_| large.receive(&PlainHost).unwrap().columns.num_rows()).sum();
    assert_eq!(rest, 3_900_001);
}

#[test]
fn a_server_that_never_ends_a_stream_is_left_once_it_has_answered() {
    let is_left = Arc::new(AtomicBool::new(false));
    let noted = is_left.clone();
    let stage = Stage::of(table(), Some(HELLO), move |mut calls, answers| {
        let noted = noted.clone();
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            while calls.next().await.is_some() {
                let _ = answers.send(Ok(table_reply(&table(), vec![0], vec![7], r#"{"batch": 0}"#)));
            }
            answers.closed().await;
            noted.store(true, Ordering::Relaxed);
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    exchange.send(batches(&[1]).remove(0));
    assert_eq!(exchange.receive(&PlainHost).unwrap().columns.num_rows(), 1);
    drop(exchange);
    wait_until("the stream is still open", || is_left.load(Ordering::Relaxed));
}

/// The exchange would hold its lease for ever: it ends once the last batch has left, and the server takes none.
#[test]
fn an_answer_to_a_batch_that_the_server_has_not_read_is_refused() {
    // Enough for the greeting. After that, two messages leave the client's queue: the schema and the first batch.
    let stage = Stage::within(Some(64), table(), Some(HELLO), |calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            for number in 0..2 {
                // Until the client has queued it.
                tokio::time::sleep(Duration::from_millis(500)).await;
                let metadata = format!(r#"{{"batch": {number}}}"#);
                let _ = answers.send(Ok(table_reply(&table(), vec![], vec![], &metadata)));
            }
            answers.closed().await;
            drop(calls);
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    for batch in batches(&[1, 1]) {
        exchange.send(batch);
    }
    assert_eq!(exchange.receive(&PlainHost).unwrap().number, 0);
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert_eq!(error.kind(), Kind::ProtocolViolation);
    assert!(error.detail().unwrap_or_default().contains("did not have yet"), "{error:?}");
}

#[test]
fn row_numbers_that_are_not_the_batchs_are_refused() {
    for rows in [vec![2], vec![-1], vec![1, 0]] {
        let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
            let rows = rows.clone();
            Box::pin(async move {
                let _ = answers.send(Ok(schema_of(&table())));
                let _ = calls.next().await;
                let values = vec![0; rows.len()];
                let _ = answers.send(Ok(table_reply(&table(), rows, values, r#"{"batch": 0}"#)));
                let _ = calls.next().await;
            })
        });
        let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
        exchange.send(batches(&[2]).remove(0));
        assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::ProtocolViolation);
    }
}

#[test]
fn row_numbers_of_a_part_that_go_back_are_refused() {
    let parts =
        [(0, vec![0, 1], true), (0, vec![], true), (0, vec![1], false), (1, vec![1], true), (1, vec![0], false)];
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        let parts = parts.clone();
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            let _ = calls.next().await;
            let _ = calls.next().await;
            for (batch, rows, more) in parts {
                let (values, metadata) = (vec![0; rows.len()], format!(r#"{{"batch": {batch}, "more": {more}}}"#));
                let _ = answers.send(Ok(table_reply(&table(), rows, values, &metadata)));
            }
            let _ = calls.next().await;
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    for batch in batches(&[2, 2]) {
        exchange.send(batch);
    }
    // Each batch begins anew, and a part may go on with the row of the part before.
    for (rows, is_last) in [(2, false), (1, true), (1, false)] {
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!((reply.columns.num_rows(), reply.is_last), (rows, is_last));
    }
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert_eq!(error.kind(), Kind::ProtocolViolation);
    assert!(error.detail().unwrap_or_default().contains("in order"), "{error:?}");
}

#[test]
fn a_batch_that_was_answered_in_part_is_not_sent_again() {
    let exchanges = Arc::new(AtomicUsize::new(0));
    let counter = exchanges.clone();
    let stage = Stage::new(Some(HELLO), move |mut calls, answers| {
        counter.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&table())));
            let _ = calls.next().await;
            let _ = answers.send(Ok(table_reply(&table(), vec![0], vec![1], r#"{"batch": 0, "more": true}"#)));
            let _ = answers.send(Err(tonic::Status::unavailable("gone")));
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Table, None, Volatility::Immutable, PATIENCE);
    exchange.send(batches(&[2]).remove(0));
    assert!(!exchange.receive(&PlainHost).unwrap().is_last);
    assert!(exchange.receive(&PlainHost).unwrap_err().is_retryable());
    assert_eq!(exchanges.load(Ordering::Relaxed), 1);
}

#[test]
fn map_functions_answer_when_they_like() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            let _ = answers.send(Ok(reply(&signature(), vec![Some(-1)], "")));
            let mut sum = 0;
            while let Some((batch, _)) = calls.next().await {
                sum += values_of(&batch).into_iter().flatten().sum::<i64>();
            }
            let _ = answers.send(Ok(reply(&signature(), vec![Some(sum), None], "{}")));
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Map, None, Volatility::Volatile, PATIENCE);
    for batch in batches(&[2, 3]) {
        exchange.send(batch);
    }
    exchange.close();
    let (mut taken, mut results) = (0, Vec::new());
    loop {
        match exchange.receive_from_map(&PlainHost).unwrap() {
            MapEvent::Taken => taken += 1,
            MapEvent::Results(reply) => results.extend(values_of(&reply.columns)),
            MapEvent::End => break,
        }
    }
    assert_eq!((taken, exchange.untaken(), results), (2, 0, vec![Some(-1), Some(10), None]));
}

#[test]
fn a_wait_for_a_map_function_ends_when_the_engine_has_something_else_to_do() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while calls.next().await.is_some() {
                let _ = answers.send(Ok(reply(&signature(), vec![Some(7)], "")));
            }
        })
    });
    let patience = Duration::from_millis(300);
    let mut exchange = stage.open_as(FunctionKind::Map, None, Volatility::Volatile, patience);
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    assert!(!exchange.has_map_event());
    assert!(!exchange.wait_for_map(&PlainHost, None, &mut || true).unwrap());
    assert!(!exchange.wait_for_map(&PlainHost, soon(), &mut || false).unwrap());
    exchange.send(batches(&[1]).remove(0));
    for _ in 0..2 {
        assert!(exchange.wait_for_map(&PlainHost, None, &mut || false).unwrap() && exchange.has_map_event());
        exchange.receive_from_map(&PlainHost).unwrap();
    }
    assert_eq!(exchange.untaken(), 0);
    // What is waited for in several pieces has no more time than in one.
    let start = Instant::now();
    let mut outcome = Ok(false);
    while let Ok(false) = outcome {
        let woken_at = Instant::now() + Duration::from_millis(20);
        outcome = exchange.wait_for_map(&PlainHost, None, &mut || Instant::now() >= woken_at);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(outcome.unwrap_err().kind(), Kind::Timeout);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_server_that_says_too_much_is_held_up() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            let _ = calls.next().await;
            for value in 0..10_000 {
                let _ = answers.send(Ok(reply(&signature(), vec![Some(value)], "")));
            }
        })
    });
    let mut exchange = stage.open_as(FunctionKind::Map, None, Volatility::Volatile, PATIENCE);
    exchange.send(batches(&[1]).remove(0));
    exchange.close();
    // Nothing is lost, however slowly the engine reads.
    std::thread::sleep(Duration::from_millis(100));
    let mut seen = 0;
    while let MapEvent::Results(_) | MapEvent::Taken = exchange
        .receive_from_map(&PlainHost)
        .inspect(|event| {
            if let MapEvent::Results(reply) = event {
                assert_eq!(values_of(&reply.columns), [Some(seen)]);
                seen += 1;
            }
        })
        .unwrap()
    {}
    assert_eq!(seen, 10_000);
}

#[test]
fn tokens_go_with_every_exchange() {
    let stage = Stage::new(Some(HELLO), |mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            let length = calls.authorization.as_ref().map(|value| value.len() as i64);
            while let Some((batch, metadata)) = calls.next().await {
                let _ = answers.send(Ok(reply(&signature(), vec![length; batch.num_rows()], &metadata)));
            }
        })
    });
    for (token, expected) in [(None, None), (Some(Token::new("secret").unwrap()), Some(13))] {
        let mut exchange = stage.open_as(FunctionKind::Scalar, token, Volatility::Volatile, PATIENCE);
        exchange.send(batches(&[1]).remove(0));
        assert_eq!(values_of(&exchange.receive(&PlainHost).unwrap().columns), [expected]);
    }
}
