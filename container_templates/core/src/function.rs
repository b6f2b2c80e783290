//! A function of the container: what transports know of it, and the door to its handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, Int32Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_schema::{ArrowError, DataType, FieldRef, Schema, SchemaRef};
use arrow_select::concat::concat;
use arrow_select::take::take;
use udf_codec::constants::Constants;
use udf_types::signature::{FunctionKind, RowErrors, Signature};
use udf_types::types::Type;

use crate::batches::Batches;
use crate::dictionaries::{is_dictionary, settle};
use crate::error::{CallError, guarded};
use crate::handler::{Calls, Emit, Groups, Handler, IsCancelled};
use crate::pulled::Pulled;
use crate::results::Results;
use crate::work::{Reply, Work};

/// Bytes of repeated constants that a handler is given at a time.
const MOST_REPEATED_BYTES: usize = 64 << 20;

/// A batch as it arrives: the columns that differ from row to row, and the others (`docs/protocol.md` §4.10).
pub(crate) struct Arrived {
    pub(crate) others: RecordBatch,
    pub(crate) constants: Constants,
}

/// A function of the container.
pub struct Function {
    signature: Arc<Signature>,
    with_row_errors: Arc<Signature>,
    handler: Box<dyn Handler>,
    /// The handler, if another language pulls its calls.
    pulled: Option<Pulled>,
    takes_long: AtomicBool,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Function").field(&self.signature).finish()
    }
}

impl Function {
    /// A function of this signature.
    pub fn new(signature: Arc<Signature>, handler: Box<dyn Handler>) -> Function {
        let with_row_errors = Signature { row_errors: Some(RowErrors::Again), ..signature.as_ref().clone() };
        let (with_row_errors, takes_long) = (Arc::new(with_row_errors), AtomicBool::new(false));
        Function { signature, with_row_errors, handler, pulled: None, takes_long }
    }

    /// A function whose calls another language pulls.
    pub(crate) fn of_puller(pulled: Pulled) -> Function {
        Function { pulled: Some(pulled.clone()), ..Function::new(pulled.signature.clone(), Box::new(pulled)) }
    }

    /// Whether one unit of work of another language may answer a batch.
    pub(crate) fn is_pulled(&self) -> bool {
        self.pulled.is_some() && self.signature.kind == FunctionKind::Scalar
    }

    /// The unit of work that answers a batch, if one does; `answer` is for others.
    pub(crate) fn work(
        &self,
        arrived: &Arrived,
        row_errors: Option<RowErrors>,
    ) -> Result<Option<Arc<Work>>, CallError> {
        let Some(pulled) = self.pulled.as_ref().filter(|_| self.is_pulled()) else { return Ok(None) };
        self.check(arrived, row_errors)?;
        let Arrived { others, constants } = arrived;
        if constants.is_empty() {
            return pulled.work(others, row_errors);
        }
        if others.num_rows() > rows_of_piece(constants) {
            return Ok(None);
        }
        pulled.work(&repeat(&self.signature, others, constants).map_err(unrepeatable)?, row_errors)
    }

    /// The reply's columns from what a language has replied to that unit.
    pub(crate) fn reply_to(&self, work: &Work, reply: Reply, may_encode: bool) -> Result<Vec<ArrayRef>, CallError> {
        let pulled = self.pulled.as_ref().ok_or_else(|| CallError::violation("no language answers the function"))?;
        let mut columns = pulled.reply(work, reply)?;
        let row_errors = work.row_errors.then_some(RowErrors::Again);
        settle(&mut columns, &self.reply_types(row_errors), may_encode).map_err(CallError::bad_result)?;
        Ok(columns)
    }

    /// Whether its last call took long.
    pub(crate) fn takes_long(&self) -> bool {
        self.takes_long.load(Ordering::Relaxed)
    }

