//! Results of IMMUTABLE functions that earlier calls gave, in this session or another: equal rows are not sent again.
//!
//! In: a batch of calls. Out: batches of the rows whose results the store does not have ([`Caching::plan`]), any number of them;
//! and back, the results of all rows in their order ([`Caching::take`], [`Caching::assemble`]). The store is asked once per batch,
//! and never trusted: what it gives is checked like the reply of a container (`values.rs`), and if there is anything wrong with it,
//! or it does not come in time, the batch is sent as it is.

mod keys;
pub mod message;
mod session;
mod values;
mod worth;

/// What the store says, without the connection that brings it, for the fuzzers of `fuzz/`.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use arrow_schema::{DataType, Schema};
use arrow_select::concat::concat;
use arrow_select::interleave::interleave;
use arrow_select::take::take_record_batch;
use udf_codec::batch::CallBatch;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::types::Type;
use udf_types::{Error, Result};

pub use self::keys::namespace_of;
pub(crate) use self::session::Session;
pub use self::session::{count, reset, socket_beside};

use self::keys::{Keys, RowName, Tag};
use self::message::{CallCost, Key, Request, Response, Results};
use self::values::{Decoder, Encoder};
use self::worth::Worth;
use crate::channel;
use crate::dispatch::{Call, Target};
use crate::inbox::{Reply, bytes_of, bytes_of_column};
use crate::outbox::Outgoing;

/// Most rows of a batch that are looked up: their keys fit into a message.
const MOST_ROWS: usize = channel::MOST_BYTES / 32;
/// Longest result that is kept, in bytes.
const MOST_RESULT_BYTES: usize = 1 << 20;
/// Bytes of results that are handed over at a time.
const MOST_RESULTS_BYTES: usize = channel::MOST_BYTES / 2;
/// The deadline of a look-up grows by this for each row, ten times what that takes: containers may keep all processors busy.
const ROW_TIMEOUT: Duration = Duration::from_micros(5);

/// No look-up is waited for longer: nothing interrupts the wait.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How an exchange uses the store of results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheUse {
    /// The store's socket.
    pub socket: PathBuf,
    /// Older results are not taken. Results of servers elsewhere, of whose versions nothing is known, are only taken if this is given.
    pub max_age: Option<Duration>,
    /// Longest wait for a look-up of one row.
    pub timeout: Duration,
    /// Whether results are looked up although calls are cheaper, for tests.
    pub is_forced: bool,
}

impl CacheUse {
    /// Whether results of a function may be kept.
    fn is_for(&self, call: &Call) -> bool {
        let is_versioned = matches!(call.target, Target::Image { .. });
        call.volatility == Volatility::Immutable
            && call.signature.kind == FunctionKind::Scalar
            && (is_versioned || self.max_age.is_some())
    }
}

/// What an exchange has looked up, and still waits for.
#[derive(Debug)]
pub(crate) struct Caching {
    session: Arc<Session>,
    usage: CacheUse,
    signature: Signature,
    keys: Keys,
    worth: Worth,
    /// Of the last look-up.
    generation: Option<u64>,
    /// Whether the store was told that calls are cheaper.
    is_given_up: bool,
    /// The number of the next batch that is sent.
    next_number: u64,
    /// The batches that the engine has sent, oldest first.
    planned: VecDeque<Planned>,
}

/// A batch of the engine's.
#[derive(Debug)]
struct Planned {
    number: u64,
    /// None if the batch was sent as it is.
    looked_up: Option<LookedUp>,
    /// Which of the rows that were not found, or of all, each batch that was sent has; oldest first.
    awaited: VecDeque<Range<usize>>,
    /// What came, in the same order.
    replies: Vec<Reply>,
    /// Its bytes.
    bytes: usize,
}

impl Planned {
    fn new(number: u64, looked_up: Option<LookedUp>, awaited: VecDeque<Range<usize>>) -> Planned {
        Planned { number, looked_up, awaited, replies: Vec::new(), bytes: 0 }
    }
}

