//! Columns in memory against a scripted server: what travels, and what becomes of answers that lie about it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_buffer::ScalarBuffer;
use serde_json::{Value, json};
use udf_client::client::{Client, LINGER};
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::{Host, PlainHost};
use udf_client::outbox::Outgoing;
use udf_codec::batch::{AggregateStep, BatchBuilder, CallBatch, ColumnBuilder};
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Kind, Origin, Result};

fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

fn batches(count: usize, rows: i64) -> Vec<CallBatch> {
    let mut builder = BatchBuilder::new(&signature());
    let mut make = |first| {
        for value in first..first + rows {
            let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
            column.append_value(value);
            builder.finish_row();
        }
        builder.finish_batch()
    };
    (0..count as i64).map(|number| make(number * rows)).collect()
}

/// The server's side of a connection.
struct Peer {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    segments: PathBuf,
}

/// A request: its header, and its values wherever they lie.
struct Asked {
    header: Value,
    values: Vec<i64>,
}

impl Peer {
    /// The next request; none at the end of the connection.
    fn read(&mut self) -> Option<Asked> {
        let mut line = String::new();
        let mut length = 0;
        while self.reader.read_line(&mut line).ok()? > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if let Some(value) = lower.strip_prefix("content-type:") {
                assert_eq!(value.trim(), "application/vnd.transship.columns");
            }
            line.clear();
        }
        if length == 0 {
            return None;
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).ok()?;
        let end = 4 + u32::from_le_bytes(body[..4].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&body[4..end]).unwrap();
        let data = match header["segment"].as_str() {
            Some(name) => std::fs::read(self.segments.join(name)).unwrap(),
            None => body.split_off(end.next_multiple_of(8)),
        };
        let place = |i: usize| header["buffers"][i].as_u64().unwrap() as usize;
        let values = data[place(2)..place(2) + place(3)].chunks(8);
        let values = values.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
        Some(Asked { header, values })
    }

    fn write(&mut self, status: &str, content_type: &str, body: &[u8]) {
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.write_raw(&[head.as_bytes(), body].concat());
    }

    fn write_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn write_columns(&mut self, header: &Value, data: &[u8]) {
        let text = header.to_string();
        let mut body = (text.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(text.as_bytes());
        if !data.is_empty() {
            body.resize(body.len().next_multiple_of(8), 0);
            body.extend_from_slice(data);
        }
        self.write("200 OK", "application/vnd.transship.columns", &body);
    }

    /// Answers with ten times the values, through the segment that was offered, or in the reply.
    fn answer(&mut self, asked: &Asked, more: Value) {
        let data: Vec<u8> = asked.values.iter().flat_map(|value| (value * 10).to_le_bytes()).collect();
        let mut header =
            json!({"batch": asked.header["batch"], "rows": asked.values.len(), "buffers": [0, 0, 0, data.len()]});
        header.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        match asked.header["reply_segment"].as_str() {
            Some(name) => {
                header["segment"] = json!(name);
                std::fs::OpenOptions::new()
                    .write(true)
                    .open(self.segments.join(name))
                    .unwrap()
                    .write_all(&data)
                    .unwrap();
                self.write_columns(&header, &[]);
            }
            None => self.write_columns(&header, &data),
        }
    }
}

/// A manager that leases one server, which answers each connection by a script.
struct Stage {
    client: Client,
    folder: tempfile::TempDir,
    /// Leases, connections to the server, and leases that have ended.
    counts: Arc<[AtomicUsize; 3]>,
    /// Connections that the server has closed.
    closed: Arc<AtomicUsize>,
}

impl Stage {
    fn new(script: impl Fn(Peer) + Send + Sync + 'static) -> Stage {
        Stage::of_server(false, script)
    }

