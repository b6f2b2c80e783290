//! The Rust types that hold SQL's: `bool`, `i16`, `i32`, `i64`, `f32`, `f64`, `String` (text, and what travels as text),
//! `Vec<u8>` (bytea), chrono's `NaiveDate`, `NaiveDateTime`, `DateTime<Utc>` and `NaiveTime`, `[u8; 16]` (uuid),
//! `IntervalMonthDayNano`, and [`Json`] for arrays, ranges and composite types.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, BooleanBuilder, FixedSizeBinaryBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray};
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Timelike, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use udf_codec::json::{decode_column, encode_column};
use udf_types::types::Type;

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// What an argument is, if it is not what the handler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// NULL, which takes an `Option`.
    Null,
    /// A value that the Rust type cannot hold.
    OutOfRange,
}

/// A Rust type that holds values of some SQL type, without NULL.
pub trait Value: Sized + 'static {
    /// A column of such values, made ready for reading.
    type Column;
    /// Collects results.
    type Builder: Send;
    /// A result of which all code of the handler's has run, such as its `Serialize`.
    type Settled;

    /// Whether the Rust type holds values of `ty`.
    fn holds(ty: &Type) -> bool;
    /// Makes a column ready.
    fn column(ty: &Type, array: &ArrayRef) -> Self::Column;
    /// A row that is not NULL.
    fn read(column: &Self::Column, row: usize) -> Result<Self, Refused>;
    /// A builder for some rows.
    fn builder(ty: &Type, rows: usize) -> Self::Builder;
    /// A result, or NULL, as it can be appended where no code of the handler's may run. The error says what it was.
    fn settle(value: Option<Self>) -> Result<Self::Settled, String>;
    /// Appends a result that is settled. The error says what it was.
    fn append(builder: &mut Self::Builder, value: Self::Settled) -> Result<(), String>;
    /// The bytes that the results have so far, not counting those of a fixed size each.
    fn bytes(builder: &Self::Builder) -> usize;
    /// The results as a column of `ty`. The error says what does not fit.
    fn finish(builder: Self::Builder, ty: &Type) -> Result<ArrayRef, String>;
}

/// A value, or an `Option` of one.
pub trait Parameter: Sized + 'static {
    /// The value.
    type Value: Value;
    /// Reads a row.
    fn read(column: &<Self::Value as Value>::Column, is_null: bool, row: usize) -> Result<Self, Refused>;
}

/// What a function may return: a value, an `Option`, or a `Result` of either.
pub trait Answer {
    /// The value.
    type Value: Value;
    /// NULL, a value, or the handler's error.
    fn answer(self) -> Result<Option<Self::Value>, transship_core::error::CallError>;
}

impl<A: Answer, E: std::fmt::Display + std::fmt::Debug> Answer for Result<A, E> {
    type Value = A::Value;

    fn answer(self) -> Result<Option<A::Value>, transship_core::error::CallError> {
        self.map_err(transship_core::error::user_error)?.answer()
    }
}

macro_rules! nullable {
    ([$($generic:ident: $($bound:ident)+)?] $value:ty) => {
        impl<$($generic: $($bound +)+ 'static)?> Parameter for $value {
            type Value = $value;

            fn read(column: &<$value as Value>::Column, is_null: bool, row: usize) -> Result<Self, Refused> {
                if is_null { Err(Refused::Null) } else { <$value as Value>::read(column, row) }
            }
        }

        impl<$($generic: $($bound +)+ 'static)?> Parameter for Option<$value> {
            type Value = $value;

            fn read(column: &<$value as Value>::Column, is_null: bool, row: usize) -> Result<Self, Refused> {
                if is_null { Ok(None) } else { <$value as Value>::read(column, row).map(Some) }
            }
        }

        impl<$($generic: $($bound +)+ 'static)?> Answer for $value {
            type Value = $value;

            fn answer(self) -> Result<Option<$value>, transship_core::error::CallError> {
                Ok(Some(self))
            }
        }

        impl<$($generic: $($bound +)+ 'static)?> Answer for Option<$value> {
            type Value = $value;

            fn answer(self) -> Result<Option<$value>, transship_core::error::CallError> {
                Ok(self)
            }
        }
    };
}

