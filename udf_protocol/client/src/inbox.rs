//! Replies on their way to the engine: its queue, and the doorbell that wakes it.

use std::sync::{Arc, mpsc as std_mpsc};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::take::take;
use tokio::sync::Semaphore;
use udf_codec::lines::{LINES, WANTED, read_field, shown};
use udf_codec::wire::TABLES;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Result};

use crate::budget::{Budget, DEFAULT_REPLY_BYTES, Share};
use crate::doorbell::Doorbell;
use crate::folder::Folder;
use crate::foreground::is_in_foreground;
use crate::planted::{Planted, is_planted};
use crate::trace::{TRACEPARENT, TraceContext};

/// One reply on its way to the engine.
#[derive(Debug)]
pub struct Reply {
    /// The number of the batch it answers.
    pub number: u64,
    /// The columns of [`Signature::reply_types`](udf_types::signature::Signature::reply_types).
    pub columns: RecordBatch,
    /// Whether this ends the answer: a table function may answer a batch in parts.
    pub is_last: bool,
    /// Bytes of the request: those of its data, of JSON all.
    pub bytes_sent: usize,
    /// Bytes of the reply, counted likewise.
    pub bytes_received: usize,
    /// Bytes that reading the reply needed at once, at most: what came, what was made of it on the way, and the columns. By
    /// this batches are made smaller before their replies need more than they may.
    pub bytes_needed: usize,
    /// How long the server says that it computed, in microseconds; 0 if it does not say it.
    pub compute_us: u64,
    /// Rows that were not sent, since they equal others of the batch.
    pub repeated: usize,
    /// Rows that were not sent, since their results were there already.
    pub cached: usize,
    /// What it holds of its exchange's budget, until the engine takes it.
    pub share: Option<Share>,
}

impl Reply {
    /// Gives back what the reply holds of its exchange's budget, of one that is kept and counted by its columns' bytes. They may be few of a
    /// large message, all of which lies in memory as long as they do.
    pub(crate) fn release(&mut self, function: &str) -> Result<()> {
        let held = self.share.take().map_or(0, |share| share.held());
        if held / 2 > bytes_of(&self.columns) + SMALL_BYTES {
            let unreadable = |cause| Error::protocol(function, format!("A reply cannot be kept: {cause}."));
            self.columns = copied(&self.columns).map_err(unreadable)?;
        }
        Ok(())
    }

    /// The whole answer to a batch, of a server that does not say how long it computed.
    pub(crate) fn whole(number: u64, columns: RecordBatch, bytes_sent: usize, bytes_received: usize) -> Reply {
        Reply {
            number,
            columns,
            is_last: true,
            bytes_sent,
            bytes_received,
            bytes_needed: bytes_received,
            compute_us: 0,
            repeated: 0,
            cached: 0,
            share: None,
        }
    }
}

/// What is not worth a copy.
const SMALL_BYTES: usize = 16 << 10;

/// Columns in memory of their own.
///
/// # Errors
/// If a column is larger than Arrow's offsets can say.
pub fn copied(columns: &RecordBatch) -> std::result::Result<RecordBatch, ArrowError> {
    let all = |column: &dyn Array| take(column, &UInt32Array::from_iter_values(0..column.len() as u32), None);
    let copies = columns.columns().iter().map(|column| match column.as_dictionary_opt::<Int32Type>() {
        Some(encoded) => {
            let keys = all(encoded.keys())?.as_primitive::<Int32Type>().clone();
            Ok(Arc::new(DictionaryArray::try_new(keys, all(encoded.values())?)?) as ArrayRef)
        }
        None => all(column),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(columns.num_rows()));
    RecordBatch::try_new_with_options(columns.schema(), copies.collect::<std::result::Result<_, _>>()?, &options)
}

/// Bytes of a column's values, however much larger the memory is in which they lie.
pub fn bytes_of_column(column: &ArrayRef) -> usize {
    column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
}

/// The same of all columns of a batch.
pub fn bytes_of(columns: &RecordBatch) -> usize {
    columns.columns().iter().map(bytes_of_column).fold(0, usize::saturating_add)
}

/// What an engine finds in its queue.
#[derive(Debug)]
pub enum Event {
    /// A server was reached: from now on it has its time to answer.
    Reached {
        /// By which transport.
        transport: TransportName,
        /// Where columns may be written into segments.
        directory: Option<Folder>,
        /// Whether constants are known to travel as one row.
        takes_constants: bool,
    },
    /// A reply.
    Reply(Reply),
    /// The greeting of the server that was reached says that constants may travel as one row.
    TakesConstants,
    /// A map function's server took another batch.
    Taken,
    /// A map function's stream of results has ended.
    End,
    /// The batch of this number failed. Replies to earlier batches may still be on their way.
    Failure(u64, Error),
    /// Lines that the handler wrote while it answered a batch, which were asked for; before the reply or failure.
    Lines(Vec<String>),
}

/// What an engine asks of a server beside the results.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asides {
    /// The span of the exchange, which servers are told.
    pub(crate) trace: Option<TraceContext>,
    /// Whether lines are wanted that the handler writes.
    pub(crate) wants_lines: bool,
    /// Under which name the server knows the tables of the exchange's calls.
    pub(crate) offer: Option<Arc<str>>,
}

