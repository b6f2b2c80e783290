//! How batches travel to a server: one choice, from what the user wants, what the server offers and what the function is.
//!
//! In: a lease's [`LeaseInfo`] or the addresses of a [`Remote`], and the wanted [`TransportName`]. Out: a [`Route`], from which
//! [`crate::transport::connect`] makes the transport.

use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_project::remote::Remote;
use udf_types::Result;
use udf_types::signature::FunctionKind;
use udf_types::transport_name::TransportName;

use crate::control::LeaseInfo;

/// Columns of at most this many bytes travel in the request where the user leaves the choice to the client: copying them costs
/// less than making and opening two files.
const MOST_INLINE_BYTES: usize = 32 << 10;

/// The way to one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    /// How the server is reached.
    pub endpoint: Endpoint,
    /// The path of an HTTP server; empty if the protocol's own is meant.
    pub path: String,
    /// What client and server speak.
    pub protocol: Protocol,
}

/// What client and server speak, and with it where the columns of a batch lie and how they are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// This protocol over Flight: Arrow IPC in one `DoExchange` stream.
    Flight,
    /// Flight, in this protocol, arrow-udf's or Databend's, which the server's answers tell.
    AnyFlight,
    /// Flight with put, act and get.
    PutGet,
    /// This protocol over HTTP, with columns in JSON in the request.
    Json,
    /// This protocol over HTTP, with columns in bytes.
    Columns {
        /// How the columns are encoded.
        encoding: Encoding,
        /// Where the columns lie.
        location: Location,
    },
    /// Another system's JSON over HTTP.
    Envelope(Dialect),
}

/// How the columns of a batch are encoded in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As their buffers, as they lie in memory.
    Buffers,
    /// As a Parquet file.
    Parquet,
}

/// Where the columns of a batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the body of the request.
    Request,
    /// In segments of memory that client and server share.
    Segments {
        /// Columns of at most this many bytes lie in the body of the request nevertheless.
        most_inline: usize,
    },
}

