//! One call of Execute: an exchange that sends the rows at hand in batches, some at a time, and collects the results.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow_select::take::take;
use udf_client::client::Client;
use udf_client::driver::{Driver, Hosted};
use udf_client::exchange::MapEvent;
use udf_client::host::PlainHost;
use udf_client::inbox::Reply;
use udf_client::pace::Pace;
use udf_client::trace::Observation;
use udf_codec::batch::CallBatch;
use udf_types::signature::FunctionKind;
use udf_types::{Error, Kind};

use crate::binding::Parameter;
use crate::columns::Misfit;
use crate::columns::raw::RawColumn;
use crate::feed::Feed;
use crate::function;
use crate::guard::Failure;
use crate::results::Results;
use crate::session::Ready;
use crate::telemetry::{Telemetry, thread_time};

/// One call of Execute.
pub struct Execution<'a> {
    // for the call
    ready: &'a Ready,
    driver: Driver<Hosted<PlainHost>>,
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

    /// How many rows were sent.
    fn count(&self) -> usize {
        self.kept.as_ref().map_or(self.rows.len(), Vec::len)
    }

    fn is_answered_by_nobody(&self) -> bool {
        self.kept.as_ref().is_some_and(Vec::is_empty)
    }
}

impl<'a> Execution<'a> {
    /// Opens an exchange for the rows at hand. Nothing is sent yet.
    #[allow(clippy::too_many_arguments, reason = "what one call needs of its session")]
    pub fn new(
        ready: &'a Ready,
        client: &Client,
        pace: Pace,
        parameters: &[Option<Parameter>],
        inputs: &[RawColumn<'a>],
        rows: usize,
        rows_before: u64,
        telemetry: &'a mut Telemetry,
    ) -> std::result::Result<Execution<'a>, Failure> {
        // How many results the rows will have is known of scalar functions only.
        let is_scalar = ready.call.signature.kind == FunctionKind::Scalar;
        Ok(Execution {
            ready,
            driver: Driver::of_lane(
                pace,
                Hosted {
                    exchange: client.open_with_cache(
                        ready.call.clone(),
                        Observation::default(),
                        ready.function.cache.clone(),
                    ),
                    host: PlainHost,
                },
            ),
            rows,
            rows_before,
            feed: Feed::new(ready, parameters, inputs)?,
            passing: ready.binding.passthrough.iter().map(|column| inputs[*column]).collect(),
            telemetry,
            next_row: 0,
            next_number: 0,
            sent: VecDeque::new(),
            results: Results::new(&ready.passthrough, &ready.binding.results, if is_scalar { rows } else { 0 }),
            last: None,
        })
    }

    /// Calls the function for all rows: the results, the last row of them, and the pace for the next rows.
    pub fn run(mut self) -> std::result::Result<(Results, Option<ArrayRef>, Pace), Failure> {
        let outcome = match self.ready.call.signature.kind {
            FunctionKind::Map => self.run_map(),
            _ => self.run_calls(),
        };
        let totals = self.driver.totals();
        self.telemetry.wait += totals.waited;
        self.telemetry.bytes_sent += totals.bytes_sent;
        self.telemetry.bytes_received += totals.bytes_received;
        self.telemetry.function_us = self.telemetry.function_us.saturating_add(totals.compute_us);
        outcome?;
        Ok((self.results, self.last, *self.driver.pace()))
    }

    /// Scalar and table functions: every batch has its answer.
    fn run_calls(&mut self) -> std::result::Result<(), Failure> {
        loop {
            while self.next_row < self.rows && self.driver.may_send() {
                self.send_batch()?;
            }
            let Some(sent) = self.sent.pop_front() else { return Ok(()) };
            if sent.is_answered_by_nobody() {
                self.add_answer(&sent, None)?;
                self.driver.retire();
                continue;
            }
            while let Some(reply) = self.driver.receive(0).map_err(|error| self.blame(error, Some(&sent)))? {
                self.add_answer(&sent, Some(reply))?;
            }
            self.driver.retire();
        }
    }

    /// Map functions: results come when they come.
    fn run_map(&mut self) -> std::result::Result<(), Failure> {
        loop {
            while self.next_row < self.rows && self.driver.may_feed() {
                self.send_batch()?;
            }
            if self.next_row == self.rows {
                self.driver.end_feed();
            }
            // Nobody awaits a batch's own answer.
            self.sent.clear();
            match self.driver.receive_from_map().map_err(|error| self.blame(error, None))? {
                MapEvent::Taken => {}
                MapEvent::Results(reply) => {
                    let results = reply.columns.column(0).clone();
                    self.add(&results).map_err(|misfit| self.misfit(&misfit, None))?;
                }
                MapEvent::End => return Ok(()),
            }
        }
    }

