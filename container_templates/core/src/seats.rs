//! Which threads answer connections.
//!
//! A thread that has a seat waits for connections and answers them itself: a short call is over before another thread has woken up.
//! There are as many seats as processors, so short calls do not take turns at a processor. A call that takes long goes on without a
//! seat, and another thread has it: at once if the function's last call was long, otherwise when the watch sees it. So no call keeps
//! other connections waiting, and as many slow calls run at a time as there may be threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread may be busy before another has its seat.
const PATIENCE: Duration = Duration::from_millis(5);
/// How long a thread without a seat waits for one before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// Threads at most; the limit on a container's processes may be lower.
const MOST_THREADS: usize = 512;

/// What the threads do.
pub(crate) trait Work: Send + Sync + 'static {
    /// Something to do.
    type Item;

    /// Waits for it.
    fn next(self: &Arc<Self>) -> Self::Item;
    /// Does it. It may run calls.
    fn act(self: &Arc<Self>, item: Self::Item);
    /// Does what there is to do without running calls, and waits for nothing.
    fn act_without_calls(self: &Arc<Self>);
    /// Sees to what other threads than those with a seat leave undone. The watch calls it, until nothing is under way.
    fn look(self: &Arc<Self>);
    /// Whether nothing is under way on those threads.
    fn is_idle(&self) -> bool;
}

pub(crate) struct Seats {
    /// Since when the thread that has the seat has been busy, in nanoseconds from `start`; 0 while it waits.
    busy_since: Vec<AtomicU64>,
    start: Instant,
    state: Mutex<State>,
    freed: Condvar,
    /// Whether somebody was busy since the watch last looked.
    is_active: AtomicBool,
    watch: OnceLock<Thread>,
}

#[derive(Default)]
struct State {
    /// Seats that nobody has.
    free: Vec<usize>,
    /// Threads that wait for one.
    waiting: usize,
    threads: usize,
}

thread_local! {
    /// The seat that this thread has while it is busy, and since when.
    static HELD: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
    /// Whether this thread may run calls.
    static MAY_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may run calls, which may take long.
pub(crate) fn may_run() -> bool {
    MAY_RUN.get()
}

/// Has this thread run calls, which is no thread of a server's.
#[cfg(feature = "simulation")]
pub(crate) fn let_run() {
    MAY_RUN.set(true);
}

impl Seats {
    /// As many seats as there are processors.
    pub(crate) fn new() -> Seats {
        let count = thread::available_parallelism().map_or(2, usize::from);
        Seats {
            busy_since: (0..count).map(|_| AtomicU64::new(0)).collect(),
            start: Instant::now(),
            state: Mutex::default(),
            freed: Condvar::new(),
            is_active: AtomicBool::new(false),
            watch: OnceLock::new(),
        }
    }

    /// Starts threads that work, and the watch.
    pub(crate) fn start<W: Work>(self: &Arc<Self>, work: &Arc<W>) -> std::io::Result<()> {
        let (seats, watched) = (self.clone(), work.clone());
        let watch = thread::Builder::new().name("watch".to_string()).spawn(move || seats.watch(&watched))?;
        let _ = self.watch.set(watch.thread().clone());
        for seat in 0..self.busy_since.len() {
            self.free(seat, work);
        }
        Ok(())
    }

    /// Has this thread go on without its seat, since its call takes long.
    pub(crate) fn give_up<W: Work>(self: &Arc<Self>, work: &Arc<W>) {
        if let Some((seat, since)) = HELD.take()
            && self.end(seat, since)
        {
            self.free(seat, work);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Has another thread take a seat.
    fn free<W: Work>(self: &Arc<Self>, seat: usize, work: &Arc<W>) {
        let mut state = self.state();
        state.free.push(seat);
        self.find_threads(state, work);
    }

    /// Sees to it that somebody takes the seats that are free.
    fn find_threads<W: Work>(self: &Arc<Self>, mut state: MutexGuard<'_, State>, work: &Arc<W>) {
        if state.free.is_empty() {
            return;
        }
        if state.free.len() <= state.waiting {
            return self.freed.notify_one();
        }
        if state.threads == MOST_THREADS {
            return;
        }
        state.threads += 1;
        drop(state);
        let (seats, its_work) = (self.clone(), work.clone());
        if thread::Builder::new().spawn(move || seats.run(&its_work)).is_err() {
            // There are as many as this container may have: the first that is done takes the seat.
            self.state().threads -= 1;
        }
    }

    /// A thread's life.
    fn run<W: Work>(&self, work: &Arc<W>) {
        MAY_RUN.set(true);
        while let Some(seat) = self.take() {
            let mut is_held = true;
            while is_held {
                let item = work.next();
                let since = self.begin(seat);
                HELD.set(Some((seat, since)));
                work.act(item);
                is_held = HELD.take().is_some() && self.end(seat, since);
            }
        }
    }

    /// A seat, once one is free; none if others are enough.
    fn take(&self) -> Option<usize> {
        let mut state = self.state();
        loop {
            if let Some(seat) = state.free.pop() {
                return Some(seat);
            }
            state.waiting += 1;
            let (guard, waited) = self.freed.wait_timeout(state, IDLE).expect("no holder panics");
            state = guard;
            state.waiting -= 1;
            if waited.timed_out() && state.free.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn begin(&self, seat: usize) -> u64 {
        let since = self.now();
        self.busy_since[seat].store(since, SeqCst);
        self.note_active();
        since
    }

    /// Has the watch look after threads that are busy.
    pub(crate) fn note_active(&self) {
        if !self.is_active.load(SeqCst)
            && !self.is_active.swap(true, SeqCst)
            && let Some(watch) = self.watch.get()
        {
            watch.unpark();
        }
    }

    /// Whether the thread that has been busy since then still had the seat. Whoever took it was busy later.
    fn end(&self, seat: usize, since: u64) -> bool {
        self.busy_since[seat].compare_exchange(since, 0, SeqCst, SeqCst).is_ok()
    }

    /// Frees the seats of threads that are busy for long. Where no thread can take them, it does what takes no time itself.
    fn watch<W: Work>(self: &Arc<Self>, work: &Arc<W>) {
        loop {
            let is_idle = || {
                let are_waiting = self.busy_since.iter().all(|since| since.load(SeqCst) == 0);
                are_waiting && self.state().free.is_empty() && work.is_idle()
            };
            while !self.is_active.swap(false, SeqCst) && is_idle() {
                thread::park();
            }
            thread::sleep(PATIENCE);
            for (seat, busy_since) in self.busy_since.iter().enumerate() {
                let since = busy_since.load(SeqCst);
                if since != 0 && self.now() - since >= PATIENCE.as_nanos() as u64 && self.end(seat, since) {
                    self.free(seat, work);
                }
            }
            work.look();
            let state = self.state();
            if state.free.len() > state.waiting {
                self.find_threads(state, work);
                work.act_without_calls();
            }
        }
    }
}
