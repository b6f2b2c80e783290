//! What a running Container Batch node holds, grouped by lifetime.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int32Array};
use pgrx::pg_sys;
use udf_client::arena::Arena;
use udf_client::driver::{Driver, Totals};
use udf_codec::batch::{BatchBuilder, Given};

use super::kept::{KeptColumn, KeptRows};
use super::private::{Input, SetJoin};
use crate::datum::argument_columns::ArgumentColumns;
use crate::datum::result_column::ResultColumn;
use crate::function::Function;
#[cfg(feature = "lift-ordinary")]
use crate::ordinary::stream::Stream;
use crate::pg::memory::OwnedContext;
use crate::report::Border;
#[cfg(not(feature = "lift-ordinary"))]
use crate::stream::Stream;
use crate::tables::given::Named;

/// The executor's node. PostgreSQL sees its first member.
#[repr(C)]
pub struct BatchScanState {
    /// PostgreSQL's part.
    pub css: pg_sys::CustomScanState,
    /// Ours; null under EXPLAIN without ANALYZE. It belongs to the query's memory context, which drops it however the
    /// query ends.
    pub inner: *mut Inner,
    /// What all parallel processes share, in shared memory; null without parallel workers, and after they ended.
    pub shared: *mut SharedState,
    /// What workers have counted.
    pub from_workers: Counters,
    /// Where errors that pass the node's calls get their context.
    pub border: Border,
}

/// Where errors that pass a node's calls get their context.
///
/// # Safety
/// `css` is a node that create_state made.
pub unsafe fn border_of(css: *mut pg_sys::CustomScanState) -> *mut Border {
    // SAFETY: the caller says so.
    unsafe { &raw mut (*css.cast::<BatchScanState>()).border }
}

/// Our part of the state.
pub struct Inner {
    // for the plan
    /// Columns of the child.
    pub child_columns: usize,
    /// Whether other processes take rows of the same plan.
    pub is_parallel: bool,
    /// Rows of the first batch, by the functions.
    pub declared_first_rows: usize,
    /// Most rows of the first batch, since the plan above may ask for no more.
    pub first_rows: usize,
    /// Most rows that are ever asked for; the child may have no more.
    pub most_rows: u64,
    /// The statement's run, which may ask for fewer rows than the plan does; null once it was asked, or if it does not matter.
    pub run: *const pg_sys::EState,
    /// Whether each batch has one row if the run asks for fewer rows.
    pub is_stepwise_if_stopped: bool,
    /// Whether each batch has one row, and none is read ahead.
    pub is_stepwise: bool,
    /// The columns of the child that the node hands on.
    pub kept: Vec<KeptColumn>,
    /// How many of the child's columns are looked at, counted from the first.
    pub deformed: i16,
    /// The query's context, parent of the batches' contexts.
    pub query_context: pg_sys::MemoryContext,
    /// Who may execute the functions, and has credentials for their servers: who began the scan, although another user may
    /// fetch rows from its cursor.
    pub user: pg_sys::Oid,
    /// The lifted calls.
    pub calls: Vec<Call>,
    /// Of how many calls, each the argument of the next, the longest row is.
    pub depth: usize,
    /// Sends batches to the calls' exchanges, a lane for each. A lane is closed before the first batch.
    pub driver: Driver<Stream>,

    // for one scan
    /// Most rows of a batch that the functions take.
    pub max_rows: usize,
    /// Batches in flight, oldest first; the first one's results may be there already.
    pub queue: VecDeque<Batch>,
    /// The answers to come, in the order in which they were asked for: the first row of a batch, and a call.
    pub awaited: VecDeque<(u64, usize)>,
    /// The batch that is being formed.
    pub forming: Option<Batch>,
    /// Where a call that returns a set is among the results of the oldest batch.
    pub set: Option<SetCursor>,
    /// Whether the child has given its last row.
    pub is_child_done: bool,
    /// Whether nobody is likely to ask for the rows once more.
    pub is_scanned_once: bool,
    /// Rows of the child in all batches so far.
    pub rows_read: u64,
    /// Rows of the oldest batch that can be emitted without looking for more.
    pub rows_ready: usize,
    /// Memory contexts of batches that are done, for the next ones.
    pub spare_contexts: Vec<OwnedContext>,
}

