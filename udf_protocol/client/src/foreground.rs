//! Work that the engine's own thread does, as long as it waits for nothing but an answer on a Unix socket.
//!
//! A small batch is there and back before another thread has woken up twice. So an exchange whose server is known begins here:
//! the engine's thread polls the future that the client's thread would poll, and waits for the socket itself. The future moves
//! to the client's thread, for good, once it waits for anything else, such as a lease or room for a reply, and once several
//! batches are out. Its sockets move along: a [`SocketStream`] belongs to whichever thread polls it.

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::unix::net;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// What a thread does.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a future waits for that was polled in the foreground.
#[derive(Default)]
struct Waits {
    /// A socket that has nothing to read yet.
    socket: Option<Arc<net::UnixStream>>,
    /// Whether it waits for more than that: a socket that has no room, or its turn.
    is_other: bool,
    /// How often it has read.
    reads: u32,
}

/// How often a future may read before another thread goes on: an answer that is large, or comes in small pieces without an end,
/// would keep the engine's thread from hearing that its user gives up.
const MOST_READS: u32 = 64;

thread_local! {
    /// Of the future that this thread polls in the foreground; none at other times.
    static WAITS: RefCell<Option<Waits>> = const { RefCell::new(None) };
}

/// Whether this thread polls in the foreground.
pub(crate) fn is_in_foreground() -> bool {
    WAITS.with_borrow(Option::is_some)
}

/// Notes something that the future waits for.
fn note(note: impl FnOnce(&mut Waits)) {
    WAITS.with_borrow_mut(|waits| waits.as_mut().map(note));
}

/// Counts a read, and says whether there may be another before it is somebody else's turn.
fn may_read() -> bool {
    WAITS.with_borrow_mut(|waits| {
        waits.as_mut().is_some_and(|waits| {
            waits.reads += 1;
            waits.is_other |= waits.reads > MOST_READS;
            !waits.is_other
        })
    })
}

/// Notes that the future does not wait for what it has just tried to read.
pub(crate) fn forget_read() {
    note(|waits| waits.socket = None);
}

/// How far work has come.
enum Step {
    /// It is done.
    Done,
    /// It goes on once there is something to read here.
    Waits(Arc<net::UnixStream>),
    /// It waits for something else.
    Moves,
}

/// Work that is polled in the foreground.
pub(crate) struct Foreground {
    work: Task,
    /// Of the client's thread, for what the work registers there.
    runtime: Handle,
}

impl Foreground {
    /// Work that was not polled yet.
    pub(crate) fn new(work: Task, runtime: Handle) -> Foreground {
        Foreground { work, runtime }
    }

    /// Does what can be done without waiting.
    fn step(&mut self) -> Step {
        let _runtime = self.runtime.enter();
        let _here = Here::enter();
        if self.work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return Step::Done;
        }
        match WAITS.take() {
            Some(Waits { socket: Some(socket), is_other: false, .. }) => Step::Waits(socket),
            _ => Step::Moves,
        }
    }
}

/// Who runs an exchange: the thread that has it, or the client's.
pub(crate) struct Runner {
    /// None once it is the client's thread, and when the work is done.
    pub(crate) foreground: Option<Foreground>,
    /// The queue of the client's thread, which ends with the client.
    pub(crate) tasks: mpsc::WeakUnboundedSender<Task>,
    /// Ends the work.
    pub(crate) cancel: Option<oneshot::Sender<()>>,
}

impl Runner {
    /// Whether the thread that has it runs it.
    pub(crate) fn is_here(&self) -> bool {
        self.foreground.is_some()
    }

    /// Does what can be done here without waiting; the socket that is to be waited for then. None if the client's thread goes on,
    /// or the work is done.
    pub(crate) fn step(&mut self) -> Option<Arc<net::UnixStream>> {
        match self.foreground.as_mut()?.step() {
            Step::Waits(socket) => return Some(socket),
            Step::Done => self.foreground = None,
            Step::Moves => self.move_away(),
        }
        None
    }

    /// Has the client's thread go on.
    pub(crate) fn move_away(&mut self) {
        // If the thread has ended, the work is dropped with its end of a queue, and who waits for it is told.
        if let (Some(foreground), Some(tasks)) = (self.foreground.take(), self.tasks.upgrade()) {
            let _ = tasks.send(foreground.work);
        }
    }

