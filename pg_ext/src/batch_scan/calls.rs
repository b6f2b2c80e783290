//! The calls of a batch: sends them, and takes their results.
//!
//! A fused call waits until the calls in its arguments are answered. Their results go into its arguments as they came, as columns,
//! and no SQL value is made of what nobody else looks at. Replies are taken in the order in which batches were sent, of whichever call
//! they are: a container that serves several calls computes in that order.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BooleanArray, UInt32Array, new_null_array};
use arrow_buffer::NullBuffer;
use arrow_schema::ArrowError;
use arrow_select::concat::concat;
use arrow_select::filter::filter;
use arrow_select::take::take;
use udf_client::arena::{Arena, Writer};
use udf_client::driver::Lane;
use udf_client::inbox::{Reply, bytes_of, bytes_of_column};
use udf_client::outbox::Outgoing;
use udf_codec::batch::{CallBatch, Given};
use udf_types::{Error, Kind};

use super::kept::KeptRows;
use super::sets::part_of;
use super::state::{Batch, Call, Inner, Progress, Sent};
use crate::datum::result_column::{ResultColumn, check_results, results_of};
#[cfg(feature = "lift-ordinary")]
use crate::ordinary::stream::Stream;
use crate::pg::memory::OwnedContext;
use crate::report;
#[cfg(not(feature = "lift-ordinary"))]
use crate::stream::Stream;

/// Begins to form a batch.
pub(super) fn start_batch(inner: &mut Inner) {
    for (i, call) in inner.calls.iter_mut().enumerate() {
        let stream = inner.driver.lane(i);
        let arena = |size| stream.map_or_else(|| Writer::own(size), |stream| stream.arena(size));
        let takes_constants = stream.is_some_and(Stream::takes_constants);
        let pace = inner.driver.pace();
        call.columns.begin(pace.room(), pace.bytes(), takes_constants, arena);
    }
    let memory = inner.spare_contexts.pop().unwrap_or_else(|| {
        // SAFETY: the query's context outlives the node, which drops its batches.
        unsafe { OwnedContext::new(inner.query_context) }
    });
    inner.forming = Some(Batch {
        context: memory,
        rows: KeptRows::default(),
        bytes: 0,
        first_row: inner.rows_read + 1,
        sent: inner.calls.iter().map(|_| Sent::default()).collect(),
        progress: Vec::new(),
        is_answered: false,
        results: inner.calls.iter().map(|_| None).collect(),
        next_row: 0,
    });
}

/// Sends the calls of the batch that was formed, but for those that wait for others.
pub(super) fn send_batch(inner: &mut Inner) {
    let Some(mut batch) = inner.forming.take() else { return };
    if batch.rows.count == 0 {
        inner.spare_contexts.push(batch.context);
        return;
    }
    inner.rows_read += batch.rows.count as u64;
    let mut bytes = batch.bytes;
    for i in 0..inner.calls.len() {
        let count = batch.sent[i].count;
        if count == 0 {
            batch.progress.push(Progress::Answered(None));
            continue;
        }
        open_lane(inner, i);
        let call = &mut inner.calls[i];
        bytes += call.columns.bytes() + call.builder_bytes;
        call.builder_bytes = 0;
        let (arguments, arena) = call.columns.take();
        if !call.inputs.is_empty() {
            batch.progress.push(Progress::Waiting(call.builder.take_built(arguments), arena));
            continue;
        }
        let calls = call.builder.finish_batch_with(count, arguments);
        // A set's results are read one by one.
        let batch_of_calls = CallBatch { takes_dictionaries: inner.set.is_none(), ..calls };
        inner.driver.send(i, Outgoing { batch: batch_of_calls, arena });
        inner.awaited.push_back((batch.first_row, i));
        batch.progress.push(Progress::Out(1, Vec::new()));
    }
    match batch.progress.iter().any(|progress| matches!(progress, Progress::Waiting(..))) {
        true => inner.driver.finish_open_batch(bytes),
        false => inner.driver.finish_batch(bytes),
    }
    inner.queue.push_back(batch);
    settle(inner, inner.queue.len() - 1);
}

/// Begins to reach who answers a call, if nobody has.
fn open_lane(inner: &mut Inner, i: usize) {
    if inner.driver.lane(i).is_some() {
        return;
    }
    let call = &inner.calls[i];
    #[cfg(feature = "lift-ordinary")]
    let stream = Stream::of_call(call.expression, &call.function, inner.query_context);
    #[cfg(not(feature = "lift-ordinary"))]
    let stream = {
        // SAFETY: the plan outlives the node.
        let oid = unsafe { (*call.expression).funcid };
        let to_call = report::unwrap(call.function.call(inner.user));
        Stream::open_with_cache(oid, to_call, call.function.cache_use())
    };
    inner.driver.open(i, stream);
}

