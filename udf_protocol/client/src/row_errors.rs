//! Errors row by row, of a server that ends an exchange at the first one (`docs/protocol.md` §4.9 is for the others).
//!
//! A batch on which the handler raises an error is asked again without the row that is to blame, or in halves if no row is
//! named. A VOLATILE function's rows are asked one by one from the beginning, so that none is run twice. One batch goes out at
//! a time. Errors of any other kind than the handler's own are the exchange's, as always.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray, UInt32Array, new_null_array};
use arrow_schema::Schema;
use arrow_select::concat::concat;
use arrow_select::take::take_record_batch;
use udf_codec::batch::CallBatch;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::row_texts::RowTexts;
use udf_types::signature::{RowErrors, Signature};
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::inbox::{Event, Inbox, Reply, bytes_of};
use crate::outbox::{Outbox, Outgoing};
use crate::transport::Transport;

/// Runs an exchange of a function whose replies are to have a column of errors, with a server that gives none.
pub(crate) async fn exchange(
    transport: &dyn Transport,
    signature: &Signature,
    outbox: &mut Outbox,
    inbox: &Inbox,
) -> Result<()> {
    let plain = Signature { row_errors: None, ..signature.clone() };
    while let Some(outgoing) = outbox.next().await {
        let number = outgoing.number;
        let mut batch = Splitting {
            transport,
            plain: &plain,
            inbox,
            outgoing: &outgoing,
            patience: outbox.patience(),
            has_run: false,
            bytes: 0,
            texts: RowTexts::new(),
        };
        let answer = batch.answer(signature.row_errors == Some(RowErrors::Once)).await;
        let event = match answer {
            Ok(reply) => Event::Reply(reply),
            Err(error) if error.is_retryable() || error.is_busy() => {
                if !batch.has_run {
                    // Any function's may be sent again then.
                    outbox.rewind();
                }
                return Err(error);
            }
            Err(error) => Event::Failure(number, error),
        };
        outbox.answer(number);
        inbox.deliver(Ok(event));
    }
    Ok(())
}

/// A batch that is answered in pieces.
struct Splitting<'a> {
    transport: &'a dyn Transport,
    plain: &'a Signature,
    inbox: &'a Inbox,
    outgoing: &'a Outgoing,
    /// How long the engine waits for its answer, and so for that of each piece.
    patience: Duration,
    /// Whether a server may have run some of it.
    has_run: bool,
    /// Bytes of its answer so far.
    bytes: usize,
    texts: RowTexts,
}

/// What is still to be done, the next last.
enum Todo {
    Ask(Range<usize>),
    /// A row that was asked, with its error.
    Note(String),
}

/// What is known of some rows, one part after the other.
enum Part {
    Results(ArrayRef),
    Error(String),
}

