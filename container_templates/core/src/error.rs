//! The one error that travels to a client (`docs/protocol.md` §5).

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt::{Debug, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallError {
    /// One of the kinds of §5.
    pub kind: &'static str,
    /// What happened.
    pub message: String,
    /// The row within the batch, from zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<usize>,
    /// Where in the handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
}

impl CallError {
    /// An error of a kind of §5, of no single row.
    pub fn new(kind: &'static str, message: impl Into<String>) -> CallError {
        CallError { kind, message: message.into(), row: None, traceback: None }
    }

    /// The handler's own error.
    pub fn user_code(message: impl Into<String>) -> CallError {
        CallError::new("user_code", message)
    }

    /// A result that is not of the declared type.
    pub fn bad_result(message: impl Into<String>) -> CallError {
        CallError::new("bad_result", message)
    }

    /// A request that breaks the protocol.
    pub fn violation(message: impl Into<String>) -> CallError {
        CallError::new("protocol_violation", message)
    }

    pub(crate) fn unknown_function(name: &str) -> CallError {
        CallError::new("function_not_found", format!("there is no function \"{name}\""))
    }

    /// The same error, of a row.
    pub fn at(mut self, row: usize) -> CallError {
        self.row = Some(row);
        self
    }

    /// Whether the handler raised it.
    pub fn is_of_handler(&self) -> bool {
        self.kind == "user_code"
    }
}

impl Display for CallError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

/// A handler's error in Rust: its text, and its `Debug` form as the traceback.
pub fn user_error(error: impl Display + Debug) -> CallError {
    CallError { traceback: Some(format!("{error:?}")), ..CallError::user_code(error.to_string()) }
}

thread_local! {
    static BACKTRACE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The row that the handler is at.
    static ROW: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Says which row the handler is at, for a panic.
pub fn at_row(row: usize) {
    ROW.set(Some(row));
}

/// Keeps where a panic came from; the rest of the program goes on.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let text = format!("{info}\n{}", Backtrace::force_capture());
        eprintln!("{text}");
        BACKTRACE.set(Some(text));
    }));
}

/// Runs the handler's code; a panic becomes an error.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, CallError>) -> Result<T, CallError> {
    ROW.set(None);
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|cause| {
        let mut error = CallError::user_code(format!("panic: {}", words_of(cause.as_ref())));
        error.row = ROW.get();
        error.traceback = BACKTRACE.take();
        Err(error)
    })
}

/// What a panic said.
pub(crate) fn words_of(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<&str>().copied();
    text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("of another type than text")
}
