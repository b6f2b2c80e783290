//! The small messages of the protocol, in JSON over every transport: a greeting, a function's description, an error
//! (`docs/protocol.md` §2, §3, §5).

use std::borrow::Cow;

use serde::Deserialize;
use udf_types::limits::MAX_ERROR_BYTES;
use udf_types::signature::{Argument, FunctionKind, Signature};
use udf_types::terminal::printable;
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Error, Kind};

/// Version of `docs/protocol.md` that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// The content type of columns as they lie in memory.
pub const COLUMNS: &str = "application/vnd.transship.columns";

/// The field of a call that names the shared tables that the server was offered for it (`docs/protocol.md` §4.13).
pub const TABLES: &str = "transship-tables";

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ServerInfo {
    /// Version of the protocol; 0 for a server that speaks only what arrow-udf speaks.
    pub protocol: u32,
    /// Name and version of the server.
    #[serde(default)]
    pub server: String,
    /// Names of its functions.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Names of the transports it offers; none given means Flight and JSON.
    #[serde(default)]
    pub transports: Option<Vec<String>>,
    /// Whether it takes requests on a connection before the last one is answered (§7); left out means yes.
    #[serde(default)]
    pub pipelining: Option<bool>,
    /// Whether it takes columns of one row that stand for all (§7.11).
    #[serde(default)]
    pub constants: bool,
    /// Whether connections that no exchange uses take no threads of it, so that clients may keep them (§7.12).
    #[serde(default)]
    pub keep_alive: bool,
    /// Whether it goes on after a row on which the handler raises an error, where a client asks for that (§4.9).
    #[serde(default)]
    pub row_errors: bool,
    /// Whether a reply has the lines that the handler wrote meanwhile, where a client asks for them (§4.11).
    #[serde(default)]
    pub lines: bool,
    /// Whether handlers can read shared tables that a client offers (§10).
    #[serde(default)]
    pub tables: bool,
}

impl ServerInfo {
    /// Whether the server offers a transport.
    pub fn offers(&self, transport: TransportName) -> bool {
        match &self.transports {
            Some(names) => names.iter().any(|name| name == transport.name()),
            None => matches!(transport, TransportName::Flight | TransportName::Json),
        }
    }
}

/// A function as `GET /v1/functions/NAME` describes it, `docs/protocol.md` §6.
#[derive(Debug, Deserialize)]
pub struct FunctionInfo {
    arguments: Vec<ArgumentInfo>,
    returns: Type,
    #[serde(default)]
    kind: FunctionKind,
}

#[derive(Debug, Deserialize)]
struct ArgumentInfo {
    #[serde(default)]
    name: String,
    #[serde(rename = "type")]
    ty: Type,
}

impl FunctionInfo {
    /// The signature that it describes.
    ///
    /// # Errors
    /// If an attribute has no name: values of a composite type go by their names here, so one without would be lost.
    pub fn into_signature(self, function: &str) -> Result<Signature, Error> {
        if self.returns.has_nameless_parts() || self.arguments.iter().any(|argument| argument.ty.has_nameless_parts()) {
            return Err(Error::protocol(function, "An attribute of a type in its signature has no name."));
        }
        let arguments = self.arguments.into_iter().map(|argument| Argument { name: argument.name, ty: argument.ty });
        Ok(Signature {
            function: function.to_string(),
            kind: self.kind,
            arguments: arguments.collect(),
            result: self.returns,
            row_errors: None,
        })
    }
}

/// An error as a server sends it (`docs/protocol.md` §5).
#[derive(Debug, Default, Deserialize)]
pub struct WireError {
    #[serde(default)]
    /// What happened; the server may leave it out.
    pub kind: Option<Kind>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    row: Option<u64>,
    #[serde(default)]
    traceback: Option<String>,
}

impl WireError {
    /// The error of a function's caller. Texts are cut to [`MAX_ERROR_BYTES`], and command no terminal.
    pub fn into_error(mut self, function: &str) -> Error {
        for text in [Some(&mut self.message), self.traceback.as_mut()].into_iter().flatten() {
            shorten(text);
            if let Cow::Owned(printable) = printable(text) {
                *text = printable;
            }
        }
        let at_row = |error: Error| match self.row {
            Some(row) => error.with_row(row),
            None => error,
        };
        match self.kind {
            Some(Kind::BadResult) => at_row(Error::bad_result(function, self.message)),
            Some(Kind::Busy) => Error::busy(function, format!("The server said: {}.", self.message)),
            Some(Kind::FunctionNotFound) => Error::function_not_found(function, "the container", &[]),
            Some(Kind::ProtocolViolation) => {
                Error::protocol(function, format!("It refused the request: {}.", self.message))
            }
            Some(Kind::OutOfRange) => at_row(
                Error::new(Kind::OutOfRange, format!("container function \"{function}\" cannot take a value"))
                    .with_detail(self.message),
            ),
            Some(Kind::UserCode) => Error::user_code(function, &self.message, self.row, self.traceback),
            // A gateway's, or of a kind that servers do not say.
            _ => Error::user_code(function, &self.message, self.row, self.traceback).with_doubt(),
        }
    }
}

/// Cuts a foreign text to [`MAX_ERROR_BYTES`]; its end says more than its middle.
pub fn shorten(text: &mut String) {
    if text.len() <= MAX_ERROR_BYTES {
        return;
    }
    let head = (0..=MAX_ERROR_BYTES / 2).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let tail = (text.len() - MAX_ERROR_BYTES / 2..text.len()).find(|start| text.is_char_boundary(*start));
    *text = format!("{}\n[...]\n{}", &text[..head], &text[tail.unwrap_or(text.len())..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_errors_are_cut_at_characters() {
        let long = "é".repeat(MAX_ERROR_BYTES);
        let error = WireError { message: long.clone(), traceback: Some(long), ..WireError::default() };
        let error = error.into_error("f");
        assert!(error.message().len() < 2 * MAX_ERROR_BYTES && error.message().contains("[...]"));
        assert!(error.detail().unwrap().len() < 2 * MAX_ERROR_BYTES);
    }

    #[test]
    fn errors_command_no_terminal() {
        let (message, traceback) = ("\u{1b}]52;c;\u{7}größe".to_string(), Some("a\n\u{1b}[2J".to_string()));
        let error = WireError { message, traceback, ..WireError::default() }.into_error("f");
        assert!(error.message().ends_with("\\u{1b}]52;c;\\u{7}größe"), "{error}");
        assert!(error.detail().unwrap().contains("a\n\\u{1b}[2J"), "{error}");
    }
}