    /// The same of a server whose connections may be kept, or not.
    fn of_server(keep_alive: bool, script: impl Fn(Peer) + Send + Sync + 'static) -> Stage {
        let (counts, closed) = (Arc::<[AtomicUsize; 3]>::default(), Arc::<AtomicUsize>::default());
        let folder = tempfile::tempdir().unwrap();
        let segments = folder.path().join("segments");
        std::fs::create_dir(&segments).unwrap();
        let server = UnixListener::bind(folder.path().join("http.sock")).unwrap();
        let (script, peers, counted) = (Arc::new(script), segments.clone(), counts.clone());
        let closings = closed.clone();
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let stream = stream.unwrap();
                counted[1].fetch_add(1, Relaxed);
                let reader = BufReader::new(stream.try_clone().unwrap());
                let (script, peer) = (script.clone(), Peer { stream, reader, segments: peers.clone() });
                let closings = closings.clone();
                std::thread::spawn(move || {
                    script(peer);
                    closings.fetch_add(1, Relaxed);
                });
            }
        });
        let manager = UnixListener::bind(folder.path().join("manager.sock")).unwrap();
        let json = format!("http+unix:{}", folder.path().join("http.sock").display());
        let counted = counts.clone();
        std::thread::spawn(move || {
            for stream in manager.incoming() {
                let (mut stream, json, segments) = (stream.unwrap(), json.clone(), segments.clone());
                let counted = counted.clone();
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    for line in lines.map_while(std::io::Result::ok) {
                        let response = if line.contains("report_failure") {
                            json!({"response": "fate", "fate": "exited with status 3"})
                        } else {
                            if line.contains("scarce") {
                                // There is no room beside other leases.
                                wait_until(|| counted[2].load(Relaxed) == counted[0].load(Relaxed));
                            }
                            counted[0].fetch_add(1, Relaxed);
                            json!({"response": "lease", "replica": "r", "image": "i:1", "json": json, "columns": true, "segments": segments, "pipelining": true, "keep_alive": keep_alive})
                        };
                        writeln!(stream, "{response}").unwrap();
                    }
                    counted[2].fetch_add(1, Relaxed);
                });
            }
        });
        Stage { client: Client::start().unwrap(), folder, counts, closed }
    }

    /// Leases, connections to the server, and leases that have ended.
    fn counts(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.counts[i].load(Relaxed))
    }

    /// An exchange that began on this thread, since the server is known.
    fn open_here(&self, transport: TransportName, volatility: Volatility) -> Exchange {
        let is_known = self.counts()[0] > 0;
        let mut first = self.open_over(transport, volatility);
        first.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut first).unwrap(), [0]);
        assert_eq!(first.may_be_nearer(), !is_known);
        drop(first);
        let exchange = self.open_over(transport, volatility);
        assert!(!exchange.may_be_nearer());
        exchange
    }

    fn segments(&self) -> PathBuf {
        self.folder.path().join("segments")
    }

    fn open(&self, volatility: Volatility) -> Exchange {
        self.open_over(TransportName::Shm, volatility)
    }

    fn open_over(&self, transport: TransportName, volatility: Volatility) -> Exchange {
        self.open_as(transport, volatility, signature())
    }

    fn open_as(&self, transport: TransportName, volatility: Volatility, signature: Signature) -> Exchange {
        self.client.open(Arc::new(Call { signature, ..self.call(transport, volatility) }))
    }

    /// A call of one image's function, in a transaction of its own.
    fn call_once(&self, digest: &str) {
        let mut call = self.call(TransportName::Shm, Volatility::Volatile);
        call.target = Target::Image { manager: self.folder.path().join("manager.sock"), digest: digest.to_string() };
        let mut exchange = self.client.open(Arc::new(call));
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        self.client.release();
    }

    fn call(&self, transport: TransportName, volatility: Volatility) -> Call {
        Call {
            target: Target::Image { manager: self.folder.path().join("manager.sock"), digest: "sha256:0".to_string() },
            transport,
            signature: signature(),
            volatility,
            batch_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
        }
    }
}

fn receive(exchange: &mut Exchange) -> Result<Vec<i64>> {
    let reply = exchange.receive(&PlainHost)?;
    Ok(reply.columns.column(0).as_primitive::<Int64Type>().values().to_vec())
}

