//! The bytes of a segment to record batches, in place.
//!
//! The bytes may come from a dump that somebody made up, and Arrow's reader panics on some structures that are wrong. So the
//! structure is checked first: messages and buffers lie in order and do not overlap, each is aligned and lies within what holds it,
//! every buffer has the bytes that its column needs, and each column with a dictionary has one. Arrow's reader then checks the values:
//! offsets, UTF-8, indexes into dictionaries, and the counts of NULLs. For bytes that were checked before, it is told to skip the values. A panic that is left becomes an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{
    Block, Endianness, FieldNode, Footer, Message, MetadataVersion, root_as_footer_with_opts, root_as_message_with_opts,
};
use arrow_schema::{DataType, Field, IntervalUnit, SchemaRef};
use flatbuffers::VerifierOptions;
use udf_types::error::{Error, Result};

use crate::bounds::{MOST_ROWS, ROWS_PER_BATCH};
use crate::checks::{check_bytes, check_schema};
use crate::dictionary::value_type;
use crate::error;

/// The footer's length and the magic, at the end of a file.
const TRAILER_BYTES: usize = 10;
/// The magic and its padding, at the start.
const HEAD_BYTES: usize = 8;
/// A continuation and a length stand before a message.
const PREFIX: [u8; 4] = [0xff; 4];
const PREFIX_BYTES: usize = 8;
/// Longest footer, and longest head of a message, in bytes.
const MOST_METADATA_BYTES: usize = 64 << 20;
/// What the parts of a footer or message may come to, each as often as it stands somewhere: so many times its bytes.
const MOST_TIMES: usize = 4;
const LEAST_APPARENT_BYTES: usize = 64 << 10;
/// Most record batches of a segment.
const MOST_BATCHES: usize = MOST_ROWS / ROWS_PER_BATCH;
/// Where every batch and buffer begins: at a multiple of this.
const ALIGNMENT: usize = 64;

/// Whether the bytes of a segment were checked before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// They may be anything.
    Nothing,
    /// They were checked when they were published, and nobody but the user who did that could change them.
    Values,
}

/// What a segment's bytes hold.
pub(crate) struct Decoded {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) rows: usize,
}

/// Reads all batches. Their buffers lie in `bytes`.
pub(crate) fn decode(bytes: Buffer, trust: Trust) -> Result<Decoded> {
    check_bytes(bytes.len() as u64)?;
    // Arrow's reader panics at some schemas, and perhaps elsewhere. The bytes are to blame then, and not the caller.
    let read = catch_unwind(AssertUnwindSafe(|| read(bytes, trust)));
    read.unwrap_or_else(|_| Err(malformed("cannot be read")))
}

