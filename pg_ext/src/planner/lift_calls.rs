//! Calls to columns: puts Container Batch nodes into a finished plan.
//!
//! *Above* a node, for calls in its target list and filter: the node is left with the plain columns that the rest needs
//! and with the filters before the first one that calls; the new node has the other filters and the target list.
//!
//! ```text
//!   Seq Scan on t                      Container Batch
//!     Output: a, f(b)                    Output: a, (f(b))
//!     Filter: a > 0 AND g(a) = 1   ▶     ->  Container Batch
//!                                              Output: a, b
//!                                              Filter: (g(a)) = 1
//!                                              ->  Seq Scan on t
//!                                                    Output: a, b
//!                                                    Filter: a > 0
//! ```
//!
//! *Below* a node, for calls in the arguments of aggregates and window functions: the new node passes the child's
//! columns through and adds one per call.
//!
//! *Below* a hash join or its Hash node, for calls in the keys (`lift_joins.rs`).
//!
//! *In place of* a node that calls a function that returns a set for each row of its child: a ProjectSet, or a NestLoop
//! with a lateral FunctionScan (`lift_sets.rs`).
//!
//! At last, nodes that feed each other become one (`fuse.rs`).
//!
//! All of this works after set_plan_references: a Var of varno OUTER_VAR or INDEX_VAR names a column by its position in
//! the child's target list or in custom_scan_tlist, so whatever gets a new child must get new Vars, and a node whose
//! target list keeps its length and order needs nothing changed above it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use pgrx::pg_sys;

use super::columns::{Columns, column, distinct_calls, entry_of, fits, position_of};
use super::demand::{self, Demand};
use super::effects::Watcher;
use super::find_calls::{CallFinder, FoundCall};
use super::fuse::fuse;
use super::plans::{
    children, evaluates_once, goes_back, is_batch_scan, is_deep, is_recursive, supports_mark, takes_every_row,
    used_by_aggregate,
};
use crate::batch_scan::{Private, SCAN_METHODS};
use crate::pg::{catalog, list, nodes};
use crate::settings;

/// Nodes that are put above one plan node, for filters one after the other and for calls in calls; other calls stay where they are.
const MOST_STACKED: usize = 64;
/// Calls of one plan node that are lifted. Of more, none is.
const MOST_CALLS: usize = 1600;

/// Lifts the calls in every plan tree of a statement.
///
/// # Safety
/// `statement` is a finished plan that nobody else uses yet.
pub unsafe fn lift_statement(statement: *mut pg_sys::PlannedStmt, language: pg_sys::Oid, cursor_options: i32) {
    // SAFETY: the caller says that the plan is valid and ours to change.
    unsafe {
        if (*statement).planTree.is_null() {
            return;
        }
        let subplans = (*statement).subplans;
        let plans = list::elements::<pg_sys::Plan>(subplans).into_iter().chain([(*statement).planTree]);
        // Its calls are made row by row.
        if plans.into_iter().any(|plan| is_deep(plan, 0)) {
            return;
        }
        let watcher = Rc::new(Watcher::new(statement, language));
        let effects = watcher.of_statement();
        // The role is a setting, and so is what rows look like that are sent to the client.
        if effects.sets {
            return;
        }
        // Each row's call may find other tables by the same names.
        if effects.changes_settings && watcher.has_tables() {
            return;
        }
        let is_still = !effects.acts;
        let has_row_marks = !(*statement).rowMarks.is_null();
        let mut lifter = Lifter {
            language,
            subplans,
            tables: (*statement).rtable,
            has_row_marks,
            counting_calls: watcher.counting_calls(),
            watcher,
            is_still,
            next_id: 0,
            gathers_above: 0,
            subplan_demands: HashMap::new(),
        };
        lifter.note_ids((*statement).planTree);
        let count = list::elements::<pg_sys::Plan>(subplans).len();
        for subplan in list::elements::<pg_sys::Plan>(subplans) {
            lifter.note_ids(subplan);
        }
        let first_id = lifter.next_id;
        (*statement).planTree = lifter.lift((*statement).planTree, Demand::of_statement(cursor_options));
        // A subplan is used by the main plan or by subplans behind it, which say how many of its rows they ask for.
        for position in (0..count).rev() {
            let id = position as i32 + 1;
            let demand = lifter.subplan_demands.get(&id).copied().unwrap_or(Demand::Some);
            let cell = (*subplans).elements.add(position);
            (*cell).ptr_value = lifter.lift((*cell).ptr_value.cast(), demand).cast();
        }
        if lifter.next_id != first_id && settings::is_fusing() {
            let plans = list::elements::<pg_sys::Plan>(subplans).into_iter().chain([(*statement).planTree]);
            plans.for_each(|plan| fuse(plan));
        }
        if lifter.next_id != first_id && !is_still {
            lifter.keep_order_of(statement);
            depend_on_partitions(statement);
        }
        if lifter.next_id != first_id {
            let domains = lifter.watcher.domains().into_iter().map(catalog::change_of_type);
            let functions = lifter.watcher.functions().into_iter().map(catalog::change_of_function);
            for item in domains.chain(functions) {
                (*statement).invalItems = pg_sys::lappend((*statement).invalItems, item.cast());
            }
        }
        let scrolls = cursor_options & pg_sys::CURSOR_OPT_SCROLL as i32 != 0;
        if scrolls && lifter.next_id != first_id && !pg_sys::ExecSupportsBackwardScan((*statement).planTree) {
            (*statement).planTree = lifter.materialize((*statement).planTree);
        }
    }
}

