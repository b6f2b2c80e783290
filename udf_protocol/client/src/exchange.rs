//! One stream of batches to one function, as the engine's thread sees it: what is out, what came back out of turn, and which
//! rows were sent once for several.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{Semaphore, mpsc};
use udf_types::signature::FunctionKind;
use udf_types::transport_name::TransportName;
use udf_types::{Advice, Error, Result};

use crate::arena::{self, Arenas};
use crate::budget::Budget;
use crate::cache::Caching;
use crate::dispatch::{Call, Target};
use crate::duplicates::{Folded, Folding};
use crate::folder::Folder;
use crate::foreground::Runner;
use crate::host::Host;
use crate::inbox::{Event, Reply, bytes_of};
use crate::outbox::Outgoing;
use crate::planted::{Planted, is_planted};
use crate::spin;
use crate::trace::Recorder;
use crate::transport::check::check_part;
use crate::waiter::{WAIT_SLICE, Waiter};

/// Sending more than this takes long enough for another thread.
const MOST_BYTES_HERE: usize = 64 << 10;

/// Lines of a handler that may wait for the engine. It takes them with each reply.
const MOST_LINES_WAITING: usize = 1000;

/// Events of a map function's exchange that are looked at in one go. Those that say nothing may come without an end.
const MOST_LOOKS: usize = 16;

/// What a map function's server did.
#[derive(Debug)]
pub enum MapEvent {
    /// It took a batch.
    Taken,
    /// It gave results.
    Results(Reply),
    /// It has no more results.
    End,
}

/// Tells the manager, if there is one, that a server did not answer in time.
pub(crate) struct ReportTimeout(pub(crate) Box<dyn Fn() + Send>);

impl std::fmt::Debug for ReportTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportTimeout")
    }
}

/// One stream of batches to one function. Dropping it cancels what is still out.
#[derive(Debug)]
pub struct Exchange {
    // for the exchange
    call: Arc<Call>,
    arenas: Arc<Arenas>,
    /// The folder of the server's segments, if columns may be written into those; known once it was reached.
    directory: Option<Folder>,
    waiter: Waiter,
    /// None once the engine has closed its side.
    sender: Option<mpsc::UnboundedSender<Outgoing>>,
    receiver: std_mpsc::Receiver<Result<Event>>,
    room: Arc<Semaphore>,
    budget: Arc<Budget>,
    runner: Runner,
    report_timeout: ReportTimeout,
    // for the batches in flight
    /// Replies and failures that overtook an earlier batch's.
    early: BTreeMap<u64, Result<Reply>>,
    sent_at: HashMap<u64, Instant>,
    /// The batches of which only the distinct rows were sent.
    folded: HashMap<u64, Folded>,
    folding: Folding,
    /// Results that need not be asked for. The numbers of batches are then its own.
    caching: Option<Box<Caching>>,
    next_number: u64,
    /// The last row of that batch to which a table function has given results; 0 before that.
    last_row: i32,
    /// A map function's batches that its server did not take yet.
    untaken: usize,
    /// What its server did that was not received yet, and until when it has to do something, while it is waited for.
    map_event: Option<Result<MapEvent>>,
    map_deadline: Option<Instant>,
    /// How often a server was reached.
    attempts: u64,
    transport: Option<TransportName>,
    takes_constants: bool,
    /// When the server was reached or last answered; before that it had no time for the next batch. None before it was
    /// reached.
    ready_at: Option<Instant>,
    /// Once failed, always failed.
    failure: Option<Error>,
    // for those who watch
    /// Lines of the handler that the engine has not taken yet.
    lines: Vec<String>,
    recorder: Option<Box<Recorder>>,
}

impl Exchange {
    /// An exchange whose ends are `sender`, `receiver`, `room` and `budget` for this side, and which `runner` runs.
    /// `report_timeout` is called when it waited in vain.
    pub(crate) fn new(
        call: Arc<Call>,
        arenas: Arc<Arenas>,
        waiter: Waiter,
        sender: mpsc::UnboundedSender<Outgoing>,
        (receiver, room, budget): (std_mpsc::Receiver<Result<Event>>, Arc<Semaphore>, Arc<Budget>),
        (runner, report_timeout): (Runner, ReportTimeout),
    ) -> Exchange {
        Exchange {
            call,
            arenas,
            directory: None,
            waiter,
            sender: Some(sender),
            receiver,
            room,
            budget,
            runner,
            report_timeout,
            early: BTreeMap::new(),
            sent_at: HashMap::new(),
            folded: HashMap::new(),
            folding: Folding::default(),
            caching: None,
            next_number: 0,
            last_row: 0,
            untaken: 0,
            map_event: None,
            map_deadline: None,
            attempts: 0,
            transport: None,
            takes_constants: false,
            ready_at: None,
            failure: None,
            lines: Vec::new(),
            recorder: None,
        }
    }

