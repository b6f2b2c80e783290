//! Map functions: all rows of a stream in, any number of results out (`docs/protocol.md` §4.6).
//!
//! The handler takes rows as they arrive, and is asked for results as the client takes them. A few batches and one part of results are in
//! memory at a time. Results do not wait for rows that may never come.

use std::fmt::{Debug, Display};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch};
use transship_core::error::{guarded, user_error};
use transship_core::{Batches, CallError, IsCancelled, Results, Taken};
use udf_types::signature::Signature;

use crate::function::{BYTES_PER_PART, RESULTS_PER_PART, Row, check_column, finish, misfit, read_row};
use crate::pace::Pace;
use crate::value::{Answer, Value};

/// Between two looks for results while another thread than the one that gives them waits for rows.
const LOOK: Duration = Duration::from_millis(20);

/// The batches of a stream, for the handler.
struct Stream {
    batches: Arc<Batches>,
    /// The thread that asks the handler for results.
    owner: ThreadId,
    /// Gives the client the results that there are, before the handler waits for batches.
    flush: Box<dyn Fn() -> Result<(), CallError> + Send + Sync>,
    /// Why the rows ended early. A handler that overlooks it would take what it has got for all rows.
    cut: OnceLock<CallError>,
}

impl Stream {
    fn new(batches: &Arc<Batches>, flush: impl Fn() -> Result<(), CallError> + Send + Sync + 'static) -> Arc<Stream> {
        let owner = thread::current().id();
        Arc::new(Stream { batches: batches.clone(), owner, flush: Box::new(flush), cut: OnceLock::new() })
    }

    /// The next batch. What cuts the stream off is told once, and nothing comes after it.
    fn next(&self) -> Option<Result<RecordBatch, CallError>> {
        if self.cut.get().is_some() {
            return None;
        }
        self.wait().map_err(|error| self.cut_off(error)).transpose()
    }

    fn wait(&self) -> Result<Option<RecordBatch>, CallError> {
        // The thread that gives results has none to give while it waits here. Another one looks for those that it has given meanwhile.
        let patience = (thread::current().id() != self.owner).then_some(LOOK);
        let mut taken = self.batches.next_within(Some(Duration::ZERO))?;
        loop {
            match taken {
                Taken::Batch(batch) => return Ok(Some(batch)),
                Taken::Ended => return Ok(None),
                Taken::Nothing => (self.flush)()?,
            }
            taken = self.batches.next_within(patience)?;
        }
    }

    fn cut_off(&self, error: CallError) -> CallError {
        self.cut.get_or_init(|| error.clone());
        error
    }

    /// Why the rows ended early, or what the handler has made of them.
    fn end(&self, answered: Result<(), CallError>) -> Result<(), CallError> {
        self.cut.get().map_or(answered, |cut| Err(cut.clone()))
    }
}

/// The rows of a query, as tuples of their arguments. An error is the last item: the client has gone, or Rust cannot hold a value. The call
/// then fails with it, whatever the handler returns. The rows may be taken on another thread.
pub struct Rows<R: Row> {
    stream: Arc<Stream>,
    signature: Arc<Signature>,
    batch: Option<RowsOfBatch<R>>,
}

struct RowsOfBatch<R: Row> {
    batch: RecordBatch,
    columns: R::Columns,
    next: usize,
}

impl<R: Row> Debug for Rows<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl<R: Row> Iterator for Rows<R> {
    type Item = Result<R, CallError>;

