//! Writing a segment: batches of any number of rows become batches of [`ROWS_PER_BATCH`], and columns get their dictionaries.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Fields, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use udf_types::error::Result;

use crate::bounds::{KEY_METADATA, MOST_ROWS, ROWS_PER_BATCH};
use crate::checks::{check_bytes, check_key, check_schema};
use crate::dictionary::Dictionary;
use crate::digest::Digest;
use crate::error;
use crate::file::FileWriter;

/// Writes one segment.
pub struct SegmentWriter<W: Write> {
    file: FileWriter<W>,
    /// The columns as batches have them: indexes in place of values that are in a dictionary.
    schema: SchemaRef,
    /// The dictionaries, and the positions of their columns.
    dictionaries: Vec<(usize, Dictionary)>,
    /// Rows that do not yet fill a batch.
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: u64,
    rows: usize,
}

/// A segment that was written.
#[derive(Debug)]
pub struct Finished<W> {
    /// Where the segment was written to.
    pub out: W,
    /// How many rows it has.
    pub rows: usize,
    /// How many bytes it has.
    pub bytes: u64,
    /// The digest of these bytes.
    pub digest: Digest,
}

impl<W: Write> SegmentWriter<W> {
    /// Begins a segment with these columns, of which those at the positions `key`, counted from 0, are its key. An empty `key`
    /// makes a segment without an index. The distinct values of columns with dictionaries stay in memory until the segment is finished.
    /// `out` gets many small writes.
    ///
    /// # Errors
    /// A type that segments or keys do not have, a position that is not there or comes twice, or `out` fails.
    pub fn new(out: W, schema: &SchemaRef, key: &[usize]) -> Result<SegmentWriter<W>> {
        check_schema(schema)?;
        check_key(schema, key)?;
        let mut metadata = schema.metadata().clone();
        let positions: Vec<String> = key.iter().map(usize::to_string).collect();
        metadata.insert(KEY_METADATA.to_string(), positions.join(","));
        let schema = Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata));
        let file = FileWriter::new(out, schema.clone()).map_err(|cause| error::not_written(&cause))?;
        let (mut dictionaries, mut fields) = (Vec::new(), Vec::with_capacity(schema.fields().len()));
        for (position, field) in schema.fields().iter().enumerate() {
            fields.push(match field.data_type() {
                DataType::Dictionary(index, values) => {
                    dictionaries.push((position, Dictionary::new(values)));
                    Arc::new(field.as_ref().clone().with_data_type(index.as_ref().clone()))
                }
                _ => field.clone(),
            });
        }
        let schema = Arc::new(Schema::new(Fields::from(fields)));
        Ok(SegmentWriter {
            file,
            schema,
            dictionaries,
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
            rows: 0,
        })
    }

    /// Appends rows. Up to [`ROWS_PER_BATCH`] of them are kept in memory until more follow. Columns of the segment that have dictionaries may
    /// come with others, or without.
    ///
    /// # Errors
    /// Columns that do not fit the segment's, more than [`MOST_ROWS`] rows or [`MOST_BYTES`](crate::bounds::MOST_BYTES), rows of more than 2 GiB in one batch
    /// of the segment, or the writer fails. The segment cannot be finished then.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() > MOST_ROWS - self.rows {
            return Err(error::too_many_rows());
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let mut columns = batch.columns().to_vec();
        let mut bytes = 0;
        for (position, dictionary) in &mut self.dictionaries {
            if let Some(column) = columns.get_mut(*position) {
                *column = Arc::new(dictionary.encode(column)?);
            }
            bytes += dictionary.bytes();
        }
        check_bytes(bytes)?;
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|cause| error::not_written(&cause))?;
        self.rows += batch.num_rows();
        let mut start = 0;
        while start < batch.num_rows() {
            let taken = (ROWS_PER_BATCH - self.pending_rows).min(batch.num_rows() - start);
            let rows = batch.slice(start, taken);
            self.pending_bytes = self.pending_bytes.saturating_add(bytes_of(&rows) as u64);
            self.pending.push(rows);
            self.pending_rows += taken;
            start += taken;
            if self.pending_rows == ROWS_PER_BATCH {
                self.write_pending()?;
            }
        }
        Ok(())
    }

    /// About how many bytes the segment would have if it were finished now.
    pub fn bytes(&self) -> u64 {
        let dictionaries: u64 = self.dictionaries.iter().map(|(_, dictionary)| dictionary.bytes()).sum();
        self.file.out.bytes.saturating_add(self.pending_bytes).saturating_add(dictionaries)
    }

    /// How many rows were written.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes what is left and ends the segment.
    ///
    /// # Errors
    /// As those of [`write`](SegmentWriter::write).
    pub fn finish(mut self) -> Result<Finished<W>> {
        self.write_pending()?;
        let dictionaries = self.dictionaries.into_iter().map(|(_, dictionary)| dictionary.finish());
        let dictionaries = dictionaries.collect::<Result<_>>()?;
        let tally = self.file.finish(dictionaries).map_err(|cause| error::not_written(&cause))?;
        let (bytes, digest) = (tally.bytes, tally.digest());
        check_bytes(bytes)?;
        Ok(Finished { out: tally.out, rows: self.rows, bytes, digest })
    }

    fn write_pending(&mut self) -> Result<()> {
        let batch = match &self.pending[..] {
            [] => return Ok(()),
            [one] => one.clone(),
            several => {
                let bytes = several.iter().map(bytes_of).fold(0, usize::saturating_add);
                // Arrow panics where 32-bit offsets would not reach.
                if bytes > i32::MAX as usize {
                    return Err(error::batch_too_large(bytes));
                }
                concat_batches(&self.schema, several).map_err(|cause| error::not_written(&cause))?
            }
        };
        self.file.write(&batch).map_err(|cause| error::not_written(&cause))?;
        self.pending.clear();
        self.pending_rows = 0;
        self.pending_bytes = 0;
        check_bytes(self.file.out.bytes)
    }
}

/// Bytes of the values of rows.
fn bytes_of(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| column.to_data().get_slice_memory_size().unwrap_or(usize::MAX));
    bytes.fold(0, usize::saturating_add)
}

impl<W: Write> std::fmt::Debug for SegmentWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentWriter").field("schema", &self.schema).field("rows", &self.rows).finish_non_exhaustive()
    }
}
