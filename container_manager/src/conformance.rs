//! Judges a server against `docs/protocol.md`: any server, in any language, anywhere.
//!
//! What the protocol asks of every server is asked of this one too. The rest needs functions of known behaviour: those of
//! the suite (`container_templates/<language>/conformance`), as far as the server has them under their names and
//! signatures. Each case names the clause that it is about; a case that cannot be judged is told as skipped, with the
//! reason.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
};
use serde_json::{Value, json};
use udf_protocol::batch::{AggregateStep, CallBatch};
use udf_protocol::client::Client;
use udf_protocol::codec::json::{decode_column, encode_column};
use udf_protocol::codec::parquet;
use udf_protocol::dispatch::{Call, Target};
use udf_protocol::exchange::{Exchange, MapEvent};
use udf_protocol::host::PlainHost;
use udf_protocol::manifest::TransportName;
use udf_protocol::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_protocol::transport::rest::{Form, Rest};
use udf_protocol::transport::{COLUMNS, Credentials, Endpoint, PROTOCOL_VERSION};
use udf_protocol::types::{TABLE, Type};
use udf_protocol::{Error, Kind, Result};

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
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
        verdicts: Vec::new(),
    };
    judge.judge_handshake();
    if judge.is_known() {
        judge.judge_signatures();
        judge.judge_values();
        judge.judge_exchanges();
        judge.judge_kinds();
        judge.judge_errors();
        judge.judge_json();
        judge.judge_columns();
    }
    Ok(judge.verdicts)
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

    fn open(&self, signature: &Signature) -> Exchange {
        self.open_with(&self.client, signature)
    }

    fn open_with(&self, client: &Client, signature: &Signature) -> Exchange {
        client.open(Arc::new(Call {
            target: self.target.clone(),
            transport: self.transport,
            signature: signature.clone(),
            // Nothing is sent twice: a server that drops a connection is found out.
            volatility: Volatility::Volatile,
            batch_timeout: ANSWER_TIMEOUT,
            start_timeout: ANSWER_TIMEOUT,
        }))
    }

    // §2

    fn judge_handshake(&mut self) {
        let hello = block_on(async { self.endpoint.transport(&self.credentials).hello().await });
        let finding = match &hello {
            Err(error) => Err(say(error)),
            Ok(info) if info.protocol != PROTOCOL_VERSION => Err(format!("it says protocol {}", info.protocol)),
            Ok(info) if info.server.is_empty() => Err("it does not say what server it is".to_string()),
            Ok(info) if info.functions.is_empty() => Err("it names no functions".to_string()),
            Ok(_) => Ok(()),
        };
        self.note("2", "says who it is and what it offers", finding);
        if let Ok(info) = hello {
            self.functions = info.functions;
        }
    }

    // §3

    fn judge_signatures(&mut self) {
        let names = self.functions.clone();
        let wrong: Vec<String> = names
            .iter()
            .filter_map(|name| self.signature(name).err().map(|error| format!("\"{name}\": {}", say(&error))))
            .collect();
        let finding = if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) };
        self.note("3", &format!("describes its {} functions", names.len()), finding);
        let finding = match self.signature("no such function") {
            Err(error) if error.kind() == Kind::FunctionNotFound => Ok(()),
            Err(error) => Err(say(&error)),
            Ok(signature) => Err(format!("it describes it as {signature}")),
        };
        self.note("3", "does not know an unrecognized function", finding);
    }

    // §1

    fn judge_values(&mut self) {
        for entry in TABLE {
            let texts: Vec<Value> =
                entry.examples.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()).collect();
            self.judge_echo(&format!("echo_{}", entry.name), &entry.ty, texts);
        }
        for (name, ty, values) in [
            ("echo_array", "int4[]", json!([[1, null, -3], []])),
            (
                "echo_range",
                "range(int8)",
                json!([{"lower": 1, "upper": null, "lower_inc": true, "upper_inc": false, "empty": false}]),
            ),
            ("echo_composite", "(a int4, b text)", json!([{"a": 1, "b": null}, {"a": null, "b": "ü"}])),
        ] {
            let ty = Type::from_name(ty).expect("the suite's types are types");
            self.judge_echo(name, &ty, values.as_array().cloned().unwrap_or_default());
        }
        let text = StringArray::from(vec!["ü".repeat(LARGE_VALUE_BYTES / 2)]);
        self.with("1", "takes and gives 1 MiB of text", unary("echo_text", Type::Text), |judge, signature| {
            judge.expect_same(signature, &(Arc::new(text) as ArrayRef))
        });
        let bytes = BinaryArray::from_vec(vec![&[0xff; LARGE_VALUE_BYTES]]);
        self.with("1", "takes and gives 1 MiB of bytes", unary("echo_bytea", Type::Bytea), |judge, signature| {
            judge.expect_same(signature, &(Arc::new(bytes) as ArrayRef))
        });
        let constant = Signature::scalar("constant", Vec::new(), Type::Int4);
        self.with("1", "answers a function without arguments once per row", constant, |judge, signature| {
            let answers = judge.call(signature, vec![(3, Vec::new())])?;
            expect(&Type::Int4, &answers[0], &(Arc::new(Int32Array::from(vec![7; 3])) as ArrayRef))
        });
    }

    fn judge_echo(&mut self, name: &str, ty: &Type, mut values: Vec<Value>) {
        values.push(Value::Null);
        let case = format!("keeps every value of {ty}, and NULL");
        self.with("1", &case, unary(name, ty.clone()), |judge, signature| {
            // docs/protocol.md §5: a language that cannot hold a value says so.
            let mut held = Vec::new();
            for value in values {
                let column = read_column(ty, std::slice::from_ref(&value))?;
                match judge.exchange(&judge.client, signature, vec![(1, vec![column])]) {
                    Err(error) if error.kind() == Kind::OutOfRange && !value.is_null() => {}
                    _ => held.push(value),
                }
            }
            if held.len() < 2 {
                return Err("it cannot hold any".to_string());
            }
            judge.expect_same(signature, &read_column(ty, &held)?)
        });
    }

    /// A column comes back as it went, and so does one without rows.
    fn expect_same(&self, signature: &Signature, column: &ArrayRef) -> Finding {
        let empty = column.slice(0, 0);
        let batches = [column, &empty, column].map(|column| (column.len(), vec![column.clone()]));
        let answers = self.call(signature, batches.to_vec())?;
        for (answer, (_, sent)) in answers.iter().zip(&batches) {
            expect(&signature.result, answer, &sent[0])?;
        }
        Ok(())
    }

    // §4

    fn judge_exchanges(&mut self) {
        let add = binary("add");
        self.with("4.3", "answers batches in order, and rows in order", add.clone(), |judge, signature| {
            judge.expect_sums(&judge.client, signature, 40)
        });
        self.with(
            "4.4",
            &format!("answers {CONCURRENT_EXCHANGES} exchanges at a time"),
            add.clone(),
            |judge, signature| {
                thread::scope(|scope| {
                    let threads: Vec<_> = (0..CONCURRENT_EXCHANGES)
                        .map(|_| {
                            scope.spawn(|| {
                                let client = Client::start().map_err(|error| say(&error))?;
                                judge.expect_sums(&client, signature, 10)
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a case failed".to_string())))
                })
            },
        );
        if !self.functions.iter().any(|name| name == "add") {
            return self.skip("4.8", "lives on when a client loses interest", "the server has no function \"add\"");
        }
        self.with("4.8", "lives on when a client loses interest", unary("wait", Type::Float8), |judge, signature| {
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 1, vec![Arc::new(Float64Array::from(vec![1.0])) as ArrayRef], None));
            thread::sleep(Duration::from_millis(200));
            drop(exchange);
            judge.expect_sums(&judge.client, &add, 2)
        });
    }

    /// Batches of 0, 1, 2, ... rows, all sent before the first is answered.
    fn expect_sums(&self, client: &Client, signature: &Signature, count: i64) -> Finding {
        let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let rows = |number: i64| 0..number * 7 % 50;
        let batches = (0..count).map(|number| {
            let (ones, others) = rows(number).map(|row| (row * 1000, number)).unzip();
            (rows(number).count(), vec![column(ones), column(others)])
        });
        let answers = self.call_with(client, signature, batches.collect())?;
        for (number, answer) in (0..count).zip(answers) {
            expect(&Type::Int8, &answer, &column(rows(number).map(|row| row * 1000 + number).collect()))?;
        }
        Ok(())
    }

    fn judge_kinds(&mut self) {
        let repeat = Signature { kind: FunctionKind::Table, ..unary("repeat", Type::Int4) };
        self.with("4.5", "gives a table function's results with their rows", repeat, |judge, signature| {
            let counts: ArrayRef = Arc::new(Int32Array::from(vec![Some(2), Some(0), None, Some(3)]));
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 4, vec![counts.clone()], None));
            exchange.send(batch(signature, 1, 4, vec![counts], None));
            for _ in 0..2 {
                let (mut rows, mut values) = (Vec::new(), Vec::new());
                loop {
                    let reply = exchange.receive(&PlainHost).map_err(|error| say(&error))?;
                    rows.extend(reply.columns.column(0).as_primitive::<Int32Type>().values());
                    values.extend(reply.columns.column(1).as_primitive::<Int32Type>().values());
                    if reply.is_last {
                        break;
                    }
                }
                let found = (rows.as_slice(), values.as_slice());
                if found != (&[0, 0, 3, 3, 3], &[1, 2, 1, 2, 3]) {
                    return Err(format!("rows and results are {found:?}"));
                }
            }
            Ok(())
        });
        if self.transport != TransportName::Flight {
            self.skip("4.6", "streams a map function", "there is a form for it in Flight only");
        } else {
            let sums = Signature { kind: FunctionKind::Map, ..unary("running_sum", Type::Int8) };
            self.with("4.6", "streams a map function", sums, Judge::expect_running_sums);
        }
        let total = Signature { kind: FunctionKind::Aggregate, ..unary("total", Type::Int8) };
        let clause = if self.transport == TransportName::Flight { "4.7" } else { "6" };
        self.with(clause, "keeps an aggregate function's groups, and merges them", total, Judge::expect_totals);
    }

    /// Each batch's running sums, over the whole stream.
    fn expect_running_sums(&self, signature: &Signature) -> Finding {
        let mut exchange = self.open(signature);
        for number in 0..3 {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 10]));
            exchange.send(batch(signature, number, 2, vec![column], None));
        }
        exchange.close();
        let mut found = Vec::new();
        loop {
            match exchange.receive_from_map(&PlainHost).map_err(|error| say(&error))? {
                MapEvent::Results(reply) => {
                    found.extend_from_slice(reply.columns.column(0).as_primitive::<Int64Type>().values())
                }
                MapEvent::Taken => {}
                MapEvent::End => break,
            }
        }
        if found == [1, 11, 12, 22, 23, 33] { Ok(()) } else { Err(format!("its results are {found:?}")) }
    }

    /// Two groups that grow, give their states, take each other's, and are asked for again.
    fn expect_totals(&self, signature: &Signature) -> Finding {
        let mut exchange = self.open(signature);
        let groups = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let no_values = |rows: usize| Arc::new(Int64Array::from(vec![None; rows])) as ArrayRef;
        let no_states = |rows: usize| Arc::new(BinaryArray::from(vec![None::<&[u8]>; rows])) as ArrayRef;
        let mut number = 0;
        let mut step = |columns: Vec<ArrayRef>, step| -> std::result::Result<RecordBatch, String> {
            exchange.send(batch(signature, number, columns[0].len(), columns, Some(step)));
            number += 1;
            exchange.receive(&PlainHost).map(|reply| reply.columns).map_err(|error| say(&error))
        };
        step(vec![groups(vec![0, 1, 0]), groups(vec![5, 7, 6]), no_states(3)], AggregateStep::Accumulate)?;
        let finished = step(vec![groups(vec![1, 0]), no_values(2), no_states(2)], AggregateStep::Finish)?;
        expect(&Type::Int8, finished.column(0), &groups(vec![7, 11]))?;
        let states = step(vec![groups(vec![0]), no_values(1), no_states(1)], AggregateStep::State)?;
        step(vec![groups(vec![1]), no_values(1), states.column(1).clone()], AggregateStep::Merge)?;
        step(vec![groups(vec![0]), no_values(1), no_states(1)], AggregateStep::Forget)?;
        let finished = step(vec![groups(vec![1]), no_values(1), no_states(1)], AggregateStep::Finish)?;
        expect(&Type::Int8, finished.column(0), &groups(vec![18]))
    }

    // §5

    fn judge_errors(&mut self) {
        let fail = unary("fail_at", Type::Int8);
        self.with("5", "tells the batch, the row and the text of an exception", fail, |judge, signature| {
            let column = |values: Vec<i64>| vec![Arc::new(Int64Array::from(values)) as ArrayRef];
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 2, column(vec![1, 2]), None));
            exchange.send(batch(signature, 1, 3, column(vec![1, 2, 13]), None));
            exchange
                .receive(&PlainHost)
                .map_err(|error| format!("the batch before the exception failed: {}", say(&error)))?;
            match exchange.receive(&PlainHost) {
                Ok(_) => Err("there was none".to_string()),
                Err(error) if error.kind() != Kind::UserCode => {
                    Err(format!("it is of kind {:?}: {}", error.kind(), say(&error)))
                }
                Err(error) if error.row() != Some(2) => Err(format!("the row is {:?}", error.row())),
                Err(error) if !error.message().contains("13 is bad") => Err(format!("the text is {}", error.message())),
                Err(error) if error.detail().is_none() => Err("there is no traceback".to_string()),
                Err(_) => Ok(()),
            }
        });
        let echo = unary("echo_int4", Type::Int4);
        self.with("5", "refuses arguments of other types, and lives on", echo, |judge, signature| {
            let wrong = unary("echo_int4", Type::Text);
            let column: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
            let refused = judge.exchange(&judge.client, &wrong, vec![(1, vec![column])]);
            match refused {
                Err(error) if error.kind() == Kind::ProtocolViolation => {}
                Err(error) => return Err(format!("it is of kind {:?}: {}", error.kind(), say(&error))),
                Ok(_) => return Err("it answered".to_string()),
            }
            judge.expect_same(signature, &(Arc::new(Int32Array::from(vec![1])) as ArrayRef))
        });
        let unknown = unary("no such function", Type::Int4);
        let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        let finding = match self.exchange(&self.client, &unknown, vec![(1, vec![column])]) {
            Err(error) if error.kind() == Kind::FunctionNotFound => Ok(()),
            Err(error) => Err(format!("it is of kind {:?}: {}", error.kind(), say(&error))),
            Ok(_) => Err("it answered".to_string()),
        };
        self.note("5", "refuses to call an unrecognized function", finding);
    }

    // §6

    fn judge_json(&mut self) {
        if self.transport != TransportName::Json {
            return;
        }
        let rest = Rest::new(self.endpoint.clone(), &self.credentials, Form::Json);
        let post = |path: &str, body: String| {
            block_on(rest.post(path, "application/json", body.into())).map_err(|error| say(&error))
        };
        for (case, body) in [
            ("refuses what is not JSON", "{\"batch\": 0, ".to_string()),
            ("refuses JSON that is no call", "[1, 2]".to_string()),
            ("refuses a call with too few columns", json!({"batch": 0, "rows": 1, "columns": [[1]]}).to_string()),
            (
                "refuses columns of other lengths than it has rows",
                json!({"batch": 0, "rows": 2, "columns": [[1, 2], [1]]}).to_string(),
            ),
        ] {
            self.with("6", case, binary("add"), |_, _| {
                let (status, answer) = post("/v1/functions/add", body)?;
                let kind = serde_json::from_slice::<Value>(&answer)
                    .ok()
                    .and_then(|answer| answer.pointer("/error/kind").cloned());
                if status == 400 && kind == Some(json!("protocol_violation")) {
                    Ok(())
                } else {
                    Err(format!("the status is {status}, the kind {kind:?}"))
                }
            });
        }
        let step = |exchange: &str, number: u64| json!({"batch": number, "rows": 1, "columns": [[0], [1], [null]], "exchange": exchange, "step": "accumulate"});
        let total = Signature { kind: FunctionKind::Aggregate, ..unary("total", Type::Int8) };
        self.with("6", "refuses to go on with an exchange that it does not know", total, |_, _| {
            let (first, _) = post("/v1/functions/total", step("conformance-a", 0).to_string())?;
            let (later, _) = post("/v1/functions/total", step("conformance-b", 1).to_string())?;
            if (first, later) == (200, 400) { Ok(()) } else { Err(format!("the statuses are {first} and {later}")) }
        });
        self.with("6", "reads numbers as strings, and integral floats", binary("add"), |_, _| {
            let body = json!({"batch": 3, "rows": 2, "columns": [["1", 2.0], ["9007199254740993", null]]});
            let (status, answer) = post("/v1/functions/add", body.to_string())?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            if status == 200 && answer["columns"] == json!([["9007199254740994", null]]) && answer["batch"] == json!(3)
            {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
    }

    // §7

    fn judge_columns(&mut self) {
        if self.transport != TransportName::Socket {
            return;
        }
        let rest = Rest::new(self.endpoint.clone(), &self.credentials, Form::Columns { pipelining: None });
        let framed = |header: Value, data: &[u8]| {
            let header = header.to_string();
            let mut body = (header.len() as u32).to_le_bytes().to_vec();
            body.extend_from_slice(header.as_bytes());
            body.resize(body.len().next_multiple_of(8), 0);
            body.extend_from_slice(data);
            body
        };
        let numbers = |buffers: Value| json!({"batch": 0, "rows": 1, "buffers": buffers});
        let text_function =
            Signature::scalar("echo_text", vec![Argument { name: String::new(), ty: Type::Text }], Type::Text);
        let no_text: &[u8] = b"\0\0\0\0\x01\0\0\0\xff";
        for (case, function, body) in [
            ("refuses a header that is cut off", "add", vec![255, 0, 0, 0, b'{']),
            ("refuses a header that is not JSON", "add", framed(json!("x"), &[])),
            ("refuses buffers outside of the data", "add", framed(numbers(json!([0, 0, 0, 8, 0, 0, 8, 16])), &[0; 16])),
            ("refuses buffers that are too short", "add", framed(numbers(json!([0, 0, 0, 8, 0, 0, 8, 4])), &[0; 16])),
            (
                "refuses buffers whose ends cannot be counted",
                "add",
                framed(numbers(json!([0, 0, 8, u64::MAX, 0, 0, 0, 8])), &[0; 16]),
            ),
            ("refuses too few buffers", "add", framed(numbers(json!([0, 0, 0, 8])), &[0; 16])),
            ("refuses too many buffers", "add", framed(numbers(json!([0, 0, 0, 8, 0, 0, 8, 8, 0, 0])), &[0; 16])),
            (
                "refuses more rows than there are values",
                "add",
                framed(json!({"batch": 0, "rows": 1_u64 << 60, "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}), &[0; 16]),
            ),
            (
                "refuses offsets that point outside",
                "echo_text",
                framed(numbers(json!([0, 0, 0, 8, 8, 1])), b"\0\0\0\0\x09\0\0\0x"),
            ),
            (
                "refuses offsets that descend",
                "echo_text",
                framed(
                    json!({"batch": 0, "rows": 2, "buffers": [0, 0, 0, 12, 16, 4]}),
                    b"\0\0\0\0\x04\0\0\0\x02\0\0\0\0\0\0\0abcd",
                ),
            ),
            ("refuses text that is not UTF-8", "echo_text", framed(numbers(json!([0, 0, 0, 8, 8, 1])), no_text)),
            (
                "refuses a segment that is not there",
                "add",
                framed(
                    json!({"batch": 0, "rows": 1, "segment": "0".repeat(32), "reply_segment": "1".repeat(32), "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}),
                    &[],
                ),
            ),
            (
                "refuses a segment outside of the folder",
                "add",
                framed(
                    json!({"batch": 0, "rows": 1, "segment": "../http.sock", "reply_segment": "../http.sock", "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}),
                    &[],
                ),
            ),
        ] {
            let signature = if function == "add" { binary("add") } else { text_function.clone() };
            self.with("7", case, signature, |_, _| {
                let path = format!("/v1/functions/{function}");
                let (status, answer) = block_on(rest.post(&path, COLUMNS, body)).map_err(|error| say(&error))?;
                let answer = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
                if status == 400 && answer.pointer("/error/kind") == Some(&json!("protocol_violation")) {
                    Ok(())
                } else {
                    Err(format!("the status is {status}, the answer {answer}"))
                }
            });
        }
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
            "GET /v1" => hello(&["echo_int4", "add", "fail_at", "constant", "other"]),
            "GET /v1/functions/echo_int4" => describe("int4", 1),
            "GET /v1/functions/add" => describe("int8", 2),
            "GET /v1/functions/fail_at" => describe("int8", 1),
            "GET /v1/functions/constant" => describe("int4", 0),
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
                "§3 describes its 5 functions",
                "§3 does not know an unrecognized function",
                "§1 keeps every value of int4, and NULL",
                "§1 answers a function without arguments once per row",
                "§4.3 answers batches in order, and rows in order",
                "§4.4 answers 4 exchanges at a time",
                "§5 tells the batch, the row and the text of an exception",
                "§5 refuses arguments of other types, and lives on",
                "§5 refuses to call an unrecognized function",
                "§6 refuses what is not JSON",
                "§6 refuses JSON that is no call",
                "§6 refuses a call with too few columns",
                "§6 refuses columns of other lengths than it has rows",
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