pub(super) struct Lifter {
    pub(super) language: pg_sys::Oid,
    /// The statement's.
    pub(super) subplans: *mut pg_sys::List,
    pub(super) tables: *mut pg_sys::List,
    /// Whether rows may be checked again after another transaction has changed them (EvalPlanQual).
    pub(super) has_row_marks: bool,
    /// What the statement's expressions read and change.
    pub(super) watcher: Rc<Watcher>,
    /// The same for whom calls of container functions count, too.
    counting_calls: Watcher,
    /// Whether nothing in the statement is VOLATILE but calls.
    pub(super) is_still: bool,
    /// The next unused plan_node_id, which parallel queries tell nodes apart by.
    next_id: i32,
    /// Gather nodes above the plan at hand.
    gathers_above: usize,
    /// How many rows are asked of subplans, by number, as far as the plans at hand have said it.
    subplan_demands: HashMap<i32, Demand>,
}

impl Lifter {
    unsafe fn note_ids(&mut self, plan: *mut pg_sys::Plan) {
        if plan.is_null() {
            return;
        }
        // SAFETY: the plan is valid, so its children are.
        unsafe {
            self.next_id = self.next_id.max((*plan).plan_node_id + 1);
            for child in children(plan) {
                self.note_ids(*child);
            }
        }
    }

    /// Notes what a node asks of subplans.
    unsafe fn note_subplans(&mut self, plan: *mut pg_sys::Plan, asked: Demand) {
        if self.subplans.is_null() {
            return;
        }
        // SAFETY: the plan is valid; the tag says which struct it is.
        unsafe {
            if nodes::tag(plan) == pg_sys::NodeTag::T_CteScan {
                let entry = self.subplan_demands.entry((*plan.cast::<pg_sys::CteScan>()).ctePlanId).or_insert(asked);
                *entry = entry.and(asked);
            }
            let mut found = list::elements::<pg_sys::SubPlan>((*plan).initPlan);
            for expression in demand::expressions(plan) {
                found.extend(nodes::subplans_of(expression));
            }
            for subplan in found {
                if (*subplan).subLinkType != pg_sys::SubLinkType::CTE_SUBLINK {
                    self.subplan_demands.insert((*subplan).plan_id, Demand::of_subplan(subplan));
                }
            }
        }
    }

