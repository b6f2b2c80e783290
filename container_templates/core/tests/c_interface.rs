//! The C interface, driven by programs that were compiled against its header: one in C that is checked call by call
//! (`interface.c`), and the server of the C and C++ template, which must pass the conformance suite and keep no text that was sent.
#![allow(missing_docs)]

mod offering;
mod program;

use std::fs;
use std::net::Shutdown;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::Schema;
use offering::{Offering, numbers};
use program::{Server, crate_folder, library, run, start_program};
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::{Exchange, MapEvent};
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::CallBatch;
use udf_codec::json::decode_column;
use udf_codec::wire::TABLES;
use udf_conformance::{Outcome, judge_server};
use udf_project::endpoint::Endpoint;
use udf_project::manifest::Manifest;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

const FUNCTIONS: &str = r#"
name = "interface"
template = "cpp"
functions = [
  { name = "double", arguments = ["int8"], returns = "int8", batch = "columns" },
  { name = "up_to", arguments = ["int8"], returns = "int4", kind = "table" },
  { name = "total", arguments = ["int8"], returns = "int8", kind = "aggregate" },
  { name = "wait", arguments = ["int8"], returns = "int8", concurrency = 5 },
  { name = "same", arguments = ["int8"], returns = "int8", batch = "columns" },
  { name = "word", arguments = ["int8"], returns = "text", batch = "columns" },
  { name = "running_sum", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "look_up", arguments = ["int8"], returns = "int8", batch = "columns" },
]"#;

#[test]
fn a_program_in_c_drives_the_library_on_one_thread() {
    let mut server = start_program("interface", FUNCTIONS, &[]);

    let reply = server.ask("double", &json!({"batch": 3, "rows": 2, "columns": [[1, 21]]}));
    assert_eq!((&reply["batch"], &reply["columns"]), (&json!(3), &json!([[2, 42]])));
    let reply = server.ask("double", &json!({"rows": 3, "columns": [[7]], "constants": [0]}));
    assert_eq!(reply["columns"], json!([[14, 14, 14]]));
    let error = server.ask("double", &json!({"rows": 2, "columns": [[1, 13]]}));
    let expected = json!({"kind": "user_code", "message": "13 is bad", "row": 1, "traceback": "in interface.c"});
    assert_eq!(error["error"], expected);
    // The library finds the rows that fail.
    for row_errors in ["once", "again"] {
        let body = json!({"rows": 3, "columns": [[1, 13, 3]], "row_errors": row_errors});
        assert_eq!(server.ask("double", &body)["columns"], json!([[2, null, 6], [null, "13 is bad", null]]));
    }
    let error = server.ask("up_to", &json!({"rows": 1, "columns": [[1]], "row_errors": "once"}));
    assert_eq!(error["error"]["kind"], "protocol_violation");
    let reply = server.ask("up_to", &json!({"rows": 1, "columns": [[5]]}));
    assert_eq!(reply["columns"], json!([[0, 0, 0, 0, 0], [0, 1, 2, 3, 4]]));
    // A reply of another form than the function's is an error, not a crash.
    let body = json!({"rows": 1, "columns": [[0], [1], [null]], "exchange": "e", "step": "finish"});
    let error = server.ask("total", &body);
    assert_eq!(error["error"]["kind"], "bad_result");
    // The client goes away.
    let waiting = server.post("wait", &json!({"rows": 1, "columns": [[1]]}));
    server.wait_for("interface: wait begun");
    waiting.shutdown(Shutdown::Both).unwrap();
    server.wait_for("interface: cancelled");
    let endless = server.post("up_to", &json!({"rows": 1, "columns": [[0]]}));
    server.wait_for("interface: up_to begun");
    endless.shutdown(Shutdown::Both).unwrap();
    server.wait_for("interface: unwanted");
    assert_eq!(server.ask("double", &json!({"rows": 0, "columns": [[]]}))["columns"], json!([[]]));
    check_references(&server);
    check_dictionaries(&server);
    check_streams(&mut server);
    check_tables(&server);
    assert_eq!(server.end(), Some(0), "{}", server.log());
    assert!(server.log().contains("interface: ended"));
}

