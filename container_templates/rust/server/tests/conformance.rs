//! The functions of the conformance suite, served by a process of this program, pass the suite over every transport.
#![allow(missing_docs)]

#[path = "../../conformance/handler.rs"]
mod handler;
#[path = "../../../core/tests/offering/mod.rs"]
mod offering;
mod serving;

use offering::{Offering, numbers};
use serving::Server;
use transship::serde_json::{Value, json};
use udf_client::transport::credentials::Credentials;
use udf_conformance::{Outcome, judge_server};
use udf_project::endpoint::Endpoint;

#[test]
fn the_server_conforms() {
    let manifest = include_str!("../../conformance/transship.toml");
    let Some(server) = Server::start("the_server_conforms", handler::functions, manifest) else { return };
    let path = server.folder().to_str().unwrap();
    let (mut failed, mut counts, mut unjudged) = (Vec::new(), Vec::new(), Vec::new());
    for endpoint in [format!("http+unix:{path}/http.sock"), format!("unix:{path}/flight.sock")] {
        let endpoint = Endpoint::parse(&endpoint).unwrap();
        judge_server(&endpoint, &Credentials::default(), |transport, verdicts| {
            let told = |outcome: fn(&Outcome) -> bool| {
                let found = verdicts.iter().filter(move |verdict| outcome(&verdict.outcome));
                found.map(|verdict| format!("over {transport}: {verdict}")).collect::<Vec<_>>()
            };
            failed.extend(told(|outcome| matches!(outcome, Outcome::Failed(_))));
            unjudged.extend(told(|outcome| matches!(outcome, Outcome::Skipped(_))));
            counts.push(verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Passed).count());
        })
        .unwrap();
    }
    check_tables(&server);
    server.stop();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(counts.len() == 3 && counts.iter().all(|count| *count > 40), "{counts:?}");
    assert!(!unjudged.iter().any(|text| text.contains("running_sum")), "{unjudged:#?}");
}

/// A handler looks keys up in a table that its caller has offered.
fn check_tables(server: &Server) {
    let (client, offer) = (Offering::connect(&server.folder().join("tables.sock")), "0123456789abcdef0123456789abcdef");
    client.offer(offer, "numbers", &[numbers(&[(1, "one")]), numbers(&[(2, "two")])]);
    let ask = |offer: &str| -> Value {
        let fields = format!("transship-tables: {offer}\r\n");
        server.ask("table_lookup", &fields, &json!({"rows": 4, "columns": [[2, null, 3, 1]]}))
    };
    assert_eq!(ask(offer)["columns"], json!([["two", null, null, "one"]]));
    let error = ask("x")["error"].clone();
    assert_eq!(error["kind"], "protocol_violation");
    assert_eq!(error["message"], "the server does not have the offer of tables that the call names");
}
