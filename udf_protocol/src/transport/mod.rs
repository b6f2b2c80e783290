//! How batches travel. A transport moves bytes between an [`Outbox`] of calls and a [`Inbox`] of replies; it knows
//! neither engines nor leases.

mod budget;
mod check;
pub mod credentials;
mod envelope;
pub mod flight;
mod folder;
mod foreign;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod pipeline;
pub mod probe;
mod put_get;
mod remote;
pub mod rest;
pub mod segment;
mod tcp;
mod tls;
pub mod unix;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use arrow_array::{Array, ArrayRef, RecordBatch};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};

use crate::batch::CallBatch;
use crate::doorbell::Doorbell;
use crate::error::{Error, Kind, Result};
use crate::manifest::TransportName;
use crate::signature::Signature;

pub use budget::{Budget, DEFAULT_REPLY_BYTES, Share};
pub use credentials::{Credentials, Token};
pub use folder::Folder;
pub use pipeline::{COLUMNS, Takes};
pub use remote::Remote;
pub use rest::Form;
pub use tcp::Proxy;

/// Version of `docs/protocol.md` that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest message that a peer may send, in bytes: the largest value PostgreSQL can hold.
pub const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest greeting, signature or error that a server may send, in bytes.
pub(crate) const MAX_ASIDE_BYTES: usize = 8 << 20;

/// Longest error text that is taken from a server, in bytes.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// A way to reach one server.
pub trait Transport: Send + Sync {
    /// Who answers, and what it offers (`docs/protocol.md` §2).
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>>;

    /// The signature of one function (§3).
    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>>;

    /// Runs one exchange (§4): sends every batch of the outbox, delivers every reply, returns when the outbox is
    /// closed and everything is answered. After an error, what is unanswered is still in the outbox.
    fn exchange<'a>(
        &'a self,
        signature: &'a Signature,
        outbox: &'a mut Outbox,
        inbox: &'a Inbox,
    ) -> BoxFuture<'a, Result<()>>;
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ServerInfo {
    /// Version of the protocol; 0 for a server that speaks only what arrow-udf speaks.
    pub protocol: u32,
    /// Name and version of the server.
    #[serde(default)]
    pub server: String,
    /// Names of its functions.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Names of the transports it offers; none given means Flight and JSON.
    #[serde(default)]
    pub transports: Option<Vec<String>>,
    /// Whether it takes requests on a connection before the last one is answered (§7); left out means yes.
    #[serde(default)]
    pub pipelining: Option<bool>,
    /// Whether it takes columns of one row that stand for all (§7.11).
    #[serde(default)]
    pub constants: bool,
}

impl ServerInfo {
    /// Whether the server offers a transport.
    pub fn offers(&self, transport: TransportName) -> bool {
        match &self.transports {
            Some(names) => names.iter().any(|name| name == transport.name()),
            None => matches!(transport, TransportName::Flight | TransportName::Json),
        }
    }
}

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `unix:/path`: Flight over a Unix socket.
    FlightUnix(PathBuf),
    /// `grpc://host:port`: Flight over TCP.
    FlightTcp(String),
    /// `grpcs://host:port`: Flight over TLS.
    FlightTls(String),
    /// `http+unix:/path`: JSON over HTTP over a Unix socket.
    JsonUnix(PathBuf),
    /// `http://host:port`: JSON over HTTP over TCP.
    JsonTcp(String),
    /// `https://host:port`: JSON over HTTP over TLS.
    JsonTls(String),
}

