//! Fused calls: a Container Batch node right above another takes over its calls, where the outer calls' arguments are plainly the
//! inner calls' results.
//!
//! ```text
//!   Container Batch                    Container Batch
//!     Output: (f(g))                     Output: (f(g(b)))
//!     ->  Container Batch          ▶     ->  Seq Scan on t
//!           Output: (g(b))                     Output: b
//!           ->  Seq Scan on t
//!                 Output: b
//! ```
//!
//! The node then gives results to arguments as columns, and reads and keeps each row of its child once (`batch_scan/calls.rs`). It
//! makes the same calls for the same rows: nothing between the two nodes filters, and an outer call is made for rows of an inner one
//! only, whose condition its own implies.

use std::collections::HashSet;

use pgrx::pg_sys;

use super::columns::{column, entry_of, fits};
use super::find_calls::is_volatile;
use super::plans::{children, is_batch_scan};
use crate::batch_scan::{Input, Private};
use crate::datum::travels_unchanged;
use crate::function;
use crate::pg::{list, nodes};

/// Nodes of a call with the calls inside it, at most.
const MOST_NODES: i32 = 500;

/// Fuses what can be in a plan tree.
///
/// # Safety
/// `plan` is null or a valid plan that nobody else uses yet.
pub(super) unsafe fn fuse(plan: *mut pg_sys::Plan) {
    if plan.is_null() {
        return;
    }
    // SAFETY: the caller says that the plan is valid, so its children are; the tag says which struct it is.
    unsafe {
        for child in children(plan) {
            fuse(*child);
        }
        while is_batch_scan(plan) && is_batch_scan((*plan).lefttree) {
            let Some(fused) = Fused::of(plan.cast(), (*plan).lefttree.cast()) else { return };
            fused.put_into(plan.cast());
        }
    }
}

/// What becomes of two nodes.
struct Fused {
    private: Private,
    entries: Vec<*mut pg_sys::TargetEntry>,
    /// `custom_exprs`.
    expressions: Vec<*mut pg_sys::Node>,
    targets: *mut pg_sys::List,
    filter: *mut pg_sys::List,
    child: *mut pg_sys::Plan,
}

