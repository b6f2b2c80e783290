//! An Arrow column of results as SQL values. What a container sends is checked before PostgreSQL sees it.

use std::ffi::CString;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef};
use pgrx::pg_sys;
use udf_protocol::types::Type;
use udf_protocol::{Error, Kind};

use super::{EPOCH_DAYS, EPOCH_MICROS};
use crate::function::Function;
use crate::report;

/// First and last day of PostgreSQL's dates, 4713 BC and 5874897 AD, counted from 2000-01-01 (datatype/timestamp.h).
const DATE_RANGE: std::ops::Range<i32> = -2_451_545..2_145_031_949;
/// First and last microsecond of PostgreSQL's timestamps, counted from 2000-01-01 (datatype/timestamp.h).
const TIMESTAMP_RANGE: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// The results of one batch.
#[derive(Debug)]
pub struct ResultReader {
    function: String,
    ty: Type,
    oid: pg_sys::Oid,
    input: pg_sys::Oid,
    input_argument: pg_sys::Oid,
    column: ArrayRef,
}

impl ResultReader {
    /// Reads `column`, which the protocol has checked to be of the function's result type.
    pub fn new(function: &Function, column: ArrayRef) -> ResultReader {
        let oid = function.result_oid;
        let (mut input, mut input_argument) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        if matches!(function.signature.result, Type::Text | Type::Numeric | Type::Json) && oid != pg_sys::TEXTOID {
            // SAFETY: a lookup of a type that exists, since a function returns it.
            unsafe { pg_sys::getTypeInputInfo(oid, &mut input, &mut input_argument) };
        }
        ResultReader {
            function: function.name.clone(),
            ty: function.signature.result,
            oid,
            input,
            input_argument,
            column,
        }
    }

    /// Row `row` as a value in the current memory context; none is NULL.
    pub fn datum(&self, row: usize) -> Option<pg_sys::Datum> {
        let column = &self.column;
        if column.is_null(row) {
            return None;
        }
        Some(match self.ty {
            Type::Bool => pg_sys::Datum::from(column.as_boolean().value(row)),
            Type::Int2 => pg_sys::Datum::from(column.as_primitive::<Int16Type>().value(row)),
            Type::Int4 => pg_sys::Datum::from(column.as_primitive::<Int32Type>().value(row)),
            Type::Int8 => pg_sys::Datum::from(column.as_primitive::<Int64Type>().value(row)),
            Type::Float4 => pg_sys::Datum::from(column.as_primitive::<Float32Type>().value(row).to_bits()),
            Type::Float8 => pg_sys::Datum::from(column.as_primitive::<Float64Type>().value(row).to_bits()),
            Type::Date => pg_sys::Datum::from(match column.as_primitive::<Date32Type>().value(row) {
                infinity @ (i32::MIN | i32::MAX) => infinity,
                days => days
                    .checked_sub(EPOCH_DAYS)
                    .filter(|days| DATE_RANGE.contains(days))
                    .unwrap_or_else(|| self.refuse(row, "a date that PostgreSQL cannot hold")),
            }),
            Type::Timestamp | Type::TimestampTz => {
                pg_sys::Datum::from(match column.as_primitive::<TimestampMicrosecondType>().value(row) {
                    infinity @ (i64::MIN | i64::MAX) => infinity,
                    micros => micros
                        .checked_sub(EPOCH_MICROS)
                        .filter(|micros| TIMESTAMP_RANGE.contains(micros))
                        .unwrap_or_else(|| self.refuse(row, "a timestamp that PostgreSQL cannot hold")),
                })
            }
            Type::Text | Type::Numeric | Type::Json => self.text_datum(column.as_string::<i32>().value(row), row),
            Type::Bytea => to_varlena(column.as_binary::<i32>().value(row)),
            Type::Uuid => {
                let bytes = column.as_fixed_size_binary().value(row);
                // SAFETY: a uuid is 16 bytes, and so is every value of the column.
                unsafe {
                    let copy = pg_sys::palloc(16).cast::<u8>();
                    copy.copy_from_nonoverlapping(bytes.as_ptr(), 16);
                    pg_sys::Datum::from(copy)
                }
            }
        })
    }

    fn text_datum(&self, text: &str, row: usize) -> pg_sys::Datum {
        if text.as_bytes().contains(&0) {
            self.refuse(row, "text with a NUL character, which PostgreSQL cannot hold");
        }
        let Ok(length) = i32::try_from(text.len()) else {
            self.refuse(row, "text of more than 1 GB");
        };
        // SAFETY: reads a process-wide constant.
        let is_utf8 = unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32;
        if is_utf8 && self.oid == pg_sys::TEXTOID {
            return to_varlena(text.as_bytes());
        }
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the text ends in NUL and has the given length; the input function belongs to the result type.
        unsafe {
            let server = pg_sys::pg_any_to_server(text.as_ptr(), length, pg_sys::pg_enc::PG_UTF8 as i32);
            if self.oid == pg_sys::TEXTOID {
                return pg_sys::Datum::from(pg_sys::cstring_to_text(server));
            }
            pg_sys::OidInputFunctionCall(self.input, server, self.input_argument, -1)
        }
    }

    fn refuse(&self, row: usize, what: &str) -> ! {
        let message = format!("container function \"{}\" returned an invalid result", self.function);
        let detail = format!("Row {} of the batch holds {what}.", row + 1);
        report::raise_error(&Error::new(Kind::BadResult, message).with_detail(detail), None)
    }
}

fn to_varlena(bytes: &[u8]) -> pg_sys::Datum {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: text and bytea have one layout; PostgreSQL refuses a length of more than 1 GB itself.
    unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length)) }
}
