//! Replicas that do not answer: busy ones are waited for, those that hang are stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use udf_client::control::STILL_RUNNING;
use udf_types::{Error, Kind, Result};

use super::Pool;
use super::greet::{PROBE_INTERVAL, PROBE_TIMEOUT, greet, is_deserted};
use crate::log;
use crate::metrics::End;
use crate::replica::{Fate, State};
use crate::runtime::container_runtime::ReplicaStatus;

/// Between two times that a replica is asked which did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Longest wait for a container engine to say that a replica has ended on whose sockets nobody listens any more.
const ENDING_TIMEOUT: Duration = Duration::from_secs(15);
/// Between two looks once it has taken longer than [`PROBE_TIMEOUT`].
const LATE_INTERVAL: Duration = Duration::from_millis(100);
/// A silent replica has missed at least so many greetings before it is stopped.
const LEAST_MISSED: u32 = 3;

impl Pool {
    /// What became of a replica with which an engine lost its connection; one that has ended is taken out. One that does not
    /// answer may be busy for somebody else: it becomes Silent.
    pub async fn judge(self: &Arc<Pool>, name: String) -> Result<String> {
        let Some(mut fate) = self.begin_to_judge(name) else { return Ok("was stopped".to_string()) };
        let fate = fate.wait_for(Option::is_some).await.ok().and_then(|fate| fate.clone());
        fate.unwrap_or_else(|| Err(Error::new(Kind::ContainerFailed, "could not judge how a replica ended")))
    }

    /// Many sessions may lose one replica, but it is judged once at a time. Its fate comes, also if those who asked are gone.
    fn begin_to_judge(self: &Arc<Pool>, name: String) -> Option<Fate> {
        let mut state = self.lock();
        let replica = state.replicas.get_mut(&name)?;
        // The other end is there until the fate is known.
        if let Some(fate) = replica.fate.as_ref().filter(|fate| fate.has_changed().is_ok()) {
            return Some(fate.clone());
        }
        let (sender, fate) = watch::channel(None);
        replica.fate = Some(fate.clone());
        let (pool, socket_dir) = (self.clone(), replica.socket_dir.clone());
        tokio::spawn(async move {
            let fate = pool.judge_to_the_end(name, socket_dir).await;
            sender.send_replace(Some(fate));
        });
        Some(fate)
    }

    async fn judge_to_the_end(self: &Arc<Pool>, name: String, socket_dir: PathBuf) -> Result<String> {
        let (begun, mut is_silent) = (Instant::now(), false);
        // A connection is lost before the process behind it is seen to have ended: a busy container engine takes seconds.
        loop {
            let asked = name.clone();
            let question = self.questions.acquire().await;
            let status = self.blocking(move |pool| pool.containers.status(&asked)).await?;
            drop(question);
            if let ReplicaStatus::Ended(fate) = status {
                self.discard_ended(name, End::Ended, &fate).await;
                return Ok(fate);
            }
            if greet(&socket_dir, &self.server_users).await.is_ok() {
                if is_silent {
                    self.speak(&name);
                }
                return Ok(STILL_RUNNING.to_string());
            }
            let is_late = begun.elapsed() >= PROBE_TIMEOUT;
            if is_late && (begun.elapsed() >= ENDING_TIMEOUT || !is_deserted(&socket_dir).await) {
                if is_silent || self.fall_silent(&name) {
                    self.ask_on(name, socket_dir);
                }
                return Ok("does not answer".to_string());
            }
            // Others get another replica meanwhile.
            is_silent = is_silent || is_late && self.fall_silent(&name);
            tokio::time::sleep(if is_late { LATE_INTERVAL } else { PROBE_INTERVAL }).await;
        }
    }

