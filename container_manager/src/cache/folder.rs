//! The folder in which results are kept on disk: one file, which the manager opens and the store has as its only file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use crate::make_dir::make_closed_dir;

/// The name of the file.
const NAME: &str = "results";
/// How often a lock is tried that a store has whose manager was just killed, and how long the pauses are.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Opens the file in a folder, and makes what is not there. Its lock goes with the file to the store, and ends with it. Waits for a
/// store whose manager was just killed.
pub fn open_file(folder: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        if let Some(file) = try_open(folder)? {
            return Ok(file);
        }
        thread::sleep(PAUSE);
    }
    Err(io::Error::other("another store uses it"))
}

/// None if another store has it.
fn try_open(folder: &Path) -> io::Result<Option<File>> {
    make_closed_dir(folder).map_err(|error| io::Error::other(error.to_string()))?;
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = File::options().read(true).custom_flags(flags.bits()).open(folder)?;
    check(&folder.metadata()?)?;
    // In the folder that was checked, whatever has its name by now.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&folder, NAME, flags, Mode::RUSR | Mode::WUSR)?);
    let found = file.metadata()?;
    check(&found)?;
    if !found.is_file() {
        return Err(io::Error::other(format!("\"{NAME}\" is not a file")));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(cause) => Err(cause.into()),
    }
}

/// That it is this user's, and nobody else's.
fn check(found: &Metadata) -> io::Result<()> {
    let user = Uid::effective().as_raw();
    if found.uid() != user {
        return Err(io::Error::other(format!("it belongs to user {}, and not to user {user}", found.uid())));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("others than its owner have rights to it (chmod go-rwx)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(folder: &Path) -> String {
        try_open(folder).unwrap_err().to_string()
    }

    #[test]
    fn one_store_gets_a_file_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("deep/cache");
        let file = try_open(&folder).unwrap().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(NAME))), (0o700, 0o600));
        assert!(try_open(&folder).unwrap().is_none());
        // The lock is that of the file, whoever has it open.
        let copy = file.try_clone().unwrap();
        drop(file);
        assert!(try_open(&folder).unwrap().is_none());
        drop(copy);
        try_open(&folder).unwrap().unwrap();
    }

    #[test]
    fn others_files_and_folders_are_not_used() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("cache");
        drop(try_open(&folder).unwrap().unwrap());
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&folder.join(NAME), 0o640);
        assert!(refusal(&folder).contains("chmod"));
        set(&folder.join(NAME), 0o600);
        set(&folder, 0o701);
        assert!(refusal(&folder).contains("chmod"));
        set(&folder, 0o700);
        fs::remove_file(folder.join(NAME)).unwrap();
        symlink("/etc/passwd", folder.join(NAME)).unwrap();
        refusal(&folder);
        fs::remove_file(folder.join(NAME)).unwrap();
        nix::unistd::mkfifo(&folder.join(NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(refusal(&folder), "\"results\" is not a file");
        fs::remove_file(folder.join(NAME)).unwrap();
        symlink(&folder, place.path().join("link")).unwrap();
        refusal(&place.path().join("link"));
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&folder, Some(12345), None).unwrap();
            assert!(refusal(&folder).contains("12345"));
        }
    }
}
