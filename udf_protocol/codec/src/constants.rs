//! Arguments that have the same value in every row: a model in a parameter, the constants of a query.
//!
//! In: the value of each, as a column of one row. Out: what a server that takes constants gets once (`docs/protocol.md`
//! §7.11), or whole columns for one that does not.

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, Int8Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::take::take;

use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::Signature;
use udf_types::{Advice, Error, Kind, Result};

/// The constants of a batch: position of the column, and its value as one row; in ascending order.
#[derive(Debug, Clone, Default)]
pub struct Constants(Vec<(usize, ArrayRef)>);

impl Constants {
    /// Those at these positions, which ascend.
    ///
    /// # Panics
    /// If a column does not have one row.
    pub fn new(columns: Vec<(usize, ArrayRef)>) -> Constants {
        assert!(columns.iter().all(|(_, value)| value.len() == 1), "a constant is one value");
        Constants(columns)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their positions.
    pub fn positions(&self) -> Vec<usize> {
        self.0.iter().map(|(position, _)| *position).collect()
    }

    /// The one at a position.
    pub fn at(&self, position: usize) -> Option<&ArrayRef> {
        self.0.iter().find(|(found, _)| *found == position).map(|(_, value)| value)
    }

    /// Their values, each as one row.
    pub fn values(&self) -> impl Iterator<Item = &ArrayRef> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Whether the others are these very columns.
    pub fn are(&self, others: &Constants) -> bool {
        let pairs = self.0.iter().zip(&others.0);
        self.0.len() == others.0.len() && pairs.into_iter().all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
    }

    /// The other columns of a batch, and these repeated in each of its rows, as `signature` has them.
    ///
    /// # Errors
    /// If one needs more than [`MAX_MESSAGE_BYTES`] then.
    pub fn repeat_in(&self, signature: &Signature, others: &RecordBatch) -> Result<RecordBatch> {
        if self.is_empty() {
            return Ok(others.clone());
        }
        let rows = others.num_rows();
        let first = UInt32Array::from_value(0, rows);
        let mut rest = others.columns().iter().cloned();
        let mut columns = Vec::with_capacity(others.num_columns() + self.0.len());
        for position in 0..others.num_columns() + self.0.len() {
            columns.push(match self.at(position) {
                Some(value)
                    if value.to_data().get_slice_memory_size().unwrap_or(0).saturating_mul(rows)
                        > MAX_MESSAGE_BYTES =>
                {
                    return Err(too_large(signature, position, rows));
                }
                Some(value) => take(value, &first, None).map_err(|_| too_large(signature, position, rows))?,
                None => rest.next().expect("each position has a constant or a column"),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(signature.call_schema(), columns, &options)
            .expect("the columns are of the signature's types"))
    }

    /// The other columns of a batch, and these as dictionaries of one value, as [`schema_with_constants`] has them.
    ///
    /// # Panics
    /// If `schema`, that of the whole columns, has other types.
    pub fn encode_in(&self, schema: &SchemaRef, others: &RecordBatch) -> RecordBatch {
        if self.is_empty() {
            return others.clone();
        }
        let rows = others.num_rows();
        let mut rest = others.columns().iter().cloned();
        let columns = (0..schema.fields().len()).map(|position| match self.at(position) {
            Some(value) => {
                let first = Int8Array::from_value(0, rows);
                let encoded = DictionaryArray::<Int8Type>::try_new(first, value.clone());
                Arc::new(encoded.expect("a constant has a value")) as ArrayRef
            }
            None => rest.next().expect("each position has a constant or a column"),
        });
        let columns = columns.collect();
        let schema = Arc::new(schema_with_constants(schema, &self.positions()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema, columns, &options).expect("the columns are of the schema's types")
    }

    /// The schema of the columns that are no constants.
    pub fn schema_of_others(&self, schema: &Schema) -> Schema {
        let fields = schema.fields().iter().enumerate();
        let others = fields.filter(|(position, _)| self.at(*position).is_none()).map(|(_, field)| field.clone());
        Schema::new_with_metadata(others.collect::<Vec<_>>(), schema.metadata().clone())
    }
}

/// The schema of calls in which the columns at these positions are constants, as dictionaries (`docs/protocol.md` §4.10).
pub fn schema_with_constants(schema: &Schema, positions: &[usize]) -> Schema {
    let fields = schema.fields().iter().enumerate().map(|(position, field)| {
        if !positions.contains(&position) {
            return field.clone();
        }
        let encoded = DataType::Dictionary(Box::new(DataType::Int8), Box::new(field.data_type().clone()));
        // Readers take extension types' names for those of whole columns.
        Arc::new(Field::new(field.name(), encoded, field.is_nullable()))
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

fn too_large(signature: &Signature, position: usize, rows: usize) -> Error {
    let function = &signature.function;
    Error::new(Kind::OutOfRange, format!("container function \"{function}\" cannot take a value"))
        .with_detail(format!(
            "Argument {} is the same in {rows} rows, and too large to be repeated in each, as its server wants it.",
            position + 1
        ))
        .with_advice(Advice::BatchRows)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{BinaryArray, Int64Array, StringArray};

    use super::*;
    use udf_types::signature::Argument;
    use udf_types::types::Type;

    fn signature(types: &[Type]) -> Signature {
        let argument = |ty: &Type| Argument { name: String::new(), ty: ty.clone() };
        Signature::scalar("f", types.iter().map(argument).collect(), Type::Int8)
    }

    #[test]
    fn constants_are_repeated_between_the_other_columns() {
        let signature = signature(&[Type::Text, Type::Int8, Type::Int8]);
        let constants = Constants::new(vec![
            (0, Arc::new(StringArray::from(vec!["a"])) as ArrayRef),
            (2, Arc::new(Int64Array::from(vec![None])) as ArrayRef),
        ]);
        let schema = Arc::new(constants.schema_of_others(&signature.call_schema()));
        let others = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]).unwrap();
        let all = constants.repeat_in(&signature, &others).unwrap();
        assert_eq!(all.schema(), signature.call_schema());
        assert_eq!(all.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a"; 3]);
        assert_eq!(all.column(1).as_primitive::<Int64Type>().values(), &[1, 2, 3]);
        assert_eq!(all.column(2).null_count(), 3);
        assert!(constants.are(&constants.clone()) && !constants.are(&Constants::default()));
    }

    #[test]
    fn what_cannot_be_repeated_is_an_error() {
        let signature = signature(&[Type::Bytea]);
        let model = BinaryArray::from(vec![vec![7_u8; 1 << 20].as_slice()]);
        let constants = Constants::new(vec![(0, Arc::new(model) as ArrayRef)]);
        let rows = |count| {
            let options = RecordBatchOptions::new().with_row_count(Some(count));
            RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options).unwrap()
        };
        assert_eq!(constants.repeat_in(&signature, &rows(2)).unwrap().num_rows(), 2);
        let error = constants.repeat_in(&signature, &rows(3000)).unwrap_err();
        assert_eq!(
            (error.kind(), error.detail().is_some_and(|detail| detail.contains("3000 rows"))),
            (Kind::OutOfRange, true)
        );
    }
}
