//! Equal rows of a batch, sent once: where a function gives equal arguments equal results (it is not VOLATILE), and a look
//! at some rows says that it pays.
//!
//! In: a batch of calls. Out: the batch of its distinct rows, each in the place of its first; and back, the results of those
//! for all rows. Rows are equal if their values are the same to the bit: 0.0 is not -0.0.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, RecordBatch, RecordBatchOptions, StringArray, UInt32Array};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::take::{take, take_record_batch};

use udf_codec::batch::CallBatch;
use udf_codec::unreadable::Unreadable;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::row_texts::RowTexts;
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::types::Type;

/// Rows that are looked at, in a row and again spread over the batch: equal rows may come together or far apart.
const SAMPLE_ROWS: usize = 256;
/// Bytes of values that such a look may copy, roughly.
const SAMPLE_BYTES: usize = 256 << 10;
/// Share of equal rows below which nothing is gained.
const LEAST_SHARE: f64 = 0.1;
/// Share of equal rows that is enough before it is known how long a call takes.
const CERTAIN_SHARE: f64 = 0.5;
/// What finding the distinct rows takes, in microseconds per row, and more for each column.
const ROW_US: f64 = 0.05;
const VALUE_US: f64 = 0.012;
/// Batches that are not looked at after one that had too few equal rows.
const REST: u32 = 7;
/// So many calls at a time tell what one takes; with fewer, the server's work per batch hides it.
const SURE_ROWS: usize = 4096;
/// Longest that calls may take which are sent although equal ones are, to learn what a call takes, in microseconds.
const LEARNING_US: f64 = 10_000.0;

/// Which of the distinct rows each row of a batch is.
#[derive(Debug)]
pub(crate) struct Folded {
    places: UInt32Array,
    /// For each distinct row, where it first was.
    firsts: UInt32Array,
    /// Whether texts may be given as a dictionary of the distinct rows' results.
    takes_dictionaries: bool,
}

impl Folded {
    /// The results of the distinct rows as those of all rows, which may have `most` bytes of text. The second column may be the
    /// errors of rows. The error says what is wrong.
    pub(crate) fn unfold(
        &self,
        results: &RecordBatch,
        has_errors: bool,
        most: usize,
    ) -> Result<RecordBatch, Unreadable> {
        if results.num_rows() != self.firsts.len() {
            return Err(format!("It gave {} results for {} rows.", results.num_rows(), self.firsts.len()).into());
        }
        if self.takes_dictionaries
            && let Some(encoded) = self.encode(results)
        {
            return Ok(encoded);
        }
        let (values, errors) = results.columns().split_at(results.num_columns() - usize::from(has_errors));
        let errors: Vec<_> = errors.iter().map(|column| self.errors_of(column)).collect();
        let bytes: usize = values.iter().map(|column| self.bytes_of(column)).sum();
        let bytes = errors.iter().flatten().flatten().map(|error| error.len()).fold(bytes, usize::saturating_add);
        // Offsets of 32 bits reach no further than the largest message.
        if bytes > most.min(MAX_MESSAGE_BYTES) {
            return Err(Unreadable::TooLarge);
        }
        let values = values.iter().map(|column| take(column, &self.places, None));
        let errors = errors.into_iter().map(|errors| Ok(Arc::new(StringArray::from(errors)) as ArrayRef));
        let columns = values.chain(errors).collect::<Result<Vec<_>, _>>();
        let all = columns.and_then(|columns| RecordBatch::try_new(results.schema(), columns));
        all.map_err(|cause| format!("{cause}.").into())
    }

