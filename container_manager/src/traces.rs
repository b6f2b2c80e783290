//! Spans of traced calls. Engines hand them over; the manager sends them on to a collector, by OpenTelemetry's protocol OTLP over
//! HTTP, in JSON.
//!
//! Nobody waits for a collector: spans go through a queue of [`MOST_WAITING`], and are left out where that is full or the collector
//! does not take them. One user's spans fill half of it at most. Metrics count them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use udf_client::trace::{Attribute, Span, SpanKind};
use udf_types::{Error, Kind, Result};

use crate::log;
use crate::metrics::SpanOutcome;
use crate::otlp_endpoint::OtlpEndpoint;
use crate::pool::Pool;

/// Spans that may wait for the collector.
const MOST_WAITING: usize = 8192;
/// Those of one user.
const MOST_OF_A_USER: usize = MOST_WAITING / 2;
/// Spans of one request to it.
const MOST_AT_ONCE: usize = 512;
/// How long spans wait for others.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// What one span may have.
const MAX_NAME_BYTES: usize = 256;
const MAX_ATTRIBUTES: usize = 16;

/// Takes the spans that engines hand over.
#[derive(Clone)]
pub struct Traces {
    /// None if they are not exported.
    queue: Option<mpsc::Sender<(u32, Span)>>,
    waiting: Waiting,
    pool: Arc<Pool>,
}

/// Sends them on.
pub struct Exporter {
    to: Option<(OtlpEndpoint, mpsc::Receiver<(u32, Span)>)>,
    /// Spans that left the queue, and wait for others, or for the collector's answer.
    pending: Vec<(u32, Span)>,
    waiting: Waiting,
    pool: Arc<Pool>,
    is_failing: bool,
}

/// How many spans of each user are in the queue.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<u32, usize>>>);

impl Waiting {
    /// Counts one more, if the user may have one.
    fn enter(&self, user: u32) -> bool {
        let mut counts = self.0.lock().expect("no holder panics");
        let count = counts.entry(user).or_default();
        let may_enter = *count < MOST_OF_A_USER;
        *count += usize::from(may_enter);
        may_enter
    }

    fn leave(&self, user: u32) {
        let mut counts = self.0.lock().expect("no holder panics");
        if let Some(count) = counts.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&user);
            }
        }
    }
}

/// Both ends of the queue; spans are dropped if there is no endpoint.
pub fn queue(endpoint: Option<OtlpEndpoint>, pool: Arc<Pool>) -> (Traces, Exporter) {
    let (sender, receiver) = mpsc::channel(MOST_WAITING);
    let queue = endpoint.is_some().then_some(sender);
    let to = endpoint.map(|endpoint| (endpoint, receiver));
    let waiting = Waiting::default();
    let traces = Traces { queue, waiting: waiting.clone(), pool: pool.clone() };
    (traces, Exporter { to, pending: Vec::new(), waiting, pool, is_failing: false })
}

impl Traces {
    /// Takes spans that a process of this user hands over.
    ///
    /// # Errors
    /// If one is none, or too large.
    pub fn take(&self, user: u32, spans: Vec<Span>) -> Result<()> {
        if !spans.iter().all(is_span) {
            return Err(Error::new(Kind::ProtocolViolation, "a span is malformed or too large"));
        }
        if let Some(queue) = &self.queue {
            let count = spans.len();
            let is_taken = |span: &Span| {
                let may_enter = self.waiting.enter(user);
                let is_taken = may_enter && queue.try_send((user, span.clone())).is_ok();
                if may_enter && !is_taken {
                    self.waiting.leave(user);
                }
                is_taken
            };
            let taken = spans.iter().take_while(|span| is_taken(span)).count();
            self.pool.metrics().spans(SpanOutcome::LeftOut, count - taken);
        }
        Ok(())
    }
}

fn is_span(span: &Span) -> bool {
    let is_id = |id: &str, digits: usize| {
        id.len() == digits
            && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
            && id.bytes().any(|byte| byte != b'0')
    };
    let is_short = |text: &str| text.len() <= MAX_NAME_BYTES;
    let is_attribute = |(name, value): (&String, &Attribute)| {
        is_short(name) && !matches!(value, Attribute::Text(text) if !is_short(text))
    };
    is_id(&span.trace_id, 32)
        && is_id(&span.span_id, 16)
        && is_id(&span.parent_id, 16)
        && is_short(&span.name)
        && span.error.as_deref().is_none_or(is_short)
        && span.attributes.len() <= MAX_ATTRIBUTES
        && span.attributes.iter().all(is_attribute)
        && span.start_ns <= span.end_ns
}