    /// The plan with its calls lifted, children first. `asked` is how many of its rows the plan above asks for.
    unsafe fn lift(&mut self, plan: *mut pg_sys::Plan, asked: Demand) -> *mut pg_sys::Plan {
        use pg_sys::NodeTag::*;
        if plan.is_null() {
            return plan;
        }
        // SAFETY: the plan is valid, so its children are; each is replaced by one with the same target list.
        unsafe {
            #[cfg(feature = "lift-ordinary")]
            crate::ordinary::name_operators(plan);
            self.note_subplans(plan, asked);
            if let Some(scan) = self.replace_lateral(plan, asked) {
                return self.lift(scan, asked);
            }
            let is_gather = matches!(nodes::tag(plan), T_Gather | T_GatherMerge);
            self.gathers_above += usize::from(is_gather);
            for child in children(plan) {
                let first_id = self.next_id;
                *child = self.lift(*child, asked.below(plan, *child));
                let is_inner = std::ptr::eq(child, &raw mut (*plan).righttree);
                if is_inner && self.next_id != first_id && goes_back(plan) && !supports_mark(*child) {
                    *child = self.materialize(*child);
                }
            }
            self.gathers_above -= usize::from(is_gather);
            match nodes::tag(plan) {
                T_Agg | T_WindowAgg => {
                    let parts: Parts = |plan| vec![&raw mut (*plan).targetlist, &raw mut (*plan).qual];
                    self.lift_below(plan, parts, argument_calls, asked);
                }
                T_ProjectSet => {
                    self.lift_below(plan, |plan| vec![&raw mut (*plan).targetlist], argument_calls, asked);
                    return match self.replace_project_set(plan, asked) {
                        Some(scan) => self.lift_above(scan, asked),
                        None => plan,
                    };
                }
                T_CustomScan if is_batch_scan(plan) => {
                    let parts: Parts = |plan| vec![&raw mut (*plan.cast::<pg_sys::CustomScan>()).custom_scan_tlist];
                    self.lift_below(plan, parts, entry_calls, asked);
                }
                T_HashJoin => {
                    self.lift_hash_keys(plan, asked);
                    self.free_join_filters(plan);
                }
                T_NestLoop | T_MergeJoin => self.free_join_filters(plan),
                _ => {}
            }
            match nodes::tag(plan) {
                T_Limit => {
                    pass_bound(plan.cast());
                    plan
                }
                // One row: nothing to batch, and PL/pgSQL wants its simple expressions as they are.
                T_Result if (*plan).lefttree.is_null() => plan,
                T_SeqScan
                | T_SampleScan
                | T_IndexScan
                | T_IndexOnlyScan
                | T_BitmapHeapScan
                | T_TidScan
                | T_TidRangeScan
                | T_SubqueryScan
                | T_FunctionScan
                | T_ValuesScan
                | T_TableFuncScan
                | T_CteScan
                | T_NamedTuplestoreScan
                | T_WorkTableScan
                | T_NestLoop
                | T_HashJoin
                | T_MergeJoin
                | T_Agg
                | T_Group
                | T_WindowAgg
                | T_Result
                | T_Gather
                | T_GatherMerge => self.lift_above(plan, asked),
                T_CustomScan if is_batch_scan(plan) => self.lift_above(plan, asked),
                T_ForeignScan if (*plan.cast::<pg_sys::ForeignScan>()).operation == pg_sys::CmdType::CMD_SELECT => {
                    self.lift_above(plan, asked)
                }
                _ => plan,
            }
        }
    }

