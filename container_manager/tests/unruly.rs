//! Replicas that hang, burn processors, end again and again, and say too much; and users who ask for more than they may.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_codec::batch::BatchBuilder;
use udf_types::Kind;
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

/// A server over JSON that does as its handler says: `greet` gives the greeting, `call` answers a call.
const SERVER: &str = r#"
import http.server, json, os, socketserver
directory = os.environ["TRANSSHIP_SOCKET_DIR"]
handler = {"own_name": os.path.basename(directory)}
exec(open(os.environ["ROOT"] + "/function/handler.py").read(), handler)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = handler.get("greet", lambda: {})()
        if isinstance(body, int):
            return self.stream(body)
        if not isinstance(body, bytes):
            greeting = {"protocol": 1, "server": "unruly", "functions": ["f"], "transports": ["json"]}
            body = json.dumps(greeting | body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(pieces):
            self.wfile.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self):
        handler["call"]()

    def log_message(self, *arguments):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads, request_queue_size = True, 128

    def get_request(self):
        return super().get_request()[0], ("local", 0)

os.umask(0)
Server(directory + "/http.sock", Handler).serve_forever()
"#;

const TEMPLATE: &str = r#"
project = ["transship.toml", "handler.py"]
[process]
env_files = ["environment"]
prepare = []
environment = { ROOT = "{root}" }
serve = ["/usr/bin/python3", "-u", "{root}/server.py"]
describe = ["/bin/cat", "{root}/manifest.json"]
"#;

struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        // Replicas leave notes there.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let template = folder.path().join("templates/unruly");
        fs::create_dir_all(&template).unwrap();
        fs::write(template.join("template.toml"), TEMPLATE).unwrap();
        fs::write(template.join("server.py"), SERVER).unwrap();
        fs::write(template.join("environment"), "").unwrap();
        Stage { folder, daemon: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("TRANSSHIP_SOCKET", self.path("m.sock"))
            .env("TRANSSHIP_STATE_DIR", self.path("state"))
            .env("TRANSSHIP_RUN_DIR", self.path("r"))
            .env("TRANSSHIP_TEMPLATES", self.path("templates"))
            .env("TRANSSHIP_RUNTIME", "process");
        command
    }

    fn start(&mut self, flags: &[&str]) {
        self.daemon = Some(self.spawn(flags));
    }

    /// A manager that answers.
    fn spawn(&self, flags: &[&str]) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut daemon = self.command(env!("CARGO_BIN_EXE_transshipd")).args(flags).stderr(log).spawn().unwrap();
        wait_until("the manager answers", || {
            assert!(daemon.try_wait().unwrap().is_none(), "the manager ended: {}", self.log());
            UnixStream::connect(self.path("m.sock")).is_ok()
                && self.ask(&json!({"request": "ping"}))["response"] == "pong"
        });
        daemon
    }

    fn end(&mut self, signal: Signal) {
        end(self.daemon.take().unwrap(), signal);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Builds a project with that handler, in which STAGE stands for this stage's folder; its digest. Where no manager runs yet,
    /// one runs meanwhile.
    fn build(&self, name: &str, more: &str, handler: &str) -> String {
        let project = self.path(&format!("project-{name}"));
        fs::create_dir_all(&project).unwrap();
        let manifest = format!(
            "name = \"{name}\"\nversion = \"1\"\ntemplate = \"unruly\"\n{more}\n[[functions]]\nname = \"f\"\n\
             arguments = [\"int8\"]\nreturns = \"int8\"\n"
        );
        fs::write(project.join("transship.toml"), manifest).unwrap();
        let handler = handler.replace("STAGE", &format!("{:?}", self.folder.path().to_str().unwrap()));
        fs::write(project.join("handler.py"), handler).unwrap();
        let own = self.daemon.is_none().then(|| self.spawn(&[]));
        let built = self.transship(&["build", project.to_str().unwrap()]).unwrap();
        own.into_iter().for_each(|daemon| end(daemon, Signal::SIGTERM));
        built.trim().strip_prefix(&format!("{name}:1 ")).unwrap().to_string()
    }

    fn transship(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(env!("CARGO_BIN_EXE_transship")).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn connect(&self) -> Connection {
        let stream = UnixStream::connect(self.path("m.sock")).unwrap();
        Connection(BufReader::new(stream))
    }

    fn ask(&self, request: &Value) -> Value {
        self.connect().ask(request)
    }

    /// A connection with a lease, and the lease.
    fn lease(&self, digest: &str) -> (Connection, Value) {
        let mut connection = self.connect();
        let lease = connection.ask(&json!({"request": "acquire", "digest": digest}));
        (connection, lease)
    }

    /// Name, state and leases of each replica.
    fn replicas(&self) -> Vec<(String, String, u64)> {
        let answer = self.ask(&json!({"request": "replicas"}));
        let text = |value: &Value| value.as_str().unwrap().to_string();
        let all = answer["replicas"].as_array().unwrap().iter();
        all.map(|it| (text(&it["name"]), text(&it["state"]), it["leases"].as_u64().unwrap())).collect()
    }

    fn state_of(&self, name: &Value) -> Option<String> {
        self.replicas().into_iter().find(|(known, ..)| *known == *name).map(|(_, state, _)| state)
    }

    /// One call; its error.
    fn call(&self, client: &Client, digest: &str, batch_timeout: Duration) -> udf_types::Error {
        let signature = Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8);
        let call = Call {
            target: Target::Image { manager: self.path("m.sock"), digest: digest.to_string() },
            transport: TransportName::Json,
            signature: signature.clone(),
            volatility: Volatility::Volatile,
            batch_timeout,
            start_timeout: Duration::from_secs(20),
            tables: Vec::new(),
        };
        let mut builder = BatchBuilder::new(&signature);
        builder.column(0).append_null();
        builder.finish_row();
        let mut exchange = client.open(Arc::new(call));
        exchange.send(builder.finish_batch());
        exchange.receive(&PlainHost).unwrap_err()
    }

    /// The most memory that the manager has had.
    fn peak_mb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.as_ref().unwrap().id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            self.end(Signal::SIGTERM);
        }
    }
}

