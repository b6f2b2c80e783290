//! Bytes to record batches and back, for clients and servers alike (`docs/protocol.md` §4 to §7). Nothing here opens a file, a
//! socket or a thread.
//!
//! An engine appends rows to a [`batch::BatchBuilder`], which gives [`batch::CallBatch`]es. They travel as [`columns`], as
//! [`arrow_ipc`] messages, as [`json`] or as [`parquet`]; [`wire`] has the small messages beside them.
//!
//! ```
//! use udf_codec::batch::{BatchBuilder, ColumnBuilder};
//! use udf_codec::columns::{CallHeader, Layout, inline_body};
//! use udf_codec::json::encode_call;
//! use udf_types::signature::{Argument, Signature};
//! use udf_types::types::Type;
//!
//! let signature = Signature::scalar("f", vec![Argument { name: "x".into(), ty: Type::Int8 }], Type::Int8);
//! let mut builder = BatchBuilder::new(&signature);
//! for value in [Some(1), None, Some(3)] {
//!     let ColumnBuilder::Int8(column) = builder.column(0) else { unreachable!("the argument is an int8") };
//!     column.append_option(value);
//!     builder.finish_row();
//! }
//! let batch = builder.finish_batch();
//! assert_eq!(encode_call(&signature, &batch, "exchange"), r#"{"batch":0,"rows":3,"columns":[[1,null,3]]}"#);
//!
//! // The same call as columns in the body of a request.
//! let layout = Layout::of(&signature.call_types(), &batch.columns);
//! let body = inline_body(&CallHeader::new(&batch, &layout, "exchange"), &layout);
//! assert!(body.len() > 3 * size_of::<i64>());
//! ```
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
pub mod lines;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod unreadable;
pub mod wire;
