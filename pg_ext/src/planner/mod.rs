//! The planner hook: after planning, every plan tree of a statement has its container calls lifted.

mod columns;
mod demand;
mod effects;
mod find_calls;
mod fuse;
mod lift_calls;
mod lift_joins;
mod lift_sets;
mod named_functions;
mod order;
mod plans;

pub use named_functions::functions_named_in;

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use pgrx::{pg_guard, pg_sys};

use crate::function::is_container_function;
use crate::pg::catalog;
#[cfg(not(feature = "lift-ordinary"))]
use crate::session;
use crate::settings;
use crate::tables::lookup_joins;

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

/// Calls the planner as C code would, so that its errors arrive above as they were raised: an error jumps over this
/// frame, which holds nothing to be dropped, and which most statements leave without a guard of pgrx's.
unsafe extern "C-unwind" fn plan_statement(
    query: *mut pg_sys::Query,
    query_string: *const c_char,
    cursor_options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the planner passes valid arguments; previous-or-standard is called exactly once.
    unsafe {
        lookup_joins::rewrite(query);
        let statement = match PREVIOUS.get() {
            Some(previous) => previous(query, query_string, cursor_options, parameters),
            None => standard_planner(query, query_string, cursor_options, parameters),
        };
        #[cfg(feature = "lift-ordinary")]
        if crate::ordinary::is_explained(query_string) {
            return statement;
        }
        if settings::is_batching()
            && (cfg!(feature = "lift-ordinary") || named_functions::may_call_container(statement))
        {
            lift(statement, cursor_options);
        }
        statement
    }
}

unsafe extern "C-unwind" {
    fn standard_planner(
        query: *mut pg_sys::Query,
        query_string: *const c_char,
        cursor_options: c_int,
        parameters: pg_sys::ParamListInfo,
    ) -> *mut pg_sys::PlannedStmt;
}

#[pg_guard]
unsafe extern "C-unwind" fn lift(statement: *mut pg_sys::PlannedStmt, cursor_options: c_int) {
    #[cfg(feature = "lift-ordinary")]
    let language = Some(pg_sys::InvalidOid);
    #[cfg(not(feature = "lift-ordinary"))]
    let language = catalog::container_language();
    if let Some(language) = language {
        // The plan names a container function, so the client's thread is likely to be wanted, and is ready by the time the plan runs.
        #[cfg(not(feature = "lift-ordinary"))]
        session::start();
        // SAFETY: the planner has just made the statement, and nobody uses it yet.
        unsafe { lift_calls::lift_statement(statement, language, cursor_options) };
    }
}

/// Whether a plan that calls this function calls a container, whose language has the oid `language`.
fn calls_container(function: pg_sys::Oid, language: pg_sys::Oid) -> bool {
    let is_ours = is_container_function(function, language);
    #[cfg(feature = "lift-ordinary")]
    let is_ours = is_ours || crate::ordinary::may_lift(function);
    is_ours
}

/// Whether such calls may be batched: not those of a function that runs as its owner, or with settings of its own, since
/// these hold from the call's beginning to its end.
fn may_batch(function: pg_sys::Oid, language: pg_sys::Oid) -> bool {
    calls_container(function, language) && !catalog::changes_context(function)
}