const PLAIN_FUNCTIONS: &str = r#"
name = "plain"
template = "cpp"
functions = [
  { name = "bools", arguments = ["bool"], returns = "bool" },
  { name = "integers", arguments = ["int8"], returns = "int8" },
  { name = "floats", arguments = ["float8"], returns = "float8" },
  { name = "texts", arguments = ["text"], returns = "text" },
  { name = "dates", arguments = ["date"], returns = "date" },
  { name = "bad", arguments = ["text"], returns = "text" },
  { name = "up_to", arguments = ["int8"], returns = "int4", kind = "table" },
  { name = "stuck", arguments = ["int8"], returns = "int8" },
  { name = "names", arguments = ["int8"], returns = "text" },
  { name = "all_names", arguments = ["int8"], returns = "text", kind = "table" },
  { name = "day_numbers", arguments = ["date"], returns = "int8" },
  { name = "day_parts", arguments = ["date"], returns = "int4[]" },
  { name = "days_off", arguments = ["date"], returns = "bool" },
]"#;

#[test]
fn plain_columns_need_no_arrow() {
    let mut server = start_program("plain", PLAIN_FUNCTIONS, &[""]);
    for (function, column) in [
        ("bools", json!([true, null, false, true, true, null, false, true, true, false])),
        ("integers", json!([1, null, "9223372036854775807"])),
        ("floats", json!([1.5, "NaN", null])),
        ("texts", json!(["a", null, "", "é\u{0}b"])),
        ("texts", json!([])),
        ("dates", json!(["2024-02-29", null])),
    ] {
        let body = json!({"rows": column.as_array().unwrap().len(), "columns": [column]});
        assert_eq!(server.ask(function, &body)["columns"], json!([column]), "{function}");
    }
    for length in 0..7 {
        let error = server.ask("bad", &json!({"rows": 1, "columns": [["x".repeat(length)]]}));
        assert_eq!(error["error"]["kind"], "bad_result", "{length}: {error}");
    }
    let reply = server.ask("up_to", &json!({"rows": 1, "columns": [[9]]}));
    assert_eq!(reply["columns"][1], json!([0, 1, 2, 3, 4, 5, 6, 7, 8]));
    // The handler of SIGTERM that the program had does not run.
    assert_eq!(server.end(), Some(0), "{}", server.log());
}

#[test]
fn tables_are_read_as_plain_columns() {
    let mut server = start_program("plain", PLAIN_FUNCTIONS, &[", \"tables\": true"]);
    assert_eq!(server.greeting()["tables"], true);
    let client = Offering::connect(&server.folder.path().join("tables.sock"));
    let offer = "00000000000000000000000000000001";
    let repeated = "00000000000000000000000000000002";
    client.offer(offer, "numbers", &[numbers(&[(1, "one"), (3, "three")]), numbers(&[]), numbers(&[(4, "")])]);
    client.offer(repeated, "numbers", &[numbers(&[(1, "a"), (2, "b"), (1, "c")])]);
    client.offer(offer, "days", &[days()]);
    let ask = |function: &str, offer: &str, keys: &Value| -> Value {
        let body = json!({"rows": keys.as_array().unwrap().len(), "columns": [keys]});
        server.ask_with(function, &format!("{TABLES}: {offer}\r\n"), &body)
    };
    let numbers = json!([3, null, 2, 4, 1, 1, 9, 9, 3]);
    let names = json!(["three", null, null, "", "one", "one", null, null, "three"]);
    assert_eq!(ask("names", offer, &numbers)["columns"], json!([names]));
    assert_eq!(ask("names", offer, &json!([4, 3]))["columns"], json!([["", "three"]]));
    assert_eq!(ask("names", offer, &json!([]))["columns"], json!([[]]));
    assert_eq!(ask("all_names", offer, &json!([]))["columns"], json!([[], []]));
    assert_eq!(ask("all_names", repeated, &json!([2, null, 1]))["columns"], json!([[0, 2, 2], ["b", "a", "c"]]));
    let days = json!(["2024-02-29", "2024-02-28", null, "1999-12-31"]);
    assert_eq!(ask("day_numbers", offer, &days)["columns"], json!([[60, null, null, 365]]));
    assert_eq!(ask("day_parts", offer, &days)["columns"], json!([[[2024, 2, null], null, null, []]]));
    assert_eq!(ask("days_off", offer, &days)["columns"], json!([[false, null, null, true]]));
    let message = |answer: Value| answer["error"]["message"].as_str().unwrap().to_string();
    assert!(
        message(ask("names", repeated, &json!([2, 1]))).starts_with("table \"numbers\" has 2 rows with the key (1)")
    );
    assert!(message(ask("days_off", repeated, &days)).starts_with("no shared table \"days\""));
    assert!(
        !message(ask("names", "x", &json!([1]))).contains("numbers"),
        "the offer is not here, whatever the handler asks for"
    );
    let without = server.ask("names", &json!({"rows": 1, "columns": [[1]]}));
    assert!(message(without).starts_with("no shared table \"numbers\""));
    assert_eq!(server.end(), Some(0), "{}", server.log());
}

