//! `udf_protocol::Error` to `ereport`: SQLSTATE by kind (`docs/errors.md`), message, detail, hint and context.

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use udf_protocol::{Error, Kind};

use crate::pg::ereport::{Report, raise};

/// Raises a protocol error as an SQL error; `context` says which call it was.
pub fn raise_error(error: &Error, context: Option<String>) -> ! {
    raise(Report {
        sqlstate: sqlstate(error.kind()),
        message: error.message().to_string(),
        detail: error.detail().map(str::to_string),
        hint: error.hint().map(str::to_string),
        context,
    })
}

/// Raises on error.
pub fn unwrap<T>(result: udf_protocol::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => raise_error(&error, None),
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
        Kind::SignatureMismatch | Kind::InvalidDefinition => PgSqlErrorCode::ERRCODE_INVALID_FUNCTION_DEFINITION,
        Kind::NotAllowed => PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        Kind::BuildFailed => PgSqlErrorCode::ERRCODE_INVALID_FUNCTION_DEFINITION,
        Kind::OutOfRange => PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
    }
}
