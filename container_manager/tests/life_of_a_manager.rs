//! The real daemon and command line on real replicas: on child processes always, on the container engines that
//! `TRANSSHIP_TEST_ENGINES` names as well (`make test` names docker).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use udf_client::control::{Connection, ReplicaInfo, Request, Response, ask};
use udf_client::lease::Lease;
use udf_client::transport::connect;
use udf_project::endpoint::Endpoint;
use udf_types::{Kind, Result};

const PROJECT: &str = r#"
name = "life"
version = "1.0"
template = "python"
replicas = 2
prewarm = 1
pause = true
[[functions]]
name = "add_one"
[[functions]]
name = "leave"
arguments = ["int8"]
returns = "int8"
"#;

const HANDLER: &str = "
import os

def add_one(x: int) -> int:
    return x + 1

def leave(x):
    os._exit(9)
";

/// A manager with folders of its own.
struct Stage {
    folder: tempfile::TempDir,
    runtime: &'static str,
    daemon: Option<Child>,
}

impl Stage {
    fn new(runtime: &'static str) -> Stage {
        // Short, since the sockets' paths must be; and open to the replicas' user.
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let project = folder.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("transship.toml"), PROJECT).unwrap();
        std::fs::write(project.join("handler.py"), HANDLER).unwrap();
        Stage { folder, runtime, daemon: None }
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
            .env("TRANSSHIP_RUNTIME", self.runtime);
        command
    }

    /// Runs the command line; standard output if it succeeds, standard error if not.
    fn transship(&self, arguments: &[&str]) -> std::result::Result<String, String> {
        let output = self.command(env!("CARGO_BIN_EXE_transship")).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn start_daemon(&mut self) {
        let mut command = self.command(env!("CARGO_BIN_EXE_transshipd"));
        self.daemon = Some(
            command.args(["--idle-timeout-s", "2", "--adopted-grace-s", "2"]).stderr(Stdio::null()).spawn().unwrap(),
        );
        wait_until("the manager answers", || self.transship(&["ps"]).is_ok());
    }

    fn end_daemon(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().unwrap();
        kill(Pid::from_raw(daemon.id() as i32), signal).unwrap();
        daemon.wait().unwrap();
    }

    async fn replicas(&self) -> Vec<ReplicaInfo> {
        match ask(&self.path("m.sock"), &Request::Replicas).await.unwrap() {
            // Docker may hold other images that are to be kept warm.
            Response::Replicas { replicas, .. } => {
                replicas.into_iter().filter(|replica| replica.image == "life:1.0").collect()
            }
            other => panic!("{other:?}"),
        }
    }

    async fn lease(&self, digest: &str) -> Result<Lease> {
        Lease::acquire(&self.path("m.sock"), digest).await
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            self.end_daemon(Signal::SIGTERM);
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn wait_for_replicas(stage: &Stage, what: &str, is_so: impl Fn(&[ReplicaInfo]) -> bool) {
    let start = Instant::now();
    while !is_so(&stage.replicas().await) {
        let found = stage.replicas().await;
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain until {what}: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn flight_of(lease: &Lease) -> &str {
    lease.info.flight.as_deref().expect("the replica offers Flight")
}

async fn answers(lease: &Lease) -> bool {
    let credentials = lease.credentials();
    let says_hello = async |endpoint: &str| {
        connect::to_endpoint(&Endpoint::parse(endpoint).unwrap(), &credentials).hello().await.is_ok()
    };
    says_hello(flight_of(lease)).await && says_hello(&lease.info.json).await
}

fn live_a_life(runtime: &'static str) {
    let mut stage = Stage::new(runtime);
    // Nothing is built, nor looked at, without the manager.
    for verb in [&["build", stage.path("project").to_str().unwrap()][..], &["push", "life:1.0"], &["pull", "life:1.0"]]
    {
        let error = stage.transship(verb).unwrap_err();
        assert!(
            error.contains("could not reach the container manager") && error.contains("Start transshipd"),
            "{error}"
        );
    }
    stage.transship(&["doctor"]).unwrap_err();
    stage.start_daemon();
    let built = stage.transship(&["build", stage.path("project").to_str().unwrap()]).unwrap();
    let digest = built.trim().strip_prefix("life:1.0 ").unwrap().to_string();
    // An unchanged project is the same image.
    assert_eq!(stage.transship(&["build", stage.path("project").to_str().unwrap()]).unwrap(), built);
    let found = stage.transship(&["doctor"]).unwrap();
    for line in [
        format!("ok      runtime: {runtime}: "),
        "ok      templates: ".to_string(),
        format!("with runtime {runtime} at"),
    ] {
        assert!(found.contains(&line), "{found}");
    }
    // What was built before the manager started is kept warm, if it is to be.
    stage.end_daemon(Signal::SIGTERM);
    stage.start_daemon();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        // One is started before anybody asks, and taken first; a second is started for a second lease, not a third.
        wait_for_replicas(&stage, "one is prewarmed", |all| all.len() == 1 && all[0].state == "ready").await;
        let first = stage.lease(&digest).await.unwrap();
        let second = stage.lease(&digest).await.unwrap();
        let third = stage.lease(&digest).await.unwrap();
        assert!(answers(&first).await && answers(&second).await);
        assert_ne!(first.info.replica, second.info.replica);
        assert_eq!(stage.replicas().await.iter().map(|replica| replica.leases).sum::<usize>(), 3);
        // A lease ends with its connection.
        drop(third);
        wait_for_replicas(&stage, "a lease ended", |all| all.iter().map(|replica| replica.leases).sum::<usize>() == 2)
            .await;
        // A replica that ended is found out, and replaced.
        assert_eq!(first.fate().await.unwrap(), "is still running");
        end_replica(&second).await;
        assert_eq!(second.fate().await.unwrap(), "exited with status 9");
        assert!(stage.replicas().await.iter().all(|replica| replica.name != second.info.replica));
        drop(second);
        let again = stage.lease(&digest).await.unwrap();
        assert!(answers(&again).await);
        let logs = stage.transship(&["logs", &again.info.replica]).unwrap();
        assert!(logs.contains("transship_server: ready, 2 functions"), "{logs}");
        // Leases of a manager that is killed are gone, but its replicas are found by the next one.
        let names = |all: Vec<ReplicaInfo>| all.into_iter().map(|replica| replica.name).collect::<Vec<_>>();
        let before = names(stage.replicas().await);
        stage.end_daemon(Signal::SIGKILL);
        stage.start_daemon();
        assert_eq!(names(stage.replicas().await), before);
        let adopted = stage.lease(&digest).await.unwrap();
        assert!(before.contains(&adopted.info.replica) && answers(&adopted).await);
        // The idle are stopped, but for those that are to be kept warm.
        drop((adopted, first, again));
        wait_for_replicas(&stage, "the idle one is stopped", |all| all.len() == 1).await;
        // The one that is kept is paused while nobody uses it; a lease, a new manager and an end go on with it.
        wait_for_replicas(&stage, "the unused one is paused", |all| all[0].state == "paused").await;
        let resumed = stage.lease(&digest).await.unwrap();
        assert!(answers(&resumed).await);
        assert_eq!(stage.replicas().await[0].state, "ready");
        let kept = names(stage.replicas().await);
        drop(resumed);
        wait_for_replicas(&stage, "it is paused again", |all| all[0].state == "paused").await;
        stage.end_daemon(Signal::SIGKILL);
        stage.start_daemon();
        assert_eq!(names(stage.replicas().await), kept);
        assert!(answers(&stage.lease(&digest).await.unwrap()).await);
        wait_for_replicas(&stage, "it is paused once more", |all| all[0].state == "paused").await;
        // Once the name stands for another image, that one is kept instead.
        std::fs::write(stage.path("project").join("handler.py"), format!("{HANDLER}# changed\n")).unwrap();
        stage.transship(&["build", stage.path("project").to_str().unwrap()]).unwrap();
        match ask(&stage.path("m.sock"), &Request::Resolve { image: "life:1.0".to_string() }).await.unwrap() {
            Response::Image(image) => assert_ne!(image.digest, digest),
            other => panic!("{other:?}"),
        }
        wait_for_replicas(&stage, "only the new image is kept", |all| all.len() == 1 && all[0].digest != digest).await;
        stage.end_daemon(Signal::SIGTERM);
        assert!(left_behind(&stage).is_empty(), "{:?}", left_behind(&stage));
        stage.start_daemon();
        // What is not there is said to be.
        let missing = stage.lease(&format!("sha256:{}", "0".repeat(64))).await.unwrap_err();
        assert_eq!(missing.kind(), Kind::ImageNotFound);
        refuse_strangers(&stage).await;
        // A clean end leaves nothing behind.
        let last = stage.lease(&digest).await.unwrap();
        stage.end_daemon(Signal::SIGTERM);
        assert!(!answers(&last).await);
        assert!(!stage.path("m.sock").exists());
        assert!(left_behind(&stage).is_empty(), "{:?}", left_behind(&stage));
    });
}

/// Folders of replicas that are not there any more.
fn left_behind(stage: &Stage) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(stage.path("r")).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| !path.ends_with("lock")).collect()
}

