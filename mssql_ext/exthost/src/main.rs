//! A stand-in for SQL Server's ExtHost: loads a language extension, and drives it as the server does.
//!
//! A [`job`] is read statement by statement. Each call of `sp_execute_external_script` runs in a process of its own (with
//! `@parallel = 1` in several), which loads the [`extension`], runs one [`session`] in memory that is gone when it may be
//! gone ([`buffers`]), checks that the extension keeps the contract, and prints the result set as CSV. What the API leaves
//! open is answered either way ([`readings`]).

mod abi;
mod answer;
mod buffers;
mod extension;
mod job;
mod probe;
mod readings;
mod run;
mod session;
mod table;
mod tokens;
mod types;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs job files of T-SQL against a language extension, without SQL Server.
#[derive(Debug, Parser)]
#[command(name = "exthost", version)]
pub struct Flags {
    /// The extension's shared object.
    #[arg(long, env = "EXTHOST_EXTENSION")]
    extension: PathBuf,
    /// PARAMETERS of the external language, unless the job creates it.
    #[arg(long, default_value = "")]
    parameters: String,
    /// Folder of the libraries of everybody; made in a temporary folder if left out.
    #[arg(long)]
    public_libraries: Option<PathBuf>,
    /// Folder of the user's own libraries.
    #[arg(long)]
    private_libraries: Option<PathBuf>,
    /// Open questions of the API to answer the other way, by number; `src/readings.rs` lists them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=readings::Readings::COUNT as i64))]
    flip: Vec<u8>,
    /// How memory is passed.
    #[arg(long, value_enum, default_value_t = buffers::Kind::Guarded)]
    buffers: buffers::Kind,
    /// Processes of a call with @parallel = 1.
    #[arg(long, default_value_t = 2)]
    tasks: u16,
    /// Kill each call after so many milliseconds, as the server does when a query is cancelled.
    #[arg(long)]
    kill_after_ms: Option<u64>,
    /// Kill the process of each call when it has called this function of the API; NAME:2 stands for its second call.
    #[arg(long, value_name = "NAME")]
    kill_at: Option<extension::Moment>,
    /// Run each call so often at once, as sessions of one process.
    #[arg(long, default_value_t = 1)]
    sessions: u16,
    /// Print what each call cost, and the extension's counters and events, to stderr.
    #[arg(long)]
    statistics: bool,
    /// Check the results and do not print them.
    #[arg(long)]
    quiet: bool,
    /// Do what no host should, and check that the extension refuses it: unknown sessions, numbers out of range, NULLs.
    #[arg(long)]
    probe: bool,
    /// The jobs.
    #[arg(required = true)]
    jobs: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let mut is_right = true;
    for path in &flags.jobs {
        let outcome =
            std::fs::read_to_string(path).map_err(|cause| cause.to_string()).and_then(|text| job::parse(&text));
        match outcome.and_then(|statements| run::run(&flags, statements)) {
            Ok(went_well) => is_right &= went_well,
            Err(fact) => {
                eprintln!("exthost: {}: {fact}", path.display());
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