impl Splitting<'_> {
    /// The results of all rows, and their errors.
    async fn answer(&mut self, row_by_row: bool) -> Result<Reply> {
        let rows = self.outgoing.columns.num_rows();
        let mut todo: Vec<Todo> = match row_by_row {
            true => (0..rows).rev().map(|row| Todo::Ask(row..row + 1)).collect(),
            false => vec![Todo::Ask(0..rows)],
        };
        let mut parts = Vec::new();
        let (mut bytes_sent, mut bytes_received, mut compute_us) = (0_usize, 0_usize, 0_u64);
        while let Some(next) = todo.pop() {
            let range = match next {
                Todo::Ask(range) => range,
                Todo::Note(text) => {
                    parts.push(Part::Error(text));
                    continue;
                }
            };
            match self.ask(range.clone()).await {
                Ok(reply) => {
                    bytes_sent = bytes_sent.saturating_add(reply.bytes_sent);
                    bytes_received = bytes_received.saturating_add(reply.bytes_received);
                    compute_us = compute_us.saturating_add(reply.compute_us);
                    self.count(bytes_of(&reply.columns))?;
                    parts.push(Part::Results(reply.columns.column(0).clone()));
                }
                Err(error) if error.is_of_handler() && !range.is_empty() => {
                    let named = error.row().and_then(|row| usize::try_from(row).ok()).filter(|row| *row < range.len());
                    let failed = if range.len() == 1 { Some(range.start) } else { named.map(|row| range.start + row) };
                    match failed {
                        Some(row) => {
                            let text = self.texts.cut(error.users_text(&self.plain.function)).to_string();
                            self.count(text.len())?;
                            let before = Todo::Ask(range.start..row);
                            let behind = Todo::Ask(row + 1..range.end);
                            todo.extend([behind, Todo::Note(text), before].into_iter().filter(|todo| !todo.is_done()));
                        }
                        None => {
                            let middle = range.start + range.len() / 2;
                            todo.extend([Todo::Ask(middle..range.end), Todo::Ask(range.start..middle)]);
                        }
                    }
                }
                Err(error) => {
                    let row = error.row().map(|row| row.saturating_add(range.start as u64));
                    return Err(row.into_iter().fold(error, Error::with_row));
                }
            }
        }
        let columns = self.assemble(&parts)?;
        let bytes_needed = self.bytes.saturating_mul(2);
        let mut share = self.inbox.budget().share(self.outgoing.number);
        share.grow(&self.plain.function, self.bytes).await?;
        let reply = Reply::whole(self.outgoing.number, columns, bytes_sent, bytes_received);
        Ok(Reply { bytes_needed, compute_us, share: Some(share), ..reply })
    }

    /// Counts what the answer holds, which may be as much as any.
    fn count(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        // Offsets of 32 bits reach no further than the largest message.
        let most = self.inbox.budget().limit().min(MAX_MESSAGE_BYTES);
        if self.bytes > most { Err(Error::reply_too_large(&self.plain.function, most)) } else { Ok(()) }
    }

    /// Asks for some of the rows, in an exchange of their own.
    async fn ask(&mut self, range: Range<usize>) -> Result<Reply> {
        let (sender, mut outbox) = Outbox::new();
        outbox.set_patience(self.patience);
        // The receiver is in scope.
        let _ = sender.send(self.piece(range)?);
        drop(sender);
        let (inbox, receiver) = self.inbox.aside();
        let outcome = self.transport.exchange(self.plain, &mut outbox, &inbox).await;
        let answer = receiver.try_iter().find_map(|event| match event {
            Ok(Event::Reply(reply)) => Some(Ok(reply)),
            Ok(Event::Failure(_, error)) | Err(error) => Some(Err(error)),
            Ok(Event::Lines(lines)) => {
                self.inbox.deliver(Ok(Event::Lines(lines)));
                None
            }
            Ok(_) => None,
        });
        let answer = match (answer, outcome) {
            (Some(answer), _) => answer,
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(Error::protocol(&self.plain.function, "It ended an exchange without an answer.")),
        };
        self.has_run |= match &answer {
            Err(error) if error.is_busy() => false,
            Err(error) if error.is_retryable() => outbox.awaited() > 0,
            _ => true,
        };
        // Its room is asked for again once the whole answer is there.
        let mut answer = answer?;
        answer.release(&self.plain.function)?;
        Ok(answer)
    }

    /// Some of the rows, as a batch.
    fn piece(&self, range: Range<usize>) -> Result<Outgoing> {
        let whole = &self.outgoing.batch;
        if range == (0..whole.columns.num_rows()) {
            return Ok(self.outgoing.clone());
        }
        let unreadable = |cause: &dyn std::fmt::Display| {
            Error::protocol(&self.plain.function, format!("A batch could not be divided: {cause}."))
        };
        let columns = if whole.columns.num_columns() == 0 {
            let options = RecordBatchOptions::new().with_row_count(Some(range.len()));
            RecordBatch::try_new_with_options(whole.columns.schema(), Vec::new(), &options)
        } else {
            let bounds = u32::try_from(range.start).and_then(|start| Ok(start..u32::try_from(range.end)?));
            let places = UInt32Array::from_iter_values(bounds.map_err(|cause| unreadable(&cause))?);
            take_record_batch(&whole.columns, &places)
        };
        let columns = columns.map_err(|cause| unreadable(&cause))?;
        Ok(CallBatch { columns, ..whole.clone() }.into())
    }

    /// The columns of results and errors.
    fn assemble(&self, parts: &[Part]) -> Result<RecordBatch> {
        let function = &self.plain.function;
        let given = parts.iter().find_map(|part| match part {
            Part::Results(results) => Some(results.data_type().clone()),
            Part::Error(_) => None,
        });
        let result_field = self.plain.result.field(function);
        let data_type = given.unwrap_or_else(|| result_field.data_type().clone());
        let null = new_null_array(&data_type, 1);
        let (mut results, mut errors) = (Vec::with_capacity(parts.len()), Vec::new());
        for part in parts {
            match part {
                Part::Results(values) => {
                    results.push(values.as_ref());
                    errors.extend(std::iter::repeat_n(None, values.len()));
                }
                Part::Error(text) => {
                    results.push(null.as_ref());
                    errors.push(Some(text.as_str()));
                }
            }
        }
        let unreadable = |cause| Error::protocol(function, format!("Its replies do not fit each other: {cause}."));
        let results = concat(&results).map_err(unreadable)?;
        let fields = vec![result_field.with_data_type(data_type), Type::Text.field("error")];
        let columns = vec![results, Arc::new(StringArray::from(errors)) as ArrayRef];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(unreadable)
    }
}

impl Todo {
    fn is_done(&self) -> bool {
        matches!(self, Todo::Ask(range) if range.is_empty())
    }
}
