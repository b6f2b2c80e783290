//! What the keys of the two TOML texts that a user writes have in common: how long a text may be, what values are bad, and how that is
//! said.

use udf_types::limits::MAX_TOML_BYTES;
use udf_types::{Error, Result};

use crate::options::NumberOption;

/// Refuses a text of so many bytes if reading it would take too much memory.
pub fn check_length(what: &str, bytes: usize) -> Result<()> {
    if bytes <= MAX_TOML_BYTES {
        return Ok(());
    }
    let detail = format!("It has {bytes} bytes, and may have {MAX_TOML_BYTES}.");
    Err(Error::invalid_definition(format!("{what} is too long")).with_detail(detail))
}

pub(crate) fn malformed(what: &str, cause: &toml::de::Error) -> Error {
    let said = cause.message().replace("unknown field", "unrecognized key").replace('`', "\"");
    let error = Error::invalid_definition(format!("{what} is not valid: {said}"));
    // Of a table that is read already, the error's text alone says where.
    let shown = cause.to_string();
    if let Some(key) = shown.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`')) {
        return error.with_detail(format!("The error is in the value of key \"{key}\"."));
    }
    match cause.span() {
        Some(span) => error.with_detail(format!("The error is at byte {}.", span.start)),
        None => error,
    }
}

pub(crate) fn bad_value(key: &str, value: &str, expected: &str) -> Error {
    Error::invalid_definition(format!("invalid value for key \"{key}\": \"{value}\""))
        .with_detail(format!("Expected {expected}."))
}

pub(crate) fn check_bounds(key: &str, value: f64, min: f64, max: f64) -> Result<()> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(bad_value(key, &value.to_string(), &format!("a number from {min} to {max}")))
}

pub(crate) fn check_option(key: &str, value: u64, option: NumberOption) -> Result<()> {
    check_bounds(key, value as f64, option.min as f64, option.max as f64)
}

pub(crate) fn is_template_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

pub(crate) fn check_concurrency(concurrency: u32) -> Result<()> {
    check_bounds("concurrency", f64::from(concurrency), 1.0, 1000.0)
}
