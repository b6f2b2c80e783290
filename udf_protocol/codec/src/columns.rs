//! Columns as they lie in memory (`docs/protocol.md` §7): the buffers of the Arrow columnar format one after the other,
//! and a header in JSON that says where each begins.
//!
//! In: a record batch, or a header and bytes that nobody has checked. Out: buffers and the header that describes them, or
//! a record batch that is valid. Nothing here reads or writes a file.

use std::io;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, ListArray, PrimitiveArray,
    RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{Schema, SchemaRef};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use udf_types::signature::{RowErrors, Signature};
use udf_types::textual_type;
use udf_types::types::Type;

use crate::batch::{AggregateStep, CallBatch};
use crate::unreadable::Unreadable;

/// Every buffer begins at a multiple of so many bytes.
pub const ALIGNMENT: usize = 64;

/// What a reader asks of a buffer's place, which is all that 64-bit values need.
const READ_ALIGNMENT: usize = 8;

/// The header of a batch of calls.
#[derive(Debug, Serialize)]
pub struct CallHeader<'a> {
    batch: u64,
    rows: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<AggregateStep>,
    /// Whether the reply is to have a column of errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    row_errors: Option<RowErrors>,
    /// The segment that holds the data; none if it follows the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<&'a str>,
    /// What the data is, if not the buffers themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<&'static str>,
    /// The segment into which the data of the reply may be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_segment: Option<&'a str>,
    /// Whether the reply may refer to the call's buffers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    may_alias: bool,
    /// Whether columns of the reply may be dictionaries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    may_encode: bool,
    /// The columns that have one row, which stands for all.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    constants: &'a [usize],
    /// What names these constants, and no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    constants_id: Option<&'a str>,
    /// Whether an earlier request brought these, and they have no buffers here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    same_constants: bool,
    buffers: &'a [usize],
}

impl<'a> CallHeader<'a> {
    /// The header of a batch whose data follows it.
    pub fn new(batch: &CallBatch, layout: &'a Layout, exchange: &'a str) -> CallHeader<'a> {
        CallHeader {
            batch: batch.number,
            rows: batch.columns.num_rows(),
            exchange: batch.step.map(|_| exchange),
            step: batch.step,
            row_errors: None,
            segment: None,
            form: layout.form,
            reply_segment: None,
            may_alias: layout.form.is_none(),
            may_encode: batch.takes_dictionaries && layout.form.is_none(),
            constants: &layout.constants,
            constants_id: None,
            same_constants: layout.same_constants,
            buffers: &layout.places,
        }
    }

    /// Asks for a column of errors, if the signature has one.
    pub fn with_row_errors(self, row_errors: Option<RowErrors>) -> CallHeader<'a> {
        CallHeader { row_errors, ..self }
    }

    /// Names the constants.
    pub fn with_constants_id(self, id: &'a str) -> CallHeader<'a> {
        CallHeader { constants_id: Some(id), ..self }
    }

    /// Says that the data lies in a segment, and offers another one for the reply's.
    pub fn with_segments(self, segment: &'a str, reply_segment: &'a str) -> CallHeader<'a> {
        CallHeader { segment: Some(segment), reply_segment: Some(reply_segment), ..self }
    }
}

/// The header of a reply.
#[derive(Debug, Clone, Deserialize)]
pub struct ReplyHeader {
    /// The number of the batch it answers.
    #[serde(default)]
    pub batch: Option<u64>,
    /// Rows of the reply.
    pub rows: usize,
    /// How long the server computed, in microseconds.
    #[serde(default)]
    pub micros: u64,
    /// The segment that holds the data; none if it follows the header.
    #[serde(default)]
    pub segment: Option<String>,
    /// Whether the server keeps the segment of the calls, which must not be written again then.
    #[serde(default)]
    pub retained: bool,
    /// Offset and length of each buffer, in bytes.
    pub buffers: Vec<usize>,
    /// Which of the buffers, counted from 0, lie in the data of the call.
    #[serde(default)]
    pub aliases: Vec<usize>,
    /// Of each column that is a dictionary its number, counted from 0, and how many values the dictionary has.
    #[serde(default)]
    pub dictionaries: Vec<usize>,
}

