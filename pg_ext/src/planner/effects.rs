//! What expressions do besides giving values: they read and change what no row holds.
//!
//! Row by row, PostgreSQL evaluates everything in one order: the filters and the target list of a node from left to right, then
//! what the nodes above do with the row, then the next row. A Container Batch node evaluates arguments, and its child, before
//! the rest. That shows if one of the two sides changes what the other one reads: a value drawn from a sequence, a setting,
//! a table's rows. Container functions see nothing of the database but shared tables, so beside those only their arguments count.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::ops::{BitOr, BitOrAssign};

use pgrx::{PgTupleDesc, pg_guard, pg_sys};
use udf_types::limits::MAX_DEPTH;

use super::calls_container;
use super::demand::expressions;
use super::plans::children;
use crate::function;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::{catalog, list, nodes};

/// What evaluating something needs and does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// It calls a function that is not IMMUTABLE.
    pub reads: bool,
    /// It calls a VOLATILE function, locks rows or writes tables.
    pub acts: bool,
    /// What it does may be anything, changes of settings included, on which STABLE functions depend.
    pub changes_settings: bool,
    /// It calls set_config.
    pub sets: bool,
}

impl Effects {
    pub const NONE: Effects = Effects { reads: false, acts: false, changes_settings: false, sets: false };
    const READS: Effects = Effects { reads: true, ..Effects::NONE };
    const ACTS: Effects = Effects { acts: true, ..Effects::READS };
    const ANY: Effects = Effects { changes_settings: true, ..Effects::ACTS };

    /// Whether it would show that two things change places.
    pub fn are_ordered(self, other: Effects) -> bool {
        (self.acts && other.acts) || (self.changes_settings && other.reads) || (self.reads && other.changes_settings)
    }
}

impl BitOr for Effects {
    type Output = Effects;

    fn bitor(self, other: Effects) -> Effects {
        Effects {
            reads: self.reads || other.reads,
            acts: self.acts || other.acts,
            changes_settings: self.changes_settings || other.changes_settings,
            sets: self.sets || other.sets,
        }
    }
}

impl BitOrAssign for Effects {
    fn bitor_assign(&mut self, other: Effects) {
        *self = *self | other;
    }
}

/// Plans that are looked at for the sake of each other, at most.
const MOST_NESTED: u32 = 200;

/// Looks for effects in the plans of one statement.
pub struct Watcher {
    statement: *const pg_sys::PlannedStmt,
    /// The oid of LANGUAGE container; calls in that language do not count. None if they do.
    ignored_language: Option<pg_sys::Oid>,
    /// The subplans that are run when a parameter is first asked for, by the parameter.
    run_once: HashMap<i32, i32>,
    /// What subplans, plans, and types' constraints do, as far as they were looked at. What moves from a plan into a node above it is still
    /// counted for that plan.
    known: RefCell<HashMap<i32, Effects>>,
    known_plans: RefCell<HashMap<*mut pg_sys::Plan, Effects>>,
    known_types: RefCell<HashMap<pg_sys::Oid, Effects>>,
    /// What functions do, those included that constraints and aggregates call.
    known_functions: RefCell<HashMap<pg_sys::Oid, Effects>>,
    /// What nodes that write do, as far as they were looked at.
    known_writing: RefCell<HashMap<*const pg_sys::ModifyTable, Effects>>,
    /// The domains whose constraints were looked at.
    domains: RefCell<HashSet<pg_sys::Oid>>,
    /// Whether a container function was found that reads shared tables.
    has_tables: Cell<bool>,
    /// For what is of use only while a node is looked at, and how many are.
    context: OwnedContext,
    nodes: Cell<u32>,
}

impl Watcher {
    /// For a statement whose container calls do not count.
    ///
    /// # Safety
    /// `statement` is a finished plan, which stays valid.
    pub unsafe fn new(statement: *const pg_sys::PlannedStmt, language: pg_sys::Oid) -> Watcher {
        let mut run_once = HashMap::new();
        // SAFETY: the caller says so.
        unsafe {
            let mut plans = list::elements::<pg_sys::Plan>((*statement).subplans);
            plans.push((*statement).planTree);
            while let Some(plan) = plans.pop() {
                if plan.is_null() {
                    continue;
                }
                for subplan in list::elements::<pg_sys::SubPlan>((*plan).initPlan) {
                    if (*subplan).subLinkType != pg_sys::SubLinkType::CTE_SUBLINK {
                        run_once.extend(
                            list::integers((*subplan).setParam)
                                .into_iter()
                                .map(|parameter| (parameter, (*subplan).plan_id)),
                        );
                    }
                }
                plans.extend(children(plan).into_iter().map(|child| *child));
            }
        }
        Watcher::with(statement, Some(language), run_once)
    }

