//! Segments (`docs/protocol.md` §7): files in memory that a client fills and a server in a container reads, and the other
//! way round.
//!
//! Nothing that the other side can still write is trusted. A server may not write the segment of the calls, which belongs
//! to another user. The segment of the reply it may write whenever it likes, so the client reads it through its file, which
//! gives a copy and cannot fault, however short the file has become meanwhile.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use arrow_buffer::{Buffer, MutableBuffer};
use nix::fcntl::OFlag;

use super::rest::random_name;
use crate::codec::columns::Layout;

/// A segment. Dropping it removes its name.
#[derive(Debug)]
struct Segment {
    name: String,
    path: PathBuf,
    file: File,
}

impl Segment {
    fn create(directory: &Path, mode: u32) -> io::Result<Segment> {
        let name = random_name();
        let path = directory.join(&name);
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits();
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(flags).open(&path)?;
        let segment = Segment { name, path, file };
        // Not by the mode above, from which the process's mask is taken away.
        segment.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(segment)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // The container manager removes what is left here once the replica has no lease.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The two segments of a batch: one for calls, which others can only read, and one for replies.
#[derive(Debug)]
pub(crate) struct Segments {
    calls: Segment,
    replies: Segment,
}

impl Segments {
    /// Makes both in a replica's folder of segments.
    pub(crate) fn create(directory: &Path) -> io::Result<Segments> {
        Ok(Segments { calls: Segment::create(directory, 0o644)?, replies: Segment::create(directory, 0o666)? })
    }

    /// Name of the one for calls.
    pub(crate) fn calls(&self) -> &str {
        &self.calls.name
    }

    /// Name of the one for replies.
    pub(crate) fn replies(&self) -> &str {
        &self.replies.name
    }

    /// Writes the buffers of a batch of calls.
    pub(crate) fn write(&self, layout: &Layout) -> io::Result<()> {
        layout.pieces.iter().try_for_each(|(offset, piece)| self.calls.file.write_all_at(piece, *offset as u64))
    }

    /// The first `size` bytes of a reply.
    pub(crate) fn read(&self, size: usize) -> io::Result<Buffer> {
        // A file that is too short must not cost the memory that its header asks for.
        if self.replies.file.metadata()?.len() < size as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = MutableBuffer::from_len_zeroed(size);
        self.replies.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_files_that_go_with_their_connection() {
        let directory = tempfile::tempdir().unwrap();
        let segments = Segments::create(directory.path()).unwrap();
        let seen = || std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(seen(), 2);
        std::fs::write(directory.path().join(segments.replies()), b"reply").unwrap();
        assert_eq!(segments.read(5).unwrap().as_slice(), b"reply");
        assert!(segments.read(6).is_err());
        drop(segments);
        assert_eq!(seen(), 0);
    }
}
