//! The end of a process in which another language's runtime runs.
#![allow(unsafe_code)]

/// Ends the process at once, with status 1: what a runtime does at its exit, beside its own running thread, may hang or crash.
pub(crate) fn end_process() -> ! {
    // SAFETY: it takes any status, runs nothing of the process, and does not return.
    unsafe { nix::libc::_exit(1) }
}
