//! What `transship pull` leaves of the names that are here, and what becomes of the caller's login, on a docker that keeps images
//! in a file. `tests/registry.sh` does the same with the real one.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use serde_json::{Value, json};
use udf_project::manifest::{MANIFEST_LABEL, Manifest};

/// `images`: labels by digest. `names`: digests. `registry`: what pulling a reference brings, as in `images`. `settings`: those with
/// which an image came from there, or went there. `broken`: digests of images that cannot be inspected. `down`: whether nothing can.
const DOCKER: &str = r#"#!/usr/bin/python3 -IS
import json, os, signal, sys, time
path = os.path.dirname(sys.argv[0]) + "/state.json"
with open(path) as file:
    state = json.load(file)
if sys.argv[1] == "info":
    print("{}")
if sys.argv[1] == "version" and state.get("down"):
    sys.exit("Cannot connect to the Docker daemon")
if sys.argv[1] not in ("image", "pull", "push"):
    sys.exit()
images, names = state["images"], state["names"]

def plain(name):
    return name.removeprefix("docker.io/").removeprefix("library/")

def fail(message):
    print(message, file=sys.stderr)
    sys.exit(1)

def find(name):
    digest = name if name in images else names.get(plain(name), name.partition("@")[2])
    return digest if digest in images else fail("Error: No such image: " + name)

def do(verb, *words):
    if verb == "ls":
        named = [word.removeprefix("reference=") for word in words if word.startswith("reference=")]
        print("\n".join([names[plain(name)] for name in named if plain(name) in names] if named else images))
    elif verb == "inspect":
        digest = find(words[-1])
        if state.get("down") or digest in state.get("broken", []):
            fail("Error response from daemon: layer does not exist")
        tags = [name for name, named in names.items() if named == digest]
        labels, pushed = images[digest], state.get("pushed", [])
        print(json.dumps([{"Id": digest, "RepoTags": tags, "RepoDigests": pushed, "Config": {"Labels": labels}}]))
    elif verb == "tag":
        if words[1] == state.get("refuses"):
            fail("out of order")
        names[plain(words[1])] = find(words[0])
    elif verb == "rm":
        digest = find(words[0])
        names.pop(plain(words[0]), None)
        if digest not in names.values():
            del images[digest]
    else:
        fail("unknown command")

if state["said"] and state["said"][-1].startswith("pull ") and state.get("ends"):
    os.kill(os.getppid(), signal.SIGTERM)
state["said"].append(" ".join(sys.argv[1:]))
if sys.argv[1] == "image":
    do(*sys.argv[2:])
else:
    with open(os.environ["DOCKER_CONFIG"] + "/config.json") as file, open(os.environ["REGISTRY_AUTH_FILE"]) as same:
        state["settings"] = json.load(file)
        assert json.load(same) == state["settings"]
if sys.argv[1] == "push":
    state["pushed"] = [sys.argv[2].rpartition(":")[0] + "@" + find(sys.argv[2])]
elif sys.argv[1] == "pull":
    digest, labels = state["registry"].get(sys.argv[2]) or fail("manifest unknown")
    images[digest] = labels
    if "@" not in sys.argv[2]:
        names[plain(sys.argv[2])] = digest
with open(path, "w") as file:
    json.dump(state, file)
