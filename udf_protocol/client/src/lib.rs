//! The client side of the Transship UDF protocol (`docs/protocol.md`), and the only door by which engines come in. It knows no
//! database engine.
//!
//! A batch's journey, in the order of the modules: an engine hands a [`CallBatch`](udf_codec::batch::CallBatch) to a
//! [`driver::Driver`], which sends it through an [`exchange::Exchange`] of the engine's [`client::Client`] at the [`pace`] that the
//! batches before have set; [`dispatch`] keeps a window
//! of batches in flight, a [`transport`] moves them along the [`route`] that was chosen to a replica of which the container manager
//! gave a [`lease`], and the replies come back in the order of the calls.
//!
//! Two batches to a server that runs already. The second is on its way while the server computes the first:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use udf_client::client::Client;
//! use udf_client::dispatch::{Call, Target};
//! use udf_client::host::PlainHost;
//! use udf_client::transport::credentials::Credentials;
//! use udf_codec::batch::{BatchBuilder, ColumnBuilder};
//! use udf_project::endpoint::Endpoint;
//! use udf_types::signature::Volatility;
//! use udf_types::transport_name::TransportName;
//!
//! let (client, timeout) = (Client::start()?, Duration::from_secs(10));
//! let endpoint = Endpoint::parse("grpc://127.0.0.1:8815")?;
//! let target = Target::Remote { remote: endpoint.into(), credentials: Credentials::default() };
//! let signature = client.signature(&PlainHost, &target, TransportName::Auto, "add_one", timeout)?;
//!
//! let mut builder = BatchBuilder::new(&signature);
//! let mut exchange = client.open(Arc::new(Call {
//!     target,
//!     transport: TransportName::Auto,
//!     signature,
//!     volatility: Volatility::Immutable,
//!     batch_timeout: timeout,
//!     start_timeout: timeout,
//!     tables: Vec::new(),
//! }));
//! for values in [[1, 2], [3, 4]] {
//!     for value in values {
//!         let ColumnBuilder::Int8(column) = builder.column(0) else { panic!("add_one takes an int8") };
//!         column.append_value(value);
//!         builder.finish_row();
//!     }
//!     exchange.send(builder.finish_batch());
//! }
//! for _ in 0..2 {
//!     println!("{:?}", exchange.receive(&PlainHost)?.columns);
//! }
//! # Ok::<(), udf_types::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod arena;
mod balance;
pub mod budget;
pub mod cache;
pub mod channel;
pub mod client;
pub mod control;
pub mod dispatch;
pub mod doorbell;
pub mod driver;
mod duplicates;
pub mod exchange;
pub mod file_rows;
pub mod folder;
mod foreground;
pub mod host;
pub mod inbox;
pub mod lease;
pub mod names;
pub mod outbox;
pub mod pace;
#[doc(hidden)]
pub mod planted;
pub mod registry_login;
pub mod route;
mod row_errors;
mod segment;
mod spin;
pub mod tables;
mod threads;
pub mod trace;
pub mod transport;
mod waiter;
