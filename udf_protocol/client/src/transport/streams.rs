//! How many Flight streams a client has open at a time.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Streams of scalar functions that one client has open at a time. Each takes a thread of servers that gRPC's C++ library runs,
/// and of them a container has about a hundred. The others wait in the order in which they came.
const MAX_STREAMS: usize = 32;
/// How long a stream of a scalar function stays open with nothing to do. The next batch opens another.
const STREAM_IDLE: Duration = Duration::from_secs(1);

/// The streams of scalar functions, which hold no state between two batches: who has none waits for one that has nothing to do.
#[derive(Debug)]
pub(super) struct Streams {
    free: Semaphore,
    /// How many wait for one.
    waiting: AtomicUsize,
    wanted: Notify,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams { free: Semaphore::new(MAX_STREAMS), waiting: AtomicUsize::new(0), wanted: Notify::new() }
    }

    /// Waits until another stream may be opened.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.free.try_acquire() {
            return Some(permit);
        }
        // An exchange that is dropped waits no longer.
        let _waiting = Waiting::among(&self.waiting);
        self.wanted.notify_waiters();
        // It is never closed.
        self.free.acquire().await.ok()
    }

    /// Waits until a stream that has nothing to do should end.
    pub(super) async fn wait_while_idle(&self) {
        let is_wanted = async {
            loop {
                let mut wanted = pin!(self.wanted.notified());
                // Before the look, so that nobody is missed between the look and the wait.
                wanted.as_mut().enable();
                if self.waiting.load(Relaxed) > 0 {
                    return;
                }
                wanted.await;
            }
        };
        let _ = tokio::time::timeout(STREAM_IDLE, is_wanted).await;
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn among(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
