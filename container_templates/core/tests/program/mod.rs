//! Programs that use the library through its header, as servers that a test talks to.
#![allow(missing_docs, dead_code)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use udf_codec::columns::{frame, read_frame};
use udf_codec::wire::COLUMNS;
use udf_project::manifest::Manifest;

/// Far longer than anything takes here.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the library, which cargo has built for this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let found =
        [folder, folder.parent().unwrap()].into_iter().find(|folder| folder.join("libtransship_core.so").exists());
    found.expect("cargo builds the library beside its tests").to_path_buf()
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The body of a reply.
pub fn json_of(mut stream: UnixStream) -> Value {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// A server that is killed when the test ends.
pub struct Server {
    pub folder: tempfile::TempDir,
    pub process: Child,
}

impl Server {
    pub fn start(program: &Path, manifest: &str, folder: tempfile::TempDir, arguments: &[&str]) -> Server {
        let manifest = Manifest::parse(manifest).unwrap();
        fs::write(folder.path().join("manifest.json"), manifest.to_label()).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", library())
            .env("TRANSSHIP_ROOT", folder.path())
            .env("TRANSSHIP_SOCKET_DIR", folder.path())
            .env_remove("TRANSSHIP_HTTP_PORT")
            .env_remove("TRANSSHIP_FLIGHT_PORT")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Server { folder, process };
        server.wait_for("transship: ready");
        server
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub fn wait_for(&mut self, text: &str) {
        self.wait_for_times(text, 1);
    }

    pub fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    pub fn wait_for_times(&mut self, text: &str, times: usize) {
        let start = Instant::now();
        while self.count(text) < times {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "no \"{text}\" in:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("http.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn post(&self, function: &str, body: &Value) -> UnixStream {
        self.post_with(function, "", body)
    }

    /// The same with fields of the request.
    pub fn post_with(&self, function: &str, fields: &str, body: &Value) -> UnixStream {
        let (mut stream, body) = (self.connect(), body.to_string());
        let head = format!("POST /v1/functions/{function} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}");
        write!(stream, "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    pub fn ask(&self, function: &str, body: &Value) -> Value {
        self.ask_with(function, "", body)
    }

    /// The same with fields of the request.
    pub fn ask_with(&self, function: &str, fields: &str, body: &Value) -> Value {
        json_of(self.post_with(function, fields, body))
    }

    pub fn greeting(&self) -> Value {
        let mut stream = self.connect();
        stream.write_all(b"GET /v1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        json_of(stream)
    }

    /// Sends columns, and gives the header of the reply and the data behind it.
    pub fn ask_columns(&self, function: &str, header: &Value, data: &[u8]) -> (Value, Vec<u8>) {
        let (mut stream, mut body) = (self.connect(), frame(header, data.len()));
        body.extend_from_slice(data);
        let head = format!("POST /v1/functions/{function} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        write!(stream, "{head}content-type: {COLUMNS}\r\ncontent-length: {}\r\n\r\n", body.len()).unwrap();
        stream.write_all(&body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let (header, data) = read_frame::<Value>(&answer[end..]).unwrap_or_else(|fact| {
            panic!("{fact}: {}", String::from_utf8_lossy(&answer));
        });
        (header, data.to_vec())
    }

    /// Its status, once it has ended.
    pub fn wait_for_end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as the manager does, and says its status.
    pub fn end(&mut self) -> Option<i32> {
        run(Command::new("kill").arg(self.process.id().to_string()));
        self.wait_for_end()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program of this folder, compiled against the header and started with the folder of its manifest, and more.
pub fn start_program(name: &str, functions: &str, more: &[&str]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let mut compile = Command::new("cc");
    compile.args(["-std=c17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_DEFAULT_SOURCE"]);
    compile.arg("-I").arg(crate_folder().join("include")).arg("-o").arg(&program);
    run(compile
        .arg("-pthread")
        .arg(crate_folder().join(format!("tests/{name}.c")))
        .arg("-L")
        .arg(library())
        .arg("-ltransship_core"));
    let path = folder.path().to_str().unwrap().to_string();
    let arguments: Vec<&str> = std::iter::once(path.as_str()).chain(more.iter().copied()).collect();
    Server::start(&program, functions, folder, &arguments)
}
