//! The right to call one replica, and the transports to its server.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use nix::unistd::Uid;
use udf_project::endpoint::Endpoint;
use udf_types::{Error, Kind, Result};

use crate::control::{Connection, LeaseInfo, Request, Response, unexpected};
use crate::folder::Folder;
use crate::route::{Protocol, Route};
use crate::tables::{Offer, SharedTable, Untaken, failed};
use crate::transport::credentials::Credentials;
use crate::transport::unix::UnixSocket;
use crate::transport::{Takes, Transport, connect};

/// Offers of shared tables that a lease keeps: for functions of one image with different tables.
const MOST_OFFERS: usize = 4;

/// A lease, held until dropped.
pub struct Lease {
    /// What was leased.
    pub info: LeaseInfo,
    /// The folder of the replica's sockets; none if they are reached by their names.
    sockets: Option<Folder>,
    /// The folder of its segments, if it takes those.
    segments: Option<Folder>,
    /// The transports to its server. Others may have a lease on the same replica, which ends when it likes.
    transports: Mutex<HashMap<Protocol, Arc<dyn Transport>>>,
    connection: tokio::sync::Mutex<Connection>,
    is_of_another_user: OnceLock<bool>,
    /// The shared tables that its server knows, those that were used last at the end.
    offers: Mutex<Vec<Arc<Offer>>>,
    /// Held while its server is given tables: one exchange after the other.
    offering: tokio::sync::Mutex<()>,
}

impl Lease {
    /// Leases a replica of the image with `digest`, which may have to be started first.
    pub async fn acquire(socket: &Path, digest: &str) -> Result<Lease> {
        Lease::acquire_on(Connection::open(socket).await?, digest).await
    }

    /// The same on a connection that is there.
    pub async fn acquire_on(mut connection: Connection, digest: &str) -> Result<Lease> {
        match connection.request(&Request::Acquire { digest: digest.to_string() }).await? {
            Response::Lease(info) => {
                let mut descriptors = connection.take_descriptors().into_iter();
                let json = Path::new(info.json.split_once(':').map_or(info.json.as_str(), |(_, path)| path));
                let folder = json.parent().unwrap_or(json);
                let sockets = descriptors.next().map(|it| Folder::leased(folder, Some(it), String::new()));
                let segments =
                    info.segments.as_ref().map(|path| Folder::leased(path, descriptors.next(), info.prefix.clone()));
                let connection = tokio::sync::Mutex::new(connection);
                let (transports, is_of_another_user, offers, offering) = Default::default();
                Ok(Lease { info, sockets, segments, transports, connection, is_of_another_user, offers, offering })
            }
            other => Err(unexpected(&format!("It answered {other:?} instead of a lease."))),
        }
    }

    /// The folder of the replica's segments, if it takes those.
    pub fn segments(&self) -> Option<&Folder> {
        self.segments.as_ref()
    }

    /// Whether its server is another user than this one, who can neither write nor shorten what belongs to this one
    /// (`docs/protocol.md` §7.6).
    pub(crate) fn is_of_another_user(&self) -> bool {
        self.owner_differs().unwrap_or(false)
    }

    /// The same; fails if its socket is gone, as when the replica has ended.
    pub(crate) fn owner_differs(&self) -> std::io::Result<bool> {
        if let Some(known) = self.is_of_another_user.get() {
            return Ok(*known);
        }
        let Ok(Endpoint::JsonUnix(path)) = Endpoint::parse(&self.info.json) else { return Ok(false) };
        let socket = UnixSocket::new(&path, &self.credentials());
        let me = Uid::effective().as_raw();
        // Not of what a link points to, which anybody may choose.
        let owner = std::fs::symlink_metadata(socket.path())?.uid();
        Ok(*self.is_of_another_user.get_or_init(|| self.info.user != Some(me) && owner != me))
    }

    /// How its sockets are reached, and who must listen there.
    pub fn credentials(&self) -> Credentials {
        Credentials { server_user: self.info.user, folder: self.sockets.clone(), ..Credentials::default() }
    }

