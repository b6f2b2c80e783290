//! What images, handlers and other users of the host try with the manager, and do not get.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};

const PROJECT: &str = "name = \"doors\"\nversion = \"1.0\"\ntemplate = \"python\"\n[[functions]]\nname = \"f\"\narguments = [\"int8\"]\nreturns = \"int8\"\n";

struct Stage {
    folder: tempfile::TempDir,
    runtime: String,
    daemon: Option<Child>,
}

impl Stage {
    fn new(runtime: &str) -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        Stage { folder, runtime: runtime.to_string(), daemon: None }
    }

    fn started(runtime: &str) -> Stage {
        let mut stage = Stage::new(runtime);
        stage.start();
        stage
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
            .env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"))
            .env("TRANSSHIP_RUNTIME", &self.runtime);
        command
    }

    fn start(&mut self) {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut daemon = self.command(env!("CARGO_BIN_EXE_transshipd")).stderr(log).spawn().unwrap();
        let start = Instant::now();
        while UnixStream::connect(self.path("m.sock")).is_err() {
            let log = || std::fs::read_to_string(self.path("log")).unwrap();
            assert!(daemon.try_wait().unwrap().is_none(), "the manager ended: {}", log());
            assert!(start.elapsed() < Duration::from_secs(30), "the manager does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.daemon = Some(daemon);
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
            daemon.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    fn ask(&self, request: &Value) -> Value {
        let mut stream = UnixStream::connect(self.path("m.sock")).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Builds a project with this handler.
    fn build(&self, handler: &str) -> Output {
        let project = self.path("project");
        std::fs::create_dir_all(&project).unwrap();
        std::fs::write(project.join("transship.toml"), PROJECT).unwrap();
        std::fs::write(project.join("handler.py"), handler).unwrap();
        self.command(env!("CARGO_BIN_EXE_transship")).arg("build").arg(&project).output().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop();
    }
}

fn container_engines() -> Vec<String> {
    let engines = std::env::var("TRANSSHIP_TEST_ENGINES").unwrap_or_default();
    engines.split_whitespace().map(str::to_string).collect()
}

/// Runs a container engine's command line; what it printed.
fn run_engine(engine: &str, arguments: &[&str]) -> String {
    let output = Command::new(engine).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{engine} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

#[test]
fn a_reference_leads_to_no_other_file() {
    let stage = Stage::started("process");
    let built = stage.build("def f(x):\n    return x\n");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert_eq!(stage.ask(&json!({"request": "resolve", "image": "doors:1.0"}))["response"], "image");
    // The folder is there, so a path through it would lead to the image.
    for image in
        ["faults:../doors/1.0", "doors:../doors/1.0", "../tags/doors:1.0", "sha256:../../state", "doors:1.0/", "--help"]
    {
        let answer = stage.ask(&json!({"request": "resolve", "image": image}));
        assert_eq!(answer["response"], "error", "{image}");
        assert!(answer["message"].as_str().unwrap().contains("is not a reference of an image"), "{answer}");
    }
    let answer = stage.ask(&json!({"request": "acquire", "digest": "sha256:../../state"}));
    assert!(answer["message"].as_str().unwrap().contains("is not the digest of an image"), "{answer}");
}

#[test]
fn a_handler_does_not_say_what_it_may_use() {
    let stage = Stage::started("process");
    let handler = r#"
import json, os
with open(os.environ.get("TRANSSHIP_ROOT", "/opt/transship") + "/manifest.json") as file:
    manifest = json.load(file)
manifest["limits"] = {"memory_mb": 1048576, "cpus": 256, "pids": 32768, "network": True}
manifest["replicas"], manifest["prewarm"] = 64, 64
manifest["functions"][0]["returns"] = "text"
os.write(1, json.dumps(manifest).encode())
os._exit(0)
"#;
    let built = stage.build(handler);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let manifest = &stage.ask(&json!({"request": "resolve", "image": "doors:1.0"}))["manifest"];
    assert_eq!(manifest["functions"][0]["returns"], "text");
    assert_eq!((&manifest["limits"]["network"], &manifest["limits"]["memory_mb"]), (&json!(false), &json!(1024)));
    assert_eq!((&manifest["replicas"], &manifest["prewarm"]), (&json!(1), &json!(0)));
}

#[test]
fn nothing_is_read_of_strangers() {
    if !Uid::effective().is_root() {
        // Without root there is no other user to be.
        return;
    }
    let stage = Stage::started("process");
    // Forty connections that send 8 MB without an end of a line, and stay.
    let script = "
import socket, sys, time
held = []
for _ in range(40):
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(0.2)
    stream.connect(sys.argv[1])
    held.append(stream)
    try:
        stream.sendall(b'x' * 8000000)
    except OSError:
        pass
answer = b''
first = held[0]
first.settimeout(10)
try:
    while piece := first.recv(4096):
        answer += piece
except ConnectionResetError:
    pass
print(answer.decode(), flush=True)
time.sleep(1)
";
    let mut stranger = Command::new("python3");
    stranger.args(["-c", script]).arg(stage.path("m.sock")).uid(12_345).stdout(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    let (mut answer, mut said) = (String::new(), BufReader::new(stranger.stdout.take().unwrap()));
    said.read_line(&mut answer).unwrap();
    assert!(answer.contains("permission denied for the container manager"), "{answer}");
    // Others are served meanwhile.
    assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
    let status = std::fs::read_to_string(format!("/proc/{}/status", stage.daemon.as_ref().unwrap().id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kb < 64 << 10, "{peak_kb} kB");
    assert!(stranger.wait().unwrap().success());
}

#[test]
fn a_stranger_who_sends_a_request_learns_why_it_is_refused() {
    if !Uid::effective().is_root() {
        return;
    }
    let stage = Stage::started("process");
    std::fs::set_permissions(stage.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = stage.path("transship");
    std::fs::copy(env!("CARGO_BIN_EXE_transship"), &program).unwrap();
    let output = stage.command(program.to_str().unwrap()).arg("ps").uid(12_345).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("permission denied for the container manager"), "{said}");
}

#[test]
fn two_managers_do_not_share_a_folder() {
    let stage = Stage::started("process");
    let mut second = stage.command(env!("CARGO_BIN_EXE_transshipd"));
    let output = second.env("TRANSSHIP_SOCKET", stage.path("second.sock")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("another manager uses it"), "{said}");
    assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
}

#[test]
fn others_do_not_keep_a_manager_from_starting() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut stage = Stage::new("process");
    let set_mode = |path: PathBuf, mode: u32| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    // As an earlier version made them.
    std::fs::create_dir_all(stage.path("state/logs")).unwrap();
    for (path, mode) in [("state", 0o755), ("state/logs", 0o755)] {
        set_mode(stage.path(path), mode);
    }
    std::fs::write(stage.path("state/lock"), "").unwrap();
    set_mode(stage.path("state/lock"), 0o644);
    stage.start();
    stage.stop();
    let script = "
import fcntl, sys, time
held = []
for path in sys.argv[1:]:
    try:
        held.append(open(path))
        fcntl.flock(held[-1], fcntl.LOCK_SH)
    except OSError as error:
        print(type(error).__name__, flush=True)
print('done', flush=True)
sys.stdin.read()
";
    let mut stranger = Command::new("python3");
    stranger.args(["-c", script]).args([stage.path("state/lock"), stage.path("r/lock")]).uid(12_345).gid(12_345);
    let mut stranger = stranger.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(stranger.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = said.take_while(|line| line != "done").collect();
    stage.start();
    assert_eq!(said, ["PermissionError", "PermissionError"]);
    assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    let mode = |path: &str| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(stage.path(path)).unwrap().permissions()) & 0o777
    };
    assert_eq!((mode("state"), mode("state/lock"), mode("r/lock")), (0o710, 0o600, 0o600));
}

#[test]
fn a_docker_daemon_that_does_not_answer_is_not_done_without() {
    let stage = Stage::new("auto");
    let folder = stage.path("bin");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("docker"), "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
        .unwrap();
    std::fs::set_permissions(folder.join("docker"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let output = stage.command(env!("CARGO_BIN_EXE_transshipd")).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("reach docker") && said.contains("--runtime process"), "{said}");
}

#[test]
fn an_image_that_nobody_named_is_not_started() {
    for engine in container_engines() {
        let mut stage = Stage::new(&engine);
        let manifest = json!({
            "name": "transship-test-warm", "version": "1", "template": "python", "prewarm": 1,
            "functions": [{"name": "f", "arguments": ["int8"], "returns": "int8"}],
        });
        // As `docker pull` or `docker load` may bring one.
        let label = format!("LABEL org.transship.manifest='{manifest}'");
        let mut import = Command::new(&engine);
        import.args(["import", "--change", &label, "-", "transship-test-warm:1"]);
        let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        import.stdin.take().unwrap().write_all(&[0; 1024]).unwrap();
        assert!(import.wait().unwrap().success());
        stage.start();
        let is_started = || {
            let all = stage.ask(&json!({"request": "replicas"}));
            all["replicas"].as_array().unwrap().iter().any(|replica| replica["image"] == "transship-test-warm:1")
        };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            assert!(!is_started());
            std::thread::sleep(Duration::from_millis(50));
        }
        // An operator who names it wants it.
        let named = stage.ask(&json!({"request": "resolve", "image": "transship-test-warm:1"}));
        assert_eq!(named["response"], "image", "{named}");
        let start = Instant::now();
        while !is_started() {
            assert!(start.elapsed() < Duration::from_secs(20), "it is not started: {}", stage.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(stage);
        run_engine(&engine, &["image", "rm", "transship-test-warm:1"]);
    }
}

#[test]
fn images_and_containers_of_others_are_left_alone() {
    for engine in container_engines() {
        let mut stage = Stage::new(&engine);
        // An image whose label is nonsense, and one of a container that claims this manager's label and a folder of the host.
        let mut import = Command::new(&engine);
        import.args(["import", "--change", "LABEL org.transship.manifest=nonsense", "-", "transship-test-doors:1"]);
        let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // An empty archive.
        import.stdin.take().unwrap().write_all(&[0; 1024]).unwrap();
        assert!(import.wait().unwrap().success());
        let precious = stage.path("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("file"), "").unwrap();
        let labels = [
            format!("--label=org.transship.manager={}", stage.path("state").display()),
            format!("--label=org.transship.sockets={}", precious.display()),
            format!("--label=org.transship.digest=sha256:{}", "0".repeat(64)),
        ];
        let name = format!("transship-test-doors-{}", std::process::id());
        let create = ["create", "--name", &name, &labels[0], &labels[1], &labels[2], "transship-test-doors:1", "/none"];
        run_engine(&engine, &create);
        stage.start();
        assert_eq!(stage.ask(&json!({"request": "ping"}))["response"], "pong");
        let log = stage.log();
        assert!(
            log.contains("left image sha256:") && log.contains(&format!("left container \"{name}\" alone")),
            "{log}"
        );
        assert!(precious.join("file").exists());
        assert_eq!(run_engine(&engine, &["container", "inspect", "--format", "{{.Name}}", &name]), format!("/{name}"));
        run_engine(&engine, &["rm", &name]);
        run_engine(&engine, &["image", "rm", "transship-test-doors:1"]);
    }
}

#[test]
fn leases_and_names_stand_for_whole_digests() {
    for runtime in container_engines().into_iter().chain(["process".to_string()]) {
        let stage = Stage::started(&runtime);
        let built = stage.build("def f(x):\n    return x\n");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let image = stage.ask(&json!({"request": "resolve", "image": "doors:1.0"}));
        let digest = image["digest"].as_str().unwrap();
        // Engines take these for the image's digest, whatever a list of names says.
        let digits = &digest["sha256:".len()..];
        for beginning in [&digits[..6], &digits[..12], &digits[..63]] {
            let refused = stage.ask(&json!({"request": "resolve", "image": beginning}));
            assert_eq!(refused["kind"], "image_not_found", "{runtime} {beginning}: {refused}");
        }
        // A container of a name would have limits that are not the image's, and count for no memory.
        for name in ["doors:1.0", &digits[..12], &format!("doors:1.0@{digest}")] {
            let refused = stage.ask(&json!({"request": "acquire", "digest": name}));
            assert_eq!(refused["kind"], "invalid_definition", "{runtime} {name}: {refused}");
        }
        let leased = stage.ask(&json!({"request": "acquire", "digest": digest}));
        assert_eq!(leased["response"], "lease", "{runtime}: {leased}");
    }
}
