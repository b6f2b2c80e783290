//! The values of one argument for a batch, as they come in row by row: into what is nearly an Arrow buffer already, where
//! the type allows it.
//!
//! A row costs a push; types are looked at once per batch. Values of types that need more than that go through
//! [`super::to_arrow`], one by one.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType,
    TimestampMicrosecondType,
};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, PrimitiveArray, StringArray};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use pgrx::pg_sys;
use pgrx::varlena::varlena_to_byte_slice;
use udf_protocol::types::Type;

use super::to_arrow::{days_since_1970, micros_since_1970};
use super::{Form, SqlType};
use crate::pg::raw;

/// Where the values of one argument go.
#[derive(Debug)]
pub enum ArgumentColumn {
    /// Values that fit into a Datum.
    Fixed {
        /// The Datums; 0 for NULL.
        values: Vec<i64>,
        /// The rows that are NULL.
        nulls: Vec<u32>,
    },
    /// Text in UTF-8, or bytes.
    Bytes {
        /// All values, one behind the other.
        data: Vec<u8>,
        /// Where each ends, behind a zero.
        ends: Vec<i32>,
        /// The rows that are NULL.
        nulls: Vec<u32>,
    },
    /// Everything else: a [`udf_protocol::batch::ColumnBuilder`] has them.
    Built,
}

impl ArgumentColumn {
    /// An empty column for values of a type.
    pub fn new(sql_type: &SqlType) -> ArgumentColumn {
        // SAFETY: reads a process-wide constant.
        let is_utf8 = unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32;
        match (&sql_type.form, &sql_type.ty) {
            (
                Form::Plain,
                Type::Bool
                | Type::Int2
                | Type::Int4
                | Type::Int8
                | Type::Float4
                | Type::Float8
                | Type::Date
                | Type::Time
                | Type::Timestamp
                | Type::TimestampTz,
            ) => ArgumentColumn::Fixed { values: Vec::new(), nulls: Vec::new() },
            (Form::Plain, Type::Bytea) => ArgumentColumn::bytes_column(),
            (Form::Text, _) if is_utf8 => ArgumentColumn::bytes_column(),
            _ => ArgumentColumn::Built,
        }
    }

    fn bytes_column() -> ArgumentColumn {
        ArgumentColumn::Bytes { data: Vec::new(), ends: vec![0], nulls: Vec::new() }
    }

    /// Appends a value; gives its size in bytes. What PostgreSQL has to allocate for it lands in the current memory context.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The value is of the column's type, or `is_null` is set.
    pub unsafe fn push(&mut self, datum: pg_sys::Datum, is_null: bool) -> usize {
        match self {
            ArgumentColumn::Fixed { values, nulls } => {
                if is_null {
                    nulls.push(values.len() as u32);
                    values.push(0);
                } else {
                    values.push(datum.value() as i64);
                }
                size_of::<i64>()
            }
            ArgumentColumn::Bytes { data, ends, nulls } => {
                let before = data.len();
                if is_null {
                    nulls.push(ends.len() as u32 - 1);
                } else {
                    // SAFETY: the caller says that it is a varlena.
                    data.extend_from_slice(unsafe { varlena_to_byte_slice(raw::detoast_packed(datum.cast_mut_ptr())) });
                }
                // A batch is cut at far less than 1 GiB, and its last value has at most that.
                ends.push(data.len() as i32);
                data.len() - before + size_of::<i32>()
            }
            ArgumentColumn::Built => 0,
        }
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        match self {
            ArgumentColumn::Fixed { values, nulls } => (values.clear(), nulls.clear()),
            ArgumentColumn::Bytes { data, ends, nulls } => {
                ends.truncate(1);
                (data.clear(), nulls.clear())
            }
            ArgumentColumn::Built => ((), ()),
        };
    }

