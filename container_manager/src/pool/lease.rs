//! Leasing replicas: who gets which, and what has to happen before.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udf_client::client::LINGER;
use udf_client::control::LeaseInfo;
use udf_client::names::random_name;
use udf_client::planted::{Planted, is_planted};
use udf_types::{Error, Kind, Result};

use super::Pool;
use super::greet::{PROBE_INTERVAL, PROBE_TIMEOUT};
use super::state::PoolState;
use crate::blocking::block_soon;
use crate::circuit::LONGEST_WAIT;
use crate::folders::{self, Opened};
use crate::log;
use crate::metrics::End;
use crate::replica::{Holder, Replica, State};

/// Digits that begin the names of a lease's segments, of 32.
const PREFIX_DIGITS: usize = 16;
/// Longest wait until it is known whether a reported replica hangs. Whoever has one can report it again and again.
const REPORT_PATIENCE: Duration = PROBE_TIMEOUT.saturating_mul(2);
/// Longest wait for the end of leases that nobody uses.
const LEASE_PATIENCE: Duration = LINGER.saturating_mul(2);

/// What a new lease needs.
enum Choice {
    /// That this replica is ready.
    Replica(String, tokio::sync::watch::Receiver<State>),
    /// Some time.
    After(Duration),
    /// That this replica, which nobody uses, is stopped.
    Without(String),
}

impl Pool {
    /// Leases a replica of an image that is in the catalogue: an idle one, else a new one while the image may have more, else the least used. Beside
    /// silent ones it may have as many again; then those are leased. Every successful call must be followed by one of
    /// [`Pool::release`] with the same connection and prefix.
    pub async fn acquire(self: &Arc<Pool>, digest: &str, holder: Holder) -> Result<(LeaseInfo, Opened)> {
        let begun = Instant::now();
        let acquired = {
            let _waiting = self.metrics.wait();
            self.acquire_counted(digest, holder).await
        };
        self.metrics.leased(&self.catalogue.name(digest), begun.elapsed(), &acquired);
        acquired
    }

    async fn acquire_counted(self: &Arc<Pool>, digest: &str, holder: Holder) -> Result<(LeaseInfo, Opened)> {
        let connection = holder.connection;
        let mut info = self.find_replica(digest, holder).await?;
        info.prefix = random_name()[..PREFIX_DIGITS].to_string();
        let opened = {
            let state = self.lock();
            let replica = state.replicas.get(&info.replica);
            replica.map(|replica| self.folders.open(&replica.socket_dir, info.segments.as_deref()))
        };
        match opened {
            Some(Ok(opened)) => Ok((info, opened)),
            failed => {
                self.release(&info.replica, connection, &info.prefix);
                let ended = || Error::new(Kind::ContainerFailed, format!("replica \"{}\" has ended", info.replica));
                Err(failed.and_then(Result::err).unwrap_or_else(ended))
            }
        }
    }

    async fn find_replica(self: &Arc<Pool>, digest: &str, holder: Holder) -> Result<LeaseInfo> {
        let begun = Instant::now();
        // While the runtime cannot stop replicas, those that are warm stay so.
        let mut may_stop = true;
        loop {
            let choice = match self.choose(digest, begun.elapsed() < REPORT_PATIENCE, may_stop) {
                // What sessions keep for a moment after their last calls may be about to make room.
                Err(error) if error.kind() == Kind::Busy && begun.elapsed() < LEASE_PATIENCE => {
                    Choice::After(PROBE_INTERVAL)
                }
                choice => choice?,
            };
            let (name, mut watch) = match choice {
                Choice::Replica(name, watch) => (name, watch),
                Choice::After(pause) => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Choice::Without(name) => {
                    let fact = format!("replica \"{name}\", which nobody uses, makes room for another image");
                    log::info("replica_makes_room").replica(&name).write(fact);
                    may_stop = self.discard_unused(name, End::Room).await.is_ok();
                    continue;
                }
            };
            // The sender lives as long as the replica is in the map; gone means it was taken out.
            let is_settled = |state: &State| !matches!(state, State::Starting | State::Pausing | State::Resuming);
            let reached = watch.wait_for(is_settled).await.map(|state| state.clone());
            match reached {
                Ok(State::Ready | State::Silent) => {
                    if let Some(replica) = self.lock().replicas.get_mut(&name) {
                        replica.holders.push(holder);
                        return Ok(replica.lease_info());
                    }
                }
                Ok(State::Gone(Some(error))) => {
                    // As in `choose`.
                    let mut state = self.lock();
                    let Some(replica) = state.least_used(digest, |replica| replica.state() == State::Ready) else {
                        return Err(error);
                    };
                    replica.leases += 1;
                    replica.holders.push(holder);
                    return Ok(replica.lease_info());
                }
                // It was stopped or paused just now: look again.
                Ok(_) | Err(_) => {}
            }
            self.end_lease(&name);
        }
    }

