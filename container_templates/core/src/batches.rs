//! The batches of a map function's stream, on their way from the client to the handler (`docs/protocol.md` §4.6).
//!
//! One side gives batches as they arrive, and waits while the handler is behind. The other side takes them, and either waits or
//! asks to be told when there is something to take: a language with an event loop has one thread for all of its streams.

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use tokio::sync::Notify;

use crate::error::CallError;

/// Batches that may wait for the handler.
const BATCHES_AHEAD: usize = 2;

/// The batches of one stream.
#[derive(Default)]
pub struct Batches {
    state: Mutex<State>,
    changed: Condvar,
    /// Tells the side that gives that there is room.
    room: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<RecordBatch>,
    /// Why there will be no more: the stream is over, or what went wrong.
    end: Option<Result<(), CallError>>,
    /// Whether the handler takes no more.
    is_abandoned: bool,
    /// What to call once there is something to take.
    wake: Option<Box<dyn FnOnce() + Send>>,
}

/// What a handler finds that does not wait for long.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// The next batch.
    Batch(RecordBatch),
    /// The stream is over.
    Ended,
    /// There was nothing in time.
    Nothing,
}

impl Debug for Batches {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").field("waiting", &self.state().waiting.len()).finish_non_exhaustive()
    }
}

impl Batches {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Takes the next batch, waiting for it; none at the end of the stream.
    ///
    /// # Errors
    /// If the client has gone, or has sent what is no batch of the function's arguments. A handler gives the error back.
    pub fn next(&self) -> Result<Option<RecordBatch>, CallError> {
        loop {
            match self.next_within(None)? {
                Taken::Batch(batch) => return Ok(Some(batch)),
                Taken::Ended => return Ok(None),
                Taken::Nothing => {}
            }
        }
    }

    /// Takes the next batch, waiting for it at most so long; none means as long as it takes.
    ///
    /// # Errors
    /// As [`Batches::next`].
    pub fn next_within(&self, patience: Option<Duration>) -> Result<Taken, CallError> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        loop {
            if let Some(batch) = state.waiting.pop_front() {
                self.room.notify_one();
                return Ok(Taken::Batch(batch));
            }
            if let Some(end) = &state.end {
                return end.clone().map(|()| Taken::Ended);
            }
            state = match deadline {
                None => self.changed.wait(state).expect("no holder panics"),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Taken::Nothing);
                    }
                    self.changed.wait_timeout(state, left).expect("no holder panics").0
                }
            };
        }
    }

    /// Calls `wake` once there is something to take, on any thread; at once if there is.
    pub(crate) fn when_ready(&self, wake: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.waiting.is_empty() && state.end.is_none() {
            state.wake = Some(Box::new(wake));
        } else {
            drop(state);
            wake();
        }
    }

    /// Gives a batch, once there is room for it. A handler that takes no more does not hold up its client.
    pub(crate) async fn give(&self, batch: RecordBatch) {
        loop {
            let room = self.room.notified();
            {
                let mut state = self.state();
                if state.is_abandoned {
                    return;
                }
                if state.waiting.len() < BATCHES_AHEAD {
                    state.waiting.push_back(batch);
                    return self.tell(state);
                }
            }
            room.await;
        }
    }

    /// Says that there will be no more. The first end counts, unless batches that came before it are not handed on.
    pub(crate) fn end(&self, end: Result<(), CallError>) {
        let mut state = self.state();
        if end.is_err() && !state.waiting.is_empty() {
            // Nobody waits for what would come of them.
            state.waiting.clear();
            state.end = Some(end);
        } else {
            state.end.get_or_insert(end);
        }
        self.tell(state);
    }

    /// Says that the handler takes no more, or that nobody waits for what it would make of them.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.is_abandoned = true;
        state.wake = None;
        let cancelled = Err(CallError::user_code("cancelled"));
        if state.waiting.is_empty() {
            state.end.get_or_insert(cancelled);
        } else {
            // Threads of the handler's may still ask.
            state.waiting.clear();
            state.end = Some(cancelled);
        }
        drop(state);
        self.room.notify_one();
        self.changed.notify_all();
    }

    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let wake = state.wake.take();
        drop(state);
        self.changed.notify_all();
        if let Some(wake) = wake {
            wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use arrow_array::RecordBatchOptions;
    use arrow_schema::Schema;

    use super::*;

    fn batch(rows: usize) -> RecordBatch {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap()
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn batches_come_in_order_and_do_not_outrun_the_handler() {
        let batches = Arc::new(Batches::default());
        let given = batches.clone();
        let (told, count) = mpsc::channel();
        let giver = std::thread::spawn(move || {
            runtime().block_on(async {
                for rows in 0..10 {
                    given.give(batch(rows)).await;
                    told.send(rows).unwrap();
                }
                given.end(Ok(()));
            });
        });
        for rows in 0..10 {
            assert_eq!(batches.next().unwrap().unwrap().num_rows(), rows);
            assert!(count.try_iter().count() <= BATCHES_AHEAD + 1);
        }
        assert_eq!(batches.next(), Ok(None));
        assert_eq!(batches.next(), Ok(None));
        giver.join().unwrap();
    }

    #[test]
    fn a_handler_that_takes_no_more_holds_up_nobody() {
        let batches = Batches::default();
        runtime().block_on(async {
            batches.give(batch(1)).await;
            batches.give(batch(2)).await;
            batches.abandon();
            for rows in 0..10 {
                batches.give(batch(rows)).await;
            }
        });
    }

    #[test]
    fn an_error_comes_before_the_batches_that_wait() {
        let batches = Batches::default();
        runtime().block_on(batches.give(batch(1)));
        batches.end(Err(CallError::user_code("cancelled")));
        batches.end(Ok(()));
        assert_eq!(batches.next().unwrap_err().message, "cancelled");
    }

    #[test]
    fn a_handler_that_does_not_wait_is_told() {
        let batches = Batches::default();
        let (told, tells) = mpsc::channel();
        let wake = |word: &'static str| {
            let told = told.clone();
            move || told.send(word).unwrap()
        };
        assert_eq!(batches.next_within(Some(Duration::ZERO)), Ok(Taken::Nothing));
        batches.when_ready(wake("batch"));
        assert!(tells.try_recv().is_err());
        runtime().block_on(batches.give(batch(3)));
        assert_eq!(tells.try_recv(), Ok("batch"));
        batches.when_ready(wake("still"));
        assert_eq!(tells.try_recv(), Ok("still"));
        assert_eq!(batches.next_within(Some(Duration::ZERO)), Ok(Taken::Batch(batch(3))));
        batches.when_ready(wake("end"));
        batches.end(Ok(()));
        assert_eq!(tells.try_recv(), Ok("end"));
        assert_eq!(batches.next_within(Some(Duration::ZERO)), Ok(Taken::Ended));
    }
}
