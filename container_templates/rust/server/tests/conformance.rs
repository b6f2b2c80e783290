//! The functions of the conformance suite, served by a process of this program, pass the suite over every transport.
#![allow(missing_docs)]

#[path = "../../conformance/handler.rs"]
mod handler;
#[path = "../../../core/tests/offering/mod.rs"]
mod offering;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use offering::{Offering, numbers};
use transship::serde_json::{Value, from_str, json};
use udf_client::transport::credentials::Credentials;
use udf_conformance::{Outcome, judge_server};
use udf_project::endpoint::Endpoint;
use udf_project::manifest::Manifest;

/// Names the role of this program: the server's, if it is set.
const ROLE: &str = "TRANSSHIP_CONFORMANCE_SERVER";

/// Ends with the test, also if that fails: whoever reads what the test prints would wait for it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_server_conforms() {
    if std::env::var_os(ROLE).is_some() {
        transship::main(handler::functions());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../conformance/transship.toml");
    std::fs::write(folder.path().join("manifest.json"), Manifest::parse(text).unwrap().to_label()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_server_conforms", "--exact"]).env(ROLE, "yes").stdout(Stdio::null());
    command.env("TRANSSHIP_ROOT", folder.path()).env("TRANSSHIP_SOCKET_DIR", folder.path());
    command.env_remove("TRANSSHIP_HTTP_PORT").env_remove("TRANSSHIP_FLIGHT_PORT");
    let mut server = Server(command.spawn().unwrap());
    let (start, path) = (Instant::now(), folder.path().to_str().unwrap());
    while std::os::unix::net::UnixStream::connect(folder.path().join("flight.sock")).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60) && server.0.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut failed, mut counts) = (Vec::new(), Vec::new());
    for endpoint in [format!("http+unix:{path}/http.sock"), format!("unix:{path}/flight.sock")] {
        let endpoint = Endpoint::parse(&endpoint).unwrap();
        judge_server(&endpoint, &Credentials::default(), |transport, verdicts| {
            let bad = verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Failed(_)));
            failed.extend(bad.map(|verdict| format!("over {transport}: {verdict}")));
            counts.push(verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Passed).count());
        })
        .unwrap();
    }
    check_tables(folder.path());
    let ended = Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(ended.success() && server.0.wait().unwrap().success());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(counts.len() == 3 && counts.iter().all(|count| *count > 40), "{counts:?}");
}

/// A handler looks keys up in a table that its caller has offered.
fn check_tables(folder: &Path) {
    let (client, offer) = (Offering::connect(&folder.join("tables.sock")), "0123456789abcdef0123456789abcdef");
    client.offer(offer, "numbers", &[numbers(&[(1, "one")]), numbers(&[(2, "two")])]);
    let ask = |offer: &str| -> Value {
        let mut stream = UnixStream::connect(folder.join("http.sock")).unwrap();
        let body = json!({"rows": 4, "columns": [[2, null, 3, 1]]}).to_string();
        let head = format!("POST /v1/functions/table_lookup HTTP/1.1\r\nhost: x\r\ntransship-tables: {offer}\r\n");
        write!(stream, "{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    assert_eq!(ask(offer)["columns"], json!([["two", null, null, "one"]]));
    let error = ask("x")["error"].clone();
    assert_eq!(error["kind"], "protocol_violation");
    assert_eq!(error["message"], "the server does not have the offer of tables that the call names");
}
