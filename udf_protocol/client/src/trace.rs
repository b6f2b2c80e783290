//! Traces of exchanges: contexts after W3C's recommendation "Trace Context", and the spans that a session hands to the manager,
//! which exports them. Nothing is recorded of an exchange that is not opened with a context.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};
use udf_types::Kind;

/// Most spans of one exchange. Further batches are counted.
pub const MAX_SPANS: usize = 512;

/// The field of HTTP and of gRPC's metadata that carries a context.
pub const TRACEPARENT: &str = "traceparent";

/// A span of a trace, to which others belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// Of the trace; not 0.
    pub trace_id: u128,
    /// Of the span; not 0.
    pub span_id: u64,
    /// Whether spans of the trace are recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads the value of the field `traceparent`; none if it is not one. Who gets that goes on without a context.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let text = text.trim_matches([' ', '\t']);
        let (known, further) = text.split_at_checked(55)?;
        let mut parts = known.split('-');
        let mut hexadecimal = |digits: usize| {
            let part = parts.next()?;
            let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == digits && part.bytes().all(is_lower)).then(|| u128::from_str_radix(part, 16).ok())?
        };
        let (version, trace_id, span_id, flags) =
            (hexadecimal(2)?, hexadecimal(32)?, hexadecimal(16)?, hexadecimal(2)?);
        let has_right_end =
            if version == 0 { further.is_empty() } else { further.is_empty() || further.starts_with('-') };
        let is_valid = version != 0xff && trace_id != 0 && span_id != 0 && has_right_end;
        is_valid.then_some(TraceContext { trace_id, span_id: span_id as u64, is_sampled: flags & 1 == 1 })
    }

    /// A new span of the same trace.
    ///
    /// # Panics
    /// If the system has no random bits to give, which does not happen once it has started.
    pub fn child(&self) -> TraceContext {
        let random = getrandom::u64().expect("the system gives random bits");
        TraceContext { span_id: random.max(1), ..*self }
    }

    /// The span of a batch of an exchange whose span this is. Whoever sends the batch, however often, finds the same.
    pub fn of_batch(&self, number: u64) -> TraceContext {
        let span_id = match self.span_id.wrapping_add(number).wrapping_add(1) {
            0 => 1 << 63,
            other => other,
        };
        TraceContext { span_id, ..*self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceContext { trace_id, span_id, is_sampled } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(*is_sampled))
    }
}

/// Where a span is, in OpenTelemetry's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// Inside one process.
    Internal,
    /// Of a server.
    Server,
    /// Of a server's caller.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attribute {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Attribute {
        Attribute::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Attribute {
        Attribute::Text(text.to_string())
    }
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// Of the span to which it belongs: 16 hexadecimal digits.
    pub parent_id: String,
    /// What was done.
    pub name: String,
    /// Where.
    pub kind: SpanKind,
    /// Nanoseconds since 1970.
    pub start_ns: u64,
    /// The same.
    pub end_ns: u64,
    /// What more is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Attribute>,
    /// What failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Span {
    /// A span from one time to another.
    pub fn new(
        context: TraceContext,
        parent_id: u64,
        (name, kind): (&str, SpanKind),
        (start, end): (SystemTime, SystemTime),
    ) -> Span {
        let start_ns = nanoseconds(start);
        Span {
            trace_id: format!("{:032x}", context.trace_id),
            span_id: format!("{:016x}", context.span_id),
            parent_id: format!("{parent_id:016x}"),
            name: name.to_string(),
            kind,
            start_ns,
            end_ns: nanoseconds(end).max(start_ns),
            attributes: BTreeMap::new(),
            error: None,
        }
    }

    /// The same with an attribute.
    pub fn with(mut self, name: &str, value: impl Into<Attribute>) -> Span {
        self.attributes.insert(name.to_string(), value.into());
        self
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let passed = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(passed).unwrap_or(u64::MAX)
}

/// What an engine wants to know of an exchange besides its results.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// The span to which the exchange belongs, and the manager that exports spans.
    pub trace: Option<(TraceContext, PathBuf)>,
    /// Whether lines are wanted that the handler writes.
    pub wants_lines: bool,
}

/// Takes spans that have ended.
pub(crate) type Report = Box<dyn Fn(Vec<Span>) + Send>;

/// Records the spans of one exchange, and reports them when it ends.
pub(crate) struct Recorder {
    context: TraceContext,
    parent_id: u64,
    function: String,
    /// The same moment by both clocks.
    began: (Instant, SystemTime),
    spans: Vec<Span>,
    left_out: u64,
    failure: Option<Kind>,
    report: Report,
}

impl Recorder {
    pub(crate) fn new(context: TraceContext, parent_id: u64, function: &str, report: Report) -> Recorder {
        let began = (Instant::now(), SystemTime::now());
        let (spans, left_out, failure) = Default::default();
        Recorder { context, parent_id, function: function.to_string(), began, spans, left_out, failure, report }
    }

