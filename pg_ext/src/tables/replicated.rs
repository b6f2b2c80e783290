//! What keeps logical replication from mixing the rows of another database's shared tables with those of this one: a publication for all
//! tables has the extension's tables, too. Constraints keep new rows away; rows are deleted and tables truncated without asking
//! constraints, so triggers do it there. Triggers alone would not do: `pg_restore --disable-triggers` enables all of them in another way.

use pgrx::{pg_guard, pg_sys};
use udf_types::{Error, Kind};

use crate::pg::nodes;
use crate::report;

/// `transship.is_written_here() RETURNS bool`, of the constraints: true, or an error where logical replication writes.
#[pg_guard]
pub unsafe extern "C-unwind" fn is_written_here(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    refuse_worker();
    pg_sys::Datum::from(true)
}

/// `transship.refuse_replicated() RETURNS trigger`: before each row that is deleted, and each table that is truncated, while
/// `session_replication_role` is `replica`, as it is where logical replication writes, and in some restores.
#[pg_guard]
pub unsafe extern "C-unwind" fn refuse_replicated(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo, with a TriggerData as its context if a trigger fires.
    unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || nodes::tag(context) != pg_sys::NodeTag::T_TriggerData {
            let message = "transship.refuse_replicated() can only be called by the extension's own triggers";
            report::raise_error(&Error::invalid_definition(message), None);
        }
        refuse_worker();
        // The row to delete; none where a table is truncated.
        pg_sys::Datum::from((*context.cast::<pg_sys::TriggerData>()).tg_trigtuple)
    }
}

/// Raises an error in a process that applies what another database has written.
fn refuse_worker() {
    // SAFETY: it reads a variable of the process.
    if unsafe { pg_sys::IsLogicalWorker() } {
        let message = "logical replication cannot write the rows of shared tables";
        let hint = "Publish tables by name or by schema, without those of the schema \"transship\".";
        report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
    }
}
