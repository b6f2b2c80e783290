//! Whose turn it is: simulated processes, each with a runtime of tokio's, or with an engine's thread, on the one thread there is.
//!
//! Of those that can go on, the seed chooses one, which runs until it waits. When none can, time passes to the moment at which the
//! first can. What is to happen at a time, such as a fault, is a timer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::pin::Pin;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fastrand::Rng;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{kernel, symbols, trace};

/// Stack of an engine's thread.
const STACK_BYTES: usize = 4 << 20;

/// What an engine's thread waits for.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// A descriptor that can be read.
    pub file: c_int,
    /// The time, at the latest.
    pub until: Duration,
}

/// How an engine's thread waits.
pub type Waiting = Yielder<(), Wait>;
type Engine = Coroutine<(), Wait, (), DefaultStack>;
type Action = Box<dyn FnOnce(&mut Scheduler)>;

/// A process.
struct Process {
    name: String,
    /// Dropped before its engine's thread, as at a process's end.
    runtime: Runtime,
    engine: Option<(Engine, Option<Wait>)>,
    is_new: bool,
    is_paused: bool,
}

/// All processes, and what will happen.
pub struct Scheduler {
    rng: Rng,
    processes: BTreeMap<usize, Process>,
    timers: BTreeMap<(Duration, u64), Action>,
    next_process: usize,
    next_timer: u64,
    turns: u64,
}

thread_local! {
    /// What running processes ask for.
    static REQUESTS: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
}

/// Has something done once the process that runs has had its turn.
pub fn soon(action: impl FnOnce(&mut Scheduler) + 'static) {
    REQUESTS.with_borrow_mut(|requests| requests.push(Box::new(action)));
}

impl Scheduler {
    /// None yet.
    pub fn new(seed: u64) -> Scheduler {
        let (processes, timers) = Default::default();
        Scheduler { rng: Rng::with_seed(seed), processes, timers, next_process: 1, next_timer: 0, turns: 0 }
    }

    /// Starts a process, whose main task this is.
    pub fn start(&mut self, name: &str, main: impl Future<Output = ()> + Send + 'static) -> usize {
        let number = self.enter_new(name);
        let runtime = self.runtime();
        runtime.spawn(main);
        self.add(number, name, runtime, None)
    }

