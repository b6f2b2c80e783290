//! Whether a reply is one to its batch: its types, its rows, and the calls that they answer.

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Fields};

use udf_codec::batch::{AggregateStep, CallBatch};
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;
use udf_types::{Error, Result};

/// Checks a reply's shape: `docs/protocol.md` §4, "a reply has the columns of the declared result type and as many rows
/// as the batch it answers", and what it says of the other kinds of functions.
pub fn check_reply(signature: &Signature, call: &CallBatch, columns: &RecordBatch) -> Result<()> {
    let function = &signature.function;
    check_types(signature, columns.schema_ref().fields(), call.takes_dictionaries)?;
    let (calls, rows) = (call.columns.num_rows(), columns.num_rows());
    let expected = match (signature.kind, call.step) {
        (FunctionKind::Scalar, _) | (_, Some(AggregateStep::State | AggregateStep::Finish)) => Some(calls),
        (FunctionKind::Aggregate, _) => Some(0),
        (FunctionKind::Table | FunctionKind::Map, _) => None,
    };
    if expected.is_some_and(|expected| expected != rows) {
        return Err(Error::protocol(function, format!("Its reply has {rows} rows for {calls} calls.")));
    }
    if signature.kind == FunctionKind::Table {
        check_row_numbers(function, calls, columns)?;
    }
    if signature.kind == FunctionKind::Scalar && signature.row_errors.is_some() {
        check_row_errors(function, columns)?;
    }
    Ok(())
}

/// `docs/protocol.md` §4.9: "the result of a row with an error is NULL".
fn check_row_errors(function: &str, columns: &RecordBatch) -> Result<()> {
    let (results, errors) = (columns.column(0).logical_nulls(), columns.column(1));
    let has_both = |row: usize| errors.is_valid(row) && results.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    if errors.null_count() < errors.len() && (0..errors.len()).any(has_both) {
        return Err(Error::protocol(function, "Its reply has a result and an error for one row."));
    }
    Ok(())
}

/// Checks the types of a reply's columns, which texts may have as dictionaries if that is taken.
pub(super) fn check_types(signature: &Signature, fields: &Fields, takes_dictionaries: bool) -> Result<()> {
    let function = &signature.function;
    let types = signature.reply_types();
    if fields.len() != types.len() {
        return Err(Error::protocol(function, format!("Its reply has {} columns, not {}.", fields.len(), types.len())));
    }
    for (field, ty) in fields.iter().zip(&types) {
        let is_encoded = matches!(field.data_type(), DataType::Dictionary(places, texts)
            if **places == DataType::Int32 && **texts == DataType::Utf8);
        let found = match is_encoded && takes_dictionaries {
            true => Type::from_field(&field.as_ref().clone().with_data_type(DataType::Utf8)),
            false => Type::from_field(field),
        };
        let found = found
            .map_err(|_| Error::bad_result(function, format!("Its reply is of Arrow type {}.", field.data_type())))?;
        if !ty.accepts(&found) {
            return Err(Error::bad_result(
                function,
                format!("Its reply is of type {found}; the declared result is {ty}."),
            ));
        }
    }
    Ok(())
}

/// A table function's results name the rows of the batch that they answer, in order.
fn check_row_numbers(function: &str, calls: usize, columns: &RecordBatch) -> Result<()> {
    let rows = columns.column(0).as_primitive::<Int32Type>();
    let are_within = rows.values().iter().all(|row| usize::try_from(*row).is_ok_and(|row| row < calls));
    if rows.null_count() > 0 || !are_within || !rows.values().is_sorted() {
        return Err(disordered(function));
    }
    Ok(())
}

/// Checks that a part of a table function's answer goes on where the part before it ended, at row `last`; the last row of both.
pub(crate) fn check_part(function: &str, last: i32, part: &RecordBatch) -> Result<i32> {
    let rows = part.column(0).as_primitive::<Int32Type>().values();
    match rows.first() {
        Some(first) if *first < last => Err(disordered(function)),
        _ => Ok(rows.last().copied().unwrap_or(last)),
    }
}

fn disordered(function: &str) -> Error {
    Error::protocol(function, "The row numbers of its reply are not those of the batch, in order.")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn dictionaries_are_taken_of_int32_and_text_alone_and_only_if_they_may_come() {
        use arrow_array::types::{ArrowDictionaryKeyType, Int8Type};
        use arrow_array::{ArrayRef, DictionaryArray, Int64Array, PrimitiveArray, StringArray};

        fn reply<K: ArrowDictionaryKeyType<Native: From<i8>>>(values: ArrayRef) -> RecordBatch {
            let places = PrimitiveArray::<K>::from_iter_values([K::Native::from(0)]);
            let array: ArrayRef = Arc::new(DictionaryArray::try_new(places, values).unwrap());
            RecordBatch::try_from_iter_with_nullable([("", array, true)]).unwrap()
        }
        let (text, number) = (Arc::new(StringArray::from(vec!["a"])), Arc::new(Int64Array::from(vec![1])));
        let calls = CallBatch::new(0, reply::<Int32Type>(text.clone()));
        let takes = CallBatch { takes_dictionaries: true, ..calls.clone() };
        let is_taken = |result, calls: &CallBatch, reply: RecordBatch| {
            check_reply(&Signature::scalar("f", Vec::new(), result), calls, &reply).is_ok()
        };
        assert!(is_taken(Type::Text, &takes, reply::<Int32Type>(text.clone())));
        assert!(!is_taken(Type::Text, &calls, reply::<Int32Type>(text.clone())));
        assert!(!is_taken(Type::Text, &takes, reply::<Int8Type>(text.clone())));
        assert!(!is_taken(Type::Int8, &takes, reply::<Int32Type>(text)));
        assert!(!is_taken(Type::Int8, &takes, reply::<Int32Type>(number)));
    }
}
