//! Clients that keep to the rules of offers, and clients that do not.

#[path = "../../tests/offering/mod.rs"]
#[allow(dead_code, missing_docs)]
pub(crate) mod offering;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array};
use offering::{Offering, files, numbers};
use serde_json::{Value, json};

use super::listener::{MOST_REFUSED, most_connections, serve, serve_within};
use super::offers::{MOST_DESCRIPTORS, Offers};
use super::*;

/// Far longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);
const NO_FILES: &[File] = &[];

/// A listener with offers of its own, until it is dropped.
struct Stage {
    socket: PathBuf,
    offers: Arc<Offers>,
    _folder: tempfile::TempDir,
    _stop: std::io::PipeWriter,
}

fn stage() -> Stage {
    stage_within(1000)
}

/// One that has at most so many connections.
fn stage_within(most: usize) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let (socket, offers) = (folder.path().join("tables.sock"), Arc::new(Offers::default()));
    let listener = UnixListener::bind(&socket).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let serving = offers.clone();
    std::thread::spawn(move || serve_within(&serving, listener.as_fd(), Some(stopped.as_fd()), most).unwrap());
    Stage { socket, offers, _folder: folder, _stop: stop }
}

impl Stage {
    fn connect(&self) -> Offering {
        Offering::connect(&self.socket)
    }

    fn names_of(&self, offer: &str, table: &str, keys: &[i64]) -> Vec<Option<String>> {
        let table = self.offers.find(offer).and_then(|offer| offer.table(table)).expect("it was offered");
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let rows = table.lookup(&[keys]).unwrap();
        rows.column(1).as_string::<i32>().iter().map(|name| name.map(str::to_string)).collect()
    }

