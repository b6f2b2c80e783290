//! The Flight form, `docs/protocol.md` §2 to §5.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::{Field, Schema, SchemaRef};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};
use udf_codec::arrow_ipc::{BatchEncoder, encode_schema};
use udf_codec::call_decoder::{CallDecoder, DecodedCalls};
use udf_codec::client_layout::ClientLayout;
use udf_codec::constants::Constants;
use udf_codec::lines::{LINES, WANTED};
use udf_codec::unreadable::Unreadable;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{FunctionKind, ROW_ERRORS_KEY, RowErrors};

use crate::batches::Batches;
use crate::container::Container;
use crate::databend;
use crate::error::CallError;
use crate::exchanges::take_step;
use crate::function::{Arrived, Function};
use crate::handler::Groups;
use crate::lines::{self, collecting};
use crate::results::{Results, wait_for};
use crate::tables::{self, Given, giving};
use udf_codec::wire::TABLES;

/// Replies that may wait for the client.
const REPLIES_AHEAD: usize = 2;

/// Bytes of an error that a status has beside its metadata: a status is a header, and they are bounded.
const MOST_IN_STATUS: usize = 1000;

/// Answers Flight.
pub(crate) struct Flight(pub(crate) Arc<Container>);

type Sender = mpsc::Sender<Result<FlightData, Status>>;

/// `app_metadata` of a batch of calls.
#[derive(Debug, Default, Deserialize)]
struct CallMetadata {
    batch: Option<u64>,
    #[serde(default)]
    step: String,
}

fn name_of(descriptor: Option<&FlightDescriptor>) -> &str {
    descriptor.and_then(|descriptor| descriptor.path.first()).map(String::as_str).unwrap_or_default()
}

fn describe(function: &Function, is_databend: bool) -> Result<FlightInfo, Status> {
    let signature = function.signature();
    let mut fields: Vec<_> = signature.arguments.iter().map(|argument| argument.ty.field(&argument.name)).collect();
    let mut metadata = HashMap::from([databend::input_count(signature)]);
    if is_databend {
        fields = databend::fields(signature);
    } else if matches!(signature.kind, FunctionKind::Aggregate | FunctionKind::Map) {
        fields.push(signature.result.field(function.name()));
        metadata.insert("transship.kind".to_string(), signature.kind.name().to_string());
    } else {
        fields.extend(function.reply_schema(None).fields().iter().map(|field| field.as_ref().clone()));
    }
    let info = FlightInfo::new()
        .try_with_schema(&Schema::new(fields).with_metadata(metadata))
        .map_err(|cause| Status::internal(cause.to_string()))?;
    let descriptor = FlightDescriptor::new_path(vec![function.name().to_string()]);
    Ok(info.with_descriptor(descriptor).with_total_records(signature.arguments.len() as i64))
}

