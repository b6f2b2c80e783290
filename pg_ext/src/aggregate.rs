//! Aggregates whose steps run in a container.
//!
//! One exchange serves all groups of one aggregate in one plan node. SFUNC appends each row, with the number of its
//! group, to a batch, and sends full batches without waiting; the groups' states live in the container. FINALFUNC asks
//! for its group's result, and for those of further groups in the same batch, which are kept until they are asked for.
//! SERIALFUNC asks for states in the same way, and COMBINEFUNC sends them to the leader's container.
//!
//! The value of type internal that PostgreSQL passes around is a [`State`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use pgrx::{PgMemoryContexts, pg_guard, pg_sys};
use udf_client::driver::Driver;
use udf_codec::batch::{AggregateStep, BatchBuilder, ColumnBuilder};
use udf_types::{Error, Kind};

use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow;
use crate::function::{self, Function, Role};
use crate::pg::{catalog, list};
use crate::stream::Stream;
use crate::{report, settings};

/// Results that are asked for with the first one; then twice as many each time.
const FIRST_RESULTS: usize = 16;
/// Groups that are forgotten in one batch.
const FORGOTTEN_GROUPS: usize = 256;

/// What PostgreSQL passes around as internal.
enum State {
    /// A group of an exchange.
    Group { groups: *mut Groups, number: i64 },
    /// A state from another process, on its way to COMBINEFUNC.
    Bytes(Vec<u8>),
}

/// The groups of one aggregate in one plan node.
struct Groups {
    // for the plan
    /// SFUNC.
    accumulate: Rc<Function>,
    /// FINALFUNC.
    finish: Rc<Function>,
    /// How many FINALFUNCs ask for each group's result: PostgreSQL keeps one state for aggregates that differ in nothing else.
    finishes: usize,
    driver: Driver<Stream>,

    // for the groups
    next_number: i64,
    /// Groups whose results were not asked for since their last row.
    open: BTreeSet<i64>,
    /// Results or states that were asked for ahead.
    ready: HashMap<i64, Ready>,
    ready_bytes: usize,
    results_per_batch: usize,
    /// Whether all groups have all of their rows once a result of one is asked for.
    asks_ahead: bool,
    forgotten: Vec<i64>,

    // for the batch
    builder: BatchBuilder,
    step: AggregateStep,
}

/// Whether no group of the aggregate's node grows once one of them has ended: of several grouping sets, those that are hashed or less
/// fine go on. A handler's finish() may fail on a group that is not complete, or change it.
unsafe fn ends_together(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: the caller passes the fcinfo of a call by an aggregate, whose context is its node's state.
    unsafe {
        let plan = (*(*fcinfo).context.cast::<pg_sys::AggState>()).ss.ps.plan.cast::<pg_sys::Agg>();
        match (*plan).aggstrategy {
            pg_sys::AggStrategy::AGG_HASHED => true,
            pg_sys::AggStrategy::AGG_MIXED => false,
            _ => (*plan).groupingSets.is_null(),
        }
    }
}

/// A group's result or state that is there.
struct Ready {
    column: ArrayRef,
    row: usize,
    /// Its part of the column's size.
    bytes: usize,
    /// How often it will be asked for.
    uses: usize,
}

