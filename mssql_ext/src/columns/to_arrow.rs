//! The host's columns as Arrow's: a copy of some rows as an array of an argument's type.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray};
use arrow_buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use serde_json::Value;
use udf_codec::{json, json_text};
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::types::Type;
use udf_types::{Error, Result};

use super::decimal::{self, Decimal};
use super::raw::RawColumn;
use super::time::{self, DateTime};
use super::{Misfit, ServerType, quote};

impl RawColumn<'_> {
    /// Fixed-size values that lie in memory as Arrow has them.
    fn copy<T: ArrowPrimitiveType>(&self, rows: Range<usize>) -> std::result::Result<ArrayRef, Misfit> {
        let nulls = self.nulls(&rows);
        let mut values = MutableBuffer::new(rows.len() * size_of::<T::Native>());
        values.extend_from_slice(self.fixed(&rows));
        // A column that is all NULL may have no data.
        values.resize(rows.len() * size_of::<T::Native>(), 0);
        Ok(Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), nulls)))
    }

    /// Fixed-size values of N bytes each; `read` gives none for a value that does not fit.
    fn primitive<T: ArrowPrimitiveType, const N: usize>(
        &self,
        rows: Range<usize>,
        read: impl Fn(&[u8; N]) -> Option<T::Native>,
    ) -> std::result::Result<ArrayRef, Misfit> {
        let nulls = self.nulls(&rows);
        let values = self.fixed(&rows).as_chunks::<N>().0;
        let mut column: Vec<T::Native> = Vec::with_capacity(rows.len());
        for (position, value) in values.iter().enumerate() {
            match read(value) {
                Some(value) => column.push(value),
                // The bytes of a NULL are garbage.
                None if nulls.as_ref().is_some_and(|nulls| nulls.is_null(position)) => column.push(T::default_value()),
                None => return Err(self.misfit(rows.start + position)),
            }
        }
        column.resize(rows.len(), T::default_value());
        Ok(Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(column), nulls)))
    }

    /// Fixed-size values of N bytes each, written as text by `write`, which is false for a value that does not fit.
    fn text<const N: usize>(
        &self,
        rows: Range<usize>,
        write: impl Fn(&[u8; N], &mut String) -> bool,
    ) -> std::result::Result<ArrayRef, Misfit> {
        let nulls = self.nulls(&rows);
        let (mut text, mut lengths) = (String::new(), Vec::with_capacity(rows.len()));
        for (position, value) in self.fixed(&rows).as_chunks::<N>().0.iter().enumerate() {
            let before = text.len();
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(position));
            if !is_null && !write(value, &mut text) {
                return Err(self.misfit(rows.start + position));
            }
            lengths.push(text.len() - before);
        }
        lengths.resize(rows.len(), 0);
        let offsets = offsets(lengths).map_err(|misfit| misfit.behind(rows.start))?;
        Ok(Arc::new(StringArray::new(offsets, Buffer::from(text.into_bytes()), nulls)))
    }

    fn misfit(&self, row: usize) -> Misfit {
        let fact = match self.sql {
            ServerType::DateTime { .. } => {
                "the time does not exist, or has digits below a microsecond; cast the column to datetime2(6)"
            }
            ServerType::Date => "there is no such day",
            ServerType::Decimal { .. } => "the number has more than 38 digits",
            _ => "the value does not fit",
        };
        Misfit { row, fact: fact.to_string() }
    }
}

/// Reads a column from its first row to its last, some rows at a time.
pub struct ColumnReader<'a> {
    column: RawColumn<'a>,
    ty: Type,
    read: Read,
    /// Where the next packed value starts.
    next_byte: usize,
}

/// Longest value that can be sent: two thirds of the largest message, since UTF-16 may grow by half as UTF-8.
const MAX_VALUE_BYTES: usize = MAX_MESSAGE_BYTES / 3 * 2;

/// Reads rows as an array of a type; packed values start at the given byte.
type Read = for<'a> fn(&RawColumn<'a>, &Type, Range<usize>, usize) -> std::result::Result<ArrayRef, Misfit>;

