//! The memory of a host for shared tables: a directory of segments and their indexes, shared by all processes of one user. It may also lie on
//! disk, for segments that memory has no room for.
//!
//! | file | what it is |
//! |---|---|
//! | `<digest>.arrow` | a segment, complete and checked |
//! | `<digest>.index` | its index, if it has a key; there before the segment is |
//! | `reserved.<digest>.<bytes>.<process>.<number>` | room for a segment that is being loaded, while its process holds a lock on it |
//! | `lock` | locked while files are counted, removed or published |
//!
//! Files are written without a name, and get one when they are complete. So a process that dies leaves no bytes behind, but only
//! its empty reservation. The system has released the lock on that, and the next process that needs room removes it. One process
//! loads a segment, and the others wait for it.
//!
//! The sizes of all segments, indexes and reservations add up to at most the capacity. A segment that was removed while a process
//! maps it does not count, though its memory is free only once that process drops it; until then the process may go on reading it.
//! The segment whose last use is longest ago is removed first. The time of the last modification of its file is that of its last
//! use: [`get`](Store::get) and [`is_current`](Store::is_current) set it.
//!
//! On disk, files are synchronized before they are published. Otherwise, a write that fails after the file was checked would have others map
//! bytes that nobody wrote.
//!
//! # Kinds of errors
//!
//! | kind | what is wrong |
//! |---|---|
//! | `InvalidDefinition` | the bytes of a segment: they are damaged or malformed |
//! | `UnsupportedType` | the bytes of a segment: a column has a type that no segment holds |
//! | `OutOfRange` | a segment is larger than any may be |
//! | `OutOfMemory` | no room in the capacity or the file system, no memory, or no file descriptor |
//! | `NotAllowed` | the rights of this user, or a directory that is open to others |
//! | `Timeout` | another process holds the lock for longer than 10 s |
//! | `Unreachable` | the system failed otherwise, among others if the directory was removed |

mod incoming;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use udf_types::error::Result;

use crate::checks::check_bytes;
use crate::decode::Trust;
use crate::digest::{Digest, Tally};
use crate::directory::{Directory, FileNumber, Lock, Time, allocate, map, now, number_of, touch};
use crate::error;
use crate::index::Index;
use crate::medium::Medium;
use crate::segment::Segment;

use incoming::Reservation;
pub use incoming::{Begun, Incoming};

/// The version of what lies in the directory. Callers make it a part of the directory's name, so that processes of different
/// versions do not share one. It is raised with every change of the format of an index, of the hashes, or of the checks that a
/// segment passes before it is published.
pub const FORMAT: u32 = 1;

const SEGMENT: &str = ".arrow";
const INDEX: &str = ".index";
const RESERVED: &str = "reserved.";

/// Longest wait for the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are allocated by one call, which a signal interrupts and undoes.
const ALLOCATED_AT_ONCE: u64 = 16 << 20;
/// A segment in use is touched again after so many seconds.
const TOUCHED_AFTER_S: i64 = 10;

/// The segments in memory, or those on disk.
#[derive(Debug, Clone)]
pub struct Store {
    directory: Arc<Directory>,
    medium: Medium,
    capacity: u64,
}

/// A segment in the directory, with or without its index.
#[derive(Debug)]
struct Held {
    digest: Digest,
    bytes: u64,
    /// Missing if there is only an index, or if the time lies in the future.
    used: Option<Time>,
}

impl Held {
    fn was_used_within(&self, time: Duration) -> bool {
        let since = now().0.saturating_sub(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
        self.used.is_some_and(|(used, _)| used > since)
    }
}

/// What the directory holds.
#[derive(Debug)]
struct Contents {
    /// All segments, the one to be removed first at the end.
    held: Vec<Held>,
    /// The bytes of all reservations.
    reserved: u64,
    /// The segments that are being loaded.
    loading: Vec<Digest>,
}

impl Store {
    /// Opens the store in `directory`, which is made if it is missing, for up to `capacity` bytes, and up to half of what the file
    /// system can hold: the rest is left to the shared memory of the database. Processes may give different capacities: each keeps
    /// to its own when it loads a segment.
    ///
    /// # Errors
    /// The directory is a link, belongs to another user, or is open to others; or the system fails.
    pub fn open(directory: &Path, capacity: u64) -> Result<Store> {
        Store::open_in(Medium::Memory, directory, capacity)
    }