/// What the store had of a batch.
#[derive(Debug)]
struct LookedUp {
    names: Vec<RowName>,
    generation: u64,
    /// The results that it had.
    found: ArrayRef,
    /// For each row its place among them.
    places: Vec<Option<u32>>,
    /// The other rows.
    missing: Vec<u32>,
}

impl Caching {
    /// For an exchange of a function; none if its results may not be kept.
    pub(crate) fn new(session: Arc<Session>, usage: CacheUse, call: &Call) -> Option<Caching> {
        if !usage.is_for(call) {
            return None;
        }
        let keys = Keys::new(&call.target, &call.signature);
        let worth = session.worth_of(&keys.namespace);
        let (signature, planned) = (call.signature.clone(), VecDeque::new());
        let (generation, is_given_up, next_number) = Default::default();
        Some(Caching { session, usage, signature, keys, worth, generation, is_given_up, next_number, planned })
    }

    /// What is to be sent of a batch: all of it, or the rows whose results the store does not have, in one batch or several.
    /// The results of all may have `most` bytes.
    pub(crate) fn plan(&mut self, outgoing: Outgoing, most: usize) -> Vec<Outgoing> {
        let rows = outgoing.columns.num_rows();
        let looked_up = self.look_up(&outgoing.batch, most);
        let count = looked_up.as_ref().map_or(rows, |looked_up| looked_up.missing.len());
        let most_calls = if looked_up.is_some() { self.worth.most_calls() } else { usize::MAX };
        let starts = (0..count).step_by(most_calls.min(count.max(1)));
        let mut pieces: VecDeque<Range<usize>> =
            starts.map(|start| start..start.saturating_add(most_calls).min(count)).collect();
        if rows == 0 {
            pieces.push_back(0..0);
        }
        let mut sent: Vec<Outgoing> = Vec::with_capacity(pieces.len());
        let number = outgoing.number;
        for piece in &pieces {
            let mut part = match &looked_up {
                Some(looked_up) if piece.len() < rows => {
                    match part_of(&outgoing.batch, &looked_up.missing[piece.clone()]) {
                        Some(batch) => batch.into(),
                        // Not a batch that can be divided: all of it goes.
                        None => {
                            let mut whole = outgoing.clone();
                            whole.batch.number = self.take_number();
                            let awaited = std::iter::once(0..rows).collect();
                            self.planned.push_back(Planned::new(number, None, awaited));
                            return vec![whole];
                        }
                    }
                }
                _ => outgoing.clone(),
            };
            part.batch.number = self.next_number + sent.len() as u64;
            sent.push(part);
        }
        self.next_number += sent.len() as u64;
        self.planned.push_back(Planned::new(number, looked_up, pieces));
        sent
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// What the store has of a batch; none if it is not asked, or does not answer as it should.
    fn look_up(&mut self, batch: &CallBatch, most: usize) -> Option<LookedUp> {
        let rows = batch.columns.num_rows();
        if !self.usage.is_forced && !self.worth.pays(rows) {
            self.give_up();
            return None;
        }
        if rows == 0 || rows > MOST_ROWS {
            return None;
        }
        let mut start = Instant::now();
        let names = self.keys.of(batch)?;
        let keys = names.iter().map(|name| name.key).collect();
        let timeout =
            (self.usage.timeout + ROW_TIMEOUT * rows as u32).max(self.worth.patience(rows)).min(LONGEST_TIMEOUT);
        let request = Request::LookUp { namespace: self.keys.namespace, max_age: self.usage.max_age, timeout, keys };
        start += self.session.wait_out_rest(timeout);
        let response = self.session.look_up(&self.usage.socket, &request, timeout)?;
        let (looked_up, generation, cost) = match response {
            Response::Found { generation, cost, results } => {
                (LookedUp::read(names, generation, &results, &self.signature.result, most), generation, cost)
            }
            _ => (None, 0, CallCost::default()),
        };
        let Some(looked_up) = looked_up else {
            self.session.distrust();
            return None;
        };
        // Beside calls, and the store that keeps their results, a look-up takes longer than one that spares calls.
        if looked_up.missing.is_empty() || self.planned.is_empty() {
            self.worth.note_look_up(rows, start.elapsed());
        }
        self.worth.note_cost(cost);
        (self.generation, self.is_given_up) = (Some(generation), false);
        Some(looked_up)
    }

    /// Tells the store, once, that calls are cheaper.
    fn give_up(&mut self) {
        if let (false, Some(generation)) = (self.is_given_up, self.generation) {
            self.is_given_up = true;
            let request = session::note(self.keys.namespace, generation, self.worth.cost(), true);
            self.session.insert(&self.usage.socket, &request, None);
            self.session.keep_worth(self.keys.namespace, self.worth);
        }
    }

    /// Whether a reply to a batch that was sent is to be waited for, before the oldest batch of the engine's has all its results.
    pub(crate) fn is_waiting(&self) -> bool {
        self.planned.front().is_none_or(|planned| !planned.awaited.is_empty())
    }

    /// How many batches that were sent must be answered before the oldest of the engine's has all its results.
    pub(crate) fn awaited(&self) -> usize {
        self.planned.front().map_or(1, |planned| planned.awaited.len())
    }

    /// Batches of the engine's whose results it does not have yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.planned.len()
    }

