//! The one error of the protocol, and every word it says.
//!
//! An [`Error`] knows its [`Kind`] (from which an engine picks its status code) and its [`Origin`] (who is at fault).
//! Messages follow PostgreSQL's error style guide: the message starts in lower case and has no final period, detail
//! and hint are whole sentences. Constructors live here, so that no caller words an error in place.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Who is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The user's code raised it.
    Function,
    /// The container: it could not start, was killed or ran out of memory.
    Container,
    /// The bytes did not travel: refused, reset, timed out.
    Transport,
    /// A peer broke `docs/protocol.md`.
    Protocol,
    /// Whoever called: a wrong definition, an unsupported type, a cancelled query.
    Caller,
}

/// What happened. The table of `docs/errors.md` maps each kind to SQLSTATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The user's code raised an exception for a row or a batch.
    UserCode,
    /// The user's code returned a value that does not fit the declared result type.
    BadResult,
    /// The container could not be started or ended by itself.
    ContainerFailed,
    /// The peer could not be reached, or the connection was lost.
    Unreachable,
    /// A deadline passed.
    Timeout,
    /// The server has as many calls as it can take, and ran nothing of this one.
    Busy,
    /// The engine cancelled the wait.
    Cancelled,
    /// A peer broke the protocol.
    ProtocolViolation,
    /// A type cannot be mapped without loss.
    UnsupportedType,
    /// The image does not exist.
    ImageNotFound,
    /// The image has no such function.
    FunctionNotFound,
    /// Declared and offered signatures differ.
    SignatureMismatch,
    /// A function body, manifest or option is malformed.
    InvalidDefinition,
    /// The peer user may not do this.
    NotAllowed,
    /// An image could not be built.
    BuildFailed,
    /// A value lies outside what the receiving side can hold.
    OutOfRange,
    /// A reply is larger than may be held of it, or there is no memory for it.
    OutOfMemory,
}

impl Kind {
    /// Who is at fault when this happens.
    pub fn origin(self) -> Origin {
        match self {
            Kind::UserCode | Kind::BadResult => Origin::Function,
            Kind::ContainerFailed | Kind::Busy => Origin::Container,
            Kind::Unreachable | Kind::Timeout => Origin::Transport,
            Kind::ProtocolViolation => Origin::Protocol,
            Kind::Cancelled
            | Kind::UnsupportedType
            | Kind::ImageNotFound
            | Kind::FunctionNotFound
            | Kind::SignatureMismatch
            | Kind::InvalidDefinition
            | Kind::NotAllowed
            | Kind::BuildFailed
            | Kind::OutOfRange
            | Kind::OutOfMemory => Origin::Caller,
        }
    }
}

/// What somebody could change so that it would not happen. Each engine has its own words for it: a name of a setting, a
/// statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Start the container manager, or say where it listens.
    Manager,
    /// Give a token that the server accepts.
    Token,
    /// Let secrets for a server travel as plain text.
    PlaintextSecrets,
    /// Give the dialect where the server's name is defined.
    ServerDialect,
    /// Choose Flight.
    Flight,
    /// Wait longer for the answer to a batch.
    BatchTimeout,
    /// Let batches have fewer rows.
    BatchRows,
    /// Let replies be larger, or batches have fewer rows.
    ReplySize,
    /// Name another function of the image or server.
    FunctionName,
}

/// An error of the UDF protocol. It serialises, because the manager sends its errors to the engines.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Inner {
    kind: Kind,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advice: Option<Advice>,
    /// Zero-based row within the batch, if one row is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    /// How long a server wants not to be asked again.
    #[serde(skip)]
    retry_after: Option<Duration>,
    /// Whether it may be somebody else's on the way than the handler's.
    #[serde(skip)]
    is_doubtful: bool,
}

