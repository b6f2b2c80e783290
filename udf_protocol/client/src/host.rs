//! What the protocol asks of the engine around it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use udf_types::{Error, Kind, Result};

/// The engine around a [`crate::client::Client`]. Its methods are called on the engine's own thread only.
pub trait Host {
    /// Blocks until `doorbell` is readable or `timeout` has passed, whichever is first; both are `Ok`.
    /// An error ends the wait and the work waited for: the engine was told to stop.
    fn wait(&self, doorbell: BorrowedFd<'_>, timeout: Duration) -> Result<()>;

    /// Is called before each look at what has come, since a server may say so much that there is nothing to wait for. An error as in
    /// [`Host::wait`].
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A host without an engine: a command line, a test. Nothing cancels its waits but their deadlines.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainHost;

impl Host for PlainHost {
    fn wait(&self, doorbell: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(doorbell, PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(cause) => Err(Error::new(Kind::Unreachable, format!("could not wait for an answer: {cause}"))),
        }
    }
}