fn count_files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn batches_travel_through_segments_before_the_first_is_answered() {
    let stage = Stage::new(|mut peer| {
        // All have come on one connection before any is answered.
        let asked: Vec<Asked> = (0..3).map_while(|_| peer.read()).collect();
        let names: std::collections::HashSet<_> =
            asked.iter().map(|asked| asked.header["segment"].to_string()).collect();
        assert_eq!(names.len(), 3);
        asked.iter().for_each(|asked| peer.answer(asked, json!({"micros": 5})));
        // A segment is used again once its batch was answered.
        while let Some(asked) = peer.read() {
            assert!(names.contains(&asked.header["segment"].to_string()));
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    let mut sent = batches(6, 1000).into_iter();
    sent.by_ref().take(3).for_each(|batch| exchange.send(batch));
    let expected = |number: i64| (number * 1000..number * 1000 + 1000).map(|value| value * 10).collect::<Vec<_>>();
    for number in 0..3 {
        assert_eq!(receive(&mut exchange).unwrap(), expected(number));
    }
    assert_eq!(exchange.transport(), Some(TransportName::Shm));
    for (number, batch) in (3..).zip(sent) {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), expected(number));
    }
    assert_eq!(count_files(&stage.segments()), 6);
    let segments = stage.segments();
    drop(exchange);
    stage.client.stop();
    assert_eq!(count_files(&segments), 0);
}

#[test]
fn segments_that_a_handler_keeps_are_not_written_again() {
    let stage = Stage::new(|mut peer| {
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        while let Some(asked) = peer.read() {
            let name = asked.header["segment"].as_str().unwrap().to_string();
            let file = peer.segments.join(&name);
            assert!(kept.iter().all(|(other, _)| *other != name));
            kept.push((name, std::fs::read(file).unwrap()));
            peer.answer(&asked, json!({"retained": true}));
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    for batch in batches(3, 4) {
        exchange.send(batch);
        receive(&mut exchange).unwrap();
    }
}

#[test]
fn segments_of_calls_that_failed_are_not_written_again() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let noted = names.clone();
    let stage = Stage::new(move |mut peer| {
        while let Some(asked) = peer.read() {
            noted.lock().unwrap().push(asked.header["segment"].to_string());
            match asked.values[0] {
                20 => peer.write(
                    "500 Internal Server Error",
                    "application/json",
                    br#"{"error": {"kind": "user_code", "message": "20 is bad"}}"#,
                ),
                _ => peer.answer(&asked, json!({})),
            }
        }
    });
    let _ = std::os::unix::fs::chown(stage.folder.path().join("http.sock"), Some(65534), None);
    for values in [[10, 11, 20], [30, 31, 20], [40, 41, 42]] {
        let mut exchange = stage.open(Volatility::Volatile);
        for (number, value) in values.into_iter().enumerate() {
            let answer = send_in_place(&mut exchange, number, value);
            assert_eq!(answer.ok(), (value != 20).then(|| vec![10 * value, 10 * value + 10, 10 * value + 20]));
        }
    }
    // The handler may have kept what it failed on, and does not say so.
    let names = names.lock().unwrap();
    assert!(!names[3..].contains(&names[2]) && !names[6..].contains(&names[5]), "{names:?}");
}

/// The answer to a batch of three values from `first` on, in memory of the exchange's own.
fn send_in_place(exchange: &mut Exchange, number: usize, first: i64) -> Result<Vec<i64>> {
    let mut writer = exchange.arena(1000);
    let values = [first, first + 1, first + 2];
    writer.bytes()[64..88].copy_from_slice(&values.map(i64::to_le_bytes).concat());
    let arena = writer.finish();
    let column = Int64Array::new(ScalarBuffer::new(arena.buffer().slice_with_length(64, 24), 0, 3), None);
    let mut batch = batches(number + 1, 3).remove(number);
    batch.columns = RecordBatch::try_new(batch.columns.schema(), vec![Arc::new(column)]).unwrap();
    exchange.send(Outgoing { batch, arena: Some(arena) });
    receive(exchange)
}

#[test]
fn columns_that_were_written_in_place_are_not_copied() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            let more = json!({"retained": asked.values.first() == Some(&30)});
            peer.answer(&asked, more);
        }
    });
    // Only where the server is another user, which root alone can pretend.
    let another = std::os::unix::fs::chown(stage.folder.path().join("http.sock"), Some(65534), None);
    let in_place = usize::from(another.is_ok());
    let mut exchange = stage.open(Volatility::Volatile);
    // Before the server was reached, the memory is the process's own, and copied.
    assert_eq!(send_in_place(&mut exchange, 0, 10).unwrap(), [100, 110, 120]);
    assert_eq!(count_files(&stage.segments()), 2);
    for (number, first) in [(1, 20), (2, 30), (3, 40), (4, 50)] {
        assert_eq!(
            send_in_place(&mut exchange, number, first).unwrap(),
            [10 * first, 10 * first + 10, 10 * first + 20]
        );
        // The third was kept by the server, so the fourth went through another.
        assert_eq!(count_files(&stage.segments()), 2 + in_place, "{number}");
    }
    let segments = stage.segments();
    drop(exchange);
    stage.client.release();
    stage.client.stop();
    assert_eq!(count_files(&segments), 0);
}

#[test]
fn small_batches_go_with_the_request_where_that_may_be_chosen() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header.get("segment").is_some(), asked.values.len() > 4096);
            assert_eq!(asked.header.get("reply_segment").is_some(), asked.values.len() > 4096);
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_over(TransportName::Auto, Volatility::Volatile);
    let mut send = |number: usize, rows: i64, files: usize| {
        exchange.send(batches(number + 1, rows).remove(number));
        let first = number as i64 * rows;
        assert_eq!(receive(&mut exchange).unwrap(), (first..first + rows).map(|value| value * 10).collect::<Vec<_>>());
        assert_eq!(count_files(&stage.segments()), files);
        assert_eq!(exchange.transport(), Some(TransportName::Shm));
    };
    send(0, 3, 0);
    send(1, 4096, 0);
    send(2, 4097, 2);
    send(3, 3, 2);
}

#[test]
fn data_goes_with_the_request_where_no_segment_can_be_made() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header.get("segment"), None);
            peer.answer(&asked, json!({}));
        }
    });
    std::fs::remove_dir(stage.segments()).unwrap();
    let mut exchange = stage.open(Volatility::Volatile);
    for (number, batch) in (0..).zip(batches(3, 2)) {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [number * 20, number * 20 + 10]);
    }
}

