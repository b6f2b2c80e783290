//! A SQL value into an Arrow column.

use arrow_buffer::IntervalMonthDayNano;
use pgrx::pg_sys;
use pgrx::varlena::varlena_to_byte_slice;
use udf_codec::batch::{ArrayColumn, ColumnBuilder, CompositeColumn};
use udf_types::types::Type;
use udf_types::{Error, Kind};

use super::{ArrayForm, EPOCH_DAYS, EPOCH_MICROS, Form, SqlType, output};
use crate::pg::reserve;
use crate::pg::text::{to_utf8, to_utf8_if_possible};
use crate::report;

/// Appends one value. What PostgreSQL has to allocate for it lands in the current memory context.
///
/// # Safety
/// `datum` is a value of `sql_type`, or `is_null` is set; the column was made for that type.
pub unsafe fn append(column: &mut ColumnBuilder, sql_type: &SqlType, datum: pg_sys::Datum, is_null: bool) {
    if is_null {
        return column.append_null();
    }
    let bits = datum.value();
    match column {
        ColumnBuilder::Bool(builder) => builder.append_value(bits as u8 != 0),
        ColumnBuilder::Int2(builder) => builder.append_value(bits as i16),
        ColumnBuilder::Int4(builder) => builder.append_value(bits as i32),
        ColumnBuilder::Int8(builder) => builder.append_value(bits as i64),
        ColumnBuilder::Float4(builder) => builder.append_value(f32::from_bits(bits as u32)),
        ColumnBuilder::Float8(builder) => builder.append_value(f64::from_bits(bits as u64)),
        ColumnBuilder::Time(builder) => builder.append_value(bits as i64),
        ColumnBuilder::Date(builder) => builder.append_value(days_since_1970(bits as i32)),
        ColumnBuilder::Timestamp(builder) => builder.append_value(micros_since_1970(bits as i64)),
        // SAFETY: an interval points to its struct.
        ColumnBuilder::Interval(builder) => unsafe {
            builder.append_value(to_interval(*datum.cast_mut_ptr::<pg_sys::Interval>()));
        },
        // SAFETY: by-reference values point to what their type says; detoasting copies if need be.
        ColumnBuilder::Text(builder) => unsafe {
            match sql_type.form {
                Form::Output(function) => builder.append_value(to_utf8(checked(output(function, datum)))),
                _ => {
                    let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
                    builder.append_value(to_utf8(checked(varlena_to_byte_slice(value))));
                }
            }
        },
        // SAFETY: as above.
        ColumnBuilder::Bytea(builder) => unsafe {
            let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            builder.append_value(checked(varlena_to_byte_slice(value)));
        },
        // SAFETY: a uuid points to 16 bytes.
        ColumnBuilder::Uuid(builder) => unsafe {
            let bytes = std::slice::from_raw_parts(datum.cast_mut_ptr::<u8>(), 16);
            builder.append_value(bytes).expect("the column holds 16 bytes per value");
        },
        // SAFETY: the column was made for the type, so the form says what the value is.
        ColumnBuilder::Array(builder) => unsafe {
            match &sql_type.form {
                Form::Array(form) => append_array(builder, form, datum),
                Form::Vector(function) => append_vector(builder, output(*function, datum)),
                _ => unreachable!("a list column is made for arrays and vectors"),
            }
        },
        // SAFETY: as above.
        ColumnBuilder::Composite(builder) => unsafe {
            match &sql_type.form {
                Form::Composite { attributes, .. } => append_composite(builder, attributes, datum),
                Form::Range(element) => append_range(builder, sql_type.oid, element, datum),
                _ => unreachable!("a struct column is made for composite types and ranges"),
            }
        },
    }
}

