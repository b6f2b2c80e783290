//! The border: panics become SQL_ERROR with their text reported, and the host's pointers become references.
//!
//! Everything passed in belongs to the host and is valid during the call only; nothing made here outlives it. Lifetimes
//! say so: each function's caller names the call's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use udf_types::{Error, Kind, Result};

use crate::abi::{LogXEvent, SQL_ERROR, SQL_SUCCESS, SqlGuid, SqlReturn};
use crate::report;

/// An error and where it happened.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub error: Error,
    /// Function, image and row, if a call was under way.
    pub context: Option<String>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, context: None }
    }
}

/// Runs the body of an exported function.
pub fn guard(
    name: &str,
    session: Option<(SqlGuid, u16)>,
    body: impl FnOnce() -> std::result::Result<(), Failure>,
) -> SqlReturn {
    match guard_and_tell(name, session, body) {
        None => SQL_SUCCESS,
        Some(_) => SQL_ERROR,
    }
}

/// Runs the body of an exported function; what went wrong, if anything did, was reported and is given back.
pub fn guard_and_tell(
    name: &str,
    session: Option<(SqlGuid, u16)>,
    body: impl FnOnce() -> std::result::Result<(), Failure>,
) -> Option<String> {
    let said = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return None,
        Ok(Err(Failure { error, context: Some(context) })) => format!("{error}\ncontext: {context}"),
        Ok(Err(Failure { error, context: None })) => error.to_string(),
        Err(panic) => format!("internal error in {name}: {}", panic_text(panic.as_ref())),
    };
    report::report(session, &said);
    Some(said)
}

/// The text of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unrecognized panic")
}

/// The host broke the API's contract.
pub fn broken(fact: &str) -> Error {
    Error::new(Kind::ProtocolViolation, format!("the host broke the language extension API: {fact}"))
}

/// `count` elements at `pointer`, as bytes. NULL is no element.
///
/// # Safety
/// Unless it is NULL, `pointer` points to `bytes` readable bytes that nobody writes for as long as `'a`.
pub unsafe fn bytes<'a>(pointer: *const u8, bytes: usize) -> &'a [u8] {
    if pointer.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(pointer, bytes) }
}

/// A string of the host's; empty if it is NULL.
///
/// # Safety
/// As for [`bytes`].
pub unsafe fn text<'a>(pointer: *const u8, length: usize, what: &str) -> Result<&'a str> {
    // SAFETY: the caller says so.
    std::str::from_utf8(unsafe { bytes(pointer, length) }).map_err(|_| broken(&format!("{what} is not UTF-8")))
}

/// A string of the host's that must be there.
///
/// # Safety
/// As for [`bytes`].
pub unsafe fn required_text<'a>(pointer: *const u8, length: usize, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(broken(&format!("{what} is NULL")));
    }
    // SAFETY: the caller says so.
    unsafe { text(pointer, length, what) }
}

/// Where an answer goes.
///
/// # Safety
/// Unless it is NULL, `pointer` points to a writable, aligned T that nobody else touches for as long as `'a`.
pub unsafe fn out<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller says so.
    unsafe { pointer.as_mut() }.ok_or_else(|| broken(&format!("{what} is NULL")))
}

/// Element `index` of an array of pointers, itself possibly NULL.
///
/// # Safety
/// Unless it is NULL, `array` has more than `index` pointers.
pub unsafe fn element<T>(array: *const *mut T, index: usize) -> *mut T {
    if array.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller says so; hosts need not align what they pack.
    unsafe { array.add(index).read_unaligned() }
}

/// A copy of `text` that the host frees with `free`, and its length without the NUL.
pub fn host_owned_text(text: &str) -> (*mut u8, i32) {
    let length = text.len().min(i32::MAX as usize - 1);
    // SAFETY: malloc gives NULL or room for the text and a NUL.
    unsafe {
        let copy = libc::malloc(length + 1).cast::<u8>();
        if copy.is_null() {
            return (copy, 0);
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), copy, length);
        copy.add(length).write(0);
        (copy, length as i32)
    }
}

/// Sends an event through the host's function.
pub fn send_event(callback: LogXEvent, extension: &str, session: (SqlGuid, u16), level: u16, code: i32, text: &str) {
    let (name, message) = (extension.as_bytes(), text.as_bytes());
    let (id, task) = session;
    // SAFETY: the host gave the function for this; both texts are valid for the call, with their lengths.
    unsafe {
        callback(name.as_ptr(), name.len() as u64, id, task, level, code, message.as_ptr(), message.len() as u64);
    }
}

/// Bytes of freed memory that the process keeps for the next batch.
const KEPT_BYTES: i32 = 64 << 20;

/// Keeps freed memory: each batch takes what the one before gave back, and the system would have to clear it each time,
/// which takes longer than to fill it. The process lives for one query.
pub fn keep_freed_memory() {
    // SAFETY: mallopt may be called at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_with_their_text() {
        let said = guard_and_tell("Execute", None, || panic!("no such {}", "thing"));
        assert_eq!(said.as_deref(), Some("internal error in Execute: no such thing"));
        assert_eq!(guard("Execute", None, || panic!("no")), SQL_ERROR);
        assert_eq!(guard("Execute", None, || Ok(())), SQL_SUCCESS);
    }

    #[test]
    fn texts_for_the_host_end_in_nul() {
        let (text, length) = host_owned_text("größe");
        // SAFETY: the text has so many bytes and a NUL, and malloc gave it.
        unsafe {
            assert_eq!(std::ffi::CStr::from_ptr(text.cast()).to_str(), Ok("größe"));
            libc::free(text.cast());
        }
        assert_eq!(length, 7);
    }
}
