//! Arrow columns as the buffers that the host reads.
//!
//! A column grows reply by reply, and stays as it is once a call has returned: the host reads it until the next call. The
//! layout is that of [`super::to_arrow`], with indicators always there.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, PrimitiveArray};
use arrow_buffer::MutableBuffer;
use udf_codec::json;
use udf_codec::json_text::decimal_text;
use udf_types::textual_type;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use super::decimal::{self, Decimal};
use super::raw::RawColumn;
use super::time::{self, DateTime};
use super::to_arrow::swap_guid;
use super::{MAX_BOUNDED_BYTES, Misfit, ServerType};
use crate::abi::SQL_NULL_DATA;

/// A column of results, or one value of an OUTPUT parameter.
#[derive(Debug)]
pub struct OutputColumn {
    sql: ServerType,
    /// The longest value that it takes.
    max_bytes: usize,
    /// Aligned for every type that the host may read from it.
    data: MutableBuffer,
    indicators: Vec<i32>,
}

/// Appends an array's values to a column.
type Write = fn(&mut OutputColumn, &Type, &ArrayRef) -> std::result::Result<(), Misfit>;

impl OutputColumn {
    /// An empty column with room for so many rows.
    pub fn new(sql: ServerType, rows: usize) -> OutputColumn {
        let data = MutableBuffer::new(rows * sql.element_bytes().unwrap_or(0));
        OutputColumn { sql, max_bytes: sql.max_bytes(), data, indicators: Vec::with_capacity(rows) }
    }

    /// The value of an OUTPUT parameter. Hosts differ in whether the size of nchar and nvarchar counts bytes or characters, so
    /// twice as many bytes are taken, up to those that nvarchar(4000) has.
    pub fn of_parameter(sql: ServerType) -> OutputColumn {
        let column = OutputColumn::new(sql, 1);
        let max_bytes = match sql {
            ServerType::WideChar(size) if size <= MAX_BOUNDED_BYTES => (2 * size).min(MAX_BOUNDED_BYTES) as usize,
            sql => sql.max_bytes(),
        };
        OutputColumn { max_bytes, ..column }
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.indicators.len()
    }

    /// The values, for the host. Never NULL.
    pub fn data(&self) -> *mut u8 {
        self.data.as_ptr().cast_mut()
    }

    /// The indicators, for the host.
    pub fn indicators(&self) -> *mut i32 {
        self.indicators.as_ptr().cast_mut()
    }

    /// A row's indicator: bytes, or -1 for NULL.
    pub fn indicator(&self, row: usize) -> i32 {
        self.indicators[row]
    }

    /// Appends an array of `ty`, for which there is a writer.
    pub fn append(&mut self, ty: &Type, array: &ArrayRef) -> std::result::Result<(), Misfit> {
        let write = writer(ty, self.sql).ok_or_else(|| Misfit { row: 0, fact: format!("{ty} is not {}", self.sql) })?;
        write(self, ty, array)
    }

    /// Appends rows of an input column, as they are. `start` is where the first packed value lies; the end of the last is
    /// given back.
    pub fn append_raw(
        &mut self,
        column: &RawColumn<'_>,
        rows: std::ops::Range<usize>,
        start: usize,
    ) -> std::result::Result<usize, Misfit> {
        match self.sql.element_bytes() {
            Some(element) => {
                let values = column.fixed(&rows);
                match self.sql {
                    // Hosts may send the digit 1 for true, and take only the number.
                    ServerType::Bit => {
                        values.iter().for_each(|byte| self.data.push(u8::from(!matches!(byte, 0 | b'0'))))
                    }
                    ServerType::Decimal { precision, scale } => {
                        for (row, value) in rows.clone().zip(values.as_chunks().0) {
                            let value = if column.is_null(row) {
                                [0; decimal::STRUCT_BYTES]
                            } else {
                                let number = Decimal::from_struct(value, scale);
                                number.and_then(|number| number.to_struct(precision, scale)).ok_or_else(|| {
                                    let fact = format!("the number has more digits than {}", self.sql);
                                    Misfit { row, fact }
                                })?
                            };
                            self.data.extend_from_slice(&value);
                        }
                    }
                    _ => self.data.extend_from_slice(values),
                }
                self.data.resize(self.data.len() + rows.len() * element - values.len(), 0);
                let length = element as i32;
                self.indicators.extend(rows.map(|row| if column.is_null(row) { SQL_NULL_DATA } else { length }));
                Ok(start)
            }
            None => {
                let mut end = start;
                for row in rows {
                    match column.length(row) {
                        Some(length) => {
                            self.push_length(row, length)?;
                            end += length;
                        }
                        None => self.indicators.push(SQL_NULL_DATA),
                    }
                }
                self.data.extend_from_slice(column.packed(start, end - start));
                Ok(end)
            }
        }
    }

