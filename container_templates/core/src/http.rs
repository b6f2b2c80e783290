//! HTTP connections, each of which belongs to whichever thread answers it.
//!
//! A connection that waits for its client takes no thread: the kernel has them all in a list (epoll), and reports each once, to one
//! thread. That thread polls hyper's future of the connection until it waits again. Threads of a language that pulls have a list of their
//! own (`pulling.rs`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit};

use crate::container::Container;
use crate::pulling::{self, PULLED, Pulling};
use crate::rest::{self, Client};
use crate::seats::{Seats, Work};
use crate::stream::Stream;
use crate::{waits, work};

/// Between two attempts to accept a connection that failed, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that are looked at together where no thread is left.
const MOST_READY: usize = 256;
/// The share of the descriptors that this process may have that connections get.
const CONNECTIONS_SHARE: u64 = 2;
const MOST_CONNECTIONS: u64 = 4096;
/// Connections beyond those that are told that the server is busy; any more are closed at once.
const MOST_REFUSED: usize = 64;
/// A connection on which nothing comes, or can be sent, for so long is closed.
const IDLE: Duration = Duration::from_secs(600);
/// How often connections are looked at for that: a part of how long they may be idle.
const SWEEPS: u32 = 20;

/// The server of HTTP.
pub(crate) struct Http {
    container: Arc<Container>,
    pub(crate) epoll: Epoll,
    connections: Mutex<Connections>,
    pub(crate) seats: Arc<Seats>,
    pub(crate) pulling: Pulling,
    limits: Limits,
}

/// What connections may take.
struct Limits {
    /// So many are answered.
    connections: usize,
    idle: Duration,
}

#[derive(Default)]
struct Connections {
    /// By the numbers under which the kernel reports them.
    listeners: HashMap<u64, Arc<Listener>>,
    /// Those that wait.
    waiting: HashMap<u64, Box<Connection>>,
    next_number: u64,
    /// All, whether they wait or not.
    open: usize,
    is_stopping: bool,
    /// When they were last looked at for those that are idle.
    swept: Option<Instant>,
}