    /// As this one, but container calls count as others do.
    pub fn counting_calls(&self) -> Watcher {
        self.like(None)
    }

    /// As this one, once plans are no longer what they were when this one looked at them.
    pub fn anew(&self) -> Watcher {
        self.like(self.ignored_language)
    }

    fn like(&self, ignored_language: Option<pg_sys::Oid>) -> Watcher {
        let watcher = Watcher::with(self.statement, ignored_language, self.run_once.clone());
        // In their order, since each reads only those before it.
        // SAFETY: the statement is still valid.
        unsafe {
            for plan in list::elements::<pg_sys::Plan>((*self.statement).subplans) {
                watcher.of_plan(plan);
            }
        }
        watcher
    }

    fn with(
        statement: *const pg_sys::PlannedStmt,
        ignored_language: Option<pg_sys::Oid>,
        run_once: HashMap<i32, i32>,
    ) -> Watcher {
        let (known, known_plans, known_types, known_functions) = Default::default();
        let (known_writing, domains, has_tables, nodes) = Default::default();
        // SAFETY: the watcher is not used after the statement was planned.
        let context = unsafe { OwnedContext::new(pg_sys::CurrentMemoryContext) };
        Watcher {
            statement,
            ignored_language,
            run_once,
            known,
            known_plans,
            known_types,
            known_functions,
            known_writing,
            domains,
            has_tables,
            context,
            nodes,
        }
    }

    /// The domains whose constraints were looked at.
    pub fn domains(&self) -> Vec<pg_sys::Oid> {
        self.domains.borrow().iter().copied().collect()
    }

    /// The functions that were looked at, but for those that nobody may change. A plan names only its own.
    pub fn functions(&self) -> Vec<pg_sys::Oid> {
        let known = self.known_functions.borrow();
        known.keys().copied().filter(|function| function.to_u32() >= pg_sys::FirstUnpinnedObjectId).collect()
    }

    /// Whether calls of a function do not count. Those of ordinary functions in the test mode do what they do.
    fn ignores(&self, function: pg_sys::Oid) -> bool {
        cfg!(not(feature = "lift-ordinary"))
            && self.ignored_language.is_some_and(|language| calls_container(function, language))
    }

    /// Whether a container function was found that reads shared tables, which the session's settings say where to find.
    pub fn has_tables(&self) -> bool {
        self.has_tables.get()
    }

    /// What the whole statement does.
    ///
    /// # Safety
    /// The statement is still valid.
    pub unsafe fn of_statement(&self) -> Effects {
        // SAFETY: the caller says so.
        unsafe {
            let subplans = list::elements::<pg_sys::Plan>((*self.statement).subplans);
            let plans = subplans.into_iter().chain([(*self.statement).planTree]);
            plans.fold(Effects::NONE, |found, plan| found | self.of_plan(plan))
        }
    }

    /// What a plan does, with all below it and the subplans that these use.
    ///
    /// # Safety
    /// `plan` is null or a valid plan of the statement.
    pub unsafe fn of_plan(&self, plan: *mut pg_sys::Plan) -> Effects {
        if plan.is_null() {
            return Effects::NONE;
        }
        if let Some(known) = self.known_plans.borrow().get(&plan) {
            return *known;
        }
        pgrx::check_for_interrupts!();
        // SAFETY: the caller says so.
        let found = unsafe {
            // CTEs that read each other are no deeper for PostgreSQL than any others. What they do is not known then, nor whose calls may move.
            if self.nodes.get() > MOST_NESTED || pg_sys::stack_is_too_deep() {
                return Effects { sets: true, ..Effects::ANY };
            }
            children(plan).into_iter().fold(self.of_node(plan), |found, child| found | self.of_plan(*child))
        };
        self.known_plans.borrow_mut().insert(plan, found);
        found
    }

