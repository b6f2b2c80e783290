//! Runs a job: keeps its tables and variables, and gives each call of a script processes of its own.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe};

use crate::Flags;
use crate::abi::Guid;
use crate::answer::{read_outcome, write_outcome};
use crate::extension::Extension;
use crate::job::{Declared, ProcedureCall, Statement, Value, parse_parameters, parse_query};
use crate::probe;
use crate::readings::Readings;
use crate::session::{Host, JobOutcome, Parameter, Work};
use crate::table::{Column, Table};
use crate::types::ApiType;

/// The procedure that runs scripts.
const SPEES: &str = "sp_execute_external_script";

type Variable = (ApiType, Option<Vec<u8>>);

/// Parameters, the one that chooses between the calls, and the calls.
type Procedure = (Vec<Declared>, Option<String>, Vec<ProcedureCall>);

struct Job<'a> {
    flags: &'a Flags,
    readings: Readings,
    tables: HashMap<String, Table>,
    variables: HashMap<String, Variable>,
    procedures: HashMap<String, Procedure>,
    language_parameters: String,
    public: PathBuf,
    private: PathBuf,
    /// Sessions so far, from which ids are made.
    sessions: u32,
}

/// Runs a job's statements; false if one of them failed as the server would tell its user.
pub fn run(flags: &Flags, statements: Vec<Statement>) -> Result<bool, String> {
    let numbers: Vec<usize> = flags.flip.iter().map(|number| usize::from(*number)).collect();
    let scratch = std::env::temp_dir().join(format!("exthost-{}", std::process::id()));
    let folder = |given: &Option<PathBuf>, name: &str| given.clone().unwrap_or_else(|| scratch.join(name));
    let mut job = Job {
        flags,
        readings: Readings::flipped(&numbers),
        tables: HashMap::new(),
        variables: HashMap::new(),
        procedures: HashMap::new(),
        language_parameters: flags.parameters.clone(),
        public: folder(&flags.public_libraries, "public"),
        private: folder(&flags.private_libraries, "private"),
        sessions: 0,
    };
    let mut is_right = true;
    for statement in statements {
        is_right &= job.execute(statement)?;
    }
    let _ = std::fs::remove_dir_all(scratch);
    Ok(is_right)
}

fn key(name: &str) -> String {
    name.to_lowercase()
}

