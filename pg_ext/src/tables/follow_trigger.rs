//! What the triggers of followed tables do: shared tables get the rows that a statement has inserted, and are shared again after
//! statements that do anything else.
//!
//! Appends hold RowExclusiveLock on the shared table until their transaction ends, and sharing again takes ShareRowExclusiveLock before its
//! snapshot, which is a new one in transactions of all isolation levels. So it sees the rows of every append that it replaces. A transaction whose rows are not appended yet does so later.

use std::ffi::CStr;

use pgrx::{pg_guard, pg_sys};
use udf_types::{Error, Kind};

use super::follow::{self, Definition};
use super::followed::{self, Following};
use super::followed_rows::FollowedRows;
use super::rows::{self, Id};
use super::source::Source;
use super::{Table, share};
use crate::pg::{nodes, text};
use crate::report;

/// Why a table cannot follow whose view is not as it was made.
const CHANGED: &str = "Its view is gone, has another owner than the shared table, or reads another table.";

/// `transship.follow_source() RETURNS trigger`: of the tables that shared tables follow.
#[pg_guard]
pub unsafe extern "C-unwind" fn follow_source(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    let nothing = pg_sys::Datum::from(0usize);
    // SAFETY: PostgreSQL passes a valid fcinfo, with a TriggerData as its context if a trigger fires. Transition tables are there, if
    // the trigger was declared with them.
    unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || nodes::tag(context) != pg_sys::NodeTag::T_TriggerData {
            report::raise_error(&misplaced(), None);
        }
        let data = &*context.cast::<pg_sys::TriggerData>();
        let source = data.tg_relation;
        if pg_sys::IsLogicalWorker() {
            let name = text::from_c((*(*source).rd_rel).relname.data.as_ptr());
            let message = format!("logical replication cannot write to table \"{name}\", which shared tables follow");
            let hint = "Share their rows again without following, or have them follow the table of the publisher.";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        if data.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0 {
            return nothing;
        }
        let (name, store) = match data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => (follow::INSERT, Some(data.tg_newtable)),
            pg_sys::TRIGGER_EVENT_UPDATE => (follow::UPDATE, Some(data.tg_oldtable)),
            pg_sys::TRIGGER_EVENT_DELETE => (follow::DELETE, Some(data.tg_oldtable)),
            _ => (follow::TRUNCATE, None),
        };
        // A second trigger for the same event would append rows twice.
        let is_own = CStr::from_ptr((*data.tg_trigger).tgname) == name && !store.is_some_and(|store| store.is_null());
        if !is_own || data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_AFTER {
            report::raise_error(&misplaced(), None);
        }
        if store.is_some_and(|store| pg_sys::tuplestore_tuple_count(store) == 0) {
            return nothing;
        }
        let followings = followed::of_source((*source).rd_id);
        if followings.is_empty() {
            warn_of_copy(source);
        }
        for following in followings {
            keep_up(following, source, store.filter(|_| name == follow::INSERT));
        }
    }
    nothing
}

/// The error of a call that none of the extension's triggers makes.
fn misplaced() -> Error {
    Error::invalid_definition("transship.follow_source() can only be called by the triggers that transship.share makes")
}

/// Warns of triggers that nothing needs: those of this database go with the last table that follows.
unsafe fn warn_of_copy(source: pg_sys::Relation) {
    // SAFETY: the relation is open.
    let name = unsafe { text::from_c((*(*source).rd_rel).relname.data.as_ptr()) };
    let message = format!("no shared table follows table \"{name}\", which has the triggers for it");
    let error = Error::new(Kind::InvalidDefinition, message)
        .with_detail("It is a copy without the rows of transship.followed_tables, or they have not come yet.")
        .with_hint("Share the tables again that are to follow it, or drop its triggers transship_follow_insert, _update, _delete and _truncate.");
    report::warn(&error);
}

/// Gives a shared table the rows that were inserted, or shares it again.
///
/// # Safety
/// The table that it follows is open, and the transition table is of it.
unsafe fn keep_up(following: Following, source: pg_sys::Relation, mut inserted: Option<*mut pg_sys::Tuplestorestate>) {
    let no_lock = pg_sys::NoLock as i32;
    // SAFETY: the caller says so. Relations are open while they are read, and locked until the transaction ends.
    unsafe {
        // What a trigger or another part of the statement has done since may be in the shared table with the rows that were inserted. And if
        // it came with a dump, so may the rows that were inserted.
        let is_copy = !followed::is_own(following.table);
        if is_copy || followed::may_be_shared_again(following.table) {
            inserted = None;
        }
        let lock = if inserted.is_some() { pg_sys::RowExclusiveLock } else { pg_sys::ShareRowExclusiveLock };
        let relation = pg_sys::try_relation_open(following.table, lock as i32);
        if relation.is_null() {
            return;
        }
        // It may have stopped meanwhile, or follow another table.
        if followed::of_table(following.table) != Some(following) {
            pg_sys::relation_close(relation, no_lock);
            return;
        }
        as_owner((*(*relation).rd_rel).relowner, || {
            let table = Table::of(relation);
            let view = open_view(following, &table, (*(*relation).rd_rel).relowner);
            let definition = Definition::of_view(view, &table.name);
            if definition.source != following.source {
                follow::stop(&table.name, CHANGED);
            }
            let rows = match inserted {
                Some(store) => FollowedRows::of_inserted(&definition, view, source, store),
                None => FollowedRows::of_all(&definition, view, source),
            };
            let rows = Source::Followed(rows);
            share::check_columns(&table, rows.columns());
            if inserted.is_some() {
                share::append_rows(&table, rows);
            } else {
                share::replace_rows(&table, rows);
            }
            if is_copy {
                followed::delete(following.table);
                followed::insert(following);
            }
            pg_sys::relation_close(view, no_lock);
        });
        pg_sys::relation_close(relation, no_lock);
    }
}

