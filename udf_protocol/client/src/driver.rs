//! The loop that every call goes through: it sends batches, bounds what is out, receives, takes the time, counts and learns.
//!
//! In: batches of an engine's rows. Out: replies, in order. A driver has a lane, which is an exchange, for each function that is
//! called with the same rows; a batch goes to some or all of them. Whoever calls asks [`Driver::may_send`] before each batch and
//! cuts it where the [`Pace`] says; the driver tells the pace what the batch has taken once all lanes have answered it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use udf_types::Result;
use udf_types::transport_name::TransportName;

use crate::exchange::{Exchange, MapEvent};
use crate::host::Host;
use crate::inbox::Reply;
use crate::outbox::Outgoing;
use crate::pace::{Measured, Pace};

/// How long the reply to a batch, or a part of one, has taken.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// How long the engine waited, with nothing else to do.
    pub waited: Duration,
    /// From sending the batch to having its whole answer; none of a part that is not the last.
    pub latency: Option<Duration>,
}

/// An exchange, as a driver uses it.
pub trait Lane {
    /// Sends a batch, without waiting.
    fn send(&mut self, batch: Outgoing);

    /// Waits for the reply to the oldest batch, or for the next part of it.
    ///
    /// # Errors
    /// If the batch failed. The lane is of no use then.
    fn receive(&mut self) -> Result<Reply>;

    /// Whether the reply to the oldest batch, or the next part of it, is there.
    fn is_answered(&mut self) -> bool;

    /// How batches travel; known once a server was reached.
    fn transport(&self) -> Option<TransportName>;

    /// Is told of everything that was received, for counters of the engine's own.
    fn note(&mut self, _outcome: &Result<Reply>, _taken: Taken) {}
}

/// An exchange of a map function.
pub trait MapLane: Lane {
    /// Waits until the server took a batch, or gave results, or ended.
    ///
    /// # Errors
    /// If the exchange failed.
    fn receive_from_map(&mut self) -> Result<MapEvent>;

    /// Whether it did so already. Does not wait.
    fn has_map_event(&mut self) -> bool;

    /// Waits until it did so; false if `is_woken` or `until` came first. Without `until`, the server has its time for it.
    ///
    /// # Errors
    /// If the engine ends the wait, or the server's time is over.
    fn wait_for_map(&mut self, until: Option<Instant>, is_woken: &mut dyn FnMut() -> bool) -> Result<bool>;

    /// Batches that the server did not take yet.
    fn untaken(&self) -> usize;

    /// Says that no batch will follow.
    fn close(&mut self);
}

/// An exchange whose waits go through a host.
#[derive(Debug)]
pub struct Hosted<H> {
    /// The exchange.
    pub exchange: Exchange,
    /// The engine around it.
    pub host: H,
}

impl<H: Host> Lane for Hosted<H> {
    fn send(&mut self, batch: Outgoing) {
        self.exchange.send(batch);
    }

    fn receive(&mut self) -> Result<Reply> {
        self.exchange.receive(&self.host)
    }

    fn is_answered(&mut self) -> bool {
        self.exchange.is_answered()
    }

    fn transport(&self) -> Option<TransportName> {
        self.exchange.transport()
    }
}

impl<H: Host> MapLane for Hosted<H> {
    fn receive_from_map(&mut self) -> Result<MapEvent> {
        self.exchange.receive_from_map(&self.host)
    }

    fn has_map_event(&mut self) -> bool {
        self.exchange.has_map_event()
    }

    fn wait_for_map(&mut self, until: Option<Instant>, is_woken: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.exchange.wait_for_map(&self.host, until, is_woken)
    }

    fn untaken(&self) -> usize {
        self.exchange.untaken()
    }

    fn close(&mut self) {
        self.exchange.close();
    }
}

