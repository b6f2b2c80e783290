//! Record batches to Flight messages and back (Arrow IPC encapsulated messages, Arrow columnar format).
//!
//! One batch is always one message: a server answers per message, so a split batch would be two calls.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_ipc::{MetadataVersion, root_as_message, root_as_message_with_opts};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use flatbuffers::VerifierOptions;

use crate::constants::{Constants, schema_with_constants};
use crate::unreadable::Unreadable;

/// Longest body of a message that is copied, in bytes.
const MOST_COPIED: usize = 64 << 10;
/// What may stand before a message's length.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Longest schema, in bytes.
const MAX_SCHEMA_BYTES: usize = 8 << 20;
/// Most tables of a schema, of which a field has two or three.
const MAX_SCHEMA_TABLES: usize = 256 << 10;
/// What a schema's parts may come to, each as often as it stands somewhere: so many times its bytes, but for short ones. Its
/// writers share hardly more than the lists of which parts a field has.
const MOST_TIMES: usize = 4;
const MAX_APPARENT_BYTES: usize = 64 << 10;
/// What a view of a text takes: its length, and where it lies or itself.
const VIEW_BYTES: usize = 16;

/// The message that opens a stream of batches.
pub fn encode_schema(schema: &Schema) -> FlightData {
    SchemaAsIpc::new(schema, &IpcWriteOptions::default()).into()
}

/// Reads the message that opens a stream.
pub fn decode_schema(message: &FlightData) -> Result<SchemaRef, ArrowError> {
    read_schema(&message.data_header).map(Arc::new)
}

/// Reads the schema of a `FlightInfo`: such a message, behind its length.
pub fn decode_described_schema(bytes: &[u8]) -> Result<Schema, ArrowError> {
    let message = bytes.strip_prefix(&CONTINUATION).unwrap_or(bytes).get(4..);
    read_schema(message.ok_or_else(|| ArrowError::ParseError("it is cut off".to_string()))?)
}

/// Reads a schema, whose parts may each stand in many places of it: what all of them come to is bounded before it is made.
fn read_schema(message: &[u8]) -> Result<Schema, ArrowError> {
    let malformed = |fact: &str| ArrowError::ParseError(fact.to_string());
    if message.len() > MAX_SCHEMA_BYTES {
        return Err(malformed("it is too long"));
    }
    let options = VerifierOptions {
        max_tables: MAX_SCHEMA_TABLES,
        max_apparent_size: MAX_APPARENT_BYTES.max(MOST_TIMES * message.len()),
        ..VerifierOptions::default()
    };
    let message = root_as_message_with_opts(&options, message)
        .map_err(|_| malformed("it is not a message of Arrow, or its parts stand in too many places"))?;
    try_fb_to_schema(message.header_as_schema().ok_or_else(|| malformed("it is not a schema"))?)
}

/// Encodes batches of one stream, none of which holds dictionaries.
#[derive(Debug, Default)]
pub struct BatchEncoder {
    context: IpcWriteContext,
}

impl BatchEncoder {
    /// One batch as one message.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<FlightData, ArrowError> {
        let mut dictionaries = DictionaryTracker::new(true);
        let (_, encoded) = IpcDataGenerator::default().encode(
            batch,
            &mut dictionaries,
            &IpcWriteOptions::default(),
            &mut self.context,
        )?;
        Ok(encoded.into())
    }
}

/// Encodes the calls of one stream, whose constants are dictionaries of one value (`docs/protocol.md` §4.10).
#[derive(Debug)]
pub struct CallEncoder {
    /// Of the whole columns.
    schema: SchemaRef,
    positions: Vec<usize>,
    sent: DictionaryTracker,
    context: IpcWriteContext,
}

impl CallEncoder {
    /// An encoder of calls with these columns, of which those at `positions` are constants, and the message that opens their
    /// stream.
    pub fn new(schema: SchemaRef, positions: Vec<usize>) -> (CallEncoder, FlightData) {
        let mut sent = DictionaryTracker::new(false);
        let encoded = schema_with_constants(&schema, &positions);
        let generator = IpcDataGenerator::default();
        let opening =
            generator.schema_to_bytes_with_dictionary_tracker(&encoded, &mut sent, &IpcWriteOptions::default());
        (CallEncoder { schema, positions, sent, context: IpcWriteContext::default() }, opening.into())
    }

    /// The positions of the stream's constants.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The messages of a batch: one for each constant that is not the one of the batch before, and the last for the batch itself.
    /// `columns` are those that are no constants.
    ///
    /// # Panics
    /// If the constants stand elsewhere.
    pub fn encode(&mut self, columns: &RecordBatch, constants: &Constants) -> Result<Vec<FlightData>, ArrowError> {
        assert_eq!(constants.positions(), self.positions, "a stream's constants stay where they are");
        let batch = constants.encode_in(&self.schema, columns);
        let options = IpcWriteOptions::default();
        let (dictionaries, batch) =
            IpcDataGenerator::default().encode(&batch, &mut self.sent, &options, &mut self.context)?;
        Ok(dictionaries.into_iter().chain([batch]).map(FlightData::from).collect())
    }
}

