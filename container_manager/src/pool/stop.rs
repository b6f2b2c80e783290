//! Stopping replicas, and those that have ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::planted::{Planted, is_planted};
use udf_types::Error;

use super::Pool;
use super::greet::PROBE_INTERVAL;
use crate::log;
use crate::metrics::End;
use crate::replica::{Replica, State};
use crate::runtime::program::last_lines;

/// Pauses before a replica is stopped again that could not be stopped: the first, twice as long each time, up to the last.
const FIRST_STOP_PAUSE: Duration = Duration::from_millis(500);
const LAST_STOP_PAUSE: Duration = Duration::from_secs(30);
/// Longest wait for all replicas to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

impl Pool {
    /// Takes a replica out and stops it. Whoever waits for it learns `error`.
    pub(super) async fn discard(self: &Arc<Pool>, name: String, end: End, error: Option<Error>) {
        self.discard_if(name, end, error, |_| true).await;
    }

    /// The same of a replica that nobody uses. One that was leased since it was chosen stays.
    pub(super) async fn discard_unused(self: &Arc<Pool>, name: String, end: End) {
        self.discard_if(name, end, None, |replica| replica.is_unused_for(Duration::ZERO)).await;
    }

    async fn discard_if(self: &Arc<Pool>, name: String, end: End, error: Option<Error>, may_end: fn(&Replica) -> bool) {
        // What is being paused is so in a moment, and is not stopped meanwhile.
        let watch = self.lock().replicas.get(&name).map(Replica::watch);
        if let Some(mut watch) = watch {
            let _ = watch.wait_for(|state| *state != State::Pausing).await;
        }
        let (socket_dir, is_paused) = {
            let mut state = self.lock();
            if !state.replicas.get(&name).is_some_and(may_end) {
                return;
            }
            let Some(replica) = state.replicas.remove(&name) else { return };
            // A replica that was still starting, or failed, is simply gone; for a ready one this is the end of its work.
            let next = match replica.state() {
                State::Ready | State::Silent | State::Paused => State::Draining,
                _ => State::Gone(error),
            };
            let is_paused = replica.state() == State::Paused;
            let _ = replica.become_state(next);
            self.metrics.ended(&replica.image, end);
            let socket_dir = replica.socket_dir.clone();
            state.leaving.insert(name.clone(), replica);
            (socket_dir, is_paused)
        };
        let asked = name.clone();
        let stop = move |pool: &Pool| {
            // One that cannot go on may be stopped all the same.
            let _ = is_paused.then(|| pool.containers.resume(&asked));
            pool.kept_logs.keep(&asked, &pool.containers.logs(&asked).unwrap_or_default());
            if is_planted(Planted::ForgottenContainer) { Ok(()) } else { pool.containers.stop(&asked) }
        };
        let stopped = self.blocking(stop).await;
        if let Err(error) = &stopped {
            log::warning("replica_not_stopped").replica(&name).write(error);
        }
        // The next manager finds what is left at this one's end.
        if stopped.is_ok() || self.lock().is_shutting_down {
            return self.note_stopped(name, socket_dir).await;
        }
        // Whoever waits for this stop waits no longer.
        tokio::spawn(self.clone().stop_again(name, socket_dir));
    }