/// What a driver has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches of rows, those included of which nothing had to be sent.
    pub batches: u64,
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that were not sent, since equal ones were.
    pub repeated: u64,
    /// Calls that were not sent, since their results were there already.
    pub cached: u64,
    /// Bytes of requests.
    pub bytes_sent: u64,
    /// Bytes of replies.
    pub bytes_received: u64,
    /// How long the engine waited.
    pub waited: Duration,
    /// How long the servers say that they computed, in microseconds.
    pub compute_us: u64,
    /// The transports that were used: a bit for each of [`TransportName::ALL`].
    pub transports: u8,
}

/// Sends batches to one exchange, or to several that are given the same rows.
#[derive(Debug)]
pub struct Driver<L> {
    // for the plan
    lanes: Vec<Option<L>>,
    totals: Totals,
    // for one scan
    pace: Pace,
    // for the batches
    /// What was sent of the batch that is not out as a whole.
    beginning: Option<Batch>,
    /// Oldest first.
    out: VecDeque<Batch>,
    /// Of a map function: rows of the batches that its server did not take yet, and the wait since it took one; none before that.
    untaken: VecDeque<usize>,
    waited_for_take: Option<Duration>,
    /// The wait for what is received next.
    waited_before: Duration,
}

/// A batch that the engine is not done with.
#[derive(Debug)]
struct Batch {
    sent_at: Instant,
    /// Size of the rows and of what was sent.
    bytes: usize,
    /// Per lane.
    parts: Vec<Part>,
    /// Whether more of it will be sent, once some of it is answered.
    is_open: bool,
    /// Whether what it takes says something about batches to come.
    is_typical: bool,
    has_answer: bool,
    latency: Duration,
    waited: Duration,
    reply_bytes: usize,
}

/// What one lane has of a batch.
#[derive(Debug, Clone, Default)]
struct Part {
    rows: usize,
    compute_us: u64,
    /// Answers that are to come.
    awaited: usize,
    /// Whether it was sent when others had been answered; then, when those of which the answer is to come were sent.
    is_later: bool,
    sent_at: VecDeque<Instant>,
}

impl Batch {
    fn new(lanes: usize) -> Batch {
        Batch {
            sent_at: Instant::now(),
            bytes: 0,
            parts: vec![Part::default(); lanes],
            is_open: false,
            is_typical: true,
            has_answer: false,
            latency: Duration::ZERO,
            waited: Duration::ZERO,
            reply_bytes: 0,
        }
    }

    /// What the batch has taken. Lanes compute side by side, but for those that wait for others.
    fn measured(&self) -> Measured {
        if !self.is_typical {
            return Measured::default();
        }
        let (later, first): (Vec<&Part>, Vec<&Part>) = self.parts.iter().partition(|part| part.is_later);
        let first_us = first.iter().map(|part| part.compute_us).max().unwrap_or(0);
        let compute_us = later.iter().map(|part| part.compute_us).fold(first_us, u64::saturating_add);
        Measured {
            rows: self.parts.iter().map(|part| part.rows).max().unwrap_or(0),
            reply_bytes: self.reply_bytes,
            compute: Duration::from_micros(compute_us),
            latency: self.latency,
            waited: self.waited,
        }
    }

    /// Whether there is nothing more to send of it or to wait for.
    fn is_done(&self) -> bool {
        !self.is_open && self.parts.iter().all(|part| part.awaited == 0)
    }
}

impl<L: Lane> Driver<L> {
    /// A driver of so many lanes, none of which is open yet.
    pub fn new(pace: Pace, lanes: usize) -> Driver<L> {
        let (beginning, out, untaken, waited_for_take, waited_before) = Default::default();
        let lanes = (0..lanes).map(|_| None).collect();
        Driver { lanes, totals: Totals::default(), pace, beginning, out, untaken, waited_for_take, waited_before }
    }

    /// A driver of one lane.
    pub fn of_lane(pace: Pace, lane: L) -> Driver<L> {
        let mut driver = Driver::new(pace, 1);
        driver.open(0, lane);
        driver
    }