/// Has a replica end itself, as a crash would.
async fn end_replica(lease: &Lease) {
    use udf_client::inbox::Inbox;
    use udf_client::outbox::Outbox;
    let transport = connect::to_endpoint(&Endpoint::parse(flight_of(lease)).unwrap(), &lease.credentials());
    let signature = transport.signature("leave").await.unwrap();
    let mut builder = udf_codec::batch::BatchBuilder::new(&signature);
    builder.column(0).append_null();
    builder.finish_row();
    let (sender, mut outbox) = Outbox::new();
    sender.send(builder.finish_batch().into()).unwrap();
    let doorbell = udf_client::doorbell::Doorbell::new().unwrap();
    let (inbox, _events, _room) = Inbox::new(doorbell.into());
    let error = transport.exchange(&signature, &mut outbox, &inbox).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

/// Users that the manager was not told of are refused, and so are requests that are none.
async fn refuse_strangers(stage: &Stage) {
    if Uid::effective().is_root() {
        let program = copy_for_all(stage, Path::new(env!("CARGO_BIN_EXE_transship")));
        let output = stage
            .command("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program.to_str().unwrap(), "ps"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("permission denied for the container manager"), "{said}");
    }
    let mut connection = Connection::open(&stage.path("m.sock")).await.unwrap();
    let nonsense = Request::Logs { replica: "../../etc".into() };
    assert_eq!(connection.request(&nonsense).await.unwrap_err().kind(), Kind::InvalidDefinition);
    let mut stream = std::os::unix::net::UnixStream::connect(stage.path("m.sock")).unwrap();
    std::io::Write::write_all(&mut stream, b"nonsense\n").unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line).unwrap();
    assert!(line.contains("the request cannot be read"), "{line}");
}

/// The build's folder may be closed to other users.
fn copy_for_all(stage: &Stage, program: &Path) -> PathBuf {
    let copy = stage.path("transship");
    std::fs::copy(program, &copy).unwrap();
    copy
}

#[test]
fn life_on_processes() {
    live_a_life("process");
}

#[test]
fn life_on_container_engines() {
    for engine in std::env::var("TRANSSHIP_TEST_ENGINES").unwrap_or_default().split_whitespace() {
        live_a_life(match engine {
            "docker" => "docker",
            "podman" => "podman",
            other => panic!("{other} is no container engine that we know"),
        });
    }
}

#[test]
fn new_project_builds_at_once() {
    let mut stage = Stage::new("process");
    stage.start_daemon();
    let output = stage
        .command(env!("CARGO_BIN_EXE_transship"))
        .args(["new", "my_first"])
        .current_dir(stage.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built = stage.transship(&["build", stage.path("my_first").to_str().unwrap()]).unwrap();
    assert!(built.starts_with("my_first:1.0 sha256:"), "{built}");
    let broken = stage.path("my_first").join("handler.py");
    std::fs::write(broken, "def other(x): return x").unwrap();
    let error = stage.transship(&["build", stage.path("my_first").to_str().unwrap()]).unwrap_err();
    assert!(error.contains("handler.py has no function \"add_one\""), "{error}");
}
