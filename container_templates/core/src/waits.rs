//! What the connection that a thread polls waits for, as the thread finds when the connection's future gives up the processor.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use crate::seats::may_run;

/// What a connection waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waits {
    pub(crate) is_reading: bool,
    pub(crate) is_writing: bool,
    /// For a thread that may run its call.
    pub(crate) is_queued: bool,
    /// Nothing is to be read now: the connection goes on with an answer, and what comes next is reported.
    pub(crate) leaves_reads: bool,
}

thread_local! {
    /// Of the connection that this thread polls.
    static WAITS: Cell<Waits> =
        const { Cell::new(Waits { is_reading: false, is_writing: false, is_queued: false, leaves_reads: false }) };
}

/// Forgets what the connection before waited for.
pub(crate) fn reset(leaves_reads: bool) {
    WAITS.set(Waits { leaves_reads, ..Waits::default() });
}

/// What the connection that was polled waits for.
pub(crate) fn found() -> Waits {
    WAITS.get()
}

/// Adds to what the connection waits for.
pub(crate) fn note(note: impl FnOnce(&mut Waits)) {
    let mut waits = WAITS.get();
    note(&mut waits);
    WAITS.set(waits);
}

/// Waits for a thread that may run calls.
pub(crate) async fn may_run_here() {
    poll_fn(|_| match may_run() {
        true => Poll::Ready(()),
        false => {
            note(|waits| waits.is_queued = true);
            Poll::Pending
        }
    })
    .await;
}
