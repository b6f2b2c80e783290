//! Pausing replicas, and going on with them.

use std::sync::Arc;
use std::time::Instant;

use super::Pool;
use crate::log;
use crate::metrics::End;
use crate::replica::State;

impl Pool {
    /// Pauses a replica that is in the map as Pausing.
    pub(super) async fn pause(self: Arc<Pool>, name: String) {
        let asked = name.clone();
        let outcome = self.blocking(move |pool| pool.containers.pause(&asked)).await;
        if let Some(replica) = self.lock().replicas.get_mut(&name) {
            let next = if outcome.is_ok() { State::Paused } else { State::Ready };
            let _ = replica.become_state(next);
            // Not tried again at once.
            replica.used = Instant::now();
        }
        if let Err(error) = outcome {
            log::warning("replica_not_paused").replica(&name).write(error);
        }
    }

    /// Goes on with a replica that is in the map as Resuming. One that cannot is taken out; whoever waits gets another.
    pub(super) async fn resume(self: Arc<Pool>, name: String) {
        let asked = name.clone();
        match self.blocking(move |pool| pool.containers.resume(&asked)).await {
            Ok(()) => {
                if let Some(replica) = self.lock().replicas.get(&name) {
                    let _ = replica.become_state(State::Ready);
                }
            }
            Err(error) => {
                log::warning("replica_not_resumed").replica(&name).write(error);
                self.discard(name, End::ResumeFailed, None).await;
            }
        }
    }
}
