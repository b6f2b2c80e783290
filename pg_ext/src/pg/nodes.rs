//! Expression trees: node tags and replacing parts of a tree.

use std::collections::HashSet;
use std::ffi::c_void;

use pgrx::{pg_guard, pg_sys};

use super::raw;

/// The node's tag.
///
/// # Safety
/// `node` is a valid node.
pub unsafe fn tag<T>(node: *const T) -> pg_sys::NodeTag {
    // SAFETY: every node starts with its tag.
    unsafe { (*node.cast::<pg_sys::Node>()).type_ }
}

/// A zeroed node of type `T` with its tag set.
///
/// # Safety
/// `T` is the node struct that belongs to `tag`.
pub unsafe fn make<T>(tag: pg_sys::NodeTag) -> *mut T {
    // SAFETY: palloc0 gives zeroed, aligned memory of the size asked for; zero bytes are valid in PostgreSQL's nodes.
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>()).cast::<pg_sys::Node>();
        (*node).type_ = tag;
        node.cast()
    }
}

/// The position of the child's column that an expression is; none if it is more than a column.
///
/// # Safety
/// `expression` is a valid expression of a finished plan.
pub unsafe fn outer_column<T>(expression: *const T) -> Option<usize> {
    // SAFETY: the tag says which struct the node is.
    unsafe {
        if tag(expression) != pg_sys::NodeTag::T_Var {
            return None;
        }
        let column = expression.cast::<pg_sys::Var>();
        if (*column).varno != pg_sys::OUTER_VAR {
            None
        } else {
            usize::try_from((*column).varattno).ok()?.checked_sub(1)
        }
    }
}

/// Whether an expression is a constant or a parameter of the query, perhaps relabelled: it has one value while a plan runs.
///
/// # Safety
/// `expression` is a valid expression of a finished plan.
pub unsafe fn is_constant(expression: *const pg_sys::Expr) -> bool {
    // SAFETY: the tag says which struct the node is.
    unsafe {
        match tag(expression) {
            pg_sys::NodeTag::T_Const => true,
            pg_sys::NodeTag::T_Param => {
                (*expression.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN
            }
            pg_sys::NodeTag::T_RelabelType => is_constant((*expression.cast::<pg_sys::RelabelType>()).arg),
            _ => false,
        }
    }
}

/// The positions of the columns of `varno` that expressions refer to.
///
/// # Safety
/// Each is null or a valid expression tree or list of them.
pub unsafe fn columns_of(expressions: &[*mut pg_sys::Node], varno: i32) -> HashSet<usize> {
    let mut found = std::ptr::null_mut();
    let mut columns = HashSet::new();
    // SAFETY: the caller says so; the set is PostgreSQL's own, and its members are attribute numbers above an offset.
    unsafe {
        for expression in expressions {
            pg_sys::pull_varattnos(*expression, varno as pg_sys::Index, &mut found);
        }
        let mut member = -1;
        loop {
            member = pg_sys::bms_next_member(found, member);
            if member < 0 {
                return columns;
            }
            let position = member + pg_sys::FirstLowInvalidHeapAttributeNumber - 1;
            columns.extend(usize::try_from(position).ok());
        }
    }
}

/// A copy of a node that shares its parts.
///
/// # Safety
/// `node` is a valid node of the struct `T`.
pub unsafe fn copy_of<T>(node: *const T) -> *mut T {
    // SAFETY: the caller says so; palloc gives aligned memory of the size asked for.
    unsafe {
        let copy = pg_sys::palloc(size_of::<T>()).cast::<T>();
        std::ptr::copy_nonoverlapping(node, copy, 1);
        copy
    }
}

/// The execution parameters that expressions depend on: their own, and those that their subplans do not get from them
/// (finalize_primnode). `subplans` are the statement's.
///
/// # Safety
/// Each expression is null or a valid expression tree or list of them, of a finished plan.
pub unsafe fn parameters_of(expressions: &[*mut pg_sys::Node], subplans: *mut pg_sys::List) -> *mut pg_sys::Bitmapset {
    let mut found = std::ptr::null_mut();
    // SAFETY: the caller says so; a subplan's number counts from one.
    unsafe {
        for expression in expressions {
            replace(*expression, &mut |node| {
                if tag(node) == pg_sys::NodeTag::T_Param {
                    let parameter = node.cast::<pg_sys::Param>();
                    if (*parameter).paramkind == pg_sys::ParamKind::PARAM_EXEC {
                        found = pg_sys::bms_add_member(found, (*parameter).paramid);
                    }
                }
                if tag(node) == pg_sys::NodeTag::T_SubPlan {
                    let subplan = node.cast::<pg_sys::SubPlan>();
                    let plans = super::list::elements::<pg_sys::Plan>(subplans);
                    if let Some(plan) = usize::try_from((*subplan).plan_id - 1).ok().and_then(|i| plans.get(i)) {
                        let mut needed = pg_sys::bms_copy((**plan).extParam);
                        for parameter in super::list::integers((*subplan).parParam) {
                            needed = pg_sys::bms_del_member(needed, parameter);
                        }
                        found = pg_sys::bms_join(found, needed);
                    }
                }
                None
            });
        }
    }
    found
}

/// The SubPlan nodes of an expression or list of expressions.
///
/// # Safety
/// `expression` is null or a valid expression tree or list of them.
pub unsafe fn subplans_of(expression: *mut pg_sys::Node) -> Vec<*mut pg_sys::SubPlan> {
    let mut found = Vec::new();
    // SAFETY: the caller says so; the copy is dropped.
    unsafe {
        replace(expression, &mut |node| {
            if tag(node) == pg_sys::NodeTag::T_SubPlan {
                found.push(node.cast());
            }
            None
        });
    }
    found
}

/// A copy of an expression in which `change` has replaced what it returned something for. Replaced parts are not
/// looked into.
///
/// # Safety
/// `expression` is null or a valid expression tree.
pub unsafe fn replace(
    expression: *mut pg_sys::Node,
    change: &mut dyn FnMut(*mut pg_sys::Node) -> Option<*mut pg_sys::Node>,
) -> *mut pg_sys::Node {
    let mut context = Context { change };
    // SAFETY: the context outlives the walk, and replace_node gets it back unchanged. What is called for PostgreSQL raises errors as
    // PostgreSQL does, which the boundary makes errors of Rust again: the callers' values are dropped.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| replace_node(expression, (&raw mut context).cast())) }
}

/// Whether an expression nests so deep that the walks over it might need more stack than there is, where the executor needs
/// less: each level of [`replace`] takes some kilobytes.
///
/// # Safety
/// `expression` is null or a valid expression tree or list of them.
pub unsafe fn is_deep(expression: *mut pg_sys::Node) -> bool {
    const BYTES_PER_LEVEL: i32 = 8192;
    // SAFETY: a setting of the server.
    let stack = unsafe { pg_sys::max_stack_depth }.saturating_mul(1024);
    let mut levels_left = stack / BYTES_PER_LEVEL;
    // SAFETY: the caller says that the tree is valid; the count outlives the walk.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| visit_levels(expression, (&raw mut levels_left).cast())) }
}

/// How many nodes an expression has; `most` if it has more.
///
/// # Safety
/// `expression` is null or a valid expression tree.
pub unsafe fn count(expression: *mut pg_sys::Node, most: i32) -> i32 {
    let mut left = most;
    // SAFETY: as in `is_deep`.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| visit_counted(expression, (&raw mut left).cast())) };
    most - left
}

/// Counts a node and those below it; true where enough were counted. As `visit_levels`.
unsafe extern "C-unwind" fn visit_counted(node: *mut pg_sys::Node, left: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: as in `visit_levels`.
    unsafe {
        let count = left.cast::<i32>();
        if *count <= 0 {
            return true;
        }
        *count -= 1;
        raw::expression_tree_walker(node, visit_counted, left)
    }
}

/// Goes down one level; true where none is left. PostgreSQL calls it without pgrx's guard, so that a level takes little stack: it
/// owns nothing and does not panic.
unsafe extern "C-unwind" fn visit_levels(node: *mut pg_sys::Node, levels_left: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: `is_deep` passes an i32, and PostgreSQL hands it through. As for `replace_node`, the walker's type lacks its
    // arguments in PostgreSQL 15.
    unsafe {
        let levels_left = levels_left.cast::<i32>();
        if *levels_left <= 0 {
            return true;
        }
        *levels_left -= 1;
        let is_deep = raw::expression_tree_walker(node, visit_levels, levels_left.cast());
        *levels_left += 1;
        is_deep
    }
}

struct Context<'a> {
    change: &'a mut dyn FnMut(*mut pg_sys::Node) -> Option<*mut pg_sys::Node>,
}

