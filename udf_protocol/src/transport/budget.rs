//! How much of what servers send an exchange may hold: counted before it is read, and until the engine takes it.
//!
//! A reply that is larger than the limit is an error. Replies that only together are larger wait for their turn, but for the
//! one that the engine waits for: it is let through, or nobody would ever make room. So an exchange holds at most twice the
//! limit of replies that were received and not taken, whatever the servers send.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::error::{Error, Result};

/// What a reply may have by default.
pub const DEFAULT_REPLY_BYTES: usize = 256 << 20;

/// The bytes that one exchange may hold.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// The number of the batch whose answer the engine waits for.
    next: u64,
}

impl Budget {
    /// A budget of `limit` bytes for each reply.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, state: Mutex::default(), changed: Notify::new() })
    }

    /// What one reply may have.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A share for the reply to a batch, of which nothing is there yet.
    pub(crate) fn share(self: &Arc<Budget>, number: u64) -> Share {
        Share { budget: self.clone(), number, bytes: 0, limit: self.limit }
    }

    /// As [`Budget::share`], of a reply whose text becomes columns: a quarter of the limit. While it is read its text, what is
    /// made of that and the columns are there at once, and one of them twice.
    pub(crate) fn share_of_text(self: &Arc<Budget>, number: u64) -> Share {
        Share { budget: self.clone(), number, bytes: 0, limit: self.limit / 4 }
    }

    /// Notes that the engine waits for the answer to a batch.
    pub(crate) fn expect(&self, number: u64) {
        self.state.lock().expect("no holder panics").next = number;
        self.changed.notify_waiters();
    }

    fn try_take(&self, number: u64, bytes: usize) -> bool {
        let mut state = self.state.lock().expect("no holder panics");
        let is_let_in = number <= state.next || state.held.saturating_add(bytes) <= self.limit;
        if is_let_in {
            state.held = state.held.saturating_add(bytes);
        }
        is_let_in
    }
}

/// What one reply holds. Dropping it gives that back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    number: u64,
    bytes: usize,
    limit: usize,
}

impl Share {
    /// Counts what is about to be read, and waits for its turn.
    pub(crate) async fn grow(&mut self, function: &str, more: usize) -> Result<()> {
        if more > self.left() {
            return Err(self.exceeded(function));
        }
        loop {
            let mut changed = std::pin::pin!(self.budget.changed.notified());
            // Before the look, so that no change is missed between the look and the wait.
            changed.as_mut().enable();
            if self.budget.try_take(self.number, more) {
                self.bytes += more;
                return Ok(());
            }
            changed.await;
        }
    }

    /// The error of a reply that needs more.
    pub(crate) fn exceeded(&self, function: &str) -> Error {
        Error::reply_too_large(function, self.limit)
    }

    /// What it may hold.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// What it holds.
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    /// How much more the reply may have.
    pub(crate) fn left(&self) -> usize {
        self.limit - self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        {
            let mut state = self.budget.state.lock().expect("no holder panics");
            state.held = state.held.saturating_sub(self.bytes);
        }
        self.budget.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Kind;

    #[tokio::test]
    async fn replies_take_turns_and_the_awaited_one_is_let_in() {
        let budget = Budget::new(100);
        let mut first = budget.share(1);
        first.grow("f", 80).await.unwrap();
        assert_eq!(first.grow("f", 21).await.unwrap_err().kind(), Kind::OutOfMemory);
        let mut second = budget.share(2);
        let waits = tokio::time::timeout(Duration::from_millis(20), second.grow("f", 30)).await;
        assert!(waits.is_err());
        // The engine waits for this one.
        budget.share(0).grow("f", 90).await.unwrap();
        let (taken, ()) = tokio::join!(second.grow("f", 30), async { drop(first) });
        taken.unwrap();
        let mut third = budget.share(3);
        let (taken, ()) = tokio::join!(third.grow("f", 90), async { budget.expect(3) });
        taken.unwrap();
    }
}
