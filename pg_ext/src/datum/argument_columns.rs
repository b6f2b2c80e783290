//! The values of one call's arguments for a batch, as they come in row by row: into what are Arrow buffers already, where the
//! types allow it.
//!
//! Values that fit into a Datum go from the row to where the container reads them, if it maps that memory: a row costs a
//! load and a store for each. Types are looked at once per batch. Values of types that need more than that go through
//! [`super::to_arrow`], one by one.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType,
    TimestampMicrosecondType,
};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, PrimitiveArray, StringArray};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer, ToByteSlice,
};
use pgrx::pg_sys;
use pgrx::varlena::varlena_to_byte_slice;
use udf_protocol::arena::{Arena, Writer};
use udf_protocol::types::Type;

use super::to_arrow::{days_since_1970, micros_since_1970};
use super::{Form, SqlType};
use crate::pg::raw;

/// Bytes of a Datum.
const DATUM_BYTES: usize = size_of::<pg_sys::Datum>();
/// Every column has room for a multiple of so many values, so that each begins where a cache line does.
const VALUES_PER_LINE: usize = 64 / DATUM_BYTES;

/// Where an argument's value is in a row.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// In which of the row's arrays.
    array: usize,
    position: usize,
}

impl Source {
    /// The child's column at this position.
    pub fn column(position: usize) -> Source {
        Source { array: 0, position }
    }

    /// What was evaluated as `position`-th.
    pub fn evaluated(position: usize) -> Source {
        Source { array: 1, position }
    }
}

/// The values of one row: those of the child's columns, and what was evaluated over them.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Values, of either kind.
    pub values: [*const pg_sys::Datum; 2],
    /// Whether they are NULL.
    pub nulls: [*const bool; 2],
}

impl Row {
    /// The value.
    ///
    /// # Safety
    /// The row has it.
    pub unsafe fn value(&self, source: Source) -> pg_sys::Datum {
        // SAFETY: the caller says so; there are two arrays.
        unsafe { *self.values.get_unchecked(source.array).add(source.position) }
    }

    /// Whether it is NULL.
    ///
    /// # Safety
    /// The row has it.
    pub unsafe fn is_null(&self, source: Source) -> bool {
        // SAFETY: the caller says so; there are two arrays.
        unsafe { *self.nulls.get_unchecked(source.array).add(source.position) }
    }
}

/// Where the values of one argument go.
#[derive(Debug)]
enum Column {
    /// Values that fit into a Datum: into the memory of all of these.
    Fixed,
    /// Text in UTF-8, or bytes.
    Bytes {
        /// All values, one behind the other.
        data: Vec<u8>,
        /// Where each ends, behind a zero.
        ends: Vec<i32>,
    },
    /// Everything else: a [`udf_protocol::batch::ColumnBuilder`] has them.
    Built,
}

impl Column {
    fn new(sql_type: &SqlType) -> Column {
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
            ) => Column::Fixed,
            (Form::Plain, Type::Bytea) => Column::Bytes { data: Vec::new(), ends: vec![0] },
            (Form::Text, _) if is_utf8 => Column::Bytes { data: Vec::new(), ends: vec![0] },
            _ => Column::Built,
        }
    }
}

/// A column of values that fit into a Datum.
#[derive(Debug)]
struct Fixed {
    source: Source,
    argument: usize,
    /// Its place for the first row, in the arena.
    start: *mut pg_sys::Datum,
}

/// Where the values of all arguments go.
#[derive(Debug)]
pub struct ArgumentColumns {
    // for the call
    /// Of each argument.
    sources: Vec<Source>,
    columns: Vec<Column>,
    /// The arguments whose values are bytes.
    of_bytes: Vec<(usize, Source)>,
    /// Those that a builder has.
    built: Vec<(usize, Source)>,

    // for the batch
    fixed: Vec<Fixed>,
    /// What these lie in; none before [`ArgumentColumns::begin`].
    writer: Option<Writer>,
    /// Rows for which there is room in it.
    room: usize,
    rows: usize,
    /// Of each argument the rows where it is NULL.
    nulls: Vec<Vec<u32>>,
    bytes: usize,
}