    /// Puts nodes above `plan` until its filter and target list hold no call that may be lifted: one per filter that
    /// calls, so that each filter's calls are made only for the rows that passed the ones before, and per nesting.
    unsafe fn lift_above(&mut self, mut plan: *mut pg_sys::Plan, asked: Demand) -> *mut pg_sys::Plan {
        // SAFETY: the plan is valid, and so is each plan made from it.
        unsafe {
            let finder = CallFinder::new(self.language).without_late_parameters((*plan).targetlist);
            // A window aggregate's filter belongs to its run condition.
            let has_own_filter = nodes::tag(plan) != pg_sys::NodeTag::T_WindowAgg;
            // Each node takes over all filters that are left.
            for _ in 0..MOST_STACKED {
                let filters = list::elements::<pg_sys::Node>((*plan).qual);
                let mut calls = Vec::new();
                let mut kept = filters.len();
                if has_own_filter {
                    for (position, filter) in filters.iter().enumerate() {
                        let found = finder.find(*filter);
                        if found.len() > MOST_CALLS {
                            return plan;
                        }
                        calls = self.that_keep_order(vec![(*filter, found)]);
                        if !calls.is_empty() {
                            // This filter and all after it move up, so that none sees a row that one before removes.
                            kept = position;
                            break;
                        }
                    }
                }
                if calls.is_empty() {
                    let targets = list::elements::<pg_sys::Node>((*plan).targetlist);
                    let found: Vec<_> = targets.into_iter().map(|entry| (entry, finder.find(entry))).collect();
                    if found.iter().map(|(_, calls)| calls.len()).sum::<usize>() > MOST_CALLS {
                        return plan;
                    }
                    calls = self.that_keep_order(found);
                }
                if calls.is_empty() {
                    return plan;
                }
                match self.stack(plan, &filters, kept, &calls, asked) {
                    Some(scan) => plan = scan,
                    None => return plan,
                }
            }
            plan
        }
    }

    /// A Container Batch node above `plan` that makes `calls`, takes over the filters from `kept` on, and the target list; none if
    /// it would have too many columns.
    unsafe fn stack(
        &mut self,
        plan: *mut pg_sys::Plan,
        filters: &[*mut pg_sys::Node],
        kept: usize,
        calls: &[FoundCall],
        asked: Demand,
    ) -> Option<*mut pg_sys::Plan> {
        // SAFETY: the plan is valid; copies of its expressions are changed, never the expressions themselves.
        unsafe {
            let targets = list::elements::<pg_sys::TargetEntry>((*plan).targetlist);
            let moved: Vec<*mut pg_sys::Node> =
                filters[kept..].iter().copied().chain(targets.iter().map(|target| target.cast())).collect();
            let columns = Columns::new(distinct_calls(calls, &self.watcher, self.is_still), &moved);
            if !fits(columns.count()) {
                return None;
            }
            let mut rewritten: Vec<_> = moved.iter().map(|expression| columns.over_scan_tuple(*expression)).collect();
            if nodes::tag(plan) == pg_sys::NodeTag::T_WindowAgg {
                let window = plan.cast::<pg_sys::WindowAgg>();
                (*window).runCondition = columns.over_own_targets((*window).runCondition, &targets);
            }
            let new_targets = rewritten.split_off(filters.len() - kept);
            let mut entries = columns.outer_entries();
            entries.extend(columns.call_entries());
            let private = Private { child_columns: columns.atoms.len(), ..Private::default() };
            let scan = self.make_node(plan, private, &entries, columns.conditions(), asked);
            (*scan).scan.plan.targetlist = list::from_elements(&new_targets);
            (*scan).scan.plan.qual = list::from_elements(&rewritten);
            (*plan).targetlist = list::from_elements(&columns.child_targets());
            (*plan).qual = list::from_elements(&filters[..kept]);
            // Only an Append right above a foreign scan can drive it asynchronously.
            (*plan).async_capable = false;
            Some(scan.cast())
        }
    }

