//! A server in a process of its own: this program, which runs the test again that starts it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use transship::Functions;
use transship::serde_json::{Value, from_str};
use udf_project::manifest::Manifest;

/// Names the role of this program: the server's, if it is set.
const ROLE: &str = "TRANSSHIP_TEST_SERVER";

/// Ends with the test, also if that fails: whoever reads what the test prints would wait for it.
pub struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server of these functions for the test of this name; none in the process that is the server, once it has ended.
    pub fn start(test: &str, functions: fn() -> Functions, manifest: &str) -> Option<Server> {
        if std::env::var_os(ROLE).is_some() {
            transship::main(functions());
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("manifest.json"), Manifest::parse(manifest).unwrap().to_label()).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(ROLE, "yes").stdout(Stdio::null());
        command.env("TRANSSHIP_ROOT", folder.path()).env("TRANSSHIP_SOCKET_DIR", folder.path());
        command.env_remove("TRANSSHIP_HTTP_PORT").env_remove("TRANSSHIP_FLIGHT_PORT");
        let mut server = Server { child: command.spawn().unwrap(), folder };
        let start = Instant::now();
        while UnixStream::connect(server.folder().join("flight.sock")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60) && server.child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    /// Where its sockets are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a batch as JSON, with further fields of the header, and does not wait for the answer.
    pub fn send(&self, function: &str, fields: &str, call: &Value) -> UnixStream {
        let mut stream = UnixStream::connect(self.folder().join("http.sock")).unwrap();
        let body = call.to_string();
        let head = format!("POST /v1/functions/{function} HTTP/1.1\r\nhost: x\r\n{fields}");
        write!(stream, "{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    /// What it answers.
    pub fn ask(&self, function: &str, fields: &str, call: &Value) -> Value {
        let mut text = String::new();
        self.send(function, fields, call).read_to_string(&mut text).unwrap();
        from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Asks it to end, which it does in order.
    pub fn stop(mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(asked.success() && self.child.wait().unwrap().success());
    }
}
