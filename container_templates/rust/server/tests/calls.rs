//! Functions that wait, and map functions, served by a process of this program.
#![allow(missing_docs)]

#[path = "../../../core/tests/offering/mod.rs"]
mod offering;
mod serving;

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use offering::{Offering, numbers};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serving::Server;
use transship::arrow_array::cast::AsArray;
use transship::arrow_array::types::Int64Type;
use transship::arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use transship::serde_json::{Value, json};
use transship::tokio::time::sleep;
use transship::{CallError, Functions, Json, RecordBatches, Rows};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::{Exchange, MapEvent};
use udf_client::host::PlainHost;
use udf_client::transport::credentials::Credentials;
use udf_codec::batch::CallBatch;
use udf_codec::wire::TABLES;
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;

const CONCURRENCY: i64 = 8;
const MANIFEST: &str = r#"
name = "calls"
template = "rust"
functions = [
  { name = "later", arguments = ["float8"], returns = "float8", concurrency = 8 },
  { name = "one_by_one", arguments = ["float8"], returns = "float8" },
  { name = "name_later", arguments = ["int8"], returns = "text", concurrency = 3 },
  { name = "seven", arguments = [], returns = "int8", concurrency = 2 },
  { name = "narrow_later", arguments = ["int8"], returns = "int8", concurrency = 2 },
  { name = "begun", arguments = [], returns = "int8" },
  { name = "under_way", arguments = [], returns = "int8" },
  { name = "take_most", arguments = [], returns = "int8" },
  { name = "running_sum", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "sums", arguments = ["int8"], returns = "int8", kind = "map", batch = "arrow" },
  { name = "wrong_column", arguments = ["int8"], returns = "int8", kind = "map", batch = "arrow" },
  { name = "join_rows", arguments = ["int8", "text"], returns = "text", kind = "map" },
  { name = "evens", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "fail_at", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "careless", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "unwraps", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "endless", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "progress", arguments = [], returns = "int8" },
  { name = "pumped", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "in_runtime", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "keeps", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "fails_early", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "large", arguments = ["int8"], returns = "text", kind = "map" },
  { name = "lists", arguments = ["int8"], returns = "text[]", kind = "map" },
  { name = "nothing", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "triples", arguments = ["int8"], returns = "int8[]", kind = "map" },
  { name = "store", arguments = ["int8"], returns = "int8", kind = "map" },
  { name = "stored", arguments = [], returns = "int8" },
]"#;

fn functions() -> Functions {
    Functions::new()
        .scalar_async("later", later)
        .scalar_async("one_by_one", later)
        .scalar_async("name_later", name_later)
        .scalar_async("seven", async || 7_i64)
        .scalar_async("narrow_later", async |x: i64| x)
        .scalar("begun", || BEGUN.load(SeqCst))
        .scalar("under_way", || UNDER_WAY.load(SeqCst))
        .scalar("take_most", || MOST.swap(0, SeqCst))
        .map("running_sum", running_sum)
        .map_arrow("sums", sums)
        .map_arrow("wrong_column", |batches| {
            batches.map(|_| Ok::<ArrayRef, String>(Arc::new(Int32Array::from(vec![1]))))
        })
        .map("join_rows", |rows: Rows<(Option<i64>, Option<String>)>| rows.map(|row| row.map(|row| format!("{row:?}"))))
        .map("evens", |rows: Rows<(i64,)>| rows.filter(|row| row.as_ref().is_ok_and(|(x,)| x % 2 == 0)).map(first))
        .map("fail_at", |rows: Rows<(i64,)>| {
            rows.map(|row| if row? == (13,) { panic!("13 is bad") } else { Ok::<i64, CallError>(1) })
        })
        .map("careless", |rows: Rows<(i64,)>| vec![rows.flatten().map(|(x,)| x).sum::<i64>()])
        .map("unwraps", |rows: Rows<(i64,)>| rows.map(|row| row.unwrap().0))
        .map("endless", |_: Rows<(i64,)>| (0_i64..).inspect(|x| PROGRESS.store(*x, SeqCst)))
        .scalar("progress", || PROGRESS.load(SeqCst))
        .map("pumped", pumped)
        .map("in_runtime", in_runtime)
        .map("keeps", keeps)
        .map("fails_early", fails_early)
        .map("large", |rows: Rows<(i64,)>| rows.map(|row| row.map(|(x,)| "x".repeat(x as usize))))
        .map("lists", |rows: Rows<(i64,)>| rows.map(|row| row.map(|(x,)| Json(vec!["y".to_string(); x as usize]))))
        .map("nothing", |_: Rows<(i64,)>| None::<i64>)
        .map("triples", triples)
        .map("store", store)
        .scalar("stored", || STORED.load(SeqCst))
}

