//! HTTP: the JSON form, `docs/protocol.md` §6, and columns in memory, §7.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;
use serde_json::{Value, json};
use udf_codec::json::{decode_column, encode_column};
use udf_codec::json_text::{Json, value_of};
use udf_types::signature::FunctionKind;
use udf_codec::wire::COLUMNS;

use crate::columns;
use crate::error::{CallError, guarded};
use crate::function::Function;
use crate::http::{Http, may_run_here};
use crate::serve::Container;

const FUNCTIONS: &str = "/v1/functions/";
const EXCHANGES: &str = "/v1/exchanges/";
const JSON: &str = "application/json";
const MAX_BODY_BYTES: usize = 1 << 30;
/// A call that takes longer lets another thread answer connections.
const LONG: Duration = Duration::from_micros(500);

#[derive(Debug, Deserialize)]
struct JsonCall {
    #[serde(default)]
    batch: u64,
    rows: usize,
    #[serde(default)]
    exchange: String,
    #[serde(default)]
    step: String,
}

/// A batch of calls, in whichever form it came.
pub(crate) struct Call {
    pub(crate) number: u64,
    /// Of an aggregate function: the name of the exchange, and what is to be done.
    pub(crate) exchange: String,
    pub(crate) step: String,
    pub(crate) batch: RecordBatch,
}

/// What becomes of it.
pub(crate) struct Answer {
    /// The reply's columns, a table function's in parts.
    pub(crate) parts: Vec<Vec<ArrayRef>>,
    pub(crate) micros: u64,
}

/// A reply's content type and body.
type Body = (&'static str, Vec<u8>);

/// Answers one request.
pub(crate) async fn respond(
    server: Arc<Http>,
    request: Request<Incoming>,
    client: Arc<File>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, (content_type, body)) = match answer(server, request, client).await {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => {
            let status = match error.kind {
                "function_not_found" => StatusCode::NOT_FOUND,
                "protocol_violation" => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, (JSON, json!({ "error": error }).to_string().into_bytes()))
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

async fn answer(server: Arc<Http>, request: Request<Incoming>, client: Arc<File>) -> Result<Body, CallError> {
    let container = &server.container;
    let path = decode_path(request.uri().path());
    let method = request.method().clone();
    if method == Method::GET && path == "/v1" {
        return Ok((JSON, container.greeting.clone().into_bytes()));
    }
    if let (&Method::DELETE, Some(name)) = (&method, path.strip_prefix(EXCHANGES)) {
        container.exchanges.end(name);
        return Ok((JSON, b"{}".to_vec()));
    }
    let is_columns = request.headers().get(CONTENT_TYPE).is_some_and(|value| value == COLUMNS);
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|cause| CallError::violation(format!("the request cannot be read: {cause}")))?.to_bytes();
    let name = path.strip_prefix(FUNCTIONS).unwrap_or(&path).to_string();
    let function = container.find(&name)?;
    if method == Method::GET {
        return Ok((JSON, describe(function).into_bytes()));
    }
    may_run_here().await;
    if function.takes_long() {
        server.take_time();
    }
    let start = Instant::now();
    let answered = guarded(|| {
        let is_cancelled = || has_hung_up(&client);
        if is_columns {
            let (call, segment) = columns::read(function, &body)?;
            let answer = compute(container, function, &call, &is_cancelled)?;
            return Ok((COLUMNS, columns::write(function, &call, answer, segment.as_deref())?));
        }
        let call = read_json(function, &body)?;
        let answer = compute(container, function, &call, &is_cancelled)?;
        Ok((JSON, write_json(function, &call, &answer).into_bytes()))
    });
    function.note_long(start.elapsed() > LONG);
    answered
}

/// Whether a client has closed its connection. hyper does not look while a further request lies there.
fn has_hung_up(client: &File) -> bool {
    // nix has no name for this one.
    let closed = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
    let mut watched = [PollFd::new(client.as_fd(), closed)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
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

fn read_json(function: &Function, body: &[u8]) -> Result<Call, CallError> {
    let unreadable = |fact: &str| CallError::violation(format!("the request cannot be read: {fact}"));
    let call: JsonCall = serde_json::from_slice(body).map_err(|cause| unreadable(&cause.to_string()))?;
    let text = std::str::from_utf8(body).map_err(|cause| unreadable(&cause.to_string()))?;
    // Numbers as they are written: a decimal is not to pass through a float.
    let Some(Json::Array(found)) = Json::parse(text).and_then(|mut request| request.take("columns")) else {
        return Err(unreadable("it has no columns"));
    };
    let signature = function.signature();
    let types = signature.call_types();
    if found.len() != types.len() {
        let fact = format!("{} takes {} columns, not {}", function.name(), types.len(), found.len());
        return Err(CallError::violation(fact));
    }
    let mut columns = Vec::with_capacity(types.len());
    for (position, (ty, values)) in types.iter().zip(found).enumerate() {
        let Json::Array(values) = values else {
            return Err(CallError::violation(format!("column {} is no list", position + 1)));
        };
        let values: Vec<Value> = values.into_iter().map(|value| value_of(ty, value)).collect();
        if values.len() != call.rows {
            let fact = format!("column {} has {} values for {} rows", position + 1, values.len(), call.rows);
            return Err(CallError::violation(fact));
        }
        columns.push(
            decode_column(ty, &values)
                .map_err(|fact| CallError::violation(format!("column {}: {fact}", position + 1)))?,
        );
    }
    let options = RecordBatchOptions::new().with_row_count(Some(call.rows));
    let batch = RecordBatch::try_new_with_options(signature.call_schema(), columns, &options)
        .map_err(|cause| CallError::violation(cause.to_string()))?;
    Ok(Call { number: call.batch, exchange: call.exchange, step: call.step, batch })
}

fn compute(
    container: &Container,
    function: &Function,
    call: &Call,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Answer, CallError> {
    let start = Instant::now();
    let mut parts: Vec<Vec<ArrayRef>> = Vec::new();
    if function.signature().kind == FunctionKind::Aggregate {
        let groups = container.exchanges.find(function, &call.exchange, call.number)?;
        let mut groups = groups.lock().map_err(|_| CallError::violation("the exchange has failed"))?;
        parts.push(groups.answer(&call.batch, &call.step, is_cancelled)?);
    } else {
        function.answer(&call.batch, is_cancelled, &mut |columns, _| {
            parts.push(columns);
            Ok(())
        })?;
    }
    Ok(Answer { parts, micros: start.elapsed().as_micros().try_into().unwrap_or(u64::MAX) })
}

fn write_json(function: &Function, call: &Call, Answer { parts, micros }: &Answer) -> String {
    let rows: usize = parts.iter().map(|part| part[0].len()).sum();
    let mut columns = Vec::new();
    for (position, ty) in function.signature().reply_types().iter().enumerate() {
        let mut texts = Vec::new();
        for part in parts.iter().filter(|part| !part[0].is_empty()) {
            let mut text = String::new();
            encode_column(&mut text, ty, &part[position]);
            texts.push(text[1..text.len() - 1].to_string());
        }
        columns.push(format!("[{}]", texts.join(",")));
    }
    let columns = columns.join(",");
    format!("{{\"batch\":{},\"rows\":{rows},\"micros\":{micros},\"columns\":[{columns}]}}", call.number)
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
