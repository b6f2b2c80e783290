//! Which images parallel workers call: those that their leader calls, so that one statement calls one version of each.
//!
//! A function whose body has no digest, or has inline code, stands for what its session has found when it first asked. PostgreSQL hands the
//! leader's settings to workers, so the leader says in one what it has found, while a parallel plan runs.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};

use pgrx::{pg_guard, pg_sys};
use udf_types::Kind;

use crate::function::Version;
use crate::pg::catalog;
use crate::planner::functions_named_in;
use crate::{function, settings};

thread_local! {
    /// What a worker's leader calls, by function and the version of its row.
    static OF_LEADER: OnceCell<HashMap<String, String>> = const { OnceCell::new() };
}

/// The digest of the image that a worker's leader calls as this function, whose row has that version, if it had to ask for it; none in
/// other processes.
pub fn of_leader(function: pg_sys::Oid, version: impl FnOnce() -> Option<Version>) -> Option<String> {
    // SAFETY: reads a variable of the process.
    if unsafe { pg_sys::ParallelWorkerNumber } < 0 {
        return None;
    }
    OF_LEADER.with(|known| {
        let read = || {
            let text = settings::chosen_images();
            let parts = text.split(',').filter_map(|part| part.split_once('='));
            parts.map(|(name, digest)| (name.to_string(), digest.to_string())).collect()
        };
        let known = known.get_or_init(read);
        if known.is_empty() { None } else { known.get(&name_of(function, version()?)).cloned() }
    })
}

fn name_of(function: pg_sys::Oid, (xmin, block, offset): Version) -> String {
    format!("{}.{xmin}.{block}.{offset}", function.to_u32())
}

/// Tells the workers of a plan that is about to run, if it may have any, which images this process calls; the level of settings that ends
/// with the run, or 0.
///
/// # Safety
/// The statement is a finished plan.
pub unsafe fn tell_workers(statement: *const pg_sys::PlannedStmt) -> i32 {
    // SAFETY: the caller says so; reads a variable of the process.
    let has_workers = unsafe { (*statement).parallelModeNeeded && pg_sys::ParallelWorkerNumber < 0 };
    match has_workers && !cfg!(feature = "lift-ordinary") {
        // SAFETY: the caller says so.
        true => unsafe { set(statement) },
        false => 0,
    }
}

/// Ends what [`tell_workers`] has begun.
///
/// # Safety
/// The level is what it has returned.
pub unsafe fn forget(level: i32) {
    if level > 0 {
        // SAFETY: levels end in reverse order, or with an error. What the statement itself has set stays.
        unsafe { pg_sys::AtEOXact_GUC(true, level) }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn set(statement: *const pg_sys::PlannedStmt) -> i32 {
    let Some(language) = catalog::container_language() else { return 0 };
    // SAFETY: the caller passes a finished plan.
    for oid in unsafe { functions_named_in(statement) } {
        let called = match catalog::aggregate_functions(oid) {
            Some([accumulate, _]) => accumulate,
            None => oid,
        };
        if function::is_container_function(called, language) {
            let found =
                function::lookup_to_call(called).and_then(|function| function.chosen_digest(catalog::current_user()));
            // Where nobody can be asked for one, nobody is asked for the others. The first call says why.
            if found.is_err_and(|error| matches!(error.kind(), Kind::Unreachable | Kind::Timeout)) {
                break;
            }
        }
    }
    // With those that functions of the plan call, as far as they are known.
    let chosen: Vec<_> = function::chosen()
        .into_iter()
        .map(|(oid, version, digest)| format!("{}={digest}", name_of(oid, version)))
        .collect();
    let Ok(value) = CString::new(chosen.join(",")) else { return 0 };
    if chosen.is_empty() {
        return 0;
    }
    const NAME: &CStr = settings::CHOSEN_IMAGES_NAME;
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_SESSION);
    // SAFETY: the level ends with the run.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        let action = pg_sys::GucAction::GUC_ACTION_SAVE;
        pg_sys::set_config_option(NAME.as_ptr(), value.as_ptr(), context, source, action, true, 0, false);
        level
    }
}
