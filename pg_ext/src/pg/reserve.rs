//! Memory that a backend keeps for the moment at which it gets no more.
//!
//! An allocation that fails in Rust ends the process, and with it every session of the cluster. So a backend that calls
//! containers holds some address space, which it never touches. When an allocation fails, some of it is given back and the
//! allocation is tried again; the next wait for a container then finds the reserve smaller, and ends the query with an error
//! ([`crate::host::Backend`]).

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use udf_types::{Error, Kind, Result};

/// A piece of the reserve. Pieces are given back one by one, so that PostgreSQL's own allocations, whose failure is an error like any
/// other, do not take all of it.
const PIECE: Layout = match Layout::from_size_align(1 << 20, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("an alignment is a power of two"),
};
/// What a backend's threads may allocate until it waits.
const PIECES: usize = 16;

/// The pieces that are held.
static HELD: [AtomicPtr<u8>; PIECES] = [const { AtomicPtr::new(null_mut()) }; PIECES];

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

/// The system's allocator, and the reserve behind it.
struct WithReserve;

// SAFETY: all memory is the system allocator's, which is asked with the caller's own arguments.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of GlobalAlloc, which are those of System.
        try_on(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        try_on(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`. Where it fails, the memory is as it was.
        try_on(|| unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Gives the reserve back piece by piece until there is memory, or nothing left of it.
fn try_on(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    loop {
        let memory = allocate();
        if !memory.is_null() || !give_back() {
            return memory;
        }
    }
}

/// Gives a piece back; whether there was one.
fn give_back() -> bool {
    let held = HELD.iter().map(|piece| piece.swap(null_mut(), Ordering::AcqRel)).find(|held| !held.is_null());
    let Some(held) = held else { return false };
    // SAFETY: `keep` allocated it with this layout, and whoever swapped it out is the only one to have it.
    unsafe { System.dealloc(held, PIECE) };
    true
}

/// Keeps the reserve, anew as far as it was needed; an error if there is no memory for it.
pub fn keep() -> Result<()> {
    for piece in HELD.iter().filter(|piece| piece.load(Ordering::Acquire).is_null()) {
        // SAFETY: the layout has a size.
        let memory = unsafe { System.alloc(PIECE) };
        if memory.is_null() {
            return Err(Error::new(Kind::OutOfMemory, "out of memory")
                .with_detail("This session has no memory left for calling container functions."));
        }
        if piece.compare_exchange(null_mut(), memory, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it was just allocated with this layout, and nobody else knows it.
            unsafe { System.dealloc(memory, PIECE) };
        }
    }
    Ok(())
}

/// Values up to this size are left to the reserve, which has room for their copies.
pub const LARGE: usize = (PIECES << 20) / COPIES;
/// So many copies of a value are there at most while it is sent.
const COPIES: usize = 4;

/// An error if there is no memory for the copies of a large value, of so many bytes, which a user may choose.
pub fn check_room(bytes: usize) -> Result<()> {
    if bytes <= LARGE {
        return Ok(());
    }
    let layout = bytes.checked_mul(COPIES).and_then(|bytes| Layout::from_size_align(bytes, PIECE.align()).ok());
    let has_room = layout.is_some_and(|layout| {
        // SAFETY: the layout has a size, and what was allocated with it is given back.
        unsafe {
            // The compiler must not take an allocation that nobody uses for one that succeeds.
            let memory = std::hint::black_box(System.alloc(layout));
            if !memory.is_null() {
                System.dealloc(memory, layout);
            }
            !memory.is_null()
        }
    });
    if has_room {
        return Ok(());
    }
    let fact = format!("This session has no memory left for sending {bytes} bytes to a container.");
    Err(Error::new(Kind::OutOfMemory, "out of memory").with_detail(fact))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_allocation_that_fails_is_tried_again_with_the_reserve() {
        keep().unwrap();
        let tries = Cell::new(0);
        let fail_thrice = || {
            tries.set(tries.get() + 1);
            if tries.get() <= 3 { null_mut() } else { std::ptr::dangling_mut() }
        };
        let held = || HELD.iter().filter(|piece| !piece.load(Ordering::Acquire).is_null()).count();
        assert!(!try_on(fail_thrice).is_null());
        assert_eq!((tries.get(), held()), (4, PIECES - 3));
        // It is gone until somebody keeps it again.
        assert!(try_on(null_mut).is_null());
        assert_eq!(held(), 0);
        keep().unwrap();
        assert_eq!(held(), PIECES);
    }

    #[test]
    fn large_values_need_room_for_their_copies() {
        check_room(LARGE).unwrap();
        check_room(LARGE + 1).unwrap();
        for bytes in [1 << 60, usize::MAX] {
            assert_eq!(check_room(bytes).unwrap_err().kind(), Kind::OutOfMemory);
        }
    }
}
