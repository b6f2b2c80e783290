//! The native columnar JSON form, `docs/protocol.md` §6: one array per column, values as the type table says.
//!
//! [`super::json_reply`] reads whole replies. The writer is strict; the reader is lenient where that is unambiguous: numbers as strings, integers for floats,
//! floats without fraction for integers, base64 with white space.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BooleanArray, ListArray, PrimitiveArray, StructArray};
use arrow_buffer::OffsetBuffer;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, Timelike, Utc};
use serde_json::Value;
use udf_types::signature::Signature;
use udf_types::textual_type;
use udf_types::types::Type;

use crate::batch::CallBatch;
use crate::json_text::decimal_text;

/// Largest integer that a JSON reader with double precision keeps exactly, 2^53.
const MAX_SAFE_INTEGER: i64 = 1 << 53;
/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// Writes `{"batch": n, "rows": n, "columns": [[...], ...]}`; for an aggregate function also `"exchange"` and `"step"`, and with
/// constants `"constants"`.
pub fn encode_call(signature: &Signature, batch: &CallBatch, exchange: &str) -> String {
    let rows = batch.columns.num_rows();
    let mut out = String::with_capacity(64 + rows * batch.columns.num_columns() * 20);
    let _ = write!(out, "{{\"batch\":{},\"rows\":{rows},", batch.number);
    if let Some(step) = batch.step {
        let _ = write!(out, "\"exchange\":\"{exchange}\",\"step\":\"{}\",", step.name());
    }
    if let Some(row_errors) = signature.row_errors {
        let _ = write!(out, "\"row_errors\":\"{}\",", row_errors.name());
    }
    if !batch.constants.is_empty() {
        let _ = write!(out, "\"constants\":{:?},", batch.constants.positions());
    }
    out.push_str("\"columns\":[");
    let mut others = batch.columns.columns().iter();
    for (position, ty) in signature.call_types().iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        let column = batch.constants.at(position).or_else(|| others.next());
        encode_column(&mut out, ty, column.expect("each position has a constant or a column"));
    }
    out.push_str("]}");
    out
}

/// Writes one column as a JSON array. The array has the Arrow type of `ty`.
pub fn encode_column(out: &mut String, ty: &Type, column: &ArrayRef) {
    match ty {
        // Of numbers there may be many, so their type is looked at once.
        Type::Int2 => encode_numbers(out, column.as_primitive::<Int16Type>(), |out, value| {
            out.push_str(itoa::Buffer::new().format(value));
        }),
        Type::Int4 => encode_numbers(out, column.as_primitive::<Int32Type>(), |out, value| {
            out.push_str(itoa::Buffer::new().format(value));
        }),
        Type::Int8 => encode_numbers(out, column.as_primitive::<Int64Type>(), encode_int8),
        Type::Float4 => encode_numbers(out, column.as_primitive::<Float32Type>(), encode_float4),
        Type::Float8 => encode_numbers(out, column.as_primitive::<Float64Type>(), encode_float8),
        _ => encode_values(out, ty, column, 0..column.len()),
    }
}

fn encode_numbers<T: ArrowPrimitiveType>(
    out: &mut String,
    column: &PrimitiveArray<T>,
    encode: impl Fn(&mut String, T::Native),
) {
    out.push('[');
    for (row, value) in column.values().iter().enumerate() {
        if row > 0 {
            out.push(',');
        }
        if column.is_null(row) {
            out.push_str("null");
        } else {
            encode(out, *value);
        }
    }
    out.push(']');
}