/// A type that an Arrow array of its own holds.
macro_rules! value {
    ($value:ty, $($holds:pat_param)|+, $array:ty, $cast:expr, $read:expr, $builder:ty, $new:expr, $append:expr, $bytes:expr) => {
        impl Value for $value {
            type Column = $array;
            type Builder = $builder;
            type Settled = Option<$value>;

            fn holds(ty: &Type) -> bool {
                matches!(ty, $($holds)|+)
            }

            fn column(_: &Type, array: &ArrayRef) -> $array {
                let cast: fn(&ArrayRef) -> &$array = $cast;
                cast(array).clone()
            }

            fn read(column: &$array, row: usize) -> Result<$value, Refused> {
                let read: fn(&$array, usize) -> Option<$value> = $read;
                read(column, row).ok_or(Refused::OutOfRange)
            }

            fn builder(_: &Type, rows: usize) -> $builder {
                let new: fn(usize) -> $builder = $new;
                new(rows)
            }

            fn settle(value: Option<$value>) -> Result<Option<$value>, String> {
                Ok(value)
            }

            fn append(builder: &mut $builder, value: Option<$value>) -> Result<(), String> {
                let append: fn(&mut $builder, $value) -> Option<()> = $append;
                match value {
                    None => builder.append_null(),
                    Some(value) => {
                        let shown = value.clone();
                        append(builder, value).ok_or_else(|| format!("{shown:?}"))?;
                    }
                }
                Ok(())
            }

            fn bytes(builder: &$builder) -> usize {
                let bytes: fn(&$builder) -> usize = $bytes;
                bytes(builder)
            }

            fn finish(mut builder: $builder, ty: &Type) -> Result<ArrayRef, String> {
                let array: ArrayRef = Arc::new(builder.finish());
                if *array.data_type() == ty.data_type() {
                    return Ok(array);
                }
                // A time zone is a matter of the type alone.
                let micros = array.as_primitive::<TimestampMicrosecondType>().clone();
                Ok(Arc::new(micros.with_data_type(ty.data_type())))
            }
        }

        nullable!([] $value);
    };
}

macro_rules! primitive {
    ($value:ty, $($holds:pat_param)|+, $arrow:ty, $read:expr, $write:expr) => {
        value!(
            $value,
            $($holds)|+,
            PrimitiveArray<$arrow>,
            |array| array.as_primitive::<$arrow>(),
            |column, row| $read(column.value(row)),
            PrimitiveBuilder<$arrow>,
            PrimitiveBuilder::with_capacity,
            |builder, value| {
                builder.append_value($write(value)?);
                Some(())
            },
            |_| 0
        );
    };
}

primitive!(i16, Type::Int2, Int16Type, Some, Some);
primitive!(i32, Type::Int4, Int32Type, Some, Some);
primitive!(i64, Type::Int8, Int64Type, Some, Some);
primitive!(f32, Type::Float4, Float32Type, Some, Some);
primitive!(f64, Type::Float8, Float64Type, Some, Some);
primitive!(IntervalMonthDayNano, Type::Interval, IntervalMonthDayNanoType, Some, Some);
primitive!(NaiveDate, Type::Date, Date32Type, read_date, |date: NaiveDate| Some(date.to_epoch_days()));
primitive!(
    NaiveDateTime,
    Type::Timestamp,
    TimestampMicrosecondType,
    |micros| Some(read_micros(micros)?.naive_utc()),
    |time: NaiveDateTime| micros_of(time.and_utc())
);
primitive!(DateTime<Utc>, Type::TimestampTz, TimestampMicrosecondType, read_micros, micros_of);
primitive!(NaiveTime, Type::Time, Time64MicrosecondType, read_time, time_micros);
value!(
    bool,
    Type::Bool,
    BooleanArray,
    |array| array.as_boolean(),
    |column, row| Some(column.value(row)),
    BooleanBuilder,
    BooleanBuilder::with_capacity,
    |builder, value| {
        builder.append_value(value);
        Some(())
    },
    |_| 0
);
value!(
    String,
    Type::Text | Type::Numeric | Type::Json | Type::TimeTz | Type::Inet | Type::Cidr | Type::MacAddr | Type::DateTime2,
    StringArray,
    |array| array.as_string::<i32>(),
    |column, row| Some(column.value(row).to_string()),
    StringBuilder,
    |rows| StringBuilder::with_capacity(rows, rows * 16),
    |builder, value| {
        builder.append_value(value);
        Some(())
    },
    |builder| builder.values_slice().len()
);
value!(
    Vec<u8>,
    Type::Bytea,
    BinaryArray,
    |array| array.as_binary::<i32>(),
    |column, row| Some(column.value(row).to_vec()),
    BinaryBuilder,
    |rows| BinaryBuilder::with_capacity(rows, rows * 16),
    |builder, value| {
        builder.append_value(value);
        Some(())
    },
    |builder| builder.values_slice().len()
);
value!(
    [u8; 16],
    Type::Uuid,
    FixedSizeBinaryArray,
    |array| array.as_fixed_size_binary(),
    |column, row| column.value(row).try_into().ok(),
    FixedSizeBinaryBuilder,
    |rows| FixedSizeBinaryBuilder::with_capacity(rows, 16),
    |builder, value| builder.append_value(value).ok(),
    |_| 0
);

