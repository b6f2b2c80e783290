//! The folders of the segments that replicas share with engines (`docs/protocol.md` §7): one per replica, in memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A segment that was not written for so long, of a replica without leases, is nobody's.
const LEFT_AGE: Duration = Duration::from_secs(600);

/// Where the segments of the replica with that folder of sockets are.
pub fn dir_of(shm_dir: &Path, socket_dir: &Path) -> PathBuf {
    let name = socket_dir.file_name().unwrap_or_default().to_string_lossy();
    shm_dir.join(format!("transship-{name}"))
}

/// Makes that folder. Anybody who knows its path may add files and remove their own, but not list it; the files' own modes
/// say who may write them. None if it cannot be made: then batches travel otherwise.
pub fn make_dir(shm_dir: &Path, socket_dir: &Path) -> Option<PathBuf> {
    let directory = dir_of(shm_dir, socket_dir);
    let made =
        fs::create_dir(&directory).and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o1733)));
    match made {
        Ok(()) => Some(directory),
        Err(cause) => {
            eprintln!("transshipd: no memory is shared with replicas: \"{}\": {cause}", directory.display());
            None
        }
    }
}

/// Removes the segments that an engine left which was killed; the replica has no leases. One whose lease went with an
/// earlier manager may be at work, and writes its segments with each batch.
pub fn remove_left(directory: &Path) {
    for segment in fs::read_dir(directory).into_iter().flatten().flatten() {
        let written = segment.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = written.and_then(|written| written.elapsed().ok());
        if age.is_some_and(|age| age > LEFT_AGE) {
            let _ = fs::remove_file(segment.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_nobody_writes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for (name, age) in [("left", LEFT_AGE + Duration::from_secs(60)), ("at work", Duration::ZERO)] {
            let file = fs::File::create(directory.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        remove_left(directory.path());
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["at work"]);
    }

    #[test]
    fn folders_cannot_be_listed_by_others() {
        let shm_dir = tempfile::tempdir().unwrap();
        let directory = make_dir(shm_dir.path(), Path::new("/run/r/0123")).unwrap();
        assert_eq!(directory, shm_dir.path().join("transship-0123"));
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o7777, 0o1733);
        assert_eq!(make_dir(Path::new("/nowhere"), Path::new("/run/r/0123")), None);
    }
}
