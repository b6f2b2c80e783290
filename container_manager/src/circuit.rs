//! How often the replicas of an image have ended by themselves, and when the next one may be started.
//!
//! ```text
//!          ends by itself           pause > LONGEST_WAIT
//!  Closed ───────────────▶ Pausing ─────────────────────▶ Open: an error until the pause is over
//!     ▲                       │                             │
//!     └───────────────────────┴── a lease ends in order, or a replica lives for LONG_LIFE
//! ```

use std::time::{Duration, Instant};

use udf_client::control::CircuitInfo;
use udf_types::{Error, Kind};

/// Whoever wants a replica waits for so long, and gets an error if it would be longer.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A replica that was there for so long before it ended has started well.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// So many may end in a row without a pause: a query whose row ends its replica is tried three times.
const FREE_ENDINGS: u32 = 3;
/// Replicas that end while somebody has a lease may end of what they are sent: as many such endings alone make no longer pause.
/// Whoever may call a function could keep others from it otherwise.
const MOST_IN_USE: u32 = FREE_ENDINGS + 2;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Nobody waits for a replica that is only kept warm.
const PREWARM_FIRST_PAUSE: Duration = Duration::from_secs(1);
const PREWARM_START_PAUSE: Duration = Duration::from_secs(30);

/// The endings of one image's replicas.
#[derive(Debug, Default)]
pub struct Circuit {
    /// Since the last one that did well.
    endings: u32,
    closed_at: Option<Instant>,
    prewarm_at: Option<Instant>,
    /// How the last one ended, as whole sentences, and what it wrote.
    last: String,
    /// Whether the last one had answered, so that what it wrote may be of somebody's calls.
    had_answered: bool,
}

impl Circuit {
    /// A replica ended that lived for so long, none if it never answered; it was in use if somebody had a lease on it.
    pub fn note_ending(&mut self, lived: Option<Duration>, was_in_use: bool, last: &str) {
        if lived.is_some_and(|lived| lived >= LONG_LIFE) {
            self.endings = 0;
        }
        if !was_in_use || self.endings < MOST_IN_USE {
            self.endings = self.endings.saturating_add(1);
        }
        let now = Instant::now();
        self.closed_at = self.endings.checked_sub(FREE_ENDINGS + 1).map(|more| now + growing(FIRST_PAUSE, more));
        let prewarm_pause = growing(PREWARM_FIRST_PAUSE, self.endings - 1);
        let least = if lived.is_none() { PREWARM_START_PAUSE } else { Duration::ZERO };
        self.prewarm_at = Some(now + prewarm_pause.max(least));
        self.last = last.to_string();
        self.had_answered = lived.is_some();
    }

    /// How long nobody gets a new replica; none if one may be started now.
    pub fn wait(&self) -> Option<Duration> {
        let left = self.closed_at?.saturating_duration_since(Instant::now());
        (left > Duration::ZERO).then_some(left)
    }

    /// Whether a replica may be started that nobody waits for.
    pub fn may_prewarm(&self) -> bool {
        self.prewarm_at.is_none_or(|at| at <= Instant::now())
    }

    /// The circuit as it is shown. How the last one ended comes with what it wrote only if `shows_log`.
    pub fn info(&self, image: &str, digest: &str, shows_log: bool) -> CircuitInfo {
        let wait = self.wait();
        let state = match wait {
            None => "closed",
            Some(wait) if wait <= LONGEST_WAIT => "pausing",
            Some(_) => "open",
        };
        CircuitInfo {
            image: image.to_string(),
            digest: digest.to_string(),
            state: state.to_string(),
            endings: self.endings,
            wait_s: wait.map_or(0, |wait| wait.as_secs() + 1),
            last: if shows_log { self.last.clone() } else { self.fate().to_string() },
        }
    }

    /// How the last one ended, without what it wrote.
    fn fate(&self) -> &str {
        self.last.lines().next().unwrap_or_default()
    }

    /// What those are told who want a replica of the image meanwhile: also what it wrote, if that was before any call.
    pub fn refusal(&self, image: &str) -> Error {
        let last = if self.had_answered { self.fate() } else { &self.last };
        let seconds = self.wait().unwrap_or_default().as_secs() + 1;
        let message = format!("no container of image \"{image}\" is started for another {seconds} s");
        Error::new(Kind::ContainerFailed, message)
            .with_detail(format!("The last {} ended soon after their start. {last}", self.endings))
            .with_hint("See \"transship logs\", and mend the image.")
    }
}

/// `first`, doubled so often, but not without end.
fn growing(first: Duration, doublings: u32) -> Duration {
    first.saturating_mul(1 << doublings.min(20)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_each_ending_in_a_row() {
        let mut circuit = Circuit::default();
        let mut waits = Vec::new();
        for _ in 0..40 {
            circuit.note_ending(Some(Duration::from_secs(1)), false, "It exited with status 1.");
            waits.push(circuit.wait().unwrap_or_default().as_secs_f64().ceil() as u64);
        }
        assert_eq!(waits[..11], [0, 0, 0, 1, 1, 1, 2, 4, 8, 16, 32]);
        assert_eq!(waits[39], LONGEST_PAUSE.as_secs());
        let info = circuit.info("i:1", "sha256:1", true);
        assert_eq!((info.state.as_str(), info.endings, info.wait_s), ("open", 40, 300));
        assert_eq!(info.last, "It exited with status 1.");
        let error = circuit.refusal("i:1");
        assert_eq!(error.message(), "no container of image \"i:1\" is started for another 300 s");
        assert!(error.detail().unwrap().contains("The last 40 ended soon") && !circuit.may_prewarm());
        // One that did well for a while ends the series.
        circuit.note_ending(Some(LONG_LIFE), false, "It was killed.");
        assert_eq!((circuit.wait(), circuit.endings), (None, 1));
        // What a container writes is not for everybody.
        circuit.note_ending(Some(LONG_LIFE), false, "It exited.\nthe password is x");
        let last = |shows_log| circuit.info("i:1", "sha256:1", shows_log).last;
        assert_eq!((last(false).as_str(), last(true).as_str()), ("It exited.", "It exited.\nthe password is x"));
        assert_eq!(circuit.info("i:1", "sha256:1", true).state, "closed");
        // Nor is it for those who wait, unless no call can have written it.
        let detail = |circuit: &Circuit| circuit.refusal("i:1").detail().unwrap().to_string();
        assert_eq!(detail(&circuit), "The last 1 ended soon after their start. It exited.");
        circuit.note_ending(None, false, "It exited.\nno module named x");
        assert_eq!(detail(&circuit), "The last 2 ended soon after their start. It exited.\nno module named x");
    }

    #[test]
    fn calls_that_end_their_replicas_make_short_pauses() {
        let mut circuit = Circuit::default();
        for _ in 0..40 {
            circuit.note_ending(Some(Duration::ZERO), true, "It was killed.");
        }
        assert!(circuit.wait().unwrap() <= Duration::from_millis(500));
        assert_eq!(circuit.info("i:1", "sha256:1", true).state, "pausing");
    }
}
