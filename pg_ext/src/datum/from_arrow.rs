//! An Arrow column of results as SQL values. What a container sends is checked before PostgreSQL sees it.

use std::ffi::CString;
use std::rc::Rc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType,
    Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, Int32Array, new_null_array};
use arrow_buffer::IntervalMonthDayNano;
use pgrx::pg_sys;
use udf_types::signature::FunctionKind;
use udf_types::textual_type;
use udf_types::types::Type;
use udf_types::{Error, Kind};

use super::to_arrow::type_changed;
use super::{ArrayForm, Domain, EPOCH_DAYS, EPOCH_MICROS, Form, SqlType};
use crate::function::Function;
use crate::pg::text;
use crate::report;

/// First and last day of PostgreSQL's dates, 4713 BC and 5874897 AD, counted from 2000-01-01 (datatype/timestamp.h).
const DATE_RANGE: std::ops::Range<i32> = -2_451_545..2_145_031_949;
/// First and last microsecond of PostgreSQL's timestamps, counted from 2000-01-01 (datatype/timestamp.h).
const TIMESTAMP_RANGE: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;
/// Elements of the longest array (utils/array.h, MaxArraySize).
const LONGEST_ARRAY: usize = 0x3fff_ffff / size_of::<pg_sys::Datum>();
/// Longest value, and so the longest array, in bytes (memutils.h, MaxAllocSize).
const MOST_BYTES: usize = 0x3fff_ffff;
/// Elements of an array that are made without a look at interrupts.
const INTERRUPTIBLE: usize = 4096;
/// Elements of pgvector's longest vector (vector.h, VECTOR_MAX_DIM).
const LONGEST_VECTOR: usize = 16_000;
/// Microseconds of a day; 24:00:00 is a time.
const DAY_MICROS: i64 = 86_400_000_000;

/// The results of one batch.
#[derive(Debug)]
pub struct ResultReader {
    function: Rc<Function>,
    column: ArrayRef,
    /// Where in the column each row's value is; none if in its own place.
    places: Option<Int32Array>,
}

/// A value that PostgreSQL cannot hold: what it is.
struct Misfit(&'static str);

type Converted = std::result::Result<pg_sys::Datum, Misfit>;

impl ResultReader {
    /// Reads `column`, which the protocol has checked to be of the function's result type or a dictionary of that.
    pub fn new(function: &Rc<Function>, column: ArrayRef) -> ResultReader {
        let function = function.clone();
        match column.as_dictionary_opt::<Int32Type>() {
            Some(dictionary) => {
                let (places, column) = (Some(dictionary.keys().clone()), dictionary.values().clone());
                ResultReader { function, column, places }
            }
            None => ResultReader { function, column, places: None },
        }
    }

    /// Row `row` of the column as a value in the current memory context; none is NULL. In a set of rows, NULL is a row of NULLs, as
    /// PostgreSQL's tuplestores make it. `number` is the row of the scan that it is the result of, if there is a scan.
    pub fn datum(&self, row: usize, number: Option<u64>) -> Option<pg_sys::Datum> {
        let sql_type = &self.function.result;
        if let (FunctionKind::Table, Form::Composite { typmod, attributes }) =
            (self.function.signature.kind, &sql_type.form)
        {
            return self.checked_datum(row, number).or_else(|| {
                let (mut values, mut nulls) =
                    (vec![pg_sys::Datum::from(0usize); attributes.len()], vec![true; attributes.len()]);
                Some(form_row(sql_type.oid, *typmod, &mut values, &mut nulls))
            });
        }

        if matches!(sql_type.form, Form::Plain) && sql_type.domain.is_none() {
            return self.unwrap(self.value(row), number);
        }
        self.checked_datum(row, number)
    }

    /// As [`Self::datum`], for a type whose values PostgreSQL's own functions, or those of a domain's constraints, may refuse.
    fn checked_datum(&self, row: usize, number: Option<u64>) -> Option<pg_sys::Datum> {
        report::while_reading(&self.function, number, || self.unwrap(self.value(row), number))
    }

    fn value(&self, row: usize) -> std::result::Result<Option<pg_sys::Datum>, Misfit> {
        let place = match &self.places {
            None => Some(row),
            // Places were checked when the dictionary was made.
            Some(places) => places.is_valid(row).then(|| places.value(row) as usize),
        };
        let Some(place) = place else {
            // A domain may have something against NULL.
            return value(&self.function.result, &new_null_array(self.column.data_type(), 1), 0);
        };
        value(&self.function.result, &self.column, place)
    }

    fn unwrap(
        &self,
        result: std::result::Result<Option<pg_sys::Datum>, Misfit>,
        number: Option<u64>,
    ) -> Option<pg_sys::Datum> {
        result.unwrap_or_else(|Misfit(what)| {
            let message = format!("container function \"{}\" returned an invalid result", self.function.name);
            let error = Error::new(Kind::BadResult, message).with_detail(format!("It holds {what}."));
            report::while_reading(&self.function, number, || report::raise_error(&error, None))
        })
    }
}

/// A value of a column of the type, in the current memory context; none is NULL. An error says what it is that PostgreSQL cannot hold.
pub fn datum(
    sql_type: &SqlType,
    column: &ArrayRef,
    row: usize,
) -> std::result::Result<Option<pg_sys::Datum>, &'static str> {
    value(sql_type, column, row).map_err(|Misfit(what)| what)
}

