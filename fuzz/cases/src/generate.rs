//! Types, columns and changes of bytes, out of an input.

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use arrow_array::types::IntervalMonthDayNano;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, FixedSizeBinaryArray, FixedSizeListArray, Float32Array,
    Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, LargeListArray, ListArray, NullArray,
    RecordBatch, RecordBatchOptions, StringArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    make_array,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use udf_types::signature::{Argument, FunctionKind, Signature};
use udf_types::textual_type;
use udf_types::types::{Attribute, TABLE, Type};

/// Days and microseconds that calendars of chrono know: the years up to 262,000.
const DAYS: i32 = 95_000_000;
const MICROS: i64 = 8_000_000_000_000_000_000;

/// A type that nests at most `depth` deep.
pub fn ty(u: &mut Unstructured<'_>, depth: usize) -> Result<Type> {
    Ok(match if depth == 0 { 0 } else { u.int_in_range(0..=5)? } {
        1 => Type::Array(Arc::new(ty(u, depth - 1)?)),
        2 => Type::Range(Arc::new(ty(u, depth - 1)?)),
        3 => {
            let count = u.int_in_range(1..=3)?;
            let attribute = |number| Ok(Attribute { name: format!("a{number} \""), ty: ty(u, depth - 1)? });
            Type::Composite((0..count).map(attribute).collect::<Result<Vec<_>>>()?.into())
        }
        _ => u.choose(TABLE)?.ty.clone(),
    })
}

/// A function that takes up to three arguments.
pub fn signature(u: &mut Unstructured<'_>, kinds: &[FunctionKind]) -> Result<Signature> {
    let count = u.int_in_range(0..=3)?;
    let argument = |_| Ok(Argument { name: String::new(), ty: ty(u, 2)? });
    let arguments = (0..count).map(argument).collect::<Result<Vec<_>>>()?;
    let (kind, result) = (*u.choose(kinds)?, ty(u, 3)?);
    Ok(Signature { kind, ..Signature::scalar("f", arguments, result) })
}

/// Columns of these types.
pub fn batch(u: &mut Unstructured<'_>, types: &[Type], rows: usize) -> Result<RecordBatch> {
    let columns = types.iter().map(|ty| column(u, ty, rows)).collect::<Result<Vec<_>>>()?;
    let fields: Vec<Field> = types.iter().map(|ty| ty.field("f")).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(arrow_schema::Schema::new(fields)), columns, &options)
        .expect("the columns have the types"))
}

fn optional<'a, T: Arbitrary<'a>>(u: &mut Unstructured<'a>, rows: usize) -> Result<Vec<Option<T>>> {
    (0..rows).map(|_| u.arbitrary()).collect()
}

fn nulls(u: &mut Unstructured<'_>, rows: usize) -> Result<Option<NullBuffer>> {
    let validity: Vec<bool> = (0..rows).map(|_| Ok(!u.ratio(1, 4)?)).collect::<Result<_>>()?;
    Ok(Some(NullBuffer::from(validity)).filter(|nulls| nulls.null_count() > 0))
}

fn lengths(u: &mut Unstructured<'_>, rows: usize) -> Result<OffsetBuffer<i32>> {
    let lengths: Vec<usize> = (0..rows).map(|_| u.int_in_range(0..=3)).collect::<Result<_>>()?;
    Ok(OffsetBuffer::from_lengths(lengths))
}