impl ArgumentColumns {
    /// Empty columns for arguments of these types, which a row has there.
    pub fn new(types: &[SqlType], sources: Vec<Source>) -> ArgumentColumns {
        let columns: Vec<_> = types.iter().map(Column::new).collect();
        let (mut fixed, mut of_bytes, mut built) = (Vec::new(), Vec::new(), Vec::new());
        for (argument, (column, source)) in columns.iter().zip(&sources).enumerate() {
            match column {
                Column::Fixed => fixed.push(Fixed { source: *source, argument, start: std::ptr::null_mut() }),
                Column::Bytes { .. } => of_bytes.push((argument, *source)),
                Column::Built => built.push((argument, *source)),
            }
        }
        let nulls = vec![Vec::new(); columns.len()];
        ArgumentColumns { sources, columns, of_bytes, built, fixed, writer: None, room: 0, rows: 0, nulls, bytes: 0 }
    }

    /// Bytes of the values so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The arguments whose values a builder is to have.
    pub fn built(&self) -> &[(usize, Source)] {
        &self.built
    }

    /// Whether an argument is NULL.
    ///
    /// # Safety
    /// The row has all arguments.
    pub unsafe fn has_null(&self, row: &Row) -> bool {
        // SAFETY: the caller says so. Without a branch per value.
        self.sources.iter().fold(false, |found, source| found | unsafe { row.is_null(*source) })
    }

    /// Makes room for a batch of at most so many rows, or so many bytes and a row, in memory that `arena` gives.
    pub fn begin(&mut self, rows: usize, bytes: usize, arena: impl FnOnce(usize) -> Writer) {
        if self.fixed.is_empty() {
            return;
        }
        let width = self.fixed.len() * DATUM_BYTES;
        let room = rows.min(bytes / width + 1).next_multiple_of(VALUES_PER_LINE);
        if self.writer.is_none() || self.room < room {
            self.move_to(arena(room * width), room);
        }
    }

    /// Moves the values into memory with room for so many rows.
    fn move_to(&mut self, mut writer: Writer, room: usize) {
        let bytes = writer.bytes();
        assert!(bytes.len() >= self.fixed.len() * room * DATUM_BYTES);
        for (fixed, place) in self.fixed.iter_mut().zip(bytes.chunks_mut((room * DATUM_BYTES).max(1))) {
            let start = place.as_mut_ptr().cast();
            if self.rows > 0 {
                // SAFETY: both have room for these rows, and the new memory is another.
                unsafe { fixed.start.copy_to_nonoverlapping(start, self.rows) };
            }
            fixed.start = start;
        }
        self.writer = Some(writer);
        self.room = room;
    }

    /// Makes room for more rows than [`ArgumentColumns::begin`] was told of.
    #[cold]
    fn grow(&mut self) {
        let room = (2 * self.room).max(VALUES_PER_LINE);
        self.move_to(Writer::own(self.fixed.len() * room * DATUM_BYTES), room);
    }

    /// Appends a row; says `has_null` of it. What PostgreSQL has to allocate for it lands in the current memory context.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The row has all arguments, of their types.
    pub unsafe fn push(&mut self, row: &Row, has_null: bool) {
        let at = self.rows;
        if at == self.room && !self.fixed.is_empty() {
            self.grow();
        }
        for fixed in &self.fixed {
            // SAFETY: there is room for the row, and the row has the value.
            unsafe {
                let is_null = has_null && row.is_null(fixed.source);
                *fixed.start.add(at) = if is_null { pg_sys::Datum::null() } else { row.value(fixed.source) };
            }
        }
        self.bytes += self.fixed.len() * DATUM_BYTES;
        if has_null {
            for (source, nulls) in self.sources.iter().zip(&mut self.nulls) {
                // SAFETY: the row has all arguments.
                if unsafe { row.is_null(*source) } {
                    nulls.push(at as u32);
                }
            }
        }
        for (argument, source) in &self.of_bytes {
            if let Some(Column::Bytes { data, ends }) = self.columns.get_mut(*argument) {
                let before = data.len();
                // SAFETY: the caller says that it is a varlena if it is not NULL.
                unsafe {
                    if !has_null || !row.is_null(*source) {
                        let value = raw::detoast_packed(row.value(*source).cast_mut_ptr());
                        data.extend_from_slice(varlena_to_byte_slice(value));
                    }
                }
                // A batch is cut at far less than 1 GiB, and its last value has at most that.
                ends.push(data.len() as i32);
                self.bytes += data.len() - before + size_of::<i32>();
            }
        }
        self.rows += 1;
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        (self.rows, self.bytes) = (0, 0);
        self.nulls.iter_mut().for_each(Vec::clear);
        for column in &mut self.columns {
            if let Column::Bytes { data, ends } = column {
                data.clear();
                ends.truncate(1);
            }
        }
    }

