//! The way to a server: through a proxy, compressed, and past one of several servers that is not there.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use support::{MockContainer, reply, schema_of};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_client::transport::proxy::Proxy;
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

const HELLO: &str = r#"{"protocol": 1, "server": "mock", "functions": ["f"]}"#;

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

fn batch() -> CallBatch {
    let mut builder = BatchBuilder::new(&signature());
    let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
    column.append_value(4);
    builder.finish_row();
    builder.finish_batch()
}

fn open(client: &Client, addresses: &str, volatility: Volatility, credentials: Credentials) -> Exchange {
    let remote = Remote::parse(addresses, Dialect::Transship).unwrap();
    let transport = remote.transport_name();
    open_to(client, Target::Remote { remote, credentials }, transport, volatility)
}

fn open_to(client: &Client, target: Target, transport: TransportName, volatility: Volatility) -> Exchange {
    client.open(Arc::new(Call {
        transport,
        target,
        signature: signature(),
        volatility,
        batch_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        tables: Vec::new(),
    }))
}

fn call(addresses: &str, volatility: Volatility, credentials: Credentials) -> Result<i64> {
    let client = Client::start().unwrap();
    let mut exchange = open(&client, addresses, volatility, credentials);
    exchange.send(batch());
    let reply = exchange.receive(&PlainHost)?;
    Ok(reply.columns.column(0).as_primitive::<Int64Type>().value(0))
}

/// A server that answers JSON requests, each on a connection of its own; how it was asked is kept.
fn json_server(encoding: &'static str, body: Vec<u8>) -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(String::new()));
    let kept = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            while !request.ends_with(b"]]}") {
                match stream.read(&mut bytes).unwrap() {
                    0 => break,
                    count => request.extend_from_slice(&bytes[..count]),
                }
            }
            *kept.lock().unwrap() = String::from_utf8(request).unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{encoding}Connection: close\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    (address, asked)
}

const REPLY: &[u8] = br#"{"batch": 0, "columns": [[40]]}"#;

/// A proxy that makes one tunnel after the other, to `target` wherever it is asked to go; what it was asked is kept.
fn proxy(target: SocketAddr, answer: &'static str) -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(String::new()));
    let kept = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
                request.push(byte[0]);
            }
            *kept.lock().unwrap() = String::from_utf8(request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            let mut onward = TcpStream::connect(target).unwrap();
            let (mut back, mut there) = (stream.try_clone().unwrap(), onward.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut there, &mut back));
            std::thread::spawn(move || std::io::copy(&mut stream, &mut onward));
        }
    });
    (address, asked)
}

fn through(proxy: SocketAddr) -> Credentials {
    Credentials { proxy: Some(Proxy::new(&format!("http://me:s3cret@{proxy}")).unwrap()), ..Credentials::default() }
}

/// A Flight server that multiplies by ten.
fn flight_server() -> (SocketAddr, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let script: support::Script = Arc::new(|mut calls, answers| {
        Box::pin(async move {
            let _ = answers.send(Ok(schema_of(&signature())));
            while let Some((batch, metadata)) = calls.next().await {
                let values = batch.column(0).as_primitive::<Int64Type>().iter();
                let values = values.map(|value| value.map(|value| value * 10)).collect();
                let _ = answers.send(Ok(reply(&signature(), values, &metadata)));
            }
        })
    });
    let mock = MockContainer { hello: Some(HELLO.to_string()), signature: signature(), script };
    let address = runtime.block_on(async { mock.start_tcp().await }).parse().unwrap();
    (address, runtime)
}

