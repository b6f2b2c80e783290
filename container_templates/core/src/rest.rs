//! HTTP's requests: the JSON form, `docs/protocol.md` §6, and columns in memory, §7.

use std::convert::Infallible;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::ArrayRef;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use udf_codec::lines::{LINES, Lines, WANTED};
use udf_codec::wire::COLUMNS;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::FunctionKind;

use crate::bodies::{is_packed, packed, takes_gzip, unpacked};
use crate::columns::{self, Kept, Offer};
use crate::container::Container;
use crate::dialects;
use crate::error::{CallError, guarded};
use crate::function::Function;
use crate::given;
use crate::json::{self as json_form, BatchAnswer, BatchOfCalls};
use crate::lines::collecting;
use crate::stream::has_hung_up;
use crate::tables::{self, Given, giving};
use crate::waits::may_run_here;
use udf_codec::wire::TABLES;

const FUNCTIONS: &str = "/v1/functions/";
const EXCHANGES: &str = "/v1/exchanges/";
/// What clients of MLflow look at.
const HEALTH: [&str; 2] = ["/ping", "/health"];
const JSON: &str = "application/json";
/// A call that takes longer lets another thread answer connections.
const LONG: Duration = Duration::from_micros(500);

/// Calls of at most so many rows, in a body of at most so many bytes, are read and answered on a thread that pulls. With more of either, the
/// library's own threads read and write meanwhile.
const MOST_PULLED_ROWS: usize = 1024;
const MOST_PULLED_BYTES: usize = 64 << 10;

/// The connection of a client.
pub(crate) struct Client {
    pub(crate) socket: Arc<File>,
    /// Whether a thread that pulls could have answered its last call.
    is_pulled: AtomicBool,
    /// The constants that its last request with constants brought.
    kept: Mutex<Kept>,
    /// Whether its calls are refused, since there are as many connections as the server can take.
    is_refused: bool,
}

impl Client {
    pub(crate) fn new(socket: Arc<File>, is_refused: bool) -> Client {
        Client { socket, is_pulled: AtomicBool::new(false), kept: Mutex::default(), is_refused }
    }

    pub(crate) fn is_pulled(&self) -> bool {
        self.is_pulled.load(Ordering::Relaxed)
    }
}

/// A reply's content type and body.
type Body = (&'static str, Vec<u8>);

/// A batch of calls, and what the client offers for the reply if it sends columns.
struct Asked {
    call: BatchOfCalls,
    offer: Option<Offer>,
}

impl Asked {
    fn read(function: &Function, client: &Client, body: &[u8], is_columns: bool) -> Result<Asked, CallError> {
        if !is_columns {
            return Ok(Asked { call: json_form::read(function, body)?, offer: None });
        }
        let mut kept = client.kept.lock().map_err(|_| CallError::violation("the connection has failed"))?;
        let (call, offer) = columns::read(function, body, &mut kept)?;
        Ok(Asked { call, offer: Some(offer) })
    }

    /// Whether a scalar or table function's reply may have dictionaries. The parts of a table function's have dictionaries of their own.
    fn may_encode(&self, function: &Function) -> bool {
        let may_encode = self.offer.as_ref().is_some_and(|offer| offer.may_encode);
        may_encode && function.signature().kind == FunctionKind::Scalar
    }

    fn write(&self, function: &Function, answer: BatchAnswer) -> Result<Body, CallError> {
        match &self.offer {
            Some(offer) => Ok((COLUMNS, columns::write(function, &self.call, answer, offer)?)),
            None => Ok((JSON, json_form::write(function, &self.call, &answer).into_bytes())),
        }
    }
}

/// Answers one request.
pub(crate) async fn respond(
    container: Arc<Container>,
    take_time: impl Fn(),
    request: Request<Incoming>,
    client: Arc<Client>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let takes_gzip = takes_gzip(request.headers());
    let mut lines = Lines::default();
    let (status, (content_type, body)) = match answer(&container, take_time, request, &client, &mut lines).await {
        Ok(answered) => answered,
        Err(error) => {
            let status = match error.kind {
                "function_not_found" => StatusCode::NOT_FOUND,
                "protocol_violation" => StatusCode::BAD_REQUEST,
                "busy" => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, (JSON, json!({ "error": error }).to_string().into_bytes()))
        }
    };
    let (body, is_packed) = if takes_gzip { packed(body) } else { (body, false) };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    if is_packed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        // The client may have sent more already.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(field) = lines.into_field().and_then(|field| HeaderValue::try_from(field).ok()) {
        response.headers_mut().insert(LINES, field);
    }
    Ok(response)
}