    /// The values as Arrow arrays of the types, and what some of them lie in; none for those that a builder has. There are no
    /// values any more here.
    pub fn take(&mut self, types: &[SqlType]) -> (Vec<Option<ArrayRef>>, Option<Arc<Arena>>) {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let mut arrays: Vec<_> = types.iter().map(|_| None).collect();
        for (argument, column) in self.columns.iter_mut().enumerate() {
            if let Column::Bytes { data, ends } = column {
                let nulls = null_buffer(rows, &mut self.nulls[argument]);
                let (data, ends) = (std::mem::take(data), std::mem::replace(ends, vec![0]));
                arrays[argument] = Some(bytes_array(&types[argument].ty, data, ends, nulls));
            }
        }
        for (argument, _) in &self.built {
            self.nulls[*argument].clear();
        }
        let Some(mut writer) = self.writer.take() else { return (arrays, None) };
        let size = std::mem::take(&mut self.room) * DATUM_BYTES;
        for (fixed, place) in self.fixed.iter_mut().zip(writer.bytes().chunks_mut(size.max(1))) {
            fixed.start = std::ptr::null_mut();
            narrow(&types[fixed.argument].ty, &mut place[..rows * DATUM_BYTES]);
        }
        let arena = writer.finish();
        let buffer = arena.buffer();
        for (i, fixed) in self.fixed.iter().enumerate() {
            let nulls = null_buffer(rows, &mut self.nulls[fixed.argument]);
            let values = buffer.slice_with_length(i * size, rows * DATUM_BYTES);
            arrays[fixed.argument] = Some(fixed_array(&types[fixed.argument].ty, values, rows, nulls));
        }
        (arrays, Some(arena))
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

/// Makes Arrow's values of Datums, at the beginning of the same bytes.
fn narrow(ty: &Type, bytes: &mut [u8]) {
    fn each<T: ArrowNativeType>(bytes: &mut [u8], convert: impl Fn(i64) -> T) {
        let width = size_of::<T>();
        for row in 0..bytes.len() / DATUM_BYTES {
            let value = convert(datum(bytes, row));
            bytes[row * width..][..width].copy_from_slice(value.to_byte_slice());
        }
    }
    fn datum(bytes: &[u8], row: usize) -> i64 {
        bytes[row * DATUM_BYTES..].first_chunk().map_or(0, |datum| i64::from_ne_bytes(*datum))
    }
    match ty {
        // The Datums are the values already.
        Type::Int8 | Type::Float8 | Type::Time => {}
        Type::Bool => {
            for first in (0..bytes.len() / DATUM_BYTES).step_by(8) {
                let rows = first..(first + 8).min(bytes.len() / DATUM_BYTES);
                let set = |bits, row| bits | (u8::from(datum(bytes, row) as u8 != 0) << (row - first));
                bytes[first / 8] = rows.fold(0, set);
            }
        }
        Type::Int2 => each(bytes, |value| value as i16),
        Type::Int4 => each(bytes, |value| value as i32),
        Type::Float4 => each(bytes, |value| f32::from_bits(value as u32)),
        Type::Date => each(bytes, |value| days_since_1970(value as i32)),
        _ => each(bytes, micros_since_1970),
    }
}

/// An array of values that were made narrow.
fn fixed_array(ty: &Type, values: Buffer, rows: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    fn array<T: ArrowPrimitiveType>(ty: &Type, values: Buffer, rows: usize, nulls: Option<NullBuffer>) -> ArrayRef {
        let values = ScalarBuffer::new(values, 0, rows);
        Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(ty.data_type()))
    }
    match ty {
        Type::Bool => {
            let bits = BooleanBuffer::new(values.slice_with_length(0, rows.div_ceil(8)), 0, rows);
            Arc::new(BooleanArray::new(bits, nulls))
        }
        Type::Int2 => array::<Int16Type>(ty, values, rows, nulls),
        Type::Int4 => array::<Int32Type>(ty, values, rows, nulls),
        Type::Float4 => array::<Float32Type>(ty, values, rows, nulls),
        Type::Int8 => array::<Int64Type>(ty, values, rows, nulls),
        Type::Float8 => array::<Float64Type>(ty, values, rows, nulls),
        Type::Time => array::<Time64MicrosecondType>(ty, values, rows, nulls),
        Type::Date => array::<Date32Type>(ty, values, rows, nulls),
        _ => array::<TimestampMicrosecondType>(ty, values, rows, nulls),
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
