//! The planner's test mode: ordinary functions are lifted as container functions are, and the backend answers them itself.
//!
//! PostgreSQL's own regression suite calls no container, but thousands of functions. In a library with this feature, which no
//! release has, their calls go through the same surgery, the same node and the same conversion to columns and back; only
//! the exchange is another ([`stream`]). The suite must give what it gives with nothing lifted
//! (`tests/core_regression.sh`).
//!
//! Two variables of the server's environment rule it. `TRANSSHIP_LIFT` is `user`, for functions that a user has made, or
//! `all`; with any other value nothing is lifted. `TRANSSHIP_LIFT_LOG` is a file to which each session appends its name
//! and how many calls it has lifted.

mod operators;
pub mod stream;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::sync::OnceLock;

use pgrx::{pg_guard, pg_sys};

pub use operators::name_operators;

use crate::function::{Function, Role};
use crate::pg::catalog;

/// Sets without an end, which a plan asks for one row after the other, where the answer here is a whole set: both forms of
/// generate_series for timestamps (pg_proc.dat).
const ENDLESS: [u32; 2] = [938, 939];

/// Oids below this one are PostgreSQL's own objects (access/transam.h).
const FIRST_NORMAL_OID: u32 = 16_384;

/// Which functions are lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    None,
    User,
    All,
}

type Version = (u32, u32, u16);

thread_local! {
    static MAY_LIFT: RefCell<HashMap<pg_sys::Oid, (Version, bool)>> = RefCell::default();
    static LIFTED: Cell<u64> = const { Cell::new(0) };
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("TRANSSHIP_LIFT").as_deref() {
        Ok("user") => Level::User,
        Ok("all") => Level::All,
        _ => Level::None,
    })
}

/// Whether a function is lifted: it is one that could be a container function, by its types.
pub fn may_lift(oid: pg_sys::Oid) -> bool {
    let is_in_level = match level() {
        Level::None => false,
        Level::User => oid.to_u32() >= FIRST_NORMAL_OID,
        Level::All => !ENDLESS.contains(&oid.to_u32()),
    };
    let Some((_, version)) = catalog::proc_version(oid).filter(|_| is_in_level) else { return false };
    if let Some(known) = MAY_LIFT.with_borrow(|known| known.get(&oid).copied())
        && known.0 == version
    {
        return known.1;
    }
    let row = catalog::read_proc(oid);
    let may_lift = row.is_some_and(|row| Function::of_ordinary(row).is_ok_and(|found| found.role == Role::Direct));
    MAY_LIFT.with_borrow_mut(|known| known.insert(oid, (version, may_lift)));
    may_lift
}

/// Whether the statement that is planned is to be explained: its plan is shown, and must be as PostgreSQL made it.
///
/// # Safety
/// `query_string` is null or a valid C string.
pub unsafe fn is_explained(query_string: *const c_char) -> bool {
    // SAFETY: the caller says so; the other one is the client's statement, while there is one.
    let texts = unsafe { [query_string, pg_sys::debug_query_string] };
    texts.iter().filter(|text| !text.is_null()).any(|text| {
        // SAFETY: as above.
        let mut text = unsafe { CStr::from_ptr(*text) }.to_bytes().trim_ascii_start();
        // Comments that a client sends along.
        for (opens, closes) in [("--", "\n"), ("/*", "*/")].into_iter().cycle().take(8) {
            let end = text.windows(closes.len()).position(|found| found == closes.as_bytes());
            if let Some(end) = end.filter(|_| text.starts_with(opens.as_bytes())) {
                text = text[end + closes.len()..].trim_ascii_start();
            }
        }
        text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case(b"explain"))
    })
}

/// Counts calls that were lifted, and sees to it that the session says how many when it ends.
pub fn count_lifted(calls: usize) {
    if LIFTED.get() == 0 && calls > 0 {
        // SAFETY: the callback is a function of this library, which stays loaded.
        unsafe { pg_sys::on_proc_exit(Some(log_lifted), pg_sys::Datum::from(0usize)) };
    }
    LIFTED.set(LIFTED.get() + calls as u64);
}

#[pg_guard]
unsafe extern "C-unwind" fn log_lifted(_code: i32, _argument: pg_sys::Datum) {
    let Ok(path) = std::env::var("TRANSSHIP_LIFT_LOG") else { return };
    // SAFETY: a setting, which is a C string or null.
    let name = unsafe {
        match pg_sys::application_name.is_null() {
            true => String::new(),
            false => CStr::from_ptr(pg_sys::application_name).to_string_lossy().into_owned(),
        }
    };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        // At once, since other sessions write as well. Nobody to tell if it fails: the run will miss the count.
        let _ = file.write_all(format!("{name} {}\n", LIFTED.get()).as_bytes());
    }
}