    fn wait_for(&self, fact: &str, is_so: impl Fn(&Offers) -> bool) {
        let start = Instant::now();
        while !is_so(&self.offers) {
            assert!(start.elapsed() < LONG, "{fact}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn name(number: u64) -> String {
    format!("{number:032x}")
}

fn line(offer: &str, table: &str, counts: &[usize]) -> Value {
    json!({"offer": offer, "table": table, "files": counts})
}

/// What the error of an answer says.
fn error_of(answer: &Value) -> &str {
    assert!(matches!(answer["error"]["kind"].as_str(), Some("protocol_violation" | "busy")), "{answer}");
    answer["error"]["message"].as_str().unwrap()
}

/// Sends a line that is wrong, and checks that the connection ends with an error.
fn refused(stage: &Stage, line: &[u8], files: &[impl AsFd]) -> String {
    let client = stage.connect();
    // The server may have closed the connection before all was sent.
    let _ = client.send(line, files);
    let answer = client.answer().unwrap_or_else(|| panic!("{} is not answered", String::from_utf8_lossy(line)));
    assert!(client.answer().is_none());
    error_of(&answer).to_string()
}

#[test]
fn tables_are_found_under_the_names_of_their_offers_while_the_connection_lives() {
    let stage = stage();
    let (one, two) = (stage.connect(), stage.connect());
    one.offer(&name(1), "numbers", &[numbers(&[(1, "one"), (2, "two")]), numbers(&[]), numbers(&[(3, "three")])]);
    one.offer(&name(1), "letters", &[numbers(&[(1, "a")])]);
    one.offer(&name(2), "numbers", &[numbers(&[(1, "uno")])]);
    two.offer(&name(3), "numbers", &[numbers(&[])]);
    let some = |text: &str| Some(text.to_string());
    assert_eq!(stage.names_of(&name(1), "numbers", &[3, 1, 4, 2]), [some("three"), some("one"), None, some("two")]);
    assert_eq!(stage.names_of(&name(1), "letters", &[1]), [some("a")]);
    assert_eq!(stage.names_of(&name(2), "numbers", &[1]), [some("uno")]);
    assert_eq!(stage.names_of(&name(3), "numbers", &[1]), [None]);
    assert!(stage.offers.find(&name(4)).is_none() && stage.offers.find("").is_none());
    // Others neither add to an offer nor end it.
    let own = files(&numbers(&[]), &[0]);
    let error = two.ask(&line(&name(1), "more", &[2]), &own);
    assert_eq!(error_of(&error), "the offer belongs to another connection");
    stage.wait_for("a connection ends after an error", |offers| offers.find(&name(3)).is_none());
    // What a call holds outlives the offer.
    let held = stage.offers.find(&name(1)).unwrap();
    drop(one);
    stage.wait_for("its offers end with it", |offers| offers.find(&name(2)).is_none());
    assert!(stage.offers.find(&name(1)).is_none());
    assert_eq!(held.table("numbers").unwrap().rows(), 3);
    // A name may be used again.
    stage.connect().offer(&name(1), "numbers", &[numbers(&[])]);
}

#[test]
fn a_segment_without_batches_needs_no_index_and_one_with_rows_does() {
    let stage = stage();
    let client = stage.connect();
    let none = files(&numbers(&[]), &[0]);
    assert_eq!(client.ask(&line(&name(1), "none", &[1]), &none[..1]), json!({}));
    let some = files(&numbers(&[(1, "one")]), &[0]);
    let without_key = files(&numbers(&[(1, "one")]), &[]);
    assert_eq!(client.ask(&line(&name(1), "keyless", &[1]), &without_key), json!({}));
    let error = client.ask(&line(&name(1), "some", &[1]), &some[..1]);
    assert!(error_of(&error).contains("segment 1 of table \"some\": "), "{error}");
    assert!(error_of(&error).ends_with("It has a key and no index."), "{error}");
}

#[test]
fn lines_that_are_no_offers_are_refused() {
    let stage = stage();
    let own = files(&numbers(&[(1, "one")]), &[0]);
    for (text, fact) in [
        ("\n".to_string(), "the line is no offer of a table"),
        ("{}\n".to_string(), "missing field"),
        ("[]\n".to_string(), "the line is no offer"),
        ("\u{0}\n".to_string(), "the line is no offer"),
        (format!("{}\n", json!({"offer": name(1), "table": "t", "files": [300]})), "the line is no offer"),
        (format!("{}\n", json!({"offer": name(1), "table": "t", "files": []})), "1 file or 2"),
        (format!("{}\n", json!({"offer": name(1), "table": "t", "files": [0, 2]})), "1 file or 2"),
        (format!("{}\n", json!({"offer": name(1), "table": "t", "files": [3]})), "1 file or 2"),
        (format!("{}\n", line("", "t", &[2])), "32 hexadecimal digits"),
        (format!("{}\n", line(&"é".repeat(16), "t", &[2])), "32 hexadecimal digits"),
        (format!("{}\n", line(&name(1)[1..], "t", &[2])), "32 hexadecimal digits"),
        (format!("{}\n", line(&name(1), "t", &[1])), "tells of 1 files and has 2 descriptors"),
        (format!("{}\n", line(&name(1), "t", &[2, 1])), "tells of 3 files and has 2 descriptors"),
        (format!("{}\n{{", line(&name(1), "t", &[2])), "before its answer"),
    ] {
        let error = refused(&stage, text.as_bytes(), &own);
        assert!(error.contains(fact), "{text}: {error}");
    }
    let error = refused(&stage, format!("{}\n", line(&name(1), "t", &[2])).as_bytes(), NO_FILES);
    assert!(error.contains("2 files and has 0 descriptors"), "{error}");
    // Members that nobody knows are nothing.
    let mut more = line(&name(1), "t", &[2]);
    more["more"] = json!([1, {"x": null}]);
    assert_eq!(stage.connect().ask(&more, &own), json!({}));
}

#[test]
fn files_that_are_no_segment_are_refused() {
    let stage = stage();
    let own = files(&numbers(&[(1, "one"), (2, "two")]), &[0]);
    let others = files(&numbers(&[(1, "one"), (3, "three")]), &[0]);
    let shorter = files(&numbers(&[(1, "one"), (2, "two")]), &[0]);
    shorter[0].set_len(shorter[0].metadata().unwrap().len() - 1).unwrap();
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    let (folder, empty) = (File::open("/").unwrap(), tempfile::tempfile().unwrap());
    for (segment, index, fact) in [
        (&folder, &own[1], "invalid segment of a shared table: It is not a regular file."),
        (&pipe, &own[1], "It is not a regular file."),
        (&empty, &own[1], "It is shorter than an Arrow file."),
        (&shorter[0], &own[1], "invalid segment"),
        (&own[1], &own[1], "invalid segment"),
        (&own[0], &own[0], "invalid index of a shared table: It does not begin as an index does."),
        (&own[0], &empty, "It is shorter than its header."),
        (&own[0], &pipe, "invalid index"),
        (&own[0], &others[1], "It is that of another segment."),
    ] {
        let text = format!("{}\n", line(&name(1), "t", &[2]));
        let error = refused(&stage, text.as_bytes(), &[segment, index]);
        assert!(error.starts_with("segment 1 of table \"t\": ") && error.contains(fact), "{error}");
    }
    // The second of two segments.
    let text = format!("{}\n", line(&name(1), "t", &[2, 2]));
    let error = refused(&stage, text.as_bytes(), &[&own[0], &own[1], &empty, &own[1]]);
    assert!(error.starts_with("segment 2 of table \"t\": "), "{error}");
    let texts = arrow_array::StringArray::from(vec!["x"]);
    let texts = arrow_array::RecordBatch::try_from_iter([("key", Arc::new(texts) as ArrayRef)]).unwrap();
    let texts = files(&texts, &[0]);
    let error = refused(&stage, text.as_bytes(), &[&own[0], &own[1], &texts[0], &texts[1]]);
    assert_eq!(error, "segment 2 of table \"t\" has other columns than the one before it");
}

#[test]
fn bounds_are_kept() {
    let stage = stage();
    let own = files(&numbers(&[(1, "one")]), &[0]);
    // The longest line, and one that is longer.
    for (excess, is_taken) in [(0, true), (1, false)] {
        let bare = format!("{}\n", line(&name(1), "", &[2])).len();
        let text = format!("{}\n", line(&name(1), &"x".repeat((64 << 10) - bare + excess), &[2]));
        match is_taken {
            true => {
                let client = stage.connect();
                client.send(text.as_bytes(), &own).unwrap();
                assert_eq!(client.answer(), Some(json!({})));
            }
            false => assert!(refused(&stage, text.as_bytes(), &own).contains("65536 bytes")),
        }
    }
    // A line without an end.
    assert!(refused(&stage, &[b' '; 1 << 20], NO_FILES).contains("65536 bytes"));
    // The most descriptors, and one more.
    let many: Vec<&File> = std::iter::repeat_n(&own[0], MOST_DESCRIPTORS + 1).collect();
    let keyless = files(&numbers(&[(1, "one")]), &[]);
    let most: Vec<&File> = std::iter::repeat_n(&keyless[0], MOST_DESCRIPTORS).collect();
    let client = stage.connect();
    assert_eq!(client.ask(&line(&name(2), "t", &[1; MOST_DESCRIPTORS]), &most), json!({}));
    let text = format!("{}\n", line(&name(3), "t", &[1; MOST_DESCRIPTORS + 1]));
    assert!(refused(&stage, text.as_bytes(), &many).contains("more than 240 descriptors"));
    // The most tables of an offer, and the most offers of a connection.
    let client = stage.connect();
    for number in 0..64 {
        client.offer(&name(4), &format!("t{number}"), &[numbers(&[])]);
    }
    let error = client.ask(&line(&name(4), "t64", &[2]), &own);
    assert_eq!(error_of(&error), "an offer has at most 64 tables");
    let client = stage.connect();
    for number in 0..64 {
        client.offer(&name(100 + number), "t", &[numbers(&[])]);
    }
    let error = client.ask(&line(&name(200), "t", &[2]), &own);
    assert_eq!(error_of(&error), "a connection has at most 64 offers");
    // A name twice.
    let client = stage.connect();
    client.offer(&name(5), "t", &[numbers(&[])]);
    assert_eq!(error_of(&client.ask(&line(&name(5), "t", &[2]), &own)), "the offer has table \"t\" already");
}

#[test]
fn nobody_waits_for_lines_that_are_not_whole_nor_for_clients_that_do_not_read() {
    let stage = stage();
    let own = files(&numbers(&[(1, "one")]), &[0]);
    let text = format!("{}\n", line(&name(1), "t", &[2]));
    let half: Vec<Offering> = (0..50).map(|_| stage.connect()).collect();
    half.iter().for_each(|client| client.send(&text.as_bytes()[..20], &own).unwrap());
    // Descriptors come with the first byte of a line, and with no other.
    let late = stage.connect();
    late.send(&text.as_bytes()[..20], NO_FILES).unwrap();
    let silent = stage.connect();
    stage.connect().offer(&name(2), "t", &[numbers(&[])]);
    let _ = late.send(&text.as_bytes()[20..], &own);
    assert_eq!(error_of(&late.answer().unwrap()), "descriptors come with the first byte of a line");
    half[7].send(&text.as_bytes()[20..], NO_FILES).unwrap();
    assert_eq!(half[7].answer(), Some(json!({})));
    assert_eq!(stage.names_of(&name(1), "t", &[1]), [Some("one".to_string())]);
    // A client that reads nothing is disconnected once its answers have no room.
    let unread = stage.connect();
    let lines = (0..64 * 64).map(|number| line(&name(100 + number / 64), &format!("t{}", number % 64), &[2]));
    let sent = lines.take_while(|line| unread.send(format!("{line}\n").as_bytes(), &own).is_ok()).count();
    assert!((100..64 * 64).contains(&sent), "{sent}");
    stage.wait_for("its offers end", |offers| offers.find(&name(100)).is_none());
    silent.offer(&name(4), "t", &[numbers(&[])]);
}

#[test]
fn a_connection_beyond_the_most_is_told_that_the_server_is_busy() {
    let stage = stage_within(2);
    let (first, second) = (stage.connect(), stage.connect());
    first.offer(&name(1), "t", &[numbers(&[])]);
    second.offer(&name(2), "t", &[numbers(&[])]);
    let own = files(&numbers(&[(1, "one")]), &[0]);
    let check = |answer: &Value| {
        assert_eq!(answer["error"]["kind"], "busy");
        assert_eq!(error_of(answer), "the server has as many connections for shared tables as it can take");
    };
    // Whether it says something or not, and however late.
    for _ in 0..5 {
        let (third, silent) = (stage.connect(), stage.connect());
        check(&silent.answer().expect("it is told"));
        check(&third.ask(&line(&name(4), "t", &[2]), &own));
        assert!(third.answer().is_none());
    }
    assert!(stage.offers.find(&name(4)).is_none());
    // So many stay for their lines, and any more are told and closed.
    let silent: Vec<Offering> = (0..MOST_REFUSED + 10).map(|_| stage.connect()).collect();
    silent.iter().for_each(|client| check(&client.answer().expect("it is told")));
    let start = Instant::now();
    silent[MOST_REFUSED + 5..].iter().for_each(|client| assert!(client.answer().is_none()));
    assert!(start.elapsed() < Duration::from_secs(5));
    first.offer(&name(3), "t", &[numbers(&[])]);
    drop(second);
    stage.wait_for("its offers end with it", |offers| offers.find(&name(2)).is_none());
    stage.connect().offer(&name(2), "t", &[numbers(&[])]);
}

#[test]
fn connections_get_half_of_the_descriptors_at_most() {
    let limits = [(0, 1), (256, 128), (1024, 512), (8192, 4096), (1 << 20, 4096), (u64::MAX, 4096)];
    for (descriptors, most) in limits {
        assert_eq!(most_connections(descriptors), most);
    }
}

#[test]
fn half_a_line_with_many_descriptors_gives_way_to_others() {
    let stage = stage();
    let own = files(&numbers(&[(1, "one")]), &[0]);
    let most: Vec<&File> = std::iter::repeat_n(&own[0], MOST_DESCRIPTORS).collect();
    let greedy: Vec<Offering> = (0..6).map(|_| stage.connect()).collect();
    for client in &greedy {
        client.send(b"{", &most).unwrap();
        // Each has come before the next one does.
        stage.connect().offer(&name(9), "t", &[numbers(&[])]);
        stage.wait_for("it has gone", |offers| offers.find(&name(9)).is_none());
    }
    let is_closed = |client: &Offering| {
        client.stream.set_nonblocking(true).unwrap();
        // What was sent and not read is lost, which the client is told of.
        !matches!((&client.stream).read(&mut [0]), Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock)
    };
    let closed: Vec<bool> = greedy.iter().map(is_closed).collect();
    assert_eq!(closed, [true, true, false, false, false, false]);
}

#[test]
fn a_line_that_does_not_end_is_given_up() {
    let stage = stage();
    let (half, silent) = (stage.connect(), stage.connect());
    half.send(b"{", &files(&numbers(&[]), &[0])).unwrap();
    let start = Instant::now();
    assert_eq!((&half.stream).read(&mut [0]).unwrap_or(0), 0);
    assert!((9..60).contains(&start.elapsed().as_secs()));
    silent.offer(&name(1), "t", &[numbers(&[])]);
}

/// A process of its own, whose descriptors nobody else opens or closes.
#[test]
fn child_counts_descriptors() {
    if std::env::var_os("TRANSSHIP_COUNTS").is_none() {
        return;
    }
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Those of files without a name.
    let is_map = |line: &&str| line.contains("/#") && line.ends_with("(deleted)");
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(is_map).count();
    let most = 200;
    let stage = stage_within(most);
    let own = files(&numbers(&[(1, "one")]), &[0]);
    let before = count();
    {
        // More than the server takes.
        let clients: Vec<Offering> = (0..most + 20).map(|_| stage.connect()).collect();
        let text = format!("{}\n", line(&name(1), "t", &[2]));
        for (number, client) in clients.iter().enumerate() {
            let text = text.replace(&name(1), &name(number as u64));
            let _ = client.send(text.as_bytes(), &own);
        }
        let answers: Vec<Value> = clients.iter().map(|client| client.answer().unwrap()).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == json!({})).count(), most);
        assert_eq!(answers.iter().filter(|answer| answer["error"]["kind"] == "busy").count(), 20);
        // All of them have one map.
        assert_eq!(maps(), 2);
    }
    stage.wait_for("all have gone", |_| count() == before);
    for _ in 0..200 {
        let client = stage.connect();
        client.send(b"{", &own).unwrap();
        let client = stage.connect();
        client.send(b"{}\n", &own).unwrap();
        let client = stage.connect();
        client.send(b"{\"a", &own).unwrap();
        let _ = client.send(b"b", &own);
        let many: Vec<&File> = std::iter::repeat_n(&own[0], 253).collect();
        stage.connect().send(b"{", &many).unwrap();
        drop(stage.connect());
        let client = stage.connect();
        client.offer(&name(1 << 40), "t", &[numbers(&[(1, "one")])]);
        drop(client);
        stage.wait_for("it has gone", |offers| offers.find(&name(1 << 40)).is_none());
    }
    stage.wait_for("nothing is left of them", |_| count() == before);
    // The maps of those that were offered lately go as well.
    stage.wait_for("nothing is mapped", |_| maps() == 0);
    // The end of the listener is the end of the offers.
    let client = stage.connect();
    client.offer(&name(1), "t", &[numbers(&[])]);
    let offers = stage.offers.clone();
    drop(stage);
    assert!(client.answer().is_none());
    assert!(offers.find(&name(1)).is_none());
    drop(client);
    let mut stdout = std::io::stdout();
    stdout.write_all(b"counted\n").unwrap();
}

#[test]
fn neither_descriptors_nor_maps_are_left_over() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "tables::tests::child_counts_descriptors"]);
    let output = command.env("TRANSSHIP_COUNTS", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("counted\n"), "{output:?}");
}