/// Opens a table's view, whose query is asked as the table's owner, and so must be the owner's.
unsafe fn open_view(following: Following, table: &Table, owner: pg_sys::Oid) -> pg_sys::Relation {
    // SAFETY: the relation is open while it is read.
    unsafe {
        let view = pg_sys::try_relation_open(following.view, pg_sys::AccessShareLock as i32);
        if view.is_null() || (*(*view).rd_rel).relowner != owner {
            follow::stop(&table.name, CHANGED);
        }
        view
    }
}

/// Does something as the owner of a shared table, as PostgreSQL refreshes materialized views: whoever writes to the source gains nothing
/// by it. An error resets user and settings with the transaction.
unsafe fn as_owner(owner: pg_sys::Oid, work: impl FnOnce()) {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: reads and sets the state of the session.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(owner, context | pg_sys::SECURITY_RESTRICTED_OPERATION as i32);
        follow::with_own_settings(work);
        pg_sys::SetUserIdAndSecContext(user, context);
    }
}

/// `transship.leave_segment() RETURNS trigger`: of each row that SQL writes to `transship.table_segments`, as restores do. A table that was shared
/// again since, because the rows of its source have come before, has the segment's rows already. Its chunks stay, which nobody reads then.
#[pg_guard]
pub unsafe extern "C-unwind" fn leave_segment(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    const EVENT: u32 = pg_sys::TRIGGER_EVENT_INSERT | pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_BEFORE;
    // SAFETY: PostgreSQL passes a valid fcinfo, with a TriggerData as its context if a trigger fires. Before a row is inserted, there is one;
    // the columns are those that the extension's script declares, and may be NULL.
    unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || nodes::tag(context) != pg_sys::NodeTag::T_TriggerData {
            report::raise_error(&Error::invalid_definition(LEAVES_OWN), None);
        }
        let data = &*context.cast::<pg_sys::TriggerData>();
        // Anybody may make a trigger of a function on a table of their own.
        if !rows::are_segments((*data.tg_relation).rd_id) || data.tg_event != EVENT {
            report::raise_error(&Error::invalid_definition(LEAVES_OWN), None);
        }
        let row = pg_sys::Datum::from(data.tg_trigtuple);
        let mut are_null = [false; 2];
        let descriptor = (*data.tg_relation).rd_att;
        let table = pg_sys::heap_getattr(data.tg_trigtuple, 1, descriptor, &mut are_null[0]);
        let id = pg_sys::heap_getattr(data.tg_trigtuple, 2, descriptor, &mut are_null[1]);
        if are_null.contains(&true) {
            return row;
        }
        let table = pg_sys::Oid::from(table.value() as u32);
        // Whoever shares it again has done so, or waits until the segment is there.
        pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as i32);
        // One that is there already is an error of the key's, as it would be without this.
        let is_there = || rows::list_now(table).iter().any(|row| row.id == *id.cast_mut_ptr::<Id>());
        if !followed::is_own(table) || is_there() {
            return row;
        }
        let name = pg_sys::get_rel_name(table);
        let name = if name.is_null() { String::new() } else { text::from_c(name) };
        let message = format!(
            "a segment of shared table \"{name}\" was left out, since the table was shared from its source before"
        );
        report::warn(
            &Error::new(Kind::InvalidDefinition, message)
                .with_hint("If the table lacks rows of its source, share it again."),
        );
        pg_sys::Datum::from(0usize)
    }
}

/// The error of a trigger that is not the extension's.
const LEAVES_OWN: &str = "transship.leave_segment() can only be called by the extension's own trigger";

/// `transship.forget_view(relation oid) RETURNS void`: ends that a table follows by a view that was dropped. The extension's trigger
/// calls it.
#[pg_guard]
pub unsafe extern "C-unwind" fn forget_view(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one argument, which is not NULL, since the function is STRICT.
    unsafe {
        let view = pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32);
        if let Some(following) = followed::of_view(view) {
            followed::delete(following.table);
            follow::drop_unused_triggers(following.source);
            let name = pg_sys::get_rel_name(following.table);
            if !name.is_null() {
                let message = format!("shared table \"{}\" no longer follows its source", text::from_c(name));
                report::warn(&Error::new(Kind::InvalidDefinition, message));
            }
        }
    }
    pg_sys::Datum::from(0usize)
}