impl Exporter {
    /// Sends spans on; it does not return.
    pub async fn run(&mut self) {
        loop {
            let Some((_, receiver)) = &mut self.to else { return std::future::pending().await };
            match receiver.recv().await {
                Some(span) => self.note_pending(span),
                // Nobody hands over any more.
                None => return std::future::pending().await,
            }
            self.take_waiting();
            if self.pending.len() < MOST_AT_ONCE {
                tokio::time::sleep(INTERVAL).await;
                self.take_waiting();
            }
            self.send(Instant::now() + EXPORT_TIMEOUT).await;
        }
    }

    /// Sends what still waits, when the manager ends.
    pub async fn finish(&mut self) {
        let deadline = Instant::now() + EXPORT_TIMEOUT;
        if let Some((_, receiver)) = &mut self.to {
            receiver.close();
        }
        loop {
            self.take_waiting();
            if self.pending.is_empty() {
                return;
            }
            self.send(deadline).await;
        }
    }

    /// Takes what is in the queue, up to what one request may have.
    fn take_waiting(&mut self) {
        while self.pending.len() < MOST_AT_ONCE
            && let Some((_, receiver)) = &mut self.to
            && let Ok(span) = receiver.try_recv()
        {
            self.note_pending(span);
        }
    }

    fn note_pending(&mut self, span: (u32, Span)) {
        self.waiting.leave(span.0);
        self.pending.push(span);
    }

    /// Sends the pending spans. If this is cut off, they stay pending, so the collector may get some twice.
    async fn send(&mut self, deadline: Instant) {
        let Some((endpoint, _)) = &self.to else { return };
        let posted = tokio::time::timeout_at(deadline, post(endpoint, body_of(&self.pending)));
        let outcome = posted.await.unwrap_or_else(|_| Err("it did not answer in time".to_string()));
        let spans = std::mem::take(&mut self.pending);
        let authority = &endpoint.authority;
        match outcome {
            Ok(()) => {
                self.pool.metrics().spans(SpanOutcome::Exported, spans.len());
                if std::mem::take(&mut self.is_failing) {
                    log::info("spans_exported").write(format_args!("spans are exported to {authority} again"));
                }
            }
            Err(cause) => {
                self.pool.metrics().spans(SpanOutcome::LeftOut, spans.len());
                // One line for each outage.
                if !std::mem::replace(&mut self.is_failing, true) {
                    let fact = format_args!("could not export spans to {authority}: {cause}");
                    log::warning("spans_left_out").write(fact);
                }
            }
        }
    }
}

async fn post(endpoint: &OtlpEndpoint, body: String) -> std::result::Result<(), String> {
    let failed = |cause: &dyn std::fmt::Display| cause.to_string();
    let stream = TcpStream::connect(&endpoint.authority).await.map_err(|cause| failed(&cause))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|cause| failed(&cause))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&endpoint.path)
        .header(HOST, &endpoint.authority)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|cause| failed(&cause))?;
    let connection = tokio::spawn(connection);
    let answered = sender.send_request(request).await.map_err(|cause| failed(&cause));
    // What it says beside the status is not read.
    connection.abort();
    let status = answered?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered with HTTP status {status}")) }
}

/// The body of a request (`ExportTraceServiceRequest`), in OTLP's form of JSON: numbers of 64 bits are texts.
fn body_of(spans: &[(u32, Span)]) -> String {
    let spans: Vec<Value> = spans.iter().map(|(user, span)| span_of(*user, span)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let resource = [("service.name", "transship"), ("service.version", version)];
    let resource = resource.map(|(name, value)| json!({"key": name, "value": {"stringValue": value}}));
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "transship", "version": version}, "spans": spans}],
    }]})
    .to_string()
}

