//! The foreign-data wrapper's side of shared tables: plans (fdwhandler, PostgreSQL's documentation, chapter 59) and their execution.
//!
//! A plan reads all rows, or those of one key: if each key column is compared with something that is known before the scan, or with
//! columns of the tables that a nested loop has read before. Conditions are evaluated for each row all the same, so that a key only
//! saves rows, and decides nothing.

use std::ffi::{CString, c_int, c_void};

use pgrx::{PgMemoryContexts, pg_guard, pg_sys};

use super::scan::Scan;
use super::{Column, Table, callback, is_deterministic, is_integer, rows, sample, to_integer, with_snapshot};
use crate::pg::{list, nodes};
use crate::report::{self, Border};

/// What reading a row costs beside its conditions, in units of cpu_operator_cost: the next one, or one that a key has, which lies anywhere.
const ROW_OPERATORS: f64 = 1.0;
const ROW_OF_KEY_OPERATORS: f64 = 3.0;
/// What each further row of a key costs on top, in a table that processors' caches do not hold: it is not where the one before is. The first
/// one of a key is left out, as PostgreSQL leaves it out for hash joins, which go anywhere in memory as well.
const SCATTERED_ROW_OPERATORS: f64 = 16.0;
const CACHE_BYTES: f64 = (16 << 20) as f64;
/// What finding a key in one segment costs.
const FIND_OPERATORS: f64 = 1.0;

/// `transship.fdw_handler() RETURNS fdw_handler`.
#[pg_guard]
pub unsafe extern "C-unwind" fn handler(_call: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the struct belongs to the tag.
    unsafe {
        let routine = nodes::make::<pg_sys::FdwRoutine>(pg_sys::NodeTag::T_FdwRoutine);
        (*routine).GetForeignRelSize = Some(size);
        (*routine).GetForeignPaths = Some(add_paths);
        (*routine).GetForeignPlan = Some(plan);
        (*routine).BeginForeignScan = Some(begin);
        (*routine).IterateForeignScan = Some(iterate);
        (*routine).ReScanForeignScan = Some(restart);
        (*routine).EndForeignScan = Some(end);
        (*routine).ExplainForeignScan = Some(explain);
        (*routine).AnalyzeForeignTable = Some(sample::begin);
        (*routine).IsForeignScanParallelSafe = Some(is_parallel_safe);
        pg_sys::Datum::from(routine)
    }
}

callback!(size, estimate_size, (root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, table: pg_sys::Oid));
callback!(add_paths, make_paths, (root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo, table: pg_sys::Oid));
callback!(plan, make_plan, (
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
    path: *mut pg_sys::ForeignPath,
    targets: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    outer: *mut pg_sys::Plan
) -> *mut pg_sys::ForeignScan);
callback!(begin, begin_scan, (node: *mut pg_sys::ForeignScanState, flags: c_int));

unsafe extern "C-unwind" fn iterate(node: *mut pg_sys::ForeignScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the executor calls this after begin_scan, which has left the border, and the function is guarded. An operand may begin
    // a query that goes on when this has returned.
    unsafe {
        let border = &raw mut (*(*node).fdw_state.cast::<Running>()).border;
        report::with_context_of(border, || next_row(node))
    }
}

callback!(explain, explain_scan, (node: *mut pg_sys::ForeignScanState, state: *mut pg_sys::ExplainState));

/// What the planner knows of a table.
struct Known {
    table: Table,
    rows: f64,
    bytes: f64,
    segments: f64,
    /// Rows of one key, on average.
    rows_of_key: f64,
}

#[pg_guard]
unsafe extern "C-unwind" fn estimate_size(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
) {
    // SAFETY: the planner passes a table that it has locked.
    unsafe {
        let known = Known::of(table);
        let is_keyed = !known.key_operands(root, rel, (*rel).baserestrictinfo).is_empty();
        (*rel).tuples = known.rows;
        pg_sys::set_baserel_size_estimates(root, rel);
        if is_keyed {
            (*rel).rows = (*rel).rows.min(known.rows_of_key).max(1.0);
        }
        let memory = pg_sys::CurrentMemoryContext;
        (*rel).fdw_private = PgMemoryContexts::For(memory).leak_and_drop_on_delete(known).cast();
    }
}

