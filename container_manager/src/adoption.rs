//! What a manager takes over from an earlier one: the images that it knew, and the replicas that still answer.

use std::sync::Arc;

use udf_types::{Kind, Result};

use crate::images::Images;
use crate::pool::Pool;

/// Takes over the replicas that an earlier manager left, and stops those that do not answer; how many were taken over.
pub async fn adopt(images: &Arc<Images>, pool: &Arc<Pool>) -> Result<usize> {
    images.note_known().await?;
    let mut adopted = 0;
    for found in pool.find_replicas().await? {
        let image = match images.resolve(found.digest.clone(), true).await {
            // That the engine does not say what it is, does not mean that it is to be stopped.
            Err(error) if error.kind() == Kind::ContainerFailed => return Err(error),
            known => known.ok(),
        };
        adopted += usize::from(pool.adopt(found, image).await?);
    }
    pool.sweep_folders().await?;
    Ok(adopted)
}
