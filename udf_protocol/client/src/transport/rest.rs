//! Batches as requests of HTTP/1.1, over TCP or a Unix socket: columns in JSON (`docs/protocol.md` §6), or as they lie in
//! memory (§7).
//!
//! Replies in JSON may come out of order: [`crate::exchange::Exchange`] restores it.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::sync::{OnceCell, oneshot};
use udf_codec::batch::CallBatch;
use udf_codec::columns::fixed_bytes;
use udf_codec::json;
use udf_codec::json_reply::{self, Columns};
use udf_codec::wire::{FunctionInfo, PROTOCOL_VERSION, ServerInfo};
use udf_project::endpoint::Endpoint;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;
use udf_types::{Advice, Error, Kind, Result};

use crate::folder::Folder;
use crate::inbox::{Event, Inbox, Reply};
use crate::names::{percent_encoded, random_name};
use crate::outbox::Outbox;
use crate::threads;
use crate::transport::check::check_reply;
use crate::transport::credentials::Credentials;
use crate::transport::http::{Answer, Http, Most};
use crate::transport::pipeline::{Dialogue, Encoding, Pipelines};
use crate::transport::status::{error_of, kind_of_gateway};
use crate::transport::{MAX_ASIDE_BYTES, Takes, Transport, answer_each};

/// A server that is called over HTTP.
#[derive(Debug)]
pub struct Rest {
    http: Http,
    /// What the server takes; empty if it has not been asked yet.
    takes: OnceCell<Takes>,
    /// None for columns in JSON.
    pipelines: Option<Pipelines>,
}

/// How columns are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// As JSON.
    Json,
    /// As they lie in memory, in the body of the request.
    Columns,
    /// As they lie in memory, in segments.
    Segments {
        /// Where these are.
        directory: Folder,
        /// Whether a segment holds a Parquet file instead.
        is_parquet: bool,
        /// Bytes of columns that are few enough to go with the request.
        most_inline: usize,
    },
}

impl Rest {
    /// A client of the server at `endpoint`, which is not connected to yet, and takes so much; none if that is not known.
    pub fn new(endpoint: Endpoint, credentials: &Credentials, form: Form, takes: Option<Takes>) -> Rest {
        let pipelines = match form {
            Form::Json => None,
            Form::Columns => Some(Pipelines::new(None, Encoding::Columns)),
            Form::Segments { directory, is_parquet, most_inline } => {
                let encoding = if is_parquet { Encoding::Parquet } else { Encoding::Columns };
                Some(Pipelines::new(Some((directory, most_inline)), encoding))
            }
        };
        Rest { http: Http::new(endpoint, credentials), takes: OnceCell::new_with(takes), pipelines }
    }

    /// Posts a body as it is; status and body of the answer. For those who judge servers.
    pub async fn post(&self, path: &str, content_type: &'static str, body: Vec<u8>) -> Result<(u16, Bytes)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let answer = self.http.request(Method::POST, path, headers, body).await?;
        Ok((answer.status.as_u16(), answer.body))
    }

    /// Deletes what is at a path; the status of the answer. For those who judge servers.
    pub async fn delete(&self, path: &str) -> Result<u16> {
        let answer = self.http.request(Method::DELETE, path, HeaderMap::new(), String::new()).await?;
        Ok(answer.status.as_u16())
    }

    /// Gets what a server says of itself.
    async fn get(&self, path: &str) -> Result<Answer> {
        let answer = self.http.get(path).await?;
        let (endpoint, status) = (self.http.endpoint(), answer.status);
        match kind_of_gateway(status) {
            None => Ok(answer),
            Some(Kind::NotAllowed) => Err(Error::refused(
                &format!("the server at \"{endpoint}\""),
                format!("It answered with HTTP status {status}"),
            )),
            Some(_) => Err(Error::unreachable(&endpoint.to_string(), format!("it answered with HTTP status {status}"))),
        }
    }

