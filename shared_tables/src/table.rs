//! A shared table: segments of the same columns, whose rows are read batch by batch, or found by key.
//!
//! Rows come in the order of the segments. A look-up copies the rows that it finds, without dictionaries, as each segment has its own; record
//! batches lie where the segments do.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, Int32Array, RecordBatch, RecordBatchOptions, StructArray, new_empty_array, new_null_array,
};
use arrow_buffer::NullBuffer;
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use arrow_select::interleave::interleave;
use udf_types::error::Result;

use crate::dictionary::{place, value_type};
use crate::error;
use crate::keys::Keys;
use crate::segment::Segment;

/// Most rows that a look-up gives.
const MOST_FOUND: usize = i32::MAX as usize;
/// What a value of variable length takes at least of a column, its offset with room to spare.
const VARIABLE_BYTES: usize = 16;
/// Characters of a key that an error shows.
const MOST_SHOWN: usize = 100;

/// A table of at least one segment.
#[derive(Debug, Clone)]
pub struct Table {
    name: String,
    schema: SchemaRef,
    /// The same columns, some of which have dictionaries.
    batch_schema: SchemaRef,
    key: Vec<usize>,
    segments: Vec<Arc<Segment>>,
    /// The number of the first batch of each segment, and of all batches at the end.
    first_batches: Vec<usize>,
    rows: usize,
}

/// Where a row lies: the number of the batch, and the row of the batch.
type Place = (usize, usize);

impl Table {
    /// The table of these segments, oldest first. `name` is for errors.
    ///
    /// # Errors
    /// There is no segment, or one has other columns or another key than the others.
    pub fn new(name: &str, segments: Vec<Arc<Segment>>) -> Result<Table> {
        let Some(first) = segments.first() else { return Err(error::no_segments(name)) };
        if let Some(other) = segments.iter().position(|segment| segment.schema() != first.schema()) {
            return Err(error::other_columns(name, other + 1));
        }
        let (mut first_batches, mut rows) = (vec![0], 0);
        for segment in &segments {
            first_batches.push(first_batches.last().map_or(0, |first| first + segment.batches().len()));
            rows += segment.rows();
        }
        let batch_schema = Arc::new(nullable(first.schema()));
        let (name, schema, key) = (name.to_string(), Arc::new(decoded(&batch_schema)), first.key().to_vec());
        Ok(Table { name, schema, batch_schema, key, segments, first_batches, rows })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The columns of look-ups, with the metadata of the segments. All may be NULL, as they are where a look-up finds no row.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns of record batches: those of look-ups, of which some have a [`dictionary`](crate::dictionary).
    pub fn batch_schema(&self) -> &SchemaRef {
        &self.batch_schema
    }

    /// The positions of the key's columns, counted from 0; empty if there is no key.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of record batches, none of which is empty.
    pub fn batch_count(&self) -> usize {
        self.first_batches.last().copied().unwrap_or(0)
    }

    /// A record batch, whose buffers lie in the bytes of a segment; `None` if there is none of this number.
    pub fn batch(&self, number: usize) -> Option<RecordBatch> {
        (number < self.batch_count()).then(|| self.whole_batch(number))
    }

    /// All record batches, in the order of the rows.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = RecordBatch> {
        (0..self.batch_count()).map(|number| self.whole_batch(number))
    }

    fn whole_batch(&self, number: usize) -> RecordBatch {
        let batch = self.held_batch(number);
        batch_of(&self.batch_schema, batch.columns().to_vec(), batch.num_rows())
    }

    /// One row per key, in the order of the keys: a NULL, with all its columns, where the table has no row with the key, or a part of
    /// the key is NULL. `keys` has a column for each column of the key, in the key's order, of the column's type. Texts and byte
    /// strings may have large offsets or be views, and time zones do not count.
    ///
    /// # Errors
    /// A key of several rows, a table without a key, columns of other types, or rows that are too large for one array (of kind
    /// `OutOfRange` or `OutOfMemory`).
    pub fn lookup(&self, keys: &[ArrayRef]) -> Result<StructArray> {
        let (columns, keys) = (keys, self.keys_of(keys)?);
        self.check_room(keys.rows())?;
        let mut places = Vec::with_capacity(keys.rows());
        for row in 0..keys.rows() {
            let (mut place, mut found) = (None, 0);
            for (number, segment) in self.segments.iter().enumerate() {
                let rows = segment.rows_of(&keys, row);
                found += rows.len();
                if let (None, Some(first)) = (place, rows.first()) {
                    place = Some(self.place(number, *first));
                }
            }
            if found > 1 {
                return Err(error::several_rows(&self.name, row, &shown(columns, row), found));
            }
            places.push(place);
        }
        let has_null = places.contains(&None);
        let nulls = has_null.then(|| places.iter().map(Option::is_some).collect::<NullBuffer>());
        let columns = self.gather(places.iter().copied(), has_null)?;
        let rows = StructArray::try_new_with_length(self.schema.fields().clone(), columns, nulls, places.len());
        Ok(rows.expect("the columns are as long as the keys, and of the schema"))
    }

