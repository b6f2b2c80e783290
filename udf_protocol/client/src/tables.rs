//! Shared tables that calls have (`docs/protocol.md` §10): a replica's server gets their files before it is called.
//!
//! In: the open files of each table. Out: an [`Offer`], whose name each call carries. It lasts as long as its connection, and a lease
//! keeps it for later calls with the same files. A server that runs as this process's user gets none: it could write to them.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::ioctl::{Getter, ioctl};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use udf_codec::wire::WireError;
use udf_types::{Error, Kind, Result};

use crate::channel::lacks_descriptors;
use crate::control::{LeaseInfo, send};
use crate::names::random_name;
use crate::transport::credentials::Credentials;
use crate::transport::unix;

/// Most files of one table.
pub const MOST_FILES: usize = 240;
/// Longest answer to an offer, in bytes.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Between two looks whether a server has taken what it was given.
const UNTAKEN_INTERVAL: Duration = Duration::from_millis(5);

/// A table that handlers read by its name. Clones share the files, which are closed with the last of them.
#[derive(Debug, Clone)]
pub struct SharedTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    segments: Vec<Vec<OwnedFd>>,
    numbers: Vec<(u64, u64)>,
    /// What an engine wants to live as long.
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl SharedTable {
    /// A table with the files of its segments, oldest first: the rows, and the index if there is one. They are open for reading only.
    /// `keeper` lives as long as the table.
    ///
    /// # Errors
    /// There are more than [`MOST_FILES`], or none of a segment (of kind `OutOfRange`), or the system fails.
    pub fn new(
        name: impl Into<String>,
        segments: Vec<Vec<OwnedFd>>,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<SharedTable> {
        let name = name.into();
        let count = segments.iter().map(Vec::len).sum::<usize>();
        if count > MOST_FILES || segments.iter().any(|files| !(1..=2).contains(&files.len())) {
            let message = format!("shared table \"{name}\" has more parts than a container can be given");
            return Err(Error::new(Kind::OutOfRange, message)
                .with_detail(format!("It has {count} files, of which {MOST_FILES} are possible.")));
        }
        let number = |file: &OwnedFd| fstat(file).map(|found| (found.st_dev, found.st_ino));
        let numbers = segments.iter().flatten().map(number).collect::<std::result::Result<_, _>>();
        let numbers = numbers.map_err(|cause| {
            let message = format!("could not look at the files of shared table \"{name}\": {cause}");
            Error::new(Kind::Unreachable, message)
        })?;
        Ok(SharedTable(Arc::new(Inner { name, segments, numbers, _keeper: keeper })))
    }

    /// Whether a file of it has no name any more: its memory is free once nobody has it open.
    pub(crate) fn is_removed(&self) -> bool {
        self.0.segments.iter().flatten().any(|file| fstat(file).is_ok_and(|found| found.st_nlink == 0))
    }
}

impl PartialEq for SharedTable {
    /// Whether both have the same name and files.
    fn eq(&self, other: &SharedTable) -> bool {
        (&self.0.name, &self.0.numbers) == (&other.0.name, &other.0.numbers)
    }
}

/// Tables that a replica's server knows, until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) name: Arc<str>,
    tables: Vec<SharedTable>,
    connection: Arc<UnixStream>,
    replica: String,
    untaken: Arc<Untaken>,
}

/// What replicas were given and had not taken when it was given up. Its descriptors are on their way as long as the replica runs, and the
/// kernel lets a user have few of these.
#[derive(Debug, Default)]
pub(crate) struct Untaken(Mutex<Vec<(String, Arc<UnixStream>)>>);

impl Untaken {
    /// Waits until a replica has taken all that it was given.
    async fn wait_for(&self, replica: &str) {
        while self.has_of(replica) {
            tokio::time::sleep(UNTAKEN_INTERVAL).await;
        }
    }

    fn has_of(&self, replica: &str) -> bool {
        self.forget_taken();
        self.0.lock().expect("no holder panics").iter().any(|(name, _)| name == replica)
    }

    /// Closes the connections of which a replica has taken all, or that it has closed.
    pub(crate) fn forget_taken(&self) {
        self.0.lock().expect("no holder panics").retain(|(_, connection)| has_unread(connection));
    }
}

#[derive(Serialize)]
struct Line<'a> {
    offer: &'a str,
    table: &'a str,
    files: Vec<usize>,
}

#[derive(Deserialize)]
struct Answer {
    error: Option<WireError>,
}

impl Offer {
    /// Gives tables to the server that takes them at a socket, for calls of `function`, once its replica has taken all that it was given
    /// before.
    ///
    /// # Errors
    /// The server does not want these; or the replica is lost, which another try may mend.
    pub(crate) async fn make(
        path: &Path,
        credentials: &Credentials,
        function: &str,
        tables: &[SharedTable],
        (replica, untaken): (&LeaseInfo, &Arc<Untaken>),
    ) -> Result<Offer> {
        let lost = |cause: std::io::Error| failed(function, &replica.image, &cause);
        untaken.wait_for(&replica.replica).await;
        let connection = Arc::new(connect(path, credentials).await.map_err(lost)?);
        let mut offer = Offer {
            name: random_name().into(),
            tables: Vec::new(),
            connection,
            replica: replica.replica.clone(),
            untaken: untaken.clone(),
        };
        for table in tables {
            match offer.add(table).await.map_err(lost)? {
                None => {}
                Some(refusal) => return Err(refusal.into_error(function)),
            }
        }
        Ok(offer)
    }

