//! Takes offers of tables on a Unix socket (`docs/protocol.md` §10.1), all connections on one thread, which never waits for one of
//! them.
//!
//! A line is read as it comes, up to its bounds. Whoever breaks a rule gets an error and is disconnected, and so is whoever does not
//! read answers. The end of a connection is the end of its offers.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketFlags,
};
use serde_json::json;

use super::offers::{MOST_DESCRIPTORS, Offers, SWEEP, offers};
use crate::error::CallError;

/// Most bytes of a line, with its end.
const MOST_LINE_BYTES: usize = 64 << 10;
/// The share of the descriptors that this process may have that connections get.
const CONNECTIONS_SHARE: u64 = 2;
const MOST_CONNECTIONS: u64 = 4096;
/// Connections beyond those that stay until their first line has come: a client could not send it, and not read why.
pub(super) const MOST_REFUSED: usize = 64;
/// Most descriptors that lines have which are not whole yet. The connection that has waited longest gives way.
const MOST_WAITING_DESCRIPTORS: usize = 4 * MOST_DESCRIPTORS;
/// Patience with a line that has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to accept a connection that failed, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A thread that takes offers, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    _stop: io::PipeWriter,
}

impl Listening {
    /// Begins to take offers for this process.
    pub(crate) fn start(listener: UnixListener) -> io::Result<Listening> {
        let (stopped, stop) = io::pipe()?;
        let run = move || {
            if let Err(cause) = serve(offers(), listener.as_fd(), Some(stopped.as_fd())) {
                eprintln!("transship: offers of shared tables are not taken any more: {cause}");
            }
        };
        std::thread::Builder::new().name("tables".to_string()).spawn(run)?;
        Ok(Listening { _stop: stop })
    }
}

/// Takes offers for this process on a listener, for ever.
pub(crate) fn serve_on(listener: BorrowedFd<'_>) -> io::Result<()> {
    serve(offers(), listener, None)
}

/// Takes offers until the other end of `stop` is closed.
pub(super) fn serve(offers: &Offers, listener: BorrowedFd<'_>, stop: Option<BorrowedFd<'_>>) -> io::Result<()> {
    serve_within(offers, listener, stop, most_connections(getrlimit(Resource::RLIMIT_NOFILE)?.0))
}

/// The same, of at most so many connections.
pub(super) fn serve_within(
    offers: &Offers,
    listener: BorrowedFd<'_>,
    stop: Option<BorrowedFd<'_>>,
    most: usize,
) -> io::Result<()> {
    let is_unix = rustix::net::sockopt::socket_domain(listener)? == AddressFamily::UNIX;
    if !is_unix || !rustix::net::sockopt::socket_acceptconn(listener)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a Unix socket that listens"));
    }
    rustix::io::ioctl_fionbio(listener, true)?;
    let mut connections: Vec<Connection<'_>> = Vec::new();
    let mut buffer = vec![0; MOST_LINE_BYTES];
    let (mut accept_from, mut sweep_at) = (Instant::now(), None);
    loop {
        let now = Instant::now();
        if sweep_at.is_some_and(|at| now >= at) {
            sweep_at = offers.sweep().then_some(now + SWEEP);
        }
        connections.retain(|connection| connection.deadline().is_none_or(|deadline| now < deadline));
        let is_paused = now < accept_from;
        let deadlines = connections.iter().filter_map(Connection::deadline);
        let next = deadlines.chain(sweep_at).chain(is_paused.then_some(accept_from)).min();
        let ready = wait(listener, stop, is_paused, &connections, next)?;
        if ready.is_stopped {
            return Ok(());
        }
        // From the end, so that those that go do not change the numbers of others.
        for number in ready.connections.into_iter().rev() {
            if !connections[number].advance(&mut buffer) {
                connections.swap_remove(number);
            }
            sweep_at = sweep_at.or(Some(now + SWEEP));
        }
        give_way(&mut connections);
        if ready.has_client {
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let mut connection = Connection::new(offers, socket);
                    let refused = connections.iter().filter(|connection| connection.is_refused).count();
                    if connections.len() - refused >= most {
                        connection.refuse();
                    }
                    if !connection.is_refused || refused < MOST_REFUSED {
                        connections.push(connection);
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(cause @ (rustix::io::Errno::BADF | rustix::io::Errno::INVAL | rustix::io::Errno::NOTSOCK)) => {
                    return Err(cause.into());
                }
                Err(_) => accept_from = Instant::now() + ACCEPT_PAUSE,
            }
        }
    }
}

/// How many connections are taken where a process may have so many descriptors.
pub(super) fn most_connections(descriptors: u64) -> usize {
    (descriptors / CONNECTIONS_SHARE).clamp(1, MOST_CONNECTIONS) as usize
}

/// What can go on.
struct Ready {
    is_stopped: bool,
    has_client: bool,
    /// The numbers of connections, ascending.
    connections: Vec<usize>,
}