#[test]
fn results_that_are_arguments_come_back_as_references() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header["may_alias"], json!(true));
            // All values of the first batch; of the second all but the first.
            let cut = 8 * asked.header["batch"].as_u64().unwrap();
            let place = |i: usize| asked.header["buffers"][i].as_u64().unwrap();
            let buffers = json!([0, 0, place(2) + cut, place(3) - cut]);
            peer.write_columns(&json!({"rows": asked.values.len(), "buffers": buffers, "aliases": [1]}), &[]);
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    batches(2, 5).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 1, 2, 3, 4]);
    let error = receive(&mut exchange).unwrap_err();
    assert_eq!(error.kind(), Kind::BadResult);
    assert!(error.to_string().contains("has 32 bytes, not 40"), "{error}");
}

#[test]
fn texts_come_as_dictionaries_where_that_is_taken() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            assert_eq!(asked.header["may_encode"], json!(true));
            // The second answer refers to a text that there is not.
            let last = asked.header["batch"].as_i64().unwrap() as u8 + 1;
            let header = json!({"rows": 3, "buffers": [0, 1, 8, 12, 24, 12, 40, 3], "dictionaries": [0, 2]});
            let mut data = [0; 43];
            (data[0], data[8], data[16], data[28], data[32]) = (0b101, 1, last, 1, 3);
            data[40..].copy_from_slice(b"abb");
            peer.write_columns(&header, &data);
        }
    });
    let signature = Signature { result: Type::Text, ..signature() };
    let mut exchange = stage.open_as(TransportName::Shm, Volatility::Volatile, signature);
    for batch in batches(2, 3) {
        exchange.send(CallBatch { takes_dictionaries: true, ..batch });
    }
    let reply = exchange.receive(&PlainHost).unwrap().columns;
    let texts = reply.column(0).as_dictionary::<Int32Type>().downcast_dict::<StringArray>().unwrap();
    assert_eq!(texts.into_iter().collect::<Vec<_>>(), [Some("bb"), None, Some("bb")]);
    assert_eq!(exchange.receive(&PlainHost).unwrap_err().kind(), Kind::BadResult);
}

#[test]
fn lies_are_errors() {
    type Lie = fn(&mut Peer, &Asked);
    let lies: [(&str, Kind, Lie); 25] = [
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 24], "aliases": [1]}), &[0; 24]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 4, 8], "aliases": [1]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, u64::MAX - 7, 16], "aliases": [1]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 8, u64::MAX - 7], "aliases": [1, 1, 9]}), &[]);
        }),
        ("segment is too short", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(
                &json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, 0, 16]}),
                &[],
            );
        }),
        ("larger than 1 GiB", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(&json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, 1_u64 << 62, 1_u64 << 62]}), &[]);
        }),
        ("larger than 1 GiB", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(
                &json!({"rows": 2, "segment": asked.header["reply_segment"], "buffers": [0, 0, u64::MAX, 16]}),
                &[],
            );
        }),
        ("not the one that was offered", Kind::ProtocolViolation, |peer, asked| {
            peer.write_columns(&json!({"rows": 2, "segment": asked.header["segment"], "buffers": [0, 0, 0, 16]}), &[]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16]}), &[0; 8]);
        }),
        ("where no buffer can be", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 4, 16]}), &[0; 32]);
        }),
        ("has 8 bytes, not 16", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 8]}), &[0; 8]);
        }),
        ("too many rows", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": u64::MAX / 4, "buffers": [0, 0, 0, 8]}), &[0; 8]);
        }),
        ("fewer buffers", Kind::BadResult, |peer, _| peer.write_columns(&json!({"rows": 2, "buffers": [0, 0]}), &[])),
        ("fewer buffers", Kind::BadResult, |peer, _| peer.write_columns(&json!({"rows": 2, "buffers": [0]}), &[])),
        ("more buffers", Kind::BadResult, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16, 0, 16]}), &[0; 16]);
        }),
        ("a dictionary that was not asked for", Kind::ProtocolViolation, |peer, asked| {
            assert_eq!(asked.header.get("may_encode"), None);
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16], "dictionaries": [0, 1]}), &[0; 16]);
        }),
        ("3 rows", Kind::ProtocolViolation, |peer, _| {
            peer.write_columns(&json!({"rows": 3, "buffers": [0, 0, 0, 24]}), &[0; 24]);
        }),
        ("another batch", Kind::ProtocolViolation, |peer, _| {
            peer.write_columns(&json!({"batch": 9, "rows": 2, "buffers": [0, 0, 0, 16]}), &[0; 16]);
        }),
        ("header is cut off", Kind::ProtocolViolation, |peer, _| {
            peer.write("200 OK", "application/vnd.transship.columns", &[255, 255, 255, 255, b'{']);
        }),
        ("not of the form", Kind::ProtocolViolation, |peer, _| {
            peer.write("200 OK", "application/json", b"{\"columns\": [[1, 2]]}");
        }),
        ("HTTP status 500", Kind::ProtocolViolation, |peer, _| peer.write("500 Oh", "text/html", b"<html>")),
        // A gateway's words.
        ("HTTP status 401", Kind::NotAllowed, |peer, _| peer.write("401 Unauthorized", "text/html", b"<html>")),
        ("not HTTP", Kind::ProtocolViolation, |peer, _| peer.write_raw(b"\x00\x01\x02\x03 hello\r\n\r\n")),
        ("its length", Kind::ProtocolViolation, |peer, _| {
            peer.write_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
        }),
        ("head is too long", Kind::ProtocolViolation, |peer, _| {
            peer.write_raw(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(40_000)).as_bytes());
        }),
    ];
    for (fact, kind, lie) in lies {
        let stage = Stage::new(move |mut peer| {
            if let Some(asked) = peer.read() {
                lie(&mut peer, &asked);
                // The connection stays, so that the answer alone says what is wrong.
                let _ = peer.read();
            }
        });
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 2).remove(0));
        let error = receive(&mut exchange).unwrap_err();
        assert_eq!(error.kind(), kind, "{fact}: {error}");
        let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
        assert!(said.contains(fact), "{fact}: {said}");
        assert!(said.contains("\"f\""), "{said}");
    }
}

