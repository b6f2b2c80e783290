//! What engines and the command line say to the container manager, and how: one JSON object per line over a Unix
//! socket, request and response in turn (`docs/protocol.md` §9).
//!
//! A lease belongs to the connection it was acquired on: it ends when the connection does, however that comes about.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use crate::registry_login::RegistryLogin;
use crate::trace::{MAX_SPANS, Span};

/// Most descriptors that come with a response: those of the folders of a replica's sockets and segments.
const MOST_DESCRIPTORS: usize = 2;
/// Most descriptors that are sent at once. Linux takes 253.
const MOST_SENT: usize = 250;

/// Longest line either side accepts; inline sources and logs are far below it.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

/// A request to the manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Is the manager there?
    Ping,
    /// Which digest does an image name stand for, and what is in it?
    Resolve {
        /// `name:tag` or a digest.
        image: String,
    },
    /// Builds inline code into an image.
    BuildInline {
        /// The project: template, requirements and one function.
        manifest: Box<Manifest>,
        /// Text of the handler.
        source: String,
    },
    /// Adds bytes to a file of a project, which the manager keeps for as long as this connection lasts.
    AddToFile {
        /// Path inside the project.
        path: String,
        /// The bytes, in base64.
        content: String,
        /// Whether the file can be run.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_program: bool,
    },
    /// Builds the project whose files this connection has sent, unless its image exists. The image is named after the
    /// library and the content of its files, so that no library takes another image's name.
    BuildLibrary {
        /// The library's name, for messages.
        library: String,
    },
    /// Builds the project whose files this connection has sent, under the name that its manifest says. [`Response::Progress`]
    /// comes any number of times before the image.
    BuildProject,
    /// Sends an image to a registry.
    Push {
        /// `name:tag` or a digest.
        image: String,
        /// The reference under which the registry is to have it.
        reference: String,
        /// The caller's login at the registry; the manager uses no other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        login: Option<RegistryLogin>,
    },
    /// Gets an image from a registry, with the name that its manifest says.
    Pull {
        /// The reference by which the registry has it.
        reference: String,
        /// Whether it takes its names from other images that have them here.
        #[serde(default)]
        replace: bool,
        /// The caller's login at the registry; the manager uses no other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        login: Option<RegistryLogin>,
    },
    /// What does the manager lack on this host?
    Doctor,
    /// Leases a replica for as long as this connection lasts.
    Acquire {
        /// Digest of the image.
        digest: String,
    },
    /// Asks what became of the leased replica; it is replaced if it has ended.
    ReportFailure {
        /// The replica's name.
        replica: String,
    },
    /// Says that the leased replica did not answer in time: the manager asks it, and replaces it if it stays silent.
    ReportTimeout {
        /// The replica's name.
        replica: String,
    },
    /// Lists replicas.
    Replicas,
    /// The last lines that a replica wrote.
    Logs {
        /// The replica's name.
        replica: String,
    },
    /// The manager's metrics.
    Metrics,
    /// Hands over spans that have ended, for the manager to export. It leaves them out where it exports none, or too many wait.
    Spans {
        /// At most [`MAX_SPANS_PER_REQUEST`].
        spans: Vec<Span>,
    },
    /// Removes images that engines had built and that nobody has asked for since.
    Prune {
        /// For so many days.
        older_than_days: u64,
    },
}

/// The manager's response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Ping`].
    Pong {
        /// The manager's version.
        version: String,
        /// Its runtime: docker, podman or process.
        runtime: String,
    },
    /// To [`Request::AddToFile`].
    Added,
    /// To [`Request::ReportTimeout`] and [`Request::Spans`].
    Noted,
    /// To [`Request::Prune`].
    Pruned {
        /// The names of what was removed.
        images: Vec<String>,
    },
    /// To [`Request::Resolve`], to all requests to build, and to [`Request::Pull`].
    Image(ImageInfo),
    /// What a build says while it runs, before the response to [`Request::BuildProject`].
    Progress {
        /// Text, with the ends of its lines.
        text: String,
    },
    /// To [`Request::Push`].
    Pushed {
        /// The reference by which the registry knows the image's content.
        reference: String,
    },
    /// To [`Request::Doctor`].
    Doctor {
        /// One entry per thing that was looked at.
        checks: Vec<CheckInfo>,
        /// What replicas and builds are not kept from, though they should be.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        doubts: Vec<String>,
    },
    /// To [`Request::Acquire`].
    Lease(LeaseInfo),
    /// To [`Request::ReportFailure`]: a phrase that follows "The container".
    Fate {
        /// For example `exited with status 137`.
        fate: String,
    },
    /// To [`Request::Replicas`].
    Replicas {
        /// One entry per replica.
        replicas: Vec<ReplicaInfo>,
        /// The images whose replicas ended of late.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        circuits: Vec<CircuitInfo>,
    },
    /// To [`Request::Logs`].
    Logs {
        /// Text.
        text: String,
    },
    /// To [`Request::Metrics`].
    Metrics {
        /// In Prometheus' text format.
        text: String,
    },
    /// To anything that failed.
    Error(Error),
}

