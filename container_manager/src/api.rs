//! The manager's Unix socket: one task per connection, requests in turn, leases that end with the connection.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use udf_client::control::{MAX_SPANS_PER_REQUEST, Request, Response, send};
use udf_project::reference::is_digest;
use udf_types::{Error, Kind, Result};

use crate::blocking::blocking;
use crate::cancel::{Canceller, cancel};
use crate::config::Config;
use crate::engine_images::{LIBRARY_NAME, inline_name};
use crate::folders::Opened;
use crate::images::Images;
use crate::log;
use crate::make_dir::make_dir;
use crate::monitoring::write_metrics;
use crate::pool::Pool;
use crate::progress::{Heard, Progress, progress};
use crate::registration::upload::Upload;
use crate::replica::Holder;
use crate::request::{hung_up, read_request};
use crate::runtime::image_store::{BuildOptions, TransferOptions};
use crate::traces::Traces;
use crate::users::{Asker, Connection, Connections, OfUser};

/// Connections at a time of engines, each session of which has one, and as many of operators; but no more than a third each of
/// the descriptors that the manager may have.
const MOST_CONNECTIONS: usize = 8192;
/// Leases at a time of one connection; engines have one.
const MOST_LEASES: usize = 64;
/// Connections at a time that are told that they are refused.
const MOST_STRANGERS: usize = 16;
/// How long a refused connection may stay, and what it may still send.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// A client that does not read its response for so long is gone, or as good as.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
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
pub async fn serve(listener: UnixListener, images: Arc<Images>, pool: Arc<Pool>, config: Arc<Config>, traces: Traces) {
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let most = usize::try_from(soft / 3).unwrap_or(MOST_CONNECTIONS).min(MOST_CONNECTIONS);
    let mut users: HashMap<u32, Arc<OfUser>> = HashMap::new();
    let of_engines = Connections::new(most, config.allowed_uids.difference(&config.operator_uids).count());
    let of_operators = Connections::new(most, config.operator_uids.len());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                log::warning("accept_failed").write(format_args!("could not accept a connection: {cause}"));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        // Nothing is read of a user who may not ask.
        let peer =
            Peer::of(&stream, &config).ok().filter(|peer| peer.is_operator || config.allowed_uids.contains(&peer.uid));
        let Some(peer) = peer else {
            // Beyond that many at a time, they are not even told.
            if let Ok(place) = strangers.clone().try_acquire_owned() {
                let refusal = Error::new(Kind::NotAllowed, "permission denied for the container manager")
                    .with_hint("Start transshipd with --allow-user for the user that the database server runs as.");
                tokio::spawn(refuse(stream, refusal, place));
            }
            continue;
        };
        let connections = if peer.is_operator { &of_operators } else { &of_engines };
        let of_user = users.entry(peer.uid).or_insert_with(|| OfUser::new(peer.is_operator));
        match connections.take(peer.uid, of_user) {
            Ok(place) => {
                let upload = Upload::new(of_user.uploads());
                let (images, pool, log_leases) = (images.clone(), pool.clone(), config.log_leases);
                let (config, traces) = (config.clone(), traces.clone());
                let held = Held { images, pool, config, traces, peer, leases: Vec::new(), log_leases, upload };
                tokio::spawn(serve_connection(stream, held, place));
            }
            Err(refusal) => {
                if let Ok(place) = strangers.clone().try_acquire_owned() {
                    tokio::spawn(refuse(stream, refusal, place));
                }
            }
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

/// Who is at the other end of a connection.
struct Peer {
    /// Tells the connection from others.
    connection: u64,
    uid: u32,
    pid: Option<i32>,
    /// Whether it may do everything; others may do what an engine needs.
    is_operator: bool,
}

impl Peer {
    fn of(stream: &UnixStream, config: &Config) -> std::io::Result<Peer> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let peer = stream.peer_cred()?;
        let is_operator = config.operator_uids.contains(&peer.uid());
        Ok(Peer { connection: CONNECTIONS.fetch_add(1, Relaxed), uid: peer.uid(), pid: peer.pid(), is_operator })
    }
}

/// What one connection holds: its leases, which dropping it releases, and the files it has sent.
struct Held {
    images: Arc<Images>,
    pool: Arc<Pool>,
    config: Arc<Config>,
    traces: Traces,
    peer: Peer,
    leases: Vec<HeldLease>,
    log_leases: bool,
    upload: Upload,
}

/// A lease that a connection holds.
struct HeldLease {
    replica: String,
    image: String,
    /// What the names of its segments begin with.
    prefix: String,
}

impl Held {
    fn log(&self, lease: &HeldLease, (event, what): (&'static str, &str)) {
        if !self.log_leases {
            return;
        }
        let Peer { uid, pid, .. } = self.peer;
        let HeldLease { replica, image, prefix } = lease;
        let process = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
        let event = log::info(event).replica(replica).image(image).lease(prefix).peer(uid, pid);
        event.write(format_args!("user {uid}{process} {what} replica \"{replica}\" of image \"{image}\""));
    }

    /// docs/protocol.md §9: "asks about replicas that it does not lease, and for more than an engine needs, only if it is an
    /// operator's".
    fn check_operator(&self, what: &str) -> Result<()> {
        if self.peer.is_operator {
            return Ok(());
        }
        Err(Error::new(Kind::NotAllowed, format!("permission denied to {what}"))
            .with_hint("Ask as root, or start transshipd with --operator for your user."))
    }

    /// An engine's word on a replica counts if it has it.
    fn check_leased(&self, replica: &str) -> Result<()> {
        if self.leases.iter().any(|lease| lease.replica == replica) {
            return Ok(());
        }
        Err(Error::new(Kind::NotAllowed, format!("this connection has no lease on replica \"{replica}\"")))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for lease in &self.leases {
            self.pool.release(&lease.replica, self.peer.connection, &lease.prefix);
            self.log(lease, ("lease_ended", "no longer leases"));
        }
    }
}

async fn serve_connection(stream: UnixStream, mut held: Held, place: Connection) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let (line, turn) = match read_request(&mut reader, place.of_user().long_requests()).await {
            Ok(Some(read)) => read,
            Ok(None) => return,
            Err(cause) => {
                let Peer { uid, pid, .. } = held.peer;
                // Not every one, so that no user fills the log.
                if let Some(count) = place.of_user().count_cut_off() {
                    let event = log::warning("request_cut_off").peer(uid, pid);
                    event.write(format_args!("{count} requests of user {uid} were cut off, the last one: {cause}"));
                }
                return;
            }
        };
        let mut is_readable = true;
        let mut opened = None;
        let request = serde_json::from_str(&line);
        drop(line);
        let response = match request {
            Ok(request) => {
                let (canceller, cancel) = cancel();
                let Peer { uid, is_operator, .. } = held.peer;
                let asker = Asker::new(uid, is_operator, place.of_user(), cancel, turn);
                let sockets = (reader.get_ref(), &mut writer);
                answer_telling(request, &mut held, &mut opened, (asker, canceller), sockets).await
            }
            Err(cause) => {
                is_readable = false;
                Err(Error::new(Kind::ProtocolViolation, format!("the request cannot be read: {cause}")))
            }
        };
        let mut response = line_of(&response.unwrap_or_else(Response::Error));
        // What is not read takes no more memory than a user's share, and that not for ever.
        let room = place.of_user().room_for_response(response.len());
        if let Err(refusal) = &room {
            response = line_of(&Response::Error(refusal.clone()));
        }
        // docs/protocol.md §9: "the manager ends a connection at the first line that is no request". Whoever speaks something
        // else, HTTP for example, may carry lines that somebody else has written.
        let written = tokio::time::timeout(RESPONSE_TIMEOUT, write(&mut writer, &response, opened)).await;
        if !matches!(written, Ok(Ok(()))) || !is_readable {
            return;
        }
    }
}

