//! What a session wants to know of its calls besides their results: a trace, and the lines that handlers write.
//!
//! A query's span begins with the first exchange of a statement, and is handed to the manager when the transaction ends or another
//! statement calls. Its parent is the span that `transship.traceparent` names.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use pgrx::pg_sys;
use pgrx::pg_sys::elog::PgLogLevel;
use udf_client::trace::{Observation, Span, SpanKind, TraceContext};

use crate::settings::LogHandlers;
use crate::{report, session, settings};

/// The statement whose exchanges are traced.
#[derive(Debug, Clone, Copy)]
struct Query {
    /// When PostgreSQL says that the statement began, which tells it from others.
    statement: pg_sys::TimestampTz,
    /// The span that the setting named then.
    parent: TraceContext,
    context: TraceContext,
    start: SystemTime,
    /// When the last of its exchanges ended.
    end: Option<SystemTime>,
}

thread_local! {
    static QUERY: RefCell<Option<Query>> = const { RefCell::new(None) };
    /// Whether there is one, so that nothing else is looked at where nobody traces.
    static IS_TRACING: Cell<bool> = const { Cell::new(false) };
}

/// What the session wants to know of an exchange that begins.
pub fn observation() -> Observation {
    let trace = settings::traceparent().and_then(|text| TraceContext::parse(&text));
    let trace = trace.map(|parent| (query_of(parent), settings::manager_socket()));
    Observation { trace, wants_lines: settings::log_handlers() != LogHandlers::Off }
}

/// The span of the statement that runs, which begins if none of its exchanges began before.
fn query_of(parent: TraceContext) -> TraceContext {
    // SAFETY: reads a variable of the process.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    let known = QUERY.with_borrow(|query| query.filter(|query| query.statement == statement && query.parent == parent));
    if let Some(query) = known {
        return query.context;
    }
    end_query();
    let context = parent.child();
    QUERY.set(Some(Query { statement, parent, context, start: SystemTime::now(), end: None }));
    IS_TRACING.set(true);
    context
}

/// An exchange has ended.
pub fn note_end() {
    if IS_TRACING.get() {
        QUERY.with_borrow_mut(|query| query.iter_mut().for_each(|query| query.end = Some(SystemTime::now())));
    }
}

/// Hands over the span of the statement that was traced last.
pub fn end_query() {
    if !IS_TRACING.replace(false) {
        return;
    }
    let Some(query) = QUERY.take().filter(|query| query.parent.is_sampled) else { return };
    // SAFETY: reads a variable of the process.
    let name = if unsafe { pg_sys::ParallelWorkerNumber } >= 0 { "parallel worker" } else { "query" };
    let times = (query.start, query.end.unwrap_or_else(SystemTime::now));
    let span = Span::new(query.context, query.parent.span_id, (name, SpanKind::Internal), times);
    let span = span.with("db.system.name", "postgresql").with("process.pid", u64::from(std::process::id()));
    session::report_spans(vec![span]);
}

/// Shows lines that a handler wrote, as the setting says. They come from a container, and nothing in them is trusted.
pub fn show_lines(function: &str, lines: &[String]) {
    let level = match settings::log_handlers() {
        LogHandlers::Off => return,
        LogHandlers::Notice => PgLogLevel::NOTICE,
        LogHandlers::Log => PgLogLevel::LOG,
    };
    for line in lines {
        report::say(level, &format!("container function \"{function}\": {line}"));
    }
}
