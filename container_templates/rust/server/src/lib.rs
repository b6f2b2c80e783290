//! The server of a container whose functions are written in Rust (`docs/protocol.md`).
//!
//! A handler has a function `functions()` that gives its [`Functions`]; [`main`] serves them. A function takes and returns
//! the types of [`value`], an `Option` where NULL is welcome, and may return a `Result`.
#![forbid(unsafe_code)]

pub mod aggregate;
mod columns;
pub mod error;
mod flight;
pub mod function;
mod http;
mod rest;
mod seats;
mod serve;
pub mod value;

pub use aggregate::Aggregate;
pub use arrow_array;
pub use arrow_schema;
pub use chrono;
pub use function::Functions;
pub use serde;
pub use serde_json;
pub use value::Json;

/// Runs the command of the program's arguments, `serve` or `describe`, on a handler's functions.
pub fn main(functions: Functions) -> std::process::ExitCode {
    match serve::run(functions) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(fact) => {
            eprintln!("transship: {fact}");
            std::process::ExitCode::FAILURE
        }
    }
}
