//! A segment that is being loaded into a [store](crate::store): room that is reserved for it, and its bytes until they are published.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use udf_types::error::Result;

use crate::decode::Trust;
use crate::digest::{Digest, Tally};
use crate::directory::{Directory, map, number_of, touch};
use crate::error;
use crate::index::Index;
use crate::medium::Medium;
use crate::segment::Segment;

use super::{INDEX, RESERVED, SEGMENT, Store};

/// Room that counts as taken until this is dropped, or the process ends.
#[derive(Debug)]
pub(super) struct Reservation {
    directory: Arc<Directory>,
    name: String,
    bytes: u64,
    /// Locked, which shows that the process lives.
    _file: OwnedFd,
}

impl Reservation {
    pub(super) fn new(directory: &Arc<Directory>, digest: &Digest, bytes: u64) -> io::Result<Reservation> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{RESERVED}{digest}.{bytes}.{}.{number}", std::process::id());
            match directory.create_locked(&name) {
                Ok(file) => return Ok(Reservation { directory: directory.clone(), name, bytes, _file: file }),
                // A process of the same number in another container, or one that died.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // If it stays, the next process that needs room removes it.
        let _ = self.directory.remove(&self.name);
    }
}

/// Whether this process may load a segment.
#[derive(Debug)]
pub enum Begun {
    /// It may.
    Incoming(Incoming),
    /// Another [`Incoming`], of this or another process that lives, loads this very segment, or has published it. Wait some
    /// milliseconds, and ask [`Store::get`] and [`Store::begin`] again. Nothing bounds how long another process takes.
    Loading,
}

/// A segment that is being loaded. Give it its bytes, in order, with [`append`](Incoming::append) or as to any [`Write`]; if it is
/// dropped before it is finished, nothing stays.
pub struct Incoming {
    pub(super) store: Store,
    pub(super) digest: Digest,
    pub(super) tally: Box<Tally<File>>,
    /// How many bytes were announced.
    pub(super) bytes: u64,
    pub(super) room: Reservation,
    /// Segments that were used within this time do not make room.
    pub(super) spared: Duration,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("digest", &self.digest)
            .field("bytes", &self.bytes)
            .field("written", &self.tally.bytes)
            .finish_non_exhaustive()
    }
}

impl Write for Incoming {
    /// Fails beyond the bytes that were announced.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.bytes - self.tally.bytes;
        if bytes.len() as u64 > left {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the segment is longer than announced"));
        }
        self.tally.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Incoming {
    /// Appends bytes of the segment.
    ///
    /// # Errors
    /// They are more than were announced (of kind `InvalidDefinition`), or the system fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(|cause| match cause.kind() {
            io::ErrorKind::InvalidData => error::damaged(format!("They are more than {} bytes.", self.bytes)),
            _ => error::io("write a segment of a shared table", &cause),
        })
    }

    /// Checks the segment, builds its index and publishes both. If the segment was published meanwhile by a process that did not
    /// ask, that process's files are used.
    ///
    /// # Errors
    /// The bytes are not those of the digest or are not a segment, the index does not fit, or another fault of the
    /// [list](crate::store#kinds-of-errors).
    pub fn finish(self) -> Result<Segment> {
        let Incoming { store, digest: expected, tally, bytes, room, spared } = self;
        if tally.bytes != bytes {
            return Err(error::damaged(format!("They are {} bytes, and not {bytes}.", tally.bytes)));
        }
        let digest = tally.digest();
        if digest != expected {
            return Err(error::damaged(format!("Their digest is {digest}, and not {expected}.")));
        }
        let publishing = |cause: io::Error| error::io("publish a segment of a shared table", &cause);
        let file = tally.out;
        let segment = Segment::read(map(&file).map_err(publishing)?, Trust::Nothing)?;
        let segment = segment.with_name(digest, number_of(&file).map_err(publishing)?);

        let (mut segment, mut index_file, mut room) = (segment, None, room);
        if let Some(index) = segment.build_index(digest.seed())? {
            let whole = bytes + index.len() as u64;
            if whole > room.bytes {
                let lock = store.lock()?;
                drop(room);
                room = store.reserve(&lock, store.contents(&lock)?, &digest, (bytes, whole), spared)?;
            }
            let mut written = store.allocated(index.len() as u64, spared)?;
            written.write_all(&index).map_err(publishing)?;
            segment = segment.with_index(Index::open(map(&written).map_err(publishing)?)?)?;
            index_file = Some(written);
        }

        if store.medium == Medium::Disk {
            for written in [Some(&file), index_file.as_ref()].into_iter().flatten() {
                written.sync_data().map_err(publishing)?;
            }
        }
        let publish = || {
            // What is there is not whole.
            store.unlink(&digest)?;
            if let Some(index) = &index_file {
                store.directory.link(index, &format!("{digest}{INDEX}"))?;
            }
            store.directory.link(&file, &format!("{digest}{SEGMENT}"))
        };
        // The bytes may have been written long ago. As in `get`, it does not matter much if this fails.
        let _ = touch(&file);
        loop {
            let seen = store.published(&digest)?;
            if seen.is_some()
                && let Some(found) = store.get(&digest)?
            {
                return Ok(found);
            }
            let _lock = store.lock()?;
            if store.published(&digest)? != seen {
                continue;
            }
            publish().map_err(publishing)?;
            // From here on the files count, and before others may count.
            drop(room);
            return Ok(segment);
        }
    }
}
