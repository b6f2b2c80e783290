//! Functions whose handlers are in another language, which pulls their calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use udf_codec::adapt::adapt;
use udf_codec::batch::AggregateStep;
use udf_project::manifest::BatchForm;
use udf_types::row_texts::RowTexts;
use udf_types::signature::{FunctionKind, RowErrors, Signature};
use udf_types::textual_type;
use udf_types::types::Type;

use crate::batches::{Batches, Taken};
use crate::dictionaries::{is_dictionary, numbers_of, unpacked, with_values};
use crate::error::CallError;
use crate::handler::{Calls, Emit, Groups, Handler, IsCancelled};
use crate::plain::{Misfit, from_plain, to_plain};
use crate::queue::Queue;
use crate::results::Results;
use crate::row_errors::in_pieces;
use crate::work::{Reply, Step, Work};

/// A function that is pulled.
#[derive(Debug, Clone)]
pub(crate) struct Pulled {
    pub(crate) queue: Arc<Queue>,
    /// Its number.
    pub(crate) function: usize,
    pub(crate) signature: Arc<Signature>,
    pub(crate) form: BatchForm,
    /// Whether columns are plain ones.
    pub(crate) is_plain: bool,
}

/// Numbers of exchanges.
static EXCHANGES: AtomicU64 = AtomicU64::new(1);

impl Pulled {
    /// The work that answers a batch of a scalar function, if one unit does.
    pub(crate) fn work(
        &self,
        batch: &RecordBatch,
        row_errors: Option<RowErrors>,
    ) -> Result<Option<Arc<Work>>, CallError> {
        if row_errors.is_some() && self.form != BatchForm::Row {
            return Ok(None);
        }
        let columns = self.columns_of(batch)?;
        Ok(Some(Arc::new(Work::new(self.function, Step::Call, 0, columns, row_errors.is_some()))))
    }

    /// What a language has replied to such work, which is checked.
    pub(crate) fn reply(&self, work: &Work, reply: Reply) -> Result<Vec<ArrayRef>, CallError> {
        let columns = match reply {
            Reply::Part(columns) | Reply::Last(columns) => columns,
            Reply::Failed(error) => return Err(error),
        };
        let mut columns = self.typed(columns, work.row_errors, work.step)?;
        self.check(&mut columns, work.batch.num_rows(), work.step, &mut 0)?;
        Ok(columns)
    }

    /// Has a batch answered, and takes the reply in parts, which are checked.
    fn ask(
        &self,
        step: Step,
        exchange: u64,
        batch: &RecordBatch,
        row_errors: bool,
        is_cancelled: IsCancelled<'_>,
        emit: Emit<'_>,
    ) -> Result<(), CallError> {
        let call = Work::new(self.function, step, exchange, self.columns_of(batch)?, row_errors);
        self.give(call, batch.num_rows(), is_cancelled, emit)
    }

    /// The same for work that has all that it needs.
    fn give(&self, call: Work, rows: usize, is_cancelled: IsCancelled<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        let (row_errors, step, mut first_row) = (call.row_errors, call.step, 0);
        self.queue.run(call, is_cancelled, &mut |columns, is_last| {
            let mut columns = self.typed(columns, row_errors, step)?;
            self.check(&mut columns, rows, step, &mut first_row)?;
            emit(columns, is_last)
        })
    }

    /// The next batch of a stream, as the language wants it. A language that finds nothing is told when there is something.
    fn take_batch(&self, stream: &Arc<Batches>, exchange: u64, patience: Option<Duration>) -> Result<Taken, CallError> {
        Ok(match stream.next_within(patience)? {
            Taken::Batch(batch) => Taken::Batch(self.columns_of(&batch)?),
            Taken::Nothing => {
                let (queue, function) = (self.queue.clone(), self.function);
                let wake = move || queue.push(Arc::new(Work::without_rows(function, Step::Resume, exchange)));
                stream.when_ready(wake);
                Taken::Nothing
            }
            Taken::Ended => Taken::Ended,
        })
    }

