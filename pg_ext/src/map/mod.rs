//! `transship.map(function, query)`: the rows of a query as a stream into a map function, its results as a set.
//!
//! Rows are fetched through a cursor, a batch at a time, while results come back; neither side is ever held as a whole:
//! results go to a tuplestore.

use pgrx::{PgTupleDesc, pg_guard, pg_sys};
use udf_client::driver::Driver;
use udf_client::exchange::MapEvent;
use udf_codec::batch::BatchBuilder;
use udf_types::{Error, Kind};

use crate::datum::from_arrow::ResultReader;
use crate::function::{self, Function, Role};
use crate::pg::{catalog, text};
use crate::query::{Query, QueryColumn};
use crate::result_set::ResultSet;
use crate::stream::Stream;
use crate::{report, settings};

/// `transship.map(regproc, text) RETURNS SETOF record`.
#[pg_guard]
pub unsafe extern "C-unwind" fn map(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with two arguments, neither of them NULL, since the function is STRICT.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(2);
        let oid = pg_sys::Oid::from(arguments[0].value.value() as u32);
        let function = find(oid);
        check_columns(fcinfo, &function);
        let mut results = ResultSet::of_listed(fcinfo, &function.result);
        let query = pg_sys::text_to_cstring(arguments[1].value.cast_mut_ptr());
        let mut rows = Rows::open(query, &function);
        let user = catalog::current_user();
        let tables = function.find_tables(user);
        // Rows and tables are of one version.
        let call = rows.query.under_snapshot(|| report::unwrap(function.call(user, &tables)));
        let stream = Stream::open(oid, call);
        let mut driver = Driver::of_lane(settings::pace(function.max_batch_rows(), false), stream);
        let mut is_done = false;
        loop {
            while !is_done && driver.may_feed() {
                is_done = !rows.send_batch(&mut driver);
                if is_done {
                    driver.end_feed();
                }
            }
            match driver.receive_from_map() {
                Ok(MapEvent::Taken) => {}
                Ok(MapEvent::Results(reply)) => {
                    let reader = ResultReader::new(&function, reply.columns.column(0).clone());
                    (0..reply.columns.num_rows()).for_each(|row| results.add(&reader, row));
                }
                Ok(MapEvent::End) => break,
                Err(error) => {
                    report::raise_error(&error, Some(format!("container function \"{}\"", function.name)));
                }
            }
        }
        rows.query.close();
        (*fcinfo).isnull = true;
        pg_sys::Datum::from(0usize)
    }
}

/// The map function with this oid, if there is one and the user may execute it.
fn find(oid: pg_sys::Oid) -> std::rc::Rc<Function> {
    let language = catalog::container_language();
    if language.is_some_and(|language| function::is_container_function(oid, language)) {
        catalog::check_execute(oid);
        let function = report::unwrap(function::lookup_to_call(oid));
        if function.role == Role::Map {
            return function;
        }
    }
    let error = Error::new(Kind::InvalidDefinition, "transship.map needs a map function")
        .with_hint("A map function is a container function with kind = \"map\" in its body.");
    report::raise_error(&error, None)
}

/// Raises an error unless the columns that the query asks for are those of the function's results.
unsafe fn check_columns(fcinfo: pg_sys::FunctionCallInfo, function: &Function) {
    // SAFETY: the caller passes a valid fcinfo; PostgreSQL fills in the descriptor where it knows the columns.
    unsafe {
        let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        // Among a query's results, each call may be of other columns, which PostgreSQL would read as those of the first.
        if info.is_null() || (*info).expectedDesc.is_null() {
            let message = "transship.map can only stand in FROM";
            let hint = "Write FROM transship.map(...) AS t (column definitions).";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        let columns = |descriptor| -> Vec<(pg_sys::Oid, String)> {
            let descriptor = PgTupleDesc::from_pg_copy(descriptor);
            let kept = descriptor.iter().filter(|column| !column.attisdropped);
            kept.map(|column| (column.atttypid, text::from_c(column.attname.data.as_ptr()))).collect()
        };
        let (asked, given) = (columns((*info).expectedDesc), columns(function.result.descriptor()));
        if asked.iter().map(|column| column.0).eq(given.iter().map(|column| column.0)) {
            return;
        }
        let list: Vec<_> = given.iter().map(|(ty, name)| format!("{name} {}", catalog::type_name(*ty))).collect();
        let message = format!("column definition list does not match map function \"{}\"", function.name);
        let error =
            Error::new(Kind::SignatureMismatch, message).with_hint(format!("Write AS t ({}).", list.join(", ")));
        report::raise_error(&error, None);
    }
}

/// The query's rows, in batches of calls.
struct Rows {
    query: Query,
    builder: BatchBuilder,
}

impl Rows {
    unsafe fn open(query: *mut std::ffi::c_char, function: &Function) -> Rows {
        // SAFETY: the text ends in NUL.
        let query = unsafe { Query::open(query, "transship.map") };
        check_query(function, query.columns());
        Rows { query, builder: BatchBuilder::new(&function.signature) }
    }

    /// Sends the next batch; false if there are no more rows.
    unsafe fn send_batch(&mut self, driver: &mut Driver<Stream>) -> bool {
        loop {
            // SAFETY: the columns are of the types of the function's arguments, which was checked.
            let count = unsafe { self.query.fetch(&mut self.builder, |_| {}) };
            let is_full = driver.pace().is_full(self.builder.rows(), self.builder.bytes());
            if is_full || (count == 0 && self.builder.rows() > 0) {
                driver.feed(self.builder.finish_batch());
                return true;
            }
            if count == 0 {
                return false;
            }
        }
    }
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
