//! `transship doctor` finds the likely faults of a set-up, and says what to do. Scarce memory, disk and shared memory, another version,
//! and containers that end are in `setup_checks`, and the last in `tests/observability.py` as well.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
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
            .env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"))
            .env("TRANSSHIP_RUNTIME", "process");
        command
    }

    /// Starts a manager with these options, by way of this program.
    fn start(&mut self, way: &[&str], options: &[&str]) {
        let daemon = env!("CARGO_BIN_EXE_transshipd");
        let mut command = self.command(way.first().unwrap_or(&daemon));
        if let [_, rest @ ..] = way {
            command.args(rest).arg(daemon);
        }
        self.daemon = Some(command.args(options).stderr(Stdio::null()).spawn().unwrap());
        let begun = Instant::now();
        while !self.command(env!("CARGO_BIN_EXE_transship")).arg("ps").output().unwrap().status.success() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the manager does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Whether the doctor is content, and what it says.
    fn ask(&self, as_user: Option<u32>) -> (bool, String) {
        let mut command = self.command(env!("CARGO_BIN_EXE_transship"));
        if let Some(user) = as_user {
            command.uid(user).gid(user);
        }
        let output = command.arg("doctor").output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    fn expect_fault(&self, check: &str, facts: &[&str]) {
        let (is_content, found) = self.ask(None);
        let line = found.split("FAILED ").find(|part| part.trim_start().starts_with(check));
        let line = line.unwrap_or_else(|| panic!("{check} is in order: {found}"));
        assert!(!is_content && facts.iter().all(|fact| line.contains(fact)), "{facts:?}: {found}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn likely_faults_are_found_and_said() {
    let mut stage = Stage::new();
    stage.expect_fault("manager", &["could not reach the container manager", "Start transshipd"]);

    stage.start(&[], &["--allow-user=4321"]);
    let (_, found) = stage.ask(None);
    for check in ["runtime", "templates", "state folder", "socket folder", "manager", "version", "replicas"] {
        assert!(found.contains(&format!("ok      {check}: ")), "{check}: {found}");
    }
    assert!(!found.contains("--allow-user"), "{found}");
    std::fs::set_permissions(stage.path("state"), Permissions::from_mode(0o777)).unwrap();
    stage.expect_fault("state folder", &["may write to", "chmod go-w"]);
    std::fs::set_permissions(stage.path("state"), Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(stage.path("r"), Permissions::from_mode(0o777)).unwrap();
    stage.expect_fault("socket folder", &["may write to", "chmod go-w"]);
    std::fs::set_permissions(stage.path("r"), Permissions::from_mode(0o755)).unwrap();
    if Uid::effective().is_root() {
        // Who may call is not told about the host, and a stranger nothing.
        let (is_content, found) = stage.ask(Some(4321));
        assert!(!is_content && found.contains("FAILED  host: ") && found.contains("--operator"), "{found}");
        let (is_content, found) = stage.ask(Some(4322));
        assert!(!is_content && found.contains("permission denied") && found.contains("--allow-user"), "{found}");
    }
    stage.end();

    let templates = format!("--templates={}", stage.path("nowhere").display());
    stage.start(&[], &[&templates]);
    stage.expect_fault("templates", &["nowhere", "Set --templates"]);
    if Uid::effective().is_root() {
        let (_, found) = stage.ask(None);
        assert!(found.contains("WARNING") && found.contains("only root may connect"), "{found}");
    }
    stage.end();

    stage.start(&["prlimit", "--nofile=300:300"], &[]);
    stage.expect_fault("descriptors", &["300 open files", "LimitNOFILE"]);
    stage.end();

    // Shared memory that is not there.
    let shm = format!("--shm-dir={}", stage.path("no-memory").display());
    stage.start(&[], &[&shm]);
    stage.expect_fault("shared memory", &["no-memory", "--shm-dir"]);
}
