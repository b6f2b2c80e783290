//! What of a host's set-up is most likely wrong, beside the container engine: each check says what it found, or what is wrong and
//! what to do.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;
use udf_client::control::{CircuitInfo, ReplicaInfo};
use udf_types::{Error, Kind, Result};

use crate::config::HostConfig;
use crate::flags::MAX_RUN_DIR_BYTES;

/// A container has this much without `limits.memory_mb`.
const LEAST_MEMORY_MB: u64 = 1024;
/// Docker gives its containers a /dev/shm of 64 MB, which a few batches fill.
const LEAST_SHM_MB: u64 = 256;
const LEAST_DISK_MB: u64 = 1024;
/// The manager uses a third of them for engines' connections.
const LEAST_DESCRIPTORS: u64 = 1024;

/// What a check found, or what is wrong.
pub type Finding = (&'static str, Result<String>);

/// The checks that the manager makes of its host and of itself.
pub fn of_host(host: &HostConfig) -> Vec<Finding> {
    let paths = &host.paths;
    vec![
        ("state folder", check_folder(&paths.state_dir, "--state-dir")),
        ("socket folder", check_length(&paths.run_dir).and_then(|()| check_folder(&paths.run_dir, "--run-dir"))),
        ("shared memory", room(&paths.shm_dir).and_then(|room| check_shared_memory(&paths.shm_dir, room))),
        ("disk", room(&existing(&paths.state_dir)).and_then(|room| check_disk(&paths.state_dir, room))),
        ("memory", fs::read_to_string("/proc/meminfo").map_err(unread).and_then(|text| check_memory(&text))),
        (
            "descriptors",
            fs::read_to_string("/proc/self/limits").map_err(unread).and_then(|text| check_descriptors(&text)),
        ),
    ]
}

/// What is wrong if nobody but root may connect to the manager.
pub fn doubt_of_users(allowed: &HashSet<u32>) -> Option<String> {
    let is_any_other = allowed.iter().any(|user| *user != 0);
    (!is_any_other).then(|| {
        "only root may connect, and database servers do not run as root; start transshipd with --allow-user and their user"
            .to_string()
    })
}

fn wrong(message: String, hint: &str) -> Error {
    Error::new(Kind::InvalidDefinition, message).with_hint(hint)
}

fn unread(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::InvalidDefinition, format!("could not look: {cause}"))
}

/// The manager makes a folder that is missing, but does not take one that somebody else could have filled.
fn check_folder(path: &Path, flag: &str) -> Result<String> {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Ok(format!("\"{shown}\" is not there; the manager makes it"));
        }
        // It is closed to others.
        Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(format!("\"{shown}\" is closed to this user"));
        }
        Err(cause) => return Err(unread(cause)),
    };
    if !metadata.is_dir() {
        return Err(wrong(format!("\"{shown}\" is no folder"), &format!("Name a folder with {flag}.")));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong(
            format!("users other than {} may write to \"{shown}\"", metadata.uid()),
            "Take the right to write from group and others (chmod go-w), and look at what is in there.",
        ));
    }
    let owner = metadata.uid();
    if Uid::effective().is_root() || Uid::effective().as_raw() == owner {
        return Ok(format!("\"{shown}\""));
    }
    Ok(format!("\"{shown}\", of user {owner}"))
}

fn check_length(run_dir: &Path) -> Result<()> {
    if run_dir.as_os_str().len() <= MAX_RUN_DIR_BYTES {
        return Ok(());
    }
    let message = format!("the path \"{}\" has more than {MAX_RUN_DIR_BYTES} bytes", run_dir.display());
    Err(wrong(message, "Name a folder with a shorter path with --run-dir: the path of a socket has at most 107 bytes."))
}

/// Megabytes of a file system.
#[derive(Debug, Clone, Copy)]
struct Room {
    all: u64,
    free: u64,
}