    /// Opens a store as [`open`](Store::open) does, in a directory that lies on disk. The file system must have files without a name
    /// (`O_TMPFILE`).
    ///
    /// # Errors
    /// Those of [`open`](Store::open).
    pub fn open_on_disk(directory: &Path, capacity: u64) -> Result<Store> {
        Store::open_in(Medium::Disk, directory, capacity)
    }

    fn open_in(medium: Medium, directory: &Path, capacity: u64) -> Result<Store> {
        let directory = Directory::open(directory)?;
        let size = directory.size().map_err(counting)?;
        let capacity = size.map_or(capacity, |size| capacity.min(size / 2));
        Ok(Store { directory: Arc::new(directory), medium, capacity })
    }

    /// Whether the directory still exists under its path. If not, nobody else finds what this store publishes: open it anew.
    pub fn is_there(&self) -> bool {
        self.directory.is_there()
    }

    /// Maps a segment and its index, and notes that it was used. `None` if they are not there, or not whole.
    ///
    /// # Errors
    /// The system fails.
    pub fn get(&self, digest: &Digest) -> Result<Option<Segment>> {
        self.map(digest).map_err(reading)
    }

    fn map(&self, digest: &Digest) -> io::Result<Option<Segment>> {
        let Some(file) = self.directory.existing(&format!("{digest}{SEGMENT}"))? else { return Ok(None) };
        let Ok(segment) = Segment::read(map(&file)?, Trust::Values) else { return Ok(None) };
        let segment = segment.with_name(*digest, number_of(&file)?);
        let segment = if segment.key().is_empty() {
            Some(segment)
        } else {
            let Some(index) = self.directory.existing(&format!("{digest}{INDEX}"))? else { return Ok(None) };
            Index::open(map(&index)?).and_then(|index| segment.with_index(index)).ok()
        };
        if segment.is_some() {
            // A segment that is not touched may be removed too early, and is read all the same.
            let _ = touch(&file);
        }
        Ok(segment)
    }

    /// Opens the files of a segment for reading: its rows, and its index if it has a key. `None` if they are not there.
    ///
    /// # Errors
    /// The system fails.
    pub fn files(&self, digest: &Digest) -> Result<Option<(File, Option<File>)>> {
        let open = |suffix| self.directory.existing(&format!("{digest}{suffix}")).map_err(reading);
        // A segment is removed before its index, and published after it. So an index that is there belongs to the segment, and one that is
        // missing may have come before the segment did.
        let index = open(INDEX)?;
        let Some(file) = open(SEGMENT)? else { return Ok(None) };
        let index = if index.is_none() { open(INDEX)? } else { index };
        Ok(Some((file, index)))
    }

    /// Makes room for a segment of `bytes` bytes and for its index, unless somebody else loads it or has published it. Removes other
    /// segments if need be. The index counts as half of `bytes` until it is built.
    ///
    /// # Errors
    /// The segment has more than [`MOST_BYTES`](crate::segment::MOST_BYTES) or does not fit, or another fault of the
    /// [list](crate::store#kinds-of-errors).
    pub fn begin(&self, digest: &Digest, bytes: u64) -> Result<Begun> {
        self.begin_sparing(digest, bytes, Duration::ZERO)
    }

    /// Makes room as [`begin`](Store::begin) does, but removes no segment that was used within `spared`, give or take the time after which a
    /// use is noted again.
    ///
    /// # Errors
    /// Those of [`begin`](Store::begin).
    pub fn begin_sparing(&self, digest: &Digest, bytes: u64, spared: Duration) -> Result<Begun> {
        check_bytes(bytes)?;
        let seen = self.published(digest)?;
        if seen.is_some() && self.get(digest)?.is_some() {
            return Ok(Begun::Loading);
        }
        let index_bytes = (bytes / 2).min(self.capacity.saturating_sub(bytes));
        let room = {
            let lock = self.lock()?;
            let contents = self.contents(&lock)?;
            if contents.loading.contains(digest) || self.published(digest)? != seen {
                return Ok(Begun::Loading);
            }
            self.reserve(&lock, contents, digest, (0, bytes + index_bytes), spared)?
        };
        let tally = Box::new(Tally::new(self.allocated(bytes, spared)?));
        Ok(Begun::Incoming(Incoming { store: self.clone(), digest: *digest, tally, bytes, room, spared }))
    }

