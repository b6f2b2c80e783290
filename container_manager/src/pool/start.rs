//! Starting replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::names::random_name;
use udf_codec::wire::ServerInfo;
use udf_project::manifest::{Limits, Manifest};
use udf_types::{Error, Kind, Result};

use super::Pool;
use super::greet::{PROBE_INTERVAL, greet};
use crate::metrics::End;
use crate::replica::{Replica, State};
use crate::runtime::container_runtime::{ReplicaSpec, ReplicaStatus};
use crate::runtime::program::last_lines;

/// Refuses an image that asks for a network or GPUs, where an operator does not give them.
fn check_limits(image: &str, limits: &Limits, gives_network: bool, max_gpus: u32) -> Result<()> {
    if limits.network && !gives_network {
        let message = format!("image \"{image}\" asks for a network, which the container manager does not give");
        return Err(Error::new(Kind::NotAllowed, message).with_hint(
            "Start transshipd with --network and a network whose containers a firewall keeps from this host, or, where they may \
             reach it, with --network transship.",
        ));
    }
    if limits.gpus > max_gpus {
        let (asked, unit) = (limits.gpus, if limits.gpus == 1 { "GPU" } else { "GPUs" });
        let message = format!("image \"{image}\" asks for {asked} {unit}, and the container manager gives {max_gpus}");
        return Err(Error::new(Kind::NotAllowed, message).with_hint("Start transshipd with --max-gpus."));
    }
    Ok(())
}

impl Pool {
    /// Refuses an image that asks for more than an operator gives. Processes have the host's network.
    pub(super) fn check_limits(&self, digest: &str, manifest: &Manifest) -> Result<()> {
        let gives_network = self.config.host.runtime.network.is_some() || self.containers.name() == "process";
        let image = manifest.image();
        check_limits(&image, &manifest.limits, gives_network, self.config.max_gpus)?;
        if manifest.limits.gpus > 0 && !self.containers.may_have_gpus(digest) {
            let message = format!("image \"{image}\" asks for GPUs, but was not built by this container manager");
            return Err(Error::new(Kind::NotAllowed, message)
                .with_hint("Build its project with \"transship build\" on this host, or remove limits.gpus from it."));
        }
        Ok(())
    }

    /// What a container of an image may use: no container gets more memory than all together.
    pub(super) fn limits_of(&self, digest: &str) -> Limits {
        let limits = self.catalogue.manifest(digest).map(|manifest| manifest.limits.clone()).unwrap_or_default();
        Limits { memory_mb: limits.memory_mb.min(self.config.max_memory_mb), ..limits }
    }

    /// A replica that is to be started.
    pub(super) fn new_replica(&self, digest: &str) -> Replica {
        let image = self.catalogue.name(digest);
        let random = random_name();
        let short: String = image.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
        let name = format!("transship-{short}-{}", &random[..8]);
        let socket_dir = self.config.host.paths.run_dir.join(random);
        let mut replica = Replica::new(name, image, digest.to_string(), socket_dir);
        replica.memory_mb = self.limits_of(digest).memory_mb;
        replica
    }

    /// Starts a replica that is in the map as Starting, and sees it to Ready or Gone.
    pub(super) async fn start(self: Arc<Pool>, name: String) {
        self.lock().starting += 1;
        self.start_counted(name).await;
        self.lock().starting -= 1;
    }

    async fn start_counted(self: &Arc<Pool>, name: String) {
        let (digest, image, socket_dir) = {
            let state = self.lock();
            let Some(replica) = state.replicas.get(&name) else { return };
            (replica.digest.clone(), replica.image.clone(), replica.socket_dir.clone())
        };
        let begun = Instant::now();
        self.metrics.note_image(&image);
        let limits = self.limits_of(&digest);
        let (kept_dir, memory_mb) = (socket_dir.clone(), limits.memory_mb);
        let segment_dir = self.folders.make_segments(&socket_dir);
        let spec = ReplicaSpec {
            name: name.clone(),
            digest: digest.clone(),
            socket_dir,
            segment_dir: segment_dir.clone(),
            limits,
        };
        let error = match self.start_and_wait(spec).await {
            Ok((server, user)) => {
                let is_kept = {
                    let mut state = self.lock();
                    state.replicas.get_mut(&name).is_some_and(|replica| {
                        replica.segment_dir = segment_dir;
                        replica.server = server;
                        replica.user = Some(user);
                        replica.become_state(State::Ready).is_ok()
                    })
                };
                if is_kept {
                    self.metrics.started(&image, begun.elapsed());
                } else {
                    // It was discarded while it started; what has come up since must not stay.
                    let mut late = Replica::new(name.clone(), image, digest, kept_dir.clone());
                    late.memory_mb = memory_mb;
                    for state in [State::Ready, State::Draining] {
                        let _ = late.become_state(state);
                    }
                    self.lock().leaving.entry(name.clone()).or_insert(late);
                    let _ = self.stop_leaving(name, kept_dir, false).await;
                }
                return;
            }
            Err(error) => error,
        };
        let asked = name.clone();
        let log = self.blocking(move |pool| pool.containers.logs(&asked)).await.unwrap_or_default();
        let detail = format!("{error}\n{}", last_lines(&log, 15)).trim_end().to_string();
        let is_missing = error.kind() == Kind::ImageNotFound;
        let kind = if is_missing { Kind::ImageNotFound } else { Kind::ContainerFailed };
        let error =
            Error::new(kind, format!("could not start a container of image \"{image}\"")).with_detail(detail.clone());
        // Where the image is missing, nothing was started, and may be as soon as it is there.
        if !is_missing {
            self.lock().note_ending(&digest, None, false, &detail);
        }
        self.discard(name, End::StartFailed, Some(error)).await;
    }