/// Where connections come in.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// One of them.
pub(crate) struct Connection {
    number: u64,
    client: Arc<Client>,
    /// Whether the list of threads that pull has it.
    is_listed: bool,
    http: Pin<Box<http1::Connection<TokioIo<Stream>, Answering>>>,
    pub(crate) socket: Arc<File>,
    woken: Arc<Woken>,
    waker: Waker,
    is_ending: bool,
    /// Since when it waits.
    since: Instant,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    /// Starts threads that answer, without a listener yet.
    pub(crate) fn start(container: Arc<Container>) -> io::Result<Arc<Http>> {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE)?.0;
        let connections = (descriptors / CONNECTIONS_SHARE).clamp(1, MOST_CONNECTIONS) as usize;
        Http::start_within(container, Limits { connections, idle: IDLE })
    }

    fn start_within(container: Arc<Container>, limits: Limits) -> io::Result<Arc<Http>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (connections, seats, pulling) = (Mutex::default(), Arc::new(Seats::new()), Pulling::new()?);
        epoll.add(&pulling.epoll.0, EpollEvent::new(EpollFlags::EPOLLIN, PULLED))?;
        let http = Arc::new(Http { container, epoll, connections, seats, pulling, limits });
        http.seats.start(&http)?;
        Ok(http)
    }

    /// Answers whoever connects.
    pub(crate) fn listen(&self, listener: Listener) -> io::Result<()> {
        listener.set_nonblocking()?;
        let listener = Arc::new(listener);
        let number = {
            let mut connections = self.connections();
            let number = connections.number();
            connections.listeners.insert(number, listener.clone());
            number
        };
        Ok(self.epoll.add(&*listener, once(EpollFlags::EPOLLIN, number))?)
    }

    /// Takes no more connections, and ends those that are open, each after the answer that is under way.
    pub(crate) fn stop(self: &Arc<Self>) {
        let waiting = {
            let mut connections = self.connections();
            connections.is_stopping = true;
            connections.listeners.clear();
            std::mem::take(&mut connections.waiting)
        };
        waiting.into_values().for_each(|connection| drop(self.advance(connection, false)));
    }

    /// Whether a connection is open.
    pub(crate) fn is_open(&self) -> bool {
        self.connections().open > 0
    }

    /// Lets this thread take its time for a call, while others answer connections.
    fn take_time(self: &Arc<Self>) {
        self.seats.give_up(self);
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().expect("no holder panics")
    }

    /// Does what a connection or listener is ready for; gives work for the language that it leads to, on a thread that pulls.
    pub(crate) fn advance_reported(self: &Arc<Self>, number: u64) -> Option<Arc<work::Work>> {
        let (connection, listener) = {
            let mut connections = self.connections();
            (connections.waiting.remove(&number), connections.listeners.get(&number).cloned())
        };
        if let Some(connection) = connection {
            return self.advance(connection, false);
        }
        if let Some(listener) = listener {
            self.accept(&listener);
            // An error means that it was closed meanwhile.
            let _ = self.epoll.modify(&*listener, &mut once(EpollFlags::EPOLLIN, number));
        }
        None
    }

    fn accept(self: &Arc<Self>, listener: &Listener) {
        let accepted = listener.accept().and_then(|socket| self.open(socket));
        match accepted {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => {
                eprintln!("transship: {cause}");
                thread::sleep(ACCEPT_PAUSE);
            }
            Ok(()) => {}
        }
    }

    fn open(self: &Arc<Self>, socket: File) -> io::Result<()> {
        self.sweep();
        let socket = Arc::new(socket);
        let excess = (self.connections().open + 1).saturating_sub(self.limits.connections);
        if excess > MOST_REFUSED {
            return Ok(());
        }
        let client = Arc::new(Client::new(socket.clone(), excess > 0));
        let answering = Answering { server: self.clone(), client: client.clone() };
        let http = http1::Builder::new().serve_connection(TokioIo::new(Stream(socket.clone())), answering);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let number = {
            let mut connections = self.connections();
            connections.open += 1;
            connections.number()
        };
        let http = Box::pin(http);
        let (is_listed, is_ending, since) = (false, false, Instant::now());
        let socket_of_it = socket.clone();
        let connection =
            Connection { number, client, is_listed, http, socket: socket_of_it, woken, waker, is_ending, since };
        let connection = Box::new(connection);
        if let Err(cause) = self.epoll.add(&*socket, EpollEvent::new(EpollFlags::EPOLLONESHOT, number)) {
            self.close(connection);
            return Err(cause.into());
        }
        if let Some(connection) = self.wait(connection, EpollFlags::EPOLLIN, false) {
            self.advance(connection, false);
        }
        Ok(())
    }

    /// Does what a connection is ready for, and has it wait again, or for work that this gives. Nothing is read before an answer is out.
    pub(crate) fn advance(
        self: &Arc<Self>,
        mut connection: Box<Connection>,
        has_answer: bool,
    ) -> Option<Arc<work::Work>> {
        loop {
            if !connection.is_ending && self.connections().is_stopping {
                connection.is_ending = true;
                connection.http.as_mut().graceful_shutdown();
            }
            waits::reset(has_answer);
            let http = connection.http.as_mut();
            let mut context = Context::from_waker(&connection.waker);
            // An error means that the client has gone, or sent what is no HTTP; what panics is no handler.
            let polled = catch_unwind(AssertUnwindSafe(|| http.poll(&mut context)));
            if !matches!(polled, Ok(Poll::Pending)) {
                pulling::take_given();
                self.close(connection);
                return None;
            }
            if let Some(work) = pulling::take_given() {
                let (http, socket) = (self.clone(), connection.socket.clone());
                work.suspend(socket, Box::new(move || drop(http.advance(connection, true))));
                return Some(work);
            }
            let waits = waits::found();
            if connection.woken.0.swap(false, Ordering::Relaxed) && !waits.is_queued {
                continue;
            }
            let mut events = EpollFlags::empty();
            events.set(EpollFlags::EPOLLIN, !waits.is_writing || waits.is_reading);
            events.set(EpollFlags::EPOLLOUT, waits.is_writing);
            if waits.is_queued {
                // It is reported again, to whichever thread asks next.
                events = EpollFlags::EPOLLOUT;
            }
            connection = self.wait(connection, events, waits.is_queued)?;
        }
    }

    /// Has a connection wait; gives it back if it is to end first.
    fn wait(&self, mut connection: Box<Connection>, events: EpollFlags, is_queued: bool) -> Option<Box<Connection>> {
        connection.since = Instant::now();
        let (number, socket) = (connection.number, connection.socket.clone());
        let is_pulled = !is_queued && connection.client.is_pulled() && self.pulling.has_begun();
        let is_new = is_pulled && !connection.is_listed;
        connection.is_listed |= is_pulled;
        {
            let mut connections = self.connections();
            if connections.is_stopping && !connection.is_ending {
                return Some(connection);
            }
            connections.waiting.insert(number, connection);
        }
        let epoll = if is_pulled { &self.pulling.epoll } else { &self.epoll };
        let asked = match is_new {
            true => epoll.add(&*socket, once(events, number)),
            false => epoll.modify(&*socket, &mut once(events, number)),
        };
        if asked.is_err()
            && let Some(connection) = { self.connections().waiting.remove(&number) }
        {
            self.close(connection);
        }
        None
    }

    /// Closes the connections that have waited for their clients for too long, once in a while.
    fn sweep(&self) {
        let idle: Vec<_> = {
            let mut connections = self.connections();
            let now = Instant::now();
            if connections.swept.is_some_and(|swept| now.duration_since(swept) < self.limits.idle / SWEEPS) {
                return;
            }
            connections.swept = Some(now);
            let is_idle = |_: &u64, connection: &mut Box<Connection>| {
                now.saturating_duration_since(connection.since) >= self.limits.idle
            };
            connections.waiting.extract_if(is_idle).map(|(_, connection)| connection).collect()
        };
        idle.into_iter().for_each(|connection| self.close(connection));
    }

    fn close(&self, connection: Box<Connection>) {
        // The client, who sees it closed, finds room.
        self.connections().open -= 1;
        drop(connection);
    }
}