    /// What is told of the errors of all rows: a batch in which many rows have the same one says no more than any other.
    fn errors_of<'e>(&self, errors: &'e ArrayRef) -> Vec<Option<&'e str>> {
        let (errors, mut texts) = (errors.as_string::<i32>(), RowTexts::new());
        let places = self.places.values().iter().map(|place| *place as usize);
        places.map(|place| errors.is_valid(place).then(|| texts.cut(errors.value(place)))).collect()
    }

    /// The results as a dictionary, if they are one column of texts.
    fn encode(&self, results: &RecordBatch) -> Option<RecordBatch> {
        let ([column], [field]) = (results.columns(), results.schema_ref().fields().as_ref()) else { return None };
        // A dictionary of the container's has its own places.
        column.as_string_opt::<i32>()?;
        let places = self.places.values().iter().map(|place| i32::try_from(*place).ok()).collect::<Option<Vec<_>>>()?;
        let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(places.into(), column.clone()).ok()?);
        let field = field.as_ref().clone().with_data_type(array.data_type().clone());
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).ok()
    }

    /// Bytes of the texts that all rows get.
    fn bytes_of(&self, column: &ArrayRef) -> usize {
        let offsets = match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().offsets(),
            DataType::Binary => column.as_binary::<i32>().offsets(),
            _ => return 0,
        };
        let length = |place: &u32| {
            let ends = offsets.get(*place as usize..*place as usize + 2);
            ends.map_or(0, |ends| (ends[1] - ends[0]).unsigned_abs() as usize)
        };
        self.places.values().iter().map(length).sum()
    }

    /// Where a distinct row first was in the batch.
    pub(crate) fn first(&self, row: u64) -> Option<u64> {
        usize::try_from(row).ok().and_then(|row| self.firsts.values().get(row)).map(|row| u64::from(*row))
    }
}

/// Decides for an exchange, batch by batch, whether to send only the distinct rows.
#[derive(Debug, Default)]
pub(crate) struct Folding {
    /// How long a call takes, in microseconds, as far as it is known.
    call_us: f64,
    /// Rows of the batch by which it is known; 0 if it is not.
    known_by: usize,
    /// Batches that are not looked at.
    resting: u32,
}

impl Folding {
    /// Whether equal calls of a function may be sent once. Results of nested types are not repeated: how large they would be is
    /// not easily known.
    pub(crate) fn is_for(signature: &Signature, volatility: Volatility) -> bool {
        let is_nested = matches!(signature.result, Type::Array(_) | Type::Range(_) | Type::Composite(_));
        signature.kind == FunctionKind::Scalar && volatility != Volatility::Volatile && !is_nested
    }

    /// A batch of so many distinct rows took that long.
    #[expect(clippy::cast_precision_loss, reason = "a time per row need not be exact")]
    pub(crate) fn note(&mut self, rows: usize, us: u64) {
        if rows > 0 && us > 0 && rows >= self.known_by.min(SURE_ROWS) {
            (self.call_us, self.known_by) = (us as f64 / rows as f64, rows);
        }
    }

    /// The distinct rows of a batch, if sending only them pays.
    pub(crate) fn fold(&mut self, calls: &CallBatch) -> Option<(RecordBatch, Folded)> {
        let batch = &calls.columns;
        let rows = batch.num_rows();
        // A row's place is of 32 bits.
        if rows < 2 || u32::try_from(rows).is_err() {
            return None;
        }
        if batch.num_columns() == 0 {
            let places = UInt32Array::from_value(0, rows);
            let options = RecordBatchOptions::new().with_row_count(Some(1));
            let one = RecordBatch::try_new_with_options(batch.schema(), Vec::new(), &options).ok()?;
            let firsts = UInt32Array::from_value(0, 1);
            return Some((one, Folded { places, firsts, takes_dictionaries: calls.takes_dictionaries }));
        }
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        let converter = converter_of(&batch.schema())?;
        let share = share_of_equals(&converter, batch)?;
        if share < LEAST_SHARE {
            self.resting = REST;
        }
        let whole = self.rows_to_learn_by();
        if whole >= rows || !self.pays(share, batch.num_columns()) {
            return None;
        }
        let (places, firsts) = places_of(&rows_of(&converter, batch.columns())?, whole);
        let firsts = UInt32Array::from(firsts);
        let distinct = take_record_batch(batch, &firsts).ok()?;
        let places = UInt32Array::from(places);
        Some((distinct, Folded { places, firsts, takes_dictionaries: calls.takes_dictionaries }))
    }