fn encode_int8(out: &mut String, value: i64) {
    let quote = if (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(&value) { "" } else { "\"" };
    out.push_str(quote);
    out.push_str(itoa::Buffer::new().format(value));
    out.push_str(quote);
}

fn encode_float4(out: &mut String, value: f32) {
    // The shortest text that reads back as the same number, with ".0" or an exponent.
    match value.is_finite() {
        true => out.push_str(zmij::Buffer::new().format_finite(value)),
        false => out.push_str(non_finite(f64::from(value))),
    }
}

fn encode_float8(out: &mut String, value: f64) {
    match value.is_finite() {
        true => out.push_str(zmij::Buffer::new().format_finite(value)),
        false => out.push_str(non_finite(value)),
    }
}

fn encode_values(out: &mut String, ty: &Type, column: &ArrayRef, rows: std::ops::Range<usize>) {
    out.push('[');
    let first = rows.start;
    for row in rows {
        if row > first {
            out.push(',');
        }
        encode_value_or_null(out, ty, column, row);
    }
    out.push(']');
}

/// Writes one value of a column.
pub fn encode_value_or_null(out: &mut String, ty: &Type, column: &ArrayRef, row: usize) {
    if column.is_null(row) {
        out.push_str("null");
    } else {
        encode_value(out, ty, column, row);
    }
}

fn encode_value(out: &mut String, ty: &Type, column: &ArrayRef, row: usize) {
    // Writing to a String cannot fail, so the results of write! carry nothing.
    let _ = match ty {
        Type::Bool => write!(out, "{}", column.as_boolean().value(row)),
        Type::Int2 => write!(out, "{}", column.as_primitive::<Int16Type>().value(row)),
        Type::Int4 => write!(out, "{}", column.as_primitive::<Int32Type>().value(row)),
        Type::Int8 => {
            encode_int8(out, column.as_primitive::<Int64Type>().value(row));
            Ok(())
        }
        Type::Float4 => {
            encode_float4(out, column.as_primitive::<Float32Type>().value(row));
            Ok(())
        }
        Type::Float8 => {
            encode_float8(out, column.as_primitive::<Float64Type>().value(row));
            Ok(())
        }
        textual_type!() => write_string(out, column.as_string::<i32>().value(row)),
        Type::Bytea => write!(out, "\"{}\"", BASE64.encode(column.as_binary::<i32>().value(row))),
        Type::Date => {
            let days = column.as_primitive::<Date32Type>().value(row);
            match days {
                i32::MAX => write!(out, "\"infinity\""),
                i32::MIN => write!(out, "\"-infinity\""),
                _ => write!(out, "\"{}\"", date_text(days.into())),
            }
        }
        Type::Timestamp | Type::TimestampTz => {
            let micros = column.as_primitive::<TimestampMicrosecondType>().value(row);
            let zone = if *ty == Type::TimestampTz { "Z" } else { "" };
            match micros {
                i64::MAX => write!(out, "\"infinity\""),
                i64::MIN => write!(out, "\"-infinity\""),
                _ => {
                    let date = date_text(micros.div_euclid(DAY));
                    let _ = write!(out, "\"{date}T");
                    write_time(out, micros.rem_euclid(DAY));
                    write!(out, "{zone}\"")
                }
            }
        }
        Type::Uuid => {
            let bytes = column.as_fixed_size_binary().value(row);
            out.push('"');
            for (position, byte) in bytes.iter().enumerate() {
                if matches!(position, 4 | 6 | 8 | 10) {
                    out.push('-');
                }
                let _ = write!(out, "{byte:02x}");
            }
            write!(out, "\"")
        }
        Type::Time => {
            out.push('"');
            write_time(out, column.as_primitive::<Time64MicrosecondType>().value(row));
            write!(out, "\"")
        }
        Type::Interval => {
            let value = column.as_primitive::<IntervalMonthDayNanoType>().value(row);
            let (months, days, nanoseconds) = (value.months, value.days, value.nanoseconds);
            let _ = write!(out, "{{\"months\":{months},\"days\":{days},\"microseconds\":");
            encode_int8(out, nanoseconds / 1000);
            // What an engine cannot hold is for the engine to refuse.
            match nanoseconds % 1000 {
                0 => write!(out, "}}"),
                rest => write!(out, ",\"nanoseconds\":{rest}}}"),
            }
        }
        Type::Array(element) => {
            let column = column.as_list::<i32>();
            let offsets = column.value_offsets();
            encode_values(out, element, column.values(), offsets[row] as usize..offsets[row + 1] as usize);
            Ok(())
        }
        Type::Range(_) | Type::Composite(_) => {
            out.push('{');
            for (position, attribute) in ty.attributes().iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                let _ = write_string(out, &attribute.name);
                out.push(':');
                encode_value_or_null(out, &attribute.ty, column.as_struct().column(position), row);
            }
            out.push('}');
            Ok(())
        }
    };
}

