//! The store's socket: a thread per connection, requests in turn, only for the users that the manager lets in.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{SocketFlags, accept_with};
use udf_client::cache::message::Request;
use udf_client::channel::Channel;

use super::Store;
use crate::places::Places;

/// Connections at a time: a session has two.
pub(super) const MOST_CONNECTIONS: usize = 1024;
/// Where there are several users, one may have so many times the connections that are free. One that comes alone thus gets 8 of 9.
const MOST_OF_FREE: usize = 8;
/// A connection over which nothing has come for so long is ended. Its session makes another one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A client that does not read its answer for so long is gone, or as good as.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The stack of a connection's thread, which needs little.
const STACK_BYTES: usize = 256 << 10;

/// Answers connections to a listening socket until that fails.
pub fn serve(listener: &OwnedFd, users: &HashSet<u32>, store: &Arc<Store>) -> io::Result<()> {
    // Beside each, a message may be on its way in either direction.
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = usize::try_from(soft / 3).unwrap_or(MOST_CONNECTIONS).min(MOST_CONNECTIONS);
    let places = Places::new(most, MOST_OF_FREE, users.len());
    loop {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(cause)
                if matches!(io::Error::from(cause).kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
            {
                continue;
            }
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(cause) => return Err(cause.into()),
        };
        let Ok(peer) = socket_peercred(&socket) else { continue };
        let user = peer.uid.as_raw();
        if !users.contains(&user) {
            continue;
        }
        let Ok(place) = places.take_free(user) else { continue };
        let store = store.clone();
        let work = move || {
            let _place = place;
            answer_connection(socket, user, &store);
        };
        // Without a thread the connection is closed, and its session goes without the store.
        let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    }
}

/// Answers until the other side ends the connection, says nothing for long, or something that is no request.
fn answer_connection(socket: OwnedFd, user: u32, store: &Store) {
    for (which, timeout) in [(Timeout::Recv, IDLE_TIMEOUT), (Timeout::Send, SEND_TIMEOUT)] {
        if set_socket_timeout(socket.as_fd(), which, Some(timeout)).is_err() {
            return;
        }
    }
    let channel = Channel::from(socket);
    if channel.bound_unread().is_err() {
        return;
    }
    while let Ok(Some(bytes)) = channel.receive() {
        let Some(request) = Request::from_bytes(&bytes) else { return };
        drop(bytes);
        if channel.send(&store.answer(user, request).to_bytes()).is_err() {
            return;
        }
    }
}
