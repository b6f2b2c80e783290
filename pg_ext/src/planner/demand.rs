//! How many of its rows a plan is asked for, and whether anybody would notice that it reads ahead.
//!
//! Row by row, nothing is evaluated for rows that nobody asks for, as under LIMIT or EXISTS. A Container Batch node reads a batch
//! ahead of the row that it returns. Where a node above may stop early, the first batch therefore has no more rows than are
//! asked for; and where reading ahead would show, because a VOLATILE function is called or rows are locked, each batch has
//! one row, and the next is read when the one before has been returned.

use pgrx::pg_sys;

use super::effects::Watcher;
use crate::pg::nodes;

/// How many rows the plan above asks for.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// All of them.
    All {
        /// It writes to tables in between, which a VOLATILE function inside the database could see.
        writes: bool,
        /// Fewer, if whoever runs the statement stops it early.
        may_be_stopped: bool,
    },
    /// Perhaps not all, and nobody can say how many.
    Some,
    /// The first one.
    First,
    /// As many as a Limit node lets through, which has a count.
    Limit(*mut pg_sys::Limit),
}

impl Demand {
    /// All rows, whatever happens.
    pub const ALL: Demand = Demand::All { writes: false, may_be_stopped: false };

    /// What a statement with these cursor options asks for. Only plans that are mostly run to their end are allowed to be parallel;
    /// SELECT INTO of PL/pgSQL, a function in SQL or a client's limit of rows stops them all the same (`runs.rs`).
    pub fn of_statement(cursor_options: i32) -> Demand {
        let stops = pg_sys::CURSOR_OPT_FAST_PLAN | pg_sys::CURSOR_OPT_SCROLL | pg_sys::CURSOR_OPT_NO_SCROLL;
        let is_whole = cursor_options & pg_sys::CURSOR_OPT_PARALLEL_OK as i32 != 0;
        let whole = Demand::All { writes: false, may_be_stopped: true };
        if is_whole && cursor_options & stops as i32 == 0 { whole } else { Demand::Some }
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
                _ => Demand::ALL,
            }
        }
    }

    /// Whether rows may be left that nobody asks for.
    pub fn may_stop(self) -> bool {
        !matches!(self, Demand::All { .. })
    }

    /// What is asked for if the statement is stopped early; none if that makes no difference.
    pub fn if_stopped(self) -> Option<Demand> {
        matches!(self, Demand::All { may_be_stopped: true, .. }).then_some(Demand::Some)
    }

    /// What two together ask for.
    pub fn and(self, other: Demand) -> Demand {
        match (self, other) {
            (
                Demand::All { writes, may_be_stopped },
                Demand::All { writes: also_writes, may_be_stopped: may_also_be_stopped },
            ) => Demand::All { writes: writes || also_writes, may_be_stopped: may_be_stopped || may_also_be_stopped },
            // Two that each ask for a few rows ask for nobody knows how many.
            _ => Demand::Some,
        }
    }

    /// Whether anybody could see that a node reads `child` ahead, and makes calls, in these `expressions`, ahead.
    ///
    /// # Safety
    /// All are valid parts of the plan that is watched.
    pub unsafe fn shows_reading_ahead(
        self,
        child: *mut pg_sys::Plan,
        expressions: &[*mut pg_sys::Node],
        watcher: &Watcher,
        counting_calls: &Watcher,
    ) -> bool {
        let watcher = match self {
            Demand::All { writes: false, .. } => return false,
            // In a container they see no table that the statement writes.
            Demand::All { writes: true, .. } => watcher,
            _ => counting_calls,
        };
        // SAFETY: the caller says so.
        unsafe { watcher.of_expressions(expressions).acts || watcher.of_plan(child).acts }
    }

    /// What is asked of `child` if this is asked of `plan`.
    ///
    /// # Safety
    /// `plan` is a valid plan, and `child` a child of it.
    pub unsafe fn below(self, plan: *mut pg_sys::Plan, child: *mut pg_sys::Plan) -> Demand {
        use pg_sys::NodeTag::*;
        let some = if self.may_stop() { self } else { Demand::Some };
        let some_if_any = if self.may_stop() { Demand::Some } else { self };
        // SAFETY: the caller says that the plan is valid; its tag says which struct it is.
        unsafe {
            match nodes::tag(plan) {
                T_Limit => {
                    let limit = plan.cast::<pg_sys::Limit>();
                    match (is_absent((*limit).limitCount), is_absent((*limit).limitOffset)) {
                        (false, _) => Demand::Limit(limit),
                        (true, true) => self,
                        // What is asked of it comes after the rows that it skips.
                        (true, false) => some_if_any,
                    }
                }
                _ if takes_all_first(plan) => Demand::ALL,
                // It stops where it returns rows, and nobody asks for more.
                T_ModifyTable if !(*plan.cast::<pg_sys::ModifyTable>()).returningLists.is_null() => match self {
                    Demand::All { may_be_stopped, .. } => Demand::All { writes: true, may_be_stopped },
                    _ => Demand::Some,
                },
                T_ModifyTable => Demand::All { writes: true, may_be_stopped: false },
                // An empty side ends a hash join, and the end of either side a merge join.
                T_HashJoin | T_MergeJoin => some,
                // From 18 on, it reads two sorted children side by side, and ends with the first.
                T_SetOp => some,
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
                Demand::All { .. } | Demand::Some => None,
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

/// Whether a node takes all rows of its child before it gives one.
///
/// # Safety
/// `plan` is a valid plan.
pub unsafe fn takes_all_first(plan: *mut pg_sys::Plan) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the caller says so; the tag says which struct it is.
    unsafe {
        match nodes::tag(plan) {
            T_Sort | T_Hash => true,
            T_Agg => matches!(
                (*plan.cast::<pg_sys::Agg>()).aggstrategy,
                pg_sys::AggStrategy::AGG_PLAIN | pg_sys::AggStrategy::AGG_HASHED
            ),
            T_SetOp => (*plan.cast::<pg_sys::SetOp>()).strategy == pg_sys::SetOpStrategy::SETOP_HASHED,
            _ => false,
        }
    }
}

/// Whether a count of LIMIT or OFFSET is left out, or NULL.
pub unsafe fn is_absent(count: *mut pg_sys::Node) -> bool {
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
            T_NestLoop => found.push((*plan.cast::<pg_sys::Join>()).joinqual.cast()),
            T_MergeJoin => {
                let join = plan.cast::<pg_sys::MergeJoin>();
                found.extend([(*join).join.joinqual.cast(), (*join).mergeclauses.cast()]);
            }
            T_HashJoin => {
                let join = plan.cast::<pg_sys::HashJoin>();
                found.extend([
                    (*join).join.joinqual.cast(),
                    (*join).hashclauses.cast::<pg_sys::Node>(),
                    (*join).hashkeys.cast(),
                ]);
            }
            T_Hash => found.push((*plan.cast::<pg_sys::Hash>()).hashkeys.cast()),
            T_WindowAgg => found.push((*plan.cast::<pg_sys::WindowAgg>()).runCondition.cast()),
            T_ModifyTable => {
                let writing = plan.cast::<pg_sys::ModifyTable>();
                found.extend([
                    (*writing).withCheckOptionLists.cast(),
                    (*writing).returningLists.cast::<pg_sys::Node>(),
                    (*writing).onConflictSet.cast(),
                    (*writing).onConflictWhere,
                    (*writing).mergeActionLists.cast(),
                ]);
                // What tells rows that match from rows that do not, where MERGE asks about both.
                #[cfg(not(feature = "pg15"))]
                found.push((*writing).mergeJoinConditions.cast());
            }
            T_SampleScan => found.push((*plan.cast::<pg_sys::SampleScan>()).tablesample.cast()),
            T_IndexScan => {
                let scan = plan.cast::<pg_sys::IndexScan>();
                found.extend([(*scan).indexqual.cast::<pg_sys::Node>(), (*scan).indexorderby.cast()]);
            }
            T_IndexOnlyScan => {
                let scan = plan.cast::<pg_sys::IndexOnlyScan>();
                found.extend([(*scan).indexqual.cast::<pg_sys::Node>(), (*scan).indexorderby.cast()]);
            }
            T_BitmapIndexScan => found.push((*plan.cast::<pg_sys::BitmapIndexScan>()).indexqual.cast()),
            T_TidScan => found.push((*plan.cast::<pg_sys::TidScan>()).tidquals.cast()),
            T_TidRangeScan => found.push((*plan.cast::<pg_sys::TidRangeScan>()).tidrangequals.cast()),
            T_ForeignScan => found.push((*plan.cast::<pg_sys::ForeignScan>()).fdw_exprs.cast()),
            T_Memoize => found.push((*plan.cast::<pg_sys::Memoize>()).param_exprs.cast()),
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
        assert!(Demand::of_statement(parallel).if_stopped().is_some_and(Demand::may_stop));
        assert!(!Demand::ALL.may_stop() && Demand::ALL.if_stopped().is_none());
        assert!(Demand::First.may_stop() && Demand::Some.may_stop());
    }
}
