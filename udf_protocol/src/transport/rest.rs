//! Batches as requests of HTTP/1.1, over TCP or a Unix socket: columns in JSON (`docs/protocol.md` §6), or as they lie in
//! memory (§7), in the request itself or in segments that both sides see.
//!
//! Replies may come out of order here: [`crate::client::Exchange`] restores it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use arrow_buffer::Buffer;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;

use super::http::{Answer, Connection, Http, JSON};
use super::segment::Segments;
use super::{
    Credentials, Endpoint, Event, Inbox, MAX_MESSAGE_BYTES, Outbox, PROTOCOL_VERSION, Reply, ServerInfo, Transport, WireError, answer_each,
};
use crate::batch::CallBatch;
use crate::codec::columns::{self, CallHeader, Layout, frame, inline_body, read_frame};
use crate::codec::json;
use crate::error::{Error, Result};
use crate::signature::{Argument, FunctionKind, Signature};
use crate::transport::check_reply;
use crate::types::Type;

/// A server that is called over HTTP.
#[derive(Debug)]
pub struct Rest {
    http: Http,
    form: Form,
}

/// How columns are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// As JSON.
    Json,
    /// As they lie in memory, in the body of the request.
    Columns,
    /// As they lie in memory, in segments in this folder.
    Segments(PathBuf),
}

/// The content type of columns as they lie in memory.
const COLUMNS: &str = "application/vnd.transship.columns";

/// A function as `GET /v1/functions/NAME` describes it, `docs/protocol.md` §6.
#[derive(Debug, Deserialize)]
struct FunctionInfo {
    arguments: Vec<ArgumentInfo>,
    returns: Type,
    #[serde(default)]
    kind: FunctionKind,
}

#[derive(Debug, Deserialize)]
struct ArgumentInfo {
    #[serde(default)]
    name: String,
    #[serde(rename = "type")]
    ty: Type,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    error: WireError,
}

impl Rest {
    /// A client of the server at `endpoint`, which is not connected to yet.
    pub fn new(endpoint: Endpoint, credentials: &Credentials, form: Form) -> Rest {
        Rest { http: Http::new(endpoint, credentials), form }
    }

    /// Posts a body as it is; status and body of the answer. For those who judge servers.
    pub async fn post(&self, path: &str, body: String) -> Result<(u16, Bytes)> {
        let answer = self.http.post(path, body).await?;
        Ok((answer.status.as_u16(), answer.body))
    }

