//! Lines that a handler writes while it answers a batch, for a client that asks for them (`docs/protocol.md` §4.11).
//!
//! A batch is answered on one thread, which holds its lines meanwhile. So no caller gets lines of another's batch.

use std::cell::RefCell;

use udf_codec::lines::Lines;

thread_local! {
    /// Those of the batch that this thread answers, if they are wanted.
    static LINES: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

/// Writes a line for the caller of the batch that this thread answers; nothing if the caller does not ask for lines. A line
/// break begins another line.
pub fn write_line(text: &str) {
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            text.split('\n').for_each(|line| lines.add(line));
        }
    });
}

/// Whether the caller of the batch that this thread answers asks for lines.
pub(crate) fn are_wanted() -> bool {
    LINES.with_borrow(Option::is_some)
}

/// Answers a batch, and returns the lines that were written and not yet taken; those of a caller who does not ask are not kept.
pub(crate) fn collecting<T>(are_wanted: bool, answer: impl FnOnce() -> T) -> (T, Lines) {
    LINES.set(are_wanted.then(Lines::default));
    let answered = answer();
    (answered, LINES.take().unwrap_or_default())
}

/// Takes what was written so far.
pub(crate) fn take() -> Vec<String> {
    LINES.with_borrow_mut(|lines| lines.as_mut().map(std::mem::take)).unwrap_or_default().into_texts()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_ask_get_lines_and_only_their_own() {
        write_line("of nobody");
        let ((), lines) = collecting(true, || {
            assert!(are_wanted());
            write_line("one\ntwo");
            assert_eq!(take(), ["one", "two"]);
            std::thread::spawn(|| write_line("of another thread")).join().unwrap();
            write_line("three");
        });
        assert_eq!(lines.into_texts(), ["three"]);
        write_line("after it");
        let ((), lines) = collecting(false, || {
            assert!(!are_wanted());
            write_line("not asked for");
        });
        assert_eq!(lines.into_texts(), Vec::<String>::new());
    }
}