    fn next(&mut self) -> Option<Result<R, CallError>> {
        loop {
            if let Some(RowsOfBatch { batch, columns, next }) = &mut self.batch
                && *next < batch.num_rows()
            {
                let row = read_row(&self.signature, columns, batch.columns(), *next);
                *next += 1;
                return Some(row.map_err(|error| {
                    self.batch = None;
                    // The client does not know of which batch the row is.
                    self.stream.cut_off(CallError { row: None, ..error })
                }));
            }
            self.batch = None;
            match self.stream.next()? {
                Ok(batch) => {
                    let columns = R::columns(&self.signature, batch.columns());
                    self.batch = Some(RowsOfBatch { batch, columns, next: 0 });
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The batches of a query. An error is the last item: the client has gone. The call then fails with it, whatever the handler returns. The
/// batches may be taken on another thread.
pub struct RecordBatches(Arc<Stream>);

impl Debug for RecordBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordBatches").finish_non_exhaustive()
    }
}

impl Iterator for RecordBatches {
    type Item = Result<RecordBatch, CallError>;

    fn next(&mut self) -> Option<Result<RecordBatch, CallError>> {
        self.0.next()
    }
}

/// Results that have not gone out.
struct Pending<V: Value> {
    signature: Arc<Signature>,
    results: Arc<Results>,
    /// The results, and their number. Whoever takes rows on another thread gives them from there.
    builder: Mutex<(V::Builder, usize)>,
}

impl<V: Value> Pending<V> {
    fn builder(&self) -> MutexGuard<'_, (V::Builder, usize)> {
        // A panic on another thread is that thread's: there is no state in which the results could be halfway.
        self.builder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, value: Option<V>) -> Result<(), CallError> {
        let unfit = |shown: String| misfit(&self.signature, &shown);
        // Not under the lock: the handler's code may run, and ask for rows, or wait for a thread that does.
        let settled = V::settle(value).map_err(unfit)?;
        let mut pending = self.builder();
        V::append(&mut pending.0, settled).map_err(unfit)?;
        pending.1 += 1;
        if pending.1 < RESULTS_PER_PART && V::bytes(&pending.0) < BYTES_PER_PART {
            return Ok(());
        }
        self.give(&mut pending)
    }

    fn flush(&self) -> Result<(), CallError> {
        let mut pending = self.builder();
        if pending.1 == 0 { Ok(()) } else { self.give(&mut pending) }
    }

    fn give(&self, pending: &mut (V::Builder, usize)) -> Result<(), CallError> {
        let empty = (V::builder(&self.signature.result, RESULTS_PER_PART), 0);
        let (builder, _) = std::mem::replace(pending, empty);
        self.results.give(finish::<V>(&self.signature, builder)?)
    }
}

/// Answers a stream of rows.
pub(crate) fn map_rows<R: Row, I>(
    function: &impl Fn(Rows<R>) -> I,
    signature: &Arc<Signature>,
    batches: &Arc<Batches>,
    is_cancelled: IsCancelled<'_>,
    results: &Arc<Results>,
) -> Result<(), CallError>
where
    I: IntoIterator,
    I::Item: Answer,
{
    let builder = <I::Item as Answer>::Value::builder(&signature.result, RESULTS_PER_PART);
    let pending = Pending::<<I::Item as Answer>::Value> {
        signature: signature.clone(),
        results: results.clone(),
        builder: Mutex::new((builder, 0)),
    };
    let pending = Arc::new(pending);
    let flushed = pending.clone();
    let stream = Stream::new(batches, move || flushed.flush());
    let rows = Rows { stream: stream.clone(), signature: signature.clone(), batch: None };
    let mut add = |answer: I::Item| pending.add(answer.answer()?);
    let answered = guarded(|| give_all(&stream, function(rows), is_cancelled, &mut add).and_then(|()| pending.flush()));
    stream.end(answered)
}

/// Answers a stream of batches.
pub(crate) fn map_batches<I, E: Display + Debug>(
    function: &impl Fn(RecordBatches) -> I,
    signature: &Arc<Signature>,
    batches: &Arc<Batches>,
    is_cancelled: IsCancelled<'_>,
    results: &Arc<Results>,
) -> Result<(), CallError>
where
    I: IntoIterator<Item = Result<ArrayRef, E>>,
{
    let stream = Stream::new(batches, || Ok(()));
    let mut give = |column: Result<ArrayRef, E>| {
        let column = column.map_err(user_error)?;
        check_column(signature, &column)?;
        results.give(column)
    };
    let taken = RecordBatches(stream.clone());
    stream.end(guarded(|| give_all(&stream, function(taken), is_cancelled, &mut give)))
}

/// Has all that the handler returns given, until it fails, or the stream does.
fn give_all<T>(
    stream: &Stream,
    given: impl IntoIterator<Item = T>,
    is_cancelled: IsCancelled<'_>,
    give: &mut dyn FnMut(T) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let mut pace = Pace::new(is_cancelled);
    for (number, each) in given.into_iter().enumerate() {
        // The handler may go on for ever without the rows that it lacks.
        stream.end(Ok(()))?;
        pace.check(number)?;
        give(each)?;
    }
    Ok(())
}