#[test]
fn a_batch_that_a_gateway_lost_is_sent_again_unless_it_must_not() {
    for (volatility, connections) in [(Volatility::Immutable, 2), (Volatility::Volatile, 1)] {
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = count.clone();
        let stage = Stage::new(move |mut peer| {
            let is_first = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            while let Some(asked) = peer.read() {
                match is_first {
                    true => peer.write("502 Bad Gateway", "text/html", b"<html>"),
                    false => peer.answer(&asked, json!({})),
                }
            }
        });
        let mut exchange = stage.open(volatility);
        exchange.send(batches(1, 2).remove(0));
        match receive(&mut exchange) {
            Ok(values) => assert_eq!((volatility, values), (Volatility::Immutable, vec![0, 10])),
            Err(error) => {
                assert_eq!((volatility, error.origin()), (Volatility::Volatile, Origin::Container), "{error}")
            }
        }
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), connections);
    }
}

#[test]
fn more_answers_than_calls_are_an_error() {
    let stage = Stage::new(|mut peer| {
        let asked = peer.read().unwrap();
        peer.answer(&asked, json!({}));
        std::thread::sleep(Duration::from_millis(100));
        peer.answer(&asked, json!({}));
        let _ = peer.read();
    });
    let mut exchange = stage.open(Volatility::Volatile);
    let mut sent = batches(2, 2).into_iter();
    exchange.send(sent.next().unwrap());
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    std::thread::sleep(Duration::from_millis(200));
    exchange.send(sent.next().unwrap());
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::ProtocolViolation);
}

#[test]
fn a_handlers_exception_names_its_row_and_later_batches_are_answered() {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            if asked.header["batch"] == json!(1) {
                let error = json!({"error": {"kind": "user_code", "message": "ValueError: no", "row": 1}});
                peer.write("500 Internal Server Error", "application/json", error.to_string().as_bytes());
            } else {
                peer.answer(&asked, json!({}));
            }
        }
    });
    let mut exchange = stage.open(Volatility::Volatile);
    batches(3, 2).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    let error = receive(&mut exchange).unwrap_err();
    assert_eq!((error.kind(), error.row()), (Kind::UserCode, Some(1)));
}

#[test]
fn a_server_that_dies_is_replaced_unless_the_function_is_volatile() {
    for (volatility, is_answered) in [(Volatility::Immutable, true), (Volatility::Volatile, false)] {
        let lives = std::sync::atomic::AtomicUsize::new(0);
        let stage = Stage::new(move |mut peer| {
            let is_first = lives.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            while let Some(asked) = peer.read() {
                if is_first && asked.header["batch"] == json!(1) {
                    return;
                }
                peer.answer(&asked, json!({}));
            }
        });
        let mut exchange = stage.open(volatility);
        batches(3, 1).into_iter().for_each(|batch| exchange.send(batch));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        let second = receive(&mut exchange);
        if is_answered {
            assert_eq!(second.unwrap(), [10]);
            assert_eq!(receive(&mut exchange).unwrap(), [20]);
            assert_eq!(exchange.retries(), 1);
        } else {
            let error = second.unwrap_err();
            assert_eq!(error.kind(), Kind::ContainerFailed);
            assert!(error.detail().unwrap().contains("exited with status 3"), "{error}");
        }
    }
}

