//! Judges a server against `docs/protocol.md`: any server, in any language, anywhere.
//!
//! What the protocol asks of every server is asked of this one too. The rest needs functions of known behaviour: those of
//! the suite (`container_templates/<language>/conformance`), as far as the server has them under their names and
//! signatures. Each case names the clause that it is about; a case that cannot be judged is told as skipped, with the
//! reason.
//!
//! ```no_run
//! use udf_client::transport::credentials::Credentials;
//! use udf_conformance::{Outcome, judge_server};
//! use udf_project::endpoint::Endpoint;
//!
//! let endpoint = Endpoint::parse("http://127.0.0.1:8080")?;
//! judge_server(&endpoint, &Credentials::default(), |transport, verdicts| {
//!     for verdict in verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Failed(_))) {
//!         println!("{transport}: {verdict}");
//!     }
//! })?;
//! # Ok::<(), udf_types::Error>(())
//! ```

#![forbid(unsafe_code)]

mod discovery;
mod exchanges;
mod http;
mod tables;
mod values;

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
};
use serde_json::{Value, json};
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::exchange::{Exchange, MapEvent};
use udf_client::host::PlainHost;
use udf_client::trace::Observation;
use udf_client::transport::connect;
use udf_client::transport::credentials::Credentials;
use udf_client::transport::flight::Flight;
use udf_client::transport::http_server::HttpServer;
use udf_codec::batch::{AggregateStep, CallBatch};
use udf_codec::constants::Constants;
use udf_codec::json::{decode_column, encode_column};
use udf_codec::parquet;
use udf_codec::wire::{COLUMNS, PROTOCOL_VERSION};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{Argument, FunctionKind, RowErrors, Signature, Volatility};
use udf_types::terminal::printable;
use udf_types::transport_name::TransportName;
use udf_types::types::{TABLE, Type};
use udf_types::{Error, Kind, Result};

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at what a server does.
const SHORT_WAIT: Duration = Duration::from_millis(100);
/// Time in which a server must see that a client has gone, with rows that take far less.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of a value that a server must be able to take.
const LARGE_VALUE_BYTES: usize = 1 << 20;
/// Exchanges that a server must be able to answer at a time.
const CONCURRENT_EXCHANGES: usize = 4;

/// What became of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server does what the clause says.
    Passed,
    /// It does not: what it did instead.
    Failed(String),
    /// The case could not be judged: why.
    Skipped(String),
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The clause of `docs/protocol.md`.
    pub clause: &'static str,
    /// What is asked of the server.
    pub case: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "ok       §{:<4} {}", self.clause, self.case),
            Outcome::Failed(fact) => write!(f, "FAILED   §{:<4} {}: {fact}", self.clause, self.case),
            Outcome::Skipped(reason) => write!(f, "skipped  §{:<4} {}: {reason}", self.clause, self.case),
        }
    }
}

/// Judges the server at an endpoint, over one of its transports, case by case. Segments need a lease: then it is of the
/// image of `leased`.
pub fn judge(
    endpoint: &Endpoint,
    transport: TransportName,
    leased: Option<Target>,
    credentials: &Credentials,
) -> Result<Vec<Verdict>> {
    let remote = || Target::Remote { remote: endpoint.clone().into(), credentials: credentials.clone() };
    let mut judge = Judge {
        endpoint: endpoint.clone(),
        credentials: credentials.clone(),
        transport,
        target: leased.unwrap_or_else(remote),
        client: Client::start()?,
        functions: Vec::new(),
        takes_constants: false,
        has_row_errors: false,
        has_lines: false,
        has_tables: false,
        verdicts: Vec::new(),
    };
    judge.judge_handshake();
    if judge.is_known() {
        judge.judge_signatures();
        judge.judge_values();
        judge.judge_exchanges();
        judge.judge_kinds();
        judge.judge_errors();
        judge.judge_row_errors();
        judge.judge_lines();
        judge.judge_json();
        judge.judge_columns();
        judge.judge_references();
        judge.judge_constants();
        judge.judge_tables();
    }
    Ok(judge.verdicts)
}

/// Judges a server that runs already, over each of its transports that its address allows; `tell` is told the name of each, and
/// what was found.
///
/// # Errors
/// If the client cannot start.
pub fn judge_server(
    endpoint: &Endpoint,
    credentials: &Credentials,
    mut tell: impl FnMut(&str, &[Verdict]),
) -> Result<()> {
    let hello = block_on(async { connect::to_endpoint(endpoint, credentials).hello().await });
    let has_columns = hello.is_ok_and(|info| info.offers(TransportName::Socket));
    let is_http = endpoint.transport_name() == TransportName::Json;
    let columns = (is_http && has_columns).then_some(TransportName::Socket);
    for transport in [endpoint.transport_name()].into_iter().chain(columns) {
        tell(transport.name(), &judge(endpoint, transport, None, credentials)?);
    }
    Ok(())
}

