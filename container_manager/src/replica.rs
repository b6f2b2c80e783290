//! One replica's life, and nothing else: which states there are and which may follow which.
//!
//! ```text
//!                            Resuming ◀──── Paused ◀──── Pausing
//!                               │    asked for   │           ▲
//!              answers          ▼                │ idle      │ unused
//!  Starting ─────────────▶    Ready ─────────────┼───────────┘
//!     │                       │ ▲ │              ▼
//!     │ ends, or is too slow  │ │ └────────▶ Draining ──▶ Gone
//!     ▼                missed │ │ answers        ▲ idle, shutdown, silent for too long
//!    Gone                     ▼ │                │
//!                           Silent ──────────────┘
//! ```
//!
//! A Ready or Silent one that ends is Gone. Only a Ready replica is leased, and a Silent one if the image may have no other;
//! only one without leases becomes Draining, except at shutdown. Pausing and Resuming last as long as the runtime takes; one
//! that cannot be paused is Ready again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use udf_client::control::{LeaseHolder, LeaseInfo, ReplicaInfo};
use udf_codec::wire::ServerInfo;
use udf_project::endpoint::Endpoint;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

/// What became of a replica, once it is known.
pub(crate) type Fate = watch::Receiver<Option<Result<String>>>;

/// So many of those who have leases are shown, so that a list of replicas stays short.
const MOST_SHOWN_HOLDERS: usize = 100;

/// Where in its life a replica is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Started, does not answer yet.
    Starting,
    /// Answers.
    Ready,
    /// Did not answer when it was asked last: it may be busy, or hang.
    Silent,
    /// Is being paused, since nobody uses it.
    Pausing,
    /// Is there, and gets no processor.
    Paused,
    /// Is wanted, and goes on.
    Resuming,
    /// Is being stopped.
    Draining,
    /// Has ended; if that was not asked for, why.
    Gone(Option<Error>),
}

impl State {
    /// The name in `transship ps`.
    pub fn name(&self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Silent => "silent",
            State::Pausing => "pausing",
            State::Paused => "paused",
            State::Resuming => "resuming",
            State::Draining => "draining",
            State::Gone(_) => "gone",
        }
    }

    /// Whether `next` may follow.
    pub fn may_become(&self, next: &State) -> bool {
        match (self, next) {
            (State::Starting | State::Resuming, State::Ready | State::Gone(_)) => true,
            (State::Ready, State::Silent | State::Pausing | State::Draining | State::Gone(_)) => true,
            (State::Silent, State::Ready | State::Draining | State::Gone(_)) => true,
            (State::Pausing, State::Ready | State::Paused | State::Gone(_)) => true,
            (State::Paused, State::Resuming | State::Draining | State::Gone(_)) => true,
            (State::Draining, State::Gone(_)) => true,
            (_, _) => false,
        }
    }
}

/// One replica, as the pool keeps it.
#[derive(Debug)]
pub struct Replica {
    /// Name.
    pub name: String,
    /// Image, `name:tag`.
    pub image: String,
    /// Digest of the image.
    pub digest: String,
    /// Folder of its sockets.
    pub socket_dir: PathBuf,
    /// Folder of its segments; none where no memory can be shared.
    pub segment_dir: Option<PathBuf>,
    /// What its server says of itself; known once it is Ready.
    pub server: ServerInfo,
    /// The user that its server runs as; known once it is Ready.
    pub user: Option<u32>,
    /// Leases on it.
    pub leases: usize,
    /// Who has them; a lease that is still being waited for has no entry yet.
    pub holders: Vec<Holder>,
    /// Whoever leased it from an earlier manager may be at work until then.
    pub in_use_until: Option<Instant>,
    /// What it may use of the host's memory, in megabytes.
    pub memory_mb: u64,
    /// Whether its runtime could not stop it: nobody knows when it makes room.
    pub is_stuck: bool,
    /// When it was last asked for its greeting.
    pub asked: Instant,
    /// Whether it is being asked now.
    pub is_being_asked: bool,
    /// Whether it is being asked because somebody waited for it in vain. Nobody gets a lease on it until it answers.
    pub is_reported: bool,
    /// What became of it, if somebody has lost it.
    pub(crate) fate: Option<Fate>,
    /// When it was started or adopted.
    pub since: Instant,
    /// When it last had a lease.
    pub used: Instant,
    state: watch::Sender<State>,
}

impl Replica {
    /// A replica that is being started.
    pub fn new(name: String, image: String, digest: String, socket_dir: PathBuf) -> Replica {
        let now = Instant::now();
        Replica {
            name,
            image,
            digest,
            socket_dir,
            segment_dir: None,
            server: ServerInfo::default(),
            user: None,
            leases: 0,
            holders: Vec::new(),
            in_use_until: None,
            memory_mb: 0,
            is_stuck: false,
            asked: now,
            is_being_asked: false,
            is_reported: false,
            fate: None,
            since: now,
            used: now,
            state: watch::Sender::new(State::Starting),
        }
    }