    async fn say_hello(&self) -> Result<ServerInfo> {
        let answer = self.http.get("/v1").await?;
        let info: ServerInfo = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol("", format!("Its greeting cannot be read: {cause}.")))?;
        if info.protocol > PROTOCOL_VERSION {
            return Err(Error::protocol("", format!("It speaks version {} of the protocol.", info.protocol)));
        }
        Ok(info)
    }

    async fn get_signature(&self, function: &str) -> Result<Signature> {
        let answer = self.http.get(&path_of(function)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            let offered = self.say_hello().await.map(|info| info.functions).unwrap_or_default();
            return Err(Error::function_not_found(
                function,
                &format!("the server at \"{}\"", self.http.endpoint()),
                &offered,
            ));
        }
        let info: FunctionInfo = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol(function, format!("Its signature cannot be read: {cause}.")))?;
        let arguments = info.arguments.into_iter().map(|argument| Argument { name: argument.name, ty: argument.ty });
        Ok(Signature {
            function: function.to_string(),
            kind: info.kind,
            arguments: arguments.collect(),
            result: info.returns,
        })
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, exchange: &str) -> Result<Reply> {
        let lost = |error: Error| {
            if error.is_retryable() { Error::connection_lost(&signature.function, error.message()) } else { error }
        };
        let mut connection = self.http.take().await.map_err(lost)?;
        let reply = match &self.form {
            Form::Json => self.call_json(&mut connection, signature, batch, exchange).await,
            Form::Columns => self.call_columns(&mut connection, signature, batch, exchange, None).await,
            Form::Segments(directory) => {
                self.call_columns(&mut connection, signature, batch, exchange, Some(directory)).await
            }
        }
        .map_err(lost)?;
        self.http.keep(connection);
        check_reply(signature, batch, &reply.columns)?;
        Ok(reply)
    }

    async fn call_json(
        &self,
        connection: &mut Connection,
        signature: &Signature,
        batch: &CallBatch,
        exchange: &str,
    ) -> Result<Reply> {
        let function = signature.function.as_str();
        let body = json::encode_call(signature, batch, exchange);
        let bytes_sent = body.len();
        let answer = self.post_batch(connection, function, JSON, body.into()).await?;
        let reply: json::Reply = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol(function, format!("A reply cannot be read: {cause}.")))?;
        check_number(function, batch, reply.batch)?;
        let columns = json::decode_reply(signature, &reply).map_err(|fact| Error::bad_result(function, fact))?;
        Ok(Reply {
            number: batch.number,
            columns,
            is_last: true,
            bytes_sent,
            bytes_received: answer.body.len(),
            compute_us: reply.micros,
        })
    }

    async fn call_columns(
        &self,
        connection: &mut Connection,
        signature: &Signature,
        batch: &CallBatch,
        exchange: &str,
        directory: Option<&PathBuf>,
    ) -> Result<Reply> {
        let function = signature.function.as_str();
        let layout = Layout::of(&signature.call_types(), &batch.columns);
        if let (Some(directory), None) = (directory, &connection.segments) {
            connection.segments = Segments::create(directory).ok();
        }
        // Where there is no memory left for segments, the data goes with the request.
        let written = connection.segments.take().filter(|segments| segments.write(&layout).is_ok());
        let header = CallHeader::new(batch, &layout, exchange);
        let body = match &written {
            Some(segments) => frame(&header.with_segments(segments.calls(), segments.replies()), 0),
            None => inline_body(&header, &layout),
        };
        let answer = self.post_batch(connection, function, COLUMNS, body.into()).await?;
        if answer.content_type.is_none_or(|found| found != COLUMNS) {
            return Err(Error::protocol(function, "Its reply is not of the form that was asked for."));
        }
        let unreadable = |fact: String| Error::protocol(function, format!("A reply cannot be read: {fact}."));
        let (header, inline) = read_frame(&answer.body).map_err(unreadable)?;
        check_number(function, batch, header.batch)?;
        let data = match (&header.segment, &written) {
            (None, _) => Buffer::from(inline),
            (Some(name), Some(segments)) if *name == segments.replies() => {
                let extent = header.extent().filter(|extent| *extent <= MAX_MESSAGE_BYTES);
                let size = extent.ok_or_else(|| unreadable("it is larger than 1 GiB".to_string()))?;
                segments.read(size).map_err(|_| unreadable("its segment is too short".to_string()))?
            }
            (Some(_), _) => return Err(unreadable("its segment is not the one that was offered".to_string())),
        };
        let columns =
            columns::decode_reply(signature, &header, &data).map_err(|fact| Error::bad_result(function, fact))?;
        // A handler that still looks at its arguments must go on seeing them.
        connection.segments = written.filter(|_| !header.retained);
        Ok(Reply {
            number: batch.number,
            columns,
            is_last: true,
            bytes_sent: layout.size,
            bytes_received: data.len(),
            compute_us: header.micros,
        })
    }

    /// Posts a batch; an answer that is an error becomes one.
    async fn post_batch(
        &self,
        connection: &mut Connection,
        function: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Answer> {
        let (path, headers) = (path_of(function), HeaderMap::new());
        let answer = self.http.request_on(connection, Method::POST, &path, headers, content_type, body).await?;
        if answer.status == StatusCode::OK {
            return Ok(answer);
        }
        let error: ErrorBody = serde_json::from_slice(&answer.body)
            .map_err(|_| Error::protocol(function, format!("It answered with HTTP status {}.", answer.status)))?;
        Err(error.error.into_error(function))
    }

    /// An aggregate function's exchange: its batches go one after the other, since its groups change with each.
    async fn run_groups(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        let exchange = random_name();
        while let Some(batch) = outbox.next().await {
            let reply = self.call(signature, &batch, &exchange).await?;
            outbox.answer(batch.number);
            inbox.deliver(Ok(Event::Reply(reply)));
        }
        // The server forgets the groups by itself later, if this does not reach it.
        let _ = self
            .http
            .request(Method::DELETE, &format!("/v1/exchanges/{exchange}"), HeaderMap::new(), String::new())
            .await;
        Ok(())
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        if signature.kind == FunctionKind::Map {
            let form = if self.form == Form::Json { "JSON" } else { "HTTP" };
            let message = format!("map function \"{}\" cannot be called over {form}", signature.function);
            return Err(Error::invalid_definition(message).with_hint(
                "Set transport = \"flight\" in the function body, or transship.transport, if its server offers Flight.",
            ));
        }
        if signature.kind == FunctionKind::Aggregate {
            return self.run_groups(signature, outbox, inbox).await;
        }
        answer_each(outbox, inbox, |batch| Box::pin(async move { self.call(signature, &batch, "").await })).await
    }
}

fn check_number(function: &str, batch: &CallBatch, answered: Option<u64>) -> Result<()> {
    if answered.is_some_and(|number| number != batch.number) {
        return Err(Error::protocol(function, format!("It answered another batch than batch {}.", batch.number)));
    }
    Ok(())
}

/// 128 bits that no other exchange has, from the keys of the standard library's hash maps.
pub(crate) fn random_name() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Names are percent-encoded but for RFC 3986's unreserved characters.
fn path_of(function: &str) -> String {
    let mut path = String::from("/v1/functions/");
    for byte in function.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

impl Transport for Rest {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(self.say_hello())
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(self.get_signature(function))
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
    fn function_names_are_encoded() {
        assert_eq!(path_of("a_b.c"), "/v1/functions/a_b.c");
        assert_eq!(path_of("größe/x"), "/v1/functions/gr%C3%B6%C3%9Fe%2Fx");
    }
}
