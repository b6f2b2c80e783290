//! Flight servers that keep the caller's table in a global place: put it, act on it, get the results (the servers of the
//! paper's artifact, `docs/dialects.md`).
//!
//! Two callers at a time would get each other's results, so each exchange holds a lock that all clients of this machine
//! share; clients elsewhere must be kept away by whoever runs the server.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket};
use futures_util::future::BoxFuture;
use futures_util::stream;
use nix::fcntl::{Flock, FlockArg, OFlag};
use tonic::{Status, Streaming};
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
use crate::transport::flight::{Flight, reply_error};
use crate::transport::foreign::{adapt_reply, check_foreign_types};

/// Between two looks at whether another caller is done.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// A server that is called by put, act and get.
pub(crate) struct PutGet {
    flight: Flight,
    lock: std::path::PathBuf,
}

impl PutGet {
    /// A client of the server at `endpoint`, which is not connected to yet.
    pub(crate) fn new(endpoint: Endpoint, credentials: &Credentials) -> PutGet {
        let mut hasher = DefaultHasher::new();
        endpoint.hash(&mut hasher);
        let lock = std::env::temp_dir().join(format!("transship-{:016x}.lock", hasher.finish()));
        PutGet { flight: Flight::new(endpoint, credentials, None), lock }
    }

    /// Waits until no other client of this machine uses the server, and no longer than `patience`. Whoever may write the file
    /// may hold its lock for ever, or have made something else of it.
    async fn acquire(&self, patience: Duration) -> Result<Flock<File>> {
        let name = self.lock.display();
        let failed = |cause: std::io::Error| Error::invalid_definition(format!("could not lock \"{name}\": {cause}"));
        let waiting = async {
            loop {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false).mode(0o666);
                // A pipe that nobody reads would be waited for.
                let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(&self.lock);
                let file = file.map_err(failed)?;
                if !file.metadata().map_err(failed)?.is_file() {
                    return Err(failed(std::io::Error::other("it is not a file")));
                }
                match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    Ok(lock) => return Ok(lock),
                    Err((_, nix::errno::Errno::EWOULDBLOCK)) => tokio::time::sleep(LOCK_INTERVAL).await,
                    Err((_, cause)) => return Err(failed(cause.into())),
                }
            }
        };
        tokio::time::timeout(patience, waiting).await.unwrap_or_else(|_| {
            let message = format!("could not lock \"{name}\" within {} ms", patience.as_millis());
            Err(Error::new(Kind::Timeout, message)
                .with_detail("Another caller of the server holds it, or whoever made the file.".to_string())
                .with_hint("Servers of dialect \"put_get\" take one caller at a time."))
        })
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, patience: Duration, inbox: &Inbox) -> Result<Reply> {
        let function = signature.function.as_str();
        let batch = &batch.clone().with_repeated_constants(signature)?;
        // Its columns come one after the other, are joined, and then adapted.
        let mut share = inbox.budget().share_of_text(batch.number);
        let most = share.left();
        let failed = |status: Status| reply_error(function, &status, most);
        // The function is run between storing and fetching.
        let lost = |status: Status| failed(status).with_doubt();
        let malformed =
            |cause: &dyn std::fmt::Display| Error::protocol(function, format!("Its reply cannot be read: {cause}."));
        let _lock = self.acquire(patience).await?;
        let mut client = self.flight.client(most);
        let descriptor = FlightDescriptor::new_path(vec!["scoreit".to_string()]);
        let opening = encode_schema(&signature.call_schema()).with_descriptor(descriptor);
        let message = BatchEncoder::default().encode(&batch.columns).map_err(|cause| malformed(&cause))?;
        let bytes_sent = message.data_body.len() + message.data_header.len();
        drain(client.do_put(stream::iter([opening, message])).await.map_err(lost)?.into_inner()).await.map_err(lost)?;
        let action = Action { r#type: "score".to_string(), body: Default::default() };
        drain(client.do_action(action).await.map_err(failed)?.into_inner()).await.map_err(failed)?;
        let ticket = Ticket { ticket: "scored".into() };
        let mut results: Streaming<FlightData> = client.do_get(ticket).await.map_err(lost)?.into_inner();
        let (mut schema, mut batches, mut bytes_received) = (None, Vec::new(), 0);
        let unreadable = |unreadable: Unreadable| unreadable.into_error(function, most, |fact| malformed(&fact));
        while let Some(message) = results.message().await.map_err(lost)? {
            let bytes = message.data_body.len() + message.data_header.len();
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
        let endpoint = Endpoint::FlightUnix(folder.path().join("flight.sock"));
        let put_get = PutGet { lock: folder.path().join("lock"), ..PutGet::new(endpoint, &Credentials::default()) };
        let held = put_get.acquire(Duration::from_secs(10)).await.unwrap();
        let error = put_get.acquire(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!((error.kind(), error.message().contains("could not lock")), (Kind::Timeout, true));
        drop(held);
        assert!(put_get.acquire(Duration::from_secs(10)).await.is_ok());
        // A pipe, which an open file descriptor would wait for, and a link.
        std::fs::remove_file(&put_get.lock).unwrap();
        nix::unistd::mkfifo(&put_get.lock, Mode::S_IRWXU).unwrap();
        assert_eq!(put_get.acquire(Duration::from_secs(10)).await.unwrap_err().kind(), Kind::InvalidDefinition);
        std::fs::remove_file(&put_get.lock).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &put_get.lock).unwrap();
        assert_eq!(put_get.acquire(Duration::from_secs(10)).await.unwrap_err().kind(), Kind::InvalidDefinition);
        assert!(!folder.path().join("other").exists());
    }
}
