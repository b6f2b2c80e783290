//! `transship.lookup` in FROM, as the planner is to see it: a subquery that compares the table's key, which it joins as any other,
//! instead of a function that is called for each row.
//!
//! ```text
//!   FROM f, transship.lookup('planes', f.tailnum) AS p (tailnum text, seats int)
//! ▶ FROM f, LATERAL (SELECT tailnum, seats FROM ONLY planes WHERE tailnum = f.tailnum) AS p (tailnum, seats)
//! ```
//!
//! What the function refuses, and what a condition would say otherwise, stays a call: arguments that are volatile or have subqueries,
//! tables that are not constant, WITH ORDINALITY, and ROWS FROM with several functions.

use std::ffi::{CStr, CString, c_int, c_void};

use pgrx::{PgTupleDesc, pg_guard, pg_sys};

use super::{Column, Table, is_integer};
use crate::pg::{list, nodes, raw, rights, text};
use crate::server;

/// Calls of one statement that are found; further ones stay calls.
const MOST_CALLS: usize = 64;

/// FROM entries that may be calls of `transship.lookup`. It owns nothing, so that an error may jump over it.
struct Found {
    entries: [*mut pg_sys::RangeTblEntry; MOST_CALLS],
    count: usize,
}

/// Turns the look-ups of a statement that is about to be planned into joins.
///
/// # Safety
/// The query is what the planner is about to get. Of the caller's frame holds what [`raw`] says.
pub unsafe fn rewrite(query: *mut pg_sys::Query) {
    let mut found = Found { entries: [std::ptr::null_mut(); MOST_CALLS], count: 0 };
    // SAFETY: the caller passes a valid query; `found` outlives the walk.
    unsafe {
        visit(query.cast(), (&raw mut found).cast());
        if found.count > 0 {
            rewrite_all(&raw const found);
        }
    }
}

/// Finds the entries. As for [`raw`]'s functions, it owns nothing and does not panic.
unsafe extern "C-unwind" fn visit(node: *mut pg_sys::Node, found: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: `rewrite` passes a Found, and PostgreSQL hands it through; the tags say which structs the nodes are.
    unsafe {
        match nodes::tag(node) {
            pg_sys::NodeTag::T_Query => {
                raw::query_tree_walker(node.cast(), visit, found, pg_sys::QTW_EXAMINE_RTES_BEFORE as c_int)
            }
            pg_sys::NodeTag::T_RangeTblEntry => {
                let (entry, found) = (node.cast::<pg_sys::RangeTblEntry>(), found.cast::<Found>());
                if may_be_lookup(entry) && (*found).count < MOST_CALLS {
                    (*found).entries[(*found).count] = entry;
                    (*found).count += 1;
                }
                false
            }
            _ => raw::expression_tree_walker(node, visit, found),
        }
    }
}

