//! Counters per function, and what is running, shared by all backends through a mapped file.
//!
//! The file (`file.rs`) holds atomics only: whoever writes takes no lock, and a backend that dies leaves at most an entry under
//! "running", which the next one that needs a place takes over.
//!
//! An entry of a function stays where it is. Once there is no room for another, the entries of functions that were dropped
//! are freed, or else of those that were called longest ago; a backend that is just counting there counts for the next.

mod file;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use memmap2::MmapMut;
use pgrx::{pg_guard, pg_sys};
use serde_json::json;

use crate::pg::catalog;
use crate::report;

/// Functions that are counted.
const FUNCTIONS: usize = 4096;
/// Entries that are freed at a time where all functions exist.
const FREED_AT_ONCE: usize = FUNCTIONS / 16;
/// The key of an entry that was freed; whoever looks for a function goes on behind it.
const FREED: u64 = u64::MAX;
/// The key of an entry that is being freed.
const BEING_FREED: u64 = u64::MAX - 1;
/// Exchanges that are shown as running; beyond that, they are not.
const RUNNING: usize = 1024;
/// Buckets of the latency histogram: four per power of two of microseconds, up to 2^40 µs.
const BUCKETS: usize = 160;

#[repr(C)]
struct Shared {
    functions: [FunctionCounters; FUNCTIONS],
    running: [RunningExchange; RUNNING],
    /// The postmaster of the server that last used the file, and the namespace in which that is its number; zero if that is
    /// not known.
    postmaster: AtomicU64,
    pid_namespace: AtomicU64,
}

/// What is counted of one function.
#[repr(C)]
pub struct FunctionCounters {
    /// Database and function; zero for an entry that was never used.
    key: AtomicU64,
    /// When an exchange last began, in PostgreSQL's microseconds since 2000.
    used: AtomicU64,
    exchanges: AtomicU64,
    calls: AtomicU64,
    rows: AtomicU64,
    batches: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    wait_us: AtomicU64,
    compute_us: AtomicU64,
    /// The sum of the latencies below.
    latency_us: AtomicU64,
    latencies: [AtomicU64; BUCKETS],
}

#[repr(C)]
struct RunningExchange {
    /// Zero for a free entry.
    pid: AtomicU64,
    key: AtomicU64,
    /// PostgreSQL's microseconds since 2000.
    started: AtomicU64,
    calls: AtomicU64,
    batches_sent: AtomicU64,
    batches_received: AtomicU64,
}

thread_local! {
    static SHARED: OnceCell<Option<&'static Shared>> = const { OnceCell::new() };
    // Entries that this process has found.
    static KNOWN: RefCell<HashMap<u64, &'static FunctionCounters>> = RefCell::default();
}

/// The counters of all backends; none if the file cannot be mapped, and then nothing is counted.
fn shared() -> Option<&'static Shared> {
    SHARED.with(|cell| *cell.get_or_init(map_file))
}

fn map_file() -> Option<&'static Shared> {
    // Locked until it says whose it is.
    let file = file::open().ok()?;
    // SAFETY: the file belongs to the server, and its processes access it through the atomics alone. The map is page
    // aligned, as large as the struct, and never unmapped; zeros are a valid state.
    let shared = unsafe {
        let map: &'static mut MmapMut = Box::leak(Box::new(MmapMut::map_mut(&*file).ok()?));
        &*map.as_ptr().cast::<Shared>()
    };
    // SAFETY: reads what the server has set before this process began.
    shared.postmaster.store(unsafe { pg_sys::PostmasterPid } as u64, Relaxed);
    shared.pid_namespace.store(file::pid_namespace(), Relaxed);
    Some(shared)
}

fn key_of(function: pg_sys::Oid) -> u64 {
    // SAFETY: reads a process-wide variable.
    let database = unsafe { pg_sys::MyDatabaseId };
    u64::from(database.to_u32()) << 32 | u64::from(function.to_u32())
}

fn find_counters(key: u64) -> Option<&'static FunctionCounters> {
    let functions = &shared()?.functions;
    let known = KNOWN.with_borrow(|known| known.get(&key).copied());
    if let Some(counters) = known.filter(|counters| counters.key.load(Relaxed) == key) {
        return Some(counters);
    }
    let counters = find_or_make(functions, key).or_else(|| {
        free_entries(functions);
        find_or_make(functions, key)
    })?;
    KNOWN.with_borrow_mut(|known| known.insert(key, counters));
    Some(counters)
}

