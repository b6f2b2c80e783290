//! How much memory servers can make a client use, counted by an allocator of this binary's own: one test, since it counts all.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Array, ArrayRef};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::Exchange;
use udf_client::host::PlainHost;
use udf_client::inbox::Reply;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder};
use udf_codec::wire::COLUMNS;
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Advice, Error, Kind, Result};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MB: usize = 1 << 20;
/// What a reply may have here.
const LIMIT: usize = 64 * MB;
/// What reading one may take beyond its columns: of the default limit of 256 MB, 200 MB.
const MOST_ABOVE: usize = LIMIT / 256 * 200;

/// The server's side of a connection. What it writes is made piece by piece, so that it is not counted.
struct Peer {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    segments: PathBuf,
}

impl Peer {
    /// The header of the next request in columns, null for one in JSON; none at the end of the connection.
    fn read(&mut self) -> Option<Value> {
        let (mut line, mut length) = (String::new(), 0);
        while self.reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).ok()?;
        let size = body.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        (length > 0)
            .then(|| body.get(4..4 + size).and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default())
    }

    /// Writes an answer of `start`, as many of `piece` as fit into `size` bytes, and `end`.
    fn write(&mut self, content_type: &str, start: &[u8], piece: &[u8], size: usize, end: &[u8]) {
        let count = size / piece.len().max(1);
        let length = start.len() + count * piece.len() + end.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n");
        let block = piece.repeat((64 << 10) / piece.len().max(1));
        let mut write = || -> std::io::Result<()> {
            self.stream.write_all(head.as_bytes())?;
            self.stream.write_all(start)?;
            let mut left = count * piece.len();
            while left > 0 {
                let now = left.min(block.len());
                self.stream.write_all(&block[..now])?;
                left -= now;
            }
            self.stream.write_all(end)
        };
        // A client that had enough closes the connection.
        let _ = write();
    }

    fn write_json(&mut self, start: &str, piece: &str, size: usize, end: &str) {
        self.write("application/json", start.as_bytes(), piece.as_bytes(), size, end.as_bytes());
    }

    fn write_columns(&mut self, header: &Value, size: usize) {
        self.write(COLUMNS, &columns_header(header), &[0], size, &[]);
    }

    /// Makes the segment of the reply as long as that, and almost all of it a hole.
    fn stretch(&self, asked: &Value, size: u64) -> Value {
        let name = asked["reply_segment"].clone();
        let path = self.segments.join(name.as_str().unwrap());
        std::fs::OpenOptions::new().write(true).open(path).unwrap().write_at(b"x", size - 1).unwrap();
        name
    }
}

fn columns_header(header: &Value) -> Vec<u8> {
    let text = header.to_string();
    let mut start = (text.len() as u32).to_le_bytes().to_vec();
    start.extend_from_slice(text.as_bytes());
    start.resize(start.len().next_multiple_of(8), 0);
    start
}

type Lie = fn(&mut Peer, &Value);

/// A server that answers each request by a lie, reached as a replica is, or as what speaks a dialect.
struct Stage {
    client: Client,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(lie: Lie) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let segments = folder.path().join("segments");
        std::fs::create_dir(&segments).unwrap();
        let server = UnixListener::bind(folder.path().join("http.sock")).unwrap();
        let peers = segments.clone();
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let stream = stream.unwrap();
                let reader = BufReader::new(stream.try_clone().unwrap());
                let mut peer = Peer { stream, reader, segments: peers.clone() };
                std::thread::spawn(move || {
                    while let Some(asked) = peer.read() {
                        lie(&mut peer, &asked);
                    }
                });
            }
        });
        let manager = UnixListener::bind(folder.path().join("manager.sock")).unwrap();
        let json = format!("http+unix:{}", folder.path().join("http.sock").display());
        std::thread::spawn(move || {
            for stream in manager.incoming() {
                let mut stream = stream.unwrap();
                let lease = json!({"response": "lease", "replica": "r", "image": "i:1", "json": json, "columns": true, "segments": segments, "pipelining": true});
                for _ in BufReader::new(stream.try_clone().unwrap()).lines().map_while(std::io::Result::ok) {
                    let _ = writeln!(stream, "{lease}");
                }
            }
        });
        let client = Client::start().unwrap();
        client.limit_replies(LIMIT);
        Stage { client, folder }
    }

    fn open(&self, way: Way, result: &str) -> Exchange {
        let path = |name: &str| self.folder.path().join(name);
        let (target, transport) = match way {
            Way::Transport(transport) => {
                (Target::Image { manager: path("manager.sock"), digest: "sha256:0".to_string() }, transport)
            }
            Way::Dialect(dialect) => {
                let endpoint = format!("http+unix:{}", path("http.sock").display());
                let remote = Remote::parse(&endpoint, dialect).unwrap();
                (Target::Remote { remote, credentials: Credentials::default() }, TransportName::Auto)
            }
        };
        self.client.open(Arc::new(Call {
            target,
            transport,
            signature: signature(result),
            volatility: Volatility::Volatile,
            batch_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(10),
            tables: Vec::new(),
        }))
    }
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Transport(TransportName),
    Dialect(Dialect),
}

