//! Bytes to record batches and back, without any I/O.

pub mod adapt;
pub mod arrow_ipc;
pub mod columns;
pub mod json;
pub mod json_text;
pub mod parquet;