    /// Takes the reply to the oldest batch that was sent, or a part of it, for which the engine waited so long; and has the store
    /// keep its results. Gives it back if it is for the engine as it is. The replies to a batch may have `most` bytes together.
    pub(crate) fn take(&mut self, reply: Reply, waited: Duration, most: usize) -> Result<Option<Reply>> {
        let unasked = || Error::protocol(&self.signature.function, "It answered more than it was asked.");
        let planned = self.planned.front_mut().ok_or_else(unasked)?;
        let piece = planned.awaited.front().ok_or_else(unasked)?.clone();
        if reply.is_last {
            planned.awaited.pop_front();
        }
        let rows = reply.columns.num_rows();
        let calls = rows.saturating_sub(reply.repeated);
        self.worth.note_calls(calls, waited.max(Duration::from_micros(reply.compute_us)));
        let Some(looked_up) = &planned.looked_up else {
            let number = planned.number;
            if reply.is_last {
                self.planned.pop_front();
                self.session.keep_worth(self.keys.namespace, self.worth);
            }
            return Ok(Some(Reply { number, ..reply }));
        };
        planned.bytes = planned.bytes.saturating_add(bytes_of(&reply.columns));
        if planned.bytes > most.min(MAX_MESSAGE_BYTES) {
            return Err(Error::reply_too_large(&self.signature.function, most));
        }
        let (keys, results) = looked_up.results_to_keep(&self.signature, &piece, &reply.columns);
        if !keys.is_empty() {
            let request = Request::Insert {
                namespace: self.keys.namespace,
                generation: looked_up.generation,
                cost: self.worth.cost(),
                is_too_cheap: self.is_given_up,
                keys,
                results,
            };
            let waits = self.usage.is_forced.then_some(self.usage.timeout);
            self.session.insert(&self.usage.socket, &request, waits);
        }
        // An answer may end with a part that has no rows.
        if rows > 0 {
            planned.replies.push(reply);
        }
        Ok(None)
    }