if sys.argv[1] == "pull" and state.get("hangs"):
    with open(os.path.dirname(path) + "/pulling", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(300)
if sys.argv[1] == "pull" and state.get("breaks"):
    fail("connection lost")
"#;

const OURS: &str = "registry.example/team/flights:1.0";

struct Stage {
    folder: tempfile::TempDir,
    daemon: Child,
}

/// The digest of a test's image.
fn digest(number: u8) -> String {
    format!("sha256:{}", format!("{number:02x}").repeat(32))
}

/// The labels of an image that was built as `name`, and has `content` for a content.
fn labels(name: &str, content: &str) -> Value {
    let (name, version) = name.split_once(':').unwrap();
    let project =
        format!("name = '{name}'\nversion = '{version}'\ntemplate = 'python'\nfunctions = [{{ name = 'f' }}]");
    json!({MANIFEST_LABEL: Manifest::parse(&project).unwrap().to_label(), "org.transship.content": content})
}

impl Stage {
    /// With these images, names, and references of a registry.
    fn new(images: Value, names: Value, registry: Value) -> Stage {
        Stage::of(json!({"images": images, "names": names, "registry": registry, "said": []}))
    }

    fn of(state: Value) -> Stage {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let docker = folder.path().join("docker");
        std::fs::write(&docker, DOCKER).unwrap();
        std::fs::set_permissions(&docker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("state.json"), state.to_string()).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut daemon = command(&folder, env!("CARGO_BIN_EXE_transshipd")).stderr(log).spawn().unwrap();
        let start = Instant::now();
        while UnixStream::connect(folder.path().join("m.sock")).is_err() {
            assert!(daemon.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(20));
        }
        let stage = Stage { folder, daemon };
        // It listens before it has looked at all images.
        stage.transship(&["ps"]).output().unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("state.json")).unwrap()).unwrap()
    }

    fn write(&self, state: &Value) {
        std::fs::write(self.path("state.json"), state.to_string()).unwrap();
    }

    fn set(&self, key: &str, value: Value) {
        let mut state = self.read();
        state[key] = value;
        self.write(&state);
    }

    fn transship(&self, arguments: &[&str]) -> Command {
        let mut command = command(&self.folder, env!("CARGO_BIN_EXE_transship"));
        command.args(arguments);
        command
    }

    /// Runs `transship pull`; standard output if it succeeds, standard error if not.
    fn pull(&self, arguments: &[&str]) -> Result<String, String> {
        outcome(self.transship(&["pull"]).args(arguments))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// A pull that is refused for `reason`, and changes neither names nor images.
    fn is_refused(&self, arguments: &[&str], reason: &str) {
        let before = self.read();
        let error = self.pull(arguments).unwrap_err();
        assert!(error.contains(reason), "{error}");
        let after = self.read();
        assert_eq!(
            (&after["names"], &after["images"]),
            (&before["names"], &before["images"]),
            "{arguments:?}: {error}"
        );
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.daemon.id() as i32), Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

/// A program in a stage's folder, with that docker; nobody has logged in.
fn command(folder: &tempfile::TempDir, program: &str) -> Command {
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap()));
    command.env("TRANSSHIP_RUNTIME", "docker").env("DOCKER_HOST", "tcp://127.0.0.1:1");
    for (name, folder) in [
        ("TRANSSHIP_SOCKET", "m.sock"),
        ("TRANSSHIP_STATE_DIR", "state"),
        ("TRANSSHIP_RUN_DIR", "r"),
        ("DOCKER_CONFIG", "nobody"),
        ("REGISTRY_AUTH_FILE", "nobody.json"),
    ] {
        command.env(name, path(folder));
    }
    command.env_remove("TRANSSHIP_VERIFY").stdin(Stdio::null());
    command
}

