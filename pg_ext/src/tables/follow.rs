//! Which queries a shared table can follow, and what is made for it: a view, which is the query, and triggers of the table that the
//! query reads.
//!
//! Each row of such a query is made of one row of one ordinary table, by expressions that depend on nothing else. So inserted rows can
//! be appended, and whatever changes the table's rows fires a trigger. Expressions are evaluated with the rights of the shared table's owner
//! whenever somebody writes, so they call nothing that a user has written.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use pgrx::{PgSqlErrorCode, pg_sys};
use udf_types::{Error, Kind};

use super::followed::{self, Following};
use super::followed_rows::FollowedRows;
use super::source::Source;
use crate::pg::{catalog, list, nodes, rights, text};
use crate::query::QueryColumn;
use crate::report;

/// What the triggers of a followed table call.
const FUNCTION: &CStr = c"follow_source";
const SCHEMA: &CStr = c"transship";

/// The triggers that each followed table has, however many tables follow it: name, events, and when it fires. No server skips the
/// first four. The others raise an error where rows come by logical replication, which fires no triggers of statements; and PostgreSQL
/// refuses to attach a table with the fifth to a parent, whose statements would not fire these triggers.
const TRIGGERS: [(&CStr, &str, u8); 6] = [
    (INSERT, "INSERT ON {} REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT", ALWAYS),
    (UPDATE, "UPDATE ON {} REFERENCING OLD TABLE AS changed FOR EACH STATEMENT", ALWAYS),
    (DELETE, "DELETE ON {} REFERENCING OLD TABLE AS changed FOR EACH STATEMENT", ALWAYS),
    (TRUNCATE, "TRUNCATE ON {} FOR EACH STATEMENT", ALWAYS),
    (c"transship_replicated_insert", "INSERT ON {} REFERENCING NEW TABLE AS inserted FOR EACH ROW", REPLICA),
    (c"transship_replicated_change", "UPDATE OR DELETE ON {} FOR EACH ROW", REPLICA),
];
pub(super) const INSERT: &CStr = c"transship_follow_insert";
pub(super) const UPDATE: &CStr = c"transship_follow_update";
pub(super) const DELETE: &CStr = c"transship_follow_delete";
pub(super) const TRUNCATE: &CStr = c"transship_follow_truncate";
const ALWAYS: u8 = pg_sys::TRIGGER_FIRES_ALWAYS;
const REPLICA: u8 = pg_sys::TRIGGER_FIRES_ON_REPLICA;

// pgrx leaves it out.
unsafe extern "C-unwind" {
    fn has_superclass(relation: pg_sys::Oid) -> bool;
}

/// A query that can be followed.
pub(super) struct Definition {
    query: *mut pg_sys::Query,
    entry: *mut pg_sys::RangeTblEntry,
    /// The columns that it reads.
    columns: Vec<i16>,
    /// The table that it reads.
    pub source: pg_sys::Oid,
}

