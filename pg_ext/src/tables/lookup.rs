//! `transship.lookup(table, key, ...)`: the rows of one key, as a set.

use std::collections::HashMap;

use pgrx::{PgMemoryContexts, PgTupleDesc, pg_guard, pg_sys};
use udf_types::{Error, Kind};

use super::scan::Scan;
use super::{Column, Table, is_integer, to_integer};
use crate::pg::memory::within;
use crate::pg::{catalog, rights, text};
use crate::report;
use crate::result_set::ResultSet;

/// What the look-ups of one query in one table share: its version, and how arguments become key values.
struct Lookup {
    scan: Scan,
    casts: Vec<Cast>,
}

/// How an argument becomes a value of a key column's type.
enum Cast {
    /// It is one.
    None,
    /// It is an integer of this type, and is to be one of that.
    Integer(pg_sys::Oid, pg_sys::Oid),
    /// By a function of one argument.
    Function(pg_sys::Oid),
    /// It is a literal without a type.
    Input(pg_sys::Oid, pg_sys::Oid),
}

/// `transship.lookup(name regclass, VARIADIC key "any") RETURNS SETOF record`.
#[pg_guard]
pub unsafe extern "C-unwind" fn lookup(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo, with at least one argument, none of which is NULL, since the function is STRICT.
    unsafe {
        let count = usize::try_from((*fcinfo).nargs).unwrap_or(0);
        let arguments = (*fcinfo).args.as_slice(count);
        let oid = pg_sys::Oid::from(arguments[0].value.value() as u32);
        let info = (*fcinfo).flinfo;
        if (*info).fn_extra.is_null() {
            let none = HashMap::<pg_sys::Oid, Lookup>::new();
            (*info).fn_extra = PgMemoryContexts::For((*info).fn_mcxt).leak_and_drop_on_delete(none).cast();
        }
        let known = &mut *(*info).fn_extra.cast::<HashMap<pg_sys::Oid, Lookup>>();
        let lookup = known.entry(oid).or_insert_with(|| Lookup::new(fcinfo, oid, count));
        let mut results = ResultSet::of_rows(fcinfo, || lookup.scan.table().descriptor());
        let context = results.row_context();
        let key: Vec<_> = within(context, || {
            arguments[1..].iter().zip(&lookup.casts).map(|(argument, cast)| cast.apply(argument.value)).collect()
        });
        lookup.scan.begin_key(&key);
        let columns = lookup.scan.table().columns.len();
        let (mut values, mut nulls) = (vec![pg_sys::Datum::from(0usize); columns], vec![true; columns]);
        while within(context, || lookup.scan.next(&mut values, &mut nulls)) {
            results.add_row(&mut values, &mut nulls);
        }
        (*fcinfo).isnull = true;
        pg_sys::Datum::from(0usize)
    }
}

impl Lookup {
    unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, oid: pg_sys::Oid, count: usize) -> Lookup {
        // SAFETY: the caller passes a valid fcinfo; the relation is open while it is read, and its lock is kept.
        unsafe {
            if pg_sys::get_fn_expr_variadic((*fcinfo).flinfo) {
                let message = "transship.lookup takes the values of a key one by one";
                report::raise_error(&Error::invalid_definition(message), None);
            }
            rights::check_relation(oid, pg_sys::ACL_SELECT);
            let relation = pg_sys::table_open(oid, pg_sys::AccessShareLock as i32);
            let table = Table::of(relation);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            if table.key.len() != count - 1 || table.key.is_empty() {
                let key: Vec<&str> = table.key.iter().map(|position| table.columns[*position].name.as_str()).collect();
                let hint = match key.as_slice() {
                    [] => "It was shared without a key.".to_string(),
                    key => format!("Its key is {}.", key.join(", ")),
                };
                let message = format!("shared table \"{}\" has no key of {} columns", table.name, count - 1);
                report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_hint(hint), None);
            }
            check_columns(fcinfo, &table);
            let casts = table.key.iter().enumerate().map(|(i, position)| {
                let number = i32::try_from(i + 1).unwrap_or(i32::MAX);
                let given = pg_sys::get_fn_expr_argtype((*fcinfo).flinfo, number);
                Cast::new(given, &table.columns[*position])
            });
            let casts = casts.collect();
            let wanted = (0..table.columns.len()).map(|position| (position, position)).collect();
            Lookup { scan: report::unwrap(Scan::new(table, wanted, pg_sys::GetActiveSnapshot())), casts }
        }
    }
}