impl ReplyHeader {
    /// Bytes of the reply's own data that the buffers reach to; none if that cannot be.
    pub fn extent(&self) -> Option<usize> {
        let is_alias = self.which_are_aliases();
        extent(self.buffers.chunks(2).zip(is_alias).filter(|(_, is_alias)| !is_alias).map(|(place, _)| place))
    }

    /// Bytes of the buffers that are not the call's.
    pub fn own_bytes(&self) -> usize {
        let places = self.buffers.chunks(2).zip(self.which_are_aliases());
        let lengths = places.filter(|(_, is_alias)| !is_alias).map(|(place, _)| place.get(1).copied().unwrap_or(0));
        lengths.fold(0, usize::saturating_add)
    }

    /// Of each buffer, whether it lies in the data of the call. Numbers of buffers that there are not are left out.
    fn which_are_aliases(&self) -> Vec<bool> {
        let mut is_alias = vec![false; self.buffers.len().div_ceil(2)];
        for &number in &self.aliases {
            if let Some(entry) = is_alias.get_mut(number) {
                *entry = true;
            }
        }
        is_alias
    }
}

/// Bytes of the data that buffers reach to, given their places; none if that cannot be.
pub fn extent<'a>(mut places: impl Iterator<Item = &'a [usize]>) -> Option<usize> {
    places.try_fold(0, |extent: usize, place| Some(extent.max(place[0].checked_add(*place.get(1)?)?)))
}

/// Memory that the data of a batch begins with, by its address. It is compared with those of buffers, and not looked at.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    address: usize,
    size: usize,
}

impl Region {
    /// Where these bytes lie.
    pub fn of(bytes: &[u8]) -> Region {
        Region { address: bytes.as_ptr() as usize, size: bytes.len() }
    }

    /// Where in it a buffer begins, if it lies there.
    pub fn offset_of(&self, buffer: &Buffer) -> Option<usize> {
        let offset = (buffer.as_ptr() as usize).checked_sub(self.address)?;
        (offset + buffer.len() <= self.size).then_some(offset)
    }
}

/// The data of a call, to which a reply may refer (§7.8).
#[derive(Debug, Clone, Copy)]
pub struct CallData<'a> {
    region: Region,
    places: &'a [usize],
}

impl CallData<'_> {
    /// The data, and offset and length of each of its buffers. It must last as long as the columns of the reply.
    pub fn new<'a>(data: &'a Buffer, places: &'a [usize]) -> CallData<'a> {
        CallData { region: Region::of(data), places }
    }

    /// Where in the data a buffer begins, if a client finds it there.
    fn offset_of(&self, buffer: &Buffer) -> Option<usize> {
        let offset = self.region.offset_of(buffer).filter(|offset| offset.is_multiple_of(READ_ALIGNMENT))?;
        let end = offset + buffer.len();
        let holds_it = |place: &[usize]| place[0] <= offset && end <= place[0].saturating_add(place[1]);
        self.places.chunks_exact(2).any(holds_it).then_some(offset)
    }
}

/// Where a batch's buffers go.
#[derive(Debug, Default)]
pub struct Layout {
    /// The bytes of each buffer, and where it begins. Empty ones are left out.
    pieces: Vec<(usize, Buffer)>,
    /// Offset and length of each buffer, the empty ones included.
    places: Vec<usize>,
    /// What the buffers reach to.
    size: usize,
    /// Bytes of all.
    pub bytes: usize,
    /// What the data begins with; what lies there already stays where it is.
    start: Option<Region>,
    /// What they are, if not the buffers of columns.
    form: Option<&'static str>,
    /// The columns that are constants.
    constants: Vec<usize>,
    /// Whether the server has these from the batch before.
    same_constants: bool,
    /// The buffers, counted from 0, that lie in the data of the call.
    aliases: Vec<usize>,
    /// Of each column that is a dictionary its number, counted from 0, and how many values the dictionary has.
    dictionaries: Vec<usize>,
}

impl Layout {
    /// Lays out a batch whose columns have the Arrow types of `types`, or are dictionaries of texts with indexes of int32.
    pub fn of(types: &[Type], batch: &RecordBatch) -> Layout {
        let mut layout = Layout::default();
        for (number, (ty, column)) in types.iter().zip(batch.columns()).enumerate() {
            match column.as_dictionary_opt::<Int32Type>() {
                Some(dictionary) => layout.add_dictionary(number, dictionary),
                None => layout.add_column(ty, column),
            }
        }
        layout
    }

