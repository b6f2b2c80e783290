//! How many rows a batch may have, and how many batches may be out at a time, by what the calls have taken so far.
//!
//! In: what an engine measures of each batch. Out: where to cut the next one, and whether to send another before the oldest
//! is answered. Nothing here looks at a clock.

use std::time::Duration;

/// Bounds within which an exchange's [`Pace`] adapts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most rows in one batch.
    pub rows: usize,
    /// Bytes at which a batch is cut, however few rows it has.
    pub bytes: usize,
    /// Bytes that reading the reply to a batch should need, at most.
    pub reply_bytes: usize,
    /// Most batches that are out at a time.
    pub window: usize,
    /// Longest that a server should compute at one batch; zero for no such bound.
    pub time: Duration,
}

impl Bounds {
    /// Bytes that reading a reply should need, where batches are cut at `bytes` and a reply may have `most`: as many as a batch
    /// has, but so few that a reply may turn out twice as dear as those before it, whatever its transport. A quarter of what a
    /// reply may have is the least that any has for what it needs while it is read.
    pub fn reply_bytes(bytes: usize, most: usize) -> usize {
        bytes.min(most / 8)
    }
}

/// What a batch has taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// Calls that were sent.
    pub rows: usize,
    /// Bytes that reading what answered them needed ([`Reply::bytes_needed`](crate::inbox::Reply::bytes_needed)).
    pub reply_bytes: usize,
    /// How long the server says that it computed; zero if it does not say it.
    pub compute: Duration,
    /// From sending to having the answer.
    pub latency: Duration,
    /// How long the engine waited for the answer, with nothing else to do.
    pub waited: Duration,
}

/// The pace of an exchange.
///
/// Batches are small at first, so that `LIMIT 10` does not pay for ten thousand rows; each may have four times as many
/// rows as the one before, up to the bounds. Where calls take long, a batch has as many rows as fit into the bound of time, so that
/// rows come while a query runs, and `LIMIT` and cancelling spare what is not wanted. Where results are large, or dear to read,
/// it has as many as have replies within their bound, so that neither side needs memory for more. What the reply to the first
/// batch will need nobody knows: its rows are few, and if their results are too large nevertheless, the batches need a lower
/// bound of rows.
///
/// Few batches are out at a time: two hide the way to a container on the same machine. Where the engine waits for answers
/// much longer than they take to compute, the way is long, and more are sent while the first is on it.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    bounds: Bounds,
    rows: usize,
    /// Most rows that fit into the bound of time.
    rows_in_time: usize,
    /// Most rows whose reply needs the bound of bytes.
    rows_in_reply: usize,
    window: usize,
    /// How many servers a batch passes, one after the other.
    depth: usize,
    is_answered: bool,
    /// How many of the next batches wait for the one before, since few rows may be wanted.
    waiting: usize,
}

impl Pace {
    /// Rows of the first batch, if its function does not ask for others.
    pub const FIRST_ROWS: usize = 128;
    /// Batches that go one at a time where few rows may be wanted: the last of them is about as large as a first one is otherwise.
    const WAITING_BATCHES: usize = 4;
    /// How many times as many rows the next batch may have.
    const GROWTH: usize = 4;
    /// Batches that may be out at a time, before it is known how long the way is.
    pub const FIRST_WINDOW: usize = 3;
    /// A shorter wait is no reason to send more batches ahead.
    const LEAST_WAIT: Duration = Duration::from_millis(1);

    /// The pace of the first batches.
    pub fn new(bounds: Bounds) -> Pace {
        let rows = Pace::FIRST_ROWS.min(bounds.rows);
        Pace {
            bounds,
            rows,
            rows_in_time: bounds.rows,
            rows_in_reply: bounds.rows,
            window: Pace::FIRST_WINDOW.min(bounds.window),
            depth: 1,
            is_answered: false,
            waiting: 0,
        }
    }