/// Answers until the client is gone.
fn answer_all(mut peer: Peer) {
    while let Some(asked) = peer.read() {
        peer.answer(&asked, json!({}));
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn batches_that_are_sent_one_by_one_stay_on_this_thread() {
    for transport in [TransportName::Auto, TransportName::Shm, TransportName::Socket] {
        let stage = Stage::of_server(true, answer_all);
        let mut exchange = stage.open_here(transport, Volatility::Volatile);
        for (number, batch) in (0..).zip(batches(50, 3)) {
            exchange.send(batch);
            let first = number * 3;
            assert_eq!(receive(&mut exchange).unwrap(), [first * 10, first * 10 + 10, first * 10 + 20]);
        }
        assert!(!exchange.may_be_nearer(), "{transport:?}");
        drop(exchange);
        // One lease has served them all, and one connection but for the first, which another thread may not have given back.
        let [leases, connections, ended] = stage.counts();
        assert!(leases == 1 && connections <= 2 && ended == 0, "{transport:?}: {:?}", stage.counts());
    }
}

#[test]
fn several_batches_move_to_the_clients_thread_and_keep_their_order() {
    let stage = Stage::of_server(true, answer_all);
    for round in 0..20 {
        let mut exchange = stage.open_here(TransportName::Shm, Volatility::Volatile);
        let count = 2 + round % 7;
        batches(count, 5).into_iter().for_each(|batch| exchange.send(batch));
        for number in 0..count as i64 {
            let expected: Vec<i64> = (number * 5..number * 5 + 5).map(|value| value * 10).collect();
            assert_eq!(receive(&mut exchange).unwrap(), expected);
        }
        assert!(exchange.may_be_nearer());
    }
}

#[test]
fn a_batch_moves_while_another_waits_for_its_answer() {
    // The first is answered only once the second has come.
    let stage = Stage::new(|mut peer| {
        while let Some(first) = peer.read() {
            if first.values.len() == 1 {
                peer.answer(&first, json!({}));
                continue;
            }
            let second = peer.read().unwrap();
            peer.answer(&first, json!({}));
            peer.answer(&second, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Socket, Volatility::Volatile);
    batches(2, 2).into_iter().for_each(|batch| exchange.send(batch));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    assert_eq!(receive(&mut exchange).unwrap(), [20, 30]);
}

#[test]
fn a_large_batch_moves_to_the_clients_thread() {
    let stage = Stage::new(answer_all);
    let mut exchange = stage.open_here(TransportName::Socket, Volatility::Volatile);
    let rows = 200_000;
    exchange.send(batches(1, rows).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), (0..rows).map(|value| value * 10).collect::<Vec<_>>());
    assert!(exchange.may_be_nearer());
}

#[test]
fn a_server_that_is_lost_is_asked_again_unless_the_function_is_volatile() {
    for (volatility, is_repeated) in [(Volatility::Immutable, true), (Volatility::Volatile, false)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let stage = Stage::of_server(true, move |mut peer| {
            while let Some(asked) = peer.read() {
                // It goes away in the midst of the second batch.
                if asked.values.len() > 1 && counted.fetch_add(1, Relaxed) == 0 {
                    return peer.write_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 50");
                }
                peer.answer(&asked, json!({}));
            }
        });
        let mut exchange = stage.open_here(TransportName::Shm, volatility);
        exchange.send(batches(1, 2).remove(0));
        let outcome = receive(&mut exchange);
        if is_repeated {
            assert_eq!(outcome.unwrap(), [0, 10]);
            assert_eq!((calls.load(Relaxed), exchange.retries()), (2, 1));
        } else {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), calls.load(Relaxed)), (Kind::ContainerFailed, 1));
            assert!(error.detail().unwrap().contains("exited with status 3"), "{error}");
        }
        drop(exchange);
        // What follows is answered.
        let mut next = stage.open(volatility);
        next.send(batches(1, 3).remove(0));
        assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
    }
}

#[test]
fn a_connection_on_which_a_request_was_answered_too_early_is_not_used_again() {
    const ROWS: i64 = 1 << 20;
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let stage = Stage::of_server(true, move |mut peer| {
        if is_first.swap(false, Relaxed) {
            // Far less than the request, the rest of which does not fit into the socket.
            peer.reader.read_exact(&mut [0; 100]).unwrap();
            let values = vec![0; ROWS as usize];
            peer.answer(&Asked { header: json!({"batch": 0}), values }, json!({}));
            // It takes for that rest what comes next.
            std::thread::sleep(Duration::from_secs(5));
        }
        answer_all(peer);
    });
    for expected in [vec![0; ROWS as usize], vec![0, 10]] {
        let mut exchange = stage.open_over(TransportName::Socket, Volatility::Immutable);
        exchange.send(batches(1, expected.len() as i64).remove(0));
        assert!(receive(&mut exchange).unwrap() == expected);
        drop(exchange);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(stage.counts(), [1, 2, 0]);
}

#[test]
fn a_kept_connection_that_was_closed_meanwhile_is_not_used() {
    // Each connection is good for one request.
    let stage = Stage::of_server(true, |mut peer| {
        if let Some(asked) = peer.read() {
            peer.answer(&asked, json!({}));
        }
    });
    for number in 1..=20 {
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        // Its end is here before the next exchange begins.
        wait_until(|| stage.closed.load(Relaxed) == number);
    }
    assert_eq!(stage.counts()[0], 1);
    // Nor one that is closed between two batches of an exchange.
    let mut exchange = stage.open(Volatility::Volatile);
    for batch in batches(5, 1) {
        let expected = batch.number as i64 * 10;
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [expected]);
        wait_until(|| stage.closed.load(Relaxed) == stage.counts()[1]);
        // The client's thread, which is about to look, sees it then.
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((stage.counts(), exchange.retries()), ([1, 25, 0], 0));
}

#[test]
fn who_does_not_answer_in_time_is_left() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            if asked.values.len() == 2 {
                // In pieces that never make an answer.
                peer.write_raw(b"HTTP/1.1 200 OK\r\nServer: ");
                for _ in 0..100 {
                    peer.write_raw(b"x");
                    std::thread::sleep(Duration::from_millis(50));
                }
                return;
            }
            peer.answer(&asked, json!({}));
        }
    });
    drop(stage.open_here(TransportName::Shm, Volatility::Immutable));
    let call =
        Call { batch_timeout: Duration::from_millis(300), ..stage.call(TransportName::Shm, Volatility::Immutable) };
    let mut exchange = stage.client.open(Arc::new(call));
    let begun = Instant::now();
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::Timeout);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    drop(exchange);
    let mut next = stage.open(Volatility::Immutable);
    next.send(batches(1, 3).remove(0));
    assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
}

