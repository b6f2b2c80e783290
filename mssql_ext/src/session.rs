//! One session: a script's life from its description to its end.
//!
//! ```text
//!                     first Execute               Execute
//!  InitSession ▶ Describing ─────────────▶ Ready ◀───────┐
//!    InitColumn, InitParam │                 │ └─────────┘
//!                          │ any error       │ any error
//!                          ▼                 ▼
//!                        Failed ◀────────── Failed        CleanupSession ends it in every state
//! ```
//!
//! The function is looked up at the first Execute, when all columns and parameters are known. Each Execute is one
//! exchange: the rows at hand go out in batches, some at a time, and all results are there when it returns. Nothing
//! works after that but the lease, which lasts as long as the session or the process, whichever ends first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_select::take::take;
use udf_protocol::batch::CallBatch;
use udf_protocol::client::{Client, Exchange, MapEvent};
use udf_protocol::dispatch::Call;
use udf_protocol::host::PlainHost;
use udf_protocol::signature::FunctionKind;
use udf_protocol::transport::Reply;
use udf_protocol::{Error, Kind, Result};

use crate::binding::{Binding, InputColumn, Parameter, Source};
use crate::columns::SqlType;
use crate::columns::from_arrow::OutputColumn;
use crate::columns::to_arrow::{ColumnReader, Misfit, RawColumn};
use crate::function::{self, Function};
use crate::guard::{Failure, broken};
use crate::process::Process;
use crate::results::{Results, split};
use crate::script::Script;
use crate::telemetry::Telemetry;

/// A script at work.
pub struct Session {
    // for the session
    process: Arc<Process>,
    script: Script,
    columns: Vec<Option<InputColumn>>,
    parameters: Vec<Option<Parameter>>,
    client: Option<Client>,
    state: State,
    /// Calls of Execute so far.
    executions: u64,
    /// Input rows of the calls before.
    rows_before: u64,
    /// What was counted.
    pub telemetry: Telemetry,
    // for one call of Execute, kept until the next
    results: Option<Results>,
    /// One per parameter that took a value.
    outputs: Vec<Option<OutputColumn>>,
}

enum State {
    Describing,
    Ready(Arc<Ready>),
    Failed,
}

/// A function whose columns are bound.
struct Ready {
    function: Function,
    call: Arc<Call>,
    binding: Binding,
    passthrough: Vec<SqlType>,
}

impl Session {
    /// A session of so many columns and parameters.
    pub fn new(process: Arc<Process>, script: Script, columns: usize, parameters: usize) -> Session {
        Session {
            process,
            script,
            columns: vec![None; columns],
            parameters: vec![None; parameters],
            client: None,
            state: State::Describing,
            executions: 0,
            rows_before: 0,
            telemetry: Telemetry::default(),
            results: None,
            outputs: Vec::new(),
        }
    }

    /// Describes an input column.
    pub fn init_column(&mut self, number: usize, column: InputColumn) -> Result<()> {
        self.check_describing("InitColumn")?;
        match self.columns.get_mut(number) {
            Some(place @ None) => *place = Some(column),
            Some(Some(_)) => return Err(broken(&format!("column {number} was described before"))),
            None => return Err(broken(&format!("there is no column {number}"))),
        }
        Ok(())
    }

    /// Describes a parameter, again if the host likes: the last time counts.
    pub fn init_parameter(&mut self, number: usize, parameter: Parameter) -> Result<()> {
        self.check_describing("InitParam")?;
        let place =
            self.parameters.get_mut(number).ok_or_else(|| broken(&format!("there is no parameter {number}")))?;
        *place = Some(parameter);
        Ok(())
    }

    fn check_describing(&self, what: &str) -> Result<()> {
        match self.state {
            State::Describing => Ok(()),
            State::Ready(_) => Err(broken(&format!("{what} was called after Execute"))),
            State::Failed => Err(failed_before()),
        }
    }

    /// The types of the input columns; they must all have been described.
    pub fn input_columns(&self) -> Result<Vec<InputColumn>> {
        let missing = || broken("Execute was called before InitColumn");
        self.columns.iter().map(|column| column.clone().ok_or_else(missing)).collect()
    }