impl Job<'_> {
    /// Runs a statement; an error is the job's own, false a script's.
    fn execute(&mut self, statement: Statement) -> Result<bool, String> {
        match statement {
            Statement::CreateTable { name, columns } => {
                let columns =
                    columns.iter().map(|column| Column::new(&column.name, column.ty, column.is_nullable)).collect();
                self.tables.insert(key(&name), Table { columns, rows: 0 });
            }
            Statement::Insert { table, rows } => {
                for row in rows {
                    let values = row.iter().map(|value| self.text(value)).collect::<Result<Vec<_>, _>>()?;
                    self.table(&table)?.push(&values).map_err(|fact| format!("table {table}: {fact}"))?;
                }
            }
            Statement::BulkInsert { table, path, is_native } => {
                let target = self.table(&table)?;
                let outcome = if is_native {
                    target.read_native(Path::new(&path))
                } else {
                    std::fs::read_to_string(&path)
                        .map_err(|cause| cause.to_string())
                        .and_then(|text| target.read_csv(&text))
                };
                outcome.map_err(|fact| format!("{path}: {fact}"))?;
            }
            Statement::Declare(declared) => {
                for variable in declared {
                    let text = variable.default.as_ref().map(|value| self.text(value)).transpose()?.flatten();
                    let value = text.map(|text| variable.ty.encode(&text)).transpose()?;
                    self.variables.insert(key(&variable.name), (variable.ty, value));
                }
            }
            Statement::Language { parameters, environment } => self.set_language(parameters, &environment)?,
            Statement::Library { name, content } => return Ok(self.change_library(&name, content.as_deref())),
            Statement::Procedure { name, parameters, tested, calls } => {
                self.procedures.insert(key(&name), (parameters, tested, calls));
            }
            Statement::Exec(call) => return self.call(&call),
            Statement::Select(names) => {
                let mut shown = Table { columns: Vec::new(), rows: 1 };
                for name in names {
                    let (ty, value) = self.variable(&name)?;
                    let mut column = Column::new(&name, ty, true);
                    column.push(value.map(|bytes| ty.decode(&bytes)).as_deref())?;
                    shown.columns.push(column);
                }
                print!("{}", shown.to_csv());
            }
        }
        Ok(true)
    }

    fn table(&mut self, name: &str) -> Result<&mut Table, String> {
        self.tables.get_mut(&key(name)).ok_or_else(|| format!("there is no table {name}"))
    }

    fn variable(&self, name: &str) -> Result<Variable, String> {
        self.variables.get(&key(name)).cloned().ok_or_else(|| format!("@{name} is not declared"))
    }

    fn text(&self, value: &Value) -> Result<Option<String>, String> {
        match value {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text.clone())),
            Value::Variable(name) => self.variable(name).map(|(ty, value)| value.map(|bytes| ty.decode(&bytes))),
        }
    }

    fn set_language(&mut self, parameters: String, environment: &str) -> Result<(), String> {
        self.language_parameters = parameters;
        if !environment.is_empty() {
            let pairs: HashMap<String, String> =
                serde_json::from_str(environment).map_err(|cause| format!("ENVIRONMENT_VARIABLES: {cause}"))?;
            for (name, value) in pairs {
                // SAFETY: this process has one thread.
                unsafe { std::env::set_var(name, value) };
            }
        }
        Ok(())
    }

    fn change_library(&mut self, name: &str, content: Option<&str>) -> bool {
        let folder = self.public.to_string_lossy().into_owned();
        let id = self.new_id();
        // The server stages a copy whose name does not tell the library's.
        let staged = std::env::temp_dir().join(format!("exthost-5_1_{}.zip", std::process::id()));
        let outcome = self.in_child(|job| {
            if let Some(content) = content {
                std::fs::copy(content, &staged).map_err(|cause| format!("{content}: {cause}"))?;
            }
            let extension = job.start()?;
            let file = staged.to_string_lossy();
            let outcome = extension.change_library(id, name, content.map(|_| file.as_ref()), &folder);
            extension.cleanup_session(id, 0).map_err(|refused| refused.to_string())?;
            job.end(&extension)?;
            outcome.map(|()| JobOutcome::default())
        });
        let outcome = outcome.and_then(|child| self.collect(child));
        let _ = std::fs::remove_file(&staged);
        if let Err(fact) = &outcome {
            println!("Msg 39021: {fact}");
        }
        outcome.is_ok()
    }

    fn call(&mut self, call: &ProcedureCall) -> Result<bool, String> {
        if call.procedure.eq_ignore_ascii_case(SPEES) {
            return self.run_script(call);
        }
        let found = self.procedures.get(&key(&call.procedure)).cloned();
        let (parameters, tested, calls) = found.ok_or_else(|| format!("there is no procedure {}", call.procedure))?;
        let mut scope = HashMap::new();
        for parameter in &parameters {
            let given = call.arguments.iter().find(|(name, _)| name.eq_ignore_ascii_case(&parameter.name));
            let value = given.map(|(_, value)| value).or(parameter.default.as_ref());
            let text = value.map(|value| self.text(value)).transpose()?.flatten();
            scope
                .insert(key(&parameter.name), (parameter.ty, text.map(|text| parameter.ty.encode(&text)).transpose()?));
        }
        let outer = std::mem::replace(&mut self.variables, scope);
        let chosen = match tested {
            Some(name) if self.variable(&name)?.1.is_none() => calls.get(1),
            _ => calls.first(),
        };
        let outcome = chosen.map_or(Ok(true), |call| self.call(call));
        self.variables = outer;
        outcome
    }

    fn run_script(&mut self, call: &ProcedureCall) -> Result<bool, String> {
        let argument = |name: &str| {
            call.arguments.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        let text = |name: &str| argument(name).map(|value| self.text(value)).transpose().map(Option::flatten);
        let script = text("script")?.ok_or("a call needs @script")?;
        let mut input = match text("input_data_1")? {
            Some(query) if !query.is_empty() => self.query(&query)?,
            _ => Table::default(),
        };
        let mut parameters = Vec::new();
        let mut receivers = Vec::new();
        for declared in text("params")?
            .filter(|text| !text.trim().is_empty())
            .map_or(Ok(Vec::new()), |text| parse_parameters(&text))?
        {
            let given = argument(&declared.name);
            let value = given.map(|value| self.text(value)).transpose()?.flatten();
            receivers.push(match given {
                Some(Value::Variable(name)) if declared.is_output => Some(name.clone()),
                _ => None,
            });
            parameters.push(Parameter {
                ty: declared.ty,
                value: value.map(|text| declared.ty.encode(&text)).transpose()?,
                name: declared.name,
                is_output: declared.is_output,
            });
        }
        let numbers = |names: Option<String>| -> Result<Vec<usize>, String> {
            let names = names.unwrap_or_default();
            names
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(|name| {
                    let name = name.trim_matches(['[', ']']);
                    input
                        .columns
                        .iter()
                        .position(|column| column.name.eq_ignore_ascii_case(name))
                        .ok_or_else(|| format!("there is no column {name}"))
                })
                .collect()
        };
        let partition_by = numbers(text("input_data_1_partition_by_columns")?)?;
        let order_by = numbers(text("input_data_1_order_by_columns")?)?;
        let by: Vec<usize> = partition_by.iter().chain(&order_by).copied().collect();
        if !by.is_empty() {
            input = input.sort(&by);
        }
        let is_parallel = text("parallel")?.is_some_and(|value| value == "1");
        let work = Work { script, input, parameters, partition_by, order_by };
        match self.run_tasks(&work, if is_parallel { self.flags.tasks.max(1) } else { 1 }) {
            Ok(mut answers) => {
                let names = call.results.as_deref();
                let mut results = std::mem::take(&mut answers[0].results);
                for other in &answers[1..] {
                    results.append(&other.results);
                }
                if let Err(fact) = self.show(results, names) {
                    println!("Msg 11537: {fact}");
                    return Ok(false);
                }
                for (number, value) in answers.pop().map(|answer| answer.outputs).unwrap_or_default() {
                    if let Some(name) = &receivers[number] {
                        let ty = work.parameters[number].ty;
                        let target =
                            self.variables.get_mut(&key(name)).ok_or_else(|| format!("@{name} is not declared"))?;
                        target.1 = value.map(|bytes| target.0.encode(&ty.decode(&bytes))).transpose()?;
                    }
                }
                Ok(true)
            }
            Err(fact) => {
                println!("Msg 39004: {fact}");
                Ok(false)
            }
        }
    }

    fn query(&self, text: &str) -> Result<Table, String> {
        let query = parse_query(text)?;
        let table = self.tables.get(&key(&query.table)).ok_or_else(|| format!("there is no table {}", query.table))?;
        let Some(wanted) = query.columns else { return Ok(table.clone()) };
        let mut columns = Vec::new();
        for (name, alias) in wanted {
            let column = table.columns.iter().find(|column| column.name.eq_ignore_ascii_case(&name));
            let column = column.ok_or_else(|| format!("there is no column {name}"))?;
            columns.push(Column { name: alias, ..column.clone() });
        }
        Ok(Table { columns, rows: table.rows })
    }

    /// Shows a result set, converted to what WITH RESULT SETS declares.
    fn show(&self, mut results: Table, declared: Option<&[Declared]>) -> Result<(), String> {
        if results.columns.is_empty() || self.flags.quiet {
            return Ok(());
        }
        if let Some(declared) = declared {
            if declared.len() != results.columns.len() {
                return Err(format!(
                    "the result set has {} columns, WITH RESULT SETS {}",
                    results.columns.len(),
                    declared.len()
                ));
            }
            let mut converted = Vec::new();
            for (column, wanted) in results.columns.iter().zip(declared) {
                let mut target = Column::new(&wanted.name, wanted.ty, wanted.is_nullable);
                for row in 0..results.rows {
                    target.push(column.text(row).as_deref())?;
                }
                converted.push(target);
            }
            results.columns = converted;
        } else {
            for (number, column) in results.columns.iter_mut().enumerate() {
                column.name = format!("column{}", number + 1);
            }
        }
        print!("{}", results.to_csv());
        Ok(())
    }

    fn new_id(&mut self) -> Guid {
        self.sessions += 1;
        let process = std::process::id().to_le_bytes();
        let number = self.sessions.to_le_bytes();
        Guid {
            data1: 0x7a65_5eed,
            data2: 1,
            data3: 2,
            data4: [process[0], process[1], process[2], process[3], number[0], number[1], number[2], number[3]],
        }
    }

    /// Runs a call in as many processes as it has tasks, each with its share of the rows.
    fn run_tasks(&mut self, work: &Work, tasks: u16) -> Result<Vec<JobOutcome>, String> {
        let id = self.new_id();
        let rows = work.input.rows;
        let mut children = Vec::new();
        for task in 0..tasks {
            let share =
                rows * usize::from(task) / usize::from(tasks)..rows * usize::from(task + 1) / usize::from(tasks);
            let part = (tasks > 1).then(|| Work { input: work.input.pick(&share.collect::<Vec<_>>()), ..work.clone() });
            children.push(self.in_child(|job| job.run_sessions(id, task, tasks, part.as_ref().unwrap_or(work)))?);
        }
        if let Some(milliseconds) = self.flags.kill_after_ms {
            std::thread::sleep(Duration::from_millis(milliseconds));
            for child in &children {
                let _ = kill(child.pid, Signal::SIGKILL);
            }
        }
        // Every task is awaited, whatever became of the others.
        let answers: Vec<Result<JobOutcome, String>> = children.into_iter().map(|child| self.collect(child)).collect();
        answers.into_iter().collect()
    }

    /// What one process does: one session, or several at once.
    fn run_sessions(&self, id: Guid, task: u16, tasks: u16, work: &Work) -> Result<JobOutcome, String> {
        if !self.readings.has_network {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
                .map_err(|cause| format!("no network of its own: {cause}"))?;
        }
        let host = Host { readings: self.readings, kind: self.flags.buffers, keeps_results: !self.flags.quiet };
        let extension = self.start()?;
        let outcome = if self.flags.sessions <= 1 {
            host.run(&extension, id, task, tasks, work)
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..self.flags.sessions)
                    .map(|number| {
                        let host = &host;
                        scope.spawn(move || {
                            let extension = self.load()?;
                            host.run(&extension, Guid { data3: 100 + number, ..id }, task, tasks, work)
                        })
                    })
                    .collect();
                let mut answers: Vec<JobOutcome> = threads
                    .into_iter()
                    .map(|thread| thread.join().expect("it does not unwind"))
                    .collect::<Result<_, String>>()?;
                let first = answers.swap_remove(0);
                let text = first.results.to_csv();
                match answers.iter().all(|answer| answer.results.to_csv() == text) {
                    true => Ok(first),
                    false => Err("sessions of one process gave different results".to_string()),
                }
            })
        };
        if self.flags.probe && outcome.is_ok() {
            probe::run(&extension, id)?;
        }
        if outcome.is_err() && !self.readings.cleans_after_error {
            return outcome;
        }
        let start = std::time::Instant::now();
        self.end(&extension)?;
        outcome.map(|answer| JobOutcome { cleanup: answer.cleanup + start.elapsed(), ..answer })
    }

    fn load(&self) -> Result<Extension, String> {
        let path = std::path::absolute(&self.flags.extension).map_err(|cause| cause.to_string())?;
        Extension::load(&path, self.readings, self.flags.buffers, self.flags.kill_at.clone())
    }

    /// Loads the extension and starts it as the server does.
    fn start(&self) -> Result<Extension, String> {
        let extension = self.load()?;
        let newest = if self.readings.speaks_version_3 { 3 } else { 2 };
        let version = extension.get_interface_version();
        if version > newest {
            return Err(format!("the extension wants interface version {version}, and the host speaks {newest}"));
        }
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let folder = self.flags.extension.parent().map(text).unwrap_or_default();
        let said = |refused: crate::extension::Refused| refused.to_string();
        extension.init(&self.language_parameters, &folder, &text(&self.public), &text(&self.private)).map_err(said)?;
        if newest >= 3 && version >= 3 && extension.has("SetHostCallbacks") {
            extension.set_host_callbacks(1, 0).map_err(said)?;
        }
        Ok(extension)
    }

    fn end(&self, extension: &Extension) -> Result<(), String> {
        extension.cleanup().map_err(|refused| refused.to_string())
    }

    /// Runs work in a process of its own, as launchpad does for each call.
    fn in_child(&self, work: impl FnOnce(&Self) -> Result<JobOutcome, String>) -> Result<Child, String> {
        let (reader, writer) = pipe().map_err(|cause| cause.to_string())?;
        let _ = std::io::stdout().flush();
        // SAFETY: this process has one thread.
        match unsafe { fork() }.map_err(|cause| cause.to_string())? {
            ForkResult::Parent { child } => Ok(Child { pid: child, reader }),
            ForkResult::Child => {
                drop(reader);
                let outcome = work(self);
                if self.flags.statistics
                    && let Ok(answer) = &outcome
                {
                    print_statistics(answer);
                }
                let sent = write_outcome(writer, &outcome);
                // Nothing of the parent's is cleaned up here.
                std::process::exit(i32::from(sent.is_err()));
            }
        }
    }

    /// Waits for a process's answer.
    fn collect(&self, child: Child) -> Result<JobOutcome, String> {
        let mut bytes = Vec::new();
        let read = File::from(child.reader).read_to_end(&mut bytes);
        let status = waitpid(child.pid, None);
        match status {
            Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => return Err("the query was cancelled".to_string()),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Err(format!("contract: the process died of {signal}")),
            _ => {}
        }
        read.map_err(|cause| cause.to_string())?;
        read_outcome(&bytes).ok_or_else(|| format!("contract: the process ended without an answer ({status:?})"))?
    }
}

struct Child {
    pid: Pid,
    reader: OwnedFd,
}

fn print_statistics(answer: &JobOutcome) {
    let micros = |time: Duration| time.as_micros();
    eprintln!(
        "host_us {}\nextension_us {}\ncleanup_us {}",
        micros(answer.host),
        micros(answer.extension),
        micros(answer.cleanup)
    );
    answer.telemetry.iter().for_each(|(name, value)| eprintln!("{name} {value}"));
    answer.events.iter().for_each(|event| eprintln!("event {event}"));
}
