//! Keeping the pool as it should be: stops the idle, pauses the unused, replaces the lost, and keeps some warm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::transport::unix;
use udf_project::manifest::Manifest;

use super::Pool;
use super::greet::PROBE_TIMEOUT;
use crate::circuit::Circuit;
use crate::log;
use crate::metrics::End;
use crate::replica::{Replica, State};
use crate::runtime::container_runtime::ReplicaStatus;

/// Between two looks for idle, dead and missing replicas.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A replica that is to be paused when nobody uses it has been unused for that long.
const PAUSE_AFTER: Duration = Duration::from_secs(5);
/// A replica that nobody uses is asked for its greeting that often; of a paused one, the runtime is asked whether it is there.
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(15);

impl Pool {
    /// Keeps the pool as it should be, for ever.
    pub async fn keep(self: Arc<Pool>) {
        // What waits for replicas keeps nothing else from its time.
        let take_out = async {
            loop {
                tokio::time::sleep(KEEP_INTERVAL).await;
                self.take_out_ended().await;
            }
        };
        let ((), ()) = tokio::join!(take_out, self.keep_count());
    }

    /// Keeps as many replicas as there should be, and their logs bounded.
    async fn keep_count(self: &Arc<Pool>) {
        loop {
            tokio::time::sleep(KEEP_INTERVAL).await;
            if let Err(error) = self.blocking(|pool| pool.containers.bound_logs()).await {
                log::warning("logs_unbounded").write(error);
            }
            self.stop_idle();
            self.pause_unused();
            self.ask_unused();
            self.prewarm();
        }
    }

    pub(super) async fn take_out_ended(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            let may_have_ended = |replica: &&Replica| match replica.state() {
                State::Ready => true,
                State::Paused => replica.asked.elapsed() >= ASK_INTERVAL,
                _ => false,
            };
            state.replicas.values().filter(may_have_ended).map(|replica| replica.name.clone()).collect()
        };
        // One that does not let itself be connected to delays no other.
        let mut looks = tokio::task::JoinSet::new();
        for name in names {
            let pool = self.clone();
            looks.spawn(async move { pool.take_out_if_ended(name).await });
        }
        looks.join_all().await;
    }

    async fn take_out_if_ended(self: &Arc<Pool>, name: String) {
        let idle = {
            let mut state = self.lock();
            let unused = state.replicas.get_mut(&name).filter(|replica| replica.leases == 0);
            unused.map(|replica| {
                let is_paused = replica.state() == State::Paused;
                if is_paused {
                    replica.asked = Instant::now();
                }
                (replica.socket_dir.clone(), replica.user, is_paused)
            })
        };
        // An engine that has a lease asks for the fate itself, and wants to hear it.
        let Some((socket_dir, user, is_paused)) = idle else { return };
        // Knocking costs less than asking a container engine.
        let knocks = async {
            unix::connect(&socket_dir.join("flight.sock"), user).await.is_ok()
                || unix::connect(&socket_dir.join("http.sock"), user).await.is_ok()
        };
        // One that is paused lets nobody in, and would have all who knock wait.
        if !is_paused && tokio::time::timeout(PROBE_TIMEOUT, knocks).await.unwrap_or(false) {
            return;
        }
        let asked = name.clone();
        if let Ok(ReplicaStatus::Ended(fate)) = self.blocking(move |pool| pool.containers.status(&asked)).await {
            log::warning("replica_ended").replica(&name).write(format_args!("replica \"{name}\" {fate}"));
            let pool = self.clone();
            tokio::spawn(async move { pool.discard_ended(name, End::Ended, &fate).await });
        }
    }

    fn stop_idle(self: &Arc<Pool>) {
        let idle: Vec<String> = {
            let state = self.lock();
            let mut idle = Vec::new();
            for (digest, manifest) in self.catalogue.all() {
                let ready: Vec<&Replica> = state
                    .replicas
                    .values()
                    .filter(|replica| {
                        replica.digest == digest && matches!(replica.state(), State::Ready | State::Paused)
                    })
                    .collect();
                let surplus = ready.len().saturating_sub(self.to_keep(&digest, &manifest));
                let over = ready.into_iter().filter(|replica| replica.is_unused_for(self.config.idle_timeout));
                idle.extend(over.take(surplus).map(|replica| replica.name.clone()));
            }
            idle
        };
        for name in idle {
            let pool = self.clone();
            tokio::spawn(async move { pool.discard_unused(name, End::Idle).await });
        }
    }

    fn pause_unused(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            let is_unused = |replica: &&Replica| {
                self.catalogue.manifest(&replica.digest).is_some_and(|manifest| manifest.pause)
                    && replica.is_unused_for(PAUSE_AFTER)
                    && replica.become_state(State::Pausing).is_ok()
            };
            state.replicas.values().filter(is_unused).map(|replica| replica.name.clone()).collect()
        };
        for name in names {
            tokio::spawn(self.clone().pause(name));
        }
    }

    /// Asks replicas that nobody uses, so that one that hangs is found before somebody waits for it.
    fn ask_unused(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            let is_due = |replica: &&Replica| replica.leases == 0 && replica.asked.elapsed() >= ASK_INTERVAL;
            state.replicas.values().filter(is_due).map(|replica| replica.name.clone()).collect()
        };
        for name in names {
            self.examine(name, false);
        }
    }

    fn prewarm(self: &Arc<Pool>) {
        let mut state = self.lock();
        let mut missing = Vec::new();
        for (digest, manifest) in self.catalogue.all() {
            let count = state.replicas.values().filter(|replica| replica.digest == digest).count();
            let may_start = state.circuits.get(&digest).is_none_or(Circuit::may_prewarm);
            if may_start && self.check_limits(&digest, &manifest).is_ok() && !state.is_shutting_down() {
                missing.extend((count..self.to_keep(&digest, &manifest)).map(|_| digest.clone()));
            }
        }
        for digest in missing {
            let memory_mb = self.limits_of(&digest).memory_mb;
            if !state.has_room(&self.config, memory_mb) {
                return;
            }
            let replica = self.new_replica(&digest);
            let name = replica.name.clone();
            state.replicas.insert(name.clone(), replica);
            let pool = self.clone();
            tokio::spawn(async move { pool.start(name).await });
        }
    }

    /// How many replicas of an image are kept running: none once its name stands for another, which is kept instead.
    fn to_keep(&self, digest: &str, manifest: &Manifest) -> usize {
        if self.catalogue.is_current(digest, manifest) { manifest.prewarm as usize } else { 0 }
    }
}