fn room(path: &Path) -> Result<Room> {
    let found = statvfs(path).map_err(|cause| {
        wrong(
            format!("could not look at \"{}\": {cause}", path.display()),
            "Name a folder in memory with --shm-dir, and for images with --state-dir.",
        )
    })?;
    let megabytes = |blocks: u64| blocks.saturating_mul(found.fragment_size()) >> 20;
    Ok(Room { all: megabytes(found.blocks()), free: megabytes(found.blocks_available()) })
}

/// The folder itself or the next one above that is there.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

fn check_shared_memory(path: &Path, Room { all, free }: Room) -> Result<String> {
    let shown = path.display();
    if all < LEAST_SHM_MB || free < LEAST_SHM_MB {
        return Err(wrong(
            format!("\"{shown}\" has {all} MB, of which {free} MB are free; batches need at least {LEAST_SHM_MB} MB"),
            "Mount it with more (mount -o remount,size=2g), in a container start this with --shm-size 2g, or name another folder \
             in memory with --shm-dir.",
        ));
    }
    Ok(format!("\"{shown}\" has {all} MB, of which {free} MB are free"))
}

fn check_disk(path: &Path, Room { free, .. }: Room) -> Result<String> {
    if free < LEAST_DISK_MB {
        return Err(wrong(
            format!(
                "the disk of \"{}\" has {free} MB left; builds of images need at least {LEAST_DISK_MB} MB",
                path.display()
            ),
            "Remove images that are no longer used (transship prune), or name a folder on another disk with --state-dir.",
        ));
    }
    Ok(format!("{free} MB are free for \"{}\"", path.display()))
}

fn check_memory(meminfo: &str) -> Result<String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let available =
        line.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).ok_or_else(|| unread("no MemAvailable"))? >> 10;
    if available < LEAST_MEMORY_MB {
        return Err(wrong(
            format!(
                "the host has {available} MB of memory left, and a container may use {LEAST_MEMORY_MB} MB by default"
            ),
            "Start transshipd with --max-memory-mb, and lower limits.memory_mb of images.",
        ));
    }
    Ok(format!("{available} MB are available"))
}

/// Whether the manager that runs has the version of this program.
pub fn check_version(manager: &str) -> Result<String> {
    let own = env!("CARGO_PKG_VERSION");
    if manager != own {
        return Err(wrong(
            format!("the manager that runs has version {manager}, and this program has version {own}"),
            "Restart transshipd after an upgrade, or name the socket of the right one with --socket.",
        ));
    }
    Ok(format!("both programs have version {own}"))
}

fn check_descriptors(limits: &str) -> Result<String> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|rest| rest.split_whitespace().next()).ok_or_else(|| unread("no limit of open files"))?;
    let most = soft.parse::<u64>().unwrap_or(u64::MAX);
    if most < LEAST_DESCRIPTORS {
        return Err(wrong(
            format!("the manager may have {most} open files, and so {} connections of engines", most / 3),
            "Raise the limit with which transshipd is started: ulimit -n 65536, or LimitNOFILE=65536 in a unit of systemd.",
        ));
    }
    Ok(format!("the manager may have {soft} open files, and so {} connections of engines", (most / 3).min(8192)))
}