    /// Forgets what is out, and goes on at another pace. Lanes and totals stay.
    pub fn restart(&mut self, pace: Pace) {
        (self.beginning, self.pace) = (None, pace);
        self.out.clear();
    }

    /// Opens a lane.
    pub fn open(&mut self, lane: usize, exchange: L) {
        self.lanes[lane] = Some(exchange);
    }

    /// Ends a lane's exchange, and with it what is out there.
    pub fn close(&mut self, lane: usize) {
        self.lanes[lane] = None;
    }

    /// The same of all lanes.
    pub fn close_all(&mut self) {
        self.lanes.iter_mut().for_each(|lane| *lane = None);
    }

    /// A lane, if it is open.
    pub fn lane(&self, lane: usize) -> Option<&L> {
        self.lanes[lane].as_ref()
    }

    /// The same, to be changed.
    pub fn lane_mut(&mut self, lane: usize) -> Option<&mut L> {
        self.lanes[lane].as_mut()
    }

    /// How large the next batch may be.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// What was counted so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Batches that the engine is not done with.
    pub fn out(&self) -> usize {
        self.out.len()
    }

    /// Whether another batch may be sent.
    pub fn may_send(&self) -> bool {
        self.pace.may_send(self.out.len(), self.out.iter().map(|batch| batch.bytes).sum())
    }

    /// Sends the batch at hand to a lane.
    ///
    /// # Panics
    /// If the lane is not open.
    pub fn send(&mut self, lane: usize, batch: impl Into<Outgoing>) {
        let batch = batch.into();
        let rows = batch.columns.num_rows();
        let count = self.lanes.len();
        let beginning = self.beginning.get_or_insert_with(|| Batch::new(count));
        beginning.parts[lane] = Part { rows, awaited: 1, ..Part::default() };
        self.totals.calls += rows as u64;
        self.lanes[lane].as_mut().expect("batches are sent to open lanes").send(batch);
    }

    /// Notes that a batch that is out holds so many more bytes; `position` counts from the oldest.
    pub fn hold(&mut self, position: usize, bytes: usize) {
        if let Some(batch) = self.out.get_mut(position) {
            batch.bytes = batch.bytes.saturating_add(bytes);
        }
    }

    /// Sends more of a batch that is out, to a lane that has had nothing of it before but by this; `position` counts from the oldest.
    ///
    /// # Panics
    /// If the lane is not open, or so many batches are not out.
    pub fn send_later(&mut self, position: usize, lane: usize, batch: impl Into<Outgoing>) {
        let batch = batch.into();
        let rows = batch.columns.num_rows();
        let part = &mut self.out[position].parts[lane];
        (part.rows, part.awaited, part.is_later) = (part.rows + rows, part.awaited + 1, true);
        part.sent_at.push_back(Instant::now());
        self.totals.calls += rows as u64;
        self.lanes[lane].as_mut().expect("batches are sent to open lanes").send(batch);
    }

    /// Notes that the batch at hand was sent to all lanes that get it, none if there was nothing to send; it holds so many bytes.
    pub fn finish_batch(&mut self, bytes: usize) {
        let count = self.lanes.len();
        let batch = self.beginning.take().unwrap_or_else(|| Batch::new(count));
        self.out.push_back(Batch { bytes, ..batch });
        self.totals.batches += 1;
        self.pace.note_sent();
    }

    /// The same of a batch of which more will be sent, up to [`Driver::complete`].
    pub fn finish_open_batch(&mut self, bytes: usize) {
        self.finish_batch(bytes);
        if let Some(batch) = self.out.back_mut() {
            batch.is_open = true;
        }
    }

    /// Notes that no more will be sent of a batch that is out; `position` counts from the oldest.
    pub fn complete(&mut self, position: usize) {
        let Some(batch) = self.out.get_mut(position).filter(|batch| batch.is_open) else { return };
        batch.is_open = false;
        if batch.has_answer && batch.is_done() {
            self.pace.note_answered(&batch.measured());
        }
    }