    /// All rows of all keys, and for each of them the number of its key, counted from 0; in the order of the keys, and of the table.
    /// `keys` is as for [`lookup`](Table::lookup).
    ///
    /// # Errors
    /// More than 2147483647 rows, or those of [`lookup`](Table::lookup) but keys of several rows.
    pub fn matches(&self, keys: &[ArrayRef]) -> Result<(Int32Array, RecordBatch)> {
        let keys = self.keys_of(keys)?;
        let (mut found, mut rows_found) = (Vec::new(), 0);
        for row in 0..keys.rows() {
            for (number, segment) in self.segments.iter().enumerate() {
                let rows = segment.rows_of(&keys, row);
                if !rows.is_empty() {
                    rows_found += rows.len();
                    found.push((row, number, rows));
                }
            }
            if rows_found > MOST_FOUND {
                return Err(error::too_many_found(&self.name));
            }
        }
        self.check_room(rows_found)?;
        let mut positions = Vec::with_capacity(rows_found);
        found.iter().for_each(|(key, _, rows)| positions.extend(std::iter::repeat_n(*key as i32, rows.len())));
        let places = found.iter().flat_map(|(_, segment, rows)| rows.iter().map(|row| self.place(*segment, *row)));
        let columns = self.gather(places.map(Some), false)?;
        Ok((Int32Array::from(positions), batch_of(&self.schema, columns, rows_found)))
    }

    /// Keys to look for, in the types of the key's columns.
    fn keys_of(&self, columns: &[ArrayRef]) -> Result<Keys> {
        if self.key.is_empty() {
            return Err(error::no_key(&self.name));
        }
        if columns.len() != self.key.len() {
            let names: Vec<&str> = self.key.iter().map(|key| self.schema.field(*key).name().as_str()).collect();
            return Err(error::other_key(&self.name, &names, columns.len()));
        }
        let columns =
            self.key.iter().zip(columns).map(|(key, column)| self.key_column(self.schema.field(*key), column));
        let keys = Keys::new(&columns.collect::<Result<Vec<_>>>()?);
        let keys = keys.map_err(|cause| error::unusable_keys(&self.name, cause.message()))?;
        if keys.rows() > MOST_FOUND { Err(error::too_many_found(&self.name)) } else { Ok(keys) }
    }