/// Whether the replicas of the manager stay, and answer.
pub fn check_replicas(replicas: &[ReplicaInfo], circuits: &[CircuitInfo]) -> Result<String> {
    let open: Vec<&str> =
        circuits.iter().filter(|circuit| circuit.state != "closed").map(|circuit| circuit.image.as_str()).collect();
    if !open.is_empty() {
        return Err(wrong(
            format!("containers keep ending, of image {}", open.join(", ")),
            "\"transship ps\" says how they ended, \"transship logs\" what they wrote. Mend the image and register it.",
        ));
    }
    let silent: Vec<&str> =
        replicas.iter().filter(|replica| replica.state == "silent").map(|replica| replica.name.as_str()).collect();
    if !silent.is_empty() {
        return Err(wrong(
            format!("these replicas do not answer: {}", silent.join(", ")),
            "A handler may compute without end, or hold the interpreter's lock. \"transship logs\" shows what they wrote.",
        ));
    }
    Ok(format!("{} run, and all answer", replicas.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn fault(found: Result<String>) -> String {
        let error = found.unwrap_err();
        assert!(error.hint().is_some(), "{error} says not what to do");
        error.message().to_string()
    }

    #[test]
    fn folders_are_closed_and_sockets_have_short_paths() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert!(check_folder(&path, "--state-dir").unwrap().contains("the manager makes it"));
        assert_eq!(existing(&path.join("a/b")), folder.path());
        fs::write(&path, "").unwrap();
        assert!(fault(check_folder(&path, "--state-dir")).contains("is no folder"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(fault(check_folder(folder.path(), "--state-dir")).contains("may write to"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check_folder(folder.path(), "--state-dir").is_ok());
        let long = PathBuf::from(format!("/{}", "r".repeat(MAX_RUN_DIR_BYTES)));
        assert!(fault(check_length(&long).map(|()| String::new())).contains("more than 47 bytes"));
        assert!(check_length(Path::new("/run/transship/replicas")).is_ok());
    }

    #[test]
    fn a_manager_for_root_alone_is_in_doubt() {
        assert!(doubt_of_users(&HashSet::from([0])).unwrap().contains("--allow-user"));
        assert_eq!(doubt_of_users(&HashSet::from([0, 26])), None);
        assert_eq!(doubt_of_users(&HashSet::from([1000])), None);
    }

    #[test]
    fn scarce_room_is_a_fault() {
        let shm = Path::new("/dev/shm");
        assert!(fault(check_shared_memory(shm, Room { all: 64, free: 64 })).contains("has 64 MB"));
        assert!(fault(check_shared_memory(shm, Room { all: 2048, free: 10 })).contains("10 MB are free"));
        assert!(check_shared_memory(shm, Room { all: 2048, free: 2048 }).is_ok());
        assert!(fault(check_disk(shm, Room { all: 9999, free: 1 })).contains("has 1 MB left"));
        assert!(check_disk(shm, Room { all: 9999, free: 9999 }).is_ok());
        assert!(fault(room(Path::new("/no/such/folder")).map(|_| String::new())).contains("/no/such/folder"));
        assert!(fault(check_memory("MemTotal: 1 kB\nMemAvailable:  102400 kB\n")).contains("has 100 MB"));
        assert_eq!(check_memory("MemAvailable: 2097152 kB\n").unwrap(), "2048 MB are available");
        assert!(check_memory("").is_err());
    }

    #[test]
    fn a_manager_has_the_version_and_the_descriptors() {
        assert!(fault(check_version("0.0.1")).contains("version 0.0.1"));
        assert!(check_version(env!("CARGO_PKG_VERSION")).is_ok());
        let limits =
            |soft: &str| format!("Limit   Soft Limit  Hard Limit  Units\nMax open files   {soft}   4096   files\n");
        assert!(fault(check_descriptors(&limits("256"))).contains("256 open files, and so 85 connections"));
        assert!(check_descriptors(&limits("65536")).unwrap().contains("8192 connections"));
        assert!(check_descriptors(&limits("unlimited")).is_ok());
        assert!(check_descriptors(&fs::read_to_string("/proc/self/limits").unwrap()).is_ok());
    }

    #[test]
    fn replicas_that_end_or_hang_are_a_fault() {
        let replica = |state: &str| ReplicaInfo {
            name: "r".into(),
            image: "i:1".into(),
            digest: String::new(),
            state: state.into(),
            leases: 0,
            age_s: 0,
            holders: Vec::new(),
        };
        let circuit = |state: &str| CircuitInfo {
            image: "i:1".into(),
            digest: String::new(),
            state: state.into(),
            endings: 9,
            wait_s: 9,
            last: String::new(),
        };
        assert!(check_replicas(&[replica("ready")], &[circuit("closed")]).is_ok());
        assert!(fault(check_replicas(&[], &[circuit("open")])).contains("image i:1"));
        assert!(fault(check_replicas(&[replica("silent")], &[])).contains("do not answer: r"));
    }
}