impl<'a> ColumnReader<'a> {
    /// A reader of a column as `ty`; none if its type cannot become `ty` without loss.
    pub fn new(column: RawColumn<'a>, ty: &Type) -> Option<ColumnReader<'a>> {
        Some(ColumnReader { column, ty: ty.clone(), read: reader(column.sql, ty)?, next_byte: 0 })
    }

    /// Bytes of each value; none if values differ in length.
    pub fn element_bytes(&self) -> Option<usize> {
        self.column.sql.element_bytes()
    }

    /// Bytes that a row of a packed column will take, as Arrow counts them.
    pub fn packed_bytes(&self, row: usize) -> usize {
        4 + self.column.length(row).unwrap_or(0)
    }

    /// Reads the next rows.
    pub fn read(&mut self, rows: Range<usize>) -> std::result::Result<ArrayRef, Misfit> {
        let start = self.next_byte;
        if self.element_bytes().is_none() {
            for row in rows.clone() {
                let length = self.column.length(row).unwrap_or(0);
                if length > MAX_VALUE_BYTES {
                    return Err(Misfit {
                        row,
                        fact: format!("the value has {length} bytes, more than {MAX_VALUE_BYTES}"),
                    });
                }
                self.next_byte += length;
            }
        }
        (self.read)(&self.column, &self.ty, rows, start)
    }
}

/// Whether a column may feed an argument; if not, the error has a CAST that works.
pub fn check(what: &str, name: &str, sql: ServerType, argument: &str, ty: &Type) -> Result<()> {
    if reader(sql, ty).is_some() {
        return Ok(());
    }
    let shown = if name.is_empty() { what.to_string() } else { format!("{what} \"{name}\"") };
    Err(Error::new(
        udf_types::error::Kind::SignatureMismatch,
        format!("{shown} is {sql}, which cannot become argument \"{argument}\" of type {ty} without loss"),
    )
    .with_hint(cast(name, ty)))
}

/// A sentence that says how to send a column as `ty`.
fn cast(name: &str, ty: &Type) -> String {
    let column = if name.is_empty() { "...".to_string() } else { quote(name) };
    let written = match ty {
        Type::TimestampTz => format!("CONVERT(nvarchar(40), CAST({column} AS datetimeoffset(6)), 127)"),
        Type::Time => format!("CAST(CAST({column} AS time(6)) AS nvarchar(15))"),
        Type::Interval | Type::Array(_) | Type::Range(_) | Type::Composite(_) => {
            return format!("Send text of the JSON form that docs/types.md gives for {ty}.");
        }
        ty => format!("CAST({column} AS {})", ty.tsql()),
    };
    format!("Write {written}.")
}

/// How to refuse a column that SQL Server cannot send.
pub fn refuse(what: &str, name: &str, sql: &str) -> Error {
    let column = if name.is_empty() { "...".to_string() } else { quote(name) };
    let hint = match sql {
        "time" => format!("Write CAST({column} AS nvarchar(16))."),
        "datetimeoffset" => format!("Write CONVERT(nvarchar(40), {column}, 127)."),
        _ => format!("Write CAST({column} AS nvarchar(max)), or another type of docs/types.md."),
    };
    Error::new(udf_types::error::Kind::UnsupportedType, format!("{what} \"{name}\" is {sql}")).with_hint(hint)
}

/// How values of a type become values of another, if that loses nothing.
fn reader(sql: ServerType, ty: &Type) -> Option<Read> {
    use ServerType as S;
    Some(match (sql, ty) {
        (S::Bit, Type::Bool) => |column, _, rows, _| {
            let nulls = column.nulls(&rows);
            // Hosts may send the digit 0 for false.
            let mut values: Vec<bool> = column.fixed(&rows).iter().map(|byte| !matches!(byte, 0 | b'0')).collect();
            values.resize(rows.len(), false);
            Ok(Arc::new(BooleanArray::new(values.into(), nulls)))
        },
        (S::TinyInt, Type::Int2) => |c, _, rows, _| c.primitive::<Int16Type, 1>(rows, |b| Some(i16::from(b[0]))),
        (S::TinyInt, Type::Int4) => |c, _, rows, _| c.primitive::<Int32Type, 1>(rows, |b| Some(i32::from(b[0]))),
        (S::TinyInt, Type::Int8) => |c, _, rows, _| c.primitive::<Int64Type, 1>(rows, |b| Some(i64::from(b[0]))),
        (S::TinyInt, Type::Float4) => |c, _, rows, _| c.primitive::<Float32Type, 1>(rows, |b| Some(f32::from(b[0]))),
        (S::TinyInt, Type::Float8) => |c, _, rows, _| c.primitive::<Float64Type, 1>(rows, |b| Some(f64::from(b[0]))),
        (S::SmallInt, Type::Int2) => |column, _, rows, _| column.copy::<Int16Type>(rows),
        (S::SmallInt, Type::Int4) => {
            |c, _, rows, _| c.primitive::<Int32Type, 2>(rows, |b| Some(i32::from(i16::from_le_bytes(*b))))
        }
        (S::SmallInt, Type::Int8) => {
            |c, _, rows, _| c.primitive::<Int64Type, 2>(rows, |b| Some(i64::from(i16::from_le_bytes(*b))))
        }
        (S::SmallInt, Type::Float4) => {
            |c, _, rows, _| c.primitive::<Float32Type, 2>(rows, |b| Some(f32::from(i16::from_le_bytes(*b))))
        }
        (S::SmallInt, Type::Float8) => {
            |c, _, rows, _| c.primitive::<Float64Type, 2>(rows, |b| Some(f64::from(i16::from_le_bytes(*b))))
        }
        (S::Int, Type::Int4) => |column, _, rows, _| column.copy::<Int32Type>(rows),
        (S::Int, Type::Int8) => {
            |c, _, rows, _| c.primitive::<Int64Type, 4>(rows, |b| Some(i64::from(i32::from_le_bytes(*b))))
        }
        (S::Int, Type::Float8) => {
            |c, _, rows, _| c.primitive::<Float64Type, 4>(rows, |b| Some(f64::from(i32::from_le_bytes(*b))))
        }
        (S::BigInt, Type::Int8) => |column, _, rows, _| column.copy::<Int64Type>(rows),
        (S::Real, Type::Float4) => |column, _, rows, _| column.copy::<Float32Type>(rows),
        (S::Real, Type::Float8) => {
            |c, _, rows, _| c.primitive::<Float64Type, 4>(rows, |b| Some(f64::from(f32::from_le_bytes(*b))))
        }
        (S::Float, Type::Float8) => |column, _, rows, _| column.copy::<Float64Type>(rows),
        (S::TinyInt, Type::Numeric) => |c, _, rows, _| c.text::<1>(rows, |b, out| integer(i64::from(b[0]), out)),
        (S::SmallInt, Type::Numeric) => {
            |c, _, rows, _| c.text::<2>(rows, |b, out| integer(i64::from(i16::from_le_bytes(*b)), out))
        }
        (S::Int, Type::Numeric) => {
            |c, _, rows, _| c.text::<4>(rows, |b, out| integer(i64::from(i32::from_le_bytes(*b)), out))
        }
        (S::BigInt, Type::Numeric) => |c, _, rows, _| c.text::<8>(rows, |b, out| integer(i64::from_le_bytes(*b), out)),
        (S::Decimal { .. }, Type::Numeric) => |column, _, rows, _| {
            let ServerType::Decimal { scale, .. } = column.sql else { unreachable!("the reader is a decimal's") };
            column.text::<{ decimal::STRUCT_BYTES }>(rows, |bytes, out| {
                Decimal::from_struct(bytes, scale).map(|number| number.write(out)).is_some()
            })
        },
        (S::Date, Type::Date) => |c, _, rows, _| c.primitive::<Date32Type, 6>(rows, |b| time::days_from_struct(b)),
        (S::DateTime { .. }, Type::Timestamp) => |c, _, rows, _| {
            c.primitive::<TimestampMicrosecondType, 16>(rows, |bytes| DateTime::from_struct(bytes)?.to_micros())
        },
        (S::DateTime { .. }, Type::DateTime2) => |c, _, rows, _| {
            c.text::<16>(rows, |bytes, out| DateTime::from_struct(bytes).is_some_and(|time| time.write(out)))
        },
        (S::Guid, Type::Uuid) => |column, _, rows, _| {
            let mut values = Vec::with_capacity(rows.len() * 16);
            column.fixed(&rows).as_chunks::<16>().0.iter().for_each(|guid| values.extend(swap_guid(guid)));
            values.resize(rows.len() * 16, 0);
            Ok(Arc::new(FixedSizeBinaryArray::new(16, Buffer::from(values), column.nulls(&rows))))
        },
        (S::Binary(_), Type::Bytea) => |column, _, rows, start| {
            let lengths = column.lengths(&rows);
            let values = Buffer::from(column.packed(start, lengths.iter().sum()));
            let offsets = offsets(lengths).map_err(|misfit| misfit.behind(rows.start))?;
            Ok(Arc::new(BinaryArray::new(offsets, values, column.nulls(&rows))))
        },
        (S::Char(_) | S::WideChar(_), ty) => match ty {
            Type::Text | Type::Json | Type::TimeTz | Type::Inet | Type::Cidr | Type::MacAddr => {
                |column, _, rows, start| read_text(column, rows, start)
            }
            Type::TimestampTz | Type::Time | Type::Interval | Type::Array(_) | Type::Range(_) | Type::Composite(_) => {
                read_json_form
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn integer(value: i64, out: &mut String) -> bool {
    use std::fmt::Write as _;
    write!(out, "{value}").is_ok()
}

/// SQL Server's order of bytes, the first three parts little-endian, to that of RFC 4122, and back.
pub fn swap_guid(guid: &[u8; 16]) -> [u8; 16] {
    let mut bytes = *guid;
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

fn read_text(column: &RawColumn<'_>, rows: Range<usize>, start: usize) -> std::result::Result<ArrayRef, Misfit> {
    let lengths = column.lengths(&rows);
    let nulls = column.nulls(&rows);
    let all = column.packed(start, lengths.iter().sum());
    let is_wide = matches!(column.sql, ServerType::WideChar(_));
    if !is_wide
        && let Ok(offsets) = offsets(lengths.iter().copied())
        && let Ok(array) = StringArray::try_new(offsets, Buffer::from(all), nulls.clone())
    {
        return Ok(Arc::new(array));
    }
    let mut text = String::with_capacity(all.len());
    let mut ends = Vec::with_capacity(lengths.len());
    let mut position = 0;
    for (row, length) in lengths.iter().enumerate() {
        let before = text.len();
        let value = &all[position..position + length];
        position += length;
        let is_right = if is_wide {
            push_utf16(value, &mut text)
        } else {
            std::str::from_utf8(value).map(|value| text.push_str(value)).is_ok()
        };
        if !is_right {
            let fact = if is_wide {
                "the text is not UTF-16: it has an unpaired surrogate"
            } else {
                "the text is not UTF-8; cast the column to nvarchar, or give it a collation whose name ends in _UTF8"
            };
            return Err(Misfit { row: rows.start + row, fact: fact.to_string() });
        }
        ends.push(text.len() - before);
    }
    let offsets = offsets(ends).map_err(|misfit| misfit.behind(rows.start))?;
    Ok(Arc::new(StringArray::new(offsets, Buffer::from(text.into_bytes()), nulls)))
}

/// Where values of these lengths end. Offsets have 32 bits.
fn offsets(lengths: impl IntoIterator<Item = usize>) -> std::result::Result<OffsetBuffer<i32>, Misfit> {
    let (mut ends, mut end) = (vec![0], 0_usize);
    for (row, length) in lengths.into_iter().enumerate() {
        end = end.saturating_add(length);
        ends.push(i32::try_from(end).map_err(|_| Misfit {
            row,
            fact: "the values up to this one are too large for one batch; set batch_bytes to less".to_string(),
        })?);
    }
    Ok(OffsetBuffer::new(ends.into()))
}

/// Appends UTF-16LE; false if it is malformed.
fn push_utf16(value: &[u8], out: &mut String) -> bool {
    let (units, rest) = value.as_chunks::<2>();
    if !rest.is_empty() {
        return false;
    }
    if units.iter().all(|unit| unit[1] == 0 && unit[0] < 0x80) {
        out.extend(units.iter().map(|unit| char::from(unit[0])));
        return true;
    }
    for decoded in char::decode_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit))) {
        let Ok(decoded) = decoded else { return false };
        out.push(decoded);
    }
    true
}

/// Text of the JSON form, for types that SQL Server lacks.
fn read_json_form(
    column: &RawColumn<'_>,
    ty: &Type,
    rows: Range<usize>,
    start: usize,
) -> std::result::Result<ArrayRef, Misfit> {
    use arrow_array::cast::AsArray;
    let first = rows.start;
    let texts = read_text(column, rows, start)?;
    let is_plain = matches!(ty, Type::TimestampTz | Type::Time);
    let mut values = Vec::with_capacity(texts.len());
    for (row, text) in texts.as_string::<i32>().iter().enumerate() {
        values.push(match text {
            None => Value::Null,
            Some(text) if is_plain => Value::String(text.to_string()),
            // Numbers keep the digits that they are written with.
            Some(text) => json_text::read_value(ty, text).ok_or_else(|| {
                let cause = serde_json::from_str::<Value>(text).err().map(|cause| format!(": {cause}"));
                let fact = format!("the text is not JSON of {ty}{}", cause.unwrap_or_default());
                Misfit { row: first + row, fact }
            })?,
        });
    }
    json::decode_column(ty, &values).map_err(|cause| {
        let does_fit = |value: &Value| json::decode_column(ty, std::slice::from_ref(value)).is_ok();
        let row = values.iter().position(|value| !does_fit(value)).unwrap_or(0);
        let fact = cause.trim_end_matches('.').to_string();
        Misfit { row: first + row, fact: format!("the text is not the form of {ty} that docs/types.md gives ({fact})") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::SQL_NO_NULLS;
    use arrow_array::Array;
    use arrow_array::cast::AsArray;

    fn column<'a>(sql: ServerType, data: &'a [u8], lengths: Option<&'a [i32]>, rows: usize) -> Result<RawColumn<'a>> {
        let indicators = lengths.map_or(std::ptr::null(), |lengths| lengths.as_ptr());
        let data = if data.is_empty() { std::ptr::null() } else { data.as_ptr() };
        // SAFETY: the slices hold what the lengths tell of, and live as long as the column.
        unsafe { RawColumn::new(sql, 1, rows, data, indicators) }
    }

    fn read(
        sql: ServerType,
        data: &[u8],
        lengths: Option<&[i32]>,
        rows: usize,
        ty: Type,
    ) -> std::result::Result<ArrayRef, Misfit> {
        ColumnReader::new(column(sql, data, lengths, rows).unwrap(), &ty).unwrap().read(0..rows)
    }

    #[test]
    fn values_that_are_together_too_large_are_refused() {
        assert_eq!(*offsets([1, 0, 2]).unwrap(), [0, 1, 1, 3]);
        assert_eq!(*offsets([]).unwrap(), [0]);
        assert_eq!(*offsets([1, i32::MAX as usize - 1]).unwrap(), [0, 1, i32::MAX]);
        for lengths in [[1, i32::MAX as usize], [1, usize::MAX]] {
            assert_eq!(offsets(lengths).unwrap_err().row, 1);
        }
    }

    #[test]
    fn packed_values_are_found_batch_by_batch() {
        let data: Vec<u8> = "aβ🚢c".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let lengths = [2, -1, 0, 2, 4, 2];
        let column = column(ServerType::WideChar(100), &data, Some(&lengths), 6).unwrap();
        let mut reader = ColumnReader::new(column, &Type::Text).unwrap();
        let mut found = Vec::new();
        for rows in [0..1, 1..4, 4..6] {
            found.extend(reader.read(rows).unwrap().as_string::<i32>().iter().map(|text| text.map(str::to_string)));
        }
        let expected = [Some("a"), None, Some(""), Some("β"), Some("🚢"), Some("c")];
        assert_eq!(found, expected.map(|text| text.map(str::to_string)));
    }

    #[test]
    fn the_bytes_of_a_null_are_never_looked_at() {
        let garbage = [0xff; 19];
        for (sql, ty) in [
            (ServerType::Date, Type::Date),
            (ServerType::DateTime { digits: 7 }, Type::Timestamp),
            (ServerType::DateTime { digits: 7 }, Type::DateTime2),
            (ServerType::Decimal { precision: 38, scale: 0 }, Type::Numeric),
            (ServerType::Float, Type::Float8),
            (ServerType::Bit, Type::Bool),
            (ServerType::Guid, Type::Uuid),
        ] {
            assert_eq!(read(sql, &garbage, Some(&[-1]), 1, ty.clone()).unwrap().null_count(), 1, "{ty}");
            // Nor need there be any.
            assert_eq!(read(sql, &[], Some(&[-1, -1]), 2, ty.clone()).unwrap().null_count(), 2, "{ty}");
        }
    }

    #[test]
    fn columns_without_indicators_have_no_nulls_or_nothing_else() {
        assert_eq!(
            read(ServerType::Bit, &[0, 1, b'0', b'1'], None, 4, Type::Bool).unwrap().as_boolean().true_count(),
            2
        );
        assert_eq!(read(ServerType::Char(5), b"", None, 3, Type::Text).unwrap().null_count(), 3);
        // Whatever the number of a fixed-size value is, it is no size.
        assert_eq!(read(ServerType::TinyInt, &[7, 8], Some(&[0, 4711]), 2, Type::Int2).unwrap().null_count(), 0);
        // SAFETY: one value is there.
        let not_null = unsafe { RawColumn::new(ServerType::TinyInt, SQL_NO_NULLS, 1, [7].as_ptr(), [-1].as_ptr()) };
        assert!(!not_null.unwrap().is_null(0));
    }

    #[test]
    fn decimals_in_json_keep_their_digits() {
        let text = b"[12345678901234567890.12, 0.10]";
        let lists =
            read(ServerType::Char(99), text, Some(&[text.len() as i32]), 1, Type::from_name("numeric[]").unwrap());
        let lists = lists.unwrap();
        let digits: Vec<_> = lists.as_list::<i32>().values().as_string::<i32>().iter().flatten().collect();
        assert_eq!(digits, ["12345678901234567890.12", "0.10"]);
    }

    #[test]
    fn malformed_text_is_refused_with_its_row() {
        let surrogate = 0xd800_u16.to_le_bytes();
        assert_eq!(
            read(ServerType::WideChar(9), &[0, 0, surrogate[0], surrogate[1]], Some(&[2, 2]), 2, Type::Text)
                .unwrap_err()
                .row,
            1
        );
        assert_eq!(read(ServerType::WideChar(9), b"abc", Some(&[2, 1]), 2, Type::Text).unwrap_err().row, 1);
        assert_eq!(read(ServerType::Char(9), b"ok\xff", Some(&[2, 1]), 2, Type::Text).unwrap_err().row, 1);
        // A character that is cut in two is not text either, even if the whole is.
        assert_eq!(read(ServerType::Char(9), "β".as_bytes(), Some(&[1, 1]), 2, Type::Text).unwrap_err().row, 0);
    }

    #[test]
    fn values_that_no_message_holds_are_refused() {
        // Zeroed memory is not touched, and so not there.
        let data = vec![0; MAX_VALUE_BYTES + 1];
        let error =
            read(ServerType::Binary(i32::MAX as u64), &data, Some(&[MAX_VALUE_BYTES as i32 + 1]), 1, Type::Bytea)
                .unwrap_err();
        assert!(error.sentence().starts_with("The value has 715827883 bytes"), "{error:?}");
    }
}
