//! A segment: a part of a shared table that never changes, as an Arrow IPC file.
//!
//! Its record batches have exactly [`ROWS_PER_BATCH`] rows, and the last one has at least one. So a row's place follows from its
//! number. Nothing in it is compressed. Columns outside of the key may have a [`dictionary`](crate::dictionary) each, for all batches. The
//! metadata `transship:key` of its schema has the positions of the key's columns, counted from 0, as `1,2`; without a key it is empty or
//! missing.

use std::fs::File;
use std::str::FromStr;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{Schema, SchemaRef};
use udf_types::error::Result;

use crate::checks::{check_bytes, check_key};
use crate::decode::{Decoded, Trust, decode};
use crate::directory::{FileNumber, map};
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

    /// Maps a segment and its index from open files (`docs/protocol.md` §10), and checks their structure but not every value.
    ///
    /// # Errors
    /// They are not regular files, not a segment and its index, or the system fails. A segment of a table with a key needs an index,
    /// unless it has no rows.
    ///
    /// # Safety
    /// The values in the segment are valid, as those of segments of a [store](crate::store) are: offsets ascend, texts are UTF-8, and
    /// dictionaries have the values that indexes name. Nobody writes to the files or shortens them as long as the segment, or anything taken from it, exists.
    #[allow(unsafe_code)]
    pub unsafe fn from_files(file: &File, index: Option<&File>) -> Result<Segment> {
        let mapped = |file: &File, what: &str| {
            let failed = |cause| error::io(&format!("map the {what} of a shared table"), &cause);
            let metadata = file.metadata().map_err(failed)?;
            if !metadata.is_file() {
                return Err(error::malformed(what, "is not a regular file"));
            }
            // An index has fewer bytes than the largest segment.
            check_bytes(metadata.len())?;
            map(file).map_err(failed)
        };
        let segment = Segment::read(mapped(file, "segment")?, Trust::Values)?;
        let Some(index) = index else {
            let needs_index = segment.rows > 0 && !segment.key.is_empty();
            return if needs_index { Err(error::malformed("segment", "has a key and no index")) } else { Ok(segment) };
        };
        let segment = segment.with_index(Index::open(mapped(index, "index")?)?)?;
        if segment.has_own_index() { Ok(segment) } else { Err(error::foreign_index()) }
    }

    /// Whether the index has some of the rows. That of another segment of as many rows most likely does not.
    fn has_own_index(&self) -> bool {
        let is_found = |row: usize| {
            let (batch, place) = self.place(row as u32);
            let has_null = self.keys[batch].hash(place, 0).is_none();
            has_null || self.rows_of(&self.keys[batch], place).contains(&(row as u32))
        };
        self.rows == 0 || [0, self.rows / 2, self.rows - 1].into_iter().all(is_found)
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
            return Err(error::foreign_index());
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

    /// The rows that have the key of a row of `keys`, ascending; none if a part of the key is NULL, or there is no index. The types
    /// are those of the key's columns.
    ///
    /// # Panics
    /// If `keys` has no such row.
    pub fn rows_of(&self, keys: &Keys, row: usize) -> Rows<'_> {
        let Some(index) = &self.index else { return Rows::none() };
        let Some(hash) = keys.hash(row, index.seed()) else { return Rows::none() };
        index.find(hash, |held| {
            let (batch, held) = self.place(held);
            self.keys[batch].equals(held, keys, row)
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
