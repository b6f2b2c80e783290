//! Functions whose results are large, or dear to read: batches become smaller before their replies are more than they may be.

mod support;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use serde_json::{Value, json};
use support::{MockContainer, Script, schema_of};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_client::pace::{Bounds, Measured, Pace};
use udf_client::transport::credentials::Credentials;
use udf_codec::arrow_ipc::BatchEncoder;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_codec::columns::{Layout, inline_body};
use udf_codec::wire::COLUMNS;
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Advice, Kind, Result};

/// What a reply may have here.
const LIMIT: usize = 8 << 20;
/// Bytes of a result that is a text. A batch of 1,024 rows has results of the usual size of a batch, which is the limit.
const TEXT_BYTES: usize = 8 << 10;
/// Elements of a result that is a list.
const ELEMENTS: usize = 100;
const ROWS: usize = 3000;

fn signature(result: &str) -> Signature {
    let argument = Argument { name: "x".into(), ty: Type::Int8 };
    Signature::scalar("f", vec![argument], Type::from_name(result).unwrap())
}

fn texts(rows: usize) -> ArrayRef {
    Arc::new(StringArray::from(vec!["x".repeat(TEXT_BYTES); rows]))
}

/// Answers one request, given its body: the content type and the body of the answer.
type Answer = fn(&[u8]) -> (&'static str, Vec<u8>);

fn serve_http(socket: &Path, answer: Answer) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            // It ends with its client.
            std::thread::spawn(move || answer_all(stream, answer));
        }
    });
}

fn answer_all(mut stream: UnixStream, answer: Answer) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            line.clear();
        }
        if line.is_empty() {
            return None;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (content_type, body) = match length {
            0 => ("application/json", br#"{"protocol": 1}"#.to_vec()),
            _ => answer(&body),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(&body).ok()?;
    }
}

fn texts_in_json(body: &[u8]) -> (&'static str, Vec<u8>) {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let rows = asked["rows"].as_u64().unwrap() as usize;
    ("application/json", json!({"columns": [vec!["x".repeat(TEXT_BYTES); rows]]}).to_string().into_bytes())
}

fn texts_in_columns(body: &[u8]) -> (&'static str, Vec<u8>) {
    let size = u32::from_le_bytes(*body.first_chunk().unwrap()) as usize;
    let asked: Value = serde_json::from_slice(&body[4..4 + size]).unwrap();
    let rows = asked["rows"].as_u64().unwrap() as usize;
    let batch = RecordBatch::try_from_iter([("", texts(rows))]).unwrap();
    let layout = Layout::of(&[Type::Text], &batch);
    (COLUMNS, inline_body(&json!({"rows": rows, "buffers": layout.places()}), &layout))
}

fn lists_in_a_dialect(body: &[u8]) -> (&'static str, Vec<u8>) {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let rows = asked["calls"].as_array().unwrap().len();
    ("application/json", json!({"replies": vec![vec![1.5; ELEMENTS]; rows]}).to_string().into_bytes())
}

/// Calls the function for all rows as an engine does; rows of the largest batch.
fn query(remote: Remote, transport: TransportName, result: &str) -> Result<usize> {
    let client = Client::start().unwrap();
    client.limit_replies(LIMIT);
    let signature = signature(result);
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote, credentials: Credentials::default() },
        transport,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(60),
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    let bounds = Bounds {
        rows: 10_000,
        bytes: 8 << 20,
        reply_bytes: Bounds::reply_bytes(8 << 20, LIMIT),
        window: 8,
        time: Duration::ZERO,
    };
    let (mut pace, mut builder) = (Pace::new(bounds), BatchBuilder::new(&signature));
    let (mut sent, mut answered, mut largest) = (0, 0, 0);
    let mut out = VecDeque::new();
    while answered < ROWS {
        while sent < ROWS && pace.may_send(out.len(), 0) {
            let rows = pace.rows().min(ROWS - sent);
            for row in sent..sent + rows {
                let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
                column.append_value(row as i64);
                builder.finish_row();
            }
            exchange.send(builder.finish_batch());
            pace.note_sent();
            out.push_back(rows);
            sent += rows;
            largest = largest.max(rows);
        }
        let reply = exchange.receive(&PlainHost)?;
        let rows = out.pop_front().unwrap();
        assert_eq!(reply.columns.num_rows(), rows);
        match reply.columns.column(0) {
            column if result == "text" => {
                assert!(column.as_string::<i32>().iter().all(|it| it.unwrap().len() == TEXT_BYTES))
            }
            column => assert_eq!(column.as_list::<i32>().values().len(), rows * ELEMENTS),
        }
        answered += rows;
        pace.note_answered(&Measured { rows, reply_bytes: reply.bytes_needed, ..Measured::default() });
    }
    Ok(largest)
}

#[test]
fn batches_shrink_before_their_replies_are_too_large() {
    for (name, dialect, transport, result, answer) in [
        ("json", Dialect::Transship, TransportName::Json, "text", texts_in_json as Answer),
        ("socket", Dialect::Transship, TransportName::Socket, "text", texts_in_columns),
        ("bigquery", Dialect::Bigquery, TransportName::Auto, "float8[]", lists_in_a_dialect),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("http.sock");
        serve_http(&socket, answer);
        let remote = Remote::parse(&format!("http+unix:{}", socket.display()), dialect).unwrap();
        let largest = query(remote, transport, result).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        // After the first batch, by which it is known.
        assert_eq!(largest, 128, "{name}");
    }
}

#[test]
fn batches_of_flight_shrink_as_well() {
    let script: Script = Arc::new(|mut calls, answers| {
        Box::pin(async move {
            let signature = signature("text");
            let _ = answers.send(Ok(schema_of(&signature)));
            while let Some((batch, metadata)) = calls.next().await {
                let schema = Arc::new(arrow_schema::Schema::new(vec![signature.result.field("result")]));
                let reply = RecordBatch::try_new(schema, vec![texts(batch.num_rows())]).unwrap();
                let message = BatchEncoder::default().encode(&reply).unwrap().with_app_metadata(metadata);
                let _ = answers.send(Ok(message));
            }
        })
    });
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let hello = Some(r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#.to_string());
    let mock = MockContainer { hello, signature: signature("text"), script };
    let path = {
        let _runtime = runtime.enter();
        mock.start(folder.path())
    };
    let remote = Remote::parse(&format!("unix:{}", path.display()), Dialect::Transship).unwrap();
    assert_eq!(query(remote, TransportName::Auto, "text").unwrap(), 128);
}

#[test]
fn what_one_row_needs_is_not_made_smaller() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http.sock");
    serve_http(&socket, |body| {
        let asked: Value = serde_json::from_slice(body).unwrap();
        let rows = asked["rows"].as_u64().unwrap() as usize;
        // Of the first batch, which nobody has measured yet.
        ("application/json", json!({"columns": [vec!["x".repeat(LIMIT / 64); rows]]}).to_string().into_bytes())
    });
    let remote = Remote::parse(&format!("http+unix:{}", socket.display()), Dialect::Transship).unwrap();
    let error = query(remote, TransportName::Json, "text").unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert_eq!(error.advice(), Some(Advice::ReplySize), "{error:?}");
}