fn read(bytes: Buffer, trust: Trust) -> Result<Decoded> {
    let trailer: [u8; TRAILER_BYTES] = *bytes.last_chunk().ok_or_else(|| malformed("is shorter than an Arrow file"))?;
    if bytes.as_ptr().align_offset(ALIGNMENT) != 0 {
        return Err(malformed("does not begin at a multiple of 64 bytes"));
    }
    let footer_end = bytes.len() - TRAILER_BYTES;
    let footer_bytes = read_footer_length(trailer).map_err(unreadable)?;
    if footer_bytes > MOST_METADATA_BYTES {
        return Err(malformed("has a footer of more than 64 MiB"));
    }
    let footer_start = footer_end.checked_sub(footer_bytes).filter(|start| *start >= HEAD_BYTES);
    let footer_start = footer_start.ok_or_else(|| malformed("has a footer that is longer than itself"))?;
    let footer = &bytes[footer_start..footer_end];
    let footer = root_as_footer_with_opts(&bounds(footer), footer).map_err(|_| malformed("has no valid footer"))?;
    if footer.version() != MetadataVersion::V5 {
        return Err(malformed("is not of version 5 of the Arrow format"));
    }
    let schema = footer.schema().ok_or_else(|| malformed("has no schema"))?;
    if schema.endianness() != Endianness::Little {
        return Err(malformed("is not little-endian"));
    }
    let schema: SchemaRef = Arc::new(try_fb_to_schema(schema).map_err(unreadable)?);
    check_schema(&schema)?;
    let encoded = encoded_fields(&schema, &footer)?;

    let decoder = FileDecoder::new(schema.clone(), footer.version()).with_require_alignment(true);
    let mut decoder = match trust {
        Trust::Nothing => decoder,
        Trust::Values => without_values(decoder),
    };
    if footer.recordBatches().is_some_and(|blocks| blocks.len() > MOST_BATCHES) {
        return Err(error::too_many_rows());
    }
    let blocks: Vec<&Block> = footer.recordBatches().iter().flatten().collect();
    let dictionaries: Vec<&Block> = footer.dictionaries().iter().flatten().collect();
    let (mut data, mut free_from) = (Vec::with_capacity(blocks.len() + dictionaries.len()), HEAD_BYTES);
    for block in blocks.iter().chain(&dictionaries) {
        let place = block_data(&bytes[..footer_start], block, free_from)?;
        free_from = place.end;
        data.push(bytes.slice_with_length(place.start, place.len()));
    }
    let (data, of_dictionaries) = data.split_at(blocks.len());
    for (number, (block, data)) in dictionaries.iter().zip(of_dictionaries).enumerate() {
        check_dictionary(number, encoded[number], data, block.metaDataLength() as usize)?;
        decoder.read_dictionary(block, data).map_err(unreadable)?;
    }
    let (mut batches, mut rows) = (Vec::with_capacity(blocks.len()), 0);
    for (place, (block, data)) in blocks.iter().zip(data).enumerate() {
        let batch_rows = check_batch(&schema, data, block.metaDataLength() as usize)?;
        let is_whole = batch_rows == ROWS_PER_BATCH || (place + 1 == blocks.len() && batch_rows > 0);
        if !is_whole || batch_rows > ROWS_PER_BATCH {
            return Err(malformed(format!("has {batch_rows} rows in batch {}", place + 1)));
        }
        rows += batch_rows;
        let batch = decoder.read_record_batch(block, data).map_err(unreadable)?;
        batches.push(batch.ok_or_else(|| malformed("has an empty message"))?);
    }
    Ok(Decoded { schema, batches, rows })
}

/// The fields of the columns with dictionaries, which are numbered in the order of the columns. There is one dictionary for each.
fn encoded_fields<'a>(schema: &'a SchemaRef, footer: &Footer<'_>) -> Result<Vec<&'a Field>> {
    let is_encoded = |field: &&Field| matches!(field.data_type(), DataType::Dictionary(..));
    let fields: Vec<&Field> = schema.fields().iter().map(AsRef::as_ref).filter(is_encoded).collect();
    let described = footer.schema().into_iter().filter_map(|schema| schema.fields()).flatten();
    let numbers = described.filter_map(|field| field.dictionary()).map(|dictionary| dictionary.id());
    let count = footer.dictionaries().map_or(0, |dictionaries| dictionaries.len());
    match numbers.eq(0..fields.len() as i64) && count == fields.len() {
        true => Ok(fields),
        false => Err(malformed("has other dictionaries than its columns need")),
    }
}

#[allow(unsafe_code)]
fn without_values(decoder: FileDecoder) -> FileDecoder {
    // SAFETY: `Trust::Values` is for files of a store alone: each was decoded with `Trust::Nothing` before it got its name
    // (store.rs), is written to no more, and lies in a directory that only this user can write to (directory.rs). Whoever calls
    // `Segment::from_files` vouches for the same.
    unsafe { decoder.with_skip_validation(true) }
}