impl Endpoint {
    /// Reads an endpoint as users write it.
    pub fn parse(text: &str) -> Result<Endpoint> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Endpoint::FlightUnix(absolute(text, path)?));
        }
        if let Some(path) = text.strip_prefix("http+unix:") {
            return Ok(Endpoint::JsonUnix(absolute(text, path)?));
        }
        if let Some(authority) = text.strip_prefix("grpc://") {
            return Ok(Endpoint::FlightTcp(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("grpcs://") {
            return Ok(Endpoint::FlightTls(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("https://") {
            return Ok(Endpoint::JsonTls(host_and_port(text, authority)?));
        }
        if let Some(authority) = text.strip_prefix("http://") {
            return Ok(Endpoint::JsonTcp(host_and_port(text, authority)?));
        }
        Err(Error::invalid_definition(format!("invalid endpoint \"{text}\""))
            .with_hint("An endpoint starts with grpc://, grpcs://, http://, https://, unix: or http+unix:."))
    }

    /// The transport to it. Nothing is connected before the first request.
    pub fn transport(&self, credentials: &Credentials) -> Arc<dyn Transport> {
        self.transport_in(Form::Json, credentials)
    }

    /// The same, with columns of a form where it is reached over HTTP.
    pub fn transport_in(&self, form: Form, credentials: &Credentials) -> Arc<dyn Transport> {
        match self.transport_name() {
            TransportName::Flight => Arc::new(flight::Flight::new(self.clone(), credentials)),
            _ => Arc::new(rest::Rest::new(self.clone(), credentials, form)),
        }
    }

    /// How batches travel there, if nothing else is asked for.
    pub fn transport_name(&self) -> TransportName {
        match self {
            Endpoint::FlightUnix(_) | Endpoint::FlightTcp(_) | Endpoint::FlightTls(_) => TransportName::Flight,
            Endpoint::JsonUnix(_) | Endpoint::JsonTcp(_) | Endpoint::JsonTls(_) => TransportName::Json,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::FlightUnix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::FlightTcp(authority) => write!(f, "grpc://{authority}"),
            Endpoint::FlightTls(authority) => write!(f, "grpcs://{authority}"),
            Endpoint::JsonUnix(path) => write!(f, "http+unix:{}", path.display()),
            Endpoint::JsonTls(authority) => write!(f, "https://{authority}"),
            Endpoint::JsonTcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

fn absolute(text: &str, path: &str) -> Result<PathBuf> {
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    Err(Error::invalid_definition(format!("invalid endpoint \"{text}\"")).with_detail("The path must be absolute."))
}

pub(crate) fn host_and_port(text: &str, authority: &str) -> Result<String> {
    let authority = authority.trim_end_matches('/');
    let port = authority.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>()));
    if matches!(port, Some(Ok(_))) && ::http::uri::Authority::try_from(authority).is_ok() {
        return Ok(authority.to_string());
    }
    Err(Error::invalid_definition(format!("invalid endpoint \"{text}\"")).with_detail("Expected host and port."))
}

/// Calls on their way out: those not yet answered, oldest first, then those the engine adds.
#[derive(Debug)]
pub struct Outbox {
    /// What tells the exchange from all others, however often its batches are sent.
    name: String,
    unanswered: VecDeque<CallBatch>,
    /// Whether the engine has a part of the answer to the oldest of them.
    is_partly_answered: bool,
    /// How long the engine waits for the answer to a batch.
    patience: Duration,
    /// Whether any was answered.
    has_answers: bool,
    /// How many of `unanswered` this exchange has sent.
    sent: usize,
    incoming: mpsc::UnboundedReceiver<CallBatch>,
}

impl Outbox {
    /// An outbox that the sender's side fills. The engine's window bounds it.
    pub fn new() -> (mpsc::UnboundedSender<CallBatch>, Outbox) {
        let (sender, incoming) = mpsc::unbounded_channel();
        (
            sender,
            Outbox {
                name: rest::random_name(),
                unanswered: VecDeque::new(),
                is_partly_answered: false,
                patience: Duration::MAX,
                has_answers: false,
                sent: 0,
                incoming,
            },
        )
    }

    /// The exchange's name, which no other has.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Notes how long the engine waits for the answer to a batch.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How long the engine waits for the answer to a batch.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// The next batch to send; none once the engine has closed its side and all was handed out.
    /// Cancel-safe: a batch is handed out whole or not at all.
    pub async fn next(&mut self) -> Option<CallBatch> {
        if self.sent == self.unanswered.len() {
            let batch = self.incoming.recv().await?;
            self.unanswered.push_back(batch);
        }
        self.sent += 1;
        Some(self.unanswered[self.sent - 1].clone())
    }

    /// Waits until there is a batch to send; false once there will be none. Cancel-safe.
    pub async fn wait_for_more(&mut self) -> bool {
        if self.sent == self.unanswered.len() {
            match self.incoming.recv().await {
                Some(batch) => self.unanswered.push_back(batch),
                None => return false,
            }
        }
        true
    }

    /// The oldest batch that was sent, of which the engine now gets a part of the answer: it cannot be sent again.
    pub fn answer_partly(&mut self) -> Option<&CallBatch> {
        self.is_partly_answered = true;
        if self.sent == 0 { None } else { self.unanswered.front() }
    }

    /// Whether what is unanswered may be sent again.
    pub fn can_rewind(&self) -> bool {
        !self.is_partly_answered
    }

    /// Strikes a batch off; its number must be among those sent.
    pub fn answer(&mut self, number: u64) -> Option<CallBatch> {
        let position = self.unanswered.iter().take(self.sent).position(|batch| batch.number == number)?;
        self.is_partly_answered = false;
        self.has_answers = true;
        self.sent -= 1;
        self.unanswered.remove(position)
    }

    /// The oldest batch that was sent and not answered.
    pub fn oldest_sent(&self) -> Option<u64> {
        if self.sent == 0 { None } else { self.unanswered.front().map(|batch| batch.number) }
    }

    /// Whether nothing is known that is to be sent, or was sent and is not answered.
    pub fn is_quiet(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Batches sent and not answered.
    pub fn awaited(&self) -> usize {
        self.sent
    }

    /// Whether any batch was answered.
    pub fn has_answers(&self) -> bool {
        self.has_answers
    }

    /// Makes the next exchange send again what is unanswered.
    pub fn rewind(&mut self) {
        self.sent = 0;
    }
}

/// One reply on its way to the engine.
#[derive(Debug)]
pub struct Reply {
    /// The number of the batch it answers.
    pub number: u64,
    /// The columns of [`Signature::reply_types`].
    pub columns: RecordBatch,
    /// Whether this ends the answer: a table function may answer a batch in parts.
    pub is_last: bool,
    /// Bytes of the request: those of its data, of JSON all.
    pub bytes_sent: usize,
    /// Bytes of the reply, counted likewise.
    pub bytes_received: usize,
    /// Bytes that reading the reply needed at once, at most: what came, what was made of it on the way, and the columns. By
    /// this batches are made smaller before their replies need more than they may.
    pub bytes_needed: usize,
    /// How long the server says that it computed, in microseconds; 0 if it does not say it.
    pub compute_us: u64,
    /// Rows that were not sent, since they equal others of the batch.
    pub repeated: usize,
    /// What it holds of its exchange's budget, until the engine takes it.
    pub share: Option<Share>,
}

impl Reply {
    /// The whole answer to a batch, of a server that does not say how long it computed.
    pub(crate) fn whole(number: u64, columns: RecordBatch, bytes_sent: usize, bytes_received: usize) -> Reply {
        Reply {
            number,
            columns,
            is_last: true,
            bytes_sent,
            bytes_received,
            bytes_needed: bytes_received,
            compute_us: 0,
            repeated: 0,
            share: None,
        }
    }
}

/// Bytes of a column's values, however much larger the memory is in which they lie.
pub(crate) fn bytes_of_column(column: &ArrayRef) -> usize {
    column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
}

/// The same of all columns of a batch.
pub(crate) fn bytes_of(columns: &RecordBatch) -> usize {
    columns.columns().iter().map(bytes_of_column).fold(0, usize::saturating_add)
}

/// What an engine finds in its queue.
#[derive(Debug)]
pub enum Event {
    /// A server was reached: from now on it has its time to answer.
    Reached {
        /// By which transport.
        transport: TransportName,
        /// Where columns may be written into segments.
        directory: Option<Folder>,
        /// Whether constants are known to travel as one row.
        takes_constants: bool,
    },
    /// A reply.
    Reply(Reply),
    /// A map function's server took another batch.
    Taken,
    /// A map function's stream of results has ended.
    End,
    /// The batch of this number failed. Replies to earlier batches may still be on their way.
    Failure(u64, Error),
}

/// Where replies go: the engine's queue, and a doorbell that wakes it.
#[derive(Debug, Clone)]
pub struct Inbox {
    sender: std_mpsc::Sender<Result<Event>>,
    doorbell: Arc<Doorbell>,
    /// How many further replies the engine has room for.
    room: Arc<Semaphore>,
    budget: Arc<Budget>,
}

/// Replies that may wait for the engine. Servers that have more to say are held up by HTTP/2's flow control.
const ROOM: usize = 8;

impl Inbox {
    /// An inbox that rings `doorbell`.
    pub fn new(doorbell: Arc<Doorbell>) -> (Inbox, std_mpsc::Receiver<Result<Event>>, Arc<Semaphore>) {
        let (sender, receiver) = std_mpsc::channel();
        let room = Arc::new(Semaphore::new(ROOM));
        let budget = Budget::new(DEFAULT_REPLY_BYTES);
        (Inbox { sender, doorbell, room: room.clone(), budget }, receiver, room)
    }

    /// The same within another budget.
    pub(crate) fn within(self, budget: Arc<Budget>) -> Inbox {
        Inbox { budget, ..self }
    }

    /// What replies may hold until the engine takes them.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Waits until the engine has room for a reply; it makes room by taking one.
    pub async fn wait_for_room(&self) {
        // The semaphore is never closed.
        let _ = self.room.acquire().await;
    }

    /// Delivers and rings. An engine that is gone misses it, which is what it wants.
    pub fn deliver(&self, event: Result<Event>) {
        if matches!(event, Ok(Event::Reply(_))) {
            self.room.forget_permits(1);
        }
        let _ = self.sender.send(event);
        self.doorbell.ring();
    }
}

/// The words of the first cause: those around it only say that something went wrong.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

/// Runs an exchange whose batches are requests of their own: all that the engine has sent at a time, answered in any order.
pub(crate) async fn answer_each<'a>(
    outbox: &mut Outbox,
    inbox: &Inbox,
    call: impl Fn(CallBatch) -> BoxFuture<'a, Result<Reply>>,
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

/// An error as a server sends it (`docs/protocol.md` §5).
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WireError {
    #[serde(default)]
    kind: Option<Kind>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    row: Option<u64>,
    #[serde(default)]
    traceback: Option<String>,
}

impl WireError {
    pub(crate) fn into_error(mut self, function: &str) -> Error {
        shorten(&mut self.message);
        if let Some(traceback) = &mut self.traceback {
            shorten(traceback);
        }
        let at_row = |error: Error| match self.row {
            Some(row) => error.with_row(row),
            None => error,
        };
        match self.kind {
            Some(Kind::BadResult) => at_row(Error::bad_result(function, self.message)),
            Some(Kind::Busy) => Error::busy(function, format!("The server said: {}.", self.message)),
            Some(Kind::FunctionNotFound) => Error::function_not_found(function, "the container", &[]),
            Some(Kind::ProtocolViolation) => {
                Error::protocol(function, format!("It refused the request: {}.", self.message))
            }
            Some(Kind::OutOfRange) => at_row(
                Error::new(Kind::OutOfRange, format!("container function \"{function}\" cannot take a value"))
                    .with_detail(self.message),
            ),
            _ => Error::user_code(function, &self.message, self.row, self.traceback),
        }
    }
}

/// Cuts a foreign text to [`MAX_ERROR_BYTES`]; its end says more than its middle.
fn shorten(text: &mut String) {
    if text.len() <= MAX_ERROR_BYTES {
        return;
    }
    let head = (0..=MAX_ERROR_BYTES / 2).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let tail = (text.len() - MAX_ERROR_BYTES / 2..text.len()).find(|start| text.is_char_boundary(*start));
    *text = format!("{}\n[...]\n{}", &text[..head], &text[tail.unwrap_or(text.len())..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_errors_are_cut_at_characters() {
        let long = "é".repeat(MAX_ERROR_BYTES);
        let error = WireError { message: long.clone(), traceback: Some(long), ..WireError::default() };
        let error = error.into_error("f");
        assert!(error.message().len() < 2 * MAX_ERROR_BYTES && error.message().contains("[...]"));
        assert!(error.detail().unwrap().len() < 2 * MAX_ERROR_BYTES);
    }

    #[test]
    fn endpoints_read_back_as_written() {
        for text in [
            "unix:/run/a.sock",
            "http+unix:/run/b.sock",
            "grpc://localhost:8815",
            "http://[::1]:80",
            "grpcs://a.b:1",
            "https://h:443",
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp://a:1", "unix:relative", "grpc://host", "grpc://:1", "http://h:70000", "grpcs://h", "https://"]
        {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