/// Days of 400 years, after which the calendar repeats. Databases have dates far beyond the years of `chrono`, which end at 262,142.
const CYCLE: i64 = 146_097;

/// `YYYY-MM-DD`; years before 0 and behind 9999 have a sign.
fn date_text(days: i64) -> String {
    let date = NaiveDate::from_epoch_days(days.rem_euclid(CYCLE) as i32).unwrap_or_default();
    let year = i64::from(date.year()) + 400 * days.div_euclid(CYCLE);
    let sign = match year {
        ..0 => "-",
        0..=9999 => "",
        _ => "+",
    };
    format!("{sign}{:04}-{:02}-{:02}", year.abs(), date.month(), date.day())
}

/// Days since 1970.
fn read_date(text: &str) -> Option<i64> {
    let end = text.get(1..)?.find('-')? + 1;
    let (year, rest) = text.split_at(end);
    let year = year.parse::<i64>().ok().filter(|year| year.abs() < 10_000_000)?;
    let within = format!("{}{rest}", 2000 + year.rem_euclid(400));
    let date = NaiveDate::parse_from_str(&within, "%Y-%m-%d").ok()?;
    Some(i64::from(date.to_epoch_days()) + (year.div_euclid(400) - 5) * CYCLE)
}

/// Whether a time has nothing but zeros below a microsecond. Parsers drop what is below a nanosecond.
pub(crate) fn is_to_micros(text: &str) -> bool {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    fraction.bytes().take_while(u8::is_ascii_digit).skip(6).all(|digit| digit == b'0')
}

/// Microseconds since 1970 of a time without a zone; none if digits would be lost.
fn read_timestamp(text: &str) -> Option<i64> {
    if !is_to_micros(text) {
        return None;
    }
    match NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S%.f") {
        Ok(time) => whole_micros(time.and_utc()),
        Err(_) => {
            let (date, time) = text.split_once('T')?;
            let within = NaiveDateTime::parse_from_str(&format!("1970-01-01T{time}"), "%Y-%m-%dT%H:%M:%S%.f").ok()?;
            let micros = i128::from(read_date(date)?) * i128::from(DAY) + i128::from(whole_micros(within.and_utc())?);
            i64::try_from(micros).ok().filter(|micros| ![i64::MAX, i64::MIN].contains(micros))
        }
    }
}

fn write_time(out: &mut String, micros: i64) {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (hours, minutes) = (seconds.div_euclid(3600), seconds.rem_euclid(3600) / 60);
    let _ = write!(out, "{hours:02}:{minutes:02}:{:02}.{fraction:06}", seconds.rem_euclid(60));
}

fn non_finite(value: f64) -> &'static str {
    if value.is_nan() {
        "\"NaN\""
    } else if value > 0.0 {
        "\"Infinity\""
    } else {
        "\"-Infinity\""
    }
}

fn write_string(out: &mut String, text: &str) -> std::fmt::Result {
    out.push_str(&serde_json::to_string(text).map_err(|_| std::fmt::Error)?);
    Ok(())
}

/// Reads one column of `ty`. The error says which row does not fit and why.
pub fn decode_column(ty: &Type, values: &[Value]) -> Result<ArrayRef, String> {
    let values: Vec<&Value> = values.iter().collect();
    decode(ty, &values).map_err(|cause| find_misfit(ty, &values, cause))
}

