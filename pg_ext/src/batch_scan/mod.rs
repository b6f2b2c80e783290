//! The "Container Batch" plan node: child columns plus one column per lifted call.
//!
//! The planner puts it above a node (calls in its target list and filter) or below one (calls in aggregate arguments).
//! `custom_scan_tlist` describes the node's scan tuple: first the child's columns, as Vars of OUTER_VAR, then the calls,
//! as the function expressions themselves over OUTER_VAR. `custom_exprs` has one condition per call, or null: the call is
//! made only for rows for which it is true. Target list and filter refer to the scan tuple by INDEX_VAR. That is all the
//! executor needs, and what EXPLAIN prints.
//!
//! An argument of a call may be the result of a call before it (`fuse.rs` of the planner): such a call is fused. It stands in
//! `custom_scan_tlist` with the other call inside, and `custom_private` says which argument that is.
//!
//! A node whose call returns a set has no other call, and gives one row per result.

mod arguments;
mod calls;
mod exec;
mod explain;
mod kept;
mod private;
mod runs;
mod sets;
mod state;

use std::ffi::CStr;

use pgrx::pg_sys;

pub use private::{Input, Private, SetJoin};

use self::state::border_of;
use crate::report;

/// The node's name in EXPLAIN, and the key under which plans that were sent to a worker find the methods.
const NAME: &CStr = c"Container Batch";

/// How plans become executor nodes.
pub static SCAN_METHODS: Methods<pg_sys::CustomScanMethods> =
    Methods(pg_sys::CustomScanMethods { CustomName: NAME.as_ptr(), CreateCustomScanState: Some(exec::create_state) });

/// The executor's callbacks, in the order of a node's life.
static EXEC_METHODS: Methods<pg_sys::CustomExecMethods> = Methods(pg_sys::CustomExecMethods {
    CustomName: NAME.as_ptr(),
    BeginCustomScan: Some(begin),
    ExecCustomScan: Some(exec::exec),
    ReScanCustomScan: Some(rescan),
    EndCustomScan: Some(end),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: Some(explain::estimate_shared),
    InitializeDSMCustomScan: Some(explain::initialize_shared),
    ReInitializeDSMCustomScan: Some(explain::reinitialize_shared),
    InitializeWorkerCustomScan: Some(explain::attach_worker),
    ShutdownCustomScan: Some(explain::keep_totals),
    ExplainCustomScan: Some(explain::explain),
});

unsafe extern "C-unwind" fn begin(css: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, eflags: i32) {
    // SAFETY: the executor calls this, and the function is guarded.
    unsafe { report::with_context_of(border_of(css), || exec::begin(css, estate, eflags)) }
}

unsafe extern "C-unwind" fn rescan(css: *mut pg_sys::CustomScanState) {
    // SAFETY: as in begin.
    unsafe { report::with_context_of(border_of(css), || exec::rescan(css)) }
}

unsafe extern "C-unwind" fn end(css: *mut pg_sys::CustomScanState) {
    // SAFETY: as in begin.
    unsafe { report::with_context_of(border_of(css), || exec::end(css)) }
}

/// A table of callbacks.
pub struct Methods<T>(T);

// SAFETY: the tables hold pointers to constants and functions, and are never written.
unsafe impl<T> Sync for Methods<T> {}

impl<T> Methods<T> {
    /// The table, for PostgreSQL.
    pub fn as_ptr(&self) -> *const T {
        &raw const self.0
    }
}

/// Makes the node known to this process.
pub fn register() {
    runs::install();
    // SAFETY: the table is static.
    unsafe { pg_sys::RegisterCustomScanMethods(SCAN_METHODS.as_ptr()) };
}
