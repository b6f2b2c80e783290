//! Which container calls of an expression may be made ahead of it: those that the executor would make for every row.
//!
//! A call is left where it is, to be made row by row, if the expression around it may skip it (CASE, COALESCE, AND, OR
//! after their first part) or if we do not know that part of the language. Of nested calls the innermost is found
//! first; the ones around it follow once it has become a column.

use pgrx::pg_sys;

use crate::function::is_container_function;
use crate::pg::{list, nodes};

/// Finds calls of functions in one language.
pub struct CallFinder {
    /// The oid of LANGUAGE container.
    pub language: pg_sys::Oid,
    /// Whether VOLATILE functions count: not where an expression may be evaluated more than once per row.
    pub finds_volatile: bool,
}

impl CallFinder {
    /// The innermost calls in `expression` that are made for every row, left to right.
    ///
    /// # Safety
    /// `expression` is null or a valid expression tree of a finished plan.
    pub unsafe fn find(&self, expression: *mut pg_sys::Node) -> Vec<*mut pg_sys::FuncExpr> {
        let mut found = Vec::new();
        // SAFETY: the caller says that the tree is valid.
        unsafe { self.visit(expression, &mut found) };
        found
    }

    unsafe fn visit_list(&self, items: *mut pg_sys::List, found: &mut Vec<*mut pg_sys::FuncExpr>) {
        // SAFETY: lists of a valid expression tree hold nodes.
        unsafe {
            for item in list::elements::<pg_sys::Node>(items) {
                self.visit(item, found);
            }
        }
    }

    unsafe fn visit_first(&self, items: *mut pg_sys::List, found: &mut Vec<*mut pg_sys::FuncExpr>) {
        // SAFETY: lists of a valid expression tree hold nodes.
        unsafe {
            if let Some(first) = list::elements::<pg_sys::Node>(items).first() {
                self.visit(*first, found);
            }
        }
    }

    unsafe fn visit(&self, node: *mut pg_sys::Node, found: &mut Vec<*mut pg_sys::FuncExpr>) {
        use pg_sys::NodeTag::*;
        if node.is_null() {
            return;
        }
        // SAFETY: the tag says which struct the node is.
        unsafe {
            match nodes::tag(node) {
                T_FuncExpr => {
                    let call = node.cast::<pg_sys::FuncExpr>();
                    let before = found.len();
                    self.visit_list((*call).args, found);
                    if found.len() == before && self.may_lift(call) {
                        found.push(call);
                    }
                }
                // All arguments are evaluated before the operator is.
                T_OpExpr | T_DistinctExpr | T_NullIfExpr => {
                    self.visit_list((*node.cast::<pg_sys::OpExpr>()).args, found);
                }
                T_ScalarArrayOpExpr => self.visit_list((*node.cast::<pg_sys::ScalarArrayOpExpr>()).args, found),
                T_MinMaxExpr => self.visit_list((*node.cast::<pg_sys::MinMaxExpr>()).args, found),
                T_ArrayExpr => self.visit_list((*node.cast::<pg_sys::ArrayExpr>()).elements, found),
                T_RowExpr => self.visit_list((*node.cast::<pg_sys::RowExpr>()).args, found),
                // The first part is always evaluated, the others may not be.
                T_BoolExpr => self.visit_first((*node.cast::<pg_sys::BoolExpr>()).args, found),
                T_CoalesceExpr => self.visit_first((*node.cast::<pg_sys::CoalesceExpr>()).args, found),
                T_CaseExpr => {
                    let case = node.cast::<pg_sys::CaseExpr>();
                    self.visit((*case).arg.cast(), found);
                    if let Some(first) = list::elements::<pg_sys::CaseWhen>((*case).args).first() {
                        self.visit((**first).expr.cast(), found);
                    }
                }
                T_RelabelType => self.visit((*node.cast::<pg_sys::RelabelType>()).arg.cast(), found),
                T_CoerceViaIO => self.visit((*node.cast::<pg_sys::CoerceViaIO>()).arg.cast(), found),
                T_ArrayCoerceExpr => self.visit((*node.cast::<pg_sys::ArrayCoerceExpr>()).arg.cast(), found),
                T_CoerceToDomain => self.visit((*node.cast::<pg_sys::CoerceToDomain>()).arg.cast(), found),
                T_FieldSelect => self.visit((*node.cast::<pg_sys::FieldSelect>()).arg.cast(), found),
                T_SubscriptingRef => self.visit((*node.cast::<pg_sys::SubscriptingRef>()).refexpr.cast(), found),
                T_NullTest => self.visit((*node.cast::<pg_sys::NullTest>()).arg.cast(), found),
                T_BooleanTest => self.visit((*node.cast::<pg_sys::BooleanTest>()).arg.cast(), found),
                T_TargetEntry => self.visit((*node.cast::<pg_sys::TargetEntry>()).expr.cast(), found),
                // Everything else keeps its calls: subplans, aggregates, and what is not listed above.
                _ => {}
            }
        }
    }

    unsafe fn may_lift(&self, call: *mut pg_sys::FuncExpr) -> bool {
        // SAFETY: the caller passes a valid call.
        unsafe {
            !(*call).funcretset
                && is_container_function((*call).funcid, self.language)
                && (self.finds_volatile || !is_volatile((*call).funcid))
        }
    }
}

/// Whether a function is VOLATILE.
pub fn is_volatile(oid: pg_sys::Oid) -> bool {
    // SAFETY: a lookup in the system cache; the function exists, since a plan calls it.
    unsafe { pg_sys::func_volatile(oid) as u8 == pg_sys::PROVOLATILE_VOLATILE }
}
