//! Flight servers that keep the caller's table in a global place: put it, act on it, get the results (the servers of the
//! paper's artifact, `docs/dialects.md`).
//!
//! Two callers at a time would get each other's results, so each call holds a lock that all clients of this machine share;
//! clients elsewhere must be kept away by whoever runs the server.
//!
//! A call that is cancelled holds the lock until the server has scored its table, because the server would store those results
//! over the next caller's. If nobody sees the end of the scoring, as after a lost connection or the end of the session, the
//! lock's file says how long the server may still be at it: as long as the batch was given.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_array::RecordBatch;
use arrow_flight::{Action, FlightData, FlightDescriptor};
use futures_util::future::BoxFuture;
use futures_util::stream;
use nix::fcntl::{Flock, FlockArg, OFlag};
use tokio::sync::oneshot;
use tonic::{Request, Status, Streaming};
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch_within, decode_schema, encode_schema};
use udf_codec::batch::CallBatch;
use udf_codec::unreadable::Unreadable;
use udf_codec::wire::ServerInfo;
use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_types::signature::Signature;
use udf_types::{Error, Kind, Result};

use crate::inbox::{Event, Inbox, Reply, bytes_of};
use crate::outbox::Outbox;
use crate::transport::Transport;
use crate::transport::check::check_reply;
use crate::transport::credentials::Credentials;
use crate::transport::envelope::{check_scalar, no_greeting, no_signature};
use crate::transport::flight::{Flight, FlightClient};
use crate::transport::flight_messages::{Received, ticket_fields};
use crate::transport::foreign::{adapt_reply, check_foreign_types};
use crate::transport::grpc_status::{is_from_server, is_unsent, reply_error};

const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// Between two looks at whether another caller is done.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);
/// More than the digits of a time in the lock's file.
const MARK_BYTES: usize = 24;

/// A server that is called by put, act and get.
pub(crate) struct PutGet {
    flight: Flight,
    lock: PathBuf,
}

/// The right to use the server, which ends when this is dropped.
struct Turn(Flock<File>);

impl Turn {
    /// Waits until no other client of this machine uses the server, and no longer than `patience`. Whoever may write the file
    /// may hold its lock for ever, or have made something else of it.
    async fn take(lock: &Path, patience: Duration) -> Result<Turn> {
        let start = Instant::now();
        loop {
            let waits_for = match Turn::try_take(lock)? {
                None => Duration::ZERO,
                // Until then it is given back, so that whoever else may wait sees the same.
                Some(turn) => match turn.left().map_err(|cause| not_locked(lock, &cause))? {
                    Duration::ZERO => return Ok(turn),
                    left => left,
                },
            };
            if patience.saturating_sub(start.elapsed()) <= waits_for {
                let (detail, hint) = match waits_for {
                    Duration::ZERO => (
                        "Another caller of the server holds it, or whoever made the file.",
                        "Servers of dialect \"put-get\" take one caller at a time.",
                    ),
                    _ => (
                        "The server may still be at a call that was cut off.",
                        "If the server was restarted since then, remove the file.",
                    ),
                };
                let message = format!("could not lock \"{}\" within {} ms", lock.display(), patience.as_millis());
                return Err(Error::new(Kind::Timeout, message).with_detail(detail).with_hint(hint));
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    fn try_take(lock: &Path) -> Result<Option<Turn>> {
        let failed = |cause: io::Error| not_locked(lock, &cause);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o666);
        // A pipe that nobody reads would be waited for.
        let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(lock).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is not a file")));
        }
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Turn(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, cause)) => Err(failed(cause.into())),
        }
    }

    /// How long the server may still be at a call whose end nobody saw.
    fn left(&self) -> io::Result<Duration> {
        let mut mark = [0; MARK_BYTES];
        let length = self.0.read_at(&mut mark, 0)?;
        if length == 0 {
            return Ok(Duration::ZERO);
        }
        let until = std::str::from_utf8(&mark[..length]).ok().and_then(|text| text.trim_end().parse().ok());
        // Somebody's file of that name is not written to.
        let until: u64 = until.ok_or_else(|| io::Error::other("it is not a lock of a server"))?;
        Ok(Duration::from_millis(until.saturating_sub(now_ms())))
    }

    /// Notes that the server may be at a call for so long, should this turn end before the call.
    fn begin(&self, patience: Duration) -> io::Result<()> {
        self.end()?;
        let until = now_ms().saturating_add(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        self.0.write_all_at(format!("{until}\n").as_bytes(), 0)
    }

    /// Notes that the server is at nothing.
    fn end(&self) -> io::Result<()> {
        self.0.set_len(0)
    }
}

