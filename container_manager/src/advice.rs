//! The command line's words for what the protocol advises.

use udf_types::{Advice, Error};

/// The error with its advice in words.
pub fn advised(error: Error) -> Error {
    let hint = match error.advice() {
        None => return error,
        Some(Advice::Manager) => "Start transshipd, or name the socket that it listens on with --socket.",
        Some(Advice::Token) => "Give a token that the server accepts with --token.",
        Some(Advice::PlaintextSecrets) => "Use grpcs:// or https://.",
        Some(Advice::ServerDialect) => "A server that an engine knows by name has its dialect there.",
        Some(Advice::Flight) => "Choose Flight, if the server offers it.",
        Some(Advice::FunctionName) => "Name one of them.",
        Some(Advice::BatchTimeout | Advice::BatchRows | Advice::ReplySize) => "Lower the number of rows in a batch.",
    };
    error.with_hint(hint)
}
