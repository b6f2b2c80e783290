//! Queries that are nothing but columns of one call of `transship.map`.
//!
//! The plan says so, whatever the text looks like: PostgreSQL has put constants in their places, and taken subqueries apart.

use std::ffi::c_char;

use pgrx::pg_sys;

use crate::pg::{list, nodes};

/// A call of `transship.map` in a query.
pub(super) struct Inner {
    /// The map function.
    pub(super) function: pg_sys::Oid,
    /// The query whose rows it takes; the text ends in NUL, and is in the current memory context.
    pub(super) query: *mut c_char,
    /// The types of the columns that are asked for.
    pub(super) types: Vec<pg_sys::Oid>,
    /// The query's columns, as positions of these.
    pub(super) columns: Vec<usize>,
}

impl Inner {
    /// The call whose columns a query is; `map` is the oid of `transship.map`.
    pub(super) fn of(statement: &pg_sys::PlannedStmt, map: pg_sys::Oid) -> Option<Inner> {
        // SAFETY: the plan is valid; tags say which struct each node is.
        unsafe {
            let scan = statement.planTree.cast::<pg_sys::FunctionScan>();
            if nodes::tag(scan) != pg_sys::NodeTag::T_FunctionScan {
                return None;
            }
            let plan = &(*scan).scan.plan;
            let has_more = (*scan).funcordinality || !plan.qual.is_null() || !plan.initPlan.is_null();
            let functions = list::elements::<pg_sys::RangeTblFunction>((*scan).functions);
            let ([function], false, true) = (functions.as_slice(), has_more, statement.rowMarks.is_null()) else {
                return None;
            };
            let call = (**function).funcexpr.cast::<pg_sys::FuncExpr>();
            if nodes::tag(call) != pg_sys::NodeTag::T_FuncExpr || (*call).funcid != map {
                return None;
            }
            let arguments = list::elements::<pg_sys::Node>((*call).args);
            let constants: Vec<pg_sys::Datum> = arguments.into_iter().map(|it| constant(it)).collect::<Option<_>>()?;
            let [function_oid, text] = constants[..] else { return None };
            let types = list::oids((**function).funccoltypes);
            let targets = list::elements::<pg_sys::TargetEntry>(plan.targetlist);
            let columns = targets.into_iter().map(|it| column(it, (*scan).scan.scanrelid, types.len()));
            Some(Inner {
                function: pg_sys::Oid::from(function_oid.value() as u32),
                query: pg_sys::text_to_cstring(text.cast_mut_ptr()),
                columns: columns.collect::<Option<_>>()?,
                types,
            })
        }
    }
}

/// A constant that is not NULL.
unsafe fn constant(node: *mut pg_sys::Node) -> Option<pg_sys::Datum> {
    // SAFETY: the caller passes a valid node; the tag says which struct it is.
    unsafe {
        let constant = node.cast::<pg_sys::Const>();
        (nodes::tag(node) == pg_sys::NodeTag::T_Const && !(*constant).constisnull).then(|| (*constant).constvalue)
    }
}

/// The position of a column of the scan that a target is, out of so many.
unsafe fn column(target: *mut pg_sys::TargetEntry, scan: pg_sys::Index, count: usize) -> Option<usize> {
    // SAFETY: the caller passes a valid target; the tag says which struct its expression is.
    unsafe {
        let var = (*target).expr.cast::<pg_sys::Var>();
        let is_column = nodes::tag(var) == pg_sys::NodeTag::T_Var
            && u32::try_from((*var).varno) == Ok(scan)
            && (*var).varlevelsup == 0
            && !(*target).resjunk;
        let position = usize::try_from((*var).varattno).ok().filter(|_| is_column)?.checked_sub(1)?;
        (position < count).then_some(position)
    }
}