/// Calls a part of an aggregate; none is NULL. Errors are raised.
///
/// # Safety
/// `fcinfo` is that of a call of `function`, and `arguments` are its arguments.
pub unsafe fn call(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &Rc<Function>,
    arguments: &[pg_sys::NullableDatum],
) -> Option<pg_sys::Datum> {
    // SAFETY: the caller says so. States are made below, in the aggregate's memory context, and PostgreSQL passes them
    // only to the functions of the same aggregate.
    unsafe {
        let mut context = std::ptr::null_mut();
        match pg_sys::AggCheckCallContext(fcinfo, &mut context) as u32 {
            pg_sys::AGG_CONTEXT_AGGREGATE => {}
            pg_sys::AGG_CONTEXT_WINDOW => refuse(function, "as a window function"),
            _ => refuse(function, "outside of an aggregate"),
        }
        let state_at = |position: usize| {
            let argument = arguments[position];
            (!argument.isnull).then(|| &mut *argument.value.cast_mut_ptr::<State>())
        };
        match function.role {
            Role::Accumulate => {
                let (groups, number, state) = group_of(fcinfo, function, context, state_at(0));
                groups.accumulate(number, &arguments[1..]);
                Some(state)
            }
            Role::Combine => match state_at(1) {
                None => (!arguments[0].isnull).then_some(arguments[0].value),
                Some(State::Group { .. }) => refuse(function, "on a state that was not serialized"),
                Some(State::Bytes(bytes)) => {
                    let (groups, number, state) = group_of(fcinfo, function, context, state_at(0));
                    groups.merge(number, bytes);
                    Some(state)
                }
            },
            // No row at all, of functions that are not STRICT.
            Role::Deserialize if arguments[0].isnull => None,
            Role::Deserialize => {
                // The state lives as long as the current context: PostgreSQL combines it at once.
                let bytes = pg_sys::pg_detoast_datum_packed(arguments[0].value.cast_mut_ptr());
                let bytes = pgrx::varlena::varlena_to_byte_slice(bytes).to_vec();
                let mut current = PgMemoryContexts::For(pg_sys::CurrentMemoryContext);
                Some(pg_sys::Datum::from(current.leak_and_drop_on_delete(State::Bytes(bytes))))
            }
            _ => match state_at(0) {
                Some(State::Group { groups, number }) => {
                    let groups = &mut **groups;
                    if is_serializing(fcinfo) { groups.state(*number) } else { groups.result(function, *number) }
                }
                Some(State::Bytes(_)) => refuse(function, "on a state that was not combined"),
                None if is_serializing(fcinfo) => None,
                // No row at all: the result of a group without rows, if PostgreSQL says which aggregate it is.
                None => {
                    let (groups, number, _) = group_of(fcinfo, function, context, None);
                    groups.result(function, number)
                }
            },
        }
    }
}

/// Whether the aggregate's node gives states in place of results. It calls SERIALFUNC then, and never FINALFUNC, which may have
/// the same signature, or be the same function.
///
/// # Safety
/// `fcinfo` is that of a call by an aggregate.
unsafe fn is_serializing(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: the caller says so; an aggregate's call has its node as context.
    unsafe { (*(*fcinfo).context.cast::<pg_sys::AggState>()).aggsplit & pg_sys::AGGSPLITOP_SERIALIZE != 0 }
}

/// How many aggregates share the state of this one, itself counted.
///
/// # Safety
/// As for [`is_serializing`]; `aggregate` is one of the node's.
unsafe fn aggregates_of_state(fcinfo: pg_sys::FunctionCallInfo, aggregate: *const pg_sys::Aggref) -> usize {
    // SAFETY: the caller says so; the node lists its aggregates.
    unsafe {
        let all = list::elements::<pg_sys::Aggref>((*(*fcinfo).context.cast::<pg_sys::AggState>()).aggs);
        let sharing = all.into_iter().filter(|other| (**other).aggtransno == (*aggregate).aggtransno);
        sharing.map(|other| (*other).aggno).collect::<HashSet<_>>().len()
    }
}

fn refuse(function: &Function, what: &str) -> ! {
    let message = format!("container function \"{}\" cannot be called {what}", function.name);
    report::raise_error(&Error::new(Kind::UnsupportedType, message), None)
}

