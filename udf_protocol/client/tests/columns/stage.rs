//! A scripted server, and the manager that leases it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_types::Result;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

pub fn signature() -> Signature {
    Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8)
}

pub fn batches(count: usize, rows: i64) -> Vec<CallBatch> {
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
pub struct Peer {
    pub stream: UnixStream,
    pub reader: BufReader<UnixStream>,
    pub segments: PathBuf,
}

/// A request: its header, and its values wherever they lie.
pub struct Asked {
    pub header: Value,
    pub values: Vec<i64>,
    /// The tables that came with it.
    pub offer: Option<String>,
}

impl Peer {
    /// The next request; none at the end of the connection.
    pub fn read(&mut self) -> Option<Asked> {
        let mut line = String::new();
        let (mut length, mut offer) = (0, None);
        while self.reader.read_line(&mut line).ok()? > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if let Some(value) = lower.strip_prefix("transship-tables:") {
                offer = Some(value.trim().to_string());
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
        Some(Asked { header, values, offer })
    }

    pub fn write(&mut self, status: &str, content_type: &str, body: &[u8]) {
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.write_raw(&[head.as_bytes(), body].concat());
    }

    pub fn write_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn write_columns(&mut self, header: &Value, data: &[u8]) {
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
    pub fn answer(&mut self, asked: &Asked, more: Value) {
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
pub struct Stage {
    pub client: Client,
    pub folder: tempfile::TempDir,
    /// Leases, connections to the server, and leases that have ended.
    pub counts: Arc<[AtomicUsize; 3]>,
    /// Connections that the server has closed.
    pub closed: Arc<AtomicUsize>,
}

impl Stage {
    pub fn new(script: impl Fn(Peer) + Send + Sync + 'static) -> Stage {
        Stage::of_server(false, script)
    }

    /// The same of a server whose connections may be kept, or not.
    pub fn of_server(keep_alive: bool, script: impl Fn(Peer) + Send + Sync + 'static) -> Stage {
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
        let (counted, tables) = (counts.clone(), folder.path().join("tables.sock"));
        std::thread::spawn(move || {
            for stream in manager.incoming() {
                let (mut stream, json, segments) = (stream.unwrap(), json.clone(), segments.clone());
                let tables = Some(tables.clone()).filter(|tables| tables.exists());
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
                            json!({"response": "lease", "replica": "r", "image": "i:1", "json": json, "columns": true, "segments": segments, "pipelining": true, "keep_alive": keep_alive, "tables": tables})
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
    pub fn counts(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.counts[i].load(Relaxed))
    }

    /// An exchange that began on this thread, since the server is known.
    pub fn open_here(&self, transport: TransportName, volatility: Volatility) -> Exchange {
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

    pub fn segments(&self) -> PathBuf {
        self.folder.path().join("segments")
    }

    pub fn open(&self, volatility: Volatility) -> Exchange {
        self.open_over(TransportName::Shm, volatility)
    }

    pub fn open_over(&self, transport: TransportName, volatility: Volatility) -> Exchange {
        self.open_as(transport, volatility, signature())
    }

    pub fn open_as(&self, transport: TransportName, volatility: Volatility, signature: Signature) -> Exchange {
        self.client.open(Arc::new(Call { signature, ..self.call(transport, volatility) }))
    }

    /// A call of one image's function, in a transaction of its own.
    pub fn call_once(&self, digest: &str) {
        let mut call = self.call(TransportName::Shm, Volatility::Volatile);
        call.target = Target::Image { manager: self.folder.path().join("manager.sock"), digest: digest.to_string() };
        let mut exchange = self.client.open(Arc::new(call));
        exchange.send(batches(1, 1).remove(0));
        assert_eq!(receive(&mut exchange).unwrap(), [0]);
        drop(exchange);
        self.client.release();
    }

    pub fn call(&self, transport: TransportName, volatility: Volatility) -> Call {
        Call {
            target: Target::Image { manager: self.folder.path().join("manager.sock"), digest: "sha256:0".to_string() },
            transport,
            signature: signature(),
            volatility,
            batch_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        }
    }
}

pub fn receive(exchange: &mut Exchange) -> Result<Vec<i64>> {
    let reply = exchange.receive(&PlainHost)?;
    Ok(reply.columns.column(0).as_primitive::<Int64Type>().values().to_vec())
}

pub fn count_files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Answers until the client is gone.
pub fn answer_all(mut peer: Peer) {
    while let Some(asked) = peer.read() {
        peer.answer(&asked, json!({}));
    }
}

pub fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}
