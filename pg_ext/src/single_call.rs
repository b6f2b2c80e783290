//! Row at a time: the same client and protocol with batches of one, for places where a call cannot be lifted.
//!
//! A function's exchange is kept for the transaction, so that such a call costs a round trip and not a start. It is its
//! user's: another one, as behind SET ROLE or in a SECURITY DEFINER function, has other credentials, or none.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pgrx::pg_sys;
use udf_client::cache::CacheUse;
use udf_client::driver::Driver;
use udf_client::inbox::Reply;
use udf_codec::batch::BatchBuilder;

use crate::datum::from_arrow::ResultReader;
use crate::datum::result_column::results_of;
use crate::datum::to_arrow;
use crate::function::Function;
use crate::pg::catalog;
use crate::stream::Stream;
use crate::tables::given::{self, TableVersion};
use crate::{report, server, settings};

/// A function and who calls it.
type Caller = (pg_sys::Oid, pg_sys::Oid);

struct OpenCall {
    function: Rc<Function>,
    caller: Caller,
    /// Of [`server::changes`], when it was opened.
    changes: u64,
    /// How it uses kept results, as settings said then.
    usage: Option<CacheUse>,
    /// The tables that the container was given.
    tables: Vec<TableVersion>,
    builder: BatchBuilder,
    driver: Driver<Stream>,
}

thread_local! {
    static OPEN_CALLS: RefCell<HashMap<Caller, OpenCall>> = RefCell::default();
}

/// Calls the function for one row; none is NULL. Errors are raised.
///
/// # Safety
/// `arguments` are values of the function's argument types.
pub unsafe fn call(
    oid: pg_sys::Oid,
    function: &Rc<Function>,
    arguments: &[pg_sys::NullableDatum],
) -> Option<pg_sys::Datum> {
    // SAFETY: the caller says so.
    let mut open = unsafe { send(oid, function, arguments) };
    let reply = receive(&mut open);
    let reader = ResultReader::new(function, results_of(function, &reply.columns));
    keep(open);
    reader.datum(0, None)
}

/// Calls a function that returns a set for one row, and hands its results over one by one.
///
/// # Safety
/// As for [`call`].
pub unsafe fn call_set(
    oid: pg_sys::Oid,
    function: &Rc<Function>,
    arguments: &[pg_sys::NullableDatum],
    mut take: impl FnMut(&ResultReader, usize),
) {
    // SAFETY: the caller says so.
    let mut open = unsafe { send(oid, function, arguments) };
    loop {
        let reply = receive(&mut open);
        if let Some(column) = reply.columns.columns().last() {
            let reader = ResultReader::new(function, column.clone());
            (0..reply.columns.num_rows()).for_each(|row| take(&reader, row));
        }
        if reply.is_last {
            return keep(open);
        }
    }
}

/// Taken out of the kept ones while in use: after an error the exchange is dropped, and the next call opens a new one.
unsafe fn send(oid: pg_sys::Oid, function: &Rc<Function>, arguments: &[pg_sys::NullableDatum]) -> OpenCall {
    let (caller, changes, usage) = ((oid, catalog::current_user()), server::changes(), function.cache_use());
    let named = function.find_tables(caller.1);
    let tables = given::versions(&named);
    let is_usable = |call: &OpenCall| {
        Rc::ptr_eq(&call.function, function) && (call.changes, &call.usage, &call.tables) == (changes, &usage, &tables)
    };
    let kept = OPEN_CALLS.with_borrow_mut(|calls| calls.remove(&caller)).filter(is_usable);
    let mut open = kept.unwrap_or_else(|| OpenCall {
        caller,
        changes,
        tables,
        builder: BatchBuilder::new(&function.signature),
        driver: Driver::of_lane(
            settings::stepwise_pace(),
            Stream::open_with_cache(oid, report::unwrap(function.call(caller.1, &named)), usage.clone()),
        ),
        usage,
        function: function.clone(),
    });
    for (i, argument) in arguments.iter().enumerate() {
        // SAFETY: the caller says that the values are of the argument types.
        unsafe {
            to_arrow::append(open.builder.column(i), &function.arguments[i], argument.value, argument.isnull);
        }
    }
    open.builder.finish_row();
    open.driver.send(0, open.builder.finish_batch());
    open.driver.finish_batch(0);
    open
}

fn receive(open: &mut OpenCall) -> Reply {
    let received = open.driver.receive(0).unwrap_or_else(|error| {
        report::raise_error(&error, Some(format!("container function \"{}\"", open.function.name)))
    });
    received.expect("a batch was sent, and its answer has not ended")
}

fn keep(mut open: OpenCall) {
    open.driver.retire();
    // The next one is quicker on this thread, now that the server is known.
    if open.driver.lane(0).is_some_and(Stream::may_be_nearer) {
        return;
    }
    OPEN_CALLS.with_borrow_mut(|calls| calls.insert(open.caller, open));
}

/// Ends all kept exchanges; for the end of a transaction.
pub fn forget_exchanges() {
    OPEN_CALLS.with_borrow_mut(HashMap::clear);
}