fn end(mut daemon: Child, signal: Signal) {
    kill(Pid::from_raw(daemon.id() as i32), signal).unwrap();
    daemon.wait().unwrap();
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(40), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The name of a replica's folder.
fn own_name(lease: &Value) -> String {
    let socket = lease["json"].as_str().unwrap_or_else(|| panic!("{lease}"));
    let folder = Path::new(socket).parent().unwrap().file_name().unwrap();
    folder.to_str().unwrap().to_string()
}

/// Does not answer while a file of its name is there.
const HANGS: &str = r#"
import os, time
def wait():
    while os.path.exists(STAGE + "/hang-" + own_name):
        time.sleep(0.05)
def greet():
    wait()
    return {}
call = wait
"#;

#[test]
fn a_busy_replica_keeps_its_query_and_others_get_another() {
    let mut stage = Stage::new();
    let digest = stage.build("busy", "", HANGS);
    stage.start(&["--silent-timeout-s", "5"]);
    let (mut first, lease) = stage.lease(&digest);
    let (name, hang) = (lease["replica"].clone(), stage.path(&format!("hang-{}", own_name(&lease))));
    fs::write(&hang, "").unwrap();
    // The image may have one replica only, but this one does not answer.
    let report = json!({"request": "report_failure", "replica": name});
    assert_eq!(first.ask(&report), json!({"response": "fate", "fate": "does not answer"}));
    assert_eq!(stage.state_of(&name).as_deref(), Some("silent"));
    let (_second, other) = stage.lease(&digest);
    assert_ne!(other["replica"], name, "{other}");
    // It was only busy.
    fs::remove_file(&hang).unwrap();
    wait_until("it answers again", || stage.state_of(&name).as_deref() == Some("ready"));
    // It hangs for longer than it may; who has the lease keeps it.
    fs::write(&hang, "").unwrap();
    assert_eq!(first.ask(&json!({"request": "report_timeout", "replica": name})), json!({"response": "noted"}));
    wait_until("it is silent", || stage.state_of(&name).as_deref() == Some("silent"));
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(stage.state_of(&name).as_deref(), Some("silent"));
    let (_third, again) = stage.lease(&digest);
    assert_eq!(again["replica"], other["replica"]);
    drop(first);
    wait_until("it is stopped", || stage.state_of(&name).is_none());
    assert_eq!(stage.state_of(&other["replica"]).as_deref(), Some("ready"));
}

#[test]
fn a_replica_that_burns_its_processor_is_replaced_after_a_timeout() {
    let mut stage = Stage::new();
    // The expression takes for ever, and no other thread of the server runs meanwhile.
    let burning = "import re\ndef call():\n    re.match(r'(a+)+$', 'a' * 100 + 'b')\n";
    let digest = stage.build("burning", "", burning);
    stage.start(&["--silent-timeout-s", "4"]);
    let client = Client::start().unwrap();
    let error = stage.call(&client, &digest, Duration::from_secs(1));
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    let first = stage.replicas().remove(0).0;
    wait_until("the replica is known to be silent", || {
        stage.replicas().iter().any(|(name, state, _)| *name == first && state == "silent")
    });
    // The same session gets another at once.
    let error = stage.call(&client, &digest, Duration::from_secs(1));
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    assert!(stage.replicas().iter().any(|(name, ..)| *name != first), "{:?}", stage.replicas());
    wait_until("nobody has the first, and it is stopped", || stage.replicas().iter().all(|(name, ..)| *name != first));
    assert!(stage.log().contains("did not answer for"), "{}", stage.log());
    client.stop();
}

#[test]
fn whoever_reports_a_replica_all_the_time_keeps_nobody_from_another() {
    let mut stage = Stage::new();
    let digest =
        stage.build("reported", "replicas = 2", "import time\ndef greet():\n    time.sleep(0.5)\n    return {}\n");
    stage.start(&[]);
    let (mut first, lease) = stage.lease(&digest);
    let report = json!({"request": "report_timeout", "replica": lease["replica"]});
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                first.ask(&report);
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        let (sender, receiver) = std::sync::mpsc::channel();
        let stage = &stage;
        scope.spawn(move || sender.send(stage.lease(&digest).1));
        // Far longer than a replica takes to start.
        let other = receiver.recv_timeout(Duration::from_secs(30));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_ne!(other.expect("it has a lease")["replica"], lease["replica"]);
    });
}