/// Rows of a date, the key, and of other columns that plain ones are not like.
fn days() -> RecordBatch {
    let column = |ty: &str, values: Value| {
        let ty = Type::from_name(ty).unwrap();
        (ty.clone(), decode_column(&ty, values.as_array().unwrap()).unwrap())
    };
    let columns = [
        ("day", column("date", json!(["1999-12-31", "2024-02-29"]))),
        ("number", column("int2", json!([365, 60]))),
        ("is_off", column("bool", json!([true, false]))),
        ("parts", column("int4[]", json!([[], [2024, 2, null]]))),
    ];
    let fields: Vec<_> = columns.iter().map(|(name, (ty, _))| ty.field(name)).collect();
    let columns = columns.map(|(_, (_, column))| column);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.to_vec()).unwrap()
}

#[test]
fn a_language_without_tables_takes_no_offers() {
    let server = start_program("plain", PLAIN_FUNCTIONS, &[""]);
    assert_eq!(server.greeting()["tables"], false);
    assert!(!server.folder.path().join("tables.sock").exists());
}

#[test]
fn a_handler_that_is_stuck_on_the_only_thread_ends_the_process() {
    let mut server = start_program("plain", PLAIN_FUNCTIONS, &[""]);
    let gone = server.post("stuck", &json!({"rows": 1, "columns": [[1]]}));
    server.wait_for("plain: stuck begun");
    gone.shutdown(Shutdown::Both).unwrap();
    let _waiting = server.post("integers", &json!({"rows": 1, "columns": [[1]]}));
    assert_eq!(server.wait_for_end(), Some(1), "{}", server.log());
    assert!(server.log().contains("a handler runs on for a client that has gone"), "{}", server.log());
}

/// A reply that is the argument, or a part of it, refers to the call's data if the client allows it.
fn check_references(server: &Server) {
    let data = [1_i64, 2, 3].map(i64::to_le_bytes).concat();
    let call = |may_alias: bool| json!({"rows": 3, "buffers": [0, 0, 0, 24], "may_alias": may_alias});
    let (header, own) = server.ask_columns("same", &call(true), &data);
    assert_eq!((&header["buffers"], &header["aliases"]), (&json!([0, 0, 0, 24]), &json!([1])));
    assert_eq!(own, b"");
    let (header, own) = server.ask_columns("same", &call(false), &data);
    assert_eq!((&header["buffers"], &header["aliases"]), (&json!([0, 0, 0, 24]), &Value::Null));
    assert_eq!(own, data);
    let (header, own) = server.ask_columns("double", &call(true), &data);
    assert_eq!((&header["buffers"], &header["aliases"]), (&json!([0, 0, 0, 24]), &Value::Null));
    assert_eq!(own, [2_i64, 4, 6].map(i64::to_le_bytes).concat());
}

