//! A unit of work of a language that pulls, and what the language answers.
//!
//! A thread of the library waits for the reply (`queue.rs`), or the connection itself goes on with it: on the thread that answers, once
//! that happens (`pulling.rs`).

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Schema;
use udf_codec::batch::AggregateStep;
use udf_codec::lines::{MAX_LINE_BYTES, MAX_LINES};

use crate::batches::Taken;
use crate::error::CallError;
use crate::lines;
use crate::stream::has_hung_up;
use crate::tables::{self, Given};

/// Between two looks at whether the client has gone.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Lines of a batch that may wait to be handed over.
const MOST_LINES: usize = 2 * MAX_LINES;
/// Of each, so much is kept: more than one line has.
const MOST_LINE_BYTES: usize = 2 * MAX_LINE_BYTES;
/// Parts of a reply that may wait for the client.
const PARTS_AHEAD: usize = 2;

/// What is to be done with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Step {
    /// Answer a scalar or table function's calls.
    Call = 0,
    Accumulate = 1,
    Merge = 2,
    Finish = 3,
    State = 4,
    Forget = 5,
    /// The exchange is over, and its groups with it.
    End = 6,
    /// Answer the stream of a map function.
    Map = 7,
    /// The stream of an exchange has something to take.
    Resume = 8,
}

/// Takes the next batch of a stream, waiting at most so long.
pub(crate) type TakeBatch = Box<dyn Fn(Option<Duration>) -> Result<Taken, CallError> + Send + Sync>;

impl From<AggregateStep> for Step {
    fn from(step: AggregateStep) -> Step {
        match step {
            AggregateStep::Accumulate => Step::Accumulate,
            AggregateStep::Merge => Step::Merge,
            AggregateStep::Finish => Step::Finish,
            AggregateStep::State => Step::State,
            AggregateStep::Forget => Step::Forget,
        }
    }
}

/// A unit of work.
pub(crate) struct Work {
    /// The function's number.
    pub(crate) function: usize,
    pub(crate) step: Step,
    /// The exchange of an aggregate or map function.
    pub(crate) exchange: u64,
    pub(crate) batch: RecordBatch,
    /// Whether the reply has a column of errors.
    pub(crate) row_errors: bool,
    /// Whether the caller asks for lines that the handler writes.
    pub(crate) wants_lines: bool,
    /// The shared tables of the call.
    pub(crate) tables: Given,
    /// The batches of a map function.
    pub(crate) stream: Option<TakeBatch>,
    is_cancelled: AtomicBool,
    /// Since when.
    pub(crate) cancelled: OnceLock<Instant>,
    is_answered: AtomicBool,
    lines: Mutex<Vec<String>>,
    replies: Mutex<Replies>,
    pub(crate) changed: Condvar,
    suspended: OnceLock<Suspended>,
}

/// The connection of work for whose reply no thread waits.
struct Suspended {
    socket: Arc<File>,
    since: Instant,
    /// When its socket was last looked at, in milliseconds from `since`.
    looked: AtomicU64,
    /// The process whose connection it is: one that a handler has forked has a copy.
    process: u32,
    go_on: Mutex<Option<GoOn>>,
}

/// Has a connection go on with the reply.
pub(crate) type GoOn = Box<dyn FnOnce() + Send>;

#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) waiting: VecDeque<Reply>,
    /// Whether nobody waits for them any more.
    pub(crate) is_abandoned: bool,
}

/// What a language answers.
#[derive(Debug)]
pub(crate) enum Reply {
    Part(Vec<ArrayRef>),
    Last(Vec<ArrayRef>),
    Failed(CallError),
}

impl Debug for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Work");
        shown.field("function", &self.function).field("step", &self.step).field("exchange", &self.exchange);
        shown.field("rows", &self.batch.num_rows()).finish_non_exhaustive()
    }
}

impl Work {
    /// Work without a batch.
    pub(crate) fn without_rows(function: usize, step: Step, exchange: u64) -> Work {
        Work::new(function, step, exchange, RecordBatch::new_empty(Arc::new(Schema::empty())), false)
    }

