//! The list of connections of threads that pull, and who looks after it (`pull.rs`).

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::queue::Queue;

/// The number of the language's list within the library's.
pub(crate) const PULLED: u64 = u64::MAX;
/// The number of the queue's descriptor within the language's list.
pub(crate) const QUEUED: u64 = u64::MAX - 1;

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

    /// Has the work in a queue wake the threads as well.
    pub(crate) fn list(&self, queue: &Arc<Queue>) -> io::Result<()> {
        self.epoll.add(queue.as_fd(), EpollEvent::new(EpollFlags::empty(), QUEUED))?;
        let _ = self.queue.set(queue.clone());
        Ok(())
    }

    /// Notes that a thread begins to wait for work.
    pub(crate) fn begin_wait(&self, of_library: &Epoll) {
        self.waiting.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        if self.is_left.load(SeqCst) {
            self.leave(of_library, false);
        }
    }

    /// Notes that it waits no more.
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, SeqCst);
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
