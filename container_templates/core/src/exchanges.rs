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

/// Exchanges of HTTP's clients, by the names that these gave them.
#[derive(Default)]
pub(crate) struct Exchanges(Mutex<HashMap<String, Arc<Exchange>>>);

/// One of them.
pub(crate) struct Exchange {
    function: String,
    groups: Mutex<Box<dyn Groups>>,
    /// When a request for it began or ended last.
    used: Mutex<Instant>,
}

impl Exchange {
    /// Has its groups take a step.
    pub(crate) fn take_step(
        &self,
        step: &str,
        batch: &RecordBatch,
        is_cancelled: IsCancelled<'_>,
    ) -> Result<Vec<ArrayRef>, CallError> {
        let mut groups = self.groups.lock().map_err(|_| CallError::violation("the exchange has failed"))?;
        let taken = take_step(&mut **groups, step, batch, is_cancelled);
        // However long the step took, the client has the whole time for its next request.
        self.note_use();
        taken
    }

    fn note_use(&self) {
        *self.used.lock().expect("no holder panics") = Instant::now();
    }

    fn is_idle(&self) -> bool {
        self.used.lock().expect("no holder panics").elapsed() >= EXCHANGE_IDLE
    }
}

impl Exchanges {
    /// Opens the exchange with batch 0; any other batch needs one that is open.
    pub(crate) fn find(&self, function: &Function, name: &str, batch: u64) -> Result<Arc<Exchange>, CallError> {
        let mut exchanges = self.0.lock().expect("no holder panics");
        // Whoever has a step taken holds the exchange meanwhile.
        exchanges.retain(|_, exchange| Arc::strong_count(exchange) > 1 || !exchange.is_idle());
        if batch == 0 && !name.is_empty() {
            let groups = Mutex::new(function.groups()?);
            let exchange = Exchange { function: function.name().to_string(), groups, used: Mutex::new(Instant::now()) };
            exchanges.insert(name.to_string(), Arc::new(exchange));
        }
        match exchanges.get(name) {
            Some(exchange) if exchange.function == function.name() => {
                exchange.note_use();
                Ok(exchange.clone())
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
    use udf_types::signature::{FunctionKind, Signature};
    use udf_types::types::Type;

    use super::*;
    use crate::handler::{Calls, Emit, Handler};

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

    /// Has such groups.
    struct CountsRows;

    impl Handler for CountsRows {
        fn answer(&self, _: &Calls<'_>, _: Emit<'_>) -> Result<(), CallError> {
            unreachable!("an aggregate function has steps")
        }

        fn groups(&self) -> Box<dyn Groups> {
            Box::new(Rows(0))
        }
    }

    fn batch(groups: Vec<Option<i64>>) -> RecordBatch {
        let groups: ArrayRef = Arc::new(Int64Array::from(groups));
        RecordBatch::try_from_iter_with_nullable([("group", groups, true)]).unwrap()
    }

    #[test]
    fn an_exchange_is_forgotten_when_nobody_has_used_it_for_long() {
        let signature = Signature::scalar("count_rows", vec![], Type::Int8);
        let signature = Signature { kind: FunctionKind::Aggregate, ..signature };
        let function = Function::new(Arc::new(signature), Box::new(CountsRows));
        let exchanges = Exchanges::default();
        let let_time_pass = |exchange: &Exchange| {
            *exchange.used.lock().unwrap() = Instant::now().checked_sub(2 * EXCHANGE_IDLE).unwrap();
        };
        // What a request of another exchange, which looks for those to forget, leaves of the first.
        let is_kept = || {
            exchanges.find(&function, "other", 0).unwrap();
            exchanges.0.lock().unwrap().contains_key("first")
        };
        let first = exchanges.find(&function, "first", 0).unwrap();
        let_time_pass(&first);
        assert!(is_kept(), "its step runs");
        first.take_step("accumulate", &batch(vec![Some(1)]), &|| false).unwrap();
        drop(first);
        assert!(is_kept(), "its step has ended just now");
        let first = exchanges.find(&function, "first", 1).unwrap();
        let_time_pass(&first);
        drop(first);
        assert!(!is_kept());
        assert!(exchanges.find(&function, "first", 2).is_err());
    }

    #[test]
    fn rows_without_a_group_and_unknown_steps_reach_no_groups() {
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
