//! Handlers in Rust that read the shared tables of their calls, over HTTP and Flight.
#![allow(missing_docs)]

mod offering;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, FlightDescriptor};
use offering::{Offering, numbers};
use serde_json::{Value, json};
use tonic::transport::Endpoint;
use transship_core::error::user_error;
use transship_core::tables::table;
use transship_core::{
    Batches, CallError, Calls, Emit, Function, Groups, Handler, IsCancelled, Results, Settings, serve,
};
use udf_codec::arrow_ipc::{BatchEncoder, encode_schema};
use udf_codec::batch::AggregateStep;
use udf_codec::call_decoder::CallDecoder;
use udf_codec::wire::TABLES;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{Argument, FunctionKind, Signature};
use udf_types::types::Type;

/// Far longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls of the functions `together` and `later` meet here: each other, and the test.
static MEETING: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
static BEGUN: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
static GO_ON: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

/// The names of numbers in the table "numbers".
fn names(keys: &ArrayRef) -> Result<ArrayRef, CallError> {
    let rows = table("numbers").and_then(|table| table.lookup(std::slice::from_ref(keys))).map_err(user_error)?;
    Ok(rows.column(1).clone())
}

/// A function whose handler answers with names, after something that it does first.
struct Names(fn());

impl Handler for Names {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        (self.0)();
        emit(vec![names(calls.batch.column(0))?], true)
    }

    fn groups(&self) -> Box<dyn Groups> {
        Box::new(LastName(None))
    }

    fn map(&self, batches: &Arc<Batches>, _: IsCancelled<'_>, results: &Arc<Results>) -> Result<(), CallError> {
        while let Some(batch) = batches.next()? {
            results.give(names(batch.column(0))?)?;
        }
        Ok(())
    }
}

/// A table function: all names of each number.
struct AllNames;

impl Handler for AllNames {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        let keys = std::slice::from_ref(calls.batch.column(0));
        let (rows, found) = table("numbers").and_then(|table| table.matches(keys)).map_err(user_error)?;
        emit(vec![Arc::new(rows), found.column(1).clone()], true)
    }

    fn groups(&self) -> Box<dyn Groups> {
        unreachable!("it is a table function")
    }
}

/// An aggregate function: the name of the last number, as the table of the last step has it.
struct LastName(Option<i64>);

impl Groups for LastName {
    fn answer(
        &mut self,
        batch: &RecordBatch,
        step: AggregateStep,
        _: IsCancelled<'_>,
    ) -> Result<Vec<ArrayRef>, CallError> {
        let rows = if step == AggregateStep::Finish { batch.num_rows() } else { 0 };
        if step == AggregateStep::Accumulate {
            table("numbers").map_err(user_error)?;
            self.0 = batch.column(1).as_primitive::<arrow_array::types::Int64Type>().iter().flatten().last();
        }
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![self.0; rows]));
        let found = if rows > 0 { names(&keys)? } else { Arc::new(StringArray::new_null(0)) };
        Ok(vec![found, Arc::new(BinaryArray::new_null(rows))])
    }
}

/// The server of all tests.
struct Server {
    folder: PathBuf,
    flight_port: u16,
}

fn server() -> &'static Server {
    static SERVER: LazyLock<Server> = LazyLock::new(start);
    &SERVER
}