/// An engine whose user gives up.
struct Cancelled;

impl Host for Cancelled {
    fn wait(&self, _: std::os::fd::BorrowedFd<'_>, _: Duration) -> Result<()> {
        Err(udf_types::Error::new(Kind::Cancelled, "cancelled"))
    }
}

#[test]
fn a_wait_that_was_cancelled_ends_the_connection_and_nothing_else() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            // The client goes while this one is computed, and its answer is nobody's.
            std::thread::sleep(Duration::from_millis(if asked.values.len() == 2 { 200 } else { 0 }));
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(exchange.receive(&Cancelled).unwrap_err().kind(), Kind::Cancelled);
    drop(exchange);
    let mut next = stage.open(Volatility::Volatile);
    next.send(batches(1, 3).remove(0));
    assert_eq!(receive(&mut next).unwrap(), [0, 10, 20]);
}

#[test]
fn the_groups_of_a_query_that_was_cancelled_are_forgotten() {
    let (asks, asked) = std::sync::mpsc::channel();
    // It answers nothing.
    let stage = Stage::new(move |mut peer| {
        let mut line = Vec::new();
        while peer.reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            if text.starts_with("POST ") || text.starts_with("DELETE ") {
                let _ = asks.send(text.into_owned());
            }
            line.clear();
        }
    });
    for transport in [TransportName::Socket, TransportName::Json] {
        let signature = Signature { kind: FunctionKind::Aggregate, ..signature() };
        let mut builder = BatchBuilder::new(&signature);
        (0..3).for_each(|column| builder.column(column).append_null());
        builder.finish_row();
        let batch = CallBatch { step: Some(AggregateStep::Accumulate), ..builder.finish_batch() };
        let mut exchange = stage.open_as(transport, Volatility::Immutable, signature);
        exchange.send(batch);
        let next = || asked.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(next().starts_with("POST "));
        drop(exchange);
        assert!(next().starts_with("DELETE /v1/exchanges/"));
    }
}

#[test]
fn leases_last_for_a_moment_after_they_were_used() {
    let start = Instant::now();
    for keep_alive in [true, false] {
        let (stage, [leases, connections, ended]) = loop {
            assert!(start.elapsed() < Duration::from_secs(120), "five calls take longer than a lease is kept");
            let (begun, stage) = (Instant::now(), Stage::of_server(keep_alive, answer_all));
            for _ in 0..5 {
                let mut exchange = stage.open(Volatility::Volatile);
                exchange.send(batches(1, 1).remove(0));
                assert_eq!(receive(&mut exchange).unwrap(), [0]);
                drop(exchange);
                // What the end of a transaction does.
                stage.client.release();
            }
            let counts = stage.counts();
            // On a machine that stands still, the moment may be over already.
            if begun.elapsed() < LINGER {
                break (stage, counts);
            }
        };
        // The first exchange is another thread's, which gives its connection back when it gets to it.
        let expected = if keep_alive { 1..=2 } else { 4..=5 };
        assert!(leases == 1 && expected.contains(&connections) && ended == 0, "{:?}", stage.counts());
        let begun = Instant::now();
        wait_until(|| stage.counts()[2] == 1);
        assert!(begun.elapsed() < 10 * LINGER);
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        assert_eq!(stage.counts()[..2], [2, connections + 1]);
    }
}

