//! Batches as requests of HTTP/1.1, over TCP or a Unix socket, with columns in JSON (`docs/protocol.md` §6).
//!
//! Replies may come out of order: [`crate::exchange::Exchange`] restores it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::oneshot;
use udf_codec::batch::CallBatch;
use udf_codec::columns::fixed_bytes;
use udf_codec::json;
use udf_codec::json_reply::{self, Columns};
use udf_codec::wire::ServerInfo;
use udf_project::endpoint::Endpoint;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::inbox::{Event, Inbox, Reply};
use crate::names::random_name;
use crate::outbox::Outbox;
use crate::threads;
use crate::transport::check::check_reply;
use crate::transport::credentials::Credentials;
use crate::transport::http::Most;
use crate::transport::http_server::{HttpServer, ServersGroups, path_of, refuse_map};
use crate::transport::status::error_of;
use crate::transport::{MAX_ASIDE_BYTES, Takes, Transport, answer_each};

/// Columns in JSON, over HTTP.
#[derive(Debug)]
pub(crate) struct Json {
    server: Arc<HttpServer>,
}

impl Json {
    /// A client of the server at `endpoint`, which is not connected to yet, and takes so much; none if that is not known.
    pub(crate) fn new(endpoint: Endpoint, credentials: &Credentials, takes: Option<Takes>) -> Json {
        Json { server: Arc::new(HttpServer::new(endpoint, credentials, takes)) }
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, exchange: &str, inbox: &Inbox) -> Result<Reply> {
        let function = signature.function.as_str();
        let mut batch = batch.clone();
        if !batch.constants.is_empty() {
            match self.server.takes().await?.constants {
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
        let headers = headers_of(inbox.asides().fields(Some(batch.number)));
        let answer = self.server.http.post(&path_of(function), headers, body, most).await.map_err(|error| {
            if error.is_retryable() { Error::connection_lost(function, error.message()) } else { error }
        })?;
        inbox.deliver_lines_of(function, answer.lines.as_ref().map(HeaderValue::as_bytes))?;
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
        let _groups = ServersGroups::new(&self.server, &exchange);
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
        Ok(())
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        refuse_map(signature, "JSON")?;
        if signature.kind == FunctionKind::Aggregate {
            return self.run_groups(signature, outbox, inbox).await;
        }
        answer_each(outbox, inbox, |batch| Box::pin(async move { self.call(signature, &batch, "", inbox).await })).await
    }
}

/// Fields as headers. What is no value of one is left out.
fn headers_of(fields: impl Iterator<Item = (&'static str, String)>) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
    };
    fields.filter_map(header).collect()
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

impl Transport for Json {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(self.server.say_hello())
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(self.server.get_signature(function))
    }

    fn close_idle(&self) {
        self.server.http.close_idle();
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
