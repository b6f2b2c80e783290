//! `udf_types::Error` to an SQL error: SQLSTATE by kind (`docs/errors.md`), message, detail, hint and context.
//!
//! An error is raised as a panic, which runs the destructors of the frames it passes, and becomes PostgreSQL's error at
//! the border. The context is added there: [`with_context`] puts a callback on PostgreSQL's error context stack, and
//! that adds what [`raise_error`] left for it.
//!
//! In a database of another encoding than UTF-8 the callback also puts the texts in place: a panic carries UTF-8 alone, into
//! which neither ours, once converted, nor those of PostgreSQL's own errors fit.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::rc::Rc;

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use udf_types::{Advice, Error, Kind};

use crate::function::Function;
use crate::pg::memory::within;
use crate::pg::text;

thread_local! {
    static CONTEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
    static TEXTS: RefCell<Option<Texts>> = const { RefCell::new(None) };
    static READING: RefCell<Option<(Rc<Function>, usize)>> = const { RefCell::new(None) };
}

/// The texts of an error on its way to the border.
struct Texts {
    /// Message, detail and hint, as the panic carries them.
    carried: [Option<String>; 3],
    /// The same in the database's encoding.
    meant: [Option<CString>; 3],
}

/// Says whose result, and which row of the batch, is being made an SQL value: PostgreSQL's own errors then say so too.
pub fn set_reading(result: Option<(Rc<Function>, usize)>) {
    READING.set(result);
}

/// Raises a protocol error as an SQL error; `context` says which call it was.
pub fn raise_error(error: &Error, context: Option<String>) -> ! {
    CONTEXT.set(context.map(|context| text::to_server_or_marks(&context)));
    report_as(error).report(pg_sys::elog::PgLogLevel::ERROR);
    unreachable!("an error report does not return")
}

/// Says what an error would say, and goes on.
pub fn warn(error: &Error) {
    report_as(error).report(pg_sys::elog::PgLogLevel::WARNING);
}

/// Tells the client, or the server's log, something that is no error.
pub fn say(level: pg_sys::elog::PgLogLevel, message: &str) {
    // The callback that puts texts in place may not be there: in another encoding than UTF-8, a message has what that can hold.
    let message = if text::is_utf8() { carry(message) } else { text::to_ascii(message) };
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "transship").report(level);
}

/// What an error advises, in this engine's words.
pub fn hint_of(error: &Error) -> Option<&str> {
    error.hint().or(error.advice().map(|advice| match advice {
        Advice::Manager => "Start transshipd, or set transship.manager_socket to the socket it listens on.",
        Advice::Token => {
            "Set a token that the server accepts, in PostgreSQL with CREATE USER MAPPING ... OPTIONS (token '...') for the \
             function's server."
        }
        Advice::PlaintextSecrets => {
            "Use grpcs:// or https://, or allow it with the server's option plaintext_secrets 'on' where the network is trusted."
        }
        Advice::ServerDialect => "A server that is named by CREATE SERVER has its dialect as an option.",
        Advice::Flight => {
            "Set transport = \"flight\" in the function body, or transship.transport, if its server offers Flight."
        }
        Advice::BatchTimeout => "Raise transship.batch_timeout, or timeout_ms in the function body.",
        Advice::BatchRows => "Lower transship.batch_rows, or the batch size of the function.",
        Advice::ReplySize => {
            "Raise transship.max_reply_size, or lower transship.batch_rows so that a reply answers fewer rows."
        }
    }))
}

fn report_as(error: &Error) -> ErrorReport {
    let texts = [Some(error.message()), error.detail(), hint_of(error)];
    let carried = texts.map(|text| text.map(carry));
    let meant = || texts.map(|text| text.map(text::to_server_or_marks));
    let is_meant = texts.iter().flatten().zip(carried.iter().flatten()).all(|(text, carried)| text == carried);
    TEXTS.set((!is_meant).then(|| Texts { carried: carried.clone(), meant: meant() }));
    let [message, detail, hint] = carried;
    let mut report = ErrorReport::new(sqlstate(error.kind()), message.unwrap_or_default(), "transship");
    if let Some(detail) = detail {
        report = report.set_detail(detail);
    }
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report
}

/// A text as a panic carries it, which may come to a border where no callback is.
fn carry(text: &str) -> String {
    // Foreign text may hold NUL characters, which end a C string.
    if text::is_utf8() { text.replace('\0', "\u{fffd}") } else { text::to_ascii(text) }
}

/// Raises on error.
pub fn unwrap<T>(result: udf_types::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => raise_error(&error, None),
    }
}

