//! Images that operators send to a registry and get from there, with the caller's login.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use udf_client::control::ImageInfo;
use udf_types::{Error, Kind, Result};

use super::Images;
use crate::log;
use crate::runtime::image_store::TransferOptions;

/// Longest that the end of a manager waits until the names of an image that is being pulled are settled.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

impl Images {
    /// Sends an image to a registry under `reference`; the reference by which the registry knows its content.
    pub async fn push(
        self: &Arc<Images>,
        image: String,
        reference: String,
        options: TransferOptions,
    ) -> Result<String> {
        self.check_is_open()?;
        self.blocking(move |images| images.store.push(&image, &reference, &options)).await
    }

    /// Gets an image from a registry, with the names that it asks for. It is not kept warm before somebody names it.
    pub async fn pull(
        self: &Arc<Images>,
        reference: String,
        replaces: bool,
        options: TransferOptions,
    ) -> Result<ImageInfo> {
        // One after the other: each notes which images have which names, and may put them back.
        let _turn = options.cancel.bound(&format!("pull image \"{reference}\""), self.pulling.lock()).await?;
        self.check_is_open()?;
        self.blocking(move |images| images.store.pull(&reference, replaces, &options)).await
    }

    /// Waits until no image is being pulled, once [`Images::shut_down`] has ended the transfers.
    pub async fn settle(&self) {
        if tokio::time::timeout(SETTLE_TIMEOUT, self.pulling.lock()).await.is_err() {
            log::warning("pull_unsettled")
                .write("an image that is being pulled may have kept a name that it was not given");
        }
    }

    /// An error once the manager ends.
    pub(super) fn check_is_open(&self) -> Result<()> {
        match self.is_shutting_down.load(SeqCst) {
            true => Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down")),
            false => Ok(()),
        }
    }
}