/// The group of a state, or a new one.
unsafe fn group_of<'a>(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &Rc<Function>,
    context: pg_sys::MemoryContext,
    state: Option<&mut State>,
) -> (&'a mut Groups, i64, pg_sys::Datum) {
    // SAFETY: as in call. The groups live as long as the query, which is longer than any state.
    unsafe {
        if let Some(state) = state {
            let datum = pg_sys::Datum::from(&raw mut *state);
            match *state {
                State::Group { groups, number } => return (&mut *groups, number, datum),
                State::Bytes(_) => refuse(function, "on a state that was not combined"),
            }
        }
        let info = (*fcinfo).flinfo;
        if (*info).fn_extra.is_null() {
            let groups = Groups::new(fcinfo, function);
            (*info).fn_extra = PgMemoryContexts::For((*info).fn_mcxt).leak_and_drop_on_delete(groups).cast();
        }
        let groups = (*info).fn_extra.cast::<Groups>();
        let number = (*groups).next_number;
        (*groups).next_number += 1;
        let state = PgMemoryContexts::For(context).leak_and_drop_on_delete(State::Group { groups, number });
        pg_sys::AggRegisterCallback(fcinfo, Some(forget_group), pg_sys::Datum::from(state));
        (&mut *groups, number, pg_sys::Datum::from(state))
    }
}

/// The aggregate's memory context is about to be reset, and with it a group's state.
unsafe extern "C-unwind" fn forget_group(state: pg_sys::Datum) {
    // SAFETY: PostgreSQL calls this, and the function is guarded.
    unsafe { report::with_context(|| forget_state(state)) }
}

#[pg_guard]
unsafe extern "C-unwind" fn forget_state(state: pg_sys::Datum) {
    // SAFETY: group_of registered the callback for a state in that very context.
    unsafe {
        if let State::Group { groups, number } = *state.cast_mut_ptr::<State>() {
            (*groups).forget(number);
        }
    }
}

/// Raises an error unless both are parts of one function in the container, whose state nobody else can finish.
fn check_parts(accumulate: &Function, finish: &Function) {
    if finish.signature.function != accumulate.signature.function {
        let message = "SFUNC and FINALFUNC of an aggregate call different container functions";
        let detail = format!(
            "\"{}\" calls \"{}\", and \"{}\" calls \"{}\".",
            accumulate.name, accumulate.signature.function, finish.name, finish.signature.function
        );
        report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_detail(detail), None);
    }
    if finish.body.tables != accumulate.body.tables {
        let message = "SFUNC and FINALFUNC of an aggregate name different shared tables";
        let detail = format!("\"{}\" and \"{}\" have the same container.", accumulate.name, finish.name);
        report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_detail(detail), None);
    }
}

impl Groups {
    unsafe fn new(fcinfo: pg_sys::FunctionCallInfo, function: &Rc<Function>) -> Groups {
        // SAFETY: the caller passes the fcinfo of a call by an aggregate.
        let aggregate = unsafe { pg_sys::AggGetAggref(fcinfo) };
        if aggregate.is_null() {
            refuse(function, "outside of an aggregate");
        }
        // SAFETY: as above.
        let oid = unsafe { (*aggregate).aggfnoid };
        let Some([accumulate_oid, finish]) = catalog::aggregate_functions(oid) else {
            refuse(function, "outside of an aggregate");
        };
        let language = catalog::container_language();
        let part = |oid: pg_sys::Oid, role: Role, name: &str| {
            let is_ours = language.is_some_and(|language| function::is_container_function(oid, language));
            let found = is_ours.then(|| report::unwrap(function::lookup_to_call(oid)));
            found.filter(|found| found.role == role).unwrap_or_else(|| {
                let message = format!(
                    "the aggregate of container function \"{}\" lacks a container function as {name}",
                    function.name
                );
                report::raise_error(&Error::new(Kind::InvalidDefinition, message), None)
            })
        };
        let accumulate = part(accumulate_oid, Role::Accumulate, "SFUNC");
        let finish = part(finish, Role::Finish, "FINALFUNC");
        check_parts(&accumulate, &finish);
        // SAFETY: as above.
        let finishes = unsafe { if is_serializing(fcinfo) { 1 } else { aggregates_of_state(fcinfo, aggregate) } };
        let call = report::unwrap(accumulate.aggregate(&finish));
        let builder = BatchBuilder::new(&call.signature);
        Groups {
            finishes,
            driver: Driver::of_lane(
                settings::pace(accumulate.max_batch_rows(), accumulate.body.first_batch_rows, false),
                Stream::open(accumulate_oid, call),
            ),
            next_number: 0,
            open: BTreeSet::new(),
            ready: HashMap::new(),
            ready_bytes: 0,
            results_per_batch: FIRST_RESULTS.min(accumulate.max_batch_rows()),
            // SAFETY: as above.
            asks_ahead: unsafe { ends_together(fcinfo) },
            forgotten: Vec::new(),
            builder,
            step: AggregateStep::Accumulate,
            accumulate,
            finish,
        }
    }

