//! What happens, in lines that one can read, and in a number that tells one run from another.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use crate::kernel;

/// The lines that are shown when a run fails.
const KEPT_LINES: usize = 2_000;

#[derive(Default)]
struct Trace {
    lines: VecDeque<String>,
    digest: u64,
    count: u64,
    is_shown: bool,
    names: BTreeMap<usize, String>,
    /// What processes have written since their last ends of lines.
    unfinished: BTreeMap<usize, Vec<u8>>,
}

thread_local! {
    static TRACE: RefCell<Trace> = RefCell::new(Trace { digest: 0xcbf2_9ce4_8422_2325, ..Trace::default() });
}

/// Adds a line.
pub fn note(line: impl std::fmt::Display) {
    let now = kernel::now();
    let line = format!("{:>5}.{:06} {line}", now.as_secs(), now.subsec_micros());
    TRACE.with_borrow_mut(|trace| {
        for byte in line.bytes() {
            trace.digest = (trace.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        trace.count += 1;
        if trace.is_shown {
            println!("{line}");
            return;
        }
        trace.lines.push_back(line);
        if trace.lines.len() > KEPT_LINES {
            trace.lines.pop_front();
        }
    });
}

/// Shows every line at once.
pub fn show() {
    TRACE.with_borrow_mut(|trace| trace.is_shown = true);
}

/// Names a process.
pub fn name(process: usize, name: &str) {
    TRACE.with_borrow_mut(|trace| trace.names.insert(process, name.to_string()));
}

/// Takes what a process writes to its standard error.
pub fn note_words(process: usize, bytes: &[u8]) {
    let lines = TRACE.with(|trace| {
        // What panics here has no trace.
        let Ok(mut trace) = trace.try_borrow_mut() else { return Vec::new() };
        let trace = &mut *trace;
        let unfinished = trace.unfinished.entry(process).or_default();
        unfinished.extend_from_slice(bytes);
        let name = trace.names.get(&process).cloned().unwrap_or_default();
        let mut lines = Vec::new();
        while let Some(end) = unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unfinished.drain(..=end).collect();
            lines.push(format!("{name} says: {}", String::from_utf8_lossy(&line[..end])));
        }
        lines
    });
    lines.into_iter().for_each(note);
}

/// The last lines, the number of all, and the number that stands for them.
pub fn take() -> (Vec<String>, u64, u64) {
    TRACE.with_borrow_mut(|trace| (trace.lines.drain(..).collect(), trace.count, trace.digest))
}
