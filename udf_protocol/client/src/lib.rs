//! The client side of the Transship UDF protocol (`docs/protocol.md`), and the only door by which engines come in. It knows no
//! database engine.
//!
//! A batch's journey, in the order of the modules: an engine hands a [`CallBatch`](udf_codec::batch::CallBatch) to a
//! [`driver::Driver`], which sends it through an [`exchange::Exchange`] of the engine's [`client::Client`] at the [`pace`] that the
//! batches before have set; [`dispatch`] keeps a window
//! of batches in flight, a [`transport`] moves them along the [`route`] that was chosen to a replica of which the container manager
//! gave a [`lease`], and the replies come back in the order of the calls.
#![deny(unsafe_code)]

pub mod arena;
mod balance;
pub mod budget;
pub mod client;
pub mod control;
pub mod dispatch;
pub mod doorbell;
pub mod driver;
mod duplicates;
pub mod exchange;
pub mod folder;
mod foreground;
pub mod host;
pub mod inbox;
pub mod lease;
pub mod names;
pub mod outbox;
pub mod pace;
pub mod route;
mod row_errors;
mod segment;
mod spin;
mod threads;
pub mod transport;
mod waiter;
