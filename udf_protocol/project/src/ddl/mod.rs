//! The statements that make an image's functions known to an engine, from the image's own manifest.

mod literal;
mod mssql;
mod postgres;
mod spark;

pub use mssql::mssql;
pub use postgres::{Pin, postgres};
pub use spark::spark;
