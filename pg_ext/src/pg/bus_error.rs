//! SIGBUS in the files of shared tables: the page of a mapped file cannot be read, because the disk fails or somebody has shortened the file.
//!
//! PostgreSQL has no handler for the signal. The process would die, and the whole server would restart. Instead, the session ends, as it does
//! if an administrator ends it. The signal interrupts an instruction that reads the file, and not one that changes the server's memory,
//! which is why errors may be raised here as PostgreSQL itself raises them for SIGFPE.

use std::ffi::{c_int, c_void};
use std::sync::{Once, OnceLock};

use nix::libc::{SIG_DFL, siginfo_t, signal};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{getpid, gettid};
use pgrx::PgSqlErrorCode;

/// What the path of each file has in it.
const FILES: &str = "transship-tables.";

/// What handled the signal before.
static BEFORE: OnceLock<SigAction> = OnceLock::new();

/// Has the process handle the signal from now on.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let action = SigAction::new(SigHandler::SigAction(handle), SaFlags::SA_SIGINFO, SigSet::empty());
        // SAFETY: the handler is sound for a signal that an instruction has raised; see there.
        if let Ok(before) = unsafe { sigaction(Signal::SIGBUS, &action) } {
            // Nobody else sets it.
            let _ = BEFORE.set(before);
        }
    });
}

/// Ends the session if its own thread has read a file of a shared table. Otherwise the signal does what it would do without this.
extern "C" fn handle(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes what it knows of the signal.
    let address = unsafe { (*info).si_addr() } as usize;
    if gettid() == getpid() && is_of_table(address) {
        pgrx::ereport!(
            FATAL,
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            "could not read a mapped file of a shared table",
            "The disk has failed, or the file was shortened."
        );
    }
    // SAFETY: the instruction raises the signal again, now for what handled it before.
    unsafe {
        match BEFORE.get() {
            Some(before) => drop(sigaction(Signal::SIGBUS, before)),
            None => drop(signal(nix::libc::SIGBUS, SIG_DFL)),
        }
    }
}

/// Whether an address lies in the map of a shared table's file. The instruction that was interrupted reads that file, and so it holds no
/// lock of the allocator.
fn is_of_table(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains(FILES)).any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range.and_then(|(start, end)| Some((number(start)?..number(end)?).contains(&address))).unwrap_or(false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_in_files_of_tables_are_found() {
        let folder = std::env::temp_dir().join(format!("{FILES}test.{}", getpid()));
        std::fs::write(&folder, [0; 4096]).unwrap();
        let file = std::fs::File::open(&folder).unwrap();
        // SAFETY: nobody writes to the file.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file).unwrap() };
        std::fs::remove_file(&folder).unwrap();
        let start = map.as_ptr() as usize;
        assert!(is_of_table(start) && is_of_table(start + 4095));
        assert!(!is_of_table(start + 4096) && !is_of_table(&raw const start as usize));
    }
}
