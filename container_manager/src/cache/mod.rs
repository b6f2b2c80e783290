//! The store of cached results: a process of its own beside the manager, without any power over containers.
//!
//! The manager starts it, and starts it again when it ends (`process.rs`). It answers clients over a socket (`server.rs`) from
//! memory of a bounded size (`store.rs`). If the manager has a folder for them (`folder.rs`), results are also on disk (`disk.rs`,
//! `ring.rs`). Others are lost when the store ends, which makes queries slower and nothing else.

mod clock;
mod disk;
mod folder;
pub mod process;
mod ring;
pub mod server;
mod store;

pub use store::Store;
