//! The two folders of a replica that engines share with it: of its sockets, and of its segments (`docs/protocol.md` §7, §8).
//!
//! Nobody but the manager and the replica gets into them by their names. Engines are given descriptors with their leases.
//! Where the manager may mount, each is a file system in memory of its own, in which a replica finds an end.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::Uid;
use udf_types::{Error, Kind, Result};

use crate::log;
use crate::sandbox::{Owner, REPLICA_ID};

/// A segment that was not written for so long, of a replica without leases, is nobody's.
const LEFT_AGE: Duration = Duration::from_secs(600);
/// Bytes and files that a replica's folder of sockets has room for. Sockets need no bytes.
const SOCKETS_BYTES: u64 = 64 << 10;
const SOCKETS_FILES: u64 = 64;
/// Longest that a replica's folder may take to be emptied. Whoever is left of it may still add to it.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Segments at a time: a session has some dozens.
const SEGMENTS_FILES: u64 = 65_536;

/// How the folders of all replicas are made.
#[derive(Debug, Clone)]
pub struct Folders {
    /// Where the folders of sockets are.
    run_dir: PathBuf,
    /// Where those of segments are, in memory.
    shm_dir: PathBuf,
    /// Bytes of one replica's segments.
    segment_bytes: u64,
    /// Whether replicas reach their folders by these names, as processes of this host.
    are_processes: bool,
    /// Whom the folders of sockets are given to.
    owner: Owner,
    /// Whether a file system is mounted for each.
    may_mount: bool,
}

/// What a lease opens.
#[derive(Debug)]
pub struct Opened {
    /// The folder of the sockets.
    pub sockets: OwnedFd,
    /// That of the segments, if there is one.
    pub segments: Option<OwnedFd>,
}

impl Folders {
    /// Closes the folder of all sockets to others, and finds out whether file systems can be mounted there. Replicas on the
    /// process runtime are `processes`; those of all runtimes are the processes of `owner`.
    pub fn new(
        run_dir: &Path,
        shm_dir: &Path,
        segment_bytes: u64,
        are_processes: bool,
        owner: Owner,
    ) -> Result<Folders> {
        let mut folders = Folders {
            run_dir: run_dir.to_path_buf(),
            shm_dir: shm_dir.to_path_buf(),
            segment_bytes,
            are_processes,
            owner,
            may_mount: false,
        };
        close(run_dir, are_processes).map_err(|cause| unusable(run_dir, &cause))?;
        let probe = run_dir.join("probe");
        // A manager that was killed may have left it.
        remove(&probe);
        let probed = make(&probe).and_then(|()| folders.mount_on(&probe, SOCKETS_BYTES, SOCKETS_FILES, 0o700));
        match probed {
            Ok(()) => folders.may_mount = true,
            Err(cause) => log::warning("folders_unbounded").write(format_args!(
                "what replicas write to the folders of their sockets and segments is not bounded, since none can be mounted \
                 there: {cause}"
            )),
        }
        remove(&probe);
        Ok(folders)
    }

    /// Makes the folder of a replica's sockets, in which its server may make them.
    pub fn make_sockets(&self, folder: &Path) -> Result<()> {
        let made = make(folder).and_then(|()| {
            if self.may_mount {
                self.mount_on(folder, SOCKETS_BYTES, SOCKETS_FILES, 0o711)?;
            }
            if Uid::effective().is_root() {
                chown(folder, Some(self.owner.user), Some(self.owner.group))?;
                return fs::set_permissions(folder, Permissions::from_mode(0o711));
            }
            // Without root the folder cannot be given to the replica's user.
            fs::set_permissions(folder, Permissions::from_mode(0o777))
        });
        made.map_err(|cause| unusable(folder, &cause))
    }

    /// Where the segments of the replica with that folder of sockets are.
    pub fn segments_of(&self, sockets: &Path) -> PathBuf {
        self.outer_of(sockets).join("segments")
    }

    /// What keeps others from them.
    fn outer_of(&self, sockets: &Path) -> PathBuf {
        let name = sockets.file_name().unwrap_or_default().to_string_lossy();
        self.shm_dir.join(format!("transship-{name}"))
    }

    /// Makes that folder. Whoever has it open may add files and remove their own, but not list it; the files' own modes say who
    /// may write them. None if it cannot be made: then batches travel otherwise.
    pub fn make_segments(&self, sockets: &Path) -> Option<PathBuf> {
        let (outer, segments) = (self.outer_of(sockets), self.segments_of(sockets));
        let made = make(&outer)
            .and_then(|()| close(&outer, self.are_processes))
            .and_then(|()| make(&segments))
            .and_then(|()| {
                if self.may_mount {
                    self.mount_on(&segments, self.segment_bytes, SEGMENTS_FILES, 0o1733)?;
                }
                fs::set_permissions(&segments, Permissions::from_mode(0o1733))
            });
        match made {
            Ok(()) => Some(segments),
            Err(cause) => {
                let fact = format!("no memory is shared with replicas: \"{}\": {cause}", segments.display());
                log::warning("no_segments").write(fact);
                remove(&segments);
                remove(&outer);
                None
            }
        }
    }