fn read_date(days: i32) -> Option<NaiveDate> {
    if matches!(days, i32::MAX | i32::MIN) { None } else { NaiveDate::from_epoch_days(days) }
}

fn read_micros(micros: i64) -> Option<DateTime<Utc>> {
    if matches!(micros, i64::MAX | i64::MIN) { None } else { DateTime::from_timestamp_micros(micros) }
}

fn micros_of(time: DateTime<Utc>) -> Option<i64> {
    time.timestamp_subsec_nanos().is_multiple_of(1000).then(|| time.timestamp_micros())
}

fn read_time(micros: i64) -> Option<NaiveTime> {
    // 24:00 is no NaiveTime.
    let micros = (0..MICROS_PER_DAY).contains(&micros).then_some(micros)?;
    NaiveTime::from_num_seconds_from_midnight_opt((micros / 1_000_000) as u32, (micros % 1_000_000) as u32 * 1000)
}

fn time_micros(time: NaiveTime) -> Option<i64> {
    let nanoseconds = time.nanosecond();
    let is_exact = nanoseconds < 1_000_000_000 && nanoseconds.is_multiple_of(1000);
    is_exact.then(|| i64::from(time.num_seconds_from_midnight()) * 1_000_000 + i64::from(nanoseconds / 1000))
}

/// Any type's values in the JSON form of `docs/types.md`, as serde reads and writes it: for arrays, ranges and composite
/// types.
#[derive(Debug, Clone, PartialEq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Serialize + 'static> Value for Json<T> {
    type Column = Vec<serde_json::Value>;
    /// Values, and what they take.
    type Builder = (Vec<serde_json::Value>, usize);
    type Settled = serde_json::Value;

    fn holds(_: &Type) -> bool {
        true
    }

    fn column(ty: &Type, array: &ArrayRef) -> Vec<serde_json::Value> {
        let mut text = String::new();
        encode_column(&mut text, ty, array);
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn read(column: &Vec<serde_json::Value>, row: usize) -> Result<Json<T>, Refused> {
        let value = column.get(row).cloned().unwrap_or_default();
        serde_json::from_value(value).map(Json).map_err(|_| Refused::OutOfRange)
    }

    fn builder(_: &Type, rows: usize) -> Self::Builder {
        (Vec::with_capacity(rows), 0)
    }

    fn settle(value: Option<Json<T>>) -> Result<serde_json::Value, String> {
        let value = value.map(|Json(value)| serde_json::to_value(value)).transpose();
        Ok(value.map_err(|cause| cause.to_string())?.unwrap_or_default())
    }

    fn append((values, bytes): &mut Self::Builder, value: serde_json::Value) -> Result<(), String> {
        *bytes += bytes_of(&value);
        values.push(value);
        Ok(())
    }

    fn bytes((_, bytes): &Self::Builder) -> usize {
        *bytes
    }

    fn finish((values, _): Self::Builder, ty: &Type) -> Result<ArrayRef, String> {
        decode_column(ty, &values)
    }
}

/// What a value takes in memory.
fn bytes_of(value: &serde_json::Value) -> usize {
    use serde_json::Value as Json;
    let held = match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(bytes_of).sum(),
        Json::Object(members) => members.iter().map(|(name, value)| name.len() + bytes_of(value)).sum(),
    };
    size_of::<Json>() + held
}

nullable!([T: DeserializeOwned Serialize] Json<T>);