    pub(crate) fn note_long(&self, takes_long: bool) {
        // Threads do not take a line of memory from one another that stays as it is.
        if self.takes_long() != takes_long {
            self.takes_long.store(takes_long, Ordering::Relaxed);
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.signature.function
    }

    /// Its signature.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The types of a reply's columns.
    pub(crate) fn reply_types(&self, row_errors: Option<RowErrors>) -> Vec<Type> {
        if row_errors.is_some() { self.with_row_errors.reply_types() } else { self.signature.reply_types() }
    }

    /// The schema of a reply (`docs/protocol.md` §4).
    pub(crate) fn reply_schema(&self, row_errors: Option<RowErrors>) -> SchemaRef {
        let names: &[&str] = match self.signature.kind {
            FunctionKind::Table => &["row", self.name()],
            FunctionKind::Aggregate => &[self.name(), "state"],
            FunctionKind::Scalar | FunctionKind::Map => &[self.name(), "error"],
        };
        let fields =
            self.reply_types(row_errors).iter().zip(names).map(|(ty, name)| ty.field(name)).collect::<Vec<_>>();
        Arc::new(Schema::new(fields))
    }

    /// A reply's columns as a batch, in which columns of texts may be dictionaries.
    pub(crate) fn reply(
        &self,
        columns: Vec<ArrayRef>,
        row_errors: Option<RowErrors>,
    ) -> Result<RecordBatch, CallError> {
        let options = RecordBatchOptions::new().with_row_count(columns.first().map(|column| column.len()));
        let mut schema = self.reply_schema(row_errors);
        if columns.iter().any(|column| is_dictionary(column.data_type())) {
            let fields = schema.fields().iter().zip(&columns);
            let fields = fields.map(|(field, column)| match is_dictionary(column.data_type()) {
                true => Arc::new(field.as_ref().clone().with_data_type(column.data_type().clone())),
                false => field.clone(),
            });
            schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        }
        RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|cause| CallError::bad_result(format!("Its reply is malformed: {cause}.")))
    }

    /// Refuses a batch whose columns are not the arguments, and errors of rows where there are none.
    pub(crate) fn check(&self, arrived: &Arrived, row_errors: Option<RowErrors>) -> Result<(), CallError> {
        let (types, name, kind) = (self.signature.call_types(), self.name(), self.signature.kind);
        let Arrived { others, constants } = arrived;
        let found = others.num_columns() + constants.positions().len();
        if found != types.len() {
            return Err(CallError::violation(format!("{name} takes {} columns, not {found}", types.len())));
        }
        if row_errors.is_some() && kind != FunctionKind::Scalar {
            return Err(CallError::violation(format!("{name} is no scalar function, and its rows have no errors")));
        }
        if !constants.is_empty() && !matches!(kind, FunctionKind::Scalar | FunctionKind::Table) {
            return Err(CallError::violation(format!("{name} takes no constants")));
        }
        let schema = others.schema();
        let mut fields = schema.fields().iter();
        for (position, ty) in types.iter().enumerate() {
            let (is_right, found) = match constants.at(position) {
                Some(value) => (has_form(value.data_type(), &ty.data_type()), value.data_type().clone()),
                // Engines need not say the extensions that texts carry.
                None => fields.next().map_or((false, DataType::Null), |field| {
                    let is_right = Type::from_field(field).is_ok_and(|found| found == *ty);
                    (is_right || has_form(field.data_type(), &ty.data_type()), field.data_type().clone())
                }),
            };
            if !is_right {
                return Err(CallError::violation(format!("column {} of {name} is {ty}, not {found}", position + 1)));
            }
        }
        // Table functions number rows with 32 bits.
        if i32::try_from(others.num_rows()).is_err() {
            return Err(CallError::violation(format!("a batch cannot have {} rows", others.num_rows())));
        }
        Ok(())
    }

    /// Answers a batch in parts, of which the last is said to be it. Columns of texts are dictionaries only if they may be.
    pub(crate) fn answer(
        &self,
        arrived: &Arrived,
        row_errors: Option<RowErrors>,
        may_encode: bool,
        is_cancelled: IsCancelled<'_>,
        emit: Emit<'_>,
    ) -> Result<(), CallError> {
        self.check(arrived, row_errors)?;
        let kind = self.signature.kind;
        if !matches!(kind, FunctionKind::Scalar | FunctionKind::Table) {
            let article = if kind == FunctionKind::Aggregate { "an" } else { "a" };
            return Err(CallError::violation(format!("{} is {article} {} function", self.name(), kind.name())));
        }
        let Arrived { others, constants } = arrived;
        let types = self.reply_types(row_errors);
        if constants.is_empty() {
            let mut settled = |mut columns: Vec<ArrayRef>, is_last: bool| {
                settle(&mut columns, &types, may_encode).map_err(CallError::bad_result)?;
                emit(columns, is_last)
            };
            return guarded(|| self.handler.answer(&Calls { batch: others, row_errors, is_cancelled }, &mut settled));
        }
        let (rows, step) = (others.num_rows(), rows_of_piece(constants));
        let mut columns_of_pieces = Vec::new();
        for first in (0..rows.max(1)).step_by(step) {
            let count = step.min(rows - first);
            let batch = repeat(&self.signature, &others.slice(first, count), constants).map_err(unrepeatable)?;
            let is_table = self.signature.kind == FunctionKind::Table;
            let mut take_part = |mut columns: Vec<ArrayRef>, is_last: bool| {
                // Pieces have dictionaries of their own.
                settle(&mut columns, &types, may_encode && count == rows).map_err(CallError::bad_result)?;
                if !is_table {
                    columns_of_pieces.push(columns);
                    return Ok(());
                }
                if first > 0 {
                    columns[0] = Arc::new(shifted(columns[0].as_primitive::<Int32Type>(), first));
                }
                emit(columns, is_last && first + count == rows)
            };
            guarded(|| self.handler.answer(&Calls { batch: &batch, row_errors, is_cancelled }, &mut take_part))
                .map_err(|error| CallError { row: error.row.map(|row| first + row), ..error })?;
        }
        if self.signature.kind == FunctionKind::Table { Ok(()) } else { emit(joined(columns_of_pieces)?, true) }
    }

