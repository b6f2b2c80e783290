//! Four kinds of columns that every language can read: bool, int64, float64, and bytes. Integers and floats are as wide as these
//! are; text, and what travels as text, is bytes; all other types are bytes as well, in the JSON form of `docs/types.md`,
//! without the quotes of a string.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray, StringArray};
use arrow_schema::DataType;
use serde_json::Value;
use udf_codec::json::{decode_column, encode_value_or_null};
use udf_codec::json_text::read_value;
use udf_types::textual_type;
use udf_types::types::Type;

/// Bytes of a value that an error shows.
const MOST_SHOWN: usize = 60;

/// What does not fit a type: the row, and what it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) row: usize,
    pub(crate) shown: String,
}

/// Whether values in JSON are arrays and objects, which have no quotes.
fn is_nested(ty: &Type) -> bool {
    matches!(ty, Type::Array(_) | Type::Range(_) | Type::Composite(_) | Type::Interval)
}

/// The Arrow type of a type's plain columns.
pub(crate) fn plain_type(ty: &Type) -> DataType {
    match ty {
        Type::Bool => DataType::Boolean,
        Type::Int2 | Type::Int4 | Type::Int8 => DataType::Int64,
        Type::Float4 | Type::Float8 => DataType::Float64,
        _ => DataType::Binary,
    }
}

/// A column of a type as a plain one.
pub(crate) fn to_plain(ty: &Type, column: &ArrayRef) -> ArrayRef {
    match ty {
        Type::Bool | Type::Int8 | Type::Float8 | Type::Bytea => column.clone(),
        Type::Int2 => Arc::new(column.as_primitive::<Int16Type>().unary::<_, Int64Type>(i64::from)),
        Type::Int4 => Arc::new(column.as_primitive::<Int32Type>().unary::<_, Int64Type>(i64::from)),
        Type::Float4 => Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float64Type>(f64::from)),
        textual_type!() => {
            let (offsets, bytes, nulls) = column.as_string::<i32>().clone().into_parts();
            Arc::new(arrow_array::BinaryArray::new(offsets, bytes, nulls))
        }
        _ => {
            let (mut builder, mut text) =
                (BinaryBuilder::with_capacity(column.len(), column.len() * 16), String::new());
            for row in 0..column.len() {
                if column.is_null(row) {
                    builder.append_null();
                    continue;
                }
                text.clear();
                encode_value_or_null(&mut text, ty, column, row);
                match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).filter(|_| !is_nested(ty)) {
                    // Dates, times and UUIDs have no characters that JSON escapes.
                    Some(inner) => builder.append_value(inner),
                    None => builder.append_value(&text),
                }
            }
            Arc::new(builder.finish())
        }
    }
}

/// A plain column as one of a type.
pub(crate) fn from_plain(ty: &Type, column: &ArrayRef) -> Result<ArrayRef, Misfit> {
    let wanted = plain_type(ty);
    if *column.data_type() != wanted {
        return Err(Misfit { row: 0, shown: format!("a column of {}, which is to be {wanted}", column.data_type()) });
    }
    Ok(match ty {
        Type::Bool | Type::Int8 | Type::Float8 | Type::Bytea => column.clone(),
        Type::Int2 => Arc::new(narrow::<Int16Type>(column)?),
        Type::Int4 => Arc::new(narrow::<Int32Type>(column)?),
        Type::Float4 => {
            let wide = column.as_primitive::<Float64Type>();
            let too_large = |value: f64| value.is_finite() && !(value as f32).is_finite();
            if let Some((row, value)) = (0..wide.len())
                .filter(|row| wide.is_valid(*row))
                .map(|row| (row, wide.value(row)))
                .find(|(_, value)| too_large(*value))
            {
                return Err(Misfit { row, shown: value.to_string() });
            }
            Arc::new(wide.unary::<_, Float32Type>(|value| value as f32))
        }
        textual_type!() => Arc::new(texts(column)?),
        _ => {
            let texts = texts(column)?;
            let value_of = |text: Option<&str>| match text {
                None => Some(Value::Null),
                // The codec reads numbers with all their digits.
                Some(text) if is_nested(ty) => read_value(ty, text),
                Some(text) => Some(Value::String(text.to_string())),
            };
            let mut values = Vec::with_capacity(texts.len());
            for (row, text) in texts.iter().enumerate() {
                values.push(value_of(text).ok_or_else(|| Misfit { row, shown: shown(text.unwrap_or_default()) })?);
            }
            match decode_column(ty, &values) {
                Ok(column) => column,
                Err(fact) => {
                    let is_bad = |row: &usize| decode_column(ty, &values[*row..=*row]).is_err();
                    let row = (0..values.len()).find(is_bad);
                    let shown = row.map_or(fact, |row| shown(if texts.is_null(row) { "" } else { texts.value(row) }));
                    return Err(Misfit { row: row.unwrap_or(0), shown });
                }
            }
        }
    })
}

