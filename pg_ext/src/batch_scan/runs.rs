//! How many rows the run of a statement asks for: SELECT INTO of PL/pgSQL takes one, a function in SQL one at a time, a client's
//! limit of rows some. The planner cannot know, so the executor's hook notes it, and a node asks when it reads its first row.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

use crate::chosen_images;

thread_local! {
    static PREVIOUS: Cell<pg_sys::ExecutorRun_hook_type> = const { Cell::new(None) };
    /// The runs under way, outer ones first.
    static RUNS: RefCell<Vec<Run>> = const { RefCell::new(Vec::new()) };
}

/// A run of a statement.
struct Run {
    estate: *const pg_sys::EState,
    /// Rows that it asks for; 0 for all.
    count: u64,
    /// Where its frame lies.
    frame: usize,
}

/// Installs the hook, keeping the one before.
pub fn install() {
    // SAFETY: hooks are installed while the library is loaded, on the process's only thread.
    unsafe {
        PREVIOUS.set(pg_sys::ExecutorRun_hook);
        pg_sys::ExecutorRun_hook = Some(run);
    }
}

/// How many rows the statement's run asks for; none for all of them.
pub fn rows_asked_for(estate: *const pg_sys::EState) -> Option<usize> {
    let found = RUNS.with_borrow(|runs| runs.iter().rev().find(|run| run.estate == estate).map(|run| run.count));
    found.filter(|count| *count > 0).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// Notes a run, and returns how many are around it.
fn begin(estate: *const pg_sys::EState, count: u64, frame: usize) -> usize {
    RUNS.with_borrow_mut(|runs| {
        // An error jumps over the frames of the runs that it ends. The stack grows downwards, so frames that are still there lie
        // above this one.
        while runs.last().is_some_and(|run| run.frame <= frame) {
            runs.pop();
        }
        runs.push(Run { estate, count, frame });
        runs.len() - 1
    })
}

/// Calls the executor as C code would, so that its errors arrive above as they were raised: an error jumps over this frame,
/// which holds nothing to be dropped.
#[cfg(not(feature = "pg18"))]
unsafe extern "C-unwind" fn run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    let frame = 0u8;
    // SAFETY: the executor passes valid arguments; previous-or-standard is called exactly once.
    unsafe {
        let around = begin((*query).estate, count, (&raw const frame).addr());
        let level = chosen_images::tell_workers((*query).plannedstmt);
        match PREVIOUS.get() {
            Some(previous) => previous(query, direction, count, execute_once),
            None => standard_ExecutorRun(query, direction, count, execute_once),
        }
        chosen_images::forget(level);
        RUNS.with_borrow_mut(|runs| runs.truncate(around));
    }
}

/// As above; PostgreSQL 18 no longer says whether there may be further runs.
#[cfg(feature = "pg18")]
unsafe extern "C-unwind" fn run(query: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64) {
    let frame = 0u8;
    // SAFETY: as above.
    unsafe {
        let around = begin((*query).estate, count, (&raw const frame).addr());
        let level = chosen_images::tell_workers((*query).plannedstmt);
        match PREVIOUS.get() {
            Some(previous) => previous(query, direction, count),
            None => standard_ExecutorRun(query, direction, count),
        }
        chosen_images::forget(level);
        RUNS.with_borrow_mut(|runs| runs.truncate(around));
    }
}

unsafe extern "C-unwind" {
    #[cfg(not(feature = "pg18"))]
    fn standard_ExecutorRun(
        query: *mut pg_sys::QueryDesc,
        direction: pg_sys::ScanDirection::Type,
        count: u64,
        execute_once: bool,
    );
    #[cfg(feature = "pg18")]
    fn standard_ExecutorRun(query: *mut pg_sys::QueryDesc, direction: pg_sys::ScanDirection::Type, count: u64);
}
