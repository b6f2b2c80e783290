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
//! All of this works after set_plan_references: a Var of varno OUTER_VAR or INDEX_VAR names a column by its position in
//! the child's target list or in custom_scan_tlist, so whatever gets a new child must get new Vars, and a node whose
//! target list keeps its length and order needs nothing changed above it.

use std::collections::HashSet;

use pgrx::pg_sys;

use super::columns::{Columns, column, distinct_calls, entry_of, position_of};
use super::find_calls::{CallFinder, FoundCall};
use crate::batch_scan::{Private, SCAN_METHODS};
use crate::pg::{list, nodes};

/// Lifts the calls in every plan tree of a statement.
///
/// # Safety
/// `statement` is a finished plan that nobody else uses yet.
pub unsafe fn lift_statement(statement: *mut pg_sys::PlannedStmt, language: pg_sys::Oid, cursor_options: i32) {
    // SAFETY: the caller says that the plan is valid and ours to change.
    unsafe {
        // A plan notes every function that is not built in, so that it can be thrown away when one changes: most plans
        // have none, and nothing to be lifted.
        let calls_functions = list::elements::<pg_sys::PlanInvalItem>((*statement).invalItems)
            .into_iter()
            .any(|item| (*item).cacheId == pg_sys::SysCacheIdentifier::PROCOID as i32);
        if (*statement).planTree.is_null() || !calls_functions {
            return;
        }
        let mut lifter = Lifter { language, next_id: 0, gathers_above: 0 };
        lifter.note_ids((*statement).planTree);
        for subplan in list::elements::<pg_sys::Plan>((*statement).subplans) {
            lifter.note_ids(subplan);
        }
        let before = (*statement).planTree;
        (*statement).planTree = lifter.lift(before);
        list::replace_elements((*statement).subplans, |plan| lifter.lift(plan));
        let scrolls = cursor_options & pg_sys::CURSOR_OPT_SCROLL as i32 != 0;
        if scrolls && (*statement).planTree != before && !pg_sys::ExecSupportsBackwardScan((*statement).planTree) {
            (*statement).planTree = lifter.materialize((*statement).planTree);
        }
    }
}

pub(super) struct Lifter {
    pub(super) language: pg_sys::Oid,
    /// The next unused plan_node_id, which parallel queries tell nodes apart by.
    next_id: i32,
    /// Gather nodes above the plan at hand.
    gathers_above: usize,
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

    /// The plan with its calls lifted, children first.
    unsafe fn lift(&mut self, plan: *mut pg_sys::Plan) -> *mut pg_sys::Plan {
        use pg_sys::NodeTag::*;
        if plan.is_null() {
            return plan;
        }
        // SAFETY: the plan is valid, so its children are; each is replaced by one with the same target list.
        unsafe {
            if let Some(scan) = self.replace_lateral(plan) {
                return self.lift(scan);
            }
            let inner_before = (*plan).righttree;
            let is_gather = matches!(nodes::tag(plan), T_Gather | T_GatherMerge);
            self.gathers_above += usize::from(is_gather);
            for child in children(plan) {
                *child = self.lift(*child);
            }
            self.gathers_above -= usize::from(is_gather);
            if nodes::tag(plan) == T_MergeJoin && (*plan).righttree != inner_before {
                // The join may go back on its inner side, which our node cannot.
                (*plan).righttree = self.materialize((*plan).righttree);
            }
            match nodes::tag(plan) {
                T_Agg | T_WindowAgg => {
                    let parts: Parts = |plan| vec![&raw mut (*plan).targetlist, &raw mut (*plan).qual];
                    self.lift_below(plan, parts, argument_calls);
                }
                T_ProjectSet => {
                    self.lift_below(plan, |plan| vec![&raw mut (*plan).targetlist], argument_calls);
                    return match self.replace_project_set(plan) {
                        Some(scan) => self.lift_above(scan),
                        None => plan,
                    };
                }
                T_CustomScan if is_batch_scan(plan) => {
                    let parts: Parts = |plan| vec![&raw mut (*plan.cast::<pg_sys::CustomScan>()).custom_scan_tlist];
                    self.lift_below(plan, parts, entry_calls);
                }
                T_HashJoin => {
                    self.lift_hash_keys(plan);
                    self.free_join_filters(plan);
                }
                T_NestLoop | T_MergeJoin => self.free_join_filters(plan),
                _ => {}
            }
            match nodes::tag(plan) {
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
                | T_GatherMerge => self.lift_above(plan),
                T_CustomScan if is_batch_scan(plan) => self.lift_above(plan),
                T_ForeignScan if (*plan.cast::<pg_sys::ForeignScan>()).operation == pg_sys::CmdType::CMD_SELECT => {
                    self.lift_above(plan)
                }
                _ => plan,
            }
        }
    }

    /// Puts nodes above `plan` until its filter and target list hold no call that may be lifted: one per filter that
    /// calls, so that each filter's calls are made only for the rows that passed the ones before, and per nesting.
    unsafe fn lift_above(&mut self, mut plan: *mut pg_sys::Plan) -> *mut pg_sys::Plan {
        let finder = CallFinder { language: self.language, finds_volatile: true };
        // SAFETY: the plan is valid, and so is each plan made from it.
        unsafe {
            // A window aggregate's filter belongs to its run condition.
            let has_own_filter = nodes::tag(plan) != pg_sys::NodeTag::T_WindowAgg;
            loop {
                let filters = list::elements::<pg_sys::Node>((*plan).qual);
                let mut calls = Vec::new();
                let mut kept = filters.len();
                if has_own_filter {
                    for (position, filter) in filters.iter().enumerate() {
                        calls = finder.find(*filter);
                        if !calls.is_empty() {
                            // This filter and all after it move up, so that none sees a row that one before removes.
                            kept = position;
                            break;
                        }
                    }
                }
                if calls.is_empty() {
                    for entry in list::elements::<pg_sys::Node>((*plan).targetlist) {
                        calls.extend(finder.find(entry));
                    }
                }
                if calls.is_empty() {
                    return plan;
                }
                plan = self.stack(plan, &filters, kept, &calls);
            }
        }
    }

