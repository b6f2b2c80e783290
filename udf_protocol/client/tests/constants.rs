//! Constants against a scripted server: what travels, when it travels again, and what a server gets that does not take them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_codec::batch::CallBatch;
use udf_codec::constants::Constants;
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Result};

const MODEL_BYTES: usize = 100_000;

fn signature() -> Signature {
    let argument = |name: &str, ty| Argument { name: name.into(), ty };
    Signature::scalar("f", vec![argument("x", Type::Int8), argument("model", Type::Bytea)], Type::Int8)
}

fn model(byte: u8) -> ArrayRef {
    Arc::new(BinaryArray::from_vec(vec![&[byte; MODEL_BYTES]]))
}

fn batch(number: u64, values: &[i64], model: &ArrayRef) -> CallBatch {
    let constants = Constants::new(vec![(1, model.clone())]);
    let schema = Arc::new(constants.schema_of_others(&signature().call_schema()));
    let columns = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap();
    CallBatch { constants, ..CallBatch::new(number, columns) }
}

/// What a request said, and how many bytes of data followed its header.
type Asked = (Value, usize);

/// A server with this greeting, over a Unix socket or TCP. It answers each value with the length of the model that it has for it, and
/// ends the connection without an answer where `drops` says so.
struct Server {
    client: Client,
    call: Arc<Call>,
    asked: mpsc::Receiver<Asked>,
    _folder: tempfile::TempDir,
}

impl Server {
    fn new(greeting: Value, drops: impl Fn(usize) -> bool + Send + Sync + 'static) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let streams = std::iter::from_fn(move || listener.accept().ok().map(|(stream, _)| stream));
        Server::at(Endpoint::JsonUnix(path), folder, streams, greeting, drops)
    }

    fn over_tcp(greeting: Value) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::JsonTcp(listener.local_addr().unwrap().to_string());
        let streams = std::iter::from_fn(move || listener.accept().ok().map(|(stream, _)| stream));
        Server::at(endpoint, tempfile::tempdir().unwrap(), streams, greeting, |_| false)
    }

    fn at<S: Send + 'static>(
        endpoint: Endpoint,
        folder: tempfile::TempDir,
        streams: impl Iterator<Item = S> + Send + 'static,
        greeting: Value,
        drops: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> Server
    where
        for<'a> &'a S: Read + Write,
    {
        let (sender, asked) = mpsc::channel();
        let (drops, count) = (Arc::new(drops), Arc::new(Mutex::new(0)));
        std::thread::spawn(move || {
            for stream in streams {
                let (sender, greeting, drops, count) = (sender.clone(), greeting.clone(), drops.clone(), count.clone());
                std::thread::spawn(move || {
                    serve(&stream, &greeting, &sender, |()| {
                        let mut count = count.lock().unwrap();
                        *count += 1;
                        drops(*count)
                    })
                });
            }
        });
        let call = Call {
            target: Target::Remote { remote: endpoint.into(), credentials: Default::default() },
            transport: TransportName::Socket,
            signature: signature(),
            volatility: Volatility::Stable,
            batch_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        };
        Server { client: Client::start().unwrap(), call: Arc::new(call), asked, _folder: folder }
    }

    fn open(&self) -> Exchange {
        self.client.open(self.call.clone())
    }
}

fn serve<S>(stream: &S, greeting: &Value, asked: &mpsc::Sender<Asked>, drops: impl Fn(()) -> bool) -> Option<()>
where
    for<'a> &'a S: Read + Write,
{
    let mut reader = BufReader::new(stream);
    let mut known = 0;
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
        let answer = |kind: &str, body: &[u8]| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
            { stream }.write_all(&[head.as_bytes(), body].concat()).ok()
        };
        if is_greeting {
            answer("application/json", greeting.to_string().as_bytes())?;
            continue;
        }
        let end = 4 + u32::from_le_bytes(body[..4].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&body[4..end]).unwrap();
        let data = &body[end.next_multiple_of(8)..];
        let rows = header["rows"].as_u64().unwrap() as usize;
        let buffers: Vec<usize> =
            header["buffers"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect();
        // Buffers: x's validity and values, then the model's validity, offsets and bytes.
        let last = |row: usize| i32::from_le_bytes(data[buffers[6] + 4 * row..][..4].try_into().unwrap()) as usize;
        if header["constants"] == json!([1]) {
            if header["same_constants"] == json!(true) {
                assert_eq!(buffers.len(), 4);
            } else {
                known = last(1);
            }
        } else {
            assert_eq!(buffers.len(), 10);
            assert_eq!(last(rows), rows * MODEL_BYTES);
            known = last(1);
        }
        asked.send((header.clone(), data.len())).unwrap();
        if drops(()) {
            return None;
        }
        let values = data[buffers[2]..][..8 * rows].chunks(8);
        let sums: Vec<u8> = values
            .flat_map(|value| (i64::from_le_bytes(value.try_into().unwrap()) + known as i64).to_le_bytes())
            .collect();
        let text = json!({"batch": header["batch"], "rows": rows, "buffers": [0, 0, 0, sums.len()]}).to_string();
        let mut reply = (text.len() as u32).to_le_bytes().to_vec();
        reply.extend_from_slice(text.as_bytes());
        reply.resize(reply.len().next_multiple_of(8), 0);
        answer("application/vnd.transship.columns", &[reply, sums].concat())?;
    }
}