/// Texts reach a client that takes dictionaries as one, and all others as texts.
fn check_dictionaries(server: &Server) {
    let data = [1_i64, 2, 3, 5].map(i64::to_le_bytes).concat();
    let call = |may_encode: bool| json!({"rows": 4, "buffers": [0, 0, 0, 32], "may_encode": may_encode});
    let (header, own) = server.ask_columns("word", &call(true), &data);
    assert_eq!(header["dictionaries"], json!([0, 2]));
    assert_eq!(header["buffers"], json!([0, 0, 0, 16, 64, 12, 128, 7]));
    assert_eq!(own[..16], [1_i32, 0, 1, 1].map(i32::to_le_bytes).concat());
    assert_eq!(own[128..], *b"evenodd");
    let (header, own) = server.ask_columns("word", &call(false), &data);
    assert_eq!((&header["dictionaries"], &header["buffers"]), (&Value::Null, &json!([0, 0, 0, 20, 64, 13])));
    assert_eq!(own[64..], *b"oddevenoddodd");
    let reply = server.ask("word", &json!({"rows": 3, "columns": [[4, 5, 6]]}));
    assert_eq!(reply["columns"], json!([["even", "odd", "even"]]));
    let reply = server.ask("word", &json!({"rows": 2, "columns": [[7, 8]], "row_errors": "once"}));
    assert_eq!(reply["columns"], json!([["odd", "even"], [null, null]]));
    // More rows than texts are worth a dictionary, fewer are not.
    let call = json!({"rows": 1, "buffers": [0, 0, 0, 8], "may_encode": true});
    assert_eq!(server.ask_columns("word", &call, &data).0["dictionaries"], Value::Null);
}

/// A handler reads the tables that its caller has offered.
fn check_tables(server: &Server) {
    let client = Offering::connect(&server.folder.path().join("tables.sock"));
    let (one, two) = ("00000000000000000000000000000001", "00000000000000000000000000000002");
    client.offer(one, "numbers", &[numbers(&[(1, "one"), (3, "three")]), numbers(&[]), numbers(&[(4, "")])]);
    client.offer(two, "numbers", &[numbers(&[(1, "a"), (1, "b")])]);
    let ask = |offer: &str, keys: &[i64]| -> Value {
        let body = json!({"rows": keys.len(), "columns": [keys]});
        server.ask_with("look_up", &format!("{TABLES}: {offer}\r\n"), &body)
    };
    assert_eq!(ask(one, &[3, 2, 4, 1, 1])["columns"], json!([[5, -1, 0, 3, 3]]));
    assert_eq!(ask(one, &[])["columns"], json!([[]]));
    assert_eq!(ask(two, &[5])["columns"], json!([[-1]]));
    let message = |answer: Value| answer["error"]["message"].as_str().unwrap().to_string();
    assert!(message(ask(two, &[5, 1])).starts_with("table \"numbers\" has 2 rows with the key (1)"));
    assert!(message(ask("3", &[1])).starts_with("the server does not have the offer"));
    let error = server.ask("look_up", &json!({"rows": 1, "columns": [[1]]}));
    assert!(message(error).starts_with("no shared table \"numbers\""));
}