/// Calls `work` so that errors raised in it carry their context.
///
/// # Safety
/// To be called from a callback of PostgreSQL that is not itself guarded; `work` is guarded: it leaves by returning or by
/// PostgreSQL's error, which jumps over this frame. PostgreSQL restores its stack then.
pub unsafe fn with_context<T: Copy>(work: impl FnOnce() -> T + Copy) -> T {
    // SAFETY: the callback is on the stack only while this frame is, or until an error restores the stack.
    unsafe {
        let mut callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(add_context),
            arg: std::ptr::null_mut(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let result = work();
        pg_sys::error_context_stack = callback.previous;
        result
    }
}

// pgrx leaves them out.
unsafe extern "C-unwind" {
    fn errmsg_internal(format: *const c_char, ...) -> c_int;
    fn errdetail_internal(format: *const c_char, ...) -> c_int;
    fn errhint(format: *const c_char, ...) -> c_int;
    fn errcontext_msg(format: *const c_char, ...) -> c_int;
}

/// Puts the texts of an error that was carried here in place, and notes those of one that is raised.
///
/// # Safety
/// To be called while PostgreSQL builds a report.
unsafe fn restore_texts() {
    // SAFETY: the caller says so. The copy is made where the report is not, and freed; PostgreSQL copies what it is given.
    unsafe {
        let report = within(pg_sys::TopMemoryContext, || pg_sys::CopyErrorData());
        let found = [(*report).message, (*report).detail, (*report).hint]
            .map(|text| (!text.is_null()).then(|| CStr::from_ptr(text).to_owned()));
        pg_sys::FreeErrorData(report);
        let carried = found.clone().map(|text| text.map(|text| text.to_string_lossy().into_owned()));
        let is_carried = TEXTS.with_borrow(|texts| texts.as_ref().is_some_and(|texts| texts.carried == carried));
        if !is_carried {
            let is_ascii = found.iter().flatten().all(|text| text.to_bytes().is_ascii());
            TEXTS.set((!is_ascii).then_some(Texts { carried, meant: found }));
            return;
        }
        let Some(Texts { meant: [message, detail, hint], .. }) = TEXTS.take() else { return };
        if let Some(message) = message {
            errmsg_internal(c"%s".as_ptr(), message.as_ptr());
        }
        if let Some(detail) = detail {
            errdetail_internal(c"%s".as_ptr(), detail.as_ptr());
        }
        if let Some(hint) = hint {
            errhint(c"%s".as_ptr(), hint.as_ptr());
        }
    }
}

unsafe extern "C-unwind" fn add_context(_: *mut c_void) {
    if !text::is_utf8() {
        // SAFETY: PostgreSQL calls this while it builds a report.
        unsafe { restore_texts() };
    }
    let reading = || {
        // Not taken: PostgreSQL asks again when the error passes the border.
        let text = READING.with_borrow(|reading| {
            let (function, row) = reading.as_ref()?;
            let name = function.name_in_database.to_bytes();
            let row = format!("\", row {} of the batch", row + 1);
            Some([b"result of container function \"", name, row.as_bytes()].concat())
        });
        CString::new(text?).ok()
    };
    if let Some(text) = CONTEXT.take().or_else(reading) {
        // SAFETY: PostgreSQL calls this while it builds a report, and copies the text.
        unsafe {
            pg_sys::set_errcontext_domain(std::ptr::null());
            errcontext_msg(c"%s".as_ptr(), text.as_ptr());
        }
    }
}

/// JSON as a value of PostgreSQL's type json.
pub fn json_datum(value: &serde_json::Value) -> pg_sys::Datum {
    let text = CString::new(value.to_string()).unwrap_or_default();
    // SAFETY: the text ends in NUL, and json is stored as text.
    unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text(text::to_server(&text))) }
}

fn sqlstate(kind: Kind) -> PgSqlErrorCode {
    match kind {
        Kind::UserCode => PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
        Kind::BadResult => PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION,
        Kind::ContainerFailed | Kind::Unreachable | Kind::Timeout => PgSqlErrorCode::ERRCODE_CONNECTION_FAILURE,
        Kind::Busy => PgSqlErrorCode::ERRCODE_TOO_MANY_CONNECTIONS,
        Kind::Cancelled => PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
        Kind::ProtocolViolation => PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
        Kind::UnsupportedType => PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        Kind::ImageNotFound => PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        Kind::FunctionNotFound => PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
        Kind::SignatureMismatch | Kind::InvalidDefinition | Kind::BuildFailed => {
            PgSqlErrorCode::ERRCODE_INVALID_FUNCTION_DEFINITION
        }
        Kind::NotAllowed => PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        Kind::OutOfRange => PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
        Kind::OutOfMemory => PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The five characters of a SQLSTATE, six bits each (utils/elog.h).
    fn text_of(code: PgSqlErrorCode) -> String {
        (0..5).map(|i| char::from(((code as u32 >> (6 * i)) & 0x3f) as u8 + b'0')).collect()
    }

    #[test]
    fn sqlstates_are_those_of_the_documentation() {
        let document = include_str!("../../docs/errors.md");
        // The first table is that of the kinds.
        let rows =
            document.lines().skip_while(|line| !line.starts_with("| `")).map_while(|line| line.strip_prefix("| `"));
        let mut found = 0;
        for row in rows {
            let (name, rest) = row.split_once('`').unwrap();
            // | origin | what happened | SQLSTATE |
            let Some(documented) = rest.split('|').nth(3).map(str::trim) else { continue };
            let kind: Kind = serde_json::from_value(name.into()).unwrap();
            assert_eq!(text_of(sqlstate(kind)), documented, "{name}");
            found += 1;
        }
        assert_eq!(found, 17);
    }
}
