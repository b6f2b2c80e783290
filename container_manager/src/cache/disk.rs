//! Results on disk, behind those in memory: they survive the store, and those that memory drops are still found.
//!
//! A thread of its own writes what was kept (`ring.rs` says where). Threads that answer look-ups read for a limited time, and only a few of
//! them at a time: a disk that hangs holds no others. Whatever goes wrong, the result is not there.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use udf_client::cache::message::{CallCost, Key, Namespace};

use super::clock::Clock;
use super::ring::{Name, Record, Ring, Saved, Secret, Times, name_of};
use crate::log;

/// Results that wait to be written may need so many bytes. Further ones are not written.
const MOST_QUEUED_BYTES: usize = 16 << 20;
/// Resets that wait for the disk at a time; others have failed.
const MOST_RESETS: usize = 16;
/// What one that waits needs beside its own bytes.
const QUEUED_BYTES: usize = 96;
/// How long the disk is not written after it refused a write, as when it is full.
const WRITE_REST: Duration = Duration::from_secs(60);
/// How often the host's time of day is looked at, and how much it may have been set by.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(10);
const MOST_SET_MS: u64 = 1000;
/// Look-ups that read at a time.
pub(super) const MOST_READERS: usize = 32;
/// Results of cheaper calls are neither written nor read.
const LEAST_CALL_NS: u64 = 20_000;
/// What reading a row takes, before that was measured.
const ROW_NS: u64 = 10_000;
/// One look-up of so many is read although reading takes too long, to see whether it still does.
const TRIAL: u32 = 64;
/// After a loss of power, there may be results that were written up to so long after the time that was saved last.
const LOST_MS: u64 = 3_600_000;
/// The time when a file begins. A result whose age is not known is of the time 0, and so too old for any age.
const FIRST_TIME_MS: u64 = 1 << 50;

/// Where results go beside memory.
#[derive(Debug)]
pub enum Tier {
    /// Nowhere.
    Memory,
    /// They should go to a disk that cannot be used. What an earlier store wrote there may come back.
    Unusable,
    /// To a disk.
    Disk(Arc<Disk>),
}

impl Tier {
    /// The disk, if there is one that can be used.
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        match self {
            Tier::Disk(disk) => Some(disk),
            Tier::Memory | Tier::Unusable => None,
        }
    }
}

/// Results on disk.
#[derive(Debug)]
pub struct Disk {
    ring: Ring,
    clock: FileClock,
    epochs: Mutex<Vec<u64>>,
    /// Held while an epoch is written, and how many wait for it.
    resets: Mutex<()>,
    waiting_resets: AtomicUsize,
    queue: Mutex<Queue>,
    is_filled: Condvar,
    readers: AtomicUsize,
    has_warned: AtomicBool,
    has_warned_of_reset: AtomicBool,
}

/// The file's own clock: it goes on from where an earlier store left it, as the host's time of day says.
#[derive(Debug)]
struct FileClock {
    host: Clock,
    day: Clock,
    first_ms: u64,
    host_first_ms: u64,
    unaged_ms: u64,
}

impl FileClock {
    fn new(host: Clock, day: Clock, saved: Option<Times>) -> FileClock {
        let (host_first_ms, day_ms) = (host.now_ms(), day.now_ms());
        let (first_ms, unaged_ms) = match saved {
            None => (FIRST_TIME_MS, 0),
            Some(Times { time_ms, wall_ms, unaged_ms }) => match day_ms.checked_sub(wall_ms) {
                Some(passed) => (time_ms.saturating_add(passed), unaged_ms),
                // Somebody has set the clock back, and nobody knows for how long there was no store.
                None => {
                    let time_ms = time_ms.saturating_add(LOST_MS);
                    (time_ms.saturating_add(1), time_ms)
                }
            },
        };
        FileClock { host, day, first_ms, host_first_ms, unaged_ms }
    }

    fn now(&self) -> Times {
        let passed = self.host.now_ms().saturating_sub(self.host_first_ms);
        let time_ms = self.first_ms.saturating_add(passed);
        Times { time_ms, wall_ms: self.day.now_ms(), unaged_ms: self.unaged_ms }
    }
}

#[derive(Debug, Default)]
struct Queue {
    entries: Vec<Entry>,
    bytes: usize,
}