    /// The transport along a route to its server.
    pub(crate) fn transport(&self, route: &Route) -> Arc<dyn Transport> {
        let mut transports = self.transports.lock().expect("no holder panics");
        let make = || {
            let takes = Takes { pipelining: self.info.pipelining, constants: self.info.constants };
            connect::along(route, self.segments.as_ref(), Some(takes), &self.credentials())
        };
        transports.entry(route.protocol).or_insert_with(make).clone()
    }

    /// Tables as its server knows them, if it does.
    pub(crate) fn known_offer(&self, tables: &[SharedTable]) -> Option<Arc<Offer>> {
        let mut offers = self.offers.lock().expect("no holder panics");
        let place = offers.iter().position(|offer| offer.has(tables))?;
        let offer = offers.remove(place);
        offers.push(offer.clone());
        Some(offer)
    }

    /// Takes tables back that no exchange is using, and of which `is_unwanted` says so.
    pub(crate) fn forget_offers(&self, is_unwanted: fn(&SharedTable) -> bool) {
        let mut offers = self.offers.lock().expect("no holder panics");
        offers.retain(|offer| Arc::strong_count(offer) > 1 || !offer.tables().iter().any(is_unwanted));
    }

    /// Tables as its server knows them, which gets them now if it does not, for calls of `function`.
    ///
    /// # Errors
    /// The server takes no tables, or must not be given any (of kind `NotAllowed`), or does not want these; or the replica is lost,
    /// which another try may mend.
    pub(crate) async fn offer(
        &self,
        function: &str,
        tables: &[SharedTable],
        untaken: &Arc<Untaken>,
    ) -> Result<Arc<Offer>> {
        // Who needs nothing waits for no other exchange, whose server may be slow.
        if let Some(offer) = self.known_offer(tables) {
            return Ok(offer);
        }
        let _turn = self.offering.lock().await;
        if let Some(offer) = self.known_offer(tables) {
            return Ok(offer);
        }
        let Some(path) = &self.info.tables else {
            let message = format!("the container of function \"{function}\" cannot read shared tables");
            return Err(Error::new(Kind::InvalidDefinition, message)
                .with_detail(format!("The server of image \"{}\" does not offer it.", self.info.image))
                .with_hint(
                    "Build the image again, from a template whose documentation says that it reads shared tables.",
                ));
        };
        if !self.owner_differs().map_err(|cause| failed(function, &self.info.image, &cause))? {
            let message = format!("the container of function \"{function}\" must not read shared tables");
            return Err(Error::new(Kind::NotAllowed, message)
                .with_detail("It runs as this process's own user, who could change them.")
                .with_hint("Run the container manager as root, so that replicas run as another user."));
        }
        let offer = Offer::make(path, &self.credentials(), function, tables, (&self.info, untaken)).await?;
        let offer = Arc::new(offer);
        let mut offers = self.offers.lock().expect("no holder panics");
        if offers.len() >= MOST_OFFERS {
            offers.remove(0);
        }
        offers.push(offer.clone());
        Ok(offer)
    }

    /// Closes the connections that no exchange is using, unless the server has said that they may be kept.
    pub(crate) fn close_idle(&self) {
        if !self.info.keep_alive {
            let transports = self.transports.lock().expect("no holder panics");
            transports.values().for_each(|transport| transport.close_idle());
        }
    }

    /// What became of the replica, as a phrase that follows "The container".
    pub async fn fate(&self) -> Result<String> {
        let request = Request::ReportFailure { replica: self.info.replica.clone() };
        match self.connection.lock().await.request(&request).await? {
            Response::Fate { fate } => Ok(fate),
            other => Err(unexpected(&format!("It answered {other:?} instead of the container's fate."))),
        }
    }

    /// Tells the manager that the replica did not answer in time.
    pub async fn report_timeout(&self) -> Result<()> {
        let request = Request::ReportTimeout { replica: self.info.replica.clone() };
        self.connection.lock().await.request(&request).await.map(drop)
    }

    /// Whether the manager is seen to have ended the connection, and the lease with it.
    pub fn is_lost(&self) -> bool {
        // Whoever holds the lock asks the manager, and finds out.
        self.connection.try_lock().is_ok_and(|connection| connection.is_ended())
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("info", &self.info).finish_non_exhaustive()
    }
}
