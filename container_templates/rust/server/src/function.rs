//! A handler's functions: how a batch of columns becomes columns of results. Row i of the result answers row i of the
//! batch: rows are called in order.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::builder::Int32Builder;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use udf_project::manifest::{BatchForm, Manifest};
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;

use crate::aggregate::{Aggregate, Groups, GroupsOf};
use crate::error::{CallError, at_row, guarded, user_error};
use crate::value::{Answer, Parameter, Refused, Value};

/// Rows that pass between two looks at whether the client has gone.
const ROWS_BETWEEN_CHECKS: usize = 256;
/// Results of a table function that go out together.
const RESULTS_PER_PART: usize = 1024;

/// Most results of rows without arguments that room is made for at once.
const ROWS_WITHOUT_ARGUMENTS: usize = 1 << 16;

/// Says whether the client has gone.
pub(crate) type IsCancelled<'a> = &'a dyn Fn() -> bool;

/// The client has gone; nobody reads the error.
pub(crate) fn check_cancelled(row: usize, is_cancelled: IsCancelled) -> Result<(), CallError> {
    if row.is_multiple_of(ROWS_BETWEEN_CHECKS) && is_cancelled() {
        return Err(CallError::new("user_code", "cancelled"));
    }
    Ok(())
}

/// How many results room is made for before there are any.
fn room_for(batch: &RecordBatch) -> usize {
    // Rows without arguments take no bytes: a few bytes may say that there are any number.
    if batch.num_columns() == 0 { batch.num_rows().min(ROWS_WITHOUT_ARGUMENTS) } else { batch.num_rows() }
}

type Emit<'a> = &'a mut dyn FnMut(Vec<ArrayRef>, bool) -> Result<(), CallError>;
type Answering = Box<dyn Fn(&Signature, &RecordBatch, IsCancelled, Emit) -> Result<(), CallError> + Send + Sync>;
type NewGroups = Box<dyn Fn(Arc<Signature>) -> Box<dyn Groups> + Send + Sync>;
type Check = fn(&Signature) -> Result<(), String>;

/// The code of a function, not yet bound to what `transship.toml` says of it.
struct Code {
    kind: FunctionKind,
    form: BatchForm,
    check: Check,
    answering: Option<Answering>,
    new_groups: Option<NewGroups>,
}

