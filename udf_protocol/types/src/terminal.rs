//! Text that containers, images and servers have written, as it may be shown.

use std::borrow::Cow;

/// Most characters of a label that a message of the manager has.
const MOST_QUOTED: usize = 500;

/// Escapes control characters, which a terminal takes for commands, except for the ends of lines and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

/// The beginning of a text, in a line.
pub fn quoted(text: &str) -> String {
    let beginning: String = text.chars().take(MOST_QUOTED).collect();
    let cut = if beginning.len() < text.len() { "..." } else { "" };
    format!("{}{cut}", printable(&beginning).replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_commands_the_terminal() {
        assert_eq!(printable("grün\t1\nline\n"), "grün\t1\nline\n");
        assert_eq!(printable("\u{1b}]0;owned\u{7}\r\u{9b}2J"), "\\u{1b}]0;owned\\u{7}\\r\\u{9b}2J");
    }

    #[test]
    fn a_label_is_quoted_in_part() {
        assert_eq!(quoted("a\nb\u{1b}"), "a b\\u{1b}");
        assert_eq!(quoted(&"ä".repeat(600)), "ä".repeat(MOST_QUOTED) + "...");
    }
}