async fn answer(
    container: &Container,
    take_time: impl Fn(),
    request: Request<Incoming>,
    client: &Client,
    lines: &mut Lines,
) -> Result<(StatusCode, Body), CallError> {
    let path = decode_path(request.uri().path());
    let method = request.method().clone();
    if method == Method::POST && client.is_refused {
        // A client that is still sending would find the connection closed, and not read why.
        discard(request.into_body()).await;
        return Err(CallError::new("busy", "the server has as many connections as it can take"));
    }
    if method == Method::GET && path == "/v1" {
        return Ok((StatusCode::OK, (JSON, container.greeting.clone().into_bytes())));
    }
    if let (&Method::DELETE, Some(name)) = (&method, path.strip_prefix(EXCHANGES)) {
        container.exchanges.end(name);
        return Ok((StatusCode::OK, (JSON, b"{}".to_vec())));
    }
    if method == Method::GET && HEALTH.contains(&path.as_str()) {
        return Ok((StatusCode::OK, (JSON, b"{}".to_vec())));
    }
    let wants_lines = request.headers().get(LINES).is_some_and(|value| value == WANTED);
    let is_columns = request.headers().get(CONTENT_TYPE).is_some_and(|value| value == COLUMNS);
    let (head, body) = request.into_parts();
    if body.size_hint().upper().is_none_or(|bytes| bytes > MOST_PULLED_BYTES as u64) {
        // As long as bytes come, whoever reads them does nothing else.
        client.is_pulled.store(false, Ordering::Relaxed);
        if given::is_here() {
            may_run_here().await;
        }
    }
    let body = Limited::new(body, MAX_MESSAGE_BYTES).collect().await;
    let body = body.map_err(|cause| CallError::violation(format!("the request cannot be read: {cause}")))?.to_bytes();
    let unpacked = if method == Method::POST && is_packed(&head.headers) {
        // A digest of a large body takes as long as a call, and so does what a small one unpacks to.
        may_run_here().await;
        take_time();
        Some(unpacked(&head.headers, body.clone())?)
    } else {
        None
    };
    let body = unpacked.as_ref().map_or(&body, |unpacked| &unpacked.bytes);
    let is_cancelled = || has_hung_up(&client.socket);
    if method == Method::POST && !path.starts_with(FUNCTIONS) {
        may_run_here().await;
        let answered = dialects::answer(container, &take_time, &path, &head.headers, body, &is_cancelled);
        if let Some((status, text)) = answered {
            return Ok((status, (JSON, text.into_bytes())));
        }
    }
    let name = path.strip_prefix(FUNCTIONS).unwrap_or(&path).to_string();
    let function = container.find(&name)?;
    if method == Method::GET {
        return Ok((StatusCode::OK, (JSON, describe(function).into_bytes())));
    }
    let is_pulled = function.is_pulled() && unpacked.is_none() && body.len() <= MOST_PULLED_BYTES;
    let is_here = is_pulled && given::is_here();
    if !is_here {
        may_run_here().await;
        if function.takes_long() {
            take_time();
        }
    }
    let start = Instant::now();
    let tables = Given::of(head.headers.get(TABLES).map(|value| value.to_str().unwrap_or_default()));
    let asked = guarded(|| {
        giving(tables.clone(), tables::check)?;
        Asked::read(function, client, body, is_columns)
    })?;
    let (call, may_encode) = (&asked.call, asked.may_encode(function));
    let is_pulled = is_pulled && call.arrived.others.num_rows() <= MOST_PULLED_ROWS;
    client.is_pulled.store(is_pulled, Ordering::Relaxed);
    if is_here {
        let work = || guarded(|| function.work(&call.arrived, call.row_errors));
        let (work, _) = giving(tables.clone(), || collecting(wants_lines, work));
        if let Some(work) = work? {
            let reply = given::reply_to(&work).await;
            let answering = || {
                work.hand_lines_over();
                let parts = vec![function.reply_to(&work, reply, may_encode)?];
                asked.write(function, BatchAnswer { parts, micros: micros_since(start) })
            };
            let (answered, written) = collecting(wants_lines, || guarded(answering));
            *lines = written;
            function.note_long(start.elapsed() > LONG);
            return answered.map(|body| (StatusCode::OK, body));
        }
        client.is_pulled.store(false, Ordering::Relaxed);
        may_run_here().await;
    }
    let answering = || asked.write(function, compute(container, function, call, may_encode, &is_cancelled)?);
    let (answered, written) = giving(tables, || collecting(wants_lines, || guarded(answering)));
    *lines = written;
    function.note_long(start.elapsed() > LONG);
    answered.map(|body| (StatusCode::OK, body))
}

/// Reads a body of at most a call's size, and keeps nothing of it.
async fn discard(body: Incoming) {
    let mut body = Limited::new(body, MAX_MESSAGE_BYTES);
    while let Some(Ok(_)) = body.frame().await {}
}

fn describe(function: &Function) -> String {
    let signature = function.signature();
    let arguments = signature.arguments.iter().enumerate().map(|(position, argument)| {
        let name = if argument.name.is_empty() { format!("arg{}", position + 1) } else { argument.name.clone() };
        json!({"name": name, "type": argument.ty.to_string()})
    });
    let arguments: Vec<Value> = arguments.collect();
    json!({"name": function.name(), "kind": signature.kind, "arguments": arguments, "returns": signature.result.to_string()})
        .to_string()
}

fn compute(
    container: &Container,
    function: &Function,
    call: &BatchOfCalls,
    may_encode: bool,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<BatchAnswer, CallError> {
    let start = Instant::now();
    let mut parts: Vec<Vec<ArrayRef>> = Vec::new();
    if function.signature().kind == FunctionKind::Aggregate {
        function.check(&call.arrived, call.row_errors)?;
        let exchange = container.exchanges.find(function, &call.exchange, call.number)?;
        parts.push(exchange.take_step(&call.step, &call.arrived.others, is_cancelled)?);
    } else {
        function.answer(&call.arrived, call.row_errors, may_encode, is_cancelled, &mut |columns, _| {
            parts.push(columns);
            Ok(())
        })?;
    }
    Ok(BatchAnswer { parts, micros: micros_since(start) })
}

fn micros_since(start: Instant) -> u64 {
    start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
}

/// Percent-encoded bytes as they are; what is no UTF-8 names no function.
fn decode_path(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