    /// The same with a recorder of its spans.
    pub(crate) fn recorded(mut self, recorder: Option<Box<Recorder>>) -> Exchange {
        self.recorder = recorder;
        self
    }

    /// The function's name in the container.
    pub fn function(&self) -> &str {
        &self.call.signature.function
    }

    /// Takes the lines that the handler wrote since the last time, if they were asked for.
    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    fn note_lines(&mut self, lines: Vec<String>) {
        let room = MOST_LINES_WAITING.saturating_sub(self.lines.len());
        self.lines.extend(lines.into_iter().take(room));
    }

    /// Has results looked up before calls are sent.
    pub(crate) fn look_up_with(&mut self, caching: Caching) {
        self.caching = Some(Box::new(caching));
    }

    /// Sends a batch, without waiting for its answer. The caller bounds how many are in flight.
    pub fn send(&mut self, batch: impl Into<Outgoing>) {
        let outgoing: Outgoing = batch.into();
        let Some(caching) = &mut self.caching else { return self.send_calls(outgoing) };
        let arena = outgoing.arena.clone();
        let parts = caching.plan(outgoing, self.budget.limit());
        // Parts of a batch are copies.
        if let Some(arena) = arena.filter(|_| parts.iter().all(|part| part.arena.is_none())) {
            self.arenas.keep(&arena);
        }
        parts.into_iter().for_each(|part| self.send_calls(part));
    }

    fn send_calls(&mut self, mut outgoing: Outgoing) {
        // What has a column of errors beside it is read row by row.
        outgoing.batch.takes_dictionaries &= self.call.signature.row_errors.is_none();
        if Folding::is_for(&self.call.signature, self.call.volatility)
            && let Some((distinct, folded)) = self.folding.fold(&outgoing.batch)
        {
            outgoing.batch.columns = distinct;
            outgoing.arena = None;
            self.folded.insert(outgoing.number, folded);
        }
        if self.runner.is_here() && (!self.sent_at.is_empty() || bytes_of(&outgoing.columns) > MOST_BYTES_HERE) {
            // While one is sent or computed, the engine makes the next.
            self.runner.step();
            self.note_looked();
            self.runner.move_away();
        } else if self.transport.is_some() {
            // Nobody has looked since the last batch: a connection that was closed meanwhile is not used.
            self.runner.step();
        }
        if self.call.signature.kind == FunctionKind::Map {
            self.untaken += 1;
        } else {
            self.sent_at.insert(outgoing.number, Instant::now());
        }
        if let Some(arena) = &outgoing.arena {
            self.arenas.keep(arena);
        }
        // A closed queue means that the exchange has failed; receive says how.
        if let Some(sender) = &self.sender {
            let _ = sender.send(outgoing);
        }
        self.runner.step();
        detect_processor();
    }

    /// Whether another exchange of the same call would begin on the engine's own thread, where this one is not.
    pub fn may_be_nearer(&self) -> bool {
        let is_on_socket = matches!(self.transport, Some(TransportName::Shm | TransportName::Socket));
        is_on_socket && matches!(self.call.target, Target::Image { .. }) && !self.runner.is_here()
    }

    /// Memory for the columns of a batch, of at least so many bytes: what the server maps, if there is such.
    pub fn arena(&self, bytes: usize) -> arena::Writer {
        self.arenas.writer(self.directory.as_ref(), bytes)
    }

    /// How often the exchange reached a server again, the same or another, after one was lost or busy.
    pub fn retries(&self) -> u64 {
        self.attempts.saturating_sub(1)
    }

    /// Says that no batch will follow.
    pub fn close(&mut self) {
        self.sender = None;
        self.runner.step();
    }

    /// A map function's batches that its server did not take yet.
    pub fn untaken(&self) -> usize {
        self.untaken
    }

    /// Waits until a map function's server took a batch, or gave results, or ended.
    pub fn receive_from_map(&mut self, host: &dyn Host) -> Result<MapEvent> {
        loop {
            self.wait_for_map(host, None, &mut || false)?;
            if let Some(outcome) = self.map_event.take() {
                return outcome;
            }
        }
    }

