//! The process that keeps results: whom it answers, what it gives up, and what it does with garbage.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use udf_client::cache::channel::Channel;
use udf_client::cache::message::{CallCost, Request, Response, Results};

/// A store, and its socket.
struct Store {
    process: Child,
    folder: tempfile::TempDir,
}

impl Store {
    fn new(users: &[u32]) -> Store {
        let folder = tempfile::tempdir().unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(folder.path().join("s")).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let process = command(std::process::id(), listener).args(users.iter().map(u32::to_string)).spawn().unwrap();
        Store { process, folder }
    }

    fn connect(&self) -> Channel {
        let path: PathBuf = self.folder.path().join("s");
        Channel::connect(&path).unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(parent: u32, listener: OwnedFd) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transshipd"));
    command.args(["cache-store", "16777216", &parent.to_string()]).stdin(listener).stdout(Stdio::null());
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
    Request::LookUp { namespace: [1; 16], max_age: None, keys }
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

#[test]
fn it_gives_up_what_it_does_not_need() {
    let store = Store::new(&[Uid::effective().as_raw()]);
    found(&store.connect(), Vec::new());
    let status = fs::read_to_string(format!("/proc/{}/status", store.process.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("NoNewPrivs"), "1");
    if Uid::effective().is_root() {
        assert_eq!((field("Uid"), field("Groups")), ("65534 65534 65534 65534".to_string(), String::new()));
        assert_eq!((field("CapEff"), field("CapPrm")), ("0".repeat(16), "0".repeat(16)));
    }
}

#[test]
fn it_runs_for_its_manager_alone() {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let status = command(1, listener).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success());
    let status = Command::new(env!("CARGO_BIN_EXE_transshipd")).arg("cache-store").stderr(Stdio::null()).status();
    assert!(!status.unwrap().success());
}