/// The same of values that lie anywhere: those of a list are not copied. Of an element or attribute the error does not know
/// the row: looking for it at every depth would take twice as long with each.
fn decode(ty: &Type, values: &[&Value]) -> Result<ArrayRef, String> {
    match ty {
        Type::Bool => {
            let mut column = Vec::with_capacity(values.len());
            for (row, &value) in values.iter().enumerate() {
                column.push(match value {
                    Value::Null => None,
                    Value::Bool(value) => Some(*value),
                    other => return Err(misfit(ty, row, other)),
                });
            }
            Ok(Arc::new(BooleanArray::from(column)))
        }
        Type::Int2 => primitive::<Int16Type>(ty, values, |value| i16::try_from(integer(value)?).ok()),
        Type::Int4 => primitive::<Int32Type>(ty, values, |value| i32::try_from(integer(value)?).ok()),
        Type::Int8 => primitive::<Int64Type>(ty, values, integer),
        Type::Float4 => primitive::<Float32Type>(ty, values, |value| {
            let wide = float(value)?;
            let narrow = wide as f32;
            (narrow.is_finite() || !wide.is_finite()).then_some(narrow)
        }),
        Type::Float8 => primitive::<Float64Type>(ty, values, float),
        textual_type!() => {
            let mut builder = StringBuilder::new();
            for (row, &value) in values.iter().enumerate() {
                match value {
                    Value::Null => builder.append_null(),
                    // Digits, whatever exponent they come with; one that stands for more than can be held is refused here.
                    Value::String(text) if *ty == Type::Numeric => {
                        builder.append_value(decimal_text(text).ok_or_else(|| misfit(ty, row, value))?);
                    }
                    Value::String(text) => builder.append_value(text),
                    Value::Number(number) if *ty == Type::Numeric => builder.append_value(number.to_string()),
                    other if *ty == Type::Json => builder.append_value(other.to_string()),
                    other => return Err(misfit(ty, row, other)),
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        Type::Bytea => {
            let mut builder = BinaryBuilder::new();
            for (row, &value) in values.iter().enumerate() {
                match value {
                    Value::Null => builder.append_null(),
                    Value::String(text) => {
                        let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
                        builder.append_value(BASE64.decode(compact).map_err(|_| misfit(ty, row, value))?);
                    }
                    other => return Err(misfit(ty, row, other)),
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        Type::Date => primitive::<Date32Type>(ty, values, |value| match value.as_str()? {
            "infinity" => Some(i32::MAX),
            "-infinity" => Some(i32::MIN),
            text => i32::try_from(read_date(text)?).ok().filter(|days| ![i32::MAX, i32::MIN].contains(days)),
        }),
        Type::Timestamp => primitive::<TimestampMicrosecondType>(ty, values, |value| match value.as_str()? {
            "infinity" => Some(i64::MAX),
            "-infinity" => Some(i64::MIN),
            text => read_timestamp(text),
        }),
        Type::TimestampTz => {
            let array = primitive::<TimestampMicrosecondType>(ty, values, |value| match value.as_str()? {
                "infinity" => Some(i64::MAX),
                "-infinity" => Some(i64::MIN),
                text if !is_to_micros(text) => None,
                text => match DateTime::parse_from_rfc3339(text) {
                    Ok(time) => whole_micros(time.to_utc()),
                    // The years of RFC 3339 have four digits and no sign.
                    Err(_) => read_timestamp(text.strip_suffix('Z')?),
                },
            })?;
            Ok(Arc::new(array.as_primitive::<TimestampMicrosecondType>().clone().with_data_type(ty.data_type())))
        }
        Type::Uuid => {
            let mut builder = FixedSizeBinaryBuilder::new(16);
            for (row, &value) in values.iter().enumerate() {
                match value {
                    Value::Null => builder.append_null(),
                    other => {
                        let bytes = other.as_str().and_then(uuid_bytes).ok_or_else(|| misfit(ty, row, other))?;
                        builder.append_value(bytes).map_err(|_| misfit(ty, row, other))?;
                    }
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        Type::Time => primitive::<Time64MicrosecondType>(ty, values, |value| time(value.as_str()?)),
        Type::Interval => primitive::<IntervalMonthDayNanoType>(ty, values, |value| {
            let part = |name| value.get(name).map_or(Some(0), integer);
            let nanoseconds = part("microseconds")?.checked_mul(1000)?.checked_add(part("nanoseconds")?)?;
            let (months, days) = (part("months")?, part("days")?);
            value.is_object().then(|| {
                Some(IntervalMonthDayNano::new(i32::try_from(months).ok()?, i32::try_from(days).ok()?, nanoseconds))
            })?
        }),
        Type::Array(element) => {
            let (mut elements, mut lengths) = (Vec::new(), Vec::with_capacity(values.len()));
            for (row, &value) in values.iter().enumerate() {
                match value {
                    Value::Null => lengths.push(0),
                    Value::Array(items) => {
                        elements.extend(items);
                        lengths.push(items.len());
                    }
                    other => return Err(misfit(ty, row, other)),
                }
            }
            let elements = decode(element, &elements)?;
            let validity = values.iter().map(|value| !value.is_null()).collect();
            let offsets = OffsetBuffer::from_lengths(lengths);
            Ok(Arc::new(ListArray::new(Arc::new(element.field("item")), offsets, elements, Some(validity))))
        }
        Type::Range(_) | Type::Composite(_) => {
            if let Some(row) = values.iter().position(|value| !value.is_null() && !value.is_object()) {
                return Err(misfit(ty, row, values[row]));
            }
            let (mut columns, mut fields) = (Vec::new(), Vec::new());
            for attribute in ty.attributes() {
                let parts: Vec<&Value> =
                    values.iter().map(|value| value.get(&attribute.name).unwrap_or(&Value::Null)).collect();
                columns.push(decode(&attribute.ty, &parts)?);
                fields.push(attribute.ty.field(&attribute.name));
            }
            let validity = values.iter().map(|value| !value.is_null()).collect();
            StructArray::try_new_with_length(fields.into(), columns, Some(validity), values.len())
                .map(|array| Arc::new(array) as ArrayRef)
                .map_err(|cause| format!("The reply is malformed: {cause}."))
        }
    }
}

/// Which row holds a part that does not fit; `cause` says what it was.
fn find_misfit(ty: &Type, values: &[&Value], cause: String) -> String {
    if !matches!(ty, Type::Array(_) | Type::Range(_) | Type::Composite(_)) {
        return cause;
    }
    match values.iter().position(|value| decode(ty, &[*value]).is_err()) {
        Some(row) => misfit(ty, row, values[row]),
        None => cause,
    }
}

/// Microseconds of `HH:MM:SS.ffffff`, up to `24:00:00`.
fn time(text: &str) -> Option<i64> {
    if let Some(rest) = text.strip_prefix("24:00:00") {
        return rest.trim_start_matches('.').bytes().all(|digit| digit == b'0').then_some(DAY);
    }
    let time = chrono::NaiveTime::parse_from_str(text, "%H:%M:%S%.f").ok().filter(|_| is_to_micros(text))?;
    let (seconds, nanoseconds) = (i64::from(time.num_seconds_from_midnight()), i64::from(time.nanosecond()));
    // A leap second has more than a second's nanoseconds.
    let is_exact = nanoseconds < 1_000_000_000 && nanoseconds % 1000 == 0;
    is_exact.then_some(seconds * 1_000_000 + nanoseconds / 1000)
}

/// Microseconds since 1970; none if digits would be lost.
fn whole_micros(time: DateTime<Utc>) -> Option<i64> {
    time.timestamp_subsec_nanos().is_multiple_of(1000).then(|| time.timestamp_micros())
}

fn primitive<T: ArrowPrimitiveType>(
    ty: &Type,
    values: &[&Value],
    read: impl Fn(&Value) -> Option<T::Native>,
) -> Result<ArrayRef, String> {
    let mut column = Vec::with_capacity(values.len());
    for (row, &value) in values.iter().enumerate() {
        column.push(match value {
            Value::Null => None,
            other => Some(read(other).ok_or_else(|| misfit(ty, row, other))?),
        });
    }
    Ok(Arc::new(PrimitiveArray::<T>::from_iter(column)))
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            (float.fract() == 0.0 && float.abs() <= MAX_SAFE_INTEGER as f64).then_some(float as i64)
        }),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            digits => digits.parse().ok().filter(|value: &f64| value.is_finite()),
        },
        _ => None,
    }
}

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    // A sign would be taken for a part of a number.
    if digits.len() != 32 || text.len() != 36 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn misfit(ty: &Type, row: usize, value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > 40 {
        text.truncate((0..=40).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0));
        text.push_str("...");
    }
    format!("Row {} holds {text}, which is not of type {ty}.", row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::types::TABLE;

    /// At every depth half of the time would be spent on the search.
    #[test]
    fn what_does_not_fit_is_found_at_any_depth_as_fast() {
        let ty = Type::from_name(&format!("int4{}", "[]".repeat(16))).unwrap();
        let inner = format!("[{}\"x\"]", "1,".repeat(100_000));
        let value: Value = serde_json::from_str(&format!("{}{inner}{}", "[".repeat(15), "]".repeat(15))).unwrap();
        let begun = std::time::Instant::now();
        let error = decode_column(&ty, &[Value::Null, value]).unwrap_err();
        assert!(error.starts_with("Row 2 holds [[[[") && begun.elapsed().as_secs() < 20, "{error}");
    }

    /// The type table's examples read and write back as the same text.
    #[test]
    fn table_examples_round_trip() {
        for entry in TABLE {
            for (_, json) in entry.examples {
                let value: Value = serde_json::from_str(json).unwrap();
                let column = decode_column(&entry.ty, &[value, Value::Null]).unwrap();
                assert_eq!(*column.data_type(), entry.ty.data_type());
                let mut text = String::new();
                encode_column(&mut text, &entry.ty, &column);
                assert_eq!(text, format!("[{json},null]"), "{}", entry.name);
            }
        }
    }

    #[test]
    fn times_of_far_years_are_written_and_read() {
        for (ty, zone) in [(Type::Timestamp, ""), (Type::TimestampTz, "Z")] {
            let text = [
                "0000-02-29T00:00:00.000000",
                "9999-12-31T23:59:59.999999",
                "+10000-01-01T00:00:00.000000",
                "-4712-11-24T00:00:00.000001",
                "+200000-12-31T23:59:59.999999",
                "+294247-01-10T04:00:54.775806",
                "-290308-12-21T19:59:05.224193",
            ];
            let text = format!("[{}]", text.map(|time| format!("\"{time}{zone}\"")).join(","));
            let column = decode_column(&ty, &serde_json::from_str::<Vec<Value>>(&text).unwrap()).unwrap();
            let mut written = String::new();
            encode_column(&mut written, &ty, &column);
            assert_eq!(written, text);
            for text in [
                "+294247-01-10T04:00:54.775807",
                "+300000-01-01T00:00:00",
                "+200001-02-29T00:00:00",
                "+1000000000000-01-01T00:00:00",
                "T00:00:00",
                "é-01-01T00:00:00",
            ] {
                assert!(decode_column(&ty, &[format!("{text}{zone}").into()]).is_err(), "{text}");
            }
        }
        let text = r#"["+5874897-12-31","-4713-11-24","+300000-02-29","-290000-02-29"]"#;
        let column = decode_column(&Type::Date, &serde_json::from_str::<Vec<Value>>(text).unwrap()).unwrap();
        let days: Vec<i32> = column.as_primitive::<Date32Type>().values().to_vec();
        assert_eq!(days[..2], [2_145_042_905, -2_440_588]);
        let mut written = String::new();
        encode_column(&mut written, &Type::Date, &column);
        assert_eq!(written, text);
        assert!(decode_column(&Type::Date, &["+5900000-01-01".into()]).is_err());
    }

    #[test]
    fn microseconds_of_an_interval_are_exact() {
        let text = r#"[{"months":0,"days":0,"microseconds":"9007199254740993"},{"months":-1,"days":2,"microseconds":9007199254740992}]"#;
        let column = decode_column(&Type::Interval, &serde_json::from_str::<Vec<Value>>(text).unwrap()).unwrap();
        assert_eq!(column.as_primitive::<IntervalMonthDayNanoType>().value(0).nanoseconds, 9_007_199_254_740_993_000);
        let mut written = String::new();
        encode_column(&mut written, &Type::Interval, &column);
        assert_eq!(written, text);
    }

    #[test]
    fn reader_is_lenient_only_where_nothing_is_lost() {
        let read = |ty: Type, text: &str| decode_column(&ty, &serde_json::from_str::<Vec<Value>>(text).unwrap());
        assert_eq!(read(Type::Int4, "[3.0, \"4\"]").unwrap().as_primitive::<Int32Type>().values(), &[3, 4]);
        assert_eq!(read(Type::Float8, "[3]").unwrap().as_primitive::<Float64Type>().value(0), 3.0);
        assert_eq!(read(Type::Bytea, "[\"AP8=\\n\"]").unwrap().as_binary::<i32>().value(0), &[0, 255]);
        for (ty, text) in [
            (Type::Int4, "[1, 3.5]"),
            (Type::Int2, "[1, 40000]"),
            (Type::Float4, "[1, 1e300]"),
            (Type::Bool, "[true, 1]"),
            (Type::Text, "[\"a\", 1]"),
            (Type::Date, "[null, \"2013-02-30\"]"),
            (Type::Timestamp, "[null, \"2013-01-01T00:00:00.0000001\"]"),
            (Type::TimestampTz, "[null, \"2013-01-01T00:00:00.0000001Z\"]"),
            (Type::Time, "[null, \"00:00:00.0000001\"]"),
            (Type::Timestamp, "[\"2013-01-01T00:00:00.1234560000000\", \"2013-01-01T00:00:00.1234560009\"]"),
            (Type::Timestamp, "[null, \"+12013-01-01T00:00:00.1234560009\"]"),
            (Type::TimestampTz, "[\"2013-01-01T00:00:00.1234560000000Z\", \"2013-01-01T00:00:00.1234560009Z\"]"),
            (Type::TimestampTz, "[\"2013-01-01T00:00:00Z\", \"2013-01-01T00:00:00.1234560009+02:00\"]"),
            (Type::TimestampTz, "[null, \"+12013-01-01T00:00:00.1234560009Z\"]"),
            (Type::Time, "[\"12:00:00.1234560000000\", \"12:00:00.1234560009\"]"),
            (Type::Uuid, "[null, \"a0eebc99\"]"),
            (Type::Uuid, "[null, \"+a+e+c+9-+c+b-+e+8-+b+d-+b+9+d+8+a+1\"]"),
            (Type::Time, "[\"24:00:00\", \"24:00:00.1\"]"),
            (Type::Interval, "[{}, 5]"),
            (Type::from_name("int4[]").unwrap(), "[[1, 2, 3], [4, \"x\"]]"),
            (Type::from_name("(a int4[])[]").unwrap(), "[[], [{\"a\": [1, 2, 3]}, {\"a\": [4, \"x\"]}]]"),
            (Type::from_name("(a int4[], b text)").unwrap(), "[{\"a\": [1]}, {\"a\": 1}]"),
        ] {
            assert!(read(ty.clone(), text).unwrap_err().starts_with("Row 2 holds "), "{ty} {text}");
        }
    }
}