impl Cast {
    fn new(given: pg_sys::Oid, column: &Column) -> Cast {
        let wanted = column.declared;
        // SAFETY: a lookup of a type that exists. A domain's values are those of its base type.
        let given = unsafe { pg_sys::getBaseType(given) };
        if given == wanted {
            return Cast::None;
        }
        if is_integer(given) && is_integer(wanted) {
            return Cast::Integer(given, wanted);
        }
        // SAFETY: lookups of types that exist.
        unsafe {
            if given == pg_sys::UNKNOWNOID {
                let (mut input, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
                pg_sys::getTypeInputInfo(wanted, &mut input, &mut parameter);
                return Cast::Input(input, parameter);
            }
            let mut function = pg_sys::InvalidOid;
            let implicit = pg_sys::CoercionContext::COERCION_IMPLICIT;
            match pg_sys::find_coercion_pathway(wanted, given, implicit, &mut function) {
                pg_sys::CoercionPathType::COERCION_PATH_RELABELTYPE => return Cast::None,
                // Of PostgreSQL's own, which everybody may call.
                pg_sys::CoercionPathType::COERCION_PATH_FUNC
                    if pg_sys::get_func_nargs(function) == 1 && function.to_u32() < pg_sys::FirstNormalObjectId =>
                {
                    return Cast::Function(function);
                }
                _ => {}
            }
        }
        let (given, wanted) = (catalog::type_name(given), catalog::type_name(wanted));
        let message = format!("key column \"{}\" is {wanted}, not {given}", column.name);
        let hint = format!("Cast the value to {wanted}.");
        report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_hint(hint), None)
    }

    /// The key column's value; none if no row has it.
    unsafe fn apply(&self, value: pg_sys::Datum) -> Option<pg_sys::Datum> {
        // SAFETY: the value is of the type for which the cast was found.
        let value = unsafe {
            match self {
                Cast::None => value,
                Cast::Integer(given, wanted) => return to_integer(value, *given, *wanted),
                Cast::Function(function) => pg_sys::OidFunctionCall1Coll(*function, pg_sys::InvalidOid, value),
                Cast::Input(input, parameter) => {
                    pg_sys::OidInputFunctionCall(*input, value.cast_mut_ptr(), *parameter, -1)
                }
            }
        };
        Some(value)
    }
}

/// Raises an error unless the columns that the query asks for are the table's.
unsafe fn check_columns(fcinfo: pg_sys::FunctionCallInfo, table: &Table) {
    // SAFETY: the caller passes a valid fcinfo; PostgreSQL fills in the descriptor where it knows the columns.
    unsafe {
        let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        // Among a query's results, each call may be of other columns, which PostgreSQL would read as those of the first.
        if info.is_null() || (*info).expectedDesc.is_null() {
            let message = "transship.lookup can only stand in FROM";
            let hint = "Write FROM transship.lookup(...) AS t (column definitions).";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        let asked = PgTupleDesc::from_pg_copy((*info).expectedDesc);
        let asked = asked.iter().filter(|column| !column.attisdropped).map(|column| column.atttypid);
        if asked.eq(table.columns.iter().map(|column| column.declared)) {
            return;
        }
    }
    let list = table.columns.iter().map(|column| format!("{} {}", column.name, catalog::type_name(column.declared)));
    let message = format!("column definition list does not match shared table \"{}\"", table.name);
    let hint = format!("Write AS t ({}).", list.collect::<Vec<_>>().join(", "));
    report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_hint(hint), None);
}

impl Table {
    /// A descriptor of its rows, in the current memory context; columns that were dropped are left out.
    fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: lookups of types that exist; names are copied.
        unsafe {
            let count = i32::try_from(self.columns.len()).unwrap_or(0);
            let descriptor = pg_sys::CreateTemplateTupleDesc(count);
            for (number, column) in (1..).zip(&self.columns) {
                let name = std::ffi::CString::new(column.name.as_str()).unwrap_or_default();
                let name = text::to_server(&name);
                pg_sys::TupleDescInitEntry(descriptor, number, name, column.declared, column.typmod, 0);
            }
            pg_sys::BlessTupleDesc(descriptor)
        }
    }
}
