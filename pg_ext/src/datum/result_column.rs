//! The results of one call for a batch, as Datums at hand where the type allows it, so that a row costs a load.

use std::rc::Rc;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, StringArray, StructArray};
use arrow_buffer::{Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, Field};
use arrow_select::nullif::nullif;
use pgrx::pg_sys;
use udf_project::body::OnError;
use udf_types::row_texts::RowTexts;
use udf_types::types::Type;

use super::Form;
use super::from_arrow::{ResultReader, are_in_range};
use crate::function::Function;
use crate::pg::raw;
use crate::pg::text::{is_utf8, with_marks};

/// Bytes of a varlena's header (varatt.h).
const HEADER_BYTES: usize = 4;
/// Bytes of the longest text (memutils.h, MaxAllocSize).
const LONGEST_TEXT: usize = 0x3fff_ffff - HEADER_BYTES;

/// The results of one call.
#[derive(Debug)]
pub struct ResultColumn {
    values: Values,
    nulls: Option<NullBuffer>,
}

#[derive(Debug)]
enum Values {
    /// Datums.
    Fixed(Vec<pg_sys::Datum>),
    /// Text in UTF-8 without NUL characters, or bytes.
    Bytes { offsets: OffsetBuffer<i32>, data: Buffer },
    /// Such text out of a dictionary.
    Shared { places: ScalarBuffer<i32>, texts: Vec<pg_sys::Datum>, _memory: MutableBuffer },
    /// What takes more than a copy.
    Checked(ResultReader),
}

/// The results in a reply, as the function returns them.
pub fn results_of(function: &Function, reply: &RecordBatch) -> ArrayRef {
    let results = reply.column(0);
    if function.body.on_error != OnError::Report {
        return results.clone();
    }
    let errors = reply.column(1).as_string::<i32>();
    let mut texts = RowTexts::new();
    // A mark is longer than what it stands for.
    let errors: StringArray = errors.iter().map(|error| error.map(|text| with_marks(texts.cut(text)))).collect();
    let names = function.result.ty.attributes();
    let columns = [results.clone(), Arc::new(errors)];
    let fields = names.iter().zip(&columns).map(|(attribute, column): (_, &ArrayRef)| {
        Arc::new(Field::new(&attribute.name, column.data_type().clone(), true))
    });
    // Both are columns of one batch.
    Arc::new(StructArray::from(fields.zip(columns.clone()).collect::<Vec<_>>()))
}

/// The columns of a set's results: of a composite type its attributes, each of which is NULL where the row is.
///
/// # Errors
/// If a column cannot be made, for want of room in Arrow's offsets.
pub fn columns_of_set(function: &Function, results: ArrayRef) -> Result<Vec<ArrayRef>, ArrowError> {
    if !matches!(function.result.form, Form::Composite { .. }) {
        return Ok(vec![results]);
    }
    let rows = results.as_struct();
    let Some(nulls) = rows.nulls().filter(|nulls| nulls.null_count() > 0) else { return Ok(rows.columns().to_vec()) };
    let is_null = BooleanArray::new(!nulls.inner(), None);
    rows.columns().iter().map(|column| nullif(column, &is_null)).collect()
}

/// Checks results that go into another call as they came: an error is raised where making SQL values of them would raise it. They
/// [may go on](super::SqlType::may_go_on); `numbers` says of which rows of the scan they are, if there is a scan. Memory is taken from
/// the current context.
pub fn check_results(function: &Rc<Function>, column: &ArrayRef, numbers: impl Iterator<Item = Option<u64>>) {
    let are_fine = match &function.result.ty {
        Type::Composite(attributes) => {
            // All of a row's values are one value more.
            let longest = LONGEST_TEXT / (attributes.len() + 1);
            attributes.iter().zip(column.as_struct().columns()).all(|(it, column)| are_held(&it.ty, column, longest))
        }
        ty => are_held(ty, column, LONGEST_TEXT),
    };
    if are_fine {
        return;
    }
    let reader = ResultReader::new(function, column.clone());
    for (row, number) in numbers.take(column.len()).enumerate() {
        pgrx::check_for_interrupts!();
        reader.datum(row, number);
    }
}

/// Whether PostgreSQL can hold each value of a column of such a type, texts and bytes up to a length; false where that takes a look at
/// each of them.
fn are_held(ty: &Type, column: &ArrayRef, longest: usize) -> bool {
    let texts = |text: &StringArray| !text.values().contains(&0) && are_short(text.offsets(), longest);
    match ty {
        Type::Bool | Type::Int2 | Type::Int4 | Type::Int8 | Type::Float4 | Type::Float8 | Type::Uuid => true,
        Type::Text => match column.as_dictionary_opt::<Int32Type>() {
            Some(dictionary) => texts(dictionary.values().as_string()),
            None => texts(column.as_string()),
        },
        Type::Bytea => are_short(column.as_binary::<i32>().offsets(), longest),
        ty => are_in_range(ty, column),
    }
}

/// Whether no value is longer.
fn are_short(offsets: &OffsetBuffer<i32>, longest: usize) -> bool {
    offsets.lengths().all(|length| length <= longest)
}

