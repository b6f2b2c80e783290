//! An engine's session: queries that call functions batch by batch through the client's driver, and what their answers must be.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use fastrand::Rng;
use udf_client::client::Client;
use udf_client::dispatch::{Call, Target};
use udf_client::driver::{Driver, Hosted};
use udf_client::host::Host;
use udf_client::pace::{Bounds, Pace};
use udf_codec::batch::{BatchBuilder, CallBatch, ColumnBuilder, Given};
use udf_types::signature::{RowErrors, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::containers::Image;
use crate::kernel;
use crate::model::{Behaviour, Model, words_of_bad};
use crate::scheduler::{Wait, Waiting};
use crate::trace;

/// JSON of so many rows, and of some more, is written on the thread of the simulation: that of more values is another's.
const MOST_ROWS_OF_BATCH: usize = 400;
/// Attempts at an exchange, and how much longer than they last it may take until an engine is told.
const ATTEMPTS: u32 = 3;
const SLACK: Duration = Duration::from_secs(10);

/// What a session does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// For messages.
    pub name: String,
    /// Its own randomness.
    pub seed: u64,
    /// How many queries it runs.
    pub queries: u32,
    /// Socket of the manager.
    pub manager: PathBuf,
    /// What there is to call.
    pub images: Vec<Image>,
    /// Whether nothing goes wrong in the whole run, so that no query may fail but by its own rows.
    pub is_calm: bool,
    /// Whether each image is called once, and must answer.
    pub is_last: bool,
}

/// The engine around a client: waits take turns with everybody else, and may be cancelled.
struct SimulatedHost<'a> {
    waiting: &'a Waiting,
    /// Waits until the query is cancelled.
    left: std::cell::Cell<Option<u32>>,
}