static BEGUN: AtomicI64 = AtomicI64::new(0);
static UNDER_WAY: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);
static PROGRESS: AtomicI64 = AtomicI64::new(0);
static STORED: AtomicI64 = AtomicI64::new(0);
static KEPT: Mutex<Vec<Rows<(i64,)>>> = Mutex::new(Vec::new());

/// Counts a call while its future lives.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, SeqCst);
    }
}

async fn later(seconds: Option<f64>) -> Result<Option<f64>, String> {
    let Some(wait) = seconds else { return Ok(None) };
    BEGUN.fetch_add(1, SeqCst);
    MOST.fetch_max(UNDER_WAY.fetch_add(1, SeqCst) + 1, SeqCst);
    let _counted = Counted;
    if wait == 13.0 {
        panic!("13 is bad");
    }
    sleep(Duration::from_secs_f64(wait)).await;
    if wait == 0.012 { Err("it is late".to_string()) } else { Ok(seconds) }
}

/// The table of the call is found after the call has waited as well, and what it writes is the call's.
async fn name_later(key: i64) -> Result<Option<String>, transship::Error> {
    let elsewhere = transship::tokio::spawn(sleep(Duration::from_millis(2)));
    elsewhere.await.expect("it does not panic");
    transship::write_line(&format!("looks for {key}"));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![key]));
    let rows = transship::table("numbers")?.lookup(&[keys])?;
    let names = rows.column(1).as_string::<i32>();
    Ok(names.is_valid(0).then(|| names.value(0).to_string()))
}

fn first(row: Result<(i64,), CallError>) -> Result<i64, CallError> {
    row.map(|(x,)| x)
}

fn running_sum(rows: Rows<(Option<i64>,)>) -> impl Iterator<Item = Result<i64, CallError>> {
    let mut sum = 0;
    rows.map(move |row| {
        sum += row?.0.unwrap_or(0);
        Ok(sum)
    })
}

fn sums(batches: RecordBatches) -> impl Iterator<Item = Result<ArrayRef, CallError>> {
    let mut sum = 0;
    batches.map(move |batch| {
        sum += batch?.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
        Ok(Arc::new(Int64Array::from(vec![sum])) as ArrayRef)
    })
}

/// Takes rows on another thread.
fn pumped(rows: Rows<(i64,)>) -> impl Iterator<Item = Result<i64, CallError>> {
    let (sender, receiver) = mpsc::sync_channel(0);
    std::thread::spawn(move || rows.map(first).try_for_each(|row| sender.send(row)));
    receiver.into_iter()
}

/// Takes rows where a runtime of its own polls a task.
fn in_runtime(mut rows: Rows<(i64,)>) -> impl Iterator<Item = Result<i64, CallError>> {
    let runtime = transship::tokio::runtime::Builder::new_current_thread().build().unwrap();
    std::iter::from_fn(move || runtime.block_on(async { rows.next() })).map(first)
}

/// Ends while the rows are kept for ever.
fn keeps(rows: Rows<(i64,)>) -> [i64; 1] {
    KEPT.lock().unwrap().push(rows);
    [1]
}

/// Fails while a thread waits for rows.
fn fails_early(rows: Rows<(i64,)>) -> [Result<i64, String>; 1] {
    std::thread::spawn(move || rows.count());
    std::thread::sleep(Duration::from_millis(50));
    [Err("it is early".to_string())]
}

/// Three rows, which are taken when they are written.
struct Triple(Arc<Mutex<Rows<(i64,)>>>);