impl Fused {
    /// Of a node and the one below it; none if they must stay two.
    unsafe fn of(outer: *mut pg_sys::CustomScan, inner: *mut pg_sys::CustomScan) -> Option<Fused> {
        // SAFETY: the caller passes two of our nodes, in a valid plan.
        unsafe {
            let (outer_plan, inner_plan) = (&raw mut (*outer).scan.plan, &raw mut (*inner).scan.plan);
            let (above, below) = (Private::from_plan(outer), Private::from_plan(inner));
            if !(*inner_plan).qual.is_null() || !(*inner_plan).initPlan.is_null() || !go_together(&above, &below) {
                return None;
            }
            // The inner node hands its columns on as they are.
            let passed: Vec<usize> = list::elements::<pg_sys::TargetEntry>((*inner_plan).targetlist)
                .into_iter()
                .map(|entry| scan_column((*entry).expr))
                .collect::<Option<_>>()?;
            let inner_entries = list::elements::<pg_sys::TargetEntry>((*inner).custom_scan_tlist);
            let outer_entries = list::elements::<pg_sys::TargetEntry>((*outer).custom_scan_tlist);
            let inner_calls = inner_entries.len() - below.child_columns;
            let calls: Vec<*mut pg_sys::FuncExpr> = outer_entries[above.child_columns..]
                .iter()
                .map(|entry| (**entry).expr.cast::<pg_sys::FuncExpr>())
                .collect();
            if !fits(inner_entries.len() + calls.len()) {
                return None;
            }
            let result_of = |node: *mut pg_sys::Node| {
                let position = *passed.get(nodes::outer_column(node)?)?;
                position.checked_sub(below.child_columns)
            };
            let has_results = |expressions: &[*mut pg_sys::Node]| {
                let columns = nodes::columns_of(expressions, pg_sys::OUTER_VAR);
                columns.iter().any(|i| passed.get(*i).is_none_or(|position| *position >= below.child_columns))
            };
            let mut expressions = list::elements::<pg_sys::Node>((*outer).custom_exprs);
            let bounds = expressions.split_off(calls.len());
            if has_results(&expressions) {
                return None;
            }
            let size_of_call =
                |call: usize| nodes::count((*inner_entries[below.child_columns + call]).expr.cast(), MOST_NODES);
            let mut inputs = below.inputs;
            inputs.resize(inner_calls, Vec::new());
            let mut takes_results = false;
            for (number, call) in calls.iter().enumerate() {
                // Results of calls that the outer node has taken over before.
                let own = above.inputs_of(number);
                let mut found = Vec::new();
                for (argument, expression) in list::elements::<pg_sys::Node>((**call).args).into_iter().enumerate() {
                    match result_of(expression) {
                        _ if own.iter().any(|input| input.argument == argument) => {}
                        Some(result) => found.push(Input { argument, call: result }),
                        None if has_results(&[expression]) => return None,
                        None => {}
                    }
                }
                let inner_call =
                    |input: &Input| (*inner_entries[below.child_columns + input.call]).expr.cast::<pg_sys::FuncExpr>();
                let may_fuse = |input: &Input| {
                    let inner = inner_call(input);
                    !is_volatile((*inner).funcid) && travels_unchanged((*inner).funcresulttype)
                };
                if !found.is_empty() && (is_volatile((**call).funcid) || !found.iter().all(may_fuse)) {
                    return None;
                }
                takes_results |= !found.is_empty();
                // The inner calls are copied into the outer ones, as often as they stand there, and so on upwards.
                let copied: i32 = found.iter().map(|input| size_of_call(input.call)).sum();
                if nodes::count((*call).cast(), MOST_NODES) + copied >= MOST_NODES {
                    return None;
                }
                found.extend(own.iter().map(|input| Input { call: inner_calls + input.call, ..*input }));
                inputs.push(found);
            }
            let inner_functions = inner_entries[below.child_columns..]
                .iter()
                .map(|entry| (*(**entry).expr.cast::<pg_sys::FuncExpr>()).funcid);
            let functions = inner_functions.chain(calls.iter().map(|call| (**call).funcid));
            if !takes_results || !have_one_bound(functions) {
                return None;
            }
            // What was over the inner node's columns is over its child's, with the inner calls inside.
            let mut over_child = |node: *mut pg_sys::Node| {
                let position = *passed.get(nodes::outer_column(node)?)?;
                match position.checked_sub(below.child_columns) {
                    None => Some(column(pg_sys::OUTER_VAR, position, node).cast()),
                    Some(_) => Some(pg_sys::copyObjectImpl((*inner_entries[position]).expr.cast()).cast()),
                }
            };
            let mut entries = inner_entries.clone();
            for call in &calls {
                let call = nodes::replace(call.cast(), &mut over_child);
                if nodes::is_deep(call) {
                    return None;
                }
                entries.push(entry_of(call.cast(), entries.len()));
            }
            let inner_expressions = list::elements::<pg_sys::Node>((*inner).custom_exprs);
            let outer_conditions = expressions.iter().map(|condition| nodes::replace(*condition, &mut over_child));
            let expressions = inner_expressions[..inner_calls].iter().copied().chain(outer_conditions).chain(bounds);
            let expressions = expressions.collect();
            // And what was over the outer node's scan tuple is over the new one.
            let place = |position: usize| match position.checked_sub(above.child_columns) {
                None => passed[position],
                Some(call) => inner_entries.len() + call,
            };
            let mut over_scan_tuple = |node: *mut pg_sys::Node| {
                let position = scan_column(node.cast())?;
                Some(column(pg_sys::INDEX_VAR, place(position), node).cast())
            };
            let targets = nodes::replace((*outer_plan).targetlist.cast(), &mut over_scan_tuple).cast();
            let filter = nodes::replace((*outer_plan).qual.cast(), &mut over_scan_tuple).cast();
            let is_unused = |i: &usize| above.unused.contains(i);
            let used: HashSet<usize> = (0..above.child_columns).filter(|i| !is_unused(i)).map(place).collect();
            let unused = above.unused.iter().map(|i| place(*i)).chain(below.unused.iter().copied());
            let unused: HashSet<usize> = unused.filter(|i| !used.contains(i)).collect();
            let private =
                Private { child_columns: below.child_columns, unused: unused.into_iter().collect(), inputs, ..above };
            Some(Fused { private, entries, expressions, targets, filter, child: (*inner_plan).lefttree })
        }
    }

    /// Makes the outer node the only one.
    unsafe fn put_into(self, outer: *mut pg_sys::CustomScan) {
        // SAFETY: the caller passes the outer node. Its parameters are those of both, since it was made above the inner one.
        unsafe {
            (*outer).custom_scan_tlist = list::from_elements(&self.entries);
            (*outer).custom_exprs = list::from_elements(&self.expressions);
            (*outer).custom_private = self.private.to_list();
            (*outer).scan.plan.targetlist = self.targets;
            (*outer).scan.plan.qual = self.filter;
            (*outer).scan.plan.lefttree = self.child;
        }
    }
}

/// Whether no function has other batches than another by its body: its calls would make those of the others alike.
fn have_one_bound(functions: impl Iterator<Item = pg_sys::Oid>) -> bool {
    let bounds: Option<HashSet<_>> =
        functions.map(|oid| function::lookup(oid).ok().map(|function| function.body.batch_rows())).collect();
    bounds.is_some_and(|bounds| bounds.len() == 1)
}

/// Whether two nodes read their rows alike, each of them in batches.
fn go_together(above: &Private, below: &Private) -> bool {
    let is_batched = |private: &Private| private.set.is_none() && !private.is_stepwise;
    let bounds = |private: &Private| {
        (private.is_bounded, private.is_bound_exact, private.may_be_stopped, private.is_stepwise_if_stopped)
    };
    is_batched(above) && is_batched(below) && bounds(above) == bounds(below)
}

/// The column of the scan tuple that an expression is; none if it is more than a column.
unsafe fn scan_column(expression: *mut pg_sys::Expr) -> Option<usize> {
    // SAFETY: the caller passes a valid expression; the tag says which struct it is.
    unsafe {
        let var = expression.cast::<pg_sys::Var>();
        let is_column = nodes::tag(var) == pg_sys::NodeTag::T_Var && (*var).varno == pg_sys::INDEX_VAR;
        if is_column { usize::try_from((*var).varattno - 1).ok() } else { None }
    }
}