/// The fate of a replica that answers.
pub const STILL_RUNNING: &str = "is still running";

/// Most bytes of one [`Request::AddToFile`], so that it stays well below [`MAX_LINE_BYTES`] in base64.
pub const MAX_PIECE_BYTES: usize = 4 << 20;

/// Most spans of one [`Request::Spans`]: those of an exchange, and its own.
pub const MAX_SPANS_PER_REQUEST: usize = MAX_SPANS + 1;

/// Hands spans to the manager.
pub async fn report_spans(socket: &Path, spans: Vec<Span>) -> Result<()> {
    ask(socket, &Request::Spans { spans }).await.map(drop)
}

/// Has the manager build a project, given as paths inside it and their contents.
pub async fn build_library(
    socket: &Path,
    library: &str,
    files: impl Iterator<Item = Result<(String, Vec<u8>)>>,
) -> Result<ImageInfo> {
    let mut connection = Connection::open(socket).await?;
    for file in files {
        let (path, bytes) = file?;
        // An empty file has one empty piece.
        let pieces = if bytes.is_empty() { vec![&bytes[..]] } else { bytes.chunks(MAX_PIECE_BYTES).collect() };
        for piece in pieces {
            let content = base64::engine::general_purpose::STANDARD.encode(piece);
            connection.request(&Request::AddToFile { path: path.clone(), content, is_program: false }).await?;
        }
    }
    match connection.request(&Request::BuildLibrary { library: library.to_string() }).await? {
        Response::Image(info) => Ok(info),
        other => Err(unexpected(&format!("It answered {other:?} instead of an image."))),
    }
}

/// An image that exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its content's digest.
    pub digest: String,
    /// Its manifest, every signature filled in.
    pub manifest: Manifest,
}

/// The right to call one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The replica's name.
    pub replica: String,
    /// The image's name, for messages.
    pub image: String,
    /// Where it answers Flight; none if its server does not offer it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flight: Option<String>,
    /// Where it answers JSON, and the forms below.
    pub json: String,
    /// Whether it takes columns as they lie in memory.
    #[serde(default)]
    pub columns: bool,
    /// Whether it takes Parquet files in segments.
    #[serde(default)]
    pub parquet: bool,
    /// Folder of the segments, if it takes those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<PathBuf>,
    /// What the names of this lease's segments begin with. They are removed when it ends.
    #[serde(default)]
    pub prefix: String,
    /// Whether it takes requests before the last one is answered.
    #[serde(default)]
    pub pipelining: bool,
    /// Whether it takes columns of one row that stand for all.
    #[serde(default)]
    pub constants: bool,
    /// Whether connections may be kept that no exchange uses.
    #[serde(default)]
    pub keep_alive: bool,
    /// Whether it goes on after a row on which the handler raises an error.
    #[serde(default)]
    pub row_errors: bool,
    /// Where it takes offers of shared tables, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<PathBuf>,
    /// The user that its server runs as. No other is taken for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

/// One replica, as `transship ps` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// Name.
    pub name: String,
    /// Image, `name:tag`.
    pub image: String,
    /// Image digest.
    pub digest: String,
    /// State of its life.
    pub state: String,
    /// Leases on it.
    pub leases: usize,
    /// Seconds since it was started or adopted.
    pub age_s: u64,
    /// Who has the leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<LeaseHolder>,
}

/// An image whose last replicas ended by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitInfo {
    /// Image, `name:tag`.
    pub image: String,
    /// Image digest.
    pub digest: String,
    /// What those get who want a replica: `closed` one, `pausing` one after a wait, `open` an error.
    pub state: String,
    /// Replicas that ended so in a row.
    pub endings: u32,
    /// Seconds until the next one may be started.
    pub wait_s: u64,
    /// How the last one ended.
    pub last: String,
}

/// One thing that the manager looked at for [`Request::Doctor`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    /// What it is.
    pub name: String,
    /// Whether it is as it should be.
    pub is_well: bool,
    /// What was found, or the error.
    pub fact: String,
}

/// Who has a lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// User.
    pub uid: u32,
    /// Process; none if the manager cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Seconds since it got the lease.
    pub age_s: u64,
}

/// A connection to the manager.
#[derive(Debug)]
pub struct Connection {
    socket: PathBuf,
    stream: UnixStream,
    /// What was received and not yet looked at.
    received: Vec<u8>,
    /// The descriptors that came with it.
    descriptors: Vec<OwnedFd>,
}

