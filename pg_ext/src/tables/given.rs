//! The shared tables that a function's body names, as its container is given them: the files of the version that the statement sees.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use pgrx::pg_sys;
use shared_tables::segment::{Digest, SegmentWriter};
use udf_client::tables::SharedTable;
use udf_types::{Error, Kind, Result};

use super::{Table, memory, rows, with_snapshot};
use crate::pg::{catalog, text};

/// Attempts to open a segment that others remove from memory meanwhile.
const MOST_ATTEMPTS: usize = 10;

/// Which segments the current statement sees of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableVersion {
    table: pg_sys::Oid,
    segments: Vec<Digest>,
}

/// The versions of tables, by their names, which the user may read. Raises an error if there is no such table.
pub(crate) fn versions(names: &[String], user: pg_sys::Oid) -> Vec<TableVersion> {
    let version = |name: &String| {
        let table = find(name, user);
        // SAFETY: the snapshot is registered.
        let found = unsafe { with_snapshot(|snapshot| rows::list(table.relation, snapshot)) };
        TableVersion { table: table.relation, segments: found.iter().map(|row| row.digest).collect() }
    };
    names.iter().map(version).collect()
}

/// The files of tables, by their names, which the user may read. Raises an error if there is no such table, or no memory for it.
pub(crate) fn open(names: &[String], user: pg_sys::Oid) -> Result<Vec<SharedTable>> {
    let open = |name: &String| {
        let table = find(name, user);
        // SAFETY: the snapshot is registered.
        let segments = unsafe { with_snapshot(|snapshot| files(&table, snapshot))? };
        SharedTable::new(name, segments)
    };
    names.iter().map(open).collect()
}

/// The table that a name leads to, as in a query of this session. It stays locked until the transaction ends.
fn find(name: &str, user: pg_sys::Oid) -> Table {
    // A body has no zeros.
    let utf8 = CString::new(name).unwrap_or_default();
    let text = text::to_server(&utf8);
    // SAFETY: the text is copied; the relation is open while it is read, and its lock is kept.
    unsafe {
        let names = pg_sys::textToQualifiedNameList(pg_sys::cstring_to_text(text));
        let range = pg_sys::makeRangeVarFromNameList(names);
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let oid = pg_sys::RangeVarGetRelidExtended(range, lock, 0, None, std::ptr::null_mut());
        catalog::check_relation_for(user, oid, pg_sys::ACL_SELECT);
        let relation = pg_sys::relation_open(oid, pg_sys::NoLock as i32);
        let table = Table::of(relation);
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        table
    }
}

unsafe fn files(table: &Table, snapshot: pg_sys::Snapshot) -> Result<Vec<Vec<OwnedFd>>> {
    // SAFETY: the caller's snapshot is registered.
    let found = unsafe { rows::list(table.relation, snapshot) };
    if found.is_empty() {
        return Ok(vec![vec![without_rows(table)?]]);
    }
    memory::check_room(&found, table)?;
    let mut segments = Vec::with_capacity(found.len());
    for row in &found {
        pgrx::check_for_interrupts!();
        let mut attempts = 0;
        let files = loop {
            memory::forget_removed();
            // SAFETY: as above.
            table.check(&*unsafe { memory::open(row, table, snapshot)? })?;
            if let Some(files) = memory::files(row)? {
                break files;
            }
            attempts += 1;
            if attempts == MOST_ATTEMPTS {
                let message = format!("shared table \"{}\" is removed from memory again and again", table.name);
                return Err(Error::new(Kind::OutOfMemory, message).with_hint(memory::ROOM_HINT));
            }
        };
        segments.push(files);
    }
    Ok(segments)
}

/// A segment without rows, which says what columns a table has; nobody can change it.
fn without_rows(table: &Table) -> Result<OwnedFd> {
    let finished = SegmentWriter::new(Vec::new(), &table.schema(), &table.key)?.finish()?;
    let made = || {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"transship", flags)?);
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