    async fn say_hello(&self) -> Result<ServerInfo> {
        let answer = self.get("/v1").await?;
        let info: ServerInfo = serde_json::from_slice(&answer.body)
            .map_err(|cause| Error::protocol("", format!("Its greeting cannot be read: {cause}.")))?;
        if info.protocol > PROTOCOL_VERSION {
            return Err(Error::protocol("", format!("It speaks version {} of the protocol.", info.protocol)));
        }
        Ok(info)
    }

    /// What the server takes. It is asked once.
    async fn takes(&self) -> Result<Takes> {
        let ask = async || Ok(Takes::from(&self.say_hello().await?));
        self.takes.get_or_try_init(ask).await.copied()
    }

    async fn get_signature(&self, function: &str) -> Result<Signature> {
        let answer = self.get(&path_of(function)).await?;
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
        info.into_signature(function)
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, exchange: &str, inbox: &Inbox) -> Result<Reply> {
        let function = signature.function.as_str();
        let mut batch = batch.clone();
        if !batch.constants.is_empty() {
            match self.takes().await?.constants {
                // Of a server elsewhere, nobody knew it before.
                true => inbox.deliver(Ok(Event::TakesConstants)),
                false => batch = batch.with_repeated_constants(signature)?,
            }
        }
        let batch = &batch;
        let body = encode(signature, batch, exchange).await;
        let bytes_sent = body.len();
        let rows = Some(batch.columns.num_rows()).filter(|_| signature.kind == FunctionKind::Scalar);
        let mut share = inbox.budget().share_of_text(batch.number);
        let bytes = rows.and_then(|rows| text_bytes(&signature.reply_types(), rows)).unwrap_or(usize::MAX);
        let most = Most { function, share: &mut share, bytes };
        let answer = self.http.post(&path_of(function), body, most).await.map_err(|error| {
            if error.is_retryable() { Error::connection_lost(function, error.message()) } else { error }
        })?;
        if answer.status != StatusCode::OK {
            return Err(error_of(function, answer.status, &answer.body).with_retry_after(answer.retry_after));
        }
        let reply = json_reply::Reply::read(&answer.body)
            .map_err(|cause| Error::protocol(function, format!("A reply cannot be read: {cause}.")))?;
        if reply.batch.is_some_and(|number| number != batch.number) {
            return Err(Error::protocol(function, format!("It answered another batch than batch {}.", batch.number)));
        }
        let text_bytes = answer.body.len();
        let most = share.limit();
        let column_bytes = json_reply::most_bytes(&signature.reply_types(), text_bytes).min(most);
        share.make_room(text_bytes + column_bytes).await;
        let mut left = most;
        let read = reply.columns(signature, rows, &mut left);
        let read = read.map_err(|cause| cause.into_error(function, most, |fact| Error::bad_result(function, fact)))?;
        let columns = match read {
            Columns::Read(columns) => columns,
            Columns::TooMany(found) => {
                let calls = batch.columns.num_rows();
                return Err(Error::protocol(function, format!("Its reply has {found} rows for {calls} calls.")));
            }
        };
        check_reply(signature, batch, &columns)?;
        share.hold(columns.get_array_memory_size());
        Ok(Reply {
            bytes_needed: text_bytes + (most - left),
            compute_us: reply.micros,
            share: Some(share),
            ..Reply::whole(batch.number, columns, bytes_sent, text_bytes)
        })
    }

    /// An aggregate function's exchange: its batches go one after the other, since its groups change with each.
    async fn run_groups(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        let exchange = random_name();
        while let Some(batch) = outbox.next().await {
            let reply = match self.call(signature, &batch, &exchange, inbox).await {
                Err(error) if error.is_busy() => {
                    outbox.rewind();
                    return Err(error);
                }
                outcome => outcome?,
            };
            outbox.answer(batch.number);
            inbox.deliver(Ok(Event::Reply(reply)));
        }
        self.end_groups(&exchange).await;
        Ok(())
    }