fn not_locked(lock: &Path, cause: &io::Error) -> Error {
    Error::invalid_definition(format!("could not lock \"{}\": {cause}", lock.display()))
}

/// Milliseconds since 1970, which all processes of this machine count alike.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A table on its way to being scored.
struct Scoring {
    client: FlightClient,
    lock: PathBuf,
    function: String,
    /// Schema and rows.
    messages: [FlightData; 2],
    patience: Duration,
    most: usize,
}

impl Scoring {
    /// Has the table scored, and gives the caller the turn in which to fetch the results. A caller that is gone is not waited
    /// for, but the server is: for as long as the connection stands, nobody else may use it before it has answered.
    async fn run(mut self, mut caller: oneshot::Sender<Result<Turn>>) {
        let turn = tokio::select! {
            turn = Turn::take(&self.lock, self.patience) => turn,
            () = caller.closed() => return,
        };
        let outcome = match turn {
            Ok(turn) => self.score(turn, &caller).await,
            Err(error) => Err(error),
        };
        let _ = caller.send(outcome);
    }

    async fn score(&mut self, turn: Turn, caller: &oneshot::Sender<Result<Turn>>) -> Result<Turn> {
        let failed = |cause: io::Error| not_locked(&self.lock, &cause);
        turn.begin(self.patience).map_err(failed)?;
        // The function is run between storing and fetching.
        let put = self.client.do_put(stream::iter(self.messages.clone())).await;
        let stored = match put {
            Ok(answers) => drain(answers.into_inner()).await,
            Err(status) => Err(status),
        };
        if let Err(status) = stored {
            if is_from_server(&status) || is_unsent(&status) {
                turn.end().map_err(failed)?;
            }
            return Err(reply_error(&self.function, &status, self.most).with_doubt());
        }
        if caller.is_closed() {
            turn.end().map_err(failed)?;
            return Err(Error::cancelled());
        }
        let action = Action { r#type: "score".to_string(), body: Default::default() };
        let scored = match self.client.do_action(action).await {
            Ok(answers) => drain(answers.into_inner()).await,
            Err(status) => Err(status),
        };
        // Otherwise the server may still be at it.
        if scored.as_ref().err().is_none_or(is_from_server) {
            turn.end().map_err(failed)?;
        }
        scored.map_err(|status| reply_error(&self.function, &status, self.most))?;
        Ok(turn)
    }
}

impl PutGet {
    /// A client of the server at `endpoint`, which is not connected to yet.
    pub(crate) fn new(endpoint: Endpoint, credentials: &Credentials) -> PutGet {
        let mut hasher = DefaultHasher::new();
        endpoint.hash(&mut hasher);
        let lock = std::env::temp_dir().join(format!("transship-{:016x}.lock", hasher.finish()));
        PutGet { flight: Flight::new(endpoint, credentials, None), lock }
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, patience: Duration, inbox: &Inbox) -> Result<Reply> {
        let function = signature.function.as_str();
        let batch = &batch.clone().with_repeated_constants(signature)?;
        // Its columns come one after the other, are joined, and then adapted.
        let mut share = inbox.budget().share_of_text(batch.number);
        let most = share.left();
        let lost = |status: Status| reply_error(function, &status, most).with_doubt();
        let malformed =
            |cause: &dyn std::fmt::Display| Error::protocol(function, format!("Its reply cannot be read: {cause}."));
        let descriptor = FlightDescriptor::new_path(vec!["scoreit".to_string()]);
        let opening = encode_schema(&signature.call_schema()).with_descriptor(descriptor);
        let message = BatchEncoder::default().encode(&batch.columns).map_err(|cause| malformed(&cause))?;
        let bytes_sent = message.data_body.len() + message.data_header.len();
        let scoring = Scoring {
            client: self.flight.client(most),
            lock: self.lock.clone(),
            function: function.to_string(),
            messages: [opening, message],
            patience,
            most,
        };
        let (caller, scored) = oneshot::channel();
        // It goes on if this call is cancelled.
        tokio::spawn(scoring.run(caller));
        // Until the results are read.
        let _turn = scored.await.map_err(|_| Error::cancelled())??;
        let results = Request::new(stream::iter([ticket_fields("scored")]));
        let mut results = self.flight.stream(DO_GET, results, most).await.map_err(lost)?;
        let (mut schema, mut batches, mut bytes_received) = (None, Vec::new(), 0);
        let unreadable = |unreadable: Unreadable| unreadable.into_error(function, most, |fact| malformed(&fact));
        while let Some(Received { message, bytes }) = results.message().await.map_err(lost)? {
            share.grow(function, bytes).await?;
            bytes_received += bytes;
            match &schema {
                None => {
                    let found = decode_schema(&message).map_err(|cause| malformed(&cause))?;
                    check_foreign_types(signature, found.fields())?;
                    schema = Some(found);
                }
                Some(schema) => {
                    batches.push(decode_batch_within(&message, schema.clone(), most).map_err(unreadable)?);
                }
            }
        }
        let schema = schema.ok_or_else(|| malformed(&"it has no schema"))?;
        share.make_room(4 * bytes_received).await;
        let table = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([only]) => only,
            Err(batches) => {
                arrow_select::concat::concat_batches(&schema, &batches).map_err(|cause| malformed(&cause))?
            }
        };
        let columns = adapt_reply(signature, &table, most)
            .map_err(|it| it.into_error(function, most, |fact| Error::bad_result(function, fact)))?;
        check_reply(signature, batch, &columns)?;
        let bytes_made = bytes_of(&columns);
        share.hold(bytes_received.max(bytes_made));
        let reply = Reply::whole(batch.number, columns, bytes_sent, bytes_received);
        Ok(Reply { bytes_needed: bytes_received + bytes_made, share: Some(share), ..reply })
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        check_scalar(Dialect::PutGet, signature)?;
        // So that the engine hears why, before it ends the wait itself.
        let patience = outbox.patience() / 8 * 7;
        while let Some(batch) = outbox.next().await {
            let reply = self.call(signature, &batch, patience, inbox).await?;
            outbox.answer(batch.number);
            inbox.deliver(Ok(Event::Reply(reply)));
        }
        Ok(())
    }
}