impl Definition {
    /// The query that a text is, with its table locked against writes, from before the query begins: no row is missed. Raises an error
    /// if it cannot be followed, or the user lacks a privilege.
    ///
    /// # Safety
    /// The text ends in NUL.
    pub unsafe fn open(source: *const c_char) -> Definition {
        // SAFETY: the caller says so; what the parser returns is palloc'd.
        unsafe {
            // Its snapshot could be older than the lock.
            if (&raw const pg_sys::XactIsoLevel).read() >= pg_sys::XACT_REPEATABLE_READ as i32 {
                let message = "a shared table can begin to follow only in a transaction that is READ COMMITTED";
                pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message);
            }
            let said = text::from_c(source);
            if said.trim().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
                refuse("It is a file.");
            }
            let statements = list::elements::<pg_sys::RawStmt>(pg_sys::pg_parse_query(source));
            let [statement] = statements.as_slice() else { refuse("It is not one query.") };
            let none = std::ptr::null_mut();
            let query = pg_sys::parse_analyze_fixedparams(*statement, source, std::ptr::null(), 0, none);
            let definition = Definition::of(query).unwrap_or_else(|fact| refuse(fact));
            rights::check_relation(definition.source, pg_sys::ACL_TRIGGER);
            definition.check_rights();
            // A statement that writes to it now would not fire triggers that are made meanwhile.
            let relation = pg_sys::table_open(definition.source, pg_sys::ShareRowExclusiveLock as c_int);
            pg_sys::CheckTableNotInUse(relation, c"follow".as_ptr());
            pg_sys::table_close(relation, pg_sys::NoLock as c_int);
            definition.check_source().unwrap_or_else(|fact| refuse(fact));
            // Tables that inherit from it later have rows of their own.
            (*definition.entry).inh = false;
            definition
        }
    }

    /// The query of a view that is open, of a shared table with this name. Raises an error if it cannot be followed any more, or the user
    /// lacks a privilege.
    ///
    /// # Safety
    /// The relation is open.
    pub unsafe fn of_view(view: pg_sys::Relation, table: &str) -> Definition {
        // SAFETY: the caller says so. A view has a query.
        unsafe {
            if (*(*view).rd_rel).relkind as u8 != pg_sys::RELKIND_VIEW {
                stop(table, "It is no longer a view.");
            }
            let definition = Definition::of(pg_sys::get_view_query(view)).unwrap_or_else(|fact| stop(table, fact));
            definition.check_rights();
            definition.check_source().unwrap_or_else(|fact| stop(table, fact));
            definition
        }
    }

    /// A copy of an analyzed query, or why it cannot be followed.
    unsafe fn of(query: *mut pg_sys::Query) -> Result<Definition, &'static str> {
        // SAFETY: the caller passes a query; tags say which structs its nodes are.
        unsafe {
            let query = pg_sys::copyObjectImpl(query.cast()).cast::<pg_sys::Query>();
            let q = &*query;
            let has_clauses = [
                q.setOperations.is_null(),
                q.havingQual.is_null(),
                q.limitCount.is_null() && q.limitOffset.is_null(),
                [q.cteList, q.groupClause, q.groupingSets, q.windowClause, q.distinctClause, q.sortClause, q.rowMarks]
                    .iter()
                    .all(|list| list.is_null()),
            ]
            .contains(&false);
            let has_parts = q.hasAggs || q.hasWindowFuncs || q.hasTargetSRFs || q.hasSubLinks || q.hasModifyingCTE;
            if q.commandType != pg_sys::CmdType::CMD_SELECT || has_clauses || has_parts || q.jointree.is_null() {
                return Err("It has more than a list of expressions, one table and a condition.");
            }
            let from = list::elements::<pg_sys::Node>((*q.jointree).fromlist);
            let one_table = || "It does not read exactly one ordinary table.";
            let [item] = from.as_slice() else { return Err(one_table()) };
            if nodes::tag(*item) != pg_sys::NodeTag::T_RangeTblRef {
                return Err(one_table());
            }
            let position = (*item.cast::<pg_sys::RangeTblRef>()).rtindex;
            let number = usize::try_from(position - 1).unwrap_or(usize::MAX);
            let entry = list::element::<pg_sys::RangeTblEntry>(q.rtable, number).ok_or_else(one_table)?;
            let e = &*entry;
            let is_table = e.rtekind == pg_sys::RTEKind::RTE_RELATION && e.relkind as u8 == pg_sys::RELKIND_RELATION;
            if !is_table || !e.tablesample.is_null() {
                return Err(one_table());
            }
            let mut used = std::ptr::null_mut();
            let varno = u32::try_from(position).unwrap_or(0);
            pg_sys::pull_varattnos(q.targetList.cast(), varno, &mut used);
            pg_sys::pull_varattnos((*q.jointree).quals, varno, &mut used);
            let (mut columns, mut member) = (Vec::new(), -1);
            loop {
                member = pg_sys::bms_next_member(used, member);
                if member < 0 {
                    break;
                }
                columns.push(i16::try_from(member + pg_sys::FirstLowInvalidHeapAttributeNumber).unwrap_or(0));
            }
            let source = e.relid;
            Ok(Definition { query, entry, columns, source })
        }
    }

    /// Raises an error unless the current user may read what the query reads.
    fn check_rights(&self) {
        rights::check_columns(self.source, &self.columns);
    }

    /// An error unless the query's rows are made of rows of its table alone, each of one, and whatever changes them fires triggers.
    unsafe fn check_source(&self) -> Result<(), &'static str> {
        // SAFETY: the query's table is locked. Expressions are copied before they are planned.
        unsafe {
            let relation = pg_sys::table_open(self.source, pg_sys::AccessShareLock as c_int);
            let class = &*(*relation).rd_rel;
            let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
            let is_generated = self.columns.iter().filter(|number| **number > 0).any(|number| {
                let attributes = pgrx::PgTupleDesc::from_pg_copy((*relation).rd_att);
                attributes.get(usize::try_from(*number - 1).unwrap_or(0)).is_none_or(|column| column.attgenerated != 0)
            });
            let fact = if self.source.to_u32() < pg_sys::FirstNormalObjectId || class.relnamespace == schema {
                Some("Its table belongs to PostgreSQL, or to the extension.")
            } else if class.relpersistence as u8 != pg_sys::RELPERSISTENCE_PERMANENT {
                Some("Its table is temporary or unlogged.")
            } else if class.relispartition {
                Some("Its table is a partition.")
            } else if (*self.entry).inh && catalog::with_inheritors(self.source).len() > 1 {
                Some("Its table has tables that inherit from it, unless the query says ONLY.")
            } else if pg_sys::ffi::pg_guard_ffi_boundary(|| has_superclass(self.source)) {
                Some("Its table inherits from another.")
            } else if pg_sys::check_enable_rls(self.source, catalog::current_user(), true)
                == pg_sys::CheckEnableRlsResult::RLS_ENABLED as c_int
            {
                Some("Row-level security applies to its table.")
            } else if self.columns.iter().any(|number| *number <= 0) {
                Some("It reads a system column, or a whole row.")
            } else if is_generated {
                Some("It reads a generated column.")
            } else {
                None
            };
            pg_sys::table_close(relation, pg_sys::AccessShareLock as c_int);
            let mut expressions = self.expressions();
            expressions.extend(Some(self.condition()).filter(|condition| !condition.is_null()));
            // Before anything is planned, which evaluates constants.
            let calls_users =
                |expression: &*mut pg_sys::Expr| nodes::has((*expression).cast(), &mut |node| is_users(node));
            let is_mutable = |expression: &*mut pg_sys::Expr| {
                let planned = pg_sys::expression_planner(pg_sys::copyObjectImpl((*expression).cast()).cast());
                pg_sys::contain_mutable_functions(planned.cast())
            };
            match fact {
                Some(fact) => Err(fact),
                None if expressions.iter().any(calls_users) => Err(
                    "It calls a function or an operator that is not PostgreSQL's own, or makes values of a domain, of a user's range type, of XML, or by a JSON query.",
                ),
                None if expressions.iter().any(is_mutable) => Err("It calls a function that is not IMMUTABLE."),
                None => Ok(()),
            }
        }
    }

    /// The expressions that the columns are.
    pub fn expressions(&self) -> Vec<*mut pg_sys::Expr> {
        // SAFETY: a query's targets are TargetEntry nodes.
        unsafe {
            let targets = list::elements::<pg_sys::TargetEntry>((*self.query).targetList);
            targets.into_iter().filter(|target| !(**target).resjunk).map(|target| (*target).expr).collect()
        }
    }

    /// The condition that rows meet; null if there is none.
    pub fn condition(&self) -> *mut pg_sys::Expr {
        // SAFETY: a query has a join tree.
        unsafe { (*(*self.query).jointree).quals.cast() }
    }

    /// Makes the view that the query becomes, beside the shared table, and the triggers of the query's table, as the user would; the
    /// view.
    ///
    /// # Safety
    /// The name is palloc'd, and the schema exists.
    pub unsafe fn create(&self, name: *const c_char, schema: pg_sys::Oid) -> pg_sys::Oid {
        // SAFETY: the caller says so; what PostgreSQL returns is palloc'd.
        unsafe {
            let name = pg_sys::ChooseRelationName(name, std::ptr::null(), c"source".as_ptr(), schema, false);
            let view = text::from_c(pg_sys::quote_qualified_identifier(pg_sys::get_namespace_name(schema), name));
            // The query's text has all digits of constants, and all schemas.
            with_own_settings(|| {
                let query = text::from_c(pg_sys::pg_get_querydef(self.query, false));
                run(&format!("CREATE VIEW {view} AS {query}"));
            });
            let source = name_of(self.source);
            let function = format!("{}.{}", text::from_c(SCHEMA.as_ptr()), text::from_c(FUNCTION.as_ptr()));
            for (trigger, events, fires) in TRIGGERS {
                let (events, trigger_name) = (events.replace("{}", &source), text::from_c(trigger.as_ptr()));
                run(&format!("CREATE OR REPLACE TRIGGER {trigger_name} AFTER {events} EXECUTE FUNCTION {function}()"));
                let relation = pg_sys::table_open(self.source, pg_sys::NoLock as c_int);
                let (trigger, fires, lock) =
                    (trigger.as_ptr(), fires as c_char, pg_sys::ShareRowExclusiveLock as c_int);
                #[cfg(feature = "pg15")]
                pg_sys::EnableDisableTrigger(relation, trigger, fires, false, lock);
                #[cfg(not(feature = "pg15"))]
                pg_sys::EnableDisableTrigger(relation, trigger, pg_sys::InvalidOid, fires, false, false, lock);
                pg_sys::table_close(relation, pg_sys::NoLock as c_int);
                pg_sys::CommandCounterIncrement();
            }
            pg_sys::get_relname_relid(name, schema)
        }
    }
}