#[test]
fn tunnels_carry_json_and_flight() {
    let (server, _) = json_server("", REPLY.to_vec());
    let (tunnel, asked) = proxy(server, "HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n");
    let answer = call("http://scoring.invalid:8080", Volatility::Immutable, through(tunnel)).unwrap();
    assert_eq!(answer, 40);
    let said = asked.lock().unwrap().clone();
    assert!(said.starts_with("CONNECT scoring.invalid:8080 HTTP/1.1\r\nHost: scoring.invalid:8080\r\n"), "{said}");
    assert!(said.contains("Proxy-Authorization: Basic bWU6czNjcmV0\r\n"), "{said}");
    let (server, _runtime) = flight_server();
    let (tunnel, asked) = proxy(server, "HTTP/1.0 200 OK\r\n\r\n");
    assert_eq!(call("grpc://scoring.invalid:8815", Volatility::Immutable, through(tunnel)).unwrap(), 40);
    assert!(asked.lock().unwrap().starts_with("CONNECT scoring.invalid:8815 "));
}

#[test]
fn a_proxys_refusal_is_told() {
    let (server, _) = json_server("", REPLY.to_vec());
    for (answer, fact) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy refused: it answered with HTTP status 407"),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "the proxy refused"),
    ] {
        let (tunnel, _) = proxy(server, answer);
        let error = call("http://scoring.invalid:8080", Volatility::Volatile, through(tunnel)).unwrap_err();
        let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
        assert!(error.kind() == Kind::Unreachable && said.contains(fact), "{said}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = call("http://scoring.invalid:8080", Volatility::Volatile, through(nobody)).unwrap_err();
    let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
    assert!(said.contains("could not reach the proxy"), "{said}");
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_replies_are_unpacked_if_they_were_asked_for() {
    let compressed = Credentials { compression: true, ..Credentials::default() };
    let (server, asked) = json_server("Content-Encoding: gzip\r\n", packed(REPLY));
    assert_eq!(call(&format!("http://{server}"), Volatility::Immutable, compressed.clone()).unwrap(), 40);
    assert!(asked.lock().unwrap().to_ascii_lowercase().contains("accept-encoding: gzip\r\n"));
    let (server, asked) = json_server("", REPLY.to_vec());
    assert_eq!(call(&format!("http://{server}"), Volatility::Immutable, Credentials::default()).unwrap(), 40);
    assert!(!asked.lock().unwrap().to_ascii_lowercase().contains("accept-encoding"));
    for (body, fact) in
        [(packed(REPLY)[..20].to_vec(), "cannot be unpacked"), (b"no gzip".to_vec(), "cannot be unpacked")]
    {
        let (server, _) = json_server("Content-Encoding: gzip\r\n", body);
        let error = call(&format!("http://{server}"), Volatility::Volatile, compressed.clone()).unwrap_err();
        assert_eq!(error.kind(), Kind::ProtocolViolation);
        assert!(error.detail().unwrap().contains(fact), "{error}");
    }
}

#[test]
fn damaged_replies_are_refused() {
    let ask = |headers, body| {
        let (server, _) = json_server(headers, body);
        call(
            &format!("http://{server}"),
            Volatility::Volatile,
            Credentials { compression: true, ..Credentials::default() },
        )
    };
    assert_eq!(ask("Content-MD5: 5PUJDDRLIsAeDnWC5pBUsw==\r\n", REPLY.to_vec()).unwrap(), 40);
    assert_eq!(ask("Content-MD5: E4F5090C344B22C01E0E7582E69054B3\r\n", REPLY.to_vec()).unwrap(), 40);
    // Of another body, of none, and of what the compressed body becomes.
    for (headers, body) in [
        ("Content-MD5: eV8yArF8trw9S3cdjGyerw==\r\n", REPLY.to_vec()),
        ("Content-MD5: \r\n", REPLY.to_vec()),
        ("Content-Encoding: gzip\r\nContent-MD5: 5PUJDDRLIsAeDnWC5pBUsw==\r\n", packed(REPLY)),
    ] {
        let error = ask(headers, body).unwrap_err();
        assert_eq!(error.kind(), Kind::ProtocolViolation);
        assert!(error.detail().unwrap().contains("Content-MD5"), "{error}");
    }
}

#[test]
fn volatile_functions_go_to_a_server_that_is_there() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (server, _runtime) = flight_server();
    let client = Client::start().unwrap();
    let addresses = format!("grpc://{nobody},grpc://{server}");
    // Whichever has its turn.
    for _ in 0..4 {
        let mut exchange = open(&client, &addresses, Volatility::Volatile, Credentials::default());
        exchange.send(batch());
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!(reply.columns.column(0).as_primitive::<Int64Type>().value(0), 40);
    }
}

#[test]
fn addresses_of_a_name_are_tried_until_one_answers() {
    // localhost is 127.0.0.1 and, where there is IPv6, ::1; the server has one of them.
    let (server, _runtime) = flight_server();
    for _ in 0..4 {
        let answer =
            call(&format!("grpc://localhost:{}", server.port()), Volatility::Immutable, Credentials::default());
        assert_eq!(answer.unwrap(), 40);
    }
}

#[test]
fn the_manager_is_reached_once_ahead_and_again_where_it_was_started_anew() {
    let (server, _) = json_server("", REPLY.to_vec());
    let folder = tempfile::tempdir().unwrap();
    let manager = folder.path().join("m.sock");
    let listener = UnixListener::bind(&manager).unwrap();
    let lease =
        format!(r#"{{"response": "lease", "replica": "r", "image": "i:1.0", "json": "http://{server}"}}{}"#, "\n");
    // Which of the connections are closed at once; the others get a lease.
    for closes in [vec![false], vec![true, false]] {
        let (listener, lease) = (listener.try_clone().unwrap(), lease.clone());
        let served = std::thread::spawn(move || {
            for closes in closes {
                let (mut stream, _) = listener.accept().unwrap();
                if !closes {
                    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                    stream.write_all(lease.as_bytes()).unwrap();
                    // Until the lease ends.
                    assert_eq!(stream.read(&mut [0; 4096]).unwrap(), 0);
                }
            }
        });
        let client = Client::start().unwrap();
        client.prepare(manager.clone());
        let target = Target::Image { manager: manager.clone(), digest: "sha256:1".to_string() };
        let mut exchange = open_to(&client, target, TransportName::Json, Volatility::Volatile);
        exchange.send(batch());
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!(reply.columns.column(0).as_primitive::<Int64Type>().value(0), 40);
        drop(exchange);
        client.release();
        served.join().unwrap();
    }
}

#[test]
fn exchanges_that_are_opened_at_once_share_one_lease() {
    let (server, _) = json_server("", REPLY.to_vec());
    let folder = tempfile::tempdir().unwrap();
    let manager = folder.path().join("m.sock");
    let listener = UnixListener::bind(&manager).unwrap();
    let lease =
        format!(r#"{{"response": "lease", "replica": "r", "image": "i:1.0", "json": "http://{server}"}}{}"#, "\n");
    let leases = Arc::new(AtomicUsize::new(0));
    let counted = leases.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, lease, counted) = (stream.unwrap(), lease.clone(), counted.clone());
            std::thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {
                    counted.fetch_add(1, Relaxed);
                    // Long enough for the others to want one, too.
                    std::thread::sleep(Duration::from_millis(50));
                    stream.write_all(lease.as_bytes()).unwrap();
                }
            });
        }
    });
    let client = Client::start().unwrap();
    let target = Target::Image { manager, digest: "sha256:1".to_string() };
    let exchanges = (0..20).map(|_| open_to(&client, target.clone(), TransportName::Json, Volatility::Volatile));
    let mut exchanges: Vec<_> = exchanges.collect();
    exchanges.iter_mut().for_each(|exchange| exchange.send(batch()));
    for exchange in &mut exchanges {
        let reply = exchange.receive(&PlainHost).unwrap();
        assert_eq!(reply.columns.column(0).as_primitive::<Int64Type>().value(0), 40);
    }
    assert_eq!(leases.load(Relaxed), 1);
}

#[test]
fn a_connection_ahead_ends_with_the_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let manager = folder.path().join("m.sock");
    let listener = UnixListener::bind(&manager).unwrap();
    let client = Client::start().unwrap();
    client.prepare(manager);
    client.release();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}
