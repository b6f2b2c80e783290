//! Expression trees: node tags and replacing parts of a tree.

use std::collections::HashSet;
use std::ffi::c_void;

use pgrx::{pg_guard, pg_sys};

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
    // SAFETY: the context outlives the walk, and replace_node gets it back unchanged.
    unsafe { replace_node(expression, (&raw mut context).cast()) }
}

struct Context<'a> {
    change: &'a mut dyn FnMut(*mut pg_sys::Node) -> Option<*mut pg_sys::Node>,
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
