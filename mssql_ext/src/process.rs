//! What the process knows between Init and Cleanup, and its sessions.
//!
//! A host may run several sessions, one after the other or at once, from one thread or many.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use udf_types::Result;

use crate::abi::SqlGuid;
use crate::guard::broken;
use crate::session::Session;
use crate::settings::Settings;

/// What Init was told.
#[derive(Debug)]
pub struct Process {
    /// The settings.
    pub settings: Settings,
    /// Where libraries may be installed, the user's own folder first.
    pub library_folders: Vec<PathBuf>,
}

/// Which session: its id, and the number of the task.
pub type SessionKey = (SqlGuid, u16);

type Sessions = HashMap<SessionKey, Arc<Mutex<Session>>>;

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);
static SESSIONS: Mutex<Option<Sessions>> = Mutex::new(None);

/// The lock, even if a holder panicked: what it guards is replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts anew.
pub fn start(process: Process) {
    *lock(&PROCESS) = Some(Arc::new(process));
}

/// What Init was told.
pub fn current() -> Result<Arc<Process>> {
    lock(&PROCESS).clone().ok_or_else(|| broken("Init was not called"))
}

/// Adds a session.
pub fn add_session(key: SessionKey, session: Session) -> Result<()> {
    let mut sessions = lock(&SESSIONS);
    let sessions = sessions.get_or_insert_default();
    if sessions.contains_key(&key) {
        return Err(broken("InitSession was called twice for a session"));
    }
    sessions.insert(key, Arc::new(Mutex::new(session)));
    Ok(())
}

/// Works on a session.
pub fn with_session<T, E: From<udf_types::Error>>(
    key: SessionKey,
    work: impl FnOnce(&mut Session) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let session = lock(&SESSIONS).as_ref().and_then(|sessions| sessions.get(&key)).cloned();
    let session = session.ok_or_else(|| broken("InitSession was not called for this session"))?;
    work(&mut lock(&session))
}

/// Ends a session; one that is not there, as a library's, has ended already.
pub fn end_session(key: SessionKey) {
    let session = lock(&SESSIONS).as_mut().and_then(|sessions| sessions.remove(&key));
    if let Some(session) = session {
        lock(&session).end();
    }
}

/// Ends everything.
pub fn end() {
    let sessions = lock(&SESSIONS).take().unwrap_or_default();
    for session in sessions.values() {
        lock(session).end();
    }
    *lock(&PROCESS) = None;
}
