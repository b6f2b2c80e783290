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
use crate::datum::{SqlType, to_arrow};
use crate::function::{self, Function, Role};
use crate::pg::memory::{OwnedContext, within};
use crate::pg::{catalog, text};
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
        let mut results = ResultSet::new(fcinfo, &function.result);
        let query = pg_sys::text_to_cstring(arguments[1].value.cast_mut_ptr());
        let mut rows = Rows::open(query, &function);
        let stream = Stream::open(oid, report::unwrap(function.call(catalog::current_user())));
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
        rows.close();
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
        if info.is_null() || (*info).expectedDesc.is_null() {
            return;
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

/// The query's rows.
struct Rows {
    portal: pg_sys::Portal,
    columns: Vec<SqlType>,
    builder: BatchBuilder,
    values_context: OwnedContext,
}

impl Rows {
    unsafe fn open(query: *mut std::ffi::c_char, function: &Function) -> Rows {
        // SAFETY: the query ends in NUL. SPI's state is cleaned up by PostgreSQL if an error ends the statement.
        unsafe {
            let values_context = OwnedContext::new(pg_sys::CurrentMemoryContext);
            pg_sys::SPI_connect();
            let plan = pg_sys::SPI_prepare(query, 0, std::ptr::null_mut());
            if plan.is_null() || !pg_sys::SPI_is_cursor_plan(plan) {
                let error = Error::new(Kind::InvalidDefinition, "transship.map needs a query that returns rows");
                report::raise_error(&error, None);
            }
            let nothing = std::ptr::null_mut();
            let portal = pg_sys::SPI_cursor_open(std::ptr::null(), plan, nothing, std::ptr::null(), false);
            let descriptor = PgTupleDesc::from_pg_copy((*portal).tupDesc);
            let mut columns = Vec::new();
            for column in descriptor.iter() {
                let name = text::from_c(column.attname.data.as_ptr());
                columns.push((name, report::unwrap(SqlType::new(column.atttypid))));
            }
            check_query(function, &columns);
            Rows {
                portal,
                columns: columns.into_iter().map(|(_, sql_type)| sql_type).collect(),
                builder: BatchBuilder::new(&function.signature),
                values_context,
            }
        }
    }

    /// Sends the next batch; false if there are no more rows.
    unsafe fn send_batch(&mut self, driver: &mut Driver<Stream>) -> bool {
        // SAFETY: the portal is open; rows are read before they are freed, and have the columns that were checked.
        unsafe {
            loop {
                // Few at a time, so that wide rows are not held in number.
                pg_sys::SPI_cursor_fetch(self.portal, true, 64);
                let count = usize::try_from(pg_sys::SPI_processed).unwrap_or(0);
                let table = pg_sys::SPI_tuptable;
                for i in 0..count {
                    self.add_row(*(*table).vals.add(i), (*table).tupdesc);
                }
                pg_sys::SPI_freetuptable(table);
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

    unsafe fn add_row(&mut self, tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc) {
        // SAFETY: the caller passes a row of the query.
        unsafe {
            within(self.values_context.as_ptr(), || {
                for (i, sql_type) in self.columns.iter().enumerate() {
                    let mut is_null = false;
                    let number = i32::try_from(i + 1).unwrap_or(i32::MAX);
                    let datum = pg_sys::SPI_getbinval(tuple, descriptor, number, &mut is_null);
                    to_arrow::append(self.builder.column(i), sql_type, datum, is_null);
                }
            });
        }
        self.values_context.reset();
        self.builder.finish_row();
    }

    fn close(self) {
        // SAFETY: the portal is open, and SPI connected.
        unsafe {
            pg_sys::SPI_cursor_close(self.portal);
            pg_sys::SPI_finish();
        }
    }
}

/// Raises an error unless the query's columns are the function's arguments.
fn check_query(function: &Function, columns: &[(String, SqlType)]) {
    let message = format!("the query does not match the arguments of map function \"{}\"", function.name);
    let error = |detail: String| {
        report::raise_error(&Error::new(Kind::SignatureMismatch, message.clone()).with_detail(detail), None)
    };
    let arguments = &function.signature.arguments;
    if columns.len() != arguments.len() {
        error(format!("The query has {} columns, the function {} arguments.", columns.len(), arguments.len()))
    }
    for ((name, column), argument) in columns.iter().zip(arguments) {
        if column.ty != argument.ty {
            error(format!("Column \"{name}\" is {}, not {}; cast it in the query.", column.ty, argument.ty))
        }
    }
}