/// A map function's stream, which a program on one thread answers beside others.
fn check_streams(server: &mut Server) {
    let argument = Argument { name: String::new(), ty: Type::Int8 };
    let signature =
        Signature { kind: FunctionKind::Map, ..Signature::scalar("running_sum", vec![argument], Type::Int8) };
    let path = format!("unix:{}/flight.sock", server.folder.path().to_str().unwrap());
    let client = Client::start().unwrap();
    let call = Arc::new(Call {
        target: Target::Remote { remote: Endpoint::parse(&path).unwrap().into(), credentials: Credentials::default() },
        transport: TransportName::Flight,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(20),
        start_timeout: Duration::from_secs(20),
        tables: Vec::new(),
    });
    let batch = |number: u64| {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 10]));
        CallBatch::new(number, RecordBatch::try_new(signature.call_schema(), vec![column]).unwrap())
    };
    let results = |exchange: &mut Exchange| loop {
        match exchange.receive_from_map(&PlainHost).unwrap() {
            MapEvent::Results(reply) => {
                return Some(reply.columns.column(0).as_primitive::<Int64Type>().values().to_vec());
            }
            MapEvent::Taken => {}
            MapEvent::End => return None,
        }
    };
    // Two streams, whose batches come in turn: results come before the end.
    let mut exchanges = [client.open(call.clone()), client.open(call.clone())];
    for number in 0..20 {
        for exchange in &mut exchanges {
            exchange.send(batch(number));
            let sum = 11 * number as i64;
            assert_eq!(results(exchange), Some(vec![sum + 1, sum + 11]));
        }
    }
    for exchange in &mut exchanges {
        exchange.close();
        assert_eq!(results(exchange), None);
    }
    // A client that goes away, before the end of its batches.
    let mut exchange = client.open(call.clone());
    exchange.send(batch(0));
    assert_eq!(results(&mut exchange), Some(vec![1, 11]));
    drop(exchange);
    // Its stream may end first, or break off.
    server.wait_for_times("interface: stream over\n", 3);
    let unwanted = server.count("interface: stream unwanted\n");
    // Batches of other columns than the function's.
    let argument = Argument { name: String::new(), ty: Type::Text };
    let texts = Signature { arguments: vec![argument], ..signature.clone() };
    let mut exchange = client.open(Arc::new(Call { signature: texts.clone(), ..call.as_ref().clone() }));
    let column: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    exchange.send(CallBatch::new(0, RecordBatch::try_new(texts.call_schema(), vec![column]).unwrap()));
    let error = loop {
        match exchange.receive_from_map(&PlainHost) {
            Ok(MapEvent::Taken) => {}
            Ok(_) => panic!("the stream goes on"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("running_sum is int8"), "{error}");
    server.wait_for_times("interface: stream unwanted\n", unwanted + 1);
    let error = server.ask("running_sum", &json!({"rows": 1, "columns": [[1]]}));
    let expected = json!({"kind": "protocol_violation", "message": "running_sum is a map function"});
    assert_eq!(error["error"], expected);
}

/// The server of the C and C++ template with a handler.
fn start_cpp(compiler: [&str; 2], handler: &Path, manifest: &str) -> Server {
    let (sources, folder) = (crate_folder().join("../cpp/server"), tempfile::tempdir().unwrap());
    let program = folder.path().join("server");
    let mut compile = Command::new("g++");
    compile.args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.arg(sources.join("server.cpp")).arg("-L").arg(library());
    run(compile.args(["-ltransship_core", "-ldl", "-pthread"]));
    let mut compile = Command::new(compiler[0]);
    compile.args([compiler[1], "-O1", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", "-I"]).arg(&sources);
    run(compile.arg("-o").arg(folder.path().join("handler.so")).arg(handler));
    Server::start(&program, manifest, folder, &["serve"])
}

#[test]
fn functions_in_cpp_read_shared_tables() {
    let server = start_cpp(["g++", "-std=c++20"], &crate_folder().join("tests/values.cpp"), VALUES);
    let client = Offering::connect(&server.folder.path().join("tables.sock"));
    let (one, two) = ("00000000000000000000000000000001", "00000000000000000000000000000002");
    client.offer(one, "numbers", &[numbers(&[(1, "one"), (3, "three")]), numbers(&[(1000, "")])]);
    client.offer(two, "numbers", &[numbers(&[(1, "a"), (2, "b"), (1, "c")])]);
    let ask_more = |function: &str, offer: &str, keys: Value, more: Value| {
        let mut body = json!({"rows": keys.as_array().unwrap().len(), "columns": [keys]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let fields = if offer.is_empty() { String::new() } else { format!("{TABLES}: {offer}\r\n") };
        server.ask_with(function, &fields, &body)
    };
    let ask = |function: &str, offer: &str, keys: Value| ask_more(function, offer, keys, json!({}));
    for function in ["name", "all_names"] {
        let reply = ask(function, one, json!([3, null, 2, 1000, 1, 3]));
        assert_eq!(reply["columns"], json!([["three", null, null, "", "one", "three"]]), "{function}");
        assert_eq!(ask(function, one, json!([]))["columns"], json!([[]]));
        let several = "table \"numbers\" has 2 rows with the key (1)";
        let error = ask(function, two, json!([2, 1]))["error"].clone();
        assert!(error["message"].as_str().unwrap().starts_with(several), "{error}");
        let error = ask(function, "", json!([1]))["error"].clone();
        assert!(error["message"].as_str().unwrap().starts_with("no shared table \"numbers\""), "{error}");
    }
    // What a row's error was is forgotten in the next row, and comes back where it is the same.
    let reply = ask_more("name", two, json!([1, 2, 1]), json!({"row_errors": "once"}));
    assert_eq!(reply["columns"][0], json!([null, "b", null]));
    assert!(reply["columns"][1][2].as_str().unwrap().contains("2 rows with the key (1)"), "{reply}");
    let reply = ask_more("name", "", json!([1, 2]), json!({"row_errors": "once"}));
    assert!(reply["columns"][1][1].as_str().unwrap().contains("no shared table"), "{reply}");
    assert_eq!(ask("names", two, json!([3, 1, 2]))["columns"], json!([[1, 1, 2], ["a", "c", "b"]]));
    assert_eq!(ask("mistakes", one, json!([9]))["columns"], json!([[3]]));
    for (mistake, said) in [
        (0, "no shared table \"letters\""),
        (1, "the key does not fit column \"key\" of type int8"),
        (2, "the key of the table has 1 columns"),
        (3, "the table has no column \"nam\""),
        (4, "column \"name\" is of type text"),
    ] {
        let error = ask("mistakes", one, json!([mistake]))["error"].clone();
        assert_eq!(error["kind"], "user_code");
        assert!(error["message"].as_str().unwrap().starts_with(said), "{error}");
    }
}

#[test]
fn the_server_in_cpp_conforms() {
    let conformance = crate_folder().join("../cpp/conformance");
    let manifest = fs::read_to_string(conformance.join("transship.toml")).unwrap();
    let mut server = start_cpp(["gcc", "-std=c17"], &conformance.join("handler.c"), &manifest);
    let path = server.folder.path().to_str().unwrap();
    let mut counts = Vec::new();
    for endpoint in [format!("http+unix:{path}/http.sock"), format!("unix:{path}/flight.sock")] {
        let endpoint = Endpoint::parse(&endpoint).unwrap();
        judge_server(&endpoint, &Credentials::default(), |transport, verdicts| {
            let failed: Vec<_> =
                verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Failed(_))).collect();
            assert!(failed.is_empty(), "over {transport}: {failed:#?}\n{}", server.log());
            counts.push(verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Passed).count());
        })
        .unwrap();
    }
    assert_eq!(counts.len(), 3, "JSON, columns and Flight");
    let (client, offer) = (Offering::connect(&Path::new(path).join("tables.sock")), "00000000000000000000000000000001");
    client.offer(offer, "numbers", &[numbers(&[(1, "one"), (3, "three")])]);
    let body = json!({"rows": 3, "columns": [[3, 2, null]]});
    let reply = server.ask_with("table_lookup", &format!("{TABLES}: {offer}\r\n"), &body);
    assert_eq!(reply["columns"], json!([["three", null, null]]));
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
    assert_eq!(server.end(), Some(0), "{}", server.log());
}

/// Functions of values.cpp with the types that it has them for.
const VALUES: &str = r#"
name = "values"
template = "cpp"
functions = [
  { name = "as_int", arguments = ["int8"], returns = "int8" },
  { name = "as_bool", arguments = ["int8"], returns = "int8" },
  { name = "as_unsigned", arguments = ["int8"], returns = "int8" },
  { name = "as_float", arguments = ["float8"], returns = "float8" },
  { name = "integers", arguments = ["int8"], returns = "int8", kind = "table" },
  { name = "name", arguments = ["int8"], returns = "text" },
  { name = "names", arguments = ["int8"], returns = "text", kind = "table" },
  { name = "all_names", arguments = ["int8"], returns = "text", batch = "columns" },
  { name = "mistakes", arguments = ["int8"], returns = "int8" },
]"#;

#[test]
fn functions_in_cpp_get_no_value_that_their_types_cannot_hold() {
    let mut server = start_cpp(["g++", "-std=c++20"], &crate_folder().join("tests/values.cpp"), VALUES);
    for (function, right, wrong, kind) in [
        ("as_int", json!([2147483647, -2147483648, 0]), json!(4294967301_i64), "out_of_range"),
        ("as_int", json!([-7]), json!(-2147483649_i64), "out_of_range"),
        ("as_bool", json!([0, 1]), json!(2), "out_of_range"),
        ("as_bool", json!([1]), json!(-1), "out_of_range"),
        ("as_unsigned", json!(["9223372036854775807", 0]), json!(-1), "bad_result"),
        ("as_float", json!([1.5, "-Infinity", null, "NaN"]), json!(1e300), "out_of_range"),
    ] {
        let ask = |column: &Value, more: &Value| {
            let mut body = json!({"rows": column.as_array().unwrap().len(), "columns": [column]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server.ask(function, &body)
        };
        assert_eq!(ask(&right, &json!({}))["columns"], json!([right]), "{function}");
        let mut column = right.clone();
        column.as_array_mut().unwrap().push(wrong);
        for more in [json!({}), json!({"row_errors": "again"})] {
            let error = ask(&column, &more)["error"].clone();
            let row = right.as_array().unwrap().len();
            assert_eq!((&error["kind"], &error["row"]), (&json!(kind), &json!(row)), "{function}: {error}");
        }
    }
    // A range without end ends with its client.
    let endless = server.post("integers", &json!({"rows": 1, "columns": [[5]]}));
    server.wait_for("values: the range has begun");
    endless.shutdown(Shutdown::Both).unwrap();
    server.wait_for("values: the range has ended");
    // Types that the handler does not have are refused before anybody calls it.
    let folder = server.folder.path();
    for (declared, types) in [
        (r#"{ name = "as_float", arguments = ["int8"], returns = "float8" }"#, ["f(f)", "f(i)"]),
        (r#"{ name = "as_int", arguments = ["int4"], returns = "float4" }"#, ["i(i)", "f(i)"]),
        (r#"{ name = "as_int", arguments = ["int4", "text"], returns = "bool" }"#, ["i(i)", "i(is)"]),
        (r#"{ name = "integers", arguments = ["int8"], returns = "int8" }"#, ["*i(i)", "i(i)"]),
        (r#"{ name = "as_int", arguments = ["int8"], returns = "int8", batch = "columns" }"#, ["i(i)", "columns i(i)"]),
    ] {
        let manifest = format!("name = \"values\"\ntemplate = \"cpp\"\nfunctions = [{declared}]");
        fs::write(folder.join("manifest.json"), Manifest::parse(&manifest).unwrap().to_label()).unwrap();
        let mut describe = Command::new(folder.join("server"));
        describe.arg("describe").env("LD_LIBRARY_PATH", library()).env("TRANSSHIP_ROOT", folder);
        let output = describe.output().unwrap();
        let (said, [made, wanted]) = (String::from_utf8_lossy(&output.stderr), types);
        let fact = format!("TRANSSHIP_FUNCTION makes it {made}, and transship.toml declares {wanted}: ");
        assert!(!output.status.success() && said.contains(&fact), "{declared}: {said}");
    }
}

const COPIES: &str = r#"
name = "copies"
template = "cpp"
functions = [{ name = "copies", arguments = ["int8", "int8"], returns = "text", kind = "table" }]"#;

#[test]
fn table_functions_in_cpp_keep_no_text_that_was_sent() {
    const COUNT: i64 = 2048;
    const BYTES: i64 = 256 << 10;
    const MOST_KB: u64 = 160 << 10;
    let server = start_cpp(["g++", "-std=c++20"], &crate_folder().join("tests/copies.cpp"), COPIES);
    let argument = || Argument { name: String::new(), ty: Type::Int8 };
    let signature = Signature::scalar("copies", vec![argument(), argument()], Type::Text);
    let signature = Signature { kind: FunctionKind::Table, ..signature };
    let path = format!("unix:{}/flight.sock", server.folder.path().to_str().unwrap());
    let client = Client::start().unwrap();
    let mut exchange = client.open(Arc::new(Call {
        target: Target::Remote { remote: Endpoint::parse(&path).unwrap().into(), credentials: Credentials::default() },
        transport: TransportName::Flight,
        signature: signature.clone(),
        volatility: Volatility::Volatile,
        batch_timeout: Duration::from_secs(120),
        start_timeout: Duration::from_secs(20),
        tables: Vec::new(),
    }));
    let columns: Vec<ArrayRef> = [COUNT, BYTES].map(|value| Arc::new(Int64Array::from(vec![value])) as ArrayRef).into();
    exchange.send(CallBatch::new(0, RecordBatch::try_new(signature.call_schema(), columns).unwrap()));
    let (mut count, mut bytes) = (0, 0);
    while exchange.in_flight() > 0 {
        let reply = exchange.receive(&PlainHost).unwrap();
        let texts = reply.columns.column(1).as_string::<i32>();
        count += reply.columns.num_rows() as i64;
        bytes += texts.value_data().len() as i64;
    }
    assert_eq!((count, bytes), (COUNT, COUNT * BYTES));
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{peak} kB for {} kB of text", bytes >> 10);
    assert!(peak < MOST_KB, "{peak} kB");
}
