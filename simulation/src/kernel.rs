//! What the simulation puts between the program and the kernel: time, randomness, when sockets are ready, how much they take at a
//! time, and whether there is room on the disk.
//!
//! Sockets and files are real ones, of this process alone. Time stands still while anybody can go on, but for a microsecond whenever
//! somebody looks at the clock, so that waiting in a loop ends. An event on a socket is held back for a random time, which delays what
//! travels and changes the order among connections; reads and writes are cut short at random.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::task::Waker;
use std::time::Duration;

use fastrand::Rng;

use crate::symbols;
use crate::trace;

/// Looking at the clock takes so long.
const LOOK_NS: u64 = 1_000;
/// The time of day at the beginning, in seconds since 1970.
const WALL_CLOCK_S: u64 = 1_800_000_000;
/// Turns at the processor, in tokio's rounds, before it is somebody else's.
const MOST_ROUNDS: u32 = 8;
/// With this tokio's own descriptor is reported, by which another thread wakes a runtime.
const WAKER_DATA: u64 = 0;

/// The user of every engine, and that of every server in a container.
pub const ENGINE_USER: u32 = 70;
const SERVER_USER: u32 = 65534;
/// The number of every process at the other end of a socket.
pub const PEER_NUMBER: c_int = 4242;

thread_local! {
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
    static LEAPT_NS: Cell<u64> = const { Cell::new(0) };
    /// How far the time of day is ahead.
    static WALL_AHEAD_S: Cell<i64> = const { Cell::new(0) };
    static IS_DISK_FULL: Cell<bool> = const { Cell::new(false) };
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    static STATE: RefCell<Option<Box<State>>> = const { RefCell::new(None) };
    /// Wakes what [`until_idle`] returned.
    static IDLE: RefCell<(Option<Waker>, bool)> = const { RefCell::new((None, false)) };
}

/// How unruly the network is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unrest {
    /// Of 100 events on sockets, so many are late.
    pub late_percent: u8,
    /// By so much at most.
    pub most_late: Duration,
    /// Of 100 reads and writes, so many are cut short.
    pub cut_percent: u8,
}

struct State {
    rng: Rng,
    unrest: Unrest,
    processes: BTreeMap<usize, Files>,
}

/// What a process waits for.
#[derive(Default)]
struct Files {
    epoll: Option<c_int>,
    files: BTreeMap<c_int, Registered>,
    by_data: BTreeMap<u64, c_int>,
    pending: BTreeMap<c_int, Pending>,
    /// When it goes on without an event; none if it does not.
    wake_ns: Option<u64>,
    rounds: u32,
}

struct Registered {
    data: u64,
    is_socket: bool,
}

struct Pending {
    due_ns: u64,
    flags: u32,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// They are read.
    In,
    /// They are written.
    Out,
}

/// Begins the simulation on this thread.
pub fn begin(seed: u64) {
    let state = State { rng: Rng::with_seed(seed), unrest: Unrest::default(), processes: BTreeMap::new() };
    STATE.set(Some(Box::new(state)));
    IS_SIMULATED.set(true);
}

/// Whether this thread is the simulation's, and it has begun.
pub fn is_simulated() -> bool {
    IS_SIMULATED.get()
}

fn with<T>(act: impl FnOnce(&mut State) -> T) -> Option<T> {
    if !is_simulated() {
        return None;
    }
    // Nothing that is done with the state asks this module for anything.
    STATE.try_with(|state| state.borrow_mut().as_deref_mut().map(act)).ok().flatten()
}

/// The time since the beginning, for those who may look without its passing.
pub fn now() -> Duration {
    Duration::from_nanos(NOW_NS.get())
}

/// How far the time has leapt in all.
pub fn leapt() -> Duration {
    Duration::from_nanos(LEAPT_NS.get())
}

/// Has the time leap.
pub fn leap(span: Duration) {
    NOW_NS.set(NOW_NS.get() + nanos(span));
    LEAPT_NS.set(LEAPT_NS.get() + nanos(span));
}