    /// Lays out a reply, whose columns of texts may be dictionaries with indexes of int32. Buffers that lie in the data of the call
    /// stay where they are.
    pub fn of_reply(types: &[Type], batch: &RecordBatch, call: Option<CallData<'_>>) -> Layout {
        let mut layout = Layout::of(types, batch);
        let Some(call) = call else { return layout };
        let (mut pieces, mut moved) = (std::mem::take(&mut layout.pieces).into_iter(), Layout::default());
        for (number, place) in layout.places.chunks_exact(2).enumerate() {
            let Some((_, buffer)) = (place[1] > 0).then(|| pieces.next()).flatten() else {
                moved.places.extend([0, 0]);
                continue;
            };
            match call.offset_of(&buffer) {
                Some(offset) => {
                    moved.places.extend([offset, buffer.len()]);
                    moved.aliases.push(number);
                }
                None => moved.add(buffer),
            }
        }
        moved.dictionaries = layout.dictionaries;
        moved
    }

    /// The buffers of a reply, counted from 0, that lie in the data of the call.
    pub fn aliases(&self) -> &[usize] {
        &self.aliases
    }

    /// Of each column that is a dictionary its number, counted from 0, and how many values the dictionary has.
    pub fn dictionaries(&self) -> &[usize] {
        &self.dictionaries
    }

    /// Lays out calls, in data that begins with a region: what lies there already stays where it is. The region must last as
    /// long as the layout. The server may have the constants from the batch before.
    pub fn of_calls(types: &[Type], batch: &CallBatch, start: Option<Region>, same_constants: bool) -> Layout {
        let size = start.map_or(0, |start| start.size);
        let constants = batch.constants.positions();
        let mut layout = Layout { start, size, constants, same_constants, ..Layout::default() };
        let mut columns = batch.columns.columns().iter();
        for (position, ty) in types.iter().enumerate() {
            match batch.constants.at(position) {
                Some(value) if !same_constants => layout.add_column(ty, value),
                Some(_) => {}
                None => columns.by_ref().take(1).for_each(|column| layout.add_column(ty, column)),
            }
        }
        layout
    }

    /// Offset and length of each buffer, for a header.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// What does not lie where it belongs, and where that is.
    pub fn pieces_to_write(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let size = self.start.map_or(0, |start| start.size);
        self.pieces.iter().map(|(offset, piece)| (*offset, piece.as_slice())).filter(move |(offset, _)| *offset >= size)
    }

    /// Lays out a file that holds a batch.
    pub fn of_file(form: &'static str, file: Vec<u8>) -> Layout {
        let mut layout = Layout { form: Some(form), ..Layout::default() };
        layout.add(file.into());
        layout
    }

    /// The bytes at a place of the data, if they lie within one buffer.
    fn find(&self, offset: usize, length: usize) -> Option<Buffer> {
        let end = offset.checked_add(length)?;
        let is_inside = |(start, piece): &&(usize, Buffer)| *start <= offset && end <= start + piece.len();
        let (start, piece) = self.pieces.iter().find(is_inside)?;
        Some(piece.slice_with_length(offset - start, length))
    }

    fn add(&mut self, buffer: Buffer) {
        if buffer.is_empty() {
            self.places.extend([0, 0]);
            return;
        }
        self.bytes += buffer.len();
        let there =
            self.start.and_then(|start| start.offset_of(&buffer)).filter(|at| at.is_multiple_of(READ_ALIGNMENT));
        let offset = there.unwrap_or_else(|| {
            let offset = self.size.next_multiple_of(ALIGNMENT);
            self.size = offset + buffer.len();
            offset
        });
        self.places.extend([offset, buffer.len()]);
        self.pieces.push((offset, buffer));
    }

    fn add_values<T: ArrowPrimitiveType>(&mut self, column: &ArrayRef) {
        self.add(column.as_primitive::<T>().values().inner().clone());
    }

    fn add_nulls(&mut self, column: &dyn Array) {
        match column.nulls().filter(|nulls| nulls.null_count() > 0) {
            Some(nulls) => self.add(nulls.inner().sliced()),
            None => self.add(Buffer::default()),
        }
    }

