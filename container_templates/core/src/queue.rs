//! Calls that wait for a language to pull them, and what becomes of each.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use arrow_array::ArrayRef;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::CallError;
use crate::work::{LOOK, Reply, Work};

/// Patience with a handler that runs on the only thread for a client that has gone, while work waits.
const STUCK: Duration = Duration::from_secs(10);

/// The work that waits. The descriptor is readable while some does, and after the end.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    descriptor: EventFd,
    /// Whether one thread alone pulls.
    has_one_thread: bool,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Work>>,
    is_ended: bool,
    /// Since when work that a client waits for has been there to pull, and nobody has pulled.
    unpulled: Option<Instant>,
    /// Work that the one thread has pulled; what it has answered is forgotten with the next.
    running: Vec<Weak<Work>>,
}

impl State {
    /// Whether work that a client waits for is there to pull.
    fn has_clients(&self) -> bool {
        self.waiting.iter().any(|work| work.has_client())
    }
}

/// What a language finds.
#[derive(Debug)]
pub(crate) enum Found {
    Work(Arc<Work>),
    /// There was none in time.
    Nothing,
    /// There will be none.
    Ended,
}

impl Queue {
    pub(crate) fn new(has_one_thread: bool) -> std::io::Result<Queue> {
        let descriptor = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Queue { state: Mutex::default(), filled: Condvar::new(), descriptor, has_one_thread })
    }

    /// The descriptor to wait for.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// The same, for epoll.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Adds work.
    pub(crate) fn push(&self, work: Arc<Work>) {
        let mut state = self.state();
        if state.waiting.is_empty() && !state.is_ended {
            // It fails only if the count is near 2^64.
            let _ = self.descriptor.write(1);
        }
        if work.has_client() {
            state.unpulled.get_or_insert_with(Instant::now);
        }
        state.waiting.push_back(work);
        self.filled.notify_one();
    }

    /// Takes the next work, waiting for it at most so long; none means as long as it takes.
    pub(crate) fn next(&self, patience: Option<Duration>) -> Found {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                if state.waiting.is_empty() && !state.is_ended {
                    let _ = self.descriptor.read();
                }
                state.unpulled = state.has_clients().then(Instant::now);
                self.note_running(&mut state, &work);
                return Found::Work(work);
            }
            if state.is_ended {
                return Found::Ended;
            }
            state.unpulled = None;
            state = match deadline {
                None => self.filled.wait(state).expect("no holder panics"),
                Some(deadline) => {
                    let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
                    else {
                        return Found::Nothing;
                    };
                    self.filled.wait_timeout(state, left).expect("no holder panics").0
                }
            };
        }
    }

    /// Says that the language has work that was never in the queue.
    pub(crate) fn note_taken(&self, work: &Arc<Work>) {
        if self.has_one_thread {
            self.note_running(&mut self.state(), work);
        }
    }

    fn note_running(&self, state: &mut State, work: &Arc<Work>) {
        if self.has_one_thread && work.has_client() {
            state.running.retain(|work| work.upgrade().is_some_and(|work| !work.is_answered()));
            state.running.push(Arc::downgrade(work));
        }
    }

    /// Says that there will be no more work.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        if !state.is_ended {
            state.is_ended = true;
            let _ = self.descriptor.write(1);
        }
        self.filled.notify_all();
    }

    /// Has work done, and takes its reply in parts, of which the last is said to be it.
    pub(crate) fn run(
        &self,
        work: Work,
        is_cancelled: &dyn Fn() -> bool,
        take: &mut dyn FnMut(Vec<ArrayRef>, bool) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let work = Arc::new(work);
        self.push(work.clone());
        let waited = self.wait_for(&work, is_cancelled, take);
        if waited.is_err() {
            // Its handler may run on.
            work.cancel();
        }
        work.hand_lines_over();
        work.replies().is_abandoned = true;
        work.changed.notify_all();
        waited
    }

    fn wait_for(
        &self,
        work: &Arc<Work>,
        is_cancelled: &dyn Fn() -> bool,
        take: &mut dyn FnMut(Vec<ArrayRef>, bool) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let mut replies = work.replies();
        loop {
            match replies.waiting.pop_front() {
                Some(Reply::Part(columns)) => {
                    work.changed.notify_all();
                    drop(replies);
                    work.hand_lines_over();
                    take(columns, false)?;
                    if is_cancelled() {
                        work.cancel();
                        return Err(CallError::user_code("cancelled"));
                    }
                    replies = work.replies();
                    continue;
                }
                Some(Reply::Last(columns)) => {
                    drop(replies);
                    work.hand_lines_over();
                    return take(columns, true);
                }
                Some(Reply::Failed(error)) => return Err(error),
                None => {}
            }
            replies = work.changed.wait_timeout(replies, LOOK).expect("no holder panics").0;
            if replies.waiting.is_empty() && !work.is_cancelled() && is_cancelled() {
                // A language that has it stops as soon as it can; until then the exchange is not free.
                work.cancel();
                drop(replies);
                if self.withdraw(work) {
                    return Err(CallError::user_code("cancelled"));
                }
                replies = work.replies();
            }
            if self.has_one_thread && self.is_stuck(Instant::now()) {
                // No thread can interrupt the handler, and every other call would wait for ever.
                eprintln!(
                    "transship: a handler runs on for a client that has gone while other calls wait; the process ends"
                );
                crate::exit::end_process();
            }
        }
    }

    /// Whether work has waited for long, and nobody has pulled any, while all that runs is for clients that have been gone for as long.
    fn is_stuck(&self, now: Instant) -> bool {
        let state = self.state();
        let is_long = |since: &Instant| now.saturating_duration_since(*since) > STUCK;
        if !state.unpulled.as_ref().is_some_and(is_long) {
            return false;
        }
        let running = state.running.iter().filter_map(Weak::upgrade).filter(|work| !work.is_answered());
        let mut running = running.peekable();
        running.peek().is_some() && running.all(|work| work.is_cancelled() && work.cancelled.get().is_some_and(is_long))
    }

    /// Takes back work that nobody has pulled.
    fn withdraw(&self, work: &Arc<Work>) -> bool {
        let mut state = self.state();
        let count = state.waiting.len();
        state.waiting.retain(|waiting| !Arc::ptr_eq(waiting, work));
        let is_withdrawn = state.waiting.len() < count;
        if is_withdrawn && state.waiting.is_empty() && !state.is_ended {
            let _ = self.descriptor.read();
        }
        if !state.has_clients() {
            state.unpulled = None;
        }
        is_withdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{self, Given};
    use crate::work::Step;
    use arrow_array::{RecordBatch, RecordBatchOptions};
    use arrow_schema::Schema;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn work() -> Work {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
        Work::new(0, Step::Call, 0, batch, false)
    }

    fn is_readable(queue: &Queue) -> bool {
        poll(&mut [PollFd::new(queue.descriptor.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn the_descriptor_says_whether_work_waits() {
        let queue = Queue::new(false).unwrap();
        assert!(!is_readable(&queue));
        assert!(matches!(queue.next(Some(Duration::ZERO)), Found::Nothing));
        queue.push(Arc::new(work()));
        queue.push(Arc::new(work()));
        for is_left in [true, false] {
            assert!(is_readable(&queue));
            assert!(matches!(queue.next(None), Found::Work(_)));
            assert_eq!(is_readable(&queue), is_left);
        }
        queue.end();
        assert!(is_readable(&queue));
        assert!(matches!(queue.next(None), Found::Ended));
        assert!(is_readable(&queue));
    }

    #[test]
    fn work_whose_client_has_gone_is_withdrawn_or_told_so() {
        let queue = Arc::new(Queue::new(false).unwrap());
        let withdrawn = queue.run(work(), &|| true, &mut |_, _| Ok(()));
        assert_eq!(withdrawn.unwrap_err().message, "cancelled");
        assert!(!is_readable(&queue));
        let (pulled, is_pulled) = (queue.clone(), Arc::new(AtomicBool::new(false)));
        let has_gone = is_pulled.clone();
        let puller = std::thread::spawn(move || {
            let Found::Work(work) = pulled.next(None) else { panic!("no work") };
            is_pulled.store(true, Ordering::Relaxed);
            while !work.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            work.end(Reply::Failed(CallError::user_code("stopped")));
        });
        let error = queue.run(work(), &|| has_gone.load(Ordering::Relaxed), &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.message, "stopped");
        puller.join().unwrap();
    }

    #[test]
    fn a_process_is_stuck_once_all_that_runs_is_for_nobody() {
        let later = || Instant::now() + STUCK + Duration::from_secs(1);
        let queue = Queue::new(true).unwrap();
        let pull = || {
            let Found::Work(work) = queue.next(None) else { panic!("no work") };
            work
        };
        // Work that no client waits for may lie there for long, beside a handler that runs for nobody.
        queue.push(Arc::new(work()));
        let first = pull();
        first.cancel();
        queue.push(Arc::new(Work::without_rows(0, Step::End, 1)));
        queue.push(Arc::new(Work::without_rows(0, Step::Resume, 1)));
        assert!(!queue.is_stuck(later()));
        // Work that was taken back waits no more.
        let waiting = Arc::new(work());
        queue.push(waiting.clone());
        assert!(queue.is_stuck(later()));
        assert!(!queue.is_stuck(Instant::now()));
        assert!(queue.withdraw(&waiting));
        assert!(!queue.is_stuck(later()));
        // A handler that runs for a client may take as long as it likes.
        pull();
        pull();
        queue.push(Arc::new(work()));
        let second = pull();
        queue.push(Arc::new(work()));
        assert!(!queue.is_stuck(later()));
        second.cancel();
        assert!(queue.is_stuck(later()));
        // What is answered does not run.
        first.end(Reply::Last(vec![]));
        second.end(Reply::Last(vec![]));
        assert!(!queue.is_stuck(later()));
    }

    #[test]
    fn patience_with_a_handler_begins_when_its_client_goes() {
        let queue = Queue::new(true).unwrap();
        let (running, waiting) = (Arc::new(work()), Arc::new(work()));
        queue.push(running.clone());
        assert!(matches!(queue.next(None), Found::Work(_)));
        queue.push(waiting);
        let pushed = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        running.cancel();
        assert!(!queue.is_stuck(pushed + STUCK + Duration::from_millis(1)));
        assert!(queue.is_stuck(Instant::now() + STUCK + Duration::from_millis(1)));
    }

    #[test]
    fn work_of_no_call_has_no_tables() {
        tables::giving(Given::Unknown, || {
            for step in [Step::Call, Step::Accumulate, Step::Merge, Step::Finish, Step::State, Step::Forget, Step::Map]
            {
                assert!(matches!(Work::without_rows(0, step, 1).tables, Given::Unknown), "{step:?}");
            }
            for step in [Step::End, Step::Resume] {
                assert!(matches!(Work::without_rows(0, step, 1).tables, Given::Nothing), "{step:?}");
            }
        });
    }

    #[test]
    fn parts_do_not_outrun_the_client() {
        let queue = Arc::new(Queue::new(false).unwrap());
        let pulled = queue.clone();
        let puller = std::thread::spawn(move || {
            let Found::Work(work) = pulled.next(None) else { panic!("no work") };
            let given = (0..10).take_while(|_| work.give_part(vec![])).count();
            work.end(Reply::Last(vec![]));
            given
        });
        let mut taken = 0;
        let error = queue.run(work(), &|| false, &mut |_, _| {
            taken += 1;
            if taken == 3 { Err(CallError::user_code("enough")) } else { Ok(()) }
        });
        assert_eq!(error.unwrap_err().message, "enough");
        assert!(puller.join().unwrap() < 6);
    }
}
