//! Functions whose handlers are in another language, which pulls their calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{Field, Schema};
use udf_codec::adapt::adapt;
use udf_codec::batch::AggregateStep;
use udf_project::manifest::BatchForm;
use udf_types::row_texts::RowTexts;
use udf_types::signature::{FunctionKind, RowErrors, Signature};
use udf_types::types::Type;

use crate::error::CallError;
use crate::handler::{Calls, Emit, Groups, Handler, IsCancelled};
use crate::plain::{from_plain, to_plain};
use crate::queue::{Queue, Step, Work};
use crate::row_errors::in_pieces;

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
        let rows = batch.num_rows();
        let call = Work::new(self.function, step, exchange, self.columns_of(batch)?, row_errors);
        self.queue.run(call, is_cancelled, &mut |columns, is_last| {
            let mut columns = self.typed(columns, row_errors, step)?;
            self.check(&mut columns, rows, step)?;
            emit(columns, is_last)
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
        if columns.is_empty() && matches!(step, Step::Accumulate | Step::Merge | Step::Forget) {
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
        for (ty, column) in types.iter().zip(&columns) {
            typed.push(match self.is_plain {
                true => from_plain(ty, column).map_err(|misfit| {
                    // The results of a table function name their rows.
                    let row = typed.first().filter(|_| self.signature.kind == FunctionKind::Table).and_then(|rows| {
                        let rows = rows.as_primitive::<Int32Type>().values();
                        rows.get(misfit.row).and_then(|row| usize::try_from(*row).ok())
                    });
                    let fact = format!("It returned {}; the declared result is {ty}.", misfit.shown);
                    CallError::bad_result(fact).at(row.unwrap_or(misfit.row))
                })?,
                false => adapt(column, &ty.data_type())
                    .map_err(|fact| CallError::bad_result(format!("Its reply is not of type {ty}: {fact}")))?,
            });
        }
        Ok(typed)
    }

    /// Refuses a reply of another length, and rows that are none; cuts the errors of rows.
    fn check(&self, columns: &mut [ArrayRef], rows: usize, step: Step) -> Result<(), CallError> {
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
            let is_row = |number: &i32| usize::try_from(*number).is_ok_and(|number| number < rows);
            if numbers.null_count() > 0 || !numbers.values().is_sorted() || !numbers.values().iter().all(is_row) {
                return Err(CallError::bad_result("Its results are not of the batch's rows in order."));
            }
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

    fn groups(&self) -> Box<dyn Groups> {
        Box::new(PulledGroups { function: self.clone(), exchange: EXCHANGES.fetch_add(1, Ordering::Relaxed) })
    }
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
        let nothing = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let end = Work::new(self.function.function, Step::End, self.exchange, nothing, false);
        self.function.queue.push(Arc::new(end));
    }
}