    /// With a first batch of so many rows, in place of [`Pace::FIRST_ROWS`], where a function asks for that.
    #[must_use]
    pub fn starting_with(self, rows: Option<usize>) -> Pace {
        Pace { rows: rows.unwrap_or(Pace::FIRST_ROWS).min(self.bounds.rows), ..self }
    }

    /// With a first batch of at most so many rows, since no more may be wanted. The first few batches then wait each for the
    /// answer to the one before.
    #[must_use]
    pub fn with_first_rows(self, rows: usize) -> Pace {
        let waiting = if rows < Pace::FIRST_ROWS { Pace::WAITING_BATCHES } else { 0 };
        Pace { rows: self.rows.min(rows.max(1)), waiting, ..self }
    }

    /// For batches that pass so many servers one after the other: one more is out for each, so that all of them have something to do.
    #[must_use]
    pub fn with_depth(self, depth: usize) -> Pace {
        let pace = Pace { depth: depth.max(1), ..self };
        Pace { window: pace.window.max(pace.first_window()), ..pace }
    }

    /// Most rows that the next batch may have.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows for which the next batch's memory should have room: as many as it may have, or the one after it if that may be as
    /// large as any, so that both can lie in the same.
    pub fn room(&self) -> usize {
        let next = self.rows.saturating_mul(Pace::GROWTH);
        if next < self.most_rows() { self.rows } else { self.most_rows().max(self.rows) }
    }

    /// Most rows of any batch, as far as is known.
    fn most_rows(&self) -> usize {
        self.rows_in_time.min(self.rows_in_reply)
    }

    /// Bytes at which it is cut, however few rows it has.
    pub fn bytes(&self) -> usize {
        self.bounds.bytes
    }

    /// Whether a batch of these rows and bytes is to be cut.
    pub fn is_full(&self, rows: usize, bytes: usize) -> bool {
        rows >= self.rows || bytes >= self.bounds.bytes
    }

    /// Whether another batch may be sent while some are out that hold so many bytes in all. Before the first answer only one
    /// is: a `LIMIT` may want no more than that, and nobody knows how long the rows of a second would take.
    pub fn may_send(&self, out: usize, bytes: usize) -> bool {
        if !self.is_answered || self.waiting > 0 {
            return out == 0;
        }
        let first = self.first_window();
        // What lies ahead needs no more memory than the first window's full batches.
        out < first || (out < self.window && bytes < self.bounds.bytes.saturating_mul(Pace::FIRST_WINDOW))
    }

    /// Batches that may be out before it is known how long the way is.
    pub fn first_window(&self) -> usize {
        (Pace::FIRST_WINDOW + self.depth - 1).min(self.bounds.window)
    }

    /// Notes that a batch was sent: the next one may be larger.
    pub fn note_sent(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.rows = self.rows.saturating_mul(Pace::GROWTH).min(self.most_rows());
    }

