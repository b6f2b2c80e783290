//! PostgreSQL's functions without pgrx's guard, for what is done once per row or per plan.
//!
//! The guard costs more than most of these functions do. Without it, an error raised in one of them jumps straight over
//! the Rust frames between it and the executor. So a frame that calls them owns nothing that has to be dropped, is not
//! called by one that does, does not panic, and is itself called by PostgreSQL, not from a guarded function. What such frames
//! fill belongs to the node's state, which the query's memory context drops.

use std::ffi::{CStr, c_void};

use pgrx::pg_sys::{
    self, Datum, ExprContext, ExprState, MemoryContext, PlanState, ProjectionInfo, TupleTableSlot, varlena,
};

/// What PostgreSQL calls for each part of an expression; true ends the walk.
pub type Walker = unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool;

unsafe extern "C-unwind" {
    #[cfg_attr(feature = "pg15", link_name = "expression_tree_walker")]
    #[cfg_attr(not(feature = "pg15"), link_name = "expression_tree_walker_impl")]
    pub fn expression_tree_walker(node: *mut pg_sys::Node, walker: Walker, context: *mut c_void) -> bool;
    #[cfg_attr(feature = "pg15", link_name = "query_tree_walker")]
    #[cfg_attr(not(feature = "pg15"), link_name = "query_tree_walker_impl")]
    pub fn query_tree_walker(query: *mut pg_sys::Query, walker: Walker, context: *mut c_void, flags: i32) -> bool;
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
    #[link_name = "SearchSysCache1"]
    fn search_sys_cache(cache: i32, key: Datum) -> pg_sys::HeapTuple;
    #[link_name = "ReleaseSysCache"]
    fn release_sys_cache(tuple: pg_sys::HeapTuple);
}

/// The beginning of a row of `pg_language` (catalog/pg_language.h), which pgrx leaves out.
#[repr(C)]
struct LanguageRow {
    oid: pg_sys::Oid,
    name: pg_sys::NameData,
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

/// Whether a function is in the language with this name, or does not exist.
///
/// # Safety
/// As for all of these functions.
pub unsafe fn may_be_in_language(function: pg_sys::Oid, name: &CStr) -> bool {
    /// internal, C and SQL (catalog/pg_language.dat).
    const BUILT_IN: [u32; 3] = [12, 13, 14];
    // SAFETY: a tuple of the cache PROCOID holds a FormData_pg_proc, one of LANGOID a row of pg_language, and either stays valid
    // until it is released.
    unsafe {
        let tuple = search_sys_cache(pg_sys::SysCacheIdentifier::PROCOID as i32, Datum::from(function));
        if tuple.is_null() {
            return true;
        }
        let language = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>()).prolang;
        release_sys_cache(tuple);
        if BUILT_IN.contains(&language.to_u32()) {
            return false;
        }
        let tuple = search_sys_cache(pg_sys::SysCacheIdentifier::LANGOID as i32, Datum::from(language));
        if tuple.is_null() {
            return true;
        }
        let found = &(*pg_sys::GETSTRUCT(tuple).cast::<LanguageRow>()).name.data;
        let is_it = CStr::from_ptr(found.as_ptr()) == name;
        release_sys_cache(tuple);
        is_it
    }
}