/// Appends the bytes of a value as the key of a shared table has them (`shared_tables::keys`); false if no column can hold it.
///
/// # Safety
/// `datum` is a value of `sql_type`, which is one that keys may have.
pub unsafe fn append_key(out: &mut Vec<u8>, sql_type: &SqlType, datum: pg_sys::Datum) -> bool {
    let bits = datum.value();
    match &sql_type.ty {
        Type::Bool => out.push(u8::from(bits as u8 != 0)),
        Type::Int2 => out.extend((bits as i16).to_le_bytes()),
        Type::Int4 => out.extend((bits as i32).to_le_bytes()),
        Type::Int8 | Type::Time => out.extend((bits as i64).to_le_bytes()),
        Type::Date => out.extend(days_since_1970(bits as i32).to_le_bytes()),
        Type::Timestamp | Type::TimestampTz => match arrow_micros(bits as i64) {
            Some(micros) => out.extend(micros.to_le_bytes()),
            None => return false,
        },
        // SAFETY: a uuid points to 16 bytes.
        Type::Uuid => unsafe { out.extend(std::slice::from_raw_parts(datum.cast_mut_ptr::<u8>(), 16)) },
        // SAFETY: the other types of keys point to what their type says; detoasting copies if need be.
        ty => unsafe {
            let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            let bytes = checked(varlena_to_byte_slice(value));
            match ty {
                Type::Bytea => out.extend(bytes),
                // What is not in UTF-8 is no key, since it could not be shared.
                _ => match to_utf8_if_possible(bytes) {
                    Some(text) => out.extend(text.as_bytes()),
                    None => return false,
                },
            }
        },
    }
    true
}

/// A value's bytes; raises an error if there is no memory for copies of them.
fn checked(bytes: &[u8]) -> &[u8] {
    report::unwrap(reserve::check_room(bytes.len()));
    bytes
}

/// A date of PostgreSQL's as Arrow's.
pub(super) fn days_since_1970(days: i32) -> i32 {
    match days {
        // PostgreSQL's infinities, which are also ours.
        infinity @ (i32::MIN | i32::MAX) => infinity,
        days => days + EPOCH_DAYS,
    }
}

/// A timestamp of PostgreSQL's as Arrow's; raises an error if Arrow cannot hold it.
pub(super) fn micros_since_1970(micros: i64) -> i64 {
    arrow_micros(micros).unwrap_or_else(|| {
        refuse(
            "timestamp out of range for a container function",
            "Timestamps travel as microseconds since 1970 and end with the year 294247.",
        )
    })
}

/// A timestamp of PostgreSQL's as Arrow's, if that can hold it.
fn arrow_micros(micros: i64) -> Option<i64> {
    match micros {
        infinity @ (i64::MIN | i64::MAX) => Some(infinity),
        // PostgreSQL's range ends above Arrow's: 294276-12-31 against 294247-01-10.
        micros => micros.checked_add(EPOCH_MICROS).filter(|micros| *micros != i64::MAX),
    }
}

unsafe fn append_array(builder: &mut ArrayColumn, form: &ArrayForm, datum: pg_sys::Datum) {
    // SAFETY: the caller passes an array of the form's element type.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        // The lengths of all dimensions come right behind the struct, the lower bounds behind them (utils/array.h).
        let bounds = array.add(1).cast::<i32>();
        match (*array).ndim {
            0 => {}
            1 if *bounds.add(1) == 1 => {}
            1 => refuse(
                "container functions take arrays that start at index 1",
                &format!("The array starts at index {}.", *bounds.add(1)),
            ),
            dimensions => refuse(
                "container functions take arrays of one dimension",
                &format!("The array has {dimensions} dimensions. As jsonb, made with to_jsonb(), it keeps them."),
            ),
        }
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            form.element_oid,
            i32::from(form.length),
            form.is_by_value,
            form.alignment,
            &mut values,
            &mut nulls,
            &mut count,
        );
        for i in 0..usize::try_from(count).unwrap_or(0) {
            append(builder.elements(), &form.element, *values.add(i), *nulls.add(i));
        }
        builder.finish_value();
    }
}

/// pgvector's text is `[1,2.5]`; its numbers read back as they were.
fn append_vector(builder: &mut ArrayColumn, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let ColumnBuilder::Float4(elements) = builder.elements() else { unreachable!("a vector has float4 elements") };
    for number in text.trim_matches(['[', ']']).split(',').filter(|number| !number.is_empty()) {
        elements.append_option(number.parse().ok());
    }
    builder.finish_value();
}