#[tonic::async_trait]
impl FlightService for Flight {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let body = match request.get_ref().r#type.as_str() {
            "transship.hello" => Bytes::from(self.0.greeting.clone()),
            "protocol_version" => Bytes::from_static(&[2]),
            other => return Err(Status::unimplemented(format!("unrecognized action {other}"))),
        };
        let result = arrow_flight::Result { body };
        Ok(Response::new(futures_util::stream::iter([Ok(result)]).boxed()))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let actions = [("transship.hello", "Who answers."), ("protocol_version", "The arrow-udf version.")];
        let actions = actions.map(|(name, text)| Ok(ActionType { r#type: name.into(), description: text.into() }));
        Ok(Response::new(futures_util::stream::iter(actions).boxed()))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let function =
            self.0.find(name_of(Some(request.get_ref()))).map_err(|error| Status::not_found(error.message))?;
        Ok(Response::new(describe(function, is_from_databend(request.metadata()))?))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let infos: Vec<_> = self.0.functions.iter().map(|function| describe(function, false)).collect();
        Ok(Response::new(futures_util::stream::iter(infos).boxed()))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (sender, receiver) = mpsc::channel(REPLIES_AHEAD);
        let container = self.0.clone();
        let wants_lines = request.metadata().get(LINES).is_some_and(|value| value == WANTED);
        let tables = Given::of(request.metadata().get(TABLES).map(|value| value.to_str().unwrap_or_default()));
        let asked = Asked { wants_lines, is_databend: is_from_databend(request.metadata()), tables };
        tokio::spawn(async move {
            let calls = request.into_inner();
            if let Err(status) = run_exchange(container, calls, asked, &sender).await {
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(Status::unimplemented("handshake"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("poll_flight_info"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(Status::unimplemented("get_schema"))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::unimplemented("do_get"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(Status::unimplemented("do_put"))
    }
}

/// What the headers of an exchange say.
struct Asked {
    wants_lines: bool,
    is_databend: bool,
    tables: Given,
}

fn is_from_databend(headers: &MetadataMap) -> bool {
    databend::has_header(headers.as_ref().keys().map(|name| name.as_str()))
}

/// Answers batch after batch. A failed call ends the exchange, and its error is the status as well: Arrow's C++ clients drop replies that
/// they have not read yet once they cannot send, but not the status.
async fn run_exchange(
    container: Arc<Container>,
    mut calls: Streaming<FlightData>,
    Asked { wants_lines, is_databend, tables }: Asked,
    sender: &Sender,
) -> Result<(), Status> {
    let malformed = |cause: &dyn std::fmt::Display| Status::invalid_argument(cause.to_string());
    let Some(mut opening) = calls.message().await? else { return Ok(()) };
    let name = name_of(opening.flight_descriptor.as_ref()).to_string();
    // Arrow's C++ clients send the descriptor before they know the schema.
    if opening.data_header.is_empty() {
        let Some(message) = calls.message().await? else { return Ok(()) };
        opening = message;
    }
    let mut decoder = CallDecoder::new(&opening).map_err(|cause| malformed(&cause))?;
    let row_errors = match decoder.schema().metadata().get(ROW_ERRORS_KEY) {
        None => Ok(None),
        Some(text) if text == RowErrors::Once.name() => Ok(Some(RowErrors::Once)),
        Some(text) if text == RowErrors::Again.name() => Ok(Some(RowErrors::Again)),
        Some(text) => Err(CallError::violation(format!("errors of rows are once or again, not {text:?}"))),
    };
    let is_databend = is_databend || databend::has_variant(decoder.schema());
    let mut form = ClientForm { layout: ClientLayout::of(decoder.schema()), is_databend: false };
    let mut groups = None;
    if let Ok(function) = container.find(&name) {
        groups = function.groups().ok();
        // Databend knows neither steps nor errors of rows.
        form.is_databend = is_databend && groups.is_none() && matches!(row_errors, Ok(None));
        // The receiver is gone if the client is. What is refused has a reply of the ordinary schema, before the error.
        let schema = form.reply_schema(function, row_errors.clone().unwrap_or(None).filter(|_| is_scalar(function)));
        let _ = sender.send(Ok(encode_schema(&schema))).await;
    }
    if container.find(&name).is_ok_and(|function| function.signature().kind == FunctionKind::Map) {
        let stream = Stream { container, name, form, row_errors, tables, sender: sender.clone() };
        return run_stream(stream, decoder, calls).await;
    }
    let groups = Arc::new(Mutex::new(groups));
    let mut number = 0;
    while let Some(message) = calls.message().await? {
        let Some(decoded) = decoder.read(&message, MAX_MESSAGE_BYTES).map_err(refused)? else { continue };
        let metadata = metadata_of(&message)?;
        let is_foreign = message.app_metadata.is_empty();
        number = metadata.batch.unwrap_or(number);
        let (name, sender, groups) = (name.clone(), sender.clone(), groups.clone());
        let (container, row_errors, tables) = (container.clone(), row_errors.clone(), tables.clone());
        // The handler may compute or wait for as long as it likes: on a thread of its own.
        let answered = tokio::task::spawn_blocking(move || {
            let mut groups = groups.lock().expect("no holder panics");
            let exchange = Exchange { container: &container, name: &name, form, row_errors, sender: &sender };
            let answering = || exchange.answer(decoded, number, &metadata.step, &mut groups);
            let (answer, lines) = giving(tables, || collecting(wants_lines, answering));
            answer.map_err(|error| {
                if is_foreign {
                    return status_of(&error);
                }
                let _ = sender.blocking_send(Ok(told(&error, number, lines.into_texts())));
                short_status_of(error)
            })
        });
        answered.await.map_err(|cause| Status::internal(cause.to_string()))??;
        number += 1;
    }
    // There was no batch to answer with the error.
    match container.find(&name) {
        Err(error) if number == 0 => Err(status_of(&error)),
        _ => Ok(()),
    }
}

fn add_lines(metadata: &mut Value, lines: Vec<String>) {
    if !lines.is_empty() {
        metadata["lines"] = json!(lines);
    }
}

/// A stream of a map function.
struct Stream {
    container: Arc<Container>,
    name: String,
    form: ClientForm,
    row_errors: Result<Option<RowErrors>, CallError>,
    tables: Given,
    sender: Sender,
}

/// What ends the reading of a stream before its end.
enum Broken {
    Connection(Status),
    Call(CallError),
}

/// Answers a stream with parts, while batches arrive. A client that has sent all of its batches gets the rest of the parts, and a
/// handler that wants no more of them does not keep the client from sending.
async fn run_stream(stream: Stream, mut decoder: CallDecoder, mut calls: Streaming<FlightData>) -> Result<(), Status> {
    let (stream, batches) = (Arc::new(stream), Arc::new(Batches::default()));
    // A handler that waits for a batch does not hold up the end of the server.
    let _guard = EndOnDrop(batches.clone());
    let (number, is_foreign) = (AtomicU64::new(0), AtomicBool::new(false));
    let reading = async {
        let mut read = async || -> Result<(), Broken> {
            while let Some(message) = calls.message().await.map_err(Broken::Connection)? {
                let decoded = decoder.read(&message, MAX_MESSAGE_BYTES);
                let Some(decoded) = decoded.map_err(|cause| Broken::Connection(refused(cause)))? else { continue };
                let metadata = metadata_of(&message).map_err(Broken::Connection)?;
                is_foreign.store(message.app_metadata.is_empty(), Ordering::Relaxed);
                number.store(metadata.batch.unwrap_or_default(), Ordering::Relaxed);
                batches.give(stream.read(decoded).map_err(Broken::Call)?).await;
            }
            // A client that goes away may close its side first.
            let is_gone = stream.sender.is_closed();
            if is_gone { Err(Broken::Call(CallError::user_code("cancelled"))) } else { Ok(()) }
        };
        let read = read().await;
        batches.end(match &read {
            Ok(()) => Ok(()),
            Err(Broken::Call(error)) => Err(error.clone()),
            Err(Broken::Connection(_)) => Err(CallError::user_code("cancelled")),
        });
        read
    };
    let (answering, taken) = (stream.clone(), batches.clone());
    // The handler may compute or wait for as long as it likes: on a thread of its own.
    let mut answered = tokio::task::spawn_blocking(move || {
        let answered = giving(answering.tables.clone(), || answering.answer(&taken));
        taken.abandon();
        answered
    });
    tokio::pin!(reading);
    let (mut read, mut is_gone) = (None, false);
    let answered = loop {
        tokio::select! {
            done = &mut reading, if read.is_none() => read = Some(done),
            // It is told at once, before rows that have arrived.
            () = stream.sender.closed(), if read.is_none() && !is_gone => {
                is_gone = true;
                batches.end(Err(CallError::user_code("cancelled")));
            }
            done = &mut answered => break done.map_err(|cause| Status::internal(cause.to_string()))?,
        }
    };
    if read.is_none() && answered.is_ok() {
        read = Some(reading.await);
    }
    let error = match (read, answered) {
        (Some(Err(Broken::Connection(status))), _) => return Err(status),
        (Some(Err(Broken::Call(error))), _) | (_, Err(error)) => error,
        (_, Ok(())) => return Ok(()),
    };
    let (number, is_foreign) = (number.load(Ordering::Relaxed), is_foreign.load(Ordering::Relaxed));
    if is_foreign {
        return Err(status_of(&error));
    }
    let _ = stream.sender.send(Ok(told(&error, number, Vec::new()))).await;
    Err(short_status_of(error))
}

/// Ends the batches of a stream that nobody reads any more.
struct EndOnDrop(Arc<Batches>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(Err(CallError::user_code("cancelled")));
    }
}

impl Stream {
    /// A batch that has arrived, checked.
    fn read(&self, decoded: DecodedCalls) -> Result<RecordBatch, CallError> {
        let row_errors = self.row_errors.clone()?;
        let function = self.container.find(&self.name)?;
        let arrived = self.form.read(decoded, function)?;
        function.check(&arrived, row_errors)?;
        Ok(arrived.others)
    }

    fn answer(self: &Arc<Self>, batches: &Arc<Batches>) -> Result<(), CallError> {
        let function = self.container.find(&self.name)?;
        tables::check()?;
        let (stream, mut encoder) = (self.clone(), BatchEncoder::default());
        let results = Arc::new(Results::new(move |results| {
            if results.is_empty() {
                return Ok(());
            }
            let function = stream.container.find(&stream.name)?;
            let message = stream.form.encode(&mut encoder, function, function.part(results)?, None)?;
            // Nobody waits for the rest if the client has gone.
            let sent = wait_for(stream.sender.send(Ok(message.with_app_metadata("{}"))));
            sent.map_err(|_| CallError::user_code("cancelled"))
        }));
        let answered = function.map(batches, &|| self.sender.is_closed(), &results);
        results.end();
        answered
    }
}

/// An error as clients know it that send metadata.
fn told(error: &CallError, number: u64, lines: Vec<String>) -> FlightData {
    let mut metadata = json!({"batch": number, "error": error});
    add_lines(&mut metadata, lines);
    FlightData::new().with_app_metadata(metadata.to_string())
}

fn metadata_of(message: &FlightData) -> Result<CallMetadata, Status> {
    match message.app_metadata.is_empty() {
        true => Ok(CallMetadata::default()),
        false => {
            serde_json::from_slice(&message.app_metadata).map_err(|cause| Status::invalid_argument(cause.to_string()))
        }
    }
}

/// In which form a client sends calls and takes replies.
#[derive(Clone, Copy)]
struct ClientForm {
    layout: ClientLayout,
    is_databend: bool,
}

impl ClientForm {
    fn reply_schema(self, function: &Function, row_errors: Option<RowErrors>) -> SchemaRef {
        self.layout.schema(&match self.is_databend {
            true => databend::reply_schema(function.signature()),
            false => function.reply_schema(row_errors),
        })
    }

    /// Calls in the protocol's own layout and types.
    fn read(self, decoded: DecodedCalls, function: &Function) -> Result<Arrived, CallError> {
        let unreadable = |unreadable: Unreadable| {
            let fact = words_of(unreadable);
            CallError::violation(format!("the arguments of {} cannot be read: {fact}", function.name()))
        };
        let others = self.layout.read(decoded.others, MAX_MESSAGE_BYTES).map_err(unreadable)?;
        let mut constants = Vec::new();
        for (position, value) in decoded.constants.positions().into_iter().zip(decoded.constants.values()) {
            let field = Field::new("", value.data_type().clone(), true);
            let one = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![value.clone()]);
            let one = one.map_err(|cause| unreadable(Unreadable::Misfit(cause.to_string())))?;
            let one = self.layout.read(one, MAX_MESSAGE_BYTES).map_err(unreadable)?;
            constants.push((position, one.column(0).clone()));
        }
        let arrived = Arrived { others, constants: Constants::new(constants) };
        match self.is_databend {
            true => databend::arguments(function.signature(), arrived).map_err(unreadable),
            false => Ok(arrived),
        }
    }

    /// A reply's columns as a message.
    fn encode(
        self,
        encoder: &mut BatchEncoder,
        function: &Function,
        columns: Vec<ArrayRef>,
        row_errors: Option<RowErrors>,
    ) -> Result<FlightData, CallError> {
        let unwritable = |fact: String| CallError::bad_result(format!("Its reply cannot be encoded: {fact}"));
        let mut reply = function.reply(columns, row_errors)?;
        if self.is_databend {
            reply = databend::reply(function.signature(), &reply).map_err(|cause| unwritable(words_of(cause)))?;
        }
        let reply = self.layout.write(reply).map_err(unwritable)?;
        encoder.encode(&reply).map_err(|cause| unwritable(format!("{cause}.")))
    }
}

fn is_scalar(function: &Function) -> bool {
    function.signature().kind == FunctionKind::Scalar
}

fn refused(unreadable: Unreadable) -> Status {
    Status::invalid_argument(words_of(unreadable))
}

fn words_of(unreadable: Unreadable) -> String {
    match unreadable {
        Unreadable::Misfit(fact) => fact,
        Unreadable::TooLarge => "They are larger than 1 GiB.".to_string(),
    }
}

/// The error as clients know it that send no metadata, such as RisingWave's.
fn status_of(error: &CallError) -> Status {
    match error.kind {
        "function_not_found" => Status::not_found(&error.message),
        "protocol_violation" => Status::invalid_argument(&error.message),
        _ => Status::unknown(&error.message),
    }
}

/// The error as a status beside its metadata.
fn short_status_of(mut error: CallError) -> Status {
    error.message.truncate(error.message.floor_char_boundary(MOST_IN_STATUS));
    status_of(&error)
}

/// What the batches of an exchange have in common.
struct Exchange<'a> {
    container: &'a Container,
    name: &'a str,
    form: ClientForm,
    row_errors: Result<Option<RowErrors>, CallError>,
    sender: &'a Sender,
}

impl Exchange<'_> {
    fn answer(
        &self,
        decoded: DecodedCalls,
        number: u64,
        step: &str,
        groups: &mut Option<Box<dyn Groups>>,
    ) -> Result<(), CallError> {
        let function = self.container.find(self.name)?;
        tables::check()?;
        let row_errors = self.row_errors.clone()?;
        let arrived = self.form.read(decoded, function)?;
        let mut encoder = BatchEncoder::default();
        let mut start = Instant::now();
        let mut emit = |columns: Vec<ArrayRef>, is_last: bool| {
            let micros = start.elapsed().as_micros() as u64;
            let mut metadata = json!({"batch": number, "micros": micros});
            if !is_last {
                metadata["more"] = json!(true);
            }
            add_lines(&mut metadata, lines::take());
            let message = self.form.encode(&mut encoder, function, columns, row_errors)?;
            let _ = self.sender.blocking_send(Ok(message.with_app_metadata(metadata.to_string())));
            start = Instant::now();
            Ok(())
        };
        let is_cancelled = || self.sender.is_closed();
        match groups {
            Some(groups) => {
                function.check(&arrived, row_errors)?;
                emit(take_step(&mut **groups, step, &arrived.others, &is_cancelled)?, true)
            }
            None => function.answer(&arrived, row_errors, false, &is_cancelled, &mut emit),
        }
    }
}
