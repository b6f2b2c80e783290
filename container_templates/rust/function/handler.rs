//! The handler. `transship::value` says which Rust types hold which SQL types.

use transship::arrow_array::cast::AsArray;
use transship::arrow_array::types::Float64Type;
use transship::arrow_array::{ArrayRef, RecordBatch};
use transship::serde::{Deserialize, Serialize};
use transship::{Aggregate, Functions};

/// The functions by the names that transship.toml gives them.
pub fn functions() -> Functions {
    Functions::new()
        .scalar("add_one", add_one)
        .arrow("hypotenuse", hypotenuse)
        .table("words", words)
        .aggregate::<Longest>("longest")
}

/// One row at a time; an Option takes NULL.
fn add_one(x: Option<i64>) -> Option<i64> {
    x?.checked_add(1)
}

/// A whole batch at a time (`batch = "arrow"` in transship.toml).
fn hypotenuse(batch: &RecordBatch) -> Result<ArrayRef, String> {
    let (a, b) = (batch.column(0).as_primitive::<Float64Type>(), batch.column(1).as_primitive::<Float64Type>());
    let results = a.iter().zip(b).map(|(a, b)| Some(a?.hypot(b?)));
    Ok(std::sync::Arc::new(results.collect::<transship::arrow_array::Float64Array>()))
}

/// A table function: any number of results for each row.
fn words(text: String) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// An aggregate function: a state per group of rows.
#[derive(Default, Serialize, Deserialize)]
#[serde(crate = "transship::serde")]
struct Longest(Option<String>);

impl Aggregate for Longest {
    type Row = (Option<String>,);
    type Result = Option<String>;

    fn step(&mut self, (text,): Self::Row) {
        if text.as_ref().map(String::len) > self.0.as_ref().map(String::len) {
            self.0 = text;
        }
    }

    fn merge(&mut self, other: Longest) {
        self.step((other.0,));
    }

    fn finish(&self) -> Option<String> {
        self.0.clone()
    }
}