fn signature(result: &str) -> Signature {
    let argument = Argument { name: "x".into(), ty: Type::Int8 };
    Signature::scalar("f", vec![argument], Type::from_name(result).unwrap())
}

fn batches(count: usize) -> Vec<CallBatch> {
    let mut builder = BatchBuilder::new(&signature("int8"));
    let mut make = |_| {
        for value in 0..2 {
            let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("an int8 column") };
            column.append_value(value);
            builder.finish_row();
        }
        builder.finish_batch()
    };
    (0..count).map(&mut make).collect()
}

/// What comes of `work`, and the most memory that it took.
fn measure<T>(work: impl FnOnce() -> T) -> (T, usize) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let outcome = work();
    (outcome, ALLOCATOR.peak_usage() - before)
}

fn ask(stage: &Stage, way: Way, result: &str, count: usize) -> Result<Vec<Reply>> {
    let mut exchange = stage.open(way, result);
    batches(count).into_iter().for_each(|batch| exchange.send(batch));
    (0..count).map(|_| exchange.receive(&PlainHost)).collect()
}

const SEGMENT: Way = Way::Transport(TransportName::Shm);
const SOCKET: Way = Way::Transport(TransportName::Socket);
const JSON: Way = Way::Transport(TransportName::Json);

#[test]
fn liars_cost_no_memory() {
    let lies: [(&str, Way, &str, Kind, usize, Lie); 18] = [
        ("a hole where two numbers are", SEGMENT, "int8", Kind::BadResult, 2 * MB, |peer, asked| {
            let segment = peer.stretch(asked, 1 << 30);
            peer.write_columns(&json!({"rows": 1 << 30, "segment": segment, "buffers": [0, 0, 0, 1_u64 << 30]}), 0);
        }),
        ("a hole of text", SEGMENT, "text", Kind::OutOfMemory, 2 * MB, |peer, asked| {
            let segment = peer.stretch(asked, 1 << 30);
            let path = peer.segments.join(segment.as_str().unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_at(&[0_i32, 1 << 29, 1 << 29].map(i32::to_le_bytes).concat(), 0).unwrap();
            let buffers = [0, 0, 0, 12, 64, 1_u64 << 29];
            peer.write_columns(&json!({"rows": 2, "segment": segment, "buffers": buffers}), 0);
        }),
        ("a body that is longer than two numbers", SOCKET, "int8", Kind::ProtocolViolation, 2 * MB, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 16]}), 100 * MB);
        }),
        ("a body that is longer than any", SOCKET, "text", Kind::OutOfMemory, 2 * MB, |peer, _| {
            peer.write_columns(&json!({"rows": 2, "buffers": [0, 0, 0, 12, 64, 100 * MB]}), 900 * MB);
        }),
        ("a header of 15 MB", SOCKET, "text", Kind::ProtocolViolation, MOST_ABOVE, |peer, _| {
            let start = [&(12 * MB as u32).to_le_bytes()[..], b"{\"rows\":2,\"buffers\":[0"].concat();
            peer.write(COLUMNS, &start, b",0", 14 * MB, b"]}");
        }),
        ("numbers in JSON without end", JSON, "int8", Kind::ProtocolViolation, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[1", ",1", 100 * MB, "]]}");
        }),
        ("more numbers than were asked for", JSON, "int8", Kind::ProtocolViolation, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[1", ",1", 7 * MB, "]]}");
        }),
        ("lists in JSON without end", JSON, "int4[]", Kind::OutOfMemory, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[[1", ",1", 15 * MB, "],null]]}");
        }),
        ("nests without end", JSON, "int4[]", Kind::BadResult, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[", "[", 15 * MB, "]]}");
        }),
        ("columns without end", JSON, "text", Kind::BadResult, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[]", ",[]", 15 * MB, "]}");
        }),
        ("text in JSON without end", JSON, "text", Kind::OutOfMemory, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"columns\":[[\"", "x", 100 * MB, "\",null]]}");
        }),
        ("lists in a dialect", Way::Dialect(Dialect::Bigquery), "int4[]", Kind::OutOfMemory, MOST_ABOVE, |peer, _| {
            peer.write_json("{\"replies\":[[1", ",1", 15 * MB, "],null]}");
        }),
        (
            "lists in strings of a dialect",
            Way::Dialect(Dialect::Bigquery),
            "int4[]",
            Kind::OutOfMemory,
            MOST_ABOVE,
            |peer, _| {
                peer.write_json("{\"replies\":[\"[1", ",1", 15 * MB, "]\",null]}");
            },
        ),
        (
            "a dialect's reply in a string",
            Way::Dialect(Dialect::AzureMl),
            "text",
            Kind::OutOfMemory,
            MOST_ABOVE,
            |peer, _| {
                peer.write_json("\"[1", ",1", 15 * MB, "]\"");
            },
        ),
        (
            "that behind white space",
            Way::Dialect(Dialect::AzureMl),
            "text",
            Kind::OutOfMemory,
            MOST_ABOVE,
            |peer, _| {
                peer.write_json(" \"[1", ",1", 15 * MB, "]\"");
            },
        ),
        (
            "lists in a dialect whose commas are escapes",
            Way::Dialect(Dialect::Bigquery),
            "int4[]",
            Kind::OutOfMemory,
            MOST_ABOVE,
            |peer, _| {
                peer.write_json("{\"replies\":[\"[1", "\\u002c1", 15 * MB, "]\",null]}");
            },
        ),
        (
            "many rows in a dialect",
            Way::Dialect(Dialect::Bigquery),
            "(a int4)[]",
            Kind::OutOfMemory,
            MOST_ABOVE / 2,
            |peer, _| {
                peer.write_json("{\"replies\":[[{\"a\":1}", ",{\"a\":1}", 300 << 10, "],null]}");
            },
        ),
        ("intervals with members without end", JSON, "interval[]", Kind::BadResult, MOST_ABOVE, |peer, _| {
            let members: String = (0..480).map(|number| format!("\"{number}\":1,")).collect();
            let interval = format!("{{{members}\"days\":1}}");
            let start = format!("{{\"columns\":[[[{interval}");
            peer.write_json(&start, &format!(",{interval}"), 15 * MB, "],null]]}");
        }),
    ];
    for (what, way, result, kind, most, lie) in lies {
        let stage = Stage::new(lie);
        let (outcome, peak) = measure(|| ask(&stage, way, result, 1));
        let error: Error = outcome.unwrap_err();
        println!("{what}: {} kB: {error}", peak >> 10);
        // "nests without end" is not JSON, or not of the type: both are the server's fault.
        let is_expected = error.kind() == kind || (kind == Kind::BadResult && error.kind() == Kind::ProtocolViolation);
        assert!(is_expected, "{what}: {error}");
        assert!(peak < most, "{what}: {peak} bytes");
        if error.kind() == Kind::OutOfMemory {
            assert_eq!(error.advice(), Some(Advice::ReplySize), "{error}");
        }
    }
    // Replies as large as they may be cost what their rows need, and a bounded share more.
    let large: [(&str, Way, &str, Lie); 7] = [
        ("columns", SOCKET, "text", |peer, _| {
            let start = columns_header(&json!({"rows": 2, "buffers": [0, 0, 0, 12, 64, 60 * MB]}));
            let ends = [0, 60 * MB as i32, 60 * MB as i32].map(i32::to_le_bytes).concat();
            peer.write(COLUMNS, &[start, ends, vec![0; 52]].concat(), b"x", 60 * MB, &[]);
        }),
        ("text in JSON", JSON, "text", |peer, _| peer.write_json("{\"columns\":[[\"", "x", 15 * MB, "\",null]]}")),
        ("escapes in JSON", JSON, "text", |peer, _| peer.write_json("{\"columns\":[[\"", "\\n", 7 * MB, "\",null]]}")),
        ("texts in JSON", JSON, "text[]", |peer, _| {
            peer.write_json("{\"columns\":[[[\"\"", ",\"xyz\"", 2 * MB, "],null]]}")
        }),
        ("text in a dialect", Way::Dialect(Dialect::Bigquery), "text", |peer, _| {
            peer.write_json("{\"replies\":[\"", "x", 15 * MB, "\",null]}");
        }),
        ("rows in a dialect", Way::Dialect(Dialect::Bigquery), "(a int4)[]", |peer, _| {
            peer.write_json("{\"replies\":[[{\"a\":1}", ",{\"a\":1}", 120 << 10, "],null]}");
        }),
        ("text in a string of a dialect", Way::Dialect(Dialect::AzureMl), "text", |peer, _| {
            peer.write_json("\"[\\\"", "x", 11 * MB, "\\\",null]\"");
        }),
    ];
    for (what, way, result, answer) in large {
        let stage = Stage::new(answer);
        let (replies, peak) = measure(|| ask(&stage, way, result, 1));
        // Of buffers that lie in one piece of memory, each on its own.
        let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap();
        let needed = replies.unwrap().iter().flat_map(|reply| reply.columns.columns()).map(bytes).sum();
        println!("{what}: {} kB for {} kB", peak >> 10, needed >> 10);
        assert!(peak.saturating_sub(needed) < MOST_ABOVE, "{what}: {peak} bytes for {needed}");
    }
    // Large replies are read, and what several of them hold together is bounded: they come when it is their turn.
    let text = |peer: &mut Peer, _: &Value| peer.write_json("{\"columns\":[[\"", "x", 10 * MB, "\",null]]}");
    let stage = Stage::new(text);
    let mut exchange = stage.open(JSON, "text");
    let (replies, peak) = measure(|| {
        batches(8).into_iter().for_each(|batch| exchange.send(batch));
        // All that may come comes before the first is taken.
        std::thread::sleep(Duration::from_millis(1500));
        (0..8).map(|_| exchange.receive(&PlainHost).map(|reply| reply.columns.num_rows()).unwrap()).sum::<usize>()
    });
    println!("eight replies: {} kB", peak >> 10);
    assert_eq!(replies, 16);
    assert!(peak < 2 * LIMIT + MOST_ABOVE, "{peak} bytes");
}
