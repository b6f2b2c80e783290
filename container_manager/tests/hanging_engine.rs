//! A container engine that hangs, and goes on later: a docker of the test's own, whose containers are processes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};
use udf_project::manifest::{MANIFEST_LABEL, Manifest};

/// It hangs as long as there is a file `hangs` beside it, and describes no image as often as a file `fails` has bytes. A container serves as the user of containers.
const DOCKER: &str = r#"#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time
folder = os.path.dirname(sys.argv[0])
while os.path.exists(folder + "/hangs"):
    time.sleep(0.05)
words = sys.argv[1:]
record = folder + "/" + words[-1] + ".pid"

def is_running():
    return os.path.exists(record)

if words[0] == "info":
    print("{}")
elif words[:2] == ["image", "ls"]:
    print(json.load(open(folder + "/image.json"))[0]["Id"])
elif words[:2] == ["image", "inspect"]:
    if words[2] == "sha256:" + "09" * 32:
        sys.exit("Error response from daemon: layer is damaged")
    fails = open(folder + "/fails").read() if os.path.exists(folder + "/fails") else ""
    if fails and words[2] == "sha256:" + "07" * 32:
        open(folder + "/fails", "w").write(fails[1:])
        sys.exit("Error response from daemon: try again")
    print(open(folder + "/image.json").read())
elif words[:2] == ["container", "ls"]:
    for name in os.listdir(folder):
        if name.endswith(".pid"):
            print(name.removesuffix(".pid"), "Up 2 hours")
elif words[:2] == ["container", "inspect"]:
    if words[2] == "broken":
        sys.exit("Error response from daemon: container is damaged")
    print(json.dumps([{"Name": "/" + words[2], "State": {"Running": is_running(), "ExitCode": 1}}]))
elif words[0] == "run":
    name = words[words.index("--name") + 1]
    inside = ":/run/transship"
    sockets = next(word for word in words if word.startswith("--volume=") and word.endswith(inside))
    sockets = sockets.removeprefix("--volume=").removesuffix(inside)
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    server = open(folder + "/server.py").read()
    silence = {stream: subprocess.DEVNULL for stream in ("stdin", "stdout", "stderr")}
    # Its folder is closed to it, but where it is already.
    process = subprocess.Popen(user + ["python3", "-c", server], cwd=sockets, start_new_session=True, **silence)
    open(folder + "/" + name + ".pid", "w").write(str(process.pid))
elif words[0] in ("stop", "rm") and is_running():
    os.kill(int(open(record).read()), signal.SIGKILL)
    os.remove(record)
"#;

