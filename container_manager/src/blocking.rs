//! Work that blocks, off the event loop.

use udf_types::{Error, Kind, Result};

/// Does the work on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    #[cfg(feature = "simulation")]
    if let Some(pause) = simulation::pause() {
        pause().await;
        let outcome = work();
        pause().await;
        return outcome;
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(cause) => Err(failed(&cause)),
    }
}

/// The error of a task that did not come to its end.
pub fn failed(cause: &tokio::task::JoinError) -> Error {
    Error::new(Kind::ContainerFailed, format!("the container manager failed: {cause}"))
}

/// The same, of which nobody waits for the end. Outside of a runtime, which is at the manager's end, it is left out.
pub fn block_soon(work: impl FnOnce() + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    #[cfg(feature = "simulation")]
    if simulation::pause().is_some() {
        runtime.spawn(blocking(move || {
            work();
            Ok(())
        }));
        return;
    }
    runtime.spawn_blocking(work);
}

/// What `simulation/`, which has one thread, does instead: the work is done on the event loop, and its time passes on the simulated
/// clock.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::pin::Pin;
    use std::sync::OnceLock;

    /// Waits for a part of the time that work takes.
    pub type Pause = fn() -> Pin<Box<dyn Future<Output = ()> + Send>>;

    static PAUSE: OnceLock<Pause> = OnceLock::new();

    /// From now on, `pause` is waited for before and behind each piece of work.
    pub fn begin(pause: Pause) {
        // The first one stays.
        let _ = PAUSE.set(pause);
    }

    pub(super) fn pause() -> Option<Pause> {
        PAUSE.get().copied()
    }
}