/// Where the message of a block lies: behind those before it.
fn block_data(bytes: &[u8], block: &Block, free_from: usize) -> Result<std::ops::Range<usize>> {
    let number = |number: i64| usize::try_from(number).ok();
    let place = || {
        let start = number(block.offset())?;
        let metadata = number(block.metaDataLength().into())?;
        let end = start.checked_add(metadata)?.checked_add(number(block.bodyLength())?)?;
        let is_sound = start >= free_from
            && end <= bytes.len()
            && (PREFIX_BYTES..=MOST_METADATA_BYTES).contains(&metadata)
            && (start + metadata).is_multiple_of(ALIGNMENT);
        is_sound.then_some(start..end)
    };
    place().ok_or_else(|| malformed("has a batch where none can be"))
}

/// The message of a block and its body.
fn message(data: &[u8], metadata: usize) -> Result<(Message<'_>, &[u8])> {
    let (head, body) = data.split_at(metadata);
    if head[..4] != PREFIX {
        return Err(malformed("has a message without a prefix"));
    }
    let head = &head[PREFIX_BYTES..];
    let message = root_as_message_with_opts(&bounds(head), head).map_err(|_| malformed("has an invalid message"))?;
    match message.version() {
        MetadataVersion::V5 => Ok((message, body)),
        _ => Err(malformed("has a message that is not of version 5 of the Arrow format")),
    }
}

/// Checks the structure of a batch's message. Returns its rows.
fn check_batch(schema: &SchemaRef, data: &[u8], metadata: usize) -> Result<usize> {
    let (message, body) = message(data, metadata)?;
    let batch = message.header_as_record_batch().ok_or_else(|| malformed("has a message that is not a batch"))?;
    check_columns(schema.fields().iter().map(|field| field.data_type()), &batch, body)
}

/// Checks the structure of the message of a dictionary. No value of it is NULL: rows are.
fn check_dictionary(number: usize, field: &Field, data: &[u8], metadata: usize) -> Result<()> {
    let (message, body) = message(data, metadata)?;
    let dictionary = message.header_as_dictionary_batch().filter(|dictionary| !dictionary.isDelta());
    let dictionary = dictionary.filter(|dictionary| usize::try_from(dictionary.id()) == Ok(number));
    let values = dictionary.and_then(|dictionary| dictionary.data());
    let values = values.ok_or_else(|| malformed("has a message that is not the dictionary of its column"))?;
    check_columns([value_type(field.data_type())].into_iter(), &values, body)?;
    match values.nodes().into_iter().flatten().all(|node| node.null_count() == 0) {
        true => Ok(()),
        false => Err(malformed("has a dictionary with a NULL")),
    }
}

/// Checks the structure of columns of these types. Returns their rows.
fn check_columns<'a>(
    types: impl Iterator<Item = &'a DataType>,
    batch: &arrow_ipc::RecordBatch<'_>,
    body: &[u8],
) -> Result<usize> {
    if batch.compression().is_some() {
        return Err(malformed("is compressed"));
    }
    let rows = usize::try_from(batch.length()).map_err(|_| malformed("has a batch of fewer than 0 rows"))?;
    let mut walk = Walk {
        nodes: batch.nodes().into_iter().flatten(),
        buffers: batch.buffers().into_iter().flatten(),
        body: body.len(),
        free_from: 0,
    };
    for ty in types {
        let length = walk.column(ty)?;
        if length != rows {
            return Err(malformed(format!("has a column of {length} values in a batch of {rows} rows")));
        }
    }
    if walk.nodes.next().is_some() || walk.buffers.next().is_some() {
        return Err(malformed("has a batch with more columns than its schema"));
    }
    Ok(rows)
}

/// The nodes and buffers of a batch, column by column.
struct Walk<N, B> {
    nodes: N,
    buffers: B,
    /// Bytes of the message's body.
    body: usize,
    /// The end of the buffers before.
    free_from: usize,
}

