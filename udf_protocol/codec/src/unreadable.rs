//! Why bytes are no reply.

use udf_types::Error;

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
    pub fn into_error(self, function: &str, most: usize, explain: impl FnOnce(String) -> Error) -> Error {
        match self {
            Unreadable::Misfit(fact) => explain(fact),
            Unreadable::TooLarge => Error::reply_too_large(function, most),
        }
    }
}
