//! Bytes to record batches and back, without any I/O.

pub mod adapt;
pub mod arrow_ipc;
pub mod columns;
pub mod json;
pub mod json_reply;
pub mod json_text;
pub mod parquet;

use crate::error::Error;

/// Why a reply was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// A sentence that says what does not fit.
    Misfit(String),
    /// It needs more memory than it may have.
    TooLarge,
}

impl From<String> for Unreadable {
    fn from(fact: String) -> Unreadable {
        Unreadable::Misfit(fact)
    }
}

impl Unreadable {
    /// The error of a function whose replies may have `most` bytes; `explain` makes one of a misfit.
    pub(crate) fn into_error(self, function: &str, most: usize, explain: impl FnOnce(String) -> Error) -> Error {
        match self {
            Unreadable::Misfit(fact) => explain(fact),
            Unreadable::TooLarge => Error::reply_too_large(function, most),
        }
    }
}
