//! The server of a container whose functions are written in Rust (`docs/protocol.md`).
//!
//! A handler has a function `functions()` that gives its [`Functions`]; [`main`] serves them. A function takes and returns
//! the types of [`value`], an `Option` where NULL is welcome, and may return a `Result`.
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod function;
pub mod map;
mod pace;
pub mod value;
mod waiting;

pub use aggregate::Aggregate;
pub use arrow_array;
pub use arrow_schema;
pub use chrono;
pub use function::Functions;
pub use map::{RecordBatches, Rows};
pub use serde;
pub use serde_json;
pub use tokio;
pub use transship_core::CallError;
pub use transship_core::lines::write_line;
pub use transship_core::tables::{Table, table};
pub use udf_types::Error;
pub use value::Json;

use transship_core::error::install_panic_hook;
use transship_core::{Settings, serve};
use udf_project::manifest::Manifest;
use udf_types::signature::FunctionKind;

/// Runs the command of the program's arguments, `serve` or `describe`, on a handler's functions.
pub fn main(functions: Functions) -> std::process::ExitCode {
    match run(functions) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(fact) => {
            eprintln!("transship: {fact}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(functions: Functions) -> Result<(), String> {
    let root = std::env::var("TRANSSHIP_ROOT").unwrap_or_else(|_| "/opt/transship".to_string());
    let text =
        std::fs::read_to_string(format!("{root}/manifest.json")).map_err(|cause| format!("manifest.json: {cause}"))?;
    let mut manifest = Manifest::from_label(&text).map_err(|error| error.to_string())?;
    let functions = functions.bind(&manifest)?;
    if std::env::args().nth(1).as_deref() == Some("describe") {
        for (entry, function) in manifest.functions.iter_mut().zip(&functions) {
            entry.merges = function.signature().kind == FunctionKind::Aggregate;
        }
        print!("{}", manifest.to_label());
        return Ok(());
    }
    install_panic_hook();
    let settings = Settings::from_environment(concat!("transship-rust/", env!("CARGO_PKG_VERSION")))?;
    serve(functions, &Settings { has_lines: true, has_tables: true, ..settings })
}
