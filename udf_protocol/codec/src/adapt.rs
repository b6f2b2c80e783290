//! Columns of one Arrow type as another that holds the same values: what foreign servers of the Flight family use for the
//! types of `docs/types.md` (`docs/dialects.md`).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;

use crate::json::is_to_micros;
use crate::unreadable::Unreadable;

/// Refuses types none of whose values [`adapt`] would take, or of which a few bytes may stand for any number of values.
pub fn check_type(found: &DataType, wanted: &DataType) -> Result<(), String> {
    use DataType::{Dictionary, FixedSizeBinary, FixedSizeList, LargeList, List, Map, RunEndEncoded, Struct, Union};
    match (found, wanted) {
        (Struct(parts), Struct(fields)) if parts.len() != fields.len() => {
            Err(format!("It has {} attributes, not {}.", parts.len(), fields.len()))
        }
        (Struct(parts), Struct(fields)) => {
            parts.iter().zip(fields).try_for_each(|(part, field)| check_type(part.data_type(), field.data_type()))
        }
        (List(item) | LargeList(item), List(element)) => check_type(item.data_type(), element.data_type()),
        (FixedSizeList(item, size), List(element)) if *size > 0 => check_type(item.data_type(), element.data_type()),
        (Dictionary(..) | RunEndEncoded(..) | Union(..) | Map(..) | FixedSizeBinary(..=0), _) => {
            Err(format!("Values of {found} are not taken."))
        }
        _ if found.is_nested() || wanted.is_nested() || is_of_other_kind(found, wanted) => {
            Err(format!("Values of {found} do not fit {wanted}."))
        }
        _ => Ok(()),
    }
}

/// Whether casts take the one for the other though they are of different kinds: a number's bytes, and a number of units that nobody names.
fn is_of_other_kind(found: &DataType, wanted: &DataType) -> bool {
    (found.is_temporal() && wanted.is_numeric())
        || (found.is_numeric() && wanted.is_temporal())
        || (found.is_integer() && *wanted == DataType::Binary)
}

/// As [`adapt`], of a column that nobody has checked, into at most `most` bytes.
pub fn adapt_within(column: &ArrayRef, wanted: &DataType, most: usize) -> Result<ArrayRef, Unreadable> {
    check_type(column.data_type(), wanted)?;
    if adapted_bytes(column, wanted) > most {
        return Err(Unreadable::TooLarge);
    }
    Ok(adapt(column, wanted)?)
}

/// Longest text of a value of fixed width, in bytes: an interval. No decimal of 256 bits without a scale has more.
const MAX_TEXT_BYTES: usize = 96;

/// Bytes that a column takes as `wanted`, at most.
fn adapted_bytes(column: &ArrayRef, wanted: &DataType) -> usize {
    use DataType::{Binary, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8};
    let found = column.data_type();
    if found == wanted {
        return 0;
    }
    let offsets = column.len().saturating_add(1).saturating_mul(8);
    let bytes = match (found, wanted) {
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let parts = column.as_struct().columns().iter().zip(fields);
            parts.map(|(part, field)| adapted_bytes(part, field.data_type())).fold(0, usize::saturating_add)
        }
        (DataType::List(_), DataType::List(field)) => {
            adapted_bytes(column.as_list::<i32>().values(), field.data_type())
        }
        (DataType::LargeList(_), DataType::List(field)) => {
            adapted_bytes(column.as_list::<i64>().values(), field.data_type())
        }
        (DataType::FixedSizeList(..), DataType::List(field)) => {
            adapted_bytes(column.as_fixed_size_list().values(), field.data_type())
        }
        (DataType::Utf8View, _) => viewed_bytes(column.as_string_view().views()),
        (DataType::BinaryView, _) => viewed_bytes(column.as_binary_view().views()),
        (Utf8 | LargeUtf8 | Binary | LargeBinary | FixedSizeBinary(_), wanted) => {
            let width = wanted.primitive_width().unwrap_or_default();
            let there = column.to_data().get_slice_memory_size().unwrap_or(usize::MAX);
            there.saturating_add(column.len().saturating_mul(width))
        }
        _ => column.len().saturating_mul(wanted.primitive_width().unwrap_or(MAX_TEXT_BYTES + zeros_of(found))),
    };
    bytes.saturating_add(offsets)
}

