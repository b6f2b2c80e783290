//! Errors of rows for handlers of whole batches (`docs/protocol.md` §4.9): the rows that fail are found by calls with fewer.

use arrow_array::{ArrayRef, RecordBatch, StringArray, new_empty_array, new_null_array};
use arrow_schema::DataType;
use arrow_select::concat::concat;
use std::sync::Arc;
use udf_types::row_texts::RowTexts;
use udf_types::signature::RowErrors;

use crate::dictionaries::{is_dictionary, unpacked};
use crate::error::CallError;
use crate::handler::IsCancelled;

/// The results of a batch, and the error of each row that has one. A batch that fails is called again in halves, down to single
/// rows; where no row may be called twice, it is called row by row.
///
/// # Errors
/// What is no error of a row: any kind but `user_code`, and the client's going away.
pub fn in_pieces(
    batch: &RecordBatch,
    result: &DataType,
    row_errors: RowErrors,
    is_cancelled: IsCancelled<'_>,
    call: &mut dyn FnMut(&RecordBatch) -> Result<ArrayRef, CallError>,
) -> Result<Vec<ArrayRef>, CallError> {
    let rows = batch.num_rows();
    let step = if row_errors == RowErrors::Again { rows.max(1) } else { 1 };
    let mut ranges: Vec<_> = (0..rows).step_by(step).map(|first| (first, step.min(rows - first))).rev().collect();
    let (mut results, mut errors, mut texts) = (Vec::new(), Vec::with_capacity(rows.min(1 << 16)), RowTexts::new());
    while let Some((first, count)) = ranges.pop() {
        if is_cancelled() {
            return Err(CallError::user_code("cancelled"));
        }
        match call(&batch.slice(first, count)) {
            Ok(column) => {
                let is_encoded = is_dictionary(column.data_type());
                let column = if is_encoded { unpacked(&column).map_err(CallError::bad_result)? } else { column };
                results.push(column);
                errors.extend((0..count).map(|_| None));
            }
            Err(error) if !error.is_of_handler() => {
                return Err(CallError { row: error.row.map(|row| first + row), ..error });
            }
            Err(_) if count > 1 => {
                let half = count / 2;
                ranges.extend([(first + half, count - half), (first, half)]);
            }
            Err(error) => {
                results.push(new_null_array(result, 1));
                errors.push(Some(texts.cut(&error.message).to_string()));
            }
        }
    }
    let results: Vec<_> = results.iter().map(AsRef::as_ref).collect();
    let results = match results.is_empty() {
        true => new_empty_array(result),
        false => concat(&results).map_err(|cause| CallError::bad_result(format!("Its results differ: {cause}.")))?,
    };
    Ok(vec![results, Arc::new(StringArray::from(errors))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Int64Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_schema::{Field, Schema};

    fn run(values: &[i64], row_errors: RowErrors) -> (Vec<Option<i64>>, Vec<Option<String>>, Vec<usize>) {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let batch = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap();
        let mut sizes = Vec::new();
        let mut call = |piece: &RecordBatch| {
            sizes.push(piece.num_rows());
            let bad = piece.column(0).as_primitive::<Int64Type>().values().iter().position(|value| *value == 13);
            bad.map_or(Ok(piece.column(0).clone()), |row| Err(CallError::user_code("13 is bad").at(row)))
        };
        let columns = in_pieces(&batch, &DataType::Int64, row_errors, &|| false, &mut call).unwrap();
        let errors = columns[1].as_string::<i32>().iter().map(|text| text.map(str::to_string)).collect();
        (columns[0].as_primitive::<Int64Type>().iter().collect(), errors, sizes)
    }

    #[test]
    fn rows_that_fail_are_found() {
        let bad = || Some("13 is bad".to_string());
        let (results, errors, sizes) = run(&[1, 2, 13, 4], RowErrors::Again);
        assert_eq!(results, [Some(1), Some(2), None, Some(4)]);
        assert_eq!(errors, [None, None, bad(), None]);
        assert_eq!(sizes, [4, 2, 2, 1, 1]);
        let (results, errors, sizes) = run(&[13, 2], RowErrors::Once);
        assert_eq!((results, errors, sizes), (vec![None, Some(2)], vec![bad(), None], vec![1, 1]));
        assert_eq!(run(&[], RowErrors::Again).0, []);
    }
}
