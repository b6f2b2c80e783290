//! Calls for each row of a child that are not part of an expression over it: functions that return sets in a target list
//! (ProjectSet), and functions in FROM that take columns of the rest of FROM (a NestLoop over a FunctionScan).
//!
//! ```text
//!   Nested Loop                                Container Batch
//!     Output: t.a, f.x                           Output: t.a, (f(t.b)).x
//!     ->  Seq Scan on t                    ▶     ->  Seq Scan on t
//!     ->  Function Scan on f
//!           Function Call: f(t.b)
//! ```

use pgrx::{PgTupleDesc, pg_sys};

use super::columns::{child_column_as, column, entry_of, fits};
use super::demand::Demand;
use super::lift_calls::Lifter;
use super::may_batch;
use crate::batch_scan::{Private, SetJoin};
use crate::pg::{catalog, list, nodes};

impl Lifter {
    /// A node in place of a ProjectSet with one function that returns a set, if that is a container function.
    pub(super) unsafe fn replace_project_set(
        &mut self,
        plan: *mut pg_sys::Plan,
        asked: Demand,
    ) -> Option<*mut pg_sys::Plan> {
        // SAFETY: the plan is a valid ProjectSet, whose expressions are over its child's columns by OUTER_VAR.
        unsafe {
            let targets = list::elements::<pg_sys::TargetEntry>((*plan).targetlist);
            let mut sets = targets.iter().map(|target| (**target).expr.cast::<pg_sys::Node>());
            let mut sets = sets.by_ref().filter(|expression| pg_sys::expression_returns_set(*expression));
            let (Some(set), None) = (sets.next(), sets.next()) else { return None };
            let child = (*plan).lefttree;
            if !self.is_call(set) {
                return None;
            }
            let width = list::elements::<pg_sys::TargetEntry>((*child).targetlist).len();
            if !self.may_stand_beside(set, (*plan).targetlist) || !fits(width + 1) {
                return None;
            }
            let scan = self.make_set_node(child, set, Some(SetJoin::Inner), asked);
            let rewritten: Vec<_> = targets
                .iter()
                .map(|target| {
                    nodes::replace(target.cast(), &mut |node| match std::ptr::eq(node, set) {
                        true => Some(column(pg_sys::INDEX_VAR, width, set).cast()),
                        false => child_column_as(pg_sys::INDEX_VAR, node),
                    })
                })
                .collect();
            (*scan).scan.plan.targetlist = list::from_elements(&rewritten);
            take_place(plan, scan.cast());
            Some(scan.cast())
        }
    }