    /// What the replica's server, which answers now, says of itself, and the user that it runs as.
    async fn start_and_wait(self: &Arc<Pool>, spec: ReplicaSpec) -> Result<(ServerInfo, u32)> {
        self.folders.make_sockets(&spec.socket_dir)?;
        let (name, socket_dir) = (spec.name.clone(), spec.socket_dir.clone());
        let deadline = Instant::now() + self.config.start_timeout;
        self.blocking(move |pool| pool.containers.start(&spec)).await?;
        let mut next_status = Instant::now();
        loop {
            match greet(&socket_dir, &self.server_users).await {
                Ok(found) => return Ok(found),
                Err(error) if error.kind() == Kind::ProtocolViolation => return Err(error),
                Err(_) => {}
            }
            // Asking a container engine takes longer than asking the socket.
            if Instant::now() >= next_status {
                next_status = Instant::now() + Duration::from_millis(500);
                let asked = name.clone();
                if let ReplicaStatus::Ended(fate) = self.blocking(move |pool| pool.containers.status(&asked)).await? {
                    return Err(Error::new(Kind::ContainerFailed, format!("the container {fate}")));
                }
            }
            if Instant::now() >= deadline {
                let seconds = self.config.start_timeout.as_secs();
                return Err(Error::new(Kind::Timeout, format!("the container did not answer within {seconds} s")));
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::unwell_pool;
    use super::*;

    #[tokio::test]
    async fn only_images_that_were_built_here_get_gpus() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, _) = unwell_pool(folder.path(), 1, 0);
        let manifest = |gpus: u32| {
            let text = "name = 'a'\nversion = '1'\ntemplate = 'python'\nfunctions = [{ name = 'f' }]";
            Manifest::parse(&format!("{text}\n[limits]\ngpus = {gpus}")).unwrap()
        };
        for (digest, gpus) in [("sha256:1", 2), ("sha256:2", 0)] {
            assert_eq!(pool.check_limits(digest, &manifest(gpus)), Ok(()), "{digest}");
        }
        let error = pool.check_limits("sha256:2", &manifest(1)).unwrap_err();
        let said = "image \"a:1\" asks for GPUs, but was not built by this container manager";
        assert_eq!((error.kind(), error.message()), (Kind::NotAllowed, said));
        assert!(pool.check_limits("sha256:1", &manifest(3)).is_err());
    }

    #[test]
    fn an_operator_gives_networks_and_gpus() {
        let limits = |network, gpus| Limits { network, gpus, ..Limits::default() };
        for (limits, gives_network, max_gpus) in [
            (limits(false, 0), false, 0),
            (limits(true, 0), true, 0),
            (limits(false, 2), false, 2),
            (limits(false, 1), false, 2),
        ] {
            assert_eq!(check_limits("a:1", &limits, gives_network, max_gpus), Ok(()), "{limits:?}");
        }
        for (limits, max_gpus, said) in [
            (limits(true, 0), 0, "image \"a:1\" asks for a network, which the container manager does not give"),
            (limits(false, 1), 0, "image \"a:1\" asks for 1 GPU, and the container manager gives 0"),
            (limits(false, 3), 2, "image \"a:1\" asks for 3 GPUs, and the container manager gives 2"),
        ] {
            let error = check_limits("a:1", &limits, false, max_gpus).unwrap_err();
            assert_eq!((error.kind(), error.message()), (Kind::NotAllowed, said));
            assert!(error.hint().is_some());
        }
    }
}