#[test]
fn a_replica_without_leases_that_hangs_is_found() {
    let mut stage = Stage::new();
    let digest = stage.build("idle", "", HANGS);
    stage.start(&["--silent-timeout-s", "3"]);
    let (connection, lease) = stage.lease(&digest);
    drop(connection);
    fs::write(stage.path(&format!("hang-{}", own_name(&lease))), "").unwrap();
    wait_until("it is stopped", || stage.state_of(&lease["replica"]).is_none());
}

#[test]
fn replicas_of_an_earlier_manager_are_taken_to_be_in_use() {
    let mut stage = Stage::new();
    let digest = stage.build("adopted", "pause = true", HANGS);
    let flags = ["--idle-timeout-s", "1", "--adopted-grace-s", "20"];
    stage.start(&flags);
    let (_connection, lease) = stage.lease(&digest);
    let name = lease["replica"].clone();
    stage.end(Signal::SIGKILL);
    stage.start(&flags);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(12) {
        assert_eq!(stage.replicas(), [(name.as_str().unwrap().to_string(), "ready".to_string(), 0)]);
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_until("it is stopped", || stage.replicas().is_empty());
}

#[test]
fn a_session_leases_again_after_the_manager_was_restarted() {
    let mut stage = Stage::new();
    let digest = stage.build("again", "", "import time\ndef call():\n    time.sleep(60)\n");
    stage.start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lease = udf_client::lease::Lease::acquire(&stage.path("m.sock"), &digest).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!lease.is_lost());
        stage.end(Signal::SIGKILL);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(lease.is_lost());
    });
    // The next manager finds the replica, and stops it at its end.
    stage.start(&[]);
    assert_eq!(stage.lease(&digest).1["response"], "lease");
}

