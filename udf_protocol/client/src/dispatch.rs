//! Which batch goes where: runs one exchange to its end on whichever replica answers.
//!
//! In: the batches of an [`Outbox`]. Out: replies and at most one error in an [`Inbox`]. Invariant: a batch of a
//! VOLATILE function is run at most once; a batch of any other is sent again, to another replica, after a replica was
//! lost, at most [`MAX_ATTEMPTS`] times in all, after a pause. What a server had no room for is sent again likewise.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_project::remote::Remote;
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::balance::Balance;
use crate::control;
use crate::inbox::{Asides, Event, Inbox};
use crate::lease::Lease;
use crate::names::random_part;
use crate::outbox::Outbox;
use crate::planted::{Planted, is_planted};
use crate::route::{Encoding, Protocol, Route, Server};
use crate::row_errors;
use crate::tables::{Offer, SharedTable, Untaken};
use crate::transport::Transport;
use crate::transport::connect;
use crate::transport::credentials::Credentials;

/// Replicas tried for one exchange before the error is the caller's.
const MAX_ATTEMPTS: u32 = 3;

/// The pause before the second attempt, and how many times as long each further one is. A random part of up to a half is left
/// out, so that those who were lost together do not come back together.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_GROWTH: u32 = 8;

/// How long a lease may take before the session gives back what it does not use: the manager may be waiting for just that.
const LEASE_PATIENCE: Duration = Duration::from_millis(100);

/// Longest time that telling the manager of a timeout may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after an attempt that failed, given what its server asked for.
fn pause_before(attempt: u32, asked: Option<Duration>) -> Duration {
    let longest = FIRST_PAUSE * PAUSE_GROWTH.pow(attempt - 1);
    let pause = longest - longest.mul_f64(random_part() / 2.0);
    // Whatever it asks for, not all of its clients at once.
    asked.map_or(pause, |asked| asked.saturating_add(pause))
}

/// Who answers a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "there is one per function")]
pub enum Target {
    /// A replica that the manager leases.
    Image {
        /// Socket of the manager.
        manager: PathBuf,
        /// Digest of the image.
        digest: String,
    },
    /// A server that runs already, or several that are equal.
    Remote {
        /// Where they listen.
        remote: Remote,
        /// What it asks for, and what it must show.
        credentials: Credentials,
    },
}

/// All that an exchange needs to know.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who answers.
    pub target: Target,
    /// How batches are to travel; for a [`Target::Remote`] its addresses say whether over Flight or HTTP.
    pub transport: TransportName,
    /// What is called.
    pub signature: Signature,
    /// Whether a batch may be sent twice.
    pub volatility: Volatility,
    /// Longest wait for the answer to one batch.
    pub batch_timeout: Duration,
    /// Longest wait for a replica to start.
    pub start_timeout: Duration,
    /// Tables that the handler reads.
    pub tables: Vec<SharedTable>,
}

/// The way to a server elsewhere, and the credentials that are shown there.
type Way = (Route, Credentials);

/// Who answers a call, and the way there.
struct Reached {
    route: Route,
    transport: Arc<dyn Transport>,
    lease: Option<Arc<Lease>>,
}

/// A lease, and when it was last asked for.
struct Held {
    lease: Arc<Lease>,
    used: Instant,
}

impl Held {
    /// Whether no exchange is using it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.lease) == 1
    }
}

/// Leases, and connections to other servers, that the exchanges of one session share. Leases last until [`Connections::release`].
#[derive(Default)]
pub struct Connections {
    transports: Mutex<HashMap<Way, Arc<dyn Transport>>>,
    leases: Mutex<HashMap<Target, Held>>,
    /// One at a time leases a replica of an image, and the others share what it got.
    leasing: Mutex<HashMap<Target, Arc<tokio::sync::Mutex<()>>>>,
    /// A connection to the manager for the next lease.
    spare: tokio::sync::Mutex<Option<control::Connection>>,
    balance: Balance,
    /// Which servers elsewhere say that they go on after a row on which the handler raises an error.
    row_errors: Mutex<HashMap<Endpoint, bool>>,
    untaken: Arc<Untaken>,
}

impl Connections {
    /// Connects to the manager ahead of the first lease, which says it if that fails.
    pub async fn prepare(&self, manager: &Path) {
        let mut spare = self.spare.lock().await;
        if spare.is_none() {
            *spare = control::Connection::open(manager).await.ok();
        }
    }

