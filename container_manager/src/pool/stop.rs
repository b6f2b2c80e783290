//! Stopping replicas, and those that have ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::planted::{Planted, is_planted};
use udf_types::{Error, Result};

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
        // It has been written to the log, and is tried again.
        let _ = self.discard_if(name, end, error, |_| true).await;
    }

    /// The same of a replica that nobody uses. One that was leased since it was chosen stays. An error if the runtime could not
    /// stop it.
    pub(super) async fn discard_unused(self: &Arc<Pool>, name: String, end: End) -> Result<()> {
        self.discard_if(name, end, None, |replica| replica.is_unused_for(Duration::ZERO)).await
    }

    async fn discard_if(
        self: &Arc<Pool>,
        name: String,
        end: End,
        error: Option<Error>,
        may_end: fn(&Replica) -> bool,
    ) -> Result<()> {
        // What is being paused is so in a moment, and is not stopped meanwhile.
        let watch = self.lock().replicas.get(&name).map(Replica::watch);
        if let Some(mut watch) = watch {
            let _ = watch.wait_for(|state| *state != State::Pausing).await;
        }
        let (socket_dir, is_paused) = {
            let mut state = self.lock();
            if !state.replicas.get(&name).is_some_and(may_end) {
                return Ok(());
            }
            let Some(replica) = state.replicas.remove(&name) else { return Ok(()) };
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
        self.stop_leaving(name, socket_dir, is_paused).await
    }

    /// Stops a replica that is among those that leave. If its runtime cannot, it is stopped later.
    pub(super) async fn stop_leaving(
        self: &Arc<Pool>,
        name: String,
        socket_dir: PathBuf,
        is_paused: bool,
    ) -> Result<()> {
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
        let is_last = {
            let mut state = self.lock();
            if let Some(replica) = state.leaving.get_mut(&name) {
                replica.is_stuck = stopped.is_err();
            }
            state.is_shutting_down()
        };
        // The next manager finds what is left at this one's end.
        if stopped.is_ok() || is_last {
            self.note_stopped(name, socket_dir).await;
        } else {
            // Whoever waits for this stop waits no longer.
            tokio::spawn(self.clone().stop_again(name, socket_dir));
        }
        stopped
    }

    /// Stops a replica that its runtime could not stop, until it can, or the manager ends; then it tries once more. It counts as
    /// one that is being stopped meanwhile: what runs and is forgotten would have no owner, and no limit.
    async fn stop_again(self: Arc<Pool>, name: String, socket_dir: PathBuf) {
        let mut shutdown = self.lock().shutdown.subscribe();
        let mut pause = FIRST_STOP_PAUSE;
        loop {
            let is_last = tokio::time::timeout(pause, shutdown.wait_for(|is_begun| *is_begun)).await.is_ok();
            let asked = name.clone();
            let stopped = self.blocking(move |pool| pool.containers.stop(&asked)).await;
            match &stopped {
                Ok(()) => {
                    let fact = format_args!("replica \"{name}\" was stopped after all");
                    log::info("replica_stopped").replica(&name).write(fact);
                }
                // Later it has been said.
                Err(error) if is_last || pause < LAST_STOP_PAUSE => {
                    log::warning("replica_not_stopped").replica(&name).write(error);
                }
                Err(_) => {}
            }
            if is_last || stopped.is_ok() {
                return self.note_stopped(name, socket_dir).await;
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
            let state = self.lock();
            state.shutdown.send_replace(true);
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
pub(super) mod tests {
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use udf_client::control::ImageInfo;
    use udf_project::manifest::Manifest;
    use udf_types::Kind;

    use super::super::keep::ASK_INTERVAL;
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::config::{BuildConfig, Config, HostConfig, Paths, RuntimeConfig, RuntimeName};
    use crate::replica::Holder;
    use crate::runtime::container_runtime::{ContainerRuntime, FoundReplica, ReplicaSpec, ReplicaStatus};

    /// Counts how many replicas were stopped, how often that fails before, and how often it is asked for states. Image `sha256:2` was not built here.
    #[derive(Default)]
    pub(crate) struct Stops(AtomicUsize, AtomicUsize, pub(crate) AtomicUsize);

    impl ContainerRuntime for Stops {
        fn name(&self) -> &'static str {
            "process"
        }
        fn check(&self) -> Result<String> {
            Ok(String::new())
        }
        fn may_have_gpus(&self, digest: &str) -> bool {
            digest != "sha256:2"
        }
        fn start(&self, _: &ReplicaSpec) -> Result<()> {
            Ok(())
        }
        fn status(&self, _: &str) -> Result<ReplicaStatus> {
            self.2.fetch_add(1, SeqCst);
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
            max_gpus: 2,
            otlp_endpoint: None,
            cache_bytes: 0,
            cache_dir: None,
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
        assert!(pool.discard_unused(name.clone(), End::Room).await.is_err());
        assert!(pool.lock().leaving.contains_key(&name) && !pool.lock().has_room(&config, 1));
        while !pool.lock().leaving.is_empty() {
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        assert_eq!(stops.0.load(SeqCst), 1);
        assert!(pool.lock().has_room(&config, 1));
    }

    /// A pool of a runtime that fails to stop replicas so many times; it has images `sha256:1` and `sha256:2`, each with two
    /// replicas at most.
    pub(crate) fn unwell_pool(folder: &Path, max_containers: usize, failures: usize) -> (Arc<Pool>, Arc<Stops>) {
        let stops = Arc::new(Stops::default());
        stops.1.store(failures, SeqCst);
        let config = Arc::new(Config { max_containers, ..config(folder) });
        let catalogue = Catalogue::default();
        for digest in ["sha256:1", "sha256:2"] {
            let text = "name = 'a'\nversion = '1'\ntemplate = 'python'\nreplicas = 2\nfunctions = [{ name = 'f' }]";
            let manifest = Manifest::parse(text).unwrap();
            catalogue.note(&ImageInfo { digest: digest.to_string(), manifest }, false);
        }
        (Pool::new(config, stops.clone(), Arc::new(catalogue)).unwrap(), stops)
    }

    /// Adds a replica that is ready.
    fn add_ready(pool: &Pool, digest: &str) -> String {
        let replica = pool.new_replica(digest);
        let name = replica.name.clone();
        replica.become_state(State::Ready).unwrap();
        pool.lock().replicas.insert(name.clone(), replica);
        name
    }

    fn holder() -> Holder {
        Holder { connection: 1, uid: 26, pid: None, since: Instant::now() }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_replica_that_cannot_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, _) = unwell_pool(folder.path(), 2, usize::MAX);
        let stuck = add_ready(&pool, "sha256:2");
        assert!(pool.discard_unused(stuck, End::Idle).await.is_err());
        let shared = add_ready(&pool, "sha256:1");
        let socket_dir = pool.lock().replicas[&shared].socket_dir.clone();
        pool.folders.make_sockets(&socket_dir).unwrap();
        pool.lock().replicas.get_mut(&shared).unwrap().leases = 1;
        // There is no room for the second replica of this image, so the first serves one more.
        let (lease, _) = pool.acquire("sha256:1", holder()).await.unwrap();
        assert_eq!(lease.replica, shared);
        // There is none for another image.
        assert_eq!(pool.acquire("sha256:2", holder()).await.map(|(lease, _)| lease).unwrap_err().kind(), Kind::Busy);
    }

    #[tokio::test]
    async fn one_request_stops_no_second_replica_if_the_first_cannot_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, _) = unwell_pool(folder.path(), 3, usize::MAX);
        for _ in 0..3 {
            add_ready(&pool, "sha256:1");
        }
        assert_eq!(pool.acquire("sha256:2", holder()).await.map(|(lease, _)| lease).unwrap_err().kind(), Kind::Busy);
        let state = pool.lock();
        assert_eq!((state.replicas.len(), state.leaving.len()), (2, 1));
    }

    #[tokio::test]
    async fn a_request_waits_for_what_is_being_stopped_before_it_stops_another() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, _) = unwell_pool(folder.path(), 2, 0);
        let [leaving, warm] = ["sha256:1", "sha256:1"].map(|digest| add_ready(&pool, digest));
        {
            let mut state = pool.lock();
            let replica = state.replicas.remove(&leaving).unwrap();
            state.leaving.insert(leaving.clone(), replica);
        }
        let socket_dir = pool.lock().leaving[&leaving].socket_dir.clone();
        let request = tokio::spawn({
            let pool = pool.clone();
            async move { pool.acquire("sha256:2", holder()).await.map(drop) }
        });
        tokio::time::sleep(PROBE_INTERVAL * 5).await;
        assert!(pool.lock().replicas.contains_key(&warm));
        pool.stop_leaving(leaving, socket_dir, false).await.unwrap();
        // What is started now ends at once, as this runtime says.
        assert!(request.await.unwrap().is_err());
        assert!(pool.lock().replicas.contains_key(&warm));
    }

    #[tokio::test]
    async fn the_end_of_the_manager_tries_once_more_to_stop_a_replica() {
        let folder = tempfile::tempdir().unwrap();
        for (failures, stopped) in [(2, 0), (1, 1)] {
            let folder = tempfile::tempdir_in(folder.path()).unwrap();
            let (pool, stops) = unwell_pool(folder.path(), 1, failures);
            let name = add_ready(&pool, "sha256:1");
            assert!(pool.discard_unused(name, End::Idle).await.is_err());
            pool.shut_down().await;
            let state = pool.lock();
            assert_eq!((state.leaving.len(), stops.1.load(SeqCst), stops.0.load(SeqCst)), (0, 0, stopped));
        }
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
        pool.discard_unused(unused.clone(), End::Room).await.unwrap();
        assert_eq!((pool.lock().replicas[&name].state(), stops.0.load(SeqCst)), (State::Ready, 0));
        pool.lock().replicas.get_mut(&name).unwrap().leases = 0;
        pool.discard_unused(unused, End::Room).await.unwrap();
        let state = pool.lock();
        assert_eq!((state.replicas.len(), state.leaving.len(), stops.0.load(SeqCst)), (0, 0, 1));
    }
}
