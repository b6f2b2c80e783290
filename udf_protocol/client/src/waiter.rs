//! How the engine's thread waits: through the host, which may end the wait, for what the client's thread puts into a queue.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use udf_types::{Error, Kind, Result};

use crate::doorbell::Doorbell;
use crate::host::Host;

/// Longest single wait before the deadline is looked at again.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(500);

/// How the engine's thread waits for the client's.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// Rung once there is something in a queue.
    pub doorbell: Arc<Doorbell>,
    /// Why the client's thread ended, if it did so by itself.
    pub failure: Arc<OnceLock<Error>>,
}

impl Waiter {
    /// Waits for the next thing in a queue; none when the deadline passed first.
    pub fn wait_for<T>(&self, host: &dyn Host, receiver: &mpsc::Receiver<T>, deadline: Instant) -> Result<Option<T>> {
        self.wait(host, deadline, || self.look(receiver))
    }

    /// The next thing in a queue, if there is one.
    pub fn look<T>(&self, receiver: &mpsc::Receiver<T>) -> Result<Option<T>> {
        match receiver.try_recv() {
            Ok(item) => Ok(Some(item)),
            // A task that is sent while the thread's end of the queue is dropped may stay in it, with its end of this one.
            Err(mpsc::TryRecvError::Empty) => self.failure.get().map_or(Ok(None), |failure| Err(failure.clone())),
            Err(mpsc::TryRecvError::Disconnected) => {
                Err(self.failure.get().cloned().unwrap_or_else(|| {
                    Error::new(Kind::Unreachable, "the client of container functions stopped working")
                }))
            }
        }
    }

    /// Waits until `look`, which looks into queues, finds something; none when the deadline passed first.
    pub fn wait<T>(
        &self,
        host: &dyn Host,
        deadline: Instant,
        look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let wait = |doorbell: BorrowedFd<'_>| match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Ok(None),
            left => host.wait(doorbell, left.min(WAIT_SLICE)).map(Some),
        };
        self.doorbell.wait_for(look, wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::PlainHost;

    #[test]
    fn nobody_waits_for_a_thread_that_could_not_start() {
        let waiter = Waiter { doorbell: Arc::new(Doorbell::new().unwrap()), failure: Arc::default() };
        let (_sender, receiver) = mpsc::channel::<()>();
        waiter.failure.set(Error::new(Kind::Unreachable, "no thread")).unwrap();
        let found = waiter.wait_for(&PlainHost, &receiver, Instant::now() + Duration::from_secs(60));
        assert_eq!(found.unwrap_err().message(), "no thread");
    }
}