    /// What a node does itself, with the subplans that it uses.
    ///
    /// # Safety
    /// `plan` is a valid plan of the statement.
    pub unsafe fn of_node(&self, plan: *mut pg_sys::Plan) -> Effects {
        use pg_sys::NodeTag::*;
        self.nodes.set(self.nodes.get() + 1);
        // SAFETY: the caller says so; tags say which structs the nodes are.
        let found = unsafe {
            let own = match nodes::tag(plan) {
                T_LockRows => Effects::ACTS,
                T_ModifyTable => self.of_writing(plan.cast()),
                T_CteScan => self.of_subplan((*plan.cast::<pg_sys::CteScan>()).ctePlanId),
                _ => Effects::NONE,
            };
            own | within(self.context.as_ptr(), || self.of_expressions(&expressions(plan)))
        };
        self.nodes.set(self.nodes.get() - 1);
        if self.nodes.get() == 0 {
            self.context.reset();
        }
        found
    }

    /// What writing does: triggers may do anything with a row before it is written, and CHECK constraints call functions.
    unsafe fn of_writing(&self, plan: *const pg_sys::ModifyTable) -> Effects {
        if let Some(known) = self.known_writing.borrow().get(&plan) {
            return *known;
        }
        // SAFETY: the caller passes a valid node. Its tables are those of the statement.
        let found = unsafe {
            let tables = list::elements::<pg_sys::RangeTblEntry>((*self.statement).rtable);
            // A row that moves to another partition is written there, which only the table that is named knows. Tables that
            // inherit from it are written themselves.
            let named = i32::try_from((*plan).rootRelation).ok().filter(|number| *number > 0);
            let numbers = named.into_iter().chain(list::integers((*plan).resultRelations));
            let mut seen = HashSet::new();
            numbers.fold(Effects::ACTS, |found, number| {
                let table = usize::try_from(number - 1).ok().and_then(|position| tables.get(position));
                found | table.map_or(Effects::ANY, |table| self.of_written((**table).relid, &mut seen))
            })
        };
        self.known_writing.borrow_mut().insert(plan, found);
        found
    }

    /// What writing a table and its partitions does, without those that were `seen`.
    fn of_written(&self, table: pg_sys::Oid, seen: &mut HashSet<pg_sys::Oid>) -> Effects {
        if seen.contains(&table) {
            return Effects::NONE;
        }
        let mut found = Effects::NONE;
        for table in catalog::with_partitions(table).into_iter().filter(|table| seen.insert(*table)) {
            pgrx::check_for_interrupts!();
            found |= match catalog::checks_of_rows(table) {
                // SAFETY: the conditions are expressions over the table's columns.
                Some(conditions) => unsafe { self.of_expressions(&conditions) },
                None => return Effects::ANY,
            };
        }
        found
    }

    /// What making values of types does.
    ///
    /// # Safety
    /// `types` is a valid list of oids.
    unsafe fn of_types(&self, types: *mut pg_sys::List) -> Effects {
        // SAFETY: the caller says so.
        let types = unsafe { list::oids(types) };
        types.into_iter().fold(Effects::NONE, |found, oid| found | self.of_type(oid, 0))
    }

    /// What making a value of a type does: the constraints of domains in it call functions.
    fn of_type(&self, oid: pg_sys::Oid, depth: usize) -> Effects {
        if depth > MAX_DEPTH {
            return Effects::ANY;
        }
        // A type may have parts of one type in many places.
        if let Some(known) = self.known_types.borrow().get(&oid) {
            return *known;
        }
        pgrx::check_for_interrupts!();
        // A constraint may call a function that returns the very type.
        self.known_types.borrow_mut().insert(oid, Effects::ANY);
        let found = self.of_parts(oid, depth);
        self.known_types.borrow_mut().insert(oid, found);
        found
    }

    fn of_parts(&self, oid: pg_sys::Oid, depth: usize) -> Effects {
        // SAFETY: lookups of a type that exists, since the plan has an expression of it. The descriptor is a copy.
        unsafe {
            let element = pg_sys::get_element_type(oid);
            if element != pg_sys::InvalidOid {
                return self.of_type(element, depth + 1);
            }
            match pg_sys::get_typtype(oid) as u8 {
                pg_sys::TYPTYPE_DOMAIN => {
                    self.domains.borrow_mut().insert(oid);
                    let own = self.of_expressions(&catalog::domain_constraints(oid));
                    own | self.of_type(pg_sys::getBaseType(oid), depth + 1)
                }
                pg_sys::TYPTYPE_RANGE => self.of_type(pg_sys::get_range_subtype(oid), depth + 1),
                pg_sys::TYPTYPE_COMPOSITE => {
                    let descriptor = PgTupleDesc::from_pg_copy(pg_sys::lookup_rowtype_tupdesc_copy(oid, -1));
                    let kept = descriptor.iter().filter(|attribute| !attribute.attisdropped);
                    kept.fold(Effects::NONE, |found, attribute| found | self.of_type(attribute.atttypid, depth + 1))
                }
                _ => Effects::NONE,
            }
        }
    }

