//! Lines that a handler writes while it answers a batch, on their way to the caller (`docs/protocol.md` §4.11).
//!
//! Over HTTP, a request asks for them with the field [`LINES`], and the reply has them in a field of the same name: base64 of a
//! JSON array of texts. Over Flight they are a member of the reply's metadata.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use udf_types::terminal::printable;

/// The field of HTTP and of gRPC's metadata, and the value with which a client asks.
pub const LINES: &str = "transship-lines";
/// The value with which a client asks for lines.
pub const WANTED: &str = "yes";
/// Most lines of one batch.
pub const MAX_LINES: usize = 100;
/// Most bytes of one line.
pub const MAX_LINE_BYTES: usize = 1000;
/// Most bytes of all lines of a batch in JSON. The field then has less than the 8 KiB that readers of HTTP commonly allow.
const MAX_BYTES: usize = 5500;

/// The lines of one batch, on the server's side.
#[derive(Debug, Default)]
pub struct Lines {
    texts: Vec<String>,
    bytes: usize,
    left_out: usize,
}

impl Lines {
    /// Adds a line, as long as there is room for it. A long one is cut.
    pub fn add(&mut self, line: &str) {
        if self.left_out > 0 || self.texts.len() == MAX_LINES {
            self.left_out += 1;
            return;
        }
        let mut text = line[..line.floor_char_boundary(MAX_LINE_BYTES)].to_string();
        if text.len() < line.len() {
            text.push_str("...");
        }
        let bytes = serde_json::to_string(&text).expect("a text is JSON").len() + 1;
        if self.bytes + bytes > MAX_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += bytes;
        self.texts.push(text);
    }

    /// The lines, with one at the end that says how many more there were; empty if nothing was written.
    pub fn into_texts(mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.texts.push(format!("[{} more lines are in the container's log]", self.left_out));
        }
        self.texts
    }

    /// The value of the field of a reply; none if nothing was written.
    pub fn into_field(self) -> Option<String> {
        let texts = self.into_texts();
        (!texts.is_empty()).then(|| BASE64.encode(serde_json::to_string(&texts).expect("texts are JSON")))
    }
}

/// The lines in the field of a reply.
///
/// # Errors
/// If they are not of the form that [`Lines::into_field`] gives.
pub fn read_field(field: &[u8]) -> Result<Vec<String>, String> {
    let text = BASE64.decode(field).map_err(|cause| cause.to_string())?;
    serde_json::from_slice(&text).map_err(|cause| cause.to_string())
}

/// Foreign lines as they can be shown: not more than there may be, none too long, and none that commands a terminal.
pub fn shown(lines: &[String]) -> Vec<String> {
    let line = |line: &String| printable(&line[..line.floor_char_boundary(MAX_LINE_BYTES + 3)]).replace('\n', "\\n");
    // One more says how many were left out.
    lines.iter().take(MAX_LINES + 1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(lines: &[&str]) -> Vec<String> {
        let mut found = Lines::default();
        lines.iter().for_each(|line| found.add(line));
        found.into_field().map(|field| read_field(field.as_bytes()).unwrap()).unwrap_or_default()
    }

    #[test]
    fn lines_travel_as_they_were_written() {
        assert_eq!(sent(&["one", "", "größer\t🚢"]), ["one", "", "größer\t🚢"]);
        assert_eq!(Lines::default().into_field(), None);
    }

    #[test]
    fn lines_are_bounded_in_number_length_and_sum() {
        let many = sent(&vec!["x"; 1000]);
        assert_eq!(
            (many.len(), many[MAX_LINES].as_str()),
            (MAX_LINES + 1, "[900 more lines are in the container's log]")
        );
        let long = sent(&[&"é".repeat(MAX_LINE_BYTES)]);
        assert!(long[0].len() <= MAX_LINE_BYTES + 3 && long[0].ends_with("é..."));
        for line in ["\u{1}".repeat(MAX_LINE_BYTES), "x".repeat(MAX_LINE_BYTES)] {
            let mut lines = Lines::default();
            (0..1000).for_each(|_| lines.add(&line));
            assert!(lines.into_field().unwrap().len() < 8 << 10);
        }
    }

    #[test]
    fn no_line_commands_a_terminal() {
        assert_eq!(
            shown(&["\u{1b}[2Jred\u{9b}1m\r\n\0\ttail".to_string()]),
            ["\\u{1b}[2Jred\\u{9b}1m\\r\\n\\u{0}\ttail"]
        );
        let endless = shown(&vec!["\u{1}".repeat(1 << 20); 10_000]);
        assert!(endless.len() == MAX_LINES + 1 && endless.iter().all(|line| line.len() < 6 * (MAX_LINE_BYTES + 3)));
    }

    #[test]
    fn a_field_of_another_form_is_refused() {
        for field in ["", "!", "W10", "eyJhIjoxfQ==", "WzFd"] {
            assert!(read_field(field.as_bytes()).is_err(), "{field}");
        }
        assert_eq!(read_field(b"W10=").unwrap(), Vec::<String>::new());
    }
}
