//! What a manager takes over from an earlier one: the images that it knew, and the replicas that still answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::control::ImageInfo;
use udf_types::terminal::quoted;
use udf_types::{Kind, Result};

use crate::images::Images;
use crate::log;
use crate::pool::Pool;
use crate::runtime::program::TIMEOUT;
use crate::users::Asker;

/// Before an image is looked up again that the container engine did not describe.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Takes over the replicas that an earlier manager left, and stops those that do not answer, or whose image nobody can describe:
/// a container without an owner would count for no limit, and another one starts soon. How many were taken over.
pub async fn adopt(images: &Arc<Images>, pool: &Arc<Pool>) -> Result<usize> {
    images.note_known().await?;
    let mut adopted = 0;
    for found in pool.find_replicas().await? {
        let image = describe(images, pool, &found.digest).await?;
        adopted += usize::from(pool.adopt(found, image).await?);
    }
    pool.sweep_folders().await?;
    Ok(adopted)
}

/// The image with that digest; none if there is none, or the engine, which is well, cannot describe it. An error if it is not well.
async fn describe(images: &Arc<Images>, pool: &Arc<Pool>, digest: &str) -> Result<Option<ImageInfo>> {
    let mut is_second = false;
    loop {
        let start = Instant::now();
        let error = match images.resolve(digest.to_string(), &Asker::manager()).await {
            Err(error) if error.kind() == Kind::ContainerFailed => error,
            known => return Ok(known.ok()),
        };
        // An engine that does not answer is not well.
        if start.elapsed() >= TIMEOUT {
            return Err(error);
        }
        pool.check_runtime().await?;
        if is_second {
            let fact = quoted(&error.to_string());
            let fact = format_args!("stopped the containers of image {digest}: {fact}");
            log::warning("image_ignored").image(digest).write(fact);
            return Ok(None);
        }
        is_second = true;
        tokio::time::sleep(SECOND_LOOK).await;
    }
}