    fn add_dictionary(&mut self, number: usize, column: &DictionaryArray<Int32Type>) {
        let texts = column.values().as_string::<i32>();
        self.dictionaries.extend([number, texts.len()]);
        self.add_nulls(column);
        self.add(column.keys().values().inner().clone());
        self.add(texts.offsets().inner().inner().clone());
        self.add(texts.values().clone());
    }

    fn add_column(&mut self, ty: &Type, column: &ArrayRef) {
        self.add_nulls(column);
        match ty {
            Type::Bool => self.add(column.as_boolean().values().sliced()),
            Type::Int2 => self.add_values::<Int16Type>(column),
            Type::Int4 => self.add_values::<Int32Type>(column),
            Type::Int8 => self.add_values::<Int64Type>(column),
            Type::Float4 => self.add_values::<Float32Type>(column),
            Type::Float8 => self.add_values::<Float64Type>(column),
            Type::Date => self.add_values::<Date32Type>(column),
            Type::Timestamp | Type::TimestampTz => self.add_values::<TimestampMicrosecondType>(column),
            Type::Time => self.add_values::<Time64MicrosecondType>(column),
            Type::Interval => self.add_values::<IntervalMonthDayNanoType>(column),
            Type::Uuid => self.add(column.as_fixed_size_binary().values().clone()),
            textual_type!() => {
                self.add(column.as_string::<i32>().offsets().inner().inner().clone());
                self.add(column.as_string::<i32>().values().clone());
            }
            Type::Bytea => {
                self.add(column.as_binary::<i32>().offsets().inner().inner().clone());
                self.add(column.as_binary::<i32>().values().clone());
            }
            Type::Array(element) => {
                self.add(column.as_list::<i32>().offsets().inner().inner().clone());
                self.add_column(element, column.as_list::<i32>().values());
            }
            Type::Range(_) | Type::Composite(_) => {
                for (attribute, part) in ty.attributes().iter().zip(column.as_struct().columns()) {
                    self.add_column(&attribute.ty, part);
                }
            }
        }
    }
}

/// What precedes the data in the body of a request or reply: length of the header (u32, little-endian), header, zeros up
/// to a multiple of 8.
pub fn frame(header: &impl Serialize, capacity: usize) -> Vec<u8> {
    let json = serde_json::to_vec(header).expect("headers hold nothing that JSON cannot");
    let mut body = Vec::with_capacity(json.len() + 16 + capacity);
    // A header is far below 4 GiB: it has two numbers per buffer.
    body.extend_from_slice(&u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
    body.extend_from_slice(&json);
    body.resize(body.len().next_multiple_of(READ_ALIGNMENT), 0);
    body
}

/// The whole body, with the data behind the header.
pub fn inline_body(header: &impl Serialize, layout: &Layout) -> Vec<u8> {
    let mut body = frame(header, layout.size);
    let start = body.len();
    for (offset, piece) in &layout.pieces {
        body.resize(start + offset, 0);
        body.extend_from_slice(piece);
    }
    body
}

/// Splits a body into its header and the data that follows it. The error says what is wrong.
pub fn read_frame<H: DeserializeOwned>(body: &[u8]) -> Result<(H, &[u8]), String> {
    let length = body.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or("it has no header")?;
    let json = body[4..].get(..length).ok_or("its header is cut off")?;
    let header = serde_json::from_slice(json).map_err(|cause| cause.to_string())?;
    Ok((header, body.get((4 + length).next_multiple_of(READ_ALIGNMENT)..).unwrap_or_default()))
}

/// Reads a reply's columns as `signature` says, out of the data that its header describes, and that of the `call` to which
/// it may refer. The error says what does not fit.
pub fn decode_reply(
    signature: &Signature,
    header: &ReplyHeader,
    data: &Buffer,
    call: &Layout,
) -> Result<RecordBatch, String> {
    let mut data = Data::Memory(aligned(data.clone()));
    decode_reply_from(signature, header, &mut data, call)
}

/// The same out of data that may lie elsewhere.
pub fn decode_reply_from(
    signature: &Signature,
    header: &ReplyHeader,
    data: &mut Data<'_>,
    call: &Layout,
) -> Result<RecordBatch, String> {
    let fields = signature.reply_types().into_iter().map(|ty| ty.field(&signature.function));
    let places = header.buffers.chunks(2).zip(header.which_are_aliases());
    let dictionaries = &header.dictionaries;
    let reader = Reader { what: "reply", places, dictionaries, data, call };
    reader.batch(&signature.reply_types(), Schema::new(fields.collect::<Vec<_>>()).into(), header.rows)
}

/// Where the buffers of a batch lie.
#[derive(Debug)]
pub enum Data<'a> {
    /// Here, where any value may begin.
    Memory(Buffer),
    /// Elsewhere, of which no more is read than the rows need.
    Elsewhere(Distant<'a>),
}

/// Bytes that lie elsewhere, such as in a file.
pub trait Source: std::fmt::Debug + Sync {
    /// A copy of so many bytes from an offset on.
    ///
    /// # Errors
    /// If they are not there, or there is no memory for them ([`io::ErrorKind::OutOfMemory`]).
    fn read_at(&self, offset: u64, size: usize) -> io::Result<Buffer>;
}

impl Data<'_> {
    /// Bytes that are there, or were read.
    pub fn taken(&self) -> usize {
        match self {
            Data::Memory(data) => data.len(),
            Data::Elsewhere(data) => data.taken,
        }
    }

    /// All of it, as one.
    ///
    /// # Errors
    /// If it cannot be read, or is larger than may be read.
    pub fn whole(&mut self) -> Result<Buffer, Unreadable> {
        match self {
            Data::Memory(data) => Ok(data.clone()),
            Data::Elsewhere(data) => data.read(0, data.size).map_err(|fact| match data.is_too_large {
                true => Unreadable::TooLarge,
                false => Unreadable::Misfit(fact),
            }),
        }
    }
}

