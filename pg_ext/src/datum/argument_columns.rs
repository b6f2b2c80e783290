//! The values of one call's arguments for a batch, as they come in row by row: into what are Arrow buffers already, where the
//! types allow it.
//!
//! Values that fit into a Datum go from the row to where the container reads them, if it maps that memory: a row costs a
//! load and a store for each; so do the attributes of a composite argument, if they are all such values or bytes. Types are
//! looked at once per batch. Values of types that need more than that go through [`super::to_arrow`], one by one.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, PrimitiveArray, StringArray, StructArray};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer, ToByteSlice,
};
use arrow_schema::Fields;
use pgrx::pg_sys;
use pgrx::varlena::varlena_to_byte_slice;
use udf_client::arena::{Arena, Writer};
use udf_codec::batch::Given;
use udf_types::types::Type;

use super::to_arrow::{self, days_since_1970, micros_since_1970};
use super::{Form, SqlType};
use crate::pg::text::to_utf8;
use crate::pg::{raw, reserve};
use crate::report;

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

    /// What [`ArgumentColumns::spread`] puts there.
    fn attribute(position: usize) -> Source {
        Source { array: 2, position }
    }
}

/// Where the values of an argument come from.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// The row.
    Own(Source),
    /// The row, but their column is made elsewhere.
    Shared(Source),
    /// Any row, since all have the same.
    Constant(Source),
    /// No row.
    Awaited,
}

/// Whether values of a type have to be converted one by one, into a column that may be used for several calls.
pub fn is_converted(sql_type: &SqlType) -> bool {
    !matches!((Column::new(sql_type), &sql_type.form), (Some(Column::Fixed), _) | (_, Form::Composite { .. }))
}

/// The values of one row: those of the child's columns, what was evaluated over them, and attributes of either.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Values, of each kind.
    pub values: [*const pg_sys::Datum; 3],
    /// Whether they are NULL.
    pub nulls: [*const bool; 3],
}

impl Row {
    /// The value.
    ///
    /// # Safety
    /// The row has it.
    pub unsafe fn value(&self, source: Source) -> pg_sys::Datum {
        // SAFETY: the caller says so; there are three arrays.
        unsafe { *self.values.get_unchecked(source.array).add(source.position) }
    }

    /// Whether it is NULL.
    ///
    /// # Safety
    /// The row has it.
    pub unsafe fn is_null(&self, source: Source) -> bool {
        // SAFETY: the caller says so; there are three arrays.
        unsafe { *self.nulls.get_unchecked(source.array).add(source.position) }
    }
}

/// Where the values of one argument, or of one of its attributes, go.
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
}

impl Column {
    /// None for a type whose values take more.
    fn new(sql_type: &SqlType) -> Option<Column> {
        // SAFETY: reads a process-wide constant.
        let is_utf8 = unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32;
        Some(match (&sql_type.form, &sql_type.ty) {
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
            _ => return None,
        })
    }
}

/// Values of one type.
#[derive(Debug)]
struct Leaf {
    source: Source,
    ty: Type,
    column: Column,
    /// The rows where it is NULL.
    nulls: Vec<u32>,
}

/// An argument of a composite type, each of whose attributes is a leaf.
#[derive(Debug)]
struct Composite {
    source: Source,
    /// Its place among the attributes of all, those that were dropped included.
    places: Range<usize>,
    /// The fields of the leaves.
    fields: Fields,
    /// The rows where it is NULL.
    nulls: Vec<u32>,
}

/// What an argument's column is made of.
#[derive(Debug)]
enum Argument {
    /// The leaf of this number.
    Leaf(usize),
    /// Leaves, from this number on, and what keeps them together.
    Composite(usize, Composite),
    /// A [`udf_codec::batch::ColumnBuilder`] has it.
    Built,
    /// It is another call's result, which is not there yet, or a column that is made elsewhere.
    Elsewhere,
    /// The constant of this number.
    Constant(usize),
}

