//! Which columns of a shared table have dictionaries: `transship.share(..., dictionary => 'city, country')`.

use pgrx::pg_sys;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use super::{Table, positions_of, storable};
use crate::pg::{catalog, text};
use crate::{report, server};

/// The columns that an argument of `transship.share` names; none of NULL. Raises an error if it is no list of columns.
///
/// # Safety
/// It is a text.
pub(super) unsafe fn named(argument: pg_sys::NullableDatum) -> Vec<String> {
    if argument.isnull {
        return Vec::new();
    }
    // SAFETY: the caller says so.
    let names = unsafe { text::from_c(pg_sys::text_to_cstring(argument.value.cast_mut_ptr())) };
    report::unwrap(server::column_names(&names))
}

/// The positions of the columns of these names and types that are to have dictionaries, ascending.
///
/// # Errors
/// One does not exist, is named twice, is in the key, or has a type that cannot have a dictionary.
pub(super) fn positions(names: &[String], columns: &[(&str, pg_sys::Oid)], key: &[usize]) -> Result<Vec<usize>> {
    let known: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut positions = positions_of("dictionary", names, &known)?;
    for position in &positions {
        let (name, declared) = columns[*position];
        let refuse = |what: &str, hint: &str| {
            let message = format!("column \"{name}\" cannot have a dictionary: it {what}");
            Err(Error::new(Kind::UnsupportedType, message).with_hint(hint.to_string()))
        };
        if key.contains(position) {
            return refuse("is in the key", "Look-ups by key need the values themselves.");
        }
        if !matches!(storable(name, declared)?.ty, Type::Text | Type::Bytea) {
            let what = format!("is of type {}", catalog::type_name(declared));
            return refuse(&what, "Columns of the types text, varchar, char and bytea can have dictionaries.");
        }
    }
    positions.sort_unstable();
    Ok(positions)
}

/// Raises an error unless these columns of the table have dictionaries, and no others.
pub(super) fn check(table: &Table, names: &[String]) {
    let encoded = table.columns.iter().filter(|column| column.has_dictionary);
    let own: Vec<&str> = encoded.map(|column| column.name.as_str()).collect();
    if own.len() == names.len() && own.iter().all(|own| names.iter().any(|name| name == own)) {
        return;
    }
    let message = format!("shared table \"{}\" has dictionaries for other columns", table.name);
    let hint = match own.as_slice() {
        [] => "It has none.".to_string(),
        own => format!("It has dictionaries for {}.", own.join(", ")),
    };
    report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_hint(hint), None);
}
