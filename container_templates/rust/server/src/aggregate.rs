//! Aggregate functions: one result per group of rows (`docs/protocol.md` §4.7).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch, new_null_array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use udf_types::signature::Signature;
use udf_types::types::Type;

use crate::error::{CallError, at_row, guarded, user_error};
use crate::function::{Columns, Function, IsCancelled, Row, append, check_cancelled, finish};
use crate::value::{Answer, Value};

/// How long an exchange over JSON is kept that nobody asks for.
const EXCHANGE_IDLE: Duration = Duration::from_secs(600);

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

/// The groups of one exchange, whatever their type.
pub(crate) trait Groups: Send {
    fn answer(
        &mut self,
        batch: &RecordBatch,
        step: &str,
        is_cancelled: IsCancelled,
    ) -> Result<Vec<ArrayRef>, CallError>;
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
        step: &str,
        is_cancelled: IsCancelled,
    ) -> Result<Vec<ArrayRef>, CallError> {
        let ty = &self.signature.result;
        let rows = batch.num_rows();
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        let nothing = || vec![new_null_array(&ty.data_type(), 0), new_null_array(&Type::Bytea.data_type(), 0)];
        let states = &mut self.states;
        guarded(|| match step {
            "accumulate" => {
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
            "merge" => {
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
            "finish" => {
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
            "state" => {
                let mut bytes = Vec::with_capacity(rows);
                for (row, number) in numbers.iter().enumerate() {
                    let state = serde_json::to_vec(states.entry(*number).or_default());
                    bytes.push(state.map_err(|cause| user_error(cause).at(row))?);
                }
                let bytes = BinaryArray::from_iter_values(bytes);
                Ok(vec![new_null_array(&ty.data_type(), rows), Arc::new(bytes)])
            }
            "forget" => {
                numbers.iter().for_each(|number| drop(states.remove(number)));
                Ok(nothing())
            }
            _ => Err(CallError::violation(format!("there is no step {step:?}"))),
        })
    }
}

/// Exchanges of JSON's clients, by the names that these gave them.
#[derive(Default)]
pub(crate) struct Exchanges(Mutex<HashMap<String, Exchange>>);

struct Exchange {
    function: String,
    groups: Arc<Mutex<Box<dyn Groups>>>,
    used: Instant,
}

impl Exchanges {
    /// Opens the exchange with batch 0; any other batch needs one that is open.
    pub(crate) fn find(
        &self,
        function: &Function,
        name: &str,
        batch: u64,
    ) -> Result<Arc<Mutex<Box<dyn Groups>>>, CallError> {
        let mut exchanges = self.0.lock().expect("no holder panics");
        exchanges.retain(|_, exchange| exchange.used.elapsed() < EXCHANGE_IDLE);
        if batch == 0 && !name.is_empty() {
            let groups = Arc::new(Mutex::new(function.groups()?));
            let exchange = Exchange { function: function.name().to_string(), groups, used: Instant::now() };
            exchanges.insert(name.to_string(), exchange);
        }
        match exchanges.get_mut(name) {
            Some(exchange) if exchange.function == function.name() => {
                exchange.used = Instant::now();
                Ok(exchange.groups.clone())
            }
            _ => Err(CallError::violation(format!("there is no exchange {name:?} of {}", function.name()))),
        }
    }

    pub(crate) fn end(&self, name: &str) {
        self.0.lock().expect("no holder panics").remove(name);
    }
}