/// Whether a node may call what a user has written, or what depends on settings that nobody says.
unsafe fn is_users(node: *mut pg_sys::Node) -> bool {
    unsafe extern "C-unwind" fn is_no_own(function: pg_sys::Oid, _: *mut c_void) -> bool {
        function.to_u32() >= pg_sys::FirstNormalObjectId
    }
    // SAFETY: the caller passes a valid node; the checker takes no context.
    unsafe {
        // JSON_VALUE makes values of any type, of domains too, by what is no function in its node.
        #[cfg(not(feature = "pg15"))]
        if nodes::tag(node) == pg_sys::NodeTag::T_JsonExpr {
            return true;
        }
        matches!(nodes::tag(node), pg_sys::NodeTag::T_CoerceToDomain | pg_sys::NodeTag::T_XmlExpr)
            || uses_users_range(node)
            || pg_sys::check_functions_in_node(node, Some(is_no_own), std::ptr::null_mut())
    }
}

/// Whether a node makes values of a range type of a user's, or does more with them than to hand them on: even whether two are adjacent is asked
/// by making one, with a function of the type's own.
unsafe fn uses_users_range(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the caller passes a valid node; lookups in the catalogs.
    unsafe {
        let is_users = |node: *mut pg_sys::Node| {
            let of = pg_sys::exprType(node);
            let element = pg_sys::get_element_type(of);
            [of, element].into_iter().any(|of| {
                of.to_u32() >= pg_sys::FirstNormalObjectId
                    && (pg_sys::type_is_range(of) || pg_sys::type_is_multirange(of))
            })
        };
        let arguments = match nodes::tag(node) {
            T_OpExpr | T_DistinctExpr | T_NullIfExpr => (*node.cast::<pg_sys::OpExpr>()).args,
            T_FuncExpr => (*node.cast::<pg_sys::FuncExpr>()).args,
            T_ScalarArrayOpExpr => (*node.cast::<pg_sys::ScalarArrayOpExpr>()).args,
            T_CoerceViaIO => return is_users(node),
            _ => return false,
        };
        is_users(node) || list::elements::<pg_sys::Node>(arguments).into_iter().any(is_users)
    }
}

