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

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use crate::given::set_here;
use crate::http::Http;
use crate::pulling::QUEUED;
use crate::queue::{Found, Queue};

/// The longest that the kernel is asked to wait at a time.
const LONGEST: Duration = Duration::from_secs(3600);

/// A thread that waits for work.
struct Waiting<'a>(&'a Http);

impl<'a> Waiting<'a> {
    fn begin(http: &'a Http) -> Waiting<'a> {
        http.pulling.begin_wait(&http.epoll);
        set_here(true);
        Waiting(http)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        set_here(false);
        self.0.pulling.end_wait();
        self.0.seats.note_active();
    }
}

impl Http {
    /// Has threads pull what comes in, and what is in the queue.
    pub(crate) fn let_pull(&self, queue: &Arc<Queue>) -> io::Result<()> {
        self.pulling.list(queue)
    }

    /// Takes the next work, waiting for it at most so long; none means as long as it takes.
    pub(crate) fn pull(self: &Arc<Self>, queue: &Queue, patience: Option<Duration>) -> Found {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let _waiting = Waiting::begin(self);
        let mut ready = [EpollEvent::empty()];
        loop {
            let left = deadline.map_or(LONGEST, |deadline| deadline.saturating_duration_since(Instant::now()));
            let is_over = left.is_zero();
            let left = left.min(LONGEST) + Duration::from_micros(if is_over { 0 } else { 999 });
            let timeout = EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX);
            // The kernel reports the queue and the connections in turn, so neither keeps the other waiting.
            match self.pulling.epoll.wait(&mut ready, timeout) {
                Ok(1) if ready[0].data() == QUEUED => match queue.next(Some(Duration::ZERO)) {
                    Found::Nothing => {}
                    found => return found,
                },
                Ok(1) => {
                    if let Some(work) = self.advance_reported(ready[0].data()) {
                        queue.note_taken(&work);
                        return Found::Work(work);
                    }
                }
                _ => {}
            }
            if is_over {
                return Found::Nothing;
            }
        }
    }
}
