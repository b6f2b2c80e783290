//! Columns as they lie in memory (`docs/protocol.md` §7), over HTTP/1.1 that is pipelined: an exchange has a connection of
//! its own, on which batches are sent before the first is answered, and answered in order, one after the other.
//!
//! HTTP libraries do not pipeline, so the little that an exchange needs of HTTP/1.1 is written and read here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use udf_codec::batch::CallBatch;
use udf_codec::columns::{
    CallHeader, Data, Distant, Layout, ReplyHeader, aligned, decode_reply_from, fixed_bytes, frame, inline_body,
    read_frame,
};
use udf_codec::constants::Constants;
use udf_codec::lines::LINES;
use udf_codec::parquet;
use udf_codec::unreadable::Unreadable;
use udf_codec::wire::COLUMNS;
use udf_project::endpoint::Endpoint;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::{Error, Result};

use crate::arena::Arena;
use crate::budget::Share;
use crate::folder::Folder;
use crate::foreground::forget_read;
use crate::inbox::{Asides, Event, Inbox, Reply, bytes_of};
use crate::outbox::{Outbox, Outgoing};
use crate::route::Encoding;
use crate::segment::{Segment, Segments, has_room};
use crate::transport::Takes;
use crate::transport::check::check_reply;
use crate::transport::http::{Http, Stream, pause_of};
use crate::transport::status::error_of;
use crate::transport::{MAX_ASIDE_BYTES, innermost};

/// The form of Parquet files.
const PARQUET: &str = "parquet";

/// Longest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// Longest header of a reply's columns, in bytes: 1,600 columns of text have 4,800 buffers, with two numbers each.
const MAX_HEADER_BYTES: usize = 512 << 10;
/// Least room for what is read at a time.
const READ_BYTES: usize = 4 << 10;
/// The same while a body is read that is not short.
const LONG_READ_BYTES: usize = 64 << 10;
/// Bodies up to this are copied behind their heads.
const SHORT_BYTES: usize = 4 << 10;

/// The connections to one server that no exchange is using.
#[derive(Debug)]
pub(crate) struct Pipelines {
    /// Folder of the segments, and the bytes of columns that go with the request nevertheless; none if all do.
    segments: Option<(Folder, usize)>,
    encoding: Encoding,
    idle: Mutex<Vec<Pipeline>>,
}

/// An exchange with one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialogue<'a> {
    /// Of the function.
    pub(crate) signature: &'a Signature,
    /// Where the server answers calls of it.
    pub(crate) path: &'a str,
    /// Of an aggregate function's exchange.
    pub(crate) name: &'a str,
    /// What the server takes.
    pub(crate) takes: Takes,
}

impl Encoding {
    fn layout(self, signature: &Signature, batch: &CallBatch, arena: Option<&Arena>, same_constants: bool) -> Layout {
        match self {
            Encoding::Buffers => {
                Layout::of_calls(&signature.call_types(), batch, arena.map(Arena::region), same_constants)
            }
            Encoding::Parquet => Layout::of_file(PARQUET, parquet::encode(&batch.columns)),
        }
    }

    fn decode(
        self,
        signature: &Signature,
        header: &ReplyHeader,
        data: &mut Data<'_>,
        call: &Layout,
        most: usize,
    ) -> std::result::Result<RecordBatch, Unreadable> {
        match self {
            Encoding::Buffers => decode_reply_from(signature, header, data, call).map_err(|fact| match data {
                Data::Elsewhere(file) if file.is_too_large() => Unreadable::TooLarge,
                _ => Unreadable::Misfit(fact),
            }),
            Encoding::Parquet => {
                let file = data.whole()?;
                // The file, and the columns that are made of it twice: piece by piece, and as one.
                let left = (most / 4 * 3).saturating_sub(file.len()) / 2;
                parquet::decode_reply_within(signature, header.rows, &file, left)
            }
        }
    }
}