    /// What it does to make an SQL value of a container call's result.
    ///
    /// # Safety
    /// `call` is a valid call.
    pub unsafe fn of_result(&self, call: *const pg_sys::FuncExpr) -> Effects {
        // SAFETY: the caller says so. Results of type record have columns that the function declares.
        unsafe {
            match catalog::result_descriptor((*call).funcid) {
                Some(descriptor) if (*call).funcresulttype == pg_sys::RECORDOID => {
                    let columns = PgTupleDesc::from_pg_copy(descriptor);
                    columns.iter().fold(Effects::NONE, |found, column| found | self.of_type(column.atttypid, 0))
                }
                _ => self.of_type((*call).funcresulttype, 0),
            }
        }
    }

    /// What expressions, or lists of them, do.
    ///
    /// # Safety
    /// Each is null or a valid expression of the statement, or a list of them.
    pub unsafe fn of_expressions(&self, expressions: &[*mut pg_sys::Node]) -> Effects {
        // SAFETY: the caller says so.
        unsafe { expressions.iter().fold(Effects::NONE, |found, one| found | self.of_rest(*one, &|_| false)) }
    }

    /// What an expression, or list of them, does without the parts that are `left_out`.
    ///
    /// # Safety
    /// As for [`Self::of_expressions`].
    pub unsafe fn of_rest(
        &self,
        expression: *mut pg_sys::Node,
        left_out: &dyn Fn(*mut pg_sys::Node) -> bool,
    ) -> Effects {
        use pg_sys::NodeTag::*;
        let mut found = Effects::NONE;
        // SAFETY: the caller says so; the copy is dropped. Tags say which structs the nodes are.
        unsafe {
            nodes::replace(expression, &mut |node| {
                if left_out(node) {
                    return Some(node);
                }
                let mut functions = Functions { watcher: self, found: Effects::NONE };
                pg_sys::check_functions_in_node(node, Some(note_function), (&raw mut functions).cast());
                found |= functions.found;
                found |= match nodes::tag(node) {
                    T_NextValueExpr => Effects::ACTS,
                    T_SQLValueFunction => of_value_function((*node.cast::<pg_sys::SQLValueFunction>()).op),
                    T_XmlExpr => Effects::READS,
                    #[cfg(not(feature = "pg15"))]
                    T_JsonConstructorExpr => Effects::READS,
                    // JSON_VALUE and its like: texts with times mean what the session's time zone says.
                    #[cfg(not(feature = "pg15"))]
                    T_JsonExpr => {
                        let returning = (*node.cast::<pg_sys::JsonExpr>()).returning.as_ref();
                        let mut effects = Effects::READS;
                        effects |= returning.map_or(Effects::NONE, |returning| self.of_type(returning.typid, 0));
                        effects
                    }
                    T_Aggref => self.of_aggregate((*node.cast::<pg_sys::Aggref>()).aggfnoid),
                    T_WindowFunc if (*node.cast::<pg_sys::WindowFunc>()).winagg => {
                        self.of_aggregate((*node.cast::<pg_sys::WindowFunc>()).winfnoid)
                    }
                    T_CoerceToDomain => self.of_type((*node.cast::<pg_sys::CoerceToDomain>()).resulttype, 0),
                    T_FuncExpr if self.ignores((*node.cast::<pg_sys::FuncExpr>()).funcid) => {
                        self.of_result(node.cast())
                    }
                    // What reads a value as text or JSON checks the domains in its type.
                    T_RangeTblFunction => self.of_types((*node.cast::<pg_sys::RangeTblFunction>()).funccoltypes),
                    T_TableFunc => self.of_types((*node.cast::<pg_sys::TableFunc>()).coltypes),
                    T_FuncExpr => self.of_type((*node.cast::<pg_sys::FuncExpr>()).funcresulttype, 0),
                    T_CoerceViaIO => self.of_type((*node.cast::<pg_sys::CoerceViaIO>()).resulttype, 0),
                    T_SubPlan => self.of_subplan((*node.cast::<pg_sys::SubPlan>()).plan_id),
                    T_Param => self.of_parameter(node.cast()),
                    _ => Effects::NONE,
                };
                None
            });
        }
        found
    }