/// A result that waits to be written.
#[derive(Debug)]
pub struct Entry {
    name: Name,
    at_ms: u64,
    bytes: Vec<u8>,
    /// Whether it may be there already.
    is_known: bool,
}

impl Entry {
    /// A new result.
    pub fn new(secret: &Secret, key: &Key, at_ms: u64, bytes: &[u8]) -> Entry {
        Entry { name: name_of(secret, key), at_ms, bytes: bytes.to_vec(), is_known: false }
    }

    /// One that somebody has asked for again.
    pub fn again(secret: &Secret, key: &Key, at_ms: u64, bytes: &[u8]) -> Entry {
        Entry { is_known: true, ..Entry::new(secret, key, at_ms, bytes) }
    }
}

impl Disk {
    /// The results in a file, which becomes so large, by the host's clocks: the one that nobody sets, and the time of day.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(file: File, bytes: u64, host: Clock, day: Clock) -> io::Result<Disk> {
        let (ring, Saved { times, epochs }) = Ring::open(file, bytes)?;
        let clock = FileClock::new(host, day, times);
        ring.save(clock.now())?;
        Ok(Disk {
            ring,
            clock,
            epochs: Mutex::new(epochs),
            resets: Mutex::default(),
            waiting_resets: AtomicUsize::new(0),
            queue: Mutex::default(),
            is_filled: Condvar::new(),
            readers: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
            has_warned_of_reset: AtomicBool::new(false),
        })
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start_writer(self: &Arc<Disk>) -> io::Result<()> {
        let disk = self.clone();
        let write = move || {
            let mut saved = disk.clock.now();
            loop {
                let entries = disk.wait_for_entries();
                if let Err(cause) = disk.write(&entries, &mut saved) {
                    disk.warn("written", &cause);
                    thread::sleep(WRITE_REST);
                }
            }
        };
        thread::Builder::new().name("disk".to_string()).spawn(write).map(drop)
    }

