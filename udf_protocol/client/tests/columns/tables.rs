//! Shared tables: what a replica's server is given before it is called, and when it is not.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use udf_client::dispatch::Call;
use udf_client::tables::{MOST_FILES, SharedTable};
use udf_types::signature::Volatility;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::stage::{Stage, answer_all, batches, receive, wait_until};

/// What a server was offered: the line, and the contents of the files that came with it. None if the connection ended.
type Offered = Arc<Mutex<Vec<Option<(Value, Vec<String>)>>>>;

/// A stage whose server takes tables, and gives this answer; without one, it never answers.
fn stage(answer: Option<&'static str>) -> (Stage, Offered) {
    let stage = Stage::new(|mut peer| {
        while let Some(asked) = peer.read() {
            let offer = asked.offer.clone().unwrap_or_default();
            // The test reads the name of the offer in the results.
            let more = json!({"batch": asked.header["batch"]});
            assert_eq!(offer.len(), 32, "{offer}");
            peer.answer(&asked, more);
        }
    });
    // Only where the server is another user, which root alone can pretend.
    std::os::unix::fs::chown(stage.folder.path().join("http.sock"), Some(65534), None).unwrap();
    let listener = UnixListener::bind(stage.folder.path().join("tables.sock")).unwrap();
    let offered = Offered::default();
    let noted = offered.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, noted) = (stream.unwrap(), noted.clone());
            std::thread::spawn(move || take_offers(stream, &noted, answer));
        }
    });
    (stage, offered)
}

fn take_offers(mut stream: UnixStream, noted: &Offered, answer: Option<&str>) {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 64 << 10];
        let read = recvmsg(&stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::empty());
        let read = read.map_or(0, |message| message.bytes);
        if read == 0 {
            noted.lock().unwrap().push(None);
            return;
        }
        let line = serde_json::from_slice(&buffer[..read]).unwrap();
        let files = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let contents = files.flatten().map(|file| {
            let (mut content, mut file) = (String::new(), File::from(file));
            file.read_to_string(&mut content).unwrap();
            content
        });
        let contents = contents.collect();
        noted.lock().unwrap().push(Some((line, contents)));
        if let Some(answer) = answer {
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }
}

/// A table whose files have these contents.
fn table(name: &str, segments: &[&[&str]]) -> SharedTable {
    let file = |content: &&str| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        // What is open for writing elsewhere is read from its start here.
        OwnedFd::from(File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap())
    };
    let segments = segments.iter().map(|files| files.iter().map(file).collect()).collect();
    SharedTable::new(name, segments, Arc::new(())).unwrap()
}

fn call(stage: &Stage, transport: TransportName, tables: &[SharedTable]) -> Result<Vec<i64>> {
    let call = Call { tables: tables.to_vec(), ..stage.call(transport, Volatility::Volatile) };
    let mut exchange = stage.client.open(Arc::new(call));
    exchange.send(batches(1, 2).remove(0));
    receive(&mut exchange)
}

fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

#[test]
fn a_server_gets_files_once_as_long_as_they_are_the_same() {
    if !is_root() {
        return;
    }
    let (stage, offered) = stage(Some("{}\n"));
    let planes = table("planes", &[&["rows", "index"], &["more rows"]]);
    let cities = table("größe \"x\"", &[&["a city"]]);
    for transport in [TransportName::Shm, TransportName::Socket, TransportName::Shm] {
        assert_eq!(call(&stage, transport, &[planes.clone(), cities.clone()]).unwrap(), [0, 10]);
    }
    let seen = |from: usize| offered.lock().unwrap()[from..].to_vec();
    let first = seen(0);
    let [Some((one, files)), Some((two, others))] = &first[..] else { panic!("{first:?}") };
    let offer = one["offer"].as_str().unwrap();
    assert_eq!(one, &json!({"offer": offer, "table": "planes", "files": [2, 1]}));
    assert_eq!(two, &json!({"offer": offer, "table": "größe \"x\"", "files": [1]}));
    assert_eq!(
        (&files[..], &others[..]),
        (&["rows", "index", "more rows"].map(String::from)[..], &["a city".to_string()][..])
    );
    // Other files make another offer, and so do other tables.
    let appended = table("planes", &[&["rows", "index"], &["new rows"]]);
    call(&stage, TransportName::Shm, &[appended]).unwrap();
    call(&stage, TransportName::Shm, std::slice::from_ref(&planes)).unwrap();
    let later = seen(2);
    let [Some((appended, _)), Some((alone, _))] = &later[..] else { panic!("{later:?}") };
    assert!(appended["offer"] != offer && alone["offer"] != offer && alone["offer"] != appended["offer"]);
    // Few are kept: the fourth takes the room of that of both.
    for name in ["a", "b"] {
        call(&stage, TransportName::Shm, &[table(name, &[&["x"]])]).unwrap();
    }
    wait_until(|| seen(4).contains(&None));
    call(&stage, TransportName::Shm, std::slice::from_ref(&planes)).unwrap();
    assert_eq!(seen(4).iter().flatten().count(), 2);
    call(&stage, TransportName::Shm, &[planes, cities]).unwrap();
    assert_eq!(seen(4).iter().flatten().count(), 4);
    // They end with the lease.
    stage.client.stop();
    wait_until(|| seen(0).iter().filter(|offered| offered.is_none()).count() == 6);
}

