//! Pieces of columns: how many rows of them one batch may have.

use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_schema::ArrowError;
use arrow_select::take::take;
use udf_client::inbox::bytes_of_column;

/// How many rows from the first of these on have values of so many bytes at most, texts of dictionaries spelled out, and their bytes;
/// one at least.
pub fn rows_that_fit(columns: &[&ArrayRef], rows: Range<usize>, most: usize) -> (usize, usize) {
    let is_plain = columns.iter().all(|column| column.as_dictionary_opt::<Int32Type>().is_none());
    let all_bytes = columns.iter().map(|column| bytes_of_column(column)).fold(0, usize::saturating_add);
    if is_plain && rows.start == 0 && all_bytes <= most {
        return (rows.len(), all_bytes);
    }
    let sizes: Vec<_> = columns.iter().map(|column| size_of_value(column)).collect();
    let (mut fit, mut bytes) = (0, 0_usize);
    for row in rows {
        let with_row = sizes.iter().fold(bytes, |sum, size| sum.saturating_add(size(row)));
        if fit > 0 && with_row > most {
            break;
        }
        (fit, bytes) = (fit + 1, with_row);
    }
    (fit, bytes)
}

/// How many bytes a row of a column takes.
fn size_of_value(column: &ArrayRef) -> Box<dyn Fn(usize) -> usize + '_> {
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Box::new(|row| size_of::<i32>() + texts.value_length(row) as usize);
    }
    if let Some(values) = column.as_binary_opt::<i32>() {
        return Box::new(|row| size_of::<i32>() + values.value_length(row) as usize);
    }
    if let Some(dictionary) = column.as_dictionary_opt::<Int32Type>()
        && let Some(texts) = dictionary.values().as_string_opt::<i32>()
    {
        let length = |key: usize| texts.value_length(key) as usize;
        return Box::new(move |row| size_of::<i32>() + dictionary.key(row).map_or(0, length));
    }
    let average = bytes_of_column(column).div_ceil(column.len().max(1));
    Box::new(move |_| average)
}

/// A column whose texts are spelled out, if it is a dictionary.
pub fn spelled_out(column: ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.as_dictionary_opt::<Int32Type>() {
        Some(dictionary) => take(dictionary.values(), dictionary.keys(), None),
        None => Ok(column),
    }
}