    /// The time by which results are aged, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock.now().time_ms
    }

    /// The secret by which a function's rows have their names, until it is forgotten.
    pub fn secret_of(&self, user: u32, namespace: &Namespace) -> Secret {
        let epoch = lock(&self.epochs)[self.ring.epoch_of(user, namespace)];
        self.ring.secret_of(user, namespace, epoch)
    }

    /// Forgets a function's results, those that wait to be written included; false if the disk may not have taken that.
    pub fn forget(&self, user: u32, namespace: &Namespace) -> bool {
        let which = self.ring.epoch_of(user, namespace);
        {
            // At once, however long the disk takes.
            let mut epochs = lock(&self.epochs);
            epochs[which] = self.ring.next_epoch(epochs[which]);
        }
        let is_written = self.waiting_resets.fetch_add(1, Relaxed) < MOST_RESETS && self.write_epoch(which);
        self.waiting_resets.fetch_sub(1, Relaxed);
        is_written
    }

    fn write_epoch(&self, which: usize) -> bool {
        let _turn = lock(&self.resets);
        // Another reset may have changed it again while this one waited.
        let epoch = lock(&self.epochs)[which];
        let written = self.ring.write_epoch(which, epoch);
        written.inspect_err(|cause| warn_once(&self.has_warned_of_reset, "told to forget results", cause)).is_ok()
    }

    /// Has results written, as far as there is room for them to wait.
    pub fn keep(&self, entries: impl IntoIterator<Item = Entry>) {
        // Others need not wait for the lock while names are hashed, nor is more hashed than there is room for.
        let mut bytes = 0;
        let fits = |entry: &Entry| {
            bytes += QUEUED_BYTES + entry.bytes.len();
            bytes <= MOST_QUEUED_BYTES
        };
        let entries: Vec<Entry> = entries.into_iter().take_while(fits).collect();
        let mut queue = lock(&self.queue);
        for entry in entries {
            let bytes = queue.bytes + QUEUED_BYTES + entry.bytes.len();
            if bytes <= MOST_QUEUED_BYTES {
                queue.bytes = bytes;
                queue.entries.push(entry);
            }
        }
        self.is_filled.notify_one();
    }

    /// The results of some rows, those that are read before the deadline, and until they have so many bytes; they may end early.
    pub fn read<'a>(
        &self,
        secret: &Secret,
        keys: impl Iterator<Item = &'a Key>,
        most: usize,
        deadline: Instant,
    ) -> Vec<Option<Record>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        if self.readers.fetch_add(1, Relaxed) < MOST_READERS {
            for key in keys {
                if bytes > most || Instant::now() >= deadline {
                    break;
                }
                match self.ring.get(&name_of(secret, key)) {
                    Ok(record) => {
                        bytes += record.as_ref().map_or(0, |record| record.bytes.len());
                        found.push(record.map(|record| self.aged(record)));
                    }
                    Err(cause) => {
                        self.warn("read", &cause);
                        break;
                    }
                }
            }
        }
        self.readers.fetch_sub(1, Relaxed);
        found
    }

    fn aged(&self, record: Record) -> Record {
        let Times { time_ms, unaged_ms, .. } = self.clock.now();
        // A store that was killed may not have saved the time at which it wrote.
        let is_known = record.at_ms > unaged_ms && record.at_ms <= time_ms;
        Record { at_ms: if is_known { record.at_ms } else { 0 }, ..record }
    }

    fn wait_for_entries(&self) -> Vec<Entry> {
        let queue = lock(&self.queue);
        let waited = self.is_filled.wait_timeout_while(queue, LOOK_AT_CLOCK, |queue| queue.entries.is_empty());
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *queue).entries
    }

    /// Writes some results, and the time, of which `saved` was written last.
    fn write(&self, entries: &[Entry], saved: &mut Times) -> io::Result<()> {
        let now = self.clock.now();
        let was_set_by = now.wall_ms.wrapping_sub(now.time_ms).abs_diff(saved.wall_ms.wrapping_sub(saved.time_ms));
        if entries.is_empty() && was_set_by <= MOST_SET_MS {
            return Ok(());
        }
        // Before the results, so that no later store takes them for younger than they are.
        self.ring.save(now)?;
        *saved = now;
        for Entry { name, at_ms, bytes, is_known } in entries {
            if !is_known || !self.ring.seems_young(name)? {
                self.ring.put(name, *at_ms, bytes)?;
            }
        }
        // With the place where the next store goes on.
        self.ring.save(now)
    }

    /// Says once that the disk does not do what it should.
    fn warn(&self, what: &str, cause: &io::Error) {
        warn_once(&self.has_warned, what, cause);
    }

    /// Writes all that waits, in this thread.
    #[cfg(test)]
    pub fn write_queued(&self) -> io::Result<()> {
        let entries = std::mem::take(&mut *lock(&self.queue)).entries;
        self.write(&entries, &mut self.clock.now())
    }
}

fn warn_once(has_warned: &AtomicBool, what: &str, cause: &io::Error) {
    if !has_warned.swap(true, Relaxed) {
        log::warning("cache_disk_failed").write(format_args!(
            "the file of cached results could not be {what}: {cause}; further failures are not logged"
        ));
    }
}

/// What a function's results take to read from the disk.
#[derive(Debug)]
pub struct Price {
    row_ns: AtomicU64,
    skipped: AtomicU32,
}

impl Default for Price {
    fn default() -> Price {
        Price { row_ns: ROW_NS.into(), skipped: AtomicU32::new(0) }
    }
}

impl Price {
    /// Whether calls are dear enough to keep their results on disk, as far as is known.
    pub fn is_worth_writing(cost: CallCost) -> bool {
        cost.known_by == 0 || cost.ns >= LEAST_CALL_NS
    }

    /// Whether reading takes less than calls, as far as is known.
    pub fn is_worth_reading(&self, cost: CallCost) -> bool {
        if !Price::is_worth_writing(cost) {
            return false;
        }
        let takes_less = cost.known_by == 0 || self.row_ns.load(Relaxed) <= cost.ns / 2;
        takes_less || self.skipped.fetch_add(1, Relaxed) % TRIAL == TRIAL - 1
    }

    /// Notes that reading so many rows took that time.
    pub fn note(&self, rows: usize, time: Duration) {
        if rows > 0 {
            let sample = u64::try_from(time.as_nanos() / rows as u128).unwrap_or(u64::MAX);
            let before = self.row_ns.load(Relaxed);
            // One wait for a busy machine says little, however long it takes.
            let sample = sample.min(before.saturating_mul(2)).max(1);
            self.row_ns.store((before - before / 4).saturating_add(sample.div_ceil(4)), Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
