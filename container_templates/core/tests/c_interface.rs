//! The C interface, driven by programs that were compiled against its header: one in C that is checked call by call
//! (`interface.c`), and the server of the C and C++ template, which must pass the conformance suite.
#![allow(missing_docs)]

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use udf_client::transport::credentials::Credentials;
use udf_conformance::{Outcome, judge_server};
use udf_project::endpoint::Endpoint;
use udf_project::manifest::Manifest;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the library, which cargo has built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let found =
        [folder, folder.parent().unwrap()].into_iter().find(|folder| folder.join("libtransship_core.so").exists());
    found.expect("cargo builds the library beside its tests").to_path_buf()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A server that is killed when the test ends.
struct Server {
    folder: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn start(program: &Path, manifest: &str, folder: tempfile::TempDir, arguments: &[&str]) -> Server {
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

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        while !self.log().contains(text) {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < Duration::from_secs(60), "no \"{text}\" in:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("http.sock")).unwrap()
    }

    fn post(&self, function: &str, body: &Value) -> UnixStream {
        let (mut stream, body) = (self.connect(), body.to_string());
        let head = format!("POST /v1/functions/{function} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        write!(stream, "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    fn ask(&self, function: &str, body: &Value) -> Value {
        let mut text = String::new();
        self.post(function, body).read_to_string(&mut text).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Ends it as the manager does, and says its status.
    fn end(&mut self) -> Option<i32> {
        run(Command::new("kill").arg(self.process.id().to_string()));
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const FUNCTIONS: &str = r#"
name = "interface"
template = "cpp"
functions = [
  { name = "double", arguments = ["int8"], returns = "int8", batch = "columns" },
  { name = "up_to", arguments = ["int8"], returns = "int4", kind = "table" },
  { name = "total", arguments = ["int8"], returns = "int8", kind = "aggregate" },
  { name = "wait", arguments = ["int8"], returns = "int8" },
]"#;

/// A program of this folder, compiled against the header and started with the folder of its manifest.
fn start_program(name: &str, functions: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let mut compile = Command::new("cc");
    compile.args(["-std=c17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_DEFAULT_SOURCE"]);
    compile.arg("-I").arg(crate_folder().join("include")).arg("-o").arg(&program);
    run(compile.arg(crate_folder().join(format!("tests/{name}.c"))).arg("-L").arg(library()).arg("-ltransship_core"));
    let path = folder.path().to_str().unwrap().to_string();
    Server::start(&program, functions, folder, &[&path])
}

#[test]
fn a_program_in_c_drives_the_library_on_one_thread() {
    let mut server = start_program("interface", FUNCTIONS);

    let reply = server.ask("double", &json!({"batch": 3, "rows": 2, "columns": [[1, 21]]}));
    assert_eq!((&reply["batch"], &reply["columns"]), (&json!(3), &json!([[2, 42]])));
    let reply = server.ask("double", &json!({"rows": 3, "columns": [[7]], "constants": [0]}));
    assert_eq!(reply["columns"], json!([[14, 14, 14]]));
    let error = server.ask("double", &json!({"rows": 2, "columns": [[1, 13]]}));
    let expected = json!({"kind": "user_code", "message": "13 is bad", "row": 1, "traceback": "in interface.c"});
    assert_eq!(error["error"], expected);
    // The library finds the rows that fail.
    for row_errors in ["once", "again"] {
        let body = json!({"rows": 3, "columns": [[1, 13, 3]], "row_errors": row_errors});
        assert_eq!(server.ask("double", &body)["columns"], json!([[2, null, 6], [null, "13 is bad", null]]));
    }
    let error = server.ask("up_to", &json!({"rows": 1, "columns": [[1]], "row_errors": "once"}));
    assert_eq!(error["error"]["kind"], "protocol_violation");
    let reply = server.ask("up_to", &json!({"rows": 1, "columns": [[5]]}));
    assert_eq!(reply["columns"], json!([[0, 0, 0, 0, 0], [0, 1, 2, 3, 4]]));
    // A reply of another form than the function's is an error, not a crash.
    let body = json!({"rows": 1, "columns": [[0], [1], [null]], "exchange": "e", "step": "finish"});
    let error = server.ask("total", &body);
    assert_eq!(error["error"]["kind"], "bad_result");
    // The client goes away.
    let waiting = server.post("wait", &json!({"rows": 1, "columns": [[1]]}));
    std::thread::sleep(Duration::from_millis(100));
    waiting.shutdown(Shutdown::Both).unwrap();
    server.wait_for("interface: cancelled");
    let endless = server.post("up_to", &json!({"rows": 1, "columns": [[0]]}));
    std::thread::sleep(Duration::from_millis(100));
    endless.shutdown(Shutdown::Both).unwrap();
    server.wait_for("interface: unwanted");
    assert_eq!(server.ask("double", &json!({"rows": 0, "columns": [[]]}))["columns"], json!([[]]));
    assert_eq!(server.end(), Some(0), "{}", server.log());
    assert!(server.log().contains("interface: ended"));
}

const PLAIN_FUNCTIONS: &str = r#"
name = "plain"
template = "cpp"
functions = [
  { name = "bools", arguments = ["bool"], returns = "bool" },
  { name = "integers", arguments = ["int8"], returns = "int8" },
  { name = "floats", arguments = ["float8"], returns = "float8" },
  { name = "texts", arguments = ["text"], returns = "text" },
  { name = "dates", arguments = ["date"], returns = "date" },
  { name = "bad", arguments = ["text"], returns = "text" },
  { name = "up_to", arguments = ["int8"], returns = "int4", kind = "table" },
  { name = "stuck", arguments = ["int8"], returns = "int8" },
]"#;

#[test]
fn plain_columns_need_no_arrow() {
    let mut server = start_program("plain", PLAIN_FUNCTIONS);
    for (function, column) in [
        ("bools", json!([true, null, false, true, true, null, false, true, true, false])),
        ("integers", json!([1, null, "9223372036854775807"])),
        ("floats", json!([1.5, "NaN", null])),
        ("texts", json!(["a", null, "", "é\u{0}b"])),
        ("texts", json!([])),
        ("dates", json!(["2024-02-29", null])),
    ] {
        let body = json!({"rows": column.as_array().unwrap().len(), "columns": [column]});
        assert_eq!(server.ask(function, &body)["columns"], json!([column]), "{function}");
    }
    for length in 0..7 {
        let error = server.ask("bad", &json!({"rows": 1, "columns": [["x".repeat(length)]]}));
        assert_eq!(error["error"]["kind"], "bad_result", "{length}: {error}");
    }
    let reply = server.ask("up_to", &json!({"rows": 1, "columns": [[9]]}));
    assert_eq!(reply["columns"][1], json!([0, 1, 2, 3, 4, 5, 6, 7, 8]));
    // The handler of SIGTERM that the program had does not run.
    assert_eq!(server.end(), Some(0), "{}", server.log());
}

#[test]
fn a_handler_that_is_stuck_on_the_only_thread_ends_the_process() {
    let mut server = start_program("plain", PLAIN_FUNCTIONS);
    let gone = server.post("stuck", &json!({"rows": 1, "columns": [[1]]}));
    std::thread::sleep(Duration::from_millis(100));
    gone.shutdown(Shutdown::Both).unwrap();
    let _waiting = server.post("integers", &json!({"rows": 1, "columns": [[1]]}));
    assert_eq!(server.process.wait().unwrap().code(), Some(1));
    assert!(server.log().contains("a handler runs on for a client that has gone"), "{}", server.log());
}

#[test]
fn the_server_in_cpp_conforms() {
    let (template, folder) = (crate_folder().join("../cpp"), tempfile::tempdir().unwrap());
    let server = folder.path().join("server");
    let mut compile = Command::new("g++");
    compile.args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&server);
    compile.arg(template.join("server/server.cpp")).arg("-L").arg(library());
    run(compile.args(["-ltransship_core", "-ldl", "-pthread"]));
    let mut handler = Command::new("gcc");
    handler.args(["-std=c17", "-O1", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", "-I"]);
    handler.arg(template.join("server")).arg("-o").arg(folder.path().join("handler.so"));
    run(handler.arg(template.join("conformance/handler.c")));
    let manifest = fs::read_to_string(template.join("conformance/transship.toml")).unwrap();
    let mut server = Server::start(&server, &manifest, folder, &["serve"]);
    let path = server.folder.path().to_str().unwrap();
    let mut counts = Vec::new();
    for endpoint in [format!("http+unix:{path}/http.sock"), format!("unix:{path}/flight.sock")] {
        let endpoint = Endpoint::parse(&endpoint).unwrap();
        judge_server(&endpoint, &Credentials::default(), |transport, verdicts| {
            let failed: Vec<_> =
                verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Failed(_))).collect();
            assert!(failed.is_empty(), "over {transport}: {failed:#?}\n{}", server.log());
            counts.push(verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Passed).count());
        })
        .unwrap();
    }
    assert_eq!(counts.len(), 3, "JSON, columns and Flight");
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
    assert_eq!(server.end(), Some(0), "{}", server.log());
}
