//! The results of a map function's stream, on their way from the handler to the client (`docs/protocol.md` §4.6).
//!
//! Any thread may give them: a handler that takes rows on a thread of its own gives there what it has before it waits for more.

use std::fmt::{Debug, Formatter};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use arrow_array::ArrayRef;

use crate::error::CallError;

type Give = Box<dyn FnMut(ArrayRef) -> Result<(), CallError> + Send>;

/// The results of one stream.
pub struct Results(Mutex<Option<Give>>);

impl Debug for Results {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Results").finish_non_exhaustive()
    }
}

impl Results {
    /// Results that go to `give`.
    pub(crate) fn new(give: impl FnMut(ArrayRef) -> Result<(), CallError> + Send + 'static) -> Results {
        Results(Mutex::new(Some(Box::new(give))))
    }

    /// Gives a column of results to the client, waiting while it is behind. There may be any number of results, none included.
    ///
    /// # Errors
    /// If the client has gone, the call has ended, or the results do not fit. A handler gives the error back.
    pub fn give(&self, results: ArrayRef) -> Result<(), CallError> {
        let mut give = self.0.lock().map_err(|_| CallError::violation("the stream has failed"))?;
        match give.as_mut() {
            Some(give) => give(results),
            None => Err(CallError::user_code("cancelled")),
        }
    }

    /// Takes no more, and holds nothing of the stream from now on: a thread of the handler may keep this for ever.
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
}

/// Waits on this thread, whatever it is: a handler may give results where it has a runtime of its own poll a task.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    // A task that has had its turn would be made to wait for another, which comes only after this.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use arrow_array::{Array, Int64Array};

    use super::*;

    #[test]
    fn results_arrive_until_the_end_which_frees_their_way() {
        let (sender, receiver) = mpsc::channel();
        let results = Arc::new(Results::new(move |column: ArrayRef| {
            sender.send(column.len()).map_err(|_| CallError::user_code("gone"))
        }));
        let column = |rows: i64| Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        results.give(column(3)).unwrap();
        let elsewhere = results.clone();
        std::thread::spawn(move || elsewhere.give(column(2))).join().unwrap().unwrap();
        results.end();
        assert_eq!(results.give(column(1)).unwrap_err().message, "cancelled");
        // The sender is gone, although the results are still held.
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn a_task_of_a_runtime_waits_like_any_thread() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let reader = thread::spawn(move || {
            let numbers = std::iter::from_fn(|| receiver.blocking_recv());
            numbers
                .inspect(|number| {
                    if number % 100 == 0 {
                        thread::yield_now()
                    }
                })
                .sum::<u32>()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { (1..=1000).for_each(|number| wait_for(sender.send(number)).unwrap()) });
        drop(sender);
        assert_eq!(reader.join().unwrap(), 500_500);
    }

    #[test]
    fn a_panic_on_the_way_fails_what_comes_later() {
        let results = Arc::new(Results::new(|_| panic!("lost")));
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let (elsewhere, first) = (results.clone(), column.clone());
        assert!(std::thread::spawn(move || elsewhere.give(first)).join().is_err());
        assert_eq!(results.give(column).unwrap_err().kind, "protocol_violation");
        results.end();
    }
}