    /// The replica that a new lease is on, or what has to happen first: among that, if it `waits_for_reports`, that a reported
    /// replica is asked, and if it `may_stop` one, that an unused one makes room. The lease is counted.
    fn choose(self: &Arc<Pool>, digest: &str, waits_for_reports: bool, may_stop: bool) -> Result<Choice> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.is_shutting_down() {
            return Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down"));
        }
        let limit = self.catalogue.manifest(digest).map_or(1, |manifest| manifest.replicas as usize);
        let count = |is_counted: fn(&Replica) -> bool| {
            state.replicas.values().filter(|replica| replica.digest == digest && is_counted(replica)).count()
        };
        let usable = count(Replica::is_usable);
        let silent = count(|replica| replica.state() == State::Silent);
        let may_start = usable < limit && usable + silent < 2 * limit;
        let takes_silent = !may_start && usable == 0;
        let least = state
            .least_used(digest, |replica| replica.is_usable() || (takes_silent && replica.state() == State::Silent));
        if let Some(replica) = least
            && (replica.leases == 0 || !may_start)
        {
            return Ok(self.lease(replica));
        }
        // Whether it hangs is known in a moment; another is started then.
        let is_reported = |replica: &Replica| replica.digest == digest && replica.is_reported;
        if waits_for_reports && state.replicas.values().any(is_reported) {
            return Ok(Choice::After(PROBE_INTERVAL));
        }
        let refusal = match self.start_another(state, digest, may_stop) {
            Err(error) => error,
            choice => return choice,
        };
        // Rather than nobody, one that answers serves one more.
        state
            .least_used(digest, |replica| replica.state() == State::Ready)
            .map_or(Err(refusal), |it| Ok(self.lease(it)))
    }

    /// Counts a lease on a replica, which goes on if it was paused.
    fn lease(self: &Arc<Pool>, replica: &mut Replica) -> Choice {
        // Counted while it starts, so that it is not given to everybody.
        replica.leases += 1;
        replica.used = Instant::now();
        if replica.become_state(State::Resuming).is_ok() {
            tokio::spawn(self.clone().resume(replica.name.clone()));
        }
        Choice::Replica(replica.name.clone(), replica.watch())
    }

    /// A new replica with a lease, or what has to happen before there is one.
    fn start_another(self: &Arc<Pool>, state: &mut PoolState, digest: &str, may_stop: bool) -> Result<Choice> {
        let manifest = self.catalogue.manifest(digest);
        let image = self.catalogue.name(digest);
        if let Some(circuit) = state.circuits.get(digest) {
            match circuit.wait() {
                Some(wait) if wait > LONGEST_WAIT => return Err(circuit.refusal(&image)),
                Some(wait) => return Ok(Choice::After(wait)),
                None => {}
            }
        }
        if let Some(manifest) = manifest {
            self.check_limits(digest, &manifest)?;
        }
        let memory_mb = self.limits_of(digest).memory_mb;
        if !state.has_room(&self.config, memory_mb) {
            // What is being stopped already may do.
            if state.has_room_soon(&self.config, memory_mb) {
                return Ok(Choice::After(PROBE_INTERVAL));
            }
            if let Some(unused) = state.longest_unused().filter(|_| may_stop) {
                return Ok(Choice::Without(unused));
            }
            if state.is_one_leaving() {
                return Ok(Choice::After(PROBE_INTERVAL));
            }
            let (count, memory) = (self.config.max_containers, self.config.max_memory_mb);
            let message = format!("could not start a container of image \"{image}\": too many containers are in use");
            return Err(Error::new(Kind::Busy, message)
                .with_detail(format!("The manager's limits are {count} containers and {memory} MB of memory."))
                .with_hint("Try again later, or start transshipd with --max-containers or --max-memory-mb."));
        }
        let mut replica = self.new_replica(digest);
        replica.leases = 1;
        let choice = Choice::Replica(replica.name.clone(), replica.watch());
        let (pool, name) = (self.clone(), replica.name.clone());
        state.replicas.insert(name.clone(), replica);
        tokio::spawn(async move { pool.start(name).await });
        Ok(choice)
    }

    /// Ends one lease of a connection on a replica, whose segments' names begin so.
    pub fn release(self: &Arc<Pool>, name: &str, connection: u64, prefix: &str) {
        if let Some(replica) = self.lock().replicas.get_mut(name)
            && let Some(position) = replica.holders.iter().position(|holder| holder.connection == connection)
        {
            replica.holders.remove(position);
        }
        let (Some((folder, leases)), prefix) = (self.end_lease(name), prefix.to_string()) else { return };
        // A folder may hold many files. At the manager's end they go with it.
        block_soon(move || {
            folders::remove_segments(&folder, &prefix);
            if leases == 0 {
                folders::remove_left(&folder);
            }
        });
    }

    /// Counts a lease less; the folder of the replica's segments, if it has one, and the leases that are left.
    fn end_lease(&self, name: &str) -> Option<(PathBuf, usize)> {
        let mut state = self.lock();
        let state = &mut *state;
        let replica = state.replicas.get_mut(name)?;
        replica.leases = replica.leases.saturating_sub(usize::from(!is_planted(Planted::LeakedLease)));
        replica.used = Instant::now();
        // It served somebody to the end.
        if replica.state() == State::Ready {
            state.circuits.remove(&replica.digest);
        }
        Some((replica.segment_dir.clone()?, replica.leases))
    }
}
