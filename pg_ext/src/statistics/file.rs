//! The file that holds the counters of a server's backends.
//!
//! It lies in memory, in `/dev/shm`, so that it needs no shared_preload_libraries, and so that no one who counts waits for a disk:
//! the first store to a page of a file on a disk, after the page was written there, may wait as long as the disk is busy. Without
//! `/dev/shm` it lies in `pg_stat_tmp` of the data directory. Its name carries the layout's version and says which server it belongs
//! to: by the device and the inode of its data directory, in which all its processes have their working directory. So a server that
//! makes its file can tell which files of other servers nobody uses any more, and removes them; see [`remove_unused`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::unistd::Uid;
use pgrx::pg_sys;

use super::{Shared, is_alive};

/// Where the file may lie, the first that can be used.
const FOLDERS: [&str; 2] = ["/dev/shm", "pg_stat_tmp"];
/// The version of the layout, and what names of files begin with.
const PREFIX: &str = "transship.4.";
const SUFFIX: &str = ".stat";

/// The file, made if need be, and locked against those who remove what nobody uses.
pub(super) fn open() -> io::Result<Flock<File>> {
    // SAFETY: reads what the server has read when it started.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    // Backends run in the data directory, of which a copy has the same identifier.
    let data = fs::metadata(".")?;
    let name = format!("{PREFIX}{system:x}.{:x}.{:x}{SUFFIX}", data.dev(), data.ino());
    let [first, second] = FOLDERS.map(|folder| format!("{folder}/{name}"));
    open_or_make(&first).or_else(|_| open_or_make(&second))
}

fn open_or_make(path: &str) -> io::Result<Flock<File>> {
    let open = || {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let found = file.metadata()?;
        // Anybody may write to /dev/shm, so another user's file may have the name.
        let is_own = found.is_file() && found.uid() == Uid::effective().as_raw() && found.mode() & 0o077 == 0;
        let is_whole = found.len() == size_of::<Shared>() as u64;
        if !(is_own && is_whole) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let file = lock_shared(file)?;
        // Another server may just have removed it.
        if file.metadata()?.nlink() == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(file) }
    };
    open().or_else(|error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        if let Some(folder) = Path::new(path).parent() {
            remove_unused(folder, Path::new("/proc"));
        }
        // Written, not only sized: a full disk is to be an error here, and not a signal when the map is touched.
        let fresh = format!("{path}.{}", std::process::id());
        // A backend of this number may have died here.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        let written = file.write_all(&vec![0; size_of::<Shared>()]);
        // If another backend was faster, its file stands.
        let linked = written.map(|()| fs::hard_link(&fresh, path));
        let _ = fs::remove_file(&fresh);
        linked.and_then(|_| open())
    })
}

/// Waits for those who look whether the file is in use.
fn lock_shared(mut file: File) -> io::Result<Flock<File>> {
    loop {
        match Flock::lock(file, FlockArg::LockShared) {
            Ok(locked) => return Ok(locked),
            Err((unlocked, Errno::EINTR)) => file = unlocked,
            Err((_, errno)) => return Err(errno.into()),
        }
    }
}

/// Removes the files of servers that have ended. Each would take its memory until the machine is started again, though the
/// server's data directory may be long gone. What a running server may use stays: a file whose postmaster lives, or whose data
/// directory a process works in, as after a restart, or that was last used where other process numbers count, or that is being
/// opened.
fn remove_unused(folder: &Path, proc: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((device, inode)) = name.to_str().and_then(directory_of) else { continue };
        // Nothing depends on it, and the next server tries again.
        let _ = remove_if_unused(&entry.path(), (device, inode), proc);
    }
}

/// The device and the inode in the name of a file of this layout.
fn directory_of(name: &str) -> Option<(u64, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split('.');
    let (_system, device, inode) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |text| u64::from_str_radix(text, 16).ok();
    if parts.next().is_some() { None } else { Some((number(device)?, number(inode)?)) }
}

fn remove_if_unused(path: &Path, directory: (u64, u64), proc: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != Uid::effective().as_raw() {
        return Ok(());
    }
    // A backend that opens the file meanwhile waits, and then sees that it is gone, or keeps it with its working directory.
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(()) };
    let read = |offset: usize| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset as u64).map(|()| u64::from_ne_bytes(bytes))
    };
    let (postmaster, namespace) = (read(offset_of!(Shared, postmaster))?, read(offset_of!(Shared, pid_namespace))?);
    // Another may have been faster, and the path may be that of a new file.
    if file.metadata()?.nlink() == 0 {
        return Ok(());
    }
    let is_known = postmaster != 0 && namespace != 0 && namespace == pid_namespace();
    if !is_known || is_alive(postmaster) || is_worked_in(directory, proc) {
        return Ok(());
    }
    fs::remove_file(path)
}

