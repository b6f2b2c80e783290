//! Segments (`docs/protocol.md` §7): files in memory that a client fills and a server in a container reads, and the other
//! way round.
//!
//! Nothing that the other side can still write is trusted. A server may not write the segment of the calls, which belongs
//! to another user. The segment of the reply it may write whenever it likes, so the client reads it through its file, which
//! gives a copy and cannot fault, however short the file has become meanwhile.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};

use arrow_buffer::Buffer;
use nix::fcntl::OFlag;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use udf_codec::columns::{Layout, Source};

use crate::folder::Folder;
use crate::names::random_name;

/// Whether so many bytes more leave half of the memory that a folder lies in to others. A database's parallel queries have
/// theirs there as well, and fail where it is missing; batches travel without.
pub(crate) fn has_room(directory: &Folder, bytes: usize) -> bool {
    match statfs(&directory.path()) {
        Ok(found) if found.filesystem_type() == TMPFS_MAGIC => {
            let block = u64::try_from(found.block_size()).unwrap_or(1);
            leaves_half(found.blocks() * block, found.blocks_available() * block, bytes as u64)
        }
        // Not memory; or else what is done next will say what is wrong.
        _ => true,
    }
}

fn leaves_half(total: u64, available: u64, bytes: u64) -> bool {
    // One without a size has no bound.
    total == 0 || available.saturating_sub(bytes) >= total / 2
}

/// A segment. Dropping it removes its name.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    directory: Folder,
    pub(crate) file: File,
}

impl Segment {
    /// The mode of a segment that others may only read.
    pub(crate) const FOR_CALLS: u32 = 0o644;
    /// The mode of one that they may write.
    const FOR_REPLIES: u32 = 0o666;

    /// Makes one in a replica's folder of segments.
    pub(crate) fn create(directory: &Folder, mode: u32) -> io::Result<Segment> {
        let prefix = directory.prefix();
        let name = format!("{prefix}{}", random_name().get(prefix.len()..).unwrap_or_default());
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(directory.file(&name))?;
        let segment = Segment { name, directory: directory.clone(), file };
        // Not by the mode above, from which the process's mask is taken away.
        segment.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(segment)
    }

    /// The folder that it lies in.
    pub(crate) fn directory(&self) -> &Folder {
        &self.directory
    }

    /// Writes those buffers of a batch of calls that do not lie in the segment already.
    pub(crate) fn write(&self, layout: &Layout) -> io::Result<()> {
        layout.pieces_to_write().try_for_each(|(offset, piece)| self.file.write_all_at(piece, offset as u64))
    }
}

impl Source for Segment {
    fn read_at(&self, offset: u64, size: usize) -> io::Result<Buffer> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(size, 0);
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // The container manager removes what is left here once the lease ends.
        let _ = std::fs::remove_file(self.directory.file(&self.name));
    }
}

/// The two segments of a batch: one for calls, which others can only read, and one for replies.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) calls: Segment,
    pub(crate) replies: Segment,
}

impl Segments {
    /// Makes both in a replica's folder of segments.
    pub(crate) fn create(directory: &Folder) -> io::Result<Segments> {
        Ok(Segments {
            calls: Segment::create(directory, Segment::FOR_CALLS)?,
            replies: Segment::create(directory, Segment::FOR_REPLIES)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_leave_half_of_the_memory_to_others() {
        assert!(leaves_half(64, 64, 32) && !leaves_half(64, 64, 33));
        assert!(leaves_half(64, 32, 0) && !leaves_half(64, 32, 1) && !leaves_half(64, 5, 6));
        assert!(leaves_half(0, 0, 100));
        let shm = Folder::named("/dev/shm");
        if let Ok(found) = statfs(&shm.path())
            && found.filesystem_type() == TMPFS_MAGIC
            && found.blocks() > 0
        {
            let size = usize::try_from(found.blocks() * u64::try_from(found.block_size()).unwrap()).unwrap();
            assert!(!has_room(&shm, size / 2 + 1));
        }
    }

    #[test]
    fn segments_are_files_that_go_with_their_connection() {
        let directory = tempfile::tempdir().unwrap();
        let segments = Segments::create(&Folder::named(directory.path())).unwrap();
        let seen = || std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(seen(), 2);
        std::fs::write(directory.path().join(&segments.replies.name), b"reply").unwrap();
        assert_eq!(segments.replies.read_at(0, 5).unwrap().as_slice(), b"reply");
        assert!(segments.replies.read_at(0, 6).is_err());
        drop(segments);
        assert_eq!(seen(), 0);
    }
}
