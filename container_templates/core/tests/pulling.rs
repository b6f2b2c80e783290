//! Threads of a language that wait for work answer connections themselves (`pulls.c`).
#![allow(missing_docs)]

mod program;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use program::{Server, start_program};
use serde_json::{Value, json};

const FUNCTIONS: &str = r#"
name = "pulls"
template = "cpp"
functions = [
  { name = "double", arguments = ["int8"], returns = "int8" },
  { name = "columns", arguments = ["int8"], returns = "int8", batch = "columns" },
  { name = "thread", arguments = ["int8"], returns = "int8" },
  { name = "slow", arguments = ["int8"], returns = "int8" },
  { name = "wait", arguments = ["int8"], returns = "int8" },
  { name = "up_to", arguments = ["int8"], returns = "int8", kind = "table" },
  { name = "total", arguments = ["int8"], returns = "int8", kind = "aggregate" },
  { name = "fork", arguments = ["int8"], returns = "int8" },
  { name = "other", arguments = ["int8"], returns = "int8" },
  { name = "lines", arguments = ["int8"], returns = "int8" },
  { name = "part", arguments = ["int8"], returns = "int8" },
]"#;

/// Far less than a slow call takes.
const SOON: Duration = Duration::from_millis(1500);

fn start(threads: usize, config: &str) -> Server {
    start_program("pulls", FUNCTIONS, &[&threads.to_string(), config])
}

/// A connection that stays.
struct Kept(BufReader<UnixStream>);

fn rows(values: &[i64]) -> Value {
    json!({"rows": values.len(), "columns": [values]})
}