const SERVER: &str = r#"
import http.server, json, os, socketserver

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = json.dumps({"protocol": 1, "server": "own", "functions": ["f"], "transports": ["json"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads, request_queue_size = True, 128

    def get_request(self):
        return super().get_request()[0], ("local", 0)

os.umask(0)
Server("http.sock", Handler).serve_forever()
"#;

/// Far less than the time after which the manager gives a question to the engine up.
const PATIENCE: Duration = Duration::from_secs(90);

/// A user who may ask, beside root.
const USER: &str = "12345";

/// Becomes a user, asks something on many connections, and keeps them open.
const CLIENT: &str = r#"
import os, socket, sys, time
os.setgroups([])
os.setgid(int(sys.argv[4]))
os.setuid(int(sys.argv[4]))
connections = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for connection in connections:
    connection.connect(sys.argv[1])
    connection.sendall(sys.argv[3].encode() + b"\n")
print("asked", flush=True)
time.sleep(600)
"#;

struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Stage {
    fn started() -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let stage = Stage { folder, daemon: None };
        let write = |name: &str, text: &str| std::fs::write(stage.path(name), text).unwrap();
        write("docker", DOCKER);
        write("server.py", SERVER);
        let manifest =
            Manifest::parse("name = 'own'\nversion = '1'\ntemplate = 'python'\nfunctions = [{ name = 'f' }]");
        let labels = json!({MANIFEST_LABEL: manifest.unwrap().to_label()});
        write(
            "image.json",
            &json!([{"Id": digest(), "RepoTags": ["own:1"], "Config": {"Labels": labels}}]).to_string(),
        );
        std::fs::set_permissions(stage.path("docker"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        stage.serve_api();
        stage.run()
    }

    /// The daemon's socket: whoever asks is sent to the command line, at once or once the daemon goes on.
    fn serve_api(&self) {
        let (listener, hangs) = (UnixListener::bind(self.path("docker.sock")).unwrap(), self.path("hangs"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let hangs = hangs.clone();
                std::thread::spawn(move || {
                    while hangs.exists() {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    drop(stream);
                });
            }
        });
    }

    fn run(mut self) -> Stage {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = Command::new("prlimit");
        command.args(["--nofile=4096", env!("CARGO_BIN_EXE_transshipd"), "--runtime", "docker", "--allow-user", USER]);
        command.env("PATH", path).stderr(log);
        command.env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"));
        command.env("DOCKER_HOST", format!("unix://{}", self.path("docker.sock").display()));
        for (variable, name) in
            [("TRANSSHIP_SOCKET", "m.sock"), ("TRANSSHIP_STATE_DIR", "state"), ("TRANSSHIP_RUN_DIR", "r")]
        {
            command.env(variable, self.path(name));
        }
        let mut daemon = command.spawn().unwrap();
        let start = Instant::now();
        while UnixStream::connect(self.path("m.sock")).is_err() {
            assert!(daemon.try_wait().unwrap().is_none() && start.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.daemon = Some(daemon);
        // It listens before it is ready.
        assert_eq!(answer_of(&mut self.ask(&json!({"request": "ping"})))["response"], "pong");
        self
    }

    /// Kills the manager, which leaves its container running, and gives a lease up that it gave.
    fn kill_daemon(&mut self, lease: BufReader<UnixStream>) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        drop(lease);
        std::fs::remove_file(self.path("m.sock")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// What the manager has of the host's memory.
    fn memory_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.as_ref().unwrap().id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A connection on which something was asked.
    fn ask(&self, request: &Value) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(self.path("m.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{request}").unwrap();
        BufReader::new(stream)
    }

    /// A lease, while the connection is kept.
    fn lease(&self) -> (BufReader<UnixStream>, Value) {
        let mut connection = self.ask(&json!({"request": "acquire", "digest": digest()}));
        let lease = answer_of(&mut connection);
        assert_eq!(lease["response"], "lease", "{lease}, {}", self.log());
        (connection, lease)
    }
}

fn digest() -> String {
    format!("sha256:{}", "07".repeat(32))
}

fn answer_of(connection: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    connection.read_line(&mut line).expect("the manager answers");
    serde_json::from_str(&line).unwrap()
}

impl Stage {
    fn end(&mut self) {
        let _ = std::fs::remove_file(self.path("hangs"));
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
            daemon.wait().unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn an_engine_that_is_late_to_see_a_container_end_is_waited_for() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started();
    let (mut connection, lease) = stage.lease();
    let record = stage.path(&format!("{}.pid", lease["replica"].as_str().unwrap()));
    let pid = std::fs::read_to_string(&record).unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    writeln!(connection.get_mut(), "{}", json!({"request": "report_failure", "replica": lease["replica"]})).unwrap();
    // Longer than a replica has to answer that hangs.
    std::thread::sleep(Duration::from_secs(4));
    std::fs::remove_file(&record).unwrap();
    let answer = answer_of(&mut connection);
    assert_eq!(answer, json!({"response": "fate", "fate": "exited with status 1"}), "{}", stage.log());
}

#[test]
fn replicas_are_leased_while_the_engine_hangs() {
    if !Uid::effective().is_root() {
        // Without root there is no other user for the container.
        return;
    }
    let mut stage = Stage::started();
    let (first, lease) = stage.lease();
    std::fs::write(stage.path("hangs"), "").unwrap();
    // What a name stands for only the engine knows.
    let asked: Vec<_> = (0..20).map(|_| stage.ask(&json!({"request": "resolve", "image": "own:1"}))).collect();
    for _ in 0..5 {
        let (_, another) = stage.lease();
        assert_eq!(another["replica"], lease["replica"]);
    }
    let replicas = answer_of(&mut stage.ask(&json!({"request": "replicas"})));
    assert_eq!(
        (replicas["replicas"].as_array().unwrap().len(), &replicas["replicas"][0]["state"]),
        (1, &json!("ready"))
    );
    // It goes on, and so do those who wait.
    std::fs::remove_file(stage.path("hangs")).unwrap();
    for mut connection in asked {
        let answer = answer_of(&mut connection);
        assert_eq!((&answer["response"], &answer["digest"]), (&json!("image"), &json!(digest())), "{answer}");
    }
    // The manager ends, though it cannot stop the container.
    drop(first);
    std::fs::write(stage.path("hangs"), "").unwrap();
    let mut daemon = stage.daemon.take().unwrap();
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    let start = Instant::now();
    while daemon.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            daemon.kill().unwrap();
            panic!("the manager does not end: {}", stage.log());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(stage.log().contains("some replicas could not be stopped"), "{}", stage.log());
    // The next one removes what is left of it.
    std::fs::remove_file(stage.path("hangs")).unwrap();
    for record in std::fs::read_dir(stage.folder.path()).unwrap().flatten() {
        if record.path().extension().is_some_and(|extension| extension == "pid") {
            let pid = std::fs::read_to_string(record.path()).unwrap().parse().unwrap();
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    drop(stage.run());
}

#[test]
fn a_user_whose_questions_hang_keeps_no_other_from_the_manager() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started();
    std::fs::set_permissions(stage.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(stage.path("hangs"), "").unwrap();
    // More than the manager has threads.
    let question = json!({"request": "resolve", "image": "own:1"}).to_string();
    let mut client = Command::new("python3");
    client.args(["-c", CLIENT]).arg(stage.path("m.sock")).args(["900", &question, USER]).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut asked = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut asked).unwrap();
    assert_eq!(asked, "asked\n");
    // Another user's work needs a thread, too.
    let start = Instant::now();
    let added = answer_of(&mut stage.ask(&json!({"request": "add_to_file", "path": "a", "content": ""})));
    assert_eq!(added["response"], "added", "{added}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn inline_code_that_waits_for_the_engine_fills_no_memory() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started();
    std::fs::write(stage.path("hangs"), "").unwrap();
    let function = json!({"name": "f", "arguments": ["int8"], "returns": "int8"});
    let manifest = json!({"name": "i", "template": "python", "functions": [function]});
    let before = stage.memory_kb();
    let mut waiting = Vec::new();
    for number in 0..64 {
        let source = format!("# {number}{}", "x".repeat(4 << 20));
        let request = json!({"request": "build_inline", "manifest": manifest, "source": source}).to_string();
        let mut stream = UnixStream::connect(stage.path("m.sock")).unwrap();
        waiting.push(stream.try_clone().unwrap());
        // The manager reads few of them to their end.
        std::thread::spawn(move || {
            let _ = writeln!(stream, "{request}");
        });
    }
    std::thread::sleep(Duration::from_secs(5));
    let more = stage.memory_kb().saturating_sub(before);
    assert!(more < 100 << 10, "{more} kB more");
    for stream in waiting {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn responses_that_nobody_reads_fill_no_memory() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started();
    let functions: Vec<_> = (0..8000).map(|number| format!("{{ name = 'f{number}' }}")).collect();
    let manifest = format!("name = 'own'\nversion = '1'\ntemplate = 'python'\nfunctions = [{}]", functions.join(", "));
    let labels = json!({MANIFEST_LABEL: Manifest::parse(&manifest).unwrap().to_label()});
    let image = json!([{"Id": digest(), "RepoTags": ["own:1"], "Config": {"Labels": labels}}]);
    std::fs::write(stage.path("image.json"), image.to_string()).unwrap();
    // What runs is known without the engine.
    let (_connection, _) = stage.lease();
    let resolve = json!({"request": "resolve", "image": digest()});
    let length = {
        let mut line = String::new();
        stage.ask(&resolve).read_line(&mut line).unwrap();
        line.len()
    };
    assert!(length > 500_000, "{length}");
    let before = stage.memory_kb();
    let unread: Vec<_> = (0..400).map(|_| stage.ask(&resolve)).collect();
    std::thread::sleep(Duration::from_secs(5));
    let more = stage.memory_kb().saturating_sub(before);
    assert!(more < 150 << 10, "{more} kB more for responses of {length} bytes");
    // A short one is given all the same.
    assert_eq!(answer_of(&mut stage.ask(&json!({"request": "ping"})))["response"], "pong");
    drop(unread);
}

#[test]
fn an_image_that_cannot_be_looked_at_once_costs_no_container() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut stage = Stage::started();
    let (first, lease) = stage.lease();
    stage.kill_daemon(first);
    // As it looks for images that it knows, and for that of the container.
    std::fs::write(stage.path("fails"), "xx").unwrap();
    let stage = stage.run();
    assert_eq!(std::fs::read_to_string(stage.path("fails")).unwrap(), "");
    let (_, another) = stage.lease();
    assert_eq!(another["replica"], lease["replica"], "{}", stage.log());
    let replicas = answer_of(&mut stage.ask(&json!({"request": "replicas"})));
    assert_eq!(replicas["replicas"].as_array().unwrap().len(), 1, "{replicas}");
}

#[test]
fn inline_code_that_waits_for_the_engine_keeps_no_other_request_from_being_read() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started();
    std::fs::write(stage.path("hangs"), "").unwrap();
    let function = json!({"name": "f", "arguments": ["int8"], "returns": "int8"});
    let manifest = json!({"name": "i", "template": "python", "functions": [function]});
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let source = format!("# {number}{}", "x".repeat(20 << 10));
            stage.ask(&json!({"request": "build_inline", "manifest": manifest, "source": source}))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    let content = "QUFB".repeat(8 << 10);
    let added = answer_of(&mut stage.ask(&json!({"request": "add_to_file", "path": "a", "content": content})));
    assert_eq!(added["response"], "added", "{added}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(waiting);
}

#[test]
fn a_broken_container_keeps_no_other_from_being_taken_over() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut stage = Stage::started();
    let (first, lease) = stage.lease();
    stage.kill_daemon(first);
    // One cannot be inspected, and the image of another: neither answers.
    let mut sleeping: Vec<Child> = Vec::new();
    for (name, digits) in [("broken", "07"), ("unknown", "09")] {
        let socket_dir = stage.path(&format!("r/{}", digits.repeat(16)));
        std::fs::create_dir(&socket_dir).unwrap();
        let record = json!({"digest": format!("sha256:{}", digits.repeat(32)), "socket_dir": socket_dir});
        std::fs::write(stage.path(&format!("state/containers/{name}")), record.to_string()).unwrap();
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        std::fs::write(stage.path(&format!("{name}.pid")), process.id().to_string()).unwrap();
        sleeping.push(process);
    }
    let stage = stage.run();
    let (_, another) = stage.lease();
    assert_eq!(another["replica"], lease["replica"], "{}", stage.log());
    assert!(stage.log().contains("layer is damaged"), "{}", stage.log());
    // Nothing runs that has no owner.
    let start = Instant::now();
    while sleeping.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        assert!(start.elapsed() < PATIENCE, "{}", stage.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!stage.path(&format!("r/{}", "09".repeat(16))).exists());
}
