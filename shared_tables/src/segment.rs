//! A segment: a part of a shared table that never changes, as an Arrow IPC file.
//!
//! Its record batches have exactly [`ROWS_PER_BATCH`] rows, and the last one has at least one. So a row's place follows from its
//! number. Nothing in it is compressed, and there are no dictionaries. The metadata `transship:key` of its schema has the positions
//! of the key's columns, counted from 0, as `1,2`; without a key it is empty or missing.

use std::str::FromStr;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use udf_types::error::Result;

use crate::checks::check_key;
use crate::decode::{Decoded, Trust, decode};
use crate::directory::FileNumber;
use crate::error;
use crate::index::{Index, Rows};
use crate::keys::{Keys, Probe};

pub use crate::bounds::{KEY_METADATA, MOST_BYTES, MOST_ROWS, ROWS_PER_BATCH};
pub use crate::digest::Digest;
pub use crate::writer::{Finished, SegmentWriter};

/// A segment whose columns lie in the bytes that it was opened from.
#[derive(Debug, Clone)]
pub struct Segment {
    schema: SchemaRef,
    key: Vec<usize>,
    rows: usize,
    batches: Vec<RecordBatch>,
    /// Of each batch; none without a key.
    keys: Vec<Keys>,
    index: Option<Index>,
    digest: Option<Digest>,
    /// Which file it was mapped from.
    pub(crate) file: Option<FileNumber>,
}

impl Segment {
    /// Opens a segment without its index, and checks every byte that a reader would rely on.
    ///
    /// # Errors
    /// The bytes are not a segment, begin at an address that is not a multiple of 64, have columns of a type that no segment
    /// holds (of kind `UnsupportedType`), or are more than [`MOST_BYTES`] or of more than [`MOST_ROWS`] rows (of kind
    /// `OutOfRange`).
    pub fn open(bytes: Buffer) -> Result<Segment> {
        Segment::read(bytes, Trust::Nothing)
    }

    pub(crate) fn read(bytes: Buffer, trust: Trust) -> Result<Segment> {
        let Decoded { schema, batches, rows } = decode(bytes, trust)?;
        let key = key_of(&schema)?;
        check_key(&schema, &key)?;
        let mut keys = Vec::new();
        if !key.is_empty() {
            for batch in &batches {
                let columns: Vec<ArrayRef> = key.iter().map(|position| batch.column(*position).clone()).collect();
                keys.push(Keys::new(&columns)?);
            }
        }
        Ok(Segment { schema, key, rows, batches, keys, index: None, digest: None, file: None })
    }

    /// Builds the index of this segment, as a file; `None` if there is no key. `seed` is the [seed](Digest::seed) of its digest.
    ///
    /// # Errors
    /// Those of [`Index::build`].
    pub fn build_index(&self, seed: u64) -> Result<Option<Vec<u8>>> {
        if self.key.is_empty() { Ok(None) } else { Index::build(&self.keys, seed).map(Some) }
    }

    /// The segment with its index.
    ///
    /// # Errors
    /// The index has other rows than the segment, or another seed than its digest.
    pub fn with_index(self, index: Index) -> Result<Segment> {
        let has_seed = self.digest.is_none_or(|digest| digest.seed() == index.seed());
        if self.key.is_empty() || index.segment_rows() != self.rows || !has_seed {
            return Err(error::malformed("index", "is that of another segment"));
        }
        Ok(Segment { index: Some(index), ..self })
    }

    pub(crate) fn with_name(self, digest: Digest, file: FileNumber) -> Segment {
        Segment { digest: Some(digest), file: Some(file), ..self }
    }

    /// The columns, with the metadata of the file.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The positions of the key's columns, counted from 0; empty if there is no key.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The record batches, whose buffers lie in the bytes of the segment.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// Where a row lies: which batch, and which row of it.
    pub fn place(&self, row: u32) -> (usize, usize) {
        (row as usize / ROWS_PER_BATCH, row as usize % ROWS_PER_BATCH)
    }

    /// The index over the key, if there is a key and the segment comes from a [store](crate::store).
    pub fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// The name of the segment in its [store](crate::store).
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The rows that have a key, ascending; none if there is no index. The key's values are of the key columns' types.
    pub fn find(&self, probe: &Probe) -> Rows<'_> {
        let Some(index) = &self.index else { return Rows::none() };
        index.find(probe.hash(index.seed()), |row| {
            let (batch, row) = self.place(row);
            self.keys[batch].is_at(row, probe)
        })
    }
}

fn key_of(schema: &Schema) -> Result<Vec<usize>> {
    let text = schema.metadata().get(KEY_METADATA).map_or("", String::as_str);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let position = |part| {
        usize::from_str(part).map_err(|_| error::malformed("segment", "has a key that is not a list of numbers"))
    };
    text.split(',').map(position).collect()
}
