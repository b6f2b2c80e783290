//! What no segment may be, whether it is written or read.

use arrow_schema::{DataType, Field, Schema};
use udf_types::error::Result;
use udf_types::types::EXTENSION_KEY;

use crate::bounds::{MOST_BYTES, MOST_FIELDS, MOST_TABLE_COLUMNS};
use crate::error;
use crate::keys::{MOST_COLUMNS, check_key_field};

/// Refuses a segment that is longer than any may be.
pub(crate) fn check_bytes(bytes: u64) -> Result<()> {
    if bytes > MOST_BYTES { Err(error::too_large(bytes)) } else { Ok(()) }
}

/// Refuses what no segment has as its columns, or more of them than any has.
pub(crate) fn check_schema(schema: &Schema) -> Result<()> {
    let columns = schema.fields().len();
    if columns > MOST_TABLE_COLUMNS || schema.flattened_fields().len() > MOST_FIELDS {
        return Err(error::too_many_columns());
    }
    schema.fields().iter().try_for_each(|field| check_column(field))
}

/// Refuses columns that no segment holds. Only text and byte strings have dictionaries, and no type that travels as text.
fn check_column(field: &Field) -> Result<()> {
    match field.data_type() {
        DataType::Dictionary(index, values)
            if **index == DataType::Int32
                && matches!(**values, DataType::Utf8 | DataType::Binary)
                && !field.metadata().contains_key(EXTENSION_KEY) =>
        {
            Ok(())
        }
        ty => check_type(ty),
    }
}

/// Refuses types that no segment holds: those with dictionaries, views, maps, unions or runs, and those without any bytes.
fn check_type(ty: &DataType) -> Result<()> {
    match ty {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => Ok(()),
        DataType::FixedSizeBinary(1..=0x00ff_ffff) => Ok(()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, 1..) => {
            check_type(item.data_type())
        }
        DataType::Struct(parts) if !parts.is_empty() => parts.iter().try_for_each(|part| check_type(part.data_type())),
        DataType::Boolean => Ok(()),
        other if other.is_primitive() => Ok(()),
        other => Err(error::unsupported_column(other)),
    }
}

/// Checks that columns at these positions can be a key.
pub(crate) fn check_key(schema: &Schema, key: &[usize]) -> Result<()> {
    if key.len() > MOST_COLUMNS {
        return Err(error::invalid_key(format!("has {} columns, of which {MOST_COLUMNS} are possible", key.len())));
    }
    for (place, position) in key.iter().enumerate() {
        let Some(field) = schema.fields().get(*position) else {
            return Err(error::invalid_key(format!("has column {position}, which the table does not have")));
        };
        if key[..place].contains(position) {
            return Err(error::invalid_key(format!("has column {position} twice")));
        }
        check_key_field(field)?;
    }
    Ok(())
}