    fn push_null(&mut self) {
        self.data.resize(self.data.len() + self.sql.element_bytes().unwrap_or(0), 0);
        self.indicators.push(SQL_NULL_DATA);
    }

    /// Appends fixed-size values of N bytes each.
    fn fixed<const N: usize>(
        &mut self,
        array: &dyn Array,
        value: impl Fn(usize) -> std::result::Result<[u8; N], String>,
    ) -> std::result::Result<(), Misfit> {
        self.data.reserve(array.len() * N);
        self.indicators.reserve(array.len());
        for row in 0..array.len() {
            if array.is_null(row) {
                self.push_null();
            } else {
                self.data.extend_from_slice(&value(row).map_err(|fact| Misfit { row, fact })?);
                self.indicators.push(N as i32);
            }
        }
        Ok(())
    }

    /// Appends values that lie in memory as the host has them, unless one is NULL or does not pass.
    fn copy<T: ArrowPrimitiveType>(&mut self, values: &PrimitiveArray<T>, passes: impl Fn(T::Native) -> bool) -> bool {
        if values.null_count() > 0 || !values.values().iter().all(|value| passes(*value)) {
            return false;
        }
        self.data.extend_from_slice(values.values().inner());
        self.indicators.resize(self.indicators.len() + values.len(), size_of::<T::Native>() as i32);
        true
    }

    fn push_bytes(&mut self, row: usize, bytes: &[u8]) -> std::result::Result<(), Misfit> {
        self.data.extend_from_slice(bytes);
        self.push_length(row, bytes.len())
    }

    fn push_text(&mut self, row: usize, text: &str) -> std::result::Result<(), Misfit> {
        if !matches!(self.sql, ServerType::WideChar(_)) {
            return self.push_bytes(row, text.as_bytes());
        }
        let before = self.data.len();
        self.data.reserve(text.len() * 2);
        if text.is_ascii() {
            text.bytes().for_each(|byte| self.data.extend_from_slice(&[byte, 0]));
        } else {
            text.encode_utf16().for_each(|unit| self.data.extend_from_slice(&unit.to_le_bytes()));
        }
        self.push_length(row, self.data.len() - before)
    }

    fn push_length(&mut self, row: usize, length: usize) -> std::result::Result<(), Misfit> {
        if length > self.max_bytes {
            let fact = format!("the value has {length} bytes, too many for {}", self.sql);
            return Err(Misfit { row, fact });
        }
        self.indicators.push(length as i32);
        Ok(())
    }
}

/// Whether results of `ty` may come back as `sql`; the error says what else to declare.
pub fn check(what: &str, ty: &Type, sql: ServerType) -> Result<()> {
    if writer(ty, sql).is_some() {
        return Ok(());
    }
    Err(Error::new(Kind::SignatureMismatch, format!("{what} is of type {ty}, which cannot come back as {sql}"))
        .with_hint(format!("Declare it as {} or nvarchar(max).", ServerType::of_result(ty))))
}