/// Zeros that a decimal of this type may be written with, for its scale.
fn zeros_of(found: &DataType) -> usize {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match found {
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            usize::from(scale.unsigned_abs())
        }
        _ => 0,
    }
}

/// Bytes of texts that views stand for. Each begins with its length.
fn viewed_bytes(views: &[u128]) -> usize {
    views.iter().fold(0, |sum, view| sum.saturating_add((*view & u128::from(u32::MAX)) as usize))
}

/// The column as `wanted`; the error says what it cannot hold. Nothing is rounded and nothing becomes NULL.
pub fn adapt(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, String> {
    let found = column.data_type();
    if found == wanted {
        return Ok(column.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = |column: &ArrayRef, wanted: &DataType| {
        cast_with_options(column, wanted, &options).map_err(|cause| format!("{cause}."))
    };
    // Whether a cast may round depends on the values alone.
    if let DataType::Dictionary(_, values) = found {
        return adapt(&cast(column, values)?, wanted);
    }
    // Names and NULL rules of parts carry no meaning, but their order does.
    if let (DataType::Struct(_), DataType::Struct(fields)) = (found, wanted) {
        let parts = column.as_struct();
        if parts.num_columns() != fields.len() {
            return Err(format!("It has {} attributes, not {}.", parts.num_columns(), fields.len()));
        }
        let adapted: Result<Vec<ArrayRef>, String> =
            parts.columns().iter().zip(fields).map(|(part, field)| adapt(part, field.data_type())).collect();
        return StructArray::try_new(fields.clone(), adapted?, parts.nulls().cloned())
            .map(|array| Arc::new(array) as ArrayRef)
            .map_err(|cause| format!("{cause}."));
    }
    // A cast of a list would not tell that it rounds its elements.
    if let (
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _),
        DataType::List(field),
    ) = (found, wanted)
    {
        let lists = cast(column, &DataType::List(item.clone()))?;
        let lists = lists.as_list::<i32>();
        let offsets = OffsetBuffer::from_lengths(lists.offsets().lengths());
        let (first, last) = (lists.offsets()[0] as usize, lists.offsets()[lists.len()] as usize);
        let elements = adapt(&lists.values().slice(first, last - first), field.data_type())?;
        return ListArray::try_new(field.clone(), offsets, elements, lists.nulls().cloned())
            .map(|array| Arc::new(array) as ArrayRef)
            .map_err(|cause| format!("{cause}."));
    }
    if wanted.is_temporal() && !texts_of(column).flatten().all(|text| is_kept(text, wanted)) {
        return Err(format!("Values of {found} do not fit {wanted}."));
    }
    let adapted = cast(column, wanted)?;
    // A cast may round: then the way back leads elsewhere.
    let may_round = found.is_floating()
        || wanted.is_floating()
        || found.is_temporal()
        || is_decimal(wanted)
        || (is_decimal(found) && wanted.is_integer())
        || (found.is_integer() && *wanted == DataType::Boolean);
    if may_round {
        let back = cast(&adapted, found)?;
        let is_same = back.to_data() == column.to_data() || is_same_number(&back, column);
        if !is_same {
            return Err(format!("Values of {found} do not fit {wanted}."));
        }
    }
    Ok(adapted)
}

fn is_decimal(data_type: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    matches!(data_type, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..))
}

/// The texts of a column; none of a column of another type.
fn texts_of(column: &ArrayRef) -> Box<dyn Iterator<Item = Option<&str>> + '_> {
    match column.data_type() {
        DataType::Utf8 => Box::new(column.as_string::<i32>().iter()),
        DataType::LargeUtf8 => Box::new(column.as_string::<i64>().iter()),
        DataType::Utf8View => Box::new(column.as_string_view().iter()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Whether a cast of a text to a date or time, if there is one, loses nothing of it. Its parser drops digits, the time of a date, and the
/// zone of a time that has none; it takes a number for a time, and reads intervals unlike databases.
fn is_kept(text: &str, wanted: &DataType) -> bool {
    use arrow_schema::TimeUnit::{Microsecond, Nanosecond};
    let text = text.trim();
    let behind_date = text.get(10..).unwrap_or_default();
    match wanted {
        DataType::Date32 => text.starts_with(['+', '-']) || is_midnight(behind_date),
        DataType::Timestamp(Microsecond | Nanosecond, None) => !behind_date.contains(['+', '-']) && is_to_micros(text),
        DataType::Time64(_) => text.contains(':') && is_to_micros(text),
        _ => false,
    }
}

/// Whether what stands behind a date, if anything does, is no time but its first moment in UTC.
fn is_midnight(text: &str) -> bool {
    text.strip_suffix("+00:00").unwrap_or(text).chars().all(|it| "Tt :0.Zz".contains(it))
}

/// Texts of equal decimals may have different zeros at the end.
fn is_same_number(a: &ArrayRef, b: &ArrayRef) -> bool {
    let (Some(a), Some(b)) = (a.as_string_opt::<i32>(), b.as_string_opt::<i32>()) else { return false };
    let plain = |text: &str| -> String {
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
        let digits = text.trim_start_matches(['-', '+']).trim_start_matches('0');
        let sign = if text.starts_with('-') && !digits.is_empty() { "-" } else { "" };
        format!("{sign}{}", digits.trim_start_matches('0'))
    };
    a.iter().zip(b.iter()).all(|(a, b)| a.map(plain) == b.map(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Decimal128Array, Float64Array, Int32Array, Int64Array, LargeStringArray, StringArray};
    use arrow_schema::IntervalUnit::MonthDayNano;
    use arrow_schema::TimeUnit::Microsecond;

    fn column(array: impl Array + 'static) -> ArrayRef {
        Arc::new(array)
    }

    #[test]
    fn values_are_kept_or_refused() {
        let texts = column(StringArray::from(vec![Some("1.50"), Some("-0.25"), None]));
        let decimals = adapt(&texts, &DataType::Decimal128(10, 2)).unwrap();
        assert_eq!(
            decimals.as_ref(),
            &Decimal128Array::from(vec![Some(150), Some(-25), None]).with_precision_and_scale(10, 2).unwrap()
        );
        assert!(adapt(&texts, &DataType::Decimal128(10, 1)).is_err());
        let large = adapt(&texts, &DataType::LargeUtf8).unwrap();
        assert_eq!(large.as_ref(), &LargeStringArray::from(vec![Some("1.50"), Some("-0.25"), None]));
        assert_eq!(adapt(&large, &DataType::Utf8).unwrap().as_ref(), texts.as_ref());
        let integers = column(Int64Array::from(vec![1, i64::from(i32::MAX)]));
        assert_eq!(adapt(&integers, &DataType::Int32).unwrap().as_ref(), &Int32Array::from(vec![1, i32::MAX]));
        assert!(adapt(&column(Int64Array::from(vec![1 << 40])), &DataType::Int32).is_err());
        assert!(adapt(&column(Float64Array::from(vec![1.5])), &DataType::Int32).is_err());
        assert!(adapt(&column(Float64Array::from(vec![2.0])), &DataType::Int32).is_ok());
    }

    #[test]
    fn nothing_is_rounded_in_lists_nor_to_other_kinds_of_numbers() {
        let item = |ty: DataType| Arc::new(arrow_schema::Field::new("item", ty, true));
        let list = |ty: DataType| DataType::List(item(ty));
        let of = |values: ArrayRef, lengths: [usize; 2]| -> ArrayRef {
            let offsets = OffsetBuffer::from_lengths(lengths);
            column(ListArray::new(item(values.data_type().clone()), offsets, values, None))
        };
        let floats = of(column(Float64Array::from(vec![Some(1.0), None, Some(2.5)])), [2, 1]);
        assert!(adapt(&floats, &list(DataType::Int32)).is_err());
        // The element that does not fit is not among those of the slice, which begin behind others.
        let whole = adapt(&floats.slice(0, 1), &list(DataType::Int32)).unwrap();
        let expected = of(column(Int32Array::from(vec![Some(1), None])), [2, 0]);
        assert_eq!(whole.as_ref(), expected.slice(0, 1).as_ref());
        let tail = of(column(Float64Array::from(vec![2.5, 7.0])), [1, 1]);
        let expected = of(column(Int32Array::from(vec![7])), [0, 1]);
        assert_eq!(adapt(&tail.slice(1, 1), &list(DataType::Int32)).unwrap().as_ref(), expected.slice(1, 1).as_ref());
        assert!(adapt(&of(column(Float64Array::from(vec![1e300])), [1, 0]), &list(DataType::Float32)).is_err());

        let nanoseconds = arrow_array::TimestampNanosecondArray::from(vec![1_000, 2_001]);
        let micros = DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, None);
        let nested = of(of(column(nanoseconds), [1, 1]), [1, 1]);
        assert!(adapt(&nested, &list(list(micros.clone()))).is_err());
        assert!(adapt(&nested.slice(0, 1), &list(list(micros))).is_ok());
        let texts = of(column(StringArray::from(vec!["1.55", "2"])), [1, 1]);
        assert!(adapt(&texts, &list(DataType::Decimal128(10, 1))).is_err());
        assert!(adapt(&texts, &list(DataType::Decimal128(10, 2))).is_ok());

        let nanoseconds: ArrayRef = column(arrow_array::TimestampNanosecondArray::from(vec![1_000, 1_001]));
        let encoded = |keys: Vec<Option<i32>>| {
            column(arrow_array::Int32DictionaryArray::new(Int32Array::from(keys), nanoseconds.clone()))
        };
        let micros = DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, None);
        assert!(adapt(&encoded(vec![Some(0), Some(1)]), &micros).is_err());
        let whole = adapt(&encoded(vec![Some(0), None]), &micros).unwrap();
        assert_eq!(whole.as_ref(), &arrow_array::TimestampMicrosecondArray::from(vec![Some(1), None]));

        let decimals =
            |values: Vec<i128>| column(Decimal128Array::from(values).with_precision_and_scale(10, 2).unwrap());
        assert!(adapt(&decimals(vec![150]), &DataType::Int32).is_err());
        assert_eq!(adapt(&decimals(vec![200]), &DataType::Int32).unwrap().as_ref(), &Int32Array::from(vec![2]));
        assert!(adapt(&column(Int32Array::from(vec![0, 2])), &DataType::Boolean).is_err());
        assert!(adapt(&column(Int32Array::from(vec![0, 1])), &DataType::Boolean).is_ok());
    }

    #[test]
    fn texts_of_dates_and_times_are_kept_or_refused() {
        let timestamp = || DataType::Timestamp(Microsecond, None);
        let with_zone = || DataType::Timestamp(Microsecond, Some("UTC".into()));
        let (time, interval) = (|| DataType::Time64(Microsecond), || DataType::Interval(MonthDayNano));
        for (text, wanted, value) in [
            ("2024-05-06 07:08:09.123456", timestamp(), Some(1_714_979_289_123_456)),
            ("2024-05-06T07:08:09.123456000000Z", timestamp(), Some(1_714_979_289_123_456)),
            ("2024-05-06", timestamp(), Some(1_714_953_600_000_000)),
            ("2024-05-06 07:08:09.1234567", timestamp(), None),
            ("1969-12-31 23:59:59.9999999999", timestamp(), None),
            ("2024-05-06 07:08:09+02:00", timestamp(), None),
            ("2024-05-06T07:08:09-0200", timestamp(), None),
            ("2024-05-06 09:08:09+02:00", with_zone(), None),
            ("00:00:01.5", time(), Some(1_500_000)),
            ("1:00 PM", time(), Some(46_800_000_000)),
            ("00:00:01.1234565", time(), None),
            ("00:00:01.0000000001", time(), None),
            // Not 40 ms after midnight.
            ("040506", time(), None),
            ("2024-05-06", DataType::Date32, Some(19_849)),
            ("2024-05-06 00:00:00.000", DataType::Date32, Some(19_849)),
            ("2024-05-06T00:00:00Z", DataType::Date32, Some(19_849)),
            ("2024-05-06t00:00:00.000z", DataType::Date32, Some(19_849)),
            ("2024-05-06 00:00:00+00:00", DataType::Date32, Some(19_849)),
            ("2024-05-06 01:00:00+00:00", DataType::Date32, None),
            ("2024-05-06 00:00:00+00:01", DataType::Date32, None),
            ("2024-5-6 1:00", DataType::Date32, None),
            ("2024-5-6 00:00:10", DataType::Date32, None),
            ("+12024-05-06 07:00", DataType::Date32, None),
            ("-2024-05-06 07:00", DataType::Date32, None),
            ("+12024-05-06", DataType::Date32, Some(3_672_274)),
            ("2024-05-06 07:00", DataType::Date32, None),
            ("2024-05-06 00:00:01", DataType::Date32, None),
            ("2024-05-06 00:00:00-05:00", DataType::Date32, None),
            // A month for casts, a second for PostgreSQL.
            ("1", interval(), None),
            ("1 second", interval(), None),
        ] {
            let texts = column(StringArray::from(vec![None, Some(text)]));
            for layout in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
                let found = adapt(&adapt(&texts, &layout).unwrap(), &wanted);
                let found =
                    found.ok().map(|found| cast_with_options(&found, &DataType::Int64, &CastOptions::default()));
                let found = found.map(|found| found.unwrap().as_primitive::<arrow_array::types::Int64Type>().value(1));
                assert_eq!(found, value, "{text} as {wanted}");
            }
        }
    }

    #[test]
    fn what_may_stand_for_any_number_of_values_is_refused() {
        let item = |ty: DataType| Arc::new(arrow_schema::Field::new("item", ty, true));
        let encoded = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let list = |ty: &DataType| DataType::List(item(ty.clone()));
        for (found, wanted, is_taken) in [
            (DataType::Utf8View, DataType::Utf8, true),
            (DataType::Decimal128(10, 2), DataType::Utf8, true),
            (DataType::LargeList(item(DataType::Int8)), list(&DataType::Int16), true),
            (DataType::FixedSizeList(item(DataType::Int8), 3), list(&DataType::Int16), true),
            (DataType::FixedSizeList(item(DataType::Int8), 0), list(&DataType::Int16), false),
            (DataType::ListView(item(DataType::Int8)), list(&DataType::Int16), false),
            (DataType::FixedSizeBinary(0), DataType::Binary, false),
            // What pandas makes of a column without values; how many there may be is bounded by what they take.
            (DataType::Null, DataType::Utf8, true),
            (DataType::Null, list(&DataType::Int16), false),
            (encoded.clone(), DataType::Utf8, false),
            (list(&encoded), list(&DataType::Utf8), false),
            (DataType::Int8, list(&DataType::Int8), false),
            // Seconds or microseconds, and which bytes, nobody says.
            (DataType::Int64, DataType::Timestamp(Microsecond, None), false),
            (DataType::Date32, DataType::Int32, false),
            (DataType::Duration(Microsecond), DataType::Int64, false),
            (DataType::Int64, DataType::Binary, false),
            (DataType::Duration(Microsecond), DataType::Interval(MonthDayNano), true),
            (DataType::Date32, DataType::Timestamp(Microsecond, None), true),
        ] {
            assert_eq!(check_type(&found, &wanted).is_ok(), is_taken, "{found} as {wanted}");
        }
    }

    #[test]
    fn what_grows_too_large_is_not_adapted() {
        let bits = column(arrow_array::BooleanArray::from(vec![true; 1000]));
        assert_eq!(adapt_within(&bits, &DataType::Utf8, 10_000).unwrap_err(), Unreadable::TooLarge);
        assert_eq!(adapt_within(&bits, &DataType::Utf8, 110_000).unwrap().len(), 1000);
        let texts = column(arrow_array::StringViewArray::from(vec!["x".repeat(1000); 10]));
        assert_eq!(adapt_within(&texts, &DataType::Utf8, 10_000).unwrap_err(), Unreadable::TooLarge);
        assert_eq!(adapt_within(&texts, &DataType::Utf8, 11_000).unwrap().len(), 10);
        let nothing = column(arrow_array::NullArray::new(usize::MAX >> 8));
        assert_eq!(adapt_within(&nothing, &DataType::Int64, 1 << 30).unwrap_err(), Unreadable::TooLarge);
        let nothing = column(arrow_array::NullArray::new(1000));
        assert_eq!(adapt_within(&nothing, &DataType::Int64, 1 << 20).unwrap().null_count(), 1000);
        // What is taken as it is costs nothing.
        assert!(adapt_within(&bits, &DataType::Boolean, 0).is_ok());
    }
}