#[test]
fn an_image_whose_replicas_end_is_given_time() {
    let mut stage = Stage::new();
    // Ready, and gone soon.
    let note = "import os, threading, time\nopen(STAGE + '/starts', 'a').write('x')\n";
    let leaving = "def leave():\n    time.sleep(0.3)\n    print('no room left', flush=True)\n    os._exit(7)\nthreading.Thread(target=leave).start()\n";
    stage.build("leaving", "prewarm = 1", &format!("{note}{leaving}"));
    stage.start(&[]);
    std::thread::sleep(Duration::from_secs(12));
    let starts = fs::metadata(stage.path("starts")).unwrap().len();
    assert!((2..=4).contains(&starts), "{starts} starts");
    // One that does not even get ready, while a file is there.
    fs::write(stage.path("broken"), "").unwrap();
    let broken = "import os, sys\nif os.path.exists(STAGE + '/broken'):\n    sys.exit('no model found')\n";
    let digest = stage.build("broken", "", broken);
    let refused = loop {
        let (_connection, answer) = stage.lease(&digest);
        assert_eq!(answer["kind"], "container_failed", "{answer}");
        if answer["message"].as_str().unwrap().contains("no container of image \"broken:1\" is started for another") {
            break answer;
        }
    };
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("exited with status 1") && detail.contains("no model found"), "{detail}");
    // What is said costs no start.
    let start = Instant::now();
    assert_eq!(stage.lease(&digest).1["response"], "error");
    assert!(start.elapsed() < Duration::from_millis(500));
    fs::remove_file(stage.path("broken")).unwrap();
    wait_until("it is tried again", || stage.lease(&digest).1["response"] == "lease");
    // It has served somebody, so all is forgotten.
    wait_until("it is leased", || stage.lease(&digest).1["response"] == "lease");
}

#[test]
fn all_containers_together_have_a_limit() {
    for flags in [["--max-containers", "1"], ["--max-memory-mb", "1500"]] {
        let mut stage = Stage::new();
        let one = stage.build("one", "", "");
        let two = stage.build("two", "", "# another\n");
        stage.start(&flags);
        let (first, lease) = stage.lease(&one);
        assert_eq!(lease["response"], "lease");
        let (_, refused) = stage.lease(&two);
        assert_eq!(refused["kind"], "busy", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("too many containers are in use"), "{refused}");
        drop(first);
        // Who has no lease makes room.
        let (_second, lease) = stage.lease(&two);
        assert_eq!(lease["response"], "lease", "{lease}");
        assert_eq!(stage.replicas().len(), 1);
    }
}

#[test]
fn no_container_gets_more_memory_than_all_together() {
    let mut stage = Stage::new();
    let digest = stage.build("greedy", "limits = { memory_mb = 100000 }", "");
    stage.start(&["--max-memory-mb", "700"]);
    let (_connection, lease) = stage.lease(&digest);
    assert_eq!(lease["response"], "lease", "{lease}");
    let record = stage.path("state/replicas").join(lease["replica"].as_str().unwrap()).join("process.json");
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", record["pid"])).unwrap();
    let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert_eq!(data.split_whitespace().nth(3), Some((700_u64 << 20).to_string().as_str()), "{limits}");
}

#[test]
fn the_log_of_a_replica_outlives_it_and_is_bounded() {
    let mut stage = Stage::new();
    let handler = "import os, threading, time\ndef leave():\n    time.sleep(2)\n    print('y' * 1000000)\n    print('last words', flush=True)\n    os._exit(3)\nthreading.Thread(target=leave).start()\n";
    let digest = stage.build("talking", "", handler);
    let flood = stage.build("flood", "", "for _ in range(60):\n    print('x' * 1000000)\n");
    stage.start(&[]);
    let (connection, lease) = stage.lease(&digest);
    drop(connection);
    wait_until("it has ended", || stage.state_of(&lease["replica"]).is_none());
    let log = stage.transship(&["logs", lease["replica"].as_str().unwrap()]).unwrap();
    assert!(log.trim_end().ends_with("last words") && log.len() <= 70_000, "{} bytes", log.len());
    assert!(stage.transship(&["logs", "../../log"]).unwrap_err().contains("there is no replica"));
    let (_connection, lease) = stage.lease(&flood);
    let path = stage.path("state/replicas").join(lease["replica"].as_str().unwrap()).join("log");
    wait_until("the log is shortened", || fs::metadata(&path).unwrap().len() < 1 << 20);
    let log = stage.transship(&["logs", lease["replica"].as_str().unwrap()]).unwrap();
    assert!(log.starts_with('x') && log.len() <= 70_000, "{} bytes", log.len());
    // Nothing is left of those that ended but their logs.
    assert_eq!(fs::read_dir(stage.path("state/replicas")).unwrap().count(), 1);
}

