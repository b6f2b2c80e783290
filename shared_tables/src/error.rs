//! The words of this crate's errors.

use std::fmt;
use std::io;
use std::path::Path;

use arrow_schema::{ArrowError, DataType};
use rustix::io::Errno;
use udf_types::error::{Error, Kind};

use crate::bounds::{MOST_BYTES, MOST_FIELDS, MOST_ROWS, MOST_TABLE_COLUMNS};
use crate::medium::Medium;

/// What helps if a file system is full, whichever it is.
const FULL_HINT: &str =
    "Free space in the file system of the shared tables, most often the memory of /dev/shm, or make it larger.";

/// A call of the system failed; `action` completes "could not". The kind is never that of damaged bytes.
pub(crate) fn io(action: &str, cause: &io::Error) -> Error {
    let has_no_descriptor = matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE));
    let kind = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => Kind::OutOfMemory,
        _ if has_no_descriptor => Kind::OutOfMemory,
        io::ErrorKind::PermissionDenied => Kind::NotAllowed,
        _ => Kind::Unreachable,
    };
    let error = Error::new(kind, format!("could not {action}: {cause}"));
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.with_hint(FULL_HINT),
        _ if has_no_descriptor => error.with_hint("Raise LimitNOFILE of this service."),
        _ => error,
    }
}

/// Another process does not let go of the lock of the directory.
pub(crate) fn locked(medium: Medium) -> Error {
    Error::new(Kind::Timeout, format!("{} is locked by another process", medium.name()))
}

/// The directory of a store can be read or written by others; `fact` says why.
pub(crate) fn unsafe_directory(path: &Path, fact: &str) -> Error {
    Error::new(Kind::NotAllowed, format!("directory \"{}\" is not safe for shared tables", path.display()))
        .with_detail(fact)
}

/// The bytes of a segment or of an index are not what they must be; `fact` completes a sentence about them.
pub(crate) fn malformed(what: &str, fact: impl fmt::Display) -> Error {
    Error::new(Kind::InvalidDefinition, format!("invalid {what} of a shared table")).with_detail(format!("It {fact}."))
}

/// An index and a segment do not belong together.
pub(crate) fn foreign_index() -> Error {
    malformed("index", "is that of another segment")
}

/// The database's copy of a segment is not the one that its digest was taken of.
pub(crate) fn damaged(fact: impl Into<String>) -> Error {
    Error::new(Kind::InvalidDefinition, "the stored bytes of a segment of a shared table are damaged").with_detail(fact)
}

/// No eviction makes room for `bytes`.
pub(crate) fn no_room(medium: Medium, bytes: u64, capacity: u64, reserved: u64) -> Error {
    let message = format!("a segment of {bytes} bytes does not fit into {} ({capacity} bytes)", medium.name());
    let error = Error::new(Kind::OutOfMemory, message);
    match reserved {
        0 => error,
        _ => error.with_detail(format!("Segments that are being loaded take {reserved} bytes of it.")),
    }
}

/// Only the removal of segments that are in use would make room.
pub(crate) fn in_use(medium: Medium, bytes: u64) -> Error {
    let message = format!("a segment of {bytes} bytes does not fit into {}", medium.name());
    Error::new(Kind::OutOfMemory, message).with_detail("Segments that were used of late have the room.")
}

/// Others, or sessions that still map what was removed, have the file system's room.
pub(crate) fn full_system(medium: Medium, bytes: u64) -> Error {
    let message = format!("a segment of {bytes} bytes does not fit into {}", medium.name());
    Error::new(Kind::OutOfMemory, message)
        .with_detail("The rest of its file system is in use.")
        .with_hint(medium.full_hint())
}

/// The process has no memory for the build of an index.
pub(crate) fn no_memory_for_index() -> Error {
    Error::new(Kind::OutOfMemory, "could not build the index of a segment of a shared table: out of memory")
}

/// A segment has more bytes than any may have.
pub(crate) fn too_large(bytes: u64) -> Error {
    Error::new(Kind::OutOfRange, format!("a segment of a shared table has at most {MOST_BYTES} bytes"))
        .with_detail(format!("It has at least {bytes} bytes."))
}

/// A segment has more rows than any may have.
pub(crate) fn too_many_rows() -> Error {
    Error::new(Kind::OutOfRange, format!("a segment of a shared table has at most {MOST_ROWS} rows"))
}

/// A segment has more columns than any may have.
pub(crate) fn too_many_columns() -> Error {
    let message = format!(
        "a segment of a shared table has at most {MOST_TABLE_COLUMNS} columns, and {MOST_FIELDS} fields in all"
    );
    Error::new(Kind::OutOfRange, message)
}

/// A batch of a segment would need more than Arrow's 32-bit offsets reach.
pub(crate) fn batch_too_large(bytes: usize) -> Error {
    Error::new(Kind::OutOfRange, "the rows of a shared table are too large").with_detail(format!(
        "Rows that lie together in one batch have {bytes} bytes, of which 2147483647 are possible."
    ))
}

