//! `udf_protocol::Error` to an SQL error: SQLSTATE by kind (`docs/errors.md`), message, detail, hint and context.
//!
//! An error is raised as a panic, which runs the destructors of the frames it passes, and becomes PostgreSQL's error at
//! the border. The context is added there: [`with_context`] puts a callback on PostgreSQL's error context stack, and
//! that adds what [`raise_error`] left for it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::rc::Rc;

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use udf_protocol::{Error, Kind};

use crate::function::Function;

thread_local! {
    static CONTEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
    static READING: RefCell<Option<(Rc<Function>, usize)>> = const { RefCell::new(None) };
}

/// Says whose result, and which row of the batch, is being made an SQL value: PostgreSQL's own errors then say so too.
pub fn set_reading(result: Option<(Rc<Function>, usize)>) {
    READING.set(result);
}

/// Raises a protocol error as an SQL error; `context` says which call it was.
pub fn raise_error(error: &Error, context: Option<String>) -> ! {
    CONTEXT.set(context.map(|text| CString::new(text).unwrap_or_default()));
    // Foreign text may hold NUL characters, which end a C string.
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut report = ErrorReport::new(sqlstate(error.kind()), clean(error.message()), "transship");
    if let Some(detail) = error.detail() {
        report = report.set_detail(clean(detail));
    }
    if let Some(hint) = error.hint() {
        report = report.set_hint(clean(hint));
    }
    report.report(pg_sys::elog::PgLogLevel::ERROR);
    unreachable!("an error report does not return")
}

/// Raises on error.
pub fn unwrap<T>(result: udf_protocol::Result<T>) -> T {
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

unsafe extern "C-unwind" fn add_context(_: *mut c_void) {
    unsafe extern "C-unwind" {
        fn errcontext_msg(format: *const c_char, ...) -> c_int;
    }
    let reading = || {
        // Not taken: PostgreSQL asks again when the error passes the border.
        let text = READING.with_borrow(|reading| {
            let (function, row) = reading.as_ref()?;
            Some(format!("result of container function \"{}\", row {} of the batch", function.name, row + 1))
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
    // SAFETY: the text ends in NUL, and json is stored as text. JSON of ours is ASCII or UTF-8.
    unsafe {
        let length = i32::try_from(text.as_bytes().len()).unwrap_or(i32::MAX);
        let server = pg_sys::pg_any_to_server(text.as_ptr(), length, pg_sys::pg_enc::PG_UTF8 as i32);
        pg_sys::Datum::from(pg_sys::cstring_to_text(server))
    }
}

fn sqlstate(kind: Kind) -> PgSqlErrorCode {
    match kind {
        Kind::UserCode => PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
        Kind::BadResult => PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION,
        Kind::ContainerFailed | Kind::Unreachable | Kind::Timeout => PgSqlErrorCode::ERRCODE_CONNECTION_FAILURE,
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
    }
}