/// The entry of a key, made if need be; none if there is no room.
fn find_or_make(functions: &'static [FunctionCounters], key: u64) -> Option<&'static FunctionCounters> {
    let start = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % FUNCTIONS;
    let mut free = None;
    for counters in (0..FUNCTIONS).map(|i| &functions[(start + i) % FUNCTIONS]) {
        match counters.key.load(Relaxed) {
            found if found == key => return Some(counters),
            found @ (0 | FREED) => {
                free = free.or(Some((counters, found)));
                if found == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    let (counters, found) = free?;
    // Another may have been faster, with this key or with another.
    match counters.key.compare_exchange(found, key, Relaxed, Relaxed) {
        Err(now) if now != key => find_or_make(functions, key),
        _ => Some(counters),
    }
}

/// Frees the entries of functions that were dropped, with their database or in this one, or else of those that were called
/// longest ago.
fn free_entries(functions: &[FunctionCounters]) {
    let database = key_of(pg_sys::InvalidOid) >> 32;
    let exists = |key: u64| {
        let (owner, function) = (pg_sys::Oid::from((key >> 32) as u32), pg_sys::Oid::from(key as u32));
        if key >> 32 == database { catalog::proc_version(function).is_some() } else { catalog::database_exists(owner) }
    };
    let entries = functions.iter().map(|counters| (counters.key.load(Relaxed), counters));
    let mut entries: Vec<_> = entries.filter(|(key, _)| !matches!(*key, 0 | FREED | BEING_FREED)).collect();
    if entries.iter().all(|(key, _)| exists(*key)) {
        entries.sort_by_key(|(_, counters)| counters.used.load(Relaxed));
        entries.truncate(FREED_AT_ONCE);
    } else {
        entries.retain(|(key, _)| !exists(*key));
    }
    for (key, counters) in entries {
        if counters.key.compare_exchange(key, BEING_FREED, Relaxed, Relaxed).is_ok() {
            counters.clear();
            counters.key.store(FREED, Relaxed);
        }
    }
}

impl FunctionCounters {
    fn clear(&self) {
        let fields = [
            &self.exchanges,
            &self.calls,
            &self.rows,
            &self.batches,
            &self.bytes_sent,
            &self.bytes_received,
            &self.errors,
            &self.retries,
            &self.wait_us,
            &self.compute_us,
            &self.latency_us,
        ];
        fields.into_iter().chain(&self.latencies).for_each(|counter| counter.store(0, Relaxed));
    }
}

/// Counts one exchange.
#[derive(Default)]
pub struct Meter {
    counters: Option<&'static FunctionCounters>,
    running: Option<&'static RunningExchange>,
    retries: u64,
}

impl Meter {
    /// An exchange of a function begins.
    pub fn new(function: pg_sys::Oid) -> Meter {
        let key = key_of(function);
        let counters = find_counters(key);
        // SAFETY: reads the clock.
        let now = unsafe { pg_sys::GetCurrentTimestamp() } as u64;
        if let Some(counters) = counters {
            counters.exchanges.fetch_add(1, Relaxed);
            counters.used.store(now, Relaxed);
        }
        Meter { counters, running: start_running(key, now), retries: 0 }
    }

    /// A batch was sent.
    pub fn count_sent(&self, calls: usize) {
        if let Some(counters) = self.counters {
            counters.calls.fetch_add(calls as u64, Relaxed);
            counters.batches.fetch_add(1, Relaxed);
        }
        if let Some(running) = self.running {
            running.calls.fetch_add(calls as u64, Relaxed);
            running.batches_sent.fetch_add(1, Relaxed);
        }
    }

    /// A reply came, or a part of one.
    pub fn count_received(&mut self, reply: &udf_client::inbox::Reply, waited: Duration) {
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        if let Some(counters) = self.counters {
            counters.rows.fetch_add(reply.columns.num_rows() as u64, Relaxed);
            counters.bytes_sent.fetch_add(reply.bytes_sent as u64, Relaxed);
            counters.bytes_received.fetch_add(reply.bytes_received as u64, Relaxed);
            counters.wait_us.fetch_add(waited, Relaxed);
            counters.compute_us.fetch_add(reply.compute_us, Relaxed);
        }
        if reply.is_last
            && let Some(running) = self.running
        {
            running.batches_received.fetch_add(1, Relaxed);
        }
    }

    /// So often was the exchange begun again until now.
    pub fn count_retries(&mut self, retries: u64) {
        if let Some(counters) = self.counters {
            counters.retries.fetch_add(retries.saturating_sub(self.retries), Relaxed);
        }
        self.retries = retries;
    }

    /// A batch was answered this long after it was sent.
    pub fn count_latency(&self, latency: Duration) {
        if let Some(counters) = self.counters {
            counters.latency_us.fetch_add(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX), Relaxed);
            counters.latencies[bucket_of(latency)].fetch_add(1, Relaxed);
        }
    }

    /// The exchange failed.
    pub fn count_error(&self) {
        if let Some(counters) = self.counters {
            counters.errors.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(running) = self.running {
            running.pid.store(0, Relaxed);
        }
    }
}

fn start_running(key: u64, now: u64) -> Option<&'static RunningExchange> {
    // SAFETY: reads a process-wide variable.
    let pid = u64::try_from(unsafe { pg_sys::MyProcPid }).ok()?;
    let running = &shared()?.running;
    // Each backend begins elsewhere, so that it finds its own place free.
    let start = pid.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % RUNNING;
    let entries = || (0..RUNNING).map(|i| &running[(start + i) % RUNNING]);
    let takes = |entry: &&RunningExchange, holder| entry.pid.compare_exchange(holder, pid, Relaxed, Relaxed).is_ok();
    let free = entries().find(|entry| entry.pid.load(Relaxed) == 0 && takes(entry, 0));
    let entry = free.or_else(|| {
        // Of a backend that has died; asking takes long.
        entries().find(|entry| {
            let holder = entry.pid.load(Relaxed);
            !is_alive(holder) && takes(entry, holder)
        })
    })?;
    entry.key.store(key, Relaxed);
    entry.started.store(now, Relaxed);
    entry.calls.store(0, Relaxed);
    entry.batches_sent.store(0, Relaxed);
    entry.batches_received.store(0, Relaxed);
    Some(entry)
}

fn is_alive(pid: u64) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn bucket_of(latency: Duration) -> usize {
    let micros = latency.as_secs_f64() * 1e6;
    ((4.0 * micros.max(1.0).log2()) as usize).min(BUCKETS - 1)
}

/// The latency, in milliseconds, that a part of the batches stayed below.
fn percentile(latencies: &[u64], part: f64) -> Option<f64> {
    let total: u64 = latencies.iter().sum();
    let wanted = (total as f64 * part).ceil() as u64;
    let mut seen = 0;
    let bucket = latencies.iter().position(|count| {
        seen += count;
        total > 0 && seen >= wanted
    })?;
    Some(rounded((2f64).powf((bucket + 1) as f64 / 4.0) / 1000.0))
}

/// Milliseconds to three digits: a percentile is known less exactly than that.
fn rounded(milliseconds: f64) -> f64 {
    let text = format!("{milliseconds:.2e}");
    text.parse().unwrap_or(milliseconds)
}

/// Microseconds as milliseconds.
fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// The mean of so many latencies, in milliseconds, to the microsecond; none if there was none.
fn mean(micros: u64, count: u64) -> Option<f64> {
    Some(milliseconds((micros + count / 2).checked_div(count)?))
}

/// The counters of this database's functions, as JSON.
fn functions_json() -> serde_json::Value {
    let database = key_of(pg_sys::InvalidOid);
    let of_database = |counters: &&FunctionCounters| {
        let key = counters.key.load(Relaxed);
        key >> 32 << 32 == database && key != 0
    };
    let describe = |counters: &FunctionCounters| {
        let latencies: Vec<u64> = counters.latencies.iter().map(|count| count.load(Relaxed)).collect();
        json!({
            "funcid": counters.key.load(Relaxed) as u32,
            "exchanges": counters.exchanges.load(Relaxed),
            "calls": counters.calls.load(Relaxed),
            "rows": counters.rows.load(Relaxed),
            "batches": counters.batches.load(Relaxed),
            "bytes_sent": counters.bytes_sent.load(Relaxed),
            "bytes_received": counters.bytes_received.load(Relaxed),
            "errors": counters.errors.load(Relaxed),
            "retries": counters.retries.load(Relaxed),
            "wait_time": milliseconds(counters.wait_us.load(Relaxed)),
            "compute_time": milliseconds(counters.compute_us.load(Relaxed)),
            "latency_mean": mean(counters.latency_us.load(Relaxed), latencies.iter().sum()),
            "latency_p50": percentile(&latencies, 0.5),
            "latency_p90": percentile(&latencies, 0.9),
            "latency_p99": percentile(&latencies, 0.99),
        })
    };
    shared().map_or(json!([]), |shared| shared.functions.iter().filter(of_database).map(describe).collect())
}

/// The exchanges that are running in this database, as JSON.
fn running_json() -> serde_json::Value {
    let database = key_of(pg_sys::InvalidOid);
    let of_database =
        |entry: &&RunningExchange| entry.pid.load(Relaxed) != 0 && entry.key.load(Relaxed) >> 32 << 32 == database;
    let describe = |entry: &RunningExchange| {
        json!({
            "pid": entry.pid.load(Relaxed),
            "funcid": entry.key.load(Relaxed) as u32,
            "started": entry.started.load(Relaxed),
            "calls": entry.calls.load(Relaxed),
            "batches_sent": entry.batches_sent.load(Relaxed),
            "batches_received": entry.batches_received.load(Relaxed),
        })
    };
    shared().map_or(json!([]), |shared| shared.running.iter().filter(of_database).map(describe).collect())
}

/// `transship.statistics() RETURNS json`: what the views are made of.
#[pg_guard]
pub unsafe extern "C-unwind" fn statistics(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    report::json_datum(&json!({ "functions": functions_json(), "running": running_json() }))
}

/// `transship.stat_reset(oid)`: forgets one function's counters, or those of all of the database.
#[pg_guard]
pub unsafe extern "C-unwind" fn reset(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one argument, which is not NULL, since the function is STRICT.
    let function = unsafe { pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32) };
    let key = key_of(function);
    for counters in shared().iter().flat_map(|shared| &shared.functions) {
        let found = counters.key.load(Relaxed);
        if found == key || (function == pg_sys::InvalidOid && found >> 32 << 32 == key && found != 0) {
            counters.clear();
        }
    }
    pg_sys::Datum::from(0usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters as a fresh file has them.
    fn fresh() -> &'static [FunctionCounters] {
        // SAFETY: zeros are a valid state of all fields, which are atomics.
        let counters = (0..FUNCTIONS).map(|_| unsafe { std::mem::zeroed() });
        Box::leak(counters.collect::<Vec<FunctionCounters>>().into_boxed_slice())
    }

    #[test]
    fn a_function_keeps_its_entry_while_others_come_and_go() {
        let functions = fresh();
        let first = find_or_make(functions, 7).unwrap();
        first.calls.store(5, Relaxed);
        // All the others take the rest, wherever their places are; then there is no room.
        for key in (1..).filter(|key| *key != 7).take(FUNCTIONS - 1) {
            assert_eq!(find_or_make(functions, key).unwrap().key.load(Relaxed), key);
        }
        assert!(find_or_make(functions, 1 << 40).is_none());
        // A place that was freed is given away, and who lies behind it is still found.
        let freed = find_or_make(functions, 9).unwrap();
        freed.key.store(FREED, Relaxed);
        assert!(std::ptr::eq(find_or_make(functions, 1 << 40).unwrap(), freed));
        for key in (1..).filter(|key| *key != 9).take(FUNCTIONS - 1) {
            assert_eq!(find_or_make(functions, key).unwrap().key.load(Relaxed), key);
        }
        assert!(std::ptr::eq(find_or_make(functions, 7).unwrap(), first));
        assert_eq!(first.calls.load(Relaxed), 5);
    }

    #[test]
    fn cleared_counters_keep_their_key() {
        let counters = find_or_make(fresh(), 3).unwrap();
        counters.rows.store(1, Relaxed);
        counters.latencies[0].store(1, Relaxed);
        counters.clear();
        assert_eq!(
            (counters.rows.load(Relaxed), counters.latencies[0].load(Relaxed), counters.key.load(Relaxed)),
            (0, 0, 3)
        );
    }

    #[test]
    fn percentiles_lie_within_a_quarter_power_of_two() {
        let mut latencies = [0; BUCKETS];
        assert_eq!(percentile(&latencies, 0.5), None);
        // 90 batches of 1 ms, 10 of 1 s.
        latencies[bucket_of(Duration::from_millis(1))] = 90;
        latencies[bucket_of(Duration::from_secs(1))] = 10;
        for (part, milliseconds) in [(0.5, 1.0), (0.9, 1.0), (0.91, 1000.0), (0.99, 1000.0)] {
            let found = percentile(&latencies, part).unwrap();
            assert!(found >= milliseconds && found <= milliseconds * 1.19, "{part}: {found}");
        }
        latencies = [0; BUCKETS];
        latencies[bucket_of(Duration::from_micros(23_200))] = 1;
        assert_eq!(percentile(&latencies, 0.5), Some(27.6));
        assert_eq!(bucket_of(Duration::ZERO), 0);
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(mean(0, 0), None);
        assert_eq!(mean(3, 2), Some(0.002));
        assert_eq!(mean(82_663_480, 3000), Some(27.554));
        for (exact, shown) in [(27.554493735033716, 27.6), (0.0011892071150027212, 0.00119), (123_456.7, 123_000.0)] {
            assert_eq!(rounded(exact), shown);
        }
    }
}
