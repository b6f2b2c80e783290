//! The process that keeps results: whom it answers, what it gives up, and what it does with garbage.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use udf_client::cache::message::{CallCost, Request, Response, Results};
use udf_client::cache::socket_beside;
use udf_client::channel::Channel;

/// A store, and its socket.
struct Store {
    process: Ended,
    folder: tempfile::TempDir,
}

impl Store {
    fn new(users: &[u32]) -> Store {
        let folder = tempfile::tempdir().unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(folder.path().join("s")).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let process = command(std::process::id(), listener).args(users.iter().map(u32::to_string)).spawn().unwrap();
        Store { process: Ended(process), folder }
    }

    /// Waits while others' connections fill the socket's backlog.
    fn connect(&self) -> Channel {
        let path: PathBuf = self.folder.path().join("s");
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match Channel::connect(&path) {
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    sleep(Duration::from_millis(2));
                }
                connected => return connected.unwrap(),
            }
        }
    }
}

fn command(parent: u32, listener: OwnedFd) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transshipd"));
    command.args(["cache-store", &parent.to_string(), "16777216", "0"]).stdin(listener).stdout(Stdio::null());
    command
}

/// What comes next: a response, or none at the end of the connection.
fn next(channel: &Channel) -> Option<Response> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match channel.receive() {
            Ok(bytes) => return bytes.map(|bytes| Response::from_bytes(&bytes).unwrap()),
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(cause) if cause.kind() == std::io::ErrorKind::ConnectionReset => return None,
            Err(cause) => panic!("{cause}"),
        }
        assert!(Instant::now() < deadline, "no response");
        sleep(Duration::from_millis(2));
    }
}

fn ask(channel: &Channel, request: &Request) -> Response {
    channel.send(&request.to_bytes()).unwrap();
    next(channel).unwrap()
}

fn look_up(keys: Vec<[u8; 16]>) -> Request {
    Request::LookUp { namespace: [1; 16], max_age: None, timeout: Duration::from_secs(1), keys }
}

