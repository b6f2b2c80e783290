//! Exchanges of aggregate functions: one result per group of rows (`docs/protocol.md` §4.7).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::{Array, ArrayRef, RecordBatch};
use udf_codec::batch::AggregateStep;

use crate::error::{CallError, guarded};
use crate::function::Function;
use crate::handler::{Groups, IsCancelled};

/// How long an exchange over HTTP is kept that nobody asks for.
const EXCHANGE_IDLE: Duration = Duration::from_secs(600);

/// Has groups take the step of that name, if it is one and each row has a group.
pub(crate) fn take_step(
    groups: &mut dyn Groups,
    step: &str,
    batch: &RecordBatch,
    is_cancelled: IsCancelled<'_>,
) -> Result<Vec<ArrayRef>, CallError> {
    let step =
        AggregateStep::from_name(step).ok_or_else(|| CallError::violation(format!("there is no step {step:?}")))?;
    if batch.column(0).null_count() > 0 {
        return Err(CallError::violation("a row has no group"));
    }
    guarded(|| groups.answer(batch, step, is_cancelled))
}

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

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};

    use super::*;

    /// Counts the rows that it gets.
    struct Rows(usize);

    impl Groups for Rows {
        fn answer(
            &mut self,
            batch: &RecordBatch,
            _: AggregateStep,
            _: IsCancelled<'_>,
        ) -> Result<Vec<ArrayRef>, CallError> {
            self.0 += batch.num_rows();
            Ok(Vec::new())
        }
    }

    #[test]
    fn rows_without_a_group_and_unknown_steps_reach_no_groups() {
        let batch = |groups: Vec<Option<i64>>| {
            let groups: ArrayRef = Arc::new(Int64Array::from(groups));
            RecordBatch::try_from_iter_with_nullable([("group", groups, true)]).unwrap()
        };
        let mut rows = Rows(0);
        let mut take = |step: &str, groups| take_step(&mut rows, step, &batch(groups), &|| false).map(drop);
        assert!(take("accumulate", vec![Some(1), None]).is_err());
        assert!(take("Accumulate", vec![Some(1)]).is_err());
        assert!(take("", vec![Some(1)]).is_err());
        for step in ["accumulate", "merge", "state", "finish", "forget"] {
            take(step, vec![Some(1), Some(2)]).unwrap();
        }
        assert_eq!(rows.0, 10);
    }
}
