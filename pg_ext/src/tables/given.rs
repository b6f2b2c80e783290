//! The shared tables that a function's body names, as its container is given them: the files of the version that a snapshot sees.
//!
//! Names are found, and rights checked, when a query begins, and row by row with each call: then what a name leads to does not depend
//! on when somebody fetches rows. Which version that is decides the snapshot under which files are opened.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use pgrx::{PgSqlErrorCode, pg_sys};
use shared_tables::segment::{Digest, SegmentWriter};
use udf_client::tables::{MOST_FILES, SharedTable};
use udf_types::{Error, Kind, Result};

use super::places::ROOM_HINT;
use super::rows::Row;
use super::{Table, memory, rows, with_snapshot};
use crate::pg::{rights, text};

/// Attempts to open a segment that others remove from memory meanwhile.
const MOST_ATTEMPTS: usize = 10;

/// What a name led to: a table, locked until the transaction ends, or nothing; and who wants to read it.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    name: String,
    relation: pg_sys::Oid,
    user: pg_sys::Oid,
}

/// Which rows a statement sees of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableVersion {
    table: pg_sys::Oid,
    schema: SchemaRef,
    key: Vec<usize>,
    segments: Vec<Digest>,
}

/// The tables that names lead to, as in a query of this session. That one is missing, or the user must not read it, is an error once a
/// call needs it, as there may be none.
pub(crate) fn find(names: &[String], user: pg_sys::Oid) -> Vec<Named> {
    let find = |name: &String| {
        // A body has no zeros.
        let utf8 = CString::new(name.as_str()).unwrap_or_default();
        let text = text::to_server(&utf8);
        // SAFETY: the text lives until it is copied; lists are palloc'd.
        let relation = unsafe {
            let names = pg_sys::textToQualifiedNameList(pg_sys::cstring_to_text(text));
            let range = pg_sys::makeRangeVarFromNameList(names);
            let (lock, or_nothing) = (pg_sys::AccessShareLock as pg_sys::LOCKMODE, pg_sys::RVROption::RVR_MISSING_OK);
            pg_sys::RangeVarGetRelidExtended(range, lock, or_nothing, None, std::ptr::null_mut())
        };
        Named { name: name.clone(), relation, user }
    };
    names.iter().map(find).collect()
}

/// The versions of tables, as the current statement sees them.
pub(crate) fn versions(tables: &[Named]) -> Vec<TableVersion> {
    let version = |named: &Named| {
        let table = named.table();
        // SAFETY: the snapshot is registered.
        let found = unsafe { with_snapshot(|snapshot| rows::list(table.relation, snapshot)) };
        let segments = found.iter().map(|row| row.digest).collect();
        TableVersion { table: table.relation, schema: table.schema(), key: table.key, segments }
    };
    tables.iter().map(version).collect()
}

/// The files of tables, as the current statement sees them. What it holds of memory counts as mapped by this session, as long as a
/// clone of it lives.
///
/// # Errors
/// There is no memory for all of them together, or one has too many segments, or other columns than its rows.
pub(crate) fn open(tables: &[Named]) -> Result<Vec<SharedTable>> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    // SAFETY: the snapshot is registered.
    unsafe {
        with_snapshot(|snapshot| {
            let found: Vec<_> = tables
                .iter()
                .map(|named| {
                    let table = named.table();
                    let rows = rows::list(table.relation, snapshot);
                    (named, table, rows)
                })
                .collect();
            memory::forget_removed();
            memory::places()?.check_room_together(found.iter().map(|(_, table, rows)| (rows.as_slice(), table)))?;
            check_count(&found)?;
            found.iter().map(|(named, table, rows)| given(named, table, rows, snapshot)).collect()
        })
    }
}

/// All descriptors go to a server at once, and the session holds them.
fn check_count(found: &[(&Named, Table, Vec<Row>)]) -> Result<()> {
    let files =
        |(_, table, rows): &(&Named, Table, Vec<Row>)| rows.len().max(1) * if table.key.is_empty() { 1 } else { 2 };
    let count: usize = found.iter().map(files).sum();
    if count <= MOST_FILES {
        return Ok(());
    }
    let message = "the shared tables of a function have too many segments";
    Err(Error::new(Kind::OutOfRange, message)
        .with_detail(format!("They have {count} files, of which a container can be given {MOST_FILES}."))
        .with_hint("Share the rows of the largest table again."))
}

impl Named {
    /// The table as it is now. Raises an error if there is none, or it was dropped since, or the user must not read it.
    fn table(&self) -> Table {
        // SAFETY: the relation is open while it is read, and locked.
        unsafe {
            let lock = pg_sys::AccessShareLock as i32;
            let relation = match self.relation {
                pg_sys::InvalidOid => std::ptr::null_mut(),
                relation => pg_sys::try_relation_open(relation, lock),
            };
            if relation.is_null() {
                let message = format!("shared table \"{}\" does not exist", self.name);
                pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, message);
            }
            rights::check_relation_for(self.user, self.relation, pg_sys::ACL_SELECT);
            let table = Table::of(relation);
            pg_sys::relation_close(relation, pg_sys::NoLock as i32);
            table
        }
    }
}

/// # Safety
/// The snapshot is registered, and saw the rows.
unsafe fn given(named: &Named, table: &Table, rows: &[Row], snapshot: pg_sys::Snapshot) -> Result<SharedTable> {
    if rows.is_empty() {
        return SharedTable::new(named.name.as_str(), vec![vec![without_rows(table)?]], Arc::new(()));
    }
    let (mut files, mut kept) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in rows {
        pgrx::check_for_interrupts!();
        let mut attempts = 0;
        loop {
            // SAFETY: the caller says so.
            let segment = unsafe { memory::open(row, table, snapshot)? };
            table.check(&segment)?;
            if let Some(found) = memory::files(&segment)? {
                files.push(found);
                kept.push(segment);
                break;
            }
            attempts += 1;
            if attempts == MOST_ATTEMPTS {
                let message = format!("shared table \"{}\" is removed from memory again and again", table.name);
                return Err(Error::new(Kind::OutOfMemory, message).with_hint(ROOM_HINT));
            }
            memory::forget_removed();
        }
    }
    SharedTable::new(named.name.as_str(), files, Arc::new(kept))
}

/// A segment without rows, which says what columns a table has; nobody can change it.
fn without_rows(table: &Table) -> Result<OwnedFd> {
    let finished = SegmentWriter::new(Vec::new(), &table.schema(), &table.key)?.finish()?;
    let made = || {
        let mut file = File::from(memfd_create(c"transship", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.write_all(&finished.out)?;
        let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(file.into())
    };
    made().map_err(|cause: std::io::Error| {
        let message = format!("no memory for shared table \"{}\": {cause}", table.name);
        Error::new(Kind::OutOfMemory, message)
    })
}