    fn mount_on(&self, folder: &Path, bytes: u64, files: u64, mode: u32) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let options = format!("size={bytes},nr_inodes={files},mode={mode:o}");
        Ok(mount(Some("transship"), folder, Some("tmpfs"), flags, Some(options.as_str()))?)
    }

    /// Removes a replica's folders, with all that is in them.
    pub fn remove(&self, sockets: &Path) {
        remove(&self.segments_of(sockets));
        remove(&self.outer_of(sockets));
        remove(sockets);
    }

    /// Removes the folders of replicas that no manager knows any more, given the folders of the sockets of those that this one
    /// knows.
    pub fn sweep(&self, known: &[PathBuf]) {
        for entry in fs::read_dir(&self.run_dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_ours = name.len() == 32 && name.to_string_lossy().bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_ours && !known.contains(&entry.path()) {
                self.remove(&entry.path());
            }
        }
    }

    /// Opens a replica's folders for an engine.
    pub fn open(&self, sockets: &Path, segments: Option<&Path>) -> Result<Opened> {
        let open = |folder: &Path| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let opened = File::options().read(true).custom_flags(flags.bits()).open(folder);
            opened.map(OwnedFd::from).map_err(|cause| unusable(folder, &cause))
        };
        Ok(Opened { sockets: open(sockets)?, segments: segments.map(open).transpose()? })
    }
}

/// Lets nobody else through a folder: this user alone, and replicas that `are_processes` of another user.
pub fn close(folder: &Path, are_processes: bool) -> io::Result<()> {
    let mut mode = 0o700;
    if Uid::effective().is_root() {
        // Whoever made it before could open it again.
        chown(folder, Some(0), Some(if are_processes { REPLICA_ID } else { 0 }))?;
        mode |= if are_processes { 0o010 } else { 0 };
    }
    fs::set_permissions(folder, Permissions::from_mode(mode))
}

/// Makes a folder that is not there.
fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)
}

/// Removes a folder, and what is mounted on it.
fn remove(folder: &Path) {
    // Who looks at it goes on; nobody comes anew. Where nothing is mounted, this fails.
    let _ = umount2(folder, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    match remove_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            log::warning("folder_left").write(format_args!("could not remove \"{}\": {cause}", folder.display()));
        }
        _ => {}
    }
}

/// Removes a folder with all that somebody else put there. Folders may lie in each other deeper than the kernel takes paths and
/// a process has descriptors, so each is moved up until none lies in another.
pub(crate) fn remove_all(folder: &Path) -> io::Result<()> {
    let top = Held::open(folder)?;
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    let mut moved = 0_u64;
    loop {
        let mut is_empty = true;
        for entry in fs::read_dir(&top.path)? {
            let entry = entry?;
            let (path, is_folder) = (top.path.join(entry.file_name()), entry.file_type()?.is_dir());
            is_empty = false;
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !is_folder {
                fs::remove_file(path)?;
                continue;
            }
            let inner = Held::open(&path)?;
            for entry in fs::read_dir(&inner.path)? {
                let entry = entry?;
                let path = inner.path.join(entry.file_name());
                match entry.file_type()?.is_dir() {
                    true => move_to(&path, &top.path, &mut moved)?,
                    false => fs::remove_file(path)?,
                }
            }
            fs::remove_dir(path)?;
        }
        if is_empty {
            return fs::remove_dir(folder);
        }
    }
}

/// Moves a folder into another, under a name that nothing has there.
fn move_to(folder: &Path, top: &Path, moved: &mut u64) -> io::Result<()> {
    // Who moves a folder elsewhere must be able to write in it.
    drop(Held::open(folder)?);
    loop {
        *moved += 1;
        match fs::rename(folder, top.join(format!("moved-{moved}"))) {
            Err(cause) if [io::ErrorKind::DirectoryNotEmpty, io::ErrorKind::NotADirectory].contains(&cause.kind()) => {}
            outcome => return outcome,
        }
    }
}

/// An open folder, no link to one, that its owner can change.
struct Held {
    path: PathBuf,
    _folder: File,
}

impl Held {
    fn open(path: &Path) -> io::Result<Held> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = File::options().read(true).custom_flags(flags.bits()).open(path)?;
        // By this name, it is the folder that is open, however it is called.
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        // Where somebody else owns it, what follows may fail, and says why.
        let _ = fs::set_permissions(&path, Permissions::from_mode(0o700));
        Ok(Held { path, _folder: folder })
    }
}

/// Removes the segments of a lease that has ended.
pub fn remove_segments(folder: &Path, prefix: &str) {
    for segment in fs::read_dir(folder).into_iter().flatten().flatten() {
        if segment.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_file(segment.path());
        }
    }
}

/// Removes the segments of leases that went with an earlier manager; the replica has no leases of this one's. A session that
/// still has such a lease writes its segments with each batch.
pub fn remove_left(folder: &Path) {
    for segment in fs::read_dir(folder).into_iter().flatten().flatten() {
        let written = segment.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = written.and_then(|written| written.elapsed().ok());
        if age.is_some_and(|age| age > LEFT_AGE) {
            let _ = fs::remove_file(segment.path());
        }
    }
}