/// Answers a request. Meanwhile, the client hears what is said of it; if it goes away, what takes long ends.
async fn answer_telling(
    request: Request,
    held: &mut Held,
    opened: &mut Option<Opened>,
    (asker, canceller): (Asker, Canceller),
    (reader, writer): (&OwnedReadHalf, &mut OwnedWriteHalf),
) -> Result<Response> {
    let (progress, heard) = progress();
    let answering = async {
        let response = answer(request, held, opened, asker, &progress).await;
        progress.end();
        response
    };
    let (mut answering, mut telling) = (pin!(answering), pin!(tell(writer, heard)));
    let (mut response, mut is_told, mut is_there) = (None, false, true);
    // Nothing of a client that reads slowly, or not at all, waits for it but its own response.
    loop {
        tokio::select! {
            biased;
            answered = &mut answering, if response.is_none() => response = Some(answered),
            told = &mut telling, if !is_told => {
                is_told = true;
                if told.is_err() {
                    canceller.cancel();
                }
            }
            // A build or a transfer ends then. Everything else goes on, so that no lease is half counted.
            () = hung_up(reader.as_ref()), if is_there => {
                is_there = false;
                canceller.cancel();
            }
        }
        if is_told && let Some(response) = response.take() {
            return response;
        }
    }
}