    /// A node in place of a NestLoop whose inner side is nothing but a call with columns of its outer side; none for any
    /// other plan.
    pub(super) unsafe fn replace_lateral(
        &mut self,
        plan: *mut pg_sys::Plan,
        asked: Demand,
    ) -> Option<*mut pg_sys::Plan> {
        use pg_sys::NodeTag::*;
        // SAFETY: the tags say which structs the nodes are. Copies of expressions are changed, not the expressions.
        unsafe {
            if nodes::tag(plan) != T_NestLoop {
                return None;
            }
            let nest_loop = plan.cast::<pg_sys::NestLoop>();
            let mut inner = (*plan).righttree;
            let mut has_own_plans = !(*inner).initPlan.is_null();
            // Its columns are those of its child.
            if nodes::tag(inner) == T_Memoize {
                inner = (*inner).lefttree;
                has_own_plans |= !(*inner).initPlan.is_null();
            }
            // A plan that the inner side runs once may depend on the outer side's row.
            if nodes::tag(inner) != T_FunctionScan || has_own_plans {
                return None;
            }
            let scan = inner.cast::<pg_sys::FunctionScan>();
            let functions = list::elements::<pg_sys::RangeTblFunction>((*scan).functions);
            let [function] = functions.as_slice() else { return None };
            let call = (**function).funcexpr;
            if (*scan).funcordinality || !(**function).funccoltypes.is_null() || !self.is_call(call) {
                return None;
            }
            let parameters = list::elements::<pg_sys::NestLoopParam>((*nest_loop).nestParams);
            let value_of = |node: *mut pg_sys::Node| {
                let parameter = node.cast::<pg_sys::Param>();
                let is_execution =
                    nodes::tag(node) == T_Param && (*parameter).paramkind == pg_sys::ParamKind::PARAM_EXEC;
                let found =
                    parameters.iter().find(|found| is_execution && (***found).paramno == (*parameter).paramid)?;
                Some((**found).paramval)
            };
            let mut is_correlated = false;
            let call = nodes::replace(call, &mut |node| {
                let value = value_of(node)?;
                is_correlated = true;
                Some(pg_sys::copyObjectImpl(value.cast()).cast())
            });
            let inner_filters = list::elements::<pg_sys::Node>((*inner).qual);
            let join_filters = list::elements::<pg_sys::Node>((*nest_loop).join.joinqual);
            let join = match (*nest_loop).join.jointype {
                pg_sys::JoinType::JOIN_INNER => SetJoin::Inner,
                // A filter of the join decides whether a row has a match at all.
                pg_sys::JoinType::JOIN_LEFT if inner_filters.is_empty() && join_filters.is_empty() => SetJoin::Left,
                _ => return None,
            };
            let lists = [(*inner).qual, (*inner).targetlist];
            let width = list::elements::<pg_sys::TargetEntry>((*(*plan).lefttree).targetlist).len();
            if !is_correlated || !fits(width + 1) || lists.iter().any(|list| pg_sys::contain_subplans((*list).cast())) {
                return None;
            }
            // A subplan of the call's may take a column of the outer side as well, from the join that would be gone.
            let needed = nodes::parameters_of(&[call], self.subplans);
            if parameters.iter().any(|parameter| pg_sys::bms_is_member((**parameter).paramno, needed)) {
                return None;
            }
            // Each reference to a column of the inner side would be evaluated on its own.
            if pg_sys::contain_volatile_functions((*inner).targetlist.cast()) {
                return None;
            }
            let outer = (*plan).lefttree;
            let result = column(pg_sys::INDEX_VAR, width, call);
            let returns_set = (*call.cast::<pg_sys::FuncExpr>()).funcretset;
            let is_composite = pg_sys::type_is_rowtype((*result).vartype);
            let tables = list::elements::<pg_sys::RangeTblEntry>(self.tables);
            let names = (*(*tables[(*scan).scan.scanrelid as usize - 1]).eref).colnames;
            let has_own_names = is_composite && are_names_of_result(names, call);
            // A Var of the FunctionScan is the result, or a column of it.
            let mut is_clear = true;
            let mut from_inner = |expression: *mut pg_sys::Node| {
                nodes::replace(expression, &mut |node| {
                    if let Some(value) = value_of(node) {
                        return child_column_as(pg_sys::INDEX_VAR, value.cast());
                    }
                    let var = node.cast::<pg_sys::Var>();
                    if nodes::tag(node) != T_Var || (*var).varno as u32 != (*scan).scan.scanrelid {
                        return None;
                    }
                    let whole: *mut pg_sys::Node = pg_sys::copyObjectImpl(result.cast()).cast();
                    match (is_composite, (*var).varattno) {
                        // An alias names the columns of a record.
                        (true, 0) if (*var).vartype == pg_sys::RECORDOID && !has_own_names => {
                            is_clear = false;
                            Some(node)
                        }
                        // A row that is checked again after another transaction's change must be the one that was joined.
                        (true, 0) if !returns_set && !self.has_row_marks => row_or_nulls(call, whole).or_else(|| {
                            is_clear = false;
                            Some(node)
                        }),
                        (true, 0) if !self.has_row_marks => Some(whole),
                        (false, 1) => Some(whole),
                        (true, number) if number > 0 => Some(select_field(whole, var)),
                        _ => {
                            is_clear = false;
                            Some(node)
                        }
                    }
                })
            };
            let mut filters: Vec<_> = inner_filters.into_iter().map(&mut from_inner).collect();
            let inner_targets: Vec<_> = list::elements::<pg_sys::TargetEntry>((*inner).targetlist)
                .into_iter()
                .map(|target| from_inner((*target).expr.cast()))
                .collect();
            // A row without results has NULL in all columns of the inner side.
            let may_lack_results = returns_set && join == SetJoin::Left;
            if !is_clear
                || (may_lack_results
                    && !inner_targets.iter().all(|target| is_part_of_result(*target, (*result).varattno)))
            {
                return None;
            }
            let from_join = |expression: *mut pg_sys::Node| {
                nodes::replace(expression, &mut |node| {
                    let var = node.cast::<pg_sys::Var>();
                    if nodes::tag(node) == T_Var && (*var).varno == pg_sys::INNER_VAR {
                        let position = usize::try_from((*var).varattno - 1).ok()?;
                        return Some(pg_sys::copyObjectImpl(inner_targets[position].cast()).cast());
                    }
                    child_column_as(pg_sys::INDEX_VAR, node)
                })
            };
            filters.extend(join_filters.into_iter().chain(list::elements((*plan).qual)).map(from_join));
            let targets: Vec<_> =
                list::elements::<pg_sys::Node>((*plan).targetlist).into_iter().map(from_join).collect();
            let node = self.make_set_node(outer, call, returns_set.then_some(join), asked);
            (*node).scan.plan.targetlist = list::from_elements(&targets);
            (*node).scan.plan.qual = list::from_elements(&filters);
            take_place(plan, node.cast());
            Some(node.cast())
        }
    }

