//! A handler's functions: how a batch of columns becomes columns of results. Row i of the result answers row i of the
//! batch: rows are called in order.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder};
use arrow_array::{Array, ArrayRef, RecordBatch};
use transship_core::error::{at_row, guarded, user_error};
use transship_core::{CallError, Calls, Emit, Function, Groups, Handler, check_cancelled, in_pieces, room_for};
use udf_project::manifest::{BatchForm, Manifest};
use udf_types::row_texts::RowTexts;
use udf_types::signature::{FunctionKind, Signature};

use crate::aggregate::{Aggregate, GroupsOf};
use crate::pace::Pace;
use crate::value::{Answer, Parameter, Refused, Value};

/// Results of a table function that go out together.
const RESULTS_PER_PART: usize = 1024;

type Answering = Box<dyn Fn(&Signature, &Calls<'_>, Emit<'_>) -> Result<(), CallError> + Send + Sync>;
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
        let answering: Answering = Box::new(move |signature, calls, emit| {
            let batch = calls.batch;
            let columns = Columns::<R>::new(signature, batch.columns());
            let mut builder = A::Value::builder(&signature.result, room_for(batch));
            let (mut errors, mut texts) = (StringBuilder::new(), RowTexts::new());
            let mut pace = Pace::new(calls.is_cancelled);
            for row in 0..batch.num_rows() {
                pace.check(row)?;
                let arguments = columns.read(row)?;
                at_row(row);
                if calls.row_errors.is_none() {
                    append(signature, &mut builder, function.call(arguments), row)?;
                    continue;
                }
                // Of what fails here, the handler's own errors are errors of the row.
                match guarded(|| function.call(arguments).answer()) {
                    Ok(value) => {
                        append_value::<A::Value>(signature, &mut builder, value, row)?;
                        errors.append_null();
                    }
                    Err(error) if error.is_of_handler() => {
                        append_value::<A::Value>(signature, &mut builder, None, row)?;
                        errors.append_value(texts.cut(&error.message));
                    }
                    Err(error) => return Err(error.at(row)),
                }
            }
            let mut reply = vec![finish::<A::Value>(signature, builder)?];
            if calls.row_errors.is_some() {
                reply.push(Arc::new(errors.finish()));
            }
            emit(reply, true)
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
        let answering: Answering = Box::new(move |signature, calls, emit| {
            let (batch, is_cancelled) = (calls.batch, calls.is_cancelled);
            type Of<I> = <<I as IntoIterator>::Item as Answer>::Value;
            let columns = Columns::<R>::new(signature, batch.columns());
            let (mut numbers, mut count) = (Int32Builder::new(), 0);
            let mut results = Of::<I>::builder(&signature.result, room_for(batch).min(RESULTS_PER_PART));
            let mut pace = Pace::new(is_cancelled);
            for row in 0..batch.num_rows() {
                pace.check(row)?;
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
        let answering: Answering = Box::new(move |signature, calls, emit| {
            let mut call = |batch: &RecordBatch| {
                let column = guarded(|| function(batch).map_err(user_error))?;
                if *column.data_type() != signature.result.data_type() {
                    let (found, declared) = (column.data_type(), &signature.result);
                    let fact = format!("It returned {found}; the declared result is {declared}.");
                    return Err(CallError::bad_result(fact));
                }
                if column.len() != batch.num_rows() {
                    let fact = format!("It returned {} values for {} rows.", column.len(), batch.num_rows());
                    return Err(CallError::bad_result(fact));
                }
                Ok(column)
            };
            let result = signature.result.data_type();
            match calls.row_errors {
                None => emit(vec![call(calls.batch)?], true),
                Some(row_errors) => {
                    emit(in_pieces(calls.batch, &result, row_errors, calls.is_cancelled, &mut call)?, true)
                }
            }
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
            let signature = Arc::new(signature);
            functions.push(Function::new(signature.clone(), Box::new(Bound { signature, code })));
        }
        Ok(functions)
    }
}

/// A function's code with its signature.
struct Bound {
    signature: Arc<Signature>,
    code: Code,
}

impl Handler for Bound {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        match &self.code.answering {
            Some(answering) => answering(&self.signature, calls, emit),
            None => Err(CallError::violation(format!("{} is an aggregate function", self.signature.function))),
        }
    }

    fn groups(&self) -> Box<dyn Groups> {
        let new_groups = self.code.new_groups.as_ref().expect("only aggregate functions are asked for groups");
        new_groups(self.signature.clone())
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
    append_value::<A::Value>(signature, builder, value, row)
}

fn append_value<V: Value>(
    signature: &Signature,
    builder: &mut V::Builder,
    value: Option<V>,
    row: usize,
) -> Result<(), CallError> {
    V::append(builder, value).map_err(|shown| {
        CallError::bad_result(format!("It returned {shown}; the declared result is {}.", signature.result)).at(row)
    })
}

/// The results as a column.
pub(crate) fn finish<V: Value>(signature: &Signature, builder: V::Builder) -> Result<ArrayRef, CallError> {
    V::finish(builder, &signature.result).map_err(CallError::bad_result)
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