    /// Answers the stream of a map function.
    pub(crate) fn map(
        &self,
        batches: &Arc<Batches>,
        is_cancelled: IsCancelled<'_>,
        results: &Arc<Results>,
    ) -> Result<(), CallError> {
        guarded(|| self.handler.map(batches, is_cancelled, results))
    }

    /// The columns of a part of a map function's reply, of its handler's results.
    pub(crate) fn part(&self, results: ArrayRef) -> Result<Vec<ArrayRef>, CallError> {
        let mut columns = vec![results];
        settle(&mut columns, &self.reply_types(None), false).map_err(CallError::bad_result)?;
        Ok(columns)
    }

    /// The groups of a new exchange.
    pub(crate) fn groups(&self) -> Result<Box<dyn Groups>, CallError> {
        match self.signature.kind {
            FunctionKind::Aggregate => Ok(self.handler.groups()),
            _ => Err(CallError::violation(format!("{} is no aggregate function", self.name()))),
        }
    }
}

/// The rows of a piece that a handler is given at a time.
fn rows_of_piece(constants: &Constants) -> usize {
    let bytes = constants.values().map(|value| value.to_data().get_slice_memory_size().unwrap_or(usize::MAX));
    let width = bytes.fold(0, usize::saturating_add);
    (MOST_REPEATED_BYTES / width.max(1)).max(1)
}

fn unrepeatable(cause: ArrowError) -> CallError {
    CallError::violation(format!("the constants cannot be repeated: {cause}"))
}

/// Whole columns: the constants stand in each row.
fn repeat(signature: &Signature, others: &RecordBatch, constants: &Constants) -> Result<RecordBatch, ArrowError> {
    let first = UInt32Array::from_value(0, others.num_rows());
    let (mut rest, mut columns, mut fields) = (others.columns().iter(), Vec::new(), Vec::new());
    for (position, field) in signature.call_schema().fields().iter().enumerate() {
        let column = match constants.at(position) {
            Some(value) => take(value, &first, None)?,
            None => rest.next().cloned().ok_or_else(|| ArrowError::SchemaError("a column is missing".to_string()))?,
        };
        fields.push(field.as_ref().clone().with_data_type(column.data_type().clone()));
        columns.push(column);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(others.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

/// Row numbers of a piece as those of the batch.
fn shifted(numbers: &Int32Array, first: usize) -> Int32Array {
    let first = i32::try_from(first).expect("a batch has fewer rows");
    numbers.unary(|number| number.saturating_add(first))
}

/// The columns of all pieces of a scalar function's reply.
fn joined(mut pieces: Vec<Vec<ArrayRef>>) -> Result<Vec<ArrayRef>, CallError> {
    if pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    let count = pieces.first().map_or(0, Vec::len);
    let column = |position: usize| {
        let parts: Vec<&dyn Array> = pieces.iter().filter_map(|piece| piece.get(position)).map(AsRef::as_ref).collect();
        concat(&parts).map_err(|cause| CallError::bad_result(format!("Its results differ: {cause}.")))
    };
    (0..count).map(column).collect()
}

/// Whether columns of a type lie in memory as those of another, with the same names of attributes, whatever extensions either has.
fn has_form(found: &DataType, wanted: &DataType) -> bool {
    match (found, wanted) {
        (DataType::List(found), DataType::List(wanted)) => has_form(found.data_type(), wanted.data_type()),
        (DataType::Struct(found), DataType::Struct(wanted)) => {
            let is_same = |(found, wanted): (&FieldRef, &FieldRef)| {
                found.name() == wanted.name() && has_form(found.data_type(), wanted.data_type())
            };
            found.len() == wanted.len() && found.iter().zip(wanted).all(is_same)
        }
        _ => found == wanted,
    }
}