/// Columns of a type that no segment holds.
pub(crate) fn unsupported_column(what: impl fmt::Display) -> Error {
    Error::new(Kind::UnsupportedType, format!("type {what} is not supported in shared tables"))
}

/// A key of a type whose equality is not that of its bytes.
pub(crate) fn unsupported_key(what: impl fmt::Display) -> Error {
    Error::new(Kind::UnsupportedType, format!("type {what} cannot be a key of a shared table"))
}

/// A key that is not possible; `fact` completes "the key of a shared table".
pub(crate) fn invalid_key(fact: impl fmt::Display) -> Error {
    Error::invalid_definition(format!("the key of a shared table {fact}"))
}

/// A table has no segment at all.
pub(crate) fn no_segments(table: &str) -> Error {
    Error::invalid_definition(format!("table \"{table}\" has no segments"))
}

/// The segments of a table differ in their columns or their key.
pub(crate) fn other_columns(table: &str, segment: usize) -> Error {
    Error::invalid_definition(format!(
        "segment {segment} of table \"{table}\" has other columns than the one before it"
    ))
}

/// A table without a key is asked for keys.
pub(crate) fn no_key(table: &str) -> Error {
    Error::new(Kind::UserCode, format!("table \"{table}\" has no key"))
}

/// Keys have another number of columns than the table's key.
pub(crate) fn other_key(table: &str, wanted: &[&str], given: usize) -> Error {
    let fact = match wanted.len() {
        1 => "1 column".to_string(),
        several => format!("{several} columns"),
    };
    let message = format!("the key of table \"{table}\" has {fact} ({}), not {given}", wanted.join(", "));
    Error::new(Kind::UserCode, message)
}

/// A column of keys has another type than the column of the table.
pub(crate) fn other_key_type(table: &str, column: &str, wanted: &DataType, given: &DataType) -> Error {
    let message = format!("key column \"{column}\" of table \"{table}\" has type {wanted}, and the keys have {given}");
    Error::new(Kind::UserCode, message)
}

/// Keys are not what Arrow takes for keys.
pub(crate) fn unusable_keys(table: &str, cause: impl fmt::Display) -> Error {
    Error::new(Kind::UserCode, format!("could not look for keys in table \"{table}\": {cause}"))
}

/// A key has several rows where one is asked for.
pub(crate) fn several_rows(table: &str, number: usize, key: &str, rows: usize) -> Error {
    let message = format!("table \"{table}\" has {rows} rows with the key {key}");
    Error::new(Kind::UserCode, message)
        .with_detail(format!("It is key {number}, counted from 0, of a look-up of one row per key."))
}

/// A look-up would have more rows than an array may have.
pub(crate) fn too_many_found(table: &str) -> Error {
    let message = format!("a look-up in table \"{table}\" has more than 2147483647 rows");
    Error::new(Kind::OutOfRange, message)
}

/// The process has no memory for the rows of a look-up.
pub(crate) fn no_memory_for_rows(table: &str, rows: usize) -> Error {
    Error::new(Kind::OutOfMemory, format!("no memory for {rows} rows of table \"{table}\""))
}

/// The values of a look-up are more than fit into one array.
pub(crate) fn not_gathered(table: &str, column: &str, cause: &ArrowError) -> Error {
    let message = format!("the rows of a look-up in table \"{table}\" are too large");
    Error::new(Kind::OutOfRange, message).with_detail(format!("Column \"{column}\": {cause}."))
}

/// Arrow could not write rows.
pub(crate) fn not_written(cause: &ArrowError) -> Error {
    match cause {
        ArrowError::IoError(_, cause) => io("write a segment of a shared table", cause),
        other => Error::invalid_definition(format!("could not write rows of a shared table: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_room_of_rights_and_other_faults_of_the_system_differ() {
        for (errno, kind) in [
            (Errno::NOSPC, Kind::OutOfMemory),
            (Errno::DQUOT, Kind::OutOfMemory),
            (Errno::NOMEM, Kind::OutOfMemory),
            (Errno::MFILE, Kind::OutOfMemory),
            (Errno::NFILE, Kind::OutOfMemory),
            (Errno::ACCESS, Kind::NotAllowed),
            (Errno::PERM, Kind::NotAllowed),
            (Errno::IO, Kind::Unreachable),
            (Errno::NOENT, Kind::Unreachable),
            (Errno::FBIG, Kind::Unreachable),
        ] {
            assert_eq!(io("read", &errno.into()).kind(), kind, "{errno}");
        }
        for damage in [malformed("segment", "ends"), damaged("They are 2 bytes.")] {
            assert_eq!(damage.kind(), Kind::InvalidDefinition);
        }
        assert_eq!(io("write", &Errno::NOSPC.into()).hint(), Some(FULL_HINT));
        for medium in [Medium::Memory, Medium::Disk] {
            assert_eq!(locked(medium).kind(), Kind::Timeout);
            // Room in a file system is no matter of settings.
            assert_eq!(full_system(medium, 1).hint(), Some(medium.full_hint()));
            assert!(no_room(medium, 2, 1, 0).hint().is_none() && in_use(medium, 2).hint().is_none());
        }
    }
}