fn greeting(constants: bool) -> Value {
    json!({"protocol": 1, "server": "s", "functions": ["f"], "transports": ["json", "socket"], "constants": constants})
}

fn receive(exchange: &mut Exchange) -> Result<Vec<i64>> {
    let reply = exchange.receive(&PlainHost)?;
    Ok(reply.columns.column(0).as_primitive::<Int64Type>().values().to_vec())
}

const SIZE: i64 = MODEL_BYTES as i64;

#[test]
fn a_constant_travels_once_per_exchange() {
    let server = Server::new(greeting(true), |_| false);
    let (first, second) = (model(1), model(2));
    for _ in 0..2 {
        let mut exchange = server.open();
        for (number, model) in [&first, &first, &second, &second, &first].into_iter().enumerate() {
            exchange.send(batch(number as u64, &[1, 2, 3], model));
        }
        for _ in 0..5 {
            assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2, SIZE + 3]);
        }
        // A second exchange, which uses the same connection, begins anew.
        let said: Vec<_> =
            server.asked.try_iter().map(|(header, bytes)| (header["same_constants"] == json!(true), bytes)).collect();
        let shape: Vec<_> = said.iter().map(|(is_same, bytes)| (*is_same, *bytes >= MODEL_BYTES)).collect();
        assert_eq!(shape, [(false, true), (true, false), (false, true), (true, false), (false, true)]);
        assert!(said.iter().all(|(_, bytes)| *bytes < MODEL_BYTES + 1000));
    }
}

#[test]
fn constants_have_a_name_of_their_own() {
    let server = Server::new(greeting(true), |_| false);
    let (first, second) = (model(1), model(2));
    for _ in 0..2 {
        let mut exchange = server.open();
        for (number, model) in [&first, &first, &second, &first].into_iter().enumerate() {
            exchange.send(batch(number as u64, &[1], model));
        }
        for _ in 0..4 {
            assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1]);
        }
    }
    let names: Vec<_> =
        server.asked.try_iter().map(|(header, _)| header["constants_id"].as_str().unwrap().to_string()).collect();
    assert!(names[0] == names[1] && names[4] == names[5], "{names:?}");
    let others = [0, 2, 3, 4, 6, 7].map(|i| &names[i]);
    assert_eq!(others.iter().collect::<std::collections::HashSet<_>>().len(), others.len());
}

#[test]
fn over_tcp_constants_travel_with_every_batch() {
    // A proxy may put two requests on two connections, or those of two clients on one.
    let server = Server::over_tcp(greeting(true));
    let model = model(1);
    let mut exchange = server.open();
    assert!(!exchange.takes_constants());
    for number in 0..3 {
        exchange.send(batch(number, &[1, 2], &model));
        assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2]);
        // From now on they need not count in every row of a batch.
        assert!(exchange.takes_constants());
    }
    for (header, bytes) in server.asked.try_iter() {
        assert_eq!((&header["constants"], &header["same_constants"]), (&json!([1]), &Value::Null));
        assert!((MODEL_BYTES..MODEL_BYTES + 1000).contains(&bytes));
    }
}

#[test]
fn a_server_that_does_not_take_constants_gets_whole_columns() {
    let server = Server::new(greeting(false), |_| false);
    let mut exchange = server.open();
    for number in 0..3 {
        exchange.send(batch(number, &[1, 2], &model(1)));
        assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 1, SIZE + 2]);
        assert!(!exchange.takes_constants());
    }
    assert!(
        server.asked.try_iter().all(|(header, bytes)| header.get("constants").is_none() && bytes > 2 * MODEL_BYTES)
    );
}

#[test]
fn what_is_sent_again_brings_its_constants() {
    // The third request is lost, with the connection.
    let server = Server::new(greeting(true), |count| count == 3);
    let model = model(1);
    let mut exchange = server.open();
    for number in 0..4 {
        exchange.send(batch(number, &[7], &model));
        assert_eq!(receive(&mut exchange).unwrap(), [SIZE + 7]);
    }
    let said: Vec<_> = server.asked.try_iter().map(|(header, _)| header["same_constants"] == json!(true)).collect();
    assert_eq!(said, [false, true, true, false, true]);
}

#[test]
fn a_constant_that_cannot_be_repeated_is_an_error() {
    let server = Server::new(greeting(false), |_| false);
    let mut exchange = server.open();
    let values = vec![1; (1 << 30) / MODEL_BYTES + 1];
    exchange.send(batch(0, &values, &model(1)));
    // Equal calls would be sent once: these differ in their numbers alone.
    let values: Vec<i64> = (0..values.len() as i64).collect();
    exchange.send(batch(1, &values, &model(1)));
    assert_eq!(receive(&mut exchange).unwrap().len(), values.len());
    let error = receive(&mut exchange).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfRange);
    assert!(error.detail().unwrap().contains("Argument 2 is the same in 10738 rows"), "{error:?}");
}