#[test]
fn replicas_that_take_no_connections_delay_nothing() {
    let mut stage = Stage::new();
    // Once leased, it accepts nothing more, and its queue fills.
    let deaf = "import threading, time\ndef stop():\n    time.sleep(2)\n    threading.Thread(target=hold).start()\ndef hold():\n    import gc, socketserver, socket\n    for it in gc.get_objects():\n        if isinstance(it, socketserver.BaseServer):\n            it.get_request = lambda: time.sleep(3600)\n    for _ in range(200):\n        knock = socket.socket(socket.AF_UNIX)\n        knock.setblocking(False)\n        try:\n            knock.connect(directory + '/http.sock')\n        except OSError:\n            break\n        held.append(knock)\nheld = []\nimport os\ndirectory = os.environ['TRANSSHIP_SOCKET_DIR']\nthreading.Thread(target=stop).start()\n";
    let digest = stage.build("deaf", "replicas = 12", deaf);
    let other = stage.build("other", "", "");
    stage.start(&["--idle-timeout-s", "3", "--silent-timeout-s", "60"]);
    let held: Vec<_> = (0..12).map(|_| stage.lease(&digest)).collect();
    assert!(held.iter().all(|(_, lease)| lease["response"] == "lease"));
    let (connection, lease) = stage.lease(&other);
    std::thread::sleep(Duration::from_secs(4));
    drop((held, connection));
    let start = Instant::now();
    wait_until("the idle one is stopped", || stage.state_of(&lease["replica"]).is_none());
    // Two seconds for each of the others would be more.
    assert!(start.elapsed() < Duration::from_secs(18), "{:?}", start.elapsed());
}

#[test]
fn a_log_does_not_command_the_terminal() {
    let mut stage = Stage::new();
    let digest = stage.build("coloured", "", "print('\\x1b]0;owned\\x07', flush=True)\n");
    stage.start(&[]);
    let (_connection, lease) = stage.lease(&digest);
    let name = lease["replica"].as_str().unwrap();
    // Whoever reads it with a program gets what was written.
    assert!(stage.transship(&["logs", name]).unwrap().contains("\x1b]0;owned\x07"));
    let mut terminal = stage.command("/usr/bin/python3");
    terminal.args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])", env!("CARGO_BIN_EXE_transship"), "logs", name]);
    let shown = terminal.stdin(Stdio::null()).output().unwrap().stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("\\u{1b}]0;owned\\u{7}") && !shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn greetings_do_not_fill_the_manager() {
    let mut stage = Stage::new();
    let huge = stage.build("huge", "", "def greet():\n    return 1024\n");
    let many = stage.build("many", "replicas = 4", "def greet():\n    return {'functions': [''] * 1900000}\n");
    stage.start(&["--start-timeout-s", "20"]);
    let (_connection, answer) = stage.lease(&huge);
    assert_eq!(answer["response"], "error");
    assert!(answer["detail"].as_str().unwrap().contains("larger than 8 MB"), "{answer}");
    let held: Vec<_> = (0..4).map(|_| stage.lease(&many)).collect();
    assert!(held.iter().all(|(_, lease)| lease["response"] == "lease"), "{:?}", held[0].1);
    assert!(stage.peak_mb() < 150, "{} MB", stage.peak_mb());
}

/// Asks as another user; the answers to requests on one connection, of which later ones may use REPLICA, as leased.
fn ask_as(uid: u32, socket: &Path, requests: &[Value]) -> Vec<Value> {
    let script = "
import json, socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
lines, leased = stream.makefile(), ''
for request in json.loads(sys.argv[2]):
    stream.sendall((json.dumps(request).replace('REPLICA', leased) + '\\n').encode())
    line = lines.readline()
    leased = json.loads(line).get('replica', leased)
    print(line, end='')
";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(socket).arg(serde_json::to_string(requests).unwrap());
    let output = command.uid(uid).current_dir("/").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), requests.len(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    answers
}

