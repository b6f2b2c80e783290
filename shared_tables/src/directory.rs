//! The directory of a store, which only this user can look into, and the calls of the system on files in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_buffer::Buffer;
use bytes::Bytes;
use memmap2::MmapOptions;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    fallocate, flock, fstat, fstatvfs, futimens, linkat, mkdirat, openat, statat, unlinkat, utimensat,
};
use rustix::io::{Errno, retry_on_intr};
use udf_types::error::Result;

use crate::error;

/// Held while files are counted, removed or published.
const LOCK: &str = "lock";

/// What `st_blocks` counts.
const BLOCK_BYTES: u64 = 512;

/// Between two attempts to lock the directory.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// An open directory. Files in it are named without a path.
#[derive(Debug)]
pub(crate) struct Directory {
    file: OwnedFd,
    path: PathBuf,
}

/// A time of the system's clock: seconds since 1970, and nanoseconds.
pub(crate) type Time = (i64, i64);

/// Which file a name led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileNumber {
    device: u64,
    inode: u64,
}

/// A file of the directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) number: FileNumber,
    /// When it was last written or touched.
    pub(crate) used: Time,
}

impl Entry {
    fn new(name: &str, found: &Stat) -> Entry {
        Entry {
            name: name.to_string(),
            // A small file has a whole page.
            bytes: (found.st_size as u64).max(found.st_blocks as u64 * BLOCK_BYTES),
            number: FileNumber::new(found),
            used: (found.st_mtime, found.st_mtime_nsec as i64),
        }
    }
}

impl FileNumber {
    fn new(found: &Stat) -> FileNumber {
        FileNumber { device: found.st_dev, inode: found.st_ino }
    }
}

/// The lock of the directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(
    #[cfg_attr(not(test), expect(dead_code, reason = "the lock lasts as long as the file is open"))] OwnedFd,
);