impl Serialize for Triple {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = self.0.lock().unwrap();
        serializer.collect_seq(rows.by_ref().take(3).map(|row| first(row).ok()))
    }
}

impl<'de> Deserialize<'de> for Triple {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Triple, D::Error> {
        Err(D::Error::custom("it is only written"))
    }
}

fn triples(rows: Rows<(i64,)>) -> impl Iterator<Item = Json<Triple>> {
    let rows = Arc::new(Mutex::new(rows));
    (0..2).map(move |_| Json(Triple(rows.clone())))
}

/// Counts the streams of which it has got all rows.
fn store(mut rows: Rows<(i64,)>) -> impl Iterator<Item = Result<i64, CallError>> {
    UNDER_WAY.fetch_add(1, SeqCst);
    let counted = Counted;
    std::iter::from_fn(move || {
        let _counted = &counted;
        let row = rows.next();
        if row.is_none() {
            STORED.fetch_add(1, SeqCst);
        }
        row.map(first)
    })
}

fn call(values: &Value) -> Value {
    json!({"rows": values.as_array().unwrap().len(), "columns": [values]})
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    fn count(&self, function: &str) -> i64 {
        self.ask(function, "", &json!({"rows": 1, "columns": []}))["columns"][0][0].as_i64().unwrap()
    }
}

#[test]
fn calls_wait_beside_each_other() {
    let Some(server) = Server::start("calls_wait_beside_each_other", functions, MANIFEST) else { return };
    let ask = |function: &str, values: Value| server.ask(function, "", &call(&values));

    // Later rows end first.
    let mut seconds: Vec<Value> = (0..40).map(|row| json!(0.01 * f64::from(row * 7 % 5))).collect();
    seconds.push(Value::Null);
    let values = Value::from(seconds);
    assert_eq!(ask("later", values.clone())["columns"], json!([values]));
    assert_eq!(server.count("take_most"), CONCURRENCY);
    assert_eq!(ask("one_by_one", values.clone())["columns"], json!([values]));
    assert_eq!(server.count("take_most"), 1);
    assert_eq!(ask("later", json!([]))["columns"], json!([[]]));
    assert_eq!(ask("later", json!(vec![0.0; 5000]))["columns"], json!([vec![0.0; 5000]]));
    assert_eq!(server.ask("seven", "", &json!({"rows": 3, "columns": []}))["columns"], json!([[7, 7, 7]]));
    let constant = json!({"rows": 100, "columns": [[0.0]], "constants": [0]});
    assert_eq!(server.ask("later", "", &constant)["columns"], json!([vec![0.0; 100]]));

    // The panic of row 2 comes before the error of row 1, and that one is named. Later rows are dropped.
    let error = ask("later", json!([0.05, 0.012, 13, 0.0, 600, 600]))["error"].clone();
    assert_eq!(
        (&error["kind"], &error["message"], &error["row"]),
        (&json!("user_code"), &json!("it is late"), &json!(1))
    );
    assert_eq!(server.count("under_way"), 0);
    let error = ask("later", json!([0.01, 13, 600]))["error"].clone();
    assert_eq!((&error["message"], &error["row"]), (&json!("panic: 13 is bad"), &json!(1)));
    assert!(error["traceback"].as_str().unwrap().contains("calls.rs"), "{error}");
    assert_eq!(server.count("under_way"), 0);
    for row_errors in ["once", "again"] {
        let forgiving = json!({"rows": 4, "columns": [[0.05, 0.012, 13, 0.0]], "row_errors": row_errors});
        let columns = server.ask("later", "", &forgiving)["columns"].clone();
        assert_eq!(columns, json!([[0.05, null, null, 0.0], [null, "it is late", "panic: 13 is bad", null]]));
    }
    // A row that Rust cannot hold is no error of the row's.
    let error = ask("narrow_later", json!([1, 2, null, 4]))["error"].clone();
    assert_eq!((&error["kind"], &error["row"]), (&json!("out_of_range"), &json!(2)));
    let forgiving = json!({"rows": 2, "columns": [[1, null]], "row_errors": "once"});
    assert_eq!(server.ask("narrow_later", "", &forgiving)["error"]["kind"], "out_of_range");

    // The client goes away.
    let before = server.count("begun");
    let client = server.send("later", "", &call(&json!(vec![300.0; 1000])));
    wait_until("calls begin", || server.count("under_way") == CONCURRENCY);
    drop(client);
    wait_until("calls are dropped", || server.count("under_way") == 0);
    assert_eq!(server.count("begun"), before + CONCURRENCY);

    // Two callers, who have tables of their own.
    let client = Offering::connect(&server.folder().join("tables.sock"));
    let offers = ["00000000000000000000000000000001", "00000000000000000000000000000002"];
    client.offer(offers[0], "numbers", &[numbers(&[(1, "one"), (3, "three")])]);
    client.offer(offers[1], "numbers", &[numbers(&[(1, "uno")])]);
    std::thread::scope(|scope| {
        for (offer, expected) in [(offers[0], ["one", "three"]), (offers[1], ["uno", ""])] {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..20 {
                    let keys = json!({"rows": 3, "columns": [[1, 2, 3]]});
                    let found = server.ask("name_later", &format!("{TABLES}: {offer}\r\n"), &keys)["columns"].clone();
                    let last = if expected[1].is_empty() { Value::Null } else { json!(expected[1]) };
                    assert_eq!(found, json!([[expected[0], null, last]]));
                }
            });
        }
    });
    let error = ask("name_later", json!([1]))["error"]["message"].clone();
    assert!(error.as_str().unwrap().starts_with("no shared table \"numbers\""), "{error}");
    server.stop();
}

