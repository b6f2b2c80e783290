//! How much of what servers send an exchange may hold: counted before it is read, and until the engine takes it.
//!
//! A reply that is larger than the limit is an error. Replies that only together are larger wait for their turn, but for one:
//! that for which the engine waits is let through, or nobody would ever make room. Another one is only once there is room
//! again, also if both are parts of one answer. So an exchange holds at most twice the limit of replies that were received and
//! not taken, whatever the servers send.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use udf_types::{Error, Result};

/// What a reply may have by default.
pub const DEFAULT_REPLY_BYTES: usize = udf_project::options::REPLY_BYTES.default_size();

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
    /// The share that was let through, while all hold more than the limit.
    let_through: Option<u64>,
    /// Shares so far.
    shares: u64,
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
        self.share_within(number, self.limit)
    }

    /// As [`Budget::share`], of a reply whose text becomes columns: a quarter of the limit. While it is read its text, what is
    /// made of that and the columns are there at once, and one of them twice.
    pub(crate) fn share_of_text(self: &Arc<Budget>, number: u64) -> Share {
        self.share_within(number, self.limit / 4)
    }

    /// As [`Budget::share`], of a reply that is one message of columns: three quarters of the limit. What does not lie in the
    /// message as memory wants it is there twice, for a while.
    pub(crate) fn share_of_message(self: &Arc<Budget>, number: u64) -> Share {
        self.share_within(number, self.limit / 4 * 3)
    }

    fn share_within(self: &Arc<Budget>, number: u64, limit: usize) -> Share {
        let mut state = self.lock();
        state.shares += 1;
        Share { budget: self.clone(), id: state.shares, number, bytes: 0, limit }
    }

    /// Notes that the engine waits for the answer to a batch.
    pub(crate) fn expect(&self, number: u64) {
        self.lock().next = number;
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn try_take(&self, share: &Share, bytes: usize) -> bool {
        let mut state = self.lock();
        let has_room = state.held.saturating_add(bytes) <= self.limit;
        let is_let_through = share.number <= state.next && state.let_through.is_none_or(|id| id == share.id);
        if !has_room && is_let_through {
            state.let_through = Some(share.id);
        }
        if has_room || is_let_through {
            state.held = state.held.saturating_add(bytes);
        }
        has_room || is_let_through
    }

    fn give_back(&self, share: &Share, bytes: usize) {
        {
            let mut state = self.lock();
            state.held = state.held.saturating_sub(bytes);
            let is_gone = state.let_through == Some(share.id) && bytes == share.bytes;
            if is_gone || state.held <= self.limit {
                state.let_through = None;
            }
        }
        self.changed.notify_waiters();
    }
}

/// What one reply holds. Dropping it gives that back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    id: u64,
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
        self.take(more).await;
        Ok(())
    }

    /// Waits until it may hold `bytes` in all, for a decoder that needs more memory than what it reads. What is more than any
    /// reply may have counts as that.
    pub(crate) async fn make_room(&mut self, bytes: usize) {
        let more = bytes.min(self.budget.limit).saturating_sub(self.bytes);
        self.take(more).await;
    }

    async fn take(&mut self, more: usize) {
        loop {
            let mut changed = std::pin::pin!(self.budget.changed.notified());
            // Before the look, so that no change is missed between the look and the wait.
            changed.as_mut().enable();
            if self.budget.try_take(self, more) {
                break;
            }
            changed.await;
        }
        self.bytes += more;
    }

    /// Notes that it holds `bytes`, since the reply is read and what it was read from is gone.
    pub(crate) fn hold(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.budget.give_back(self, self.bytes - bytes);
        } else {
            let mut state = self.budget.lock();
            state.held = state.held.saturating_add(bytes - self.bytes);
        }
        self.bytes = bytes;
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
        self.limit.saturating_sub(self.bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use udf_types::Kind;

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

    #[tokio::test]
    async fn of_the_awaited_answer_one_part_is_let_through_at_a_time() {
        let is_stuck = async |share: &mut Share, bytes| {
            tokio::time::timeout(Duration::from_millis(20), share.grow("f", bytes)).await.is_err()
        };
        let budget = Budget::new(100);
        let [mut first, mut second, mut third] = [0, 0, 0].map(|number| budget.share(number));
        first.grow("f", 80).await.unwrap();
        second.grow("f", 80).await.unwrap();
        // What was let through may go on.
        second.grow("f", 10).await.unwrap();
        assert!(is_stuck(&mut third, 80).await);
        let (taken, ()) = tokio::join!(third.grow("f", 80), async { drop(first) });
        taken.unwrap();
        assert_eq!(budget.lock().held, 170);
        let mut fourth = budget.share(0);
        assert!(is_stuck(&mut fourth, 10).await);
        // Also if it is the one that was let through that goes.
        drop(third);
        fourth.grow("f", 10).await.unwrap();
    }

    #[tokio::test]
    async fn decoders_make_room_and_hold_what_is_left() {
        let budget = Budget::new(100);
        let mut first = budget.share_of_text(1);
        first.grow("f", 20).await.unwrap();
        first.make_room(70).await;
        let mut second = budget.share(2);
        let waits = tokio::time::timeout(Duration::from_millis(20), second.make_room(50)).await;
        assert!(waits.is_err());
        let ((), ()) = tokio::join!(second.make_room(50), async { first.hold(30) });
        assert_eq!((first.held(), second.held(), budget.lock().held), (30, 50, 80));
        // More than any reply may have is the same as all.
        drop(second);
        drop(first);
        let mut third = budget.share(3);
        third.make_room(1000).await;
        assert_eq!(third.held(), 100);
        third.hold(120);
        drop(third);
        assert_eq!(budget.lock().held, 0);
    }
}
