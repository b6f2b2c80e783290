//! Literals that bodies of every engine have in common.

/// A text as a function body's TOML writes it.
pub(super) fn toml_string(text: &str) -> String {
    toml::Value::from(text).to_string()
}