#[test]
fn functions_that_do_not_wait_have_no_concurrency() {
    let Some(mut child) = Unserved::start("functions_that_do_not_wait_have_no_concurrency") else { return };
    let fact = child.fact();
    assert!(fact.contains("function \"begun\": with concurrency, the handler must have it as scalar_async"), "{fact}");
}

/// A server that does not start.
struct Unserved(std::process::Output);

impl Unserved {
    fn start(test: &str) -> Option<Unserved> {
        if std::env::var_os("TRANSSHIP_ROOT").is_some() {
            transship::main(functions());
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let manifest = MANIFEST.replace(r#""begun", arguments = []"#, r#""begun", concurrency = 2, arguments = []"#);
        let manifest = udf_project::manifest::Manifest::parse(&manifest).unwrap().to_label();
        std::fs::write(folder.path().join("manifest.json"), manifest).unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env("TRANSSHIP_ROOT", folder.path());
        Some(Unserved(command.output().unwrap()))
    }

    fn fact(&mut self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// A client of map functions.
struct Streams<'a> {
    server: &'a Server,
    client: Client,
}

impl Streams<'_> {
    fn open(&self, function: &str, arguments: &[Type], result: Type) -> (Exchange, Signature) {
        let arguments = arguments.iter().map(|ty| Argument { name: String::new(), ty: ty.clone() }).collect();
        let signature = Signature { kind: FunctionKind::Map, ..Signature::scalar(function, arguments, result) };
        let path = format!("unix:{}/flight.sock", self.server.folder().to_str().unwrap());
        let remote = Endpoint::parse(&path).unwrap().into();
        let call = Call {
            target: Target::Remote { remote, credentials: Credentials::default() },
            transport: TransportName::Flight,
            signature: signature.clone(),
            volatility: Volatility::Volatile,
            batch_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            tables: Vec::new(),
        };
        (self.client.open(Arc::new(call)), signature)
    }

    fn open_numbers(&self, function: &str, batches: &[&[Option<i64>]]) -> Exchange {
        let (mut exchange, signature) = self.open(function, &[Type::Int8], Type::Int8);
        for (number, batch) in batches.iter().enumerate() {
            send(&mut exchange, &signature, number, vec![Arc::new(Int64Array::from(batch.to_vec()))]);
        }
        exchange
    }

    /// The results of a function of numbers, or its error.
    fn map(&self, function: &str, batches: &[&[Option<i64>]]) -> Result<Vec<i64>, udf_types::Error> {
        let mut exchange = self.open_numbers(function, batches);
        exchange.close();
        let mut found = Vec::new();
        while let Some(part) = next(&mut exchange)? {
            found.extend_from_slice(part.as_primitive::<Int64Type>().values());
        }
        Ok(found)
    }

    fn fails(&self, function: &str, batches: &[&[Option<i64>]]) -> String {
        format!("{:?}", self.map(function, batches).unwrap_err())
    }
}

fn send(exchange: &mut Exchange, signature: &Signature, number: usize, columns: Vec<ArrayRef>) {
    exchange.send(CallBatch::new(number as u64, RecordBatch::try_new(signature.call_schema(), columns).unwrap()));
}

fn next(exchange: &mut Exchange) -> Result<Option<ArrayRef>, udf_types::Error> {
    loop {
        match exchange.receive_from_map(&PlainHost)? {
            MapEvent::Results(reply) => return Ok(Some(reply.columns.column(0).clone())),
            MapEvent::Taken => {}
            MapEvent::End => return Ok(None),
        }
    }
}

fn some<const N: usize>(values: [i64; N]) -> [Option<i64>; N] {
    values.map(Some)
}

#[test]
fn map_functions_take_streams() {
    let Some(server) = Server::start("map_functions_take_streams", functions, MANIFEST) else { return };
    let streams = Streams { server: &server, client: Client::start().unwrap() };
    assert_eq!(streams.map("running_sum", &[&some([1, 2]), &[], &[Some(3), None]]).unwrap(), [1, 3, 6, 6]);
    assert_eq!(streams.map("running_sum", &[]).unwrap(), [0; 0]);
    assert_eq!(streams.map("sums", &[&some([1, 2]), &some([3]), &[]]).unwrap(), [3, 6, 6]);
    assert_eq!(streams.map("nothing", &[&some([1])]).unwrap(), [0; 0]);
    let many: Vec<Vec<Option<i64>>> =
        (0..50).map(|batch| (100 * batch..100 * (batch + 1)).map(Some).collect()).collect();
    let many: Vec<&[Option<i64>]> = many.iter().map(Vec::as_slice).collect();
    for _ in 0..5 {
        assert_eq!(streams.map("pumped", &many).unwrap(), (0..5000).collect::<Vec<_>>());
        assert_eq!(streams.map("keeps", &many).unwrap(), [1]);
    }

    let (mut exchange, signature) = streams.open("join_rows", &[Type::Int8, Type::Text], Type::Text);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    send(&mut exchange, &signature, 0, vec![Arc::new(Int64Array::from(vec![Some(1), None])), texts]);
    exchange.close();
    let part = next(&mut exchange).unwrap().unwrap();
    let found: Vec<_> = part.as_string::<i32>().iter().flatten().collect();
    assert_eq!(found, [r#"(Some(1), Some("a"))"#, "(None, None)"]);

    // Results do not wait for rows that come later, although the handler has taken all of these.
    for (function, given) in [("evens", vec![1_i64, 2, 4, 3]), ("in_runtime", vec![2, 4]), ("pumped", vec![2])] {
        let (mut exchange, signature) = streams.open(function, &[Type::Int8], Type::Int8);
        for number in 0..3 {
            send(&mut exchange, &signature, number, vec![Arc::new(Int64Array::from(given.clone()))]);
            let expected: Vec<i64> = given.iter().copied().filter(|x| x % 2 == 0).collect();
            let mut found = Vec::new();
            while found.len() < expected.len() {
                let part = next(&mut exchange).unwrap().unwrap();
                found.extend_from_slice(part.as_primitive::<Int64Type>().values());
            }
            assert_eq!(found, expected, "{function}");
        }
        exchange.close();
        assert!(next(&mut exchange).unwrap().is_none());
    }

    // Results may ask for rows when they are written.
    let (mut exchange, signature) = streams.open("triples", &[Type::Int8], Type::Array(Arc::new(Type::Int8)));
    for number in 0..3 {
        // The handler waits for each batch.
        std::thread::sleep(Duration::from_millis(30));
        let pair = Int64Array::from(vec![2 * number as i64, 2 * number as i64 + 1]);
        send(&mut exchange, &signature, number, vec![Arc::new(pair)]);
    }
    exchange.close();
    let mut found = Vec::new();
    while let Some(part) = next(&mut exchange).unwrap() {
        found.extend_from_slice(part.as_list::<i32>().values().as_primitive::<Int64Type>().values());
    }
    assert_eq!(found, [0, 1, 2, 3, 4, 5]);

    // Large results go out in parts: 1024 texts, or about 1 MiB.
    let parts = |function: &str, result: Type, value: i64, rows: usize| {
        let (mut exchange, signature) = streams.open(function, &[Type::Int8], result);
        send(&mut exchange, &signature, 0, vec![Arc::new(Int64Array::from(vec![value; rows]))]);
        exchange.close();
        let mut sizes = Vec::new();
        while let Some(part) = next(&mut exchange).unwrap() {
            sizes.push(part.len());
        }
        sizes
    };
    assert_eq!(parts("large", Type::Text, 400_000, 7), [3, 3, 1]);
    assert_eq!(parts("large", Type::Text, 1, 2500), [1024, 1024, 452]);
    let sizes = parts("lists", Type::Array(Arc::new(Type::Text)), 10_000, 9);
    assert!(sizes.len() > 2 && sizes.iter().sum::<usize>() == 9, "{sizes:?}");
    server.stop();
}

#[test]
fn streams_that_fail_or_are_left_end() {
    let Some(server) = Server::start("streams_that_fail_or_are_left_end", functions, MANIFEST) else { return };
    let streams = Streams { server: &server, client: Client::start().unwrap() };
    let fails = |function: &str, batches: &[&[Option<i64>]], words: &str| {
        let found = streams.fails(function, batches);
        assert!(found.contains(words), "{function}: {found}");
    };
    fails("fail_at", &[&some([1, 2]), &some([3, 13]), &some([5])], "panic: 13 is bad");
    fails("wrong_column", &[&some([1])], "It returned Int32; the declared result is int8.");
    // Whatever the handler makes of rows that were cut off, the call fails for that.
    for function in ["careless", "unwraps", "running_sum", "pumped"] {
        let batches: &[&[Option<i64>]] = &[&some([1, 2]), &[Some(3), None], &some([5])];
        match function {
            "running_sum" => assert_eq!(streams.map(function, batches).unwrap(), [1, 3, 6, 6, 11]),
            _ => fails(function, batches, "of row 2 of the batch: it is NULL"),
        }
    }
    // An error does not wait for rows that a thread of the handler waits for.
    let mut exchange = streams.open_numbers("fails_early", &[&some([1])]);
    let error = format!("{:?}", next(&mut exchange).unwrap_err());
    assert!(error.contains("it is early"), "{error}");
    drop(exchange);

    // The client goes away from results without end. It was far behind: the handler waits for it.
    let mut exchange = streams.open_numbers("endless", &[&some([1])]);
    for _ in 0..3 {
        next(&mut exchange).unwrap().unwrap();
    }
    let given = server.count("progress");
    std::thread::sleep(Duration::from_millis(300));
    let ahead = server.count("progress");
    assert!(ahead < given + 4_000_000, "{given} {ahead}");
    drop(exchange);
    wait_until("the results end", || {
        let before = server.count("progress");
        std::thread::sleep(Duration::from_millis(100));
        server.count("progress") == before
    });
    // A client that goes away is not taken for one that has sent all of its rows.
    for _ in 0..20 {
        let mut exchange = streams.open_numbers("store", &[&some([1])]);
        assert_eq!(next(&mut exchange).unwrap().unwrap().len(), 1);
        drop(exchange);
    }
    wait_until("the streams end", || server.count("under_way") == 0);
    assert_eq!(server.count("stored"), 0);
    assert_eq!(streams.map("store", &[&some([1, 2])]).unwrap(), [1, 2]);
    assert_eq!(server.count("stored"), 1);
    // The client goes away while rows are waited for, and so does its server.
    let mut exchange = streams.open_numbers("unwraps", &[&some([1])]);
    assert_eq!(next(&mut exchange).unwrap().unwrap().len(), 1);
    drop(exchange);
    let error = server.ask("running_sum", "", &call(&json!([1])))["error"].clone();
    assert_eq!(error["message"], "running_sum is a map function");
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
