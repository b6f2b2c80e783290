//! What happens between the attempts at a batch, and what the attempts have in common.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

/// A request: its identities, and when it came.
struct Asked {
    query: String,
    batch: String,
    at: Instant,
}

/// The answer of a server that reads a batch and closes the connection.
const LOST: &str = "";

type Asks = Arc<Mutex<Vec<Asked>>>;

/// A Snowflake server that gives its answers in turn, the last one for ever.
fn serve(answers: &'static [&'static str]) -> (String, Asks) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asks = Asks::default();
    let seen = asks.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), answers, &seen);
        }
    });
    (endpoint, asks)
}

fn answer(mut stream: TcpStream, answers: &[&str], asks: &Asks) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut query, mut batch, mut length, mut line) = (String::new(), String::new(), 0, String::new());
    while reader.read_line(&mut line).is_ok_and(|size| size > 2) {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "sf-external-function-current-query-id" => query = value.trim().to_string(),
            "sf-external-function-query-batch-id" => batch = value.trim().to_string(),
            "content-length" => length = value.trim().parse().unwrap(),
            _ => {}
        }
        line.clear();
    }
    if query.is_empty() {
        return;
    }
    let _ = reader.read_exact(&mut vec![0; length]);
    let mut asks = asks.lock().unwrap();
    let text = answers[asks.len().min(answers.len() - 1)];
    asks.push(Asked { query, batch, at: Instant::now() });
    if text == LOST {
        return;
    }
    let (head, body) = text.split_once('|').unwrap_or((text, ""));
    let _ = write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

fn open(client: &Client, endpoint: &str, volatility: Volatility, batch_timeout: Duration) -> Exchange {
    let signature = signature();
    let remote = Remote::parse(endpoint, Dialect::Snowflake).unwrap();
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote, credentials: Credentials::default() },
        transport: TransportName::Auto,
        signature: signature.clone(),
        volatility,
        batch_timeout,
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }));
    let mut builder = BatchBuilder::new(&signature);
    let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
    column.append_value(1);
    builder.finish_row();
    exchange.send(builder.finish_batch());
    exchange
}

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

#[test]
fn attempts_have_pauses_between_them_and_one_identity() {
    let (endpoint, asks) = serve(&[
        "202 Accepted|{}",
        "503 Service Unavailable|busy",
        "503 Service Unavailable|busy",
        "200 OK|{\"data\":[[0,10]]}",
    ]);
    let client = Client::start().unwrap();
    let mut exchange = open(&client, &endpoint, Volatility::Immutable, Duration::from_secs(30));
    assert_eq!(exchange.receive(&PlainHost).unwrap().columns.num_rows(), 1);
    let first = std::mem::take(&mut *asks.lock().unwrap());
    assert_eq!(first.len(), 4);
    assert!(first.iter().all(|asked| asked.query == first[0].query && asked.batch == first[0].batch));
    // Between the attempts 50 to 100 ms, then 400 to 800 ms.
    assert!(first[2].at - first[1].at >= Duration::from_millis(50));
    assert!(first[3].at - first[2].at >= Duration::from_millis(400));
    // Another exchange has another identity.
    drop(exchange);
    let (endpoint, asks) = serve(&["200 OK|{\"data\":[[0,10]]}"]);
    let mut exchange = open(&client, &endpoint, Volatility::Immutable, Duration::from_secs(30));
    exchange.receive(&PlainHost).unwrap();
    assert_ne!(asks.lock().unwrap()[0].query, first[0].query);
}

#[test]
fn a_server_is_left_alone_for_as_long_as_it_asks() {
    const BUSY: &str = "429 Too Many Requests\r\nRetry-After: 1|busy";
    let client = Client::start().unwrap();
    let (endpoint, asks) = serve(&[BUSY, "200 OK|{\"data\":[[0,10]]}"]);
    let mut exchange = open(&client, &endpoint, Volatility::Stable, Duration::from_secs(30));
    exchange.receive(&PlainHost).unwrap();
    let asked = std::mem::take(&mut *asks.lock().unwrap());
    assert_eq!(asked.len(), 2);
    assert!(asked[1].at - asked[0].at >= Duration::from_secs(1));
    // Nobody waits for longer than the answer is waited for.
    let (endpoint, asks) = serve(&["503 Service Unavailable\r\nRetry-After: 3600|busy"]);
    let start = Instant::now();
    let mut exchange = open(&client, &endpoint, Volatility::Stable, Duration::from_secs(30));
    let error = exchange.receive(&PlainHost).unwrap_err();
    assert!(error.detail().unwrap().contains("503"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(asks.lock().unwrap().len(), 1);
    // What may have been done is not done again.
    let (endpoint, asks) = serve(&[BUSY]);
    let mut exchange = open(&client, &endpoint, Volatility::Volatile, Duration::from_secs(30));
    assert!(exchange.receive(&PlainHost).is_err());
    assert_eq!(asks.lock().unwrap().len(), 1);
}

#[test]
fn a_batch_that_was_lost_goes_to_another_server_unless_it_may_have_been_run() {
    const ANSWER: &str = "200 OK|{\"data\":[[0,10]]}";
    for volatility in [Volatility::Immutable, Volatility::Stable, Volatility::Volatile] {
        let (bad, lost) = serve(&[LOST]);
        let (good, answered) = serve(&[ANSWER]);
        let addresses = format!("{bad},{good}");
        let client = Client::start().unwrap();
        let (mut batches, mut failures) = (0, 0);
        // Whichever has its turn: the good server has it last until the bad one was asked.
        while lost.lock().unwrap().is_empty() {
            assert!(batches < 2, "servers take turns");
            batches += 1;
            let mut exchange = open(&client, &addresses, volatility, Duration::from_secs(30));
            failures += usize::from(exchange.receive(&PlainHost).is_err());
        }
        let (lost, answered) = (lost.lock().unwrap().len(), answered.lock().unwrap().len());
        if volatility == Volatility::Volatile {
            // Each batch has come to one server only.
            assert_eq!((lost, failures, answered), (1, 1, batches - 1));
        } else {
            // The second attempt has gone to the other server.
            assert_eq!((lost, failures, answered), (1, 0, batches));
        }
    }
}

#[test]
fn attempts_and_the_time_between_them_are_bounded() {
    let (endpoint, asks) = serve(&[LOST]);
    let client = Client::start().unwrap();
    let start = Instant::now();
    let mut exchange = open(&client, &endpoint, Volatility::Immutable, Duration::from_secs(30));
    assert!(exchange.receive(&PlainHost).unwrap_err().is_retryable());
    // Pauses of at most 100 ms and 800 ms, and what the connections take.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(asks.lock().unwrap().len(), 3);
    // Without the time for a pause there is no further attempt.
    let (endpoint, asks) = serve(&[LOST]);
    let mut exchange = open(&client, &endpoint, Volatility::Immutable, Duration::from_millis(40));
    assert!(exchange.receive(&PlainHost).is_err());
    // A busy machine may not even get to the first in that time.
    assert!(asks.lock().unwrap().len() <= 1);
}