impl Host for SimulatedHost<'_> {
    fn wait(&self, doorbell: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
        self.waiting.suspend(Wait { file: doorbell.as_raw_fd(), until: kernel::now() + timeout });
        match self.left.get() {
            Some(0) => Err(Error::new(Kind::Cancelled, "canceling statement due to user request")),
            left => {
                self.left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}

/// A row of calls.
#[derive(Debug, Clone)]
struct Row {
    id: i64,
    x: i64,
    label: String,
}

/// One query.
#[derive(Debug)]
struct Query {
    image: Image,
    behaviour: Behaviour,
    volatility: Volatility,
    row_errors: Option<RowErrors>,
    transport: TransportName,
    rows: usize,
    bounds: Bounds,
    first_rows: Option<usize>,
    batch_timeout: Duration,
    start_timeout: Duration,
    cancel_after: Option<u32>,
    stop_after: Option<u64>,
}

impl Query {
    fn choose(rng: &mut Rng, plan: &Plan, number: u32) -> Query {
        let place = if plan.is_last { number as usize } else { rng.usize(..plan.images.len()) };
        let behaviour = if plan.is_last { Behaviour::ALL[0] } else { Behaviour::ALL[rng.usize(..4)] };
        let volatility = match (behaviour.is_counted, rng.bool()) {
            (true, _) => Volatility::Volatile,
            (false, true) => Volatility::Immutable,
            (false, false) => Volatility::Stable,
        };
        let once = if volatility == Volatility::Volatile { RowErrors::Once } else { RowErrors::Again };
        let transports = [TransportName::Auto, TransportName::Socket, TransportName::Json];
        let is_calm = plan.is_calm || plan.is_last;
        let patient = Duration::from_secs(60);
        let rows = match rng.u8(..4) {
            0 => rng.usize(1..4),
            1 => rng.usize(1..100),
            2 => rng.usize(50..300),
            _ => rng.usize(100..900),
        };
        Query {
            image: plan.images[place].clone(),
            behaviour,
            volatility,
            row_errors: (!plan.is_last && rng.u8(..3) == 0).then_some(once),
            transport: transports[rng.usize(..3)],
            rows: if behaviour.is_counted && rng.bool() { rows.min(300) } else { rows },
            bounds: Bounds {
                rows: rng.usize(1..=MOST_ROWS_OF_BATCH),
                bytes: rng.usize(1_000..100_000),
                reply_bytes: 1 << 20,
                window: rng.usize(1..8),
                time: Duration::from_millis(rng.u64(0..3) * 100),
            },
            first_rows: rng.bool().then(|| rng.usize(1..200)),
            batch_timeout: if is_calm { patient } else { Duration::from_millis(rng.u64(1_000..20_000)) },
            start_timeout: if is_calm { patient } else { Duration::from_millis(rng.u64(2_000..30_000)) },
            cancel_after: (!plan.is_last && rng.u8(..5) == 0).then(|| rng.u32(..40)),
            stop_after: (!plan.is_last && rng.u8(..6) == 0).then(|| rng.u64(1..4)),
        }
    }

    fn signature(&self) -> Signature {
        Signature { row_errors: self.row_errors, ..self.behaviour.signature() }
    }

    fn call(&self, manager: &Path) -> Call {
        Call {
            target: Target::Image { manager: manager.to_path_buf(), digest: self.image.info.digest.clone() },
            transport: self.transport,
            signature: self.signature(),
            volatility: self.volatility,
            batch_timeout: self.batch_timeout,
            start_timeout: self.start_timeout,
            tables: Vec::new(),
        }
    }

    /// Longest that an engine may wait for the answer to one batch.
    fn longest_wait(&self) -> Duration {
        (self.batch_timeout + self.start_timeout) * ATTEMPTS + SLACK
    }
}

/// Runs a session to its end.
pub fn run(plan: &Plan, client: Client, model: &Model, waiting: &Waiting) {
    let mut rng = Rng::with_seed(plan.seed);
    let queries = if plan.is_last { plan.images.len() as u32 } else { plan.queries };
    for number in 0..queries {
        let query = Query::choose(&mut rng, plan, number);
        let mut session = Session { plan, client: &client, model, waiting, rng: &mut rng, query: &query };
        session.run(number);
        if rng.u8(..4) > 0 {
            client.release();
        }
        pause(waiting, Duration::from_micros(rng.u64(..3_000_000)));
    }
    trace::note(format_args!("{} is done", plan.name));
}

/// Does nothing for a time.
fn pause(waiting: &Waiting, time: Duration) {
    let until = kernel::now() + time;
    while kernel::now() < until {
        // A descriptor that is none is never readable.
        waiting.suspend(Wait { file: -1, until });
    }
}

struct Session<'a> {
    plan: &'a Plan,
    client: &'a Client,
    model: &'a Model,
    waiting: &'a Waiting,
    rng: &'a mut Rng,
    query: &'a Query,
}

impl Session<'_> {
    fn run(&mut self, number: u32) {
        let query = self.query;
        let name = format!("{} query {number}", self.plan.name);
        trace::note(format_args!(
            "{name}: {} rows of {}.{} {:?} {:?} over {}, window {}",
            query.rows,
            query.image.info.manifest.name,
            query.behaviour.name(),
            query.volatility,
            query.row_errors,
            query.transport.name(),
            query.bounds.window,
        ));
        let outcome = self.ask_manager().and_then(|()| self.call(&name));
        match outcome {
            Ok(rows) => trace::note(format_args!("{name}: {rows} rows are answered")),
            Err(error) => {
                trace::note(format_args!("{name}: {:?}: {error}", error.kind()));
                self.check_error(&name, &error);
            }
        }
    }

    fn wrong(&self, name: &str, fact: impl std::fmt::Display) {
        trace::note(format_args!("{name}: WRONG: {fact}"));
        self.model.note_wrong(format!("{name}: {fact}"));
    }

    /// What is asked before a call: sometimes which image it is, or that a connection be made early.
    fn ask_manager(&mut self) -> Result<()> {
        let host = SimulatedHost { waiting: self.waiting, left: None.into() };
        match self.rng.u8(..4) {
            0 => {
                let image = self.query.image.info.manifest.image();
                let timeout = self.query.start_timeout;
                let found = self.client.resolve_image(&host, &self.plan.manager, &image, timeout)?;
                if found.digest != self.query.image.info.digest {
                    self.wrong(&self.plan.name, "an image's name stands for another image");
                }
            }
            1 => self.client.prepare(self.plan.manager.clone()),
            _ => {}
        }
        Ok(())
    }

    /// Sends all rows, and checks each answer; how many rows were answered.
    fn call(&mut self, name: &str) -> Result<usize> {
        let query = self.query;
        let host = SimulatedHost { waiting: self.waiting, left: query.cancel_after.into() };
        let exchange = self.client.open(Arc::new(query.call(&self.plan.manager)));
        let pace = Pace::new(query.bounds);
        let pace = query.first_rows.map_or(pace, |rows| pace.with_first_rows(rows));
        let mut driver = Driver::of_lane(pace, Hosted { exchange, host });
        let signature = query.signature();
        let mut builder = BatchBuilder::new(&signature);
        let (mut unsent, mut answered, mut batches) = (query.rows, 0, 0_u64);
        let mut out: std::collections::VecDeque<Vec<Row>> = std::collections::VecDeque::new();
        loop {
            while unsent > 0 && driver.may_send() {
                let (rows, batch, bytes) = self.next_batch(&mut builder, driver.pace(), &mut unsent);
                driver.send(0, batch);
                driver.finish_batch(bytes);
                out.push_back(rows);
                if out.len() > query.bounds.window {
                    self.wrong(
                        name,
                        format_args!("{} batches are out in a window of {}", out.len(), query.bounds.window),
                    );
                }
            }
            let Some(rows) = out.pop_front() else { return Ok(answered) };
            let since = kernel::now() - kernel::leapt();
            let reply = driver.receive(0);
            let waited = (kernel::now() - kernel::leapt()) - since;
            if waited > query.longest_wait() {
                self.wrong(name, format_args!("an answer was waited for over {waited:?}"));
            }
            let bad = rows.iter().position(|row| query.behaviour.is_bad(row.x)).filter(|_| query.row_errors.is_none());
            let reply = match (reply, bad) {
                (Ok(Some(reply)), None) => reply,
                (Ok(_), Some(row)) => {
                    self.wrong(name, format_args!("row {row} has an answer, and should have had an error"));
                    return Ok(answered);
                }
                (Ok(None), None) => {
                    self.wrong(name, "a batch has no answer");
                    return Ok(answered);
                }
                (Err(error), Some(row)) if error.kind() == Kind::UserCode => {
                    if error.row() != Some(row as u64) {
                        self.wrong(name, format_args!("the error is of row {:?}, not of row {row}", error.row()));
                    }
                    trace::note(format_args!("{name}: {error} as it should"));
                    return Ok(answered);
                }
                (Err(error), _) => return Err(error),
            };
            if let Err(fact) = self.check(&rows, &reply.columns) {
                self.wrong(name, fact);
                return Ok(answered);
            }
            answered += rows.len();
            batches += 1;
            driver.retire();
            if query.stop_after.is_some_and(|most| batches >= most) {
                return Ok(answered);
            }
        }
    }

    fn next_batch(
        &mut self,
        builder: &mut BatchBuilder,
        pace: &Pace,
        unsent: &mut usize,
    ) -> (Vec<Row>, CallBatch, usize) {
        let labels = ["", "a", "label", "a rather long label that takes some bytes", "größe"];
        let constant = (self.rng.u8(..4) == 0).then(|| labels[self.rng.usize(..labels.len())]);
        let few = self.rng.bool();
        let mut rows = Vec::new();
        while *unsent > 0 && !pace.is_full(builder.rows(), builder.bytes()) {
            let row = Row {
                id: if self.query.behaviour.is_counted { self.model.new_id() } else { self.rng.i64(0..20) },
                x: if few { self.rng.i64(0..6) } else { self.rng.i64(-1_000..1_000) },
                label: constant.unwrap_or(labels[self.rng.usize(..labels.len())]).to_string(),
            };
            for (column, value) in [row.id, row.x].into_iter().enumerate() {
                let ColumnBuilder::Int8(column) = builder.column(column) else { unreachable!("they are int8") };
                column.append_value(value);
            }
            if constant.is_none() {
                let ColumnBuilder::Text(column) = builder.column(2) else { unreachable!("it is text") };
                column.append_value(&row.label);
            }
            builder.finish_row();
            rows.push(row);
            *unsent -= 1;
        }
        let bytes = builder.bytes();
        let batch = match constant {
            Some(label) => {
                let label: ArrayRef = Arc::new(StringArray::from(vec![label]));
                let given = vec![Given::Built, Given::Built, Given::Constant(label)];
                builder.finish_batch_with(rows.len(), given)
            }
            None => builder.finish_batch(),
        };
        (rows, batch, bytes)
    }

    /// Whether a reply is the one to its rows.
    fn check(&self, rows: &[Row], columns: &RecordBatch) -> std::result::Result<(), String> {
        if columns.num_rows() != rows.len() {
            return Err(format!("{} rows are answered by {}", rows.len(), columns.num_rows()));
        }
        let results = columns.column(0).as_primitive::<Int64Type>();
        let errors = self.query.row_errors.map(|_| columns.column(1).as_string::<i32>());
        for (place, row) in rows.iter().enumerate() {
            let behaviour = self.query.behaviour;
            let result = (!results.is_null(place)).then(|| results.value(place));
            let error = errors.filter(|errors| !errors.is_null(place)).map(|errors| errors.value(place).to_string());
            let expected = match behaviour.is_bad(row.x) {
                true => (None, Some(words_of_bad(row.x))),
                false => (Some(behaviour.value(self.query.image.salt, row.id, row.x, &row.label)), None),
            };
            let is_right_error = match (&error, &expected.1) {
                (None, None) => true,
                (Some(error), Some(words)) => error.contains(words.as_str()),
                _ => false,
            };
            if result != expected.0 || !is_right_error {
                return Err(format!(
                    "row {place} {row:?} is answered by {result:?} and {error:?}, not by {expected:?}"
                ));
            }
            if behaviour.is_counted && !self.model.has_run(row.id) {
                return Err(format!("row {place} {row:?} is answered, and was not run"));
            }
        }
        Ok(())
    }

    /// Whether a query may fail so.
    fn check_error(&self, name: &str, error: &Error) {
        if self.plan.is_last {
            return self.wrong(name, format_args!("nothing goes wrong any more, and it fails: {error:?}"));
        }
        let may_be = match error.kind() {
            Kind::Cancelled => self.query.cancel_after.is_some(),
            // Several want more containers than there may be.
            Kind::Busy => true,
            Kind::ContainerFailed | Kind::Unreachable | Kind::Timeout => !self.plan.is_calm,
            _ => false,
        };
        if !may_be {
            self.wrong(name, format_args!("it may not fail so: {error:?}"));
        }
    }
}