    /// How many of a batch's first rows are sent in any case, so that it is known better what a call takes.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of rows, rounded down")]
    fn rows_to_learn_by(&self) -> usize {
        let is_known_badly = (1..SURE_ROWS).contains(&self.known_by);
        if is_known_badly { (LEARNING_US / self.call_us) as usize } else { 0 }
    }

    /// Whether it pays to find the distinct rows of a batch, a `share` of which equal others.
    #[expect(clippy::cast_precision_loss, reason = "columns are few")]
    fn pays(&self, share: f64, columns: usize) -> bool {
        if self.known_by == 0 {
            return share >= CERTAIN_SHARE;
        }
        let price_us = ROW_US + VALUE_US * columns as f64;
        share >= LEAST_SHARE && share * self.call_us > price_us
    }
}

fn converter_of(schema: &SchemaRef) -> Option<RowConverter> {
    let fields: Vec<SortField> =
        schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    // What cannot be compared is sent as it is.
    RowConverter::new(fields).ok()
}

fn rows_of(converter: &RowConverter, columns: &[ArrayRef]) -> Option<Rows> {
    converter.convert_columns(columns).ok()
}

/// The share of rows that equal an earlier one: in a run from the middle, or spread over the batch, whichever is more.
fn share_of_equals(converter: &RowConverter, batch: &RecordBatch) -> Option<f64> {
    let rows = batch.num_rows();
    let row_bytes = batch.get_array_memory_size() / rows;
    let count = SAMPLE_ROWS.min(SAMPLE_BYTES / row_bytes.max(1)).clamp(2, rows);
    let run = batch.slice((rows - count) / 2, count);
    let mut share = share_in(&rows_of(converter, run.columns())?);
    if count < rows {
        let spread = spread_places(rows, count);
        let columns: Result<Vec<ArrayRef>, _> =
            batch.columns().iter().map(|column| take(column, &spread, None)).collect();
        share = share.max(share_in(&rows_of(converter, &columns.ok()?)?));
    }
    Some(share)
}