/// A column of values that fit into a Datum.
#[derive(Debug)]
struct Fixed {
    source: Source,
    leaf: usize,
    /// Its place for the first row, in the arena.
    start: *mut pg_sys::Datum,
}

/// Where the values of all arguments go.
#[derive(Debug)]
pub struct ArgumentColumns {
    // for the call
    /// Of each argument that a row has.
    sources: Vec<Source>,
    arguments: Vec<Argument>,
    leaves: Vec<Leaf>,
    /// The leaves whose values are bytes.
    of_bytes: Vec<usize>,
    /// The arguments that a builder has.
    built: Vec<(usize, Source)>,
    /// The arguments that have the same value in every row, and that value as one row; none before the first row.
    constants: Vec<(usize, Source, Option<ArrayRef>)>,

    // for the row
    /// The attributes of composite arguments.
    values: Vec<pg_sys::Datum>,
    /// Whether they are NULL.
    nulls: Vec<bool>,

    // for the batch
    fixed: Vec<Fixed>,
    /// What these lie in; none before [`ArgumentColumns::begin`].
    writer: Option<Writer>,
    /// Rows for which there is room in it.
    room: usize,
    rows: usize,
    bytes: usize,
    /// Bytes of the constants that count in each row, since they may have to be sent with each.
    constant_bytes: usize,
    /// Whether constants travel once.
    takes_constants: bool,
}