/// Sends the calls of a batch that wait for nothing any more.
fn settle(inner: &mut Inner, position: usize) {
    // Calls stand behind those that they wait for.
    for i in 0..inner.calls.len() {
        let progress = &inner.queue[position].progress;
        let is_there = |call: usize| matches!(progress[call], Progress::Answered(_));
        if matches!(progress[i], Progress::Waiting(..)) && inner.calls[i].inputs.iter().all(|it| is_there(it.call)) {
            send_waiting(inner, position, i);
        }
    }
    let batch = &mut inner.queue[position];
    if !batch.progress.iter().any(|progress| matches!(progress, Progress::Waiting(..))) {
        inner.driver.complete(position);
    }
    if batch.progress.iter().all(|progress| matches!(progress, Progress::Answered(_))) {
        batch.progress.clear();
        batch.is_answered = true;
    }
}

/// Sends a fused call: its own arguments, and the results that it has waited for.
fn send_waiting(inner: &mut Inner, position: usize, i: usize) {
    let batch = &mut inner.queue[position];
    let call = &mut inner.calls[i];
    let waiting = std::mem::replace(&mut batch.progress[i], Progress::Answered(None));
    let Progress::Waiting(arguments, arena) = waiting else { return };
    let most = inner.driver.pace().bytes();
    let pieces = with_results(call, batch, i, arguments)
        .and_then(|(arguments, is_whole)| cut(arguments, arena.filter(|_| is_whole), batch.sent[i].count, most))
        .unwrap_or_else(|cause| report_large(call, &cause));
    if pieces.is_empty() {
        return;
    }
    batch.progress[i] = Progress::Out(pieces.len(), Vec::new());
    for (rows, arguments, arena) in pieces {
        let calls = call.builder.finish_batch_with(rows, arguments);
        let bytes = bytes_of(&calls.columns);
        // Several answers become one column.
        let batch_of_calls = CallBatch { takes_dictionaries: rows == batch.sent[i].count, ..calls };
        inner.driver.send_later(position, i, Outgoing { batch: batch_of_calls, arena }, bytes);
        inner.awaited.push_back((batch.first_row, i));
    }
}

/// The arguments of a call with the results that it has waited for among them, and whether its rows are all that it had: those in which
/// a result is NULL are not for a STRICT function.
fn with_results(
    call: &Call,
    batch: &mut Batch,
    i: usize,
    mut arguments: Vec<Given>,
) -> Result<(Vec<Given>, bool), ArrowError> {
    let mut nulls = None;
    for input in &call.inputs {
        let column = match &batch.progress[input.call] {
            Progress::Answered(Some(results)) => {
                arguments_of(results, &batch.sent[input.call], &batch.sent[i], batch.rows.count)?
            }
            _ => {
                let ty = &call.function.signature.arguments[input.argument].ty;
                new_null_array(&ty.data_type(), batch.sent[i].count)
            }
        };
        nulls = NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref());
        arguments[input.argument] = Given::Column(column);
    }
    let Some(nulls) = nulls.filter(|nulls| call.is_strict && nulls.null_count() > 0) else {
        return Ok((arguments, true));
    };
    let kept = BooleanArray::new(nulls.into_inner(), None);
    batch.sent[i].keep(batch.rows.count, &kept);
    for given in &mut arguments {
        if let Given::Column(column) = given {
            *column = filter(column, &kept)?;
        }
    }
    Ok((arguments, false))
}

/// The results of one call, of which it was sent `sent`, as an argument of the rows that another `takes`.
fn arguments_of(results: &ArrayRef, sent: &Sent, takes: &Sent, rows: usize) -> Result<ArrayRef, ArrowError> {
    if sent.positions.is_none() && takes.positions.is_none() {
        return Ok(results.clone());
    }
    let places = takes.rows(rows).map(|row| sent.position(row).map(|position| position as u32));
    take(results, &places.collect::<UInt32Array>(), None)
}

/// What is sent at a time: a number of rows and their arguments.
type Piece = (usize, Vec<Given>, Option<Arc<Arena>>);

/// Cuts the arguments of so many rows into pieces of about `most` bytes: results may be much larger than what they were made of, also
/// those that came as dictionaries, which are spelled out here.
fn cut(arguments: Vec<Given>, arena: Option<Arc<Arena>>, rows: usize, most: usize) -> Result<Vec<Piece>, ArrowError> {
    let columns = arguments.iter().filter_map(|given| match given {
        Given::Column(column) => Some(bytes_spelled_out(column)),
        _ => None,
    });
    let bytes = columns.fold(0, usize::saturating_add);
    let pieces = bytes.div_ceil(most.max(1)).clamp(1, rows.max(1));
    let rows_at_a_time = rows.div_ceil(pieces).max(1);
    let mut cut = Vec::with_capacity(pieces);
    for start in (0..rows).step_by(rows_at_a_time) {
        let end = (start + rows_at_a_time).min(rows);
        let places = (end - start < rows).then(|| UInt32Array::from_iter_values(start as u32..end as u32));
        let part = arguments.iter().map(|given| match given {
            Given::Column(column) => Ok(Given::Column(spelled_out(column, places.as_ref())?)),
            other => Ok(other.clone()),
        });
        let part = part.collect::<Result<_, ArrowError>>()?;
        cut.push((end - start, part, arena.clone().filter(|_| places.is_none())));
    }
    Ok(cut)
}