#[test]
fn nobody_is_given_tables_who_could_change_them_or_does_not_read_them() {
    let planes = table("planes", &[&["rows"]]);
    let refused = |stage: &Stage| call(stage, TransportName::Shm, std::slice::from_ref(&planes)).unwrap_err();
    let error = refused(&Stage::new(answer_all));
    assert_eq!(
        (error.kind(), error.message()),
        (Kind::InvalidDefinition, "the container of function \"f\" cannot read shared tables")
    );
    // A server of this very user, though it takes tables.
    let own = Stage::new(answer_all);
    let _listener = UnixListener::bind(own.folder.path().join("tables.sock")).unwrap();
    let error = refused(&own);
    assert_eq!(
        (error.kind(), error.message()),
        (Kind::NotAllowed, "the container of function \"f\" must not read shared tables")
    );
}

#[test]
fn a_server_that_does_not_take_a_table_is_an_error() {
    if !is_root() {
        return;
    }
    let planes = [table("planes", &[&["rows"]])];
    let error_for = |answer| -> Error {
        let (stage, _) = stage(answer);
        let mut call = Call { tables: planes.to_vec(), ..stage.call(TransportName::Shm, Volatility::Volatile) };
        call.batch_timeout = Duration::from_millis(500);
        let mut exchange = stage.client.open(Arc::new(call));
        exchange.send(batches(1, 2).remove(0));
        let error = receive(&mut exchange).unwrap_err();
        if error.kind() == Kind::Timeout {
            // The manager is told, and the next call leases anew.
            wait_until(|| stage.counts()[0] == 2);
        }
        error
    };
    let refusal = "{\"error\": {\"kind\": \"protocol_violation\", \"message\": \"it is not a segment\"}}\n";
    let error = error_for(Some(refusal));
    assert_eq!(error.kind(), Kind::ProtocolViolation);
    assert!(error.detail().unwrap().contains("it is not a segment"), "{error}");
    for broken in ["no JSON\n", "[]\n"] {
        assert_eq!(error_for(Some(broken)).kind(), Kind::ProtocolViolation, "{broken}");
    }
    assert_eq!(error_for(None).kind(), Kind::Timeout);
    let endless: &'static str = "x".repeat(1 << 20).leak();
    assert_eq!(error_for(Some(endless)).kind(), Kind::ProtocolViolation);
}

#[test]
fn a_call_whose_tables_are_known_waits_for_no_other_offer() {
    if !is_root() {
        return;
    }
    let (stage, _) = stage(Some("{}\n"));
    let known = [table("planes", &[&["rows"]])];
    call(&stage, TransportName::Shm, &known).unwrap();
    // From now on, a listener that takes nothing.
    let path = stage.folder.path().join("tables.sock");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    let other = Call { tables: vec![table("new", &[&["x"]])], ..stage.call(TransportName::Shm, Volatility::Volatile) };
    let mut slow = stage.client.open(Arc::new(other));
    slow.send(batches(1, 2).remove(0));
    let _stream = listener.accept().unwrap();
    let start = std::time::Instant::now();
    let call = Call {
        tables: known.to_vec(),
        batch_timeout: Duration::from_secs(2),
        ..stage.call(TransportName::Shm, Volatility::Volatile)
    };
    let mut exchange = stage.client.open(Arc::new(call));
    exchange.send(batches(1, 2).remove(0));
    assert_eq!(receive(&mut exchange).unwrap(), [0, 10]);
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// A stage whose server reads nothing of what it is given, however often it is connected to, and says this at once; and its connections.
fn stage_that_does_not_read(answer: &'static str) -> (Stage, Arc<Mutex<Vec<UnixStream>>>) {
    let (stage, _) = stage(Some("{}\n"));
    let path = stage.folder.path().join("tables.sock");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    let streams = Arc::<Mutex<Vec<UnixStream>>>::default();
    let kept = streams.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(answer.as_bytes());
            kept.lock().unwrap().push(stream);
        }
    });
    (stage, streams)
}

#[test]
fn a_server_that_does_not_take_what_it_was_given_is_given_no_more() {
    if !is_root() {
        return;
    }
    let planes = [table("planes", &[&["rows"]])];
    // An answer to what was not read is none.
    for (answer, kind) in [("", Kind::Timeout), ("{}\n", Kind::ProtocolViolation)] {
        let (stage, streams) = stage_that_does_not_read(answer);
        let try_once = || {
            let mut call = Call { tables: planes.to_vec(), ..stage.call(TransportName::Shm, Volatility::Volatile) };
            call.batch_timeout = Duration::from_millis(500);
            let mut exchange = stage.client.open(Arc::new(call));
            exchange.send(batches(1, 2).remove(0));
            receive(&mut exchange).unwrap_err().kind()
        };
        assert_eq!((try_once(), try_once(), try_once()), (kind, Kind::Timeout, Kind::Timeout));
        assert_eq!(streams.lock().unwrap().len(), 1);
        // The calls that waited end behind their errors.
        std::thread::sleep(Duration::from_millis(300));
        // Once it has read the first, which has ended, there may be another.
        let mut read = Vec::new();
        streams.lock().unwrap()[0].read_to_end(&mut read).unwrap();
        assert!(read.ends_with(b"\n"));
        assert_eq!((try_once(), streams.lock().unwrap().len()), (kind, 2));
        // What it closes is not on its way any more.
        streams.lock().unwrap().clear();
        assert_eq!((try_once(), streams.lock().unwrap().len()), (kind, 1));
    }
}

#[test]
fn a_table_has_files_for_one_message() {
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    let of = |counts: &[usize]| {
        SharedTable::new("t", counts.iter().map(|count| (0..*count).map(|_| file()).collect()).collect(), Arc::new(()))
    };
    assert!(of(&[2; MOST_FILES / 2]).is_ok());
    for counts in [&[2; MOST_FILES / 2 + 1][..], &[0], &[3]] {
        assert_eq!(of(counts).unwrap_err().kind(), Kind::OutOfRange, "{counts:?}");
    }
}
