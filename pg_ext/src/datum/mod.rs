//! PostgreSQL's types to the type table, and values both ways.

pub mod from_arrow;
pub mod to_arrow;

use pgrx::pg_sys;
use udf_protocol::types::Type;
use udf_protocol::{Error, Kind, Result};

use crate::pg::catalog::type_name;

/// Days from 1970-01-01, Arrow's epoch, to 2000-01-01, PostgreSQL's.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The type that values of a SQL type travel as.
pub fn type_of(oid: pg_sys::Oid) -> Result<Type> {
    match oid {
        pg_sys::BOOLOID => Ok(Type::Bool),
        pg_sys::INT2OID => Ok(Type::Int2),
        pg_sys::INT4OID => Ok(Type::Int4),
        pg_sys::INT8OID => Ok(Type::Int8),
        pg_sys::FLOAT4OID => Ok(Type::Float4),
        pg_sys::FLOAT8OID => Ok(Type::Float8),
        pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID => Ok(Type::Text),
        pg_sys::BYTEAOID => Ok(Type::Bytea),
        pg_sys::DATEOID => Ok(Type::Date),
        pg_sys::TIMESTAMPOID => Ok(Type::Timestamp),
        pg_sys::TIMESTAMPTZOID => Ok(Type::TimestampTz),
        pg_sys::NUMERICOID => Ok(Type::Numeric),
        pg_sys::UUIDOID => Ok(Type::Uuid),
        pg_sys::JSONOID | pg_sys::JSONBOID => Ok(Type::Json),
        _ => Err(Error::new(
            Kind::UnsupportedType,
            format!("type {} is not supported by container functions", type_name(oid)),
        )
        .with_hint("docs/types.md lists the supported types; cast the value to one of them, for example to text.")),
    }
}
