//! Columns with dictionaries: the distinct values of a segment's column are there once, and each row has the index of its value.
//!
//! Such a column has the type Dictionary of Arrow, with indexes of 32 bits and text or byte strings as values. All batches of a segment share
//! the dictionary. A NULL has no index.

use std::sync::Arc;

use arrow_array::builder::BinaryDictionaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, StringArray};
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take;
use udf_types::error::Result;

use crate::checks::check_bytes;
use crate::error;

/// The type of a column with a dictionary of values of this type.
pub fn encoded_type(values: &DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(values.clone()))
}

/// The type of the values of a column, with or without a dictionary.
pub fn value_type(column: &DataType) -> &DataType {
    match column {
        DataType::Dictionary(_, values) => values,
        values => values,
    }
}

/// Where the value of a row lies: in the column itself, or in its dictionary; `None` for a NULL of a column with a dictionary.
///
/// # Panics
/// If the column has no such row.
pub fn place(column: &ArrayRef, row: usize) -> Option<(&ArrayRef, usize)> {
    match column.as_dictionary_opt::<Int32Type>() {
        None => Some((column, row)),
        Some(encoded) => encoded.key(row).map(|index| (encoded.values(), index)),
    }
}

/// How many bytes the value of a row has in its dictionary; 0 without one.
///
/// # Panics
/// If the column has no such row.
pub fn value_bytes(column: &ArrayRef, row: usize) -> usize {
    match place(column, row) {
        Some((values, index)) if !Arc::ptr_eq(values, column) => bytes_of(values).value(index).len(),
        _ => 0,
    }
}

/// The values of a column: the column itself, or a copy of the values that its rows have in its dictionary.
///
/// # Errors
/// They are more than fit into one array.
pub fn decoded(column: &ArrayRef) -> Result<ArrayRef> {
    let Some(encoded) = column.as_dictionary_opt::<Int32Type>() else { return Ok(column.clone()) };
    let values = bytes_of(encoded.values());
    let length = |index: Option<i32>| index.map_or(0, |index| values.value_length(index as usize) as usize);
    let bytes = encoded.keys().iter().fold(0_usize, |bytes, index| bytes.saturating_add(length(index)));
    if bytes > i32::MAX as usize {
        return Err(error::batch_too_large(bytes));
    }
    take(encoded.values(), encoded.keys(), None).map_err(|cause| error::malformed("segment", format!("has {cause}")))
}

/// Texts or byte strings as byte strings, without a copy.
fn bytes_of(values: &ArrayRef) -> BinaryArray {
    match values.as_string_opt::<i32>() {
        Some(texts) => BinaryArray::from(texts.clone()),
        None => values.as_binary().clone(),
    }
}

/// The dictionary of a column of a segment that is being written. Values are numbered in the order in which they first come up.
pub(crate) struct Dictionary {
    /// Of the values.
    ty: DataType,
    numbers: BinaryDictionaryBuilder<Int32Type>,
    /// How many distinct values there are, and their bytes.
    count: usize,
    bytes: u64,
}

impl Dictionary {
    pub(crate) fn new(ty: &DataType) -> Dictionary {
        Dictionary { ty: ty.clone(), numbers: BinaryDictionaryBuilder::new(), count: 0, bytes: 0 }
    }

    /// The indexes of a column's values. The column may have a dictionary of its own.
    ///
    /// # Errors
    /// The column has another type, or the dictionary becomes longer than any segment.
    pub(crate) fn encode(&mut self, column: &ArrayRef) -> Result<Int32Array> {
        if column.data_type() != &self.ty && column.data_type() != &encoded_type(&self.ty) {
            let message = format!("a column has type {}, and its values are to be {}", column.data_type(), self.ty);
            return Err(error::not_written(&ArrowError::InvalidArgumentError(message)));
        }
        let Some(encoded) = column.as_dictionary_opt::<Int32Type>() else {
            return bytes_of(column).iter().map(|value| value.map(|value| self.number(value)).transpose()).collect();
        };
        // The numbers of its values here, once a row has them.
        let values = bytes_of(encoded.values());
        let mut numbers = vec![None; values.len()];
        let mut number = |index: usize| match numbers[index] {
            None if values.is_valid(index) => {
                numbers[index] = Some(self.number(values.value(index))?);
                Ok(numbers[index])
            }
            known => Ok(known),
        };
        (0..encoded.len()).map(|row| encoded.key(row).map_or(Ok(None), &mut number)).collect()
    }

    fn number(&mut self, value: &[u8]) -> Result<i32> {
        // Arrow panics where 32-bit offsets would not reach, which are those of more than twice as many bytes.
        check_bytes(value.len() as u64)?;
        let number = self.numbers.append(value).map_err(|cause| error::not_written(&cause))?;
        if number as usize == self.count {
            self.count += 1;
            self.bytes += value.len() as u64;
            check_bytes(self.bytes)?;
        }
        Ok(number)
    }

    /// Bytes of the distinct values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The distinct values.
    pub(crate) fn finish(mut self) -> Result<ArrayRef> {
        let values = self.numbers.finish().values().as_binary::<i32>().clone();
        Ok(match self.ty {
            DataType::Utf8 => {
                let texts = StringArray::try_from_binary(values).map_err(|cause| error::not_written(&cause))?;
                Arc::new(texts)
            }
            _ => Arc::new(values),
        })
    }
}
