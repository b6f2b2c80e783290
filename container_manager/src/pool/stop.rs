//! Stopping replicas, and those that have ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_types::Error;

use super::Pool;
use super::greet::PROBE_INTERVAL;
use crate::metrics::End;
use crate::replica::{Replica, State};
use crate::runtime::program::last_lines;

/// Longest wait for all replicas to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

impl Pool {
    /// Takes a replica out and stops it. Whoever waits for it learns `error`.
    pub(super) async fn discard(self: &Arc<Pool>, name: String, end: End, error: Option<Error>) {
        // What is being paused is so in a moment, and is not stopped meanwhile.
        let watch = self.lock().replicas.get(&name).map(Replica::watch);
        if let Some(mut watch) = watch {
            let _ = watch.wait_for(|state| *state != State::Pausing).await;
        }
        let (socket_dir, is_paused) = {
            let mut state = self.lock();
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
            pool.containers.stop(&asked)
        };
        if let Err(error) = self.blocking(stop).await {
            eprintln!("transshipd: {error}");
        }
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
        eprintln!("transshipd: some replicas could not be stopped");
    }
}
