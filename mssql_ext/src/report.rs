//! What the DBA and the user get to see: lines on stderr, which the host forwards as messages, and, where the host
//! offers it, extended events.
//!
//! There is no other channel for errors: the server itself only says that a script error occurred.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

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
    without_sigpipe(|| {
        let mut stderr = std::io::stderr().lock();
        // A host that has closed stderr misses the message, and still sees the failure.
        let _ = stderr.write_all(line.as_bytes()).and_then(|()| stderr.flush());
    });
    log_event(session, level::ERROR, -1, text);
}

/// Writes without being ended by a reader that has gone: SIGPIPE ends a process of C unless it says otherwise.
fn without_sigpipe(write: impl FnOnce()) {
    let mut pipe = SigSet::empty();
    pipe.add(Signal::SIGPIPE);
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return };
    write();
    if !before.contains(Signal::SIGPIPE) {
        // One that waits for this thread now is the write's, and would come with the old mask.
        let taken = SignalFd::with_flags(&pipe, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        let _ = taken.and_then(|waiting| waiting.read_signal());
    }
    let _ = before.thread_set_mask();
}

/// Sends an event, where the host takes them.
pub fn log_event(session: Option<(SqlGuid, u16)>, level: u16, code: i32, text: &str) {
    let Some(callback) = *log() else { return };
    guard::send_event(callback, EXTENSION, session.unwrap_or_default(), level, code, text);
}