    /// The same of a batch that is unlike those to come, from which the pace learns nothing.
    pub fn finish_unlike_batch(&mut self) {
        let count = self.lanes.len();
        let batch = self.beginning.take().unwrap_or_else(|| Batch::new(count));
        self.out.push_back(Batch { is_typical: false, ..batch });
        self.totals.batches += 1;
    }

    /// Waits for a lane's reply to the oldest batch, or for the next part of it; none if there is no more.
    ///
    /// # Errors
    /// If the batch failed.
    pub fn receive(&mut self, lane: usize) -> Result<Option<Reply>> {
        self.receive_of(0, lane)
    }

    /// The same of any batch that is out; `position` counts from the oldest. A lane answers in the order in which it was sent to, which
    /// is the caller's to know.
    ///
    /// # Errors
    /// If the batch failed.
    pub fn receive_of(&mut self, position: usize, lane: usize) -> Result<Option<Reply>> {
        let Some(batch) = self.out.get_mut(position) else { return Ok(None) };
        let Some(exchange) = self.lanes[lane].as_mut().filter(|_| batch.parts[lane].awaited > 0) else {
            return Ok(None);
        };
        let start = Instant::now();
        let outcome = exchange.receive();
        let waited = start.elapsed();
        self.totals.waited += waited;
        batch.waited += waited;
        // The engine's own time between two parts of an answer is not the server's.
        batch.latency = if batch.has_answer { batch.latency + waited } else { batch.sent_at.elapsed() };
        let is_last = outcome.as_ref().is_ok_and(|reply| reply.is_last);
        let sent_at = &mut batch.parts[lane].sent_at;
        let latency = sent_at.front().map_or(batch.latency, Instant::elapsed);
        if is_last {
            sent_at.pop_front();
        }
        exchange.note(&outcome, Taken { waited, latency: is_last.then_some(latency) });
        let reply = outcome?;
        self.totals.transports |= exchange.transport().map_or(0, |transport| 1 << transport as u8);
        count(&mut self.totals, &reply);
        batch.has_answer = true;
        batch.reply_bytes = batch.reply_bytes.saturating_add(reply.bytes_needed);
        let part = &mut batch.parts[lane];
        // That results were there already says that the next batch may be larger.
        let compute_us = if reply.cached > 0 { reply.compute_us.max(1) } else { reply.compute_us };
        part.compute_us = part.compute_us.saturating_add(compute_us);
        part.awaited -= usize::from(is_last);
        if batch.is_done() {
            self.pace.note_answered(&batch.measured());
        }
        Ok(Some(reply))
    }

    /// Notes that the engine is done with the oldest batch, whose replies it has received.
    pub fn retire(&mut self) {
        if self.out.pop_front().is_some_and(|batch| !batch.has_answer) {
            // Nothing was sent, which is an answer too.
            self.pace.note_answered(&Measured::default());
        }
    }
}

impl<L: MapLane> Driver<L> {
    /// Whether the server of a map function is to be given another batch.
    pub fn may_feed(&self) -> bool {
        self.lanes[0].as_ref().is_some_and(|lane| lane.untaken() < self.pace.first_window())
    }

    /// Gives the server of a map function a batch.
    ///
    /// # Panics
    /// If the lane is not open.
    pub fn feed(&mut self, batch: impl Into<Outgoing>) {
        let batch = batch.into();
        let rows = batch.columns.num_rows();
        self.lanes[0].as_mut().expect("batches are sent to open lanes").send(batch);
        self.untaken.push_back(rows);
        self.totals.calls += rows as u64;
        self.totals.batches += 1;
        self.pace.note_sent();
    }

    /// Says that no batch will follow.
    pub fn end_feed(&mut self) {
        if let Some(lane) = &mut self.lanes[0] {
            lane.close();
        }
    }