/// One value of a column that was checked to be of the type.
fn value(sql_type: &SqlType, column: &ArrayRef, row: usize) -> std::result::Result<Option<pg_sys::Datum>, Misfit> {
    let mut datum = match column.is_null(row) {
        true => None,
        false => Some(not_null(sql_type, column, row)?),
    };
    if sql_type.typmod >= 0
        && let Form::Plain = sql_type.form
        && let Some(value) = datum
    {
        datum = Some(coerced_to_length(sql_type, value));
    }
    if let Some(domain) = &sql_type.domain {
        let datum = datum.unwrap_or(pg_sys::Datum::from(0usize));
        check_domain(domain, datum, column.is_null(row));
    }
    Ok(datum)
}

/// Raises an error if a domain refuses a value of its base type.
fn check_domain(domain: &Domain, datum: pg_sys::Datum, is_null: bool) {
    /// Also where the value is refused, which raises an error.
    struct Using<'a>(&'a Domain);
    impl Drop for Using<'_> {
        fn drop(&mut self) {
            self.0.is_in_use.set(false);
        }
    }
    // SAFETY: the value is of the domain's base type; the memory is PostgreSQL's own, and lives as long as its context. That of the cache is
    // noted where it stays, since a value that is refused raises an error.
    unsafe {
        if domain.is_in_use.replace(true) {
            let mut memory = std::ptr::null_mut();
            pg_sys::domain_check(datum, is_null, domain.oid, &mut memory, pg_sys::CurrentMemoryContext);
        } else {
            let _using = Using(domain);
            pg_sys::domain_check(datum, is_null, domain.oid, domain.memory.as_ptr(), pg_sys::CacheMemoryContext);
        }
    }
}

/// A time, timestamp or interval with the precision of its type.
fn coerced_to_length(sql_type: &SqlType, value: pg_sys::Datum) -> pg_sys::Datum {
    let mut function = pg_sys::InvalidOid;
    // SAFETY: a lookup of a type that exists. A function takes a value of the type, its modifier, and whether the cast is explicit, if it
    // asks for that.
    unsafe {
        match pg_sys::find_typmod_coercion_function(sql_type.oid, &mut function) {
            pg_sys::CoercionPathType::COERCION_PATH_FUNC => pg_sys::OidFunctionCall3Coll(
                function,
                pg_sys::InvalidOid,
                value,
                pg_sys::Datum::from(sql_type.typmod),
                pg_sys::Datum::from(false),
            ),
            _ => value,
        }
    }
}