    pub(crate) fn new(function: usize, step: Step, exchange: u64, batch: RecordBatch, row_errors: bool) -> Work {
        Work {
            function,
            step,
            exchange,
            batch,
            row_errors,
            wants_lines: lines::are_wanted(),
            // No call waits for these, and they are pushed on whatever thread comes to it.
            tables: if matches!(step, Step::End | Step::Resume) { Given::Nothing } else { tables::given() },
            stream: None,
            is_cancelled: AtomicBool::new(false),
            cancelled: OnceLock::new(),
            is_answered: AtomicBool::new(false),
            lines: Mutex::default(),
            replies: Mutex::default(),
            changed: Condvar::new(),
            suspended: OnceLock::new(),
        }
    }

    /// Whether the client has gone. Where no thread waits for the reply, this looks itself, once in a while.
    pub(crate) fn is_cancelled(&self) -> bool {
        if !self.is_cancelled.load(Ordering::Relaxed) && self.suspended.get().is_some_and(Suspended::has_hung_up) {
            self.cancel();
        }
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Has the thread that answers go on with the connection of this socket, before a language has the work.
    pub(crate) fn suspend(&self, socket: Arc<File>, go_on: GoOn) {
        let (since, looked, process, go_on) = (Instant::now(), AtomicU64::new(0), std::process::id(), Some(go_on));
        let suspended = Suspended { socket, since, looked, process, go_on: Mutex::new(go_on) };
        assert!(self.suspended.set(suspended).is_ok(), "a connection waits for work of its own");
    }

    /// The reply to work that is suspended, once it is there.
    pub(crate) fn take_reply(&self) -> Option<Reply> {
        self.replies().waiting.pop_front()
    }

    /// Tells the language that nobody waits for the reply.
    pub(crate) fn cancel(&self) {
        self.cancelled.get_or_init(Instant::now);
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the language has ended it.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    /// Whether a client waits for its reply.
    pub(crate) fn has_client(&self) -> bool {
        !matches!(self.step, Step::End | Step::Resume)
    }

    /// Adds a line that the handler wrote.
    pub(crate) fn add_line(&self, line: &str) {
        let mut lines = self.lines.lock().expect("no holder panics");
        // Whoever answers the batch takes them with each part, and bounds them again.
        if self.wants_lines && lines.len() < MOST_LINES {
            // The whole of it is in the log.
            lines.push(line[..line.floor_char_boundary(MOST_LINE_BYTES)].to_string());
        }
    }

    /// Gives the lines so far to the batch that this thread answers.
    pub(crate) fn hand_lines_over(&self) {
        if self.wants_lines {
            let lines = std::mem::take(&mut *self.lines.lock().expect("no holder panics"));
            lines.iter().for_each(|line| lines::write_line(line));
        }
    }

    pub(crate) fn replies(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().expect("no holder panics")
    }

    /// Whether `give_part` would wait.
    pub(crate) fn is_behind(&self) -> bool {
        let replies = self.replies();
        replies.waiting.len() >= PARTS_AHEAD && !replies.is_abandoned
    }

    /// Gives a part, once there is room for it; false if nobody waits for it.
    pub(crate) fn give_part(&self, columns: Vec<ArrayRef>) -> bool {
        if self.suspended.get().is_some() {
            // A scalar function's reply has no parts.
            return false;
        }
        let mut replies = self.replies();
        while replies.waiting.len() >= PARTS_AHEAD && !replies.is_abandoned {
            replies = self.changed.wait(replies).expect("no holder panics");
        }
        if replies.is_abandoned {
            return false;
        }
        replies.waiting.push_back(Reply::Part(columns));
        self.changed.notify_all();
        true
    }

    /// Gives what ends it.
    pub(crate) fn end(&self, reply: Reply) {
        self.is_answered.store(true, Ordering::Relaxed);
        self.replies().waiting.push_back(reply);
        self.changed.notify_all();
        let Some(suspended) = self.suspended.get() else { return };
        let go_on = suspended.go_on.lock().expect("no holder panics").take();
        match go_on {
            Some(go_on) if suspended.process == std::process::id() => go_on(),
            // The client gets its answer from the process that was asked, and nothing from a copy.
            go_on => std::mem::forget(go_on),
        }
    }
}

impl Suspended {
    /// Whether the client has closed its connection, if it is time to look.
    fn has_hung_up(&self) -> bool {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let looked = self.looked.load(Ordering::Relaxed);
        if Duration::from_millis(now - looked.min(now)) < LOOK {
            return false;
        }
        self.looked.store(now, Ordering::Relaxed);
        has_hung_up(&self.socket)
    }
}
