//! `udf_types::Error` to an SQL error: SQLSTATE by kind (`docs/errors.md`), message, detail, hint and context.
//!
//! An error is raised as a panic, which runs the destructors of the frames it passes, and becomes PostgreSQL's error at
//! the border. PostgreSQL's own errors pass Rust code in the same way. A panic carries message, detail and hint, in UTF-8, and those
//! SQLSTATEs that PostgreSQL itself raises. The rest comes back at the border: [`with_context`] puts a [`Frame`] on PostgreSQL's error context
//! stack, and its callback adds what was known of the error when it set out ([`Passed`]): its context, its SQLSTATE, the names of the objects
//! that it is about, and its texts in the database's encoding.
//!
//! A call within a call has a frame of its own, so that either says which function it calls, and PostgreSQL takes a frame off the
//! stack however its call ends.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use udf_types::{Advice, Error, Kind};

use crate::function::Function;
use crate::pg::{raw, text};

/// A call from PostgreSQL. It holds nothing to be dropped, since PostgreSQL's errors jump over it.
#[derive(Default)]
struct Frame {
    /// The result that is being made an SQL value, if there is one.
    reading: Cell<Option<Reading>>,
}

/// A function's result, and the row of the scan that it belongs to, counted from 1, if there is a scan.
#[derive(Clone, Copy)]
struct Reading {
    function: *const Function,
    row: Option<u64>,
}

impl Frame {
    /// Whose result is being read.
    fn context(&self) -> Option<CString> {
        let Reading { function, row } = self.reading.get()?;
        // SAFETY: while_reading ends the reading before it lets the function go.
        let name = unsafe { (*function).name_in_database.to_bytes() };
        let row = row.map(|row| format!(", row {row}")).unwrap_or_default();
        CString::new([b"result of container function \"", name, b"\"", row.as_bytes()].concat()).ok()
    }
}

/// An error on its way, from where it was raised until it is caught.
struct Passed {
    /// Message, detail and hint, as a panic carries them.
    carried: Texts<String>,
    /// The same in the database's encoding.
    meant: Texts<CString>,
    code: c_int,
    names: Names,
    /// Its context up to each frame that it has come to.
    contexts: Vec<(*const Frame, CString)>,
}

/// Message, detail and hint.
type Texts<T> = [Option<T>; 3];

/// The names of the schema, table, column, data type and constraint that an error is about.
type Names = [Option<CString>; 5];
/// Which fields of a report these are.
const NAME_FIELDS: [u8; 5] = [
    pg_sys::PG_DIAG_SCHEMA_NAME,
    pg_sys::PG_DIAG_TABLE_NAME,
    pg_sys::PG_DIAG_COLUMN_NAME,
    pg_sys::PG_DIAG_DATATYPE_NAME,
    pg_sys::PG_DIAG_CONSTRAINT_NAME,
];

thread_local! {
    static PASSED: RefCell<Option<Passed>> = const { RefCell::new(None) };
    /// Where reports are copied to. It has room for one from the start, since memory may have run out.
    static COPIES: Cell<pg_sys::MemoryContext> = const { Cell::new(std::ptr::null_mut()) };
}

/// Bytes of that room.
const COPY_BYTES: usize = 8192;