    /// Calls the function for the rows at hand; the number of result columns is the answer.
    pub fn execute(&mut self, rows: usize, inputs: &[RawColumn<'_>]) -> std::result::Result<usize, Failure> {
        // What the host may have read until now.
        self.results = None;
        let outcome = self.run(rows, inputs);
        if outcome.is_err() {
            self.state = State::Failed;
        }
        outcome
    }

    fn run(&mut self, rows: usize, inputs: &[RawColumn<'_>]) -> std::result::Result<usize, Failure> {
        let ready = match &self.state {
            State::Ready(ready) => ready.clone(),
            State::Describing => {
                let ready = Arc::new(self.prepare()?);
                self.state = State::Ready(ready.clone());
                ready
            }
            State::Failed => return Err(failed_before().into()),
        };
        // Without an input query the script runs once, as scripts of other languages do.
        let rows = if inputs.is_empty() && self.executions == 0 { rows.max(1) } else { rows };
        self.executions += 1;
        self.telemetry.executions += 1;
        let client = self.client.as_ref().expect("a session that is ready has a client");
        let mut execution = Execution {
            ready: &ready,
            exchange: client.open(ready.call.clone()),
            settings: &self.process.settings,
            rows,
            next_row: 0,
            next_number: 0,
            rows_before: self.rows_before,
            feed: Feed::new(&ready, &self.parameters, inputs)?,
            passing: ready.binding.passthrough.iter().map(|column| inputs[*column]).collect(),
            sent: VecDeque::new(),
            results: Results::new(&ready.passthrough, &ready.binding.results),
            last: None,
            telemetry: &mut self.telemetry,
        };
        match ready.call.signature.kind {
            FunctionKind::Map => execution.run_map()?,
            _ => execution.run_calls()?,
        }
        let Execution { mut results, last, .. } = execution;
        results.finish();
        self.telemetry.result_rows += results.rows() as u64;
        self.rows_before += rows as u64;
        if let Some(last) = last {
            self.set_outputs(&ready, &last)?;
        }
        self.results = Some(results);
        Ok(ready.passthrough.len() + ready.binding.results.len())
    }

    /// Looks the function up and binds the columns.
    fn prepare(&mut self) -> Result<Ready> {
        let columns = self.input_columns()?;
        let missing = || broken("Execute was called before InitParam");
        let parameters: Vec<Parameter> =
            self.parameters.iter().map(|parameter| parameter.clone().ok_or_else(missing)).collect::<Result<_>>()?;
        if self.client.is_none() {
            self.client = Some(Client::start()?);
        }
        let client = self.client.as_ref().expect("it was just started");
        let function = function::find(&self.process, client, &self.script)?;
        let binding =
            Binding::new(&self.script, &function.signature, &columns, &parameters, self.process.settings.guid)?;
        let call = Arc::new(function.call(&self.process, &self.script));
        let passthrough = binding.passthrough.iter().map(|column| columns[*column].sql).collect();
        self.outputs = parameters.iter().map(|_| None).collect();
        Ok(Ready { function, call, binding, passthrough })
    }

    /// OUTPUT parameters take the last row's values.
    fn set_outputs(&mut self, ready: &Ready, last: &ArrayRef) -> std::result::Result<(), Failure> {
        let values = split(&ready.binding.results, last);
        for (number, result) in &ready.binding.outputs {
            let parameter = self.parameters[*number].as_ref().expect("it was bound");
            let mut column = OutputColumn::new(match parameter.sql {
                // Hosts differ in whether they count bytes or characters.
                SqlType::WideChar(size) => SqlType::WideChar(2 * size),
                sql => sql,
            });
            column.append(&ready.binding.results[*result].ty, &values[*result]).map_err(|misfit| {
                let message = format!("parameter \"@{}\" cannot take its value", parameter.name);
                Error::new(Kind::OutOfRange, message).with_detail(sentence(&misfit.fact))
            })?;
            self.outputs[*number] = Some(column);
        }
        Ok(())
    }

    /// The type of a result column.
    pub fn result_column(&self, number: usize) -> Result<SqlType> {
        let State::Ready(ready) = &self.state else { return Err(broken("GetResultColumn was called before Execute")) };
        let results = ready.binding.results.iter().map(|result| result.sql);
        let found = ready.passthrough.iter().copied().chain(results).nth(number);
        found.ok_or_else(|| broken(&format!("there is no result column {number}")))
    }

    /// The results of the last call of Execute.
    pub fn results(&self) -> Result<&Results> {
        self.results.as_ref().ok_or_else(|| broken("GetResults was called before Execute"))
    }

    /// The value of an OUTPUT parameter; none if it is NULL, as it is before a row was answered.
    pub fn output(&self, number: usize) -> Result<Option<(*mut u8, i32)>> {
        let parameter = self.parameters.get(number).and_then(Option::as_ref);
        let parameter = parameter.ok_or_else(|| broken(&format!("there is no parameter {number}")))?;
        if !parameter.is_output {
            return Err(broken(&format!("parameter \"@{}\" is not declared OUTPUT", parameter.name)));
        }
        let column = self.outputs.get(number).and_then(Option::as_ref);
        Ok(column.map(|column| (column.data(), column.indicator(0))).filter(|(_, indicator)| *indicator >= 0))
    }

    /// Ends the session: its exchanges and leases are gone when this returns.
    pub fn end(&mut self) {
        if let Some(client) = self.client.take() {
            client.stop();
        }
    }
}

fn failed_before() -> Error {
    broken("a session was used after it had failed")
}

fn sentence(fact: &str) -> String {
    let mut text: String = fact.chars().take(1).flat_map(char::to_uppercase).collect();
    text.extend(fact.chars().skip(1));
    text.push('.');
    text
}

/// What feeds the arguments of one call of Execute.
struct Feed<'a> {
    arguments: Vec<FeedColumn<'a>>,
}

enum FeedColumn<'a> {
    Column(ColumnReader<'a>),
    /// A parameter's value, as one row.
    Constant(ArrayRef),
}

impl<'a> Feed<'a> {
    fn new(
        ready: &Ready,
        parameters: &[Option<Parameter>],
        inputs: &[RawColumn<'a>],
    ) -> std::result::Result<Feed<'a>, Failure> {
        let mut arguments = Vec::with_capacity(ready.binding.arguments.len());
        for (source, argument) in ready.binding.arguments.iter().zip(&ready.call.signature.arguments) {
            let unbound = || Failure::from(broken("a column changed its type"));
            arguments.push(match source {
                Source::Column(column) => {
                    FeedColumn::Column(ColumnReader::new(inputs[*column], &argument.ty).ok_or_else(unbound)?)
                }
                Source::Parameter(number) => {
                    let parameter = parameters[*number].as_ref().expect("it was bound");
                    let length = parameter.value.as_ref().map_or(-1, |value| value.len() as i32).to_le_bytes();
                    let column = RawColumn::of_value(parameter.sql, parameter.value.as_deref(), &length);
                    let mut reader = ColumnReader::new(column, &argument.ty).ok_or_else(unbound)?;
                    FeedColumn::Constant(reader.read(0..1).map_err(|misfit| {
                        let message = format!("parameter \"@{}\" cannot be sent", parameter.name);
                        Error::new(Kind::OutOfRange, message).with_detail(sentence(&misfit.fact))
                    })?)
                }
            });
        }
        Ok(Feed { arguments })
    }

