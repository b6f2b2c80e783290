//! Exchanges of aggregate functions: one result per group of rows (`docs/protocol.md` §4.7).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::CallError;
use crate::function::Function;
use crate::handler::Groups;

/// How long an exchange over HTTP is kept that nobody asks for.
const EXCHANGE_IDLE: Duration = Duration::from_secs(600);

type SharedGroups = Arc<Mutex<Box<dyn Groups>>>;

/// Exchanges of HTTP's clients, by the names that these gave them.
#[derive(Default)]
pub(crate) struct Exchanges(Mutex<HashMap<String, Exchange>>);

struct Exchange {
    function: String,
    groups: SharedGroups,
    used: Instant,
}

impl Exchanges {
    /// Opens the exchange with batch 0; any other batch needs one that is open.
    pub(crate) fn find(&self, function: &Function, name: &str, batch: u64) -> Result<SharedGroups, CallError> {
        let mut exchanges = self.0.lock().expect("no holder panics");
        exchanges.retain(|_, exchange| exchange.used.elapsed() < EXCHANGE_IDLE);
        if batch == 0 && !name.is_empty() {
            let groups = Arc::new(Mutex::new(function.groups()?));
            let exchange = Exchange { function: function.name().to_string(), groups, used: Instant::now() };
            exchanges.insert(name.to_string(), exchange);
        }
        match exchanges.get_mut(name) {
            Some(exchange) if exchange.function == function.name() => {
                exchange.used = Instant::now();
                Ok(exchange.groups.clone())
            }
            _ => Err(CallError::violation(format!("there is no exchange {name:?} of {}", function.name()))),
        }
    }

    pub(crate) fn end(&self, name: &str) {
        self.0.lock().expect("no holder panics").remove(name);
    }
}
