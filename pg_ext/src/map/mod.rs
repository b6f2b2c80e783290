//! `transship.map(function, query)`: the rows of a query as a stream into a map function, its results as a set.
//!
//! Rows are fetched through a cursor, a batch at a time, while results come back; neither side is ever held as a whole:
//! results go to a tuplestore. If the query is nothing but columns of another such call, that call's results are handed on as columns
//! ([`chain`]).

mod backlog;
mod chain;
mod inner;

use std::ffi::c_char;

use pgrx::pg_sys::elog::PgLogLevel;
use pgrx::{PgTupleDesc, pg_guard, pg_sys};
use udf_types::{Error, Kind};

use crate::datum::from_arrow::ResultReader;
use crate::function::{self, Function, Role};
use crate::map::chain::{Chain, Link};
use crate::map::inner::Inner;
use crate::pg::{catalog, rights, text};
use crate::query::{Query, QueryColumn};
use crate::result_set::ResultSet;
use crate::{report, settings};

/// Calls of a chain, at most.
const MOST_CALLS: usize = 16;

/// `transship.map(regproc, text) RETURNS SETOF record`.
#[pg_guard]
pub unsafe extern "C-unwind" fn map(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with two arguments, neither of them NULL, since the function is STRICT. The memory context
    // and the resource owner that are current outlive the call.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(2);
        let oid = pg_sys::Oid::from(arguments[0].value.value() as u32);
        let function = find(oid);
        check_columns(&asked_columns(fcinfo), &function);
        let mut results = ResultSet::of_listed(fcinfo, &function.result);
        let query = pg_sys::text_to_cstring(arguments[1].value.cast_mut_ptr());
        let context = pg_sys::CurrentMemoryContext;
        let mut chain = Chain::new(links(oid, query, (*(*fcinfo).flinfo).fn_oid), context);
        chain.run(|function, reply| {
            let reader = ResultReader::new(function, reply.columns.column(0).clone());
            (0..reply.columns.num_rows()).for_each(|row| results.add(&reader, row));
        });
        chain.close();
        (*fcinfo).isnull = true;
        pg_sys::Datum::from(0usize)
    }
}

/// The calls that a call of `transship.map` consists of, whose own oid is `map`: those whose results are handed on first.
unsafe fn links(mut oid: pg_sys::Oid, mut query: *mut c_char, map: pg_sys::Oid) -> Vec<Link> {
    let mut links = Vec::new();
    loop {
        let function = find(oid);
        // SAFETY: the caller passes a text that ends in NUL, and so does a plan.
        let opened = unsafe { Query::open(query, "transship.map") };
        check_query(&function, opened.columns());
        let user = catalog::current_user();
        let tables = function.find_tables(user);
        // Rows and tables are of one version.
        let call = opened.under_snapshot(|| report::unwrap(function.call(user, &tables)));
        let inner = inner_call(&opened, map).filter(|_| settings::is_fusing() && links.len() + 1 < MOST_CALLS);
        let (columns, next) = match inner {
            Some(inner) => (Some(inner.columns), Some((inner.function, inner.query))),
            None => (None, None),
        };
        links.push(Link { oid, function, call, query: opened, columns });
        let Some(next) = next else { break };
        (oid, query) = next;
    }
    links.windows(2).for_each(|pair| tell_fused(&pair[0].function, &pair[1].function));
    links.reverse();
    links
}

/// The call whose results a query hands on as they come, if it is nothing else.
fn inner_call(query: &Query, map: pg_sys::Oid) -> Option<Inner> {
    let inner = Inner::of(query.plan()?, map)?;
    let function = find(inner.function);
    check_columns(&inner.types, &function);
    function.result.may_go_on().then_some(inner)
}

/// Tells who looks for it that a map function takes results of another as they come.
fn tell_fused(outer: &Function, inner: &Function) {
    let message = format!("map function \"{}\" takes the results of \"{}\" as columns", outer.name, inner.name);
    report::say(PgLogLevel::DEBUG1, &message);
}

/// The map function with this oid, if there is one and the user may execute it.
fn find(oid: pg_sys::Oid) -> std::rc::Rc<Function> {
    let language = catalog::container_language();
    if language.is_some_and(|language| function::is_container_function(oid, language)) {
        rights::check_execute(oid);
        let function = report::unwrap(function::lookup_to_call(oid));
        if function.role == Role::Map {
            return function;
        }
    }
    let error = Error::new(Kind::InvalidDefinition, "transship.map needs a map function")
        .with_hint("A map function is a container function with kind = \"map\" in its body.");
    report::raise_error(&error, None)
}

/// The types of the columns that a query asks for.
unsafe fn asked_columns(fcinfo: pg_sys::FunctionCallInfo) -> Vec<pg_sys::Oid> {
    // SAFETY: the caller passes a valid fcinfo; PostgreSQL fills in the descriptor where it knows the columns.
    unsafe {
        let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        // Among a query's results, each call may be of other columns, which PostgreSQL would read as those of the first.
        if info.is_null() || (*info).expectedDesc.is_null() {
            let message = "transship.map can only stand in FROM";
            let hint = "Write FROM transship.map(...) AS t (column definitions).";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        columns_of((*info).expectedDesc).into_iter().map(|column| column.0).collect()
    }
}

/// The types and names of a descriptor's columns.
unsafe fn columns_of(descriptor: pg_sys::TupleDesc) -> Vec<(pg_sys::Oid, String)> {
    // SAFETY: the caller passes a valid descriptor, which is copied.
    unsafe {
        let descriptor = PgTupleDesc::from_pg_copy(descriptor);
        let kept = descriptor.iter().filter(|column| !column.attisdropped);
        kept.map(|column| (column.atttypid, text::from_c(column.attname.data.as_ptr()))).collect()
    }
}

/// Raises an error unless the columns that a query asks for are those of the function's results.
fn check_columns(asked: &[pg_sys::Oid], function: &Function) {
    // SAFETY: the descriptor is valid.
    let given = unsafe { columns_of(function.result.descriptor()) };
    if given.iter().map(|column| column.0).eq(asked.iter().copied()) {
        return;
    }
    let list: Vec<_> = given.iter().map(|(ty, name)| format!("{name} {}", catalog::type_name(*ty))).collect();
    let message = format!("column definition list does not match map function \"{}\"", function.name);
    let error = Error::new(Kind::SignatureMismatch, message).with_hint(format!("Write AS t ({}).", list.join(", ")));
    report::raise_error(&error, None)
}

/// Raises an error unless the query's columns are the function's arguments.
fn check_query(function: &Function, columns: &[QueryColumn]) {
    let message = format!("the query does not match the arguments of map function \"{}\"", function.name);
    let error = |detail: String| {
        report::raise_error(&Error::new(Kind::SignatureMismatch, message.clone()).with_detail(detail), None)
    };
    let arguments = &function.signature.arguments;
    if columns.len() != arguments.len() {
        error(format!("The query has {} columns, the function {} arguments.", columns.len(), arguments.len()))
    }
    for (column, argument) in columns.iter().zip(arguments) {
        let (name, ty) = (&column.name, &column.sql_type.ty);
        if *ty != argument.ty {
            error(format!("Column \"{name}\" is {ty}, not {}; cast it in the query.", argument.ty))
        }
    }
}