    /// Offers one more table; gives what the server has against it, if it has.
    async fn add(&mut self, table: &SharedTable) -> std::io::Result<Option<WireError>> {
        let Inner { name, segments, .. } = &*table.0;
        let files = segments.iter().map(Vec::len).collect();
        let line = Line { offer: &self.name, table: name, files };
        let mut line = serde_json::to_vec(&line).map_err(std::io::Error::other)?;
        line.push(b'\n');
        let mut descriptors: Vec<BorrowedFd<'_>> = segments.iter().flatten().map(AsFd::as_fd).collect();
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            let sending = || send(&self.connection, rest, &descriptors);
            let sent = self.connection.async_io(Interest::WRITABLE, sending).await?;
            // They come with the first byte.
            descriptors.clear();
            rest = &rest[sent..];
        }
        let answer = self.answer().await?;
        let unreadable = |cause: String| std::io::Error::new(std::io::ErrorKind::InvalidData, cause);
        let answer: Answer = serde_json::from_slice(&answer).map_err(|cause| unreadable(cause.to_string()))?;
        if answer.error.is_none() && has_unread(&self.connection) {
            return Err(unreadable("it came before the server had read the offer".to_string()));
        }
        self.tables.push(table.clone());
        Ok(answer.error)
    }

    async fn answer(&self) -> std::io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            let mut buffer = [0; 1024];
            let receiving = || Ok(rustix::io::read(&self.connection, &mut buffer[..])?);
            let read = self.connection.async_io(Interest::READABLE, receiving).await?;
            answer.extend_from_slice(&buffer[..read]);
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if answer.len() > MOST_ANSWER_BYTES {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is too long"));
            }
        }
        Ok(answer)
    }

    pub(crate) fn tables(&self) -> &[SharedTable] {
        &self.tables
    }

    /// Whether it has these tables, and the server still has it. A server has nothing to say before it is asked.
    pub(crate) fn has(&self, tables: &[SharedTable]) -> bool {
        let is_there =
            || self.connection.try_read(&mut [0]).is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock);
        self.tables == tables && is_there()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if !has_unread(&self.connection) {
            return;
        }
        // A server that comes to it yet sees that it has ended.
        let _ = shutdown(&self.connection, Shutdown::Both);
        let mut untaken = self.untaken.0.lock().expect("no holder panics");
        untaken.push((std::mem::take(&mut self.replica), self.connection.clone()));
    }
}

/// Whether the other end of a Unix socket has not read all that was sent to it. Nothing is left of what it has closed.
#[allow(unsafe_code)]
fn has_unread(connection: impl AsFd) -> bool {
    // SAFETY: the kernel writes an int, which is what this operation gives.
    let unread = unsafe { ioctl(connection, Getter::<{ nix::libc::TIOCOUTQ as u32 }, nix::libc::c_int>::new()) };
    unread.is_ok_and(|bytes| bytes > 0)
}

/// The error for a system or a server that fails while tables are offered to a container of an image.
pub(crate) fn failed(function: &str, image: &str, cause: &std::io::Error) -> Error {
    match cause {
        _ if lacks_descriptors(cause) => {
            let message = format!("no file descriptors for the shared tables of function \"{function}\": {cause}");
            // Which container does not take its own, the kernel does not say.
            let error = Error::new(Kind::OutOfMemory, message)
                .with_detail(format!("They are for a container of image \"{image}\"."));
            error.with_hint(
                "Raise LimitNOFILE of this service, and end containers that do not take what they are given.",
            )
        }
        _ if cause.kind() == std::io::ErrorKind::InvalidData => {
            Error::protocol(function, format!("Its answer to an offer of tables cannot be read: {cause}."))
        }
        _ => Error::connection_lost(function, cause),
    }
}

async fn connect(path: &Path, credentials: &Credentials) -> std::io::Result<UnixStream> {
    let socket = unix::UnixSocket::new(path, credentials);
    UnixStream::from_std(unix::connect(&socket.path(), credentials.server_user).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_descriptors_names_function_and_image() {
        for code in [nix::libc::EMFILE, nix::libc::ENFILE, nix::libc::ETOOMANYREFS] {
            let error = failed("f", "prices:1.0", &std::io::Error::from_raw_os_error(code));
            assert_eq!((error.kind(), error.is_retryable()), (Kind::OutOfMemory, false));
            assert!(error.message().starts_with("no file descriptors for the shared tables of function \"f\": "));
            assert_eq!(error.detail(), Some("They are for a container of image \"prices:1.0\"."));
        }
        let lost = failed("f", "prices:1.0", &std::io::ErrorKind::ConnectionReset.into());
        assert!(lost.is_retryable(), "{lost}");
    }

    #[tokio::test]
    async fn what_was_given_up_is_kept_until_it_is_taken_or_closed() {
        let untaken = Arc::<Untaken>::default();
        let give_up = async |replica: &str| {
            let (connection, server) = UnixStream::pair().unwrap();
            connection.writable().await.unwrap();
            connection.try_write(b"a table").unwrap();
            let (connection, replica) = (Arc::new(connection), replica.to_string());
            drop(Offer { name: "o".into(), tables: Vec::new(), connection, replica, untaken: untaken.clone() });
            server
        };
        let left = || {
            untaken.forget_taken();
            untaken.0.lock().unwrap().iter().map(|(replica, _)| replica.clone()).collect::<Vec<_>>()
        };
        let (slow, dead) = (give_up("slow").await, give_up("dead").await);
        assert_eq!(left(), ["slow", "dead"]);
        drop(dead);
        assert_eq!(left(), ["slow"]);
        slow.readable().await.unwrap();
        slow.try_read(&mut [0; 7]).unwrap();
        assert!(left().is_empty());
    }
}
