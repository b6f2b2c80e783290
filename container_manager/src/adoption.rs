//! What a manager takes over from an earlier one: the images that it knew, and the replicas that still answer.

use std::sync::Arc;
use std::time::Instant;

use udf_types::terminal::quoted;
use udf_types::{Kind, Result};

use crate::images::Images;
use crate::log;
use crate::pool::Pool;
use crate::runtime::program::TIMEOUT;
use crate::users::Asker;

/// Takes over the replicas that an earlier manager left, and stops those that do not answer; how many were taken over.
pub async fn adopt(images: &Arc<Images>, pool: &Arc<Pool>) -> Result<usize> {
    images.note_known().await?;
    let (mut adopted, mut left) = (0, Vec::new());
    for found in pool.find_replicas().await? {
        let start = Instant::now();
        let image = match images.resolve(found.digest.clone(), &Asker::manager()).await {
            // That the engine does not say what it is, does not mean that it is to be stopped.
            Err(error) if error.kind() == Kind::ContainerFailed => {
                // While the engine is well, this is one image's fault. One that does not answer is not well.
                if start.elapsed() >= TIMEOUT {
                    return Err(error);
                }
                pool.check_runtime().await?;
                let (name, fact) = (&found.name, quoted(&error.to_string()));
                let fact = format_args!("left container \"{name}\" alone: {fact}");
                log::warning("container_ignored").replica(name).write(fact);
                left.push(found.socket_dir);
                continue;
            }
            known => known.ok(),
        };
        adopted += usize::from(pool.adopt(found, image).await?);
    }
    pool.sweep_folders(left).await?;
    Ok(adopted)
}
