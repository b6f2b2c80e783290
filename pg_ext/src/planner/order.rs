//! The order in which PostgreSQL evaluates what a row needs, where it shows (`effects.rs`).
//!
//! Within a row, a node evaluates the arguments of its calls before everything else that moved up with them: calls for which
//! that would show stay where they are. Between rows, it reads some ahead: where that would show to what is evaluated for the
//! rows before, inside the node or around it, each batch has one row.

use std::collections::HashMap;

use pgrx::pg_sys;

use super::demand::{expressions, takes_all_first};
use super::effects::Effects;
use super::find_calls::FoundCall;
use super::lift_calls::Lifter;
use super::plans::{children, is_batch_scan};
use crate::batch_scan::Private;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::{list, nodes};

impl Lifter {
    /// The calls found in expressions, which are evaluated in this order, without those that must not be made ahead of them.
    pub(super) unsafe fn that_keep_order(&self, mut found: Vec<(*mut pg_sys::Node, Vec<FoundCall>)>) -> Vec<FoundCall> {
        let collect = |found: &[(_, Vec<FoundCall>)]| -> Vec<_> {
            found.iter().flat_map(|(_, calls)| calls.iter().cloned()).collect()
        };
        if self.is_still {
            return collect(&found);
        }
        // A result is made an SQL value when its row is emitted, and not where the call stands.
        // SAFETY: the caller passes valid calls.
        let acts = |call: &FoundCall| unsafe { self.watcher.of_result(call.call).acts };
        found.iter_mut().for_each(|(_, calls)| calls.retain(|call| !acts(call)));
        let all = collect(&found);
        if all.is_empty() {
            return all;
        }
        // SAFETY: the caller passes valid expressions and calls in them.
        unsafe {
            // Left out are the calls themselves: their arguments are what moves.
            let is_found = |node: *mut pg_sys::Node| all.iter().any(|found| std::ptr::eq(found.call.cast(), node));
            let mut before = Effects::NONE;
            let mut ahead = Effects::NONE;
            let mut conditions = Effects::NONE;
            let mut is_turned = false;
            for (expression, calls) in &found {
                // Parts of the same expression may stand before the call or behind it.
                before |= self.watcher.of_rest(*expression, &is_found);
                for call in calls {
                    let needed = self.needs(call);
                    is_turned |= needed.are_ordered(before);
                    ahead |= needed;
                    conditions |= self.watcher.of_expressions(&call.guards);
                }
            }
            // A condition is evaluated once more where it stands, and must come to the same.
            is_turned |= conditions.are_ordered(before | ahead);
            all.into_iter().filter(|call| !is_turned || !self.needs(call).reads).collect()
        }
    }

    /// What is evaluated for a call before it is made.
    unsafe fn needs(&self, found: &FoundCall) -> Effects {
        // SAFETY: the caller passes a valid call.
        unsafe {
            self.watcher.of_expressions(&[(*found.call).args.cast()]) | self.watcher.of_expressions(&found.guards)
        }
    }

    /// Makes batches of one row where reading ahead would show, in a statement whose calls are lifted.
    pub(super) unsafe fn keep_order_of(&self, statement: *mut pg_sys::PlannedStmt) {
        // SAFETY: the caller passes a valid statement.
        unsafe {
            let subplans = list::elements::<pg_sys::Plan>(self.subplans);
            let own: Vec<_> = subplans.iter().map(|plan| self.of_nodes(*plan)).collect();
            let main = self.of_nodes((*statement).planTree);
            let known = &mut Known { context: OwnedContext::new(pg_sys::CurrentMemoryContext), plans: HashMap::new() };
            self.keep_order((*statement).planTree, Effects::NONE, known);
            for (i, subplan) in subplans.iter().enumerate() {
                // Any other plan of the statement may be the one that asks for its rows.
                let others = own.iter().enumerate().filter(|(j, _)| *j != i);
                self.keep_order(*subplan, others.fold(main, |found, (_, other)| found | *other), known);
            }
            known.context.reset();
        }
    }

    /// What a plan does, with all below it, which does not change any more.
    unsafe fn of_plan(&self, plan: *mut pg_sys::Plan, known: &mut Known) -> Effects {
        if plan.is_null() {
            return Effects::NONE;
        }
        if let Some(found) = known.plans.get(&plan) {
            return *found;
        }
        pgrx::check_for_interrupts!();
        // SAFETY: the caller passes a valid plan. What the look at it leaves in memory is of no use to anybody.
        unsafe {
            let own = within(known.context.as_ptr(), || self.watcher.of_node(plan));
            known.context.reset();
            let found = children(plan).into_iter().fold(own, |found, child| found | self.of_plan(*child, known));
            known.plans.insert(plan, found);
            found
        }
    }

    /// What a plan tree does, without the subplans that it uses.
    unsafe fn of_nodes(&self, plan: *mut pg_sys::Plan) -> Effects {
        if plan.is_null() {
            return Effects::NONE;
        }
        // SAFETY: the caller passes a valid plan; the tag says which struct a node of an expression is.
        unsafe {
            let is_subplan = |node: *mut pg_sys::Node| nodes::tag(node) == pg_sys::NodeTag::T_SubPlan;
            let own = expressions(plan)
                .into_iter()
                .fold(Effects::NONE, |found, expression| found | self.watcher.of_rest(expression, &is_subplan));
            children(plan).into_iter().fold(own, |found, child| found | self.of_nodes(*child))
        }
    }

    /// `around` is what may be done between two rows of the plan.
    unsafe fn keep_order(&self, plan: *mut pg_sys::Plan, around: Effects, known: &mut Known) {
        if plan.is_null() {
            return;
        }
        // SAFETY: the caller passes a valid plan.
        unsafe {
            if is_batch_scan(plan) {
                let scan = plan.cast::<pg_sys::CustomScan>();
                let made = [(*scan).custom_scan_tlist.cast(), (*scan).custom_exprs.cast()];
                let ahead = self.of_plan((*plan).lefttree, known) | self.watcher.of_expressions(&made);
                let rest = [(*plan).targetlist.cast(), (*plan).qual.cast()];
                if ahead.are_ordered(around | self.watcher.of_expressions(&rest)) {
                    let private = Private::from_plan(scan);
                    (*scan).custom_private = Private { is_stepwise: true, ..private }.to_list();
                }
            }
            let own = self.watcher.of_node(plan);
            // What stands above such a node begins when its child has no more rows.
            let around = if takes_all_first(plan) { own } else { around | own };
            let below: Vec<_> = children(plan).into_iter().map(|child| *child).collect();
            let effects: Vec<_> = below.iter().map(|child| self.of_plan(*child, known)).collect();
            // Of the others: those before it, and those behind it. An Append may have thousands.
            let mut behind = vec![Effects::NONE; below.len()];
            for i in (1..below.len()).rev() {
                behind[i - 1] = behind[i] | effects[i];
            }
            let mut before = Effects::NONE;
            for (i, child) in below.into_iter().enumerate() {
                self.keep_order(child, around | before | behind[i], known);
                before |= effects[i];
            }
        }
    }
}

/// What plans are known to do, and memory for finding out.
struct Known {
    context: OwnedContext,
    plans: HashMap<*mut pg_sys::Plan, Effects>,
}
