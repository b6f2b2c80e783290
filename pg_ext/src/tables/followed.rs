//! The rows of `transship.followed_tables`: which shared tables follow their source, by which view.
//!
//! A row says where it was made. One that came with a dump says nothing of what has been done here: the rows of the source that follow it may be
//! those that the shared table has, too.

use std::cell::RefCell;
use std::ffi::CStr;

use pgrx::pg_sys;

use super::rows::{self, Id, Reader};

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

/// Which row says that.
struct Found {
    following: Following,
    /// Whether this database has made it.
    is_own: bool,
}

/// What a shared table follows now, as far as transactions have committed and this one has written; none if it follows nothing.
pub(super) fn of_table(table: pg_sys::Oid) -> Option<Following> {
    find(KEY, 1, table).pop()
}

/// Whether a shared table follows its source since it was shared in this database, and by nothing that SQL has written.
pub(super) fn is_own(table: pg_sys::Oid) -> bool {
    let mut is_own = false;
    visit((KEY, 1, table), pg_sys::AccessShareLock, |found, _, _| is_own = found.is_own);
    is_own
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
    visit((index, attribute, key), pg_sys::AccessShareLock, |row, _, _| found.push(row.following));
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
    mut work: impl FnMut(Found, &Reader, pg_sys::HeapTuple),
) {
    // SAFETY: the columns are those that the extension's script declares; the snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let key = pg_sys::Datum::from(key);
        let mut reader = Reader::open((FOLLOWED, index), pg_sys::F_OIDEQ, key, attribute, snapshot, lock);
        while let Some(tuple) = reader.next() {
            let [table, view, source, made_by] = reader.values(tuple);
            let oid = |value: pg_sys::Datum| pg_sys::Oid::from(value.value() as u32);
            let following = Following { table: oid(table), view: oid(view), source: oid(source) };
            // The number stays in the row when it is frozen, or its table is written anew.
            let transaction = (*(*tuple).t_data).t_choice.t_heap.t_xmin;
            let is_own = *made_by.cast_mut_ptr::<Id>() == made_by_transaction(transaction);
            work(Found { following, is_own }, &reader, tuple);
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
        let made_by = made_by_transaction(pg_sys::GetCurrentTransactionId());
        let [table, view, source] = [table, view, source].map(pg_sys::Datum::from);
        rows::insert(relation, [table, view, source, pg_sys::Datum::from(made_by.as_ptr())]);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        pg_sys::CommandCounterIncrement();
    }
}

/// What a row says that a transaction of this database has made, whose number the row has as well. Rows that SQL writes have another number
/// than they say.
fn made_by_transaction(transaction: pg_sys::TransactionId) -> Id {
    // SAFETY: reads what does not change in a process.
    let (system, database) = unsafe { (pg_sys::GetSystemIdentifier(), (&raw const pg_sys::MyDatabaseId).read()) };
    let mut made_by = [0; 16];
    made_by[..8].copy_from_slice(&system.to_be_bytes());
    made_by[8..12].copy_from_slice(&database.to_u32().to_be_bytes());
    made_by[12..].copy_from_slice(&transaction.into_inner().to_be_bytes());
    made_by
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