/// A server as it is known before a route to it is chosen.
#[derive(Debug, Clone, Copy)]
pub enum Server<'a> {
    /// A replica, by what its lease says.
    Replica(&'a LeaseInfo),
    /// A server elsewhere, by its addresses.
    Remote(&'a Remote),
}

impl Protocol {
    /// Chooses what is spoken to a server for a kind of function: what is `wanted`, where the server offers it for the kind,
    /// otherwise the fastest that it offers. The addresses of a server elsewhere decide, but for the form of columns over HTTP.
    pub fn choose(server: Server<'_>, wanted: TransportName, kind: FunctionKind) -> Protocol {
        match server {
            Server::Replica(info) => choose_for_replica(info, wanted, kind),
            Server::Remote(remote) => match (remote.dialect(), remote.transport_name()) {
                (Dialect::Transship, TransportName::Flight) => Protocol::AnyFlight,
                (Dialect::Transship, _) if wanted == TransportName::Socket => {
                    Protocol::Columns { encoding: Encoding::Buffers, location: Location::Request }
                }
                (Dialect::Transship, _) => Protocol::Json,
                (Dialect::PutGet, _) => Protocol::PutGet,
                (dialect, _) => Protocol::Envelope(dialect),
            },
        }
    }

    /// The name under which users know it.
    pub fn name(self) -> TransportName {
        match self {
            Protocol::Flight | Protocol::AnyFlight | Protocol::PutGet => TransportName::Flight,
            Protocol::Json | Protocol::Envelope(_) => TransportName::Json,
            Protocol::Columns { encoding: Encoding::Parquet, .. } => TransportName::Parquet,
            Protocol::Columns { encoding: Encoding::Buffers, location: Location::Request } => TransportName::Socket,
            Protocol::Columns { encoding: Encoding::Buffers, location: Location::Segments { .. } } => {
                TransportName::Shm
            }
        }
    }
}

fn choose_for_replica(info: &LeaseInfo, wanted: TransportName, kind: FunctionKind) -> Protocol {
    let segments = || {
        let most_inline = if wanted == TransportName::Auto { MOST_INLINE_BYTES } else { 0 };
        info.segments.is_some().then_some(Location::Segments { most_inline })
    };
    let offered = |transport| match transport {
        TransportName::Auto => None,
        TransportName::Shm => segments().map(|location| Protocol::Columns { encoding: Encoding::Buffers, location }),
        TransportName::Parquet => segments()
            .filter(|_| info.parquet)
            .map(|location| Protocol::Columns { encoding: Encoding::Parquet, location }),
        TransportName::Flight => info.flight.is_some().then_some(Protocol::Flight),
        TransportName::Socket => {
            let location = Location::Request;
            info.columns.then_some(Protocol::Columns { encoding: Encoding::Buffers, location })
        }
        TransportName::Json => Some(Protocol::Json),
    };
    use TransportName::{Flight, Shm, Socket};
    // Only Flight gives a table function's results in parts, takes an aggregate function's batches before the ones
    // before are answered, and has map functions.
    let order = if kind == FunctionKind::Scalar { [Shm, Flight, Socket] } else { [Flight, Shm, Socket] };
    offered(wanted).or_else(|| order.into_iter().find_map(offered)).unwrap_or(Protocol::Json)
}

impl Route {
    /// The route to a leased replica.
    pub fn to_replica(info: &LeaseInfo, wanted: TransportName, kind: FunctionKind) -> Result<Route> {
        let protocol = Protocol::choose(Server::Replica(info), wanted, kind);
        let address = match (protocol, &info.flight) {
            (Protocol::Flight, Some(flight)) => flight,
            _ => &info.json,
        };
        Ok(Route { endpoint: Endpoint::parse(address)?, path: String::new(), protocol })
    }

    /// The route to the one of several equal servers that listens at `endpoint`.
    pub fn to_remote(remote: &Remote, endpoint: Endpoint, wanted: TransportName, kind: FunctionKind) -> Route {
        let protocol = Protocol::choose(Server::Remote(remote), wanted, kind);
        Route { endpoint, path: remote.path().to_string(), protocol }
    }

    /// The route to a server of this protocol of which only the address is known, to ask what it offers.
    pub fn to_address(endpoint: Endpoint) -> Route {
        let protocol = match endpoint.transport_name() {
            TransportName::Flight => Protocol::Flight,
            _ => Protocol::Json,
        };
        Route { endpoint, path: String::new(), protocol }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseInfo {
        serde_json::from_str(r#"{"replica": "r", "image": "i", "json": "http+unix:/r/json.sock"}"#).unwrap()
    }

    fn name_for(info: &LeaseInfo, wanted: TransportName, kind: FunctionKind) -> TransportName {
        Protocol::choose(Server::Replica(info), wanted, kind).name()
    }

    #[test]
    fn a_replica_that_offers_all_is_asked_in_the_wanted_way() {
        let info = LeaseInfo {
            flight: Some("unix:/r/flight.sock".into()),
            columns: true,
            parquet: true,
            segments: Some("/s".into()),
            ..lease()
        };
        for wanted in TransportName::ALL.into_iter().filter(|wanted| *wanted != TransportName::Auto) {
            for kind in [FunctionKind::Scalar, FunctionKind::Table, FunctionKind::Aggregate, FunctionKind::Map] {
                assert_eq!(name_for(&info, wanted, kind), wanted);
            }
            let route = Route::to_replica(&info, wanted, FunctionKind::Scalar).unwrap();
            let address =
                if wanted == TransportName::Flight { "unix:/r/flight.sock" } else { "http+unix:/r/json.sock" };
            assert_eq!(route.endpoint.to_string(), address, "{wanted:?}");
        }
        assert_eq!(name_for(&info, TransportName::Auto, FunctionKind::Scalar), TransportName::Shm);
        assert_eq!(name_for(&info, TransportName::Auto, FunctionKind::Map), TransportName::Flight);
    }

    #[test]
    fn a_replica_is_asked_in_the_fastest_way_that_it_offers() {
        use TransportName::{Auto, Flight, Json, Parquet, Shm, Socket};
        let of_kind = |info: &LeaseInfo, wanted| {
            [FunctionKind::Scalar, FunctionKind::Table].map(|kind| name_for(info, wanted, kind))
        };
        for wanted in [Auto, Shm, Parquet, Flight, Socket] {
            assert_eq!(of_kind(&lease(), wanted), [Json, Json]);
        }
        let columns = LeaseInfo { columns: true, parquet: true, ..lease() };
        assert_eq!(of_kind(&columns, Shm), [Socket, Socket]);
        // Parquet files lie in segments alone.
        assert_eq!(of_kind(&columns, Parquet), [Socket, Socket]);
        let flight = LeaseInfo { flight: Some("unix:/f".into()), ..columns.clone() };
        assert_eq!(of_kind(&flight, Auto), [Flight, Flight]);
        let segments = LeaseInfo { segments: Some("/s".into()), parquet: false, ..flight };
        assert_eq!(of_kind(&segments, Parquet), [Shm, Flight]);
    }

    #[test]
    fn short_columns_go_with_the_request_only_where_nothing_is_asked_for() {
        let info = LeaseInfo { segments: Some("/s".into()), ..lease() };
        for (wanted, most) in
            [(TransportName::Auto, MOST_INLINE_BYTES), (TransportName::Shm, 0), (TransportName::Socket, 0)]
        {
            let found = Protocol::choose(Server::Replica(&info), wanted, FunctionKind::Scalar);
            let location = Location::Segments { most_inline: most };
            assert_eq!(found, Protocol::Columns { encoding: Encoding::Buffers, location });
        }
    }

    #[test]
    fn addresses_and_dialect_decide_for_servers_elsewhere() {
        let columns = Protocol::Columns { encoding: Encoding::Buffers, location: Location::Request };
        for (text, dialect, wanted, expected) in [
            ("grpc://a:1", Dialect::Transship, TransportName::Json, Protocol::AnyFlight),
            ("http://a:1", Dialect::Transship, TransportName::Flight, Protocol::Json),
            ("http://a:1", Dialect::Transship, TransportName::Shm, Protocol::Json),
            ("http://a:1", Dialect::Transship, TransportName::Socket, columns),
            ("http://a:1/f", Dialect::Array, TransportName::Socket, Protocol::Envelope(Dialect::Array)),
            ("grpc://a:1", Dialect::PutGet, TransportName::Socket, Protocol::PutGet),
        ] {
            let remote = Remote::parse(text, dialect).unwrap();
            let endpoint = remote.endpoints[0].clone();
            let route = Route::to_remote(&remote, endpoint.clone(), wanted, FunctionKind::Scalar);
            assert_eq!((route.protocol, &route.endpoint), (expected, &endpoint), "{text}");
            assert_eq!(route.path, remote.path());
        }
    }
}