    fn at(&self, moment: Instant) -> SystemTime {
        self.began.1 + moment.saturating_duration_since(self.began.0)
    }

    fn add(&mut self, span: Span) {
        if self.spans.len() < MAX_SPANS {
            self.spans.push(span);
        } else {
            self.left_out += 1;
        }
    }

    /// A server was reached, by a transport.
    pub(crate) fn note_reached(&mut self, transport: &str) {
        let times = (self.began.1, self.at(Instant::now()));
        let span = Span::new(self.context.child(), self.context.span_id, ("reach server", SpanKind::Internal), times);
        self.add(span.with("transship.transport", transport));
    }

    /// A batch was answered that was sent at a time; its server says how long it computed, if it says that.
    pub(crate) fn note_answer(&mut self, number: u64, sent_at: Instant, rows: usize, compute_us: u64) {
        let context = self.context.of_batch(number);
        let (start, end) = (self.at(sent_at), self.at(Instant::now()));
        let span = Span::new(context, self.context.span_id, ("batch", SpanKind::Client), (start, end));
        self.add(span.with("transship.batch", number).with("transship.rows", rows as u64));
        if compute_us > 0 {
            // When it began to compute is not known: at the latest, so long before its answer came.
            let compute = std::time::Duration::from_micros(compute_us);
            let from = end.checked_sub(compute).map_or(start, |from| from.max(start));
            let name = (self.function.as_str(), SpanKind::Server);
            let server = Span::new(context.child(), context.span_id, name, (from, end));
            self.add(server.with("transship.compute_us", compute_us));
        }
    }

    /// The exchange failed. Of an error, a trace has the kind alone: its text may quote what the function was called with.
    pub(crate) fn note_failure(&mut self, kind: Kind) {
        self.failure = Some(kind);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let times = (self.began.1, self.at(Instant::now()));
        let mut span = Span::new(self.context, self.parent_id, ("exchange", SpanKind::Internal), times);
        span = span.with("transship.function", self.function.as_str());
        if self.left_out > 0 {
            span = span.with("transship.spans_left_out", self.left_out);
        }
        span.error = self.failure.and_then(|kind| serde_json::to_value(kind).ok()?.as_str().map(str::to_string));
        let mut spans = std::mem::take(&mut self.spans);
        spans.push(span);
        (self.report)(spans);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("context", &self.context).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn contexts_are_read_as_the_recommendation_says() {
        let context = TraceContext::parse(EXAMPLE).unwrap();
        assert_eq!((context.span_id, context.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.to_string(), EXAMPLE);
        assert!(!TraceContext::parse(&EXAMPLE.replace("-01", "-00")).unwrap().is_sampled);
        // Of a later version, whatever follows is left alone.
        assert_eq!(TraceContext::parse(&EXAMPLE.replacen("00", "cc", 1).replace("-01", "-01-what")), Some(context));
        for wrong in [
            "",
            "x",
            &EXAMPLE[1..],
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00", "ff", 1),
            &EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("{EXAMPLE}-x"),
            &EXAMPLE.replace('-', "_"),
            &"ü".repeat(40),
            &EXAMPLE.replacen("00-4", "+0-4", 1),
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans_of_batches_are_those_of_no_other() {
        let context = TraceContext { trace_id: 1, span_id: u64::MAX, is_sampled: true };
        let ids: Vec<u64> = (0..3).map(|number| context.of_batch(number).span_id).collect();
        assert!(ids.iter().all(|id| *id != 0 && *id != context.span_id), "{ids:?}");
        assert_ne!(context.child().span_id, context.span_id);
    }

    #[test]
    fn an_exchange_reports_bounded_spans_when_it_ends() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let context = TraceContext { trace_id: 7, span_id: 9, is_sampled: true };
        let report = move |spans| sender.send(spans).unwrap();
        let mut recorder = Recorder::new(context, 3, "f", Box::new(report));
        recorder.note_reached("shm");
        for number in 0..1000 {
            recorder.note_answer(number, Instant::now(), 5, 7);
        }
        recorder.note_failure(Kind::UserCode);
        drop(recorder);
        let spans = receiver.recv().unwrap();
        assert_eq!(spans.len(), MAX_SPANS + 1);
        let exchange = spans.last().unwrap();
        assert_eq!((exchange.name.as_str(), exchange.parent_id.as_str()), ("exchange", "0000000000000003"));
        assert_eq!(exchange.attributes["transship.spans_left_out"], Attribute::Number(2001 - MAX_SPANS as i64));
        assert_eq!(exchange.error.as_deref(), Some("user_code"));
        let (batch, server) = (&spans[1], &spans[2]);
        assert_eq!((&batch.parent_id, &server.parent_id), (&exchange.span_id, &batch.span_id));
        assert!(server.start_ns >= batch.start_ns && server.end_ns <= batch.end_ns);
    }
}