    /// The reply to the oldest batch of the engine's, which may have `most` bytes.
    pub(crate) fn assemble(&mut self, most: usize) -> Result<Reply> {
        let function = &self.signature.function;
        let lost = || Error::protocol(function, "Its replies do not fit each other.");
        let Planned { number, looked_up, mut replies, .. } = self.planned.pop_front().ok_or_else(lost)?;
        self.session.keep_worth(self.keys.namespace, self.worth);
        let looked_up = looked_up.ok_or_else(lost)?;
        let answered: usize = replies.iter().map(|reply| reply.columns.num_rows()).sum();
        if answered != looked_up.missing.len() {
            return Err(lost());
        }
        if looked_up.found.is_empty() && replies.len() == 1 {
            let reply = replies.pop().ok_or_else(lost)?;
            return Ok(Reply { number, is_last: true, ..reply });
        }
        let columns = looked_up.assemble(&self.signature, &replies, most.min(MAX_MESSAGE_BYTES))?;
        let sum = |part: fn(&Reply) -> usize| replies.iter().map(part).fold(0, usize::saturating_add);
        Ok(Reply {
            bytes_needed: sum(|reply| reply.bytes_needed).saturating_add(bytes_of(&columns)),
            compute_us: replies.iter().map(|reply| reply.compute_us).fold(0, u64::saturating_add),
            repeated: sum(|reply| reply.repeated),
            cached: looked_up.found.len(),
            ..Reply::whole(number, columns, sum(|reply| reply.bytes_sent), sum(|reply| reply.bytes_received))
        })
    }

    /// An error whose row is one of the batch that the engine sent.
    pub(crate) fn place(&self, error: Error) -> Error {
        let Some(planned) = self.planned.front() else { return error };
        let (Some(looked_up), Some(piece)) = (&planned.looked_up, planned.awaited.front()) else { return error };
        let row = error.row().and_then(|row| usize::try_from(row).ok()).and_then(|row| row.checked_add(piece.start));
        match row.and_then(|row| looked_up.missing.get(row)) {
            Some(row) => error.with_row(u64::from(*row)),
            None => error,
        }
    }
}

/// Some rows of a batch; none if it cannot be divided.
fn part_of(batch: &CallBatch, rows: &[u32]) -> Option<CallBatch> {
    let columns = if batch.columns.num_columns() == 0 {
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(batch.columns.schema(), Vec::new(), &options)
    } else {
        take_record_batch(&batch.columns, &UInt32Array::from(rows.to_vec()))
    };
    Some(CallBatch { columns: columns.ok()?, ..batch.clone() })
}

impl LookedUp {
    /// Reads what the store had, if it is what was asked for, and no more than `most` bytes.
    fn read(names: Vec<RowName>, generation: u64, results: &Results, ty: &Type, most: usize) -> Option<LookedUp> {
        let mut decoder = Decoder::new(&ty.data_type(), most)?;
        if results.len() != names.len() || !decoder.has_room(names.len()) {
            return None;
        }
        let (mut places, mut missing, mut found) = (Vec::with_capacity(names.len()), Vec::new(), 0);
        for ((row, result), name) in (0_u32..).zip(results.iter()).zip(&names) {
            match result {
                Some(result) => {
                    // A result of another row is none of this one.
                    decoder.decode(result.strip_prefix(&name.tag)?)?;
                    places.push(Some(found));
                    found += 1;
                }
                None => {
                    places.push(None);
                    missing.push(row);
                }
            }
        }
        Some(LookedUp { names, generation, found: decoder.finish()?, places, missing })
    }

    /// What of a reply is kept: no errors, and nothing that is very long.
    fn results_to_keep(
        &self,
        signature: &Signature,
        piece: &Range<usize>,
        columns: &RecordBatch,
    ) -> (Vec<Key>, Results) {
        let (mut keys, mut results) = (Vec::with_capacity(piece.len()), Results::default());
        let Some(encoder) = columns.columns().first().and_then(Encoder::new) else { return (keys, results) };
        let errors = signature.row_errors.and_then(|_| columns.columns().get(1));
        if columns.num_rows() != piece.len() {
            return (keys, results);
        }
        let mut value = Vec::new();
        let mut kept = HashSet::new();
        for (row, missing) in self.missing[piece.clone()].iter().enumerate() {
            if errors.is_some_and(|errors| errors.is_valid(row)) {
                continue;
            }
            let name = &self.names[*missing as usize];
            if !kept.insert(name.key) {
                continue;
            }
            value.clear();
            value.extend::<Tag>(name.tag);
            encoder.encode(row, &mut value);
            if results.bytes() + value.len() > MOST_RESULTS_BYTES {
                break;
            }
            if value.len() <= MOST_RESULT_BYTES {
                keys.push(name.key);
                results.push(Some(&value));
            }
        }
        (keys, results)
    }