/// How values of a type are written as another, if that can be right.
fn writer(ty: &Type, sql: ServerType) -> Option<Write> {
    use ServerType as S;
    Some(match (ty, sql) {
        (Type::Bool, S::Bit) => |column, _, array| {
            let values = array.as_boolean();
            column.fixed(array, |row| Ok([u8::from(values.value(row))]))
        },
        (Type::Int2, sql) if is_integer(sql) => |c, _, array| write_integers::<Int16Type>(c, array),
        (Type::Int4, sql) if is_integer(sql) => |c, _, array| write_integers::<Int32Type>(c, array),
        (Type::Int8, sql) if is_integer(sql) => |c, _, array| write_integers::<Int64Type>(c, array),
        (Type::Float4, S::Real) => |column, _, array| {
            let values = array.as_primitive::<Float32Type>();
            if column.copy(values, f32::is_finite) {
                return Ok(());
            }
            column.fixed(array, |row| finite(values.value(row), f32::is_finite).map(f32::to_le_bytes))
        },
        (Type::Float4, S::Float) => |column, _, array| {
            let values = array.as_primitive::<Float32Type>();
            column.fixed(array, |row| finite(f64::from(values.value(row)), f64::is_finite).map(f64::to_le_bytes))
        },
        (Type::Float8, S::Float) => |column, _, array| {
            let values = array.as_primitive::<Float64Type>();
            if column.copy(values, f64::is_finite) {
                return Ok(());
            }
            column.fixed(array, |row| finite(values.value(row), f64::is_finite).map(f64::to_le_bytes))
        },
        (Type::Numeric, S::Decimal { .. }) => |column, _, array| {
            let ServerType::Decimal { precision, scale } = column.sql else {
                unreachable!("the writer is a decimal's")
            };
            let texts = array.as_string::<i32>();
            column.fixed(array, |row| {
                let text = texts.value(row);
                Decimal::parse(text).and_then(|number| number.to_struct(precision, scale)).ok_or_else(|| {
                    let shown: String = text.chars().take(50).collect();
                    format!(
                        "{shown} does not fit into decimal({precision}, {scale}) without loss; \
                         round it in the function, or name another type in result_columns"
                    )
                })
            })
        },
        (Type::Bytea, S::Binary(_)) => |column, _, array| {
            for (row, value) in array.as_binary::<i32>().iter().enumerate() {
                match value {
                    Some(value) => column.push_bytes(row, value)?,
                    None => column.push_null(),
                }
            }
            Ok(())
        },
        (Type::Date, S::Date) => |column, _, array| {
            let values = array.as_primitive::<Date32Type>();
            column.fixed(array, |row| time::days_to_struct(values.value(row)).ok_or_else(outside_years))
        },
        (Type::Timestamp, S::DateTime { .. }) => |column, _, array| {
            let ServerType::DateTime { digits } = column.sql else { unreachable!("the writer is a time's") };
            let values = array.as_primitive::<TimestampMicrosecondType>();
            column.fixed(array, |row| write_time(Some(DateTime::from_micros(values.value(row))), digits))
        },
        (Type::DateTime2, S::DateTime { .. }) => |column, _, array| {
            let ServerType::DateTime { digits } = column.sql else { unreachable!("the writer is a time's") };
            let texts = array.as_string::<i32>();
            column.fixed(array, |row| write_time(DateTime::parse(texts.value(row)), digits))
        },
        (Type::Uuid, S::Guid) => |column, _, array| {
            let values = array.as_fixed_size_binary();
            column.fixed(array, |row| {
                values.value(row).first_chunk().map(swap_guid).ok_or_else(|| "a uuid has 16 bytes".to_string())
            })
        },
        (Type::Numeric, S::Char(_) | S::WideChar(_)) => |column, _, array| {
            for (row, value) in array.as_string::<i32>().iter().enumerate() {
                match value {
                    // docs/types.md: "digits". What takes too many of them stays as it is.
                    Some(value) => column.push_text(row, &decimal_text(value).unwrap_or(value.into()))?,
                    None => column.push_null(),
                }
            }
            Ok(())
        },
        (textual_type!(), S::Char(_) | S::WideChar(_)) => |column, _, array| {
            for (row, value) in array.as_string::<i32>().iter().enumerate() {
                match value {
                    Some(value) => column.push_text(row, value)?,
                    None => column.push_null(),
                }
            }
            Ok(())
        },
        (_, S::Char(_) | S::WideChar(_)) => write_json_form,
        _ => return None,
    })
}

fn is_integer(sql: ServerType) -> bool {
    matches!(sql, ServerType::TinyInt | ServerType::SmallInt | ServerType::Int | ServerType::BigInt)
}

