//! Bytes to record batches and back, without any I/O.

pub mod arrow_ipc;
pub mod json;