/// Waits until something can go on, or for the next moment at which something is to be done.
fn wait(
    listener: BorrowedFd<'_>,
    stop: Option<BorrowedFd<'_>>,
    is_paused: bool,
    connections: &[Connection<'_>],
    next: Option<Instant>,
) -> io::Result<Ready> {
    let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(connections.len() + 2);
    let of_listener = if is_paused { PollFlags::empty() } else { PollFlags::POLLIN };
    watched.push(PollFd::new(listener, of_listener));
    watched.extend(connections.iter().map(|connection| PollFd::new(connection.socket.as_fd(), PollFlags::POLLIN)));
    watched.extend(stop.map(|stop| PollFd::new(stop, PollFlags::POLLIN)));
    let timeout = next.map_or(PollTimeout::NONE, |next| {
        // Rounded up, so as not to come too early.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut watched, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(cause) => return Err(cause.into()),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let has_client = !is_paused && is_ready(&watched[0]);
    let is_stopped = stop.is_some() && watched.last().is_some_and(is_ready);
    let of_connections = &watched[1..=connections.len()];
    let ready = of_connections.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(number, _)| number);
    Ok(Ready { is_stopped, has_client, connections: ready.collect() })
}

/// Closes connections whose lines are not whole while these have too many descriptors, beginning with the oldest line.
fn give_way(connections: &mut Vec<Connection<'_>>) {
    let count = |connections: &[Connection<'_>]| connections.iter().map(|one| one.descriptors.len()).sum::<usize>();
    while count(connections) > MOST_WAITING_DESCRIPTORS {
        let waiting = connections.iter().enumerate().filter(|(_, one)| !one.descriptors.is_empty());
        let Some((oldest, _)) = waiting.min_by_key(|(_, one)| one.since) else { return };
        connections.swap_remove(oldest);
    }
}

/// A client, and the line that it is sending.
struct Connection<'a> {
    offers: &'a Offers,
    socket: OwnedFd,
    number: u64,
    line: Vec<u8>,
    /// Those that came with the line's first byte.
    descriptors: Vec<OwnedFd>,
    /// When the line began.
    since: Option<Instant>,
    /// Whether it was one too many, and was told so.
    is_refused: bool,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.offers.forget(self.number);
    }
}

impl<'a> Connection<'a> {
    fn new(offers: &'a Offers, socket: OwnedFd) -> Connection<'a> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (line, descriptors) = (Vec::new(), Vec::new());
        Connection { offers, socket, number, line, descriptors, since: None, is_refused: false }
    }

    /// Tells its client at once that it is one too many.
    fn refuse(&mut self) {
        let fact = "the server has as many connections for shared tables as it can take";
        tell(&self.socket, &Err(CallError::new("busy", fact)));
        (self.is_refused, self.since) = (true, Some(Instant::now()));
    }

    /// When the line that has begun must have ended.
    fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + PATIENCE)
    }

    /// Reads what is there, and answers a line that is whole; false if the connection is to be closed.
    fn advance(&mut self, buffer: &mut [u8]) -> bool {
        let (bytes, flags, descriptors) = match receive(&self.socket, buffer) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
        };
        if bytes == 0 {
            return false;
        }
        if self.is_refused {
            return !buffer[..bytes].contains(&b'\n');
        }
        let answered = match self.take(&buffer[..bytes], flags, descriptors) {
            Ok(false) => return true,
            Ok(true) => self.add(),
            Err(error) => Err(error),
        };
        tell(&self.socket, &answered) && answered.is_ok()
    }

    /// Takes a part of a line; true if it is whole.
    fn take(&mut self, bytes: &[u8], flags: ReturnFlags, descriptors: Vec<OwnedFd>) -> Result<bool, CallError> {
        if descriptors.len() > MOST_DESCRIPTORS || flags.contains(ReturnFlags::CTRUNC) {
            let fact =
                format!("the line has more than {MOST_DESCRIPTORS} descriptors, or more than the server can have");
            return Err(CallError::violation(fact));
        }
        if !descriptors.is_empty() && !self.line.is_empty() {
            return Err(CallError::violation("descriptors come with the first byte of a line"));
        }
        if self.line.is_empty() {
            self.descriptors = descriptors;
            self.since = Some(Instant::now());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        if self.line.len() + end.unwrap_or(bytes.len()) >= MOST_LINE_BYTES {
            return Err(CallError::violation(format!("a line has at most {MOST_LINE_BYTES} bytes")));
        }
        self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
        if end.is_some_and(|end| end + 1 < bytes.len()) {
            return Err(CallError::violation("a line does not follow another before its answer"));
        }
        Ok(end.is_some())
    }

    /// Adds the table of a whole line to its offer.
    fn add(&mut self) -> Result<(), CallError> {
        let (line, descriptors) = (std::mem::take(&mut self.line), std::mem::take(&mut self.descriptors));
        self.since = None;
        let add = || self.offers.add(self.number, &line, descriptors);
        let added = catch_unwind(AssertUnwindSafe(add));
        added.unwrap_or_else(|_| Err(CallError::violation("the files cannot be read")))
    }
}

/// Answers a line; false if there is no room for the answer: the client has not read those before.
fn tell(socket: &OwnedFd, answered: &Result<(), CallError>) -> bool {
    let answer = match answered {
        Ok(()) => "{}\n".to_string(),
        Err(error) => format!("{}\n", json!({ "error": error })),
    };
    let sent = rustix::net::send(socket, answer.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    sent == Ok(answer.len())
}

/// Reads what a socket has now: how many bytes, and the descriptors that come with them.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, ReturnFlags, Vec<OwnedFd>), rustix::io::Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // They go to no program that this process starts.
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = part {
            descriptors.extend(found);
        }
    }
    Ok((message.bytes, message.flags, descriptors))
}
