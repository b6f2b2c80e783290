//! How many of its rows a plan is asked for, and whether anybody would notice that it reads ahead.
//!
//! Row by row, nothing is evaluated for rows that nobody asks for, as under LIMIT or EXISTS. A Container Batch node reads a batch
//! ahead of the row that it returns. Where a node above may stop early, the first batch therefore has no more rows than are
//! asked for; and where reading ahead would show, because a VOLATILE function is called or rows are locked, each batch has
//! one row, and the next is read when the one before has been returned.

use pgrx::pg_sys;

use super::lift_calls::children;
use crate::pg::{list, nodes};

/// How many rows the plan above asks for.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// All of them.
    All,
    /// All of them, and writes to tables in between, which a VOLATILE function inside the database could see.
    AllToWrite,
    /// Perhaps not all, and nobody can say how many.
    Some,
    /// The first one.
    First,
    /// As many as a Limit node lets through, which has a count.
    Limit(*mut pg_sys::Limit),
}

impl Demand {
    /// What a statement with these cursor options asks for. Only plans that a client or PL/pgSQL runs to their end are
    /// allowed to be parallel.
    pub fn of_statement(cursor_options: i32) -> Demand {
        let stops = pg_sys::CURSOR_OPT_FAST_PLAN | pg_sys::CURSOR_OPT_SCROLL | pg_sys::CURSOR_OPT_NO_SCROLL;
        let is_whole = cursor_options & pg_sys::CURSOR_OPT_PARALLEL_OK as i32 != 0;
        if is_whole && cursor_options & stops as i32 == 0 { Demand::All } else { Demand::Some }
    }

    /// What an expression asks of its subplan, or a node of its initPlan.
    ///
    /// # Safety
    /// `subplan` is a valid SubPlan of a finished plan.
    pub unsafe fn of_subplan(subplan: *const pg_sys::SubPlan) -> Demand {
        use pg_sys::SubLinkType::*;
        // SAFETY: the caller says that the node is valid.
        unsafe {
            match (*subplan).subLinkType {
                EXISTS_SUBLINK => Demand::First,
                ANY_SUBLINK | ALL_SUBLINK if !(*subplan).useHashTable => Demand::Some,
                // Its CTE scans say more.
                CTE_SUBLINK => Demand::Some,
                // More than one row is an error.
                _ => Demand::All,
            }
        }
    }

    /// Whether rows may be left that nobody asks for.
    pub fn may_stop(self) -> bool {
        !matches!(self, Demand::All | Demand::AllToWrite)
    }

    /// Whether anybody could see that a node reads `child` ahead, and makes calls, in these `expressions`, ahead. `is_call` says
    /// which functions run in a container, where they see no table. `subplans` are the statement's.
    ///
    /// # Safety
    /// All are valid parts of one finished plan.
    pub unsafe fn shows_reading_ahead(
        self,
        child: *mut pg_sys::Plan,
        expressions: &[*mut pg_sys::Node],
        subplans: *mut pg_sys::List,
        is_call: impl Fn(pg_sys::Oid) -> bool,
    ) -> bool {
        let never = |_: pg_sys::Oid| false;
        let ignored: &dyn Fn(pg_sys::Oid) -> bool = match self {
            Demand::All => return false,
            Demand::AllToWrite => &is_call,
            _ => &never,
        };
        let side_effects = SideEffects { subplans, ignored };
        // SAFETY: the caller says so.
        unsafe {
            expressions.iter().any(|expression| side_effects.in_expression(*expression)) || side_effects.in_plan(child)
        }
    }