    /// Whether a map function's server did something that was not received yet. Does not wait.
    pub fn has_map_event(&mut self) -> bool {
        for _ in 0..MOST_LOOKS {
            if self.map_event.is_some() || !self.note_next_of_map() {
                break;
            }
        }
        self.map_event.is_some()
    }

    /// Waits until a map function's server did something that was not received yet; false if `is_woken` or `until` came first. Without
    /// `until`, the server has its time to do so, which counts from the first such wait since it last did something.
    ///
    /// # Errors
    /// If the host ends the wait, or the server's time is over. What the exchange failed with is received.
    pub fn wait_for_map(
        &mut self,
        host: &dyn Host,
        until: Option<Instant>,
        is_woken: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let waiter = self.waiter.clone();
        loop {
            host.check()?;
            if self.has_map_event() {
                return Ok(true);
            }
            if is_woken() {
                return Ok(false);
            }
            // Until the server is reached, it has the time to start as well.
            let start_timeout = if self.transport.is_some() { Duration::ZERO } else { self.call.start_timeout };
            let time = start_timeout + self.call.batch_timeout;
            let deadline = until.unwrap_or_else(|| *self.map_deadline.get_or_insert_with(|| Instant::now() + time));
            // A server that has nothing to say, however often, has its time until it says something.
            let is_over = Instant::now() >= deadline;
            // What was noted may have moved the deadline.
            let mut look = || Ok((self.note_next_of_map() || is_woken()).then_some(()));
            if is_over || waiter.wait(host, deadline, &mut look)?.is_none() {
                return if until.is_some() { Ok(false) } else { Err(self.timeout()) };
            }
        }
    }

    /// Notes the next thing that happened in a map function's exchange; false if nothing did.
    fn note_next_of_map(&mut self) -> bool {
        let event = match self.waiter.look(&self.receiver) {
            Ok(None) => return false,
            Ok(Some(event)) => event,
            Err(error) => Err(error),
        };
        let outcome = match event {
            Ok(Event::Taken) => {
                self.untaken = self.untaken.saturating_sub(1);
                Ok(MapEvent::Taken)
            }
            Ok(Event::Reply(reply)) => {
                self.room.add_permits(1);
                if reply.columns.num_rows() == 0 {
                    return true;
                }
                Ok(MapEvent::Results(Reply { share: None, ..reply }))
            }
            Ok(Event::End) => Ok(MapEvent::End),
            Ok(Event::Failure(_, error)) | Err(error) => Err(error),
            Ok(Event::Reached { transport, takes_constants, .. }) => {
                self.note_reached(transport, takes_constants);
                self.map_deadline = self.map_deadline.map(|_| Instant::now() + self.call.batch_timeout);
                return true;
            }
            Ok(Event::TakesConstants) => {
                self.takes_constants = true;
                return true;
            }
            Ok(Event::Lines(lines)) => {
                self.note_lines(lines);
                return true;
            }
        };
        (self.map_event, self.map_deadline) = (Some(outcome), None);
        true
    }

    fn timeout(&self) -> Error {
        (self.report_timeout.0)();
        let what = format!("container function \"{}\"", self.call.signature.function);
        Error::timeout(&what, self.call.batch_timeout.as_millis()).with_advice(Advice::BatchTimeout)
    }

    fn note_reached(&mut self, transport: TransportName, takes_constants: bool) {
        self.attempts += 1;
        self.transport = Some(transport);
        self.takes_constants = takes_constants;
        if let Some(recorder) = &mut self.recorder {
            recorder.note_reached(transport.name());
        }
    }

    /// How batches travel; known once a server was reached.
    pub fn transport(&self) -> Option<TransportName> {
        self.transport
    }

    /// Whether constants travel once. As long as that is not known, they count in every row of a batch.
    pub fn takes_constants(&self) -> bool {
        self.takes_constants
    }

    /// Batches sent and not yet received. Of some, results were there, and nothing was sent on.
    pub fn in_flight(&self) -> usize {
        self.caching.as_ref().map_or(self.sent_at.len(), |caching| caching.in_flight())
    }