    /// The values as an Arrow array of the type, and none any more here; none for a column that a builder has.
    pub fn take(&mut self, sql_type: &SqlType) -> Option<ArrayRef> {
        match self {
            ArgumentColumn::Fixed { values, nulls } => {
                let nulls = null_buffer(values.len(), nulls);
                let capacity = values.capacity();
                Some(fixed_array(&sql_type.ty, std::mem::replace(values, Vec::with_capacity(capacity)), nulls))
            }
            ArgumentColumn::Bytes { data, ends, nulls } => {
                let nulls = null_buffer(ends.len() - 1, nulls);
                let (data, ends) = (std::mem::take(data), std::mem::replace(ends, vec![0]));
                Some(bytes_array(&sql_type.ty, data, ends, nulls))
            }
            ArgumentColumn::Built => None,
        }
    }
}

/// Takes the rows that are NULL; none if there are none.
fn null_buffer(rows: usize, nulls: &mut Vec<u32>) -> Option<NullBuffer> {
    if nulls.is_empty() {
        return None;
    }
    let mut validity = BooleanBufferBuilder::new(rows);
    validity.append_n(rows, true);
    nulls.drain(..).for_each(|row| validity.set_bit(row as usize, false));
    Some(NullBuffer::new(validity.finish()))
}

fn fixed_array(ty: &Type, values: Vec<i64>, nulls: Option<NullBuffer>) -> ArrayRef {
    fn array<T: ArrowPrimitiveType>(
        ty: &Type,
        values: &[i64],
        nulls: Option<NullBuffer>,
        convert: impl Fn(i64) -> T::Native,
    ) -> ArrayRef {
        let values: Vec<T::Native> = values.iter().map(|value| convert(*value)).collect();
        Arc::new(PrimitiveArray::<T>::new(values.into(), nulls).with_data_type(ty.data_type()))
    }
    /// The Datums are the values already.
    fn same<T: ArrowPrimitiveType>(ty: &Type, values: Vec<i64>, nulls: Option<NullBuffer>) -> ArrayRef {
        let rows = values.len();
        let values = ScalarBuffer::new(Buffer::from_vec(values), 0, rows);
        Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(ty.data_type()))
    }
    match ty {
        Type::Bool => {
            let bits = BooleanBuffer::collect_bool(values.len(), |row| values[row] as u8 != 0);
            Arc::new(BooleanArray::new(bits, nulls))
        }
        Type::Int2 => array::<Int16Type>(ty, &values, nulls, |value| value as i16),
        Type::Int4 => array::<Int32Type>(ty, &values, nulls, |value| value as i32),
        Type::Float4 => array::<Float32Type>(ty, &values, nulls, |value| f32::from_bits(value as u32)),
        Type::Int8 => same::<Int64Type>(ty, values, nulls),
        Type::Float8 => same::<Float64Type>(ty, values, nulls),
        Type::Time => same::<Time64MicrosecondType>(ty, values, nulls),
        Type::Date => array::<Date32Type>(ty, &values, nulls, |value| days_since_1970(value as i32)),
        _ => array::<TimestampMicrosecondType>(ty, &values, nulls, micros_since_1970),
    }
}

fn bytes_array(ty: &Type, data: Vec<u8>, ends: Vec<i32>, nulls: Option<NullBuffer>) -> ArrayRef {
    let offsets = OffsetBuffer::new(ends.into());
    if *ty == Type::Bytea {
        return Arc::new(BinaryArray::new(offsets, data.into(), nulls));
    }
    let data = Buffer::from_vec(data);
    match StringArray::try_new(offsets.clone(), data.clone(), nulls.clone()) {
        Ok(array) => Arc::new(array),
        // PostgreSQL has checked its text; what slipped through is replaced, value by value.
        Err(_) => {
            let bytes = BinaryArray::new(offsets, data, nulls);
            Arc::new(bytes.iter().map(|value| value.map(String::from_utf8_lossy)).collect::<StringArray>())
        }
    }
}
