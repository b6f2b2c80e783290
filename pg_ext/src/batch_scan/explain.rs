//! EXPLAIN of a Container Batch node, and what parallel processes share of one: the counters that it adds up, and what the leader tells
//! workers.

use std::ffi::{CStr, CString};

use pgrx::{pg_guard, pg_sys};
use udf_types::transport_name::TransportName;

use super::private::Private;
use super::state::{BatchScanState, Call, Counters, SharedDigest, SharedState};
use crate::pg::{list, text};
use crate::{function, report};

/// EstimateDSMCustomScan: one set of counters per worker, one digest per call.
#[pg_guard]
pub unsafe extern "C-unwind" fn estimate_shared(
    css: *mut pg_sys::CustomScanState,
    context: *mut pg_sys::ParallelContext,
) -> pg_sys::Size {
    // SAFETY: the executor passes a begun node and a valid parallel context.
    unsafe { SharedState::size(usize::try_from((*context).nworkers).unwrap_or(0), calls_of(css).len()) }
}

/// InitializeDSMCustomScan: the leader clears the counters, and says which images it calls, so that one statement calls one version of
/// each.
#[pg_guard]
pub unsafe extern "C-unwind" fn initialize_shared(
    css: *mut pg_sys::CustomScanState,
    context: *mut pg_sys::ParallelContext,
    shared: *mut std::ffi::c_void,
) {
    // SAFETY: the chunk has the size that estimate_shared asked for.
    unsafe {
        let shared = shared.cast::<SharedState>();
        let calls = calls_of(css);
        (*shared).count = usize::try_from((*context).nworkers).unwrap_or(0);
        (*shared).calls = calls.len();
        // Where nobody can be asked for one, nobody is asked for the others.
        let mut may_ask = true;
        for (i, call) in calls.iter().enumerate() {
            let user = (*(*css.cast::<BatchScanState>()).inner).user;
            let digest = if may_ask { call.function.chosen_digest(user) } else { Ok(None) };
            may_ask &= digest.is_ok();
            let digest = SharedDigest::new(digest.ok().flatten().as_deref());
            SharedState::digests(shared).add(i).write(digest);
        }
        (*css.cast::<BatchScanState>()).shared = shared;
        clear(shared);
    }
}

/// The calls of a node; none if it was not begun.
///
/// # Safety
/// `css` is a node that create_state made.
unsafe fn calls_of<'a>(css: *mut pg_sys::CustomScanState) -> &'a mut [Call] {
    // SAFETY: the caller says so; the state is null or lives as long as the query.
    unsafe { (*css.cast::<BatchScanState>()).inner.as_mut().map_or(&mut [], |inner| inner.calls.as_mut_slice()) }
}

/// ReInitializeDSMCustomScan: a rescan starts new workers; what the old ones counted is kept.
#[pg_guard]
pub unsafe extern "C-unwind" fn reinitialize_shared(
    css: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
    shared: *mut std::ffi::c_void,
) {
    // SAFETY: as in initialize_shared; the old workers have ended.
    unsafe {
        take_totals(css.cast());
        (*css.cast::<BatchScanState>()).shared = shared.cast();
        clear(shared.cast());
    }
}

/// InitializeWorkerCustomScan: a worker learns where its counters go, and which images it is to call.
#[pg_guard]
pub unsafe extern "C-unwind" fn attach_worker(
    css: *mut pg_sys::CustomScanState,
    _toc: *mut pg_sys::shm_toc,
    shared: *mut std::ffi::c_void,
) {
    // SAFETY: the leader initialised the chunk before it started workers, and its node has the calls of this one.
    unsafe {
        let shared = shared.cast::<SharedState>();
        (*css.cast::<BatchScanState>()).shared = shared;
        for (i, call) in calls_of(css).iter_mut().enumerate().take((*shared).calls) {
            if let Some(digest) = (*SharedState::digests(shared).add(i)).get() {
                let oid = (*call.expression).funcid;
                call.function = report::unwrap(call.function.of_leader(oid, digest));
            }
        }
    }
}

/// ShutdownCustomScan: a worker publishes its counters; the leader takes them before the shared memory goes.
#[pg_guard]
pub unsafe extern "C-unwind" fn keep_totals(css: *mut pg_sys::CustomScanState) {
    // SAFETY: the executor calls this while the shared memory is still mapped. Each worker writes its own element.
    unsafe {
        let node = css.cast::<BatchScanState>();
        let shared = (*node).shared;
        if shared.is_null() {
            return;
        }
        let worker = usize::try_from(pg_sys::ParallelWorkerNumber);
        match worker {
            Ok(worker) => {
                if worker < (*shared).count && !(*node).inner.is_null() {
                    *(*shared).counters.as_mut_ptr().add(worker) = Counters::from((*(*node).inner).driver.totals());
                }
            }
            // -1: the leader.
            Err(_) => take_totals(node),
        }
    }
}