/// Whether a FROM entry is one call of a function that is not built in, with a column definition list.
unsafe fn may_be_lookup(entry: *const pg_sys::RangeTblEntry) -> bool {
    // SAFETY: the caller passes a valid entry, and its list has what the length says.
    unsafe {
        if (*entry).rtekind != pg_sys::RTEKind::RTE_FUNCTION
            || (*entry).funcordinality
            || (*(*entry).functions).length != 1
        {
            return false;
        }
        let function = (*(*(*entry).functions).elements).ptr_value.cast::<pg_sys::RangeTblFunction>();
        let call = (*function).funcexpr;
        nodes::tag(call) == pg_sys::NodeTag::T_FuncExpr
            && !(*function).funccoltypes.is_null()
            && (*call.cast::<pg_sys::FuncExpr>()).funcid.to_u32() >= pg_sys::FirstNormalObjectId
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn rewrite_all(found: *const Found) {
    // SAFETY: `rewrite` passes what it has found, which the planner has not looked at yet.
    unsafe {
        for entry in &(&(*found).entries)[..(*found).count] {
            if let Some(subquery) = subquery_for(*entry) {
                (**entry).rtekind = pg_sys::RTEKind::RTE_SUBQUERY;
                (**entry).subquery = subquery;
                (**entry).functions = std::ptr::null_mut();
            }
        }
    }
}

/// The subquery in place of an entry; none if it must stay what it is.
unsafe fn subquery_for(entry: *mut pg_sys::RangeTblEntry) -> Option<*mut pg_sys::Query> {
    // SAFETY: the caller passes an entry of `may_be_lookup`. The table is open while it is looked at.
    unsafe {
        let function = list::element::<pg_sys::RangeTblFunction>((*entry).functions, 0)?;
        let call = (*function).funcexpr.cast::<pg_sys::FuncExpr>();
        let arguments = list::elements::<pg_sys::Expr>((*call).args);
        let (name, values) = arguments.split_first()?;
        let name = name.cast::<pg_sys::Const>();
        if nodes::tag(name) != pg_sys::NodeTag::T_Const
            || (*name).constisnull
            || (*call).funcvariadic
            || !is_lookup((*call).funcid)
            || !rights::may_execute((*call).funcid)
            || pg_sys::contain_volatile_functions((*call).args.cast())
            || pg_sys::contain_subplans((*call).args.cast())
        {
            return None;
        }
        let oid = pg_sys::Oid::from((*name).constvalue.value() as u32);
        // Who may not read a table does not lock it.
        if server::table_key(oid).is_none() || !rights::may_read(oid) {
            return None;
        }
        let lock = pg_sys::AccessShareLock as c_int;
        let relation = pg_sys::try_table_open(oid, lock);
        if relation.is_null() {
            return None;
        }
        let subquery = server::table_key(oid).and_then(|_| {
            let table = Table::of(relation);
            let conditions = conditions(&table, values)?;
            let targets = targets(&table, function)?;
            Some(make_query(relation, &table, (*(*entry).eref).aliasname, &targets, &conditions))
        });
        // The plan's table stays locked, as every table that a query names.
        pg_sys::table_close(relation, if subquery.is_some() { pg_sys::NoLock as c_int } else { lock });
        subquery
    }
}

/// Whether a function is `transship.lookup`. In that schema only the extension's owner creates functions.
unsafe fn is_lookup(function: pg_sys::Oid) -> bool {
    // SAFETY: lookups in the catalogs; what they return is null or palloc'd.
    unsafe {
        let name = pg_sys::get_func_name(function);
        let schema = pg_sys::get_namespace_name(pg_sys::get_func_namespace(function));
        !name.is_null()
            && !schema.is_null()
            && CStr::from_ptr(name) == c"lookup"
            && CStr::from_ptr(schema) == c"transship"
    }
}

/// A condition per key column: it equals its value. None unless there is a value for each, of a type that the column's is compared with.
unsafe fn conditions(table: &Table, values: &[*mut pg_sys::Expr]) -> Option<Vec<*mut pg_sys::Expr>> {
    if table.key.is_empty() || table.key.len() != values.len() {
        return None;
    }
    let pairs = table.key.iter().zip(values);
    // SAFETY: the caller passes valid expressions, which stand one query deeper now.
    pairs
        .map(|(position, value)| unsafe {
            let value: *mut pg_sys::Expr = pg_sys::copyObjectImpl(value.cast()).cast();
            pg_sys::IncrementVarSublevelsUp(value.cast(), 1, 0);
            equality(&table.columns[*position], value)
        })
        .collect()
}

/// `column = value`, by the equality that the index has; none if the value has another type that is not cast to the column's.
unsafe fn equality(column: &Column, value: *mut pg_sys::Expr) -> Option<*mut pg_sys::Expr> {
    // SAFETY: the caller passes a valid expression; lookups in the catalogs.
    unsafe {
        let (given, wanted) = (pg_sys::exprType(value.cast()), column.declared);
        // A domain's values are those of its base type.
        let base = pg_sys::getBaseType(given);
        let (operator, value) = if base != wanted && is_integer(base) && is_integer(wanted) {
            let (family, equality) = (pg_sys::INTEGER_BTREE_FAM_OID, pg_sys::BTEqualStrategyNumber as i16);
            (pg_sys::get_opfamily_member(family, wanted, base, equality), value)
        } else {
            let cache = pg_sys::lookup_type_cache(wanted, pg_sys::TYPECACHE_EQ_OPR as c_int);
            ((*cache).eq_opr, cast(value, given, wanted)?)
        };
        if operator == pg_sys::InvalidOid {
            return None;
        }
        let (mut left, mut right) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        pg_sys::op_input_types(operator, &mut left, &mut right);
        let column_value = relabelled(column_of(column), left, column.collation);
        let value = relabelled(value, right, column.collation);
        let condition = pg_sys::make_opclause(
            operator,
            pg_sys::BOOLOID,
            false,
            column_value,
            value,
            pg_sys::InvalidOid,
            column.collation,
        );
        pg_sys::set_opfuncid(condition.cast());
        Some(condition)
    }
}

/// A value of the wanted type, cast as [`super::lookup`] does; none if it would not.
unsafe fn cast(value: *mut pg_sys::Expr, given: pg_sys::Oid, wanted: pg_sys::Oid) -> Option<*mut pg_sys::Expr> {
    // SAFETY: the caller passes a valid expression.
    unsafe {
        let is_unknown = given == pg_sys::UNKNOWNOID;
        // A literal is read when it is planned, and 'today' is another day when the plan runs.
        let is_read_alike =
            !matches!(wanted, pg_sys::DATEOID | pg_sys::TIMEOID | pg_sys::TIMESTAMPOID | pg_sys::TIMESTAMPTZOID);
        if is_unknown && (nodes::tag(value) != pg_sys::NodeTag::T_Const || !is_read_alike) {
            return None;
        }
        let (implicit, format) =
            (pg_sys::CoercionContext::COERCION_IMPLICIT, pg_sys::CoercionForm::COERCE_IMPLICIT_CAST);
        let none = std::ptr::null_mut();
        let result: *mut pg_sys::Expr =
            pg_sys::coerce_to_target_type(none, value.cast(), given, wanted, -1, implicit, format, -1).cast();
        if result.is_null() {
            return None;
        }
        let is_known = std::ptr::eq(result, value)
            || is_unknown
            || match nodes::tag(result) {
                pg_sys::NodeTag::T_RelabelType => true,
                pg_sys::NodeTag::T_FuncExpr => {
                    let function = result.cast::<pg_sys::FuncExpr>();
                    (*function).funcid.to_u32() < pg_sys::FirstNormalObjectId
                        && list::elements::<pg_sys::Expr>((*function).args).len() == 1
                }
                _ => false,
            };
        is_known.then_some(result)
    }
}

/// An expression as one of a type that has the same bytes, and of a collation: nodes that hash a join's values take it from them.
unsafe fn relabelled(expression: *mut pg_sys::Expr, ty: pg_sys::Oid, collation: pg_sys::Oid) -> *mut pg_sys::Expr {
    // SAFETY: the caller passes a valid expression.
    unsafe {
        if (pg_sys::exprType(expression.cast()), pg_sys::exprCollation(expression.cast())) == (ty, collation) {
            return expression;
        }
        let format = pg_sys::CoercionForm::COERCE_IMPLICIT_CAST;
        pg_sys::makeRelabelType(expression, ty, -1, collation, format).cast()
    }
}

/// A column of the subquery's only table.
unsafe fn column_of(column: &Column) -> *mut pg_sys::Expr {
    let (ty, typmod, collation) = (column.declared, column.typmod, column.collation);
    // SAFETY: makes a node.
    unsafe { pg_sys::makeVar(1, column.number, ty, typmod, collation, 0).cast() }
}

/// The table's columns as the column definition list declares them; none unless that has their types.
unsafe fn targets(table: &Table, function: *mut pg_sys::RangeTblFunction) -> Option<Vec<*mut pg_sys::TargetEntry>> {
    // SAFETY: the caller passes a valid node, whose lists have an element per column.
    unsafe {
        let types = list::oids((*function).funccoltypes);
        let modifiers = list::integers((*function).funccoltypmods);
        let collations = list::oids((*function).funccolcollations);
        if !types.iter().eq(table.columns.iter().map(|column| &column.declared)) {
            return None;
        }
        let declared = table.columns.iter().zip(modifiers).zip(collations);
        let targets = (1..).zip(declared).map(|(number, ((column, typmod), collation))| {
            let mut value = column_of(column);
            if (typmod, collation) != (column.typmod, column.collation) {
                let format = pg_sys::CoercionForm::COERCE_IMPLICIT_CAST;
                value = pg_sys::makeRelabelType(value, column.declared, typmod, collation, format).cast();
            }
            pg_sys::makeTargetEntry(value, number, name_of(column), false)
        });
        Some(targets.collect())
    }
}

/// A column's name in the database's encoding, palloc'd.
unsafe fn name_of(column: &Column) -> *mut std::ffi::c_char {
    let name = CString::new(column.name.as_str()).unwrap_or_default();
    // SAFETY: the text ends in NUL, and is copied.
    unsafe { pg_sys::pstrdup(text::to_server(&name)) }
}

/// `SELECT targets FROM ONLY table AS alias WHERE conditions`.
unsafe fn make_query(
    relation: pg_sys::Relation,
    table: &Table,
    alias: *const std::ffi::c_char,
    targets: &[*mut pg_sys::TargetEntry],
    conditions: &[*mut pg_sys::Expr],
) -> *mut pg_sys::Query {
    // SAFETY: the structs belong to the tags; the caller passes a table that is open and locked, and valid nodes.
    unsafe {
        let names = PgTupleDesc::from_pg_copy((*relation).rd_att)
            .iter()
            .map(|attribute| {
                let name = if attribute.attisdropped { c"".as_ptr() } else { attribute.attname.data.as_ptr() };
                pg_sys::makeString(pg_sys::pstrdup(name))
            })
            .collect::<Vec<_>>();
        let read = table.columns.iter().fold(std::ptr::null_mut(), |read, column| {
            pg_sys::bms_add_member(read, c_int::from(column.number) - pg_sys::FirstLowInvalidHeapAttributeNumber)
        });
        let entry = nodes::make::<pg_sys::RangeTblEntry>(pg_sys::NodeTag::T_RangeTblEntry);
        (*entry).rtekind = pg_sys::RTEKind::RTE_RELATION;
        (*entry).relid = table.relation;
        (*entry).relkind = (*(*relation).rd_rel).relkind;
        (*entry).rellockmode = pg_sys::AccessShareLock as c_int;
        (*entry).alias = pg_sys::makeAlias(alias, std::ptr::null_mut());
        (*entry).eref = pg_sys::makeAlias(alias, list::from_elements(&names));
        (*entry).inFromCl = true;
        let query = nodes::make::<pg_sys::Query>(pg_sys::NodeTag::T_Query);
        // As for the function, the rights are those of whoever runs the query.
        #[cfg(feature = "pg15")]
        {
            (*entry).requiredPerms = pg_sys::ACL_SELECT;
            (*entry).selectedCols = read;
        }
        #[cfg(not(feature = "pg15"))]
        {
            let rights = nodes::make::<pg_sys::RTEPermissionInfo>(pg_sys::NodeTag::T_RTEPermissionInfo);
            (*rights).relid = table.relation;
            (*rights).requiredPerms = pg_sys::ACL_SELECT.into();
            (*rights).selectedCols = read;
            (*query).rteperminfos = list::from_elements(&[rights]);
            (*entry).perminfoindex = 1;
        }
        let reference = nodes::make::<pg_sys::RangeTblRef>(pg_sys::NodeTag::T_RangeTblRef);
        (*reference).rtindex = 1;
        let condition = match conditions {
            [condition] => *condition,
            conditions => pg_sys::make_andclause(list::from_elements(conditions)),
        };
        (*query).commandType = pg_sys::CmdType::CMD_SELECT;
        (*query).querySource = pg_sys::QuerySource::QSRC_ORIGINAL;
        (*query).canSetTag = true;
        (*query).rtable = list::from_elements(&[entry]);
        (*query).jointree = pg_sys::makeFromExpr(list::from_elements(&[reference]), condition.cast());
        (*query).targetList = list::from_elements(targets);
        (*query).stmt_location = -1;
        query
    }
}