impl Pipelines {
    pub(crate) fn new(segments: Option<(Folder, usize)>, encoding: Encoding) -> Pipelines {
        Pipelines { segments, encoding, idle: Mutex::default() }
    }

    /// Closes the connections that no exchange is using.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().expect("no holder panics").clear();
    }

    /// Runs an exchange.
    pub(crate) async fn exchange(
        &self,
        http: &Http,
        dialogue: Dialogue<'_>,
        outbox: &mut Outbox,
        inbox: &Inbox,
    ) -> Result<()> {
        let Dialogue { signature, path, name, takes } = dialogue;
        if self.encoding == Encoding::Parquet {
            parquet::check_types(signature)?;
        }
        let lost = |error: Error| {
            if error.is_retryable() { Error::connection_lost(&signature.function, error.message()) } else { error }
        };
        let call = PipelinedCall {
            signature,
            head: head_of(http, path),
            name,
            segments: self.segments.as_ref().map(|(directory, most_inline)| (directory, *most_inline)),
            pipelining: takes.pipelining,
            takes_constants: self.encoding == Encoding::Buffers && takes.constants,
            keeps_connection: matches!(http.endpoint(), Endpoint::JsonUnix(_)),
            encoding: self.encoding,
            asides: inbox.asides().clone(),
        };
        if call.takes_constants {
            // Of a server elsewhere, nobody knew it before.
            inbox.deliver(Ok(Event::TakesConstants));
        }
        loop {
            let mut pipeline = self.take(http).await.map_err(lost)?;
            match call.run(&mut pipeline, outbox, inbox).await? {
                Ended::Whole => {
                    if pipeline.is_reusable {
                        // What a large reply has made large is not kept.
                        pipeline.received = BytesMut::new();
                        pipeline.is_kept = true;
                        self.idle.lock().expect("no holder panics").push(pipeline);
                    }
                    return Ok(());
                }
                // Another connection serves what comes later.
                Ended::Closed if outbox.wait_for_more().await => {}
                Ended::Closed => return Ok(()),
            }
        }
    }

    async fn take(&self, http: &Http) -> Result<Pipeline> {
        loop {
            let kept = self.idle.lock().expect("no holder panics").pop();
            let Some(mut pipeline) = kept else { return Ok(Pipeline::new(http.open().await?)) };
            if pipeline.is_alive() {
                return Ok(pipeline);
            }
        }
    }
}

/// How an exchange left its connection.
enum Ended {
    /// Everything was sent, and answered.
    Whole,
    /// The server closed it while nothing was out, as it may.
    Closed,
}

/// A connection, with the segments through which its batches go.
struct Pipeline {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    received: BytesMut,
    /// Those that no batch is using.
    segments: Vec<Segments>,
    /// Whether the server will answer another request on it.
    is_reusable: bool,
    /// Whether an exchange before this one has used it.
    is_kept: bool,
}

impl Pipeline {
    fn new(stream: Stream) -> Pipeline {
        let (reader, writer) = tokio::io::split(stream);
        Pipeline { reader, writer, received: BytesMut::new(), segments: Vec::new(), is_reusable: true, is_kept: false }
    }

    /// Whether the server has not closed it while nobody was looking. It has nothing to say either.
    fn is_alive(&mut self) -> bool {
        let is_silent = self.reader.read_buf(&mut self.received).now_or_never().is_none();
        forget_read();
        is_silent
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("segments", &self.segments).finish_non_exhaustive()
    }
}

/// The head of every request of an exchange, without the length of its body.
fn head_of(http: &Http, path: &str) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {COLUMNS}\r\n", http.host()).into_bytes();
    for (name, value) in http.secrets() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head
}

/// An exchange on a connection.
struct PipelinedCall<'a> {
    signature: &'a Signature,
    head: Vec<u8>,
    name: &'a str,
    /// As in [`Pipelines`].
    segments: Option<(&'a Folder, usize)>,
    pipelining: bool,
    takes_constants: bool,
    /// Whether all requests come to the server on one connection: over TCP there may be a proxy, which has connections of its
    /// own to it, and shares them among its clients.
    keeps_connection: bool,
    encoding: Encoding,
    asides: Asides,
}