/// ExplainCustomScan: which call goes where, and under ANALYZE how much went.
#[pg_guard]
pub unsafe extern "C-unwind" fn explain(
    css: *mut pg_sys::CustomScanState,
    ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: EXPLAIN passes a node of a valid plan and its own state; labels and values are copied.
    unsafe {
        let scan = (*css).ss.ps.plan.cast::<pg_sys::CustomScan>();
        let context = pg_sys::set_deparse_context_plan((*es).deparse_cxt, scan.cast(), ancestors);
        let entries = list::elements::<pg_sys::TargetEntry>((*scan).custom_scan_tlist);
        let conditions = list::elements::<pg_sys::Node>((*scan).custom_exprs);
        let say = |expression| {
            let text = pg_sys::deparse_expression(expression, context, (*es).verbose, false);
            text::from_c(text)
        };
        let private = Private::from_plan(scan);
        let calls = entries.into_iter().skip(private.child_columns).zip(conditions);
        for (number, (entry, condition)) in calls.enumerate() {
            let mut line = say((*entry).expr.cast());
            if !condition.is_null() {
                line.push_str(&format!(" if {}", say(condition)));
            }
            // A function that was dropped since, or whose body is broken, has nothing to add.
            if let Ok(function) = function::lookup((*(*entry).expr.cast::<pg_sys::FuncExpr>()).funcid) {
                line.push_str(&format!(" in {}", function.body.place()));
                // Which transport a container offers is known once it is called.
                let transport = function.transport();
                if transport != TransportName::Auto {
                    line.push_str(&format!(" over {}", transport.name()));
                }
                if !function.body.tables.is_empty() {
                    line.push_str(&format!(" with {}", function.body.tables.join(", ")));
                }
            }
            if private.is_stepwise {
                line.push_str(" row by row");
            }
            if !private.inputs_of(number).is_empty() {
                line.push_str(" (fused)");
            }
            let line = CString::new(line).unwrap_or_default();
            pg_sys::ExplainPropertyText(c"Container Call".as_ptr(), text::to_server(&line), es);
        }
        let node = css.cast::<BatchScanState>();
        if !(*es).analyze || (*node).inner.is_null() {
            return;
        }
        let mut total = Counters::from((*(*node).inner).driver.totals());
        total.add(&(*node).from_workers);
        let count = |label: &CStr, unit: &CStr, value: u64| {
            let unit = if unit.is_empty() { std::ptr::null() } else { unit.as_ptr() };
            pg_sys::ExplainPropertyInteger(label.as_ptr(), unit, i64::try_from(value).unwrap_or(i64::MAX), es);
        };
        let used = TransportName::ALL.into_iter().filter(|transport| total.transports & (1 << *transport as u8) != 0);
        let used = used.map(TransportName::name).collect::<Vec<_>>().join(", ");
        if let (false, Ok(used)) = (used.is_empty(), CString::new(used)) {
            pg_sys::ExplainPropertyText(c"Transport".as_ptr(), used.as_ptr(), es);
        }
        count(c"Calls", c"", total.calls);
        if total.repeated > 0 {
            count(c"Repeated Calls", c"", total.repeated);
        }
        if total.cached > 0 {
            count(c"Cached Calls", c"", total.cached);
        }
        count(c"Batches", c"", total.batches);
        count(c"Sent", c"bytes", total.bytes_sent);
        count(c"Received", c"bytes", total.bytes_received);
        if (*es).timing {
            let milliseconds = total.wait_us as f64 / 1000.0;
            pg_sys::ExplainPropertyFloat(c"Waited".as_ptr(), c"ms".as_ptr(), milliseconds, 3, es);
        }
    }
}

/// # Safety
/// `node` is a leader's node whose shared memory, if any, is mapped.
unsafe fn take_totals(node: *mut BatchScanState) {
    // SAFETY: the caller says so; the array has `count` elements.
    unsafe {
        let shared = (*node).shared;
        if shared.is_null() {
            return;
        }
        for i in 0..(*shared).count {
            (*node).from_workers.add(&*(*shared).counters.as_ptr().add(i));
        }
        // Taken once: a second shutdown adds nothing.
        (*node).shared = std::ptr::null_mut();
    }
}

/// # Safety
/// `shared` is mapped, and no worker is running.
unsafe fn clear(shared: *mut SharedState) {
    // SAFETY: the array has `count` elements.
    unsafe {
        for i in 0..(*shared).count {
            *(*shared).counters.as_mut_ptr().add(i) = Counters::default();
        }
    }
}