    /// Puts a node between a node and its child for the calls in the arguments of the functions that the node itself
    /// calls: aggregates, window functions, functions that return sets. `parts` are the lists that hold them; `calls_in`
    /// gives the calls in the arguments of such a function, of which `asked` rows are asked.
    pub(super) unsafe fn lift_below(
        &mut self,
        plan: *mut pg_sys::Plan,
        parts: Parts,
        calls_in: unsafe fn(&CallFinder, *mut pg_sys::Node) -> Option<Vec<FoundCall>>,
        asked: Demand,
    ) {
        // SAFETY: the plan is valid and has a child; argument expressions are over the child's columns by OUTER_VAR.
        unsafe {
            if nodes::tag(plan) == pg_sys::NodeTag::T_WindowAgg && !takes_every_row(plan.cast()) {
                return;
            }
            let is_aggregate = nodes::tag(plan) == pg_sys::NodeTag::T_Agg;
            let leaves_out_acts = (!evaluates_once(plan)).then(|| Rc::clone(&self.watcher));
            let finder = CallFinder { leaves_out_acts, ..CallFinder::new(self.language) };
            loop {
                let mut calls = Vec::new();
                let mut expressions = Vec::new();
                for part in parts(plan) {
                    for expression in list::elements::<pg_sys::Node>(*part) {
                        // A walk that changes nothing but looks into each such function.
                        nodes::replace(expression, &mut |node| {
                            calls.extend(calls_in(&finder, node)?);
                            Some(node)
                        });
                        expressions.push(expression);
                    }
                }
                if calls.len() > MOST_CALLS {
                    return;
                }
                let calls = self.that_keep_order(vec![(list::from_elements(&expressions).cast(), calls)]);
                let child = (*plan).lefttree;
                let asked = asked.below(plan, child);
                if calls.is_empty() {
                    return;
                }
                let child_targets = list::elements::<pg_sys::TargetEntry>((*child).targetlist);
                let width = child_targets.len();
                let calls = distinct_calls(&calls, &self.watcher, self.is_still);
                if !fits(width + calls.len()) {
                    return;
                }
                let mut outer = Vec::new();
                let mut passed = Vec::new();
                for (i, target) in child_targets.iter().enumerate() {
                    let expression = (**target).expr.cast();
                    outer.push(entry_of(column(pg_sys::OUTER_VAR, i, expression).cast(), i));
                    let entry = entry_of(column(pg_sys::INDEX_VAR, i, expression).cast(), i);
                    (*entry).resname = (**target).resname;
                    (*entry).resjunk = (**target).resjunk;
                    passed.push(entry);
                }
                let mut conditions = Vec::new();
                for (j, lifted) in calls.iter().enumerate() {
                    let call = lifted.call;
                    outer.push(entry_of(pg_sys::copyObjectImpl(call.cast()).cast(), width + j));
                    passed.push(entry_of(column(pg_sys::INDEX_VAR, width + j, call.cast()).cast(), width + j));
                    conditions.push(pg_sys::copyObjectImpl(lifted.condition().cast()).cast());
                }
                let private = Private { child_columns: width, ..Private::default() };
                let scan = self.make_node(child, private, &outer, conditions, asked);
                (*scan).scan.plan.targetlist = list::from_elements(&passed);
                (*plan).lefttree = scan.cast();
                let mut to_column = |node: *mut pg_sys::Node| {
                    let position = position_of(&calls, node)?;
                    Some(column(pg_sys::OUTER_VAR, width + position, node).cast())
                };
                for part in parts(plan) {
                    *part = nodes::replace((*part).cast(), &mut |node| {
                        if !is_aggregate {
                            return to_column(node);
                        }
                        // What stands outside of an aggregate's arguments is evaluated for a group, not for a row: grouping
                        // sets make its columns NULL, and a group of no rows has none.
                        if nodes::tag(node) != pg_sys::NodeTag::T_Aggref {
                            return None;
                        }
                        let aggregate = nodes::copy_of(node.cast::<pg_sys::Aggref>());
                        (*aggregate).args = nodes::replace((*aggregate).args.cast(), &mut to_column).cast();
                        (*aggregate).aggfilter = nodes::replace((*aggregate).aggfilter.cast(), &mut to_column).cast();
                        Some(aggregate.cast())
                    })
                    .cast();
                }
                if let Some(used) = used_by_aggregate(plan) {
                    let mut private = Private::from_plan(scan);
                    private.unused = (0..width).filter(|i| !used.contains(i)).collect();
                    (*scan).custom_private = private.to_list();
                }
            }
        }
    }