    /// Removes a segment and its index, if they are there.
    ///
    /// # Errors
    /// The system fails, or another process holds the lock for too long (of kind `Timeout`).
    pub fn remove(&self, digest: &Digest) -> Result<()> {
        let _lock = self.lock()?;
        self.unlink(digest).map_err(removing)
    }

    /// True if `segment` was mapped from the file that the directory still has. A process should drop segments for which it is
    /// false: their memory is not counted any more. Notes that the segment is in use, unless that was noted within the last 10 s.
    pub fn is_current(&self, segment: &Segment) -> bool {
        let (Some(digest), Some(file)) = (segment.digest(), segment.file) else { return false };
        let name = format!("{digest}{SEGMENT}");
        let Ok(Some(found)) = self.directory.find(&name) else { return false };
        if found.number != file {
            return false;
        }
        let (now, (used, _)) = (now(), found.used);
        if found.used > now || now.0 - used > TOUCHED_AFTER_S {
            // As in `get`.
            let _ = self.directory.touch(&name);
        }
        true
    }

    /// How many bytes all segments and indexes have, without those that are being loaded.
    ///
    /// # Errors
    /// The system fails.
    pub fn bytes(&self) -> Result<u64> {
        let entries = self.directory.entries().map_err(counting)?;
        Ok(entries.iter().filter(|entry| digest_in(&entry.name).is_some()).map(|entry| entry.bytes).sum())
    }

    /// How many bytes this process lets all segments and indexes have: what it gave to [`open`](Store::open), or less if the file
    /// system is small.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    fn lock(&self) -> Result<Lock> {
        self.lock_within(LOCK_PATIENCE)
    }

    fn lock_within(&self, patience: Duration) -> Result<Lock> {
        let lock = self.directory.lock(patience);
        lock.map_err(|cause| error::io("lock the memory for shared tables", &cause))?
            .ok_or_else(|| error::locked(self.medium))
    }

    /// Which file is published under a digest now, whole or not.
    fn published(&self, digest: &Digest) -> Result<Option<FileNumber>> {
        let found = self.directory.find(&format!("{digest}{SEGMENT}")).map_err(reading)?;
        Ok(found.map(|found| found.number))
    }

    /// Reserves room in the directory that has these contents. Of the bytes, some have their memory already.
    fn reserve(
        &self,
        _: &Lock,
        contents: Contents,
        digest: &Digest,
        (allocated, bytes): (u64, u64),
        spared: Duration,
    ) -> Result<Reservation> {
        let Contents { mut held, reserved, .. } = contents;
        let needed = reserved.saturating_add(bytes);
        if needed > self.capacity {
            return Err(error::no_room(self.medium, bytes, self.capacity, reserved));
        }
        let missing = bytes.saturating_sub(allocated);
        let (mut used, mut kept) = (0_u64, 0_u64);
        for held in &held {
            used += held.bytes;
            kept += if held.was_used_within(spared) { held.bytes } else { 0 };
        }
        // Nothing is removed in vain.
        if kept > self.capacity - needed {
            return Err(error::in_use(self.medium, bytes));
        }
        // What is mapped keeps its memory, whoever removes its name.
        if self.free()?.is_some_and(|free| free.saturating_add(used - kept) < missing) {
            return Err(error::full_system(self.medium, bytes));
        }
        let is_full = || self.free().map(|free| free.is_some_and(|free| free < missing));
        while (used > self.capacity - needed || is_full()?)
            && let Some(oldest) = held.pop_if(|oldest| !oldest.was_used_within(spared))
        {
            self.unlink(&oldest.digest).map_err(removing)?;
            used -= oldest.bytes;
        }
        if is_full()? {
            return Err(error::full_system(self.medium, bytes));
        }
        let reservation = Reservation::new(&self.directory, digest, bytes);
        reservation.map_err(|cause| error::io("reserve memory for shared tables", &cause))
    }

    /// How many bytes the file system has for segments now; `None` if it has no bound.
    fn free(&self) -> Result<Option<u64>> {
        self.directory.free(self.medium.most_left_bytes()).map_err(counting)
    }

    /// What the directory holds. Removes what dead processes left.
    fn contents(&self, lock: &Lock) -> Result<Contents> {
        self.listed(lock).map_err(counting)
    }