/// What is read of a source that another process may change meanwhile, and make as large as it likes.
#[derive(Debug)]
pub struct Distant<'a> {
    source: &'a dyn Source,
    /// What it reached to when it was first looked at.
    size: usize,
    /// Bytes that may yet be read.
    left: usize,
    /// Bytes that were read.
    taken: usize,
    /// Whether more was asked for than may be read.
    is_too_large: bool,
}

impl Distant<'_> {
    /// The first `size` bytes of a source, of which `most` may be read.
    pub fn new(source: &dyn Source, size: usize, most: usize) -> Distant<'_> {
        Distant { source, size, left: most, taken: 0, is_too_large: false }
    }

    /// Whether more was asked for than may be read, or than there is memory for.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    fn read(&mut self, offset: usize, length: usize) -> Result<Buffer, String> {
        let too_large = || "The reply is larger than it may be.".to_string();
        if length > self.left {
            self.is_too_large = true;
            return Err(too_large());
        }
        self.left -= length;
        self.taken += length;
        let read = self.source.read_at(offset as u64, length).map_err(|cause| {
            self.is_too_large = cause.kind() == io::ErrorKind::OutOfMemory;
            format!("The reply's segment cannot be read: {cause}.")
        });
        read.map(aligned)
    }
}

/// Bytes of values of fixed width that so many rows have, validity included; none if some values have no fixed width.
pub fn fixed_bytes(types: &[Type], rows: usize) -> Option<usize> {
    types.iter().try_fold(0_usize, |sum, ty| sum.checked_add(fixed_bytes_of(ty, rows)?))
}

fn fixed_bytes_of(ty: &Type, rows: usize) -> Option<usize> {
    let width = match ty {
        Type::Bool => 1,
        textual_type!() | Type::Bytea | Type::Array(_) => return None,
        Type::Range(_) | Type::Composite(_) => {
            let parts = ty.attributes();
            return parts.iter().try_fold(rows, |sum, part| sum.checked_add(fixed_bytes_of(&part.ty, rows)?));
        }
        plain => plain.data_type().primitive_width().unwrap_or(16),
    };
    rows.checked_mul(width + 1)
}

/// Reads a call's columns as `signature` says, out of the data in which `buffers` has offset and length of each. The error
/// says what does not fit.
pub fn decode_call(
    signature: &Signature,
    rows: usize,
    buffers: &[usize],
    data: &Buffer,
) -> Result<RecordBatch, String> {
    let places = buffers.chunks(2).zip(std::iter::repeat(false));
    let mut data = Data::Memory(aligned(data.clone()));
    let reader = Reader { what: "call", places, dictionaries: &[], data: &mut data, call: &Layout::default() };
    reader.batch(&signature.call_types(), signature.call_schema(), rows)
}