/// The results of these keys, and the generation.
fn found(channel: &Channel, keys: Vec<[u8; 16]>) -> (u64, Vec<Option<Vec<u8>>>) {
    match ask(channel, &look_up(keys)) {
        Response::Found { generation, results, .. } => {
            (generation, results.iter().map(|result| result.map(<[u8]>::to_vec)).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn results_come_back_over_another_connection_and_garbage_ends_one_alone() {
    let store = Store::new(&[Uid::effective().as_raw()]);
    let channel = store.connect();
    let keys: Vec<[u8; 16]> =
        (0..10_000_u32).map(|number| [number.to_le_bytes(); 4].concat().try_into().unwrap()).collect();
    let (generation, nothing) = found(&channel, keys.clone());
    assert!(nothing.iter().all(Option::is_none));
    let mut results = Results::default();
    keys.iter().for_each(|key| results.push(Some(&key[..9])));
    let cost = CallCost::default();
    let request =
        Request::Insert { namespace: [1; 16], generation, cost, is_too_cheap: false, keys: keys.clone(), results };
    assert_eq!(ask(&channel, &request), Response::Done);
    let bad = store.connect();
    bad.send(&[9; 50]).unwrap();
    assert_eq!(next(&bad), None);
    let (same, all) = found(&store.connect(), keys.clone());
    assert_eq!(same, generation);
    assert!(all.iter().zip(&keys).all(|(result, key)| result.as_deref() == Some(&key[..9])));
}

#[test]
fn other_users_are_not_answered() {
    let store = Store::new(&[Uid::effective().as_raw() + 1]);
    let channel = store.connect();
    // It may be closed before this is sent.
    let _ = channel.send(&look_up(Vec::new()).to_bytes());
    assert_eq!(next(&channel), None);
}

/// Becomes a user, makes as many connections as it gets, and keeps them.
const GREEDY: &str = r#"
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
connections = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1200)]
for connection in connections:
    connection.connect(sys.argv[1])
print("connected", flush=True)
time.sleep(600)
"#;

#[test]
fn one_user_does_not_get_all_connections() {
    if !Uid::effective().is_root() {
        // Without root there is no other user.
        return;
    }
    let (store, greedy) = (Store::new(&[0, 12345]), "12345");
    fs::set_permissions(store.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(store.folder.path().join("s"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut client = Command::new("python3");
    client.args(["-c", GREEDY]).arg(store.folder.path().join("s")).arg(greedy).stdout(Stdio::piped());
    let mut client = Ended(client.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(client.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "connected\n");
    assert!(found(&store.connect(), Vec::new()).1.is_empty());
}

/// A process that ends with the test, also with one that fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_gives_up_what_it_does_not_need() {
    let store = Store::new(&[Uid::effective().as_raw()]);
    found(&store.connect(), Vec::new());
    let status = fs::read_to_string(format!("/proc/{}/status", store.process.0.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("NoNewPrivs"), "1");
    if Uid::effective().is_root() {
        assert_eq!((field("Uid"), field("Groups")), ("65534 65534 65534 65534".to_string(), String::new()));
        assert_eq!((field("CapEff"), field("CapPrm")), ("0".repeat(16), "0".repeat(16)));
        // Handlers that run as the same user cannot look into it.
        let mut peek = Command::new("cat");
        peek.arg(format!("/proc/{}/maps", store.process.0.id())).uid(65534).gid(65534);
        assert!(!peek.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    }
}

/// The processes that a manager has started to keep results.
fn stores_of(manager: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{manager}/task/{manager}/children")).unwrap();
    let is_store = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.windows(11).any(|part| part == b"cache-store"))
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_store).collect()
}

/// A manager with this folder of its own.
fn manager_in(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transshipd"));
    command
        .env("TRANSSHIP_SOCKET", folder.join("m.sock"))
        .env("TRANSSHIP_STATE_DIR", folder.join("state"))
        .env("TRANSSHIP_RUN_DIR", folder.join("r"))
        .env("TRANSSHIP_TEMPLATES", concat!(env!("CARGO_MANIFEST_DIR"), "/../container_templates"))
        .env("TRANSSHIP_RUNTIME", "process")
        .stderr(Stdio::null());
    command
}

/// A manager, and the socket of its store.
struct Manager {
    process: Child,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new(arguments: &[&str]) -> Manager {
        let folder = tempfile::Builder::new().prefix("ts").tempdir_in("/tmp").unwrap();
        let process = manager_in(folder.path()).args(arguments).spawn().unwrap();
        let manager = Manager { process, folder };
        wait_until("the manager answers", || {
            std::os::unix::net::UnixStream::connect(manager.folder.path().join("m.sock")).is_ok()
        });
        manager
    }

    fn socket(&self) -> PathBuf {
        socket_beside(&self.folder.path().join("m.sock"))
    }

    fn stores(&self) -> Vec<i32> {
        stores_of(self.process.id())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn there_is_none_before_somebody_knocks_and_one_again_after_it_was_killed() {
    let manager = Manager::new(&[]);
    wait_until("the store's socket is there", || manager.socket().exists());
    sleep(Duration::from_millis(300));
    assert!(manager.stores().is_empty());
    let channel = Channel::connect(&manager.socket()).unwrap();
    found(&channel, Vec::new());
    let [first] = manager.stores()[..] else { panic!("one store") };
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    assert_eq!(next(&channel), None);
    // The next knock starts another.
    let channel = Channel::connect(&manager.socket()).unwrap();
    found(&channel, Vec::new());
    let [second] = manager.stores()[..] else { panic!("one store") };
    assert_ne!(first, second);
    // It ends with its manager, whose end says nothing of it.
    drop(manager);
    wait_until("the store ends", || kill(Pid::from_raw(second), None).is_err());
}

#[test]
fn the_socket_of_a_manager_that_was_killed_is_taken_over_at_once() {
    let mut first = Manager::new(&[]);
    found(&Channel::connect(&first.socket()).unwrap(), Vec::new());
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    // Somebody may hold the listening socket for a while longer.
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let _ = fs::remove_file(first.socket());
    bind(&listener, &SocketAddrUnix::new(first.socket()).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    first.process = manager_in(first.folder.path()).spawn().unwrap();
    wait_until("the next manager's store answers", || {
        Channel::connect(&first.socket()).is_ok_and(|channel| {
            let _ = channel.send(&look_up(Vec::new()).to_bytes());
            sleep(Duration::from_millis(200));
            matches!(channel.receive(), Ok(Some(_)))
        })
    });
    drop(listener);
}

#[test]
fn without_room_there_is_neither_socket_nor_store() {
    let manager = Manager::new(&["--cache-size", "0"]);
    sleep(Duration::from_millis(300));
    assert!(!manager.socket().exists());
}

#[test]
fn it_runs_for_its_manager_alone() {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let status = command(1, listener).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success());
    let status = Command::new(env!("CARGO_BIN_EXE_transshipd")).arg("cache-store").stderr(Stdio::null()).status();
    assert!(!status.unwrap().success());
}

/// Keys that look like hashes.
fn keys_of(numbers: std::ops::Range<u64>) -> Vec<[u8; 16]> {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    numbers.map(|number| [spread(number), number.to_le_bytes()].concat().try_into().unwrap()).collect()
}

/// What the result of a row is.
fn result_of(key: &[u8; 16], bytes: usize) -> Vec<u8> {
    key.iter().copied().cycle().take(bytes).collect()
}

/// Has the store keep results of so many bytes, of calls that take 5 ms.
fn keep(channel: &Channel, keys: Vec<[u8; 16]>, bytes: usize) {
    let generation = found(channel, Vec::new()).0;
    let mut results = Results::default();
    keys.iter().for_each(|key| results.push(Some(&result_of(key, bytes))));
    let cost = CallCost { ns: 5_000_000, known_by: 1000 };
    let request = Request::Insert { namespace: [1; 16], generation, cost, is_too_cheap: false, keys, results };
    assert_eq!(ask(channel, &request), Response::Done);
}

/// Which of these results there are, none of which is wrong.
fn are_found(channel: &Channel, keys: &[[u8; 16]], bytes: usize) -> Vec<bool> {
    let results = found(channel, keys.to_vec()).1;
    assert_eq!(results.len(), keys.len());
    let is_found = |(key, result): (&[u8; 16], Option<Vec<u8>>)| {
        result.inspect(|result| assert_eq!(*result, result_of(key, bytes))).is_some()
    };
    keys.iter().zip(results).map(is_found).collect()
}

/// How many of these results one look-up finds.
fn count_found(channel: &Channel, keys: &[[u8; 16]], bytes: usize) -> usize {
    are_found(channel, keys, bytes).into_iter().filter(|is_found| *is_found).count()
}

/// Whether look-ups find all these results. One alone reads a disk for a limited time.
fn all_are_found(channel: &Channel, keys: &[[u8; 16]], bytes: usize) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut missing = keys.to_vec();
    while !missing.is_empty() && Instant::now() < deadline {
        let mut found = are_found(channel, &missing, bytes).into_iter();
        missing.retain(|_| !found.next().expect("there is an answer for each key"));
    }
    missing.is_empty()
}

/// Waits until the file of results has not been written to for a while.
fn wait_until_written(folder: &Path) {
    let modified = || fs::metadata(folder.join("results")).unwrap().modified().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let before = modified();
        sleep(WRITTEN);
        if modified() == before || Instant::now() > deadline {
            break;
        }
    }
}

impl Manager {
    /// One whose store keeps results in a folder.
    fn with_disk(folder: &Path, size_mb: &str) -> Manager {
        Manager::new(&["--cache-dir", folder.to_str().unwrap(), "--cache-dir-size", size_mb])
    }

    fn connect(&self) -> Channel {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match Channel::connect(&self.socket()) {
                // The socket has its name before anybody listens.
                Err(cause) if cause.kind() == std::io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                    sleep(Duration::from_millis(10));
                }
                connected => return connected.unwrap(),
            }
        }
    }

    /// The next manager, after this one's store was killed, and then itself.
    fn again(self, folder: &Path, size_mb: &str) -> Manager {
        for store in self.stores() {
            kill(Pid::from_raw(store), Signal::SIGKILL).unwrap();
        }
        drop(self);
        Manager::with_disk(folder, size_mb)
    }
}

/// Time in which results begin to be written.
const WRITTEN: Duration = Duration::from_secs(1);

#[test]
fn results_on_disk_survive_the_store_and_its_manager() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("cache");
    let manager = Manager::with_disk(&place, "64");
    let channel = manager.connect();
    let keys = keys_of(0..1000);
    keep(&channel, keys[..500].to_vec(), 3000);
    assert!(all_are_found(&channel, &keys[..500], 3000));
    wait_until_written(&place);
    // The next store of the same manager.
    let [store] = manager.stores()[..] else { panic!("one store") };
    kill(Pid::from_raw(store), Signal::SIGKILL).unwrap();
    assert_eq!(next(&channel), None);
    assert!(all_are_found(&manager.connect(), &keys[..500], 3000));
    assert_eq!(count_found(&manager.connect(), &keys[500..], 3000), 0);
    keep(&manager.connect(), keys[500..].to_vec(), 3000);
    wait_until_written(&place);
    // And that of the next manager.
    let mut manager = manager.again(&place, "64");
    assert!(all_are_found(&manager.connect(), &keys, 3000));
    // Nobody but the manager's user can read them, although the store is somebody else.
    let metadata = fs::metadata(place.join("results")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (0o600, 64 << 20));
    // A store that is killed while it writes leaves a file that can be read.
    for round in 0..5 {
        let keys = keys_of(10_000 + 1000 * round..11_000 + 1000 * round);
        keep(&manager.connect(), keys.clone(), 2000);
        sleep(Duration::from_millis(round));
        manager = manager.again(&place, "64");
        count_found(&manager.connect(), &keys, 2000);
    }
    assert!(all_are_found(&manager.connect(), &keys, 3000));
    // What is forgotten stays so.
    assert_eq!(ask(&manager.connect(), &Request::Reset { namespace: [1; 16] }), Response::Done);
    assert_eq!(count_found(&manager.connect(), &keys, 3000), 0);
    let manager = manager.again(&place, "64");
    assert_eq!(count_found(&manager.connect(), &keys, 3000), 0);
}

#[test]
fn a_file_with_anything_else_in_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("cache");
    let keys = keys_of(0..100);
    let mut manager = Manager::with_disk(&place, "16");
    for garbage in [vec![0x5a; 16 << 20], vec![0; 16 << 20], vec![1; 10], fs::read("/proc/self/exe").unwrap()] {
        keep(&manager.connect(), keys.clone(), 20);
        drop(manager);
        fs::write(place.join("results"), garbage).unwrap();
        manager = Manager::with_disk(&place, "16");
        assert_eq!(count_found(&manager.connect(), &keys, 20), 0);
    }
    keep(&manager.connect(), keys.clone(), 20);
    wait_until_written(&place);
    let manager = manager.again(&place, "16");
    assert!(all_are_found(&manager.connect(), &keys, 20));
}

/// A small disk, until it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> SmallDisk {
        let folder = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::MS_NOSUID;
        nix::mount::mount(Some("small"), folder.path(), Some("tmpfs"), flags, Some("size=2m,mode=700")).unwrap();
        SmallDisk(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_disk_that_is_full_keeps_what_it_has_and_can_forget_it() {
    if !Uid::effective().is_root() {
        // Only root can mount one.
        return;
    }
    let disk = SmallDisk::new();
    let manager = Manager::with_disk(disk.0.path(), "64");
    let keys = keys_of(0..1000);
    let channel = manager.connect();
    keys.chunks(100).for_each(|keys| keep(&channel, keys.to_vec(), 8000));
    assert!(all_are_found(&channel, &keys, 8000));
    wait_until_written(disk.0.path());
    let manager = manager.again(disk.0.path(), "64");
    let count = count_found(&manager.connect(), &keys, 8000);
    assert!(count > 0 && count < 400, "{count} results on a disk of 2 MB");
    assert_eq!(ask(&manager.connect(), &Request::Reset { namespace: [1; 16] }), Response::Done);
    assert_eq!(count_found(&manager.connect(), &keys, 8000), 0);
    let manager = manager.again(disk.0.path(), "64");
    assert_eq!(count_found(&manager.connect(), &keys, 8000), 0);
}

#[test]
fn without_its_folder_results_are_in_memory_and_cannot_be_forgotten_for_sure() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let manager = Manager::with_disk(folder.path(), "16");
    let keys = keys_of(0..100);
    keep(&manager.connect(), keys.clone(), 20);
    assert_eq!(count_found(&manager.connect(), &keys, 20), 100);
    assert!(!folder.path().join("results").exists());
    assert_eq!(ask(&manager.connect(), &Request::Reset { namespace: [1; 16] }), Response::NotForgotten);
    assert_eq!(count_found(&manager.connect(), &keys, 20), 0);
    // Two managers do not share a folder: the second has memory alone.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let manager = manager.again(folder.path(), "16");
    assert_eq!(count_found(&manager.connect(), &keys, 20), 0);
    keep(&manager.connect(), keys.clone(), 20);
    let other = Manager::with_disk(folder.path(), "16");
    assert_eq!(count_found(&other.connect(), &keys, 20), 0);
    keep(&other.connect(), keys.clone(), 20);
    assert_eq!(count_found(&other.connect(), &keys, 20), 100);
    assert_eq!(ask(&other.connect(), &Request::Reset { namespace: [1; 16] }), Response::NotForgotten);
    assert_eq!(count_found(&manager.connect(), &keys, 20), 100);
}