impl<'a, N: Iterator<Item = &'a FieldNode>, B: Iterator<Item = &'a arrow_ipc::Buffer>> Walk<N, B> {
    /// Checks a column and all within it. Returns how many values it has.
    fn column(&mut self, ty: &DataType) -> Result<usize> {
        let node = self.nodes.next().ok_or_else(|| malformed("has a batch with fewer columns than its schema"))?;
        let count = |number: i64| usize::try_from(number).ok();
        let counts = count(node.length()).zip(count(node.null_count())).filter(|(values, nulls)| nulls <= values);
        let Some((values, nulls)) = counts else { return Err(malformed("has a column with impossible counts")) };
        self.buffer(if nulls > 0 { values.div_ceil(8) as u128 } else { 0 }, 1)?;
        let values_wide = values as u128;
        // Where there are no values, there may be no offsets.
        let offsets = |bytes: u128| if values == 0 { 0 } else { (values_wide + 1) * bytes };
        match ty {
            DataType::Utf8 | DataType::Binary => {
                self.buffer(offsets(4), 4)?;
                self.buffer(0, 1)?;
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.buffer(offsets(8), 8)?;
                self.buffer(0, 1)?;
            }
            DataType::List(item) | DataType::LargeList(item) => {
                let width = if matches!(ty, DataType::List(_)) { 4 } else { 8 };
                self.buffer(offsets(width as u128), width)?;
                self.column(item.data_type())?;
            }
            DataType::FixedSizeList(item, size) => {
                let items = self.column(item.data_type())? as u128;
                if items != values_wide * *size as u128 {
                    return Err(malformed("has a list without its items"));
                }
            }
            DataType::Struct(parts) => {
                for part in parts {
                    if self.column(part.data_type())? != values {
                        return Err(malformed("has a composite value without its parts"));
                    }
                }
            }
            // Indexes of 32 bits, which Arrow's reader takes whole.
            DataType::Dictionary(..) => self.buffer(values_wide * 4, 4)?,
            fixed => self.buffer((values_wide * u128::from(width_bits(fixed)?)).div_ceil(8), 1)?,
        }
        Ok(values)
    }

    /// Checks the next buffer, of at least `least` bytes and a multiple of `unit`.
    fn buffer(&mut self, least: u128, unit: usize) -> Result<()> {
        let buffer = self.buffers.next().ok_or_else(|| malformed("has a batch with fewer buffers than its columns"))?;
        let place = || {
            let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
            let end = offset.checked_add(length)?;
            let is_sound = offset >= self.free_from
                && end <= self.body
                && offset.is_multiple_of(ALIGNMENT)
                && length.is_multiple_of(unit)
                && length as u128 >= least;
            is_sound.then_some(end)
        };
        self.free_from = place().ok_or_else(|| malformed("has a buffer where none can be"))?;
        Ok(())
    }
}

/// How many bits each value of a type of fixed width takes.
fn width_bits(ty: &DataType) -> Result<u32> {
    match ty {
        DataType::Boolean => Ok(1),
        DataType::FixedSizeBinary(bytes) => Ok(8 * bytes.unsigned_abs()),
        DataType::Interval(IntervalUnit::MonthDayNano) => Ok(128),
        other => match other.primitive_width() {
            Some(bytes) => Ok(8 * bytes as u32),
            None => Err(error::unsupported_column(other)),
        },
    }
}

/// Bounds of what a footer or a message refers to, which may stand in many places of it.
fn bounds(bytes: &[u8]) -> VerifierOptions {
    let max_apparent_size = LEAST_APPARENT_BYTES.max(MOST_TIMES * bytes.len());
    VerifierOptions { max_apparent_size, ..VerifierOptions::default() }
}

fn malformed(fact: impl std::fmt::Display) -> Error {
    error::malformed("segment", fact)
}

fn unreadable(cause: arrow_schema::ArrowError) -> Error {
    malformed(format!("cannot be read: {cause}"))
}

#[cfg(test)]
mod tests {
    use arrow_buffer::MutableBuffer;
    use arrow_ipc::{FieldBuilder, FooterBuilder, SchemaBuilder, Type, UnionBuilder};
    use flatbuffers::FlatBufferBuilder;
    use udf_types::error::Kind;

    use super::*;
    use crate::bounds::MOST_BYTES;

