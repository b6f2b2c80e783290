//! A chain of calls of `transship.map`, each of which takes the results of the one before as columns. Most chains have one call.
//!
//! ```text
//!   query ──▶ call ──▶ results ──▶ call ──▶ results ──▶ rows of a set
//! ```
//!
//! The session's thread drives all calls at once: it feeds what may be fed, takes what has come, and waits for all of them together.
//!
//! - *Nobody waits in a circle.* A call begins with the first results of the one before. So a call that has begun needs nothing but
//!   calls that have begun as well, even where a server runs one call at a time, for one chain or for many.
//! - *Nobody is held up for long.* Where a call takes nothing for a while, those before it go on, and their results go to a file.
//!   It may wait for the server that these are at.
//! - *The first call that has not ended has its time to do something*, as it would have alone. The others wait for it.
//! - *Each call is made to its end*, also where the one after it wants no more: what goes wrong in it goes wrong without fusion too.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::ArrowError;
use pgrx::pg_sys;
use udf_client::dispatch::Call;
use udf_client::driver::Driver;
use udf_client::exchange::MapEvent;
use udf_client::inbox::Reply;
use udf_codec::batch::{BatchBuilder, CallBatch};
use udf_types::{Error, Kind};

use super::backlog::Backlog;
use crate::datum::result_column::{check_results, columns_of_set};
use crate::function::Function;
use crate::pg::memory::{OwnedContext, within};
use crate::query::Query;
use crate::stream::Stream;
use crate::{report, settings};

/// How long calls are held up by one that takes nothing of what it may have.
const PATIENCE: Duration = Duration::from_secs(1);

/// A call, before it begins.
pub(super) struct Link {
    pub(super) oid: pg_sys::Oid,
    pub(super) function: Rc<Function>,
    pub(super) call: Arc<Call>,
    pub(super) query: Query,
    /// The columns of the query, as positions of those of the call before; none if the query is run.
    pub(super) columns: Option<Vec<usize>>,
}

/// The calls, in the order in which rows pass them.
pub(super) struct Chain {
    links: Vec<Running>,
    /// For results that are checked.
    context: OwnedContext,
}

/// A call that runs, or will.
struct Running {
    link: Link,
    input: Input,
    /// None before it begins, and after its end.
    driver: Option<Driver<Stream>>,
    /// Whether it was given all that there is.
    is_fed: bool,
    has_ended: bool,
    /// When it last did something, or began.
    active_at: Instant,
}

/// Where a call's rows come from.
enum Input {
    Query(BatchBuilder),
    /// From the call before.
    Results(Vec<usize>, Backlog),
}

impl Chain {
    /// A chain of these calls, whose queries are open. The last is the one whose results are wanted.
    ///
    /// # Safety
    /// `context` and the current resource owner outlive it. Each query was opened after those of the calls behind it.
    pub(super) unsafe fn new(links: Vec<Link>, context: pg_sys::MemoryContext) -> Chain {
        let run = |mut link: Link| {
            let signature = &link.function.signature;
            let input = match link.columns.take() {
                // SAFETY: the caller says so.
                Some(columns) => Input::Results(columns, unsafe { Backlog::new(signature.call_schema(), context) }),
                None => Input::Query(BatchBuilder::new(signature)),
            };
            Running { link, input, driver: None, is_fed: false, has_ended: false, active_at: Instant::now() }
        };
        // SAFETY: the caller says so.
        let context = unsafe { OwnedContext::new(context) };
        Chain { links: links.into_iter().map(run).collect(), context }
    }

    /// Runs all calls to their ends; `take` is given the results of the last.
    pub(super) fn run(&mut self, mut take: impl FnMut(&Rc<Function>, &Reply)) {
        loop {
            pgrx::check_for_interrupts!();
            for i in 0..self.links.len() {
                let has_more = i > 0 && !self.links[i - 1].has_ended;
                self.links[i].feed(has_more);
            }
            match (0..self.links.len()).rev().find(|i| self.is_heard(*i) && self.links[*i].has_event()) {
                Some(i) => self.receive(i, &mut take),
                None if self.links.iter().all(|link| link.has_ended) => return,
                None => self.wait(),
            }
        }
    }

    /// Closes the queries, the last one first.
    pub(super) fn close(self) {
        let queries: Vec<Query> = self.links.into_iter().map(|running| running.link.query).collect();
        queries.into_iter().for_each(Query::close);
    }

    /// Whether what a call does is taken: there is room for its results, or nobody wants them, or they wait no longer.
    fn is_heard(&self, i: usize) -> bool {
        let is_open = |next: &Running| match &next.input {
            Input::Results(_, backlog) => next.has_ended || backlog.has_room() || next.active_at.elapsed() >= PATIENCE,
            Input::Query(_) => true,
        };
        self.links[i].driver.is_some() && self.links.get(i + 1).is_none_or(is_open)
    }