    /// Whether what stands beside a set in a target list may be evaluated once per result: a ProjectSet does so once more, when it
    /// finds that there are no more results.
    unsafe fn may_stand_beside(&self, set: *mut pg_sys::Node, targets: *mut pg_sys::List) -> bool {
        if self.is_still {
            return true;
        }
        // SAFETY: the caller passes the target list of a valid plan, and a part of it.
        unsafe {
            let beside = self.watcher.of_rest(targets.cast(), &|node| std::ptr::eq(node, set));
            !beside.acts && !self.watcher.of_expressions(&[set]).are_ordered(beside)
        }
    }

    unsafe fn is_call(&self, node: *mut pg_sys::Node) -> bool {
        // SAFETY: the caller passes a valid expression.
        unsafe {
            nodes::tag(node) == pg_sys::NodeTag::T_FuncExpr
                && may_batch((*node.cast::<pg_sys::FuncExpr>()).funcid, self.language)
                && (self.is_still || !self.watcher.of_result(node.cast()).acts)
        }
    }

    /// A node above `child` that passes all its columns through and adds one for `call`.
    unsafe fn make_set_node(
        &mut self,
        child: *mut pg_sys::Plan,
        call: *mut pg_sys::Node,
        set: Option<SetJoin>,
        asked: Demand,
    ) -> *mut pg_sys::CustomScan {
        // SAFETY: the caller passes a valid plan and a call over its columns.
        unsafe {
            let mut entries = Vec::new();
            for (i, target) in list::elements::<pg_sys::TargetEntry>((*child).targetlist).into_iter().enumerate() {
                entries.push(entry_of(column(pg_sys::OUTER_VAR, i, (*target).expr.cast()).cast(), i));
            }
            let private = Private { child_columns: entries.len(), set, ..Private::default() };
            entries.push(entry_of(call.cast(), entries.len()));
            self.make_node(child, private, &entries, vec![std::ptr::null_mut()], asked)
        }
    }
}

/// The column of a composite result that a Var of its FunctionScan stands for.
unsafe fn select_field(whole: *mut pg_sys::Node, var: *mut pg_sys::Var) -> *mut pg_sys::Node {
    // SAFETY: the struct belongs to the tag; the caller passes valid nodes.
    unsafe {
        let select = nodes::make::<pg_sys::FieldSelect>(pg_sys::NodeTag::T_FieldSelect);
        (*select).arg = whole.cast();
        (*select).fieldnum = (*var).varattno;
        (*select).resulttype = (*var).vartype;
        (*select).resulttypmod = (*var).vartypmod;
        (*select).resultcollid = (*var).varcollid;
        select.cast()
    }
}