    /// What is asked of `child` if this is asked of `plan`.
    ///
    /// # Safety
    /// `plan` is a valid plan, and `child` a child of it.
    pub unsafe fn below(self, plan: *mut pg_sys::Plan, child: *mut pg_sys::Plan) -> Demand {
        use pg_sys::NodeTag::*;
        let some = if self.may_stop() { self } else { Demand::Some };
        // SAFETY: the caller says that the plan is valid; its tag says which struct it is.
        unsafe {
            match nodes::tag(plan) {
                T_Limit => {
                    let limit = plan.cast::<pg_sys::Limit>();
                    if is_absent((*limit).limitCount) { self } else { Demand::Limit(limit) }
                }
                // These take all rows before they give one.
                T_Sort | T_Hash => Demand::All,
                T_ModifyTable => Demand::AllToWrite,
                T_Agg => match (*plan.cast::<pg_sys::Agg>()).aggstrategy {
                    pg_sys::AggStrategy::AGG_PLAIN | pg_sys::AggStrategy::AGG_HASHED => Demand::All,
                    _ => self,
                },
                T_SetOp => match (*plan.cast::<pg_sys::SetOp>()).strategy {
                    pg_sys::SetOpStrategy::SETOP_HASHED => Demand::All,
                    _ => self,
                },
                // An empty side ends a hash join, and the end of either side a merge join.
                T_HashJoin | T_MergeJoin => some,
                T_NestLoop => {
                    let join = plan.cast::<pg_sys::Join>();
                    let is_first_enough = (*join).inner_unique
                        || matches!((*join).jointype, pg_sys::JoinType::JOIN_SEMI | pg_sys::JoinType::JOIN_ANTI);
                    if is_first_enough && std::ptr::eq(child, (*plan).righttree) { Demand::First } else { self }
                }
                T_WindowAgg if !(*plan.cast::<pg_sys::WindowAgg>()).runCondition.is_null() => some,
                T_LockRows => some,
                _ => self,
            }
        }
    }

    /// Count and offset of the first rows that are asked for, where they are known when the plan starts: each a constant or a
    /// parameter of the statement, or null.
    ///
    /// # Safety
    /// The plan that the value was made for is still valid.
    pub unsafe fn first_rows(self) -> Option<[*mut pg_sys::Node; 2]> {
        // SAFETY: the caller says that the Limit node is valid.
        unsafe {
            match self {
                Demand::All | Demand::AllToWrite | Demand::Some => None,
                Demand::First => {
                    let one = pg_sys::makeConst(
                        pg_sys::INT8OID,
                        -1,
                        pg_sys::InvalidOid,
                        8,
                        pg_sys::Datum::from(1i64),
                        false,
                        true,
                    );
                    Some([one.cast(), std::ptr::null_mut()])
                }
                Demand::Limit(limit) => {
                    let bounds = [(*limit).limitCount, (*limit).limitOffset];
                    bounds.iter().all(|bound| is_known_at_start(*bound)).then_some(bounds)
                }
            }
        }
    }
}

/// Whether a count of LIMIT is left out, or LIMIT NULL.
unsafe fn is_absent(count: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller passes null or a valid expression; the tag says which struct it is.
    unsafe {
        count.is_null()
            || (nodes::tag(count) == pg_sys::NodeTag::T_Const && (*count.cast::<pg_sys::Const>()).constisnull)
    }
}

unsafe fn is_known_at_start(expression: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller passes null or a valid expression; the tag says which struct it is.
    unsafe {
        expression.is_null()
            || match nodes::tag(expression) {
                pg_sys::NodeTag::T_Const => true,
                pg_sys::NodeTag::T_Param => {
                    (*expression.cast::<pg_sys::Param>()).paramkind == pg_sys::ParamKind::PARAM_EXTERN
                }
                _ => false,
            }
    }
}

/// Looks for what reading ahead would do too early: calls of VOLATILE functions, locks of rows, writes.
struct SideEffects<'a> {
    /// The statement's.
    subplans: *mut pg_sys::List,
    /// Functions that do not count, VOLATILE or not.
    ignored: &'a dyn Fn(pg_sys::Oid) -> bool,
}