/// Reads one batch. The bytes are checked: offsets, lengths and UTF-8. Columns of texts lie in the message.
pub fn decode_batch(message: &FlightData, schema: SchemaRef) -> Result<RecordBatch, ArrowError> {
    match decode_batch_within(message, schema, usize::MAX) {
        Ok(batch) => Ok(batch),
        Err(Unreadable::Misfit(fact)) => Err(ArrowError::IpcError(fact)),
        Err(Unreadable::TooLarge) => Err(ArrowError::IpcError("its views are too many".to_string())),
    }
}

/// The same of a message that was kept in its two parts.
pub fn decode_parts(header: Vec<u8>, body: Vec<u8>, schema: SchemaRef) -> Result<RecordBatch, ArrowError> {
    decode_batch(&FlightData::new().with_data_header(header).with_data_body(body), schema)
}

/// The same of a batch whose views, of texts and bytes, may stand for `most` bytes. The error says what is wrong.
pub fn decode_batch_within(message: &FlightData, schema: SchemaRef, most: usize) -> Result<RecordBatch, Unreadable> {
    let header = root_as_message(&message.data_header).map_err(|_| "it is not a message of Arrow".to_string())?;
    let batch = header.header_as_record_batch().ok_or_else(|| "it is not a batch".to_string())?;
    read_within(message, batch, header.version(), schema, most)
}

/// The values of a dictionary as a batch of one column.
pub(crate) fn decode_dictionary_within(
    message: &FlightData,
    schema: SchemaRef,
    most: usize,
) -> Result<RecordBatch, Unreadable> {
    let header = root_as_message(&message.data_header).map_err(|_| "it is not a message of Arrow".to_string())?;
    let batch = header.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    let batch = batch.ok_or_else(|| "it is not a dictionary".to_string())?;
    read_within(message, batch, header.version(), schema, most)
}

fn read_within(
    message: &FlightData,
    batch: arrow_ipc::RecordBatch<'_>,
    version: MetadataVersion,
    schema: SchemaRef,
    most: usize,
) -> Result<RecordBatch, Unreadable> {
    check_buffers(&schema, &batch, &message.data_body, most)?;
    // What is short is not worth keeping all that came with it.
    let body = match message.data_body.len() > MOST_COPIED {
        true => Buffer::from(message.data_body.clone()),
        false => Buffer::from(message.data_body.as_ref()),
    };
    // The reader checks much but panics on the rest.
    let read = || read_record_batch(&body, batch, schema, &HashMap::new(), None, &version);
    let read = catch_unwind(AssertUnwindSafe(read)).map_err(|_| "the message is damaged".to_string())?;
    read.map_err(|cause| cause.to_string().into())
}

/// Refuses buffers that lie outside of the body or on each other, each of which may be copied, and views that stand for more
/// than `most` bytes: any number of them may have the same. Before they are read, since every view is looked at then.
fn check_buffers(
    schema: &Schema,
    batch: &arrow_ipc::RecordBatch<'_>,
    body: &[u8],
    most: usize,
) -> Result<(), Unreadable> {
    let mut places = Vec::new();
    let mut left = body.len();
    for buffer in batch.buffers().iter().flatten() {
        let (offset, length) = (usize::try_from(buffer.offset()), usize::try_from(buffer.length()));
        let place = offset.ok().zip(length.ok()).filter(|(offset, length)| {
            offset.checked_add(*length).is_some_and(|end| end <= body.len() || *length == 0) && *length <= left
        });
        let Some((offset, length)) = place else { return Err("a buffer lies where none can be".to_string().into()) };
        left -= length;
        places.push(if length == 0 { &[][..] } else { &body[offset..offset + length] });
    }
    let mut walk = Walk {
        buffers: places.into_iter(),
        data_buffers: batch.variadicBufferCounts().into_iter().flatten(),
        viewed: 0,
    };
    for field in schema.fields() {
        walk.skip(field.data_type())?;
    }
    if walk.viewed > most { Err(Unreadable::TooLarge) } else { Ok(()) }
}

/// The buffers of a batch, column by column.
struct Walk<B, D> {
    buffers: B,
    /// Of each column of views, how many buffers these lead to.
    data_buffers: D,
    /// Bytes that views stand for.
    viewed: usize,
}