/// A handler's functions by the names that `transship.toml` gives them.
#[derive(Default)]
pub struct Functions(HashMap<String, Code>);

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Functions {
    /// None.
    pub fn new() -> Functions {
        Functions::default()
    }

    /// Adds a function that is called for each row: `fn(A, B, ...) -> R`, of up to twelve arguments.
    pub fn scalar<R: Row, A: Answer>(mut self, name: &str, function: impl Callable<R, A>) -> Functions {
        let answering: Answering = Box::new(move |signature, batch, is_cancelled, emit| {
            let columns = Columns::<R>::new(signature, batch.columns());
            let mut builder = A::Value::builder(&signature.result, room_for(batch));
            for row in 0..batch.num_rows() {
                check_cancelled(row, is_cancelled)?;
                let arguments = columns.read(row)?;
                at_row(row);
                append(signature, &mut builder, function.call(arguments), row)?;
            }
            emit(vec![finish::<A::Value>(signature, builder)?], true)
        });
        self.add(name, FunctionKind::Scalar, BatchForm::Row, check::<R, A>, answering);
        self
    }

    /// Adds a table function: `fn(A, B, ...) -> impl IntoIterator<Item = R>`.
    pub fn table<R: Row, I>(mut self, name: &str, function: impl Callable<R, I>) -> Functions
    where
        I: IntoIterator,
        I::Item: Answer,
    {
        let answering: Answering = Box::new(move |signature, batch, is_cancelled, emit| {
            type Of<I> = <<I as IntoIterator>::Item as Answer>::Value;
            let columns = Columns::<R>::new(signature, batch.columns());
            let (mut numbers, mut count) = (Int32Builder::new(), 0);
            let mut results = Of::<I>::builder(&signature.result, room_for(batch).min(RESULTS_PER_PART));
            for row in 0..batch.num_rows() {
                check_cancelled(row, is_cancelled)?;
                let arguments = columns.read(row)?;
                at_row(row);
                for answer in function.call(arguments) {
                    if count == RESULTS_PER_PART {
                        let part =
                            std::mem::replace(&mut results, Of::<I>::builder(&signature.result, RESULTS_PER_PART));
                        emit(vec![Arc::new(numbers.finish()), finish::<Of<I>>(signature, part)?], false)?;
                        check_cancelled(0, is_cancelled)?;
                        count = 0;
                    }
                    numbers.append_value(i32::try_from(row).expect("a batch has fewer rows"));
                    append(signature, &mut results, answer, row)?;
                    count += 1;
                }
            }
            emit(vec![Arc::new(numbers.finish()), finish::<Of<I>>(signature, results)?], true)
        });
        self.add(name, FunctionKind::Table, BatchForm::Row, check::<R, I::Item>, answering);
        self
    }

    /// Adds a function that is called for each batch (`batch = "arrow"`).
    pub fn arrow<E: std::fmt::Display + std::fmt::Debug>(
        mut self,
        name: &str,
        function: impl Fn(&RecordBatch) -> Result<ArrayRef, E> + Send + Sync + 'static,
    ) -> Functions {
        let answering: Answering = Box::new(move |signature, batch, _, emit| {
            let column = function(batch).map_err(user_error)?;
            let bad = |fact: String| CallError::new("bad_result", fact);
            if *column.data_type() != signature.result.data_type() {
                let (found, declared) = (column.data_type(), &signature.result);
                return Err(bad(format!("It returned {found}; the declared result is {declared}.")));
            }
            if column.len() != batch.num_rows() {
                return Err(bad(format!("It returned {} values for {} rows.", column.len(), batch.num_rows())));
            }
            emit(vec![column], true)
        });
        self.add(name, FunctionKind::Scalar, BatchForm::Arrow, |_| Ok(()), answering);
        self
    }

    /// Adds an aggregate function.
    pub fn aggregate<A: Aggregate>(mut self, name: &str) -> Functions {
        let new_groups: NewGroups = Box::new(|signature| Box::new(GroupsOf::<A>::new(signature)));
        let code = Code {
            kind: FunctionKind::Aggregate,
            form: BatchForm::Row,
            check: check::<A::Row, A::Result>,
            answering: None,
            new_groups: Some(new_groups),
        };
        self.0.insert(name.to_string(), code);
        self
    }

    fn add(&mut self, name: &str, kind: FunctionKind, form: BatchForm, check: Check, answering: Answering) {
        self.0.insert(name.to_string(), Code { kind, form, check, answering: Some(answering), new_groups: None });
    }

    /// Binds the functions to what the manifest says of them.
    pub(crate) fn bind(mut self, manifest: &Manifest) -> Result<Vec<Function>, String> {
        let mut functions = Vec::new();
        for entry in &manifest.functions {
            let refuse = |fact: String| format!("function \"{}\": {fact}", entry.name);
            let code = self.0.remove(&entry.name).ok_or_else(|| refuse("the handler does not have it".to_string()))?;
            let signature = entry.signature().map_err(|error| refuse(error.to_string()))?;
            let signature =
                signature.ok_or_else(|| refuse("transship.toml must give its arguments and result".to_string()))?;
            if code.kind != entry.kind || code.form != entry.batch {
                let (kind, form) = (code.kind.name(), if code.form == BatchForm::Arrow { "arrow" } else { "row" });
                return Err(refuse(format!("the handler has it as a {kind} function with batch = \"{form}\"")));
            }
            (code.check)(&signature).map_err(refuse)?;
            functions.push(Function { signature: Arc::new(signature), code, takes_long: AtomicBool::new(false) });
        }
        Ok(functions)
    }
}