    /// Notes what a batch has taken.
    pub fn note_answered(&mut self, measured: &Measured) {
        self.is_answered = true;
        let Measured { rows, reply_bytes, compute, latency, waited } = *measured;
        if rows == 0 {
            return;
        }
        self.rows_in_reply =
            (self.bounds.reply_bytes.saturating_mul(rows) / reply_bytes.max(1)).clamp(1, self.bounds.rows);
        self.rows = self.rows.min(self.rows_in_reply);
        if compute.is_zero() {
            return;
        }
        if !self.bounds.time.is_zero() {
            let rows_in_time = self.bounds.time.as_micros() * rows as u128 / compute.as_micros().max(1);
            self.rows_in_time = usize::try_from(rows_in_time).unwrap_or(usize::MAX).clamp(1, self.bounds.rows);
            self.rows = self.rows.min(self.rows_in_time);
        }
        // With a full window and a short way, an answer takes as long as the batches before it and itself.
        let is_way_long = latency > compute.saturating_mul(u32::try_from(self.window + 1).unwrap_or(u32::MAX));
        if waited >= Pace::LEAST_WAIT && is_way_long {
            self.window = (self.window + 1).min(self.bounds.window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { rows: 300, bytes: 1000, reply_bytes: 1000, window: 5, time: Duration::from_millis(100) };

    fn answer(rows: usize, compute_ms: u64, latency_ms: u64, waited_ms: u64) -> Measured {
        let [compute, latency, waited] = [compute_ms, latency_ms, waited_ms].map(Duration::from_millis);
        Measured { rows, reply_bytes: 0, compute, latency, waited }
    }

    #[test]
    fn a_function_may_ask_for_another_first_batch() {
        let pace = Pace::new(Bounds { rows: 5000, ..BOUNDS });
        assert_eq!(pace.starting_with(None).rows(), 128);
        assert_eq!(pace.starting_with(Some(1000)).rows(), 1000);
        assert_eq!(pace.starting_with(Some(1)).rows(), 1);
        assert_eq!(pace.starting_with(Some(10_000)).rows(), 5000);
        assert_eq!(pace.starting_with(Some(1000)).with_first_rows(10).rows(), 10);
        // Only one is out before it is known what it takes.
        assert!(!pace.starting_with(Some(1000)).may_send(1, 0));
        let mut pace = pace.starting_with(Some(1000));
        pace.note_sent();
        assert_eq!(pace.rows(), 4000);
    }

    #[test]
    fn sizes_grow_up_to_the_bound() {
        let mut pace = Pace::new(Bounds { rows: 600, ..BOUNDS });
        assert!(!pace.is_full(127, 999) && pace.is_full(128, 0) && pace.is_full(1, 1000));
        assert_eq!(pace.room(), 128);
        pace.note_sent();
        assert!(!pace.is_full(511, 0) && pace.is_full(512, 0));
        assert_eq!(pace.room(), 600);
        pace.note_sent();
        assert_eq!(pace.room(), 600);
        assert!(!pace.is_full(599, 0) && pace.is_full(600, 0));
        // Quick answers leave it so.
        pace.note_answered(&answer(600, 1, 1, 0));
        assert!(!pace.is_full(599, 0) && pace.is_full(600, 0));
    }

    #[test]
    fn few_wanted_rows_are_not_read_ahead() {
        let mut pace = Pace::new(Bounds { rows: 600, ..BOUNDS }).with_first_rows(1);
        for rows in [1, 4, 16, 64] {
            assert!(pace.is_full(rows, 0) && !pace.is_full(rows - 1, 0));
            assert!(pace.may_send(0, 0) && !pace.may_send(1, 0));
            pace.note_sent();
            pace.note_answered(&answer(rows, 1, 1, 1));
        }
        assert!(pace.may_send(1, 0) && pace.is_full(256, 0));
        // As many as a first batch has are wanted: nothing changes.
        let mut pace = Pace::new(BOUNDS).with_first_rows(500);
        pace.note_answered(&answer(128, 1, 1, 1));
        assert!(pace.may_send(2, 0) && pace.is_full(128, 0) && !pace.is_full(127, 0));
        assert!(Pace::new(BOUNDS).with_first_rows(0).is_full(1, 0));
    }

    #[test]
    fn slow_calls_have_small_batches() {
        let mut pace = Pace::new(BOUNDS);
        pace.note_sent();
        pace.note_answered(&answer(128, 1280, 1280, 1280));
        assert!(!pace.is_full(9, 0) && pace.is_full(10, 0));
        pace.note_sent();
        assert!(pace.is_full(10, 0));
        // It grows again, step by step, once calls are quick.
        pace.note_answered(&answer(10, 1, 1, 1));
        pace.note_sent();
        assert!(!pace.is_full(39, 0) && pace.is_full(40, 0));
        // One row is the least, however long it takes.
        pace.note_answered(&answer(20, 100_000, 100_000, 0));
        assert!(!pace.is_full(0, 0) && pace.is_full(1, 0));
        // Without a bound of time, and of a server that does not say how long it computed, nothing changes.
        for (bounds, compute_ms) in [(Bounds { time: Duration::ZERO, ..BOUNDS }, 9999), (BOUNDS, 0)] {
            let mut pace = Pace::new(bounds);
            pace.note_answered(&answer(128, compute_ms, 10_000, 10_000));
            assert!(!pace.is_full(127, 0) && pace.is_full(128, 0));
        }
    }

    #[test]
    fn large_replies_have_small_batches() {
        let reply = |rows, reply_bytes| Measured { rows, reply_bytes, ..Measured::default() };
        let mut pace = Pace::new(BOUNDS);
        pace.note_answered(&reply(128, 12_800));
        assert!(!pace.is_full(9, 0) && pace.is_full(10, 0));
        pace.note_sent();
        assert!(pace.is_full(10, 0) && pace.room() == 10);
        // Step by step more again, as far as time allows.
        pace.note_answered(&Measured { compute: Duration::from_millis(50), ..reply(10, 10) });
        pace.note_sent();
        assert!(!pace.is_full(19, 0) && pace.is_full(20, 0));
        // One row is the least.
        pace.note_answered(&reply(20, usize::MAX));
        assert!(pace.is_full(1, 0));
        // What is sent has another bound.
        let mut pace = Pace::new(Bounds { reply_bytes: 500, ..BOUNDS });
        pace.note_answered(&reply(128, 12_800));
        assert!(!pace.is_full(4, 999) && pace.is_full(5, 0) && pace.is_full(1, 1000));
        // Replies that are as large as is wanted change nothing.
        let mut pace = Pace::new(BOUNDS);
        pace.note_answered(&reply(128, 400));
        assert!(!pace.is_full(127, 0) && pace.is_full(128, 0));
        pace.note_sent();
        assert!(!pace.is_full(299, 0) && pace.is_full(300, 0));
    }

    #[test]
    fn long_ways_have_more_batches() {
        let mut pace = Pace::new(BOUNDS);
        assert!(pace.may_send(0, 0) && !pace.may_send(1, 0));
        pace.note_answered(&Measured::default());
        assert!(pace.may_send(2, 0) && !pace.may_send(3, 0));
        // The server is busy, the engine is slower than the server, the wait is short: no reason.
        for measured in [answer(128, 10, 30, 30), answer(128, 1, 40, 0), answer(128, 0, 40, 40)] {
            pace.note_answered(&measured);
            assert!(!pace.may_send(3, 0), "{measured:?}");
        }
        for window in [4, 5, 5] {
            pace.note_answered(&answer(128, 1, 40, 40));
            assert!(pace.may_send(window - 1, 0) && !pace.may_send(window, 0));
        }
        // As much memory as the first window may need, and no more.
        assert!(pace.may_send(4, 2999) && !pace.may_send(4, 3000) && pace.may_send(2, 3000));
        // A bound below the first window holds.
        let mut pace = Pace::new(Bounds { window: 1, ..BOUNDS });
        pace.note_answered(&answer(128, 1, 1, 0));
        assert!(!pace.may_send(1, 0));
    }

    #[test]
    fn batches_that_pass_several_servers_have_a_larger_window() {
        for (depth, window) in [(0, 3), (1, 3), (2, 4), (3, 5), (9, 5)] {
            let mut pace = Pace::new(BOUNDS).with_depth(depth);
            assert!(pace.may_send(0, 0) && !pace.may_send(1, 0));
            pace.note_answered(&answer(128, 1, 1, 0));
            assert!(pace.may_send(window - 1, 0) && !pace.may_send(window, 0), "{depth}");
        }
    }

    #[test]
    fn replies_need_no_more_than_half_of_what_any_transport_gives_them() {
        assert_eq!(Bounds::reply_bytes(8 << 20, 256 << 20), 8 << 20);
        assert_eq!(Bounds::reply_bytes(8 << 20, 16 << 20), 2 << 20);
        assert_eq!(Bounds::reply_bytes(1 << 30, 256 << 20), 32 << 20);
    }
}