fn span_of(user: u32, span: &Span) -> Value {
    let attribute = |(name, value): (&String, &Attribute)| {
        let value = match value {
            Attribute::Number(number) => json!({"intValue": number.to_string()}),
            Attribute::Text(text) => json!({"stringValue": text}),
        };
        json!({"key": name, "value": value})
    };
    // Who says so, whatever the span says itself.
    let attributes = span.attributes.iter().filter(|(name, _)| *name != "transship.user").map(attribute);
    let attributes: Vec<Value> =
        attributes.chain([attribute((&"transship.user".to_string(), &Attribute::from(u64::from(user))))]).collect();
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let mut written = json!({
        "traceId": span.trace_id, "spanId": span.span_id, "parentSpanId": span.parent_id, "name": span.name, "kind": kind,
        "startTimeUnixNano": span.start_ns.to_string(), "endTimeUnixNano": span.end_ns.to_string(),
        "attributes": attributes,
    });
    if let Some(error) = &span.error {
        written["status"] = json!({"code": 2, "message": error});
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::unwell_pool;
    use std::time::SystemTime;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use udf_client::trace::TraceContext;

    fn span() -> Span {
        let context = TraceContext { trace_id: 0xab, span_id: 0xcd, is_sampled: true };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        Span::new(context, 0xef, ("batch", SpanKind::Client), (now, now)).with("transship.rows", 7)
    }

    #[test]
    fn what_is_no_span_is_refused() {
        assert!(is_span(&span()));
        let zeros = "0".repeat(16);
        for wrong in [
            Span { trace_id: "0".repeat(32), ..span() },
            Span { span_id: zeros, ..span() },
            Span { parent_id: "\"".repeat(16), ..span() },
            Span { name: "n".repeat(257), ..span() },
            Span { error: Some("n".repeat(257)), ..span() },
            Span { start_ns: 2, end_ns: 1, ..span() },
            span().with("text", "t".repeat(257).as_str()),
            (0..20).fold(span(), |span, number| span.with(&number.to_string(), number)),
        ] {
            assert!(!is_span(&wrong), "{wrong:?}");
        }
    }

    #[test]
    fn spans_are_written_as_otlp_has_them() {
        let failed = Span { error: Some("user_code".to_string()), ..span().with("transship.user", 0) };
        let body: Value = serde_json::from_str(&body_of(&[(26, failed)])).unwrap();
        let written = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(
            *written,
            json!({
                "traceId": format!("{:032x}", 0xab), "spanId": format!("{:016x}", 0xcd), "parentSpanId": format!("{:016x}", 0xef),
                "name": "batch", "kind": 3, "startTimeUnixNano": "1000000000", "endTimeUnixNano": "1000000000",
                "attributes": [
                    {"key": "transship.rows", "value": {"intValue": "7"}},
                    {"key": "transship.user", "value": {"intValue": "26"}},
                ],
                "status": {"code": 2, "message": "user_code"},
            })
        );
    }

    fn exporter_to(address: std::net::SocketAddr) -> (Traces, Exporter, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = format!("http://{address}").parse().unwrap();
        let (traces, exporter) = queue(Some(endpoint), unwell_pool(folder.path(), 1, 0).0);
        (traces, exporter, folder)
    }

    #[tokio::test]
    async fn one_user_leaves_room_for_the_others() {
        let (traces, mut exporter, _folder) = exporter_to("127.0.0.1:1".parse().unwrap());
        let waiting = |exporter: &Exporter| exporter.to.as_ref().unwrap().1.len();
        traces.take(1, vec![span(); MOST_OF_A_USER + 10]).unwrap();
        assert_eq!(waiting(&exporter), MOST_OF_A_USER);
        traces.take(2, vec![span(); 10]).unwrap();
        assert_eq!(waiting(&exporter), MOST_OF_A_USER + 10);
        // What has left the queue no longer counts.
        exporter.take_waiting();
        traces.take(1, vec![span(); 10]).unwrap();
        assert_eq!(waiting(&exporter), MOST_OF_A_USER + 20 - MOST_AT_ONCE);
        exporter.finish().await;
        assert!(waiting(&exporter) == 0 && exporter.pending.is_empty());
        // Nothing is taken any more, and nobody is told.
        traces.take(1, vec![span()]).unwrap();
        assert!(traces.waiting.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_end_sends_what_waited_for_others_and_what_is_in_the_queue() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (traces, mut exporter, _folder) = exporter_to(listener.local_addr().unwrap());
        traces.take(1, vec![span(); 2]).unwrap();
        tokio::select! {
            biased;
            () = exporter.run() => unreachable!("it does not return"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(exporter.pending.len(), 2);
        traces.take(1, vec![span(); MOST_AT_ONCE]).unwrap();
        let collect = async {
            let mut counts = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                // A body ends with the list of spans, of the scope and of the resource.
                while !request.ends_with("]}]}]}") {
                    let mut read = vec![0; 65536];
                    let size = stream.read(&mut read).await.unwrap();
                    assert!(size > 0, "the request ends early");
                    request.push_str(std::str::from_utf8(&read[..size]).unwrap());
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                counts.push(request.matches("\"spanId\"").count());
            }
            counts
        };
        let ((), counts) = tokio::join!(exporter.finish(), collect);
        assert_eq!(counts, [MOST_AT_ONCE, 2]);
    }

    #[tokio::test]
    async fn a_collector_is_posted_to_and_its_refusal_is_an_error() {
        for (status, is_taken) in [("200 OK", true), ("503 Service Unavailable", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint: OtlpEndpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            let collect = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut read = vec![0; 65536];
                let size = stream.read(&mut read).await.unwrap();
                stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
                String::from_utf8(read[..size].to_vec()).unwrap()
            };
            let (posted, request) = tokio::join!(post(&endpoint, body_of(&[(26, span())])), collect);
            assert_eq!(posted.is_ok(), is_taken, "{posted:?}");
            assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{request}");
        }
        let nobody: OtlpEndpoint = "http://127.0.0.1:1".parse().unwrap();
        assert!(post(&nobody, String::new()).await.is_err());
    }
}
