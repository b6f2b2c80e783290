//! HTTP connections, each of which belongs to whichever thread answers it.
//!
//! A connection that waits for its client takes no thread: the kernel has them all in a list (epoll), and reports each once, to one
//! thread. That thread polls hyper's future of the connection until it waits again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::container::Container;
use crate::rest::{self, Client};
use crate::seats::{Seats, Work};
use crate::waits;

/// Between two attempts to accept a connection that failed, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that are looked at together where no thread is left.
const MOST_READY: usize = 256;

/// The server of HTTP.
pub(crate) struct Http {
    container: Arc<Container>,
    epoll: Epoll,
    connections: Mutex<Connections>,
    seats: Arc<Seats>,
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
}

/// Where connections come in.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// One of them.
struct Connection {
    number: u64,
    http: Pin<Box<http1::Connection<TokioIo<Stream>, Answering>>>,
    socket: Arc<File>,
    woken: Arc<Woken>,
    waker: Waker,
    is_ending: bool,
}

impl Http {
    /// Starts threads that answer, without a listener yet.
    pub(crate) fn start(container: Arc<Container>) -> io::Result<Arc<Http>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let http = Arc::new(Http { container, epoll, connections: Mutex::default(), seats: Arc::new(Seats::new()) });
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
        waiting.into_values().for_each(|connection| self.advance(connection));
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

    fn advance_reported(self: &Arc<Self>, number: u64) {
        let (connection, listener) = {
            let mut connections = self.connections();
            (connections.waiting.remove(&number), connections.listeners.get(&number).cloned())
        };
        if let Some(connection) = connection {
            self.advance(connection);
        } else if let Some(listener) = listener {
            self.accept(&listener);
            // An error means that it was closed meanwhile.
            let _ = self.epoll.modify(&*listener, &mut once(EpollFlags::EPOLLIN, number));
        }
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
        let socket = Arc::new(socket);
        let client = Arc::new(Client::new(socket.clone()));
        let answering = Answering { server: self.clone(), client };
        let http = http1::Builder::new().serve_connection(TokioIo::new(Stream(socket.clone())), answering);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let number = {
            let mut connections = self.connections();
            connections.open += 1;
            connections.number()
        };
        let http = Box::pin(http);
        let connection = Box::new(Connection { number, http, socket: socket.clone(), woken, waker, is_ending: false });
        if let Err(cause) = self.epoll.add(&*socket, EpollEvent::new(EpollFlags::EPOLLONESHOT, number)) {
            self.close(connection);
            return Err(cause.into());
        }
        if let Some(connection) = self.wait(connection, EpollFlags::EPOLLIN) {
            self.advance(connection);
        }
        Ok(())
    }

    /// Does what a connection is ready for, and has it wait again.
    fn advance(self: &Arc<Self>, mut connection: Box<Connection>) {
        loop {
            if !connection.is_ending && self.connections().is_stopping {
                connection.is_ending = true;
                connection.http.as_mut().graceful_shutdown();
            }
            waits::reset();
            let http = connection.http.as_mut();
            let mut context = Context::from_waker(&connection.waker);
            // An error means that the client has gone, or sent what is no HTTP; what panics is no handler.
            let polled = catch_unwind(AssertUnwindSafe(|| http.poll(&mut context)));
            if !matches!(polled, Ok(Poll::Pending)) {
                return self.close(connection);
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
            match self.wait(connection, events) {
                Some(told) => connection = told,
                None => return,
            }
        }
    }

    /// Has a connection wait; gives it back if it is to end first.
    fn wait(&self, connection: Box<Connection>, events: EpollFlags) -> Option<Box<Connection>> {
        let (number, socket) = (connection.number, connection.socket.clone());
        {
            let mut connections = self.connections();
            if connections.is_stopping && !connection.is_ending {
                return Some(connection);
            }
            connections.waiting.insert(number, connection);
        }
        if self.epoll.modify(&*socket, &mut once(events, number)).is_err()
            && let Some(connection) = { self.connections().waiting.remove(&number) }
        {
            self.close(connection);
        }
        None
    }

    fn close(&self, connection: Box<Connection>) {
        drop(connection);
        self.connections().open -= 1;
    }
}

impl Work for Http {
    type Item = u64;

    fn next(self: &Arc<Self>) -> u64 {
        let mut ready = [EpollEvent::empty()];
        loop {
            if self.epoll.wait(&mut ready, EpollTimeout::NONE) == Ok(1) {
                return ready[0].data();
            }
        }
    }

    fn act(self: &Arc<Self>, number: u64) {
        self.advance_reported(number);
    }

    fn act_without_calls(self: &Arc<Self>) {
        let mut ready = [EpollEvent::empty(); MOST_READY];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        ready[..count].iter().for_each(|event| self.advance_reported(event.data()));
    }
}

/// What the kernel is to report, once.
fn once(events: EpollFlags, number: u64) -> EpollEvent {
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

/// A connected socket that does not block.
struct Stream(Arc<File>);

/// Tries until no signal interrupts.
fn attempt<T>(mut act: impl FnMut() -> io::Result<T>) -> Poll<io::Result<T>> {
    loop {
        match act() {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            outcome => return Poll::Ready(outcome),
        }
    }
}

impl Stream {
    fn attempt_write(&self, act: impl FnMut() -> io::Result<usize>) -> Poll<io::Result<usize>> {
        let written = attempt(act);
        if written.is_pending() {
            waits::note(|waits| waits.is_writing = true);
        }
        written
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = attempt(|| (&*self.0).read(room.initialize_unfilled()));
        if read.is_pending() {
            waits::note(|waits| waits.is_reading = true);
        }
        room.advance(ready!(read)?);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.attempt_write(|| (&*self.0).write(bytes))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[IoSlice]) -> Poll<io::Result<usize>> {
        self.attempt_write(|| (&*self.0).write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        use std::os::fd::AsRawFd;
        Poll::Ready(Ok(shutdown(self.0.as_raw_fd(), Shutdown::Write)?))
    }
}
