//! Work that a connection has led to, for the thread that polls it: one that pulls.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::work::{Reply, Work};

thread_local! {
    /// On a thread that pulls: the work to which the connection that it polls has led.
    static GIVEN: RefCell<Option<Option<Arc<Work>>>> = const { RefCell::new(None) };
}

/// Whether the connection that this thread polls may lead to work for it.
pub(crate) fn is_here() -> bool {
    GIVEN.with_borrow(Option::is_some)
}

/// Whether it may from now on. Work that nobody has taken is none's.
pub(crate) fn set_here(is_here: bool) {
    GIVEN.set(is_here.then_some(None));
}

/// Gives work to this thread, which pulls, and waits for what a language replies to it.
pub(crate) async fn reply_to(work: &Arc<Work>) -> Reply {
    GIVEN.set(Some(Some(work.clone())));
    poll_fn(|_| work.take_reply().map_or(Poll::Pending, Poll::Ready)).await
}

/// The work that this thread was given.
pub(crate) fn take_given() -> Option<Arc<Work>> {
    GIVEN.with_borrow_mut(|given| given.as_mut().and_then(Option::take))
}
