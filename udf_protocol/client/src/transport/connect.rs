//! The transport along a route.

use std::sync::Arc;

use udf_project::endpoint::Endpoint;

use crate::folder::Folder;
use crate::route::{Location, Protocol, Route};
use crate::transport::columns::Columns;
use crate::transport::credentials::Credentials;
use crate::transport::envelope::Envelope;
use crate::transport::flight::Flight;
use crate::transport::json::Json;
use crate::transport::put_get::PutGet;
use crate::transport::{Takes, Transport};

/// The transport to a server of this protocol, to ask what it offers. Nothing is connected before the first request.
pub fn to_endpoint(endpoint: &Endpoint, credentials: &Credentials) -> Arc<dyn Transport> {
    along(&Route::to_address(endpoint.clone()), None, None, credentials)
}

/// The transport along a route, with the folder of its segments, if it has some, to a server that takes so much, if that is
/// known.
pub(crate) fn along(
    route: &Route,
    segments: Option<&Folder>,
    takes: Option<Takes>,
    credentials: &Credentials,
) -> Arc<dyn Transport> {
    let endpoint = route.endpoint.clone();
    match route.protocol {
        Protocol::Flight => Arc::new(Flight::new(endpoint, credentials, takes)),
        Protocol::AnyFlight => Arc::new(Flight::of_any(endpoint, credentials)),
        Protocol::PutGet => Arc::new(PutGet::new(endpoint, credentials)),
        Protocol::Json => Arc::new(Json::new(endpoint, credentials, takes)),
        Protocol::Columns { encoding, location } => {
            let segments = match (location, segments) {
                (Location::Segments { most_inline }, Some(folder)) => Some((folder.clone(), most_inline)),
                _ => None,
            };
            Arc::new(Columns::new(endpoint, credentials, encoding, segments, takes))
        }
        Protocol::Envelope(dialect) => Arc::new(Envelope::new(endpoint, &route.path, dialect, credentials)),
    }
}
