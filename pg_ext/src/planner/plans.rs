//! What a finished plan's nodes are, and what they do with their children's rows.

use std::collections::HashSet;

use pgrx::pg_sys;

use super::demand::{self, takes_all_first};
use crate::batch_scan::SCAN_METHODS;
use crate::pg::{list, nodes};

/// Whether a plan's rows come of a recursive query. Those that were `seen` do not, by number: several may read one.
pub(super) unsafe fn is_recursive(
    plan: *mut pg_sys::Plan,
    subplans: *mut pg_sys::List,
    seen: &mut HashSet<i32>,
) -> bool {
    // SAFETY: the caller passes null or a valid plan of the statement with these subplans, whose numbers count from one.
    unsafe {
        if plan.is_null() {
            return false;
        }
        match nodes::tag(plan) {
            pg_sys::NodeTag::T_RecursiveUnion => true,
            pg_sys::NodeTag::T_CteScan => {
                let number = (*plan.cast::<pg_sys::CteScan>()).ctePlanId;
                let position = usize::try_from(number - 1).ok();
                let query = position.and_then(|position| list::element::<pg_sys::Plan>(subplans, position));
                // CTEs that read each other are no deeper for PostgreSQL than any others.
                pg_sys::stack_is_too_deep()
                    || seen.insert(number) && query.is_some_and(|query| is_recursive(query, subplans, seen))
            }
            // It has read all of it before it gives a row.
            _ if takes_all_first(plan) => false,
            _ => children(plan).into_iter().any(|child| is_recursive(*child, subplans, seen)),
        }
    }
}

/// Whether a plan, or an expression in it, is too deep to be walked again and again, given the levels above it.
pub(super) unsafe fn is_deep(plan: *mut pg_sys::Plan, levels: usize) -> bool {
    /// What lifting does on one level takes a kilobyte of stack and more.
    const MOST_LEVELS: usize = 500;
    // SAFETY: the caller passes null or a valid plan.
    unsafe {
        !plan.is_null()
            && (levels >= MOST_LEVELS
                || demand::expressions(plan).into_iter().any(|expression| nodes::is_deep(expression))
                || children(plan).into_iter().any(|child| is_deep(*child, levels + 1)))
    }
}

/// Whether a join goes back on its inner side.
pub(super) unsafe fn goes_back(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: the caller passes a valid plan; the tag says which struct it is.
    unsafe {
        nodes::tag(plan) == pg_sys::NodeTag::T_MergeJoin && !(*plan.cast::<pg_sys::MergeJoin>()).skip_mark_restore
    }
}

/// Whether a merge join may go back on a plan: what ExecMarkPos knows, our nodes and foreign ones left out.
pub(super) unsafe fn supports_mark(plan: *mut pg_sys::Plan) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the caller passes a valid plan.
    unsafe {
        match nodes::tag(plan) {
            T_IndexScan | T_IndexOnlyScan | T_Material | T_Sort => true,
            T_Result => !(*plan).lefttree.is_null() && supports_mark((*plan).lefttree),
            _ => false,
        }
    }
}

/// Whether every row of its child goes through the aggregates of a window node: each is in its own frame, and no condition
/// ends a partition early. Other window functions evaluate their arguments for the rows they want.
pub(super) unsafe fn takes_every_row(window: *const pg_sys::WindowAgg) -> bool {
    const NOT_IN_OWN_FRAME: u32 = pg_sys::FRAMEOPTION_START_OFFSET_FOLLOWING
        | pg_sys::FRAMEOPTION_END_OFFSET_PRECEDING
        | pg_sys::FRAMEOPTION_EXCLUDE_CURRENT_ROW
        | pg_sys::FRAMEOPTION_EXCLUDE_GROUP
        | pg_sys::FRAMEOPTION_EXCLUDE_TIES;
    // SAFETY: the caller passes a valid node.
    unsafe { (*window).frameOptions as u32 & NOT_IN_OWN_FRAME == 0 && (*window).runCondition.is_null() }
}

/// Whether a node evaluates its functions' arguments once for each row of its child. A window's aggregate may do so again
/// when its frame moves, and grouping sets may take several passes.
pub(super) unsafe fn evaluates_once(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: the caller passes a valid plan; the tag says which struct it is.
    unsafe {
        match nodes::tag(plan) {
            pg_sys::NodeTag::T_WindowAgg => false,
            pg_sys::NodeTag::T_Agg => (*plan.cast::<pg_sys::Agg>()).groupingSets.is_null(),
            _ => true,
        }
    }
}

/// The child's columns that an aggregate node looks at; none if the node is no such node, or one that is not so simple.
pub(super) unsafe fn used_by_aggregate(plan: *mut pg_sys::Plan) -> Option<HashSet<usize>> {
    // SAFETY: the caller passes a valid plan; the tag says which struct it is, and its array has numCols numbers.
    unsafe {
        let aggregate = plan.cast::<pg_sys::Agg>();
        if nodes::tag(plan) != pg_sys::NodeTag::T_Agg
            || !(*aggregate).chain.is_null()
            || !(*aggregate).groupingSets.is_null()
        {
            return None;
        }
        let expressions = [(*plan).targetlist.cast(), (*plan).qual.cast()];
        let mut used = nodes::columns_of(&expressions, pg_sys::OUTER_VAR);
        let groups = usize::try_from((*aggregate).numCols).unwrap_or(0);
        used.extend((0..groups).map(|i| *(*aggregate).grpColIdx.add(i) as usize - 1));
        Some(used)
    }
}

/// Whether a node is one of ours.
pub(super) unsafe fn is_batch_scan(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: the caller passes a valid plan; the tag says which struct it is.
    unsafe {
        nodes::tag(plan) == pg_sys::NodeTag::T_CustomScan
            && std::ptr::eq((*plan.cast::<pg_sys::CustomScan>()).methods, SCAN_METHODS.as_ptr())
    }
}

/// The places that hold a plan's children.
pub(super) unsafe fn children(plan: *mut pg_sys::Plan) -> Vec<*mut *mut pg_sys::Plan> {
    use pg_sys::NodeTag::*;
    // SAFETY: the tag says which struct the plan is; list cells stay where they are while lists keep their length.
    unsafe {
        let mut places = vec![&raw mut (*plan).lefttree, &raw mut (*plan).righttree];
        let more = match nodes::tag(plan) {
            T_Append => (*plan.cast::<pg_sys::Append>()).appendplans,
            T_MergeAppend => (*plan.cast::<pg_sys::MergeAppend>()).mergeplans,
            T_BitmapAnd => (*plan.cast::<pg_sys::BitmapAnd>()).bitmapplans,
            T_BitmapOr => (*plan.cast::<pg_sys::BitmapOr>()).bitmapplans,
            T_CustomScan => (*plan.cast::<pg_sys::CustomScan>()).custom_plans,
            T_SubqueryScan => {
                places.push(&raw mut (*plan.cast::<pg_sys::SubqueryScan>()).subplan);
                std::ptr::null_mut()
            }
            _ => std::ptr::null_mut(),
        };
        if !more.is_null() {
            for i in 0..usize::try_from((*more).length).unwrap_or(0) {
                places.push((&raw mut (*(*more).elements.add(i)).ptr_value).cast());
            }
        }
        places.retain(|place| !(**place).is_null());
        places
    }
}
