//! Arrow Flight: one `DoExchange` stream per exchange, over TCP or a Unix socket (`docs/protocol.md` §2 to §5).

use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData};
use arrow_schema::{Schema, SchemaRef};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, SemaphorePermit, mpsc};
use tokio::time::Sleep;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{CancellationHandle, Request, Status, Streaming};
use udf_codec::arrow_ipc::{CallEncoder, decode_batch_within, decode_schema};
use udf_codec::batch::{AggregateStep, CallBatch};
use udf_codec::lines::MAX_LINES;
use udf_codec::wire::{PROTOCOL_VERSION, ServerInfo, WireError};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{FunctionKind, ROW_ERRORS_KEY, Signature};
use udf_types::{Error, Kind, Result};

use crate::budget::Share;
use crate::inbox::{Event, Inbox, Reply, bytes_of};
use crate::outbox::{Outbox, Outgoing};
use crate::transport::check::{check_reply, check_types};
use crate::transport::credentials::Credentials;
use crate::transport::flight_greeting::{Foreign, Said};
use crate::transport::flight_messages::{
    Fields, Info, Infos, Messages, Received, descriptor_of, fields_of, opening_fields,
};
use crate::transport::foreign::{adapt_columns, adapt_reply, check_foreign_types};
use crate::transport::grpc_status::reply_error;
use crate::transport::streams::Streams;
use crate::transport::tcp::Tcp;
use crate::transport::tls::Tls;
use crate::transport::unix::UnixSocket;
use crate::transport::{CONNECT_TIMEOUT, MAX_ASIDE_BYTES, Takes, Transport};

/// Two batches of the default size fit into a stream's receive window, so that a server can finish writing one reply
/// while the one before is still being read.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// A few streams that are not read keep no other from being read. No more than that: h2 bounds the number of small frames by this window.
/// So where the large replies of eight exchanges wait for memory, a ninth on the connection may have to wait for the engine, or time out.
const CONNECTION_WINDOW_BYTES: u32 = 8 * STREAM_WINDOW_BYTES;
/// How long a server that has answered everything may take to end a stream.
const END_PATIENCE: Duration = Duration::from_secs(5);

const DO_EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";
const GET_FLIGHT_INFO: &str = "/arrow.flight.protocol.FlightService/GetFlightInfo";

/// Between two questions whether a server is still there, while it is busy. gRPC's servers take a client that asks more often
/// than every five minutes for a nuisance.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(330);
/// Longest wait for the answer to that.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A Flight server.
#[derive(Debug)]
pub struct Flight {
    pub(super) endpoint: Endpoint,
    channel: Channel,
    secrets: Secrets,
    compression: bool,
    /// Whether the server may be one that does not speak this protocol.
    pub(super) may_be_foreign: bool,
    /// What the server said, once it was asked.
    pub(super) said: OnceCell<Said>,
    streams: Streams,
}

/// For how much of an exchange a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamFor {
    /// All of it.
    Exchange,
    /// One batch.
    Batch,
    /// Until there is nothing to do.
    Now,
}

/// Adds a token and other secret headers, if there are any, to each request.
#[derive(Debug, Clone)]
pub(super) struct Secrets(MetadataMap);

impl Interceptor for Secrets {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        for pair in self.0.iter() {
            if let KeyAndValueRef::Ascii(name, value) = pair {
                request.metadata_mut().insert(name, value.clone());
            }
        }
        Ok(request)
    }
}

/// The library's client.
pub(super) type FlightClient = FlightServiceClient<InterceptedService<Channel, Secrets>>;

/// What `app_metadata` of a batch of calls carries, `docs/protocol.md` §4.
#[derive(Debug, Serialize)]
struct CallMetadata {
    batch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<AggregateStep>,
}

/// What `app_metadata` of a reply carries, `docs/protocol.md` §4 and §5.
#[derive(Debug, Default, Deserialize)]
struct ReplyMetadata {
    batch: Option<u64>,
    #[serde(default)]
    more: bool,
    #[serde(default)]
    micros: u64,
    #[serde(default)]
    error: Option<WireError>,
    #[serde(default, deserialize_with = "few_lines")]
    lines: Vec<String>,
}

