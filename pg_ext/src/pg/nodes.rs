//! Expression trees: node tags and replacing parts of a tree.

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