impl Connection {
    /// Connects to the manager's socket.
    pub async fn open(socket: &Path) -> Result<Connection> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|cause| Error::manager_unreachable(&socket.to_string_lossy(), cause))?;
        let (received, descriptors) = Default::default();
        Ok(Connection { socket: socket.to_path_buf(), stream, received, descriptors })
    }

    /// The manager's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The descriptors that came with the last response.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Whether the manager is seen to have ended it. It has nothing to say before it is asked.
    pub(crate) fn is_ended(&self) -> bool {
        !self.stream.try_read(&mut [0]).is_err_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Sends a request and waits for its response; the manager's own error comes back as one.
    pub async fn request(&mut self, request: &Request) -> Result<Response> {
        self.request_telling(request, |_| ()).await
    }

    /// The same, with what the manager says meanwhile of how it goes on.
    pub async fn request_telling(&mut self, request: &Request, mut tell: impl FnMut(&str)) -> Result<Response> {
        let lost = |socket: &Path, cause: &dyn std::fmt::Display| {
            Error::manager_unreachable(&socket.to_string_lossy(), format!("the connection was lost: {cause}"))
        };
        let mut line = serde_json::to_string(request).expect("requests hold nothing that JSON cannot");
        line.push('\n');
        self.descriptors.clear();
        if let Err(cause) = self.stream.write_all(line.as_bytes()).await {
            // A manager that refuses a connection says why, and closes it before it has read a request that comes late.
            let said = self.read_line().await.ok().flatten();
            return Err(match said.as_deref().map(serde_json::from_str) {
                Some(Ok(Response::Error(refusal))) => refusal,
                _ => lost(&self.socket, &cause),
            });
        }
        loop {
            let response = self.read_line().await.map_err(|cause| lost(&self.socket, &cause))?;
            let Some(response) = response else {
                return Err(lost(&self.socket, &"the manager closed it"));
            };
            return match serde_json::from_str(&response) {
                Ok(Response::Progress { text }) => {
                    tell(&text);
                    continue;
                }
                Ok(Response::Error(error)) => Err(error),
                Ok(response) => Ok(response),
                Err(cause) => Err(unexpected(&format!("its response cannot be read: {cause}"))),
            };
        }
    }

    /// A line of at most [`MAX_LINE_BYTES`], with the descriptors that come along; none at the end of the stream.
    async fn read_line(&mut self) -> std::io::Result<Option<String>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=searched + end).collect();
                line.pop();
                return String::from_utf8(line).map(Some).map_err(|_| not_a_line("line is not UTF-8"));
            }
            searched = self.received.len();
            if searched as u64 >= MAX_LINE_BYTES {
                return Err(not_a_line("line too long"));
            }
            self.stream.readable().await?;
            let Connection { stream, received, descriptors, .. } = self;
            match stream.try_io(Interest::READABLE, || receive(&*stream, received, descriptors)) {
                Ok(0) if searched == 0 => return Ok(None),
                Ok(0) => return Err(not_a_line("line cut off")),
                Err(cause) if cause.kind() != std::io::ErrorKind::WouldBlock => return Err(cause),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

fn not_a_line(fact: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, fact)
}

/// Adds what the socket has now, and the descriptors that come with it; 0 at its end.
fn receive(socket: impl AsFd, bytes: &mut Vec<u8>, descriptors: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; 8 << 10];
    // They go to no program that this process starts.
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = part {
            descriptors.extend(found);
        }
    }
    descriptors.truncate(MOST_DESCRIPTORS);
    bytes.extend_from_slice(&buffer[..message.bytes]);
    Ok(message.bytes)
}

/// Sends bytes, the first of them with descriptors; how many were sent.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(sent)
}

/// The manager answered something else than was asked.
pub fn unexpected(fact: &str) -> Error {
    Error::new(Kind::ProtocolViolation, "the container manager broke the protocol").with_detail(fact.to_string())
}

/// One request on a connection of its own.
pub async fn ask(socket: &Path, request: &Request) -> Result<Response> {
    Connection::open(socket).await?.request(request).await
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use udf_types::Kind;

    use super::*;

    #[tokio::test]
    async fn a_request_that_comes_after_the_refusal_fails_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut line = serde_json::to_vec(&Response::Error(Error::new(Kind::NotAllowed, "no"))).unwrap();
        line.push(b'\n');
        for (said, kind) in [(line.as_slice(), Kind::NotAllowed), (b"", Kind::Unreachable), (b"{", Kind::Unreachable)] {
            let mut connection = Connection::open(&path).await.unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said).unwrap();
            drop(stream);
            let error = connection.request(&Request::Ping).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