    /// Whether it is there for those who ask, now or soon.
    pub fn is_usable(&self) -> bool {
        !matches!(self.state(), State::Silent | State::Draining | State::Gone(_))
    }

    /// Whether nobody has used it for so long, so far as this manager can know.
    pub fn is_unused_for(&self, time: Duration) -> bool {
        let may_be_in_use = self.in_use_until.is_some_and(|until| Instant::now() < until);
        self.leases == 0 && !may_be_in_use && self.used.elapsed() >= time
    }

    /// Its state now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// To wait for a change.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Moves on; an error if `next` may not follow, and then nothing changes.
    pub fn become_state(&self, next: State) -> Result<()> {
        let now = self.state();
        if !now.may_become(&next) {
            let message = format!("replica \"{}\" cannot become {} from {}", self.name, next.name(), now.name());
            return Err(Error::new(Kind::ContainerFailed, message));
        }
        self.state.send_replace(next);
        Ok(())
    }

    /// What an engine needs to call it.
    pub fn lease_info(&self) -> LeaseInfo {
        LeaseInfo {
            replica: self.name.clone(),
            image: self.image.clone(),
            flight: self.server.offers(TransportName::Flight).then(|| flight_endpoint(&self.socket_dir).to_string()),
            json: json_endpoint(&self.socket_dir).to_string(),
            columns: self.server.offers(TransportName::Socket),
            parquet: self.server.offers(TransportName::Parquet),
            pipelining: self.server.pipelining.unwrap_or(true),
            constants: self.server.constants,
            keep_alive: self.server.keep_alive,
            row_errors: self.server.row_errors,
            tables: self.server.tables.then(|| self.socket_dir.join("tables.sock")),
            user: self.user,
            prefix: String::new(),
            segments: self.segment_dir.clone().filter(|_| self.server.offers(TransportName::Shm)),
        }
    }

    /// What `transship ps` shows: of those who have leases, some.
    pub fn info(&self, is_shown: impl Fn(&Holder) -> bool) -> ReplicaInfo {
        let shown = self.holders.iter().filter(|holder| is_shown(holder));
        ReplicaInfo {
            name: self.name.clone(),
            image: self.image.clone(),
            digest: self.digest.clone(),
            state: self.state().name().to_string(),
            leases: self.leases,
            age_s: self.since.elapsed().as_secs(),
            holders: shown.take(MOST_SHOWN_HOLDERS).map(Holder::info).collect(),
        }
    }
}

/// Who has a lease.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Tells the connection from others.
    pub connection: u64,
    /// Its user.
    pub uid: u32,
    /// Its process, as the manager sees it; none if the kernel does not say.
    pub pid: Option<i32>,
    /// Since when.
    pub since: Instant,
}

impl Holder {
    fn info(&self) -> LeaseHolder {
        LeaseHolder { uid: self.uid, pid: self.pid, age_s: self.since.elapsed().as_secs() }
    }
}

/// Where a server with that socket folder answers Flight (`docs/protocol.md` §8).
pub fn flight_endpoint(socket_dir: &Path) -> Endpoint {
    Endpoint::FlightUnix(socket_dir.join("flight.sock"))
}

/// Where it answers JSON.
pub fn json_endpoint(socket_dir: &Path) -> Endpoint {
    Endpoint::JsonUnix(socket_dir.join("http.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_transitions_exist() {
        let states = [
            State::Starting,
            State::Ready,
            State::Draining,
            State::Gone(None),
            State::Pausing,
            State::Paused,
            State::Resuming,
            State::Silent,
        ];
        let drawn = [
            (0, 1),
            (0, 3),
            (1, 2),
            (1, 3),
            (2, 3),
            (1, 4),
            (4, 1),
            (4, 5),
            (4, 3),
            (5, 6),
            (5, 2),
            (5, 3),
            (6, 1),
            (6, 3),
            (1, 7),
            (7, 1),
            (7, 2),
            (7, 3),
        ];
        for (i, from) in states.iter().enumerate() {
            for (j, to) in states.iter().enumerate() {
                assert_eq!(from.may_become(to), drawn.contains(&(i, j)), "{} to {}", from.name(), to.name());
            }
        }
    }

    #[test]
    fn refused_transition_changes_nothing() {
        let replica = Replica::new("r".into(), "i:1".into(), "sha256:0".into(), "/s".into());
        assert!(replica.become_state(State::Draining).is_err());
        assert_eq!(replica.state(), State::Starting);
    }
}