    /// Whether the server of a map function did something that was not received yet. Does not wait.
    pub fn has_map_event(&mut self) -> bool {
        self.lanes[0].as_mut().is_some_and(MapLane::has_map_event)
    }

    /// Waits until the server of a map function did something that was not received yet; false if `is_woken` or `until` came first.
    /// Without `until`, the server has its time to do so.
    ///
    /// # Errors
    /// If the engine ends the wait, or the server's time is over.
    pub fn wait_for_map(&mut self, until: Option<Instant>, is_woken: &mut dyn FnMut() -> bool) -> Result<bool> {
        let Some(lane) = &mut self.lanes[0] else { return Ok(false) };
        let start = Instant::now();
        let outcome = lane.wait_for_map(until, is_woken);
        let waited = start.elapsed();
        self.totals.waited += waited;
        self.waited_before += waited;
        outcome.or_else(|error| {
            let outcome = Err(error);
            lane.note(&outcome, Taken { waited, latency: None });
            outcome.map(|_| false)
        })
    }

    /// Waits until the server of a map function took a batch, or gave results, or ended. Nothing says how long it computed at a
    /// batch; but a server that has room for no more takes the next batch when it is done with one, so that the wait says it.
    ///
    /// # Errors
    /// If the exchange failed.
    pub fn receive_from_map(&mut self) -> Result<MapEvent> {
        let Some(lane) = &mut self.lanes[0] else { return Ok(MapEvent::End) };
        let start = Instant::now();
        let outcome = lane.receive_from_map();
        let now = start.elapsed();
        self.totals.waited += now;
        let waited = std::mem::take(&mut self.waited_before) + now;
        self.waited_for_take = self.waited_for_take.map(|before| before + waited);
        let taken = Taken { waited, latency: None };
        match outcome {
            Ok(MapEvent::Taken) => {
                let rows = self.untaken.pop_front().unwrap_or(0);
                // The first was waited for until the server was reached, which says nothing.
                let compute = self.waited_for_take.replace(Duration::ZERO).unwrap_or_default();
                self.pace.note_answered(&Measured { rows, compute, ..Measured::default() });
                Ok(MapEvent::Taken)
            }
            Ok(MapEvent::Results(reply)) => {
                let outcome = Ok(reply);
                lane.note(&outcome, taken);
                let reply = outcome?;
                count(&mut self.totals, &reply);
                Ok(MapEvent::Results(reply))
            }
            Ok(MapEvent::End) => Ok(MapEvent::End),
            Err(error) => {
                let outcome = Err(error);
                lane.note(&outcome, taken);
                outcome.map(MapEvent::Results)
            }
        }
    }
}

