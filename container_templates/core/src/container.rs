//! What all transports answer for.

use crate::error::CallError;
use crate::exchanges::Exchanges;
use crate::function::Function;

/// A container's functions, what it says of itself, and the exchanges of HTTP's clients.
pub(crate) struct Container {
    pub(crate) functions: Vec<Function>,
    pub(crate) greeting: String,
    pub(crate) exchanges: Exchanges,
}

impl Container {
    pub(crate) fn find(&self, name: &str) -> Result<&Function, CallError> {
        let found = self.functions.iter().find(|function| function.name() == name);
        found.ok_or_else(|| CallError::unknown_function(name))
    }
}
