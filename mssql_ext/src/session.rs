//! One session: a script's life from its description to its end.
//!
//! ```text
//!                     first Execute               Execute
//!  InitSession ▶ Describing ─────────────▶ Ready ◀───────┐
//!    InitColumn, InitParam │                 │ └─────────┘
//!                          │ any error       │ any error
//!                          ▼                 ▼
//!                        Failed ◀────────── Failed        CleanupSession ends it in every state: Ended
//! ```
//!
//! The function is looked up at the first Execute, when all columns and parameters are known. Each Execute is one
//! exchange: the rows at hand go out in batches, some at a time, and all results are there when it returns. Nothing
//! works after that but the lease, which lasts as long as the session or the process, whichever ends first.

use std::sync::Arc;

use arrow_array::ArrayRef;
use udf_client::client::Client;
use udf_client::dispatch::Call;
use udf_client::pace::Pace;
use udf_types::{Error, Kind, Result};

use crate::binding::{Binding, InputColumn, Parameter};
use crate::columns::ServerType;
use crate::columns::from_arrow::OutputColumn;
use crate::columns::raw::RawColumn;
use crate::execution::Execution;
use crate::function::{self, Function};
use crate::guard::{Failure, broken};
use crate::process::Process;
use crate::results::{Results, split};
use crate::script::Script;
use crate::telemetry::Telemetry;

/// A script at work.
pub struct Session {
    // for the session
    process: Arc<Process>,
    script: Script,
    /// How many processes share the call's rows.
    tasks: u16,
    columns: Vec<Option<InputColumn>>,
    parameters: Vec<Option<Parameter>>,
    client: Option<Client>,
    state: State,
    /// How large batches may be, by what the ones before have taken; none before the first.
    pace: Option<Pace>,
    /// Calls of Execute so far.
    executions: u64,
    /// Input rows of the calls before.
    rows_before: u64,
    /// What was counted.
    pub telemetry: Telemetry,
    // for one call of Execute, kept until the next
    results: Option<Results>,
    /// One per parameter that took a value.
    outputs: Vec<Option<OutputColumn>>,
}

enum State {
    Describing,
    Ready(Arc<Ready>),
    Failed,
    Ended,
}

/// A function whose columns are bound.
pub struct Ready {
    /// What is called.
    pub function: Function,
    /// How it is called.
    pub call: Arc<Call>,
    /// Who feeds what.
    pub binding: Binding,
    /// Types of the columns that pass through.
    pub passthrough: Vec<ServerType>,
}

impl Session {
    /// A session of so many columns and parameters; its task is one of so many.
    pub fn new(process: Arc<Process>, script: Script, tasks: u16, columns: usize, parameters: usize) -> Session {
        Session {
            process,
            script,
            tasks,
            columns: vec![None; columns],
            parameters: vec![None; parameters],
            client: None,
            state: State::Describing,
            pace: None,
            executions: 0,
            rows_before: 0,
            telemetry: Telemetry::default(),
            results: None,
            outputs: Vec::new(),
        }
    }

    /// Describes an input column.
    pub fn init_column(&mut self, number: usize, column: InputColumn) -> Result<()> {
        self.check_describing("InitColumn")?;
        match self.columns.get_mut(number) {
            Some(place @ None) => *place = Some(column),
            Some(Some(_)) => return Err(broken(&format!("column {number} was described before"))),
            None => return Err(broken(&format!("there is no column {number}"))),
        }
        Ok(())
    }

    /// Describes a parameter, again if the host likes: the last time counts.
    pub fn init_parameter(&mut self, number: usize, parameter: Parameter) -> Result<()> {
        self.check_describing("InitParam")?;
        let place =
            self.parameters.get_mut(number).ok_or_else(|| broken(&format!("there is no parameter {number}")))?;
        *place = Some(parameter);
        Ok(())
    }

    fn check_describing(&self, what: &str) -> Result<()> {
        match self.state {
            State::Describing => Ok(()),
            State::Ready(_) => Err(broken(&format!("{what} was called after Execute"))),
            State::Failed => Err(failed_before()),
            State::Ended => Err(ended_before()),
        }
    }

    /// The types of the input columns; they must all have been described.
    fn input_columns(&self) -> Result<Vec<InputColumn>> {
        let missing = || broken("Execute was called before InitColumn");
        self.columns.iter().map(|column| column.clone().ok_or_else(missing)).collect()
    }

