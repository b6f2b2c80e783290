//! What a build says while it runs, on its way to whoever waits for the build. A build never waits for that reader: what is not
//! read in time is left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Most bytes that wait to be read.
const MOST_WAITING: usize = 4 << 20;
/// Longest piece of a line that waits for its end.
const MOST_OF_LINE: usize = 16 << 10;
/// Stands for what was left out.
const LEFT_OUT: &str = "[...]\n";

/// Where a build says something; nobody hears the default.
#[derive(Debug, Clone, Default)]
pub struct Progress(Option<Arc<Teller>>);

#[derive(Debug)]
struct Teller {
    /// None is the end.
    sender: UnboundedSender<Option<String>>,
    waiting: Arc<AtomicUsize>,
    has_left_out: AtomicBool,
}

/// Where it is heard.
#[derive(Debug)]
pub struct Heard {
    receiver: UnboundedReceiver<Option<String>>,
    waiting: Arc<AtomicUsize>,
}

/// Both ends.
pub fn progress() -> (Progress, Heard) {
    let ((sender, receiver), waiting) = (unbounded_channel(), Arc::<AtomicUsize>::default());
    let teller = Teller { sender, waiting: waiting.clone(), has_left_out: AtomicBool::new(false) };
    (Progress(Some(Arc::new(teller))), Heard { receiver, waiting })
}

impl Progress {
    /// Whether anybody hears it.
    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Says something, unless too much waits to be read.
    pub fn tell(&self, text: String) {
        let Some(teller) = &self.0 else { return };
        if teller.waiting.load(Relaxed) + text.len() > MOST_WAITING {
            teller.has_left_out.store(true, Relaxed);
            return;
        }
        let text = if teller.has_left_out.swap(false, Relaxed) { LEFT_OUT.to_string() + &text } else { text };
        teller.waiting.fetch_add(text.len(), Relaxed);
        // Nobody may hear it any more.
        let _ = teller.sender.send(Some(text));
    }

    /// Whatever is said later is not heard, even if a program goes on to write.
    pub fn end(&self) {
        let _ = self.0.as_ref().map(|teller| teller.sender.send(None));
    }

    /// Says the lines of a text that comes in pieces.
    pub fn lines(&self) -> Lines {
        Lines { progress: self.clone(), begun: Vec::new() }
    }
}

impl Heard {
    /// What was said next; none at the end.
    pub async fn next(&mut self) -> Option<String> {
        let text = self.receiver.recv().await??;
        self.waiting.fetch_sub(text.len(), Relaxed);
        Some(text)
    }
}

/// Lines that come in pieces. Dropping this says the last one, whose end has not come.
#[derive(Debug)]
pub struct Lines {
    progress: Progress,
    begun: Vec<u8>,
}

impl Lines {
    /// Says the lines that end in this piece.
    pub fn add(&mut self, piece: &[u8]) {
        if !self.progress.is_heard() {
            return;
        }
        self.begun.extend_from_slice(piece);
        let whole = match self.begun.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.begun.len() >= MOST_OF_LINE => self.begun.len(),
            None => return,
        };
        self.progress.tell(String::from_utf8_lossy(&self.begun[..whole]).into_owned());
        self.begun.drain(..whole);
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            self.progress.tell(String::from_utf8_lossy(&self.begun).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(mut heard: Heard) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        std::iter::from_fn(|| runtime.block_on(heard.next())).collect()
    }

    #[test]
    fn lines_stay_whole() {
        let (progress, heard) = progress();
        let mut lines = progress.lines();
        for piece in ["a", "b\nc\nd", "\u{e4}"] {
            lines.add(piece.as_bytes());
        }
        lines.add(&"\u{e4}".as_bytes()[..1]);
        lines.add(&"\u{e4}".as_bytes()[1..]);
        drop(lines);
        progress.end();
        progress.tell("late".to_string());
        assert_eq!(all_of(heard), ["ab\nc\n", "d\u{e4}\u{e4}"]);
        let nobody = Progress::default();
        nobody.lines().add(b"x\n");
        assert!(!nobody.is_heard());
    }

    #[test]
    fn what_is_not_read_in_time_is_left_out() {
        let (progress, mut heard) = progress();
        let piece = "x".repeat(MOST_WAITING / 4);
        (0..9).for_each(|_| progress.tell(piece.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(heard.next()).unwrap().len(), piece.len());
        progress.tell("y\n".to_string());
        progress.end();
        let rest = all_of(heard);
        assert_eq!((rest.len(), rest[3].as_str()), (4, "[...]\ny\n"));
        // A line without an end does not wait for ever.
        let (progress, heard) = super::progress();
        progress.lines().add(&[b'x'; MOST_OF_LINE]);
        progress.end();
        assert_eq!(all_of(heard).len(), 1);
    }
}
