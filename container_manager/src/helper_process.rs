//! Processes of the manager's that do one thing, with as little as that needs: the manager's own program once more, which gives up
//! everything but what it was handed as standard input.

use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::prctl::{set_no_new_privs, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, getppid, setgid, setgroups, setuid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use udf_types::{Error, Kind, Result};

use crate::sandbox::REPLICA_ID;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 256;

/// The socket on which such processes, or the manager for them, take clients; in place of one that a dead manager left. The caller
/// listens on the manager's own socket already, so that no other manager is alive here.
///
/// # Errors
/// It cannot be bound.
pub fn bind_socket(path: &Path) -> Result<OwnedFd> {
    let bound = || -> std::io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(path)?;
        let _ = fs::remove_file(path);
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&listener, &address)?;
        // Everybody may knock; the peer's user decides who is let in.
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    bound().map_err(|cause| {
        Error::new(Kind::InvalidDefinition, format!("could not listen on \"{}\": {cause}", path.display()))
    })
}

/// The command of a process: its name, the manager's process, and further arguments.
pub fn command(name: &str, arguments: impl IntoIterator<Item = String>, input: OwnedFd) -> Command {
    // Of the child itself, which is this program until then, even if its file was replaced by a newer one.
    let mut command = Command::new("/proc/self/exe");
    command.arg(name).arg(std::process::id().to_string()).args(arguments);
    command.env_clear().current_dir("/").stdin(input).stdout(Stdio::null());
    command
}

/// Becomes a user who may do nothing, if it may choose, with so many bytes of memory and no more, which ends with its manager. After a
/// change of its user, no other process of that user can look into it. Gives what it was handed.
///
/// # Errors
/// It cannot become so, or the manager has ended.
pub fn give_up(manager: u64, bytes: u64) -> std::io::Result<OwnedFd> {
    set_no_new_privs()?;
    if Uid::effective().is_root() {
        setgroups(&[])?;
        setgid(Gid::from_raw(REPLICA_ID))?;
        setuid(Uid::from_raw(REPLICA_ID))?;
    }
    setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // The manager may have ended before this was said.
    set_pdeathsig(Signal::SIGKILL)?;
    if u64::try_from(getppid().as_raw()).ok() != Some(manager) {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the manager has ended"));
    }
    std::io::stdin().as_fd().try_clone_to_owned()
}
