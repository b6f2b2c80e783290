//! Writing an Arrow IPC file whose dictionaries follow its record batches.
//!
//! Arrow's own writer puts a dictionary before the first batch that needs it, when most of its values are not known yet.

use std::io::Write;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch};
use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::writer::{
    DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, write_message,
};
use arrow_ipc::{Block, FooterBuilder, MetadataVersion};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use flatbuffers::FlatBufferBuilder;

use crate::digest::Tally;

const MAGIC: &[u8; 6] = b"ARROW1";
/// The magic and its padding, at the start, after which messages are aligned.
const HEAD_BYTES: usize = 64;
/// What stands behind the last message: one without a length.
const END_OF_MESSAGES: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Writes one file.
pub(crate) struct FileWriter<W: Write> {
    pub(crate) out: Tally<W>,
    schema: SchemaRef,
    tracker: DictionaryTracker,
    options: IpcWriteOptions,
    context: IpcWriteContext,
    batches: Vec<Block>,
}

impl<W: Write> FileWriter<W> {
    /// Begins a file with these columns.
    pub(crate) fn new(out: W, schema: SchemaRef) -> Result<FileWriter<W>, ArrowError> {
        let (mut tracker, options) = (DictionaryTracker::new(true), IpcWriteOptions::default());
        let mut out = Tally::new(out);
        let mut head = [0; HEAD_BYTES];
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        out.write_all(&head)?;
        let generator = IpcDataGenerator::default();
        let opening = generator.schema_to_bytes_with_dictionary_tracker(&schema, &mut tracker, &options);
        write_message(&mut out, opening, &options)?;
        Ok(FileWriter { out, schema, tracker, options, context: IpcWriteContext::default(), batches: Vec::new() })
    }

    /// Writes a batch, which has the indexes of columns with dictionaries in place of the columns.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let (_, message) = self.encode(batch)?;
        let block = self.write_block(message)?;
        self.batches.push(block);
        Ok(())
    }

    /// Writes the dictionaries of the columns that have one, in the order of the columns, and ends the file.
    pub(crate) fn finish(mut self, dictionaries: Vec<ArrayRef>) -> Result<Tally<W>, ArrowError> {
        let mut blocks = Vec::with_capacity(dictionaries.len());
        if !dictionaries.is_empty() {
            // Arrow encodes dictionaries with a batch: one of no rows.
            let is_encoded =
                |position: &usize| matches!(self.schema.field(*position).data_type(), DataType::Dictionary(..));
            let positions: Vec<usize> = (0..self.schema.fields().len()).filter(is_encoded).collect();
            let column = |values| {
                let indexes = Int32Array::from(Vec::<i32>::new());
                DictionaryArray::<Int32Type>::try_new(indexes, values).map(|column| Arc::new(column) as ArrayRef)
            };
            let columns = dictionaries.into_iter().map(column).collect::<Result<Vec<_>, _>>()?;
            let (messages, _) =
                self.encode(&RecordBatch::try_new(self.schema.project(&positions)?.into(), columns)?)?;
            for message in messages {
                blocks.push(self.write_block(message)?);
            }
        }
        self.out.write_all(&END_OF_MESSAGES)?;
        let mut footer = FlatBufferBuilder::new();
        let (dictionaries, batches) = (footer.create_vector(&blocks), footer.create_vector(&self.batches));
        // The numbers of the dictionaries are given anew, and are the same.
        self.tracker.clear();
        let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(&mut self.tracker);
        let schema = encoder.schema_to_fb_offset(&mut footer, &self.schema);
        let mut root = FooterBuilder::new(&mut footer);
        root.add_version(MetadataVersion::V5);
        root.add_schema(schema);
        root.add_dictionaries(dictionaries);
        root.add_recordBatches(batches);
        let root = root.finish();
        footer.finish(root, None);
        let footer = footer.finished_data();
        self.out.write_all(footer)?;
        self.out.write_all(&(footer.len() as i32).to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn encode(&mut self, batch: &RecordBatch) -> Result<(Vec<EncodedData>, EncodedData), ArrowError> {
        IpcDataGenerator::default().encode(batch, &mut self.tracker, &self.options, &mut self.context)
    }

    fn write_block(&mut self, message: EncodedData) -> Result<Block, ArrowError> {
        let start = self.out.bytes as i64;
        let (head, body) = write_message(&mut self.out, message, &self.options)?;
        Ok(Block::new(start, head as i32, body as i64))
    }
}
