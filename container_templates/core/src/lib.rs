//! The server's side of the Transship UDF protocol (`docs/protocol.md`): HTTP, Flight, sockets, columns in shared memory, JSON,
//! exchanges of aggregate functions, constants, errors of rows, cancellation, and an orderly end.
//!
//! A language adds its values and its handlers. In Rust it implements [`Handler`] and calls [`serve()`]; any other language links
//! the library and follows `include/transship_core.h`.
#![deny(unsafe_code)]

mod batches;
mod bodies;
mod columns;
mod container;
mod databend;
mod dialect_values;
mod dialects;
mod dictionaries;
pub mod error;
mod exchanges;
mod exit;
mod ffi;
mod ffi_columns;
mod ffi_table_columns;
mod ffi_tables;
mod flight;
mod function;
mod given;
mod handler;
mod http;
mod json;
mod lent_column;
pub mod lines;
mod open_table;
mod plain;
mod pull;
mod pulled;
mod pulled_server;
mod pulling;
mod queue;
mod rest;
mod results;
mod row_errors;
mod seats;
mod serve;
#[cfg(feature = "simulation")]
pub mod simulation;
mod stream;
pub mod tables;
mod waits;
mod work;

pub use batches::{Batches, Taken};
pub use error::CallError;
pub use function::Function;
pub use handler::{Calls, Emit, Groups, Handler, IsCancelled, check_cancelled, room_for};
pub use results::Results;
pub use row_errors::in_pieces;
pub use serve::{Settings, serve};
