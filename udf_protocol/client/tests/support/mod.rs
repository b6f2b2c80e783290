//! The mock container: a Flight server that plays a script, so that a test reads as a dialogue.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use arrow_array::{Int32Array, Int64Array, RecordBatch};
use arrow_flight::decode::FlightDataDecoder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use udf_codec::arrow_ipc::{BatchEncoder, decode_batch, decode_schema, encode_schema};
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;

/// What a script answers with.
pub type Answers = mpsc::UnboundedSender<Result<FlightData, Status>>;
/// Plays one exchange.
pub type Script = Arc<dyn Fn(Calls, Answers) -> BoxFuture<'static, ()> + Send + Sync>;

/// What a client does with a server; all but the first with one that is called by put, act and get.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Exchange,
    Put,
    Score,
    Get,
}

/// The calls of one exchange, as the server sees them.
pub struct Calls {
    pub verb: Verb,
    pub descriptor: Option<FlightDescriptor>,
    /// The header `authorization`.
    pub authorization: Option<String>,
    schema: Option<arrow_schema::SchemaRef>,
    /// None where results are asked for without calls.
    stream: Option<Streaming<FlightData>>,
}

impl Calls {
    fn new(verb: Verb, stream: Option<Streaming<FlightData>>) -> Calls {
        Calls { verb, descriptor: None, authorization: None, schema: None, stream }
    }

    /// What the metadata of the calls' schema has under a key.
    pub fn asks_for(&self, key: &str) -> Option<String> {
        self.schema.as_ref()?.metadata().get(key).cloned()
    }

    /// The schema and the batches; `look` sees each message before it is decoded.
    pub fn into_decoder(self, mut look: impl FnMut(&FlightData) + Send + 'static) -> FlightDataDecoder {
        let stream = self.stream.expect("there are calls").map_err(FlightError::from);
        FlightDataDecoder::new(stream.inspect_ok(move |message| look(message)))
    }

    /// The next batch and its metadata; none once the client has closed its side or is gone.
    pub async fn next(&mut self) -> Option<(RecordBatch, String)> {
        loop {
            let message = self.stream.as_mut()?.message().await.ok()??;
            let Some(schema) = &self.schema else {
                self.descriptor = message.flight_descriptor.clone();
                self.schema = Some(decode_schema(&message).unwrap());
                continue;
            };
            let batch = decode_batch(&message, schema.clone()).unwrap();
            return Some((batch, String::from_utf8(message.app_metadata.to_vec()).unwrap()));
        }
    }
}

/// The schema message of a reply.
pub fn schema_of(signature: &Signature) -> FlightData {
    encode_schema(&arrow_schema::Schema::new(reply_fields(signature)))
}

fn reply_fields(signature: &Signature) -> Vec<arrow_schema::Field> {
    signature.reply_types().iter().map(|ty| ty.field("result")).collect()
}

/// A reply of a table function, of row numbers and int8 values, with metadata.
pub fn table_reply(signature: &Signature, rows: Vec<i32>, values: Vec<i64>, metadata: &str) -> FlightData {
    let schema = Arc::new(arrow_schema::Schema::new(reply_fields(signature)));
    let columns: Vec<arrow_array::ArrayRef> =
        vec![Arc::new(Int32Array::from(rows)), Arc::new(Int64Array::from(values))];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    BatchEncoder::default().encode(&batch).unwrap().with_app_metadata(metadata.to_string())
}

/// A reply of int8 values with metadata.
pub fn reply(signature: &Signature, values: Vec<Option<i64>>, metadata: &str) -> FlightData {
    let schema = Arc::new(arrow_schema::Schema::new(vec![signature.result.field("result")]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values))]).unwrap();
    BatchEncoder::default().encode(&batch).unwrap().with_app_metadata(metadata.to_string())
}

/// What the mock says of itself.
#[derive(Clone)]
pub struct MockContainer {
    /// The answer to `transship.hello`; none as a server of the arrow-udf family.
    pub hello: Option<String>,
    /// The only function.
    pub signature: Signature,
    pub script: Script,
}