impl Known {
    unsafe fn of(oid: pg_sys::Oid) -> Known {
        #[expect(clippy::cast_precision_loss, reason = "estimates")]
        let float = |number: u64| number as f64;
        // SAFETY: the table is locked. A statement is planned with a snapshot, unless nobody needs one.
        unsafe {
            let table = read_table(oid);
            let found = with_snapshot(|snapshot| rows::list(oid, snapshot));
            let rows = float(found.iter().map(|row| row.rows).sum());
            let bytes = float(found.iter().map(|row| row.bytes).sum());
            // An append may bring keys that are known, or new ones.
            let keys = float(found.iter().map(|row| row.keys).max().unwrap_or(0)).max(1.0);
            Known { table, rows, bytes, segments: float(found.len() as u64), rows_of_key: (rows / keys).max(1.0) }
        }
    }

    /// What each key column is compared with in these conditions; nothing if one is not.
    unsafe fn key_operands(
        &self,
        root: *mut pg_sys::PlannerInfo,
        rel: *mut pg_sys::RelOptInfo,
        clauses: *mut pg_sys::List,
    ) -> Vec<*mut pg_sys::Expr> {
        // SAFETY: the planner passes a list of RestrictInfos.
        let clauses = unsafe { list::elements::<pg_sys::RestrictInfo>(clauses) };
        let operands = self.table.key.iter().map(|position| {
            let column = &self.table.columns[*position];
            // SAFETY: as above.
            clauses.iter().find_map(|clause| unsafe { operand_of(root, rel, (**clause).clause, column) })
        });
        operands.collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}

unsafe fn read_table(oid: pg_sys::Oid) -> Table {
    // SAFETY: the caller has locked the table.
    unsafe {
        let no_lock = pg_sys::NoLock as c_int;
        let relation = pg_sys::table_open(oid, no_lock);
        let table = Table::of(relation);
        pg_sys::table_close(relation, no_lock);
        table
    }
}

/// What a condition compares a column of the table with, if it does, by the equality that the index has: that of the column's type, or
/// of an integer with another integer.
unsafe fn operand_of(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    clause: *mut pg_sys::Expr,
    column: &Column,
) -> Option<*mut pg_sys::Expr> {
    // SAFETY: the planner passes an expression; the tag says which struct it is.
    unsafe {
        // `flag = true` and `flag = false` as the planner has them.
        if column.declared == pg_sys::BOOLOID {
            if is_column(clause, (*rel).relid, column) {
                return Some(pg_sys::makeBoolConst(true, false).cast());
            }
            let negation = clause.cast::<pg_sys::BoolExpr>();
            if nodes::tag(clause) == pg_sys::NodeTag::T_BoolExpr
                && (*negation).boolop == pg_sys::BoolExprType::NOT_EXPR
                && list::elements::<pg_sys::Expr>((*negation).args)
                    .iter()
                    .all(|own| is_column(*own, (*rel).relid, column))
            {
                return Some(pg_sys::makeBoolConst(false, false).cast());
            }
        }
        if nodes::tag(clause) != pg_sys::NodeTag::T_OpExpr {
            return None;
        }
        let operator = clause.cast::<pg_sys::OpExpr>();
        let sides = list::elements::<pg_sys::Expr>((*operator).args);
        let cache = pg_sys::lookup_type_cache(column.declared, pg_sys::TYPECACHE_EQ_OPR as c_int);
        if sides.len() != 2 || !is_deterministic((*operator).inputcollid) {
            return None;
        }
        let is_equality = |own, other| {
            let equality = pg_sys::BTEqualStrategyNumber as i16;
            (*operator).opno == (*cache).eq_opr
                || (is_integer(own) && is_integer(other))
                    && [(own, other), (other, own)].into_iter().any(|(left, right)| {
                        let family = pg_sys::INTEGER_BTREE_FAM_OID;
                        pg_sys::get_opfamily_member(family, left, right, equality) == (*operator).opno
                    })
        };
        [(sides[0], sides[1]), (sides[1], sides[0])].into_iter().find_map(|(own, other)| {
            let is_known = is_column(own, (*rel).relid, column)
                && is_equality(column.declared, pg_sys::exprType(other.cast()))
                && !pg_sys::bms_is_member((*rel).relid as c_int, pg_sys::pull_varnos(root, other.cast()))
                && !pg_sys::contain_volatile_functions(other.cast());
            is_known.then_some(other)
        })
    }
}

/// Whether an expression is a column of the table, perhaps relabelled.
unsafe fn is_column(expression: *mut pg_sys::Expr, relid: pg_sys::Index, column: &Column) -> bool {
    // SAFETY: the tag says which struct the node is.
    unsafe {
        match nodes::tag(expression) {
            pg_sys::NodeTag::T_RelabelType => is_column((*expression.cast::<pg_sys::RelabelType>()).arg, relid, column),
            pg_sys::NodeTag::T_Var => {
                let var = expression.cast::<pg_sys::Var>();
                (*var).varno as u32 == relid && (*var).varattno == column.number && (*var).varlevelsup == 0
            }
            _ => false,
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn make_paths(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    _table: pg_sys::Oid,
) {
    // SAFETY: estimate_size has left what is known. The planner's structs are valid.
    unsafe {
        let known = &*(*rel).fdw_private.cast::<Known>();
        let is_keyed = !known.key_operands(root, rel, (*rel).baserestrictinfo).is_empty();
        let cost = known.cost(rel, is_keyed, (*rel).rows);
        let lateral = (*rel).lateral_relids;
        pg_sys::add_path(rel, make_path(root, rel, (*rel).rows, cost, lateral).cast());
        if is_keyed || known.table.key.is_empty() {
            return;
        }
        // Conditions that compare key columns with those of other tables.
        let mut found: Vec<*mut pg_sys::RestrictInfo> = Vec::new();
        for position in &known.table.key {
            let column = &known.table.columns[*position];
            if (*rel).has_eclass_joins {
                let wanted = std::ptr::from_ref(column).cast_mut().cast();
                let prohibited = (*rel).lateral_referencers;
                let implied =
                    pg_sys::generate_implied_equalities_for_column(root, rel, Some(is_member), wanted, prohibited);
                found.extend(list::elements::<pg_sys::RestrictInfo>(implied));
            }
        }
        let joins = list::elements::<pg_sys::RestrictInfo>((*rel).joininfo);
        found.extend(joins.into_iter().filter(|clause| pg_sys::join_clause_is_movable_to(*clause, rel)));
        let others_of =
            |clause: &*mut pg_sys::RestrictInfo| pg_sys::bms_difference((**clause).clause_relids, (*rel).relids);
        let mut candidates: Vec<pg_sys::Relids> = found.iter().map(others_of).collect();
        candidates.push(
            found.iter().fold(std::ptr::null_mut(), |all, clause| pg_sys::bms_add_members(all, others_of(clause))),
        );
        let mut tried: Vec<pg_sys::Relids> = Vec::new();
        for others in candidates {
            let required = pg_sys::bms_union(others, lateral);
            if pg_sys::bms_num_members(others) == 0 || tried.iter().any(|tried| pg_sys::bms_equal(*tried, required)) {
                continue;
            }
            tried.push(required);
            // Those of the conditions that such a plan gets.
            let info = pg_sys::get_baserel_parampathinfo(root, rel, required);
            let usable = pg_sys::list_concat_copy((*info).ppi_clauses, (*rel).baserestrictinfo);
            if known.key_operands(root, rel, usable).is_empty() {
                continue;
            }
            let rows = (*info).ppi_rows.min(known.rows_of_key).max(1.0);
            pg_sys::add_path(rel, make_path(root, rel, rows, known.cost(rel, true, rows), required).cast());
        }
    }
}

/// Whether a member of an equivalence class is the key column.
#[pg_guard]
unsafe extern "C-unwind" fn is_member(
    _root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    _class: *mut pg_sys::EquivalenceClass,
    member: *mut pg_sys::EquivalenceMember,
    column: *mut c_void,
) -> bool {
    // SAFETY: the planner passes what make_paths has given it.
    unsafe { is_column((*member).em_expr, (*rel).relid, &*column.cast::<Column>()) }
}

impl Known {
    unsafe fn cost(&self, rel: *mut pg_sys::RelOptInfo, is_keyed: bool, rows: f64) -> pg_sys::Cost {
        // SAFETY: the costs are variables of the process.
        let (operator, tuple, conditions) =
            unsafe { (pg_sys::cpu_operator_cost, pg_sys::cpu_tuple_cost, (*rel).baserestrictcost.per_tuple) };
        let read = if is_keyed { rows.max(self.rows_of_key) } else { self.rows };
        let scattered = if self.bytes > CACHE_BYTES { SCATTERED_ROW_OPERATORS * (read - 1.0) } else { 0.0 };
        let (find, row) = match is_keyed {
            true => (FIND_OPERATORS * self.segments + scattered, ROW_OF_KEY_OPERATORS),
            false => (0.0, ROW_OPERATORS),
        };
        find * operator + read * (row * operator + tuple + conditions)
    }
}

unsafe fn make_path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rows: f64,
    cost: pg_sys::Cost,
    required: pg_sys::Relids,
) -> *mut pg_sys::ForeignPath {
    let (nil, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the planner's structs are valid.
    unsafe {
        #[cfg(feature = "pg15")]
        let path = pg_sys::create_foreignscan_path(root, rel, none, rows, 0.0, cost, nil, required, none.cast(), nil);
        #[cfg(feature = "pg17")]
        let path =
            pg_sys::create_foreignscan_path(root, rel, none, rows, 0.0, cost, nil, required, none.cast(), nil, nil);
        #[cfg(feature = "pg18")]
        let path =
            pg_sys::create_foreignscan_path(root, rel, none, rows, 0, 0.0, cost, nil, required, none.cast(), nil, nil);
        path
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn make_plan(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    _table: pg_sys::Oid,
    _path: *mut pg_sys::ForeignPath,
    targets: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    outer: *mut pg_sys::Plan,
) -> *mut pg_sys::ForeignScan {
    // SAFETY: estimate_size has left what is known. The planner's structs are valid.
    unsafe {
        let known = &*(*rel).fdw_private.cast::<Known>();
        let operands = known.key_operands(root, rel, clauses);
        let conditions = pg_sys::extract_actual_clauses(clauses, false);
        let relid = (*rel).relid;
        let mut used = std::ptr::null_mut();
        pg_sys::pull_varattnos((*(*rel).reltarget).exprs.cast(), relid, &mut used);
        pg_sys::pull_varattnos(conditions.cast(), relid, &mut used);
        let is_used = |number: i16| {
            let member = c_int::from(number) - pg_sys::FirstLowInvalidHeapAttributeNumber;
            pg_sys::bms_is_member(member, used)
        };
        let mut wanted = std::ptr::null_mut();
        for column in &known.table.columns {
            // Number 0 is the whole row.
            if is_used(0) || is_used(column.number) {
                wanted = pg_sys::lappend_int(wanted, c_int::from(column.number));
            }
        }
        let nil = std::ptr::null_mut();
        pg_sys::make_foreignscan(targets, conditions, relid, list::from_elements(&operands), wanted, nil, nil, outer)
    }
}

/// A scan that runs.
struct Running {
    scan: Scan,
    /// What the key columns' values are made of; nothing to read all rows.
    operands: Vec<Operand>,
    /// Where errors that pass the node's calls get their context.
    border: Border,
}

/// What a key column's value is made of.
struct Operand {
    state: *mut pg_sys::ExprState,
    /// Its type and the column's, if both are integers.
    integers: Option<(pg_sys::Oid, pg_sys::Oid)>,
}

#[pg_guard]
unsafe extern "C-unwind" fn begin_scan(node: *mut pg_sys::ForeignScanState, flags: c_int) {
    // SAFETY: the executor passes a node of a plan that make_plan made, with its table open.
    unsafe {
        if flags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as c_int != 0 {
            return;
        }
        let plan = (*node).ss.ps.plan.cast::<pg_sys::ForeignScan>();
        let table = Table::of((*node).ss.ss_currentRelation);
        let expressions = list::elements::<pg_sys::Expr>((*plan).fdw_exprs);
        let operands = expressions.iter().zip(&table.key).map(|(expression, position)| {
            let types = (pg_sys::exprType(expression.cast()), table.columns[*position].declared);
            let integers = (is_integer(types.0) && is_integer(types.1)).then_some(types);
            Operand { state: pg_sys::ExecInitExpr(*expression, &raw mut (*node).ss.ps), integers }
        });
        let operands = operands.collect();
        let numbers = list::integers((*plan).fdw_private);
        let columns = table.columns.iter().enumerate();
        let wanted = columns.filter(|(_, column)| numbers.contains(&i32::from(column.number)));
        let wanted = wanted.map(|(position, column)| (position, usize::try_from(column.number - 1).unwrap_or(0)));
        let wanted = wanted.collect();
        let state = (*node).ss.ps.state;
        let scan = report::unwrap(Scan::new(table, wanted, (*state).es_snapshot));
        let mut memory = PgMemoryContexts::For((*state).es_query_cxt);
        (*node).fdw_state =
            memory.leak_and_drop_on_delete(Running { scan, operands, border: Border::default() }).cast();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn next_row(node: *mut pg_sys::ForeignScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: begin_scan has left the scan. The executor calls this in the memory of one row; the slot has a value per attribute.
    unsafe {
        let running = &mut *(*node).fdw_state.cast::<Running>();
        if running.scan.is_at_start() {
            if running.operands.is_empty() {
                running.scan.begin_all();
            } else {
                let context = (*node).ss.ps.ps_ExprContext;
                let values: Vec<_> = running.operands.iter().map(|operand| evaluate(operand, context)).collect();
                running.scan.begin_key(&values);
            }
        }
        let slot = (*node).ss.ss_ScanTupleSlot;
        if let Some(clear) = (*(*slot).tts_ops).clear {
            clear(slot);
        }
        let count = usize::try_from((*(*slot).tts_tupleDescriptor).natts).unwrap_or(0);
        let values = std::slice::from_raw_parts_mut((*slot).tts_values, count);
        let nulls = std::slice::from_raw_parts_mut((*slot).tts_isnull, count);
        nulls.fill(true);
        if running.scan.next(values, nulls) {
            pg_sys::ExecStoreVirtualTuple(slot);
        }
        slot
    }
}

/// The value of a key column; none if no row has it, as no row has NULL.
unsafe fn evaluate(operand: &Operand, context: *mut pg_sys::ExprContext) -> Option<pg_sys::Datum> {
    let (mut is_null, state) = (false, operand.state);
    // SAFETY: the executor has made the expression ready.
    unsafe {
        let value = (*state)
            .evalfunc
            .map(|evaluate| pg_sys::ffi::pg_guard_ffi_boundary(|| evaluate(state, context, &raw mut is_null)));
        let value = value.filter(|_| !is_null)?;
        match operand.integers {
            Some((given, wanted)) => to_integer(value, given, wanted),
            None => Some(value),
        }
    }
}

unsafe extern "C-unwind" fn restart(node: *mut pg_sys::ForeignScanState) {
    // SAFETY: as in next_row.
    unsafe { (*(*node).fdw_state.cast::<Running>()).scan.restart() }
}

/// The query's memory drops what there is.
extern "C-unwind" fn end(_node: *mut pg_sys::ForeignScanState) {}

extern "C-unwind" fn is_parallel_safe(
    _root: *mut pg_sys::PlannerInfo,
    _rel: *mut pg_sys::RelOptInfo,
    _entry: *mut pg_sys::RangeTblEntry,
) -> bool {
    true
}

#[pg_guard]
unsafe extern "C-unwind" fn explain_scan(node: *mut pg_sys::ForeignScanState, state: *mut pg_sys::ExplainState) {
    // SAFETY: as in begin_scan; the texts are copied.
    unsafe {
        let plan = (*node).ss.ps.plan.cast::<pg_sys::ForeignScan>();
        if !(*plan).fdw_exprs.is_null() {
            let table = Table::of((*node).ss.ss_currentRelation);
            let names = table.key.iter().map(|position| table.columns[*position].name.clone());
            let names = CString::new(names.collect::<Vec<_>>().join(", ")).unwrap_or_default();
            pg_sys::ExplainPropertyText(c"Key".as_ptr(), crate::pg::text::to_server(&names), state);
        }
        if (*state).analyze && !(*node).fdw_state.is_null() {
            let segments = (*(*node).fdw_state.cast::<Running>()).scan.rows().len();
            pg_sys::ExplainPropertyInteger(c"Segments".as_ptr(), std::ptr::null(), segments as i64, state);
        }
    }
}