/// A column of a type, every value of which the type can have.
pub fn column(u: &mut Unstructured<'_>, ty: &Type, rows: usize) -> Result<ArrayRef> {
    let infinite = |value: i64, most: i64| match value {
        i64::MIN | i64::MAX => value,
        _ => value % most,
    };
    Ok(match ty {
        Type::Bool => Arc::new(BooleanArray::from(optional::<bool>(u, rows)?)),
        Type::Int2 => Arc::new(Int16Array::from(optional::<i16>(u, rows)?)),
        Type::Int4 => Arc::new(Int32Array::from(optional::<i32>(u, rows)?)),
        Type::Int8 => Arc::new(Int64Array::from(optional::<i64>(u, rows)?)),
        // One bit pattern of those that are no numbers.
        Type::Float4 => {
            let value = |value: f32| if value.is_nan() { f32::NAN } else { value };
            Arc::new(optional::<f32>(u, rows)?.into_iter().map(|it| it.map(value)).collect::<Float32Array>())
        }
        Type::Float8 => {
            let value = |value: f64| if value.is_nan() { f64::NAN } else { value };
            Arc::new(optional::<f64>(u, rows)?.into_iter().map(|it| it.map(value)).collect::<Float64Array>())
        }
        Type::Date => {
            let day = |value: i32| if matches!(value, i32::MIN | i32::MAX) { value } else { value % DAYS };
            Arc::new(optional::<i32>(u, rows)?.into_iter().map(|it| it.map(day)).collect::<Date32Array>())
        }
        Type::Timestamp | Type::TimestampTz => {
            let micros = |value: Option<i64>| value.map(|value| infinite(value, MICROS));
            let array: TimestampMicrosecondArray = optional::<i64>(u, rows)?.into_iter().map(micros).collect();
            Arc::new(array.with_data_type(ty.data_type()))
        }
        Type::Time => {
            let time = |value: i64| value.rem_euclid(86_400_000_001);
            Arc::new(optional::<i64>(u, rows)?.into_iter().map(|it| it.map(time)).collect::<Time64MicrosecondArray>())
        }
        Type::Interval => {
            let values = optional::<(i32, i32, i64)>(u, rows)?.into_iter();
            let interval = |(months, days, nanoseconds)| IntervalMonthDayNano::new(months, days, nanoseconds);
            Arc::new(values.map(|it| it.map(interval)).collect::<IntervalMonthDayNanoArray>())
        }
        Type::Uuid => {
            let values = optional::<[u8; 16]>(u, rows)?.into_iter();
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 16).expect("all have 16 bytes"))
        }
        textual_type!() => Arc::new(StringArray::from(optional::<&str>(u, rows)?)),
        Type::Bytea => Arc::new(BinaryArray::from(optional::<&[u8]>(u, rows)?)),
        Type::Array(element) => {
            let (offsets, nulls) = (lengths(u, rows)?, nulls(u, rows)?);
            let elements = column(u, element, offsets.last() as usize)?;
            Arc::new(ListArray::new(Arc::new(element.field("item")), offsets, elements, nulls))
        }
        Type::Range(_) | Type::Composite(_) => {
            let (mut fields, mut parts) = (Vec::new(), Vec::new());
            for attribute in ty.attributes() {
                fields.push(attribute.ty.field(&attribute.name));
                parts.push(column(u, &attribute.ty, rows)?);
            }
            Arc::new(StructArray::new(fields.into(), parts, nulls(u, rows)?))
        }
    })
}

/// A type of Arrow's, of those that servers of other protocols may have and those that nobody should.
pub fn foreign_type(u: &mut Unstructured<'_>, depth: usize) -> Result<DataType> {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration,
        FixedSizeBinary, FixedSizeList, Float16, Float32, Float64, Int8, Int16, Int32, Int64, Interval, LargeBinary,
        LargeList, LargeUtf8, List, Null, Struct, Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8,
        Utf8View,
    };
    let unit = |u: &mut Unstructured<'_>| {
        u.choose(&[TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond]).copied()
    };
    let item = |u: &mut Unstructured<'_>| Ok(Arc::new(Field::new("item", foreign_type(u, depth - 1)?, true)));
    Ok(match u.int_in_range(0..=if depth == 0 { 13 } else { 17 })? {
        0 => Decimal128(u.int_in_range(1..=38)?, u.int_in_range(-38..=38)?),
        1 => Decimal256(u.int_in_range(1..=76)?, u.int_in_range(-76..=76)?),
        2 => Timestamp(unit(u)?, None),
        3 => Timestamp(unit(u)?, Some((*u.choose(&["UTC", "+02:00", "Europe/Berlin", "-25:99", "x", ""])?).into())),
        4 => Time32(*u.choose(&[TimeUnit::Second, TimeUnit::Millisecond])?),
        5 => Time64(*u.choose(&[TimeUnit::Microsecond, TimeUnit::Nanosecond])?),
        6 => FixedSizeBinary(u.int_in_range(0..=20)?),
        7 => Duration(unit(u)?),
        8 => Interval(*u.choose(&[IntervalUnit::DayTime, IntervalUnit::MonthDayNano, IntervalUnit::YearMonth])?),
        9 => u.choose(&[Decimal32(9, 2), Decimal64(18, -5), Date32, Date64, Float16, Null])?.clone(),
        10 | 11 => u.choose(&[Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView])?.clone(),
        14 => List(item(u)?),
        15 => LargeList(item(u)?),
        16 => FixedSizeList(item(u)?, u.int_in_range(0..=3)?),
        17 => {
            let count = u.int_in_range(1..=3)?;
            let field = |number| Ok(Field::new(format!("a{number}"), foreign_type(u, depth - 1)?, true));
            Struct((0..count).map(field).collect::<Result<Vec<_>>>()?.into())
        }
        _ => u.choose(&[Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64, Boolean])?.clone(),
    })
}

