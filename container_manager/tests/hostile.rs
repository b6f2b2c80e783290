//! What a hostile container, and another user of the host, can reach: a handler runs whatever code a test sends to it.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use udf_client::client::Client;
use udf_client::control::{Request, Response, ask};
use udf_client::dispatch::{Call, Target};
use udf_client::host::PlainHost;
use udf_client::lease::Lease;
use udf_codec::batch::{BatchBuilder, ColumnBuilder};
use udf_types::signature::{Argument, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

const PROJECT: &str = "name = \"hostile\"\nversion = \"1.0\"\ntemplate = \"python\"\n[limits]\nmemory_mb = 256\npids = 64\n\
                       [[functions]]\nname = \"run\"\narguments = [\"text\"]\nreturns = \"text\"\n";

/// `run` runs code that leaves what it found in `found`; `attempt` gives what an attempt gave, or the error's name.
const HANDLER: &str = r#"
import ctypes, errno, os, resource, socket, subprocess, sys

def attempt(work, *arguments):
    try:
        return work(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)

def system_call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(number, *arguments) < 0 else "done"

def run(code):
    names = dict(globals())
    exec(code, names)
    return repr(names["found"])
"#;

struct Stage {
    folder: tempfile::TempDir,
    runtime: String,
    daemon: Option<Child>,
    client: Client,
}

impl Stage {
    fn new(runtime: &str) -> Stage {
        Stage::with(runtime, &[])
    }

    /// With a manager that is given these flags.
    fn with(runtime: &str, flags: &[&str]) -> Stage {
        let stage = Stage::started(runtime, flags);
        stage.build(PROJECT);
        stage
    }

    /// The same without an image.
    fn started(runtime: &str, flags: &[&str]) -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let client = Client::start().unwrap();
        let mut stage = Stage { folder, runtime: runtime.to_string(), daemon: None, client };
        let mut daemon = stage.command(env!("CARGO_BIN_EXE_transshipd"));
        let log = std::fs::File::create(stage.path("log")).unwrap();
        daemon.args(["--segments-mb", "16", "--allow-user", "65532"]).args(flags).stderr(log);
        stage.daemon = Some(daemon.spawn().unwrap());
        let start = Instant::now();
        while UnixStream::connect(stage.path("m.sock")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "the manager does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        stage
    }

    fn build(&self, project: &str) {
        let built = self.try_build(project);
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }

    fn try_build(&self, project: &str) -> Output {
        let folder = self.path("project");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("transship.toml"), project).unwrap();
        std::fs::write(folder.join("handler.py"), HANDLER).unwrap();
        self.command(env!("CARGO_BIN_EXE_transship")).arg("build").arg(&folder).output().unwrap()
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

    fn digest_of(&self, image: &str) -> String {
        let request = Request::Resolve { image: image.to_string() };
        match block_on(ask(&self.path("m.sock"), &request)).unwrap() {
            Response::Image(image) => image.digest,
            other => panic!("{other:?}"),
        }
    }

    /// What code in a container of an image finds.
    fn try_in(&self, image: &str, code: &str) -> Result<String> {
        let argument = Argument { name: "code".into(), ty: Type::Text };
        let signature = Signature::scalar("run", vec![argument], Type::Text);
        let mut builder = BatchBuilder::new(&signature);
        let ColumnBuilder::Text(column) = builder.column(0) else { panic!("a column of text") };
        column.append_value(code);
        builder.finish_row();
        let mut exchange = self.client.open(Arc::new(Call {
            target: Target::Image { manager: self.path("m.sock"), digest: self.digest_of(image) },
            transport: TransportName::Auto,
            signature,
            volatility: Volatility::Volatile,
            batch_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            tables: Vec::new(),
        }));
        exchange.send(builder.finish_batch());
        let reply = exchange.receive(&PlainHost)?;
        Ok(reply.columns.column(0).as_string::<i32>().value(0).to_string())
    }

    fn finds(&self, code: &str) -> String {
        self.try_in("hostile:1.0", code).unwrap_or_else(|error| panic!("{code}: {error:?}"))
    }

    /// What Python code finds that another user of the host runs, who is in no group.
    fn stranger_finds(&self, code: &str) -> String {
        let user = ["--reuid", "65533", "--regid", "65533", "--clear-groups"];
        let code = format!("{HANDLER}\nexec({code:?})\nprint(found)");
        let output = Command::new("setpriv").args(user).args(["/usr/bin/python3", "-c", &code]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.client.release();
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
            daemon.wait().unwrap();
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn engines() -> Vec<String> {
    let engines = std::env::var("TRANSSHIP_TEST_ENGINES").unwrap_or_default();
    engines.split_whitespace().map(str::to_string).collect()
}

#[test]
fn a_container_is_alone() {
    for engine in engines() {
        let stage = Stage::new(&engine);
        // No network: neither the host's loopback, nor the address at which clouds tell secrets.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(stage.finds("found = os.listdir('/sys/class/net')"), "['lo']");
        for (address, port, refusal) in [("127.0.0.1", port, "ECONNREFUSED"), ("169.254.169.254", 80, "ENETUNREACH")] {
            let code = format!("found = attempt(socket.create_connection, ({address:?}, {port}), 5)");
            assert_eq!(stage.finds(&code), format!("'{refusal}'"));
        }
        // No path of the host: not the manager's socket, not its state.
        for path in [stage.path("m.sock"), stage.path("state"), stage.path("r"), "/var/run/docker.sock".into()] {
            assert_eq!(stage.finds(&format!("found = os.path.exists({path:?})")), "False", "{path:?}");
        }
        let mounted = "found = sorted(line.split()[4] for line in open('/proc/self/mountinfo') \
                       if not line.split()[4].startswith(('/proc', '/sys', '/dev')))";
        let found = stage.finds(mounted).replace('\'', "\"");
        let found: Vec<String> = serde_json::from_str(&found).unwrap();
        let known = [
            "/",
            "/etc/hostname",
            "/etc/hosts",
            "/etc/resolv.conf",
            "/run/.containerenv",
            "/run/transship",
            "/run/transship-segments",
            "/tmp",
            "/usr/sbin/docker-init",
            "/sbin/docker-init",
            "/run/podman-init",
        ];
        assert!(found.iter().all(|path| known.contains(&path.as_str())), "{found:?}");
        // No other processes, and nobody else's memory.
        assert_eq!(
            stage.finds(
                "found = sum(1 for name in os.listdir('/proc') if name.isdigit()) <= 3 and os.listdir('/dev/shm')"
            ),
            "[]"
        );
        // Of its own sockets, and of no other replica's.
        let names = stage.finds("found = sorted(os.listdir('/run/transship'))");
        assert_eq!(names, "['flight.sock', 'http.sock', 'tables.sock']");
    }
}

#[test]
fn a_container_has_no_privileges() {
    for engine in engines() {
        let stage = Stage::new(&engine);
        let status = "found = {name: value.split() for name, value in (line.split(':', 1) for line in open('/proc/self/status')) \
                      if name.startswith('Cap') or name in ('Uid', 'Gid', 'NoNewPrivs', 'Seccomp')}";
        let nothing = "['0000000000000000']";
        let found = stage.finds(status);
        for (name, value) in [
            ("Uid", "['65534', '65534', '65534', '65534']"),
            ("Gid", "['65534', '65534', '65534', '65534']"),
            ("CapInh", nothing),
            ("CapPrm", nothing),
            ("CapEff", nothing),
            ("CapBnd", nothing),
            ("CapAmb", nothing),
            ("NoNewPrivs", "['1']"),
            ("Seccomp", "['2']"),
        ] {
            assert!(found.contains(&format!("'{name}': {value}")), "{name} in {found}");
        }
        assert_eq!(stage.finds("found = attempt(os.setuid, 0)"), "'EPERM'");
        // Programs that would raise privileges, namespaces, mounts, devices, the kernel's own interfaces.
        for (name, call) in [
            ("unshare", "272, 0x10000000"),
            ("mount", "165, b'none', b'/tmp', b'tmpfs', 0, 0"),
            ("bpf", "321, 0, 0, 0"),
            ("perf_event_open", "298, 0, 0, 0, 0, 0"),
            ("keyctl", "250, 0, 0, 0, 0, 0"),
        ] {
            if std::env::consts::ARCH == "x86_64" {
                assert_eq!(stage.finds(&format!("found = system_call({call})")), "'EPERM'", "{name}");
            }
        }
        let devices = "found = sorted(set(os.listdir('/dev')) - set('console core fd full mqueue null ptmx pts random shm stderr \
                       stdin stdout tty urandom zero'.split()))";
        assert_eq!(stage.finds(devices), "[]");
        assert_eq!(
            stage.finds("import stat; found = attempt(os.mknod, '/tmp/x', stat.S_IFBLK | 0o600, os.makedev(8, 0))"),
            "'EPERM'"
        );
        // Nothing is writable but memory of its own, and nothing there runs.
        for (path, refusals) in [
            ("/x", ["EROFS", "EACCES"]),
            ("/opt/transship/x", ["EROFS", "EACCES"]),
            ("/etc/hosts", ["EROFS", "EACCES"]),
            ("/usr/bin/x", ["EROFS", "EACCES"]),
        ] {
            let found = stage.finds(&format!("found = attempt(open, {path:?}, 'w')"));
            assert!(refusals.iter().any(|refusal| found == format!("'{refusal}'")), "{path}: {found}");
        }
        for folder in ["/tmp", "/run/transship", "/run/transship-segments", "/dev/shm"] {
            let code = format!(
                "path = {folder:?} + '/x'\n\
                 with open(path, 'w') as file: file.write('#!/bin/sh\\n')\n\
                 os.chmod(path, 0o755)\n\
                 found = attempt(subprocess.run, [path])\n\
                 os.remove(path)"
            );
            assert_eq!(stage.finds(&code), "'EACCES'", "{folder}");
        }
    }
}

#[test]
fn a_container_finds_an_end_of_everything() {
    for engine in engines() {
        let stage = Stage::new(&engine);
        let fill = |folder: &str| {
            let code = format!(
                "path, found = {folder:?} + '/x', 0\n\
                 try:\n\
                 \x20   with open(path, 'wb', buffering=0) as file:\n\
                 \x20       while found < 1 << 28: found += file.write(bytes(1 << 12))\n\
                 except OSError: pass\n\
                 os.remove(path)"
            );
            stage.finds(&code).parse::<u64>().unwrap()
        };
        assert!(fill("/run/transship") <= 64 << 10);
        assert!(fill("/run/transship-segments") <= 16 << 20);
        assert!(fill("/tmp") <= 64 << 20 && fill("/dev/shm") <= 64 << 20);
        let files = "found = 0\n\
                     try:\n\
                     \x20   while found < 1000000: open(f'/run/transship/{found}', 'x').close(); found += 1\n\
                     except OSError: pass\n\
                     for number in range(found): os.remove(f'/run/transship/{number}')";
        assert!(stage.finds(files).parse::<u64>().unwrap() < 64);
        assert_eq!(stage.finds("found = resource.getrlimit(resource.RLIMIT_NOFILE)"), "(4096, 4096)");
        let processes = "import signal\n\
                         children = []\n\
                         try:\n\
                         \x20   while len(children) < 1000:\n\
                         \x20       child = os.fork()\n\
                         \x20       if child == 0:\n\
                         \x20           signal.pause()\n\
                         \x20       children.append(child)\n\
                         except OSError: pass\n\
                         for child in children: os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n\
                         found = len(children)";
        assert!(stage.finds(processes).parse::<u64>().unwrap() < 64);
        // What it does with its last memory is its own end, and nobody else's.
        let error: Error = stage.try_in("hostile:1.0", "found = len(bytearray(b'x') * (1 << 30))").unwrap_err();
        assert!(error.to_string().contains("connection") || error.to_string().contains("MemoryError"), "{error:?}");
        assert_eq!(stage.finds("found = 1"), "1");
    }
}

/// The project in a version that asks for a network.
fn networked(version: &str) -> String {
    PROJECT.replace("1.0", version).replace("[limits]", "[limits]\nnetwork = true")
}

#[test]
fn a_network_is_the_operators_to_give() {
    for engine in engines() {
        let stage = Stage::new(&engine);
        stage.build(&networked("1.1"));
        let refused = stage.try_in("hostile:1.1", "found = 1").unwrap_err();
        assert_eq!(refused.kind(), Kind::NotAllowed, "{refused:?}");
        assert!(
            refused.to_string().contains("asks for a network") && refused.to_string().contains("--network"),
            "{refused}"
        );
    }
}

#[test]
fn leases_are_logged_with_who_has_them() {
    let stage = Stage::with("process", &["--log-leases"]);
    assert_eq!(stage.finds("found = 1"), "1");
    stage.client.release();
    let who = format!("user {} pid {}", Uid::effective(), std::process::id());
    let (image, start) = ("of image \"hostile:1.0\"", Instant::now());
    loop {
        let log = std::fs::read_to_string(stage.path("log")).unwrap();
        let said = |what: &str| {
            log.lines().any(|line| line.contains(&format!("{who} {what} replica ")) && line.ends_with(image))
        };
        if said("leases") && said("no longer leases") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn containers_are_in_the_operators_control_group() {
    for engine in engines() {
        if engine != "docker" {
            continue;
        }
        let stage = Stage::with(&engine, &["--cgroup-parent", "/transship-test"]);
        assert_eq!(stage.finds("found = 1"), "1");
        let lease = block_on(Lease::acquire(&stage.path("m.sock"), &stage.digest_of("hostile:1.0"))).unwrap();
        let inspected = Command::new("docker")
            .args(["inspect", "--format", "{{.HostConfig.CgroupParent}}", &lease.info.replica])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&inspected.stdout).trim(), "/transship-test");
    }
}

#[test]
fn builds_use_the_operators_base_images() {
    for engine in engines() {
        let absent = format!("localhost:9/absent@sha256:{}", "0".repeat(64));
        let stage = Stage::started(&engine, &["--base-image", &format!("debian:bookworm-slim={absent}")]);
        let failed = stage.try_build(PROJECT);
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(!failed.status.success() && said.contains("localhost:9/"), "{said}");
    }
}

#[test]
fn containers_with_a_network_do_not_reach_each_other() {
    for engine in engines() {
        // podman's networks are podman's.
        if engine != "docker" {
            continue;
        }
        let stage = Stage::with(&engine, &["--network", "transship"]);
        for version in ["1.1", "1.2"] {
            stage.build(&networked(version));
        }
        let listens = "import builtins; builtins.kept = socket.create_server(('', 0)); \
                       found = [socket.gethostbyname(socket.gethostname()), builtins.kept.getsockname()[1]]";
        let listener = stage.try_in("hostile:1.1", listens).unwrap().replace('\'', "\"");
        let (address, port): (String, u16) = serde_json::from_str(&listener).unwrap();
        let connects =
            format!("found = attempt(lambda: socket.create_connection(({address:?}, {port}), 5) and 'connected')");
        assert_eq!(stage.try_in("hostile:1.1", &connects).unwrap(), "'connected'");
        assert_eq!(stage.try_in("hostile:1.2", &connects).unwrap(), "'TimeoutError'");
        assert_eq!(stage.try_in("hostile:1.2", "found = sorted(os.listdir('/sys/class/net'))[0]").unwrap(), "'eth0'");
    }
}

#[test]
fn an_images_volumes_are_small_and_in_memory() {
    for engine in engines() {
        let stage = Stage::new(&engine);
        let name = format!("hostile-volume:{}", std::process::id());
        let mut build = Command::new(&engine)
            .args(["build", "--quiet", "--tag", &name, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        build.stdin.take().unwrap().write_all(b"FROM hostile:1.0\nVOLUME /data\n").unwrap();
        assert!(build.wait().unwrap().success());
        let code = "found = [line.split(' - ')[1].split()[0] for line in open('/proc/self/mountinfo') if line.split()[4] == '/data'], \
                    os.statvfs('/data').f_blocks * os.statvfs('/data').f_frsize, bool(os.statvfs('/data').f_flag & os.ST_NOEXEC)";
        assert_eq!(stage.try_in(&name, code).unwrap(), "(['tmpfs'], 16777216, True)");
        stage.client.release();
        let removed = Command::new(&engine).args(["image", "rm", &name]).output().unwrap();
        assert!(removed.status.success() || !removed.stderr.is_empty());
    }
}

#[test]
fn other_users_get_nowhere_by_names() {
    if !Uid::effective().is_root() {
        return;
    }
    for runtime in engines().into_iter().chain(["process".to_string()]) {
        let stage = Stage::new(&runtime);
        let lease = block_on(Lease::acquire(&stage.path("m.sock"), &stage.digest_of("hostile:1.0"))).unwrap();
        let socket = PathBuf::from(lease.info.json.strip_prefix("http+unix:").unwrap());
        let sockets = socket.parent().unwrap();
        let segments = lease.info.segments.clone().unwrap();
        assert!(socket.exists() && segments.exists());
        // Where the engine has user namespaces, a replica is no user of this host.
        let is_shifted = runtime != "process" && std::env::var_os("TRANSSHIP_TEST_USERNS").is_some();
        assert_eq!(lease.info.user == Some(65534), !is_shifted, "{:?}", lease.info.user);
        for (what, code) in [
            ("listing replicas", format!("found = attempt(os.listdir, {:?})", stage.path("r"))),
            ("listing sockets", format!("found = attempt(os.listdir, {sockets:?})")),
            (
                "connecting",
                format!(
                    "s = socket.socket(socket.AF_UNIX); found = attempt(s.connect, {:?})",
                    socket.to_str().unwrap()
                ),
            ),
            ("listing segments", format!("found = attempt(os.listdir, {segments:?})")),
            ("making a segment", format!("found = attempt(open, {:?}, 'w')", segments.join("0".repeat(32)))),
            ("listing logs", format!("found = attempt(os.listdir, {:?})", stage.path("state/logs"))),
            (
                "reading a log",
                format!(
                    "found = attempt(open, {:?})",
                    stage.path("state/replicas").join(&lease.info.replica).join("log")
                ),
            ),
            ("listing images", format!("found = attempt(os.listdir, {:?})", stage.path("state/images"))),
            ("the state folder's lock", format!("found = attempt(open, {:?})", stage.path("state/lock"))),
            ("the run folder's lock", format!("found = attempt(open, {:?})", stage.path("r/lock"))),
            (
                "the manager's descriptors",
                format!("found = attempt(os.listdir, '/proc/{}/fd')", stage.daemon.as_ref().unwrap().id()),
            ),
        ] {
            assert_eq!(stage.stranger_finds(&code), "EACCES", "{what} on {runtime}");
        }
        // A user whom the manager knows gets there with the descriptors of its lease alone, over every transport.
        let program = stage.path("transship");
        std::fs::copy(env!("CARGO_BIN_EXE_transship"), &program).unwrap();
        let judged = stage
            .command("setpriv")
            .args(["--reuid", "65532", "--regid", "65532", "--clear-groups"])
            .arg(&program)
            .args(["conformance", "hostile:1.0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&judged.stdout);
        assert!(judged.status.success(), "{said}{}", String::from_utf8_lossy(&judged.stderr));
        for transport in ["flight", "json", "socket", "shm"] {
            assert!(said.contains(&format!("hostile:1.0 over {transport}")), "{said}");
        }
    }
}

#[test]
fn what_a_session_leaves_goes_with_its_lease() {
    let stage = Stage::new("process");
    let digest = stage.digest_of("hostile:1.0");
    block_on(async {
        let first = Lease::acquire(&stage.path("m.sock"), &digest).await.unwrap();
        let second = Lease::acquire(&stage.path("m.sock"), &digest).await.unwrap();
        let file = |lease: &Lease| lease.segments().unwrap().file(&format!("{:0<32}", lease.info.prefix));
        for lease in [&first, &second] {
            assert_eq!(lease.info.prefix.len(), 16);
            std::fs::write(file(lease), "left").unwrap();
        }
        let (left, kept) = (file(&first), file(&second));
        let by_name = first.info.segments.clone().unwrap().join(left.file_name().unwrap());
        assert!(by_name.exists());
        drop(first);
        let start = Instant::now();
        while by_name.exists() {
            assert!(start.elapsed() < Duration::from_secs(10), "the segment stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(kept.exists());
    });
}
