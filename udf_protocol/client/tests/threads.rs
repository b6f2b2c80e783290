//! A client whose process can have no more threads does what it can without one, and says so where it cannot. In a process of
//! its own, which the limit is for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_project::endpoint::Endpoint;
use udf_types::Kind;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

/// More than one thread writes at once.
const ROWS: i64 = 5000;
/// Less than a thread's stack.
const SPARE_BYTES: u64 = 1 << 20;

/// Answers requests one after the other: each value with itself.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let mut reader = BufReader::new(&stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let call: Value = serde_json::from_slice(&body).unwrap();
        let text = json!({"batch": call["batch"], "columns": call["columns"]}).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        let _ = (&stream).write_all((head + &text).as_bytes());
    }
}

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

fn open(client: &Client, authority: String) -> Exchange {
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote: Endpoint::JsonTcp(authority).into(), credentials: Credentials::default() },
        transport: TransportName::Json,
        signature: signature(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    let mut builder = BatchBuilder::new(&signature());
    for x in 0..ROWS {
        let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("a column of bigint") };
        column.append_value(x);
        builder.finish_row();
    }
    exchange.send(builder.finish_batch());
    exchange
}

/// The bytes of address space that this process has.
fn size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_client_without_threads_writes_by_itself_and_says_what_it_cannot() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || serve(&listener));
    let client = Client::start().unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let answer = |host: &str| open(&client, format!("{host}:{port}")).receive(&PlainHost);
    let check = |host: &str| {
        let reply = answer(host).unwrap();
        let values = reply.columns.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(values, (0..ROWS).collect::<Vec<i64>>());
    };
    // Whatever is made once is made with threads.
    check("127.0.0.1");
    check("localhost");
    setrlimit(Resource::RLIMIT_AS, size() + SPARE_BYTES, hard).unwrap();
    // Stacks of threads that have ended are there for others, until these take them.
    let gate = Arc::new(Mutex::new(()));
    let shut = gate.lock().unwrap();
    let waits = || {
        let gate = gate.clone();
        std::thread::Builder::new().spawn(move || drop(gate.lock()))
    };
    let others: Vec<_> = std::iter::from_fn(|| waits().ok()).collect();
    let by_itself = answer("127.0.0.1");
    let by_name = answer("localhost");
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    drop(shut);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(by_itself.unwrap().columns.num_rows(), ROWS as usize);
    let refused = by_name.unwrap_err();
    let said = format!("{} {}", refused.message(), refused.detail().unwrap_or_default());
    assert!(said.contains("could not start a thread to look up the name"), "{said}");
    assert_eq!(refused.kind(), Kind::Unreachable, "{said}");
    assert!(client.is_running());
    check("localhost");
}