unsafe fn append_composite(builder: &mut CompositeColumn, attributes: &[Option<SqlType>], datum: pg_sys::Datum) {
    let mut values = vec![pg_sys::Datum::null(); attributes.len()];
    let mut nulls = vec![true; attributes.len()];
    // SAFETY: the caller passes a composite value of these attributes.
    unsafe {
        deform(datum, &mut values, &mut nulls);
        let kept = attributes.iter().enumerate().filter_map(|(i, attribute)| Some((i, attribute.as_ref()?)));
        for (position, (i, attribute)) in kept.enumerate() {
            append(builder.attribute(position), attribute, values[i], nulls[i]);
        }
    }
    builder.finish_value();
}

/// The attributes of a composite value, those that were dropped included. What is detoasted lands in the current memory
/// context.
///
/// # Safety
/// `datum` is a composite value.
pub unsafe fn deform(datum: pg_sys::Datum, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
    // SAFETY: the caller passes a composite value. Its header names its type, whose descriptor says how it is laid out, and
    // of how many attributes; there is room for so many.
    unsafe {
        let header = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::HeapTupleHeaderData>();
        let fields = (*header).t_choice.t_datum;
        let descriptor = pg_sys::lookup_rowtype_tupdesc(fields.datum_typeid, fields.datum_typmod);
        if usize::try_from((*descriptor).natts) != Ok(values.len().min(nulls.len())) {
            report::raise_error(&type_changed(), None);
        }
        let mut tuple = pg_sys::HeapTupleData {
            t_len: (fields.datum_len_ as u32) >> 2,
            t_data: header,
            ..pg_sys::HeapTupleData::default()
        };
        pg_sys::heap_deform_tuple(&mut tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        if (*descriptor).tdrefcount >= 0 {
            pg_sys::DecrTupleDescRefCount(descriptor);
        }
    }
}

unsafe fn append_range(builder: &mut CompositeColumn, oid: pg_sys::Oid, element: &SqlType, datum: pg_sys::Datum) {
    // SAFETY: the caller passes a range of that type.
    unsafe {
        let range = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::RangeType>();
        let cache = pg_sys::lookup_type_cache(oid, pg_sys::TYPECACHE_RANGE_INFO as i32);
        let (mut lower, mut upper) = (pg_sys::RangeBound::default(), pg_sys::RangeBound::default());
        let mut is_empty = false;
        pg_sys::range_deserialize(cache, range, &mut lower, &mut upper, &mut is_empty);
        let parts = [lower, upper].map(|bound| (bound.val, is_empty || bound.infinite));
        for (position, (value, is_absent)) in parts.into_iter().enumerate() {
            append(builder.attribute(position), element, value, is_absent);
        }
        let flags = [!parts[0].1 && lower.inclusive, !parts[1].1 && upper.inclusive, is_empty];
        for (position, flag) in flags.into_iter().enumerate() {
            let ColumnBuilder::Bool(column) = builder.attribute(2 + position) else {
                unreachable!("a range ends in three flags")
            };
            column.append_value(flag);
        }
        builder.finish_value();
    }
}

fn to_interval(interval: pg_sys::Interval) -> IntervalMonthDayNano {
    let infinity = |limit32, limit64| {
        let parts = IntervalMonthDayNano::new(limit32, limit32, limit64);
        (interval.month == limit32 && interval.day == limit32 && interval.time == limit64).then_some(parts)
    };
    infinity(i32::MAX, i64::MAX).or_else(|| infinity(i32::MIN, i64::MIN)).unwrap_or_else(|| {
        let nanoseconds = interval.time.checked_mul(1000).unwrap_or_else(|| {
            refuse(
                "interval out of range for a container function",
                "The time of an interval travels as nanoseconds and ends at 292 years; justify_hours() makes days of it.",
            )
        });
        IntervalMonthDayNano::new(interval.month, interval.day, nanoseconds)
    })
}

/// The error for a composite type that is no longer what the function was looked up with.
pub fn type_changed() -> Error {
    Error::new(Kind::SignatureMismatch, "a composite type changed while a container function used it")
        .with_hint("Run the statement again.")
}

fn refuse(message: &str, detail: &str) -> ! {
    report::raise_error(&Error::new(Kind::OutOfRange, message).with_detail(detail), None)
}
