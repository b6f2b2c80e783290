//! What the triggers on the extension's own tables do: they keep logical replication from mixing the rows of another database's shared
//! tables with those of this one. A publication for all tables has the extension's tables, too.

use pgrx::{pg_guard, pg_sys};
use udf_types::{Error, Kind};

use crate::pg::nodes;
use crate::report;

/// `transship.refuse_replicated() RETURNS trigger`: before each row that is written while `session_replication_role` is `replica`, as it is
/// where logical replication writes, and in some restores.
#[pg_guard]
pub unsafe extern "C-unwind" fn refuse_replicated(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo, with a TriggerData as its context if a trigger fires.
    unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || nodes::tag(context) != pg_sys::NodeTag::T_TriggerData {
            let message = "transship.refuse_replicated() can only be called by the extension's own triggers";
            report::raise_error(&Error::invalid_definition(message), None);
        }
        if pg_sys::IsLogicalWorker() {
            let message = "logical replication cannot write the rows of shared tables";
            let hint = "Publish tables by name or by schema, without those of the schema \"transship\".";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        let data = &*context.cast::<pg_sys::TriggerData>();
        let is_update = data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_UPDATE;
        pg_sys::Datum::from(if is_update { data.tg_newtuple } else { data.tg_trigtuple })
    }
}
