//! Tells work that goes on for long that nobody waits for it any more: builds ask while they run.

use tokio::sync::watch;
use udf_types::{Error, Kind, Result};

/// Whether somebody still waits for the work.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Option<watch::Receiver<bool>>);

/// The end that says so. Dropping it says nothing.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

/// Both ends.
pub fn cancel() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(false);
    (Canceller(sender), Cancel(Some(receiver)))
}

impl Canceller {
    /// Nobody waits any more.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Cancel {
    /// Whether nobody waits any more.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|receiver| *receiver.borrow())
    }

    /// An error once nobody waits any more.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.is_cancelled() { Err(cancelled(what)) } else { Ok(()) }
    }

    /// The work's result, or an error once nobody waits for it.
    pub async fn bound<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T> {
        let Some(mut receiver) = self.0.clone() else { return Ok(work.await) };
        tokio::select! {
            biased;
            Ok(_) = receiver.wait_for(|is_cancelled| *is_cancelled) => Err(cancelled(what)),
            done = work => Ok(done),
        }
    }
}

fn cancelled(what: &str) -> Error {
    Error::new(Kind::Cancelled, format!("could not {what}: nobody waits for it any more"))
}
