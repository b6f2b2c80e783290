//! Replicas that run since before the manager started.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use udf_client::control::ImageInfo;
use udf_types::Result;

use super::Pool;
use super::greet::greet;
use crate::replica::{Replica, State};
use crate::runtime::container_runtime::FoundReplica;

impl Pool {
    /// The replicas that an earlier manager left.
    pub async fn find_replicas(self: &Arc<Pool>) -> Result<Vec<FoundReplica>> {
        self.blocking(|pool| pool.containers.find_replicas()).await
    }

    /// Takes over a replica of an image, if it answers, and stops it otherwise, or if its image is not known or asks for more than
    /// an operator gives by now; whether it was taken over.
    pub async fn adopt(self: &Arc<Pool>, found: FoundReplica, image: Option<ImageInfo>) -> Result<bool> {
        let name = found.name.clone();
        if found.is_paused {
            let paused = name.clone();
            // One that cannot go on does not answer, either.
            let _ = self.blocking(move |pool| pool.containers.resume(&paused)).await;
        }
        // Of an image that is not known, nobody knows either.
        let memory_of = |image: &ImageInfo| image.manifest.limits.memory_mb.min(self.config.max_memory_mb);
        let (called, memory_mb) =
            image.as_ref().map(|image| (image.manifest.image(), memory_of(image))).unwrap_or_default();
        let image = image.filter(|image| self.check_limits(&image.digest, &image.manifest).is_ok());
        let greeting = greet(&found.socket_dir, &self.server_users).await.ok();
        if let (Some((server, user)), Some(ImageInfo { manifest, .. })) = (greeting, image) {
            let segment_dir = self.folders.segments_of(&found.socket_dir);
            let mut replica = Replica::new(found.name, manifest.image(), found.digest, found.socket_dir);
            replica.segment_dir = Some(segment_dir).filter(|directory| directory.is_dir());
            replica.server = server;
            replica.user = Some(user);
            replica.memory_mb = memory_mb;
            // The leases on it went with the earlier manager, not so the batches that it runs.
            replica.in_use_until = (!found.is_paused).then(|| Instant::now() + self.config.adopted_grace);
            replica.become_state(State::Ready)?;
            self.metrics.note_image(&replica.image);
            self.lock().replicas.insert(name, replica);
            Ok(true)
        } else {
            let mut replica = Replica::new(name.clone(), called, found.digest, found.socket_dir.clone());
            replica.memory_mb = memory_mb;
            replica.become_state(State::Gone(None))?;
            self.lock().leaving.insert(name.clone(), replica);
            // One that cannot be stopped now is stopped later, and keeps no manager from its start.
            let _ = self.stop_leaving(name, found.socket_dir, false).await;
            Ok(false)
        }
    }

    /// Whether the runtime is well.
    pub async fn check_runtime(self: &Arc<Pool>) -> Result<()> {
        self.blocking(|pool| pool.containers.check()).await.map(drop)
    }

    /// Removes the folders of replicas that are not there.
    pub async fn sweep_folders(self: &Arc<Pool>) -> Result<()> {
        let known: Vec<PathBuf> = {
            let state = self.lock();
            let all = state.replicas.values().chain(state.leaving.values());
            all.map(|replica| replica.socket_dir.clone()).collect()
        };
        self.blocking(move |pool| {
            pool.folders.sweep(&known);
            Ok(())
        })
        .await
    }
}