/// Bytes of a column whose texts are spelled out.
fn bytes_spelled_out(column: &ArrayRef) -> usize {
    let Some(dictionary) = column.as_dictionary_opt::<Int32Type>() else { return bytes_of_column(column) };
    let Some(texts) = dictionary.values().as_string_opt::<i32>() else { return bytes_of_column(column) };
    let lengths = dictionary.keys().iter().flatten().map(|key| texts.value_length(key as usize) as usize);
    lengths.fold(dictionary.len() * size_of::<i32>(), usize::saturating_add)
}

/// Rows of a column, or all of them, with its texts spelled out.
fn spelled_out(column: &ArrayRef, places: Option<&UInt32Array>) -> Result<ArrayRef, ArrowError> {
    let rows = places.map_or_else(|| Ok(column.clone()), |places| take(column, places, None))?;
    match rows.as_dictionary_opt::<Int32Type>() {
        Some(dictionary) => take(dictionary.values(), dictionary.keys(), None),
        None => Ok(rows),
    }
}

/// Takes the answers that are there and for which fused calls wait, so that these go out while the engine does something else.
pub(super) fn forward(inner: &mut Inner) {
    let mut place = 0;
    while let Some(&(_, i)) = inner.awaited.get(place) {
        // A call is answered in the order in which it was sent.
        let is_next = inner.awaited.iter().take(place).all(|(_, before)| *before != i);
        if inner.calls[i].is_input && is_next && inner.driver.lane_mut(i).is_some_and(Lane::is_answered) {
            receive_at(inner, place);
        } else {
            place += 1;
        }
    }
}

/// Waits for the next answer that was asked for, of a call that returns a set for its first part.
pub(super) fn receive_next(inner: &mut Inner) {
    receive_at(inner, 0);
}

fn receive_at(inner: &mut Inner, place: usize) {
    let Some((first_row, i)) = inner.awaited.remove(place) else { return };
    let Some(position) = inner.queue.iter().position(|batch| batch.first_row == first_row) else { return };
    let Some(reply) = receive_reply(inner, position, i) else { return };
    let function = inner.calls[i].function.clone();
    let batch = &mut inner.queue[position];
    if let Some(set) = &mut inner.set {
        set.part = Some(part_of(&function, &reply));
        batch.is_answered = true;
        return;
    }
    let Progress::Out(awaited, results) = &mut batch.progress[i] else { return };
    *awaited -= 1;
    results.push(results_of(&function, &reply.columns));
    if *awaited > 0 {
        return;
    }
    let results = joined(results).unwrap_or_else(|cause| report_large(&inner.calls[i], &cause));
    let call = &inner.calls[i];
    if call.is_input {
        let first_row = batch.first_row;
        let numbers = batch.sent[i].rows(batch.rows.count).map(|row| first_row + row as u64);
        check_results(&function, &results, numbers);
    }
    if call.is_shown {
        batch.results[i] = Some(ResultColumn::new(&function, results.clone()));
    }
    batch.progress[i] = Progress::Answered(Some(results).filter(|_| call.is_input));
    settle(inner, position);
}

/// The results that came in pieces.
fn joined(pieces: &mut Vec<ArrayRef>) -> Result<ArrayRef, ArrowError> {
    if pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    let pieces: Vec<_> = pieces.drain(..).map(|piece| spelled_out(&piece, None)).collect::<Result<_, _>>()?;
    concat(&pieces.iter().map(ArrayRef::as_ref).collect::<Vec<_>>())
}

/// Raises the error for columns that cannot be put together.
fn report_large(call: &Call, cause: &ArrowError) -> ! {
    let message = format!("results of container function \"{}\" are too large", call.function.name);
    report::raise_error(&Error::new(Kind::OutOfMemory, message).with_detail(format!("{cause}.")), None)
}

/// Waits for one call's next reply to a batch, whose place in the queue is `position`; none if there is no more.
pub(super) fn receive_reply(inner: &mut Inner, position: usize, i: usize) -> Option<Reply> {
    match inner.driver.receive_of(position, i) {
        Ok(reply) => reply,
        Err(error) => {
            let name = &inner.calls[i].function.name;
            let place = inner.queue.get(position).map(|batch| match error.row() {
                Some(row) => {
                    // It counts within a piece of what was sent.
                    let before = match batch.progress.get(i) {
                        Some(Progress::Out(_, answered)) => answered.iter().map(|results| results.len()).sum(),
                        _ => 0,
                    };
                    let row = batch.first_row + batch.sent[i].row_of(before + row as usize) as u64;
                    format!("container function \"{name}\", row {row}")
                }
                None => {
                    let last_row = batch.first_row + batch.rows.count as u64 - 1;
                    format!("container function \"{name}\", rows {} to {last_row}", batch.first_row)
                }
            });
            report::raise_error(&error, place)
        }
    }
}
