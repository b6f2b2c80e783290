//! The client side of the Transship UDF protocol (`docs/protocol.md`), which knows no database engine.
//!
//! A batch's journey, in the order of the modules: an engine appends rows to a [`batch::BatchBuilder`] and hands the
//! [`batch::CallBatch`] to an [`exchange::Exchange`]; [`dispatch`] keeps a window of batches in flight, a [`codec`] turns
//! each into bytes, a [`transport`] moves them to a replica that [`control`] leased from the container manager, and the
//! replies come back in the order of the calls.
#![deny(unsafe_code)]

pub mod allow_list;
pub mod arena;
mod balance;
pub mod batch;
pub mod client;
pub mod codec;
pub mod constants;
pub mod control;
pub mod ddl;
pub mod dialect;
pub mod dispatch;
pub mod doorbell;
mod duplicates;
pub mod error;
pub mod exchange;
pub mod host;
pub mod manifest;
pub mod pace;
pub mod reference;
pub mod signature;
pub mod transport;
mod type_text;
pub mod types;
mod waiter;

pub use error::{Error, Kind, Origin, Result};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use transport::fuzzing;