impl SideEffects<'_> {
    unsafe fn in_plan(&self, plan: *mut pg_sys::Plan) -> bool {
        use pg_sys::NodeTag::*;
        // SAFETY: the caller passes a valid plan; tags say which structs its nodes are.
        unsafe {
            match nodes::tag(plan) {
                T_LockRows | T_ModifyTable => return true,
                T_CteScan if self.in_subplan((*plan.cast::<pg_sys::CteScan>()).ctePlanId) => return true,
                _ => {}
            }
            expressions(plan).into_iter().any(|expression| self.in_expression(expression))
                || children(plan).into_iter().any(|child| self.in_plan(*child))
        }
    }

    unsafe fn in_expression(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: the caller passes null or a valid expression or list of them.
        unsafe {
            if pg_sys::contain_volatile_functions(expression)
                && pg_sys::contain_volatile_functions(self.without_ignored(expression))
            {
                return true;
            }
            pg_sys::contain_subplans(expression)
                && nodes::subplans_of(expression).into_iter().any(|found| self.in_subplan((*found).plan_id))
        }
    }

    /// A copy of an expression with rows of their arguments in place of calls that do not count.
    unsafe fn without_ignored(&self, expression: *mut pg_sys::Node) -> *mut pg_sys::Node {
        // SAFETY: as above; the struct belongs to the tag.
        unsafe {
            nodes::replace(expression, &mut |node| {
                let call = node.cast::<pg_sys::FuncExpr>();
                if nodes::tag(node) != pg_sys::NodeTag::T_FuncExpr || !(self.ignored)((*call).funcid) {
                    return None;
                }
                let row = nodes::make::<pg_sys::RowExpr>(pg_sys::NodeTag::T_RowExpr);
                (*row).args = self.without_ignored((*call).args.cast()).cast();
                Some(row.cast())
            })
        }
    }

    unsafe fn in_subplan(&self, id: i32) -> bool {
        // SAFETY: a plan's numbers of subplans count from one; the list is the statement's.
        unsafe {
            let plans = list::elements::<pg_sys::Plan>(self.subplans);
            let found = usize::try_from(id - 1).ok().and_then(|position| plans.get(position).copied());
            found.is_none_or(|plan| plan.is_null() || self.in_plan(plan))
        }
    }
}

/// The expressions and lists of expressions that a node evaluates per row, or when it starts.
///
/// # Safety
/// `plan` is a valid plan.
pub unsafe fn expressions(plan: *mut pg_sys::Plan) -> Vec<*mut pg_sys::Node> {
    use pg_sys::NodeTag::*;
    // SAFETY: the tag says which struct the plan is.
    unsafe {
        let mut found: Vec<*mut pg_sys::Node> = vec![(*plan).targetlist.cast(), (*plan).qual.cast()];
        match nodes::tag(plan) {
            T_NestLoop | T_MergeJoin | T_HashJoin => found.push((*plan.cast::<pg_sys::Join>()).joinqual.cast()),
            T_FunctionScan => found.push((*plan.cast::<pg_sys::FunctionScan>()).functions.cast()),
            T_ValuesScan => found.push((*plan.cast::<pg_sys::ValuesScan>()).values_lists.cast()),
            T_TableFuncScan => found.push((*plan.cast::<pg_sys::TableFuncScan>()).tablefunc.cast()),
            T_Result => found.push((*plan.cast::<pg_sys::Result>()).resconstantqual),
            T_CustomScan => {
                let scan = plan.cast::<pg_sys::CustomScan>();
                found.extend([(*scan).custom_scan_tlist.cast(), (*scan).custom_exprs.cast()]);
            }
            _ => {}
        }
        found.retain(|expression| !expression.is_null());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_run_to_their_end_want_all_rows() {
        let parallel = pg_sys::CURSOR_OPT_PARALLEL_OK as i32;
        assert!(!Demand::of_statement(parallel).may_stop());
        for stops in [pg_sys::CURSOR_OPT_FAST_PLAN, pg_sys::CURSOR_OPT_SCROLL, pg_sys::CURSOR_OPT_NO_SCROLL] {
            assert!(Demand::of_statement(parallel | stops as i32).may_stop());
        }
        assert!(Demand::of_statement(0).may_stop());
        assert!(!Demand::AllToWrite.may_stop() && Demand::First.may_stop() && Demand::Some.may_stop());
    }
}