/// A composite result as the row that a FunctionScan makes of it: in FROM, NULL is a row of NULLs. Of a function that returns a
/// set, the results are such rows already, and NULL is a row of an outer join that has none.
unsafe fn row_or_nulls(call: *mut pg_sys::Node, whole: *mut pg_sys::Node) -> Option<*mut pg_sys::Node> {
    // SAFETY: the structs belong to the tags; the caller passes a call and a Var of its result's type.
    unsafe {
        let var = whole.cast::<pg_sys::Var>();
        let descriptor = catalog::result_descriptor((*call.cast::<pg_sys::FuncExpr>()).funcid)?;
        let (mut nulls, mut names) = (Vec::new(), Vec::new());
        for attribute in PgTupleDesc::from_pg_copy(descriptor).iter() {
            // What stands for an attribute that was dropped, which has no type any more, is not looked at.
            nulls.push(match attribute.attisdropped {
                true => pg_sys::makeNullConst(pg_sys::INT4OID, -1, pg_sys::InvalidOid),
                false => pg_sys::makeNullConst(attribute.atttypid, attribute.atttypmod, attribute.attcollation),
            });
            names.push(pg_sys::makeString(pg_sys::pstrdup(attribute.attname.data.as_ptr())));
        }
        let row = nodes::make::<pg_sys::RowExpr>(pg_sys::NodeTag::T_RowExpr);
        (*row).args = list::from_elements(&nulls);
        (*row).colnames = list::from_elements(&names);
        (*row).row_typeid = (*var).vartype;
        (*row).row_format = pg_sys::CoercionForm::COERCE_IMPLICIT_CAST;
        (*row).location = -1;
        let coalesce = nodes::make::<pg_sys::CoalesceExpr>(pg_sys::NodeTag::T_CoalesceExpr);
        (*coalesce).coalescetype = (*var).vartype;
        (*coalesce).args = list::from_elements(&[whole, row.cast()]);
        (*coalesce).location = -1;
        Some(coalesce.cast())
    }
}

/// Whether the columns of a call's result have these names.
unsafe fn are_names_of_result(names: *mut pg_sys::List, call: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller passes a list of strings, and a call.
    unsafe {
        let Some(descriptor) = catalog::result_descriptor((*call.cast::<pg_sys::FuncExpr>()).funcid) else {
            return false;
        };
        let descriptor = PgTupleDesc::from_pg_copy(descriptor);
        let names = list::elements::<pg_sys::String>(names);
        names.len() == descriptor.len()
            && names.iter().zip(descriptor.iter()).all(|(name, attribute)| {
                std::ffi::CStr::from_ptr((**name).sval) == std::ffi::CStr::from_ptr(attribute.attname.data.as_ptr())
            })
    }
}

/// Whether an expression over the scan tuple is the result of a call, which is column `number`, or a column of it, and so NULL if the
/// result is.
unsafe fn is_part_of_result(expression: *mut pg_sys::Node, number: pg_sys::AttrNumber) -> bool {
    // SAFETY: the caller passes a valid expression; the tag says which struct it is.
    unsafe {
        match nodes::tag(expression) {
            pg_sys::NodeTag::T_Var => {
                let var = expression.cast::<pg_sys::Var>();
                ((*var).varno, (*var).varattno) == (pg_sys::INDEX_VAR, number)
            }
            pg_sys::NodeTag::T_FieldSelect => {
                is_part_of_result((*expression.cast::<pg_sys::FieldSelect>()).arg.cast(), number)
            }
            _ => false,
        }
    }
}

/// Gives a node what was estimated of the plan in whose place it comes, what that depends on, and the plans that it runs once.
unsafe fn take_place(from: *mut pg_sys::Plan, to: *mut pg_sys::Plan) {
    // SAFETY: the caller passes valid plans.
    unsafe {
        (*to).startup_cost = (*from).startup_cost;
        (*to).total_cost = (*from).total_cost;
        (*to).plan_rows = (*from).plan_rows;
        (*to).plan_width = (*from).plan_width;
        (*to).parallel_safe = (*from).parallel_safe;
        (*to).extParam = pg_sys::bms_copy((*from).extParam);
        (*to).allParam = pg_sys::bms_copy((*from).allParam);
        (*to).initPlan = (*from).initPlan;
    }
}
