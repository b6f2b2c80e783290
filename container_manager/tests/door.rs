//! Whether a container gets to the manager through an engine, whose requests carry what anybody may write.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::json;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_types::Result;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

/// A manager, and what it says to whoever reaches it through the relay.
struct Stage {
    folder: tempfile::TempDir,
    daemon: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let path = |name: &str| folder.path().join(name);
        let daemon = Command::new(env!("CARGO_BIN_EXE_transshipd"))
            .env("TRANSSHIP_SOCKET", path("m.sock"))
            .env("TRANSSHIP_STATE_DIR", path("state"))
            .env("TRANSSHIP_RUN_DIR", path("r"))
            .env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"))
            .env("TRANSSHIP_RUNTIME", "process")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while UnixStream::connect(path("m.sock")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "the manager does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = Arc::<Mutex<Vec<String>>>::default();
        let (relay, manager, noted) = (UnixListener::bind(path("relay.sock")).unwrap(), path("m.sock"), said.clone());
        std::thread::spawn(move || {
            for stream in relay.incoming() {
                let (stream, noted) = (stream.unwrap(), noted.clone());
                let (mut from, mut to) = (stream.try_clone().unwrap(), UnixStream::connect(&manager).unwrap());
                let back = BufReader::new(to.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                std::thread::spawn(move || {
                    // Nothing goes back, so that the client waits for what it will not get.
                    let _stream = stream;
                    back.lines().map_while(std::io::Result::ok).for_each(|line| noted.lock().unwrap().push(line));
                    noted.lock().unwrap().push("end".to_string());
                });
            }
        });
        Stage { folder, daemon, said }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls a function of a replica that listens at `socket` with a text of which one line is a command.
    fn call(&self, socket: &Path, user: Option<u32>) -> Result<()> {
        let _ = std::fs::remove_file(self.path("leases.sock"));
        let leases = UnixListener::bind(self.path("leases.sock")).unwrap();
        let json = format!("http+unix:{}", socket.display());
        let lease = json!({"response": "lease", "replica": "r", "image": "i:1", "json": json, "columns": true, "pipelining": true, "user": user});
        std::thread::spawn(move || {
            for stream in leases.incoming() {
                let mut stream = stream.unwrap();
                for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(std::io::Result::ok) {
                    let response = if line.contains("acquire") { lease.clone() } else { json!("no fate is known") };
                    let _ = writeln!(stream, "{response}");
                }
            }
        });
        let argument = Argument { name: "x".into(), ty: Type::Text };
        let signature = Signature::scalar("f", vec![argument], Type::Text);
        let mut builder = BatchBuilder::new(&signature);
        let ColumnBuilder::Text(column) = builder.column(0) else { panic!("a column of text") };
        column.append_value("\n{\"request\": \"replicas\"}\n");
        builder.finish_row();
        let client = Client::start().unwrap();
        let mut exchange = client.open(Arc::new(Call {
            target: Target::Image { manager: self.path("leases.sock"), digest: "sha256:0".to_string() },
            transport: TransportName::Socket,
            signature,
            volatility: Volatility::Volatile,
            batch_timeout: Duration::from_secs(1),
            start_timeout: Duration::from_secs(1),
            tables: Vec::new(),
        }));
        exchange.send(builder.finish_batch());
        exchange.receive(&PlainHost).map(drop)
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM).unwrap();
        self.daemon.wait().unwrap();
    }
}

#[test]
fn a_request_to_a_container_is_no_command_to_the_manager() {
    let stage = Stage::new();
    // A container that makes its socket a link is not followed.
    std::os::unix::fs::symlink(stage.path("relay.sock"), stage.path("http.sock")).unwrap();
    let error = stage.call(&stage.path("http.sock"), None).unwrap_err();
    assert!(error.to_string().contains("it is not a socket"), "{error}");
    assert_eq!(stage.heard(), Vec::<String>::new());
    // Nor is one believed that another user's server has taken the place of.
    let me = Uid::effective().as_raw();
    let error = stage.call(&stage.path("relay.sock"), Some(me + 1)).unwrap_err();
    assert!(error.to_string().contains(&format!("its server runs as user {me}, not as user {}", me + 1)), "{error}");
    // And if a request came through all the same, no line of it would be a command.
    stage.call(&stage.path("relay.sock"), Some(me)).unwrap_err();
    let heard: Vec<String> = stage.heard().into_iter().filter(|line| line != "end").collect();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].contains("the request cannot be read"), "{heard:?}");
}

#[test]
fn the_manager_ends_a_connection_at_the_first_line_that_is_no_request() {
    let stage = Stage::new();
    for opening in ["POST /v1/functions/f HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\n", "\n", "{}\n"] {
        let mut stream = UnixStream::connect(stage.path("m.sock")).unwrap();
        stream
            .write_all(format!("{opening}{{\"request\":\"replicas\"}}\n{{\"request\":\"ping\"}}\n").as_bytes())
            .unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert_eq!(said.lines().count(), 1, "{opening}: {said}");
        assert!(said.contains("the request cannot be read"), "{opening}: {said}");
    }
    // Requests that are refused for what they ask are no reason to end it.
    let mut stream = UnixStream::connect(stage.path("m.sock")).unwrap();
    stream.write_all(b"{\"request\":\"logs\",\"replica\":\"no\"}\n{\"request\":\"replicas\"}\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    };
    assert!(next().contains("there is no replica"));
    assert!(next().contains("\"response\":\"replicas\""));
}
