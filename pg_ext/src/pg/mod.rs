//! Thin wrappers of PostgreSQL's C interface: the home of `unsafe` that is not an executor's or planner's callback.

pub mod bus_error;
pub mod catalog;
pub mod configuration;
pub mod file_queue;
pub mod list;
pub mod memory;
pub mod nodes;
pub mod raw;
pub mod reserve;
pub mod rights;
pub mod text;