impl Error {
    /// An error of `kind`; `message` starts in lower case and has no final period.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        let (message, (detail, hint, advice, row, retry_after, is_doubtful)) = (message.into(), Default::default());
        Error(Box::new(Inner { kind, message, detail, hint, advice, row, retry_after, is_doubtful }))
    }

    /// Adds facts, as whole sentences.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Error {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds advice that engines put into words.
    pub fn with_advice(mut self, advice: Advice) -> Error {
        self.0.advice = Some(advice);
        self
    }

    /// Adds advice, as whole sentences.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Names the row to blame, counted from zero within its batch.
    pub fn with_row(mut self, row: u64) -> Error {
        self.0.row = Some(row);
        self
    }

    /// Says how long the server wants not to be asked again, if that is known and another attempt may help.
    pub fn with_retry_after(mut self, pause: Option<Duration>) -> Error {
        if self.is_retryable() || self.is_busy() {
            self.0.retry_after = pause;
        }
        self
    }

    /// Says that it may not be the handler's, whatever its kind: nobody who knows the handler need have said it.
    pub fn with_doubt(mut self) -> Error {
        self.0.is_doubtful = true;
        self
    }

    /// Whether the handler raised it, so that it says something of the rows that it was given.
    pub fn is_of_handler(&self) -> bool {
        self.0.kind == Kind::UserCode && !self.0.is_doubtful
    }

    /// How long the server wants not to be asked again, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// What happened.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Who is at fault.
    pub fn origin(&self) -> Origin {
        self.0.kind.origin()
    }

    /// The primary message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Facts beyond the message.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// Advice that an engine puts into words, unless there is a [`hint`](Error::hint).
    pub fn advice(&self) -> Option<Advice> {
        self.0.advice.filter(|_| self.0.hint.is_none())
    }

    /// Advice that may apply.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The row to blame, counted from zero within its batch.
    pub fn row(&self) -> Option<u64> {
        self.0.row
    }

    /// Whether another replica may well answer the same batch. Only calls without side effects may be sent again.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, Kind::Unreachable | Kind::ContainerFailed)
    }

    /// Whether the server ran nothing of the batch, nor of those behind it, for want of room: any call may be sent again.
    pub fn is_busy(&self) -> bool {
        self.0.kind == Kind::Busy
    }

    /// Whether the engine itself ended the wait.
    pub fn is_cancelled(&self) -> bool {
        self.0.kind == Kind::Cancelled
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(detail) = &self.0.detail {
            write!(f, "\ndetail: {detail}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

/// How much of an unknown type's text is repeated.
const MAX_TYPE_CHARACTERS: usize = 400;

/// Names of functions that an error shows.
const MAX_SHOWN_NAMES: usize = 10;

/// What stands before the words of the user's code.
fn raised_by(function: &str) -> String {
    format!("container function \"{function}\" raised an exception: ")
}

// The words.
impl Error {
    /// The user's code raised an exception, for one row of the batch or for all of it.
    pub fn user_code(function: &str, text: &str, row: Option<u64>, traceback: Option<String>) -> Error {
        let error = Error::new(Kind::UserCode, format!("{}{text}", raised_by(function)));
        let error = match row {
            Some(row) => error.with_row(row),
            None => error,
        };
        match traceback {
            Some(traceback) => error.with_detail(traceback),
            None => error,
        }
    }

    /// What the user's code itself said of an exception that it raised.
    pub fn users_text(&self, function: &str) -> &str {
        self.0.message.strip_prefix(&raised_by(function)).unwrap_or(&self.0.message)
    }

    /// The user's code gave a value that does not fit; `fact` says which.
    pub fn bad_result(function: &str, fact: impl Into<String>) -> Error {
        Error::new(Kind::BadResult, format!("container function \"{function}\" returned an invalid result"))
            .with_detail(fact)
    }

    /// The server broke the protocol; `fact` says how.
    pub fn protocol(function: &str, fact: impl Into<String>) -> Error {
        Error::new(
            Kind::ProtocolViolation,
            format!("the server of container function \"{function}\" broke the protocol"),
        )
        .with_detail(fact)
    }

    /// Nobody answers at `peer`, or the connection to it was lost before the call went out.
    pub fn unreachable(peer: &str, cause: impl fmt::Display) -> Error {
        Error::new(Kind::Unreachable, format!("could not reach \"{peer}\": {cause}"))
    }

    /// The connection was lost while a call was under way.
    pub fn connection_lost(function: &str, cause: impl fmt::Display) -> Error {
        Error::new(Kind::Unreachable, format!("connection to the container of function \"{function}\" was lost"))
            .with_detail(format!("{cause}."))
    }

    /// The server, or a gateway before it, does not let this client in. `server` says which one it is.
    pub fn refused(server: &str, fact: impl fmt::Display) -> Error {
        Error::new(Kind::NotAllowed, format!("permission denied by {server}"))
            .with_detail(format!("{fact}."))
            .with_advice(Advice::Token)
    }

    /// The server has no room for the call, and ran nothing of it.
    pub fn busy(function: &str, fact: impl Into<String>) -> Error {
        Error::new(Kind::Busy, format!("too many calls to the container of function \"{function}\""))
            .with_detail(fact)
            .with_hint("Try again when other queries have ended, or raise \"replicas\" in the image's manifest.")
    }

    /// The connection to a container was lost and the manager says why.
    pub fn with_container_fate(self, image: &str, fate: &str) -> Error {
        if self.0.kind != Kind::Unreachable {
            return self;
        }
        let message = self.0.message.clone();
        Error::new(Kind::ContainerFailed, message)
            .with_detail(format!("The container of image \"{image}\" {fate}."))
            .with_hint(
                "\"transship logs\" shows what the container wrote; raise its memory limit if it ran out of memory.",
            )
    }

    /// The container manager does not answer at its socket.
    pub fn manager_unreachable(socket: &str, cause: impl fmt::Display) -> Error {
        Error::new(Kind::Unreachable, format!("could not reach the container manager at \"{socket}\""))
            .with_detail(format!("The system said: {cause}."))
            .with_advice(Advice::Manager)
    }

    /// A reply needs more than the `most` bytes that it may have.
    pub fn reply_too_large(function: &str, most: usize) -> Error {
        let most = if most < 1 << 20 { format!("{} kB", most >> 10) } else { format!("{} MB", most >> 20) };
        Error::new(Kind::OutOfMemory, format!("a reply of container function \"{function}\" is too large"))
            .with_detail(format!("It needs more than the {most} that one reply may have."))
            .with_advice(Advice::ReplySize)
    }

    /// A deadline passed.
    pub fn timeout(what: &str, after_ms: u128) -> Error {
        Error::new(Kind::Timeout, format!("{what} did not answer within {after_ms} ms"))
    }

    /// The engine ended the wait.
    pub fn cancelled() -> Error {
        Error::new(Kind::Cancelled, "container call was cancelled")
    }

    /// A type cannot be mapped without loss; `what` is its name as an error shows it.
    pub fn unsupported_type(what: &str) -> Error {
        // An image may call its types what it likes.
        let end = (0..=MAX_TYPE_CHARACTERS.min(what.len())).rev().find(|end| what.is_char_boundary(*end)).unwrap_or(0);
        let (what, rest) = (&what[..end], if end < what.len() { "..." } else { "" });
        Error::new(Kind::UnsupportedType, format!("type {what}{rest} is not supported by container functions"))
            .with_hint("docs/types.md lists the supported types; cast the value to one of them, for example to text.")
    }

    /// A definition that cannot be right.
    pub fn invalid_definition(message: impl Into<String>) -> Error {
        Error::new(Kind::InvalidDefinition, message)
    }

    /// The image or server at `place` has no such function, but those that are `offered`.
    pub fn function_not_found(function: &str, place: &str, offered: &[String]) -> Error {
        Error::new(Kind::FunctionNotFound, format!("{place} has no function \"{function}\"")).with_offered(offered)
    }

    /// The image at `place` does not say what the function takes and returns.
    pub fn signature_not_said(function: &str, place: &str) -> Error {
        Error::invalid_definition(format!("{place} does not say the signature of function \"{function}\""))
    }

    /// The image or server at `place` has several functions, and nobody says which one is meant.
    pub fn function_not_named(place: &str, offered: &[String]) -> Error {
        let message = format!("{place} has several functions, of which one must be named");
        Error::new(Kind::FunctionNotFound, message).with_offered(offered)
    }

    /// With the names that there are, as far as an error shows them.
    fn with_offered(self, offered: &[String]) -> Error {
        if offered.is_empty() {
            return self;
        }
        let (shown, rest) = offered.split_at(offered.len().min(MAX_SHOWN_NAMES));
        let shown: Vec<String> = shown.iter().map(|name| format!("\"{name}\"")).collect();
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        self.with_detail(format!("It offers {}{more}.", shown.join(", "))).with_advice(Advice::FunctionName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_survives_the_manager_socket() {
        let error = Error::user_code("f", "ValueError: no", Some(3), Some("Traceback".into())).with_hint("Look.");
        let text = serde_json::to_string(&error).unwrap();
        let back: Error = serde_json::from_str(&text).unwrap();
        assert_eq!(back, error);
        assert_eq!(back.row(), Some(3));
        assert_eq!(back.origin(), Origin::Function);
    }

    #[test]
    fn a_missing_function_comes_with_the_names_of_a_few_others() {
        let names: Vec<String> = (1..=12).map(|number| format!("f{number}")).collect();
        let error = Error::function_not_found("g", "image \"a:1\"", &names);
        assert_eq!(error.message(), "image \"a:1\" has no function \"g\"");
        let shown = r#"It offers "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10" and 2 more."#;
        assert_eq!((error.detail(), error.advice()), (Some(shown), Some(Advice::FunctionName)));
        let error = Error::function_not_named("image \"a:1\"", &names[..2]);
        assert_eq!(error.detail(), Some(r#"It offers "f1", "f2"."#));
        assert_eq!(Error::function_not_found("g", "the container", &[]).advice(), None);
    }

    #[test]
    fn only_lost_containers_are_retryable() {
        assert!(Error::connection_lost("f", "reset").is_retryable());
        assert!(Error::connection_lost("f", "reset").with_container_fate("i", "was killed").is_retryable());
        assert!(!Error::user_code("f", "x", None, None).is_retryable());
        assert!(!Error::timeout("f", 1).is_retryable());
    }
}