    /// The results of all rows.
    fn assemble(&self, signature: &Signature, replies: &[Reply], most: usize) -> Result<RecordBatch> {
        let function = &signature.function;
        let unfit = |cause: &dyn std::fmt::Display| {
            Error::protocol(function, format!("Its replies do not fit each other: {cause}."))
        };
        let mut field = signature.result.field(function);
        let mut values = vec![self.found.clone()];
        for reply in replies {
            values.push(reply.columns.columns().first().ok_or_else(|| unfit(&"one has no column"))?.clone());
        }
        // Texts that were encoded stay so: spelled out, they could be any number of times as long.
        let is_encoded = values.iter().any(|column| matches!(column.data_type(), DataType::Dictionary(..)));
        if !is_encoded {
            for column in &mut values {
                *column = as_type(column, field.data_type(), most).ok_or_else(|| unfit(&"one is of another type"))?;
            }
        }
        let mut errors = Vec::new();
        if signature.row_errors.is_some() {
            errors.push(new_null_array(&DataType::Utf8, self.found.len()));
            for reply in replies {
                errors.push(reply.columns.columns().get(1).ok_or_else(|| unfit(&"one has no errors"))?.clone());
            }
        }
        let bytes = values.iter().chain(&errors).map(bytes_of_column).fold(0, usize::saturating_add);
        if bytes > most {
            return Err(Error::reply_too_large(function, most));
        }
        let mut answered = (1..values.len()).flat_map(|reply| (0..values[reply].len()).map(move |row| (reply, row)));
        let mut next = |place: &Option<u32>| match place {
            Some(place) => Some((0, *place as usize)),
            None => answered.next(),
        };
        let places: Option<Vec<(usize, usize)>> = self.places.iter().map(&mut next).collect();
        let places = places.ok_or_else(|| unfit(&"they have too few rows"))?;
        let in_order = |columns: &[ArrayRef]| match columns {
            [found] => Ok(found.clone()),
            columns => {
                let columns: Vec<&dyn Array> = columns.iter().map(AsRef::as_ref).collect();
                interleave(&columns, &places).map_err(|cause| unfit(&cause))
            }
        };
        let results = match is_encoded {
            true => encoded(&values, &places).ok_or_else(|| unfit(&"one is of another type"))?,
            false => in_order(&values)?,
        };
        if is_encoded {
            field.set_data_type(results.data_type().clone());
        }
        let (mut fields, mut columns) = (vec![field], vec![results]);
        if !errors.is_empty() {
            fields.push(Type::Text.field("error"));
            columns.push(in_order(&errors)?);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|cause| unfit(&cause))
    }
}

/// Rows of columns of texts, some of which are dictionaries, as one dictionary; none if a column is neither. A place is a column and a row.
fn encoded(columns: &[ArrayRef], places: &[(usize, usize)]) -> Option<ArrayRef> {
    let (mut texts, mut starts, mut end) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()), 0);
    for column in columns {
        let values = match column.as_dictionary_opt::<Int32Type>() {
            Some(dictionary) => dictionary.values(),
            None => column,
        };
        starts.push(end);
        end += values.as_string_opt::<i32>()?.len();
        texts.push(values.as_ref());
    }
    let texts = concat(&texts).ok()?;
    let indexes: Option<Vec<Option<i32>>> = places
        .iter()
        .map(|(column, row)| {
            let place = match columns[*column].as_dictionary_opt::<Int32Type>() {
                Some(dictionary) => dictionary.key(*row),
                None => columns[*column].is_valid(*row).then_some(*row),
            };
            place.map(|place| i32::try_from(starts[*column] + place).ok()).map_or(Some(None), |index| index.map(Some))
        })
        .collect();
    Some(Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from(indexes?), texts).ok()?))
}

