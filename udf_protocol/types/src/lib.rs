//! What a call is: the types of values, the signatures of functions, the bounds of the protocol, and the one error.
//!
//! Nothing here reads, writes or waits. Everybody who speaks the protocol, client or server, has these words in common.
//!
//! A signature says what is called. Its schemas are those of the batches that travel:
//!
//! ```
//! use udf_types::signature::{Argument, Signature};
//! use udf_types::types::Type;
//!
//! let argument = |name: &str, ty| Argument { name: name.into(), ty };
//! let tags = Type::from_name("text[]")?;
//! let signature = Signature::scalar("label", vec![argument("x", Type::Int8), argument("tags", tags)], Type::Text);
//! assert_eq!(signature.to_string(), "label(int8, text[]) returns text");
//! assert_eq!(signature.call_schema().field(0).data_type(), &arrow_schema::DataType::Int64);
//!
//! let error = Type::from_name("point").unwrap_err();
//! assert!(error.message().contains("\"point\""));
//! # Ok::<(), udf_types::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod error;
pub mod limits;
pub mod row_texts;
pub mod signature;
pub mod terminal;
pub mod transport_name;
pub mod type_text;
pub mod types;

pub use error::{Advice, Error, Kind, Origin, Result};