    /// Starts a process with an engine's thread, beside what `main` returns for its runtime's thread.
    pub fn start_engine<M: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &str,
        main: impl FnOnce(Handle) -> (M, Box<dyn FnOnce(&Waiting)>),
    ) -> usize {
        let number = self.enter_new(name);
        let runtime = self.runtime();
        let (tasks, thread) = main(runtime.handle().clone());
        runtime.spawn(tasks);
        let stack = DefaultStack::new(STACK_BYTES).expect("there is memory for a stack");
        let engine = Coroutine::with_stack(stack, move |waiting: &Waiting, ()| thread(waiting));
        self.add(number, name, runtime, Some((engine, None)))
    }

    fn enter_new(&mut self, name: &str) -> usize {
        let number = self.next_process;
        self.next_process += 1;
        kernel::enter(number);
        trace::name(number, name);
        number
    }

    fn runtime(&self) -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("there are descriptors for a runtime")
    }

    fn add(&mut self, number: usize, name: &str, runtime: Runtime, engine: Option<(Engine, Option<Wait>)>) -> usize {
        kernel::enter(0);
        let process = Process { name: name.to_string(), runtime, engine, is_new: true, is_paused: false };
        self.processes.insert(number, process);
        number
    }

    /// Ends a process at once, as a signal does that it cannot catch.
    pub fn kill(&mut self, number: usize) {
        if let Some(process) = self.processes.remove(&number) {
            trace::note(format_args!("{} ends", process.name));
            kernel::enter(number);
            drop(process);
            kernel::forget(number);
            kernel::enter(0);
        }
    }

    /// Takes the processor away from a process, or gives it back.
    pub fn pause(&mut self, number: usize, is_paused: bool) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.is_paused = is_paused;
        }
    }

    /// The names of all processes.
    pub fn names(&self) -> Vec<&str> {
        self.processes.values().map(|process| process.name.as_str()).collect()
    }

    /// How many turns there were.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Has something done at a time.
    pub fn at(&mut self, time: Duration, action: impl FnOnce(&mut Scheduler) + 'static) {
        self.next_timer += 1;
        self.timers.insert((time, self.next_timer), Box::new(action));
    }

    /// Has time leap, for everybody but the timers.
    pub fn leap(&mut self, span: Duration) {
        kernel::leap(span);
        let timers = std::mem::take(&mut self.timers);
        self.timers.extend(timers.into_iter().map(|((time, number), action)| ((time + span, number), action)));
    }

    /// Has something done after a time.
    pub fn after(&mut self, time: Duration, action: impl FnOnce(&mut Scheduler) + 'static) {
        self.at(kernel::now() + time, action);
    }

    /// When a process can go on; none if nothing makes it.
    fn next_turn(number: usize, process: &Process) -> Option<Duration> {
        if process.is_paused {
            return None;
        }
        if process.is_new {
            return Some(Duration::ZERO);
        }
        let engine = match &process.engine {
            Some((_, Some(wait))) if symbols::is_readable(wait.file) => Some(Duration::ZERO),
            Some((_, Some(wait))) => Some(wait.until),
            Some((_, None)) => Some(Duration::ZERO),
            None => None,
        };
        [engine, kernel::next_turn(number)].into_iter().flatten().min()
    }

    /// Gives whoever can go on a turn, or lets time pass to when somebody can; false once nobody ever can.
    pub fn step(&mut self) -> bool {
        let now = kernel::now();
        if let Some(timer) = self.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            let action = timer.remove();
            action(self);
            self.do_requests();
            return true;
        }
        let next: Vec<(Duration, usize)> = self
            .processes
            .iter()
            .filter_map(|(number, process)| Some((Scheduler::next_turn(*number, process)?, *number)))
            .collect();
        let mut due: Vec<usize> = next.iter().filter(|(time, _)| *time <= now).map(|(_, number)| *number).collect();
        if due.is_empty() {
            let first = next.iter().map(|(time, _)| *time).chain(self.timers.keys().map(|(time, _)| *time)).min();
            return first.inspect(|first| kernel::pass_to(*first)).is_some();
        }
        self.rng.shuffle(&mut due);
        for number in due {
            self.run(number);
            self.do_requests();
        }
        true
    }

    fn do_requests(&mut self) {
        while let Some(requests) = Some(REQUESTS.take()).filter(|requests| !requests.is_empty()) {
            requests.into_iter().for_each(|action| action(self));
        }
    }

    fn run(&mut self, number: usize) {
        let Some(process) = self.processes.get_mut(&number).filter(|process| !process.is_paused) else { return };
        self.turns += 1;
        process.is_new = false;
        kernel::enter(number);
        let can_go_on = |wait: &Wait| symbols::is_readable(wait.file) || wait.until <= kernel::now();
        let engine_first = self.rng.bool();
        if !engine_first {
            process.runtime.block_on(kernel::until_idle());
        }
        let mut has_ended = false;
        if let Some((engine, wait)) = &mut process.engine
            && wait.as_ref().is_none_or(can_go_on)
        {
            match engine.resume(()) {
                CoroutineResult::Yield(next) => *wait = Some(next),
                CoroutineResult::Return(()) => has_ended = true,
            }
        }
        if engine_first && !has_ended {
            process.runtime.block_on(kernel::until_idle());
        }
        kernel::enter(0);
        if has_ended {
            self.kill(number);
        }
    }
}

/// Waits for a time, in a task.
pub fn sleep(time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(tokio::time::sleep(time))
}
