//! The engine around the protocol's client: waits that an interrupt ends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pgrx::pg_sys;
use udf_client::host::Host;
use udf_types::Result;

use crate::pg::reserve;

/// How long a wait may be before the latch is waited for as well, in milliseconds: preparing that takes as long as a short call, and
/// where many sessions share few processors, most answers come later than the first millisecond. A signal ends the wait; one that
/// comes just before it is noticed so much later.
const SHORT_WAIT_MS: u8 = 20;

/// A backend.
#[derive(Debug, Clone, Copy)]
pub struct Backend;

impl Host for Backend {
    /// Waits on the process latch as well as the doorbell. Cancel, statement_timeout and shutdown raise PostgreSQL's
    /// own error from here, which unwinds the caller; what it holds is dropped on the way, and that cancels the calls.
    fn wait(&self, doorbell: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
        let short = PollTimeout::from(u8::try_from(timeout.as_millis()).unwrap_or(u8::MAX).clamp(1, SHORT_WAIT_MS));
        // A signal ends it, and says what it is about below.
        if !matches!(poll(&mut [PollFd::new(doorbell, PollFlags::POLLIN)], short), Ok(1..) | Err(Errno::EINTR)) {
            wait_on_latch(doorbell, timeout);
        }
        pg_sys::check_for_interrupts!();
        // An allocation that would have ended the process has used it up.
        reserve::keep()
    }

    fn check(&self) -> Result<()> {
        pg_sys::check_for_interrupts!();
        Ok(())
    }
}

fn wait_on_latch(doorbell: BorrowedFd<'_>, timeout: Duration) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_SOCKET_READABLE | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // At least a millisecond, so that a last fraction of one does not become a busy loop.
    let milliseconds = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1);
    // SAFETY: MyLatch is the process's own latch, and the doorbell stays open while it is borrowed.
    unsafe {
        let happened = pg_sys::WaitLatchOrSocket(
            pg_sys::MyLatch,
            events as i32,
            doorbell.as_raw_fd(),
            milliseconds,
            pg_sys::PG_WAIT_EXTENSION,
        );
        if happened & pg_sys::WL_LATCH_SET as i32 != 0 {
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
    }
}