    /// Ends all leases that no exchange is using, and forgets their connections.
    pub fn release(&self) {
        // Whoever holds the lock is about to lease.
        if let Ok(mut spare) = self.spare.try_lock() {
            *spare = None;
        }
        self.leases.lock().expect("no holder panics").clear();
        self.leasing.lock().expect("no holder panics").clear();
        self.transports.lock().expect("no holder panics").clear();
        self.row_errors.lock().expect("no holder panics").clear();
    }

    /// Closes the connections that no exchange is using, of the servers that would rather not keep them.
    pub fn close_idle(&self) {
        self.forget_offers(SharedTable::is_removed);
        self.leases.lock().expect("no holder panics").values().for_each(|held| held.lease.close_idle());
    }

    /// Takes tables back that no exchange is using, and of which `is_unwanted` says so.
    pub fn forget_offers(&self, is_unwanted: fn(&SharedTable) -> bool) {
        self.leases.lock().expect("no holder panics").values().for_each(|held| held.lease.forget_offers(is_unwanted));
        self.untaken.forget_taken();
    }

    /// Ends the leases that no exchange is using and that nobody has asked for within `linger`. They are ended when what is returned
    /// is dropped, on the runtime's thread; none if there are none.
    pub fn take_unused(&self, linger: Duration) -> Option<impl Send + 'static> {
        let mut leases = self.leases.lock().expect("no holder panics");
        let is_unused = |held: &Held| held.is_idle() && held.used.elapsed() >= linger;
        let unused: Vec<_> = leases.extract_if(|_, held| is_unused(held)).map(|(_, held)| held.lease).collect();
        (!unused.is_empty()).then_some(unused)
    }

    /// Whether a call needs no more to be sent than a connection to a server that is known, which is made at once.
    pub fn is_near(&self, call: &Call) -> bool {
        let leases = self.leases.lock().expect("no holder panics");
        call.signature.kind == FunctionKind::Scalar
            && leases.get(&call.target).is_some_and(|Held { lease, .. }| {
                let protocol = Protocol::choose(Server::Replica(&lease.info), call.transport, FunctionKind::Scalar);
                matches!(protocol, Protocol::Columns { encoding: Encoding::Buffers, .. })
                    && !lease.is_lost()
                    && (call.tables.is_empty() || lease.known_offer(&call.tables).is_some())
            })
    }

    /// Whether no lease is held.
    pub fn is_empty(&self) -> bool {
        self.leases.lock().expect("no holder panics").is_empty()
    }

    fn transport(&self, way: Way, make: impl FnOnce() -> Arc<dyn Transport>) -> Arc<dyn Transport> {
        self.transports.lock().expect("no holder panics").entry(way).or_insert_with(make).clone()
    }

    async fn lease(&self, manager: &Path, digest: &str, target: &Target) -> Result<Arc<Lease>> {
        let turn = self.leasing.lock().expect("no holder panics").entry(target.clone()).or_default().clone();
        let _turn = turn.lock().await;
        {
            let mut leases = self.leases.lock().expect("no holder panics");
            match leases.get_mut(target) {
                // A manager that was started anew would take the replica for idle.
                Some(held) if held.lease.is_lost() => drop(leases.remove(target)),
                Some(held) => {
                    held.used = Instant::now();
                    return Ok(held.lease.clone());
                }
                None => {}
            }
        }
        let acquiring = self.acquire(manager, digest);
        tokio::pin!(acquiring);
        let lease = match tokio::time::timeout(LEASE_PATIENCE, &mut acquiring).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                drop(self.take_unused(Duration::ZERO));
                acquiring.await?
            }
        };
        let lease = Arc::new(lease);
        let held = Held { lease: lease.clone(), used: Instant::now() };
        self.leases.lock().expect("no holder panics").insert(target.clone(), held);
        Ok(lease)
    }

    async fn acquire(&self, manager: &Path, digest: &str) -> Result<Lease> {
        let spare = self.spare.lock().await.take().filter(|connection| connection.socket() == manager);
        match spare {
            Some(connection) => match Lease::acquire_on(connection, digest).await {
                // The manager was started anew since.
                Err(error) if error.kind() == Kind::Unreachable => Lease::acquire(manager, digest).await,
                outcome => outcome,
            },
            None => Lease::acquire(manager, digest).await,
        }
    }

    /// To tell the manager that who answers `target` did not do so in time. The next exchange gets a lease of its own, and
    /// connections of its own to a server elsewhere: the way there may be cut without anybody having been told.
    pub fn report_timeout(&self, target: &Target) -> Option<impl Future<Output = ()> + Send + 'static> {
        let lease = self.leases.lock().expect("no holder panics").remove(target);
        let left: Vec<_> = match target {
            Target::Image { .. } => Vec::new(),
            Target::Remote { remote, .. } => {
                let endpoints = self.balance.known(&remote.endpoints);
                let is_there = |way: &Way| endpoints.contains(&way.0.endpoint);
                self.transports.lock().expect("no holder panics").extract_if(|way, _| is_there(way)).collect()
            }
        };
        (lease.is_some() || !left.is_empty()).then_some(async move {
            // Connections belong to the runtime's thread.
            drop(left);
            if let Some(Held { lease, .. }) = lease {
                // A manager that does not hear of it finds out when it asks the replica itself.
                let _ = tokio::time::timeout(REPORT_TIMEOUT, lease.report_timeout()).await;
            }
        })
    }

    fn forget(&self, target: &Target, endpoint: &Endpoint) {
        self.leases.lock().expect("no holder panics").remove(target);
        self.transports.lock().expect("no holder panics").retain(|(known, _), _| known.endpoint != *endpoint);
        self.row_errors.lock().expect("no holder panics").remove(endpoint);
    }

    /// A transport to whoever answers `target`, the one that is wanted if it is offered for the kind of function.
    async fn reach(&self, target: &Target, wanted: TransportName, kind: FunctionKind) -> Result<Reached> {
        match target {
            Target::Remote { remote, credentials } => {
                let endpoint = self.balance.choose(&remote.endpoints).await;
                let route = Route::to_remote(remote, endpoint, wanted, kind);
                let way = (route.clone(), credentials.clone());
                let transport = self.transport(way, || connect::along(&route, None, None, credentials));
                Ok(Reached { route, transport, lease: None })
            }
            Target::Image { manager, digest } => {
                let lease = self.lease(manager, digest, target).await?;
                let route = Route::to_replica(&lease.info, wanted, kind)?;
                let transport = lease.transport(&route);
                Ok(Reached { route, transport, lease: Some(lease) })
            }
        }
    }

    /// The signature that `target` offers for `function`.
    pub async fn signature(&self, target: &Target, name: TransportName, function: &str) -> Result<Signature> {
        let mut attempt = 1;
        loop {
            let reached = self.reach(target, name, FunctionKind::Scalar).await?;
            // docs/protocol.md §2: "a client refuses a version that it does not know".
            let error = match reached.transport.hello().await {
                Ok(_) => return reached.transport.signature(function).await,
                Err(error) => error,
            };
            let is_lost = error.is_retryable() || error.kind() == Kind::Unreachable;
            if !is_lost || !matches!(target, Target::Remote { .. }) || attempt == MAX_ATTEMPTS {
                return Err(error);
            }
            // Another of the servers may be there.
            self.balance.note_loss(&reached.route.endpoint);
            attempt += 1;
        }
    }

    /// Runs one exchange; an error is delivered as the last thing in the inbox.
    pub async fn run(&self, call: &Call, mut outbox: Outbox, inbox: &Inbox) {
        outbox.set_patience(call.batch_timeout);
        let mut attempt = 1;
        while let Err(error) = self.attempt(call, &mut outbox, inbox).await {
            // A map or aggregate function's results so far went with the replica.
            let is_stateless = matches!(call.signature.kind, FunctionKind::Scalar | FunctionKind::Table)
                || (error.is_busy() && !outbox.has_answers());
            let may_repeat = call.volatility != Volatility::Volatile
                || outbox.awaited() == 0
                || is_planted(Planted::RepeatedVolatile);
            let is_passing = error.is_retryable() || error.is_busy();
            if is_passing && may_repeat && is_stateless && outbox.can_rewind() && attempt < MAX_ATTEMPTS {
                let pause = pause_before(attempt, error.retry_after());
                // The engine gives up then: better now, with the reason.
                if pause < call.batch_timeout {
                    tokio::time::sleep(pause).await;
                    attempt += 1;
                    outbox.rewind();
                    continue;
                }
            }
            inbox.deliver(Err(error));
            return;
        }
    }

    /// Whether errors of rows are wanted of a server that does not know of them.
    async fn must_split(
        &self,
        call: &Call,
        endpoint: &Endpoint,
        transport: &dyn Transport,
        lease: Option<&Lease>,
    ) -> Result<bool> {
        if call.signature.row_errors.is_none() {
            return Ok(false);
        }
        if let Some(lease) = lease {
            return Ok(!lease.info.row_errors);
        }
        if matches!(&call.target, Target::Remote { remote, .. } if remote.dialect() != Dialect::Transship) {
            return Ok(true);
        }
        let known = self.row_errors.lock().expect("no holder panics").get(endpoint).copied();
        if let Some(offers) = known {
            return Ok(!offers);
        }
        let offers = transport.hello().await?.row_errors;
        self.row_errors.lock().expect("no holder panics").insert(endpoint.clone(), offers);
        Ok(!offers)
    }

    /// The tables of a call as its server knows them; none if it has none.
    async fn offer_of(&self, call: &Call, lease: Option<&Lease>) -> Result<Option<Arc<Offer>>> {
        if call.tables.is_empty() {
            return Ok(None);
        }
        let function = &call.signature.function;
        let Some(lease) = lease else {
            let message = format!("function \"{function}\" cannot read shared tables");
            return Err(Error::new(Kind::InvalidDefinition, message).with_detail(
                "Only containers that the container manager starts are given tables, and its server runs elsewhere.",
            ));
        };
        let offering = tokio::time::timeout(call.batch_timeout, lease.offer(function, &call.tables, &self.untaken));
        if let Ok(offered) = offering.await {
            return offered.map(Some);
        }
        if let Some(report) = self.report_timeout(&call.target) {
            report.await;
        }
        let what = format!("the container of function \"{function}\"");
        Err(Error::timeout(&what, call.batch_timeout.as_millis()))
    }

    async fn attempt(&self, call: &Call, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        let reaching = self.reach(&call.target, call.transport, call.signature.kind);
        let reached = tokio::time::timeout(call.start_timeout, reaching).await.map_err(|_| {
            Error::timeout(
                &format!("the container of function \"{}\"", call.signature.function),
                call.start_timeout.as_millis(),
            )
        })??;
        let Reached { route: Route { endpoint, protocol, .. }, transport, lease } = reached;
        let name = protocol.name();
        // What must not be sent twice is sent to a server that is there.
        if let Target::Remote { remote, .. } = &call.target
            && call.volatility == Volatility::Volatile
            && remote.endpoints.len() > 1
            && remote.dialect() == Dialect::Transship
            && let Err(error) = transport.hello().await
            && error.is_retryable()
        {
            self.balance.note_loss(&endpoint);
            self.forget(&call.target, &endpoint);
            return Err(error);
        }
        let may_map = |lease: &&Arc<Lease>| name == TransportName::Shm && lease.is_of_another_user();
        let directory = lease.as_ref().filter(may_map).and_then(|lease| lease.segments().cloned());
        // In a file, a column has a value for each row.
        let takes_constants =
            name != TransportName::Parquet && lease.as_ref().is_some_and(|lease| lease.info.constants);
        inbox.deliver(Ok(Event::Reached { transport: name, directory, takes_constants }));
        let exchanging = async {
            // The server knows the tables as long as this lives.
            let offer = self.offer_of(call, lease.as_deref()).await?;
            let asides = Asides { offer: offer.as_ref().map(|offer| offer.name.clone()), ..inbox.asides().clone() };
            let inbox = &inbox.clone().asking(asides);
            match self.must_split(call, &endpoint, transport.as_ref(), lease.as_deref()).await? {
                false => transport.exchange(&call.signature, outbox, inbox).await,
                true => row_errors::exchange(transport.as_ref(), &call.signature, outbox, inbox).await,
            }
        };
        let result = exchanging.await;
        let Err(error) = result else {
            self.balance.note_answer(&endpoint);
            return Ok(());
        };
        if !error.is_retryable() {
            return Err(error);
        }
        self.balance.note_loss(&endpoint);
        self.forget(&call.target, &endpoint);
        match lease {
            Some(lease) => match lease.fate().await {
                Ok(fate) => Err(error.with_container_fate(&lease.info.image, &fate)),
                Err(_) => Err(error),
            },
            None => Err(error),
        }
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}