    async fn end_groups(&self, exchange: &str) {
        // The server forgets the groups by itself later, if this does not reach it.
        let path = format!("/v1/exchanges/{exchange}");
        let _ = self.http.request(Method::DELETE, &path, HeaderMap::new(), String::new()).await;
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        if signature.kind == FunctionKind::Map {
            let form = if self.pipelines.is_none() { "JSON" } else { "HTTP" };
            let message = format!("map function \"{}\" cannot be called over {form}", signature.function);
            return Err(Error::invalid_definition(message).with_advice(Advice::Flight));
        }
        if let Some(pipelines) = &self.pipelines {
            let exchange = random_name();
            let takes = self.takes().await?;
            let dialogue = Dialogue { signature, path: &path_of(&signature.function), name: &exchange, takes };
            pipelines.exchange(&self.http, dialogue, outbox, inbox).await?;
            if signature.kind == FunctionKind::Aggregate {
                self.end_groups(&exchange).await;
            }
            return Ok(());
        }
        if signature.kind == FunctionKind::Aggregate {
            return self.run_groups(signature, outbox, inbox).await;
        }
        answer_each(outbox, inbox, |batch| Box::pin(async move { self.call(signature, &batch, "", inbox).await })).await
    }
}

/// What a value of fixed width may take in JSON, white space included.
const MAX_TEXT_BYTES: usize = 512;

/// Bytes of JSON that values of so many rows can need; none if they may need any number.
fn text_bytes(types: &[Type], rows: usize) -> Option<usize> {
    // Every byte of such a value is a digit of less.
    fixed_bytes(types, rows)?.checked_mul(MAX_TEXT_BYTES)?.checked_add(MAX_ASIDE_BYTES)
}

/// Writing more values than this to JSON takes longer than handing them to another thread.
const MOST_VALUES_AT_ONCE: usize = 4096;

/// The body of a batch's request. What takes long is written by another thread, so that this one goes on sending; but by this
/// one if the process can have no more threads.
async fn encode(signature: &Signature, batch: &CallBatch, exchange: &str) -> String {
    if batch.number == 1 {
        // Others follow, which are larger: the thread is started while there is more memory.
        threads::write(|| ());
    }
    if batch.columns.num_rows() * batch.columns.num_columns() > MOST_VALUES_AT_ONCE {
        let (sender, encoded) = oneshot::channel();
        let (signature, batch, exchange) = (signature.clone(), batch.clone(), exchange.to_string());
        threads::write(move || {
            // Nobody may wait any more.
            let _ = sender.send(json::encode_call(&signature, &batch, &exchange));
        });
        if let Ok(text) = encoded.await {
            return text;
        }
    }
    json::encode_call(signature, batch, exchange)
}

/// Where a function is.
fn path_of(function: &str) -> String {
    format!("/v1/functions/{}", percent_encoded(function, b""))
}

impl Transport for Rest {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(self.say_hello())
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(self.get_signature(function))
    }

    fn close_idle(&self) {
        self.http.close_idle();
        if let Some(pipelines) = &self.pipelines {
            pipelines.close_idle();
        }
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

    #[tokio::test]
    async fn a_gateway_that_answers_a_greeting_is_no_server_of_another_protocol() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        for (status, kind) in [("401 Unauthorized", Kind::NotAllowed), ("502 Bad Gateway", Kind::Unreachable)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = Endpoint::JsonTcp(listener.local_addr().unwrap().to_string());
            let rest = Rest::new(endpoint.clone(), &Credentials::default(), Form::Json, None);
            let answer = async {
                let mut stream = listener.accept().await.unwrap().0;
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let error = tokio::join!(rest.hello(), answer).0.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
            assert!(said.contains(&endpoint.to_string()) && said.contains(status), "{said}");
        }
    }

    #[test]
    fn function_names_are_encoded() {
        assert_eq!(path_of("a_b.c"), "/v1/functions/a_b.c");
        assert_eq!(path_of("größe/x"), "/v1/functions/gr%C3%B6%C3%9Fe%2Fx");
    }
}
