//! Removing images that nobody uses.

use std::sync::Arc;
use std::time::Duration;

use udf_types::Result;

use super::Images;
use crate::engine_images::is_built_for_engines;

impl Images {
    /// Removes the images that engines had built of sources which they have, and that nobody has used for so long. The names.
    /// One that this manager has not seen in use counts from now.
    pub async fn prune(self: &Arc<Images>, unused_for: Duration) -> Result<Vec<String>> {
        self.remove_leftovers().await;
        let mut removed = Vec::new();
        for image in self.blocking(|images| images.store.images()).await? {
            if !is_built_for_engines(&image.manifest.name) {
                continue;
            }
            // Somebody wants one that is being built or looked for.
            let Some(_lock) = self.turns.try_lock(&image.manifest.image()) else { continue };
            let Some(used) = self.uses.last(&image.digest) else {
                self.uses.note(&image.digest).await;
                continue;
            };
            if self.pool.has_replica(&image.digest) || used.elapsed().unwrap_or_default() < unused_for {
                continue;
            }
            let removing = image.clone();
            self.blocking(move |images| images.store.remove_image(&removing)).await?;
            self.catalogue.forget(&image);
            self.uses.forget(&image.digest);
            self.pool.forget_endings(&image.digest);
            removed.push(image.manifest.image());
        }
        Ok(removed)
    }
}