    /// Waits until a call that is heard does something, or another will be heard.
    fn wait(&mut self) {
        let are_heard: Vec<bool> = (0..self.links.len()).map(|i| self.is_heard(i)).collect();
        let Some(heard) = are_heard.iter().position(|is_heard| *is_heard) else { return };
        let is_held_up = |i: &usize| self.links[*i].driver.is_some() && !are_heard[*i];
        let until = (0..self.links.len()).filter(is_held_up).map(|i| self.links[i + 1].active_at + PATIENCE).min();
        let is_first = self.links[..heard].iter().all(|link| link.has_ended);
        let (before, behind) = self.links.split_at_mut(heard + 1);
        let mut is_woken = || {
            let mut others = behind.iter_mut().zip(&are_heard[heard + 1..]);
            until.is_some_and(|until| Instant::now() >= until)
                || others.any(|(it, is_heard)| *is_heard && it.has_event())
        };
        let Running { link, driver: Some(driver), .. } = &mut before[heard] else { return };
        // Only the first has its time; if others are waited for, the first is held up.
        let waited = driver.wait_for_map(until.filter(|_| !is_first), &mut is_woken);
        waited.map(drop).unwrap_or_else(|error| link.fail(&error))
    }

    /// Takes what a call did.
    fn receive(&mut self, i: usize, take: &mut impl FnMut(&Rc<Function>, &Reply)) {
        let is_last = i + 1 == self.links.len();
        let running = &mut self.links[i];
        running.active_at = Instant::now();
        let Some(driver) = &mut running.driver else { return };
        match driver.receive_from_map().unwrap_or_else(|error| running.link.fail(&error)) {
            MapEvent::Taken => {}
            MapEvent::Results(reply) if is_last => take(&running.link.function, &reply),
            MapEvent::Results(reply) => self.hand_on(i, &reply),
            MapEvent::End => (running.driver, running.has_ended) = (None, true),
        }
    }

    /// Hands results on to the next call.
    fn hand_on(&mut self, i: usize, reply: &Reply) {
        let function = self.links[i].link.function.clone();
        let results = reply.columns.column(0);
        // SAFETY: whoever made the chain has promised that the context is there.
        unsafe { within(self.context.as_ptr(), || check_results(&function, results, std::iter::repeat(None))) };
        self.context.reset();
        let next = &mut self.links[i + 1];
        if let (Input::Results(positions, backlog), false) = (&mut next.input, next.has_ended) {
            let columns = columns_of_set(&function, results.clone()).unwrap_or_else(|cause| unfit(&function, &cause));
            let columns = positions.iter().map(|position| columns[*position].clone()).collect();
            let pushed = backlog.push(columns, results.len(), reply.bytes_received);
            pushed.unwrap_or_else(|cause| unfit(&function, &cause));
        }
    }
}

impl Running {
    fn has_event(&mut self) -> bool {
        self.driver.as_mut().is_some_and(Driver::has_map_event)
    }

    /// Gives the call what it may have; `has_more` says whether the call before it has not ended.
    fn feed(&mut self, has_more: bool) {
        if let (Input::Results(_, backlog), None) = (&self.input, &self.driver)
            && has_more
            && backlog.is_empty()
        {
            return;
        }
        if self.is_fed || self.has_ended {
            return;
        }
        let Link { oid, function, call, query, .. } = &mut self.link;
        let driver = self.driver.get_or_insert_with(|| {
            self.active_at = Instant::now();
            let pace = settings::pace(function.max_batch_rows(), function.body.first_batch_rows, false);
            Driver::of_lane(pace, Stream::open(*oid, call.clone()))
        });
        while !self.is_fed && driver.may_feed() {
            let batch = match &mut self.input {
                // SAFETY: the columns are of the types of the function's arguments, which was checked.
                Input::Query(builder) => unsafe { next_batch(query, builder, driver) },
                Input::Results(_, backlog) => {
                    let batch = backlog.next_batch(driver.pace(), !has_more);
                    batch.unwrap_or_else(|cause| unfit(function, &cause))
                }
            };
            match batch {
                Some(batch) => driver.feed(batch),
                None if has_more => return,
                None => {
                    driver.end_feed();
                    self.is_fed = true;
                }
            }
        }
    }
}

impl Link {
    /// Raises the error with which the call has failed.
    fn fail(&self, error: &Error) -> ! {
        report::raise_error(error, Some(format!("container function \"{}\"", self.function.name)))
    }
}

/// The query's next batch; none if there are no more rows.
///
/// # Safety
/// The query's columns are of the types that the builder is for.
unsafe fn next_batch(query: &mut Query, builder: &mut BatchBuilder, driver: &Driver<Stream>) -> Option<CallBatch> {
    loop {
        let left = driver.pace().rows().saturating_sub(builder.rows());
        // SAFETY: the caller says so.
        let count = unsafe { query.fetch(builder, left, |_| {}) };
        let is_full = driver.pace().is_full(builder.rows(), builder.bytes());
        if is_full || (count == 0 && builder.rows() > 0) {
            return Some(builder.finish_batch());
        }
        if count == 0 {
            return None;
        }
    }
}

/// Raises the error for results that cannot be put together to arguments.
fn unfit(function: &Function, cause: &ArrowError) -> ! {
    let message = format!("results of container function \"{}\" cannot be put together", function.name);
    let error = Error::new(Kind::OutOfMemory, message).with_detail(format!("{cause}."));
    report::raise_error(&error.with_hint("Switch transship.fusion off."), None)
}