/// Where a call that returns a set is among the results of one batch.
#[derive(Debug)]
pub struct SetCursor {
    /// What becomes of a row without results.
    pub join: SetJoin,
    /// The part of the answer at hand.
    pub part: Option<Part>,
    /// Whether the row at hand has had a result.
    pub has_matched: bool,
    /// What is emitted next: a position in the part, or none for a row without results.
    pub emits: Option<usize>,
}

/// A part of the answer to one batch.
#[derive(Debug)]
pub struct Part {
    /// For each result the position, among the rows that were sent, of the row that it belongs to.
    pub rows: Int32Array,
    /// The results.
    pub results: ResultColumn,
    /// The next result.
    pub next: usize,
    /// Whether it ends the answer.
    pub is_last: bool,
}

/// One lifted call.
pub struct Call {
    /// What is called.
    pub function: Rc<Function>,
    /// The shared tables that its body names, for who began the scan. In a statement that writes they are found with the first row: triggers
    /// that come before it may change what names lead to.
    pub tables: Option<Vec<Named>>,
    /// The call in the plan.
    pub expression: *mut pg_sys::FuncExpr,
    /// When it is made, over the child's row; null for every row.
    pub condition: *mut pg_sys::ExprState,
    /// Whether it is made only where no argument is NULL.
    pub is_strict: bool,
    /// What is to be evaluated over the child's row for the arguments that are not its columns.
    pub expressions: Vec<*mut pg_sys::ExprState>,
    /// Their values for one row.
    pub values: Vec<pg_sys::Datum>,
    /// Whether these are NULL.
    pub nulls: Vec<bool>,
    /// The arguments' values in the batch that is being formed.
    pub columns: ArgumentColumns,
    /// Those that `columns` leaves to it, and the batches' numbers.
    pub builder: BatchBuilder,
    /// Bytes that the builder has.
    pub builder_bytes: usize,
    /// Its arguments that are results of calls before it.
    pub inputs: Vec<Input>,
    /// Whether its results are an argument of another.
    pub is_input: bool,
    /// Whether its results become SQL values.
    pub is_shown: bool,
}

/// One batch of rows of the child.
pub struct Batch {
    /// Holds what the rows point to.
    pub context: OwnedContext,
    /// The rows.
    pub rows: KeptRows,
    /// Their size.
    pub bytes: usize,
    /// The number of the first row, counted from 1 over the scan.
    pub first_row: u64,
    /// Per call, what was sent.
    pub sent: Vec<Sent>,
    /// Per call, how far it is.
    pub progress: Vec<Progress>,
    /// Whether all calls are answered; of a call that returns a set, whether the first part of its answer is there.
    pub is_answered: bool,
    /// Per call, the results as SQL values; none if nothing was sent, or nobody looks at them.
    pub results: Vec<Option<ResultColumn>>,
    /// The next row to emit.
    pub next_row: usize,
}

/// How far the calls of one function for a batch are.
#[derive(Debug)]
pub enum Progress {
    /// They wait for those in their arguments.
    Waiting(Rest),
    /// They were sent.
    Out(Out),
    /// They are answered; of those that others wait for the results are here, if there are any.
    Answered(Option<ArrayRef>),
}

/// Calls that were sent, as far as their results are not all here.
#[derive(Debug, Default)]
pub struct Out {
    /// Batches that are not answered.
    pub awaited: usize,
    /// The results of those that are.
    pub results: Vec<ArrayRef>,
    /// Bytes of these.
    pub bytes: usize,
    /// What is not sent yet.
    pub rest: Option<Rest>,
}

/// Calls that are to be sent.
#[derive(Debug)]
pub struct Rest {
    /// Their arguments; those that are results of other calls are left out until these are there.
    pub arguments: Vec<Given>,
    /// What some of these lie in.
    pub arena: Option<Arc<Arena>>,
    /// Calls that were sent already.
    pub sent: usize,
}

