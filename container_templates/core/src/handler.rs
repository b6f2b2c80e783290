//! What a language implements, or what stands for it: handlers of functions, and the groups of aggregate functions.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use udf_codec::batch::AggregateStep;
use udf_types::signature::RowErrors;

use crate::batches::Batches;
use crate::error::CallError;
use crate::results::Results;

/// Rows that pass between two looks at whether the client has gone.
const ROWS_BETWEEN_CHECKS: usize = 256;
/// Most results of rows without arguments that room is made for at once.
const ROWS_WITHOUT_ARGUMENTS: usize = 1 << 16;

/// Says whether the client has gone.
pub type IsCancelled<'a> = &'a dyn Fn() -> bool;
/// Takes a part of a reply, and whether it is the last.
pub type Emit<'a> = &'a mut dyn FnMut(Vec<ArrayRef>, bool) -> Result<(), CallError>;

/// Looks now and then whether the client has gone.
///
/// # Errors
/// If it has; nobody reads the error.
pub fn check_cancelled(row: usize, is_cancelled: IsCancelled<'_>) -> Result<(), CallError> {
    if row.is_multiple_of(ROWS_BETWEEN_CHECKS) && is_cancelled() {
        return Err(CallError::user_code("cancelled"));
    }
    Ok(())
}

/// How many results room is made for before there are any.
pub fn room_for(batch: &RecordBatch) -> usize {
    // Rows without arguments take no bytes: a few bytes may say that there are any number.
    if batch.num_columns() == 0 { batch.num_rows().min(ROWS_WITHOUT_ARGUMENTS) } else { batch.num_rows() }
}

/// A batch of calls for a handler.
pub struct Calls<'a> {
    /// The arguments.
    pub batch: &'a RecordBatch,
    /// Whether a scalar function goes on after rows that fail. The reply then has a second column of text, with their errors.
    pub row_errors: Option<RowErrors>,
    /// Whether the client has gone.
    pub is_cancelled: IsCancelled<'a>,
}

impl std::fmt::Debug for Calls<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("batch", self.batch).field("row_errors", &self.row_errors).finish_non_exhaustive()
    }
}

/// A function's handler. Threads may call it at the same time.
pub trait Handler: Send + Sync + 'static {
    /// Answers a batch of a scalar or table function in parts: columns as `Signature::reply_types` has them. A column of texts
    /// may be a dictionary of them. A column that is an argument, or a slice of one, may cost the client no copy.
    ///
    /// # Errors
    /// The handler's, and results that do not fit.
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError>;

    /// The groups of a new exchange of an aggregate function.
    fn groups(&self) -> Box<dyn Groups>;

    /// Answers a stream of batches of a map function with any number of columns of results. These may come before, between and after
    /// the batches, and the handler need not take all of the batches.
    ///
    /// # Errors
    /// The handler's, and those of [`Batches::next`] and [`Results::give`].
    fn map(
        &self,
        batches: &Arc<Batches>,
        is_cancelled: IsCancelled<'_>,
        results: &Arc<Results>,
    ) -> Result<(), CallError> {
        let _ = (batches, is_cancelled, results);
        Err(CallError::violation("the handler answers no streams"))
    }
}

/// The groups of one exchange, which end when this is dropped.
pub trait Groups: Send {
    /// Takes a step of §4.7 with a batch of group, arguments and state: the reply's two columns, result and state. Each row has a
    /// group.
    ///
    /// # Errors
    /// The handler's, and a state that cannot be taken.
    fn answer(
        &mut self,
        batch: &RecordBatch,
        step: AggregateStep,
        is_cancelled: IsCancelled<'_>,
    ) -> Result<Vec<ArrayRef>, CallError>;
}
