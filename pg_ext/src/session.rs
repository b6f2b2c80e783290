//! The backend's one client, started with its first call; its leases end with the transaction.

use std::cell::Cell;

use pgrx::{pg_guard, pg_sys};
use udf_client::client::Client;
use udf_client::trace::Span;
use udf_types::{Error, Kind, Result};

use crate::pg::reserve;
use crate::{observed, report, settings, single_call};

thread_local! {
    // Lives as long as the process: its thread must not be joined while the process exits.
    static CLIENT: Cell<Option<&'static Client>> = const { Cell::new(None) };
}

/// The client, started if need be, anew if its thread has ended.
pub fn client() -> &'static Client {
    report::unwrap(try_client())
}

/// Starts the client if need be, since it is likely to be wanted soon. A failure is left to whom it then concerns.
pub fn start() {
    let _ = try_client();
}

/// Connects to the manager in the background, for the same reason.
pub fn prepare() {
    if let Ok(client) = try_client() {
        client.prepare(settings::manager_socket());
    }
}

/// Has containers that no exchange calls now forget the shared tables that they were given.
pub fn forget_offers() {
    if let Some(client) = CLIENT.get() {
        client.forget_offers();
    }
}

/// Hands spans to the manager, without waiting.
pub fn report_spans(spans: Vec<Span>) {
    // Where the client has ended, nobody reports them.
    if let Some(client) = CLIENT.get() {
        client.report_spans(settings::manager_socket(), spans);
    }
}

fn try_client() -> Result<&'static Client> {
    reserve::keep()?;
    CLIENT.with(|cell| {
        let earlier = cell.get();
        if let Some(client) = earlier.filter(|client| client.is_running()) {
            return Ok(client);
        }
        let client: &'static Client = Box::leak(Box::new(Client::start()?));
        cell.set(Some(client));
        if earlier.is_none() {
            // SAFETY: the callback is a static function and takes no argument.
            unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut()) };
        }
        Ok(client)
    })
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::*;
    if matches!(event, XACT_EVENT_PRE_COMMIT | XACT_EVENT_PARALLEL_PRE_COMMIT | XACT_EVENT_PRE_PREPARE) {
        return;
    }
    // An error after the transaction has committed would take the whole server down. Exchanges read what their containers have sent last. Nothing
    // here raises an error of PostgreSQL's.
    let ended = std::panic::catch_unwind(|| {
        single_call::forget_exchanges();
        observed::end_query();
        CLIENT.with(|cell| cell.get().inspect(|client| client.release()));
    });
    if ended.is_err() {
        report::warn(&Error::new(Kind::ProtocolViolation, "the transaction's calls did not end in good order"));
    }
}
