//! The backend's one client, started with its first call; its leases end with the transaction.

use std::cell::Cell;

use pgrx::{pg_guard, pg_sys};
use udf_protocol::client::Client;

use crate::{report, single_call};

thread_local! {
    // Lives as long as the process: its thread must not be joined while the process exits.
    static CLIENT: Cell<Option<&'static Client>> = const { Cell::new(None) };
}

/// The client, started if need be.
pub fn client() -> &'static Client {
    CLIENT.with(|cell| {
        if let Some(client) = cell.get() {
            return client;
        }
        let client: &'static Client = Box::leak(Box::new(report::unwrap(Client::start())));
        cell.set(Some(client));
        // SAFETY: the callback is a static function and takes no argument.
        unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut()) };
        client
    })
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::*;
    if matches!(event, XACT_EVENT_PRE_COMMIT | XACT_EVENT_PARALLEL_PRE_COMMIT | XACT_EVENT_PRE_PREPARE) {
        return;
    }
    single_call::forget_exchanges();
    CLIENT.with(|cell| cell.get().inspect(|client| client.release()));
}