impl ResultColumn {
    /// Reads `column`, which the protocol has checked to be of the function's result type.
    pub fn new(function: &Rc<Function>, column: ArrayRef) -> ResultColumn {
        let nulls = column.logical_nulls();
        let sql_type = &function.result;
        let fixed = match &sql_type.ty {
            _ if !matches!(sql_type.form, Form::Plain | Form::Text) || !sql_type.has_any_value() => None,
            Type::Bool => Some(column.as_boolean().values().iter().map(pg_sys::Datum::from).collect()),
            Type::Int2 => Some(datums::<Int16Type>(&column, pg_sys::Datum::from)),
            Type::Int4 => Some(datums::<Int32Type>(&column, pg_sys::Datum::from)),
            Type::Int8 => Some(datums::<Int64Type>(&column, pg_sys::Datum::from)),
            Type::Float4 => Some(datums::<Float32Type>(&column, |value| pg_sys::Datum::from(value.to_bits()))),
            Type::Float8 => Some(datums::<Float64Type>(&column, |value| pg_sys::Datum::from(value.to_bits()))),
            Type::Text if matches!(sql_type.oid, pg_sys::TEXTOID | pg_sys::VARCHAROID) => {
                let dictionary = column.as_dictionary_opt::<Int32Type>();
                let text = dictionary.map_or(&column, |dictionary| dictionary.values()).as_string::<i32>();
                if is_utf8() && !text.values().contains(&0) {
                    let Some(dictionary) = dictionary else {
                        let values = Values::Bytes { offsets: text.offsets().clone(), data: text.values().clone() };
                        return ResultColumn { values, nulls };
                    };
                    // One with more texts than rows takes more memory than it came with.
                    if text.values().len() <= LONGEST_TEXT && text.len() <= dictionary.len() {
                        return ResultColumn { values: shared(dictionary.keys(), text), nulls };
                    }
                }
                None
            }
            Type::Bytea => {
                let bytes = column.as_binary::<i32>();
                let values = Values::Bytes { offsets: bytes.offsets().clone(), data: bytes.values().clone() };
                return ResultColumn { values, nulls };
            }
            _ => None,
        };
        let values = match fixed {
            Some(datums) => Values::Fixed(datums),
            None => Values::Checked(ResultReader::new(function, column)),
        };
        ResultColumn { values, nulls }
    }

    /// The result at one position as `(value, is NULL)`, in the current memory context. It is that of row `number` of the scan.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. There are more than `row` results.
    pub unsafe fn datum(&self, row: usize, number: u64) -> (pg_sys::Datum, bool) {
        let null = (pg_sys::Datum::from(0usize), true);
        if let Values::Checked(reader) = &self.values {
            // SAFETY: both are plain values that outlive the call, which is guarded.
            return match unsafe { checked_datum(reader, row, number) } {
                CheckedDatum { datum, is_null: false } => (datum, false),
                _ => null,
            };
        }
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return null;
        }
        match &self.values {
            // SAFETY: the caller says that the row is there.
            Values::Fixed(datums) => (unsafe { *datums.get_unchecked(row) }, false),
            // SAFETY: as above, and offsets lie within the data, ascending, which was checked when the array was made.
            Values::Bytes { offsets, data } => unsafe {
                let (start, end) = (*offsets.get_unchecked(row) as usize, *offsets.get_unchecked(row + 1) as usize);
                let size = end - start + HEADER_BYTES;
                let varlena = raw::palloc(size).cast::<u8>();
                varlena.cast::<u32>().write(header_of(size));
                varlena.add(HEADER_BYTES).copy_from_nonoverlapping(data.as_ptr().add(start), end - start);
                (pg_sys::Datum::from(varlena), false)
            },
            // SAFETY: the caller says that the row is there, and places lie within the texts, which was checked when the
            // dictionary was made. What they point to lives as long as this column.
            Values::Shared { places, texts, .. } => unsafe {
                (*texts.get_unchecked(*places.get_unchecked(row) as usize), false)
            },
            Values::Checked(_) => null,
        }
    }
}

/// A varlena's first four bytes: its size in bytes, these included, above two bits that are zero.
fn header_of(size: usize) -> u32 {
    if cfg!(target_endian = "little") { (size as u32) << 2 } else { size as u32 }
}

/// Makes varlenas of a dictionary's texts.
fn shared(places: &Int32Array, texts: &StringArray) -> Values {
    let mut memory = MutableBuffer::with_capacity(texts.values().len() + texts.len() * 2 * HEADER_BYTES);
    let starts: Vec<usize> = texts
        .iter()
        .map(|text| {
            let text = text.unwrap_or_default().as_bytes();
            memory.resize(memory.len().next_multiple_of(HEADER_BYTES), 0);
            let start = memory.len();
            memory.extend_from_slice(&header_of(text.len() + HEADER_BYTES).to_ne_bytes());
            memory.extend_from_slice(text);
            start
        })
        .collect();
    let first = memory.as_ptr();
    // Pointers into the buffer, which is not written any more.
    let texts = starts.into_iter().map(|start| pg_sys::Datum::from(first.wrapping_add(start))).collect();
    Values::Shared { places: places.values().clone(), texts, _memory: memory }
}

fn datums<T: ArrowPrimitiveType>(column: &ArrayRef, datum: impl Fn(T::Native) -> pg_sys::Datum) -> Vec<pg_sys::Datum> {
    column.as_primitive::<T>().values().iter().map(|value| datum(*value)).collect()
}

#[repr(C)]
struct CheckedDatum {
    datum: pg_sys::Datum,
    is_null: bool,
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn checked_datum(reader: *const ResultReader, row: usize, number: u64) -> CheckedDatum {
    // SAFETY: the caller passes a valid reader.
    let datum = unsafe { (*reader).datum(row, Some(number)) };
    CheckedDatum { datum: datum.unwrap_or(pg_sys::Datum::from(0usize)), is_null: datum.is_none() }
}