/// No more lines than are shown: empty ones take more memory than their text.
fn few_lines<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<String>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<String>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("an array of texts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Vec<String>, A::Error> {
            let mut lines = Vec::new();
            while lines.len() <= MAX_LINES {
                match items.next_element()? {
                    Some(line) => lines.push(line),
                    None => return Ok(lines),
                }
            }
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(lines)
        }
    }
    from.deserialize_seq(Few)
}

impl Flight {
    /// A client of the server at `endpoint`, which is not connected to yet, and may speak one of the protocols of arrow-udf
    /// and Databend.
    pub fn of_any(endpoint: Endpoint, credentials: &Credentials) -> Flight {
        Flight { may_be_foreign: true, ..Flight::new(endpoint, credentials, None) }
    }

    /// A client of the server at `endpoint`, which is not connected to yet, speaks this protocol, and takes so much; none if
    /// that is not known.
    pub fn new(endpoint: Endpoint, credentials: &Credentials, takes: Option<Takes>) -> Flight {
        let authority = match &endpoint {
            Endpoint::FlightTcp(authority) => format!("http://{authority}"),
            Endpoint::FlightTls(authority) => format!("https://{authority}"),
            // gRPC wants an authority where a Unix socket has none.
            _ => "http://localhost".to_string(),
        };
        let builder = tonic::transport::Endpoint::try_from(authority)
            .expect("Endpoint::parse has checked the authority")
            .connect_timeout(CONNECT_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
        let channel = match &endpoint {
            Endpoint::FlightUnix(path) => {
                let socket = UnixSocket::new(path, credentials);
                builder.connect_with_connector_lazy(tower::service_fn(move |_| {
                    let socket = socket.clone();
                    async move { socket.connect().await.map(TokioIo::new) }
                }))
            }
            Endpoint::FlightTls(authority) => {
                let tls = Tls::new(authority, credentials, "h2");
                builder.connect_with_connector_lazy(tower::service_fn(move |_| {
                    let tls = tls.clone();
                    async move { tls.connect().await.map(TokioIo::new) }
                }))
            }
            Endpoint::FlightTcp(authority) => {
                let tcp = Tcp::new(authority, credentials);
                builder.connect_with_connector_lazy(tower::service_fn(move |_| {
                    let tcp = tcp.clone();
                    async move { tcp.connect().await.map(TokioIo::new) }
                }))
            }
            _ => builder.connect_lazy(),
        };
        Flight {
            endpoint,
            channel,
            secrets: Secrets(MetadataMap::from_headers(credentials.headers())),
            compression: credentials.compression,
            may_be_foreign: false,
            said: OnceCell::new_with(
                takes.map(|takes| Said { protocol: PROTOCOL_VERSION, constants: takes.constants }),
            ),
            streams: Streams::new(),
        }
    }

    /// A client that takes messages of at most so many bytes.
    pub(super) fn client(&self, most: usize) -> FlightClient {
        let client = FlightServiceClient::with_interceptor(self.channel.clone(), self.secrets.clone())
            .max_decoding_message_size(most)
            .max_encoding_message_size(usize::MAX);
        if !self.compression {
            return client;
        }
        client.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip)
    }

    /// Opens a stream of the method with this path, whose replies are messages of columns of at most so many bytes.
    pub(super) async fn stream(
        &self,
        path: &'static str,
        calls: Request<impl Stream<Item = Fields> + Send + 'static>,
        most: usize,
    ) -> std::result::Result<Streaming<Received>, Status> {
        let mut client = self.grpc(most).await?;
        Ok(client.streaming(calls, PathAndQuery::from_static(path), Messages).await?.into_inner())
    }

    /// What the server says of a function.
    pub(super) async fn info_of(&self, function: &str) -> std::result::Result<Info, Status> {
        let mut client = self.grpc(MAX_ASIDE_BYTES).await?;
        let request = Request::new(descriptor_of(function));
        Ok(client.unary(request, PathAndQuery::from_static(GET_FLIGHT_INFO), Infos).await?.into_inner())
    }