fn write_integers<T: ArrowPrimitiveType>(column: &mut OutputColumn, array: &ArrayRef) -> std::result::Result<(), Misfit>
where
    T::Native: Into<i64>,
{
    let values = array.as_primitive::<T>();
    let sql = column.sql;
    if sql.element_bytes() == Some(size_of::<T::Native>()) && column.copy(values, |_| true) {
        return Ok(());
    }
    let outside = move |value: i64| format!("{value} does not fit into {sql}");
    let value = |row: usize| -> i64 { values.value(row).into() };
    match sql {
        ServerType::TinyInt => {
            column.fixed(array, |row| u8::try_from(value(row)).map(u8::to_le_bytes).map_err(|_| outside(value(row))))
        }
        ServerType::SmallInt => {
            column.fixed(array, |row| i16::try_from(value(row)).map(i16::to_le_bytes).map_err(|_| outside(value(row))))
        }
        ServerType::Int => {
            column.fixed(array, |row| i32::try_from(value(row)).map(i32::to_le_bytes).map_err(|_| outside(value(row))))
        }
        _ => column.fixed(array, |row| Ok(value(row).to_le_bytes())),
    }
}

fn finite<T: Copy + std::fmt::Display>(value: T, is_finite: impl Fn(T) -> bool) -> std::result::Result<T, String> {
    if is_finite(value) {
        return Ok(value);
    }
    Err(format!("SQL Server cannot hold {value}; the function can return NULL instead"))
}

fn outside_years() -> String {
    "SQL Server's dates go from year 1 to 9999".to_string()
}

fn write_time(time: Option<DateTime>, digits: u8) -> std::result::Result<[u8; 16], String> {
    let time = time.ok_or_else(outside_years)?;
    if time.nanoseconds % 10u32.pow(9 - u32::from(digits)) != 0 {
        return Err(format!("the time has more than {digits} digits of a second; name datetime2(7) in result_columns"));
    }
    time.to_struct().ok_or_else(outside_years)
}

/// Text of the JSON form, for types that SQL Server lacks.
fn write_json_form(column: &mut OutputColumn, ty: &Type, array: &ArrayRef) -> std::result::Result<(), Misfit> {
    let mut text = String::new();
    for row in 0..array.len() {
        if array.is_null(row) {
            column.push_null();
            continue;
        }
        text.clear();
        json::encode_column(&mut text, ty, &array.slice(row, 1));
        // An array of one value.
        let value = &text[1..text.len() - 1];
        match serde_json::from_str::<String>(value) {
            // A GUID is written in upper case by custom.
            Ok(text) if *ty == Type::Uuid => column.push_text(row, &text.to_ascii_uppercase())?,
            Ok(text) => column.push_text(row, &text)?,
            Err(_) => column.push_text(row, value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(sql: ServerType, data: &[u8], lengths: &[i32]) -> std::result::Result<OutputColumn, Misfit> {
        // SAFETY: the slices hold what the lengths tell of, and outlive the column.
        let column = unsafe { RawColumn::new(sql, 1, lengths.len(), data.as_ptr(), lengths.as_ptr()) }.unwrap();
        let mut passed = OutputColumn::new(sql, lengths.len());
        passed.append_raw(&column, 0..lengths.len(), 0)?;
        Ok(passed)
    }

    #[test]
    fn values_that_are_longer_than_their_column_do_not_pass() {
        assert_eq!(pass(ServerType::Char(2), b"abab", &[2, -1, 2]).unwrap().indicators, [2, -1, 2]);
        let misfit = pass(ServerType::Char(2), b"ababc", &[2, -1, 3]).unwrap_err();
        assert_eq!((misfit.row, misfit.fact.as_str()), (2, "the value has 3 bytes, too many for varchar(2)"));
    }

    #[test]
    fn decimals_pass_with_the_digits_of_their_column() {
        let sql = ServerType::Decimal { precision: 4, scale: 2 };
        let mut host = Decimal { magnitude: 1234, scale: 2, is_negative: true }.to_struct(38, 2).unwrap();
        let passed = pass(sql, &[host, [0xff; 19]].concat(), &[19, -1]).unwrap();
        assert_eq!(passed.data.as_slice()[..6], [4, 2, 0, 0xd2, 4, 0]);
        assert_eq!((passed.data.len(), passed.indicator(1)), (38, SQL_NULL_DATA));
        host[5] = 1;
        assert_eq!(pass(sql, &host, &[19]).unwrap_err().fact, "the number has more digits than decimal(4, 2)");
    }
}
