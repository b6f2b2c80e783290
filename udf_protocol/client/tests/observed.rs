//! What a session asks for besides results: lines of its handlers (docs/protocol.md §4.11), and traces (§4.12).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::control::Request;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::trace::{Observation, Span, TraceContext};
use udf_codec::batch::CallBatch;
use udf_project::endpoint::Endpoint;
use udf_types::Kind;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

/// A server that echoes each batch of JSON with this field of lines, if there is one, and keeps the heads of requests. The value 9
/// fails.
fn serve(lines: Option<&'static str>) -> (Endpoint, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, kept) = (stream.unwrap(), kept.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    let mut body = vec![0; length.unwrap_or(0)];
                    reader.read_exact(&mut body).unwrap();
                    let field = lines.map(|lines| format!("Transship-Lines: {lines}\r\n")).unwrap_or_default();
                    let (status, body) = if head.starts_with("GET") {
                        (200, json!({"protocol": 1, "server": "mock", "functions": ["f"], "lines": true}))
                    } else {
                        kept.lock().unwrap().push(head.to_lowercase());
                        let call: Value = serde_json::from_slice(&body).unwrap();
                        match call["columns"][0][0].as_i64() {
                            Some(9) => (500, json!({"error": {"kind": "user_code", "message": "no"}})),
                            _ => (200, json!({"batch": call["batch"], "micros": 5, "columns": call["columns"]})),
                        }
                    };
                    let body = body.to_string();
                    let head = format!("HTTP/1.1 {status} Status\r\n{field}Content-Length: {}\r\n\r\n", body.len());
                    stream.write_all((head + &body).as_bytes()).unwrap();
                }
            });
        }
    });
    (endpoint, heads)
}

fn open(client: &Client, endpoint: &Endpoint, observation: Observation) -> Exchange {
    let target = Target::Remote { remote: endpoint.clone().into(), credentials: Default::default() };
    let call = Call {
        target,
        transport: TransportName::Json,
        signature: signature(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(20),
        start_timeout: Duration::from_secs(20),
        tables: Vec::new(),
    };
    client.open_observed(Arc::new(call), observation)
}

fn batch(number: u64, values: &[i64]) -> CallBatch {
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values.to_vec()))];
    CallBatch::new(number, RecordBatch::try_new(signature().call_schema(), columns).unwrap())
}

fn field(texts: &[&str]) -> &'static str {
    BASE64.encode(json!(texts).to_string()).leak()
}

fn asking() -> Observation {
    Observation { wants_lines: true, ..Observation::default() }
}

#[test]
fn lines_come_to_those_who_ask_and_command_no_terminal() {
    let (endpoint, heads) = serve(Some(field(&["one", "\u{1b}[2Jtwo\nhalf"])));
    let client = Client::start().unwrap();
    let mut exchange = open(&client, &endpoint, asking());
    for number in [0, 1] {
        exchange.send(batch(number, &[1]));
        exchange.receive(&PlainHost).unwrap();
        assert_eq!(exchange.take_lines(), ["one", "\\u{1b}[2Jtwo\\nhalf"]);
        assert!(exchange.take_lines().is_empty());
    }
    assert!(heads.lock().unwrap().iter().all(|head| head.contains("\r\ntransship-lines: yes\r\n")));
    heads.lock().unwrap().clear();
    // An error has its lines too.
    let mut exchange = open(&client, &endpoint, asking());
    exchange.send(batch(0, &[9]));
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::UserCode);
    assert_eq!(exchange.take_lines().len(), 2);
    // Who does not ask gets none, even if the server sends some.
    heads.lock().unwrap().clear();
    let mut exchange = open(&client, &endpoint, Observation::default());
    exchange.send(batch(0, &[1]));
    exchange.receive(&PlainHost).unwrap();
    assert!(exchange.take_lines().is_empty());
    let heads = heads.lock().unwrap();
    assert!(!heads[0].contains("transship-lines") && !heads[0].contains("traceparent"), "{}", heads[0]);
}

#[test]
fn lines_of_another_form_break_the_protocol() {
    for wrong in ["!", BASE64.encode("{}").leak(), BASE64.encode("[1]").leak()] {
        let (endpoint, _) = serve(Some(wrong));
        let client = Client::start().unwrap();
        let mut exchange = open(&client, &endpoint, asking());
        exchange.send(batch(0, &[1]));
        let error = exchange.receive(&PlainHost).unwrap_err();
        assert_eq!(error.kind(), Kind::ProtocolViolation, "{error}");
        assert!(error.detail().unwrap().contains("lines"), "{error}");
    }
}

/// A manager that takes what it is told, and tells.
fn manage(folder: &std::path::Path) -> (PathBuf, std::sync::mpsc::Receiver<Vec<Span>>) {
    let socket = folder.join("manager.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let Request::Spans { spans } = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
            sender.send(spans).unwrap();
            stream.write_all(b"{\"response\":\"noted\"}\n").unwrap();
        }
    });
    (socket, receiver)
}

#[test]
fn an_exchange_carries_its_spans_and_reports_them() {
    let folder = tempfile::tempdir().unwrap();
    let (manager, reported) = manage(folder.path());
    let (endpoint, heads) = serve(None);
    let client = Client::start().unwrap();
    let parent = TraceContext::parse(PARENT).unwrap();
    let traced = |parent: TraceContext| Observation { trace: Some((parent, manager.clone())), wants_lines: false };
    let mut exchange = open(&client, &endpoint, traced(parent));
    for number in 0..3 {
        exchange.send(batch(number, &[1, 2]));
    }
    for _ in 0..3 {
        exchange.receive(&PlainHost).unwrap();
    }
    drop(exchange);
    let spans = reported.recv_timeout(Duration::from_secs(20)).unwrap();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (exchanges, batches, servers) = (named("exchange"), named("batch"), named("f"));
    assert_eq!((exchanges.len(), batches.len(), servers.len(), spans.len()), (1, 3, 3, 8));
    assert_eq!(exchanges[0].parent_id, "00f067aa0ba902b7");
    assert!(batches.iter().all(|span| span.parent_id == exchanges[0].span_id));
    for (batch, server) in batches.iter().zip(servers) {
        assert_eq!(server.parent_id, batch.span_id);
        // The server was told the number of the batch's span.
        let told = format!("\r\ntraceparent: 00-{}-{}-01\r\n", batch.trace_id, batch.span_id);
        assert_eq!(heads.lock().unwrap().iter().filter(|head| head.contains(&told)).count(), 1, "{told}");
    }
    // What the application does not record is carried, and not reported.
    heads.lock().unwrap().clear();
    let mut exchange = open(&client, &endpoint, traced(TraceContext { is_sampled: false, ..parent }));
    exchange.send(batch(0, &[1]));
    exchange.receive(&PlainHost).unwrap();
    drop(exchange);
    assert!(heads.lock().unwrap()[0].contains("-00\r\n"), "{:?}", heads.lock().unwrap());
    // Calls do not depend on a manager that is there.
    let nowhere = Observation { trace: Some((parent, folder.path().join("nowhere"))), wants_lines: false };
    for _ in 0..100 {
        let mut exchange = open(&client, &endpoint, nowhere.clone());
        exchange.send(batch(0, &[1]));
        exchange.receive(&PlainHost).unwrap();
    }
    client.stop();
    assert!(reported.try_recv().is_err());
}