fn outcome(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_image_has_the_names_that_it_asks_for() {
    let content = "0123456789abcdef0123";
    let registry = json!({OURS: [digest(1), labels("flights:1.0", content)]});
    let stage = Stage::new(json!({}), json!({}), registry);
    assert_eq!(stage.pull(&[OURS]).unwrap(), format!("flights:1.0 {}\n", digest(1)));
    let names = json!({OURS: digest(1), "flights:1.0": digest(1), "flights:0123456789abcdef": digest(1)});
    assert_eq!(stage.read()["names"], names);
    // A registry's tag moves on; a new version of the image has names of its own.
    stage.set("registry", json!({OURS: [digest(2), labels("flights:1.1", "none")]}));
    assert_eq!(stage.pull(&[OURS]).unwrap(), format!("flights:1.1 {}\n", digest(2)));
    let names = json!({
        OURS: digest(2), "flights:1.1": digest(2), "flights:1.0": digest(1), "flights:0123456789abcdef": digest(1)
    });
    assert_eq!(stage.read()["names"], names);
}

#[test]
fn names_of_other_images_stay_with_them() {
    let content = "0123456789abcdef";
    let by_digest = format!("registry.example/team/flights@{}", digest(1));
    let pulled = json!([digest(1), labels("flights:1.0", content)]);
    let registry = json!({
        OURS: pulled, by_digest.as_str(): pulled, "flights:1.0": pulled, "library/flights:1.0": pulled, "other:2.0": pulled
    });
    let others = json!({digest(7): labels("flights:1.0", "seven"), digest(8): labels("other:2.0", "eight")});
    // The name of its manifest, where its reference was unknown here, and where it named another image.
    for names in [
        json!({"flights:1.0": digest(7), "other:2.0": digest(8)}),
        json!({"flights:1.0": digest(7), "other:2.0": digest(8), OURS: digest(8)}),
        json!({"flights:1.0": digest(7), "other:2.0": digest(8), OURS: digest(7)}),
        // The name of its content.
        json!({"flights:0123456789abcdef": digest(7), "other:2.0": digest(8), OURS: digest(8)}),
    ] {
        let stage = Stage::new(others.clone(), names.clone(), registry.clone());
        for reference in [OURS, &by_digest] {
            stage.is_refused(&[reference], "another image has that name here");
        }
        stage.pull(&["--replace", OURS]).unwrap();
        for name in [OURS, "flights:1.0", "flights:0123456789abcdef"] {
            assert_eq!(stage.read()["names"][name], json!(digest(1)), "{name} of {names}");
        }
        assert_eq!(stage.read()["names"]["other:2.0"], json!(digest(8)));
    }
    // The name by which it is pulled, which docker moves before anybody can say a word.
    let names = json!({"flights:1.0": digest(7), "other:2.0": digest(8)});
    let stage = Stage::new(others.clone(), names, registry.clone());
    for reference in ["flights:1.0", "library/flights:1.0", "other:2.0"] {
        stage.is_refused(&[reference], "another image has that name here");
    }
    stage.pull(&["--replace", "flights:1.0"]).unwrap();
    assert_eq!(stage.read()["names"]["flights:1.0"], json!(digest(1)));
}

#[test]
fn what_is_refused_leaves_no_name() {
    let content = "0123456789abcdef";
    let others = json!({digest(7): labels("flights:1.0", "seven")});
    for names in [json!({}), json!({OURS: digest(7)})] {
        let stage = Stage::new(others.clone(), names, json!({OURS: [digest(1), labels("a:1", content)]}));
        // The command fails, though the name has moved already.
        stage.set("breaks", json!(true));
        stage.is_refused(&[OURS], "connection lost");
        stage.set("breaks", json!(false));
        // A further name cannot be given.
        stage.set("refuses", json!("a:0123456789abcdef"));
        stage.is_refused(&[OURS], "out of order");
        // No function is in it, or nobody can read which.
        stage.set("registry", json!({OURS: [digest(1), {}]}));
        stage.is_refused(&[OURS], "is not a UDF image");
        stage.set("registry", json!({OURS: [digest(1), {MANIFEST_LABEL: "nonsense"}]}));
        stage.is_refused(&[OURS], "transship: ");
        stage.set("registry", json!({}));
        stage.is_refused(&[OURS], "manifest unknown");
    }
    // An image that was here without a name stays, since functions may use it by its digest.
    let images = json!({digest(1): {}, digest(7): labels("flights:1.0", "seven")});
    let stage = Stage::new(images.clone(), json!({}), json!({OURS: [digest(1), {}]}));
    assert!(stage.pull(&[OURS]).unwrap_err().contains("is not a UDF image"));
    assert_eq!(stage.read()["images"], images);
    // With another name, it keeps that alone.
    let stage = Stage::new(images, json!({"old:1": digest(1)}), json!({OURS: [digest(1), {}]}));
    stage.is_refused(&[OURS], "is not a UDF image");
}

#[test]
fn an_image_that_cannot_be_inspected_is_left_out() {
    let images = json!({digest(9): {}, digest(1): labels("transship-inline:1", "one")});
    let names = json!({"hostile:1": digest(9), "transship-inline:1": digest(1)});
    let stage = Stage::of(json!({
        "images": images, "names": names, "registry": {OURS: [digest(8), {}]}, "said": [], "broken": [digest(8), digest(9)]
    }));
    let left = format!("left image {} alone", digest(9));
    assert!(stage.log().contains(&left) && stage.log().contains("layer does not exist"), "{}", stage.log());
    let prune = || outcome(&mut stage.transship(&["prune", "--older-than", "0"]));
    // The first time, the image is seen, and counts from then.
    prune().unwrap();
    assert_eq!(prune().unwrap(), "transship-inline:1\n", "{}", stage.log());
    // Nothing is left of one that was pulled.
    stage.is_refused(&[OURS], "could not inspect image");
    // An engine that is down is told from it.
    stage.set("down", json!(true));
    let error = prune().unwrap_err();
    assert!(error.contains("could not reach docker"), "{error}");
}

#[test]
fn a_manager_that_is_ended_puts_names_back_first() {
    let others = json!({digest(7): labels("flights:1.0", "seven")});
    let names = json!({"flights:1.0": digest(7), OURS: digest(7)});
    let registry = json!({OURS: [digest(1), labels("flights:1.0", "one")]});
    // Once the image is here, and before.
    for key in ["ends", "hangs"] {
        let mut stage = Stage::new(others.clone(), names.clone(), registry.clone());
        stage.set(key, json!(true));
        let mut pulling = stage.transship(&["pull", OURS]).stderr(Stdio::null()).spawn().unwrap();
        if key == "hangs" {
            wait_until("it is being pulled", || stage.path("pulling").exists());
            kill(Pid::from_raw(stage.daemon.id() as i32), Signal::SIGTERM).unwrap();
        }
        stage.daemon.wait().unwrap();
        assert!(!pulling.wait().unwrap().success());
        assert_eq!((&stage.read()["names"], &stage.read()["images"]), (&names, &others), "{}", stage.log());
    }
}

#[test]
fn a_pull_ends_with_its_client() {
    let others = json!({digest(7): labels("flights:1.0", "seven")});
    let names = json!({"flights:1.0": digest(7), OURS: digest(7)});
    let registry = json!({OURS: [digest(1), labels("flights:1.0", "one")]});
    let stage = Stage::new(others.clone(), names.clone(), registry);
    stage.set("hangs", json!(true));
    let mut client = stage.transship(&["pull", OURS]).spawn().unwrap();
    wait_until("it is being pulled", || stage.path("pulling").exists());
    assert_eq!(stage.read()["names"][OURS], json!(digest(1)));
    let process = std::fs::read_to_string(stage.path("pulling")).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("docker has ended", || !PathBuf::from(format!("/proc/{process}")).exists());
    let is_as_before = || {
        // It may be being written.
        let state = std::fs::read(stage.path("state.json")).unwrap();
        serde_json::from_slice::<Value>(&state).is_ok_and(|now| now["names"] == names && now["images"] == others)
    };
    wait_until("all is as it was", is_as_before);
}

#[test]
fn only_the_callers_login_is_used_and_nobody_sees_it() {
    let registry = json!({OURS: [digest(1), labels("flights:1.0", "one")]});
    let stage = Stage::new(json!({}), json!({}), registry);
    // Somebody who has logged in, and whose login a program keeps.
    std::fs::create_dir(stage.path("caller")).unwrap();
    let write = |settings: Value| std::fs::write(stage.path("caller/config.json"), settings.to_string()).unwrap();
    // "founder:s3cret"
    write(json!({"auths": {"registry.example": {"auth": "Zm91bmRlcjpzM2NyZXQ="}, "other.example": {"auth": "eDp5"}}}));
    let run = |arguments: &[&str]| outcome(stage.transship(arguments).env("DOCKER_CONFIG", stage.path("caller")));
    let mine = json!({"auths": {"registry.example": {"auth": "Zm91bmRlcjpzM2NyZXQ="}}});
    run(&["pull", OURS]).unwrap();
    assert_eq!(stage.read()["settings"], mine);
    let pushed = run(&["push", "flights:1.0", "registry.example/team/flights:2.0"]).unwrap();
    assert_eq!(pushed, format!("registry.example/team/flights@{}\n", digest(1)));
    assert_eq!(stage.read()["settings"], mine);
    let helper = "#!/bin/sh\n[ \"$1 $(cat)\" = \"get registry.example\" ] || { echo credentials not found; exit 1; }\n\
                  echo '{\"ServerURL\": \"registry.example\", \"Username\": \"<token>\", \"Secret\": \"t0ken\"}'\n";
    let program = stage.path("docker-credential-test");
    std::fs::write(&program, helper).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    write(json!({"auths": {}, "credsStore": "test"}));
    run(&["pull", OURS]).unwrap();
    assert_eq!(
        stage.read()["settings"],
        json!({"auths": {"registry.example": {"auth": "Og==", "identitytoken": "t0ken"}}})
    );
    // Who has not logged in has no login, whatever the manager's own user has.
    stage.pull(&[OURS]).unwrap();
    assert_eq!(stage.read()["settings"], json!({"auths": {}}));
    stage.pull(&["registry.example/team/none:1"]).unwrap_err();
    run(&["pull", "registry.example/team/none:1"]).unwrap_err();
    // Nor is it written anywhere.
    let said = stage.read()["said"].to_string() + &stage.log();
    for secret in ["s3cret", "Zm91bmRlcjpzM2NyZXQ", "t0ken"] {
        assert!(!said.contains(secret), "{said}");
        let found = Command::new("grep").args(["-rl", secret]).arg(stage.path("state")).arg(stage.path("r")).output();
        assert!(found.unwrap().stdout.is_empty());
    }
}

#[test]
fn no_image_takes_a_name_of_what_engines_build() {
    let images = json!({digest(1): labels("flights:1.0", "one")});
    let stage = Stage::new(images, json!({"flights:1.0": digest(1)}), json!({}));
    for name in ["transship-inline:1", "docker.io/library/transship-inline:1", "transship-library/a:1"] {
        let error = outcome(&mut stage.transship(&["push", "flights:1.0", name])).unwrap_err();
        assert!(error.contains("that an engine has not built"), "{error}");
    }
    assert_eq!(stage.read()["names"], json!({"flights:1.0": digest(1)}));
}

#[test]
fn what_engines_have_built_is_not_pulled() {
    let (inline, library) = ("transship-inline:0123456789abcdef", "transship-library/a:0123456789abcdef");
    let pulled = json!([digest(1), labels(inline, "content")]);
    let registry = json!({OURS: pulled, inline: pulled});
    let stage = Stage::new(json!({}), json!({}), registry);
    stage.is_refused(&[OURS], "are only built here");
    stage.is_refused(&["--replace", OURS], "are only built here");
    stage.set("registry", json!({OURS: [digest(1), labels(library, "content")]}));
    stage.is_refused(&[OURS], "are only built here");
    // Nothing is pulled where the reference says it already.
    stage.set("said", json!([]));
    for reference in [inline, library, &format!("docker.io/library/{inline}"), &format!("index.docker.io/{inline}")] {
        stage.is_refused(&[reference], "are only built here");
    }
    stage.is_refused(&["--", "--all-tags"], "is not a reference");
    stage.is_refused(&[&digest(1)], "names no repository");
    assert_eq!(stage.read()["said"], json!([]));
}