/// Raises the error of a query that cannot be followed.
fn refuse(fact: &str) -> ! {
    let error = Error::invalid_definition("a shared table cannot follow this query").with_detail(fact).with_hint(
        "It can follow a query of one ordinary table, with expressions and a condition that call only PostgreSQL's own IMMUTABLE functions.",
    );
    report::raise_error(&error, None)
}

/// Raises the error of a shared table whose query cannot be followed any more.
pub(super) fn stop(table: &str, fact: &str) -> ! {
    let message = format!("shared table \"{table}\" can no longer follow its source");
    let error = Error::new(Kind::InvalidDefinition, message)
        .with_detail(fact)
        .with_hint("Share the table's rows again without following, or drop it with transship.unshare.");
    report::raise_error(&error, None)
}

/// A relation's name, with its schema, as a statement has it.
unsafe fn name_of(relation: pg_sys::Oid) -> String {
    // SAFETY: the caller passes a relation that exists; what PostgreSQL returns is palloc'd.
    unsafe {
        let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(relation));
        text::from_c(pg_sys::quote_qualified_identifier(schema, pg_sys::get_rel_name(relation)))
    }
}

/// The columns of a view.
pub(super) unsafe fn columns_of(view: pg_sys::Oid) -> Vec<QueryColumn> {
    // SAFETY: the caller passes a view that exists.
    unsafe {
        let view = pg_sys::relation_open(view, pg_sys::AccessShareLock as c_int);
        let columns = pgrx::PgTupleDesc::from_pg_copy((*view).rd_att).iter().map(QueryColumn::of).collect();
        pg_sys::relation_close(view, pg_sys::NoLock as c_int);
        columns
    }
}