fn not_null(sql_type: &SqlType, column: &ArrayRef, row: usize) -> Converted {
    Ok(match &sql_type.ty {
        Type::Bool => pg_sys::Datum::from(column.as_boolean().value(row)),
        Type::Int2 => pg_sys::Datum::from(column.as_primitive::<Int16Type>().value(row)),
        Type::Int4 => pg_sys::Datum::from(column.as_primitive::<Int32Type>().value(row)),
        Type::Int8 => pg_sys::Datum::from(column.as_primitive::<Int64Type>().value(row)),
        Type::Float4 => pg_sys::Datum::from(column.as_primitive::<Float32Type>().value(row).to_bits()),
        Type::Float8 => pg_sys::Datum::from(column.as_primitive::<Float64Type>().value(row).to_bits()),
        Type::Date => {
            let date = to_date(column.as_primitive::<Date32Type>().value(row));
            pg_sys::Datum::from(date.ok_or(Misfit("a date that PostgreSQL cannot hold"))?)
        }
        Type::Time => {
            let micros = column.as_primitive::<Time64MicrosecondType>().value(row);
            pg_sys::Datum::from(Some(micros).filter(is_time).ok_or(Misfit("a time outside the day"))?)
        }
        Type::Timestamp | Type::TimestampTz => {
            let timestamp = to_timestamp(column.as_primitive::<TimestampMicrosecondType>().value(row));
            pg_sys::Datum::from(timestamp.ok_or(Misfit("a timestamp that PostgreSQL cannot hold"))?)
        }
        Type::Interval => to_interval(column.as_primitive::<IntervalMonthDayNanoType>().value(row))?,
        Type::Bytea => to_varlena(column.as_binary::<i32>().value(row))?,
        Type::Uuid => {
            let bytes = column.as_fixed_size_binary().value(row);
            // SAFETY: a uuid is 16 bytes, and so is every value of the column.
            unsafe {
                let copy = pg_sys::palloc(16).cast::<u8>();
                copy.copy_from_nonoverlapping(bytes.as_ptr(), 16);
                pg_sys::Datum::from(copy)
            }
        }
        textual_type!() => text_datum(sql_type, column.as_string::<i32>().value(row))?,
        Type::Array(_) => {
            let elements = column.as_list::<i32>().value(row);
            match &sql_type.form {
                Form::Array(form) => array_datum(form, &elements)?,
                _ => vector_datum(sql_type, &elements)?,
            }
        }
        Type::Composite(_) | Type::Range(_) => match &sql_type.form {
            Form::Composite { typmod, attributes } => composite_datum(sql_type.oid, *typmod, attributes, column, row)?,
            Form::Range(element) => range_datum(sql_type.oid, element, column, row)?,
            _ => unreachable!("a struct column is made for composite types and ranges"),
        },
    })
}

/// A date of Arrow's as PostgreSQL's, if that can hold it.
fn to_date(days: i32) -> Option<i32> {
    match days {
        infinity @ (i32::MIN | i32::MAX) => Some(infinity),
        days => days.checked_sub(EPOCH_DAYS).filter(|days| DATE_RANGE.contains(days)),
    }
}

/// The same of a timestamp.
fn to_timestamp(micros: i64) -> Option<i64> {
    match micros {
        infinity @ (i64::MIN | i64::MAX) => Some(infinity),
        micros => micros.checked_sub(EPOCH_MICROS).filter(|micros| TIMESTAMP_RANGE.contains(micros)),
    }
}

/// Whether it is a time of a day.
fn is_time(micros: &i64) -> bool {
    (0..=DAY_MICROS).contains(micros)
}

/// Whether PostgreSQL can hold all dates, times or timestamps of a column, NULLs included.
pub(super) fn are_in_range(ty: &Type, column: &ArrayRef) -> bool {
    match ty {
        Type::Date => column.as_primitive::<Date32Type>().values().iter().all(|days| to_date(*days).is_some()),
        Type::Time => column.as_primitive::<Time64MicrosecondType>().values().iter().all(is_time),
        Type::Timestamp | Type::TimestampTz => {
            let values = column.as_primitive::<TimestampMicrosecondType>().values();
            values.iter().all(|micros| to_timestamp(*micros).is_some())
        }
        _ => false,
    }
}