fn narrow<T: ArrowPrimitiveType>(column: &ArrayRef) -> Result<PrimitiveArray<T>, Misfit>
where
    T::Native: TryFrom<i64>,
{
    let wide = column.as_primitive::<Int64Type>();
    let narrow = |row: usize| T::Native::try_from(wide.value(row)).map_err(|_| wide.value(row).to_string());
    let values = (0..wide.len()).map(|row| match wide.is_valid(row) {
        true => narrow(row).map(Some).map_err(|shown| Misfit { row, shown }),
        false => Ok(None),
    });
    values.collect()
}

fn texts(column: &ArrayRef) -> Result<StringArray, Misfit> {
    let bytes = column.as_binary::<i32>();
    let mut builder = StringBuilder::with_capacity(bytes.len(), bytes.value_data().len());
    for (row, value) in bytes.iter().enumerate() {
        let text = value.map(|value| {
            let misfit = |_| Misfit { row, shown: "a text that is not UTF-8".to_string() };
            std::str::from_utf8(value).map_err(misfit)
        });
        builder.append_option(text.transpose()?);
    }
    Ok(builder.finish())
}

fn shown(text: &str) -> String {
    format!("\"{}\"", &text[..text.floor_char_boundary(MOST_SHOWN)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{BinaryArray, Float64Array, Int64Array};
    use serde_json::json;

    #[test]
    fn every_type_comes_back() {
        for (name, values) in [
            ("bool", json!([true, null, false])),
            ("int2", json!([-32768, null, 32767])),
            ("int4", json!([-2147483648_i64, null, 7])),
            ("int8", json!(["9223372036854775807", null, 0])),
            ("float4", json!([1.5, null, "NaN", "-Infinity"])),
            ("float8", json!([0.1, null, "Infinity"])),
            ("text", json!(["a \"b\"", null, ""])),
            ("bytea", json!(["AP8=", null])),
            ("numeric", json!(["12345678901234567890.10", null, "NaN"])),
            ("date", json!(["2024-02-29", null, "infinity"])),
            ("timestamptz", json!(["2024-02-29T12:00:00.000001Z", null])),
            ("time", json!(["24:00:00.000000", null])),
            ("uuid", json!(["00000000-0000-0000-0000-0000000000ff", null])),
            ("interval", json!([{"months": 1, "days": -2, "microseconds": 3}, null])),
            ("int4[]", json!([[1, null], null, []])),
            ("(a numeric, b text)", json!([{"a": "1.50", "b": "x\"y"}, null])),
            (
                "range(int8)",
                json!([{"lower": 1, "upper": null, "lower_inc": true, "upper_inc": false, "empty": false}]),
            ),
        ] {
            let ty = Type::from_name(name).unwrap();
            let column = decode_column(&ty, values.as_array().unwrap()).unwrap();
            let plain = to_plain(&ty, &column);
            assert_eq!(*plain.data_type(), plain_type(&ty), "{name}");
            assert_eq!(&from_plain(&ty, &plain).unwrap(), &column, "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_row() {
        let misfit = |ty: &str, column: ArrayRef| {
            let found = from_plain(&Type::from_name(ty).unwrap(), &column).unwrap_err();
            (found.row, found.shown)
        };
        let bytes = |values: Vec<&[u8]>| Arc::new(BinaryArray::from(values)) as ArrayRef;
        assert_eq!(misfit("int2", Arc::new(Int64Array::from(vec![1, 40_000]))), (1, "40000".to_string()));
        assert_eq!(misfit("float4", Arc::new(Float64Array::from(vec![1e300]))).0, 0);
        assert_eq!(misfit("text", bytes(vec![b"a", b"\xff"])), (1, "a text that is not UTF-8".to_string()));
        assert_eq!(misfit("date", bytes(vec![b"2024-01-01", b"no"])), (1, "\"no\"".to_string()));
        assert_eq!(misfit("int4[]", bytes(vec![b"[1]", b"[1", b"[]"])), (1, "\"[1\"".to_string()));
        assert_eq!(misfit("int4[]", bytes(vec![b"[1]", b"[\"x\"]"])).0, 1);
        assert!(misfit("int4", bytes(vec![b"1"])).1.contains("which is to be Int64"));
    }
}
