//! The statements that make an image's functions known to an engine, from the image's own manifest.

mod mssql;
mod postgres;
mod spark;

pub use mssql::mssql;
pub use postgres::{Pin, postgres};
pub use spark::spark;

/// A text as a function body's TOML writes it.
fn toml_string(text: &str) -> String {
    toml::Value::from(text).to_string()
}
