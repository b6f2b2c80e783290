//! What a call is: the types of values, the signatures of functions, the bounds of the protocol, and the one error.
//!
//! Nothing here reads, writes or waits. Everybody who speaks the protocol, client or server, has these words in common.
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