/// Calls `work` with all rows of a shared table, by its view and the table that this reads, which is locked.
pub(super) unsafe fn with_all_rows<T>(following: Following, table: &str, work: impl FnOnce(Source) -> T) -> T {
    let lock = pg_sys::AccessShareLock as c_int;
    // SAFETY: the caller passes relations that exist. They are open while they are read, and locked until the transaction ends.
    unsafe {
        let (view, source) = (pg_sys::relation_open(following.view, lock), pg_sys::table_open(following.source, lock));
        let result = with_own_settings(|| {
            let definition = Definition::of_view(view, table);
            if definition.source != following.source {
                stop(table, "Its view reads another table.");
            }
            work(Source::Followed(FollowedRows::of_all(&definition, view, source)))
        });
        pg_sys::table_close(source, pg_sys::NoLock as c_int);
        pg_sys::relation_close(view, pg_sys::NoLock as c_int);
        result
    }
}

/// Runs a statement as the current user.
unsafe fn run(statement: &str) {
    let statement = CString::new(statement).unwrap_or_default();
    // SAFETY: PostgreSQL cleans SPI's state up if an error ends the statement.
    unsafe {
        pg_sys::SPI_connect();
        pg_sys::SPI_execute(text::to_server(&statement), false, 0);
        pg_sys::SPI_finish();
    }
}

/// Does something with the settings that a followed query has, whoever writes: names mean the same, and IMMUTABLE functions that depend on
/// settings all the same, as those that write numbers do, give the same. An error resets them with the transaction.
pub(super) unsafe fn with_own_settings<T>(work: impl FnOnce() -> T) -> T {
    const SETTINGS: [(&CStr, &CStr); 7] = [
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"extra_float_digits", c"3"),
        (c"bytea_output", c"hex"),
        (c"datestyle", c"ISO, MDY"),
        (c"intervalstyle", c"postgres"),
        (c"timezone", c"UTC"),
        (c"quote_all_identifiers", c"off"),
    ];
    // SAFETY: the nest level ends with the work; the texts are static.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        let (context, source) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_SESSION);
        let action = pg_sys::GucAction::GUC_ACTION_SAVE;
        for (name, value) in SETTINGS {
            pg_sys::set_config_option(name.as_ptr(), value.as_ptr(), context, source, action, true, 0, false);
        }
        let result = work();
        pg_sys::AtEOXact_GUC(false, level);
        result
    }
}