/// Sends what is heard, until its end.
async fn tell(writer: &mut OwnedWriteHalf, mut heard: Heard) -> std::io::Result<()> {
    while let Some(text) = heard.next().await {
        writer.write_all(&line_of(&Response::Progress { text })).await?;
    }
    Ok(())
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

async fn answer(
    request: Request,
    held: &mut Held,
    opened: &mut Option<Opened>,
    asker: Asker,
    progress: &Progress,
) -> Result<Response> {
    let (images, pool) = (held.images.clone(), held.pool.clone());
    match request {
        Request::Ping => Ok(Response::Pong {
            version: env!("CARGO_PKG_VERSION").to_string(),
            runtime: pool.runtime_name().to_string(),
        }),
        Request::Resolve { image } => images.resolve(image, &asker).await.map(Response::Image),
        Request::BuildInline { manifest, source } => {
            images.check_name_allowed(&inline_name(&manifest), None, held.peer.is_operator)?;
            images.build_inline(*manifest, source, asker).await.map(Response::Image)
        }
        Request::AddToFile { path, content, is_program } => {
            let mut upload = held.upload.take();
            let (added, upload) = blocking(move || Ok((upload.add(&path, &content, is_program), upload))).await?;
            held.upload = upload;
            added.map(|()| Response::Added)
        }
        Request::BuildLibrary { library } => {
            images.check_name_allowed(LIBRARY_NAME, None, held.peer.is_operator)?;
            let upload = held.upload.take();
            images.build_library(library, upload, asker).await.map(Response::Image)
        }
        Request::BuildProject => {
            held.check_operator("build a project")?;
            let (upload, options) =
                (held.upload.take(), BuildOptions { cancel: asker.cancel, progress: progress.clone() });
            images.build_project(upload, held.peer.uid, options).await.map(Response::Image)
        }
        Request::Push { image, reference, login } => {
            held.check_operator("push an image")?;
            let pushed = images.push(image, reference, TransferOptions { login, cancel: asker.cancel }).await;
            pushed.map(|reference| Response::Pushed { reference })
        }
        Request::Pull { reference, replace, login } => {
            held.check_operator("pull an image")?;
            images.pull(reference, replace, TransferOptions { login, cancel: asker.cancel }).await.map(Response::Image)
        }
        Request::Doctor => {
            held.check_operator("examine the host")?;
            images.examine().await.map(|(checks, doubts)| Response::Doctor { checks, doubts })
        }
        Request::Acquire { digest } => {
            let Peer { connection, uid, pid, .. } = held.peer;
            if held.leases.len() >= MOST_LEASES {
                let message = format!("this connection has {MOST_LEASES} leases already");
                return Err(Error::new(Kind::NotAllowed, message));
            }
            // A name may stand for another image a moment later, and limits are counted by digest.
            if !is_digest(&digest) {
                let message = format!("\"{digest}\" is not the digest of an image");
                return Err(Error::new(Kind::InvalidDefinition, message).with_hint("Resolve the image's name first."));
            }
            images.image_of(&digest, &asker).await?;
            let holder = Holder { connection, uid, pid, since: Instant::now() };
            let (info, folders) = pool.acquire(&digest, holder).await?;
            let (replica, image, prefix) = (info.replica.clone(), info.image.clone(), info.prefix.clone());
            let lease = HeldLease { replica, image, prefix };
            held.log(&lease, ("lease_acquired", "leases"));
            held.leases.push(lease);
            *opened = Some(folders);
            Ok(Response::Lease(info))
        }
        Request::ReportTimeout { replica } => {
            held.check_leased(&replica)?;
            pool.examine(replica, true);
            Ok(Response::Noted)
        }
        Request::ReportFailure { replica } => {
            held.check_leased(&replica)?;
            pool.judge(replica).await.map(|fate| Response::Fate { fate })
        }
        Request::Replicas => {
            let Peer { uid, is_operator, .. } = held.peer;
            let replicas = pool.list(|holder| is_operator || holder.uid == uid);
            Ok(Response::Replicas { replicas, circuits: pool.circuits(is_operator) })
        }
        Request::Metrics => {
            held.check_operator("read metrics")?;
            Ok(Response::Metrics { text: write_metrics(&pool, &images, &held.config) })
        }
        Request::Spans { spans } => {
            if spans.len() > MAX_SPANS_PER_REQUEST {
                return Err(Error::new(Kind::ProtocolViolation, "too many spans in one request"));
            }
            held.traces.take(held.peer.uid, spans).map(|()| Response::Noted)
        }
        Request::Prune { older_than_days } => {
            held.check_operator("remove images")?;
            images
                .prune(Duration::from_secs(older_than_days.saturating_mul(24 * 60 * 60)))
                .await
                .map(|images| Response::Pruned { images })
        }
        Request::Logs { replica } => {
            if held.check_leased(&replica).is_err() {
                held.check_operator("read the log of a replica that this connection does not lease")?;
            }
            let _question = asker.question("read a log").await?;
            pool.logs(replica).await.map(|text| Response::Logs { text })
        }
    }
}