#[test]
fn an_engine_may_do_what_an_engine_needs() {
    if !Uid::effective().is_root() {
        // Without root there is no other user to be.
        return;
    }
    let mut stage = Stage::new();
    let good = stage.build("good", "", "print('talk')\n");
    let secret = stage.build("secret", "", "print('secret talk')\n");
    let socket = stage.path("m.sock");
    stage.start(&["--allow-user", "12345", "--operator", "12346", "--allow-images", "good:*,inline:unruly"]);
    let (_connection, lease) = stage.lease(&secret);
    let other = lease["replica"].clone();
    let manifest = json!({"name": "i", "template": "unruly", "functions": [{"name": "f", "arguments": ["int8"], "returns": "int8"}]});
    let requests = [
        json!({"request": "ping"}),
        json!({"request": "resolve", "image": "good:1"}),
        json!({"request": "build_inline", "manifest": manifest, "source": "x = 1\n"}),
        json!({"request": "acquire", "digest": good}),
        json!({"request": "report_failure", "replica": "REPLICA"}),
        json!({"request": "report_timeout", "replica": "REPLICA"}),
        json!({"request": "logs", "replica": "REPLICA"}),
        json!({"request": "replicas"}),
        // From here on, what it may not do.
        json!({"request": "resolve", "image": "secret:1"}),
        json!({"request": "resolve", "image": secret}),
        json!({"request": "acquire", "digest": secret}),
        json!({"request": "build_library", "library": "l"}),
        json!({"request": "report_failure", "replica": other}),
        json!({"request": "report_timeout", "replica": other}),
        json!({"request": "logs", "replica": other}),
        json!({"request": "prune", "older_than_days": 0}),
        json!({"request": "build_project"}),
        json!({"request": "push", "image": "good:1", "reference": "localhost:9/good:1"}),
        json!({"request": "pull", "reference": "localhost:9/good:1"}),
        json!({"request": "doctor"}),
        json!({"request": "metrics"}),
    ];
    let answers = ask_as(12_345, &socket, &requests);
    for (request, answer) in requests.iter().zip(&answers).take(8) {
        assert_ne!(answer["response"], "error", "{request}: {answer}");
    }
    assert_eq!(answers[4]["fate"], "is still running");
    for (request, answer) in requests.iter().zip(&answers).skip(8) {
        assert_eq!(answer["kind"], "not_allowed", "{request}: {answer}");
    }
    // Who has which lease.
    let replicas = answers[7]["replicas"].as_array().unwrap();
    let held = replicas.iter().find(|replica| replica["image"] == "good:1").unwrap();
    assert_eq!(held["holders"][0]["uid"], 12_345);
    assert!(held["holders"][0]["pid"].as_i64().unwrap() > 1);
    // Of others' it hears that they have some.
    let others = replicas.iter().find(|replica| replica["name"] == other).unwrap();
    assert_eq!((&others["leases"], &others["holders"]), (&json!(1), &Value::Null));
    let listed = stage.transship(&["ps"]).unwrap();
    assert!(listed.contains(&format!("root pid {}", std::process::id())), "{listed}");
    wait_until("the lease has ended", || stage.replicas().iter().map(|(.., leases)| leases).sum::<u64>() == 1);
    // An inline image is called like an image, by its digest.
    let inline = answers[2]["digest"].clone();
    let answers = ask_as(12_345, &socket, &[json!({"request": "acquire", "digest": inline})]);
    assert_eq!(answers[0]["response"], "lease", "{answers:?}");
    // An operator is bound by none of that.
    let requests = [
        json!({"request": "resolve", "image": "secret:1"}),
        json!({"request": "logs", "replica": other}),
        json!({"request": "prune", "older_than_days": 100}),
        json!({"request": "build_project"}),
        json!({"request": "push", "image": "good:1", "reference": "localhost:9/good:1"}),
        json!({"request": "pull", "reference": "localhost:9/good:1"}),
        json!({"request": "doctor"}),
        json!({"request": "metrics"}),
    ];
    let answers = ask_as(12_346, &socket, &requests);
    assert!(answers[3]["message"].as_str().unwrap().contains("has no file \"transship.toml\""), "{answers:?}");
    for refused in &answers[4..6] {
        assert!(refused["message"].as_str().unwrap().contains("which no registry takes"), "{refused}");
    }
    assert_eq!(answers[6]["checks"][0]["name"], "runtime", "{answers:?}");
    assert!(answers[1]["text"].as_str().unwrap().contains("secret talk"), "{answers:?}");
    let metrics = answers[7]["text"].as_str().unwrap();
    assert!(metrics.contains("transship_replicas{image=\"secret:1\",state=\"ready\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("secret talk"));
    assert_eq!((&answers[0]["response"], &answers[2]["images"]), (&json!("image"), &json!([])));
}

#[test]
fn requests_without_an_end_do_not_fill_the_manager() {
    let mut stage = Stage::new();
    stage.start(&[]);
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = UnixStream::connect(stage.path("m.sock")).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // The manager may take only a part of it.
        let _ = stream.write_all(&vec![b'x'; 8_000_000]);
        held.push(stream);
    }
    assert!(stage.peak_mb() < 100, "{} MB", stage.peak_mb());
    assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
    // A short one has no more time.
    let mut short = UnixStream::connect(stage.path("m.sock")).unwrap();
    short.write_all(b"{").unwrap();
    for mut stream in [short, held.remove(0)] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let ended = stream.read(&mut [0; 16]);
        let is_reset = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(is_reset), "{ended:?}");
    }
    // One that has not begun has all the time, and a long one takes its turn.
    let mut idle = stage.connect();
    drop(held);
    std::thread::sleep(Duration::from_secs(12));
    let long = json!({"request": "resolve", "image": "x".repeat(1 << 20)});
    assert_eq!(idle.ask(&long)["kind"], "invalid_definition");
    assert_eq!(idle.ask(&json!({"request": "ping"}))["response"], "pong");
}

