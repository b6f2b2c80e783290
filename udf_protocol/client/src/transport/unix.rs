//! Unix sockets that lie in a folder to which somebody else may write.
//!
//! In: a path, and the user that is to listen there. Out: a connection to a socket that lay at this very path, not to what a
//! link pointed to. A container can replace its own socket by a link to any socket of the host; following it would carry an
//! engine's requests to a door that is open to the engine and not to the container, such as the manager's.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::folder::Folder;
use crate::foreground::SocketStream;
use crate::transport::CONNECT_TIMEOUT;
use crate::transport::credentials::Credentials;

/// Between two attempts at a socket whose queue of connections is full.
const PAUSE: Duration = Duration::from_millis(5);

/// A Unix socket at which a server is expected.
#[derive(Debug, Clone)]
pub(crate) struct UnixSocket {
    path: PathBuf,
    folder: Option<Folder>,
    user: Option<u32>,
}

impl UnixSocket {
    /// The one at a path, in the folder that was opened, of the user who is expected there.
    pub(crate) fn new(path: &Path, credentials: &Credentials) -> UnixSocket {
        let (folder, user) = (credentials.folder.clone(), credentials.server_user);
        UnixSocket { path: path.to_path_buf(), folder, user }
    }

    /// Where this process finds it.
    pub(crate) fn path(&self) -> PathBuf {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.folder.as_ref().map_or_else(|| self.path.clone(), |folder| folder.file(name))
    }

    /// Connects to it.
    pub(crate) async fn connect(&self) -> io::Result<SocketStream> {
        connect(&self.path(), self.user).await.map(SocketStream::new)
    }
}

/// Connects to the socket at a path, whose server must run as `user` if one is given. A server whose queue of connections is
/// full is tried again, for as long as connecting may take: the kernel does not wait for it, as it does over TCP. The stream does
/// not block.
pub async fn connect(path: &Path, user: Option<u32>) -> io::Result<UnixStream> {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits();
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        // Of the folder alone it would not do: connecting to a name in it follows a link all the same.
        let socket = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !socket.metadata()?.file_type().is_socket() {
            return Err(refused("it is not a socket"));
        }
        let same = PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()));
        let stream = match connect_at_once(&same) {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            outcome => outcome?,
        };
        let found = user_of_peer(&stream)?;
        return match user {
            Some(user) if user != found => {
                Err(refused(&format!("its server runs as user {found}, not as user {user}")))
            }
            _ => Ok(stream),
        };
    }
}

/// A Unix socket is connected at once or not at all.
fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The user that the other end of a connection runs as.
pub fn user_of_peer(stream: &UnixStream) -> io::Result<u32> {
    // Not by rustix, whose process numbers are never 0: of a process outside of this one's namespace, it is.
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

fn refused(fact: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, fact)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::unistd::Uid;

    use super::*;

    #[tokio::test]
    async fn links_files_and_strangers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _server = UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink(path("socket"), path("link")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        let me = Uid::effective().as_raw();
        assert!(connect(&path("socket"), None).await.is_ok());
        assert!(connect(&path("socket"), Some(me)).await.is_ok());
        let refusal = async |name: &str, user| connect(&path(name), user).await.unwrap_err().to_string();
        assert_eq!(
            refusal("socket", Some(me + 1)).await,
            format!("its server runs as user {me}, not as user {}", me + 1)
        );
        assert_eq!(refusal("link", Some(me)).await, "it is not a socket");
        assert_eq!(refusal("link", None).await, "it is not a socket");
        assert_eq!(refusal("file", None).await, "it is not a socket");
        assert_eq!(connect(&path("nothing"), None).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