fn unusable(folder: &Path, cause: &io::Error) -> Error {
    Error::new(Kind::ContainerFailed, format!("could not use \"{}\": {cause}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;

    const SHIFTED: Owner = Owner { user: 165_534, group: 231_070 };

    fn folders(are_processes: bool) -> (tempfile::TempDir, Folders) {
        let place = tempfile::tempdir().unwrap();
        let (run_dir, shm_dir) = (place.path().join("r"), place.path().join("m"));
        fs::create_dir(&run_dir).unwrap();
        fs::create_dir(&shm_dir).unwrap();
        let folders = Folders::new(&run_dir, &shm_dir, 1 << 20, are_processes, SHIFTED).unwrap();
        (place, folders)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn folders_are_closed_to_others_and_bounded() {
        for are_processes in [false, true] {
            let (place, folders) = folders(are_processes);
            let sockets = place.path().join("r").join("0123");
            folders.make_sockets(&sockets).unwrap();
            let segments = folders.make_segments(&sockets).unwrap();
            let is_root = Uid::effective().is_root();
            let closed = if are_processes && is_root { 0o710 } else { 0o700 };
            assert_eq!([mode(&place.path().join("r")), mode(segments.parent().unwrap())], [closed; 2]);
            assert_eq!((mode(&segments), mode(&sockets)), (0o1733, if is_root { 0o711 } else { 0o777 }));
            let owner = sockets.metadata().map(|found| Owner { user: found.uid(), group: found.gid() }).unwrap();
            assert!(!is_root || owner == SHIFTED, "{owner:?}");
            let opened = folders.open(&sockets, Some(&segments)).unwrap();
            assert!(opened.segments.is_some());
            if folders.may_mount {
                assert!(fs::write(segments.join("large"), vec![0; 2 << 20]).is_err());
                let files = (0..100).filter(|number| fs::write(sockets.join(number.to_string()), "").is_ok()).count();
                assert!(files < 64, "{files}");
            }
            folders.remove(&sockets);
            assert!(!sockets.exists() && !segments.parent().unwrap().exists());
            // Nor can it be made in the place of another's.
            std::os::unix::fs::symlink("/tmp", place.path().join("m").join("transship-4567")).unwrap();
            assert_eq!(folders.make_segments(Path::new("/r/4567")), None);
        }
    }

    #[test]
    fn what_nobody_knows_is_swept() {
        let (place, folders) = folders(false);
        let name = |digit: &str| place.path().join("r").join(digit.repeat(32));
        for digit in ["a", "b"] {
            folders.make_sockets(&name(digit)).unwrap();
            folders.make_segments(&name(digit)).unwrap();
        }
        fs::write(place.path().join("r").join("other"), "").unwrap();
        folders.sweep(&[name("a")]);
        assert!(name("a").exists() && !name("b").exists() && place.path().join("r").join("other").exists());
        assert!(folders.segments_of(&name("a")).exists() && !folders.segments_of(&name("b")).exists());
        folders.sweep(&[]);
        assert!(!name("a").exists());
    }

    #[test]
    fn folders_go_however_deep_and_closed_they_are() {
        let place = tempfile::tempdir().unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 1024, getrlimit(Resource::RLIMIT_NOFILE).unwrap().1).unwrap();
        // Deeper than the paths that the kernel takes are long.
        let (chain, outer) = (place.path().join("chain"), place.path().join("outer"));
        fs::create_dir(&chain).unwrap();
        for _ in 0..5_000 {
            fs::create_dir(&outer).unwrap();
            fs::write(outer.join("file"), "").unwrap();
            fs::rename(&chain, outer.join("inner")).unwrap();
            fs::rename(&outer, &chain).unwrap();
        }
        let target = place.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("precious"), "").unwrap();
        let closed = target.with_file_name("closed");
        fs::create_dir_all(closed.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink(&target, closed.join("a/link")).unwrap();
        fs::write(closed.join("moved-1"), "").unwrap();
        fs::set_permissions(closed.join("a/b"), Permissions::from_mode(0o0)).unwrap();
        fs::rename(&closed, chain.join("closed")).unwrap();
        remove_all(&chain).unwrap();
        assert!(!chain.exists() && target.join("precious").exists());
        // A link in its place is left alone.
        std::os::unix::fs::symlink(&target, &chain).unwrap();
        assert!(remove_all(&chain).is_err() && target.join("precious").exists());
    }

    #[test]
    fn segments_that_nobody_writes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for (name, age) in [("left", LEFT_AGE + Duration::from_secs(60)), ("at work", Duration::ZERO)] {
            let file = File::create(directory.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        remove_left(directory.path());
        let left =
            || -> Vec<_> { fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect() };
        assert_eq!(left(), ["at work"]);
        remove_segments(directory.path(), "at ");
        assert!(left().is_empty());
    }
}
