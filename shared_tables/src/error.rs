//! The words of this crate's errors.

use std::fmt;
use std::io;
use std::path::Path;

use arrow_schema::ArrowError;
use rustix::io::Errno;
use udf_types::error::{Error, Kind};

use crate::bounds::{MOST_BYTES, MOST_ROWS};

/// A call of the system failed; `action` completes "could not". The kind is never that of damaged bytes.
pub(crate) fn io(action: &str, cause: &io::Error) -> Error {
    let has_no_descriptor = matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE));
    let kind = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => Kind::OutOfMemory,
        _ if has_no_descriptor => Kind::OutOfMemory,
        io::ErrorKind::PermissionDenied => Kind::NotAllowed,
        _ => Kind::Unreachable,
    };
    Error::new(kind, format!("could not {action}: {cause}"))
}

/// Another process does not let go of the lock of the directory.
pub(crate) fn locked() -> Error {
    Error::new(Kind::Timeout, "the memory for shared tables is locked by another process")
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

/// The database's copy of a segment is not the one that its digest was taken of.
pub(crate) fn damaged(fact: impl Into<String>) -> Error {
    Error::new(Kind::InvalidDefinition, "the stored bytes of a segment of a shared table are damaged").with_detail(fact)
}

/// No eviction makes room for `bytes`.
pub(crate) fn no_room(bytes: u64, capacity: u64, reserved: u64) -> Error {
    let message =
        format!("a segment of {bytes} bytes does not fit into the memory for shared tables ({capacity} bytes)");
    let error = Error::new(Kind::OutOfMemory, message);
    match reserved {
        0 => error,
        _ => error.with_detail(format!("Segments that are being loaded take {reserved} bytes of it.")),
    }
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
        assert_eq!(locked().kind(), Kind::Timeout);
    }
}
