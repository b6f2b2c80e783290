//! What the DBA and the user get to see: lines on stderr, which the host forwards as messages, and, where the host
//! offers it, extended events.
//!
//! There is no other channel for errors: the server itself only says that a script error occurred.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{LogXEvent, SqlGuid, level};
use crate::guard;

/// The extension's name in events.
const EXTENSION: &str = "transship";

static LOG: Mutex<Option<LogXEvent>> = Mutex::new(None);

fn log() -> MutexGuard<'static, Option<LogXEvent>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the host's function for events, or forgets it.
pub fn set_log(callback: Option<LogXEvent>) {
    *log() = callback;
}

/// Reports what went wrong to the user, and as an event of the session.
pub fn report(session: Option<(SqlGuid, u16)>, text: &str) {
    let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now());
    let line = format!("{} Error: {text}\n", now.format("%Y-%m-%d %H:%M:%S%.3fZ"));
    let mut stderr = std::io::stderr().lock();
    // A host that has closed stderr misses the message, and still sees the failure.
    let _ = stderr.write_all(line.as_bytes()).and_then(|()| stderr.flush());
    log_event(session, level::ERROR, -1, text);
}

/// Sends an event, where the host takes them.
pub fn log_event(session: Option<(SqlGuid, u16)>, level: u16, code: i32, text: &str) {
    let Some(callback) = *log() else { return };
    guard::send_event(callback, EXTENSION, session.unwrap_or_default(), level, code, text);
}