/// A column of results, of `most` bytes, as one of the type by which it is declared: attributes have other names.
fn as_type(column: &ArrayRef, data_type: &DataType, most: usize) -> Option<ArrayRef> {
    if column.data_type() == data_type {
        return Some(column.clone());
    }
    let (encoder, mut decoder) = (Encoder::new(column)?, Decoder::new(data_type, most)?);
    let mut value = Vec::new();
    for row in 0..column.len() {
        value.clear();
        encoder.encode(row, &mut value);
        decoder.decode(&value)?;
    }
    decoder.finish()
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};
    use udf_types::Kind;
    use udf_types::signature::Argument;
    use udf_types::transport_name::TransportName;

    use super::*;

    #[test]
    fn the_parts_of_a_batch_are_bounded_together() {
        let signature = Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8);
        let target = Target::Image { manager: "/nowhere/m".into(), digest: "sha256:00".into() };
        let (transport, volatility, timeout) = (TransportName::Auto, Volatility::Immutable, Duration::from_secs(1));
        let call = Call {
            target,
            transport,
            signature,
            volatility,
            batch_timeout: timeout,
            start_timeout: timeout,
            tables: Vec::new(),
        };
        let usage = CacheUse { socket: "/nowhere/m.cache".into(), max_age: None, timeout, is_forced: true };
        let mut caching = Caching::new(Arc::default(), usage, &call).unwrap();

        let names = (0..300_u128).map(|row| RowName { key: row.to_le_bytes(), tag: Tag::default() }).collect();
        let found: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
        let looked_up = LookedUp { names, generation: 0, found, places: vec![None; 300], missing: (0..300).collect() };
        let parts = [0..128, 128..256, 256..300];
        caching.planned.push_back(Planned::new(0, Some(looked_up), parts.into()));
        let mut take = || {
            let values: ArrayRef = Arc::new(Int64Array::from(vec![7; 128]));
            let columns = RecordBatch::try_from_iter([("f", values)]).unwrap();
            caching.take(Reply::whole(0, columns, 0, 0), Duration::ZERO, 1900)
        };
        assert!(take().unwrap().is_none());
        let error = take().unwrap_err();
        assert!(error.kind() == Kind::OutOfMemory && error.message().contains("too large"), "{error}");
    }

    #[test]
    fn encoded_texts_stay_encoded_beside_those_that_were_kept() {
        let found: ArrayRef = Arc::new(StringArray::from(vec!["kept"]));
        let long = "x".repeat(1 << 20);
        let dictionary: DictionaryArray<Int32Type> =
            [Some(long.as_str()), None, Some("y"), Some(&long)].into_iter().collect();
        let columns = [found, Arc::new(dictionary) as ArrayRef, Arc::new(StringArray::from(vec![None, Some("z")]))];
        let mut places = vec![(1, 3), (0, 0), (2, 0), (1, 2), (2, 1), (1, 1)];
        places.extend(std::iter::repeat_n((1, 0), 10_000));
        let results = encoded(&columns, &places).unwrap();
        assert!(bytes_of_column(&results) < 2 << 20);
        let texts = results.as_dictionary::<Int32Type>().downcast_dict::<StringArray>().unwrap();
        let texts: Vec<Option<&str>> = texts.into_iter().collect();
        assert_eq!(texts[..6], [Some(long.as_str()), Some("kept"), None, Some("y"), Some("z"), None]);
        assert!(texts[6..].iter().all(|text| *text == Some(long.as_str())) && texts.len() == 10_006);
        assert!(encoded(&[Arc::new(Int32Array::from(vec![1]))], &[(0, 0)]).is_none());
    }
}
