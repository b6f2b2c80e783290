//! Calls in what joins evaluate themselves: their filters, which move above an inner join, and the keys of hash joins, which
//! both sides then bring along as columns.

use pgrx::pg_sys;

use super::columns::{child_column_as, column, entry_of};
use super::demand::Demand;
use super::find_calls::{CallFinder, FoundCall};
use super::lift_calls::{Lifter, Parts};
use crate::pg::{list, nodes};

impl Lifter {
    /// An inner join's own filter may as well run after the join, where it can be lifted.
    pub(super) unsafe fn free_join_filters(&mut self, plan: *mut pg_sys::Plan) {
        // SAFETY: NestLoop, HashJoin and MergeJoin start with a Join.
        unsafe {
            let join = plan.cast::<pg_sys::Join>();
            // With inner_unique the filter decides when the join stops looking for matches.
            if (*join).jointype != pg_sys::JoinType::JOIN_INNER || (*join).inner_unique {
                return;
            }
            let finder = CallFinder::new(self.language);
            let filters = list::elements::<pg_sys::Node>((*join).joinqual);
            if let Some(first) = filters.iter().position(|filter| !finder.find(*filter).is_empty()) {
                let mut after = filters[first..].to_vec();
                after.extend(list::elements::<pg_sys::Node>((*plan).qual));
                (*join).joinqual = list::from_elements(&filters[..first]);
                (*plan).qual = list::from_elements(&after);
            }
        }
    }

    /// Puts nodes below a hash join for the calls in its keys: each side evaluates its key for each of its rows anyway.
    pub(super) unsafe fn lift_hash_keys(&mut self, plan: *mut pg_sys::Plan, asked: Demand) {
        // SAFETY: the plan is a valid HashJoin over a Hash. The i-th clause compares the i-th key of the outer side with
        // the i-th key of the inner one (create_hashjoin_plan).
        unsafe {
            let join = plan.cast::<pg_sys::HashJoin>();
            let hash = (*plan).righttree;
            if nodes::tag(hash) != pg_sys::NodeTag::T_Hash {
                return;
            }
            // Behind a key that is NULL a join may evaluate no other.
            let finder = CallFinder::new(self.language);
            let all_keys = [(*join).hashkeys, (*hash.cast::<pg_sys::Hash>()).hashkeys];
            let mut later_keys = all_keys.iter().flat_map(|keys| list::elements(*keys).into_iter().skip(1));
            if later_keys.any(|key| !finder.find(key).is_empty()) {
                return;
            }
            // The first row of the outer side is read before the inner side, and its key evaluated behind it.
            let reads = |keys: *mut pg_sys::List| {
                pg_sys::contain_mutable_functions(keys.cast()) || self.watcher.of_expressions(&[keys.cast()]).reads
            };
            if !self.is_still && all_keys.iter().any(|keys| reads(*keys)) {
                return;
            }
            let (outer, inner) = ((*plan).lefttree, (*hash).lefttree);
            let outer_keys: Parts = |plan| vec![&raw mut (*plan.cast::<pg_sys::HashJoin>()).hashkeys];
            self.lift_below(plan, outer_keys, key_calls, asked);
            let inner_keys: Parts = |plan| vec![&raw mut (*plan.cast::<pg_sys::Hash>()).hashkeys];
            self.lift_below(hash, inner_keys, key_calls, Demand::ALL);
            if (*plan).lefttree == outer && (*hash).lefttree == inner {
                return;
            }
            // A Hash node stores its child's rows as they are, so its columns are the child's.
            let width = list::elements::<pg_sys::TargetEntry>((*hash).targetlist).len();
            let targets = list::elements::<pg_sys::TargetEntry>((*(*hash).lefttree).targetlist);
            for (i, target) in targets.into_iter().enumerate().skip(width) {
                let entry = entry_of(column(pg_sys::OUTER_VAR, i, (*target).expr.cast()).cast(), i);
                (*hash).targetlist = pg_sys::lappend((*hash).targetlist, entry.cast());
            }
            let outer_keys = list::elements::<pg_sys::Node>((*join).hashkeys);
            let inner_keys = list::elements::<pg_sys::Node>((*hash.cast::<pg_sys::Hash>()).hashkeys);
            let clauses = list::elements::<pg_sys::OpExpr>((*join).hashclauses);
            for ((clause, outer_key), inner_key) in clauses.into_iter().zip(outer_keys).zip(inner_keys) {
                let outer_key: *mut pg_sys::Node = pg_sys::copyObjectImpl(outer_key.cast()).cast();
                let inner_key = nodes::replace(inner_key, &mut |node| child_column_as(pg_sys::INNER_VAR, node));
                (*clause).args = list::from_elements(&[outer_key, inner_key]);
            }
        }
    }
}

/// Calls in a key.
unsafe fn key_calls(finder: &CallFinder, key: *mut pg_sys::Node) -> Option<Vec<FoundCall>> {
    // SAFETY: the caller passes a valid expression.
    unsafe { Some(finder.find(key)) }
}