/// A function of the container.
pub(crate) struct Function {
    signature: Arc<Signature>,
    code: Code,
    takes_long: AtomicBool,
}

impl Function {
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

    pub(crate) fn name(&self) -> &str {
        &self.signature.function
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The schema of a reply (`docs/protocol.md` §4).
    pub(crate) fn reply_schema(&self) -> SchemaRef {
        let names: &[&str] = match self.signature.kind {
            FunctionKind::Table => &["row", self.name()],
            FunctionKind::Aggregate => &[self.name(), "state"],
            FunctionKind::Scalar | FunctionKind::Map => &[self.name()],
        };
        let fields =
            self.signature.reply_types().iter().zip(names).map(|(ty, name)| ty.field(name)).collect::<Vec<_>>();
        Arc::new(Schema::new(fields))
    }

    /// A reply's columns as a batch.
    pub(crate) fn reply(&self, columns: Vec<ArrayRef>) -> Result<RecordBatch, CallError> {
        let options = RecordBatchOptions::new().with_row_count(Some(columns[0].len()));
        RecordBatch::try_new_with_options(self.reply_schema(), columns, &options)
            .map_err(|cause| CallError::new("bad_result", format!("Its reply is malformed: {cause}.")))
    }

    /// Refuses a batch whose columns are not the arguments.
    pub(crate) fn check(&self, batch: &RecordBatch) -> Result<(), CallError> {
        let (types, name) = (self.signature.call_types(), self.name());
        if batch.num_columns() != types.len() {
            return Err(CallError::violation(format!(
                "{name} takes {} columns, not {}",
                types.len(),
                batch.num_columns()
            )));
        }
        for (position, (ty, field)) in types.iter().zip(batch.schema().fields()).enumerate() {
            // Engines need not say the extensions that texts carry.
            let is_right =
                Type::from_field(field).is_ok_and(|found| found == *ty) || has_form(field.data_type(), &ty.data_type());
            if !is_right {
                let found = field.data_type();
                return Err(CallError::violation(format!("column {} of {name} is {ty}, not {found}", position + 1)));
            }
        }
        Ok(())
    }

    /// Answers a batch in parts, of which the last is said to be it.
    pub(crate) fn answer(&self, batch: &RecordBatch, is_cancelled: IsCancelled, emit: Emit) -> Result<(), CallError> {
        self.check(batch)?;
        // Table functions number rows with 32 bits.
        if i32::try_from(batch.num_rows()).is_err() {
            return Err(CallError::violation(format!("a batch cannot have {} rows", batch.num_rows())));
        }
        match &self.code.answering {
            Some(answering) => guarded(|| answering(&self.signature, batch, is_cancelled, emit)),
            None => Err(CallError::violation(format!("{} is an aggregate function", self.name()))),
        }
    }

    /// The groups of a new exchange.
    pub(crate) fn groups(&self) -> Result<Box<dyn Groups>, CallError> {
        match &self.code.new_groups {
            Some(new_groups) => Ok(new_groups(self.signature.clone())),
            None => Err(CallError::violation(format!("{} is no aggregate function", self.name()))),
        }
    }
}

/// Appends a function's answer to its results.
pub(crate) fn append<A: Answer>(
    signature: &Signature,
    builder: &mut <A::Value as Value>::Builder,
    answer: A,
    row: usize,
) -> Result<(), CallError> {
    let value = answer.answer().map_err(|error| error.at(row))?;
    A::Value::append(builder, value).map_err(|shown| {
        let fact = format!("It returned {shown}; the declared result is {}.", signature.result);
        CallError::new("bad_result", fact).at(row)
    })
}

/// The results as a column.
pub(crate) fn finish<V: Value>(signature: &Signature, builder: V::Builder) -> Result<ArrayRef, CallError> {
    V::finish(builder, &signature.result).map_err(|fact| CallError::new("bad_result", fact))
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

fn check<R: Row, A: Answer>(signature: &Signature) -> Result<(), String> {
    R::check(signature)?;
    if !A::Value::holds(&signature.result) {
        return Err(format!("its Rust result does not hold SQL type {}", signature.result));
    }
    Ok(())
}

/// A function of a row's arguments.
pub trait Callable<R, A>: Send + Sync + 'static {
    /// Calls it.
    fn call(&self, row: R) -> A;
}

/// The arguments of a row, as a tuple.
pub trait Row: Sized + 'static {
    /// Their columns, made ready for reading.
    type Columns;