#[test]
fn what_listens_is_a_unix_socket() {
    let offers = Offers::default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(serve(&offers, listener.as_fd(), None).is_err());
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(serve(&offers, one.as_fd(), None).is_err());
    assert!(serve(&offers, tempfile::tempfile().unwrap().as_fd(), None).is_err());
}

#[test]
fn a_thread_has_the_tables_of_its_batch_alone() {
    let message = |error: Error| error.to_string();
    let nothing = "no shared table \"t\"\ndetail: The caller gives no tables to this call.";
    assert_eq!(message(table("t").unwrap_err()), nothing);
    let stage = stage();
    let client = stage.connect();
    client.offer(&name(1), "t", &[numbers(&[(1, "one")])]);
    let offer = stage.offers.find(&name(1)).unwrap();
    let rows = giving(Given::Offer(offer), || {
        assert!(message(table("u").unwrap_err()).ends_with("The caller does not give it to this call."));
        std::thread::spawn(|| assert!(table("t").is_err())).join().unwrap();
        table("t").unwrap().rows()
    });
    assert_eq!(rows, 1);
    assert!(table("t").is_err());
    let unknown = giving(Given::of(Some("no such offer")), || message(table("t").unwrap_err()));
    assert!(unknown.ends_with("The server does not have the offer of tables that the call names."));
    // What names an unknown offer is refused before its handler is called.
    let refused = giving(Given::of(Some("no such offer")), check).unwrap_err();
    assert_eq!((refused.kind, check()), ("protocol_violation", Ok(())));
    let panicked = std::panic::catch_unwind(|| giving(Given::Unknown, || panic!("a handler")));
    assert!(panicked.is_err());
    assert_eq!(message(table("t").unwrap_err()), nothing);
}
