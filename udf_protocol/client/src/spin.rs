//! Waiting without sleep for what comes soon.
//!
//! Waking a processor that sleeps takes longer than a small batch needs to be answered. So a thread that waits for such a batch
//! looks for the answer for a short while before it sleeps, unless somebody else wants its processor: it offers that to others
//! between two looks, and if one of them takes it, the thread sleeps like any other. Where looking was in vain, the next waits
//! go without.

use std::cell::Cell;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread looks at most.
const LONGEST: Duration = Duration::from_micros(100);
/// A processor that was offered and is back later than this was taken.
const TAKEN: Duration = Duration::from_micros(5);
/// After looking in vain once, twice and so on, so many waits go without, as a power of two.
const MOST_DOUBLINGS: u32 = 6;

/// What came of looking before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Past {
    /// How often in a row it was in vain.
    vain: u32,
    /// Waits that go without.
    skipped: u32,
}

/// Whether the one that is awaited has a processor meanwhile.
static HAS_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

thread_local! {
    static PAST: Cell<Past> = const { Cell::new(Past { vain: 0, skipped: 0 }) };
}

impl Past {
    /// Whether this wait may look; counts it.
    fn may_look(&mut self) -> bool {
        let may = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        may
    }

    fn note(&mut self, is_there: bool) {
        self.vain = if is_there { 0 } else { (self.vain + 1).min(MOST_DOUBLINGS) };
        self.skipped = if is_there { 0 } else { 1 << self.vain };
    }
}

/// Returns once `is_there`, or when it is time to sleep.
pub(crate) fn look_for(is_there: impl FnMut() -> bool) {
    let mut past = PAST.get();
    if past.may_look() && *HAS_PROCESSORS {
        past.note(look(is_there, thread::yield_now, Instant::now));
    }
    PAST.set(past);
}

/// Whether it came in time.
fn look(mut is_there: impl FnMut() -> bool, mut offer: impl FnMut(), now: impl Fn() -> Instant) -> bool {
    let start = now();
    let mut before = start;
    loop {
        if is_there() {
            return true;
        }
        offer();
        let after = now();
        if after - before > TAKEN || after - start > LONGEST {
            return is_there();
        }
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that goes on by a microsecond with every offer, and by more with one of them. Whether it came, after how many looks.
    fn looks(comes_at: usize, taken_at: usize) -> (bool, usize) {
        let (start, passed, looks) = (Instant::now(), Cell::new(0), Cell::new(0));
        let is_there = || {
            looks.set(looks.get() + 1);
            looks.get() > comes_at
        };
        let offer = || passed.set(passed.get() + if looks.get() == taken_at { 50 } else { 1 });
        let found = look(is_there, offer, || start + Duration::from_micros(passed.get()));
        (found, looks.get())
    }

    #[test]
    fn a_thread_looks_until_it_comes_or_the_time_is_over_or_somebody_wants_the_processor() {
        assert_eq!(looks(0, 0), (true, 1));
        assert_eq!(looks(20, 0), (true, 21));
        assert_eq!(looks(1000, 0), (false, 102));
        assert_eq!(looks(1000, 3), (false, 4));
        // It may have come while somebody else ran.
        assert_eq!(looks(3, 3), (true, 4));
    }

    #[test]
    fn looking_in_vain_makes_it_rare() {
        let mut past = Past::default();
        let waits_until_next = |past: &mut Past| (0..).take_while(|_| !past.may_look()).count();
        assert_eq!(waits_until_next(&mut past), 0);
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            past.note(false);
            assert_eq!(waits_until_next(&mut past), expected);
        }
        past.note(true);
        assert_eq!(waits_until_next(&mut past), 0);
    }
}