    /// A node above `child` with the costs of `child`; target list and filter are the caller's.
    pub(super) unsafe fn make_node(
        &mut self,
        child: *mut pg_sys::Plan,
        private: Private,
        entries: &[*mut pg_sys::TargetEntry],
        mut conditions: Vec<*mut pg_sys::Node>,
        asked: Demand,
    ) -> *mut pg_sys::CustomScan {
        pgrx::check_for_interrupts!();
        // SAFETY: the struct belongs to the tag; the child is valid.
        unsafe {
            let scan = nodes::make::<pg_sys::CustomScan>(pg_sys::NodeTag::T_CustomScan);
            let plan = &raw mut (*scan).scan.plan;
            (*plan).startup_cost = (*child).startup_cost;
            (*plan).total_cost = (*child).total_cost;
            (*plan).plan_rows = (*child).plan_rows;
            (*plan).plan_width = (*child).plan_width;
            (*plan).parallel_safe = (*child).parallel_safe;
            // Not for the rows, which are the child's: PostgreSQL gives shared memory, for the counters, to such nodes only.
            (*plan).parallel_aware = self.gathers_above > 0;
            (*plan).plan_node_id = self.next_id;
            self.next_id += 1;
            // As SS_finalize_plan does: what the node's own expressions depend on, and what the child depends on.
            let entry_list = list::from_elements(entries);
            let own =
                nodes::parameters_of(&[entry_list.cast(), list::from_elements(&conditions).cast()], self.subplans);
            (*plan).extParam = pg_sys::bms_union((*child).extParam, own);
            (*plan).allParam = pg_sys::bms_union((*child).allParam, own);
            (*plan).lefttree = child;
            let first_rows = asked.first_rows();
            conditions
                .extend(first_rows.into_iter().flatten().map(|bound| pg_sys::copyObjectImpl(bound.cast()).cast()));
            (*scan).custom_scan_tlist = entry_list;
            (*scan).custom_exprs = list::from_elements(&conditions);
            let own = [(*scan).custom_scan_tlist.cast(), (*scan).custom_exprs.cast()];
            let shows = |asked: Demand| {
                // Behind the rows that are asked for, a recursion may go on for ever.
                asked.may_stop() && is_recursive(child, self.subplans, &mut HashSet::new())
                    || asked.shows_reading_ahead(child, &own, &self.watcher, &self.counting_calls)
            };
            (*scan).custom_private = Private {
                is_bounded: first_rows.is_some(),
                is_stepwise: shows(asked),
                may_be_stopped: asked.if_stopped().is_some(),
                is_stepwise_if_stopped: asked.if_stopped().is_some_and(shows),
                ..private
            }
            .to_list();
            (*scan).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
            (*scan).methods = SCAN_METHODS.as_ptr();
            #[cfg(feature = "lift-ordinary")]
            crate::ordinary::count_lifted(entries.len() - private.child_columns);
            scan
        }
    }

    /// A Material node above `plan`.
    unsafe fn materialize(&mut self, plan: *mut pg_sys::Plan) -> *mut pg_sys::Plan {
        // SAFETY: the struct belongs to the tag; the plan is valid.
        unsafe {
            let material = nodes::make::<pg_sys::Material>(pg_sys::NodeTag::T_Material);
            let top = &raw mut (*material).plan;
            (*top).startup_cost = (*plan).startup_cost;
            (*top).total_cost = (*plan).total_cost;
            (*top).plan_rows = (*plan).plan_rows;
            (*top).plan_width = (*plan).plan_width;
            (*top).parallel_safe = (*plan).parallel_safe;
            (*top).plan_node_id = self.next_id;
            self.next_id += 1;
            (*top).extParam = pg_sys::bms_copy((*plan).extParam);
            (*top).allParam = pg_sys::bms_copy((*plan).allParam);
            let mut targets = Vec::new();
            for (i, target) in list::elements::<pg_sys::TargetEntry>((*plan).targetlist).into_iter().enumerate() {
                let entry = entry_of(column(pg_sys::OUTER_VAR, i, (*target).expr.cast()).cast(), i);
                (*entry).resname = (*target).resname;
                (*entry).resjunk = (*target).resjunk;
                targets.push(entry);
            }
            (*top).targetlist = list::from_elements(&targets);
            (*top).lefttree = plan;
            material.cast()
        }
    }
}

