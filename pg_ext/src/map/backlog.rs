//! Results on their way from one map function to the next: whole columns in, batches out, in order.
//!
//! A few wait in memory. What comes although these have no room goes to a temporary file.

use std::collections::VecDeque;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::concat::concat_batches;
use pgrx::pg_sys;
use udf_client::inbox::{bytes_of, bytes_of_column};
use udf_client::pace::Pace;
use udf_codec::arrow_ipc::{BatchEncoder, decode_parts};
use udf_codec::batch::CallBatch;

use crate::pg::file_queue::FileQueue;
use crate::pg::reserve;
use crate::pieces::{rows_that_fit, spelled_out};
use crate::report;

/// Bytes of results that wait in memory, but for those of one reply.
const MOST_BYTES: usize = 8 << 20;

/// Results that wait to be arguments.
#[derive(Debug)]
pub(super) struct Backlog {
    // for the exchange
    /// Of the arguments.
    schema: SchemaRef,
    next_number: u64,
    context: pg_sys::MemoryContext,
    // for the batch that is formed
    forming: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    // for those after it
    /// Oldest first.
    pieces: VecDeque<Piece>,
    /// Behind them; none if nothing is there.
    file: Option<FileQueue>,
}

/// Rows that wait; texts may be dictionaries.
#[derive(Debug)]
struct Piece {
    columns: Vec<ArrayRef>,
    rows: usize,
    /// Bytes that it holds.
    held: usize,
}

impl Backlog {
    /// An empty one, of arguments of this schema.
    ///
    /// # Safety
    /// `context` and the current resource owner outlive it.
    pub(super) unsafe fn new(schema: SchemaRef, context: pg_sys::MemoryContext) -> Backlog {
        let (next_number, forming, rows, bytes, pieces, file) = Default::default();
        Backlog { schema, next_number, context, forming, rows, bytes, pieces, file }
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 && self.pieces.is_empty() && self.file.is_none()
    }

    /// Whether more fits into memory.
    pub(super) fn has_room(&self) -> bool {
        self.file.is_none() && self.pieces.iter().map(|piece| piece.held).sum::<usize>() < MOST_BYTES
    }

    /// Adds rows of these columns, which came in a message of so many bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn push(&mut self, columns: Vec<ArrayRef>, rows: usize, received: usize) -> Result<(), ArrowError> {
        let bytes = columns.iter().map(bytes_of_column).fold(0, usize::saturating_add);
        let mut piece = Piece { columns, rows, held: bytes.max(received) };
        if self.has_room() {
            self.pieces.push_back(piece);
            return Ok(());
        }
        // SAFETY: whoever made the backlog has promised it.
        let file = self.file.get_or_insert_with(|| unsafe { FileQueue::new(self.context) });
        while piece.rows > 0 {
            let rows = piece.cut(&self.schema, usize::MAX, MOST_BYTES)?;
            let message = BatchEncoder::default().encode(&rows)?;
            file.push(&message.data_header);
            file.push(&message.data_body);
        }
        Ok(())
    }

    /// The next batch, if enough rows are there for it; `is_last` says that no more will come.
    ///
    /// # Errors
    /// If it cannot be put together.
    pub(super) fn next_batch(&mut self, pace: &Pace, is_last: bool) -> Result<Option<CallBatch>, ArrowError> {
        while !pace.is_full(self.rows, self.bytes) && self.fill()? {
            let Some(piece) = self.pieces.front_mut() else { break };
            let (rows, bytes) = (pace.rows() - self.rows, pace.bytes() - self.bytes);
            let cut = piece.cut(&self.schema, rows, bytes)?;
            if piece.rows == 0 {
                self.pieces.pop_front();
            }
            self.rows += cut.num_rows();
            self.bytes = self.bytes.saturating_add(bytes_of(&cut));
            self.forming.push(cut);
        }
        if self.rows == 0 || !(is_last || pace.is_full(self.rows, self.bytes)) {
            return Ok(None);
        }
        let forming = std::mem::take(&mut self.forming);
        let columns = match <[RecordBatch; 1]>::try_from(forming) {
            Ok([whole]) => whole,
            Err(pieces) => {
                report::unwrap(reserve::check_room(self.bytes));
                concat_batches(&self.schema, &pieces)?
            }
        };
        (self.rows, self.bytes) = (0, 0);
        self.next_number += 1;
        Ok(Some(CallBatch::new(self.next_number - 1, columns)))
    }

    /// Whether there is a piece in memory, once one was read.
    fn fill(&mut self) -> Result<bool, ArrowError> {
        if self.pieces.is_empty()
            && let Some(file) = &mut self.file
        {
            if let (Some(header), Some(body)) = (file.pop(), file.pop()) {
                let rows = decode_parts(header, body, self.schema.clone())?;
                let held = bytes_of(&rows);
                self.pieces.push_back(Piece { columns: rows.columns().to_vec(), rows: rows.num_rows(), held });
            }
            if file.is_empty() {
                self.file = None;
            }
        }
        Ok(!self.pieces.is_empty())
    }
}

impl Piece {
    /// Cuts off its first rows, as many as these, and as have so many bytes; one at least.
    fn cut(&mut self, schema: &SchemaRef, rows: usize, bytes: usize) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<&ArrayRef> = self.columns.iter().collect();
        let (rows, bytes) = rows_that_fit(&columns, 0..self.rows.min(rows), bytes);
        report::unwrap(reserve::check_room(bytes));
        let first = self.columns.iter().map(|column| spelled_out(column.slice(0, rows))).collect::<Result<_, _>>()?;
        self.rows -= rows;
        self.columns.iter_mut().for_each(|column| *column = column.slice(rows, self.rows));
        RecordBatch::try_new_with_options(schema.clone(), first, &RecordBatchOptions::new().with_row_count(Some(rows)))
    }
}