fn start() -> Server {
    let function = |name: &str, kind: FunctionKind, handler: Box<dyn Handler>| {
        let argument = Argument { name: String::new(), ty: Type::Int8 };
        let signature = Signature { kind, ..Signature::scalar(name, vec![argument], Type::Text) };
        Function::new(Arc::new(signature), handler)
    };
    let scalar = FunctionKind::Scalar;
    let later = || {
        BEGUN.wait();
        GO_ON.wait();
    };
    let meet = || {
        MEETING.wait();
    };
    let functions = vec![
        function("names", scalar, Box::new(Names(|| ()))),
        function("all_names", FunctionKind::Table, Box::new(AllNames)),
        function("last_name", FunctionKind::Aggregate, Box::new(Names(|| ()))),
        function("stream", FunctionKind::Map, Box::new(Names(|| ()))),
        function("later", scalar, Box::new(Names(later))),
        function("together", scalar, Box::new(Names(meet))),
        function("untold", scalar, Box::new(Names(|| std::process::abort()))),
    ];
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let flight_port = free.local_addr().unwrap().port();
    drop(free);
    let socket_folder = Some(folder.to_str().unwrap().to_string());
    let flight = Some(flight_port);
    let settings = Settings {
        server: "tables/1".to_string(),
        has_tables: true,
        socket_folder,
        flight_port: flight,
        ..Settings::default()
    };
    std::thread::spawn(move || serve(functions, &settings).unwrap());
    let server = Server { folder, flight_port };
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", flight_port)).is_err() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

impl Server {
    /// Offers tables of these rows under the names; the offer's name.
    fn offer(&self, client: &Offering, tables: &[(&str, &[(i64, &str)])]) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let name = format!("{:032x}", NUMBER.fetch_add(1, Ordering::Relaxed));
        tables.iter().for_each(|(table, rows)| client.offer(&name, table, &[numbers(rows)]));
        name
    }

    fn connect(&self) -> Offering {
        Offering::connect(&self.folder.join("tables.sock"))
    }

    /// Asks over HTTP, in a call that has the tables of an offer.
    fn ask(&self, method: &str, path: &str, offer: Option<&str>, body: &Value) -> Value {
        let mut stream = UnixStream::connect(self.folder.join("http.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = body.to_string();
        let tables = offer.map_or(String::new(), |offer| format!("{TABLES}: {offer}\r\n"));
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{tables}");
        // At once: the server may answer a request whose body it does not need, and close, before the rest is written.
        let length = body.len();
        let request = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn call(&self, function: &str, offer: Option<&str>, keys: &[i64]) -> Value {
        let body = json!({"rows": keys.len(), "columns": [keys]});
        self.ask("POST", &format!("/v1/functions/{function}"), offer, &body)
    }

    /// The messages that a stream of one batch of keys is answered with over Flight, without the schema; or the status.
    fn stream(&self, function: &str, offer: Option<&str>, keys: &[i64]) -> Result<Vec<RecordBatch>, tonic::Status> {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let batch = RecordBatch::try_from_iter_with_nullable([("", keys, true)]).unwrap();
        self.exchange(function, offer, &batch, "{\"batch\": 0}")
    }

    fn exchange(
        &self,
        function: &str,
        offer: Option<&str>,
        batch: &RecordBatch,
        metadata: &'static str,
    ) -> Result<Vec<RecordBatch>, tonic::Status> {
        let descriptor = FlightDescriptor::new_path(vec![function.to_string()]);
        let calls = [
            encode_schema(&batch.schema()).with_descriptor(descriptor),
            BatchEncoder::default().encode(batch).unwrap().with_app_metadata(metadata),
        ];
        let mut request = tonic::Request::new(tokio_stream::iter(calls));
        if let Some(offer) = offer {
            request.metadata_mut().insert(TABLES, offer.parse().unwrap());
        }
        let replies = async {
            let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.flight_port)).unwrap();
            let mut client = FlightServiceClient::new(endpoint.connect().await.unwrap());
            let mut replies = client.do_exchange(request).await?.into_inner();
            let (mut messages, mut batches) = (Vec::<FlightData>::new(), Vec::new());
            while let Some(message) = replies.message().await? {
                messages.push(message);
            }
            let mut decoder = CallDecoder::new(&messages[0]).unwrap();
            for message in &messages[1..] {
                batches.extend(decoder.read(message, MAX_MESSAGE_BYTES).unwrap().map(|decoded| decoded.others));
            }
            Ok(batches)
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(replies)
    }
}

const ENGLISH: &[(i64, &str)] = &[(1, "one"), (2, "two"), (3, "three")];
const SPANISH: &[(i64, &str)] = &[(1, "uno"), (2, "dos")];

#[test]
fn the_greeting_says_whether_offers_are_taken() {
    assert_eq!(server().ask("GET", "/v1", None, &json!({}))["tables"], true);
}

#[test]
fn functions_of_each_kind_read_tables_over_http() {
    let (server, client) = (server(), server().connect());
    let english = server.offer(&client, &[("numbers", ENGLISH)]);
    let offer = Some(english.as_str());
    assert_eq!(server.call("names", offer, &[3, 9, 1, 1])["columns"], json!([["three", null, "one", "one"]]));
    assert_eq!(server.call("names", offer, &[])["columns"], json!([[]]));
    assert_eq!(server.call("all_names", offer, &[9, 2, 1])["columns"], json!([[1, 2], ["two", "one"]]));
    let twice = server.offer(&client, &[("numbers", &[(1, "one"), (2, "two"), (1, "un")])]);
    let reply = server.call("all_names", Some(&twice), &[1, 5, 1]);
    assert_eq!(reply["columns"], json!([[0, 0, 2, 2], ["one", "un", "one", "un"]]));
    let error = server.call("names", Some(&twice), &[2, 1])["error"].clone();
    assert_eq!(error["kind"], "user_code");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("table \"numbers\" has 2 rows with the key (1)\n"), "{message}");
    // Each step of an exchange has its own tables.
    let step = |number: u64, step: &str, keys: &[Value], offer: &str| {
        let groups = vec![0; keys.len()];
        let states = vec![Value::Null; keys.len()];
        let columns = json!([groups, keys, states]);
        let body = json!({"rows": keys.len(), "columns": columns, "exchange": "e", "step": step, "batch": number});
        server.ask("POST", "/v1/functions/last_name", Some(offer), &body)
    };
    let other = server.offer(&client, &[("numbers", SPANISH)]);
    assert!(step(0, "accumulate", &[json!(1), json!(2)], &other)["error"].is_null());
    assert_eq!(step(1, "finish", &[Value::Null], &other)["columns"][0], json!(["dos"]));
    assert_eq!(step(2, "finish", &[Value::Null], &english)["columns"][0], json!(["two"]));
}

#[test]
fn functions_of_each_kind_read_tables_over_flight() {
    let (server, client) = (server(), server().connect());
    let offer = server.offer(&client, &[("numbers", ENGLISH)]);
    let texts = |batches: Vec<RecordBatch>, column: usize| -> Vec<Option<String>> {
        let of = |batch: &RecordBatch| {
            let texts = batch.column(column).as_string::<i32>();
            texts.iter().map(|text| text.map(str::to_string)).collect::<Vec<_>>()
        };
        batches.iter().flat_map(of).collect()
    };
    let some = |text: &str| Some(text.to_string());
    let names = server.stream("names", Some(&offer), &[2, 7]).unwrap();
    assert_eq!(texts(names, 0), [some("two"), None]);
    let names = server.stream("all_names", Some(&offer), &[7, 3]).unwrap();
    assert_eq!(texts(names, 1), [some("three")]);
    let names = server.stream("stream", Some(&offer), &[7, 1]).unwrap();
    assert_eq!(texts(names, 0), [None, some("one")]);
    for function in ["names", "all_names", "stream"] {
        let status = server.stream(function, None, &[1]).unwrap_err();
        assert!(status.message().starts_with("no shared table \"numbers\"\n"), "{status}");
    }
}

#[test]
fn a_table_that_a_call_does_not_have_is_an_error_of_the_handler() {
    let (server, client) = (server(), server().connect());
    let offer = server.offer(&client, &[("letters", ENGLISH)]);
    for (offer, fact) in [
        (None, "The caller gives no tables to this call."),
        (Some(offer.as_str()), "The caller does not give it to this call."),
    ] {
        let error = server.call("names", offer, &[1])["error"].clone();
        let message = format!("no shared table \"numbers\"\ndetail: {fact}");
        assert_eq!((&error["kind"], &error["message"]), (&json!("user_code"), &json!(message)));
    }
}

#[test]
fn a_call_whose_offer_is_unknown_is_refused_before_its_handler_is_called() {
    let server = server();
    let (fact, keys) = ("the server does not have the offer of tables that the call names", &[json!(1)]);
    for offer in ["00000000000000000000000000000000", "é", ""] {
        let step =
            json!({"rows": 1, "columns": [[0], keys, [null]], "exchange": offer, "step": "accumulate", "batch": 0});
        let call = json!({"rows": 1, "columns": [keys]});
        let with_errors = json!({"rows": 1, "columns": [keys], "row_errors": "again"});
        // The handlers of some of these would wait for others, or end the test.
        for (function, body) in [
            ("names", &call),
            ("names", &with_errors),
            ("all_names", &call),
            ("together", &call),
            ("untold", &call),
            ("last_name", &step),
        ] {
            let error = server.ask("POST", &format!("/v1/functions/{function}"), Some(offer), body)["error"].clone();
            assert_eq!(error, json!({"kind": "protocol_violation", "message": fact}), "{function}");
        }
    }
    for function in ["names", "all_names", "stream", "together", "untold"] {
        let status = server.stream(function, Some("00000000000000000000000000000000"), &[1]).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, fact), "{function}");
    }
    let groups: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![1])),
        Arc::new(BinaryArray::new_null(1)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        ["group", "", "state"].into_iter().zip(groups).map(|(name, column)| (name, column, true)),
    )
    .unwrap();
    let metadata = "{\"batch\": 0, \"step\": \"accumulate\"}";
    let status = server.exchange("last_name", Some("00000000000000000000000000000000"), &batch, metadata).unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, fact));
}

#[test]
fn calls_at_the_same_time_have_tables_of_their_own() {
    let (server, client) = (server(), server().connect());
    let offers = [ENGLISH, SPANISH].map(|rows| server.offer(&client, &[("numbers", rows)]));
    for _ in 0..20 {
        std::thread::scope(|scope| {
            for (offer, expected) in offers.iter().zip(["one", "uno"]) {
                scope.spawn(move || {
                    assert_eq!(server.call("together", Some(offer), &[1])["columns"], json!([[expected]]));
                });
            }
        });
    }
}

#[test]
fn a_call_that_has_begun_outlives_the_offer() {
    let (server, client) = (server(), server().connect());
    let offer = server.offer(&client, &[("numbers", ENGLISH)]);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| server.call("later", Some(&offer), &[1]));
        BEGUN.wait();
        drop(client);
        let start = Instant::now();
        while server.call("names", Some(&offer), &[1])["error"].is_null() {
            assert!(start.elapsed() < PATIENCE);
        }
        GO_ON.wait();
        assert_eq!(call.join().unwrap()["columns"], json!([["one"]]));
    });
}