/// Has errors forgotten that were caught: PostgreSQL ends the subtransaction, or the transaction, in which they were raised.
pub fn install() {
    // SAFETY: the callbacks are static functions and take no argument. The context's name is a constant, as PostgreSQL demands.
    unsafe {
        let (parent, name) = (pg_sys::TopMemoryContext, c"errors of transship".as_ptr());
        COPIES.set(pg_sys::AllocSetContextCreateInternal(parent, name, COPY_BYTES, COPY_BYTES, COPY_BYTES));
        pg_sys::RegisterXactCallback(Some(forget_at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(forget_at_sub_end), std::ptr::null_mut());
        // With RUST_BACKTRACE in the server's environment, pgrx would send where its code lies to clients, as an error's detail. No thread of
        // ours runs yet.
        std::env::set_var("RUST_LIB_BACKTRACE", "0");
    }
}

extern "C-unwind" fn forget_at_end(_: pg_sys::XactEvent::Type, _: *mut c_void) {
    PASSED.set(None);
}

extern "C-unwind" fn forget_at_sub_end(
    _: pg_sys::SubXactEvent::Type,
    _: pg_sys::SubTransactionId,
    _: pg_sys::SubTransactionId,
    _: *mut c_void,
) {
    PASSED.set(None);
}

/// Makes an SQL value of a function's result, for a row of the scan, if there is one: PostgreSQL's own errors then say whose
/// result it was.
pub fn while_reading<T>(function: &Function, row: Option<u64>, read: impl FnOnce() -> T) -> T {
    /// Ends the reading, also while a panic passes: the function may be gone then.
    struct End<'a>(&'a Frame, Option<Reading>);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.reading.set(self.1);
        }
    }
    let _end = current_frame().map(|frame| End(frame, frame.reading.replace(Some(Reading { function, row }))));
    read()
}

/// The frame of the call from PostgreSQL that is under way; none if its caller has put none on the stack.
fn current_frame<'a>() -> Option<&'a Frame> {
    // SAFETY: PostgreSQL keeps the stack valid. An entry with our callback is one that with_context has made, and still there.
    unsafe {
        let top = pg_sys::error_context_stack.as_ref()?;
        let callback = top.callback?;
        std::ptr::fn_addr_eq(callback, add_context as Callback).then(|| &*top.arg.cast())
    }
}

/// Raises a protocol error as an SQL error; `context` says which call it was.
pub fn raise_error(error: &Error, context: Option<String>) -> ! {
    let report = report_as(error);
    if let Some(frame) = current_frame() {
        // The reading ends while the panic passes.
        let context = context.map(|context| text::to_server_or_marks(&context)).or_else(|| frame.context());
        let context = context.map(|context| (std::ptr::from_ref(frame), context));
        PASSED.with_borrow_mut(|passed| passed.iter_mut().for_each(|passed| passed.contexts.extend(context.clone())));
    }
    report.report(pg_sys::elog::PgLogLevel::ERROR);
    unreachable!("an error report does not return")
}

/// Says what an error would say, and goes on.
pub fn warn(error: &Error) {
    let texts = [Some(error.message()), error.detail(), hint_of(error)];
    tell(pg_sys::elog::PgLogLevel::WARNING, sqlstate(error.kind()), texts);
}

/// Tells the client, or the server's log, something that is no error.
pub fn say(level: pg_sys::elog::PgLogLevel, message: &str) {
    tell(level, PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, [Some(message), None, None]);
}

/// Makes a report below an error, with a mark for each character that the database or the client has none for. What is raised
/// meanwhile, as by a cancelled query, passes as a panic: pgrx's own reports of these levels have PostgreSQL's errors jump over
/// the frames of their callers.
fn tell(level: pg_sys::elog::PgLogLevel, code: PgSqlErrorCode, texts: Texts<&str>) {
    // SAFETY: reads a variable of the process.
    let is_sent = level as c_int >= unsafe { pg_sys::client_min_messages };
    let readable = |text| if is_sent { text::that_client_reads(text) } else { Cow::from(text) };
    let texts = texts.map(|text| text.map(|text| text::to_server_or_marks(&readable(text))));
    let [message, detail, hint] = &texts;
    // SAFETY: PostgreSQL copies the texts. The boundary's frame owns nothing that would have to be dropped.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if errstart(level as c_int, std::ptr::null()) {
                errcode(code as c_int);
                put([message, detail, hint].map(Option::as_deref));
                errfinish(c"transship".as_ptr(), 0, std::ptr::null());
            }
        });
    }
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
        Advice::FunctionName => "Name one of them with the key \"function\" in the function body.",
        Advice::ReplySize => {
            "Raise transship.max_reply_size, or lower transship.batch_rows so that a reply answers fewer rows."
        }
    }))
}