impl Work for Http {
    type Item = u64;

    fn next(self: &Arc<Self>) -> u64 {
        let mut ready = [EpollEvent::empty()];
        let pause = EpollTimeout::try_from(self.limits.idle / SWEEPS).unwrap_or(EpollTimeout::NONE);
        loop {
            match self.epoll.wait(&mut ready, pause) {
                Ok(1) if ready[0].data() != PULLED => return ready[0].data(),
                Ok(1) => {
                    if let Some(number) = self.pulling.find_ready() {
                        return number;
                    }
                }
                _ => self.sweep(),
            }
        }
    }

    fn act(self: &Arc<Self>, number: u64) {
        self.advance_reported(number);
    }

    fn act_without_calls(self: &Arc<Self>) {
        let mut ready = [EpollEvent::empty(); MOST_READY];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        for event in &ready[..count] {
            let number = if event.data() == PULLED { self.pulling.find_ready() } else { Some(event.data()) };
            number.map(|number| self.advance_reported(number));
        }
    }

    fn look(self: &Arc<Self>) {
        self.pulling.look(&self.epoll);
    }

    fn is_idle(&self) -> bool {
        self.pulling.is_idle()
    }
}

/// What the kernel is to report, once.
pub(crate) fn once(events: EpollFlags, number: u64) -> EpollEvent {
    EpollEvent::new(events | EpollFlags::EPOLLONESHOT, number)
}

impl Connections {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> io::Result<File> {
        let descriptor: OwnedFd = match self {
            Listener::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                socket.into()
            }
            Listener::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                socket.into()
            }
        };
        Ok(descriptor.into())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Says that a connection was woken while it was polled: it has more to do.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Answers a connection's requests.
struct Answering {
    server: Arc<Http>,
    client: Arc<Client>,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let server = self.server.clone();
        let take_time = move || server.take_time();
        Box::pin(rest::respond(self.server.container.clone(), take_time, request, self.client.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::exchanges::Exchanges;

    const REQUEST: &[u8] = b"GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n";

    fn stage(connections: usize, idle: Duration) -> (Arc<Http>, impl Fn() -> UnixStream) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.sock");
        let container =
            Container { greeting: "{}".to_string(), functions: Vec::new(), exchanges: Exchanges::default() };
        let http = Http::start_within(Arc::new(container), Limits { connections, idle }).unwrap();
        http.listen(Listener::Unix(UnixListener::bind(&path).unwrap())).unwrap();
        let connect = move || {
            let _ = &folder;
            let stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream
        };
        (http, connect)
    }

    /// What is sent until the server closes, or as much as there is room for.
    fn answer(mut stream: &UnixStream, request: &[u8], room: usize) -> String {
        stream.write_all(request).unwrap();
        let mut answer = vec![0; room];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8(answer[..length].to_vec()).unwrap()
    }

    #[test]
    fn connections_on_which_nothing_comes_are_closed_and_no_others() {
        let (http, connect) = stage(100, Duration::from_secs(2));
        let silent = connect();
        let half = connect();
        (&half).write_all(b"POST /v1/functions/f HTTP/1.1\r\nContent-Le").unwrap();
        let body = connect();
        (&body).write_all(b"POST /v1/functions/f HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n123").unwrap();
        let busy = connect();
        for _ in 0..25 {
            assert!(answer(&busy, REQUEST, 1000).starts_with("HTTP/1.1 200"));
            thread::sleep(Duration::from_millis(100));
        }
        for mut idle in [&silent, &half, &body] {
            assert_eq!(idle.read(&mut [0; 100]).unwrap(), 0);
        }
        assert_eq!(http.connections().open, 1);
        assert!(answer(&busy, REQUEST, 1000).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn calls_on_connections_beyond_the_most_are_refused_and_those_beyond_that_closed() {
        let (http, connect) = stage(3, Duration::from_secs(60));
        let call = b"POST /v1/functions/f HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        let taken: Vec<_> = (0..3).map(|_| connect()).collect();
        let refused: Vec<_> = (0..MOST_REFUSED).map(|_| connect()).collect();
        let mut closed = connect();
        assert_eq!(closed.read(&mut [0; 100]).unwrap(), 0);
        assert!(taken.iter().all(|each| answer(each, call, 1000).starts_with("HTTP/1.1 404")));
        // Whoever sends a call that is larger than what the socket holds reads the answer as well.
        let body = vec![b' '; 4 << 20];
        let head = format!("POST /v1/functions/f HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let large = [head.into_bytes(), body].concat();
        for (number, each) in refused.iter().enumerate() {
            let answered = answer(each, if number < 2 { &large } else { call }, 1000);
            assert!(answered.starts_with("HTTP/1.1 503") && answered.contains("\"busy\""), "{answered}");
            let mut each = each;
            assert_eq!(each.read(&mut [0; 100]).unwrap(), 0);
        }
        // Who asks only what is there is answered, and there is room again once others have gone.
        drop((taken, refused));
        while http.is_open() {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(answer(&connect(), call, 1000).starts_with("HTTP/1.1 404"));
    }
}