#[test]
fn leases_that_are_used_again_in_time_are_kept() {
    let stage = Stage::of_server(true, answer_all);
    let (begun, mut used, mut late) = (Instant::now(), Instant::now(), 0);
    while begun.elapsed() < 3 * LINGER {
        let mut exchange = stage.open(Volatility::Volatile);
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        stage.client.release();
        // A machine that stands still for a while makes a pause long.
        late += usize::from(used.elapsed() > LINGER / 2);
        used = Instant::now();
        std::thread::sleep(LINGER / 10);
    }
    assert!(stage.counts()[0] <= 1 + late, "{:?}, {late} late", stage.counts());
}

#[test]
fn a_session_that_goes_on_with_another_image_keeps_no_lease_on_the_first() {
    let stage = Stage::of_server(true, answer_all);
    stage.call_once("sha256:1");
    wait_until(|| {
        stage.call_once("sha256:2");
        stage.counts()[2] == 1
    });
}

#[test]
fn a_session_gives_back_what_it_does_not_use_where_another_lease_has_to_wait() {
    let stage = Stage::of_server(true, answer_all);
    for digest in ["sha256:1", "sha256:2", "sha256:scarce"] {
        stage.call_once(digest);
    }
    assert_eq!(stage.counts()[2], 2);
}

#[test]
fn an_answer_in_pieces_without_an_end_does_not_keep_the_engines_thread() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            if asked.values.len() == 2 {
                peer.write_raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n");
                // There is always another byte to read.
                while peer.stream.write_all(b" ").is_ok() {}
                return;
            }
            peer.answer(&asked, json!({}));
        }
    });
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    let outcome = receive(&mut exchange);
    // Either it ended before the million bytes were there, or they are no reply.
    assert_eq!(outcome.unwrap_err().kind(), Kind::ProtocolViolation);
    assert!(exchange.may_be_nearer());
}

#[test]
fn a_client_ends_although_there_is_an_exchange() {
    let stage = Stage::of_server(true, answer_all);
    let mut exchange = stage.open_here(TransportName::Auto, Volatility::Volatile);
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    stage.client.stop();
    // A large batch would be the thread's.
    exchange.send(batches(1, 100_000).remove(0));
    assert_eq!(receive(&mut exchange).unwrap_err().kind(), Kind::Unreachable);
}

#[test]
fn transactions_without_calls_keep_no_lease() {
    let stage = Stage::of_server(true, answer_all);
    let mut exchange = stage.open(Volatility::Volatile);
    exchange.send(batches(1, 1).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), [0]);
    drop(exchange);
    // A session that goes on with other things.
    wait_until(|| {
        stage.client.release();
        stage.counts()[2] == 1
    });
}

#[test]
fn a_connection_that_the_server_says_it_closes_gets_no_further_batch() {
    let faults = Arc::new(AtomicUsize::new(0));
    let counted = faults.clone();
    let stage = Stage::of_server(true, move |mut peer| {
        let Some(asked) = peer.read() else { return };
        let data: Vec<u8> = asked.values.iter().flat_map(|value| (value * 10).to_le_bytes()).collect();
        let header =
            json!({"batch": asked.header["batch"], "rows": asked.values.len(), "buffers": [0, 0, 0, data.len()]});
        let text = header.to_string();
        let mut body = (text.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(text.as_bytes());
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend_from_slice(&data);
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/vnd.transship.columns\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        peer.write_raw(&[head.as_bytes(), &body].concat());
        // It closes a little later.
        peer.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        counted.fetch_add(usize::from(peer.read().is_some()), Relaxed);
    });
    let mut exchange = stage.open(Volatility::Volatile);
    for (number, batch) in batches(5, 1).into_iter().enumerate() {
        exchange.send(batch);
        assert_eq!(receive(&mut exchange).unwrap(), [10 * number as i64]);
    }
    drop(exchange);
    assert_eq!((faults.load(Relaxed), stage.counts()[1]), (0, 5));
}

#[test]
fn an_answer_that_came_while_the_engine_was_busy_is_not_late() {
    let stage = Stage::of_server(true, |mut peer| {
        while let Some(asked) = peer.read() {
            peer.answer(&asked, json!({}));
        }
    });
    for _ in 0..5 {
        drop(stage.open_here(TransportName::Shm, Volatility::Immutable));
        let call = Call {
            batch_timeout: Duration::from_millis(1500),
            ..stage.call(TransportName::Shm, Volatility::Immutable)
        };
        let mut exchange = stage.client.open(Arc::new(call));
        let mut sent = batches(3, 1).into_iter();
        exchange.send(sent.next().unwrap());
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        exchange.send(sent.next().unwrap());
        std::thread::sleep(Duration::from_millis(1800));
        exchange.send(sent.next().unwrap());
        assert_eq!((receive(&mut exchange).unwrap(), receive(&mut exchange).unwrap()), (vec![10], vec![20]));
    }
}