    /// What an aggregate does with each row, and each group.
    fn of_aggregate(&self, aggregate: pg_sys::Oid) -> Effects {
        let Some(functions) = catalog::aggregate_functions(aggregate) else { return Effects::ANY };
        let functions = functions.into_iter().filter(|function| *function != pg_sys::InvalidOid);
        functions.fold(Effects::NONE, |found, function| found | self.of_function(function))
    }

    fn of_function(&self, function: pg_sys::Oid) -> Effects {
        if let Some(known) = self.known_functions.borrow().get(&function) {
            return *known;
        }
        let found = self.of_catalog(function);
        self.known_functions.borrow_mut().insert(function, found);
        found
    }

    /// What the catalog says of a function.
    fn of_catalog(&self, function: pg_sys::Oid) -> Effects {
        /// now, statement_timestamp, transaction_timestamp: nothing changes what they give to a statement.
        const FIXED: [u32; 3] = [1299, 2648, 2647];
        /// currval, gen_random_uuid, lastval, nextval, pg_sleep, random, clock_timestamp, setseed, setval, timeofday (pg_proc.dat).
        const NO_SETTINGS: [u32; 11] = [1575, 3432, 2559, 1574, 2626, 1598, 2649, 1599, 1765, 1576, 274];
        const SET_CONFIG: u32 = 2078;
        if self.ignores(function) {
            let has_tables = function::lookup(function).is_ok_and(|function| !function.body.tables.is_empty());
            self.has_tables.set(self.has_tables.get() || has_tables);
            return if has_tables { Effects::READS } else { Effects::NONE };
        }
        // SAFETY: a lookup in the system cache; the function exists, since a plan calls it.
        match unsafe { pg_sys::func_volatile(function) } as u8 {
            pg_sys::PROVOLATILE_IMMUTABLE => Effects::NONE,
            pg_sys::PROVOLATILE_STABLE if FIXED.contains(&function.to_u32()) => Effects::NONE,
            pg_sys::PROVOLATILE_STABLE => Effects::READS,
            _ if NO_SETTINGS.contains(&function.to_u32()) => Effects::ACTS,
            _ => Effects { sets: function.to_u32() == SET_CONFIG, ..Effects::ANY },
        }
    }

    unsafe fn of_parameter(&self, parameter: *const pg_sys::Param) -> Effects {
        // SAFETY: the caller passes a valid node.
        unsafe {
            let is_execution = (*parameter).paramkind == pg_sys::ParamKind::PARAM_EXEC;
            let subplan = self.run_once.get(&(*parameter).paramid).filter(|_| is_execution);
            subplan.map_or(Effects::NONE, |id| self.of_subplan(*id))
        }
    }

    unsafe fn of_subplan(&self, id: i32) -> Effects {
        if let Some(known) = self.known.borrow().get(&id) {
            return *known;
        }
        // SAFETY: a plan's numbers of subplans count from one.
        let found = unsafe {
            let position = usize::try_from(id - 1).ok();
            let plan =
                position.and_then(|position| list::element::<pg_sys::Plan>((*self.statement).subplans, position));
            plan.filter(|plan| !plan.is_null()).map_or(Effects::ANY, |plan| self.of_plan(plan))
        };
        self.known.borrow_mut().insert(id, found);
        found
    }
}

/// What is found in one node of an expression.
struct Functions<'a> {
    watcher: &'a Watcher,
    found: Effects,
}

#[pg_guard]
unsafe extern "C-unwind" fn note_function(function: pg_sys::Oid, context: *mut c_void) -> bool {
    // SAFETY: of_rest passes its own struct, which outlives the call.
    let functions = unsafe { &mut *context.cast::<Functions<'_>>() };
    functions.found |= functions.watcher.of_function(function);
    false
}

fn of_value_function(kind: pg_sys::SQLValueFunctionOp::Type) -> Effects {
    use pg_sys::SQLValueFunctionOp::*;
    if matches!(kind, SVFOP_CURRENT_TIMESTAMP | SVFOP_CURRENT_TIMESTAMP_N) { Effects::NONE } else { Effects::READS }
}
