//! Looks now and then whether the client has gone: looking takes longer than a short row.

use std::time::{Duration, Instant};

use transship_core::{CallError, IsCancelled, check_cancelled};

/// How long rows run after the client has gone, unless a single row takes longer.
const PATIENCE: Duration = Duration::from_millis(5);
/// Rows that pass at most between two looks.
const MOST_ROWS: usize = 256;

/// The rows of one batch, and when to look next.
pub(crate) struct Pace<'a> {
    is_cancelled: IsCancelled<'a>,
    looked: Instant,
    due: usize,
    step: usize,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(is_cancelled: IsCancelled<'a>) -> Pace<'a> {
        Pace { is_cancelled, looked: Instant::now(), due: 0, step: 0 }
    }

    /// Is called before each row, which count from 0.
    ///
    /// # Errors
    /// If the client has gone.
    pub(crate) fn check(&mut self, row: usize) -> Result<(), CallError> {
        if row < self.due {
            return Ok(());
        }
        check_cancelled(0, self.is_cancelled)?;
        let now = Instant::now();
        let is_quick = now.duration_since(self.looked) < PATIENCE;
        self.step = if is_quick { (2 * self.step + 1).min(MOST_ROWS) } else { (self.step / 2).max(1) };
        (self.looked, self.due) = (now, row + self.step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn quick_rows_pass_between_looks() {
        let looks = Cell::new(0);
        let is_cancelled = || {
            looks.set(looks.get() + 1);
            false
        };
        let mut pace = Pace::new(&is_cancelled);
        (0..1000).try_for_each(|row| pace.check(row)).unwrap();
        assert!(looks.get() < 1000, "{}", looks.get());
    }

    #[test]
    fn a_client_that_has_gone_is_noticed_within_the_most_rows() {
        let is_gone = Cell::new(false);
        let is_cancelled = || is_gone.get();
        let mut pace = Pace::new(&is_cancelled);
        for row in 0..1000 {
            pace.check(row).unwrap();
        }
        is_gone.set(true);
        let mut rows_run = 0;
        while pace.check(1000 + rows_run).is_ok() {
            rows_run += 1;
        }
        assert!(rows_run <= MOST_ROWS, "{rows_run}");
    }

    #[test]
    fn each_slow_row_is_followed_by_a_look() {
        let looks = Cell::new(0);
        let is_cancelled = || {
            looks.set(looks.get() + 1);
            false
        };
        let mut pace = Pace::new(&is_cancelled);
        for row in 0..10 {
            pace.check(row).unwrap();
            std::thread::sleep(2 * PATIENCE);
        }
        assert_eq!(looks.get(), 10);
    }
}
