//! Memory that is passed to an extension: as large as the API says and not a byte more, and gone when it may be gone.
//!
//! A guarded buffer ends at a page that may not be touched, and becomes such a page itself once its time is over: reading
//! too far, or too late, ends the process at once. A heap buffer is for valgrind, which finds the same by itself.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// How buffers are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// With pages that may not be touched.
    Guarded,
    /// With malloc, overwritten and freed.
    Heap,
}

/// A buffer.
pub enum Buffer {
    Guarded { pages: NonNull<std::ffi::c_void>, bytes: usize, offset: usize },
    Heap(Option<Box<[u8]>>),
}

const PAGE: usize = 4096;

impl Buffer {
    /// A copy of `content` that ends where the buffer ends.
    pub fn new(kind: Kind, content: &[u8]) -> Buffer {
        if kind == Kind::Heap {
            return Buffer::Heap(Some(content.into()));
        }
        let data_bytes = content.len().next_multiple_of(PAGE).max(PAGE);
        let bytes = data_bytes + PAGE;
        let length = NonZeroUsize::new(bytes).expect("it has a page");
        let offset = data_bytes - content.len();
        // SAFETY: an anonymous mapping of its own; the content fits before the last page, which is closed.
        unsafe {
            let pages =
                mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)
                    .expect("there is memory");
            let start = pages.cast::<u8>();
            std::ptr::copy_nonoverlapping(content.as_ptr(), start.add(offset).as_ptr(), content.len());
            mprotect(start.add(data_bytes).cast(), PAGE, ProtFlags::PROT_NONE).expect("a page can be closed");
            Buffer::Guarded { pages, bytes, offset }
        }
    }

    /// Where the content starts.
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            // SAFETY: the offset lies within the mapping.
            Buffer::Guarded { pages, offset, .. } => unsafe { pages.cast::<u8>().add(*offset).as_ptr() },
            Buffer::Heap(content) => content.as_ref().map_or(std::ptr::null(), |content| content.as_ptr()),
        }
    }

    /// Whoever touches it from now on is wrong.
    pub fn poison(&mut self) {
        match self {
            Buffer::Guarded { pages, bytes, .. } => {
                // SAFETY: the mapping is this buffer's own.
                let _ = unsafe { mprotect(*pages, *bytes, ProtFlags::PROT_NONE) };
            }
            Buffer::Heap(content) => {
                if let Some(mut content) = content.take() {
                    content.fill(0xdd);
                }
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Buffer::Guarded { pages, bytes, .. } = self {
            // SAFETY: the mapping is this buffer's own, and nobody may touch it any more.
            let _ = unsafe { munmap(*pages, *bytes) };
        }
    }
}
