//! The manager's Unix socket: one task per connection, requests in turn, leases that end with the connection.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use udf_protocol::control::{Request, Response, read_line, send};
use udf_protocol::{Error, Kind, Result};

use crate::config::{Config, make_dir};
use crate::folders::Opened;
use crate::pool::Pool;
use crate::registration::library::Upload;

/// Connections at a time of users who may ask. Each session of an engine has one.
const MOST_CONNECTIONS: usize = 8192;
/// Connections at a time that are told that they are refused.
const MOST_STRANGERS: usize = 16;
/// How long a refused connection may stay, and what it may still send.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
const MOST_IGNORED_BYTES: u64 = 64 << 10;

/// Binds the manager's socket, in place of one that a dead manager left.
pub fn bind(socket: &Path) -> Result<UnixListener> {
    let failed = |cause: std::io::Error| {
        Error::new(Kind::InvalidDefinition, format!("could not listen on \"{}\": {cause}", socket.display()))
    };
    if let Some(folder) = socket.parent() {
        make_dir(folder)?;
    }
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Err(Error::new(
            Kind::InvalidDefinition,
            format!("a manager is listening on \"{}\" already", socket.display()),
        ));
    }
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(failed)?;
    // Everybody may knock; the peer's user decides who is let in.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}

/// Serves connections until the listener fails.
pub async fn serve(listener: UnixListener, pool: Arc<Pool>, config: Arc<Config>) {
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                eprintln!("transshipd: could not accept a connection: {cause}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        // Nothing is read of a user who may not ask.
        let is_allowed = stream.peer_cred().is_ok_and(|peer| config.allowed_uids.contains(&peer.uid()));
        if !is_allowed {
            // Beyond that many at a time, they are not even told.
            if let Ok(place) = strangers.clone().try_acquire_owned() {
                let refusal = Error::new(Kind::NotAllowed, "permission denied for the container manager")
                    .with_hint("Start transshipd with --allow-user for the user that the database server runs as.");
                tokio::spawn(refuse(stream, refusal, place));
            }
        } else if let Ok(place) = connections.clone().try_acquire_owned() {
            tokio::spawn(serve_connection(stream, pool.clone(), place));
        } else if let Ok(place) = strangers.clone().try_acquire_owned() {
            let message = format!("the container manager has {MOST_CONNECTIONS} connections already");
            tokio::spawn(refuse(stream, Error::new(Kind::ContainerFailed, message), place));
        }
    }
}

/// Answers a connection with one error and ends it.
async fn refuse(mut stream: UnixStream, refusal: Error, _place: OwnedSemaphorePermit) {
    let answered = async {
        stream.write_all(&line_of(&Response::Error(refusal))).await?;
        stream.shutdown().await?;
        // So that its request, which is not looked at, does not fail before it reads the answer.
        tokio::io::copy(&mut stream.take(MOST_IGNORED_BYTES), &mut tokio::io::sink()).await
    };
    // Whoever does not want the answer gets none.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, answered).await;
}

fn line_of(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response).expect("responses hold nothing that JSON cannot");
    line.push(b'\n');
    line
}

/// What one connection holds: its leases, which dropping it releases, and the files it has sent.
struct Held {
    pool: Arc<Pool>,
    /// Of each lease the replica, and what the names of its segments begin with.
    leases: Vec<(String, String)>,
    upload: Upload,
}

impl Drop for Held {
    fn drop(&mut self) {
        for (replica, prefix) in &self.leases {
            self.pool.release(replica, prefix);
        }
    }
}

async fn serve_connection(stream: UnixStream, pool: Arc<Pool>, _place: OwnedSemaphorePermit) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut held = Held { pool, leases: Vec::new(), upload: Upload::default() };
    loop {
        let line = match read_line(&mut reader).await {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(cause) => return eprintln!("transshipd: a request was cut off: {cause}"),
        };
        let mut is_readable = true;
        let mut opened = None;
        let response = match serde_json::from_str(&line) {
            Ok(request) => answer(request, &mut held, &mut opened).await,
            Err(cause) => {
                is_readable = false;
                Err(Error::new(Kind::ProtocolViolation, format!("the request cannot be read: {cause}")))
            }
        };
        let response = response.unwrap_or_else(Response::Error);
        // docs/protocol.md §9: "the manager ends a connection at the first line that is no request". Whoever speaks something
        // else, HTTP for example, may carry lines that somebody else has written.
        if write(&mut writer, &line_of(&response), opened).await.is_err() || !is_readable {
            return;
        }
    }
}

/// Sends a response, with the folders that a lease opens.
async fn write(writer: &mut OwnedWriteHalf, line: &[u8], opened: Option<Opened>) -> std::io::Result<()> {
    let Some(opened) = opened else { return writer.write_all(line).await };
    let descriptors: Vec<_> = [Some(&opened.sockets), opened.segments.as_ref()].into_iter().flatten().collect();
    let descriptors: Vec<_> = descriptors.into_iter().map(AsFd::as_fd).collect();
    let sent = loop {
        writer.writable().await?;
        let stream: &UnixStream = writer.as_ref();
        match stream.try_io(Interest::WRITABLE, || send(stream, line, &descriptors)) {
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
            outcome => break outcome?,
        }
    };
    writer.write_all(&line[sent..]).await
}

async fn answer(request: Request, held: &mut Held, opened: &mut Option<Opened>) -> Result<Response> {
    let pool = held.pool.clone();
    match request {
        Request::Ping => Ok(Response::Pong {
            version: env!("CARGO_PKG_VERSION").to_string(),
            runtime: pool.runtime_name().to_string(),
        }),
        Request::Resolve { image } => pool.resolve(image).await.map(Response::Image),
        Request::BuildInline { manifest, source } => pool.build_inline(*manifest, source).await.map(Response::Image),
        Request::AddToFile { path, content } => held.upload.add(&path, &content).map(|()| Response::Added),
        Request::BuildLibrary { library } => {
            let upload = std::mem::take(&mut held.upload);
            pool.build_library(library, upload).await.map(Response::Image)
        }
        Request::Acquire { digest } => {
            let (info, folders) = pool.acquire(&digest).await?;
            held.leases.push((info.replica.clone(), info.prefix.clone()));
            *opened = Some(folders);
            Ok(Response::Lease(info))
        }
        Request::ReportFailure { replica } => pool.judge(replica).await.map(|fate| Response::Fate { fate }),
        Request::Replicas => Ok(Response::Replicas { replicas: pool.list() }),
        Request::Logs { replica } => pool.logs(replica).await.map(|text| Response::Logs { text }),
    }
}
