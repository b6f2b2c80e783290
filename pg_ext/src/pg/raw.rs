//! PostgreSQL's functions without pgrx's guard, for what is done once per row.
//!
//! The guard costs more than most of these functions do. Without it, an error raised in one of them jumps straight over
//! the Rust frames between it and the executor. So a frame that calls them owns nothing that has to be dropped, is not
//! called by one that does, does not panic, and is itself called by PostgreSQL, not from a guarded function. What such frames
//! fill belongs to the node's state, which the query's memory context drops.

use std::ffi::c_void;

use pgrx::pg_sys::{
    self, Datum, ExprContext, ExprState, MemoryContext, PlanState, ProjectionInfo, TupleTableSlot, varlena,
};

/// What PostgreSQL calls for each part of an expression; true ends the walk.
pub type Walker = unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool;

unsafe extern "C-unwind" {
    #[cfg_attr(feature = "pg15", link_name = "expression_tree_walker")]
    #[cfg_attr(not(feature = "pg15"), link_name = "expression_tree_walker_impl")]
    pub fn expression_tree_walker(node: *mut pg_sys::Node, walker: Walker, context: *mut c_void) -> bool;
    #[link_name = "ExecProcNode__pgrx_cshim"]
    pub fn exec_proc_node(node: *mut PlanState) -> *mut TupleTableSlot;
    #[link_name = "ExecEvalExpr__pgrx_cshim"]
    pub fn exec_eval_expr(state: *mut ExprState, context: *mut ExprContext, is_null: *mut bool) -> Datum;
    #[link_name = "ExecQual__pgrx_cshim"]
    pub fn exec_qual(state: *mut ExprState, context: *mut ExprContext) -> bool;
    #[link_name = "ExecProject__pgrx_cshim"]
    pub fn exec_project(projection: *mut ProjectionInfo) -> *mut TupleTableSlot;
    #[link_name = "ExecClearTuple__pgrx_cshim"]
    pub fn exec_clear_tuple(slot: *mut TupleTableSlot) -> *mut TupleTableSlot;
    #[link_name = "MemoryContextReset"]
    pub fn memory_context_reset(context: MemoryContext);
    #[link_name = "palloc"]
    pub fn palloc(size: usize) -> *mut c_void;
    #[link_name = "pg_detoast_datum_packed"]
    pub fn detoast_packed(datum: *mut varlena) -> *mut varlena;
    #[link_name = "datumCopy"]
    pub fn datum_copy(value: Datum, is_by_value: bool, length: i32) -> Datum;
    #[link_name = "datumGetSize"]
    pub fn datum_get_size(value: Datum, is_by_value: bool, length: i32) -> usize;
    #[link_name = "slot_getsomeattrs_int"]
    fn slot_getsomeattrs_int(slot: *mut TupleTableSlot, count: i32);
    #[link_name = "ProcessInterrupts"]
    fn process_interrupts();
}

/// Makes the values of a slot's first `count` columns available.
///
/// # Safety
/// The slot holds a row of at least that many columns.
pub unsafe fn deform(slot: *mut TupleTableSlot, count: i16) {
    // SAFETY: the caller says so.
    unsafe {
        if (*slot).tts_nvalid < count {
            slot_getsomeattrs_int(slot, i32::from(count));
        }
    }
}

/// PostgreSQL's CHECK_FOR_INTERRUPTS.
///
/// # Safety
/// As for all of these functions.
pub unsafe fn check_for_interrupts() {
    // SAFETY: a flag that signal handlers set.
    unsafe {
        if (&raw const pg_sys::InterruptPending).read_volatile() != 0 {
            process_interrupts();
        }
    }
}