    /// How many rows from `first` on make a batch.
    fn batch_rows(&self, first: usize, rows: usize, max_rows: usize, max_bytes: usize) -> usize {
        let columns = || {
            self.arguments.iter().filter_map(|argument| match argument {
                FeedColumn::Column(reader) => Some(reader),
                FeedColumn::Constant(_) => None,
            })
        };
        let fixed_bytes: usize = columns().filter_map(ColumnReader::element_bytes).sum();
        let last = rows.min(first + max_rows).min(first + max_bytes / fixed_bytes.max(1) + 1);
        let packed: Vec<_> = columns().filter(|reader| reader.element_bytes().is_none()).collect();
        if packed.is_empty() {
            return last - first;
        }
        let mut bytes = 0;
        for row in first..last {
            bytes += fixed_bytes + packed.iter().map(|reader| reader.packed_bytes(row)).sum::<usize>();
            if bytes >= max_bytes {
                return row + 1 - first;
            }
        }
        last - first
    }

    /// The arguments of the next rows.
    fn read(&mut self, rows: Range<usize>) -> std::result::Result<Vec<ArrayRef>, Misfit> {
        let mut arrays = Vec::with_capacity(self.arguments.len());
        for argument in &mut self.arguments {
            arrays.push(match argument {
                FeedColumn::Column(reader) => reader.read(rows.clone())?,
                FeedColumn::Constant(value) => repeat(value, rows.len()),
            });
        }
        Ok(arrays)
    }
}

fn repeat(value: &ArrayRef, rows: usize) -> ArrayRef {
    take(value, &UInt32Array::from(vec![0; rows]), None).expect("the value has a row 0")
}

/// One call of Execute.
struct Execution<'a> {
    // for the call
    ready: &'a Ready,
    exchange: Exchange,
    settings: &'a crate::settings::Settings,
    rows: usize,
    rows_before: u64,
    feed: Feed<'a>,
    passing: Vec<RawColumn<'a>>,
    telemetry: &'a mut Telemetry,
    // for the batches
    next_row: usize,
    next_number: u64,
    sent: VecDeque<Sent>,
    // what comes of it
    results: Results,
    /// The last row of results.
    last: Option<ArrayRef>,
}

