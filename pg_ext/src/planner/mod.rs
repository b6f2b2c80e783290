//! The planner hook: after planning, every plan tree of a statement has its container calls lifted.

mod find_calls;
mod lift_calls;

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use pgrx::{pg_guard, pg_sys};

use crate::pg::catalog;
use crate::settings;

thread_local! {
    static PREVIOUS: Cell<pg_sys::planner_hook_type> = const { Cell::new(None) };
}

/// Installs the hook, keeping the one before.
pub fn install() {
    // SAFETY: hooks are installed while the library is loaded, on the process's only thread.
    unsafe {
        PREVIOUS.set(pg_sys::planner_hook);
        pg_sys::planner_hook = Some(plan_statement);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn plan_statement(
    query: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the planner passes valid arguments; previous-or-standard is called exactly once.
    unsafe {
        let statement = match PREVIOUS.get() {
            Some(previous) => {
                pg_sys::ffi::pg_guard_ffi_boundary(|| previous(query, query_string, cursor_options, parameters))
            }
            None => pg_sys::standard_planner(query, query_string, cursor_options, parameters),
        };
        if settings::is_batching()
            && let Some(language) = catalog::container_language()
        {
            lift_calls::lift_statement(statement, language, cursor_options);
        }
        statement
    }
}
