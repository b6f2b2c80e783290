//! A SQL value into an Arrow column.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::varlena::varlena_to_byte_slice;
use udf_protocol::batch::ColumnBuilder;
use udf_protocol::{Error, Kind};

use super::{EPOCH_DAYS, EPOCH_MICROS};
use crate::report;

/// Appends one value of SQL type `oid`. What PostgreSQL has to allocate for it lands in the current memory context.
///
/// # Safety
/// `datum` is a value of type `oid`, or `is_null` is set; the column was made for that type.
pub unsafe fn append(column: &mut ColumnBuilder, oid: pg_sys::Oid, datum: pg_sys::Datum, is_null: bool) {
    if is_null {
        return column.append_null();
    }
    let bits = datum.value();
    match column {
        ColumnBuilder::Bool(builder) => builder.append_value(bits as u8 != 0),
        ColumnBuilder::Int2(builder) => builder.append_value(bits as i16),
        ColumnBuilder::Int4(builder) => builder.append_value(bits as i32),
        ColumnBuilder::Int8(builder) => builder.append_value(bits as i64),
        ColumnBuilder::Float4(builder) => builder.append_value(f32::from_bits(bits as u32)),
        ColumnBuilder::Float8(builder) => builder.append_value(f64::from_bits(bits as u64)),
        ColumnBuilder::Date(builder) => builder.append_value(match bits as i32 {
            // PostgreSQL's infinities, which are also ours.
            infinity @ (i32::MIN | i32::MAX) => infinity,
            days => days + EPOCH_DAYS,
        }),
        ColumnBuilder::Timestamp(builder) => builder.append_value(match bits as i64 {
            infinity @ (i64::MIN | i64::MAX) => infinity,
            // PostgreSQL's range ends above Arrow's: 294276-12-31 against 294247-01-10.
            micros => micros.checked_add(EPOCH_MICROS).filter(|micros| *micros != i64::MAX).unwrap_or_else(|| {
                report::raise_error(
                    &Error::new(Kind::OutOfRange, "timestamp out of range for a container function")
                        .with_detail("Timestamps travel as microseconds since 1970 and end with the year 294247."),
                    None,
                )
            }),
        }),
        // SAFETY: by-reference values point to what their type says; detoasting copies if need be.
        ColumnBuilder::Text(builder) => unsafe {
            match oid {
                pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::JSONOID => {
                    let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
                    builder.append_value(to_utf8(varlena_to_byte_slice(value)));
                }
                pg_sys::NUMERICOID => {
                    let text = pg_sys::OidOutputFunctionCall(pg_sys::Oid::from(pg_sys::F_NUMERIC_OUT), datum);
                    builder.append_value(to_utf8(CStr::from_ptr(text).to_bytes()));
                }
                _ => {
                    let text = pg_sys::OidOutputFunctionCall(pg_sys::Oid::from(pg_sys::F_JSONB_OUT), datum);
                    builder.append_value(to_utf8(CStr::from_ptr(text).to_bytes()));
                }
            }
        },
        // SAFETY: as above.
        ColumnBuilder::Bytea(builder) => unsafe {
            let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            builder.append_value(varlena_to_byte_slice(value));
        },
        // SAFETY: a uuid points to 16 bytes.
        ColumnBuilder::Uuid(builder) => unsafe {
            let bytes = std::slice::from_raw_parts(datum.cast_mut_ptr::<u8>(), 16);
            builder.append_value(bytes).expect("the column holds 16 bytes per value");
        },
    }
}

/// Text in the database's encoding as UTF-8.
///
/// # Safety
/// The bytes are text in the database's encoding.
unsafe fn to_utf8(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        // SAFETY: reads a process-wide constant.
        && unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32
    {
        return text.into();
    }
    let length = i32::try_from(bytes.len()).expect("a value is below 1 GB");
    // SAFETY: the bytes are text of the given length; the result is the same pointer or a new string that ends in NUL.
    unsafe {
        let converted = pg_sys::pg_server_to_any(bytes.as_ptr().cast(), length, pg_sys::pg_enc::PG_UTF8 as i32);
        if std::ptr::eq(converted.cast::<u8>(), bytes.as_ptr()) {
            return String::from_utf8_lossy(bytes);
        }
        CStr::from_ptr(converted).to_string_lossy()
    }
}
