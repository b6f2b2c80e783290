//! Bytes to record batches and back, for clients and servers alike (`docs/protocol.md` §4 to §7). Nothing here opens a file, a
//! socket or a thread.
//!
//! An engine appends rows to a [`batch::BatchBuilder`], which gives [`batch::CallBatch`]es. They travel as [`columns`], as
//! [`arrow_ipc`] messages, as [`json`] or as [`parquet`]; [`wire`] has the small messages beside them.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod arrow_ipc;
pub mod batch;
pub mod call_decoder;
pub mod client_layout;
pub mod columns;
pub mod constants;
pub mod json;
pub mod json_reply;
pub mod json_text;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod unreadable;
pub mod wire;