fn count(totals: &mut Totals, reply: &Reply) {
    totals.repeated += reply.repeated as u64;
    totals.cached += reply.cached as u64;
    totals.bytes_sent += reply.bytes_sent as u64;
    totals.bytes_received += reply.bytes_received as u64;
    totals.compute_us = totals.compute_us.saturating_add(reply.compute_us);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use udf_codec::batch::CallBatch;
    use udf_types::{Error, Kind};

    use super::*;
    use crate::pace::Bounds;

    const BOUNDS: Bounds =
        Bounds { rows: 1000, bytes: 1000, reply_bytes: 10_000, window: 8, time: Duration::from_millis(100) };

    fn columns(rows: usize) -> RecordBatch {
        let column = Arc::new(Int64Array::from(vec![0; rows]));
        RecordBatch::try_from_iter([("x", column as arrow_array::ArrayRef)]).unwrap()
    }

    /// A server that computes so many microseconds at each row, and answers in so many parts.
    #[derive(Default)]
    struct Scripted {
        sent: VecDeque<usize>,
        us_per_row: u64,
        parts: usize,
        part: usize,
        fails: bool,
        noted: Vec<Option<Duration>>,
        untaken: usize,
    }

    impl Lane for Scripted {
        fn send(&mut self, batch: Outgoing) {
            self.sent.push_back(batch.columns.num_rows());
            self.untaken += 1;
        }

        fn receive(&mut self) -> Result<Reply> {
            if self.fails {
                return Err(Error::new(Kind::UserCode, "no"));
            }
            self.part += 1;
            let is_last = self.part >= self.parts;
            let rows = if is_last { self.sent.pop_front().unwrap() } else { self.sent[0] };
            self.part = if is_last { 0 } else { self.part };
            let compute_us = if is_last { rows as u64 * self.us_per_row } else { 0 };
            Ok(Reply { is_last, compute_us, ..Reply::whole(0, columns(rows), 1, 2) })
        }

        fn is_answered(&mut self) -> bool {
            !self.sent.is_empty()
        }

        fn transport(&self) -> Option<TransportName> {
            Some(TransportName::Flight)
        }

        fn note(&mut self, _: &Result<Reply>, taken: Taken) {
            self.noted.push(taken.latency);
        }
    }

    impl MapLane for Scripted {
        fn receive_from_map(&mut self) -> Result<MapEvent> {
            std::thread::sleep(Duration::from_micros(self.us_per_row * self.sent.pop_front().unwrap_or(0) as u64));
            self.untaken -= 1;
            Ok(MapEvent::Taken)
        }

        fn has_map_event(&mut self) -> bool {
            self.untaken > 0
        }

        fn wait_for_map(&mut self, _: Option<Instant>, is_woken: &mut dyn FnMut() -> bool) -> Result<bool> {
            Ok(self.untaken > 0 || !is_woken())
        }

        fn untaken(&self) -> usize {
            self.untaken
        }

        fn close(&mut self) {}
    }

    fn batch(rows: usize) -> CallBatch {
        CallBatch::new(0, columns(rows))
    }

    fn scripted(us_per_row: u64, parts: usize) -> Scripted {
        Scripted { us_per_row, parts, ..Scripted::default() }
    }

    #[test]
    fn a_batch_of_several_lanes_is_measured_by_the_slowest() {
        let mut driver = Driver::new(Pace::new(BOUNDS), 3);
        driver.open(0, scripted(10, 1));
        driver.open(1, scripted(10_000, 1));
        driver.send(0, batch(100));
        driver.send(1, batch(50));
        driver.finish_batch(1);
        // Before the first answer one batch is out.
        assert!(!driver.may_send() && driver.out() == 1);
        assert_eq!(driver.receive(0).unwrap().unwrap().columns.num_rows(), 100);
        assert!(driver.receive(0).unwrap().is_none() && driver.receive(2).unwrap().is_none());
        assert!(!driver.may_send());
        driver.receive(1).unwrap();
        // 500 ms for the batch of 100 rows: 20 rows are 100 ms.
        assert_eq!(driver.pace().rows(), 20);
        assert!(driver.may_send());
        driver.retire();
        assert_eq!(driver.out(), 0);
        let totals = driver.totals();
        assert_eq!((totals.batches, totals.calls, totals.bytes_sent, totals.bytes_received), (1, 150, 2, 4));
        assert_eq!((totals.compute_us, totals.transports), (501_000, 1 << TransportName::Flight as u8));
    }

    #[test]
    fn what_is_sent_later_belongs_to_its_batch() {
        let mut driver = Driver::new(Pace::new(BOUNDS), 2);
        driver.open(0, scripted(10, 1));
        driver.open(1, scripted(1000, 1));
        driver.send(0, batch(100));
        driver.finish_open_batch(1);
        driver.receive(0).unwrap();
        // More is to come, so that nobody knows yet what a batch takes.
        assert!(!driver.may_send() && driver.receive(1).unwrap().is_none());
        driver.hold(0, 20);
        driver.send_later(0, 1, batch(60));
        driver.send_later(0, 1, batch(39));
        driver.complete(0);
        for rows in [60, 39] {
            assert!(!driver.may_send());
            assert_eq!(driver.receive(1).unwrap().unwrap().columns.num_rows(), rows);
        }
        // One after the other they took 1 and 99 ms.
        assert!(driver.may_send() && driver.receive(1).unwrap().is_none());
        assert_eq!((driver.pace().rows(), driver.totals().calls, driver.totals().batches), (100, 199, 1));
        driver.retire();
        // Two batches, of which the second is given more first; nothing comes later of it.
        for _ in 0..2 {
            driver.send(0, batch(1));
            driver.finish_open_batch(1);
        }
        (0..2).for_each(|position| assert!(driver.receive_of(position, 0).unwrap().is_some()));
        driver.complete(1);
        driver.send_later(0, 1, batch(1));
        driver.complete(0);
        assert!(driver.receive(1).unwrap().is_some() && driver.receive_of(1, 1).unwrap().is_none());
        (0..2).for_each(|_| driver.retire());
        assert_eq!(driver.out(), 0);
    }

    #[test]
    fn an_answer_in_parts_is_measured_as_one() {
        let mut driver = Driver::of_lane(Pace::new(BOUNDS), scripted(10_000, 3));
        driver.send(0, batch(100));
        driver.finish_batch(1);
        for is_last in [false, false, true] {
            assert_eq!(driver.receive(0).unwrap().unwrap().is_last, is_last);
            assert_eq!(driver.pace().rows() == 10, is_last);
        }
        assert!(driver.receive(0).unwrap().is_none());
        let noted: Vec<bool> = driver.lane(0).unwrap().noted.iter().map(Option::is_some).collect();
        assert_eq!(noted, [false, false, true]);
    }

    #[test]
    fn what_is_unlike_other_batches_teaches_nothing_but_that_somebody_answers() {
        let mut driver = Driver::of_lane(Pace::new(BOUNDS), scripted(10_000, 1));
        driver.send(0, batch(100));
        driver.finish_unlike_batch();
        assert!(!driver.may_send());
        driver.receive(0).unwrap();
        driver.retire();
        assert_eq!(driver.pace().rows(), Pace::FIRST_ROWS);
        // Nor does a batch of which nothing was sent.
        let mut driver = Driver::of_lane(Pace::new(BOUNDS), scripted(10_000, 1));
        driver.finish_batch(1);
        assert!(driver.receive(0).unwrap().is_none());
        driver.retire();
        (0..2).for_each(|_| driver.finish_batch(1));
        assert!(driver.may_send() && driver.pace().rows() > Pace::FIRST_ROWS);
        driver.restart(Pace::new(BOUNDS));
        assert!(driver.out() == 0 && driver.pace().rows() == Pace::FIRST_ROWS && driver.lane(0).is_some());
    }

    #[test]
    fn errors_are_noted_and_handed_on() {
        let mut driver = Driver::of_lane(Pace::new(BOUNDS), Scripted { fails: true, ..scripted(0, 1) });
        driver.send(0, batch(1));
        driver.finish_batch(1);
        assert_eq!(driver.receive(0).unwrap_err().kind(), Kind::UserCode);
        assert_eq!(driver.lane(0).unwrap().noted, [None]);
    }

    #[test]
    fn a_map_function_that_takes_its_time_gets_small_batches() {
        let pace = Pace::new(Bounds { time: Duration::from_millis(10), ..BOUNDS });
        let mut driver = Driver::of_lane(pace, scripted(1000, 1));
        let mut fed = 0;
        while driver.may_feed() {
            driver.feed(batch(20));
            fed += 1;
        }
        assert_eq!(fed, Pace::FIRST_WINDOW);
        assert!(matches!(driver.receive_from_map(), Ok(MapEvent::Taken)));
        // The first tells nothing.
        assert!(driver.pace().rows() > 10);
        assert!(matches!(driver.receive_from_map(), Ok(MapEvent::Taken)));
        // 20 rows took 20 ms or more.
        assert!(driver.pace().rows() <= 10 && driver.may_feed());
        assert_eq!(driver.totals().batches, 3);
    }
}