/// Whether a process that this user may look at works in a directory; also where processes cannot be seen.
fn is_worked_in(directory: (u64, u64), proc: &Path) -> bool {
    let Ok(entries) = fs::read_dir(proc) else { return true };
    let mut has_seen_self = false;
    for entry in entries {
        let Ok(entry) = entry else { return true };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        has_seen_self |= pid == std::process::id();
        let found = fs::metadata(entry.path().join("cwd"));
        if found.is_ok_and(|found| (found.dev(), found.ino()) == directory) {
            return true;
        }
    }
    !has_seen_self
}

/// Which numbers of processes this process sees; zero if that is not known.
pub(super) fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::{Child, Command};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_made_once_and_only_a_sound_one_is_taken() {
        let folder = std::env::temp_dir().join(format!("transship-statistics-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("s.stat").to_str().unwrap().to_string();
        let open = || open_or_make(&path).and_then(|file| file.metadata()).map(|found| (found.ino(), found.len()));
        let first = open().unwrap();
        assert_eq!(first.1, size_of::<Shared>() as u64);
        assert_eq!(open().unwrap(), first);
        // No file is left but that one.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        // One that others may read, of another size, or a link to one, might be anybody's.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(open().is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
        assert!(open().is_err());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(folder.join("elsewhere"), &path).unwrap();
        assert!(open().is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A process that ends with its test.
    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A folder with a data directory, and the file of that.
    fn server(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let data = folder.join(name);
        fs::create_dir_all(&data).unwrap();
        let found = fs::metadata(&data).unwrap();
        let file = folder.join(format!("{PREFIX}5e.{:x}.{:x}{SUFFIX}", found.dev(), found.ino()));
        open_or_make(file.to_str().unwrap()).unwrap();
        // No process has so large a number.
        mark(&file, 1 << 30, pid_namespace());
        (data, file)
    }

    fn mark(file: &Path, postmaster: u64, namespace: u64) {
        let file = File::options().write(true).open(file).unwrap();
        for (offset, value) in
            [(offset_of!(Shared, postmaster), postmaster), (offset_of!(Shared, pid_namespace), namespace)]
        {
            file.write_all_at(&value.to_ne_bytes(), offset as u64).unwrap();
        }
    }

    #[test]
    fn only_files_of_servers_that_ended_are_removed() {
        let folder = std::env::temp_dir().join(format!("transship-unused-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        // Its inode is to be no other's, also once the running server's is free.
        fs::create_dir(folder.join("fresh")).unwrap();
        let proc = Path::new("/proc");
        let (running, of_running) = server(&folder, "running");
        let process = Process(Command::new("sleep").arg("600").current_dir(&running).spawn().unwrap());
        let (_, of_other_processes) = server(&folder, "elsewhere");
        mark(&of_other_processes, 1 << 30, pid_namespace() + 1);
        let (_, of_unknown) = server(&folder, "unknown");
        mark(&of_unknown, 0, 0);
        let (_, of_living) = server(&folder, "living");
        mark(&of_living, process.0.id().into(), pid_namespace());
        let (_, being_opened) = server(&folder, "opened");
        let held = open_or_make(being_opened.to_str().unwrap()).unwrap();
        let strange =
            ["transship.3.5e.1.1.stat", "transship.4.5e.1.stat", "transship.4.5e.1.1.1.stat", "other.4.5e.1.1.stat"];
        for name in strange {
            fs::write(folder.join(name), "").unwrap();
        }
        let (_, of_ended) = server(&folder, "ended");
        // Where processes cannot be seen, all stay.
        for unseen in [folder.join("nowhere"), folder.clone()] {
            remove_unused(&folder, &unseen);
            assert!(of_ended.exists());
        }
        remove_unused(&folder, proc);
        assert!(!of_ended.exists());
        for file in [&of_running, &of_living, &of_other_processes, &of_unknown, &being_opened] {
            assert!(file.exists(), "{}", file.display());
        }
        assert!(strange.iter().all(|name| folder.join(name).exists()));
        // A server's data directory may be renamed and even removed while it runs.
        fs::rename(&running, folder.join("renamed")).unwrap();
        fs::remove_dir(folder.join("renamed")).unwrap();
        remove_unused(&folder, proc);
        assert!(of_running.exists());
        drop((process, held));
        // The next server that makes its file takes what is left with it.
        let (_, fresh) = server(&folder, "fresh");
        assert!(!of_running.exists() && !of_living.exists() && !being_opened.exists() && fresh.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_was_removed_while_it_was_opened_is_made_again() {
        let folder = std::env::temp_dir().join(format!("transship-reopened-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("s.stat").to_str().unwrap().to_string();
        drop(open_or_make(&path).unwrap());
        let removing = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        let opening = thread::spawn({
            let path = path.clone();
            move || open_or_make(&path).and_then(|file| file.metadata()).unwrap()
        });
        thread::sleep(Duration::from_millis(100));
        fs::remove_file(&path).unwrap();
        drop(removing);
        let opened = opening.join().unwrap();
        assert_eq!((opened.nlink(), opened.ino()), (1, fs::metadata(&path).unwrap().ino()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