fn request(function: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = "HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransship-lines: yes";
    format!("POST /v1/functions/{function} {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

impl Kept {
    /// A connection whose first call is answered: a thread that pulls has the next.
    fn open(server: &Server) -> Kept {
        let mut kept = Kept(BufReader::new(server.connect()));
        assert_eq!(kept.ask("double", &rows(&[1]))["columns"], json!([[2]]));
        kept
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The head and the body of the next reply.
    fn receive(&mut self) -> (String, Value) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "closed after: {head}");
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    }

    fn ask(&mut self, function: &str, body: &Value) -> Value {
        self.send(&request(function, body));
        self.receive().1
    }

    fn double(&mut self, value: i64) {
        assert_eq!(self.ask("double", &rows(&[value]))["columns"], json!([[2 * value]]));
    }

    /// The thread of the handler.
    fn thread(&mut self) -> String {
        self.ask("thread", &rows(&[0]))["columns"][0][0].to_string()
    }

    fn has_closed(mut self) -> bool {
        self.0.read(&mut [0]).unwrap_or(0) == 0
    }
}

/// How often threads of the server have waited: this one, and all others.
fn waits(server: &Server, of: &str) -> (u64, u64) {
    let (mut its, mut others) = (0, 0);
    for task in fs::read_dir(format!("/proc/{}/task", server.process.id())).unwrap() {
        let path = task.unwrap().path();
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        let count: u64 = count.trim().parse().unwrap();
        if path.ends_with(of) { its += count } else { others += count }
    }
    (its, others)
}

#[test]
fn a_small_call_wakes_one_thread() {
    const CALLS: i64 = 2000;
    let server = start(1, "");
    let mut kept = Kept::open(&server);
    let thread = kept.thread();
    let (its, others) = waits(&server, &thread);
    let start = Instant::now();
    for value in 0..CALLS {
        kept.double(value + 100);
    }
    // The watch looks every few milliseconds.
    let looks = start.elapsed().as_millis() as u64 / 4 + CALLS as u64 / 4;
    let (its_now, others_now) = waits(&server, &thread);
    assert!(others_now - others < looks, "{} waits of other threads", others_now - others);
    assert!(its_now - its < 2 * CALLS as u64);
}

#[test]
fn each_form_of_a_call_is_answered_on_a_connection_of_threads_that_pull() {
    for threads in [1, 4] {
        let mut server = start(threads, r#", "lines": true"#);
        let mut kept = Kept::open(&server);
        for _ in 0..3 {
            kept.double(21);
            assert_eq!(kept.ask("double", &rows(&[]))["columns"], json!([[]]));
            let constant = json!({"batch": 7, "rows": 3, "columns": [[4]], "constants": [0]});
            let reply = kept.ask("double", &constant);
            assert_eq!((&reply["batch"], &reply["columns"]), (&json!(7), &json!([[8, 8, 8]])));
            let error = json!({"kind": "user_code", "message": "13 is bad", "row": 0});
            assert_eq!(kept.ask("double", &rows(&[13]))["error"], error);
            assert_eq!(kept.ask("double", &rows(&[14]))["error"]["kind"], "bad_result");
            assert_eq!(kept.ask("double", &json!({"rows": 1}))["error"]["kind"], "protocol_violation");
            assert_eq!(kept.ask("nothing", &rows(&[1]))["error"]["kind"], "function_not_found");
            let with_errors = |values: &[i64]| json!({"rows": values.len(), "columns": [values], "row_errors": "once"});
            assert_eq!(kept.ask("double", &with_errors(&[1, 2]))["columns"], json!([[2, 4], [null, null]]));
            // The library finds the rows that fail.
            let reply = kept.ask("columns", &with_errors(&[13, 3]));
            assert_eq!(reply["columns"], json!([[null, 6], ["13 is bad", null]]));
            kept.double(3);
            let many: Vec<i64> = (0..40_000).collect();
            let doubled: Vec<i64> = many.iter().map(|value| 2 * value).collect();
            assert_eq!(kept.ask("double", &rows(&many))["columns"], json!([doubled]));
            assert_eq!(kept.ask("up_to", &rows(&[5]))["columns"], json!([[0, 0, 0, 0, 0], [0, 1, 2, 3, 4]]));
            let step = |batch: u64, step: &str| json!({"batch": batch, "rows": 1, "columns": [[0], [1], [null]], "exchange": "e", "step": step});
            assert_eq!(kept.ask("total", &step(0, "accumulate"))["rows"], 0);
            assert!(kept.ask("total", &step(1, "finish"))["columns"][0][0].is_number());
            assert_eq!(kept.ask("other", &rows(&[8]))["columns"], json!([[16]]));
            kept.send(&request("lines", &rows(&[1])));
            let (head, reply) = kept.receive();
            assert!(head.contains("transship-lines: ") && reply["columns"] == json!([[2]]), "{head}{reply}");
            assert!(kept.ask("part", &rows(&[1])).is_object());
        }
        // A request in two pieces, and three in one.
        let text = request("double", &rows(&[5]));
        kept.send(&text[..text.len() - 3]);
        thread::sleep(Duration::from_millis(30));
        kept.send(&text[text.len() - 3..]);
        assert_eq!(kept.receive().1["columns"], json!([[10]]));
        kept.send(&format!("{text}{}{text}", request("double", &rows(&[6]))));
        for result in [10, 12, 10] {
            assert_eq!(kept.receive().1["columns"], json!([[result]]));
        }
        kept.double(9);
        assert_eq!(server.end(), Some(0), "{}", server.log());
        assert!(server.log().contains("pulls: ended"));
    }
}

#[test]
fn a_handler_that_takes_long_keeps_nobody_but_calls_waiting() {
    let mut server = start(1, "");
    let (mut slow, mut other, mut third) = (Kept::open(&server), Kept::open(&server), Kept::open(&server));
    let begun = Instant::now();
    slow.send(&request("slow", &rows(&[3000])));
    server.wait_for("pulls: slow begun");
    // A connection of the thread that is in the handler.
    other.send("GET /v1 HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(other.receive().1["server"], "pulls/1");
    assert_eq!(server.greeting()["server"], "pulls/1");
    // Its client goes before the call is pulled.
    third.send(&request("slow", &rows(&[4000])));
    drop(third);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    other.double(4);
    assert!(begun.elapsed() >= Duration::from_millis(3000));
    assert_eq!(slow.receive().1["columns"], json!([[6000]]));
    assert_eq!(server.count("slow begun"), 1);
    // The thread has its connections back.
    let thread = slow.thread();
    assert_eq!(other.thread(), thread);
    let before = waits(&server, &thread).1;
    let begun = Instant::now();
    (0..500).for_each(|value| other.double(100 + value));
    assert!(waits(&server, &thread).1 - before < begun.elapsed().as_millis() as u64 / 4 + 125);
}

#[test]
fn a_thread_that_is_free_answers_beside_one_that_is_not() {
    let mut server = start(2, "");
    let (mut slow, mut other) = (Kept::open(&server), Kept::open(&server));
    let begun = Instant::now();
    slow.send(&request("slow", &rows(&[3000])));
    server.wait_for("pulls: slow begun");
    (0..100).for_each(|value| other.double(100 + value));
    Kept::open(&server).double(1);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(slow.receive().1["columns"], json!([[6000]]));
}

#[test]
fn many_connections_get_their_own_answers() {
    for threads in [1, 3] {
        let server = start(threads, "");
        let together = Barrier::new(16);
        thread::scope(|scope| {
            for number in 0..16 {
                let (server, together) = (&server, &together);
                scope.spawn(move || {
                    let mut kept = Kept::open(server);
                    together.wait();
                    for value in 0..200 {
                        kept.double(1000 * (number + 1) + value);
                        if value % 50 == number {
                            assert_eq!(kept.ask("up_to", &rows(&[2]))["columns"][1], json!([0, 1]));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_handler_hears_that_its_client_has_gone() {
    let mut server = start(1, "");
    for times in 1..3 {
        let mut kept = Kept::open(&server);
        kept.send(&request("wait", &rows(&[1])));
        server.wait_for_times("pulls: wait begun", times);
        kept.0.get_ref().shutdown(Shutdown::Both).unwrap();
        server.wait_for_times("pulls: cancelled", times);
    }
    // One that does not ask answers a connection that is closed.
    let mut kept = Kept::open(&server);
    kept.send(&request("slow", &rows(&[200])));
    server.wait_for("pulls: slow begun");
    drop(kept);
    Kept::open(&server).double(1);
    assert_eq!(server.end(), Some(0), "{}", server.log());
}

#[test]
fn a_server_that_is_asked_to_end_answers_what_runs() {
    for threads in [1, 3] {
        let mut server = start(threads, "");
        let (mut slow, idle) = (Kept::open(&server), Kept::open(&server));
        slow.send(&request("slow", &rows(&[700])));
        server.wait_for("pulls: slow begun");
        let status = server.end();
        assert_eq!(slow.receive().1["columns"], json!([[1400]]));
        assert!(slow.has_closed() && idle.has_closed());
        assert_eq!(status, Some(0), "{}", server.log());
    }
}

#[test]
fn a_copy_of_the_process_answers_nobody() {
    let server = start(1, "");
    let mut kept = Kept::open(&server);
    for value in 0..20 {
        assert_eq!(kept.ask("fork", &rows(&[value + 100]))["columns"], json!([[2 * (value + 100)]]));
        kept.double(value + 50);
    }
    Kept::open(&server).double(2);
}

#[test]
fn a_process_whose_only_thread_runs_for_nobody_ends() {
    let mut server = start(1, r#", "one_thread": true"#);
    let mut kept = Kept::open(&server);
    let mut other = Kept::open(&server);
    kept.send(&request("slow", &rows(&[600_000])));
    server.wait_for("pulls: slow begun");
    drop(kept);
    other.send(&request("double", &rows(&[1])));
    assert_eq!(server.wait_for_end(), Some(1), "{}", server.log());
    assert!(server.log().contains("the process ends"));
}