    /// Refuses types that the tuple does not hold.
    fn check(signature: &Signature) -> Result<(), String>;
    /// Makes the columns ready.
    fn columns(signature: &Signature, columns: &[ArrayRef]) -> Self::Columns;
    /// Reads a row; the error is the argument that refused it.
    fn read(columns: &Self::Columns, arrays: &[ArrayRef], row: usize) -> Result<Self, (usize, Refused)>;
}

/// The columns of a batch, ready for reading rows.
pub(crate) struct Columns<'a, R: Row> {
    signature: &'a Signature,
    arrays: &'a [ArrayRef],
    columns: R::Columns,
    row: PhantomData<R>,
}

impl<'a, R: Row> Columns<'a, R> {
    pub(crate) fn new(signature: &'a Signature, arrays: &'a [ArrayRef]) -> Columns<'a, R> {
        Columns { signature, arrays, columns: R::columns(signature, arrays), row: PhantomData }
    }

    pub(crate) fn read(&self, row: usize) -> Result<R, CallError> {
        R::read(&self.columns, self.arrays, row).map_err(|(argument, refused)| {
            let ty = &self.signature.arguments[argument].ty;
            let why = if refused == Refused::Null { ": it is NULL, which takes an Option" } else { "" };
            let fact = format!(
                "Rust cannot hold argument {}, of type {ty}, of row {} of the batch{why}.",
                argument + 1,
                row + 1
            );
            CallError::new("out_of_range", fact).at(row)
        })
    }
}

macro_rules! row {
    ($count:literal $($name:ident $position:tt),*) => {
        impl<$($name: Parameter),*> Row for ($($name,)*) {
            type Columns = ($(<$name::Value as Value>::Column,)*);

            fn check(signature: &Signature) -> Result<(), String> {
                if signature.arguments.len() != $count {
                    return Err(format!("it takes {} arguments, transship.toml says {}", $count, signature.arguments.len()));
                }
                $(
                    let ty = &signature.arguments[$position].ty;
                    if !$name::Value::holds(ty) {
                        return Err(format!("its argument {} does not hold SQL type {ty}", $position + 1));
                    }
                )*
                Ok(())
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn columns(signature: &Signature, columns: &[ArrayRef]) -> Self::Columns {
                ($($name::Value::column(&signature.arguments[$position].ty, &columns[$position]),)*)
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn read(columns: &Self::Columns, arrays: &[ArrayRef], row: usize) -> Result<Self, (usize, Refused)> {
                Ok(($($name::read(&columns.$position, arrays[$position].is_null(row), row)
                    .map_err(|refused| ($position, refused))?,)*))
            }
        }

        impl<Fun, Out, $($name: Parameter),*> Callable<($($name,)*), Out> for Fun
        where
            Fun: Fn($($name),*) -> Out + Send + Sync + 'static,
        {
            #[allow(non_snake_case)]
            fn call(&self, ($($name,)*): ($($name,)*)) -> Out {
                self($($name),*)
            }
        }
    };
}

row!(0);
row!(1 A 0);
row!(2 A 0, B 1);
row!(3 A 0, B 1, C 2);
row!(4 A 0, B 1, C 2, D 3);
row!(5 A 0, B 1, C 2, D 3, E 4);
row!(6 A 0, B 1, C 2, D 3, E 4, F 5);
row!(7 A 0, B 1, C 2, D 3, E 4, F 5, G 6);
row!(8 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
row!(9 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
row!(10 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
row!(11 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
row!(12 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