#[test]
fn an_engine_starts_nothing_by_naming_what_it_may_not_use() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut stage = Stage::new();
    stage.start(&["--allow-user", "12345", "--allow-images", "good:*"]);
    // The manager does not know it yet.
    let digest = stage.build("secret", "prewarm = 1", "");
    let requests = ["secret:1", &digest].map(|image| json!({"request": "resolve", "image": image}));
    for answer in ask_as(12_345, &stage.path("m.sock"), &requests) {
        assert_eq!(answer["kind"], "not_allowed", "{answer}");
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stage.replicas(), []);
    assert_eq!(stage.ask(&requests[0])["response"], "image");
    wait_until("one is kept warm for an operator", || !stage.replicas().is_empty());
}

#[test]
fn an_engine_does_not_keep_others_out() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut stage = Stage::new();
    let digest = stage.build("good", "", "");
    // The manager has few descriptors, and the engine takes what it gets.
    let limited = stage
        .command("prlimit")
        .args(["--nofile=300:", env!("CARGO_BIN_EXE_transshipd")])
        .args(["--allow-user", "12345"])
        .spawn();
    stage.daemon = Some(limited.unwrap());
    wait_until("the manager answers", || UnixStream::connect(stage.path("m.sock")).is_ok());
    let script = "
import json, socket, sys
held = []
for _ in range(400):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(sys.argv[1])
    held.append(stream)
first = held[0]
lines = first.makefile()
for _ in range(65):
    first.sendall((json.dumps({'request': 'acquire', 'digest': sys.argv[2]}) + '\\n').encode())
    print(lines.readline(), end='', flush=True)
sys.stdin.read()
";
    let mut engine = Command::new("/usr/bin/python3");
    engine.args(["-c", script]).arg(stage.path("m.sock")).arg(&digest).uid(12_345).current_dir("/");
    let mut engine = engine.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(engine.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert!((0..64).all(|_| answers.next().unwrap()["response"] == "lease"));
    let refused = answers.next().unwrap();
    assert_eq!(refused["message"], "this connection has 64 leases already");
    assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
    assert!(stage.replicas().iter().all(|(_, _, leases)| *leases == 64));
    drop(engine.stdin.take());
    assert!(engine.wait().unwrap().success());
}