/// A column of such a type; none if its values are none that Arrow takes.
pub fn foreign_column(u: &mut Unstructured<'_>, found: &DataType, rows: usize) -> Result<Option<ArrayRef>> {
    Ok(match found {
        DataType::Null => Some(Arc::new(NullArray::new(rows))),
        DataType::Boolean => Some(Arc::new(BooleanArray::from(optional::<bool>(u, rows)?))),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            arrow_cast::cast(&StringArray::from(optional::<&str>(u, rows)?), found).ok()
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            arrow_cast::cast(&BinaryArray::from(optional::<&[u8]>(u, rows)?), found).ok()
        }
        DataType::List(item) | DataType::LargeList(item) => {
            let (offsets, nulls) = (lengths(u, rows)?, nulls(u, rows)?);
            let Some(elements) = foreign_column(u, item.data_type(), offsets.last() as usize)? else { return Ok(None) };
            match found {
                DataType::List(_) => Some(Arc::new(ListArray::new(item.clone(), offsets, elements, nulls))),
                _ => {
                    let offsets = OffsetBuffer::new(offsets.iter().map(|end| i64::from(*end)).collect());
                    Some(Arc::new(LargeListArray::new(item.clone(), offsets, elements, nulls)))
                }
            }
        }
        DataType::FixedSizeList(item, size) => {
            let elements = foreign_column(u, item.data_type(), rows * *size as usize)?;
            let list =
                |elements| FixedSizeListArray::try_new_with_length(item.clone(), *size, elements, None, rows).ok();
            elements.and_then(list).map(|array| Arc::new(array) as ArrayRef)
        }
        DataType::Struct(fields) => {
            let mut parts = Vec::new();
            for field in fields {
                parts.push(foreign_column(u, field.data_type(), rows)?);
            }
            let Some(parts) = parts.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
            Some(Arc::new(StructArray::new(fields.clone(), parts, nulls(u, rows)?)))
        }
        fixed => {
            let width = match fixed {
                DataType::FixedSizeBinary(width) => *width as usize,
                other => other.primitive_width().unwrap_or_default(),
            };
            let mut bytes = vec![0; rows * width];
            u.fill_buffer(&mut bytes)?;
            let data =
                ArrayData::builder(fixed.clone()).len(rows).add_buffer(Buffer::from(bytes)).nulls(nulls(u, rows)?);
            data.build().ok().map(make_array)
        }
    })
}

/// Numbers at which lengths and offsets go wrong.
const EDGES: [i64; 12] = [0, -1, 1, 8, 0x7fff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 33, i64::MAX, i64::MIN, -8];

/// Changes bytes in up to `most` places; whether it changed any.
pub fn change(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>, most: usize) -> Result<bool> {
    let count = u.int_in_range(0..=most)?;
    for _ in 0..count {
        if bytes.is_empty() {
            break;
        }
        let place = u.int_in_range(0..=bytes.len() - 1)?;
        match u.int_in_range(0..=4)? {
            0 => bytes.truncate(place),
            1 | 2 => {
                let (width, place) = if u.arbitrary()? { (8, place / 8 * 8) } else { (4, place / 4 * 4) };
                let number = if u.arbitrary()? { *u.choose(&EDGES)? } else { u.arbitrary()? };
                let end = bytes.len().min(place + width);
                bytes[place..end].copy_from_slice(&number.to_le_bytes()[..end - place]);
            }
            3 => {
                let piece: &[u8] = u.arbitrary()?;
                bytes.splice(place..place, piece.iter().copied());
            }
            _ => bytes[place] = u.arbitrary()?,
        }
    }
    Ok(count > 0)
}

/// Whether all that arrays promise holds of a batch.
pub fn check_valid(batch: &RecordBatch) {
    for column in batch.columns() {
        assert_eq!(column.len(), batch.num_rows());
        column.to_data().validate_full().expect("what was accepted is valid");
    }
}