impl MockContainer {
    /// Serves on a free TCP port until the runtime ends, and gives host and port.
    pub async fn start_tcp(self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let accepted = tokio_stream::wrappers::TcpListenerStream::new(listener)
            .map(|accepted| accepted.and_then(|socket| socket.set_nodelay(true).map(|()| socket)));
        let server = tonic::transport::Server::builder()
            .add_service(FlightServiceServer::new(self))
            .serve_with_incoming(accepted);
        tokio::spawn(server);
        authority
    }

    /// Plays a call to its end, also if the client is gone, and answers with nothing or an error.
    async fn play<T: Send + 'static>(&self, calls: Calls) -> Result<Response<BoxStream<T>>, Status> {
        let (answers, mut answered) = mpsc::unbounded_channel();
        tokio::spawn((self.script)(calls, answers));
        while let Some(answer) = answered.recv().await {
            answer?;
        }
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    /// Serves on a Unix socket in `folder` until the runtime ends.
    pub fn start(self, folder: &std::path::Path) -> PathBuf {
        self.start_within(folder, None)
    }

    /// The same, taking so many bytes of a stream before it reads them; none for the default.
    pub fn start_within(self, folder: &std::path::Path, window: Option<u32>) -> PathBuf {
        let path = folder.join("flight.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(window)
            .add_service(FlightServiceServer::new(self))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        path
    }
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl FlightService for MockContainer {
    type HandshakeStream = BoxStream<HandshakeResponse>;
    type ListFlightsStream = BoxStream<FlightInfo>;
    type DoGetStream = BoxStream<FlightData>;
    type DoPutStream = BoxStream<PutResult>;
    type DoActionStream = BoxStream<arrow_flight::Result>;
    type ListActionsStream = BoxStream<ActionType>;
    type DoExchangeStream = BoxStream<FlightData>;

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (answers, stream) = mpsc::unbounded_channel();
        let authorization = request.metadata().get("authorization");
        let authorization = authorization.and_then(|value| value.to_str().ok()).map(str::to_string);
        let calls = Calls { authorization, ..Calls::new(Verb::Exchange, Some(request.into_inner())) };
        tokio::spawn((self.script)(calls, answers));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        match (&self.hello, request.into_inner().r#type.as_str()) {
            (Some(hello), "transship.hello") => {
                let result = arrow_flight::Result { body: hello.clone().into() };
                Ok(Response::new(Box::pin(tokio_stream::once(Ok(result)))))
            }
            (_, "protocol_version") => {
                let result = arrow_flight::Result { body: vec![2].into() };
                Ok(Response::new(Box::pin(tokio_stream::once(Ok(result)))))
            }
            (_, "score") => self.play(Calls::new(Verb::Score, None)).await,
            _ => Err(Status::unimplemented("unrecognized action")),
        }
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        if request.into_inner().path != [self.signature.function.as_str()] {
            return Err(Status::not_found("no such function"));
        }
        let mut fields: Vec<_> =
            self.signature.call_schema().fields().iter().map(|field| field.as_ref().clone()).collect();
        if self.signature.kind == FunctionKind::Table {
            fields.push(Type::Int4.field("row"));
        }
        fields.push(self.signature.result.field("result"));
        let info = FlightInfo::new()
            .try_with_schema(&arrow_schema::Schema::new(fields))
            .unwrap()
            .with_total_records(self.signature.arguments.len() as i64);
        Ok(Response::new(info))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(Status::unimplemented("handshake"))
    }
    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(Status::unimplemented("list_flights"))
    }
    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("poll_flight_info"))
    }
    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(Status::unimplemented("get_schema"))
    }
    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let (answers, stream) = mpsc::unbounded_channel();
        tokio::spawn((self.script)(Calls::new(Verb::Get, None), answers));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }
    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        self.play(Calls::new(Verb::Put, Some(request.into_inner()))).await
    }
    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Err(Status::unimplemented("list_actions"))
    }
}