impl ArgumentColumns {
    /// Empty columns for arguments of these types, whose values come from there. Of those that are awaited or shared,
    /// [`ArgumentColumns::take`] says that a builder has them.
    pub fn new(types: &[SqlType], places: &[Place]) -> ArgumentColumns {
        let (mut leaves, mut built, mut constants, mut attributes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let arguments = types.iter().zip(places).enumerate().map(|(number, (sql_type, &place))| {
            let first = leaves.len();
            let source = match place {
                Place::Own(source) => source,
                Place::Shared(_) | Place::Awaited => return Argument::Elsewhere,
                Place::Constant(source) => {
                    constants.push((number, source, None));
                    return Argument::Constant(constants.len() - 1);
                }
            };
            if let Some(column) = Column::new(sql_type) {
                leaves.push(Leaf { source, ty: sql_type.ty.clone(), column, nulls: Vec::new() });
                Argument::Leaf(first)
            } else if let Some((places, parts)) = spread_leaves(sql_type, attributes) {
                attributes = places.end;
                leaves.extend(parts);
                let fields =
                    sql_type.ty.attributes().iter().map(|attribute| attribute.ty.field(&attribute.name)).collect();
                Argument::Composite(first, Composite { source, places, fields, nulls: Vec::new() })
            } else {
                built.push((number, source));
                Argument::Built
            }
        });
        let arguments = arguments.collect();
        let source_of = |place: &Place| match *place {
            Place::Own(source) | Place::Shared(source) | Place::Constant(source) => Some(source),
            Place::Awaited => None,
        };
        let sources = places.iter().filter_map(source_of).collect();
        let (mut fixed, mut of_bytes) = (Vec::new(), Vec::new());
        for (number, leaf) in leaves.iter().enumerate() {
            match leaf.column {
                Column::Fixed => fixed.push(Fixed { source: leaf.source, leaf: number, start: std::ptr::null_mut() }),
                Column::Bytes { .. } => of_bytes.push(number),
            }
        }
        let (values, nulls) = (vec![pg_sys::Datum::null(); attributes], vec![true; attributes]);
        let (writer, room, rows, bytes, constant_bytes, takes_constants) = (None, 0, 0, 0, 0, false);
        ArgumentColumns {
            sources,
            arguments,
            leaves,
            of_bytes,
            built,
            constants,
            values,
            nulls,
            fixed,
            writer,
            room,
            rows,
            bytes,
            constant_bytes,
            takes_constants,
        }
    }

    /// The constants whose value is not known yet.
    pub fn unknown_constants(&self) -> impl Iterator<Item = (usize, Source)> {
        self.constants.iter().filter(|(.., value)| value.is_none()).map(|(number, source, _)| (*number, *source))
    }

    /// Notes the value of a constant argument, as one row.
    pub fn set_constant(&mut self, argument: usize, value: ArrayRef) {
        if let Some((.., known)) = self.constants.iter_mut().find(|(number, ..)| *number == argument) {
            *known = Some(value);
        }
        self.count_constants();
    }

    fn count_constants(&mut self) {
        let known = self.constants.iter().filter_map(|(.., value)| value.as_ref());
        let bytes = known.map(|value| value.get_buffer_memory_size()).sum();
        self.constant_bytes = if self.takes_constants { 0 } else { bytes };
    }

    /// The row of a slot, whose values were evaluated.
    pub fn row(&self, slot: &pg_sys::TupleTableSlot, values: &[pg_sys::Datum], nulls: &[bool]) -> Row {
        Row {
            values: [slot.tts_values, values.as_ptr(), self.values.as_ptr()],
            nulls: [slot.tts_isnull, nulls.as_ptr(), self.nulls.as_ptr()],
        }
    }

    /// Whether [`ArgumentColumns::spread`] has something to do.
    pub fn has_attributes(&self) -> bool {
        !self.values.is_empty()
    }

    /// Takes composite arguments apart, before their row is pushed.
    ///
    /// # Safety
    /// The row has all arguments, of their types.
    pub unsafe fn spread(&mut self, row: &Row) {
        for argument in &self.arguments {
            let Argument::Composite(_, Composite { source, places, .. }) = argument else { continue };
            let (values, nulls) = (&mut self.values[places.clone()], &mut self.nulls[places.clone()]);
            // SAFETY: the caller says so.
            unsafe {
                match row.is_null(*source) {
                    true => nulls.fill(true),
                    false => to_arrow::deform(row.value(*source), values, nulls),
                }
            }
        }
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

    /// Makes room for a batch of at most so many rows, or so many bytes and a row, in memory that `arena` gives. Constants
    /// travel once, or count in every row.
    pub fn begin(&mut self, rows: usize, bytes: usize, takes_constants: bool, arena: impl FnOnce(usize) -> Writer) {
        if self.takes_constants != takes_constants {
            self.takes_constants = takes_constants;
            self.count_constants();
        }
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

    /// Appends a row, which `has_null` or not. What PostgreSQL has to allocate for it lands in the current memory context.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The row has all arguments, of their types, and its attributes are spread.
    pub unsafe fn push(&mut self, row: &Row, has_null: bool) {
        let at = self.rows;
        let has_null = self.nulls.iter().fold(has_null, |found, is_null| found | is_null);
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
        self.bytes += self.fixed.len() * DATUM_BYTES + self.constant_bytes;
        if has_null {
            let leaves = self.leaves.iter_mut().map(|leaf| (leaf.source, &mut leaf.nulls));
            let composites = self.arguments.iter_mut().filter_map(|argument| match argument {
                Argument::Composite(_, composite) => Some((composite.source, &mut composite.nulls)),
                _ => None,
            });
            for (source, nulls) in leaves.chain(composites) {
                // SAFETY: the row has all arguments.
                if unsafe { row.is_null(source) } {
                    nulls.push(at as u32);
                }
            }
        }
        for number in &self.of_bytes {
            if let Some(Leaf { source, column: Column::Bytes { data, ends }, .. }) = self.leaves.get_mut(*number) {
                let before = data.len();
                // SAFETY: the caller says that it is a varlena if it is not NULL.
                unsafe {
                    if !has_null || !row.is_null(*source) {
                        let value = raw::detoast_packed(row.value(*source).cast_mut_ptr());
                        let value = varlena_to_byte_slice(value);
                        if value.len() > reserve::LARGE {
                            check_room(data.len() + value.len());
                        }
                        data.extend_from_slice(value);
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
        for leaf in &mut self.leaves {
            leaf.nulls.clear();
            if let Column::Bytes { data, ends } = &mut leaf.column {
                data.clear();
                ends.truncate(1);
            }
        }
        for argument in &mut self.arguments {
            if let Argument::Composite(_, composite) = argument {
                composite.nulls.clear();
            }
        }
    }

    /// The values as Arrow arrays of the arguments' types, and what some of them lie in. There are no values any more here, but
    /// those of constants.
    pub fn take(&mut self) -> (Vec<Given>, Option<Arc<Arena>>) {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let size = std::mem::take(&mut self.room) * DATUM_BYTES;
        let arena = self.writer.take().map(|mut writer| {
            for (fixed, place) in self.fixed.iter_mut().zip(writer.bytes().chunks_mut(size.max(1))) {
                fixed.start = std::ptr::null_mut();
                narrow(&self.leaves[fixed.leaf].ty, &mut place[..rows * DATUM_BYTES]);
            }
            writer.finish()
        });
        // Without an arena there is no row.
        let buffer = arena.as_ref().map_or_else(Buffer::default, |arena| arena.buffer());
        let mut number_of_fixed = 0;
        let leaves: Vec<ArrayRef> = self
            .leaves
            .iter_mut()
            .map(|Leaf { ty, column, nulls, .. }| {
                let nulls = null_buffer(rows, nulls);
                match column {
                    Column::Fixed => {
                        let values = buffer.slice_with_length(number_of_fixed * size, rows * DATUM_BYTES);
                        number_of_fixed += 1;
                        fixed_array(ty, values, rows, nulls)
                    }
                    Column::Bytes { data, ends } => {
                        bytes_array(ty, std::mem::take(data), std::mem::replace(ends, vec![0]), nulls)
                    }
                }
            })
            .collect();
        let arguments = self.arguments.iter_mut().map(|argument| match argument {
            Argument::Leaf(number) => Given::Column(leaves[*number].clone()),
            Argument::Composite(first, Composite { fields, nulls, .. }) => {
                let parts = leaves[*first..*first + fields.len()].to_vec();
                let nulls = null_buffer(rows, nulls);
                let array = StructArray::try_new_with_length(fields.clone(), parts, nulls, rows);
                Given::Column(Arc::new(array.expect("each row has one value of its type for every attribute")))
            }
            Argument::Built | Argument::Elsewhere => Given::Built,
            Argument::Constant(number) => {
                let (.., value) = &self.constants[*number];
                Given::Constant(value.clone().expect("a row was pushed"))
            }
        });
        (arguments.collect(), arena)
    }
}

/// Raises an error if there is no memory for a large value.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check_room(bytes: usize) {
    report::unwrap(reserve::check_room(bytes));
}

/// The leaves of a composite type, whose attributes are put behind the `first` ones, and where they all are; none if
/// another type has no leaves, or the values of an attribute take more than that.
fn spread_leaves(sql_type: &SqlType, first: usize) -> Option<(Range<usize>, Vec<Leaf>)> {
    let Form::Composite { attributes, .. } = &sql_type.form else { return None };
    let kept = attributes.iter().enumerate().filter_map(|(i, attribute)| Some((i, attribute.as_ref()?)));
    let leaves = kept.map(|(i, attribute)| {
        let (source, ty) = (Source::attribute(first + i), attribute.ty.clone());
        Some(Leaf { source, ty, column: Column::new(attribute)?, nulls: Vec::new() })
    });
    // Of a type without attributes nothing would tell the rows.
    (!attributes.is_empty()).then_some((first..first + attributes.len(), leaves.collect::<Option<_>>()?))
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
        // PostgreSQL has checked its text; for what slipped through this raises an error.
        Err(_) => {
            let bytes = BinaryArray::new(offsets, data, nulls);
            Arc::new(bytes.iter().map(|value| value.map(to_utf8)).collect::<StringArray>())
        }
    }
}