impl Directory {
    /// Opens a directory, made if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Directory> {
        // With a slash at its end, a link would be followed.
        let path = path.components().as_path();
        let failed = |errno: Errno| error::io(&format!("open directory \"{}\"", path.display()), &errno.into());
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(CWD, path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(error::unsafe_directory(path, "It is a link, or no directory."));
            }
            Err(errno) => return Err(failed(errno)),
        };
        let found = fstat(&file).map_err(failed)?;
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(error::unsafe_directory(path, "It belongs to another user."));
        }
        if found.st_mode & 0o077 != 0 {
            return Err(error::unsafe_directory(path, "Other users may look into it or write to it."));
        }
        Ok(Directory { file, path: path.to_path_buf() })
    }

    /// Whether the directory is still the one that its path leads to.
    pub(crate) fn is_there(&self) -> bool {
        let (Ok(own), Ok(found)) = (fstat(&self.file), statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)) else {
            return false;
        };
        own.st_nlink > 0 && FileNumber::new(&own) == FileNumber::new(&found)
    }

    /// How many bytes the file system can hold; `None` if it has no bound.
    pub(crate) fn size(&self) -> io::Result<Option<u64>> {
        let found = fstatvfs(&self.file)?;
        // A tmpfs without a bound says 0.
        Ok(Some(found.f_blocks.saturating_mul(found.f_frsize)).filter(|bytes| *bytes > 0))
    }

    /// How many bytes can be allocated so that an eighth, or `most_left` bytes, stay free for others; `None` if the file system has no
    /// bound. What was removed and is still mapped takes its room, and has no name to be counted by.
    pub(crate) fn free(&self, most_left: u64) -> io::Result<Option<u64>> {
        let found = fstatvfs(&self.file)?;
        let left = (found.f_blocks.saturating_mul(found.f_frsize) / 8).min(most_left);
        let free = found.f_bavail.saturating_mul(found.f_frsize).saturating_sub(left);
        Ok(Some(free).filter(|_| found.f_blocks > 0))
    }

    /// Takes the lock; `None` if another process holds it for longer than `patience`.
    pub(crate) fn lock(&self, patience: Duration) -> io::Result<Option<Lock>> {
        let start = Instant::now();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            // The file is opened anew for each attempt: somebody may have removed it, and nobody else would lock the old one.
            let file = openat(&self.file, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let number = FileNumber::new(&fstat(&file)?);
                    if self.find(LOCK)?.is_some_and(|found| found.number == number) {
                        return Ok(Some(Lock(file)));
                    }
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if start.elapsed() >= patience {
                return Ok(None);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// An empty file without a name, which is gone once it is closed unless it was [linked](Directory::link).
    pub(crate) fn temporary(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        Ok(openat(&self.file, ".", flags, Mode::RUSR)?.into())
    }

    /// Names a file without a name.
    pub(crate) fn link(&self, file: &File, name: &str) -> io::Result<()> {
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, unnamed, &self.file, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Makes a file, which must not be there, and locks it for this process.
    pub(crate) fn create_locked(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.file, name, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    /// Whether a process lives that made a file with [`create_locked`](Directory::create_locked), and still has it open.
    pub(crate) fn is_locked(&self, name: &str) -> io::Result<bool> {
        let Some(file) = self.existing(name)? else { return Ok(false) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a file for reading, if it is there.
    pub(crate) fn existing(&self, name: &str) -> io::Result<Option<File>> {
        match openat(&self.file, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The file that a name leads to now.
    pub(crate) fn find(&self, name: &str) -> io::Result<Option<Entry>> {
        match statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(Entry::new(name, &found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Notes that the file of this name is in use now.
    pub(crate) fn touch(&self, name: &str) -> io::Result<()> {
        Ok(utimensat(&self.file, name, &now_as_modification(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// All files.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.file)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            // Another process may just have removed it.
            entries.extend(self.find(name)?);
        }
        Ok(entries)
    }
}

/// Gives `bytes` of a file from `start` on their memory, and the file its size: what is written there then cannot lack memory, nor
/// what is read from a map. A signal undoes the whole call, so callers give few bytes.
pub(crate) fn allocate(file: &File, start: u64, bytes: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| fallocate(file, FallocateFlags::empty(), start, bytes))?)
}

/// Notes that a file is in use now.
pub(crate) fn touch(file: &File) -> io::Result<()> {
    Ok(futimens(file, &now_as_modification())?)
}

fn now_as_modification() -> Timestamps {
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) }
}

/// The time of the system's clock.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos().into())
}

/// Which file this is.
pub(crate) fn number_of(file: &File) -> io::Result<FileNumber> {
    let found = file.metadata()?;
    Ok(FileNumber { device: found.dev(), inode: found.ino() })
}

/// Maps a whole file for reading. It begins at a page.
#[allow(unsafe_code)]
pub(crate) fn map(file: &File) -> io::Result<Buffer> {
    if file.metadata()?.len() == 0 {
        return Ok(Buffer::from_vec(Vec::<u8>::new()));
    }
    // Private, because before Linux 6.7 there are no shared maps of files that are sealed. Both lie in the memory of the file.
    // SAFETY: the file has its room since `allocate`, and nobody writes to it or shortens it while the map is there: store.rs
    // maps files only once they are written, and they lie in a directory that only this user can look into. Whoever calls
    // `Segment::from_files` vouches for the same. A page that a disk cannot read raises SIGBUS, which ends the process or this use of it.
    let map = unsafe { MmapOptions::new().map_copy_read_only(file)? };
    Ok(Bytes::from_owner(map).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn directory() -> (tempfile::TempDir, Directory) {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(&folder.path().join("tables")).unwrap();
        (folder, directory)
    }

    fn is_current(directory: &Directory, lock: &Lock) -> bool {
        directory.find(LOCK).unwrap().unwrap().number == FileNumber::new(&fstat(&lock.0).unwrap())
    }

    #[test]
    fn nobody_waits_for_a_lock_for_ever() {
        let (_folder, directory) = directory();
        let held = directory.lock(Duration::ZERO).unwrap().unwrap();
        let start = Instant::now();
        assert!(directory.lock(Duration::from_millis(50)).unwrap().is_none());
        assert!((50..10_000).contains(&start.elapsed().as_millis()));
        drop(held);
        assert!(directory.lock(Duration::ZERO).unwrap().is_some());
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew() {
        let (_folder, directory) = directory();
        let held = directory.lock(Duration::ZERO).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| directory.lock(LONG).unwrap().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            directory.remove(LOCK).unwrap();
            let taken = waiter.join().unwrap();
            assert!(is_current(&directory, &taken) && !is_current(&directory, &held));
        });
    }

    #[test]
    fn a_directory_that_was_removed_or_replaced_is_not_there() {
        let (folder, directory) = directory();
        assert!(directory.is_there());
        let (path, moved) = (folder.path().join("tables"), folder.path().join("moved"));
        std::fs::rename(&path, &moved).unwrap();
        assert!(!directory.is_there());
        std::fs::create_dir(&path).unwrap();
        assert!(!directory.is_there());
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&moved, &path).unwrap();
        assert!(directory.is_there());
        std::fs::remove_dir(&path).unwrap();
        assert!(!directory.is_there());
    }

    #[test]
    fn memory_is_given_part_by_part() {
        let (_folder, directory) = directory();
        let file = directory.temporary().unwrap();
        for part in 0..3 {
            allocate(&file, part << 16, 1 << 16).unwrap();
            assert_eq!(file.metadata().unwrap().len(), (part + 1) << 16);
        }
        assert_eq!(file.metadata().unwrap().blocks(), 3 << 16 >> 9);
    }
}
