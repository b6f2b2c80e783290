//! Which replicas there are, and how those of each image ended.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use udf_client::planted::{Planted, is_planted};

use crate::circuit::Circuit;
use crate::config::Config;
use crate::replica::{Replica, State};

/// The replicas.
#[derive(Default)]
pub(super) struct PoolState {
    /// Those that are there, by name.
    pub(super) replicas: HashMap<String, Replica>,
    /// Replicas that are being stopped.
    pub(super) leaving: HashMap<String, Replica>,
    /// Replicas that are being started, those that were taken out meanwhile included.
    pub(super) starting: usize,
    /// How the replicas of an image ended of late, by digest.
    pub(super) circuits: HashMap<String, Circuit>,
    /// Whether the manager ends; to wait for that, too.
    pub(super) shutdown: watch::Sender<bool>,
}

impl PoolState {
    /// Notes that a replica ended that nobody had stopped.
    pub(super) fn note_ending(&mut self, digest: &str, lived: Option<Duration>, was_in_use: bool, last: &str) {
        self.circuits.entry(digest.to_string()).or_default().note_ending(lived, was_in_use, last);
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        *self.shutdown.borrow()
    }

    /// Whether `more` megabytes for another container are within the limits.
    pub(super) fn has_room(&self, config: &Config, more: u64) -> bool {
        self.has_room_beside(config, more, |_| true)
    }

    /// Whether they are so once those are gone that are being stopped, as far as their runtime can stop them.
    pub(super) fn has_room_soon(&self, config: &Config, more: u64) -> bool {
        self.has_room_beside(config, more, |replica| replica.is_stuck)
    }

    /// Whether some replica is being stopped that its runtime may well stop.
    pub(super) fn is_one_leaving(&self) -> bool {
        self.leaving.values().any(|replica| !replica.is_stuck)
    }

    /// Whether they are so if, of those that are being stopped, some count.
    fn has_room_beside(&self, config: &Config, more: u64, counts: fn(&Replica) -> bool) -> bool {
        let all = || self.replicas.values().chain(self.leaving.values().filter(|replica| counts(replica)));
        let used: u64 = all().map(|replica| replica.memory_mb).sum();
        let most = config.max_containers + usize::from(is_planted(Planted::TooManyContainers));
        all().count() < most && used.saturating_add(more) <= config.max_memory_mb
    }

    /// The replica that has been unused for longest.
    pub(super) fn longest_unused(&self) -> Option<String> {
        let unused = self.replicas.values().filter(|replica| {
            matches!(replica.state(), State::Ready | State::Paused) && replica.is_unused_for(Duration::ZERO)
        });
        unused.min_by_key(|replica| replica.used).map(|replica| replica.name.clone())
    }

    /// The replica of an image with the fewest leases, among those that may get one more.
    pub(super) fn least_used(&mut self, digest: &str, may_serve: impl Fn(&Replica) -> bool) -> Option<&mut Replica> {
        let replicas = self.replicas.values_mut();
        let candidates =
            replicas.filter(|replica| replica.digest == digest && !replica.is_reported && may_serve(replica));
        candidates.min_by_key(|replica| (replica.leases, replica.state() != State::Ready))
    }
}