    fn refused(bytes: Buffer) -> Error {
        decode(bytes, Trust::Nothing).err().expect("it is refused")
    }

    /// A file of nothing but a footer, whose column is a union of so many types.
    fn file(children: usize, blocks: usize) -> Buffer {
        let mut footer = FlatBufferBuilder::new();
        let children: Vec<_> = (0..children)
            .map(|_| {
                let ty = arrow_ipc::NullBuilder::new(&mut footer).finish();
                let mut child = FieldBuilder::new(&mut footer);
                child.add_type_type(Type::Null);
                child.add_type_(ty.as_union_value());
                child.finish()
            })
            .collect();
        let children = footer.create_vector(&children);
        let ty = UnionBuilder::new(&mut footer).finish();
        let name = footer.create_string("u");
        let mut field = FieldBuilder::new(&mut footer);
        field.add_name(name);
        field.add_type_type(Type::Union);
        field.add_type_(ty.as_union_value());
        field.add_children(children);
        let fields = [field.finish()];
        // Without blocks the column is left, and with them it is not: it is not reached then.
        let fields = footer.create_vector(&fields[..usize::from(blocks == 0)]);
        let mut schema = SchemaBuilder::new(&mut footer);
        schema.add_fields(fields);
        let schema = schema.finish();
        let blocks = footer.create_vector(&vec![Block::new(64, 64, 0); blocks]);
        let mut root = FooterBuilder::new(&mut footer);
        root.add_version(MetadataVersion::V5);
        root.add_schema(schema);
        root.add_recordBatches(blocks);
        let root = root.finish();
        footer.finish(root, None);
        let footer = footer.finished_data();
        let mut bytes = MutableBuffer::new(0);
        for part in [b"ARROW1\0\0", footer, &(footer.len() as i32).to_le_bytes(), b"ARROW1"] {
            bytes.extend_from_slice(part);
        }
        bytes.into()
    }

    #[test]
    fn a_panic_about_a_schema_is_an_error() {
        assert_eq!(refused(file(100, 0)).kind(), Kind::UnsupportedType);
        let error = refused(file(200, 0));
        assert_eq!((error.kind(), error.detail()), (Kind::InvalidDefinition, Some("It cannot be read.")));
    }

    #[test]
    fn too_many_batches_are_refused_before_they_are_looked_at() {
        assert!(refused(file(0, MOST_BATCHES)).detail().unwrap().contains("where none can be"));
        assert_eq!(refused(file(0, MOST_BATCHES + 1)).kind(), Kind::OutOfRange);
    }

    #[test]
    fn too_many_columns_are_refused() {
        for (columns, is_refused) in [(1_600, false), (1_601, true)] {
            let fields = (0..columns).map(|i| arrow_schema::Field::new(i.to_string(), DataType::Int64, true));
            let schema = arrow_schema::Schema::new(fields.collect::<Vec<_>>());
            let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
            file.finish().unwrap();
            let bytes = file.into_inner().unwrap();
            let mut aligned = MutableBuffer::new(bytes.len());
            aligned.extend_from_slice(&bytes);
            let kind = decode(aligned.into(), Trust::Nothing).err().map(|error| error.kind());
            assert_eq!(kind, is_refused.then_some(Kind::OutOfRange));
        }
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let whole = Buffer::from_vec(vec![0_u8; MOST_BYTES as usize + 1]);
        assert_eq!(refused(whole).kind(), Kind::OutOfRange);
        let mut long = MutableBuffer::from_len_zeroed(MOST_METADATA_BYTES + 64);
        let end = long.len();
        long[end - 10..end - 6].copy_from_slice(&(MOST_METADATA_BYTES as i32 + 1).to_le_bytes());
        long[end - 6..].copy_from_slice(b"ARROW1");
        let error = refused(long.into());
        assert_eq!(
            (error.kind(), error.detail()),
            (Kind::InvalidDefinition, Some("It has a footer of more than 64 MiB."))
        );
    }
}