    /// Calls the function for the rows at hand, which `read` takes from the host's buffers, given the columns' types; the
    /// number of result columns is the answer.
    pub fn execute<'a>(
        &mut self,
        rows: usize,
        read: impl FnOnce(&[InputColumn]) -> Result<Vec<RawColumn<'a>>>,
    ) -> std::result::Result<usize, Failure> {
        // What the host may have read until now.
        self.results = None;
        let ready = match &self.state {
            State::Ready(ready) => Some(ready.clone()),
            State::Describing => None,
            State::Failed => return Err(failed_before().into()),
            State::Ended => return Err(ended_before().into()),
        };
        // So it stays after an error, or a panic.
        self.state = State::Failed;
        let inputs = read(&self.input_columns()?)?;
        let ready = match ready {
            Some(ready) => ready,
            None => Arc::new(self.prepare()?),
        };
        let count = self.run(&ready, rows, &inputs)?;
        self.state = State::Ready(ready);
        Ok(count)
    }

    fn run(&mut self, ready: &Ready, rows: usize, inputs: &[RawColumn<'_>]) -> std::result::Result<usize, Failure> {
        let rows = if inputs.is_empty() { rows_without_input(self.executions) } else { rows };
        self.executions += 1;
        self.telemetry.executions += 1;
        let client = self.client.as_ref().expect("a session that is ready has a client");
        let pace = *self.pace.get_or_insert_with(|| self.process.settings.pace(ready.function.batch_rows));
        let execution =
            Execution::new(ready, client, pace, &self.parameters, inputs, rows, self.rows_before, &mut self.telemetry)?;
        let (mut results, last, pace) = execution.run()?;
        self.pace = Some(pace);
        results.finish();
        self.telemetry.result_rows += results.rows() as u64;
        self.rows_before += rows as u64;
        if let Some(last) = last {
            self.set_outputs(ready, &last)?;
        }
        self.results = Some(results);
        Ok(ready.passthrough.len() + ready.binding.results.len())
    }

    /// Looks the function up and binds the columns.
    fn prepare(&mut self) -> Result<Ready> {
        let columns = self.input_columns()?;
        let missing = || broken("Execute was called before InitParam");
        let parameters: Vec<Parameter> =
            self.parameters.iter().map(|parameter| parameter.clone().ok_or_else(missing)).collect::<Result<_>>()?;
        let client = match self.client.take().filter(Client::is_running) {
            Some(client) => self.client.insert(client),
            None => self.client.insert(Client::start()?),
        };
        client.limit_replies(self.process.settings.max_reply_size);
        let function = function::find(&self.process, client, &self.script)?;
        let guid = self.process.settings.guid;
        let binding = Binding::new(&self.script, &function.signature, &columns, &parameters, self.tasks, guid)?;
        let call = Arc::new(function.call(&self.process, &self.script));
        let passthrough = binding.passthrough.iter().map(|column| columns[*column].sql).collect();
        self.outputs = parameters.iter().map(|_| None).collect();
        Ok(Ready { function, call, binding, passthrough })
    }

    /// OUTPUT parameters take the last row's values.
    fn set_outputs(&mut self, ready: &Ready, last: &ArrayRef) -> std::result::Result<(), Failure> {
        let values = split(&ready.call.signature.result, last);
        for (number, result) in &ready.binding.outputs {
            let parameter = self.parameters[*number].as_ref().expect("it was bound");
            let mut column = OutputColumn::of_parameter(parameter.sql);
            column.append(&ready.binding.results[*result].ty, &values[*result]).map_err(|misfit| {
                let message = format!("parameter \"@{}\" cannot take its value", parameter.name);
                Error::new(Kind::OutOfRange, message).with_detail(misfit.sentence())
            })?;
            self.outputs[*number] = Some(column);
        }
        Ok(())
    }

    /// The type of a result column.
    pub fn result_column(&self, number: usize) -> Result<ServerType> {
        let State::Ready(ready) = &self.state else { return Err(broken("GetResultColumn was called before Execute")) };
        let results = ready.binding.results.iter().map(|result| result.sql);
        let found = ready.passthrough.iter().copied().chain(results).nth(number);
        found.ok_or_else(|| broken(&format!("there is no result column {number}")))
    }

    /// The results of the last call of Execute.
    pub fn results(&self) -> Result<&Results> {
        self.results.as_ref().ok_or_else(|| broken("GetResults was called before Execute"))
    }

    /// The value of an OUTPUT parameter; none if it is NULL, as it is before a row was answered.
    pub fn output(&self, number: usize) -> Result<Option<(*mut u8, i32)>> {
        let parameter = self.parameters.get(number).and_then(Option::as_ref);
        let parameter = parameter.ok_or_else(|| broken(&format!("there is no parameter {number}")))?;
        if !parameter.is_output {
            return Err(broken(&format!("parameter \"@{}\" is not declared OUTPUT", parameter.name)));
        }
        let column = self.outputs.get(number).and_then(Option::as_ref);
        Ok(column.map(|column| (column.data(), column.indicator(0))).filter(|(_, indicator)| *indicator >= 0))
    }

    /// Ends the session: its exchanges and leases are gone when this returns. Whoever found it before it ended, and waited for
    /// it, is refused.
    pub fn end(&mut self) {
        self.state = State::Ended;
        // What it has for the host to read is gone with it.
        (self.results, self.outputs) = (None, Vec::new());
        if let Some(client) = self.client.take() {
            client.stop();
        }
    }
}

/// Without an input query the script runs once, as scripts of other languages do.
fn rows_without_input(executions: u64) -> usize {
    usize::from(executions == 0)
}

fn failed_before() -> Error {
    broken("a session was used after it had failed")
}

fn ended_before() -> Error {
    broken("a session was used after it had ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn session() -> Session {
        let process = Arc::new(Process { settings: Settings::default(), library_folders: Vec::new() });
        let script = Script::parse("image = 'i'\nfunction = 'f'", |_| unreachable!()).unwrap();
        Session::new(process, script, 1, 0, 0)
    }

    #[test]
    fn a_session_that_panicked_has_failed_and_reads_no_buffers() {
        let mut session = session();
        let call = std::panic::AssertUnwindSafe(|| session.execute(0, |_| panic!("as a broken reader")));
        assert!(std::panic::catch_unwind(call).is_err());
        let failure = session.execute(0, |_| unreachable!("it has failed")).unwrap_err();
        assert!(failure.error.to_string().contains("after it had failed"), "{}", failure.error);
    }

    #[test]
    fn without_columns_the_function_is_called_once() {
        assert_eq!([0, 1, 2].map(rows_without_input), [1, 0, 0]);
    }

    #[test]
    fn a_session_that_has_ended_starts_no_client() {
        let mut session = session();
        session.end();
        for _ in 0..2 {
            let failure = session.execute(0, |_| unreachable!("it has ended")).unwrap_err();
            assert!(failure.error.to_string().contains("after it had ended"), "{}", failure.error);
            assert!(session.client.is_none());
        }
        assert!(session.results().is_err() && session.result_column(0).is_err());
    }
}