impl Asides {
    /// The fields that say so of one batch, or of the exchange if that goes as one.
    pub(crate) fn fields(&self, batch: Option<u64>) -> impl Iterator<Item = (&'static str, String)> {
        let traced = self.trace.map(|trace| batch.map_or(trace, |number| trace.of_batch(number)));
        let trace = traced.map(|trace| (TRACEPARENT, trace.to_string()));
        let lines = self.wants_lines.then(|| (LINES, WANTED.to_string()));
        let tables = self.offer.as_ref().map(|name| (TABLES, name.to_string()));
        trace.into_iter().chain(lines).chain(tables)
    }
}

/// Where replies go: the engine's queue, and a doorbell that wakes it.
#[derive(Debug, Clone)]
pub struct Inbox {
    sender: std_mpsc::Sender<Result<Event>>,
    doorbell: Arc<Doorbell>,
    /// How many further replies the engine has room for.
    room: Arc<Semaphore>,
    budget: Arc<Budget>,
    asides: Asides,
}

/// Replies that may wait for the engine. Servers that have more to say are held up by HTTP/2's flow control.
const ROOM: usize = 8;

impl Inbox {
    /// An inbox that rings `doorbell`.
    pub fn new(doorbell: Arc<Doorbell>) -> (Inbox, std_mpsc::Receiver<Result<Event>>, Arc<Semaphore>) {
        let (sender, receiver) = std_mpsc::channel();
        let room = Arc::new(Semaphore::new(ROOM));
        let budget = Budget::new(DEFAULT_REPLY_BYTES);
        (Inbox { sender, doorbell, room: room.clone(), budget, asides: Asides::default() }, receiver, room)
    }

    /// One for what is not the engine's yet, within the same budget, and where that is found.
    pub(crate) fn aside(&self) -> (Inbox, std_mpsc::Receiver<Result<Event>>) {
        let (sender, receiver) = std_mpsc::channel();
        (Inbox { sender, room: Arc::new(Semaphore::new(ROOM)), ..self.clone() }, receiver)
    }

    /// The same within another budget.
    pub(crate) fn within(self, budget: Arc<Budget>) -> Inbox {
        Inbox { budget, ..self }
    }

    /// The same for an engine that asks for more than results.
    pub(crate) fn asking(self, asides: Asides) -> Inbox {
        Inbox { asides, ..self }
    }

    /// What the engine asks for beside the results.
    pub(crate) fn asides(&self) -> &Asides {
        &self.asides
    }

    /// Delivers lines, if they were asked for.
    pub(crate) fn deliver_lines(&self, lines: Vec<String>) {
        if self.asides.wants_lines && !lines.is_empty() {
            self.deliver(Ok(Event::Lines(shown(&lines))));
        }
    }

    /// The same of the field of a reply of HTTP.
    pub(crate) fn deliver_lines_of(&self, function: &str, field: Option<&[u8]>) -> Result<()> {
        if let Some(field) = field.filter(|_| self.asides.wants_lines) {
            let unreadable = |cause| Error::protocol(function, format!("Its lines cannot be read: {cause}."));
            self.deliver_lines(read_field(field).map_err(unreadable)?);
        }
        Ok(())
    }

    /// What replies may hold until the engine takes them.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Waits until the engine has room for a reply; it makes room by taking one.
    pub async fn wait_for_room(&self) {
        // The semaphore is never closed.
        let _ = self.room.acquire().await;
    }

    /// Waits until the engine has room for so many replies.
    pub(crate) async fn wait_for_room_of(&self, replies: usize) {
        let _ = self.room.acquire_many(u32::try_from(replies).unwrap_or(u32::MAX)).await;
    }

    /// Whether the engine has room for a reply.
    pub(crate) fn has_room(&self) -> bool {
        self.room.available_permits() > 0
    }

    /// Delivers and rings. An engine that is gone misses it, which is what it wants.
    pub fn deliver(&self, event: Result<Event>) {
        if let Ok(Event::Reply(reply)) = &event {
            if is_planted(Planted::LostReply) && reply.number == 2 {
                return;
            }
            self.room.forget_permits(1);
        }
        let _ = self.sender.send(event);
        // The engine's own thread looks when it has done what it can.
        if !is_in_foreground() {
            self.doorbell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn a_reply_that_is_kept_keeps_no_more_than_its_columns() {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(1000), "y".repeat(1 << 20)]).slice(0, 1));
        let encoded: ArrayRef =
            Arc::new(["a", "b"].repeat(1 << 20).into_iter().collect::<DictionaryArray<Int32Type>>().slice(1, 1));
        let number: ArrayRef = Arc::new(Int64Array::from(vec![Some(1); 1 << 20]).slice(5, 1));
        let columns =
            RecordBatch::try_from_iter_with_nullable([("t", text, true), ("e", encoded, true), ("n", number, true)])
                .unwrap();
        for (held, is_copied) in [(bytes_of(&columns), false), (1 << 30, true)] {
            let mut share = Budget::new(usize::MAX).share(0);
            share.hold(held);
            let mut reply = Reply { share: Some(share), ..Reply::whole(0, columns.clone(), 0, 0) };
            reply.release("f").unwrap();
            assert!(reply.share.is_none() && reply.columns == columns);
            assert_eq!(reply.columns.get_array_memory_size() < 10_000, is_copied);
        }
    }
}