    /// Adds a row to a group. The arguments are of the SFUNC's types.
    unsafe fn accumulate(&mut self, number: i64, arguments: &[pg_sys::NullableDatum]) {
        self.send_forgotten();
        self.touch(number);
        self.begin_row(AggregateStep::Accumulate, number);
        for (i, argument) in arguments.iter().enumerate() {
            let sql_type = &self.accumulate.arguments[i];
            // SAFETY: the caller says so.
            unsafe { to_arrow::append(self.builder.column(1 + i), sql_type, argument.value, argument.isnull) };
        }
        self.builder.column(1 + arguments.len()).append_null();
        self.end_row();
    }

    fn merge(&mut self, number: i64, state: &[u8]) {
        self.send_forgotten();
        self.touch(number);
        self.begin_row(AggregateStep::Merge, number);
        self.append_null_arguments();
        self.append_state(Some(state));
        self.end_row();
    }

    /// A group has a new row: what was asked for ahead no longer holds.
    fn touch(&mut self, number: i64) {
        if let Some(ready) = self.ready.remove(&number) {
            self.ready_bytes -= ready.bytes;
        }
        self.open.insert(number);
    }

    fn begin_row(&mut self, step: AggregateStep, number: i64) {
        if self.step != step {
            self.flush();
            self.step = step;
        }
        if self.builder.rows() == 0 {
            // How large the batch may be is known once it may be sent.
            self.wait_for_turn();
        }
        let ColumnBuilder::Int8(column) = self.builder.column(0) else { unreachable!("a group's number is int8") };
        column.append_value(number);
    }

    fn append_null_arguments(&mut self) {
        for i in 0..self.accumulate.arguments.len() {
            self.builder.column(1 + i).append_null();
        }
    }

    fn append_state(&mut self, state: Option<&[u8]>) {
        let column = self.builder.column(1 + self.accumulate.arguments.len());
        let ColumnBuilder::Bytea(column) = column else { unreachable!("a state is bytea") };
        column.append_option(state);
    }

    fn end_row(&mut self) {
        self.builder.finish_row();
        if self.driver.pace().is_full(self.builder.rows(), self.builder.bytes()) {
            self.flush();
        }
    }

    /// Waits until a batch may be sent. Groups are asked about without knowing what their rows have taken.
    fn wait_for_turn(&mut self) {
        let may_send = |groups: &Groups| match groups.step {
            AggregateStep::Accumulate | AggregateStep::Merge => groups.driver.may_send(),
            AggregateStep::State | AggregateStep::Finish | AggregateStep::Forget => {
                groups.driver.out() < groups.driver.pace().first_window()
            }
        };
        while !may_send(self) {
            self.receive();
        }
    }

    /// Sends the rows so far, without waiting.
    fn flush(&mut self) {
        if self.builder.rows() == 0 {
            return;
        }
        let bytes = self.builder.bytes();
        let mut batch = self.builder.finish_batch();
        batch.step = Some(self.step);
        self.driver.send(0, batch);
        match self.step {
            AggregateStep::Accumulate | AggregateStep::Merge => self.driver.finish_batch(bytes),
            // What a group's result takes says nothing about rows.
            AggregateStep::State | AggregateStep::Finish | AggregateStep::Forget => self.driver.finish_unlike_batch(),
        }
    }

    fn receive(&mut self) -> udf_client::inbox::Reply {
        let received = self.driver.receive(0).unwrap_or_else(|error| {
            report::raise_error(&error, Some(format!("container function \"{}\"", self.accumulate.name)))
        });
        self.driver.retire();
        received.expect("a batch is out")
    }