/// Whether any node of an expression, or list of them, is one that is looked for.
///
/// # Safety
/// `expression` is null or a valid expression tree or list of them.
pub unsafe fn has(expression: *mut pg_sys::Node, is_it: &mut dyn FnMut(*mut pg_sys::Node) -> bool) -> bool {
    let mut search = Search { is_it };
    // SAFETY: the caller says so; the search outlives the walk. For the boundary see `replace`.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| visit_searched(expression, (&raw mut search).cast())) }
}

struct Search<'a> {
    is_it: &'a mut dyn FnMut(*mut pg_sys::Node) -> bool,
}

#[pg_guard]
unsafe extern "C-unwind" fn visit_searched(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: `has` passes a Search, and PostgreSQL hands it through.
    unsafe {
        let is_it = &mut (*context.cast::<Search>()).is_it;
        if is_it(node) {
            return true;
        }
        pg_sys::expression_tree_walker(node, Some(visit_searched), context)
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn replace_node(node: *mut pg_sys::Node, context: *mut c_void) -> *mut pg_sys::Node {
    if node.is_null() {
        return node;
    }
    // SAFETY: `replace` passes a Context, and PostgreSQL hands it through. The mutator's type has lost its arguments in
    // PostgreSQL 15's header; PostgreSQL calls it with node and context.
    unsafe {
        let change = &mut (*context.cast::<Context>()).change;
        if let Some(replacement) = change(node) {
            return replacement;
        }
        let mutator: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> *mut pg_sys::Node = replace_node;
        #[cfg(feature = "pg15")]
        {
            let mutator: unsafe extern "C-unwind" fn() -> *mut pg_sys::Node = std::mem::transmute(mutator);
            pg_sys::expression_tree_mutator(node, Some(mutator), context)
        }
        #[cfg(not(feature = "pg15"))]
        pg_sys::expression_tree_mutator_impl(node, Some(mutator), context)
    }
}
