//! What a replica's server says of itself.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use udf_client::transport::connect;
use udf_client::transport::credentials::Credentials;
use udf_client::transport::unix;
use udf_codec::wire::ServerInfo;
use udf_project::endpoint::Endpoint;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::replica::{flight_endpoint, json_endpoint};
use crate::sandbox::ServerUsers;

/// Between two looks at whether a starting replica answers.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for a running replica to say that it is well.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// A replica's sockets, of which it has one at least.
const SOCKETS: [&str; 2] = ["http.sock", "flight.sock"];

/// Asks a server whether it is there, with all that it offers; and the user that it runs as, who must be one of `users`.
/// Only what a lease tells is kept: a greeting may have megabytes.
pub(super) async fn greet(socket_dir: &Path, users: &ServerUsers) -> Result<(ServerInfo, u32)> {
    let (info, user) = greet_in_full(socket_dir, users).await?;
    let offered = TransportName::ALL.into_iter().filter(|transport| info.offers(*transport));
    let transports = Some(offered.map(|transport| transport.name().to_string()).collect());
    // By name, so that what a greeting says anew is not lost here.
    let ServerInfo {
        protocol,
        pipelining,
        constants,
        keep_alive,
        row_errors,
        server: _,
        functions: _,
        transports: _,
        lines,
        tables,
    } = info;
    let (server, functions) = Default::default();
    let kept = ServerInfo {
        protocol,
        server,
        functions,
        transports,
        pipelining,
        constants,
        keep_alive,
        row_errors,
        lines,
        tables,
    };
    Ok((kept, user))
}

async fn greet_in_full(socket_dir: &Path, users: &ServerUsers) -> Result<(ServerInfo, u32)> {
    let user = find_user(socket_dir).await?;
    if !users.contains(user) {
        let fact = format!("user {user}, who is not a replica's, listens on its socket");
        return Err(Error::unreachable(&socket_dir.to_string_lossy(), fact));
    }
    let say_hello = async |endpoint: Endpoint| {
        let credentials = Credentials { server_user: Some(user), ..Credentials::default() };
        let hello = async { connect::to_endpoint(&endpoint, &credentials).hello().await };
        tokio::time::timeout(PROBE_TIMEOUT, hello).await.unwrap_or_else(|_| {
            Err(Error::unreachable(&endpoint.to_string(), format!("no answer within {PROBE_TIMEOUT:?}")))
        })
    };
    let no_flight = match say_hello(flight_endpoint(socket_dir)).await {
        // One socket may be there before the other.
        Ok(info) if info.offers(TransportName::Shm) || info.offers(TransportName::Socket) => {
            return Ok((say_hello(json_endpoint(socket_dir)).await?, user));
        }
        Ok(info) => return Ok((info, user)),
        Err(error) if error.kind() == Kind::ProtocolViolation => return Err(error),
        Err(error) => error,
    };
    // A server with both may have opened one socket only so far.
    let info = say_hello(json_endpoint(socket_dir)).await?;
    if info.offers(TransportName::Flight) { Err(no_flight) } else { Ok((info, user)) }
}

/// Whether nobody listens on any of a replica's sockets, as after its process has ended. One that hangs still listens.
pub(super) async fn is_deserted(socket_dir: &Path) -> bool {
    for name in SOCKETS {
        let path = socket_dir.join(name);
        match tokio::time::timeout(PROBE_TIMEOUT, unix::connect(&path, None)).await {
            Ok(Err(cause)) if matches!(cause.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
            _ => return false,
        }
    }
    true
}

/// The user who listens on a replica's sockets.
async fn find_user(socket_dir: &Path) -> Result<u32> {
    let mut refusal = None;
    for name in SOCKETS {
        let path = socket_dir.join(name);
        let connecting = tokio::time::timeout(PROBE_TIMEOUT, unix::connect(&path, None));
        let connected = connecting.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        match connected.and_then(|stream| unix::user_of_peer(&stream)) {
            Ok(user) => return Ok(user),
            Err(cause) => refusal = refusal.or(Some(Error::unreachable(&path.to_string_lossy(), cause))),
        }
    }
    Err(refusal.expect("a replica has names for its sockets"))
}
