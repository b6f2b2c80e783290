//! Aggregate functions: one result per group of rows (`docs/protocol.md` §4.7).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch, new_null_array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use udf_codec::batch::AggregateStep;
use udf_types::signature::Signature;
use udf_types::types::Type;

use transship_core::error::{at_row, user_error};
use transship_core::{CallError, Groups, IsCancelled, check_cancelled};

use crate::function::{Columns, Row, append, finish};
use crate::value::{Answer, Value};

/// The state of one group. States travel between containers in their JSON form.
pub trait Aggregate: Default + Serialize + DeserializeOwned + Send + 'static {
    /// The arguments, as a tuple.
    type Row: Row;
    /// The result.
    type Result: Answer;

    /// Adds a row.
    fn step(&mut self, row: Self::Row);
    /// Adds another group's rows.
    fn merge(&mut self, other: Self);
    /// Gives the result, as often as it is asked.
    fn finish(&self) -> Self::Result;
}

/// The groups of an aggregate function, by number.
pub(crate) struct GroupsOf<A> {
    signature: Arc<Signature>,
    states: HashMap<i64, A>,
}

impl<A: Aggregate> GroupsOf<A> {
    pub(crate) fn new(signature: Arc<Signature>) -> GroupsOf<A> {
        GroupsOf { signature, states: HashMap::new() }
    }
}

impl<A: Aggregate> Groups for GroupsOf<A> {
    fn answer(
        &mut self,
        batch: &RecordBatch,
        step: AggregateStep,
        is_cancelled: IsCancelled<'_>,
    ) -> Result<Vec<ArrayRef>, CallError> {
        let ty = &self.signature.result;
        let rows = batch.num_rows();
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        let nothing = || vec![new_null_array(&ty.data_type(), 0), new_null_array(&Type::Bytea.data_type(), 0)];
        let states = &mut self.states;
        match step {
            AggregateStep::Accumulate => {
                let arguments = batch.columns()[1..batch.num_columns() - 1].to_vec();
                let columns = Columns::<A::Row>::new(&self.signature, &arguments);
                for (row, number) in numbers.iter().enumerate() {
                    check_cancelled(row, is_cancelled)?;
                    let arguments = columns.read(row)?;
                    at_row(row);
                    states.entry(*number).or_default().step(arguments);
                }
                Ok(nothing())
            }
            AggregateStep::Merge => {
                let arrived = batch.column(batch.num_columns() - 1).as_binary::<i32>();
                for (row, number) in numbers.iter().enumerate() {
                    check_cancelled(row, is_cancelled)?;
                    let other = serde_json::from_slice(arrived.value(row)).map_err(|cause| {
                        CallError::violation(format!("the state of row {row} cannot be read: {cause}"))
                    })?;
                    at_row(row);
                    states.entry(*number).or_default().merge(other);
                }
                Ok(nothing())
            }
            AggregateStep::Finish => {
                let mut builder = <<A::Result as Answer>::Value as Value>::builder(ty, rows);
                for (row, number) in numbers.iter().enumerate() {
                    check_cancelled(row, is_cancelled)?;
                    at_row(row);
                    let answer = states.entry(*number).or_default().finish();
                    append(&self.signature, &mut builder, answer, row)?;
                }
                let results = finish::<<A::Result as Answer>::Value>(&self.signature, builder)?;
                Ok(vec![results, new_null_array(&Type::Bytea.data_type(), rows)])
            }
            AggregateStep::State => {
                let mut bytes = Vec::with_capacity(rows);
                for (row, number) in numbers.iter().enumerate() {
                    let state = serde_json::to_vec(states.entry(*number).or_default());
                    bytes.push(state.map_err(|cause| user_error(cause).at(row))?);
                }
                let bytes = BinaryArray::from_iter_values(bytes);
                Ok(vec![new_null_array(&ty.data_type(), rows), Arc::new(bytes)])
            }
            AggregateStep::Forget => {
                numbers.iter().for_each(|number| drop(states.remove(number)));
                Ok(nothing())
            }
        }
    }
}
