//! What the status of a gRPC stream means: the server's or its handler's words, a gateway's, or those of the library on this side.

use std::error::Error as _;

use tonic::{Code, Status};
use udf_codec::wire::shorten;
use udf_types::Error;
use udf_types::terminal::printable;

use crate::transport::innermost;

/// With which gRPC's servers refuse a stream for want of a thread.
const NO_THREAD: &str = "Server Threadpool Exhausted";
/// How the library begins its own words for messages that are not gRPC's.
const NOT_GRPC: [&str; 6] = [
    "protocol error: ",
    "Error decompressing: ",
    "Unexpected EOF decoding stream",
    "Missing response message",
    "failed to decode Protobuf message",
    "grpc-status header missing",
];

/// Whether a status was made on this side because the bytes did not travel, or says the server is not there.
/// Statuses that a server sent have no source. Their codes say nothing reliable about the user's code
/// (a Python KeyError arrives as NOT_FOUND), so they are not interpreted further.
pub(super) fn is_transport_failure(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

/// Whether a status says nothing of the function, whoever made it.
pub(super) fn is_of_transport(status: &Status) -> bool {
    is_transport_failure(status) || is_denial(status) || is_refusal(status) || is_not_grpc(status)
}

/// Whether the server, or a gateway before it, does not let this client in. Handlers do not end so by mistake: Arrow's servers
/// have these codes for exceptions of their own alone, and a Python PermissionError arrives as UNKNOWN.
pub(super) fn is_denial(status: &Status) -> bool {
    status.source().is_none() && matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
}

/// What a server said beside the code of its status.
pub(super) fn words_of(status: &Status) -> String {
    match status.message().trim_end_matches('.') {
        "" => format!("Its gRPC status is {:?}", status.code()),
        words => {
            let mut words = words.to_string();
            shorten(&mut words);
            format!("It said: {}", printable(&words))
        }
    }
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message() == NO_THREAD
}

fn is_not_grpc(status: &Status) -> bool {
    status.source().is_none() && NOT_GRPC.iter().any(|words| status.message().starts_with(words))
}

/// The error of a stream whose messages may have `most` bytes.
pub(super) fn reply_error(function: &str, status: &Status, most: usize) -> Error {
    match is_too_large(status) {
        true => Error::reply_too_large(function, most),
        false => status_error(function, status),
    }
}

fn is_too_large(status: &Status) -> bool {
    // The library's own words; a server that says them is no better off.
    let words = ["message length too large", "exceeded while decompressing"];
    words.iter().any(|words| status.message().contains(words))
}

/// Whether the server itself ended the call with this status, so that it is not at it any more.
pub(super) fn is_from_server(status: &Status) -> bool {
    let may_be_of_others = is_transport_failure(status) || is_not_grpc(status) || is_too_large(status);
    !may_be_of_others && !matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded)
}

/// Whether nothing of the call was sent, since there was no connection to send it on.
pub(super) fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(found) = cause {
        if found.is::<tonic::ConnectError>() {
            return true;
        }
        cause = found.source();
    }
    false
}

pub(super) fn status_error(function: &str, status: &Status) -> Error {
    if is_transport_failure(status) {
        return Error::connection_lost(function, say(status));
    }
    if is_denial(status) {
        return Error::refused(&format!("the server of container function \"{function}\""), words_of(status));
    }
    if is_refusal(status) {
        return Error::busy(function, "The server has no thread left for another stream.");
    }
    if is_not_grpc(status) {
        let message = status.message().trim_end_matches('.');
        return Error::protocol(function, format!("Its answer is not gRPC: {message}."));
    }
    // Arrow's Python servers append the traceback to the message.
    let (message, traceback) = match status.message().split_once(". Detail: Python exception: ") {
        Some((message, traceback)) => (message, Some(traceback.to_string())),
        None => (status.message(), None),
    };
    Error::user_code(function, message, None, traceback)
}

/// The innermost cause: "connection refused" rather than "transport error".
pub(super) fn say(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_string(), innermost)
}