    /// Waits for the reply to the oldest batch in flight, or for the next part of it.
    pub fn receive(&mut self, host: &dyn Host) -> Result<Reply> {
        let limit = self.budget.limit();
        loop {
            match &mut self.caching {
                None => return self.receive_results(host),
                Some(caching) if !caching.is_waiting() => return caching.assemble(limit),
                Some(_) => {}
            }
            let (start, attempts) = (Instant::now(), self.attempts);
            let outcome = self.receive_results(host);
            // Until a server is reached, the wait says nothing of what calls take.
            let waited = if attempts == self.attempts { start.elapsed() } else { Duration::ZERO };
            let Some(caching) = &mut self.caching else { return outcome };
            let outcome = match outcome {
                Ok(reply) => caching.take(reply, waited, limit),
                Err(error) => Err(caching.place(error)),
            };
            match outcome {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => {
                    self.failure = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// Whether the next reply, or a part of it, or what came instead, is there. Does not wait.
    pub fn is_answered(&mut self) -> bool {
        let awaited = self.caching.as_ref().map_or(1, |caching| caching.awaited());
        if self.failure.is_some() || awaited == 0 {
            return true;
        }
        let was_here = self.runner.is_here();
        self.runner.step();
        if was_here && !self.runner.is_here() {
            self.note_looked();
        }
        // Of several batches for one of the engine's, all must be answered.
        if awaited > 1 {
            return false;
        }
        while !self.early.contains_key(&self.next_number) {
            match self.receiver.try_recv() {
                Ok(Ok(event)) => {
                    if let Some(reply) = self.note_event(event) {
                        self.early.insert(self.next_number, Ok(reply));
                    }
                }
                Ok(Err(error)) => {
                    self.early.insert(self.next_number, Err(error));
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// The same of what was sent.
    fn receive_results(&mut self, host: &dyn Host) -> Result<Reply> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let outcome = self
            .wait_for_rows(host)
            .and_then(|reply| self.note_rows(reply))
            .and_then(|reply| self.unfold(reply))
            .map_err(|error| self.place(error));
        match &outcome {
            Ok(reply) => {
                self.room.add_permits(1);
                if reply.is_last {
                    let sent_at = self.sent_at.remove(&reply.number);
                    if let (Some(recorder), Some(sent_at)) = (&mut self.recorder, sent_at) {
                        recorder.note_answer(reply.number, sent_at, reply.columns.num_rows(), reply.compute_us);
                    }
                    self.next_number += 1;
                    self.budget.expect(self.next_number);
                }
                self.ready_at = Some(Instant::now());
            }
            Err(error) => {
                if let Some(recorder) = &mut self.recorder {
                    recorder.note_failure(error.kind());
                }
                self.failure = Some(error.clone());
            }
        }
        outcome
    }

    /// The same reply, whose rows are not before those of the part that came before it.
    fn note_rows(&mut self, reply: Reply) -> Result<Reply> {
        if self.call.signature.kind == FunctionKind::Table {
            let last = check_part(&self.call.signature.function, self.last_row, &reply.columns)?;
            self.last_row = if reply.is_last { 0 } else { last };
        }
        Ok(reply)
    }

    /// The reply for all rows of its batch. From now on it is the engine's.
    fn unfold(&mut self, mut reply: Reply) -> Result<Reply> {
        if self.caching.is_some() {
            // It may be one of several that are kept until the batch has all of them.
            reply.release(&self.call.signature.function)?;
        }
        reply.share = None;
        let rows = reply.columns.num_rows();
        self.folding.note(rows, reply.compute_us);
        if let Some(folded) = self.folded.remove(&reply.number) {
            let function = &self.call.signature.function;
            let has_errors = self.call.signature.row_errors.is_some();
            reply.columns = folded.unfold(&reply.columns, has_errors, self.budget.limit()).map_err(|unreadable| {
                unreadable.into_error(function, self.budget.limit(), |fact| Error::bad_result(function, fact))
            })?;
            reply.repeated = reply.columns.num_rows() - rows;
            reply.bytes_needed = reply.bytes_needed.saturating_add(bytes_of(&reply.columns));
        }
        Ok(reply)
    }

    /// Notes that an answer is looked for now. While the exchange is on the engine's thread nobody does so as long as the engine is
    /// busy with something else, so that what has not been read by then may have come in time.
    fn note_looked(&mut self) {
        self.ready_at = self.ready_at.map(|_| Instant::now());
    }

    /// An error whose row is one of the batch that the engine sent.
    fn place(&self, error: Error) -> Error {
        let folded = self.folded.get(&self.next_number);
        match (error.row(), folded) {
            (Some(row), _) if is_planted(Planted::ShiftedErrorRow) => error.with_row(row + 1),
            (Some(row), Some(folded)) => match folded.first(row) {
                Some(first) => error.with_row(first),
                None => error,
            },
            _ => error,
        }
    }

    /// Waits for the next reply, or part of one, that has rows or is the last. Parts without rows do not prolong the wait.
    fn wait_for_rows(&mut self, host: &dyn Host) -> Result<Reply> {
        if self.runner.is_here() {
            self.note_looked();
        }
        let mut since = Instant::now();
        loop {
            let (attempts, reply) = (self.attempts, self.wait_for_next(host)?);
            if attempts != self.attempts {
                // It took until now to reach the server.
                since = Instant::now();
            }
            if reply.is_last || reply.columns.num_rows() > 0 {
                return Ok(reply);
            }
            self.room.add_permits(1);
            if since.elapsed() >= self.call.batch_timeout {
                return Err(self.timeout());
            }
        }
    }

    /// Waits for the next thing that happens; none when the deadline passed first.
    fn next_event(&mut self, host: &dyn Host, deadline: Instant) -> Result<Option<Result<Event>>> {
        host.check()?;
        loop {
            if let Ok(event) = self.receiver.try_recv() {
                return Ok(Some(event));
            }
            let Some(socket) = self.runner.step() else {
                return self.waiter.wait_for(host, &self.receiver, deadline);
            };
            if let Ok(event) = self.receiver.try_recv() {
                return Ok(Some(event));
            }
            match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(None),
                left => {
                    spin::look_for(|| is_readable(&socket));
                    host.wait(socket.as_fd(), left.min(WAIT_SLICE))?;
                }
            }
        }
    }

    fn wait_for_next(&mut self, host: &dyn Host) -> Result<Reply> {
        let timeout = self.call.batch_timeout;
        loop {
            if let Some(outcome) = self.early.remove(&self.next_number) {
                return outcome;
            }
            let sent_at = self.sent_at.get(&self.next_number).copied().unwrap_or_else(Instant::now);
            let deadline = match self.ready_at {
                Some(ready_at) => sent_at.max(ready_at) + timeout,
                // Starting a replica has a deadline of its own in dispatch; this one is behind it.
                None => sent_at + self.call.start_timeout + timeout,
            };
            let deadline =
                if is_planted(Planted::NoDeadline) { deadline + Duration::from_secs(3600) } else { deadline };
            match self.next_event(host, deadline)?.transpose()? {
                Some(event) => {
                    if let Some(reply) = self.note_event(event) {
                        return Ok(reply);
                    }
                }
                None => return Err(self.timeout()),
            }
        }
    }

    /// Notes what happened; gives the reply that is the next, or a part of it.
    fn note_event(&mut self, event: Event) -> Option<Reply> {
        match event {
            Event::Reached { transport, directory, takes_constants } => {
                self.note_reached(transport, takes_constants);
                self.directory = directory;
                self.ready_at = Some(Instant::now());
            }
            // Parts of one answer come one after the other.
            Event::Reply(reply) if reply.number == self.next_number || is_planted(Planted::DisorderedReplies) => {
                return Some(reply);
            }
            Event::Reply(reply) => {
                self.early.insert(reply.number, Ok(reply));
            }
            Event::Failure(number, error) => {
                self.early.insert(number, Err(error));
            }
            Event::TakesConstants => self.takes_constants = true,
            Event::Lines(lines) => self.note_lines(lines),
            Event::Taken | Event::End => {}
        }
        None
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let is_unused = self.runner.is_here() && self.transport.is_none();
        let is_out = !self.sent_at.is_empty() || self.call.signature.kind == FunctionKind::Map;
        // What has panicked must not be polled again.
        if is_out || is_unused || std::thread::panicking() {
            self.runner.cancel();
        } else {
            // With nothing in flight, closing the queue ends the stream in good order.
            self.sender = None;
            self.runner.step();
        }
    }
}

fn is_readable(socket: &UnixStream) -> bool {
    !matches!(poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO), Ok(0))
}

/// Has the standard library find out what the processor can do, which it does once in a process, when somebody first asks. In
/// a virtual machine that takes 50 µs, since each instruction that tells it leaves the machine: better while the server works
/// than while its answer is waited for.
fn detect_processor() {
    #[cfg(target_arch = "x86_64")]
    let _ = std::arch::is_x86_feature_detected!("avx2");
}
