//! The rows of a query that is given as text, as Arrow columns: fetched through a cursor, with the caller's rights.

use std::ffi::c_char;

use pgrx::{PgTupleDesc, pg_sys};
use udf_codec::batch::BatchBuilder;
use udf_types::{Error, Kind};

use crate::datum::{SqlType, to_arrow};
use crate::pg::memory::{OwnedContext, within};
use crate::pg::text;
use crate::report;

/// Most rows that are fetched at a time.
const MOST_ROWS: usize = 64;
/// Bytes of the rows that should be fetched at a time.
const FETCH_BYTES: usize = 1 << 20;

/// A query that runs.
pub struct Query {
    portal: pg_sys::Portal,
    columns: Vec<QueryColumn>,
    values_context: OwnedContext,
    /// Rows to fetch next: few of wide ones, which are all in memory at a time.
    next_rows: usize,
}

/// A column of its rows.
#[derive(Debug)]
pub struct QueryColumn {
    pub name: String,
    /// Its declared type, which may be a domain.
    pub declared: pg_sys::Oid,
    pub typmod: i32,
    pub collation: pg_sys::Oid,
    pub sql_type: SqlType,
}

impl QueryColumn {
    /// A column as a descriptor of rows has it. Raises an error if its type cannot be mapped.
    pub fn of(attribute: &pg_sys::FormData_pg_attribute) -> QueryColumn {
        QueryColumn {
            // SAFETY: an attribute's name ends in NUL.
            name: unsafe { text::from_c(attribute.attname.data.as_ptr()) },
            declared: attribute.atttypid,
            typmod: attribute.atttypmod,
            collation: attribute.attcollation,
            sql_type: report::unwrap(SqlType::new(attribute.atttypid)),
        }
    }
}

impl Query {
    /// Starts a query, and connects SPI for it. Raises an error unless the text is one statement that returns rows, of types that
    /// can be mapped; `caller` is the SQL function that needs it.
    ///
    /// # Safety
    /// The text ends in NUL. SPI's state is cleaned up by PostgreSQL if an error ends the statement.
    pub unsafe fn open(query: *const c_char, caller: &str) -> Query {
        // SAFETY: the caller says so.
        unsafe {
            let values_context = OwnedContext::new(pg_sys::CurrentMemoryContext);
            pg_sys::SPI_connect();
            let plan = pg_sys::SPI_prepare(query, 0, std::ptr::null_mut());
            if plan.is_null() || !pg_sys::SPI_is_cursor_plan(plan) {
                let message = format!("{caller} needs a query that returns rows");
                report::raise_error(&Error::new(Kind::InvalidDefinition, message), None);
            }
            let nothing = std::ptr::null_mut();
            let portal = pg_sys::SPI_cursor_open(std::ptr::null(), plan, nothing, std::ptr::null(), false);
            // What values of domains have called, between two fetches, could close every cursor. An error unpins it.
            pg_sys::PinPortal(portal);
            let descriptor = PgTupleDesc::from_pg_copy((*portal).tupDesc);
            let columns = descriptor.iter().map(QueryColumn::of).collect();
            Query { portal, columns, values_context, next_rows: 1 }
        }
    }

    /// Does something under the snapshot that its rows are seen with.
    pub fn under_snapshot<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the portal is open. One that does not run its query itself does so, with a new snapshot, when rows are first fetched.
        unsafe {
            let description = (*self.portal).queryDesc;
            let own = if description.is_null() { std::ptr::null_mut() } else { (*description).snapshot };
            pg_sys::PushActiveSnapshot(if own.is_null() { pg_sys::GetTransactionSnapshot() } else { own });
            let result = work();
            pg_sys::PopActiveSnapshot();
            result
        }
    }

    /// The columns.
    pub fn columns(&self) -> &[QueryColumn] {
        &self.columns
    }

    /// Its plan; none of a query that the portal does not simply run, such as one with RETURNING.
    pub fn plan(&self) -> Option<&pg_sys::PlannedStmt> {
        // SAFETY: the portal is open. It has a description of the query that it runs, and the plan lives as long.
        unsafe {
            let is_plain = (*self.portal).strategy == pg_sys::PortalStrategy::PORTAL_ONE_SELECT;
            (*self.portal).queryDesc.as_ref().filter(|_| is_plain)?.plannedstmt.as_ref()
        }
    }

    /// Adds the next rows, so many at most, to a builder that was made for the columns' types, and calls `after` after each; how many.
    ///
    /// # Safety
    /// SPI is connected as [`Query::open`] has left it.
    pub unsafe fn fetch(
        &mut self,
        builder: &mut BatchBuilder,
        most: usize,
        mut after: impl FnMut(&mut BatchBuilder),
    ) -> usize {
        // SAFETY: the portal is open; rows are read before they are freed.
        unsafe {
            let mut bytes = 0;
            pg_sys::SPI_cursor_fetch(self.portal, true, self.next_rows.min(most).max(1) as i64);
            let count = usize::try_from(pg_sys::SPI_processed).unwrap_or(0);
            let table = pg_sys::SPI_tuptable;
            for i in 0..count {
                let before = builder.bytes();
                self.add_row(*(*table).vals.add(i), (*table).tupdesc, builder);
                bytes += builder.bytes().saturating_sub(before);
                after(builder);
            }
            pg_sys::SPI_freetuptable(table);
            let row_bytes = bytes / count.max(1);
            self.next_rows = (FETCH_BYTES / row_bytes.max(1)).min(2 * self.next_rows).clamp(1, MOST_ROWS);
            count
        }
    }

    unsafe fn add_row(&self, tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc, builder: &mut BatchBuilder) {
        // SAFETY: the caller passes a row of the query, and a builder of its columns' types.
        unsafe {
            within(self.values_context.as_ptr(), || {
                for (i, column) in self.columns.iter().enumerate() {
                    let mut is_null = false;
                    let number = i32::try_from(i + 1).unwrap_or(i32::MAX);
                    let datum = pg_sys::SPI_getbinval(tuple, descriptor, number, &mut is_null);
                    to_arrow::append(builder.column(i), &column.sql_type, datum, is_null);
                }
            });
        }
        self.values_context.reset();
        builder.finish_row();
    }

    /// Ends the query, and SPI's connection.
    pub fn close(self) {
        // SAFETY: the portal is open, and SPI connected.
        unsafe {
            pg_sys::UnpinPortal(self.portal);
            pg_sys::SPI_cursor_close(self.portal);
            pg_sys::SPI_finish();
        }
    }
}