/// Ends that a table follows, if it does, and drops its view; which table it followed.
///
/// # Safety
/// The table is locked, or gone.
pub(super) unsafe fn forget(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    if table == pg_sys::InvalidOid {
        return None;
    }
    let Following { view, source, .. } = followed::of_table(table)?;
    followed::delete(table);
    // Somebody may have written the row, or the view's number may be another's by now.
    // SAFETY: lookups in the catalogs; the address is that of a view.
    unsafe {
        let may_drop = || {
            let Some(owner) = rights::owner_of(view) else { return false };
            let user = pg_sys::GetOuterUserId();
            pg_sys::get_rel_relkind(view) as u8 == pg_sys::RELKIND_VIEW
                && view.to_u32() >= pg_sys::FirstNormalObjectId
                && (rights::owner_of(table) == Some(owner) || pg_sys::has_privs_of_role(user, owner))
        };
        if !may_drop() {
            return Some(source);
        }
        let relation = pg_sys::try_relation_open(view, pg_sys::AccessExclusiveLock as c_int);
        if !relation.is_null() {
            let is_own = may_drop()
                && Definition::of(pg_sys::get_view_query(relation)).is_ok_and(|definition| definition.source == source);
            pg_sys::relation_close(relation, pg_sys::NoLock as c_int);
            if is_own {
                drop_object(pg_sys::RelationRelationId, view);
            }
        }
    }
    Some(source)
}

/// Drops the triggers of a table that nothing follows any more, if it is still there.
///
/// # Safety
/// A transaction is open.
pub(super) unsafe fn drop_unused_triggers(source: pg_sys::Oid) {
    // SAFETY: the table is locked while its triggers are read; names are copied.
    unsafe {
        let is_table = pg_sys::get_rel_relkind(source) as u8 == pg_sys::RELKIND_RELATION;
        if !is_table || source.to_u32() < pg_sys::FirstNormalObjectId || !followed::of_source(source).is_empty() {
            return;
        }
        let relation = pg_sys::try_relation_open(source, pg_sys::AccessExclusiveLock as c_int);
        if relation.is_null() {
            return;
        }
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let is_ours = |trigger: &&pg_sys::Trigger| {
            let function = pg_sys::get_func_name(trigger.tgfoid);
            let is_function = !function.is_null() && CStr::from_ptr(function) == FUNCTION;
            is_function && pg_sys::get_func_namespace(trigger.tgfoid) == schema
        };
        // Another transaction may have begun to follow it meanwhile.
        let is_used = !followed::of_source(source).is_empty();
        let unused = (*relation).trigdesc.as_ref().filter(|_| !is_used).map_or(Vec::new(), |described| {
            let count = usize::try_from(described.numtriggers).unwrap_or(0);
            let triggers = std::slice::from_raw_parts(described.triggers, count);
            triggers.iter().filter(is_ours).map(|trigger| trigger.tgoid).collect()
        });
        pg_sys::relation_close(relation, pg_sys::NoLock as c_int);
        for trigger in unused {
            drop_object(pg_sys::TriggerRelationId, trigger);
        }
    }
}

/// Drops an object that was made for a shared table, whoever owns it, unless others depend on it.
unsafe fn drop_object(class: pg_sys::Oid, object: pg_sys::Oid) {
    let address = pg_sys::ObjectAddress { classId: class, objectId: object, objectSubId: 0 };
    let internal = pg_sys::PERFORM_DELETION_INTERNAL as c_int;
    // SAFETY: the caller passes an object that exists.
    unsafe {
        pg_sys::performDeletion(&address, pg_sys::DropBehavior::DROP_RESTRICT, internal);
        pg_sys::CommandCounterIncrement();
    }
}