#[test]
fn rows_that_end_a_replica_do_not_keep_others_from_its_image() {
    let mut stage = Stage::new();
    let digest = stage.build("fragile", "", "import os\ndef call():\n    os._exit(9)\n");
    stage.start(&[]);
    let client = Client::start().unwrap();
    for _ in 0..12 {
        let error = stage.call(&client, &digest, Duration::from_secs(10));
        assert!(error.to_string().contains("exited with status 9"), "{error}");
    }
    assert_eq!(stage.lease(&digest).1["response"], "lease");
    client.stop();
}

#[test]
fn what_is_installed_leads_to_no_other_file() {
    let stage = Stage::new();
    let precious = stage.path("precious");
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
    // A package that makes links where the manager makes files, and folders that others may write to.
    let prepare = format!(
        "ln -s {0} {{env}}/.complete; ln -s {0} {{env}}.complete; mkdir {{env}}/open; chmod 777 {{env}} {{env}}/open; ln -s {0} {{env}}/open/link",
        precious.display()
    );
    let template = TEMPLATE.replace("prepare = []", &format!("prepare = [[\"/bin/sh\", \"-c\", \"{prepare}; true\"]]"));
    fs::write(stage.path("templates/unruly/template.toml"), template).unwrap();
    stage.build("linking", "", "");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert_eq!(fs::metadata(&precious).unwrap().mode() & 0o777, 0o600);
    for entry in fs::read_dir(stage.path("state/envs")).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for folder in [entry.path(), entry.path().join("open")] {
            let metadata = fs::metadata(&folder).unwrap();
            assert_eq!((metadata.uid(), metadata.mode() & 0o022), (Uid::effective().as_raw(), 0), "{folder:?}");
        }
    }
}

#[test]
fn an_installation_that_failed_is_not_taken_for_complete() {
    let mut stage = Stage::new();
    stage.start(&[]);
    let template =
        TEMPLATE.replace("prepare = []", "prepare = [[\"/bin/sh\", \"-c\", \"touch {env}/.complete; exit 1\"]]");
    fs::write(stage.path("templates/unruly/template.toml"), template).unwrap();
    let project = stage.path("project");
    fs::create_dir(&project).unwrap();
    let manifest = "name = \"a\"\ntemplate = \"unruly\"\n[[functions]]\nname = \"f\"\narguments = [\"int8\"]\nreturns = \"int8\"\n";
    fs::write(project.join("transship.toml"), manifest).unwrap();
    fs::write(project.join("handler.py"), "").unwrap();
    for _ in 0..2 {
        let error = stage.transship(&["build", project.to_str().unwrap()]).unwrap_err();
        assert!(error.contains("install the requirements"), "{error}");
    }
}

#[test]
fn images_that_engines_had_built_are_removed_once_nobody_uses_them() {
    let mut stage = Stage::new();
    stage.build("named", "", "");
    stage.start(&[]);
    let manifest = json!({"name": "i", "template": "unruly", "functions": [{"name": "f", "arguments": ["int8"], "returns": "int8"}]});
    let build = |source: &str| {
        let answer = stage.ask(&json!({"request": "build_inline", "manifest": manifest, "source": source}));
        (answer["digest"].as_str().unwrap().to_string(), answer)
    };
    let ((unused, _), (used, _), (leased, _)) = (build("x = 1\n"), build("x = 2\n"), build("x = 3\n"));
    let (_connection, _) = stage.lease(&leased);
    let named = stage.ask(&json!({"request": "resolve", "image": "named:1"}))["digest"].as_str().unwrap().to_string();
    let age = |digest: &str, days: u64| {
        let path = stage.path("state/used").join(digest.trim_start_matches("sha256:"));
        let old = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    };
    age(&unused, 40);
    age(&leased, 40);
    age(&named, 400);
    age(&used, 20);
    let removed = stage.transship(&["prune", "--older-than", "30"]).unwrap();
    assert!(removed.starts_with("transship-inline:") && removed.lines().count() == 1, "{removed}");
    let is_there = |digest: &str| stage.ask(&json!({"request": "resolve", "image": digest}))["response"] == "image";
    assert_eq!([&unused, &used, &leased, &named].map(|digest| is_there(digest)), [false, true, true, true]);
    // Who has the source has it built again.
    assert_eq!(build("x = 1\n").0, unused);
    assert_eq!(stage.lease(&unused).1["response"], "lease");
}
