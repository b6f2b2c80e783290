//! The store of cached results: a process of its own beside the manager, without any power over containers.
//!
//! The manager starts it, and starts it again when it ends (`process.rs`). It answers clients over a socket (`server.rs`) from
//! memory of a bounded size (`store.rs`). What it holds is lost when it ends, which makes queries slower and nothing else.

pub mod process;
pub mod server;
mod store;

pub use store::Store;