    /// A group's result, as one of `finish`, which may be another FINALFUNC than the one that the exchange was opened for.
    fn result(&mut self, finish: &Rc<Function>, number: i64) -> Option<pg_sys::Datum> {
        if !Rc::ptr_eq(finish, &self.finish) {
            check_parts(&self.accumulate, finish);
            if finish.signature.result != self.finish.signature.result {
                let message =
                    format!("container function \"{}\" has more than one result type", finish.signature.function);
                let detail = format!(
                    "FINALFUNC \"{}\" returns {}, and \"{}\", of another aggregate with the same SFUNC, {}.",
                    finish.name, finish.signature.result, self.finish.name, self.finish.signature.result
                );
                report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_detail(detail), None);
            }
        }
        let (column, row) = self.take(number, AggregateStep::Finish)?;
        ResultReader::new(finish, column).datum(row, None)
    }

    /// A group's state, as bytes.
    fn state(&mut self, number: i64) -> Option<pg_sys::Datum> {
        let (column, row) = self.take(number, AggregateStep::State)?;
        let column = column.as_binary::<i32>();
        (!column.is_null(row)).then(|| {
            let state = column.value(row);
            let length = i32::try_from(state.len()).unwrap_or(i32::MAX);
            // SAFETY: text and bytea have one layout; PostgreSQL refuses a length of more than 1 GB itself.
            unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(state.as_ptr().cast(), length)) }
        })
    }

    /// A group's result or state, and those of others with it: a column, and the place there.
    fn take(&mut self, number: i64, step: AggregateStep) -> Option<(ArrayRef, usize)> {
        if !self.ready.contains_key(&number) {
            self.ask(number, step);
        }
        let ready = self.ready.get_mut(&number)?;
        ready.uses -= 1;
        let found = (ready.column.clone(), ready.row);
        if ready.uses == 0 {
            self.ready_bytes -= ready.bytes;
            self.ready.remove(&number);
        }
        Some(found)
    }

    fn ask(&mut self, number: i64, step: AggregateStep) {
        self.send_forgotten();
        self.flush();
        self.step = step;
        // What waits to be asked for is bounded, too.
        let is_alone = !self.asks_ahead || self.ready_bytes > settings::batch_bytes();
        let others = if is_alone { 0 } else { self.results_per_batch - 1 };
        self.open.remove(&number);
        let mut numbers = vec![number];
        numbers.extend(self.open.iter().copied().take(others));
        for number in &numbers {
            self.open.remove(number);
            self.begin_row(step, *number);
            self.append_null_arguments();
            self.append_state(None);
            self.builder.finish_row();
        }
        self.flush();
        while self.driver.out() > 1 {
            self.receive();
        }
        let reply = self.receive();
        let column = reply.columns.column(usize::from(step == AggregateStep::State)).clone();
        let bytes = column.get_array_memory_size() / numbers.len();
        for (row, number) in numbers.into_iter().enumerate() {
            self.ready.insert(number, Ready { column: column.clone(), row, bytes, uses: self.finishes });
            self.ready_bytes += bytes;
        }
        let time = settings::batch_time();
        let is_slow = !time.is_zero() && Duration::from_micros(reply.compute_us) > time / 2;
        self.results_per_batch = match is_slow || reply.bytes_needed > settings::reply_bytes() / 2 {
            true => (self.results_per_batch / 2).max(1),
            false => (self.results_per_batch * 2).min(self.accumulate.max_batch_rows()),
        };
    }

    fn forget(&mut self, number: i64) {
        self.touch(number);
        self.open.remove(&number);
        // Sent with what follows: at the end of the query nobody should wait for it, or fail because of it.
        self.forgotten.push(number);
    }

    fn send_forgotten(&mut self) {
        if self.forgotten.len() < FORGOTTEN_GROUPS {
            return;
        }
        for number in std::mem::take(&mut self.forgotten) {
            self.begin_row(AggregateStep::Forget, number);
            self.append_null_arguments();
            self.append_state(None);
            self.end_row();
        }
        self.flush();
    }
}