/// A batch whose answer is awaited.
struct Sent {
    rows: Range<usize>,
    /// Of a strict function: which of the rows were sent, counted from the first. None if all were.
    kept: Option<Vec<u32>>,
}

impl Sent {
    /// The input row of the i-th row that was sent.
    fn row(&self, sent: usize) -> usize {
        let kept = self.kept.as_ref().and_then(|kept| kept.get(sent)).map(|row| *row as usize);
        self.rows.start + kept.unwrap_or(sent)
    }

    fn is_answered_by_nobody(&self) -> bool {
        self.kept.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Execution<'_> {
    /// Scalar and table functions: every batch has its answer.
    fn run_calls(&mut self) -> std::result::Result<(), Failure> {
        loop {
            while self.next_row < self.rows && self.sent.len() < self.settings.batch_window {
                self.send_batch()?;
            }
            let Some(sent) = self.sent.pop_front() else { return Ok(()) };
            if sent.is_answered_by_nobody() {
                self.add_answer(&sent, None)?;
                continue;
            }
            loop {
                let start = Instant::now();
                let outcome = self.exchange.receive(&PlainHost);
                self.telemetry.wait += start.elapsed();
                let reply = outcome.map_err(|error| self.blame(error, Some(&sent)))?;
                let is_last = reply.is_last;
                self.count(&reply);
                self.add_answer(&sent, Some(reply))?;
                if is_last {
                    break;
                }
            }
        }
    }

    /// Map functions: results come when they come.
    fn run_map(&mut self) -> std::result::Result<(), Failure> {
        loop {
            while self.next_row < self.rows && self.exchange.untaken() < self.settings.batch_window {
                self.send_batch()?;
            }
            if self.next_row == self.rows {
                self.exchange.close();
            }
            // Nobody awaits a batch's own answer.
            self.sent.clear();
            let start = Instant::now();
            let outcome = self.exchange.receive_from_map(&PlainHost);
            self.telemetry.wait += start.elapsed();
            match outcome.map_err(|error| self.blame(error, None))? {
                MapEvent::Taken => {}
                MapEvent::Results(reply) => {
                    self.count(&reply);
                    let results = reply.columns.column(0).clone();
                    self.add(&results).map_err(|misfit| self.misfit(&misfit, None))?;
                }
                MapEvent::End => return Ok(()),
            }
        }
    }

    fn send_batch(&mut self) -> std::result::Result<(), Failure> {
        let start = Instant::now();
        let max_rows = self.ready.function.max_batch_rows.unwrap_or(self.settings.batch_rows);
        let count = self.feed.batch_rows(self.next_row, self.rows, max_rows, self.settings.batch_bytes);
        let rows = self.next_row..self.next_row + count;
        let mut arguments = self.feed.read(rows.clone()).map_err(|misfit| {
            let message = "a value cannot be sent";
            let error = Error::new(Kind::OutOfRange, message).with_detail(sentence(&misfit.fact));
            Failure { error, context: Some(self.context(Some(misfit.row))) }
        })?;
        self.next_row = rows.end;
        let mut kept = None;
        if self.ready.function.is_strict && arguments.iter().any(|argument| argument.logical_null_count() > 0) {
            let has_all = |row: &u32| arguments.iter().all(|argument| argument.is_valid(*row as usize));
            let rows: Vec<u32> = (0..count as u32).filter(has_all).collect();
            let indices = UInt32Array::from(rows.clone());
            arguments = arguments.iter().map(|a| take(a, &indices, None).expect("the rows exist")).collect();
            kept = Some(rows);
        }
        let sent_rows = kept.as_ref().map_or(count, Vec::len);
        let sent = Sent { rows, kept };
        if !sent.is_answered_by_nobody() {
            let options = RecordBatchOptions::new().with_row_count(Some(sent_rows));
            let schema = self.ready.call.signature.call_schema();
            let columns = RecordBatch::try_new_with_options(schema, arguments, &options)
                .expect("each argument was read as its type");
            self.exchange.send(CallBatch { number: self.next_number, columns, step: None });
            self.next_number += 1;
            self.telemetry.batches += 1;
        }
        self.telemetry.rows += count as u64;
        self.telemetry.convert_in += start.elapsed();
        self.sent.push_back(sent);
        Ok(())
    }

    /// Adds the answer to a batch, or a part of it; none if nothing of the batch was sent.
    fn add_answer(&mut self, sent: &Sent, reply: Option<Reply>) -> std::result::Result<(), Failure> {
        let start = Instant::now();
        if self.ready.call.signature.kind == FunctionKind::Table {
            let Some(reply) = reply else { return Ok(()) };
            let numbers = reply.columns.column(0).as_primitive::<Int32Type>();
            if !self.passing.is_empty() {
                for number in numbers.values() {
                    // The protocol's client has checked that they are rows of the batch, in order.
                    let row = sent.row(*number as usize);
                    self.results.pass(&self.passing, row..row + 1);
                }
            }
            let results = reply.columns.column(1).clone();
            self.add(&results).map_err(|misfit| {
                let row = numbers.values().get(misfit.row).map(|number| sent.row(*number as usize));
                self.misfit(&misfit, row)
            })?;
        } else {
            let results = match (&reply, &sent.kept) {
                (Some(reply), None) => reply.columns.column(0).clone(),
                (Some(reply), Some(kept)) => scatter(reply.columns.column(0), kept, sent.rows.len()),
                (None, _) => {
                    arrow_array::new_null_array(&self.ready.call.signature.result.data_type(), sent.rows.len())
                }
            };
            self.results.pass(&self.passing, sent.rows.clone());
            self.add(&results).map_err(|misfit| self.misfit(&misfit, Some(sent.rows.start + misfit.row)))?;
        }
        self.telemetry.convert_out += start.elapsed();
        Ok(())
    }

    fn add(&mut self, results: &ArrayRef) -> std::result::Result<(), Misfit> {
        self.results.add(&self.ready.binding.results, results)?;
        if !results.is_empty() {
            self.last = Some(results.slice(results.len() - 1, 1));
        }
        Ok(())
    }

    fn count(&mut self, reply: &Reply) {
        self.telemetry.bytes_sent += reply.bytes_sent as u64;
        self.telemetry.bytes_received += reply.bytes_received as u64;
        self.telemetry.function_us += reply.compute_us;
    }

    fn misfit(&self, misfit: &Misfit, row: Option<usize>) -> Failure {
        let message =
            format!("a result of container function \"{}\" cannot be returned", self.ready.call.signature.function);
        let error = Error::new(Kind::BadResult, message).with_detail(sentence(&misfit.fact));
        Failure { error, context: Some(self.context(row)) }
    }

    fn blame(&self, error: Error, sent: Option<&Sent>) -> Failure {
        let row = match (error.row(), sent) {
            (Some(row), Some(sent)) => Some(sent.row(usize::try_from(row).unwrap_or(0))),
            _ => None,
        };
        let rows = sent.filter(|_| row.is_none()).map(|sent| sent.rows.clone());
        let context = match rows {
            Some(rows) if rows.len() > 1 => {
                let first = self.rows_before + rows.start as u64 + 1;
                format!("{}, rows {first} to {}", self.context(None), self.rows_before + rows.end as u64)
            }
            Some(rows) => self.context(Some(rows.start)),
            None => self.context(row),
        };
        Failure { error: function::add_advice(error), context: Some(context) }
    }

    /// Function, image, and the row, counted from one over the whole input.
    fn context(&self, row: Option<usize>) -> String {
        let mut text =
            format!("container function \"{}\", {}", self.ready.call.signature.function, self.ready.function.place);
        if let Some(row) = row {
            text.push_str(&format!(", row {}", self.rows_before + row as u64 + 1));
        }
        text
    }
}

/// Answers to some rows as a column for all: the others are NULL.
fn scatter(answers: &ArrayRef, kept: &[u32], rows: usize) -> ArrayRef {
    let mut indices: Vec<Option<u32>> = vec![None; rows];
    for (answer, row) in kept.iter().enumerate() {
        indices[*row as usize] = Some(answer as u32);
    }
    take(answers, &UInt32Array::from(indices), None).expect("each answer exists")
}
