//! What the status of an HTTP answer means, if it is not 200: a server says what went wrong, or a gateway before it.

use http::StatusCode;
use serde::Deserialize;
use udf_codec::wire::WireError;
use udf_types::{Error, Kind};

#[derive(Debug, Deserialize)]
struct ErrorBody {
    error: WireError,
}

/// The error that an answer with another status than 200 stands for.
pub(crate) fn error_of(function: &str, status: StatusCode, body: &[u8]) -> Error {
    let said = serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error);
    // Gateways have errors in JSON too, but none with a kind.
    let by_status = || error_of_gateway(function, status, None);
    match said {
        Some(error) if error.kind.is_some() => error.into_error(function),
        Some(error) => by_status().unwrap_or_else(|| error.into_error(function)),
        None => {
            by_status().unwrap_or_else(|| Error::protocol(function, format!("It answered with HTTP status {status}.")))
        }
    }
}

/// The error of a status with which gateways answer in place of a server, and what they say besides.
pub(crate) fn error_of_gateway(function: &str, status: StatusCode, words: Option<&str>) -> Option<Error> {
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    let fact = format!("It answered with HTTP status {status}{words}");
    match kind_of_gateway(status)? {
        Kind::NotAllowed => Some(Error::refused(&format!("the server of container function \"{function}\""), &fact)),
        _ => Some(Error::connection_lost(function, fact)),
    }
}

/// Whether a status says that a request did not get as far as a handler: it is for another place, or not in a form that is taken.
pub(crate) fn is_of_request(status: StatusCode) -> bool {
    status.is_redirection()
        || matches!(
            status.as_u16(),
            404 | 405 | 406 | 407 | 410 | 411 | 413 | 414 | 415 | 421 | 426 | 431 | 501 | 505 | 511
        )
}

/// What a status says of the way to a server, if it does: the client is refused, or nobody took the request.
pub(crate) fn kind_of_gateway(status: StatusCode) -> Option<Kind> {
    match status.as_u16() {
        401 | 403 => Some(Kind::NotAllowed),
        408 | 429 | 502 | 503 | 504 => Some(Kind::Unreachable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateways_status_is_no_breach_of_the_protocol_and_no_exception() {
        let kind = |status, body: &str| error_of("f", StatusCode::from_u16(status).unwrap(), body.as_bytes()).kind();
        for status in [401, 403] {
            assert_eq!(kind(status, "<html>"), Kind::NotAllowed);
            assert_eq!(kind(status, r#"{"error": {"message": "who are you"}}"#), Kind::NotAllowed);
        }
        for status in [408, 429, 502, 503, 504] {
            assert_eq!(kind(status, "<html>"), Kind::Unreachable);
            assert_eq!(kind(status, r#"{"error": {}}"#), Kind::Unreachable);
        }
        assert_eq!(kind(503, r#"{"error": {"kind": "busy", "message": "no"}}"#), Kind::Busy);
        assert_eq!(kind(500, r#"{"error": {"message": "no"}}"#), Kind::UserCode);
        assert_eq!(kind(500, "<html>"), Kind::ProtocolViolation);
    }
}