    fn send_batch(&mut self) -> std::result::Result<(), Failure> {
        let start = thread_time();
        let bounds = (self.driver.pace().rows(), self.driver.pace().bytes());
        let takes_constants = self.driver.lane(0).is_some_and(|lane| lane.exchange.takes_constants());
        let count = self.feed.batch_rows(self.next_row, self.rows, bounds, takes_constants);
        let rows = self.next_row..self.next_row + count;
        let mut arguments = self.feed.read(rows.clone()).map_err(|misfit| {
            let message = "a value cannot be sent";
            let error = Error::new(Kind::OutOfRange, message).with_detail(misfit.sentence());
            Failure { error, context: Some(self.context(Some(misfit.row))) }
        })?;
        self.next_row = rows.end;
        let mut kept = None;
        let constants = self.feed.constants();
        let is_null = |argument: &ArrayRef| argument.logical_null_count() > 0;
        if self.ready.function.is_strict && (constants.values().any(is_null) || arguments.iter().any(is_null)) {
            let is_possible = !constants.values().any(is_null);
            let has_all = |row: &u32| is_possible && arguments.iter().all(|argument| argument.is_valid(*row as usize));
            let rows: Vec<u32> = (0..count as u32).filter(has_all).collect();
            let indices = UInt32Array::from(rows.clone());
            arguments = arguments.iter().map(|a| take(a, &indices, None).expect("the rows exist")).collect();
            kept = Some(rows);
        }
        let bytes = arguments.iter().map(|argument| argument.get_buffer_memory_size()).sum();
        let sent = Sent { rows, kept };
        let is_map = self.ready.call.signature.kind == FunctionKind::Map;
        if !sent.is_answered_by_nobody() {
            let options = RecordBatchOptions::new().with_row_count(Some(sent.count()));
            let schema = constants.schema_of_others(&self.ready.call.signature.call_schema());
            let columns = RecordBatch::try_new_with_options(Arc::new(schema), arguments, &options)
                .expect("each argument was read as its type");
            let batch = CallBatch { constants, ..CallBatch::new(self.next_number, columns) };
            match is_map {
                true => self.driver.feed(batch),
                false => self.driver.send(0, batch),
            }
            self.next_number += 1;
            self.telemetry.batches += 1;
        }
        if !is_map {
            self.driver.finish_batch(bytes);
        }
        self.telemetry.rows += count as u64;
        self.telemetry.convert_in += thread_time() - start;
        self.sent.push_back(sent);
        Ok(())
    }

    /// Adds the answer to a batch, or a part of it; none if nothing of the batch was sent.
    fn add_answer(&mut self, sent: &Sent, reply: Option<Reply>) -> std::result::Result<(), Failure> {
        let start = thread_time();
        if self.ready.call.signature.kind == FunctionKind::Table {
            let Some(reply) = reply else { return Ok(()) };
            let numbers = reply.columns.column(0).as_primitive::<Int32Type>();
            if !self.passing.is_empty() {
                for number in numbers.values() {
                    // The protocol's client has checked that they are rows of the batch, in order.
                    let row = sent.row(*number as usize);
                    self.pass(row..row + 1)?;
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
                (None, _) => new_null_array(&self.ready.call.signature.result.data_type(), sent.rows.len()),
            };
            self.pass(sent.rows.clone())?;
            self.add(&results).map_err(|misfit| self.misfit(&misfit, Some(sent.rows.start + misfit.row)))?;
        }
        self.telemetry.convert_out += thread_time() - start;
        Ok(())
    }

    fn pass(&mut self, rows: Range<usize>) -> std::result::Result<(), Failure> {
        self.results.pass(&self.passing, rows).map_err(|misfit| {
            let message = "a value cannot pass through";
            let error = Error::new(Kind::OutOfRange, message).with_detail(misfit.sentence());
            Failure { error, context: Some(self.context(Some(misfit.row))) }
        })
    }

    fn add(&mut self, results: &ArrayRef) -> std::result::Result<(), Misfit> {
        self.results.add(&self.ready.call.signature.result, &self.ready.binding.results, results)?;
        if !results.is_empty() {
            self.last = Some(results.slice(results.len() - 1, 1));
        }
        Ok(())
    }

    fn misfit(&self, misfit: &Misfit, row: Option<usize>) -> Failure {
        let message =
            format!("a result of container function \"{}\" cannot be returned", self.ready.call.signature.function);
        let error = Error::new(Kind::BadResult, message).with_detail(misfit.sentence());
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