async fn drain<T>(mut stream: Streaming<T>) -> std::result::Result<(), Status> {
    while stream.message().await?.is_some() {}
    Ok(())
}

impl Transport for PutGet {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(async { Ok(no_greeting(Dialect::PutGet)) })
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(async move { Err(no_signature(Dialect::PutGet, function)) })
    }

    fn exchange<'a>(
        &'a self,
        signature: &'a Signature,
        outbox: &'a mut Outbox,
        inbox: &'a Inbox,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.run_exchange(signature, outbox, inbox))
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[tokio::test]
    async fn who_holds_the_lock_for_ever_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let lock = &folder.path().join("lock");
        let take = async |patience| Turn::take(lock, Duration::from_millis(patience)).await;
        let kind = async |patience| take(patience).await.err().map(|error| error.kind());
        let held = take(10_000).await.unwrap();
        let error = take(50).await.err().unwrap();
        assert_eq!((error.kind(), error.message().contains("could not lock")), (Kind::Timeout, true));
        drop(held);
        assert!(take(10_000).await.is_ok());
        // A file of somebody's, which stays as it is, a pipe, which an open file descriptor would wait for, and a link.
        std::fs::write(lock, "somebody's").unwrap();
        assert_eq!(kind(10_000).await, Some(Kind::InvalidDefinition));
        assert_eq!(std::fs::read(lock).unwrap(), b"somebody's");
        std::fs::remove_file(lock).unwrap();
        nix::unistd::mkfifo(lock, Mode::S_IRWXU).unwrap();
        assert_eq!(kind(10_000).await, Some(Kind::InvalidDefinition));
        std::fs::remove_file(lock).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), lock).unwrap();
        assert_eq!(kind(10_000).await, Some(Kind::InvalidDefinition));
        assert!(!folder.path().join("other").exists());
    }

    #[tokio::test]
    async fn a_call_that_was_cut_off_has_the_time_that_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let lock = &folder.path().join("lock");
        let take = async |patience| Turn::take(lock, Duration::from_millis(patience)).await;
        let start = Instant::now();
        take(0).await.unwrap().begin(Duration::from_millis(400)).unwrap();
        // Its end is too far off to be waited for.
        let error = take(100).await.err().unwrap();
        assert_eq!((error.kind(), start.elapsed() < Duration::from_millis(400)), (Kind::Timeout, true));
        let turn = take(10_000).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(390), "{:?}", start.elapsed());
        turn.begin(Duration::MAX).unwrap();
        turn.end().unwrap();
        drop(turn);
        assert!(take(0).await.is_ok());
    }
}