/// What one call sent of one batch.
#[derive(Debug, Default)]
pub struct Sent {
    /// Rows that were sent.
    pub count: usize,
    /// For each row of the batch its position among the sent; none for a row that the call's condition leaves out, or
    /// whose NULL argument a STRICT function is not called for. Left out while every row was sent.
    pub positions: Option<Vec<Option<u32>>>,
}

/// What EXPLAIN ANALYZE shows; plain data, since it also lives in shared memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    pub calls: u64,
    /// Calls that were not sent, since equal ones were.
    pub repeated: u64,
    /// Calls that were not sent, since their results were there already.
    pub cached: u64,
    pub batches: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub wait_us: u64,
    /// Transports used: a bit for each of [`udf_types::transport_name::TransportName::ALL`].
    pub transports: u8,
}

impl From<&Totals> for Counters {
    fn from(totals: &Totals) -> Counters {
        Counters {
            calls: totals.calls,
            repeated: totals.repeated,
            cached: totals.cached,
            batches: totals.batches,
            bytes_sent: totals.bytes_sent,
            bytes_received: totals.bytes_received,
            wait_us: u64::try_from(totals.waited.as_micros()).unwrap_or(u64::MAX),
            transports: totals.transports,
        }
    }
}

impl Counters {
    /// Adds another process's.
    pub fn add(&mut self, other: &Counters) {
        self.calls += other.calls;
        self.repeated += other.repeated;
        self.cached += other.cached;
        self.batches += other.batches;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.wait_us += other.wait_us;
        self.transports |= other.transports;
    }
}

/// What the leader and its workers share: counters of the workers, `count` of them behind each other, and then a digest for each of
/// `calls` calls.
#[repr(C)]
pub struct SharedState {
    pub count: usize,
    pub calls: usize,
    pub counters: [Counters; 0],
}

/// The digest of the image that a call's function stands for; empty where workers know it as the leader does.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SharedDigest {
    length: usize,
    bytes: [u8; SharedDigest::MOST_BYTES],
}

impl SharedState {
    /// Bytes that it takes.
    pub fn size(workers: usize, calls: usize) -> usize {
        size_of::<SharedState>() + workers * size_of::<Counters>() + calls * size_of::<SharedDigest>()
    }

    /// The digests.
    ///
    /// # Safety
    /// `shared` has the size for its numbers of workers and calls.
    pub unsafe fn digests(shared: *mut SharedState) -> *mut SharedDigest {
        // SAFETY: the caller says so. Both structs are aligned alike.
        unsafe { (&raw mut (*shared).counters).cast::<Counters>().add((*shared).count).cast() }
    }
}

impl SharedDigest {
    /// A digest is `sha256:` and 64 digits.
    const MOST_BYTES: usize = 80;

    /// A digest, or none.
    pub fn new(digest: Option<&str>) -> SharedDigest {
        let digest = digest.filter(|digest| digest.len() <= SharedDigest::MOST_BYTES).unwrap_or_default();
        let mut bytes = [0; SharedDigest::MOST_BYTES];
        bytes[..digest.len()].copy_from_slice(digest.as_bytes());
        SharedDigest { length: digest.len(), bytes }
    }

    /// The digest.
    pub fn get(&self) -> Option<&str> {
        self.bytes.get(..self.length).and_then(|bytes| std::str::from_utf8(bytes).ok()).filter(|text| !text.is_empty())
    }
}

impl Sent {
    /// Notes that the next row is sent.
    pub fn push_sent(&mut self) {
        if let Some(positions) = &mut self.positions {
            positions.push(Some(self.count as u32));
        }
        self.count += 1;
    }

    /// Notes that the next row, the batch's `row`-th, is not sent.
    pub fn push_skipped(&mut self, row: usize) {
        let positions = self.positions.get_or_insert_with(|| (0..row as u32).map(Some).collect());
        positions.push(None);
    }

