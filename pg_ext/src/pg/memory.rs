//! Memory contexts.

use pgrx::pg_sys;

/// A memory context of its own. It is deleted with its parent: slots may point into it until then.
#[derive(Debug)]
pub struct OwnedContext {
    context: pg_sys::MemoryContext,
}

impl OwnedContext {
    /// A new context below `parent`.
    ///
    /// # Safety
    /// `parent` is valid, and the value is not used after `parent` is deleted.
    pub unsafe fn new(parent: pg_sys::MemoryContext) -> OwnedContext {
        // SAFETY: the caller says that the parent is valid; the name is a constant, as PostgreSQL demands.
        let context = unsafe {
            pg_sys::AllocSetContextCreateInternal(
                parent,
                c"Container Batch".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            )
        };
        OwnedContext { context }
    }

    /// Frees everything in it.
    pub fn reset(&self) {
        // SAFETY: the maker of the value has promised that the context is still there.
        unsafe { pg_sys::MemoryContextReset(self.context) }
    }

    /// The context, for PostgreSQL's functions.
    pub fn as_ptr(&self) -> pg_sys::MemoryContext {
        self.context
    }
}

/// Runs `work` with `context` as the current memory context. An error leaves it switched, as PostgreSQL expects.
///
/// # Safety
/// `context` is valid.
pub unsafe fn within<T>(context: pg_sys::MemoryContext, work: impl FnOnce() -> T) -> T {
    // SAFETY: the caller says that the context is valid; the one before is put back.
    unsafe {
        let before = pg_sys::MemoryContextSwitchTo(context);
        let result = work();
        pg_sys::MemoryContextSwitchTo(before);
        result
    }
}
