//! How much memory a piece of work takes at its peak.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What a reply may have in the cases, in place of the 256 MB of `transship.max_reply_size`: inputs are small, so what an input
/// makes of itself shows all the same.
pub const LIMIT: usize = 4 << 20;

/// Does `work`, which may take `most` bytes.
///
/// # Panics
/// If it takes more.
pub fn within<T>(most: usize, work: impl FnOnce() -> T) -> T {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let done = work();
    let taken = ALLOCATOR.peak_usage().saturating_sub(before);
    assert!(taken <= most, "it takes {taken} bytes, more than {most}");
    done
}