    /// A batch's columns as the language wants them.
    fn columns_of(&self, batch: &RecordBatch) -> Result<RecordBatch, CallError> {
        if !self.is_plain {
            return Ok(batch.clone());
        }
        let types = self.signature.call_types();
        let columns: Vec<_> = types.iter().zip(batch.columns()).map(|(ty, column)| to_plain(ty, column)).collect();
        let schema = batch.schema();
        let names = schema.fields().iter().zip(&columns);
        let fields: Vec<_> =
            names.map(|(field, column)| Field::new(field.name(), column.data_type().clone(), true)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
            .map_err(|cause| CallError::violation(cause.to_string()))
    }

    /// A reply's columns as the signature has them.
    fn typed(&self, columns: Vec<ArrayRef>, row_errors: bool, step: Step) -> Result<Vec<ArrayRef>, CallError> {
        let mut types = self.signature.reply_types();
        if row_errors {
            types.push(Type::Text);
        }
        if columns.is_empty() && matches!(step, Step::Accumulate | Step::Merge | Step::Forget | Step::Map) {
            return Ok(types.iter().map(|ty| new_null_array(&ty.data_type(), 0)).collect());
        }
        if columns.len() != types.len() {
            return Err(CallError::bad_result(format!(
                "Its reply has {} columns, not {}.",
                columns.len(),
                types.len()
            )));
        }
        let mut typed: Vec<ArrayRef> = Vec::with_capacity(types.len());
        for (position, (ty, column)) in types.iter().zip(&columns).enumerate() {
            if row_errors && position + 1 == types.len() && *column.data_type() == DataType::Binary {
                // What an exception says may hold any bytes.
                let texts = column.as_binary::<i32>().iter().map(|text| text.map(String::from_utf8_lossy));
                typed.push(Arc::new(texts.collect::<StringArray>()));
                continue;
            }
            let is_encoded = is_dictionary(column.data_type());
            let may_stay = !row_errors && matches!(step, Step::Call | Step::Map);
            let keeps_dictionary = is_encoded && may_stay && matches!(ty, textual_type!());
            let column = match is_encoded && !keeps_dictionary {
                true => &unpacked(column).map_err(CallError::bad_result)?,
                false => column,
            };
            typed.push(match self.is_plain {
                true => from_plain_or_encoded(ty, column).map_err(|misfit| {
                    let fact = format!("It returned {}; the declared result is {ty}.", misfit.shown);
                    let error = CallError::bad_result(fact);
                    match self.signature.kind {
                        // The results of a stream are of no row.
                        FunctionKind::Map => error,
                        // The results of a table function name their rows.
                        FunctionKind::Table => {
                            let rows = typed.first().map(|rows| rows.as_primitive::<Int32Type>().values());
                            let row = rows.and_then(|rows| usize::try_from(*rows.get(misfit.row)?).ok());
                            error.at(row.unwrap_or(misfit.row))
                        }
                        FunctionKind::Scalar | FunctionKind::Aggregate => error.at(misfit.row),
                    }
                })?,
                false if keeps_dictionary => column.clone(),
                false => adapt(column, &ty.data_type())
                    .map_err(|fact| CallError::bad_result(format!("Its reply is not of type {ty}: {fact}")))?,
            });
        }
        Ok(typed)
    }

    /// Refuses a part of a reply of another length, and rows that are none; cuts the errors of rows. The first row that a part of a table
    /// function's reply may have is the last of the part before it.
    fn check(&self, columns: &mut [ArrayRef], rows: usize, step: Step, first_row: &mut i32) -> Result<(), CallError> {
        let found = columns[0].len();
        if columns.iter().any(|column| column.len() != found) {
            return Err(CallError::bad_result("Its reply has columns of different lengths."));
        }
        let wanted = match (self.signature.kind, step) {
            (FunctionKind::Table | FunctionKind::Map, _) => None,
            (_, Step::Accumulate | Step::Merge | Step::Forget) => Some(0),
            _ => Some(rows),
        };
        if wanted.is_some_and(|wanted| wanted != found) {
            return Err(CallError::bad_result(format!("It returned {found} values for {} rows.", wanted.unwrap_or(0))));
        }
        if self.signature.kind == FunctionKind::Table {
            let numbers = columns[0].as_primitive::<Int32Type>();
            let first = *first_row;
            let is_row = |number: &i32| *number >= first && usize::try_from(*number).is_ok_and(|number| number < rows);
            if numbers.null_count() > 0 || !numbers.values().is_sorted() || !numbers.values().iter().all(is_row) {
                return Err(CallError::bad_result("Its results are not of the batch's rows in order."));
            }
            *first_row = numbers.values().last().copied().unwrap_or(first);
        }
        if self.signature.kind == FunctionKind::Scalar
            && let Some(errors) = columns.get_mut(1)
        {
            let mut texts = RowTexts::new();
            let cut = errors.as_string::<i32>().iter().map(|error| error.map(|error| texts.cut(error)));
            *errors = Arc::new(cut.collect::<arrow_array::StringArray>());
        }
        Ok(())
    }
}

impl Handler for Pulled {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        let Some(row_errors) = calls.row_errors else {
            return self.ask(Step::Call, 0, calls.batch, false, calls.is_cancelled, emit);
        };
        if self.form == BatchForm::Row {
            return self.ask(Step::Call, 0, calls.batch, true, calls.is_cancelled, emit);
        }
        // An empty batch has no rows to go on after, and is called all the same.
        let row_errors = if calls.batch.num_rows() == 0 { RowErrors::Again } else { row_errors };
        let result = self.signature.result.data_type();
        let mut call = |piece: &RecordBatch| {
            let mut column = None;
            self.ask(Step::Call, 0, piece, false, calls.is_cancelled, &mut |columns, _| {
                column = columns.into_iter().next();
                Ok(())
            })?;
            column.ok_or_else(|| CallError::bad_result("It returned nothing."))
        };
        emit(in_pieces(calls.batch, &result, row_errors, calls.is_cancelled, &mut call)?, true)
    }

