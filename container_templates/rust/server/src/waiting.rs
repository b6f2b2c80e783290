//! Scalar functions that wait, such as for a web service: as many calls of a batch are under way at a time as the manifest's
//! `concurrency` says.
//!
//! The thread that answers a batch polls the futures of its rows, so that they find the shared tables and the lines of their call.
//! Results keep the order of the rows. The first row that fails ends the batch: futures of later rows are dropped, and those of earlier
//! rows go on, since one of them may fail as well. When the client has gone, all futures are dropped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_array::ArrayRef;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use transship_core::error::{at_row, guarded};
use transship_core::{CallError, Calls, check_cancelled};
use udf_types::signature::Signature;

use crate::function::{Callable, Columns, Row, ScalarResults};
use crate::pace::Pace;
use crate::value::Answer;

/// Time between two looks at whether the client has gone.
const LOOK: Duration = Duration::from_millis(20);
/// Threads for what a handler gives to `spawn_blocking`: a container has a bounded number of them.
const MOST_BLOCKING_THREADS: usize = 32;

/// The runtime of all calls, so that a client that a handler keeps serves all of them. The core has another: tasks of a handler that
/// compute for long do not hold up its connections.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Starts the runtime, unless it has been.
pub(crate) fn start() -> Result<(), String> {
    if RUNTIME.get().is_none() {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(MOST_BLOCKING_THREADS).thread_name("waiting").enable_all();
        // Another thread's runtime is as good.
        let _ = RUNTIME.set(builder.build().map_err(|cause| cause.to_string())?);
    }
    Ok(())
}

/// The reply's columns: what the function gives for each row, with at most so many calls under way.
pub(crate) fn call_rows<R: Row, F>(
    function: &impl Callable<R, F>,
    signature: &Signature,
    concurrency: usize,
    calls: &Calls<'_>,
) -> Result<Vec<ArrayRef>, CallError>
where
    F: Future + 'static,
    F::Output: Answer,
{
    let runtime = RUNTIME.get().ok_or_else(|| CallError::violation("the runtime has not started"))?;
    runtime.block_on(async {
        let (rows, columns) = (calls.batch.num_rows(), Columns::<R>::new(signature, calls.batch.columns()));
        let mut results = ScalarResults::new(signature, calls);
        let mut pace = Pace::new(calls.is_cancelled);
        let mut looks = interval_at(Instant::now() + LOOK, LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = FuturesUnordered::<Call<F>>::new();
        // What rows have given that wait for earlier ones, from row `first` on, and the row that is called next.
        let (mut waiting, mut first, mut next) = (VecDeque::new(), 0, 0);
        let mut has_failed = false;
        while first < rows {
            while !has_failed && next < rows && under_way.len() < concurrency {
                pace.check(next)?;
                waiting.push_back(None);
                let begun = columns.read(next).and_then(|arguments| {
                    guarded(|| {
                        at_row(next);
                        Ok(function.call(arguments))
                    })
                });
                match begun {
                    Ok(future) => under_way.push(Call { row: next, future: Some(Box::pin(future)) }),
                    Err(error) => {
                        has_failed = !results.goes_on_after(&error);
                        waiting[next - first] = Some(Err(error));
                    }
                }
                next += 1;
            }
            while let Some(Some(answer)) = waiting.pop_front_if(|answer| answer.is_some()) {
                results.add(first, answer)?;
                first += 1;
            }
            if under_way.is_empty() {
                continue;
            }
            tokio::select! {
                // First, so that calls that never wait do not keep it from being looked at.
                biased;
                _ = looks.tick() => check_cancelled(0, calls.is_cancelled)?,
                Some((row, answer)) = under_way.next() => {
                    if answer.as_ref().is_err_and(|error| !results.goes_on_after(error)) {
                        has_failed = true;
                        under_way = std::mem::take(&mut under_way).into_iter().filter(|call| call.row < row).collect();
                    }
                    waiting[row - first] = Some(answer);
                }
            }
        }
        results.finish()
    })
}

/// The call of a row. A panic is the row's error, and one of a future that is dropped is only logged.
struct Call<F> {
    row: usize,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Call<F>
where
    F::Output: Answer,
{
    type Output = (usize, Result<Option<<F::Output as Answer>::Value>, CallError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let row = self.row;
        let future = self.future.as_mut().expect("it is polled until it is ready");
        let polled = guarded(|| {
            at_row(row);
            Ok(future.as_mut().poll(context).map(Answer::answer))
        });
        polled.unwrap_or_else(|panicked| Poll::Ready(Err(panicked))).map(|answer| (row, answer))
    }
}

impl<F> Drop for Call<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        let _ = guarded(|| {
            drop(future);
            Ok(())
        });
    }
}