    /// Stops a replica that its runtime could not stop, until it can. It counts as one that is being stopped meanwhile: what runs
    /// and is forgotten would have no owner, and no limit.
    pub(super) async fn stop_again(self: Arc<Pool>, name: String, socket_dir: PathBuf) {
        let mut pause = FIRST_STOP_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            let asked = name.clone();
            match self.blocking(move |pool| pool.containers.stop(&asked)).await {
                Err(_) if self.lock().is_shutting_down => return self.note_stopped(name, socket_dir).await,
                Ok(()) => return self.note_stopped(name, socket_dir).await,
                Err(error) if pause < LAST_STOP_PAUSE => {
                    log::warning("replica_not_stopped").replica(&name).write(error)
                }
                // It has been said.
                Err(_) => {}
            }
            pause = (pause * 2).min(LAST_STOP_PAUSE);
        }
    }

    /// Forgets a replica that was stopped.
    async fn note_stopped(self: &Arc<Pool>, name: String, socket_dir: PathBuf) {
        self.remove_folders(socket_dir).await;
        if let Some(replica) = self.lock().leaving.remove(&name) {
            let _ = replica.become_state(State::Gone(None));
        }
    }

    /// The same, on a task of its own: whoever asks may be cancelled, the stop must not be.
    pub(super) fn discard_soon(self: &Arc<Pool>, name: String, end: End) {
        let pool = self.clone();
        tokio::spawn(async move { pool.discard(name, end, None).await });
    }

    /// Takes out a replica that ended, or has to, without being asked to.
    pub(super) async fn discard_ended(self: &Arc<Pool>, name: String, end: End, fate: &str) {
        let asked = name.clone();
        let log = self.blocking(move |pool| pool.containers.logs(&asked)).await.unwrap_or_default();
        {
            let mut state = self.lock();
            // Several may have seen it end.
            let Some(replica) = state.replicas.get(&name) else { return };
            let (digest, lived, was_in_use) = (replica.digest.clone(), replica.since.elapsed(), replica.leases > 0);
            let last = format!("The last one {fate}.\n{}", last_lines(&log, 15));
            state.note_ending(&digest, Some(lived), was_in_use, last.trim_end());
        }
        self.discard(name, end, None).await;
    }

    pub(super) async fn remove_folders(self: &Arc<Pool>, socket_dir: PathBuf) {
        let removed = self.blocking(move |pool| {
            pool.folders.remove(&socket_dir);
            Ok(())
        });
        // It never fails.
        let _ = removed.await;
    }

    /// Stops every replica.
    pub async fn shut_down(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let mut state = self.lock();
            state.is_shutting_down = true;
            state.replicas.keys().cloned().collect()
        };
        for name in names {
            self.discard_soon(name, End::Shutdown);
        }
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while Instant::now() < deadline {
            {
                let state = self.lock();
                if state.replicas.is_empty() && state.leaving.is_empty() && state.starting == 0 {
                    return;
                }
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        log::warning("replicas_left").write("some replicas could not be stopped");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use udf_types::{Kind, Result};

    use super::super::keep::ASK_INTERVAL;
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::config::{BuildConfig, Config, HostConfig, Paths, RuntimeConfig, RuntimeName};
    use crate::runtime::container_runtime::{ContainerRuntime, FoundReplica, ReplicaSpec, ReplicaStatus};

    /// Counts how many replicas were stopped, and how often that fails before.
    #[derive(Default)]
    struct Stops(AtomicUsize, AtomicUsize);

    impl ContainerRuntime for Stops {
        fn name(&self) -> &'static str {
            "process"
        }
        fn check(&self) -> Result<String> {
            Ok(String::new())
        }
        fn start(&self, _: &ReplicaSpec) -> Result<()> {
            Ok(())
        }
        fn status(&self, _: &str) -> Result<ReplicaStatus> {
            Ok(ReplicaStatus::Ended("exited with status 137".to_string()))
        }
        fn pause(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn resume(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn stop(&self, _: &str) -> Result<()> {
            if self.1.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(Error::new(Kind::ContainerFailed, "the runtime is unwell"));
            }
            self.0.fetch_add(1, SeqCst);
            Ok(())
        }
        fn logs(&self, _: &str) -> Result<String> {
            Ok(String::new())
        }
        fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
            Ok(Vec::new())
        }
    }

    fn config(folder: &Path) -> Config {
        let duration = Duration::from_secs(60);
        let [run_dir, shm_dir] = ["run", "shm"].map(|name| {
            let path = folder.join(name);
            std::fs::create_dir(&path).unwrap();
            path
        });
        let (socket, state_dir, templates) = (folder.join("socket"), folder.join("state"), folder.join("templates"));
        let builds =
            BuildConfig { network: None, memory_mb: 1024, cpus: 1, timeout: duration, base_images: Vec::new() };
        let runtime = RuntimeConfig { name: RuntimeName::Process, network: None, cgroup_parent: None };
        Config {
            host: HostConfig { paths: Paths { socket, state_dir, run_dir, shm_dir, templates }, runtime, builds },
            allowed_uids: HashSet::new(),
            operator_uids: HashSet::new(),
            allowed_images: None,
            idle_timeout: duration,
            start_timeout: duration,
            segment_bytes: 1 << 20,
            silent_timeout: duration,
            adopted_grace: duration,
            log_leases: false,
            max_containers: 10,
            max_builds: 1,
            max_memory_mb: 10_000,
            max_gpus: 0,
            otlp_endpoint: None,
            metrics_listen: None,
            metrics_hosts: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_replica_that_cannot_be_stopped_counts_until_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let stops = Arc::new(Stops::default());
        stops.1.store(2, SeqCst);
        let config = Arc::new(Config { max_containers: 1, ..config(folder.path()) });
        let pool = Pool::new(config.clone(), stops.clone(), Arc::new(Catalogue::default())).unwrap();
        let replica = pool.new_replica("sha256:1");
        let name = replica.name.clone();
        replica.become_state(State::Ready).unwrap();
        pool.lock().replicas.insert(name.clone(), replica);
        pool.discard_unused(name.clone(), End::Room).await;
        assert!(pool.lock().leaving.contains_key(&name) && !pool.lock().has_room(&config, 1));
        while !pool.lock().leaving.is_empty() {
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        assert_eq!(stops.0.load(SeqCst), 1);
        assert!(pool.lock().has_room(&config, 1));
    }

    #[tokio::test]
    async fn a_replica_that_ended_while_it_was_paused_is_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let stops = Arc::new(Stops::default());
        let config = Arc::new(config(folder.path()));
        let pool = Pool::new(config, stops.clone(), Arc::new(Catalogue::default())).unwrap();
        let mut replica = pool.new_replica("sha256:1");
        for state in [State::Ready, State::Pausing, State::Paused] {
            replica.become_state(state).unwrap();
        }
        replica.asked = Instant::now().checked_sub(ASK_INTERVAL).unwrap();
        pool.lock().replicas.insert(replica.name.clone(), replica);
        pool.take_out_ended().await;
        while stops.0.load(SeqCst) == 0 || !pool.lock().leaving.is_empty() {
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        assert!(pool.lock().replicas.is_empty());
    }

    #[tokio::test]
    async fn a_replica_that_was_leased_since_it_was_chosen_is_not_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let stops = Arc::new(Stops::default());
        let config = Arc::new(config(folder.path()));
        let pool = Pool::new(config, stops.clone(), Arc::new(Catalogue::default())).unwrap();
        let replica = pool.new_replica("sha256:1");
        let name = replica.name.clone();
        replica.become_state(State::Ready).unwrap();
        pool.lock().replicas.insert(name.clone(), replica);
        let unused = pool.lock().longest_unused().unwrap();
        // Somebody leases it before whoever has chosen it goes on.
        pool.lock().replicas.get_mut(&name).unwrap().leases = 1;
        pool.discard_unused(unused.clone(), End::Room).await;
        assert_eq!((pool.lock().replicas[&name].state(), stops.0.load(SeqCst)), (State::Ready, 0));
        pool.lock().replicas.get_mut(&name).unwrap().leases = 0;
        pool.discard_unused(unused, End::Room).await;
        let state = pool.lock();
        assert_eq!((state.replicas.len(), state.leaving.len(), stops.0.load(SeqCst)), (0, 0, 1));
    }
}
