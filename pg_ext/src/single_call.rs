//! Row at a time: the same client and protocol with batches of one, for places where a call cannot be lifted.
//!
//! A function's exchange is kept for the transaction, so that such a call costs a round trip and not a start.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pgrx::pg_sys;
use udf_protocol::batch::BatchBuilder;
use udf_protocol::client::Exchange;

use crate::datum::from_arrow::ResultReader;
use crate::datum::to_arrow;
use crate::function::{self, Function};
use crate::host::Backend;
use crate::{report, session};

struct OpenCall {
    function: Rc<Function>,
    builder: BatchBuilder,
    exchange: Exchange,
}

thread_local! {
    static OPEN_CALLS: RefCell<HashMap<pg_sys::Oid, OpenCall>> = RefCell::default();
}

/// Calls the function for one row; none is NULL. Errors are raised.
///
/// # Safety
/// `arguments` are values of the function's argument types.
pub unsafe fn call(oid: pg_sys::Oid, arguments: &[pg_sys::NullableDatum]) -> Option<pg_sys::Datum> {
    let function = report::unwrap(function::lookup(oid));
    // Taken out while in use: after an error the exchange is dropped, and the next call opens a new one.
    let kept =
        OPEN_CALLS.with_borrow_mut(|calls| calls.remove(&oid)).filter(|call| Rc::ptr_eq(&call.function, &function));
    let mut open = kept.unwrap_or_else(|| OpenCall {
        builder: BatchBuilder::new(&function.signature),
        exchange: session::client().open(report::unwrap(function.call())),
        function: function.clone(),
    });
    for (i, argument) in arguments.iter().enumerate() {
        let oid = function.argument_oids[i];
        // SAFETY: the caller says that the values are of the argument types.
        unsafe { to_arrow::append(open.builder.column(i), oid, argument.value, argument.isnull) };
    }
    open.builder.finish_row();
    open.exchange.send(open.builder.finish_batch());
    let reply = match open.exchange.receive(&Backend) {
        Ok(reply) => reply,
        Err(error) => report::raise_error(&error, Some(format!("container function \"{}\"", function.name))),
    };
    let reader = ResultReader::new(&function, reply.columns.column(0).clone());
    OPEN_CALLS.with_borrow_mut(|calls| calls.insert(oid, open));
    reader.datum(0)
}

/// Ends all kept exchanges; for the end of a transaction.
pub fn forget_exchanges() {
    OPEN_CALLS.with_borrow_mut(HashMap::clear);
}
