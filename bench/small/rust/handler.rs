//! The smallest function there is.

use transship::Functions;

pub fn functions() -> Functions {
    Functions::new().scalar("add_one", add_one)
}

fn add_one(x: Option<f64>) -> Option<f64> {
    Some(x? + 1.0)
}
