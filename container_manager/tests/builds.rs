//! Builds that hang, take too much, fail, or have nobody any more who waits for them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Installs its requirements by noting its process in a file of their name, and then for ever; but at once if there are none.
const PROCESS: &str = r#"
project = ["transship.toml", "handler.py"]
[process]
env_files = ["project-requirements.txt"]
prepare = [["/bin/sh", "-c", "test -s {root}/project-requirements.txt || exit 0; echo $$ > STAGE/building-$(cat {root}/project-requirements.txt); exec sleep 300"]]
environment = {}
serve = ["/bin/false"]
describe = ["/bin/cat", "{root}/manifest.json"]
"#;

struct Stage {
    folder: tempfile::TempDir,
    runtime: String,
    daemon: Option<Child>,
}

impl Stage {
    /// With a template "slow", whose Dockerfile is this.
    fn new(runtime: &str, dockerfile: &str) -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        // Builds leave notes there.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let template = folder.path().join("templates/slow");
        fs::create_dir_all(&template).unwrap();
        fs::create_dir(folder.path().join("temporary")).unwrap();
        let text = PROCESS.replace("STAGE", folder.path().to_str().unwrap());
        fs::write(template.join("template.toml"), text).unwrap();
        fs::write(template.join("Dockerfile"), dockerfile).unwrap();
        Stage { folder, runtime: runtime.to_string(), daemon: None }
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
            .env("TMPDIR", self.path("temporary"))
            .env("TRANSSHIP_RUNTIME", &self.runtime);
        command
    }

    fn start(&mut self, flags: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut daemon = self.command(env!("CARGO_BIN_EXE_transshipd")).args(flags).stderr(log).spawn().unwrap();
        wait_until("the manager answers", || {
            assert!(daemon.try_wait().unwrap().is_none(), "the manager ended: {}", self.log());
            UnixStream::connect(self.path("m.sock")).is_ok()
        });
        // It listens before it is ready.
        assert_eq!(self.ask(&json!({"request": "ping"}))["response"], "pong");
        self.daemon = Some(daemon);
    }

    fn end(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
            daemon.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A connection that has sent this request.
    fn send(&self, request: &Value) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(self.path("m.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        writeln!(stream, "{request}").unwrap();
        BufReader::new(stream)
    }

    fn ask(&self, request: &Value) -> Value {
        answer_on(&mut self.send(request))
    }

    /// The process that installs a requirement, once there is one.
    fn building(&self, requirement: &str) -> Option<i32> {
        fs::read_to_string(self.path(&format!("building-{requirement}"))).ok()?.trim().parse().ok()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
    }
}

fn answer_on(connection: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    connection.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

/// Inline code with such requirements.
fn build_of(requirements: &[&str]) -> Value {
    let function = json!({"name": "f", "arguments": ["int8"], "returns": "int8"});
    let manifest = json!({"name": "i", "template": "slow", "requirements": requirements, "functions": [function]});
    json!({"request": "build_inline", "manifest": manifest, "source": "x = 1\n"})
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(40), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn runs(process: i32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn folders_in(folder: &Path) -> usize {
    fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()).count()
}

#[test]
fn builds_that_hang_stop_no_other_and_end_with_their_client() {
    let mut stage = Stage::new("process", "");
    stage.start(&["--max-builds", "2"]);
    let there = stage.ask(&build_of(&[]));
    assert_eq!(there["response"], "image", "{there}");
    let first = stage.send(&build_of(&["a"]));
    let _second = stage.send(&build_of(&["b"]));
    wait_until("two builds run", || stage.building("a").is_some() && stage.building("b").is_some());
    let mut third = stage.send(&build_of(&["c"]));
    // What is there already, and what builds nothing, does not wait for them.
    assert_eq!(stage.ask(&build_of(&[]))["digest"], there["digest"]);
    assert_eq!(stage.ask(&json!({"request": "prune", "older_than_days": 1}))["response"], "pruned");
    assert_eq!(stage.building("c"), None);
    // Nobody waits for the first any more.
    let process = stage.building("a").unwrap();
    drop(first);
    wait_until("the third runs in its place", || stage.building("c").is_some());
    assert!(!runs(process));
    // Nothing is left of it: two are being built, and one is there.
    wait_until("it is removed", || folders_in(&stage.path("state/images")) == 3);
    assert_eq!(folders_in(&stage.path("state/envs")), 3);
    // Some may wait. All but one of these are the same image.
    let mut waiting: Vec<_> = (0..14).map(|_| stage.send(&build_of(&["d"]))).collect();
    let refused = loop {
        // The one below may have come before the last of them.
        waiting.push(stage.send(&build_of(&["d"])));
        let mut connection = stage.send(&build_of(&["e"]));
        connection.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut line = String::new();
        if connection.read_line(&mut line).is_ok() {
            break serde_json::from_str::<Value>(&line).unwrap();
        }
    };
    assert_eq!(refused["kind"], "busy", "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("run or wait already"), "{refused}");
    // What is there does not count.
    assert_eq!(stage.ask(&build_of(&[]))["digest"], there["digest"]);
    drop(waiting);
    wait_until("the places are free", || {
        let mut connection = stage.send(&build_of(&["e"]));
        connection.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        connection.read_line(&mut String::new()).is_err()
    });
    // A client that only sends no more still waits.
    let processes = [stage.building("b").unwrap(), stage.building("c").unwrap()];
    third.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(processes.iter().all(|process| runs(*process)));
    let start = Instant::now();
    stage.end();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(processes.iter().all(|process| !runs(*process)));
    let _ = third.read_line(&mut String::new());
}

/// A connection that has sent the files of a project by this name, with such requirements, and has it built.
fn send_project(stage: &Stage, name: &str, requirements: &[&str]) -> BufReader<UnixStream> {
    let manifest = format!(
        "name = '{name}'\nversion = '1'\ntemplate = 'slow'\nhandler = 'handler.py'\nrequirements = {}\n\
         [[functions]]\nname = 'f'\narguments = ['int8']\nreturns = 'int8'\n",
        json!(requirements)
    );
    let mut connection = stage.send(&add_to_file("transship.toml", &manifest));
    assert_eq!(answer_on(&mut connection)["response"], "added");
    writeln!(connection.get_mut(), "{}", add_to_file("handler.py", "x = 1\n")).unwrap();
    assert_eq!(answer_on(&mut connection)["response"], "added");
    writeln!(connection.get_mut(), "{}", json!({"request": "build_project"})).unwrap();
    connection
}

fn add_to_file(path: &str, text: &str) -> Value {
    json!({"request": "add_to_file", "path": path, "content": STANDARD.encode(text)})
}

#[test]
fn a_project_ends_with_its_client_and_waits_for_no_engine() {
    let mut stage = Stage::new("process", "");
    stage.start(&["--max-builds", "1"]);
    // An engine's build that takes the only turn.
    let _engine = stage.send(&build_of(&["a"]));
    wait_until("it runs", || stage.building("a").is_some());
    let temporary = || fs::read_dir(stage.path("temporary")).unwrap().count();
    assert_eq!(temporary(), 1);
    let first = send_project(&stage, "p", &["b"]);
    wait_until("the project is being built", || stage.building("b").is_some());
    // The same name waits, another does not.
    let second = send_project(&stage, "p", &["c"]);
    let third = send_project(&stage, "q", &["d"]);
    wait_until("another project is being built", || stage.building("d").is_some());
    assert_eq!(stage.building("c"), None);
    let process = stage.building("b").unwrap();
    drop(first);
    wait_until("the second is built in its place", || stage.building("c").is_some());
    assert!(!runs(process));
    // One that is sent only in part goes with its connection as well.
    let mut fourth = stage.send(&add_to_file("a/b", "text"));
    assert_eq!(answer_on(&mut fourth)["response"], "added");
    drop((second, third, fourth));
    wait_until("nothing is left of them", || temporary() == 1);
    wait_until("no image is left", || folders_in(&stage.path("state/images")) == 1);
    assert_eq!(folders_in(&stage.path("state/envs")), 1);
    assert_eq!(stage.ask(&json!({"request": "resolve", "image": "p:1"}))["kind"], "image_not_found");
}

#[test]
fn a_project_is_what_was_sent() {
    let mut stage = Stage::new("process", "");
    stage.start(&[]);
    let mut connection = send_project(&stage, "p", &[]);
    let built = loop {
        let answer = answer_on(&mut connection);
        if answer["response"] != "progress" {
            break answer;
        }
        assert!(answer["text"].as_str().unwrap().contains("/bin/sh -c"), "{answer}");
    };
    assert_eq!((&built["response"], &built["manifest"]["name"]), (&json!("image"), &json!("p")), "{built}");
    // Another project begins with nothing, and files lie inside.
    writeln!(connection.get_mut(), "{}", json!({"request": "build_project"})).unwrap();
    let refused = answer_on(&mut connection);
    assert!(refused["message"].as_str().unwrap().contains("has no file \"transship.toml\""), "{refused}");
    for path in ["/etc/x", "../x", "a/../../x", "", "."] {
        writeln!(connection.get_mut(), "{}", add_to_file(path, "x")).unwrap();
        let refused = answer_on(&mut connection);
        assert!(refused["message"].as_str().unwrap().contains("does not lie inside the project"), "{refused}");
    }
    // One that names a file which was not sent.
    writeln!(
        connection.get_mut(),
        "{}",
        add_to_file("transship.toml", "name = 'p'\ntemplate = 'slow'\nhandler = 'h'\nfunctions = [{ name = 'f' }]\n")
    )
    .unwrap();
    answer_on(&mut connection);
    writeln!(connection.get_mut(), "{}", json!({"request": "build_project"})).unwrap();
    let refused = answer_on(&mut connection);
    assert!(refused["message"].as_str().unwrap().contains("could not read file \"h\""), "{refused}");
    // Nobody takes the names of what engines build.
    let refused = answer_on(&mut send_project(&stage, "transship-inline", &[]));
    assert_eq!(refused["kind"], "not_allowed", "{refused}");
    // A line that ends too early is no request.
    let mut cut = stage.send(&json!({"request": "ping"}));
    answer_on(&mut cut);
    cut.get_mut().write_all(b"{\"request\": \"add_to_file\", \"path\": \"x\", \"content\": \"").unwrap();
    cut.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cut.read_line(&mut String::new()).unwrap(), 0);
    drop(connection);
    wait_until("nothing is left", || fs::read_dir(stage.path("temporary")).unwrap().count() == 0);
}

#[test]
fn the_command_line_reads_a_project_as_its_caller() {
    let mut stage = Stage::new("process", "");
    stage.start(&[]);
    let project = write_project(&stage, "p");
    let manifest = project.join("transship.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("handler =", "files = [\"run.sh\", \"model\", \"handler.py\"]\nhandler ="))
        .unwrap();
    fs::write(project.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(project.join("run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    // More than a piece, and a link that leads out: the caller may read it.
    let model: Vec<u8> = (0..9_000_001_u32).map(|i| (i % 251) as u8).collect();
    fs::write(stage.path("model"), &model).unwrap();
    std::os::unix::fs::symlink(stage.path("model"), project.join("model")).unwrap();
    let (digest, _) = build_project(&stage, &project);
    let root = stage.path("state/images").join(digest.trim_start_matches("sha256:")).join("function");
    assert!(fs::read(root.join("model")).unwrap() == model);
    let mode = |file: &str| fs::symlink_metadata(root.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("model"), 0o644);
    // Whether a file can be run is a part of the image.
    fs::set_permissions(project.join("run.sh"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_ne!(build_project(&stage, &project).0, digest);
    fs::set_permissions(project.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(build_project(&stage, &project).0, digest);
    assert_eq!(fs::read_to_string(root.join("handler.py")).unwrap(), "x = 1\n");
    // What it may not read is not sent, though the manager may read it.
    if nix::unistd::Uid::effective().is_root() {
        fs::set_permissions(stage.path("model"), fs::Permissions::from_mode(0o600)).unwrap();
        let copy = stage.path("transship");
        fs::copy(env!("CARGO_BIN_EXE_transship"), &copy).unwrap();
        let mut build = stage.command(copy.to_str().unwrap());
        let output = build.arg("build").arg(&project).uid(12_345).output().unwrap();
        assert!(!output.status.success());
        stage.end();
        stage.start(&["--operator", "12345"]);
        let mut build = stage.command(copy.to_str().unwrap());
        let said = build.arg("build").arg(&project).uid(12_345).output().unwrap().stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("could not read") && said.contains("Permission denied"), "{said}");
    }
}

#[test]
fn a_client_that_does_not_listen_delays_nobody() {
    let mut stage = Stage::new("process", "");
    let template = stage.path("templates/slow/template.toml");
    let text = fs::read_to_string(&template).unwrap();
    // Each command that is run is said.
    let start = text.find("[[").unwrap();
    let end = text.find("]]").unwrap();
    let loud = format!("[\"/bin/true\", \"{}\"]", "x".repeat(100_000));
    let loud = vec![loud; 80].join(", ");
    fs::write(&template, format!("{}[{loud}]{}", &text[..start], &text[end + 2..])).unwrap();
    stage.start(&[]);
    let mut deaf = send_project(&stage, "p", &["x"]);
    wait_until("it is built", || stage.ask(&json!({"request": "resolve", "image": "p:1"}))["response"] == "image");
    // The name is free for the next one.
    let mut next = send_project(&stage, "p", &["x"]);
    assert_eq!(answer_on(&mut next)["response"], "image");
    let mut said = 0;
    let answer = loop {
        let answer = answer_on(&mut deaf);
        match answer["text"].as_str() {
            Some(text) => said += text.len(),
            None => break answer,
        }
    };
    assert_eq!(answer["response"], "image", "{answer}");
    assert!((2_000_000..8_000_000).contains(&said), "{said}");
}

#[test]
fn a_build_has_an_end() {
    let mut stage = Stage::new("process", "");
    stage.start(&["--build-timeout-s", "2"]);
    let failed = stage.ask(&build_of(&["a"]));
    assert_eq!(failed["kind"], "build_failed", "{failed}");
    assert!(failed["message"].as_str().unwrap().contains("it took longer than 2 s"), "{failed}");
    assert!(!runs(stage.building("a").unwrap()));
}

#[test]
fn one_environment_is_made_once() {
    let mut stage = Stage::new("process", "");
    let template = stage.path("templates/slow/template.toml");
    let text = fs::read_to_string(&template).unwrap();
    let slow = "echo x >> STAGE/made; sleep 2; test ! -e {env}/there || exit 1; touch {env}/there";
    let start = text.find("test -s").unwrap();
    let end = start + text[start..].find('"').unwrap();
    let slow = slow.replace("STAGE", stage.folder.path().to_str().unwrap());
    fs::write(&template, format!("{}{slow}{}", &text[..start], &text[end..])).unwrap();
    stage.start(&[]);
    let mut other = build_of(&["a"]);
    other["source"] = json!("x = 2\n");
    let mut both = [stage.send(&build_of(&["a"])), stage.send(&other)];
    assert!(both.iter_mut().all(|connection| answer_on(connection)["response"] == "image"));
    assert_eq!(fs::read_to_string(stage.path("made")).unwrap(), "x\n");
}

#[test]
fn inline_code_says_no_more_than_a_functions_body() {
    let mut stage = Stage::new("process", "");
    // A file that keeps its reader waiting, where a path as template would lead.
    let outside = stage.path("outside");
    fs::create_dir(&outside).unwrap();
    assert!(Command::new("mkfifo").arg(outside.join("template.toml")).status().unwrap().success());
    stage.start(&[]);
    for template in ["../outside", outside.to_str().unwrap()] {
        let mut request = build_of(&[]);
        request["manifest"]["template"] = json!(template);
        let mut connection = stage.send(&request);
        connection.get_ref().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let refused = answer_on(&mut connection);
        assert_eq!(refused["kind"], "invalid_definition", "{refused}");
    }
    for (key, value) in [
        ("limits", json!({"network": true})),
        ("limits", json!({"memory_mb": 1_048_576})),
        ("replicas", json!(64)),
        ("prewarm", json!(1)),
        ("pause", json!(true)),
        ("system_packages", json!(["netcat"])),
        ("files", json!(["model"])),
    ] {
        let mut request = build_of(&[]);
        request["manifest"][key] = value;
        let refused = stage.ask(&request);
        assert_eq!(refused["kind"], "not_allowed", "{key}: {refused}");
    }
    assert_eq!(stage.ask(&build_of(&[]))["response"], "image");
}

/// Tests that look at an engine's images take turns.
static ENGINES: Mutex<()> = Mutex::new(());

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
fn an_engines_build_ends_with_its_client() {
    let _turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    for engine in container_engines() {
        // Tells its process from those of others.
        let seconds = 100_000 + std::process::id();
        let mut stage = Stage::new(&engine, &format!("FROM debian:bookworm-slim\nRUN sleep {seconds}\n"));
        stage.start(&[]);
        let sleeps = || {
            let all = Command::new("ps").args(["-e", "-o", "args"]).output().unwrap();
            String::from_utf8_lossy(&all.stdout).lines().any(|line| line == format!("sleep {seconds}"))
        };
        let client = stage.send(&build_of(&[]));
        wait_until("the build runs", sleeps);
        drop(client);
        wait_until("the build has ended", || !sleeps());
        wait_until("the manager knows", || stage.log().contains("nobody waits for it any more"));
        // The same for a project: its client is killed, and nothing is left.
        let name = format!("killed{seconds}");
        let project = write_project(&stage, &name);
        let mut build = stage.command(env!("CARGO_BIN_EXE_transship"));
        let mut client = build.arg("build").arg(&project).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the build runs", sleeps);
        client.kill().unwrap();
        let said = client.wait_with_output().unwrap().stderr;
        assert!(String::from_utf8_lossy(&said).contains("RUN sleep"), "it said nothing");
        wait_until("the build has ended", || !sleeps());
        wait_until("the manager knows", || stage.log().matches("nobody waits for it any more").count() == 2);
        wait_until("the files are gone", || fs::read_dir(stage.path("temporary")).unwrap().count() == 0);
        let left = images_of(&engine);
        assert!(
            !left.iter().any(|image| image.starts_with(&name) || image.starts_with("transship-build:")),
            "{left:?}"
        );
    }
}

/// Names of images, with their tags.
fn images_of(engine: &str) -> Vec<String> {
    let listed = run_engine(engine, &["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]);
    listed.lines().map(|name| name.trim_start_matches("localhost/").to_string()).collect()
}

#[test]
fn a_build_that_fails_leaves_no_image_and_uses_no_more_than_it_may() {
    let _turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    for engine in container_engines() {
        let random = std::process::id();
        // The first is built, but no functions can be read of it; the second takes too much memory.
        let broken = format!("FROM debian:bookworm-slim\nENV RANDOM={random}\nENTRYPOINT [\"/bin/false\"]\n");
        let greedy =
            format!("FROM debian:bookworm-slim\nRUN head -c 400m /dev/zero | tail -c 300m > /dev/null # {random}\n");
        for (dockerfile, expected) in [(broken, "load the functions"), (greedy, "build image")] {
            let mut stage = Stage::new(&engine, &dockerfile);
            stage.start(&["--build-memory-mb", "100"]);
            let failed = stage.ask(&build_of(&[]));
            assert_eq!(failed["kind"], "build_failed", "{failed}");
            assert!(failed["message"].as_str().unwrap().contains(&format!("could not {expected}")), "{failed}");
            let left: Vec<String> = images_of(&engine);
            assert!(left.iter().all(|name| !name.starts_with("transship-build:")), "{left:?}");
            let tag = failed["message"].as_str().unwrap().split('"').nth(1).unwrap().to_string();
            assert!(!left.contains(&tag), "{tag} in {left:?}");
        }
    }
}

#[test]
fn what_killed_builds_left_is_removed() {
    let _turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    for engine in container_engines() {
        let random = format!("{:032x}", std::process::id());
        let (past, future) = (format!("transship-build:1-{random}"), format!("transship-build:99999999999-{random}"));
        let other = format!("transship-build:{random}");
        for name in [&past, &future, &other] {
            run_engine(&engine, &["image", "tag", "debian:bookworm-slim", name]);
        }
        let mut stage = Stage::new(&engine, "");
        stage.start(&[]);
        let left = images_of(&engine);
        assert_eq!([&past, &future, &other].map(|name| left.contains(name)), [false, true, true]);
        run_engine(&engine, &["image", "rm", &future, &other]);
    }
}

/// An image on this base that says what functions it has.
const DESCRIBED: &str = "ARG BASE=debian:bookworm-slim\nFROM ${BASE}\nCOPY manifest.json /\nENTRYPOINT [\"/bin/sh\", \"-c\", \"cat /manifest.json\"]\n";

/// A project of the template "slow" by this name.
fn write_project(stage: &Stage, name: &str) -> PathBuf {
    let project = stage.path("project");
    fs::create_dir_all(&project).unwrap();
    let functions = "functions = [{ name = 'f', arguments = ['int8'], returns = 'int8' }]";
    let text = format!("name = '{name}'\nversion = '1'\ntemplate = 'slow'\nhandler = 'handler.py'\n{functions}\n");
    fs::write(project.join("transship.toml"), text).unwrap();
    fs::write(project.join("handler.py"), "x = 1\n").unwrap();
    project
}

/// Runs `transship build`; the image's digest, and what the build said.
fn build_project(stage: &Stage, project: &Path) -> (String, String) {
    let output = stage.command(env!("CARGO_BIN_EXE_transship")).arg("build").arg(project).output().unwrap();
    let (printed, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    (printed.split_whitespace().last().unwrap().to_string(), said.into_owned())
}

fn id_of(engine: &str, image: &str) -> String {
    let id = run_engine(engine, &["image", "inspect", "--format", "{{.Id}}", image]);
    format!("sha256:{}", id.trim_start_matches("sha256:"))
}

/// The layers of an image.
fn layers_of(engine: &str, image: &str) -> Vec<String> {
    let layers = run_engine(engine, &["image", "inspect", "--format", "{{json .RootFS.Layers}}", image]);
    serde_json::from_str(&layers).unwrap()
}

/// Makes an image of a Dockerfile, without files.
fn make_image(engine: &str, name: &str, dockerfile: &str) -> String {
    let mut command = Command::new(engine);
    command.args(["build", "--quiet", "--tag", name, "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(dockerfile.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    id_of(engine, name)
}

#[test]
fn a_pinned_base_is_built_on_whatever_its_tag_names() {
    let _turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    for engine in container_engines() {
        let random = std::process::id();
        let (base, name) = (format!("transship-test-base:{random}"), format!("pinned{random}"));
        let on = |text: &str| format!("FROM debian:bookworm-slim\nRUN echo {text} {random} > /base\n");
        let pinned = make_image(&engine, &base, &on("first"));
        let mut stage = Stage::new(&engine, &DESCRIBED.replace("debian:bookworm-slim", &base));
        let project = write_project(&stage, &name);
        // The tag moves on, and the pin stays.
        let moved = make_image(&engine, &base, &on("second"));
        let option = format!("{base}={pinned}");
        let mut build = |flags: &[&str]| {
            stage.end();
            stage.start(flags);
            build_project(&stage, &project)
        };
        let (built, _) = build(&["--base-image", &option]);
        assert!(layers_of(&engine, &built).starts_with(&layers_of(&engine, &pinned)), "{built} on {pinned}");
        // Both are images of the same files, but none is taken for the other.
        let (other, _) = build(&[]);
        assert!(layers_of(&engine, &other).starts_with(&layers_of(&engine, &moved)), "{other} on {moved}");
        assert_eq!(build(&["--base-image", &option]).0, built);
        // Nothing is built a second time.
        assert_eq!(build_project(&stage, &project), (built.clone(), String::new()));
        run_engine(&engine, &["image", "rm", "--force", &built, &other, &pinned, &moved]);
    }
}

/// An image with the labels of another.
fn forge(engine: &str, image: &str) -> String {
    let labels = run_engine(engine, &["image", "inspect", "--format", "{{json .Config.Labels}}", image]);
    let labels: serde_json::Map<String, Value> = serde_json::from_str(&labels).unwrap();
    let labels = labels.iter().map(|(name, value)| format!("LABEL {name}={}\n", json!(value.as_str().unwrap())));
    let text: String = labels.collect();
    make_image(engine, image, &format!("FROM debian:bookworm-slim\n{}", text.replace('$', "\\$")))
}

#[test]
fn labels_do_not_make_an_image_the_one_of_a_build() {
    let _turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    for engine in container_engines() {
        let random = std::process::id();
        let mut stage = Stage::new(&engine, DESCRIBED);
        stage.start(&[]);
        let name = format!("forged{random}");
        let project = write_project(&stage, &name);
        let image = format!("{name}:1");
        let (built, _) = build_project(&stage, &project);
        assert_eq!(build_project(&stage, &project), (built.clone(), String::new()));
        let forged = forge(&engine, &image);
        assert_ne!(forged, built);
        assert_eq!(build_project(&stage, &project).0, built);
        assert_eq!(id_of(&engine, &image), built);
        // The same for inline code, whose image an engine asks for.
        let mut request = build_of(&[]);
        request["source"] = json!(format!("x = {random}\n"));
        let first = stage.ask(&request);
        assert_eq!(first["response"], "image", "{first}");
        let manifest = &first["manifest"];
        let inline = format!("{}:{}", manifest["name"].as_str().unwrap(), manifest["version"].as_str().unwrap());
        let forged_inline = forge(&engine, &inline);
        assert_ne!(forged_inline, first["digest"]);
        for _ in 0..2 {
            assert_eq!(stage.ask(&request)["digest"], first["digest"]);
        }
        assert_eq!(id_of(&engine, &inline), first["digest"]);
        let inline_digest = first["digest"].as_str().unwrap();
        run_engine(&engine, &["image", "rm", "--force", &built, inline_digest, &forged, &forged_inline]);
    }
}