    fn listed(&self, _: &Lock) -> io::Result<Contents> {
        let (mut held, mut reserved, mut loading) = (HashMap::<Digest, Held>::new(), 0_u64, Vec::new());
        let entries = self.directory.entries()?;
        let now = now();
        for entry in entries {
            if let Some((digest, bytes)) = reserved_in(&entry.name) {
                if self.directory.is_locked(&entry.name)? {
                    reserved = reserved.saturating_add(bytes);
                    loading.push(digest);
                } else {
                    self.directory.remove(&entry.name)?;
                }
            }
            let Some(digest) = digest_in(&entry.name) else { continue };
            let held = held.entry(digest).or_insert(Held { digest, bytes: 0, used: None });
            held.bytes += entry.bytes;
            if entry.name.ends_with(SEGMENT) && entry.used <= now {
                held.used = Some(entry.used);
            }
        }
        let mut held: Vec<Held> = held.into_values().collect();
        // Those without a time are removed first: indexes that a process left that died, and segments of a clock that went wrong.
        held.sort_by_key(|held| std::cmp::Reverse(held.used));
        Ok(Contents { held, reserved, loading })
    }

    /// The segment goes first, so that none is seen without its index.
    fn unlink(&self, digest: &Digest) -> io::Result<()> {
        self.directory.remove(&format!("{digest}{SEGMENT}"))?;
        self.directory.remove(&format!("{digest}{INDEX}"))
    }

    /// A file without a name that has its memory. Where the system has less memory than the capacity, segments give way.
    fn allocated(&self, bytes: u64, spared: Duration) -> Result<File> {
        let failed = |cause: io::Error| error::io("allocate memory for shared tables", &cause);
        let file = self.directory.temporary().map_err(failed)?;
        let mut done = 0;
        while done < bytes {
            let step = ALLOCATED_AT_ONCE.min(bytes - done);
            // Others may have allocated what they had reserved; on disk, a database writes to the rest.
            let is_full = self.medium == Medium::Disk && self.free()?.is_some_and(|free| free < step);
            let outcome = if is_full { Err(io::ErrorKind::StorageFull.into()) } else { allocate(&file, done, step) };
            match outcome {
                Ok(()) => done += step,
                Err(cause) if cause.kind() == io::ErrorKind::StorageFull => {
                    let lock = self.lock()?;
                    let oldest = self.contents(&lock)?.held.pop_if(|oldest| !oldest.was_used_within(spared));
                    let Some(oldest) = oldest else { return Err(failed(cause)) };
                    self.unlink(&oldest.digest).map_err(removing)?;
                }
                Err(cause) => return Err(failed(cause)),
            }
        }
        Ok(file)
    }
}

/// The digest in the name of a segment or an index.
fn digest_in(name: &str) -> Option<Digest> {
    name.strip_suffix(SEGMENT).or_else(|| name.strip_suffix(INDEX))?.parse().ok()
}

/// The digest and the bytes in the name of a reservation.
fn reserved_in(name: &str) -> Option<(Digest, u64)> {
    let mut parts = name.strip_prefix(RESERVED)?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn reading(cause: io::Error) -> udf_types::error::Error {
    error::io("read a segment of a shared table", &cause)
}

fn removing(cause: io::Error) -> udf_types::error::Error {
    error::io("remove a segment of a shared table", &cause)
}

fn counting(cause: io::Error) -> udf_types::error::Error {
    error::io("count the memory for shared tables", &cause)
}

#[cfg(test)]
mod tests {
    use udf_types::error::Kind;

    use super::*;

    #[test]
    fn a_lock_that_is_not_released_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("tables"), 1 << 20).unwrap();
        let _lock = store.lock().unwrap();
        let error = store.lock_within(Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert_eq!(error.message(), "the memory for shared tables is locked by another process");
    }

    #[test]
    fn a_reservation_has_its_digest_and_bytes_in_its_name() {
        let digest = Digest::of(b"rows");
        assert_eq!(reserved_in(&format!("{RESERVED}{digest}.77.1.2")), Some((digest, 77)));
        for other in ["lock", "reserved.77.1.2", &format!("{digest}{SEGMENT}"), &format!("{RESERVED}{digest}")] {
            assert_eq!(reserved_in(other), None, "{other}");
        }
    }
}
