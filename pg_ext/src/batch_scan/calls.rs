//! The calls of a batch: sends them, and takes their results.
//!
//! A fused call waits until the calls in its arguments are answered. Their results go into its arguments as they came, as columns,
//! and no SQL value is made of what nobody else looks at. Replies are taken in the order in which batches were sent, of whichever call
//! they are: a container that serves several calls computes in that order.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BooleanArray, DictionaryArray, Int32Array, UInt32Array, new_null_array};
use arrow_buffer::NullBuffer;
use arrow_schema::ArrowError;
use arrow_select::concat::concat;
use arrow_select::filter::filter;
use arrow_select::take::take;
use udf_client::arena::Writer;
use udf_client::driver::Lane;
use udf_client::inbox::{Reply, bytes_of, bytes_of_column, copied};
use udf_client::outbox::Outgoing;
use udf_codec::batch::{CallBatch, Given};
use udf_types::{Error, Kind};

use super::kept::KeptRows;
use super::sets::part_of;
use super::state::{Batch, Call, Inner, Out, Progress, Rest, Sent};
use crate::datum::result_column::{ResultColumn, check_results, results_of};
#[cfg(feature = "lift-ordinary")]
use crate::ordinary::stream::Stream;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::reserve;
use crate::pieces::{self, rows_that_fit};
#[cfg(not(feature = "lift-ordinary"))]
use crate::stream::Stream;
use crate::{report, settings};

/// Makes room for the arguments of a batch, which has a first row.
pub(super) fn make_room(inner: &mut Inner) {
    for (i, call) in inner.calls.iter_mut().enumerate() {
        let stream = inner.driver.lane(i);
        let arena = |size| stream.map_or_else(|| Writer::own(size), |stream| stream.arena(size));
        let takes_constants = stream.is_some_and(Stream::takes_constants);
        let pace = inner.driver.pace();
        call.columns.begin(pace.room(), pace.bytes(), takes_constants, arena);
    }
}