    /// Asks a replica whether it answers at all; it `is_reported` if somebody has waited for it in vain.
    pub fn examine(self: &Arc<Pool>, name: String, is_reported: bool) {
        let socket_dir = {
            let mut state = self.lock();
            let Some(replica) = state.replicas.get_mut(&name) else { return };
            if replica.state() != State::Ready {
                return;
            }
            replica.is_reported |= is_reported;
            // Many sessions may wait for one replica, but it is asked once.
            if replica.is_being_asked {
                return;
            }
            replica.is_being_asked = true;
            replica.socket_dir.clone()
        };
        let pool = self.clone();
        tokio::spawn(async move {
            let greeting = tokio::time::timeout(PROBE_TIMEOUT, greet(&socket_dir, &pool.server_users)).await;
            if !greeting.is_ok_and(|greeting| greeting.is_ok()) {
                pool.doubt(&name);
            }
            if let Some(replica) = pool.lock().replicas.get_mut(&name) {
                (replica.is_being_asked, replica.is_reported) = (false, false);
                replica.asked = Instant::now();
            }
        });
    }

    /// A replica did not answer: gives no new leases on it, and asks on until it answers, or has been silent for too long and
    /// nobody has a lease any more. A busy one keeps its query.
    fn doubt(self: &Arc<Pool>, name: &str) {
        let Some(socket_dir) = self.lock().replicas.get(name).map(|replica| replica.socket_dir.clone()) else { return };
        if self.fall_silent(name) {
            self.ask_on(name.to_string(), socket_dir);
        }
    }

    /// Gives no new leases on a replica; false if it gave none before.
    fn fall_silent(&self, name: &str) -> bool {
        let has_fallen =
            self.lock().replicas.get(name).is_some_and(|replica| replica.become_state(State::Silent).is_ok());
        if has_fallen {
            log::warning("replica_silent").replica(name).write(format_args!("replica \"{name}\" does not answer"));
        }
        has_fallen
    }

    /// Gives leases on it again.
    fn speak(&self, name: &str) {
        if let Some(replica) = self.lock().replicas.get(name) {
            let _ = replica.become_state(State::Ready);
        }
    }

    /// Asks a silent replica until it answers or is stopped.
    fn ask_on(self: &Arc<Pool>, name: String, socket_dir: PathBuf) {
        let pool = self.clone();
        tokio::spawn(async move {
            let (since, mut missed) = (Instant::now(), 1);
            loop {
                tokio::time::sleep(ASK_AGAIN).await;
                if greet(&socket_dir, &pool.server_users).await.is_ok() {
                    return pool.speak(&name);
                }
                missed += 1;
                let asked = name.clone();
                if let Ok(ReplicaStatus::Ended(fate)) = pool.blocking(move |pool| pool.containers.status(&asked)).await
                {
                    return pool.discard_ended(name, End::Ended, &fate).await;
                }
                let is_unused = match pool.lock().replicas.get(&name) {
                    Some(replica) => replica.is_unused_for(Duration::ZERO),
                    None => return,
                };
                if is_unused && missed >= LEAST_MISSED && since.elapsed() >= pool.config.silent_timeout {
                    let seconds = since.elapsed().as_secs();
                    let fate = format!("did not answer for {seconds} s");
                    let fact = format!("replica \"{name}\" {fate} and is stopped");
                    log::warning("replica_silent").replica(&name).write(fact);
                    return pool.discard_ended(name, End::Silent, &fate).await;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use tokio::task::JoinSet;

    use super::super::unwell_pool;

    #[tokio::test]
    async fn a_replica_that_many_have_lost_is_judged_once() {
        let folder = tempfile::tempdir().unwrap();
        let (pool, stops) = unwell_pool(folder.path(), 2, 0);
        let replica = pool.new_replica("sha256:1");
        let name = replica.name.clone();
        pool.lock().replicas.insert(name.clone(), replica);
        let mut judges = JoinSet::new();
        for _ in 0..100 {
            let (pool, name) = (pool.clone(), name.clone());
            judges.spawn(async move { pool.judge(name).await.unwrap() });
        }
        assert!(judges.join_all().await.iter().all(|fate| fate == "exited with status 137"));
        assert_eq!(stops.2.load(SeqCst), 1);
        assert_eq!(pool.judge(name).await.unwrap(), "was stopped");
    }
}