impl<'a, B: Iterator<Item = &'a [u8]>, D: Iterator<Item = i64>> Walk<B, D> {
    fn skip(&mut self, ty: &DataType) -> Result<(), String> {
        let count = match ty {
            DataType::Null => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
            DataType::Utf8View | DataType::BinaryView => 1,
            DataType::ListView(_)
            | DataType::LargeListView(_)
            | DataType::Union(..)
            | DataType::Dictionary(..)
            | DataType::RunEndEncoded(..)
            | DataType::Map(..) => return Err(format!("columns of {ty} are not taken")),
            // Values of fixed width, and lists.
            _ => 2,
        };
        for _ in 0..count {
            self.buffers.next();
        }
        match ty {
            DataType::Utf8View | DataType::BinaryView => {
                let views = self.buffers.next().unwrap_or_default().chunks_exact(VIEW_BYTES);
                let length = |view: &[u8]| view.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
                self.viewed = views.map(length).fold(self.viewed, usize::saturating_add);
                for _ in 0..self.data_buffers.next().unwrap_or_default() {
                    self.buffers.next().ok_or("it has fewer buffers than its columns")?;
                }
            }
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                self.skip(item.data_type())?;
            }
            DataType::Struct(parts) => parts.iter().try_for_each(|part| self.skip(part.data_type()))?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;

    use super::*;
    use udf_types::types::Type;

    /// A schema of so many fields, all of which have the same long name.
    fn schema_of_one_name(fields: usize, name: usize) -> Vec<u8> {
        use arrow_ipc::{FieldArgs, IntArgs, MessageArgs, MessageHeader, MetadataVersion, SchemaArgs};
        let mut writer = flatbuffers::FlatBufferBuilder::new();
        let name = writer.create_string(&"x".repeat(name));
        let int = arrow_ipc::Int::create(&mut writer, &IntArgs { bitWidth: 32, is_signed: true });
        let children = writer.create_vector::<flatbuffers::WIPOffset<arrow_ipc::Field<'_>>>(&[]);
        let arguments = FieldArgs {
            name: Some(name),
            type_type: arrow_ipc::Type::Int,
            type_: Some(int.as_union_value()),
            children: Some(children),
            ..FieldArgs::default()
        };
        let field = arrow_ipc::Field::create(&mut writer, &arguments);
        let fields = writer.create_vector(&vec![field; fields]);
        let arguments = SchemaArgs { fields: Some(fields), ..SchemaArgs::default() };
        let header = arrow_ipc::Schema::create(&mut writer, &arguments).as_union_value();
        let (version, header_type) = (MetadataVersion::V5, MessageHeader::Schema);
        let arguments = MessageArgs { version, header_type, header: Some(header), ..MessageArgs::default() };
        let message = arrow_ipc::Message::create(&mut writer, &arguments);
        writer.finish(message, None);
        writer.finished_data().to_vec()
    }

    #[test]
    fn schemas_whose_parts_stand_in_many_places_are_refused() {
        let read = |bytes: Vec<u8>| {
            let framed = [&CONTINUATION[..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat();
            let message = FlightData { data_header: bytes.into(), ..FlightData::default() };
            let (read, described) = (decode_schema(&message), decode_described_schema(&framed));
            assert_eq!(read.as_deref().ok(), described.as_ref().ok());
            read
        };
        assert_eq!(read(schema_of_one_name(3, 10)).unwrap().fields().len(), 3);
        // A gigabyte of names, of a megabyte, and a hundred million fields.
        assert!(read(schema_of_one_name(1_000, 1 << 20)).is_err());
        assert!(read(schema_of_one_name(1_000_000, 1)).is_err());
        // What writers write is read, however many fields it has.
        let fields: Vec<Field> =
            (0..20_000).map(|number| Field::new(format!("c{number}"), DataType::Utf8, true)).collect();
        let wide = encode_schema(&Schema::new(fields));
        assert_eq!(read(wide.data_header.to_vec()).unwrap().fields().len(), 20_000);
    }

    #[test]
    fn schemas_that_nest_too_deep_are_refused() {
        // Made with more stack than they are read with.
        let of_depth = |depth: usize| {
            let make = move || {
                let item = |ty| Arc::new(Field::new("item", ty, true));
                let ty = (0..depth).fold(DataType::Int32, |ty, _| DataType::List(item(ty)));
                encode_schema(&Schema::new(vec![Field::new("x", ty, true)]))
            };
            std::thread::Builder::new().stack_size(64 << 20).spawn(make).unwrap().join().unwrap()
        };
        let messages = [16, 17, 40, 2_000].map(of_depth);
        let reading = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
            let read = |message: &FlightData| {
                let schema = decode_schema(message).map_err(|cause| cause.to_string())?;
                Type::from_foreign_field(schema.field(0)).map_err(|error| error.to_string())
            };
            let [deepest, deeper, much_deeper, endless] = &messages;
            assert!(read(deepest).is_ok());
            for message in [deeper, much_deeper, endless] {
                assert!(read(message).unwrap_err().len() < 1000);
            }
        });
        reading.unwrap().join().unwrap();
    }
}