    /// A Container Batch node above `plan` that makes `calls`, takes over the filters from `kept` on, and the target list.
    unsafe fn stack(
        &mut self,
        plan: *mut pg_sys::Plan,
        filters: &[*mut pg_sys::Node],
        kept: usize,
        calls: &[FoundCall],
    ) -> *mut pg_sys::Plan {
        // SAFETY: the plan is valid; copies of its expressions are changed, never the expressions themselves.
        unsafe {
            let targets = list::elements::<pg_sys::TargetEntry>((*plan).targetlist);
            let moved: Vec<*mut pg_sys::Node> =
                filters[kept..].iter().copied().chain(targets.iter().map(|target| target.cast())).collect();
            let columns = Columns::new(calls, &moved);
            let mut rewritten: Vec<_> = moved.iter().map(|expression| columns.over_scan_tuple(*expression)).collect();
            let new_targets = rewritten.split_off(filters.len() - kept);
            let mut entries = columns.outer_entries();
            entries.extend(columns.call_entries());
            let private = Private { child_columns: columns.atoms.len(), unused: Vec::new(), set: None };
            let scan = self.make_node(plan, &private, &entries, &columns.conditions());
            (*scan).scan.plan.targetlist = list::from_elements(&new_targets);
            (*scan).scan.plan.qual = list::from_elements(&rewritten);
            (*plan).targetlist = list::from_elements(&columns.child_targets());
            (*plan).qual = list::from_elements(&filters[..kept]);
            // Only an Append right above a foreign scan can drive it asynchronously.
            (*plan).async_capable = false;
            scan.cast()
        }
    }

    /// Puts a node between a node and its child for the calls in the arguments of the functions that the node itself
    /// calls: aggregates, window functions, functions that return sets. `parts` are the lists that hold them; `calls_in`
    /// gives the calls in the arguments of such a function.
    pub(super) unsafe fn lift_below(
        &mut self,
        plan: *mut pg_sys::Plan,
        parts: Parts,
        calls_in: unsafe fn(&CallFinder, *mut pg_sys::Node) -> Option<Vec<FoundCall>>,
    ) {
        // SAFETY: the plan is valid and has a child; argument expressions are over the child's columns by OUTER_VAR.
        unsafe {
            // A window aggregate may evaluate an argument again when its frame moves.
            let finds_volatile = nodes::tag(plan) != pg_sys::NodeTag::T_WindowAgg;
            let finder = CallFinder { language: self.language, finds_volatile };
            loop {
                let mut calls = Vec::new();
                for part in parts(plan) {
                    for expression in list::elements::<pg_sys::Node>(*part) {
                        // A walk that changes nothing but looks into each such function.
                        nodes::replace(expression, &mut |node| {
                            calls.extend(calls_in(&finder, node)?);
                            Some(node)
                        });
                    }
                }
                if calls.is_empty() {
                    return;
                }
                let child = (*plan).lefttree;
                let child_targets = list::elements::<pg_sys::TargetEntry>((*child).targetlist);
                let width = child_targets.len();
                let calls = distinct_calls(&calls);
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
                let mut private = Private { child_columns: width, unused: Vec::new(), set: None };
                let scan = self.make_node(child, &private, &outer, &conditions);
                (*scan).scan.plan.targetlist = list::from_elements(&passed);
                (*plan).lefttree = scan.cast();
                let mut to_column = |node: *mut pg_sys::Node| {
                    let position = position_of(&calls, node)?;
                    Some(column(pg_sys::OUTER_VAR, width + position, node).cast())
                };
                let rewrite =
                    |part: *mut pg_sys::List,
                     change: &mut dyn FnMut(*mut pg_sys::Node) -> Option<*mut pg_sys::Node>| {
                        let changed: Vec<_> = list::elements::<pg_sys::Node>(part)
                            .into_iter()
                            .map(|expression| nodes::replace(expression, change))
                            .collect();
                        list::from_elements(&changed)
                    };
                for part in parts(plan) {
                    *part = rewrite(*part, &mut to_column);
                }
                if let Some(used) = used_by_aggregate(plan) {
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
        private: &Private,
        entries: &[*mut pg_sys::TargetEntry],
        conditions: &[*mut pg_sys::Node],
    ) -> *mut pg_sys::CustomScan {
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
            (*plan).extParam = pg_sys::bms_copy((*child).extParam);
            (*plan).allParam = pg_sys::bms_copy((*child).allParam);
            (*plan).lefttree = child;
            (*scan).custom_scan_tlist = list::from_elements(entries);
            (*scan).custom_exprs = list::from_elements(conditions);
            (*scan).custom_private = private.to_list();
            (*scan).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
            (*scan).methods = SCAN_METHODS.as_ptr();
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

/// The child's columns that an aggregate node looks at; none if the node is no such node, or one that is not so simple.
unsafe fn used_by_aggregate(plan: *mut pg_sys::Plan) -> Option<HashSet<usize>> {
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
            T_WindowFunc => {
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

/// Whether a node is one of ours.
unsafe fn is_batch_scan(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: the caller passes a CustomScan.
    unsafe { std::ptr::eq((*plan.cast::<pg_sys::CustomScan>()).methods, SCAN_METHODS.as_ptr()) }
}

/// The places that hold a plan's children.
unsafe fn children(plan: *mut pg_sys::Plan) -> Vec<*mut *mut pg_sys::Plan> {
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