fn text_datum(sql_type: &SqlType, text: &str) -> Converted {
    let is_plain = sql_type.oid == pg_sys::TEXTOID || (sql_type.oid == pg_sys::VARCHAROID && sql_type.typmod < 0);
    if text.as_bytes().contains(&0) {
        return Err(Misfit("text with a NUL character, which PostgreSQL cannot hold"));
    }
    if text::is_utf8() && is_plain {
        return to_varlena(text.as_bytes());
    }
    if text.len() > i32::MAX as usize {
        return Err(Misfit("text of more than 1 GB"));
    }
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the input function belongs to the result type.
    unsafe {
        let server = text::to_server(&text);
        if is_plain {
            return Ok(pg_sys::Datum::from(pg_sys::cstring_to_text(server)));
        }
        let (input, parameter) = sql_type.input;
        Ok(pg_sys::OidInputFunctionCall(input, server, parameter, sql_type.typmod))
    }
}

fn to_varlena(bytes: &[u8]) -> Converted {
    let length = i32::try_from(bytes.len()).map_err(|_| Misfit("a value of more than 1 GB"))?;
    // SAFETY: text and bytea have one layout; PostgreSQL refuses a length of more than 1 GB itself.
    Ok(unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length)) })
}

fn to_interval(value: IntervalMonthDayNano) -> Converted {
    let is_infinite =
        |limit32, limit64| value.months == limit32 && value.days == limit32 && value.nanoseconds == limit64;
    let micros = if is_infinite(i32::MAX, i64::MAX) || is_infinite(i32::MIN, i64::MIN) {
        if cfg!(feature = "pg15") {
            return Err(Misfit("an infinite interval, which this version of PostgreSQL cannot hold"));
        }
        value.nanoseconds
    } else if value.nanoseconds % 1000 != 0 {
        return Err(Misfit("an interval of a fraction of a microsecond"));
    } else {
        value.nanoseconds / 1000
    };
    // SAFETY: palloc gives memory of the struct's size.
    unsafe {
        let interval = pg_sys::palloc(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
        interval.write(pg_sys::Interval { time: micros, day: value.days, month: value.months });
        Ok(pg_sys::Datum::from(interval))
    }
}

fn array_datum(form: &ArrayForm, elements: &ArrayRef) -> Converted {
    let too_long = Misfit("an array of more than 134217727 elements, which PostgreSQL cannot hold");
    let count = i32::try_from(elements.len()).ok().filter(|_| elements.len() <= LONGEST_ARRAY).ok_or(too_long)?;
    // Refused before elements are made of a few bits each, and while they are.
    let too_large = || Misfit("an array of more than 1 GB, which PostgreSQL cannot hold");
    let mut bytes = (elements.len() - elements.null_count()).saturating_mul(least_bytes(form));
    if bytes > MOST_BYTES {
        return Err(too_large());
    }
    // A Datum is larger than what came: without memory for them, the query fails and not the process.
    let (mut values, mut nulls) = (reserve(elements.len()), reserve(elements.len()));
    bytes = 0;
    for i in 0..elements.len() {
        if i % INTERRUPTIBLE == 0 {
            pgrx::check_for_interrupts!();
        }
        let element = value(&form.element, elements, i)?;
        if let (Some(element), -1) = (element, form.length) {
            // SAFETY: a value of a type of variable length is a varlena.
            bytes += unsafe { pg_sys::toast_raw_datum_size(element) };
            if bytes > MOST_BYTES {
                return Err(too_large());
            }
        }
        nulls.push(element.is_none());
        values.push(element.unwrap_or(pg_sys::Datum::from(0usize)));
    }
    // SAFETY: values and nulls have `count` elements of the element type; they are copied.
    unsafe {
        let array = match count {
            0 => pg_sys::construct_empty_array(form.element_oid),
            mut count => pg_sys::construct_md_array(
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
                1,
                &mut count,
                &mut 1,
                form.element_oid,
                i32::from(form.length),
                form.is_by_value,
                form.alignment,
            ),
        };
        Ok(pg_sys::Datum::from(array))
    }
}

/// Bytes that an element which is not NULL has at least.
fn least_bytes(form: &ArrayForm) -> usize {
    match (&form.element.form, usize::try_from(form.length)) {
        (_, Ok(length)) => length,
        (Form::Composite { .. }, _) => size_of::<pg_sys::HeapTupleHeaderData>(),
        _ => 1,
    }
}

/// Room for so many values; raises an error if there is no memory for them.
fn reserve<T>(count: usize) -> Vec<T> {
    let mut values = Vec::new();
    if values.try_reserve_exact(count).is_err() {
        let error = Error::new(Kind::OutOfMemory, "out of memory");
        report::raise_error(&error.with_detail(format!("A result is an array of {count} elements.")), None);
    }
    values
}

fn vector_datum(sql_type: &SqlType, elements: &ArrayRef) -> Converted {
    let elements = elements.as_primitive::<Float32Type>();
    if elements.len() > LONGEST_VECTOR {
        return Err(Misfit("a vector of more than 16000 dimensions"));
    }
    if elements.null_count() > 0 {
        return Err(Misfit("a vector with a NULL"));
    }
    let numbers: Vec<String> = elements.values().iter().map(ToString::to_string).collect();
    text_datum(sql_type, &format!("[{}]", numbers.join(",")))
}

fn composite_datum(
    oid: pg_sys::Oid,
    typmod: i32,
    attributes: &[Option<SqlType>],
    column: &ArrayRef,
    row: usize,
) -> Converted {
    let columns = column.as_struct().columns();
    let mut values = vec![pg_sys::Datum::from(0usize); attributes.len()];
    let mut nulls = vec![true; attributes.len()];
    let kept = attributes.iter().enumerate().filter_map(|(i, attribute)| Some((i, attribute.as_ref()?)));
    for ((i, attribute), column) in kept.zip(columns) {
        if let Some(datum) = value(attribute, column, row)? {
            (values[i], nulls[i]) = (datum, false);
        }
    }
    Ok(form_row(oid, typmod, &mut values, &mut nulls))
}

/// A row of a composite type.
fn form_row(oid: pg_sys::Oid, typmod: i32, values: &mut [pg_sys::Datum], nulls: &mut [bool]) -> pg_sys::Datum {
    // SAFETY: the descriptor is the type's, and has as many attributes as there are values; the tuple is copied.
    unsafe {
        let descriptor = pg_sys::lookup_rowtype_tupdesc(oid, typmod);
        if usize::try_from((*descriptor).natts) != Ok(values.len()) {
            report::raise_error(&type_changed(), None);
        }
        let tuple = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        let datum = pg_sys::heap_copy_tuple_as_datum(tuple, descriptor);
        pg_sys::heap_freetuple(tuple);
        if (*descriptor).tdrefcount >= 0 {
            pg_sys::DecrTupleDescRefCount(descriptor);
        }
        datum
    }
}

fn range_datum(oid: pg_sys::Oid, element: &SqlType, column: &ArrayRef, row: usize) -> Converted {
    let columns = column.as_struct().columns();
    let flag = |position: usize| !columns[position].is_null(row) && columns[position].as_boolean().value(row);
    let bound = |position: usize| {
        let datum = value(element, &columns[position], row)?;
        Ok(pg_sys::RangeBound {
            val: datum.unwrap_or(pg_sys::Datum::from(0usize)),
            infinite: datum.is_none(),
            inclusive: datum.is_some() && flag(2 + position),
            lower: position == 0,
        })
    };
    let (mut lower, mut upper) = (bound(0)?, bound(1)?);
    // SAFETY: the bounds are of the range's element type. PostgreSQL refuses a lower bound above the upper one.
    unsafe {
        let cache = pg_sys::lookup_type_cache(oid, pg_sys::TYPECACHE_RANGE_INFO as i32);
        Ok(pg_sys::Datum::from(make_range(cache, &mut lower, &mut upper, flag(4))))
    }
}

unsafe fn make_range(
    cache: *mut pg_sys::TypeCacheEntry,
    lower: &mut pg_sys::RangeBound,
    upper: &mut pg_sys::RangeBound,
    is_empty: bool,
) -> *mut pg_sys::RangeType {
    // SAFETY: the caller passes a range type's cache entry and bounds of its element type.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::make_range(cache, lower, upper, is_empty)
    }
    // SAFETY: as above.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::make_range(cache, lower, upper, is_empty, std::ptr::null_mut())
    }
}
