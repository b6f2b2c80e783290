//! The rows of `transship.followed_tables`: which shared tables follow their source, by which view.

use std::cell::RefCell;
use std::ffi::CStr;

use pgrx::pg_sys;

use super::rows::{self, Reader};

const FOLLOWED: &CStr = c"followed_tables";
const KEY: &CStr = c"followed_tables_pkey";
const VIEW_KEY: &CStr = c"followed_tables_view_key";
const SOURCE_INDEX: &CStr = c"followed_tables_source_idx";

/// That a shared table follows its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Following {
    pub table: pg_sys::Oid,
    /// Its query, as a view that belongs to the table's owner.
    pub view: pg_sys::Oid,
    /// The ordinary table that the query reads.
    pub source: pg_sys::Oid,
}

/// What a shared table follows now, as far as transactions have committed and this one has written; none if it follows nothing.
pub(super) fn of_table(table: pg_sys::Oid) -> Option<Following> {
    find(KEY, 1, table).pop()
}

/// The shared tables whose query a view is.
pub(super) fn of_view(view: pg_sys::Oid) -> Option<Following> {
    find(VIEW_KEY, 2, view).pop()
}

/// The shared tables that follow a table, in an order in which sessions that write to the table do not wait for each other.
pub(super) fn of_source(source: pg_sys::Oid) -> Vec<Following> {
    let mut found = find(SOURCE_INDEX, 3, source);
    found.sort_unstable_by_key(|following| following.table.to_u32());
    found
}

fn find(index: &CStr, attribute: i16, key: pg_sys::Oid) -> Vec<Following> {
    let mut found = Vec::new();
    visit((index, attribute, key), pg_sys::AccessShareLock, |following, _, _| found.push(following));
    found
}

/// A shared table no longer follows anything.
pub(super) fn delete(table: pg_sys::Oid) {
    visit((KEY, 1, table), pg_sys::RowExclusiveLock, |_, reader, tuple| {
        // SAFETY: the reader has found the row, and has locked its relation for writing.
        unsafe { reader.delete(tuple) }
    });
    // SAFETY: what was deleted is not seen by the commands that follow.
    unsafe { pg_sys::CommandCounterIncrement() };
}

fn visit(
    (index, attribute, key): (&CStr, i16, pg_sys::Oid),
    lock: u32,
    mut work: impl FnMut(Following, &Reader, pg_sys::HeapTuple),
) {
    // SAFETY: the columns are those that the extension's script declares; the snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let key = pg_sys::Datum::from(key);
        let mut reader = Reader::open((FOLLOWED, index), pg_sys::F_OIDEQ, key, attribute, snapshot, lock);
        while let Some(tuple) = reader.next() {
            let [table, view, source] = reader.values(tuple).map(|value| pg_sys::Oid::from(value.value() as u32));
            work(Following { table, view, source }, &reader, tuple);
        }
        // A lock to write is kept until the transaction ends.
        reader.close(if lock == pg_sys::AccessShareLock { lock } else { pg_sys::NoLock });
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

/// A shared table follows its source from now on.
pub(super) fn insert(following: Following) {
    let Following { table, view, source } = following;
    // SAFETY: the values are of the columns' types. The lock is kept until the transaction ends.
    unsafe {
        let relation = pg_sys::table_open(rows::find(FOLLOWED), pg_sys::RowExclusiveLock as i32);
        rows::insert(relation, [table, view, source].map(pg_sys::Datum::from));
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        pg_sys::CommandCounterIncrement();
    }
}

thread_local! {
    /// The tables that were shared again since the client sent what runs now, and when it did.
    static SHARED_AGAIN: RefCell<(pg_sys::TimestampTz, Vec<pg_sys::Oid>)> = const { RefCell::new((0, Vec::new())) };
}

/// A table was shared again. If an error takes that back, it stays noted, which costs time only.
pub(super) fn note_shared_again(table: pg_sys::Oid) {
    // SAFETY: reads a variable of the process.
    let now = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    SHARED_AGAIN.with_borrow_mut(|(since, tables)| {
        if *since != now {
            (*since, *tables) = (now, Vec::new());
        }
        if !tables.contains(&table) {
            tables.push(table);
        }
    });
}

/// Whether a table may have been shared again after a statement that runs now has begun, with the rows that the statement had
/// inserted by then.
pub(super) fn may_be_shared_again(table: pg_sys::Oid) -> bool {
    // SAFETY: reads a variable of the process.
    let now = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    SHARED_AGAIN.with_borrow(|(since, tables)| *since == now && tables.contains(&table))
}