    /// Ends the work as it stands.
    pub(crate) fn cancel(&mut self) {
        self.foreground = None;
        if let Some(cancel) = self.cancel.take() {
            let _ = cancel.send(());
        }
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("is_here", &self.is_here()).finish_non_exhaustive()
    }
}

/// That this thread polls in the foreground, until dropped.
struct Here;

impl Here {
    fn enter() -> Here {
        WAITS.set(Some(Waits::default()));
        Here
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        WAITS.set(None);
    }
}

/// A connected Unix socket, which goes along with the thread that polls it.
#[derive(Debug)]
pub(crate) struct SocketStream(Held);

#[derive(Debug)]
enum Held {
    /// By the foreground, or by nobody yet.
    Bare(Arc<net::UnixStream>),
    /// By the runtime of the client's thread.
    Registered(UnixStream),
    /// By nobody any more, since it could not be handed over.
    Lost,
}

impl SocketStream {
    /// A stream of a socket that does not block.
    pub(crate) fn new(socket: net::UnixStream) -> SocketStream {
        SocketStream(Held::Bare(Arc::new(socket)))
    }

    /// The socket, for this thread alone.
    fn bare(&mut self) -> io::Result<&Arc<net::UnixStream>> {
        if let Held::Registered(_) = &self.0
            && let Held::Registered(stream) = std::mem::replace(&mut self.0, Held::Lost)
        {
            self.0 = Held::Bare(Arc::new(stream.into_std()?));
        }
        match &self.0 {
            Held::Bare(socket) => Ok(socket),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The socket, registered with the runtime whose thread this is.
    fn registered(&mut self) -> io::Result<Pin<&mut UnixStream>> {
        if let Held::Bare(_) = &self.0
            && let Held::Bare(socket) = std::mem::replace(&mut self.0, Held::Lost)
        {
            // Whoever waited for it in the foreground may look at it yet.
            let socket = Arc::try_unwrap(socket).or_else(|shared| shared.try_clone())?;
            self.0 = Held::Registered(UnixStream::from_std(socket)?);
        }
        match &mut self.0 {
            Held::Registered(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Tries until no signal interrupts; none if it would have to wait.
fn attempt(mut act: impl FnMut() -> io::Result<usize>) -> Poll<io::Result<usize>> {
    loop {
        match act() {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            outcome => return Poll::Ready(outcome),
        }
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !is_in_foreground() {
            return self.registered()?.poll_read(context, room);
        }
        if !may_read() {
            return Poll::Pending;
        }
        let socket = self.bare()?;
        let read = attempt(|| (&**socket).read(room.initialize_unfilled()));
        if read.is_pending() {
            note(|waits| waits.socket = Some(socket.clone()));
        }
        room.advance(ready!(read)?);
        // It may wait for something else next.
        forget_read();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !is_in_foreground() {
            return self.registered()?.poll_write(context, bytes);
        }
        let socket = self.bare()?;
        // Without SIGPIPE, as the standard library's processes have it ignored, but not the engine's.
        let written = attempt(|| Ok(rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL)?));
        if written.is_pending() {
            note(|waits| waits.is_other = true);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !is_in_foreground() {
            return self.registered()?.poll_shutdown(context);
        }
        Poll::Ready(self.bare()?.shutdown(std::net::Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_read_is_waited_for_no_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for comes in [false, true] {
            let (ours, mut theirs) = net::UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut stream = SocketStream::new(ours);
            let work = async move {
                poll_fn(|context| {
                    let mut byte = [0];
                    let mut room = ReadBuf::new(&mut byte);
                    assert!(Pin::new(&mut stream).poll_read(context, &mut room).is_pending());
                    if comes {
                        theirs.write_all(b"x").unwrap();
                        assert!(Pin::new(&mut stream).poll_read(context, &mut room).is_ready());
                    }
                    Poll::Ready(())
                })
                .await;
                pending::<()>().await;
            };
            let step = Foreground::new(Box::pin(work), runtime.handle().clone()).step();
            assert!(matches!((comes, step), (false, Step::Waits(_)) | (true, Step::Moves)));
        }
    }
}
