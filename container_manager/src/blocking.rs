//! Work that blocks, off the event loop.

use udf_types::{Error, Kind, Result};

/// Does the work on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(cause) => Err(Error::new(Kind::ContainerFailed, format!("the container manager failed: {cause}"))),
    }
}
