//! A handler's functions: how a batch of columns becomes columns of results. Row i of the result answers row i of the
//! batch: rows are called in order.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder};
use arrow_array::{Array, ArrayRef, RecordBatch};
use transship_core::error::{at_row, guarded, user_error};
use transship_core::{
    Batches, CallError, Calls, Emit, Function, Groups, Handler, IsCancelled, Results, check_cancelled, in_pieces,
    room_for,
};
use udf_project::manifest::{BatchForm, Manifest};
use udf_types::row_texts::RowTexts;
use udf_types::signature::{FunctionKind, Signature};

use crate::aggregate::{Aggregate, GroupsOf};
use crate::map::{RecordBatches, Rows, map_batches, map_rows};
use crate::pace::Pace;
use crate::value::{Answer, Parameter, Refused, Value};
use crate::waiting;

/// Results, and bytes of them, that go out together where a reply has several parts.
pub(crate) const RESULTS_PER_PART: usize = 1024;
pub(crate) const BYTES_PER_PART: usize = 1 << 20;

type Answering = Box<dyn Fn(&Signature, &Calls<'_>, Emit<'_>) -> Result<(), CallError> + Send + Sync>;
type Waiting = Box<dyn Fn(&Signature, usize, &Calls<'_>, Emit<'_>) -> Result<(), CallError> + Send + Sync>;
type Mapping =
    Box<dyn Fn(&Arc<Signature>, &Arc<Batches>, IsCancelled<'_>, &Arc<Results>) -> Result<(), CallError> + Send + Sync>;
type NewGroups = Box<dyn Fn(Arc<Signature>) -> Box<dyn Groups> + Send + Sync>;
type Check = fn(&Signature) -> Result<(), String>;

/// The code of a function, not yet bound to what `transship.toml` says of it.
struct Code {
    kind: FunctionKind,
    form: BatchForm,
    check: Check,
    body: Body,
}

/// What answers its calls.
enum Body {
    /// Of a scalar or table function, batch by batch.
    Calls(Answering),
    /// Of a scalar function that waits, so many rows of a batch at a time.
    Waiting(Waiting),
    /// Of a map function, all batches of a stream.
    Stream(Mapping),
    /// Of an aggregate function, a state per group.
    Groups(NewGroups),
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
    pub fn scalar<R: Row, A: Answer>(self, name: &str, function: impl Callable<R, A>) -> Functions {
        let answering: Answering = Box::new(move |signature, calls, emit| {
            let batch = calls.batch;
            let columns = Columns::<R>::new(signature, batch.columns());
            let mut results = ScalarResults::<A::Value>::new(signature, calls);
            let mut pace = Pace::new(calls.is_cancelled);
            for row in 0..batch.num_rows() {
                pace.check(row)?;
                let arguments = columns.read(row)?;
                at_row(row);
                let answer = match calls.row_errors {
                    None => function.call(arguments).answer(),
                    Some(_) => guarded(|| function.call(arguments).answer()),
                };
                results.add(row, answer)?;
            }
            emit(results.finish()?, true)
        });
        self.add(name, FunctionKind::Scalar, BatchForm::Row, check::<R, A>, Body::Calls(answering))
    }

    /// Adds a function that waits, such as for a web service, and is called for each row: `async fn(A, B, ...) -> R`, of up to twelve
    /// arguments. As many calls of a batch are under way at a time as `concurrency` in `transship.toml` says. When the query is
    /// cancelled, their futures are dropped.
    ///
    /// The futures are polled on the thread that answers the batch. They find tokio's timers, sockets and tasks there, of one runtime
    /// for all calls.
    pub fn scalar_async<R: Row, F>(self, name: &str, function: impl Callable<R, F>) -> Functions
    where
        F: Future + 'static,
        F::Output: Answer,
    {
        let waiting: Waiting = Box::new(move |signature, concurrency, calls, emit| {
            emit(waiting::call_rows(&function, signature, concurrency, calls)?, true)
        });
        self.add(name, FunctionKind::Scalar, BatchForm::Row, check::<R, F::Output>, Body::Waiting(waiting))
    }

    /// Adds a table function: `fn(A, B, ...) -> impl IntoIterator<Item = R>`.
    pub fn table<R: Row, I>(self, name: &str, function: impl Callable<R, I>) -> Functions
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
                    if count == RESULTS_PER_PART || Of::<I>::bytes(&results) >= BYTES_PER_PART {
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
        self.add(name, FunctionKind::Table, BatchForm::Row, check::<R, I::Item>, Body::Calls(answering))
    }

    /// Adds a map function, which is called once with all rows of a query: `fn(Rows<(A, B, ...)>) -> impl IntoIterator<Item = R>`. Its
    /// results go to the client in parts. It is asked for results only as fast as the client takes them.
    pub fn map<R: Row, I>(self, name: &str, function: impl Fn(Rows<R>) -> I + Send + Sync + 'static) -> Functions
    where
        I: IntoIterator,
        I::Item: Answer,
    {
        let mapping: Mapping = Box::new(move |signature, batches, is_cancelled, results| {
            map_rows(&function, signature, batches, is_cancelled, results)
        });
        self.add(name, FunctionKind::Map, BatchForm::Row, check::<R, I::Item>, Body::Stream(mapping))
    }

    /// Adds a map function that takes batches, and returns columns of results of any length (`batch = "arrow"`).
    pub fn map_arrow<I, E: std::fmt::Display + std::fmt::Debug>(
        self,
        name: &str,
        function: impl Fn(RecordBatches) -> I + Send + Sync + 'static,
    ) -> Functions
    where
        I: IntoIterator<Item = Result<ArrayRef, E>>,
    {
        let mapping: Mapping = Box::new(move |signature, batches, is_cancelled, results| {
            map_batches(&function, signature, batches, is_cancelled, results)
        });
        self.add(name, FunctionKind::Map, BatchForm::Arrow, |_| Ok(()), Body::Stream(mapping))
    }

    /// Adds a function that is called for each batch (`batch = "arrow"`).
    pub fn arrow<E: std::fmt::Display + std::fmt::Debug>(
        self,
        name: &str,
        function: impl Fn(&RecordBatch) -> Result<ArrayRef, E> + Send + Sync + 'static,
    ) -> Functions {
        let answering: Answering = Box::new(move |signature, calls, emit| {
            let mut call = |batch: &RecordBatch| {
                let column = guarded(|| function(batch).map_err(user_error))?;
                check_column(signature, &column)?;
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
        self.add(name, FunctionKind::Scalar, BatchForm::Arrow, |_| Ok(()), Body::Calls(answering))
    }

    /// Adds an aggregate function.
    pub fn aggregate<A: Aggregate>(self, name: &str) -> Functions {
        let new_groups: NewGroups = Box::new(|signature| Box::new(GroupsOf::<A>::new(signature)));
        let check = check::<A::Row, A::Result>;
        self.add(name, FunctionKind::Aggregate, BatchForm::Row, check, Body::Groups(new_groups))
    }

    fn add(mut self, name: &str, kind: FunctionKind, form: BatchForm, check: Check, body: Body) -> Functions {
        self.0.insert(name.to_string(), Code { kind, form, check, body });
        self
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
            let concurrency = entry.concurrency as usize;
            if matches!(code.body, Body::Waiting(_)) {
                waiting::start().map_err(refuse)?;
            } else if concurrency > 1 {
                return Err(refuse("with concurrency, the handler must have it as scalar_async".to_string()));
            }
            let signature = Arc::new(signature);
            let bound = Bound { signature: signature.clone(), concurrency, body: code.body };
            functions.push(Function::new(signature, Box::new(bound)));
        }
        Ok(functions)
    }
}

/// A function's code with what the manifest says of it.
struct Bound {
    signature: Arc<Signature>,
    concurrency: usize,
    body: Body,
}

impl Bound {
    fn misused(&self) -> CallError {
        let Signature { function, kind, .. } = self.signature.as_ref();
        CallError::violation(format!("{function} is of kind {}", kind.name()))
    }
}

impl Handler for Bound {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        match &self.body {
            Body::Calls(answering) => answering(&self.signature, calls, emit),
            Body::Waiting(waiting) => waiting(&self.signature, self.concurrency, calls, emit),
            Body::Stream(_) | Body::Groups(_) => Err(self.misused()),
        }
    }

    fn groups(&self) -> Box<dyn Groups> {
        match &self.body {
            Body::Groups(new_groups) => new_groups(self.signature.clone()),
            _ => unreachable!("only aggregate functions are asked for groups"),
        }
    }

    fn map(
        &self,
        batches: &Arc<Batches>,
        is_cancelled: IsCancelled<'_>,
        results: &Arc<Results>,
    ) -> Result<(), CallError> {
        match &self.body {
            Body::Stream(mapping) => mapping(&self.signature, batches, is_cancelled, results),
            Body::Calls(_) | Body::Waiting(_) | Body::Groups(_) => Err(self.misused()),
        }
    }
}

/// The results of a scalar function's batch, and the errors of its rows if these are wanted.
pub(crate) struct ScalarResults<'a, V: Value> {
    signature: &'a Signature,
    builder: V::Builder,
    errors: Option<(StringBuilder, RowTexts)>,
}

impl<'a, V: Value> ScalarResults<'a, V> {
    pub(crate) fn new(signature: &'a Signature, calls: &Calls<'_>) -> ScalarResults<'a, V> {
        let errors = calls.row_errors.map(|_| (StringBuilder::new(), RowTexts::new()));
        ScalarResults { signature, builder: V::builder(&signature.result, room_for(calls.batch)), errors }
    }

    /// Whether the batch goes on after an error: those of the handler are errors of their rows if these are wanted.
    pub(crate) fn goes_on_after(&self, error: &CallError) -> bool {
        self.errors.is_some() && error.is_of_handler()
    }

    /// Adds what the next row has given.
    ///
    /// # Errors
    /// The row's, if the batch does not go on after it.
    pub(crate) fn add(&mut self, row: usize, answer: Result<Option<V>, CallError>) -> Result<(), CallError> {
        let (value, error) = match answer {
            Ok(value) => (value, None),
            Err(error) if self.goes_on_after(&error) => (None, Some(error)),
            Err(error) => return Err(error.at(row)),
        };
        append_value::<V>(self.signature, &mut self.builder, value, row)?;
        if let Some((errors, texts)) = &mut self.errors {
            errors.append_option(error.as_ref().map(|error| texts.cut(&error.message)));
        }
        Ok(())
    }

    /// The reply's columns.
    pub(crate) fn finish(self) -> Result<Vec<ArrayRef>, CallError> {
        let mut reply = vec![finish::<V>(self.signature, self.builder)?];
        if let Some((mut errors, _)) = self.errors {
            reply.push(Arc::new(errors.finish()));
        }
        Ok(reply)
    }
}

/// Refuses a column of results of another type than the declared one.
pub(crate) fn check_column(signature: &Signature, column: &ArrayRef) -> Result<(), CallError> {
    let found = column.data_type();
    if *found == signature.result.data_type() { Ok(()) } else { Err(misfit(signature, &found.to_string())) }
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
    let appended = V::settle(value).and_then(|settled| V::append(builder, settled));
    appended.map_err(|shown| misfit(signature, &shown).at(row))
}

/// A result that the declared type does not hold.
pub(crate) fn misfit(signature: &Signature, shown: &str) -> CallError {
    CallError::bad_result(format!("It returned {shown}; the declared result is {}.", signature.result))
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
        read_row(self.signature, &self.columns, self.arrays, row)
    }
}

/// Reads a row of columns that are ready for it.
pub(crate) fn read_row<R: Row>(
    signature: &Signature,
    columns: &R::Columns,
    arrays: &[ArrayRef],
    row: usize,
) -> Result<R, CallError> {
    R::read(columns, arrays, row).map_err(|(argument, refused)| {
        let ty = &signature.arguments[argument].ty;
        let why = if refused == Refused::Null { ": it is NULL, which takes an Option" } else { "" };
        let fact =
            format!("Rust cannot hold argument {}, of type {ty}, of row {} of the batch{why}.", argument + 1, row + 1);
        CallError::new("out_of_range", fact).at(row)
    })
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