/// One row of each of `count` equal parts. Where in its part changes from part to part, so that no period is met.
#[expect(clippy::cast_possible_truncation, reason = "a batch has fewer than 2^32 rows")]
fn spread_places(rows: usize, count: usize) -> UInt32Array {
    let place = |part: usize| {
        let (start, end) = (part * rows / count, (part + 1) * rows / count);
        // A step of the generator splitmix64 (Steele, Lea and Flood, 2014).
        let mut jitter = (part as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        jitter = (jitter ^ (jitter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        jitter = (jitter ^ (jitter >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (start + ((jitter ^ (jitter >> 31)) % (end - start) as u64) as usize) as u32
    };
    (0..count).map(place).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a sample is small")]
fn share_in(rows: &Rows) -> f64 {
    let (places, firsts) = places_of(rows, 0);
    1.0 - firsts.len() as f64 / places.len() as f64
}

/// For each row the number of the row that is sent for it, and for each of those its first row. The first `whole` rows are
/// sent themselves.
#[expect(clippy::cast_possible_truncation, reason = "a batch has fewer than 2^32 rows")]
fn places_of(rows: &Rows, whole: usize) -> (Vec<u32>, Vec<u32>) {
    let mut known = HashMap::with_capacity(rows.num_rows());
    let mut places = Vec::with_capacity(rows.num_rows());
    let mut firsts = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let next = firsts.len() as u32;
        let place = match known.entry(row) {
            Entry::Occupied(place) if number >= whole => *place.get(),
            Entry::Occupied(_) => next,
            Entry::Vacant(free) => *free.insert(next),
        };
        if place == next {
            firsts.push(number as u32);
        }
        places.push(place);
    }
    (places, firsts)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Float64Type, UInt32Type};
    use arrow_array::{Float64Array, Int64Array};
    use proptest::prelude::*;

    use super::*;

    fn unknown() -> Folding {
        Folding::default()
    }

    fn taking(call_us: f64) -> Folding {
        Folding { call_us, known_by: SURE_ROWS, resting: 0 }
    }

    fn batch(columns: Vec<ArrayRef>) -> CallBatch {
        let columns = columns.into_iter().map(|column| ("x", column, true));
        CallBatch::new(0, RecordBatch::try_from_iter_with_nullable(columns).unwrap())
    }

    #[test]
    fn the_first_of_equal_rows_is_kept() {
        let numbers = Int64Array::from(vec![Some(7), None, Some(7), None, Some(7), Some(7)]);
        let texts = StringArray::from(vec![Some("a"), None, Some("a"), None, Some("b"), Some("a")]);
        let (distinct, folded) = unknown().fold(&batch(vec![Arc::new(numbers), Arc::new(texts)])).unwrap();
        assert_eq!(distinct.column(1).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("a"), None, Some("b")]);
        assert_eq!([0, 1, 2, 3].map(|row| folded.first(row)), [Some(0), Some(1), Some(4), None]);
        let results = batch(vec![Arc::new(UInt32Array::from(vec![10, 20, 30]))]);
        let all = folded.unfold(&results.columns, false, usize::MAX).unwrap();
        assert_eq!(all.column(0).as_primitive::<UInt32Type>().values(), &[10, 20, 10, 20, 30, 10]);
    }

    #[test]
    fn values_are_the_same_to_the_bit() {
        let values = vec![0.0, -0.0, f64::NAN, -f64::NAN, 0.0, -0.0, f64::NAN, -f64::NAN];
        let (distinct, _) = unknown().fold(&batch(vec![Arc::new(Float64Array::from(values.clone()))])).unwrap();
        let bits: Vec<u64> =
            distinct.column(0).as_primitive::<Float64Type>().values().iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, values[..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    }

    #[test]
    fn it_must_pay() {
        let numbers = |modulus: i64| batch(vec![Arc::new((0..8192).map(|i| i % modulus).collect::<Int64Array>())]);
        assert!(taking(1e6).fold(&numbers(8192)).is_none());
        // Equal rows come together, or far apart.
        let runs = batch(vec![Arc::new((0..8192).map(|i| i / 4).collect::<Int64Array>())]);
        assert_eq!(unknown().fold(&runs).unwrap().0.num_rows(), 2048);
        assert_eq!(unknown().fold(&numbers(10)).unwrap().0.num_rows(), 10);
        // A cheap function is quicker called than its rows compared; a dear one is worth more.
        assert!(taking(0.01).fold(&numbers(10)).is_none() && taking(5.0).fold(&numbers(10)).is_some());
        assert!(unknown().fold(&numbers(400)).is_none() && taking(50.0).fold(&numbers(400)).is_some());
    }

    #[test]
    fn what_a_call_takes_is_learnt_by_and_by() {
        let equal = |rows: usize| batch(vec![Arc::new(Int64Array::from_value(1, rows))]);
        let mut folding = unknown();
        assert_eq!(folding.fold(&equal(128)).unwrap().0.num_rows(), 1);
        // One row that took 50 us: most of it may be the server's. So more than one are sent, for 10 ms at most.
        folding.note(1, 50);
        assert!(folding.fold(&equal(128)).is_none());
        let (sent, folded) = folding.fold(&equal(10_000)).unwrap();
        assert_eq!((sent.num_rows(), folded.places.value(199), folded.places.value(200)), (200, 199, 0));
        // A cheap function: now all are sent.
        folding.note(200, 52);
        assert!(folding.fold(&equal(10_000)).is_none());
        folding.note(10_000, 80);
        assert!(folding.fold(&equal(10_000)).is_none());
        // Few rows do not tell it better. A dear one is not learnt of again.
        folding.note(1, 50);
        assert!(folding.fold(&equal(10_000)).is_none());
        folding.note(4096, 40_960);
        assert_eq!(folding.fold(&equal(10_000)).unwrap().0.num_rows(), 1);
    }

    #[test]
    fn batches_of_distinct_rows_are_looked_at_now_and_then() {
        let distinct = batch(vec![Arc::new((0..100).collect::<Int64Array>())]);
        let equal = batch(vec![Arc::new(Int64Array::from_value(1, 100))]);
        let mut folding = unknown();
        assert!(folding.fold(&distinct).is_none());
        let looks: Vec<bool> = (0..9).map(|_| folding.fold(&equal).is_some()).collect();
        assert_eq!(looks, [false, false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn results_that_would_be_too_large_are_refused() {
        let (_, folded) = unknown().fold(&batch(vec![Arc::new(Int64Array::from_value(1, 100))])).unwrap();
        let results = batch(vec![Arc::new(StringArray::from(vec!["x".repeat(MAX_MESSAGE_BYTES / 90)]))]);
        assert!(folded.unfold(&results.columns, false, usize::MAX).unwrap_err() == Unreadable::TooLarge);
        // As a dictionary they are no larger than what came.
        let folded = Folded { takes_dictionaries: true, ..folded };
        assert_eq!(folded.unfold(&results.columns, false, usize::MAX).unwrap().num_rows(), 100);
    }

    #[test]
    fn errors_of_equal_rows_are_bounded_like_those_of_others() {
        let numbers = (0..100_000).map(|i| Some(i64::from(i % 2))).collect::<Int64Array>();
        let (_, folded) = unknown().fold(&batch(vec![Arc::new(numbers)])).unwrap();
        let long = "\u{10400}".repeat(4096);
        let errors = StringArray::from(vec![None, Some(long.as_str())]);
        let results = batch(vec![Arc::new(Int64Array::from(vec![Some(7), None])), Arc::new(errors)]);
        let all = folded.unfold(&results.columns, true, 64 << 20).unwrap();
        assert_eq!((all.num_rows(), all.column(0).null_count(), all.column(1).null_count()), (100_000, 50_000, 50_000));
        let characters = |row| all.column(1).as_string::<i32>().value(row).chars().count();
        assert_eq!([1, 511, 513, 99_999].map(characters), [4096, 4096, 256, 256]);
        assert!(folded.unfold(&results.columns, true, 32 << 20).unwrap_err() == Unreadable::TooLarge);
    }

    #[test]
    fn texts_are_given_as_a_dictionary_where_that_is_taken() {
        let calls = batch(vec![Arc::new(Int64Array::from(vec![7, 8, 7, 9, 8, 7]))]);
        let calls = CallBatch { takes_dictionaries: true, ..calls };
        let (_, folded) = taking(1e6).fold(&calls).unwrap();
        let expected = [Some("a"), None, Some("a"), Some("b"), None, Some("a")];
        let texts = batch(vec![Arc::new(StringArray::from(vec![Some("a"), None, Some("b")]))]);
        let encoded = batch(vec![Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("a"), None, Some("b")]))]);
        for results in [texts, encoded] {
            let all = folded.unfold(&results.columns, false, usize::MAX).unwrap();
            let all = all.column(0).as_dictionary::<Int32Type>().downcast_dict::<StringArray>().unwrap();
            assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
        }
        let numbers = batch(vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]);
        assert_eq!(folded.unfold(&numbers.columns, false, usize::MAX).unwrap().schema(), numbers.columns.schema());
    }

    #[test]
    fn without_arguments_all_rows_are_equal() {
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let schema = Arc::new(arrow_schema::Schema::empty());
        let (one, folded) = unknown()
            .fold(&CallBatch::new(0, RecordBatch::try_new_with_options(schema, vec![], &options).unwrap()))
            .unwrap();
        assert_eq!((one.num_rows(), folded.places.values().as_ref(), folded.first(0)), (1, &[0, 0, 0][..], Some(0)));
    }

    proptest! {
        #[test]
        fn what_is_folded_unfolds(values in prop::collection::vec((prop::option::of(0..4i64), "[ab]{0,2}"), 2..400)) {
            let numbers: Int64Array = values.iter().map(|value| value.0).collect();
            let texts: StringArray = values.iter().map(|value| Some(value.1.as_str())).collect();
            let all = batch(vec![Arc::new(numbers), Arc::new(texts)]);
            if let Some((distinct, folded)) = taking(1e6).fold(&all) {
                prop_assert!(distinct.num_rows() < all.columns.num_rows());
                prop_assert_eq!(folded.unfold(&distinct, false, usize::MAX).unwrap(), all.columns);
            }
        }
    }
}