/// Has the statement planned again when a partition of a table that it writes changes: the order of evaluation depends on its
/// triggers and constraints.
unsafe fn depend_on_partitions(statement: *mut pg_sys::PlannedStmt) {
    // SAFETY: the caller passes a valid statement, whose numbers of tables count from one.
    unsafe {
        let tables = list::elements::<pg_sys::RangeTblEntry>((*statement).rtable);
        for number in list::integers((*statement).resultRelations) {
            let table = usize::try_from(number - 1).ok().and_then(|position| tables.get(position));
            let partitions = table.map(|table| catalog::with_partitions((**table).relid)).unwrap_or_default();
            for partition in partitions.into_iter().skip(1) {
                (*statement).relationOids = pg_sys::lappend_oid((*statement).relationOids, partition);
            }
        }
    }
}

/// Says to the nodes right below a Limit that no more rows are asked of them than it lets through.
unsafe fn pass_bound(limit: *mut pg_sys::Limit) {
    // SAFETY: the caller passes a valid node.
    unsafe {
        let mut child = (*limit).plan.lefttree;
        // WITH TIES looks at more rows, and without a count the bound is another node's.
        if (*limit).limitOption != pg_sys::LimitOption::LIMIT_OPTION_COUNT || demand::is_absent((*limit).limitCount) {
            return;
        }
        while is_batch_scan(child) {
            let scan = child.cast::<pg_sys::CustomScan>();
            let private = Private::from_plan(scan);
            // A filter and a set make another number of rows of the child's.
            if !private.is_bounded || private.set.is_some() || !(*child).qual.is_null() {
                return;
            }
            (*scan).custom_private = Private { is_bound_exact: true, ..private }.to_list();
            child = (*child).lefttree;
        }
    }
}

/// The lists of a node that hold the functions that it calls itself.
pub(super) type Parts = unsafe fn(*mut pg_sys::Plan) -> Vec<*mut *mut pg_sys::List>;

/// Calls in the arguments of a call that one of our nodes makes; none if the node is no such call.
unsafe fn entry_calls(finder: &CallFinder, node: *mut pg_sys::Node) -> Option<Vec<FoundCall>> {
    // SAFETY: the tag says which struct the node is.
    unsafe {
        if nodes::tag(node) != pg_sys::NodeTag::T_FuncExpr {
            return None;
        }
        let arguments = list::elements::<pg_sys::Node>((*node.cast::<pg_sys::FuncExpr>()).args);
        Some(arguments.into_iter().flat_map(|argument| finder.find(argument)).collect())
    }
}

/// Calls in the arguments of an aggregate, a window function or a function that returns a set, and in the FILTER that
/// guards them; none if the node is none of these.
unsafe fn argument_calls(finder: &CallFinder, node: *mut pg_sys::Node) -> Option<Vec<FoundCall>> {
    use pg_sys::NodeTag::*;
    // SAFETY: the tag says which struct the node is.
    unsafe {
        let (arguments, filter): (_, *mut pg_sys::Node) = match nodes::tag(node) {
            T_Aggref => ((*node.cast::<pg_sys::Aggref>()).args, (*node.cast::<pg_sys::Aggref>()).aggfilter.cast()),
            T_WindowFunc if (*node.cast::<pg_sys::WindowFunc>()).winagg => {
                ((*node.cast::<pg_sys::WindowFunc>()).args, (*node.cast::<pg_sys::WindowFunc>()).aggfilter.cast())
            }
            T_FuncExpr if (*node.cast::<pg_sys::FuncExpr>()).funcretset => return entry_calls(finder, node),
            _ => return None,
        };
        let mut calls = finder.find(filter);
        // What the filter calls comes first, so that its condition can guard the arguments.
        if calls.is_empty() {
            for argument in list::elements::<pg_sys::Node>(arguments) {
                calls.extend(if filter.is_null() {
                    finder.find(argument)
                } else {
                    finder.find_under(filter, argument)
                });
            }
        }
        Some(calls)
    }
}