/// Prints what was found of a server; whether nothing failed.
pub fn print_verdicts(name: &str, verdicts: &[Verdict], quiet: bool) -> bool {
    println!("{name}");
    for verdict in verdicts.iter().filter(|verdict| !quiet || matches!(verdict.outcome, Outcome::Failed(_))) {
        // It may quote what the server has written.
        println!("  {}", printable(&verdict.to_string()));
    }
    let count = |wanted: fn(&Outcome) -> bool| verdicts.iter().filter(|verdict| wanted(&verdict.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    println!("  {} passed, {failed} failed, {skipped} skipped", verdicts.len() - failed - skipped);
    failed == 0
}

/// What a case found: nothing wrong, or what.
type Finding = std::result::Result<(), String>;

struct Judge {
    endpoint: Endpoint,
    credentials: Credentials,
    transport: TransportName,
    target: Target,
    client: Client,
    /// Names of the server's functions.
    functions: Vec<String>,
    /// Whether its greeting says so.
    takes_constants: bool,
    /// The same.
    has_row_errors: bool,
    /// The same.
    has_lines: bool,
    /// The same.
    has_tables: bool,
    verdicts: Vec<Verdict>,
}

impl Judge {
    fn is_known(&self) -> bool {
        !self.functions.is_empty()
    }

    fn note(&mut self, clause: &'static str, case: &str, finding: Finding) {
        let outcome = finding.map_or_else(Outcome::Failed, |()| Outcome::Passed);
        self.verdicts.push(Verdict { clause, case: case.to_string(), outcome });
    }

    fn skip(&mut self, clause: &'static str, case: &str, reason: &str) {
        let outcome = Outcome::Skipped(reason.to_string());
        self.verdicts.push(Verdict { clause, case: case.to_string(), outcome });
    }

    /// Judges a function of the suite, if the server has it.
    fn with(
        &mut self,
        clause: &'static str,
        case: &str,
        signature: Signature,
        work: impl FnOnce(&Judge, &Signature) -> Finding,
    ) {
        if !self.functions.contains(&signature.function) {
            return self.skip(clause, case, &format!("the server has no function \"{}\"", signature.function));
        }
        if self.transport == TransportName::Parquet
            && let Err(error) = parquet::check_types(&signature)
        {
            return self.skip(clause, case, &say(&error));
        }
        let finding = match self.signature(&signature.function) {
            Ok(offered) if signature.check_against(&offered, "").is_ok() => work(self, &signature),
            Ok(offered) => {
                return self.skip(clause, case, &format!("the server's is {offered}, the suite's {signature}"));
            }
            Err(error) => Err(say(&error)),
        };
        self.note(clause, case, finding);
    }

    fn signature(&self, function: &str) -> Result<Signature> {
        self.client.signature(&PlainHost, &self.target, self.transport, function, ANSWER_TIMEOUT)
    }

    /// The server as it is on the wire. Connections belong to the runtime in which this is called.
    fn flight(&self) -> Flight {
        Flight::new(self.endpoint.clone(), &self.credentials, None)
    }

    fn open(&self, signature: &Signature) -> Exchange {
        self.open_with(&self.client, signature)
    }

    fn open_with(&self, client: &Client, signature: &Signature) -> Exchange {
        client.open(self.call_of(signature))
    }

    /// An exchange that asks for the lines that the handler writes, or does not.
    fn open_asking(&self, signature: &Signature, wants_lines: bool) -> Exchange {
        self.client.open_observed(self.call_of(signature), Observation { wants_lines, ..Observation::default() })
    }

    fn call_of(&self, signature: &Signature) -> Arc<Call> {
        Arc::new(Call {
            target: self.target.clone(),
            transport: self.transport,
            signature: signature.clone(),
            // Nothing is sent twice: a server that drops a connection is found out.
            volatility: Volatility::Volatile,
            batch_timeout: ANSWER_TIMEOUT,
            start_timeout: ANSWER_TIMEOUT,
            tables: Vec::new(),
        })
    }

    fn call(
        &self,
        signature: &Signature,
        batches: Vec<(usize, Vec<ArrayRef>)>,
    ) -> std::result::Result<Vec<ArrayRef>, String> {
        self.call_with(&self.client, signature, batches)
    }

    fn call_with(
        &self,
        client: &Client,
        signature: &Signature,
        batches: Vec<(usize, Vec<ArrayRef>)>,
    ) -> std::result::Result<Vec<ArrayRef>, String> {
        self.exchange(client, signature, batches).map_err(|error| say(&error))
    }

    /// Sends batches, rows and columns of each, and gives the column of each answer.
    fn exchange(
        &self,
        client: &Client,
        signature: &Signature,
        batches: Vec<(usize, Vec<ArrayRef>)>,
    ) -> Result<Vec<ArrayRef>> {
        let mut exchange = self.open_with(client, signature);
        let count = batches.len();
        for (number, (rows, columns)) in batches.into_iter().enumerate() {
            exchange.send(batch(signature, number as u64, rows, columns, None));
        }
        (0..count).map(|_| exchange.receive(&PlainHost).map(|reply| reply.columns.column(0).clone())).collect()
    }
}

fn unary(name: &str, ty: Type) -> Signature {
    Signature::scalar(name, vec![Argument { name: String::new(), ty: ty.clone() }], ty)
}

/// A function of decimals in an array and in a composite value.
fn echo_decimals() -> Signature {
    unary("echo_decimals", Type::from_name("(a numeric, b numeric[])").expect("the suite's types are types"))
}

fn binary(name: &str) -> Signature {
    let argument = || Argument { name: String::new(), ty: Type::Int8 };
    Signature::scalar(name, vec![argument(), argument()], Type::Int8)
}

fn batch(
    signature: &Signature,
    number: u64,
    rows: usize,
    columns: Vec<ArrayRef>,
    step: Option<AggregateStep>,
) -> CallBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let columns = RecordBatch::try_new_with_options(signature.call_schema(), columns, &options);
    CallBatch { step, ..CallBatch::new(number, columns.expect("the suite's columns are of its types")) }
}

fn read_column(ty: &Type, values: &[Value]) -> std::result::Result<ArrayRef, String> {
    decode_column(ty, values).map_err(|fact| format!("the suite is wrong: {fact}"))
}

/// Values are compared as the JSON form writes them, in which NaN equals itself; JSON texts as the values they stand for.
fn expect(ty: &Type, found: &ArrayRef, expected: &ArrayRef) -> Finding {
    let text = |column: &ArrayRef| {
        let mut text = String::new();
        encode_column(&mut text, ty, column);
        text
    };
    let parse = |text: &str| {
        let texts: Vec<Option<String>> = serde_json::from_str(text).ok()?;
        let parsed = texts.iter().map(|text| text.as_ref().and_then(|text| serde_json::from_str(text).ok()));
        Some(parsed.collect::<Vec<Option<Value>>>())
    };
    let (found, expected) = (text(found), text(expected));
    if found == expected || (*ty == Type::Json && parse(&found) == parse(&expected)) {
        return Ok(());
    }
    let shown = |text: &str| {
        if text.chars().count() > 200 { format!("{} characters", text.chars().count()) } else { text.to_string() }
    };
    Err(format!("it answered {} to {}", shown(&found), shown(&expected)))
}

/// An error in one line.
fn say(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{} ({})", error.message(), detail.lines().last().unwrap_or_default()),
        None => error.message().to_string(),
    }
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::new(Kind::Unreachable, format!("could not start: {cause}")))?;
    runtime.block_on(async {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, work).await;
        answer.unwrap_or_else(|_| Err(Error::new(Kind::Timeout, "it did not answer in time")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A JSON server that answers as `answer` says, to method and path and body, until the test ends.
    fn serve(answer: fn(&str, &Value) -> (u16, Value)) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || while answer_one(&stream, answer).is_some() {});
            }
        });
        endpoint
    }

    fn answer_one(stream: &TcpStream, answer: fn(&str, &Value) -> (u16, Value)) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let (mut request, mut length) = (String::new(), 0);
        reader.read_line(&mut request).ok().filter(|bytes| *bytes > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let call = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (status, body) = answer(request.trim_end_matches(" HTTP/1.1\r\n"), &call);
        let body = body.to_string();
        write!(&mut &*stream, "HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()
    }

    fn hello(functions: &[&str]) -> (u16, Value) {
        (200, json!({"protocol": 1, "server": "test", "functions": functions}))
    }

    fn describe(ty: &str, arguments: usize) -> (u16, Value) {
        (200, json!({"arguments": vec![json!({"name": "x", "type": ty}); arguments], "returns": ty}))
    }

    fn failed(verdicts: &[Verdict]) -> Vec<String> {
        let is_failed = |verdict: &&Verdict| matches!(verdict.outcome, Outcome::Failed(_));
        verdicts.iter().filter(is_failed).map(|verdict| format!("§{} {}", verdict.clause, verdict.case)).collect()
    }

    #[test]
    fn a_server_that_does_everything_wrong_is_told_so_clause_by_clause() {
        let endpoint = serve(|request, call| match request {
            "GET /v1" => {
                let functions = ["echo_int4", "add", "fail_at", "constant", "write_line", "other"];
                let hello =
                    json!({"protocol": 1, "server": "test", "functions": functions, "row_errors": true, "lines": true});
                (200, hello)
            }
            "GET /v1/functions/echo_int4" => describe("int4", 1),
            "GET /v1/functions/add" => describe("int8", 2),
            "GET /v1/functions/fail_at" => describe("int8", 1),
            "GET /v1/functions/constant" => describe("int4", 0),
            "GET /v1/functions/write_line" => describe("text", 1),
            "GET /v1/functions/other" => (200, json!({"arguments": [{"type": "colour"}], "returns": "int4"})),
            // Unknown functions are described, values change, rows are swapped, nothing is checked, nothing fails.
            request if request.starts_with("GET") => describe("int4", 1),
            "POST /v1/functions/constant" => (200, json!({"batch": call["batch"], "columns": [[8, 8, 8]]})),
            _ => {
                let mut column = call["columns"][0].as_array().cloned().unwrap_or_default();
                column.reverse();
                (200, json!({"batch": call["batch"], "columns": [column]}))
            }
        });
        let verdicts = judge(&endpoint, TransportName::Json, None, &Credentials::default()).unwrap();
        assert_eq!(
            failed(&verdicts),
            [
                "§3 describes its 6 functions",
                "§3 does not know an unrecognized function",
                "§1 keeps every value of int4, and NULL",
                "§1 answers a function without arguments once per row",
                "§4.3 answers batches in order, and rows in order",
                "§4.4 answers 4 exchanges at a time",
                "§5 tells the batch, the row and the text of an exception",
                "§5 refuses arguments of other types, and lives on",
                "§5 refuses to call an unrecognized function",
                "§4.9 goes on after rows on which the handler raises an error, run once",
                "§4.9 goes on after rows on which the handler raises an error, run again",
                "§4.11 sends each client the lines of its own calls",
                "§6 refuses what is not JSON",
                "§6 refuses JSON that is no call",
                "§6 refuses a call with too few columns",
                "§6 refuses columns of other lengths than it has rows",
                "§6 rounds no integer that is written as a float",
                "§6 reads numbers as strings, and integral floats",
            ]
        );
        let skipped = verdicts.iter().find(|verdict| verdict.case == "keeps every value of bool, and NULL").unwrap();
        assert_eq!(
            skipped.to_string(),
            "skipped  §1    keeps every value of bool, and NULL: the server has no function \"echo_bool\""
        );
    }

    #[test]
    fn a_function_of_that_name_need_not_be_the_suites() {
        let endpoint = serve(|request, _| match request {
            "GET /v1" => hello(&["add"]),
            "GET /v1/functions/add" => describe("text", 2),
            _ => (404, json!({"error": {"kind": "function_not_found", "message": "no"}})),
        });
        let verdicts = judge(&endpoint, TransportName::Json, None, &Credentials::default()).unwrap();
        assert_eq!(failed(&verdicts), Vec::<String>::new());
        let add = verdicts.iter().find(|verdict| verdict.clause == "4.3").unwrap();
        assert!(
            add.to_string()
                .ends_with("the server's is add(text, text) returns text, the suite's add(int8, int8) returns int8")
        );
    }

    #[test]
    fn an_exception_that_could_be_a_gateways_is_none_of_the_handler() {
        let endpoint = serve(|request, call| match request {
            "GET /v1" => hello(&["fail_at"]),
            "GET /v1/functions/fail_at" => describe("int8", 1),
            "POST /v1/functions/fail_at" if call["rows"] == 2 => {
                (200, json!({"batch": call["batch"], "columns": [[1, 2]]}))
            }
            "POST /v1/functions/fail_at" => {
                (500, json!({"error": {"message": "13 is bad", "row": 2, "traceback": "t"}}))
            }
            _ => (404, json!({"error": {"kind": "function_not_found", "message": "no"}})),
        });
        let verdicts = judge(&endpoint, TransportName::Json, None, &Credentials::default()).unwrap();
        assert_eq!(failed(&verdicts), ["§5 tells the batch, the row and the text of an exception"]);
    }

    #[test]
    fn a_server_that_is_not_there_fails_once() {
        for address in ["unix:/nowhere/x.sock", "http+unix:/nowhere/x.sock"] {
            let verdicts = {
                let endpoint = Endpoint::parse(address).unwrap();
                judge(&endpoint, endpoint.transport_name(), None, &Credentials::default()).unwrap()
            };
            assert_eq!(failed(&verdicts), ["§2 says who it is and what it offers"]);
            assert_eq!(verdicts.len(), 1);
        }
    }
}