/// The bytes, where any value may begin.
pub fn aligned(buffer: Buffer) -> Buffer {
    let is_aligned = buffer.as_ptr().align_offset(READ_ALIGNMENT) == 0;
    if is_aligned { buffer } else { Buffer::from(buffer.as_slice()) }
}

struct Reader<'a, 'd, P> {
    /// What is read, for messages.
    what: &'static str,
    /// Of each buffer its place, and whether that is in the data of the call.
    places: P,
    /// The columns that are dictionaries, as in [`ReplyHeader::dictionaries`].
    dictionaries: &'a [usize],
    data: &'a mut Data<'d>,
    call: &'a Layout,
}

impl<'p, P: Iterator<Item = (&'p [usize], bool)>> Reader<'_, '_, P> {
    fn batch(mut self, types: &[Type], schema: SchemaRef, rows: usize) -> Result<RecordBatch, String> {
        let mut sizes = vec![None; types.len()];
        for entry in self.dictionaries.chunks(2) {
            let is_text = |number: &usize| matches!(types.get(*number), Some(textual_type!()));
            match entry {
                [number, size] if is_text(number) => sizes[*number] = Some(*size),
                _ => return Err(format!("The {} has a dictionary where no column of text is.", self.what)),
            }
        }
        let columns = types.iter().zip(&sizes).map(|(ty, size)| match size {
            Some(size) => self.dictionary(rows, *size),
            None => self.column(ty, rows),
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        if self.places.next().is_some() {
            return Err(format!("The {} has more buffers than its columns.", self.what));
        }
        let fields = schema.fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(|cause| self.malformed(cause))
    }

    fn malformed(&self, cause: impl std::fmt::Display) -> String {
        format!("The {} is malformed: {cause}.", self.what)
    }

    fn too_short(&self, length: usize, bytes: usize) -> String {
        format!("A buffer of the {} has {length} bytes, not {bytes}.", self.what)
    }

    /// The next buffer, of at least `bytes` bytes, of which no more is needed.
    fn buffer(&mut self, bytes: Option<usize>) -> Result<Buffer, String> {
        self.buffer_of(bytes, bytes.unwrap_or(0))
    }

    /// The next buffer, of at least `bytes` bytes, of which `needed` are looked at, if it has so many.
    fn buffer_of(&mut self, bytes: Option<usize>, needed: usize) -> Result<Buffer, String> {
        let what = self.what;
        let Some((&[offset, length], is_alias)) = self.places.next() else {
            return Err(format!("The {what} has fewer buffers than its columns."));
        };
        let size = match &self.data {
            Data::Memory(data) => data.len(),
            Data::Elsewhere(data) => data.size,
        };
        let alias = is_alias.then(|| self.call.find(offset, length)).flatten();
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= size);
        if !offset.is_multiple_of(READ_ALIGNMENT) || !(if is_alias { alias.is_some() } else { is_inside }) {
            return Err(format!("The {what} has {length} bytes at {offset}, where no buffer can be."));
        }
        match bytes {
            None => return Err(format!("The {what} has too many rows.")),
            Some(bytes) if bytes > length => return Err(self.too_short(length, bytes)),
            Some(_) => {}
        }
        match (alias, &mut *self.data) {
            (Some(alias), _) => Ok(aligned(alias)),
            (None, Data::Memory(data)) => Ok(data.slice_with_length(offset, length)),
            (None, Data::Elsewhere(data)) => data.read(offset, length.min(needed)),
        }
    }

    fn bits(&mut self, rows: usize) -> Result<BooleanBuffer, String> {
        Ok(BooleanBuffer::new(self.buffer(Some(rows.div_ceil(8)))?, 0, rows))
    }

    fn values<T: ArrowPrimitiveType>(
        &mut self,
        ty: &Type,
        rows: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, String> {
        let buffer = self.buffer(rows.checked_mul(size_of::<T::Native>()))?;
        let array = PrimitiveArray::<T>::try_new(ScalarBuffer::new(buffer, 0, rows), nulls)
            .map_err(|cause| self.malformed(cause))?;
        Ok(Arc::new(array.with_data_type(ty.data_type())))
    }

    fn offsets(&mut self, rows: usize) -> Result<OffsetBuffer<i32>, String> {
        if rows == 0 {
            self.buffer(Some(0))?;
            return Ok(OffsetBuffer::new_empty());
        }
        let buffer = self.buffer(rows.checked_add(1).and_then(|count| count.checked_mul(4)))?;
        let offsets = ScalarBuffer::<i32>::new(buffer, 0, rows + 1);
        if offsets[0] < 0 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(format!("The {} has offsets that descend.", self.what));
        }
        Ok(OffsetBuffer::new(offsets))
    }

    fn nulls(&mut self, rows: usize) -> Result<Option<NullBuffer>, String> {
        let validity = self.buffer_of(Some(0), rows.div_ceil(8))?;
        match validity.len() {
            0 => Ok(None),
            length if length < rows.div_ceil(8) => Err(self.too_short(length, rows.div_ceil(8))),
            _ => Ok(Some(NullBuffer::new(BooleanBuffer::new(validity, 0, rows)))),
        }
    }

    fn text(&mut self, rows: usize, nulls: Option<NullBuffer>) -> Result<ArrayRef, String> {
        let offsets = self.offsets(rows)?;
        let needed = usize::try_from(offsets.last()).unwrap_or(0);
        let array = StringArray::try_new(offsets, self.buffer_of(Some(0), needed)?, nulls);
        Ok(Arc::new(array.map_err(|cause| self.malformed(cause))?))
    }

    /// A column of texts of which there are `size`, each row's by its place among them.
    fn dictionary(&mut self, rows: usize, size: usize) -> Result<ArrayRef, String> {
        let nulls = self.nulls(rows)?;
        let places = self.values::<Int32Type>(&Type::Int4, rows, nulls)?;
        let array = DictionaryArray::try_new(places.as_primitive::<Int32Type>().clone(), self.text(size, None)?);
        Ok(Arc::new(array.map_err(|cause| self.malformed(cause))?))
    }

    fn column(&mut self, ty: &Type, rows: usize) -> Result<ArrayRef, String> {
        let nulls = self.nulls(rows)?;
        Ok(match ty {
            Type::Bool => Arc::new(BooleanArray::new(self.bits(rows)?, nulls)),
            Type::Int2 => self.values::<Int16Type>(ty, rows, nulls)?,
            Type::Int4 => self.values::<Int32Type>(ty, rows, nulls)?,
            Type::Int8 => self.values::<Int64Type>(ty, rows, nulls)?,
            Type::Float4 => self.values::<Float32Type>(ty, rows, nulls)?,
            Type::Float8 => self.values::<Float64Type>(ty, rows, nulls)?,
            Type::Date => self.values::<Date32Type>(ty, rows, nulls)?,
            Type::Timestamp | Type::TimestampTz => self.values::<TimestampMicrosecondType>(ty, rows, nulls)?,
            Type::Time => self.values::<Time64MicrosecondType>(ty, rows, nulls)?,
            Type::Interval => self.values::<IntervalMonthDayNanoType>(ty, rows, nulls)?,
            Type::Uuid => {
                let bytes = rows.checked_mul(16);
                let values = self.buffer(bytes)?.slice_with_length(0, rows * 16);
                Arc::new(FixedSizeBinaryArray::try_new(16, values, nulls).map_err(|cause| self.malformed(cause))?)
            }
            textual_type!() => self.text(rows, nulls)?,
            Type::Bytea => {
                let offsets = self.offsets(rows)?;
                let needed = usize::try_from(offsets.last()).unwrap_or(0);
                Arc::new(
                    BinaryArray::try_new(offsets, self.buffer_of(Some(0), needed)?, nulls)
                        .map_err(|cause| self.malformed(cause))?,
                )
            }
            Type::Array(element) => {
                let offsets = self.offsets(rows)?;
                let elements = usize::try_from(offsets.last()).unwrap_or(0);
                let values = self.column(element, elements)?;
                let field = Arc::new(element.field("item"));
                Arc::new(ListArray::try_new(field, offsets, values, nulls).map_err(|cause| self.malformed(cause))?)
            }
            Type::Range(_) | Type::Composite(_) => {
                let (mut fields, mut parts) = (Vec::new(), Vec::new());
                for attribute in ty.attributes().iter() {
                    parts.push(self.column(&attribute.ty, rows)?);
                    fields.push(attribute.ty.field(&attribute.name));
                }
                Arc::new(
                    StructArray::try_new_with_length(fields.into(), parts, nulls, rows)
                        .map_err(|cause| self.malformed(cause))?,
                )
            }
        })
    }
}