/// Has the time be at least this.
pub fn pass_to(time: Duration) {
    NOW_NS.set(NOW_NS.get().max(nanos(time)));
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock that goes on evenly.
pub fn read_clock() -> Option<Duration> {
    is_simulated().then(|| {
        NOW_NS.set(NOW_NS.get() + LOOK_NS);
        // Programs take differences to times before the beginning.
        now() + Duration::from_secs(1_000_000)
    })
}

/// The time of day.
pub fn read_wall_clock() -> Option<Duration> {
    is_simulated().then(|| now() + Duration::from_secs(WALL_CLOCK_S.saturating_add_signed(WALL_AHEAD_S.get())))
}

/// Has the time of day leap.
pub fn leap_wall_clock(seconds: i64) {
    WALL_AHEAD_S.set(WALL_AHEAD_S.get() + seconds);
}

/// Fills the disk, or makes room on it.
pub fn fill_disk(is_full: bool) {
    IS_DISK_FULL.set(is_full);
}

/// Whether nothing can be written to files.
pub fn is_disk_full() -> bool {
    is_simulated() && IS_DISK_FULL.get()
}

/// Changes how unruly the network is.
pub fn set_unrest(unrest: Unrest) {
    with(|state| state.unrest = unrest);
}

/// What programs get that ask for randomness.
pub fn random_byte() -> u8 {
    with(|state| state.rng.u8(..)).unwrap_or(0)
}

/// The number of the process that runs.
pub fn process_number() -> c_int {
    1000 + c_int::try_from(CURRENT.get()).unwrap_or(0)
}

/// The user at the other end of a socket, which is bound at `peer`, or nowhere.
pub fn user_of(peer: &str) -> u32 {
    if peer.ends_with("/http.sock") || peer.ends_with("/flight.sock") { SERVER_USER } else { ENGINE_USER }
}

/// Takes what programs write to their standard error.
pub fn note_words(bytes: &[u8]) {
    trace::note_words(CURRENT.get(), bytes);
}

/// From now on, what is asked is asked by this process.
pub fn enter(process: usize) {
    CURRENT.set(process);
}

/// Forgets a process that has ended.
pub fn forget(process: usize) {
    with(|state| state.processes.remove(&process));
}

impl State {
    fn current(&mut self) -> &mut Files {
        self.processes.entry(CURRENT.get()).or_default()
    }

    /// Takes what the kernel reports of a process's files.
    fn look(&mut self, process: usize) {
        let State { rng, unrest, processes } = self;
        let Some(files) = processes.get_mut(&process) else { return };
        let Some(epoll) = files.epoll else { return };
        for (flags, data) in symbols::events_now(epoll) {
            let Some(file) = files.by_data.get(&data).copied() else { continue };
            let is_late = files.files.get(&file).is_some_and(|file| file.is_socket)
                && unrest.late_percent > 0
                && rng.u8(0..100) < unrest.late_percent;
            let late_ns = if is_late { rng.u64(0..=nanos(unrest.most_late)) } else { 0 };
            let pending = files.pending.entry(file).or_insert(Pending { due_ns: NOW_NS.get() + late_ns, flags: 0 });
            pending.flags |= flags;
        }
    }
}

impl Files {
    fn take_due(&mut self, most: usize) -> Vec<(u32, u64)> {
        let now_ns = NOW_NS.get();
        let due: Vec<c_int> =
            self.pending.iter().filter(|(_, it)| it.due_ns <= now_ns).map(|(file, _)| *file).take(most).collect();
        let found = due.into_iter().filter_map(|file| {
            let pending = self.pending.remove(&file)?;
            Some((pending.flags, self.files.get(&file)?.data))
        });
        found.collect()
    }

    fn next_ns(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.due_ns).chain(self.wake_ns).min()
    }
}

