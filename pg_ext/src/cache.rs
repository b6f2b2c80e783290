//! What SQL sees of kept results: `transship.cache_reset`, and the view `transship.stat_cache`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pgrx::{pg_guard, pg_sys};
use serde_json::json;
use udf_client::cache;
use udf_client::cache::message::Counters;
use udf_types::{Error, Kind};

use crate::function::{self, Function};
use crate::pg::{catalog, rights};
use crate::{report, settings};

/// Whoever waits so long for the store has not got an answer, and does not ask again for a while: the view asks once per function.
const LONG_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_secs(5);

thread_local! {
    static SILENT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// `transship.cache_reset(function regprocedure) RETURNS void`: forgets a function's results, for its owner.
#[pg_guard]
pub unsafe extern "C-unwind" fn reset(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one argument, which is not NULL, since the function is STRICT.
    let oid = unsafe { argument(fcinfo) };
    if !is_container_function(oid) {
        let message = format!("function with oid {} is not a container function", oid.to_u32());
        report::raise_error(&Error::new(Kind::FunctionNotFound, message), None);
    }
    rights::check_owner(oid);
    // With its row types as the container knows them, since they are a part of the name.
    let function = report::unwrap(function::lookup_to_call(oid));
    if let Some(namespace) = report::unwrap(function.namespace(true)) {
        report::unwrap(cache::reset(&settings::manager_socket(), namespace));
    }
    pg_sys::Datum::from(0usize)
}

/// `transship.cache_counters(function oid) RETURNS json`: what the store knows of a function; NULL if there is nothing to know, or
/// the store does not answer. The extension's view asks only for functions that the user may call.
#[pg_guard]
pub unsafe extern "C-unwind" fn counters(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: as in reset.
    let oid = unsafe { argument(fcinfo) };
    if is_container_function(oid) {
        rights::check_execute(oid);
        let function = function::lookup(oid).ok();
        let namespace = function.and_then(|function| Function::namespace(&function, false).ok().flatten());
        if let Some(counters) = namespace.and_then(count) {
            return report::json_datum(&json!({
                "hits": counters.hits,
                "disk_hits": counters.disk_hits,
                "misses": counters.misses,
                "results": counters.results,
                "bytes": counters.bytes,
                "evictions": counters.evictions,
                "is_too_cheap": counters.is_too_cheap,
            }));
        }
    }
    // SAFETY: PostgreSQL passes a valid fcinfo.
    unsafe { (*fcinfo).isnull = true };
    pg_sys::Datum::from(0usize)
}

fn count(namespace: cache::message::Namespace) -> Option<Counters> {
    let begun = Instant::now();
    if SILENT_UNTIL.get().is_some_and(|until| begun < until) {
        return None;
    }
    let counters = cache::count(&settings::manager_socket(), vec![namespace]).ok();
    if counters.is_none() && begun.elapsed() >= LONG_WAIT {
        SILENT_UNTIL.set(Some(Instant::now() + PAUSE));
    }
    counters?.first().copied()
}

fn is_container_function(oid: pg_sys::Oid) -> bool {
    catalog::container_language().is_some_and(|language| function::is_container_function(oid, language))
}

/// # Safety
/// The function has an oid as its first argument, which is not NULL.
unsafe fn argument(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Oid {
    // SAFETY: the caller says so.
    unsafe { pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32) }
}
