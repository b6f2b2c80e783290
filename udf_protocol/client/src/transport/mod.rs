//! How batches travel. A transport moves bytes between an [`Outbox`] of calls and a [`Inbox`] of replies; it knows
//! neither engines nor leases.

pub(crate) mod check;
mod columns;
pub mod connect;
pub mod credentials;
mod envelope;
pub mod flight;
mod flight_greeting;
mod flight_messages;
mod foreign;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod grpc_status;
mod http;
pub mod http_server;
mod json;
pub mod pipeline;
pub mod probe;
pub mod proxy;
mod put_get;
mod status;
mod streams;
pub(crate) mod tcp;
mod tls;
pub mod unix;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use udf_codec::wire::ServerInfo;
use udf_types::Result;
use udf_types::signature::Signature;

use crate::inbox::{Event, Inbox, Reply};
use crate::outbox::{Outbox, Outgoing};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest greeting, signature or error that a server may send, in bytes.
pub(crate) const MAX_ASIDE_BYTES: usize = 8 << 20;

/// What a server says in its greeting of how it takes batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takes {
    /// Requests on a connection before the last one is answered.
    pub pipelining: bool,
    /// Constants as one row.
    pub constants: bool,
}

impl From<&ServerInfo> for Takes {
    fn from(info: &ServerInfo) -> Takes {
        Takes { pipelining: info.pipelining.unwrap_or(true), constants: info.constants }
    }
}

/// A way to reach one server.
pub trait Transport: Send + Sync {
    /// Who answers, and what it offers (`docs/protocol.md` §2).
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>>;

    /// The signature of one function (§3).
    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>>;

    /// Closes the connections that no exchange is using, as far as it has any.
    fn close_idle(&self) {}

    /// Runs one exchange (§4): sends every batch of the outbox, delivers every reply, returns when the outbox is
    /// closed and everything is answered. After an error, what is unanswered is still in the outbox.
    fn exchange<'a>(
        &'a self,
        signature: &'a Signature,
        outbox: &'a mut Outbox,
        inbox: &'a Inbox,
    ) -> BoxFuture<'a, Result<()>>;
}

/// The words of the first cause: those around it only say that something went wrong.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

/// Runs an exchange whose batches are requests of their own: all that the engine has sent at a time, answered in any order.
pub(crate) async fn answer_each<'a>(
    outbox: &mut Outbox,
    inbox: &Inbox,
    call: impl Fn(Outgoing) -> BoxFuture<'a, Result<Reply>>,
) -> Result<()> {
    let mut in_flight = FuturesUnordered::new();
    let mut is_open = true;
    // Said by a server that ran nothing of a batch.
    let mut busy = None;
    while is_open || !in_flight.is_empty() {
        tokio::select! {
            batch = outbox.next(), if is_open => match batch {
                Some(batch) => {
                    let (number, reply) = (batch.number, call(batch));
                    in_flight.push(async move { (number, reply.await) });
                }
                None => is_open = false,
            },
            Some((number, result)) = in_flight.next() => {
                let event = match result {
                    Ok(reply) => Event::Reply(reply),
                    Err(error) if error.is_retryable() => return Err(error),
                    // The others are answered first, so that all that is left was not run.
                    Err(error) if error.is_busy() => {
                        busy = Some(error);
                        is_open = false;
                        continue;
                    }
                    // An earlier batch may be answered yet, and the engine may want no more than that.
                    Err(error) => Event::Failure(number, error),
                };
                outbox.answer(number);
                inbox.deliver(Ok(event));
            }
        }
    }
    if let Some(error) = busy {
        outbox.rewind();
        return Err(error);
    }
    Ok(())
}
