//! Whether looking results up pays: what calls take against what look-ups take.

use std::time::Duration;

use super::message::CallCost;
use crate::pace::Pace;

/// What a look-up takes at least, in microseconds: two messages, and two processes that wake each other.
const LOOK_UP_US: f64 = 30.0;
/// What it takes for each row, before that was measured.
const ROW_US: f64 = 1.0;
/// With fewer rows, the time of a look-up does not tell what one takes.
const SURE_LOOK_UP: usize = 1024;
/// So many calls at a time tell what one takes; with fewer, the way there and back hides it.
const SURE_CALLS: usize = 4096;
/// How many times as much as the look-up calls must take: results that are not found are looked up, called and kept.
const LEAST_GAIN: f64 = 1.25;
/// How many times as much as a wait for results the calls take that it may spare.
const LEAST_CALLS_PER_WAIT: f64 = 10.0;
/// Longest that the calls of one batch should take, if some results are not found.
const LONGEST_BATCH_US: f64 = 1e6;

/// What a session knows of a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Worth {
    /// What a call takes, in microseconds.
    call_us: f64,
    /// Rows of the batch by which that is known; 0 if it is not.
    known_by: usize,
    /// What a look-up takes for each row, in microseconds.
    row_us: f64,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth { call_us: 0.0, known_by: 0, row_us: ROW_US }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times need not be exact"
)]
impl Worth {
    /// Whether looking up so many rows pays, as far as is known.
    pub(super) fn pays(&self, rows: usize) -> bool {
        let price_us = LOOK_UP_US + self.row_us * rows as f64;
        self.known_by == 0 || self.call_us * rows as f64 > LEAST_GAIN * price_us
    }

    /// How long so many rows may be waited for at least: a small part of what their calls would take.
    pub(super) fn patience(&self, rows: usize) -> Duration {
        // What a few calls took says nothing of many.
        let is_known = self.known_by >= Pace::FIRST_ROWS;
        if is_known {
            Duration::from_micros((self.call_us * rows as f64 / LEAST_CALLS_PER_WAIT) as u64)
        } else {
            Duration::ZERO
        }
    }

    /// Notes that so many rows were looked up in that time.
    pub(super) fn note_look_up(&mut self, rows: usize, time: Duration) {
        if rows >= SURE_LOOK_UP {
            let row_us = (time.as_secs_f64() * 1e6 - LOOK_UP_US).max(0.0) / rows as f64;
            // Once the machine is busy elsewhere, as with what was just forgotten, says little, however long it takes.
            self.row_us += (row_us.min(2.0 * self.row_us) - self.row_us) / 4.0;
        }
    }

    /// Notes that so many calls took that time.
    pub(super) fn note_calls(&mut self, rows: usize, time: Duration) {
        if rows > 0 && !time.is_zero() && rows >= self.known_by.min(SURE_CALLS) {
            (self.call_us, self.known_by) = (time.as_secs_f64() * 1e6 / rows as f64, rows);
        }
    }

    /// Notes what others have found.
    pub(super) fn note_cost(&mut self, cost: CallCost) {
        let known_by = cost.known_by as usize;
        if known_by > 0 && known_by.min(SURE_CALLS) > self.known_by.min(SURE_CALLS) {
            (self.call_us, self.known_by) = (cost.ns as f64 / 1000.0, known_by);
        }
    }

    /// What others should know.
    pub(super) fn cost(&self) -> CallCost {
        CallCost { ns: (self.call_us * 1000.0) as u64, known_by: u32::try_from(self.known_by).unwrap_or(u32::MAX) }
    }

    /// Most calls that are sent in one batch: rows that were found let batches grow, and then the next may have none. What a few calls
    /// took says nothing of many, which a handler may answer side by side.
    pub(super) fn most_calls(&self) -> usize {
        match self.known_by >= Pace::FIRST_ROWS {
            false => usize::MAX,
            true => ((LONGEST_BATCH_US / self.call_us) as usize).max(Pace::FIRST_ROWS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn look_ups_pay_for_dear_functions_only() {
        let mut worth = Worth::default();
        assert!(worth.pays(1) && worth.pays(10_000) && worth.most_calls() == usize::MAX);
        // 10 us per row.
        worth.note_calls(10_000, us(100_000));
        assert!(worth.pays(10_000) && worth.pays(128) && !worth.pays(1));
        assert_eq!(worth.most_calls(), 100_000);
        // A small batch says less.
        worth.note_calls(128, us(1));
        assert!(worth.pays(10_000));
        // It became cheap.
        worth.note_calls(5_000, us(500));
        assert!(!worth.pays(10_000) && !worth.pays(128));
        // 5 ms per row.
        worth.note_calls(10_000, us(50_000_000));
        assert!(worth.pays(1));
        assert_eq!(worth.most_calls(), 200);
        // A second per row.
        worth.note_calls(10_000, us(10_000_000_000));
        assert_eq!(worth.most_calls(), Pace::FIRST_ROWS);
    }

    #[test]
    fn dear_calls_are_worth_a_wait() {
        let mut worth = Worth::default();
        assert_eq!(worth.patience(1000), Duration::ZERO);
        // 5 ms per row.
        worth.note_calls(200, us(1_000_000));
        assert_eq!(worth.patience(1000), us(500_000));
    }

    #[test]
    fn what_a_single_call_took_divides_no_batch() {
        let mut worth = Worth::default();
        worth.note_calls(1, us(1_000_000));
        assert_eq!(worth.most_calls(), usize::MAX);
        let mut told = Worth::default();
        told.note_cost(worth.cost());
        assert_eq!(told.most_calls(), usize::MAX);
    }

    #[test]
    fn what_others_say_counts_if_it_is_surer() {
        let cheap = CallCost { ns: 100, known_by: 10_000 };
        let mut worth = Worth::default();
        worth.note_cost(CallCost::default());
        assert!(worth.pays(1000));
        worth.note_cost(cheap);
        assert!(!worth.pays(1000));
        assert_eq!(worth.cost(), cheap);
        let mut own = Worth::default();
        own.note_calls(4096, us(4_096_000));
        own.note_cost(cheap);
        assert!(own.pays(1000));
    }

    #[test]
    fn slow_look_ups_must_save_more() {
        let mut worth = Worth::default();
        worth.note_calls(10_000, us(50_000));
        assert!(worth.pays(10_000));
        (0..20).for_each(|_| worth.note_look_up(10_000, us(45_000)));
        assert!(!worth.pays(10_000));
        let slow = worth;
        worth.note_look_up(1, us(1_000_000));
        assert_eq!(worth, slow);
        let mut worth = Worth::default();
        worth.note_calls(10_000, us(50_000));
        worth.note_look_up(10_000, us(1_000_000));
        assert!(worth.pays(10_000));
    }
}
