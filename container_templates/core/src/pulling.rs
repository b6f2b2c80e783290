//! Threads of a language that pulls answer connections themselves.
//!
//! A small call would change threads twice if a thread of the library read it, and waited for a thread of the language. So the kernel has two
//! lists of connections: the library's, and one for threads that wait in `transship_next`. A connection is on the latter after a call
//! that one unit of work answers. The thread to which it is reported reads the next request, and returns with the work; the connection lies
//! in the work meanwhile. The thread that answers the work writes the reply. What else a request turns out to need, the library's
//! threads do, and the connection is on their list from then on.
//!
//! A language's thread may be in a handler for as long as it likes. If none has asked for work for a while, the list of the language is
//! one item of the library's list, whose threads then answer the connections, and queue the calls, until a thread asks again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::http::Http;
use crate::queue::{Found, Queue};
use crate::work::{Reply, Work};

/// The number of the language's list within the library's.
pub(crate) const PULLED: u64 = u64::MAX;
/// The number of the queue's descriptor within the language's list.
const QUEUED: u64 = u64::MAX - 1;
/// The longest that the kernel is asked to wait at a time.
const LONGEST: Duration = Duration::from_secs(3600);

thread_local! {
    /// On a thread that pulls: the work to which the connection that it polls has led.
    static GIVEN: RefCell<Option<Option<Arc<Work>>>> = const { RefCell::new(None) };
}

/// Whether the connection that this thread polls may lead to work for it.
pub(crate) fn is_here() -> bool {
    GIVEN.with_borrow(Option::is_some)
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

/// The threads that pull, and their list of connections.
pub(crate) struct Pulling {
    pub(crate) epoll: Epoll,
    queue: OnceLock<Arc<Queue>>,
    /// Threads that wait for work.
    waiting: AtomicUsize,
    /// How often a thread began to.
    begun: AtomicU64,
    /// What that was when the watch last looked.
    seen: AtomicU64,
    /// Whether the library's threads look after the list.
    is_left: AtomicBool,
    /// Held while that changes.
    change: Mutex<()>,
}

impl Pulling {
    pub(crate) fn new() -> io::Result<Pulling> {
        Ok(Pulling {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            queue: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            is_left: AtomicBool::new(true),
            change: Mutex::new(()),
        })
    }

    /// Whether a thread has pulled.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(SeqCst) > 0
    }

    /// A connection of the list that is ready.
    pub(crate) fn find_ready(&self) -> Option<u64> {
        let mut ready = [EpollEvent::empty()];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        ready[..count].first().map(EpollEvent::data).filter(|number| *number != QUEUED)
    }

    /// Whether threads wait for work, or the library's threads look after the list.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_left.load(SeqCst) || self.waiting.load(SeqCst) > 0
    }

    /// Has the library's threads look after the list if no thread has begun to wait since the last time.
    pub(crate) fn look(&self, of_library: &Epoll) {
        let begun = self.begun.load(SeqCst);
        let is_left = self.waiting.load(SeqCst) == 0 && self.seen.swap(begun, SeqCst) == begun;
        if is_left && !self.is_left.load(SeqCst) {
            self.leave(of_library, true);
            if self.waiting.load(SeqCst) > 0 {
                self.leave(of_library, false);
            }
        }
    }

    /// Has the library's threads look after the list, or not.
    fn leave(&self, of_library: &Epoll, is_left: bool) {
        let _change = self.change.lock().expect("no holder panics");
        if self.is_left.swap(is_left, SeqCst) == is_left {
            return;
        }
        let events = |is_wanted| if is_wanted { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        // Both are listed, so neither fails. Work in the queue is nothing to the library's threads.
        if let Some(queue) = self.queue.get() {
            let _ = self.epoll.modify(queue.as_fd(), &mut EpollEvent::new(events(!is_left), QUEUED));
        }
        let _ = of_library.modify(&self.epoll.0, &mut EpollEvent::new(events(is_left), PULLED));
    }
}

/// A thread that waits for work.
struct Waiting<'a>(&'a Http);

impl<'a> Waiting<'a> {
    fn begin(http: &'a Http) -> Waiting<'a> {
        http.pulling.waiting.fetch_add(1, SeqCst);
        http.pulling.begun.fetch_add(1, SeqCst);
        if http.pulling.is_left.load(SeqCst) {
            http.pulling.leave(&http.epoll, false);
        }
        GIVEN.set(Some(None));
        Waiting(http)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        GIVEN.set(None);
        self.0.pulling.waiting.fetch_sub(1, SeqCst);
        self.0.seats.note_active();
    }
}

impl Http {
    /// Has threads pull what comes in, and what is in the queue.
    pub(crate) fn let_pull(&self, queue: &Arc<Queue>) -> io::Result<()> {
        self.pulling.epoll.add(queue.as_fd(), EpollEvent::new(EpollFlags::empty(), QUEUED))?;
        let _ = self.pulling.queue.set(queue.clone());
        Ok(())
    }

    /// Takes the next work, waiting for it at most so long; none means as long as it takes.
    pub(crate) fn pull(self: &Arc<Self>, queue: &Queue, patience: Option<Duration>) -> Found {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let _waiting = Waiting::begin(self);
        let mut ready = [EpollEvent::empty()];
        loop {
            match queue.next(Some(Duration::ZERO)) {
                Found::Nothing => {}
                found => return found,
            }
            let left = deadline.map_or(LONGEST, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Found::Nothing;
            }
            let left = left.min(LONGEST) + Duration::from_micros(999);
            let timeout = EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX);
            if self.pulling.epoll.wait(&mut ready, timeout) == Ok(1)
                && ready[0].data() != QUEUED
                && let Some(work) = self.advance_reported(ready[0].data())
            {
                queue.note_taken(&work);
                return Found::Work(work);
            }
        }
    }
}