/// The constants that the server has from a batch before.
#[derive(Default)]
struct Brought {
    constants: Constants,
    id: String,
}

/// A batch that was sent.
struct Awaited {
    batch: CallBatch,
    /// What the data begins with, if it is a segment.
    arena: Option<Arc<Arena>>,
    segments: Option<Segments>,
    /// What was sent, to which the reply may refer.
    layout: Layout,
}

impl PipelinedCall<'_> {
    fn function(&self) -> &str {
        &self.signature.function
    }

    async fn run(&self, pipeline: &mut Pipeline, outbox: &mut Outbox, inbox: &Inbox) -> Result<Ended> {
        let lost = |cause: std::io::Error| Error::connection_lost(self.function(), innermost(&cause));
        let mut awaited: VecDeque<Awaited> = VecDeque::new();
        let mut sending = Sending::default();
        // The answer whose body is being read.
        let mut reading: Option<(Head, Share)> = None;
        let mut brought = Brought::default();
        let mut is_open = true;
        while is_open || !awaited.is_empty() {
            if !pipeline.is_reusable && awaited.is_empty() && sending.is_done() {
                // The server closes it, so that what comes next needs another one.
                return Ok(Ended::Closed);
            }
            match &reading {
                Some((head, _)) => grow(&mut pipeline.received, head.length),
                // So that a short answer comes in one piece.
                None => pipeline.received.reserve(READ_BYTES),
            }
            tokio::select! {
                // A connection that the server has closed is seen before the next batch goes to it.
                biased;
                read = pipeline.reader.read_buf(&mut pipeline.received) => {
                    if read.map_err(lost)? == 0 {
                        if pipeline.is_kept && awaited.is_empty() && sending.is_done() {
                            return Ok(Ended::Closed);
                        }
                        return Err(Error::connection_lost(self.function(), "the server closed it"));
                    }
                    loop {
                        if reading.is_none() {
                            let Some(head) = self.next_head(&pipeline.received)? else { break };
                            let Some(call) = awaited.front() else {
                                return Err(Error::protocol(self.function(), "It answered more than it was asked."));
                            };
                            self.check_length(&head, call)?;
                            let mut share = inbox.budget().share(call.batch.number);
                            share.grow(self.function(), head.length).await?;
                            pipeline.received.advance(head.size);
                            if head.length > LONG_READ_BYTES {
                                // It has memory of its own, in which it begins where any value may.
                                pipeline.received = BytesMut::from(&pipeline.received[..]);
                            }
                            reading = Some((head, share));
                        }
                        let is_there = |(head, _): &mut (Head, Share)| head.length <= pipeline.received.len();
                        let Some((head, share)) = reading.take_if(is_there) else { break };
                        let Some(call) = awaited.pop_front() else { break };
                        let number = call.batch.number;
                        let body = pipeline.received.split_to(head.length).freeze();
                        if head.length > LONG_READ_BYTES {
                            pipeline.received = BytesMut::from(&pipeline.received[..]);
                        }
                        pipeline.is_reusable &= !head.is_last;
                        inbox.deliver_lines_of(self.function(), head.lines.as_deref())?;
                        let event = match self.receive(pipeline, call, &head, body, share).await {
                            Ok(reply) => Event::Reply(reply),
                            // docs/protocol.md §5: nothing that was sent behind it is run either.
                            Err(error) if error.is_busy() => {
                                // Over TCP, a proxy may have given them to another server, which runs them.
                                if self.keeps_connection || awaited.is_empty() {
                                    outbox.rewind();
                                }
                                return Err(error);
                            }
                            // A gateway's: another attempt may get through.
                            Err(error) if error.is_retryable() => return Err(error),
                            Err(error) => Event::Failure(number, error),
                        };
                        outbox.answer(number);
                        inbox.deliver(Ok(event));
                        // It has answered, so that it may close its connection now.
                        pipeline.is_kept = true;
                    }
                }
                batch = outbox.next(), if is_open && pipeline.is_reusable && sending.pieces.is_empty() && (self.pipelining || awaited.is_empty()) => match batch {
                    Some(batch) => {
                        let number = batch.number;
                        match self.send(pipeline, &mut sending.pieces, batch, &mut brought) {
                            Ok(sent) => awaited.push_back(sent),
                            // Those before it may be answered yet.
                            Err(error) => {
                                outbox.answer(number);
                                inbox.deliver(Ok(Event::Failure(number, error)));
                            }
                        }
                    }
                    None => is_open = false,
                },
                written = write_some(&mut pipeline.writer, &mut sending), if !sending.is_done() => if written.is_err() {
                    // A server that is gone may have answered before: what it said is read to its end first.
                    sending = Sending::default();
                    pipeline.is_reusable = false;
                },
            }
        }
        // Of a request that was answered before it was sent, the rest is still owed to the server.
        pipeline.is_reusable &= sending.is_done();
        Ok(Ended::Whole)
    }

    /// Writes a batch's data to where it travels, unless it lies there already, and its request to `sending`.
    fn send(
        &self,
        pipeline: &mut Pipeline,
        sending: &mut VecDeque<Bytes>,
        outgoing: Outgoing,
        brought: &mut Brought,
    ) -> Result<Awaited> {
        let Outgoing { batch, arena } = outgoing;
        let batch = if self.takes_constants { batch } else { batch.with_repeated_constants(self.signature)? };
        let same_constants =
            self.keeps_connection && !batch.constants.is_empty() && batch.constants.are(&brought.constants);
        if !batch.constants.is_empty() && !same_constants {
            *brought = Brought { constants: batch.constants.clone(), id: format!("{}-{}", self.name, batch.number) };
        }
        let is_usable = |segment: &Segment| Some(segment.directory()) == self.segments.map(|(directory, _)| directory);
        let mut arena =
            arena.filter(|arena| self.encoding == Encoding::Buffers && arena.segment().is_some_and(is_usable));
        let mut layout = self.encoding.layout(self.signature, &batch, arena.as_deref(), same_constants);
        let worth_it = self.segments.filter(|(_, most_inline)| arena.is_some() || layout.bytes > *most_inline);
        let pair = worth_it.and_then(|(directory, _)| {
            // For the reply, and for the calls if they do not lie there already.
            if !has_room(directory, 2 * layout.bytes) {
                pipeline.segments.clear();
                return None;
            }
            pipeline.segments.pop().or_else(|| Segments::create(directory).ok())
        });
        let segments = pair.filter(|pair| place_of_calls(arena.as_deref(), pair).write(&layout).is_ok());
        if segments.is_none() && arena.take().is_some() {
            // There is no memory left for segments: all of the data goes with the request.
            layout = self.encoding.layout(self.signature, &batch, None, same_constants);
        }
        let mut header = CallHeader::new(&batch, &layout, self.name).with_row_errors(self.signature.row_errors);
        if !batch.constants.is_empty() {
            header = header.with_constants_id(&brought.id);
        }
        let body = match &segments {
            Some(segments) => {
                let calls = place_of_calls(arena.as_deref(), segments);
                if let Some(arena) = &arena {
                    arena.lend();
                }
                frame(&header.with_segments(&calls.name, &segments.replies.name), 0)
            }
            None => inline_body(&header, &layout),
        };
        let mut head = self.head.clone();
        for (name, value) in self.asides.fields(Some(batch.number)) {
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        head.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        if body.len() <= SHORT_BYTES {
            // One packet, for which the server wakes once.
            head.extend_from_slice(&body);
            sending.push_back(head.into());
        } else {
            sending.extend([Bytes::from(head), Bytes::from(body)]);
        }
        Ok(Awaited { batch, arena, segments, layout })
    }

    /// The head of the next answer; none if there is more of it to come.
    fn next_head(&self, received: &[u8]) -> Result<Option<Head>> {
        let unreadable = |fact: &str| Error::protocol(self.function(), format!("Its answer is not HTTP: {fact}."));
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let size = match parsed.parse(received).map_err(|cause| unreadable(&cause.to_string()))? {
            httparse::Status::Complete(size) => size,
            httparse::Status::Partial if received.len() > MAX_HEAD_BYTES => {
                return Err(unreadable("its head is too long"));
            }
            httparse::Status::Partial => return Ok(None),
        };
        let value = |name: &str| {
            let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
        let length = length.ok_or_else(|| unreadable("it does not say its length"))?;
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
        Ok(Some(Head {
            size,
            length,
            status: status.ok_or_else(|| unreadable("it has no status"))?,
            is_columns: value("content-type") == Some(COLUMNS),
            retry_after: value("retry-after").and_then(pause_of),
            is_last: value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")),
            lines: value(LINES).filter(|_| self.asides.wants_lines).map(|field| field.as_bytes().to_vec()),
        }))
    }

    /// Refuses a body that is longer than what it can be of use for, before it is read.
    fn check_length(&self, head: &Head, call: &Awaited) -> Result<()> {
        let most = match (head.status, self.encoding, self.signature.kind) {
            (StatusCode::OK, Encoding::Buffers, FunctionKind::Scalar) => {
                // Buffers may be longer than their values need, and begin at multiples of what writers like.
                let needed = fixed_bytes(&self.signature.reply_types(), call.batch.columns.num_rows());
                needed.and_then(|needed| needed.checked_mul(2)?.checked_add(MAX_HEADER_BYTES))
            }
            (StatusCode::OK, ..) => None,
            _ => Some(MAX_ASIDE_BYTES),
        };
        match most {
            Some(most) if head.length > most => {
                let (length, function) = (head.length, self.function());
                Err(Error::protocol(function, format!("Its answer has {length} bytes, which its rows cannot need.")))
            }
            _ => Ok(()),
        }
    }

    async fn receive(
        &self,
        pipeline: &mut Pipeline,
        call: Awaited,
        answer: &Head,
        body: Bytes,
        mut share: Share,
    ) -> Result<Reply> {
        let function = self.function();
        let Awaited { batch, arena, segments, layout } = call;
        if answer.status != StatusCode::OK {
            return Err(error_of(function, answer.status, &body).with_retry_after(answer.retry_after));
        }
        if !answer.is_columns {
            return Err(Error::protocol(function, "Its reply is not of the form that was asked for."));
        }
        let unreadable = |fact: String| Error::protocol(function, format!("A reply cannot be read: {fact}."));
        let header_bytes = body.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        if header_bytes > MAX_HEADER_BYTES && header_bytes < body.len() {
            return Err(unreadable("its header is too long".to_string()));
        }
        let (header, inline): (ReplyHeader, _) = read_frame(&body).map_err(unreadable)?;
        if header.batch.is_some_and(|number| number != batch.number) {
            return Err(Error::protocol(function, format!("It answered another batch than batch {}.", batch.number)));
        }
        if !header.dictionaries.is_empty() && !batch.takes_dictionaries {
            return Err(unreadable("it has a dictionary that was not asked for".to_string()));
        }
        let mut data = match (&header.segment, &segments) {
            (None, _) if body.len() > LONG_READ_BYTES => Data::Memory(aligned(Buffer::from(body.slice_ref(inline)))),
            (None, _) => Data::Memory(Buffer::from(inline)),
            (Some(name), Some(segments)) if *name == segments.replies.name => {
                let size = size_of_reply(segments, &header).map_err(unreadable)?;
                // At most all of its buffers, and no more than a reply may have.
                share.grow(function, header.own_bytes().min(share.left())).await?;
                Data::Elsewhere(Distant::new(&segments.replies, size, share.held()))
            }
            (Some(_), _) => return Err(unreadable("its segment is not the one that was offered".to_string())),
        };
        let most = share.held() + share.left();
        let held = share.held();
        if self.encoding == Encoding::Parquet {
            share.make_room(most / 4 * 3).await;
        }
        // Of buffers that lie on each other each is looked at for itself, all of its text included. Of a file, reading counts them.
        if matches!(data, Data::Memory(_)) && header.own_bytes() > most {
            return Err(share.exceeded(function));
        }
        let columns = self
            .encoding
            .decode(self.signature, &header, &mut data, &layout, most)
            .map_err(|unreadable| unreadable.into_error(function, most, |fact| Error::bad_result(function, fact)))?;
        check_reply(self.signature, &batch, &columns)?;
        let bytes_received = data.taken();
        // Columns lie where they came; those of a file are made anew, twice.
        let (held, bytes_needed) = match self.encoding {
            Encoding::Buffers => (held, bytes_received),
            Encoding::Parquet => (columns.get_array_memory_size(), bytes_received + 2 * bytes_of(&columns)),
        };
        share.hold(held);
        // A handler that still looks at its arguments must go on seeing them.
        let is_spent = header.retained && arena.is_none();
        if let Some(arena) = arena
            && !header.retained
        {
            arena.give_back();
        }
        pipeline.segments.extend(segments.filter(|_| !is_spent));
        let reply = Reply::whole(batch.number, columns, layout.bytes, bytes_received);
        Ok(Reply { bytes_needed, compute_us: header.micros, share: Some(share), ..reply })
    }
}

/// Makes room for more of a body of `length` bytes: as much again as has come, since what a head promises is not there yet.
fn grow(received: &mut BytesMut, length: usize) {
    let missing = length.saturating_sub(received.len());
    if received.capacity() - received.len() < missing.min(READ_BYTES) {
        let mut larger = BytesMut::with_capacity(received.len() + missing.min(received.len().max(LONG_READ_BYTES)));
        larger.extend_from_slice(received);
        *received = larger;
    }
}

/// The segment of the calls: the arena, or the pair's own.
fn place_of_calls<'s>(arena: Option<&'s Arena>, pair: &'s Segments) -> &'s Segment {
    arena.and_then(Arena::segment).unwrap_or(&pair.calls)
}

/// What the reply in a segment reaches to.
fn size_of_reply(segments: &Segments, header: &ReplyHeader) -> std::result::Result<usize, String> {
    let size = header.extent().filter(|size| *size <= MAX_MESSAGE_BYTES).ok_or("it is larger than 1 GiB")?;
    let is_there = segments.replies.file.metadata().is_ok_and(|file| file.len() >= size as u64);
    if is_there { Ok(size) } else { Err("its segment is too short".to_string()) }
}

/// What a server says of its answer.
struct Head {
    /// Its own bytes.
    size: usize,
    /// Those of the body.
    length: usize,
    status: StatusCode,
    is_columns: bool,
    /// How long it wants not to be asked again.
    retry_after: Option<Duration>,
    /// Whether the server closes the connection behind it.
    is_last: bool,
    /// The field with lines that the handler wrote, if they are wanted.
    lines: Option<Vec<u8>>,
}

/// What is being sent.
#[derive(Default)]
struct Sending {
    pieces: VecDeque<Bytes>,
    /// Whether the connection may hold something of what was written: TLS takes more than it gets rid of.
    is_held: bool,
}

impl Sending {
    fn is_done(&self) -> bool {
        self.pieces.is_empty() && !self.is_held
    }
}

/// Writes of the first piece what the connection takes now, and behind the last one what it holds. Cancel-safe.
async fn write_some(writer: &mut WriteHalf<Stream>, sending: &mut Sending) -> std::io::Result<()> {
    if let Some(first) = sending.pieces.front_mut() {
        sending.is_held = true;
        if writer.write_buf(first).await? == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        if !first.has_remaining() {
            sending.pieces.pop_front();
        }
    }
    if sending.pieces.is_empty() {
        writer.flush().await?;
        sending.is_held = false;
    }
    Ok(())
}