fn report_as(error: &Error) -> ErrorReport {
    let texts = [Some(error.message()), error.detail(), hint_of(error)];
    let carried = texts.map(|text| text.map(carry));
    let meant = texts.map(|text| text.map(text::to_server_or_marks));
    let code = sqlstate(error.kind());
    let (names, contexts) = (Names::default(), Vec::new());
    PASSED.set(Some(Passed { carried: carried.clone(), meant, code: code as c_int, names, contexts }));
    let [message, detail, hint] = carried;
    let mut report = ErrorReport::new(code, message.unwrap_or_default(), "transship");
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

/// A frame and its entry on PostgreSQL's error context stack.
pub struct Border {
    entry: pg_sys::ErrorContextCallback,
    frame: Frame,
}

impl Default for Border {
    fn default() -> Border {
        let (previous, arg) = (std::ptr::null_mut(), std::ptr::null_mut());
        let entry = pg_sys::ErrorContextCallback { previous, callback: Some(add_context), arg };
        Border { entry, frame: Frame::default() }
    }
}

/// Calls `work` so that errors that pass it keep their context.
///
/// # Safety
/// To be called from a callback of PostgreSQL that is not itself guarded; `work` is guarded: it leaves by returning or by
/// PostgreSQL's error, which jumps over this frame. PostgreSQL restores its stack then. `work` begins no query that goes on when
/// this has returned, as a node of a plan does ([`with_context_of`]).
pub unsafe fn with_context<T: Copy>(work: impl FnOnce() -> T + Copy) -> T {
    let mut border = Border::default();
    // SAFETY: the entry is on the stack only while this frame is, or until an error restores the stack.
    unsafe { with_context_of(&raw mut border, work) }
}

/// As [`with_context`], for the calls of a node of a plan: a Gather below starts its workers with the stack that it finds, and what
/// they say comes with that stack for as long as they run, between these calls and behind the last, too. So the border lies where
/// the node does.
///
/// # Safety
/// As for [`with_context`]. The border lives as long as the query, and no call of the same node is under way.
pub unsafe fn with_context_of<T: Copy>(border: *mut Border, work: impl FnOnce() -> T + Copy) -> T {
    // SAFETY: the caller says so. Below the entry are those of calls that began before this one: they are there as long as
    // PostgreSQL needs them, as it keeps the stack for its own workers in the same way.
    unsafe {
        let before = pg_sys::error_context_stack;
        (*border).entry.previous = before;
        (*border).entry.arg = (&raw mut (*border).frame).cast();
        pg_sys::error_context_stack = &raw mut (*border).entry;
        let result = work();
        pg_sys::error_context_stack = before;
        result
    }
}

type Callback = unsafe extern "C-unwind" fn(*mut c_void);

// pgrx leaves them out.
unsafe extern "C-unwind" {
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
    fn errcode(code: c_int) -> c_int;
    fn errmsg_internal(format: *const c_char, ...) -> c_int;
    fn errdetail_internal(format: *const c_char, ...) -> c_int;
    fn errhint(format: *const c_char, ...) -> c_int;
    fn errcontext_msg(format: *const c_char, ...) -> c_int;
    fn err_generic_string(field: c_int, text: *const c_char) -> c_int;
    // Without pgrx's guard: an error in a callback goes where PostgreSQL's go, and no panic passes its frames.
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
}

/// A report that PostgreSQL is building.
struct Report {
    is_error: bool,
    texts: Texts<CString>,
    code: c_int,
    names: Names,
    /// What callbacks before have added.
    context: Option<CString>,
}

impl Report {
    /// The report as it is now.
    ///
    /// # Safety
    /// To be called while PostgreSQL builds a report.
    unsafe fn read() -> Report {
        // SAFETY: the caller says so. The copy is made where the report is not, and freed. An error in between leaves the context
        // switched, as PostgreSQL expects, and jumps over frames that hold nothing to be dropped.
        unsafe {
            let (copies, before) = (COPIES.get(), pg_sys::CurrentMemoryContext);
            raw::memory_context_reset(copies);
            pg_sys::CurrentMemoryContext = copies;
            let report = CopyErrorData();
            pg_sys::CurrentMemoryContext = before;
            let (schema, table, column) = ((*report).schema_name, (*report).table_name, (*report).column_name);
            let owned = |text: *mut c_char| (!text.is_null()).then(|| CStr::from_ptr(text).to_owned());
            let read = Report {
                is_error: (*report).elevel >= pg_sys::elog::PgLogLevel::ERROR as i32,
                texts: [(*report).message, (*report).detail, (*report).hint].map(owned),
                code: (*report).sqlerrcode,
                names: [schema, table, column, (*report).datatype_name, (*report).constraint_name].map(owned),
                context: owned((*report).context),
            };
            raw::memory_context_reset(copies);
            read
        }
    }
}

/// The callback of a frame: adds what a panic could not carry, and whose result was being read, and notes the error, which may
/// pass Rust code on its way and be reported once more.
unsafe extern "C-unwind" fn add_context(frame: *mut c_void) {
    let frame = frame.cast_const().cast::<Frame>();
    // SAFETY: PostgreSQL calls this while it builds a report, with a frame that is on its stack, and copies the texts.
    unsafe {
        let report = Report::read();
        let mut context = report.context.clone();
        let mut add = |text: &CStr| {
            pg_sys::set_errcontext_domain(std::ptr::null());
            errcontext_msg(c"%s".as_ptr(), text.as_ptr());
            let before = context.take().map(|context| [context.to_bytes(), b"\n"].concat()).unwrap_or_default();
            context = CString::new([&before, text.to_bytes()].concat()).ok();
        };
        let carried = report.texts.clone().map(|text| text.map(|text| text.to_string_lossy().into_owned()));
        let is_same = |passed: &mut Passed| passed.carried == carried || passed.meant == report.texts;
        let passed = PASSED.with_borrow_mut(|passed| passed.take_if(is_same));
        let mut passed = passed.unwrap_or_else(|| Passed {
            carried,
            meant: report.texts.clone(),
            code: report.code,
            names: report.names.clone(),
            contexts: Vec::new(),
        });
        if passed.meant != report.texts {
            put(passed.meant.each_ref().map(Option::as_deref));
        }
        if passed.code != report.code {
            errcode(passed.code);
        }
        for ((field, meant), found) in NAME_FIELDS.into_iter().zip(&passed.names).zip(&report.names) {
            if let (Some(name), None) = (meant, found) {
                err_generic_string(c_int::from(field), name.as_ptr());
            }
        }
        let known = passed.contexts.iter().find(|(of, _)| *of == frame).filter(|_| report.context.is_none());
        if let Some(own) = known.map(|(_, known)| known.clone()).or_else(|| (*frame).context()) {
            add(&own);
        }
        if report.is_error {
            passed.contexts.retain(|(of, _)| *of != frame);
            passed.contexts.extend(context.map(|context| (frame, context)));
            PASSED.set(Some(passed));
        }
    }
}

/// Puts the texts of a report in the database's encoding in place.
///
/// # Safety
/// To be called while PostgreSQL builds a report.
unsafe fn put([message, detail, hint]: Texts<&CStr>) {
    // SAFETY: the caller says so; PostgreSQL copies the texts.
    unsafe {
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

/// JSON as a value of PostgreSQL's type json, of which every member can be taken as text: with a mark for each character that there is
/// none for in the database.
pub fn json_datum(value: &serde_json::Value) -> pg_sys::Datum {
    fn mark(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = text::with_marks(text).into_owned(),
            serde_json::Value::Array(values) => values.iter_mut().for_each(mark),
            serde_json::Value::Object(members) => members.values_mut().for_each(mark),
            _ => {}
        }
    }
    let mut value = value.clone();
    mark(&mut value);
    let text = text::to_server_or_marks(&value.to_string());
    // SAFETY: the text ends in NUL, and json is stored as text.
    unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text(text.as_ptr())) }
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