    fn key_column(&self, field: &Field, column: &ArrayRef) -> Result<ArrayRef> {
        use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Timestamp, Utf8, Utf8View};
        let (wanted, given) = (field.data_type(), column.data_type());
        let unusable = |cause: &dyn std::fmt::Display| error::unusable_keys(&self.name, cause);
        match (wanted, given) {
            _ if wanted == given => Ok(column.clone()),
            (Timestamp(TimeUnit::Microsecond, _), Timestamp(TimeUnit::Microsecond, _)) => Ok(column.clone()),
            (Utf8, LargeUtf8 | Utf8View) | (Binary, LargeBinary | BinaryView) => {
                // The cast of views panics where 32-bit offsets would not reach.
                if viewed_bytes(column) > i32::MAX as usize {
                    return Err(unusable(&"the keys have more than 2147483647 bytes"));
                }
                cast(column, wanted).map_err(|cause| unusable(&cause))
            }
            _ => Err(error::other_key_type(&self.name, field.name(), wanted, given)),
        }
    }

    /// Where a row of a segment lies.
    fn place(&self, segment: usize, row: u32) -> Place {
        let (batch, row) = self.segments[segment].place(row);
        (self.first_batches[segment] + batch, row)
    }

    /// The batch of a number that there is, as its segment has it.
    fn held_batch(&self, number: usize) -> &RecordBatch {
        // Segments without batches begin where the next one does.
        let segment = self.first_batches.partition_point(|first| *first <= number) - 1;
        &self.segments[segment].batches()[number - self.first_batches[segment]]
    }

    /// The columns of rows, with a row of NULL for each `None`, if `has_null` says that there may be any.
    fn gather(&self, places: impl Iterator<Item = Option<Place>>, has_null: bool) -> Result<Vec<ArrayRef>> {
        // The batches that have one of the rows, behind a row of NULL if there may be one: `None`.
        let mut sources = if has_null { vec![None] } else { Vec::new() };
        let mut source_of = vec![None; self.batch_count()];
        let source = |place: Option<Place>| {
            let Some((batch, row)) = place else { return (0, 0) };
            let number = source_of[batch].get_or_insert_with(|| {
                sources.push(Some(self.held_batch(batch)));
                sources.len() - 1
            });
            (*number, row)
        };
        let indices: Vec<(usize, usize)> = places.map(source).collect();
        if sources.is_empty() {
            return Ok(self.schema.fields().iter().map(|field| new_empty_array(field.data_type())).collect());
        }
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (position, field) in self.schema.fields().iter().enumerate() {
            let null = new_null_array(field.data_type(), 1);
            let arrays = sources.iter().map(|batch| batch.map_or(&null, |batch| batch.column(position)));
            let arrays: Vec<&ArrayRef> = arrays.collect();
            let gathered = match self.batch_schema.field(position).data_type() {
                DataType::Dictionary(..) => interleave_values(&arrays, &null, &indices),
                _ => interleave(&arrays.iter().map(|array| array.as_ref()).collect::<Vec<_>>(), &indices),
            };
            columns.push(gathered.map_err(|cause| error::not_gathered(&self.name, field.name(), &cause))?);
        }
        Ok(columns)
    }

    /// Refuses a look-up whose rows there is no memory for, before it takes any. How long texts are is not known yet.
    fn check_room(&self, rows: usize) -> Result<()> {
        let bytes_of = |field: &Arc<Field>| field.data_type().primitive_width().unwrap_or(VARIABLE_BYTES);
        let row_bytes = self.schema.fields().iter().map(bytes_of).sum::<usize>() + 2 * size_of::<Option<Place>>();
        let room = Vec::<u8>::new().try_reserve_exact(rows.saturating_mul(row_bytes));
        room.map_err(|_| error::no_memory_for_rows(&self.name, rows))
    }
}

/// The values of rows of columns with dictionaries, or without.
fn interleave_values(
    columns: &[&ArrayRef],
    null: &ArrayRef,
    rows: &[(usize, usize)],
) -> std::result::Result<ArrayRef, ArrowError> {
    let values =
        columns.iter().map(|column| column.as_any_dictionary_opt().map_or(*column, |encoded| encoded.values()));
    let values: Vec<&dyn Array> = values.chain([null]).map(AsRef::as_ref).collect();
    let place = |(column, row): &(usize, usize)| match place(columns[*column], *row) {
        Some((_, index)) => (*column, index),
        None => (columns.len(), 0),
    };
    interleave(&values, &rows.iter().map(place).collect::<Vec<_>>())
}

/// A batch of columns of this schema, of the same length.
fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(schema.clone(), columns, &options);
    batch.expect("the columns are of the schema, which has no column that may not be NULL")
}

fn nullable(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}

/// The same columns without dictionaries.
fn decoded(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let ty = value_type(field.data_type()).clone();
        field.as_ref().clone().with_data_type(ty)
    });
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}

/// Bytes of the texts or byte strings of views; 0 of other columns.
fn viewed_bytes(column: &ArrayRef) -> usize {
    let views = match column.data_type() {
        DataType::Utf8View => column.as_string_view().views(),
        DataType::BinaryView => column.as_binary_view().views(),
        _ => return 0,
    };
    // A view begins with the length.
    views.iter().fold(0, |bytes, view| bytes.saturating_add(*view as u32 as usize))
}

/// A key, for an error.
fn shown(columns: &[ArrayRef], row: usize) -> String {
    let values = columns.iter().map(|column| array_value_to_string(column, row).unwrap_or_else(|_| "?".to_string()));
    let text = format!("({})", values.collect::<Vec<_>>().join(", "));
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
