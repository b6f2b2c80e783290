//! The socket of a connection, as hyper reads and writes it.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::waits;

/// A connected socket that does not block.
pub(crate) struct Stream(pub(crate) Arc<File>);

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
        let read = match waits::found().leaves_reads {
            true => Poll::Pending,
            false => attempt(|| (&*self.0).read(room.initialize_unfilled())),
        };
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

/// Whether a client has closed its connection. hyper does not look while a further request lies there.
pub(crate) fn has_hung_up(client: &File) -> bool {
    // nix has no name for this one.
    let closed = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
    let mut watched = [PollFd::new(client.as_fd(), closed)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