    /// Takes back what was noted as sent, but for the positions that are true.
    pub fn keep(&mut self, rows: usize, kept: &BooleanArray) {
        let mut count = 0;
        let mut position_of = |row| {
            self.position(row).filter(|position| kept.value(*position)).map(|_| {
                count += 1;
                count - 1
            })
        };
        self.positions = Some((0..rows).map(&mut position_of).collect());
        self.count = count as usize;
    }

    /// The rows of the batch, of so many, that were sent.
    pub fn rows(&self, rows: usize) -> impl Iterator<Item = usize> {
        (0..rows).filter(|row| self.position(*row).is_some())
    }

    /// Where row `row` of the batch is among the sent.
    pub fn position(&self, row: usize) -> Option<usize> {
        match &self.positions {
            // Without a panic, which must not leave the frames that ask.
            Some(positions) => positions.get(row).copied().flatten().map(|position| position as usize),
            None => Some(row),
        }
    }

    /// Which row of the batch was sent as `position`-th.
    pub fn row_of(&self, position: usize) -> usize {
        match &self.positions {
            Some(positions) => positions.iter().position(|found| *found == Some(position as u32)).unwrap_or(position),
            None => position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was sent of rows of which those that are false were left out.
    fn sent(rows: &[bool]) -> Sent {
        let mut sent = Sent::default();
        for (row, is_sent) in rows.iter().enumerate() {
            if *is_sent { sent.push_sent() } else { sent.push_skipped(row) }
        }
        sent
    }

    #[test]
    fn rows_that_were_all_sent_are_in_their_own_places() {
        let sent = sent(&[true, true, true]);
        assert_eq!((sent.count, &sent.positions), (3, &None));
        assert_eq!((sent.position(2), sent.row_of(2)), (Some(2), 2));
    }

    #[test]
    fn rows_find_their_results_behind_rows_that_were_left_out() {
        let sent = sent(&[true, true, false, false, true, false, true]);
        assert_eq!(sent.count, 4);
        let positions: Vec<_> = (0..7).map(|row| sent.position(row)).collect();
        assert_eq!(positions, [Some(0), Some(1), None, None, Some(2), None, Some(3)]);
        assert_eq!((0..4).map(|position| sent.row_of(position)).collect::<Vec<_>>(), [0, 1, 4, 6]);
        assert_eq!(sent.position(7), None);
    }

    #[test]
    fn a_first_row_that_was_left_out_moves_all_others() {
        let sent = sent(&[false, true]);
        assert_eq!((sent.count, sent.position(0), sent.position(1), sent.row_of(0)), (1, None, Some(0), 1));
    }

    #[test]
    fn rows_that_are_taken_back_leave_the_others_their_order() {
        for (rows, expected) in
            [([true; 4], [None, Some(0), Some(1), None]), ([true, true, false, true], [None, Some(0), None, None])]
        {
            let mut sent = sent(&rows);
            let kept = if sent.count == 4 { vec![false, true, true, false] } else { vec![false, true, false] };
            sent.keep(4, &BooleanArray::from(kept));
            assert_eq!((0..4).map(|row| sent.position(row)).collect::<Vec<_>>(), expected);
            assert_eq!(sent.count, expected.iter().flatten().count());
            assert_eq!(sent.rows(4).next(), Some(1));
        }
    }

    #[test]
    fn digests_that_fit_reach_workers_as_they_are() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(SharedDigest::new(Some(&digest)).get(), Some(digest.as_str()));
        assert_eq!(SharedDigest::new(Some(&"x".repeat(81))).get(), None);
        assert_eq!(SharedDigest::new(None).get(), None);
    }

    #[test]
    fn counters_of_processes_are_added_and_their_transports_joined() {
        let one = Counters {
            calls: 1,
            repeated: 2,
            cached: 7,
            batches: 3,
            bytes_sent: 4,
            bytes_received: 5,
            wait_us: 6,
            transports: 1,
        };
        let mut sum = Counters { transports: 4, ..one };
        sum.add(&one);
        assert_eq!((sum.calls, sum.repeated, sum.cached, sum.batches), (2, 4, 14, 6));
        assert_eq!((sum.bytes_sent, sum.bytes_received, sum.wait_us, sum.transports), (8, 10, 12, 5));
    }
}
