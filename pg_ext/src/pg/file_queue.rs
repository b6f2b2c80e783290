//! A queue of bytes in a temporary file of PostgreSQL's (buffile.c), which counts towards temp_file_limit.

use std::collections::VecDeque;
use std::ffi::c_int;

use pgrx::{PgSqlErrorCode, pg_sys};

use super::memory::within;

/// A place in the file, which may be several in the file system.
type Place = (c_int, pg_sys::off_t);

/// A queue. If an error ends the statement, PostgreSQL closes the file.
#[derive(Debug)]
pub struct FileQueue {
    file: *mut pg_sys::BufFile,
    read_at: Place,
    write_at: Place,
    /// Bytes of each piece that is in it.
    sizes: VecDeque<usize>,
}

impl FileQueue {
    /// An empty queue.
    ///
    /// # Safety
    /// `context` and the current resource owner outlive it.
    pub unsafe fn new(context: pg_sys::MemoryContext) -> FileQueue {
        // SAFETY: the caller says so.
        let file = unsafe { within(context, || pg_sys::BufFileCreateTemp(false)) };
        let (read_at, write_at, sizes) = Default::default();
        FileQueue { file, read_at, write_at, sizes }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.seek(self.write_at);
        // SAFETY: the file is open, and the bytes are there.
        unsafe {
            pg_sys::BufFileWrite(self.file, piece.as_ptr().cast_mut().cast(), piece.len());
            pg_sys::BufFileTell(self.file, &mut self.write_at.0, &mut self.write_at.1);
        }
        self.sizes.push_back(piece.len());
    }

    /// Takes the oldest piece.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let size = self.sizes.pop_front()?;
        self.seek(self.read_at);
        let mut piece = vec![0; size];
        // SAFETY: the file is open, and there is room for so many bytes.
        let read = unsafe {
            let read = pg_sys::BufFileRead(self.file, piece.as_mut_ptr().cast(), size);
            pg_sys::BufFileTell(self.file, &mut self.read_at.0, &mut self.read_at.1);
            read
        };
        if read != size {
            let message = format!("could not read a temporary file: read only {read} of {size} bytes");
            pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_IO_ERROR, message);
        }
        Some(piece)
    }

    fn seek(&mut self, (part, offset): Place) {
        // SAFETY: the file is open.
        if unsafe { pg_sys::BufFileSeek(self.file, part, offset, 0) } != 0 {
            pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_IO_ERROR, "could not seek in a temporary file");
        }
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: the file is open, and nobody else has it.
            unsafe { pg_sys::BufFileClose(self.file) };
        }
    }
}