    /// A client for messages that are read here, of at most so many bytes.
    async fn grpc(&self, most: usize) -> std::result::Result<Grpc<InterceptedService<Channel, Secrets>>, Status> {
        let service = InterceptedService::new(self.channel.clone(), self.secrets.clone());
        let mut client = Grpc::new(service).max_decoding_message_size(most).max_encoding_message_size(usize::MAX);
        if self.compression {
            client = client.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip);
        }
        client.ready().await.map_err(|cause| Status::from_error(cause.into()))?;
        Ok(client)
    }

    pub(super) async fn action(&self, name: &str) -> std::result::Result<Vec<u8>, Status> {
        let action = Action { r#type: name.to_string(), body: Default::default() };
        let mut results = self.client(MAX_ASIDE_BYTES).do_action(action).await?.into_inner();
        let first = results.message().await?;
        Ok(first.map(|result| result.body.to_vec()).unwrap_or_default())
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        let foreign = if self.is_foreign(&signature.function).await? {
            self.describe(&signature.function).await?.1
        } else {
            None
        };
        let foreign = foreign.as_ref();
        if let Some(foreign) = foreign {
            // The columns would not fit what the server says it takes.
            signature.check_against(&foreign.signature, &format!("the server at \"{}\"", self.endpoint))?;
        }
        // docs/protocol.md §4: a server of the arrow-udf family marks no end of a batch's results but the stream's.
        if signature.kind == FunctionKind::Table && foreign.is_some() {
            while self.run_stream(signature, foreign, outbox, inbox, StreamFor::Batch, None).await? {}
            return Ok(());
        }
        if matches!(signature.kind, FunctionKind::Map | FunctionKind::Aggregate) {
            return self.run_stream(signature, foreign, outbox, inbox, StreamFor::Exchange, None).await.map(|_| ());
        }
        while outbox.wait_for_more().await {
            let goes_on = if signature.kind == FunctionKind::Table {
                self.run_stream(signature, foreign, outbox, inbox, StreamFor::Exchange, None).await?
            } else {
                // Of those that the engine does not read, none keeps another from having a stream.
                inbox.wait_for_room().await;
                let permit = self.streams.take().await;
                self.run_stream(signature, foreign, outbox, inbox, StreamFor::Now, permit).await?
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// One `DoExchange`, for all batches or for some, with a permit if it needs one. Whether there may be more.
    async fn run_stream(
        &self,
        signature: &Signature,
        foreign: Option<&Foreign>,
        outbox: &mut Outbox,
        inbox: &Inbox,
        stream_for: StreamFor,
        permit: Option<SemaphorePermit<'_>>,
    ) -> Result<bool> {
        let outcome = self.talk(signature, foreign, outbox, inbox, stream_for, permit).await;
        if outcome.as_ref().is_err_and(Error::is_busy) {
            // Nobody has seen the stream.
            outbox.rewind();
        }
        outcome
    }

    async fn talk(
        &self,
        signature: &Signature,
        foreign: Option<&Foreign>,
        outbox: &mut Outbox,
        inbox: &Inbox,
        stream_for: StreamFor,
        mut permit: Option<SemaphorePermit<'_>>,
    ) -> Result<bool> {
        let function = signature.function.as_str();
        let is_single = stream_for == StreamFor::Batch;
        // A server that does not read leaves the batches in the engine, not in this queue.
        let (wire, mut queue) = mpsc::channel::<Fields>(1);
        let call_schema = foreign.map_or_else(|| signature.call_schema(), |foreign| foreign.arguments.clone());
        let call_schema = match signature.row_errors {
            None => call_schema,
            Some(row_errors) => {
                let asks = HashMap::from([(ROW_ERRORS_KEY.to_string(), row_errors.name().to_string())]);
                Arc::new(call_schema.as_ref().clone().with_metadata(asks))
            }
        };
        let constants = match outbox.peek() {
            Some(batch) if !batch.constants.is_empty() && self.said(function).await?.constants => {
                // Of a server elsewhere, nobody knew it before.
                inbox.deliver(Ok(Event::TakesConstants));
                batch.constants.positions()
            }
            _ => Vec::new(),
        };
        let (mut encoder, schema) = CallEncoder::new(call_schema, constants);
        let first = if is_single { outbox.next().await } else { None };
        if is_single && first.is_none() {
            return Ok(false);
        }
        // The receiver is in scope and the queue empty, so sending cannot fail.
        let _ = wire.try_send(opening_fields(function, schema));
        let mut wire = Some(wire);
        let most = inbox.budget().share_of_message(0).limit();
        // A server may send its headers only with its first reply, so calls go out before the stream is open.
        let mut calls = Request::new(stream::poll_fn(move |context| queue.poll_recv(context)));
        // It is dropped before the queue's other end.
        let _leaving = Leaving(Some(calls.cancellation_handle()));
        for (name, value) in inbox.asides().fields(None) {
            if let Ok(value) = value.parse() {
                calls.metadata_mut().insert(name, value);
            }
        }
        let mut opened = pin!(self.stream(DO_EXCHANGE, calls, most).fuse());
        let mut replies: Option<Streaming<Received>> = None;
        // The messages of the last batch that wait for a place.
        let mut unsent = VecDeque::new();
        let mut reply_schema: Option<SchemaRef> = None;
        let mut bytes_sent = HashMap::new();
        let mut first = first;
        let lost = |status: Status| match reply_error(function, &status, most) {
            // docs/protocol.md §5: who speaks this protocol says in a message what the handler raised.
            error if foreign.is_none() => error.with_doubt(),
            error => error,
        };
        let (mut is_closing, mut is_parking) = (false, false);
        let mut end: Option<Pin<Box<Sleep>>> = None;
        loop {
            if stream_for == StreamFor::Now && permit.is_none() && unsent.is_empty() {
                (is_closing, is_parking) = (true, true);
            }
            if is_closing {
                wire = None;
            }
            // Where there is a batch and no room for its answer, there is nothing to do until the engine takes one.
            let has_nothing = outbox.is_quiet() || (outbox.awaited() == 0 && !inbox.has_room());
            let is_idle = stream_for == StreamFor::Now && wire.is_some() && has_nothing;
            // Of a map function and a stream for one batch, only the end says that there is no more.
            let is_answered = wire.is_none() && unsent.is_empty() && outbox.awaited() == 0;
            let is_answered = is_answered && signature.kind != FunctionKind::Map && !is_single;
            // There is room for all that such a stream awaits, and of what needs none no stream waits for any.
            let waits_for_room = stream_for != StreamFor::Now && !is_answered;
            if is_answered && end.is_none() {
                end = Some(Box::pin(tokio::time::sleep(END_PATIENCE)));
            }
            tokio::select! {
                // A stream has nothing to do only if there is neither a batch nor a reply.
                biased;
                // Nobody waits for what it could still say, however much, but its lease would last.
                () = pass(&mut end), if end.is_some() => return Ok(is_parking),
                stream = &mut opened, if replies.is_none() => replies = Some(stream.map_err(lost)?),
                () = wait_for_place(&wire), if !unsent.is_empty() => send_next(&wire, &mut unsent),
                batch = next_batch(&wire, &mut first, outbox, inbox, stream_for), if wire.is_some() && unsent.is_empty() => match batch {
                    Some(batch) => {
                        let mut batch = batch.batch;
                        if encoder.positions().is_empty() {
                            batch = batch.with_repeated_constants(signature)?;
                        } else if batch.constants.positions() != encoder.positions() {
                            // Another stream has other columns.
                            outbox.take_back();
                            (is_closing, is_parking) = (true, true);
                            continue;
                        }
                        let metadata = CallMetadata { batch: batch.number, step: batch.step };
                        let columns = match foreign {
                            Some(foreign) => adapt_columns(&batch.columns, foreign.arguments.clone())
                                .map_err(|fact| Error::new(Kind::OutOfRange, format!("container function \"{function}\" cannot take a value")).with_detail(fact))?,
                            None => batch.columns,
                        };
                        let mut messages = encoder
                            .encode(&columns, &batch.constants)
                            .map_err(|cause| Error::protocol(function, format!("A batch could not be encoded: {cause}.")))?;
                        let bytes = messages.iter().map(|message| message.data_body.len() + message.data_header.len()).sum();
                        let metadata = serde_json::to_vec(&metadata).expect("a number is JSON");
                        messages.last_mut().expect("the batch is a message").app_metadata = metadata.into();
                        unsent.extend(messages.into_iter().map(fields_of));
                        if signature.kind == FunctionKind::Map {
                            outbox.answer(batch.number);
                            inbox.deliver(Ok(Event::Taken));
                        } else {
                            bytes_sent.insert(batch.number, bytes);
                        }
                    }
                    None => is_closing = true,
                },
                message = next_message(&mut replies, inbox, waits_for_room), if replies.is_some() => {
                    let Some(received) = message.map_err(lost)? else {
                        if signature.kind == FunctionKind::Map && wire.is_none() {
                            inbox.deliver(Ok(Event::End));
                            return Ok(false);
                        }
                        if is_single && wire.is_none() {
                            // Whatever types the server's own columns had, none is left to be checked.
                            let fields = signature.reply_types().into_iter().map(|ty| ty.field(function));
                            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
                            let call = outbox.oldest_sent().and_then(|number| outbox.answer(number));
                            let number = call.map(|call| call.number).unwrap_or_default();
                            let columns = RecordBatch::new_empty(schema);
                            inbox.deliver(Ok(Event::Reply(Reply::whole(number, columns, 0, 0))));
                            return Ok(true);
                        }
                        if wire.is_none() && outbox.awaited() == 0 {
                            return Ok(is_parking);
                        }
                        return Err(Error::connection_lost(function, "The server ended the exchange early"));
                    };
                    check_asides(function, &received)?;
                    let (column_bytes, Received { message, bytes }) = (received.column_bytes(), received);
                    let metadata = read_metadata(function, &message)?;
                    if let Some(error) = metadata.error {
                        inbox.deliver_lines(metadata.lines);
                        return Err(error.into_error(function));
                    }
                    if message.data_header.is_empty() {
                        continue;
                    }
                    let Some(schema) = &reply_schema else {
                        let schema = decode_schema(&message)
                            .map_err(|cause| Error::protocol(function, format!("Its schema cannot be read: {cause}.")))?;
                        reply_schema = Some(schema);
                        continue;
                    };
                    // Nobody bounds how many messages say nothing else, so lines come with a reply alone.
                    inbox.deliver_lines(metadata.lines);
                    let number = match signature.kind {
                        // All of its results have the number 0, and none is waited for before the others.
                        FunctionKind::Map => u64::MAX,
                        _ => outbox.oldest_sent().unwrap_or_default(),
                    };
                    let mut share = inbox.budget().share_of_message(number);
                    let leave = async {
                        if stream_for != StreamFor::Now {
                            return;
                        }
                        permit = None;
                        while !unsent.is_empty() {
                            wait_for_place(&wire).await;
                            send_next(&wire, &mut unsent);
                        }
                        wire = None;
                    };
                    make_room(&mut share, function, bytes, leave).await?;
                    // Only now: an error says more than the schema that comes before it.
                    let (columns, bytes_made) =
                        read_columns(signature, foreign.is_some(), schema, &message, share.left(), most)?;
                    share.hold(bytes.max(bytes_made));
                    let bytes_needed = bytes + bytes_made;
                    if signature.kind == FunctionKind::Map {
                        let call = CallBatch::new(0, RecordBatch::new_empty(signature.call_schema()));
                        check_reply(signature, &call, &columns)?;
                        inbox.deliver(Ok(Event::Reply(Reply { is_last: false, bytes_needed, compute_us: metadata.micros, share: Some(share), ..Reply::whole(0, columns, 0, column_bytes) })));
                        continue;
                    }
                    // docs/protocol.md §4: "replies come in the order of the calls, and repeat their numbers".
                    let Some(expected) = outbox.oldest_sent() else {
                        return Err(Error::protocol(function, "It sent a reply that no call asked for."));
                    };
                    if metadata.batch.is_some_and(|number| number != expected) {
                        return Err(Error::protocol(
                            function,
                            format!("It answered batch {} when batch {expected} was due.", metadata.batch.unwrap_or_default()),
                        ));
                    }
                    let is_part = is_single || (metadata.more && signature.kind == FunctionKind::Table);
                    let is_last = !is_part;
                    let call = outbox.answer_partly().expect("oldest_sent names a sent batch");
                    check_reply(signature, call, &columns)?;
                    if is_last {
                        // Only the newest batch can be waiting. It would wait for ever, and the exchange with it.
                        if outbox.awaited() == 1 && is_waiting(&wire, &unsent) {
                            return Err(Error::protocol(function, "It answered a batch that it did not have yet."));
                        }
                        outbox.answer(expected);
                    }
                    let bytes_sent = bytes_sent.remove(&expected).unwrap_or_default();
                    inbox.deliver(Ok(Event::Reply(Reply {
                        is_last,
                        bytes_needed,
                        compute_us: metadata.micros,
                        share: Some(share),
                        ..Reply::whole(expected, columns, bytes_sent, column_bytes)
                    })));
                }
                () = self.streams.wait_while_idle(), if is_idle => (is_closing, is_parking) = (true, true),
            }
        }
    }
}

/// Cancels a stream that is left before its end. Without that, it would end as if the client had closed its side, and a map function would
/// take the rows that it has got for all of them.
struct Leaving(Option<CancellationHandle>);

impl Drop for Leaving {
    fn drop(&mut self) {
        // What has ended already cannot be cancelled any more.
        if let Some(handle) = self.0.take() {
            handle.cancel();
        }
    }
}

/// The columns of a message, with the fields of this protocol, and the bytes that were made for that; `left` may be made, of
/// `most` that a reply may have. Types are checked before values are read, which other types could make many of few bytes.
pub(super) fn read_columns(
    signature: &Signature,
    is_foreign: bool,
    schema: &SchemaRef,
    message: &FlightData,
    left: usize,
    most: usize,
) -> Result<(RecordBatch, usize)> {
    let function = signature.function.as_str();
    match is_foreign {
        true => check_foreign_types(signature, schema.fields())?,
        false => check_types(signature, schema.fields(), false)?,
    }
    let columns = decode_batch_within(message, schema.clone(), left).map_err(|unreadable| {
        unreadable
            .into_error(function, most, |fact| Error::protocol(function, format!("A reply cannot be read: {fact}.")))
    })?;
    if !is_foreign {
        return Ok((columns, 0));
    }
    let adapted = adapt_reply(signature, &columns, left)
        .map_err(|unreadable| unreadable.into_error(function, most, |fact| Error::bad_result(function, fact)))?;
    let bytes_made = bytes_of(&adapted);
    Ok((adapted, bytes_made))
}

/// Waits until a message of so many bytes may be read. If it waits, `leave` gives up the stream's permit, since the engine may come to
/// another exchange first, and closes the stream, so that the server's thread is free once it has answered what it was sent.
async fn make_room(share: &mut Share, function: &str, bytes: usize, leave: impl Future<Output = ()>) -> Result<()> {
    let mut room = pin!(async {
        share.grow(function, bytes).await?;
        share.make_room(2 * bytes).await;
        Ok(())
    });
    if let Some(outcome) = room.as_mut().now_or_never() {
        return outcome;
    }
    tokio::select! {
        biased;
        () = leave => room.await,
        outcome = &mut room => outcome,
    }
}

async fn pass(end: &mut Option<Pin<Box<Sleep>>>) {
    match end {
        Some(end) => end.await,
        None => std::future::pending().await,
    }
}

/// Whether a message has not left the queue of what is sent. Servers read whole messages, so one that answers a batch has received all
/// of it, and the library took it out of the queue before that.
fn is_waiting(wire: &Option<mpsc::Sender<Fields>>, unsent: &VecDeque<Fields>) -> bool {
    !unsent.is_empty() || wire.as_ref().is_some_and(|wire| wire.capacity() == 0)
}

/// Waits for a place in the queue of what is sent.
async fn wait_for_place(wire: &Option<mpsc::Sender<Fields>>) {
    // The queue is gone only if the server ended the stream; reading its end says why.
    match wire.as_ref().map(mpsc::Sender::reserve) {
        Some(place) => match place.await {
            Ok(place) => drop(place),
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Sends the next message, for which there is a place.
fn send_next(wire: &Option<mpsc::Sender<Fields>>, unsent: &mut VecDeque<Fields>) {
    if let (Some(wire), Some(message)) = (wire, unsent.pop_front()) {
        // It fails only if the server ended the stream.
        let _ = wire.try_send(message);
    }
}

/// The next batch to send, once there is a place in the queue; on a stream that others wait for, once the engine has room for its
/// answer and for those before it.
async fn next_batch(
    wire: &Option<mpsc::Sender<Fields>>,
    first: &mut Option<Outgoing>,
    outbox: &mut Outbox,
    inbox: &Inbox,
    stream_for: StreamFor,
) -> Option<Outgoing> {
    wait_for_place(wire).await;
    match stream_for {
        StreamFor::Batch => return first.take(),
        StreamFor::Now => inbox.wait_for_room_of(outbox.awaited() + 1).await,
        StreamFor::Exchange => {}
    }
    outbox.next().await
}

async fn next_message(
    replies: &mut Option<Streaming<Received>>,
    inbox: &Inbox,
    waits_for_room: bool,
) -> std::result::Result<Option<Received>, Status> {
    if waits_for_room {
        inbox.wait_for_room().await;
    }
    match replies {
        Some(replies) => replies.message().await,
        None => std::future::pending().await,
    }
}

/// Refuses a message that has more beside its columns than metadata needs.
fn check_asides(function: &str, received: &Received) -> Result<()> {
    let asides = received.asides();
    if asides > MAX_ASIDE_BYTES {
        return Err(Error::protocol(function, format!("A reply has {asides} bytes beside its columns.")));
    }
    Ok(())
}

fn read_metadata(function: &str, message: &FlightData) -> Result<ReplyMetadata> {
    if message.app_metadata.is_empty() {
        return Ok(ReplyMetadata::default());
    }
    serde_json::from_slice(&message.app_metadata)
        .map_err(|cause| Error::protocol(function, format!("A reply's metadata cannot be read: {cause}.")))
}

impl Transport for Flight {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(self.say_hello())
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(async move { Ok(self.describe(function).await?.0) })
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
    use super::*;

    #[test]
    fn lines_that_nobody_will_see_take_no_memory() {
        let read = |text: String| {
            let message = FlightData { app_metadata: text.into(), ..FlightData::default() };
            read_metadata("f", &message)
        };
        for (count, kept) in [(0, 0), (1, 1), (MAX_LINES, MAX_LINES), (MAX_LINES + 2, MAX_LINES + 1)] {
            let lines = vec![r#""a""#; count].join(",");
            assert_eq!(read(format!(r#"{{"batch": 3, "lines": [{lines}]}}"#)).unwrap().lines.len(), kept);
        }
        let many = r#""","#.repeat(1_000_000);
        let metadata = read(format!(r#"{{"lines": [{many}""], "batch": 3}}"#)).unwrap();
        assert!(metadata.lines.len() == MAX_LINES + 1 && metadata.lines.capacity() < 1000);
        assert_eq!(metadata.batch, Some(3));
        assert!(read(format!(r#"{{"lines": [{many}1, 2"#)).is_err() && read(r#"{"lines": [1]}"#.to_string()).is_err());
    }
}
