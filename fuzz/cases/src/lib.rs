//! What the fuzzers do with an input, and what must hold of it: no panic that nobody catches, no more memory than
//! `docs/security.md` promises, values that come back as they went, and nothing accepted that is not what it says it is.
//!
//! An input is bytes that anybody may have written; [`arbitrary::Unstructured`] makes types, columns and changes of messages
//! out of them, so that mutations get behind the first check. `fuzz/fuzz_targets` runs the cases under libFuzzer, and
//! `tests/corpus.rs` replays the committed inputs.

mod cached;
mod calls;
mod generate;
mod host;
mod memory;
mod replies;
mod segments;
mod texts;

use std::cell::RefCell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// What is done with an input.
pub type Case = fn(&[u8]);

/// The cases by name.
pub const CASES: [(&str, Case); 21] = [
    ("flight_calls", calls::flight_calls),
    ("flight_reply", replies::flight_reply),
    ("flight_schema", replies::flight_schema),
    ("json_reply", replies::json_reply),
    ("dialect_reply", replies::dialect_reply),
    ("error_reply", replies::error_reply),
    ("columns", replies::columns),
    ("parquet", replies::parquet),
    ("type_text", texts::type_text),
    ("manifest", texts::manifest),
    ("described", texts::described),
    ("function_body", texts::function_body),
    ("reference", texts::reference),
    ("allow_list", texts::allow_list),
    ("control", texts::control),
    ("script", host::script),
    ("host_columns", host::host_columns),
    ("library", host::library),
    ("cached_results", cached::cached_results),
    ("cache_messages", cached::cache_messages),
    ("segment", segments::segment),
];

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static NOTED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What is said of the next input if it breaks something.
pub fn note(text: String) {
    NOTED.with(|noted| *noted.borrow_mut() = text);
}

/// Runs a case. Panics that the project catches, of libraries, are none of the case's; any other ends the process.
///
/// # Panics
/// If there is no case of that name.
pub fn run(name: &str, input: &[u8]) {
    static HOOK: Once = Once::new();
    // libFuzzer's own hook ends the process at every panic.
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| LAST_PANIC.with(|last| *last.borrow_mut() = panic.to_string())));
    });
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("the case exists");
    if catch_unwind(AssertUnwindSafe(|| case(input))).is_err() {
        // Not as output of a test, which is lost with the process.
        let said = [&LAST_PANIC, &NOTED].map(|text| text.with(|text| text.borrow().clone()));
        let _ = writeln!(std::io::stderr(), "{name}: {}\n{}", said[0], said[1]);
        std::process::abort();
    }
}
