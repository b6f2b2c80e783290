//! The order in which PostgreSQL evaluates what a row needs, where it shows (`effects.rs`).
//!
//! Within a row, a node evaluates the arguments of its calls before everything else that moved up with them: calls for which
//! that would show stay where they are. Between rows, it reads some ahead: where that would show to what is evaluated for the
//! rows before, inside the node or around it, each batch has one row.

use std::collections::HashSet;

use pgrx::pg_sys;

use super::demand::{expressions, takes_all_first};
use super::effects::{Effects, Watcher};
use super::find_calls::FoundCall;
use super::lift_calls::Lifter;
use super::plans::{children, is_batch_scan};
use crate::batch_scan::Private;
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
            let places: HashSet<*mut pg_sys::Node> = all.iter().map(|found| found.call.cast()).collect();
            let is_found = |node: *mut pg_sys::Node| places.contains(&node);
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
            // Calls and what goes with them have left the plans where the other one has seen them.
            let watcher = self.watcher.anew();
            keep_order((*statement).planTree, Effects::NONE, &watcher);
            // Any other plan of the statement may be the one that asks for its rows.
            let beside = beside(&own);
            for (subplan, others) in subplans.into_iter().zip(beside) {
                keep_order(subplan, main | others, &watcher);
            }
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
}

/// `around` is what may be done between two rows of the plan.
unsafe fn keep_order(plan: *mut pg_sys::Plan, around: Effects, watcher: &Watcher) {
    if plan.is_null() {
        return;
    }
    // SAFETY: the caller passes a valid plan.
    unsafe {
        if is_batch_scan(plan) {
            let scan = plan.cast::<pg_sys::CustomScan>();
            let made = [(*scan).custom_scan_tlist.cast(), (*scan).custom_exprs.cast()];
            let ahead = watcher.of_plan((*plan).lefttree) | watcher.of_expressions(&made);
            let rest = [(*plan).targetlist.cast(), (*plan).qual.cast()];
            if ahead.are_ordered(around | watcher.of_expressions(&rest)) {
                let private = Private::from_plan(scan);
                (*scan).custom_private = Private { is_stepwise: true, ..private }.to_list();
            }
        }
        let own = watcher.of_node(plan);
        // What stands above such a node begins when its child has no more rows.
        let around = if takes_all_first(plan) { own } else { around | own };
        let below: Vec<_> = children(plan).into_iter().map(|child| *child).collect();
        let effects: Vec<_> = below.iter().map(|child| watcher.of_plan(*child)).collect();
        for (child, others) in below.into_iter().zip(beside(&effects)) {
            keep_order(child, around | others, watcher);
        }
    }
}

/// For each of these, what all others do. An Append may have thousands.
fn beside(effects: &[Effects]) -> Vec<Effects> {
    let mut others = vec![Effects::NONE; effects.len()];
    let (mut before, mut behind) = (Effects::NONE, Effects::NONE);
    for i in 0..effects.len() {
        others[i] |= before;
        before |= effects[i];
        let j = effects.len() - 1 - i;
        others[j] |= behind;
        behind |= effects[j];
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_all_but_oneself() {
        let reads = Effects { reads: true, ..Effects::NONE };
        let acts = Effects { acts: true, ..Effects::NONE };
        assert!(beside(&[]).is_empty());
        assert_eq!(beside(&[acts]), [Effects::NONE]);
        assert_eq!(beside(&[reads, Effects::NONE, acts]), [acts, reads | acts, reads]);
    }
}