/// When a process goes on, if anything makes it.
pub fn next_turn(process: usize) -> Option<Duration> {
    with(|state| {
        state.look(process);
        let files = state.processes.get(&process)?;
        files.next_ns().map(Duration::from_nanos)
    })?
}

/// Notes that a process watches a file, which it is told of by `data`.
pub fn note_file(epoll: c_int, file: c_int, data: u64, is_socket: bool) {
    with(|state| {
        let files = state.current();
        files.epoll.get_or_insert(epoll);
        files.by_data.insert(data, file);
        files.files.insert(file, Registered { data, is_socket });
    });
}

/// Forgets a file that is no longer watched, or closed. It must not be reported any more: its data may be an address.
pub fn forget_file(file: c_int) {
    with(|state| {
        let files = state.current();
        files.pending.remove(&file);
        if let Some(registered) = files.files.remove(&file) {
            files.by_data.remove(&registered.data);
        }
    });
}

/// Answers a runtime that waits: what it is told of, none if it is somebody else's turn.
pub fn wait_for_events(epoll: c_int, most: usize, timeout: Option<Duration>) -> Vec<(u32, u64)> {
    let answer = with(|state| {
        let process = CURRENT.get();
        state.current().epoll = Some(epoll);
        state.look(process);
        let files = state.current();
        let found = files.take_due(most);
        files.rounds += 1;
        let now_ns = NOW_NS.get();
        if found.is_empty() && timeout != Some(Duration::ZERO) {
            files.wake_ns = timeout.map(|timeout| now_ns + nanos(timeout));
            (found, true)
        } else if files.rounds >= MOST_ROUNDS {
            files.wake_ns = Some(now_ns);
            (found, true)
        } else {
            (found, false)
        }
    });
    let (found, is_over) = answer.unwrap_or_default();
    if is_over {
        let waker = IDLE.with_borrow_mut(|(waker, is_idle)| {
            *is_idle = true;
            waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
        // It was the simulation that has just woken the runtime.
        with(|state| {
            let process = CURRENT.get();
            state.look(process);
            let files = state.current();
            if let Some(file) = files.by_data.get(&WAKER_DATA).copied() {
                files.pending.remove(&file);
            }
        });
    }
    found
}

/// Ends once the runtime that polls it has nothing to do, or has had its turn.
pub fn until_idle() -> impl Future<Output = ()> {
    IDLE.set((None, false));
    with(|state| {
        let files = state.current();
        files.rounds = 0;
        files.wake_ns = None;
    });
    std::future::poll_fn(|context| {
        IDLE.with_borrow_mut(|(waker, is_idle)| {
            if *is_idle {
                return std::task::Poll::Ready(());
            }
            *waker = Some(context.waker().clone());
            std::task::Poll::Pending
        })
    })
}

/// How many bytes of so many a read or write gets on with.
pub fn cut(file: c_int, size: usize) -> usize {
    let cut = with(|state| {
        let percent = state.unrest.cut_percent;
        let is_socket =
            percent > 0 && size > 1 && state.current().files.get(&file).is_some_and(|registered| registered.is_socket);
        (is_socket && state.rng.u8(0..100) < percent).then(|| state.rng.usize(1..size.min(2048)))
    });
    cut.flatten().unwrap_or(size)
}

/// Notes that one was cut. tokio takes a short read or write for the last one until the kernel reports the socket again, so it is
/// reported.
pub fn note_cut(file: c_int, size: usize, most: usize, done: isize, direction: Direction) {
    if most == size || done <= 0 {
        return;
    }
    with(|state| {
        let files = state.current();
        if files.files.contains_key(&file) {
            let flags = match direction {
                Direction::In => libc::EPOLLIN,
                Direction::Out => libc::EPOLLOUT,
            };
            let pending = files.pending.entry(file).or_insert(Pending { due_ns: NOW_NS.get(), flags: 0 });
            pending.flags |= flags as u32;
        }
    });
}