    fn map(
        &self,
        batches: &Arc<Batches>,
        is_cancelled: IsCancelled<'_>,
        results: &Arc<Results>,
    ) -> Result<(), CallError> {
        let exchange = EXCHANGES.fetch_add(1, Ordering::Relaxed);
        let mut call = Work::without_rows(self.function, Step::Map, exchange);
        let (pulled, stream) = (self.clone(), batches.clone());
        call.stream = Some(Box::new(move |patience| pulled.take_batch(&stream, exchange, patience)));
        let mut give = |columns: Vec<ArrayRef>, _| columns.into_iter().try_for_each(|column| results.give(column));
        self.give(call, 0, is_cancelled, &mut give)
    }

    fn groups(&self) -> Box<dyn Groups> {
        Box::new(PulledGroups { function: self.clone(), exchange: EXCHANGES.fetch_add(1, Ordering::Relaxed) })
    }
}

/// A plain column as one of a type, or as a dictionary of its values if it is one.
fn from_plain_or_encoded(ty: &Type, column: &ArrayRef) -> Result<ArrayRef, Misfit> {
    let Some(dictionary) = column.as_any_dictionary_opt() else {
        return from_plain(ty, column);
    };
    let values = from_plain(ty, dictionary.values()).map_err(|misfit| {
        let has_it = |number: Option<i32>| number.and_then(|number| usize::try_from(number).ok()) == Some(misfit.row);
        let first = numbers_of(column).ok().and_then(|numbers| numbers.iter().position(has_it));
        Misfit { row: first.unwrap_or(0), ..misfit }
    })?;
    with_values(column, values).map_err(|shown| Misfit { row: 0, shown })
}

/// An exchange whose groups a language keeps.
struct PulledGroups {
    function: Pulled,
    exchange: u64,
}

impl Groups for PulledGroups {
    fn answer(
        &mut self,
        batch: &RecordBatch,
        step: AggregateStep,
        is_cancelled: IsCancelled<'_>,
    ) -> Result<Vec<ArrayRef>, CallError> {
        let mut reply = Vec::new();
        self.function.ask(step.into(), self.exchange, batch, false, is_cancelled, &mut |columns, _| {
            reply = columns;
            Ok(())
        })?;
        Ok(reply)
    }
}

impl Drop for PulledGroups {
    fn drop(&mut self) {
        let end = Work::without_rows(self.function.function, Step::End, self.exchange);
        self.function.queue.push(Arc::new(end));
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int32Array, Int64Array};
    use udf_types::signature::Argument;

    use super::*;
    use crate::queue::Found;

    /// Answers a batch of two rows of a table function with results of these rows, in parts.
    fn answer_in_parts(parts: &'static [&'static [i32]]) -> Result<(), CallError> {
        let queue = Arc::new(Queue::new(false).unwrap());
        let argument = Argument { name: String::new(), ty: Type::Int8 };
        let signature = Signature::scalar("f", vec![argument], Type::Int8);
        let signature = Arc::new(Signature { kind: FunctionKind::Table, ..signature });
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1_i64, 2]));
        let batch = RecordBatch::try_new(signature.call_schema(), vec![column]).unwrap();
        let pulled = Pulled { queue: queue.clone(), function: 0, signature, form: BatchForm::Row, is_plain: false };
        let language = std::thread::spawn(move || {
            let Found::Work(work) = queue.next(None) else { panic!("no work") };
            let columns = |rows: &[i32]| -> Vec<ArrayRef> {
                let results = Int64Array::from(vec![0_i64; rows.len()]);
                vec![Arc::new(Int32Array::from(rows.to_vec())), Arc::new(results)]
            };
            // Nobody waits for those behind a part that is refused.
            let _ = parts.iter().all(|rows| work.give_part(columns(rows)));
            work.end(Reply::Last(columns(&[])));
        });
        let calls = Calls { batch: &batch, row_errors: None, is_cancelled: &|| false };
        let answered = pulled.answer(&calls, &mut |_, _| Ok(()));
        language.join().unwrap();
        answered
    }

    #[test]
    fn rows_of_results_go_back_neither_within_a_part_nor_from_part_to_part() {
        const IN_ORDER: [&[&[i32]]; 3] = [&[&[0, 0, 1]], &[&[0], &[0, 1], &[], &[1]], &[&[1], &[1]]];
        const OTHERS: [&[&[i32]]; 5] = [&[&[1, 0]], &[&[1], &[0]], &[&[0, 1], &[], &[0, 1]], &[&[2]], &[&[-1]]];
        for parts in IN_ORDER {
            answer_in_parts(parts).unwrap();
        }
        for parts in OTHERS {
            assert_eq!(answer_in_parts(parts).unwrap_err().kind, "bad_result", "{parts:?}");
        }
    }
}