/// Begins to form a batch.
pub(super) fn start_batch(inner: &mut Inner) {
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
    let shared = inner.arguments.take();
    for i in 0..inner.calls.len() {
        let count = batch.sent[i].count;
        if count == 0 {
            batch.progress.push(Progress::Answered(None));
            continue;
        }
        let call = &mut inner.calls[i];
        bytes +=
            call.columns.bytes() + std::mem::take(&mut call.builder_bytes) + std::mem::take(&mut call.shared_bytes);
        let (mut arguments, arena) = call.columns.take();
        for (argument, column) in &call.shared {
            arguments[*argument] = Given::Column(report::unwrap(shared[*column].of(&batch.sent[i], batch.rows.count)));
        }
        if !call.inputs.is_empty() {
            let arguments = call.builder.take_built(arguments);
            batch.progress.push(Progress::Waiting(Rest { arguments, arena, sent: 0 }));
            continue;
        }
        open_lane(inner, i);
        let call = &mut inner.calls[i];
        let calls = call.builder.finish_batch_with(count, arguments);
        // A set's results are read one by one.
        let batch_of_calls = CallBatch { takes_dictionaries: inner.set.is_none(), ..calls };
        inner.driver.send(i, Outgoing { batch: batch_of_calls, arena });
        inner.awaited.push_back((batch.first_row, i));
        batch.progress.push(Progress::Out(Out { awaited: 1, ..Out::default() }));
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
        let found = call.tables.is_none().then(|| call.function.find_tables(inner.user));
        let tables = call.tables.as_ref().or(found.as_ref()).map_or(&[][..], Vec::as_slice);
        let to_call = report::unwrap(call.function.call(inner.user, tables));
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
    let is_to_be_sent =
        |progress: &Progress| matches!(progress, Progress::Waiting(_) | Progress::Out(Out { rest: Some(_), .. }));
    if !batch.progress.iter().any(is_to_be_sent) {
        inner.driver.complete(position);
    }
    if batch.progress.iter().all(|progress| matches!(progress, Progress::Answered(_))) {
        batch.progress.clear();
        batch.is_answered = true;
    }
}

/// Begins to send a fused call: its own arguments, and the results that it has waited for.
fn send_waiting(inner: &mut Inner, position: usize, i: usize) {
    let batch = &mut inner.queue[position];
    let waiting = std::mem::replace(&mut batch.progress[i], Progress::Answered(None));
    let Progress::Waiting(Rest { arguments, arena, .. }) = waiting else { return };
    let call = &inner.calls[i];
    let taken = call.inputs.iter().map(|input| match &batch.progress[input.call] {
        Progress::Answered(Some(results)) => bytes_of_column(results),
        _ => 0,
    });
    let taken = taken.fold(0, usize::saturating_add);
    report::unwrap(reserve::check_room(taken));
    let (arguments, is_whole) =
        with_results(call, batch, i, arguments).unwrap_or_else(|cause| report_unfit(call, &cause));
    if batch.sent[i].count > 0 {
        let rest = Rest { arguments, arena: arena.filter(|_| is_whole), sent: 0 };
        batch.progress[i] = Progress::Out(Out { rest: Some(rest), ..Out::default() });
        inner.driver.hold(position, taken);
        open_lane(inner, i);
        send_rest(inner, position, i);
    }
}

/// Sends more of a fused call's rest. Results may be much larger than what they were made of, so it goes in several batches where it is
/// larger than one may be, and few of them are out at a time.
fn send_rest(inner: &mut Inner, position: usize, i: usize) {
    let (most_bytes, window) = (inner.driver.pace().bytes(), inner.driver.pace().first_window());
    let batch = &mut inner.queue[position];
    let call = &mut inner.calls[i];
    let count = batch.sent[i].count;
    let Progress::Out(out) = &mut batch.progress[i] else { return };
    while let Some(part) = out.rest.as_mut().filter(|_| out.awaited < window) {
        let (rows, bytes) = rows_that_fit(&columns_of(&part.arguments), part.sent..count, most_bytes);
        report::unwrap(reserve::check_room(bytes));
        let range = part.sent..part.sent + rows;
        let (arguments, arena) = match rows == count {
            true => (spelled_out(&part.arguments, None), part.arena.take()),
            false => (spelled_out(&part.arguments, Some(range.clone())), None),
        };
        let arguments = arguments.unwrap_or_else(|cause| report_unfit(call, &cause));
        part.sent = range.end;
        if range.end == count {
            out.rest = None;
        }
        let calls = call.builder.finish_batch_with(rows, arguments);
        let batch_of_calls = CallBatch { takes_dictionaries: true, ..calls };
        inner.driver.send_later(position, i, Outgoing { batch: batch_of_calls, arena });
        inner.awaited.push_back((batch.first_row, i));
        out.awaited += 1;
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

/// The arguments that have a value per row.
fn columns_of(arguments: &[Given]) -> Vec<&ArrayRef> {
    let columns = arguments.iter().filter_map(|given| match given {
        Given::Column(column) => Some(column),
        _ => None,
    });
    columns.collect()
}

/// Arguments of these rows, or of all, with texts of dictionaries spelled out.
fn spelled_out(arguments: &[Given], rows: Option<Range<usize>>) -> Result<Vec<Given>, ArrowError> {
    let places = rows.map(|rows| UInt32Array::from_iter_values(rows.start as u32..rows.end as u32));
    let part = arguments.iter().map(|given| {
        let Given::Column(column) = given else { return Ok(given.clone()) };
        let part = places.as_ref().map_or_else(|| Ok(column.clone()), |places| take(column, places, None))?;
        Ok(Given::Column(pieces::spelled_out(part)?))
    });
    part.collect()
}

/// Takes the answers that are there and for which fused calls wait, so that these go out while the engine does something else.
pub(super) fn forward(inner: &mut Inner) {
    // Nothing is fused. There may be thousands of answers to come, and this is asked for each.
    if inner.depth < 2 {
        return;
    }
    let mut place = 0;
    // A call is answered in the order in which it was sent.
    let mut is_awaited_before = vec![false; inner.calls.len()];
    while let Some(&(_, i)) = inner.awaited.get(place) {
        let is_next = !is_awaited_before[i];
        if inner.calls[i].is_input && is_next && inner.driver.lane_mut(i).is_some_and(Lane::is_answered) {
            receive_at(inner, place);
        } else {
            is_awaited_before[i] = true;
            place += 1;
        }
    }
}

/// Waits for the next answer that was asked for, of a call that returns a set for its first part.
pub(super) fn receive_next(inner: &mut Inner) {
    receive_at(inner, 0);
}

fn receive_at(inner: &mut Inner, place: usize) {
    // Without these, an answer would be lost in silence, and rows with it.
    let (first_row, i) = inner.awaited.remove(place).expect("a batch without its answers awaits some");
    let position = inner.queue.iter().position(|batch| batch.first_row == first_row);
    let position = position.expect("a batch whose answers are awaited is in the queue");
    let reply = receive_reply(inner, position, i).expect("what the node awaits was sent");
    let function = inner.calls[i].function.clone();
    let batch = &mut inner.queue[position];
    if let Some(set) = &mut inner.set {
        assert!(position == 0 && set.part.is_none(), "the answer of a set is the oldest batch's");
        set.part = Some(part_of(&function, &reply));
        batch.is_answered = true;
        return;
    }
    let call = &inner.calls[i];
    let Progress::Out(out) = &mut batch.progress[i] else { unreachable!("a call whose answer comes is out") };
    out.awaited -= 1;
    let is_whole = out.awaited == 0 && out.rest.is_none() && out.results.is_empty();
    if is_whole {
        out.results.push(results_of(&function, &reply.columns));
    } else {
        // They stay until the others are here, and may be few of a large message.
        let bytes = bytes_of(&reply.columns);
        out.bytes = out.bytes.saturating_add(bytes);
        let most = settings::max_reply_bytes();
        if out.bytes > most {
            report::raise_error(&Error::reply_too_large(&function.name, most).with_hint(NOT_FUSED), None);
        }
        report::unwrap(reserve::check_room(bytes));
        let kept = copied(&reply.columns).unwrap_or_else(|cause| report_unfit(call, &cause));
        out.results.push(results_of(&function, &kept));
    }
    if out.rest.is_some() {
        send_rest(inner, position, i);
        return settle(inner, position);
    }
    if out.awaited > 0 {
        return;
    }
    let results = joined(&mut out.results).unwrap_or_else(|cause| report_unfit(call, &cause));
    if call.is_input {
        let first_row = batch.first_row;
        let numbers = batch.sent[i].rows(batch.rows.count).map(|row| Some(first_row + row as u64));
        // SAFETY: the batch's context is valid as long as the batch.
        unsafe { within(batch.context.as_ptr(), || check_results(&function, &results, numbers)) };
    }
    if call.is_shown {
        batch.results[i] = Some(ResultColumn::new(&function, results.clone()));
    }
    batch.progress[i] = Progress::Answered(Some(results).filter(|_| call.is_input));
    settle(inner, position);
}

/// The results that came in pieces. Dictionaries stay what they are: spelled out, they could be any number of times as long.
fn joined(pieces: &mut Vec<ArrayRef>) -> Result<ArrayRef, ArrowError> {
    if pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    let mut pieces = std::mem::take(pieces);
    report::unwrap(reserve::check_room(pieces.iter().map(bytes_of_column).fold(0, usize::saturating_add)));
    if pieces.iter().any(|piece| piece.as_dictionary_opt::<Int32Type>().is_some()) {
        for piece in &mut pieces {
            let (keys, texts): (Int32Array, _) = match piece.as_dictionary_opt::<Int32Type>() {
                // What a NULL refers to has no meaning.
                Some(dictionary) => (dictionary.keys().iter().collect(), dictionary.values().clone()),
                None => {
                    ((0..piece.len()).map(|row| piece.is_valid(row).then_some(row as i32)).collect(), piece.clone())
                }
            };
            *piece = Arc::new(DictionaryArray::try_new(keys, texts)?);
        }
    }
    concat(&pieces.iter().map(ArrayRef::as_ref).collect::<Vec<_>>())
}

/// What helps where a batch is too large, or its pieces do not fit each other.
const NOT_FUSED: &str = "Lower transship.batch_rows, or switch transship.fusion off.";

/// Raises the error for columns that cannot be put together: they are too large, or of different types.
fn report_unfit(call: &Call, cause: &ArrowError) -> ! {
    let message = format!("results of container function \"{}\" cannot be put together", call.function.name);
    let kind = match cause {
        ArrowError::OffsetOverflowError(_) | ArrowError::DictionaryKeyOverflowError => Kind::OutOfMemory,
        _ => Kind::BadResult,
    };
    let error = Error::new(kind, message).with_detail(format!("{cause}."));
    report::raise_error(&error.with_hint(NOT_FUSED), None)
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
                        Some(Progress::Out(out)) => out.results.iter().map(|results| results.len() as u64).sum(),
                        _ => 0,
                    };
                    let position = usize::try_from(row.saturating_add(before)).unwrap_or(usize::MAX);
                    let row = batch.first_row.saturating_add(batch.sent[i].row_of(position) as u64);
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
