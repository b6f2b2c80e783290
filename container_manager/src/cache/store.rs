//! Results in memory: bounded, by user and function, with the time at which each came; and behind them those on disk, if there is one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use udf_client::cache::message::{CallCost, Counters, Key, Namespace, Request, Response, Results};
use udf_client::channel::MOST_BYTES;

use super::clock::{Clock, milliseconds};
use super::disk::{Disk, Entry, Price, Tier};
use super::ring::Secret;

/// What a short result needs, and a long one beside its own bytes: an entry of 65 bytes in a table that is half full on average.
const RESULT_BYTES: u64 = 128;
/// Functions that are known at a time. Of others, those that were asked for longest ago are forgotten.
const MOST_NAMESPACES: usize = 4096;
/// Parts of the results, each of which one thread uses at a time.
const SHARDS: usize = 16;
/// Results up to this length are kept in place.
const SHORT_BYTES: usize = 22;
/// No look-up reads from a disk for longer than half of this.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The results of all users' functions.
pub struct Store {
    shards: Vec<Mutex<Shard>>,
    /// Bytes of the younger results of each shard.
    most_young: u64,
    namespaces: Mutex<HashMap<(u32, Namespace), Arc<Function>>>,
    clock: Clock,
    tier: Tier,
    /// The generation of the next namespace. No two have the same, not even after the store was started anew.
    next_generation: AtomicU64,
    uses: AtomicU64,
}

/// A function of one user.
#[derive(Debug, Default)]
struct Function {
    generation: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Counted by several threads, so that a sum may be below zero for a moment.
    held: AtomicI64,
    bytes: AtomicI64,
    evictions: AtomicU64,
    cost: Mutex<CallCost>,
    is_too_cheap: AtomicBool,
    last_use: AtomicU64,
    disk_hits: AtomicU64,
    /// Of its names on disk.
    secret: Secret,
    price: Price,
}

/// A result, which is counted until it is dropped.
#[derive(Debug)]
struct Held {
    function: Arc<Function>,
    /// When it came, in milliseconds.
    at_ms: u64,
    bytes: Bytes,
}

const _: () = assert!(size_of::<((u64, Key), Held)>() == 64);

#[derive(Debug)]
enum Bytes {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl Bytes {
    fn new(bytes: &[u8]) -> Bytes {
        let mut short = [0; SHORT_BYTES];
        match (short.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(bytes);
                Bytes::Short(length, short)
            }
            _ => Bytes::Long(bytes.into()),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Short(length, bytes) => &bytes[..usize::from(*length)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl Held {
    /// Bytes that it needs.
    fn size(&self) -> u64 {
        match &self.bytes {
            Bytes::Short(..) => RESULT_BYTES,
            Bytes::Long(bytes) => RESULT_BYTES + bytes.len() as u64,
        }
    }

    fn count(&self, sign: i64) {
        self.function.held.fetch_add(sign, Relaxed);
        self.function.bytes.fetch_add(sign * i64::try_from(self.size()).unwrap_or(i64::MAX), Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count(-1);
    }
}

/// A part of the results: those that were kept or asked for of late, and those that were before. When there are too many of the
/// first, all of the second make room for them.
#[derive(Debug, Default)]
struct Shard {
    young: Generation,
    young_bytes: u64,
    old: Generation,
}

type Generation = HashMap<(u64, Key), Held>;

impl Shard {
    /// A result, whether it was among those that were before, and those that make room for it.
    fn get(&mut self, key: &(u64, Key), most_young: u64) -> (Option<&Held>, bool, Option<Generation>) {
        let (mut was_old, mut dropped) = (false, None);
        if !self.young.contains_key(key) {
            let Some(held) = self.old.remove(key) else { return (None, false, None) };
            dropped = self.insert(*key, held, most_young);
            was_old = true;
        }
        (self.young.get(key), was_old, dropped)
    }

    /// Adds a result; the results that make room for it are the caller's to drop, when others need not wait for that.
    fn insert(&mut self, key: (u64, Key), held: Held, most_young: u64) -> Option<Generation> {
        let size = held.size();
        if size > most_young {
            return None;
        }
        let mut dropped = None;
        if self.young_bytes + size > most_young {
            self.young_bytes = 0;
            dropped = Some(std::mem::replace(&mut self.old, std::mem::take(&mut self.young)));
        }
        self.old.remove(&key);
        self.young_bytes += size;
        if let Some(before) = self.young.insert(key, held) {
            self.young_bytes -= before.size();
        }
        dropped
    }
}

impl Store {
    /// One without results in memory, for so many bytes there, and with what is on disk.
    pub fn new(bytes: u64, clock: Clock, tier: Tier) -> Store {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        // The older results need as much.
        let most_young = bytes / SHARDS as u64 / 2;
        let next_generation = random_number().into();
        let (namespaces, uses) = Default::default();
        Store { shards, most_young, namespaces, clock, tier, next_generation, uses }
    }

    /// Answers a request of a user.
    pub fn answer(&self, user: u32, request: Request) -> Response {
        match request {
            Request::LookUp { namespace, max_age, timeout, keys } => {
                self.look_up(user, namespace, max_age, timeout, &keys)
            }
            Request::Insert { namespace, generation, cost, is_too_cheap, keys, results } => {
                let function = self.function(user, namespace);
                if function.generation == generation {
                    *lock(&function.cost) = cost;
                    function.is_too_cheap.store(is_too_cheap, Relaxed);
                    self.insert(&function, cost, &keys, &results);
                }
                Response::Done
            }
            Request::Reset { namespace } => {
                let is_forgotten = match &self.tier {
                    Tier::Memory => true,
                    Tier::Unusable => false,
                    Tier::Disk(disk) => disk.forget(user, &namespace),
                };
                // What is held of it has a generation that nobody asks for any more, and makes room when room is wanted. The same is true of
                // the names of what waits to be written.
                lock(&self.namespaces).remove(&(user, namespace));
                if is_forgotten { Response::Done } else { Response::NotForgotten }
            }
            Request::Count { namespaces } => {
                let known = lock(&self.namespaces);
                let counters = namespaces.iter().map(|namespace| known.get(&(user, *namespace)));
                Response::Counters(
                    counters.map(|function| function.map(|it| it.counters()).unwrap_or_default()).collect(),
                )
            }
        }
    }

    /// A function of a user, which is a new one if it is not known.
    fn function(&self, user: u32, namespace: Namespace) -> Arc<Function> {
        let now = self.uses.fetch_add(1, Relaxed);
        let mut known = lock(&self.namespaces);
        if let Some(function) = known.get(&(user, namespace)) {
            function.last_use.store(now, Relaxed);
            return function.clone();
        }
        if known.len() >= MOST_NAMESPACES {
            let oldest =
                known.iter().min_by_key(|(_, function)| function.last_use.load(Relaxed)).map(|(name, _)| *name);
            oldest.and_then(|name| known.remove(&name));
        }
        let generation = self.next_generation.fetch_add(1, Relaxed);
        let secret = self.tier.disk().map(|disk| disk.secret_of(user, &namespace)).unwrap_or_default();
        let function = Arc::new(Function { generation, secret, last_use: now.into(), ..Function::default() });
        known.insert((user, namespace), function.clone());
        function
    }

    fn look_up(
        &self,
        user: u32,
        namespace: Namespace,
        max_age: Option<Duration>,
        timeout: Duration,
        keys: &[Key],
    ) -> Response {
        // The client needs time to take the answer.
        let deadline = Instant::now() + timeout.min(LONGEST_TIMEOUT) / 2;
        let function = self.function(user, namespace);
        let now_ms = self.now_ms();
        let max_age_ms = max_age.map(milliseconds);
        let is_young = |at_ms: u64| max_age_ms.is_none_or(|max_age| now_ms.saturating_sub(at_ms) <= max_age);
        let disk = self.tier.disk();
        let cost = *lock(&function.cost);
        let rewrites = disk.is_some() && Price::is_worth_writing(cost);
        let mut results = Results::default();
        let mut used_again = Vec::new();
        // A response has a length for each row as well.
        let most = MOST_BYTES.saturating_sub(64 + 4 * keys.len());
        let mut hits = 0;
        for key in keys {
            let mut shard = self.shard(key);
            let (held, was_old, dropped) = shard.get(&(function.generation, *key), self.most_young);
            let held = held.filter(|held| is_young(held.at_ms));
            let held = held.filter(|held| results.bytes() + held.bytes.as_slice().len() <= most);
            if let (Some(held), true) = (held, was_old && rewrites) {
                used_again.push(Entry::again(&function.secret, key, held.at_ms, held.bytes.as_slice()));
            }
            let bytes = held.map(|held| held.bytes.as_slice());
            hits += u64::from(bytes.is_some());
            results.push(bytes);
            drop(shard);
            count_evictions(dropped);
        }
        if let Some(disk) = disk {
            if !used_again.is_empty() {
                disk.keep(used_again);
            }
            if hits < keys.len() as u64 && function.price.is_worth_reading(cost) {
                let disk_hits = self.add_from_disk(disk, &function, is_young, keys, &mut results, deadline);
                function.disk_hits.fetch_add(disk_hits, Relaxed);
                hits += disk_hits;
            }
        }
        function.hits.fetch_add(hits, Relaxed);
        function.misses.fetch_add(keys.len() as u64 - hits, Relaxed);
        Response::Found { generation: function.generation, cost, results }
    }

    /// Adds the results on disk to those in memory, where they are kept from then on; how many. A response must have room for all.
    fn add_from_disk(
        &self,
        disk: &Disk,
        function: &Arc<Function>,
        is_young: impl Fn(u64) -> bool,
        keys: &[Key],
        results: &mut Results,
        deadline: Instant,
    ) -> u64 {
        let start = Instant::now();
        let missing = keys.iter().zip(results.iter()).filter_map(|(key, result)| result.is_none().then_some(key));
        let mut left = MOST_BYTES.saturating_sub(64 + 4 * keys.len() + results.bytes());
        let records = disk.read(&function.secret, missing, left, deadline);
        function.price.note(records.len(), start.elapsed());
        let mut records = records.into_iter();
        let (mut all, mut used_again, mut hits) = (Results::default(), Vec::new(), 0);
        for (key, result) in keys.iter().zip(results.iter()) {
            let record = if result.is_none() { records.next().flatten() } else { None };
            let record = record.filter(|record| is_young(record.at_ms) && record.bytes.len() <= left);
            let Some(record) = record else {
                all.push(result);
                continue;
            };
            hits += 1;
            left -= record.bytes.len();
            all.push(Some(&record.bytes));
            self.hold(function, key, record.at_ms, &record.bytes);
            if record.is_old {
                used_again.push(Entry::again(&function.secret, key, record.at_ms, &record.bytes));
            }
        }
        if !used_again.is_empty() {
            disk.keep(used_again);
        }
        *results = all;
        hits
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(key[0]) % SHARDS])
    }

    fn now_ms(&self) -> u64 {
        // Results on disk have the time of their file.
        self.tier.disk().map_or_else(|| self.clock.now_ms(), |disk| disk.now_ms())
    }

    fn insert(&self, function: &Arc<Function>, cost: CallCost, keys: &[Key], results: &Results) {
        let at_ms = self.now_ms();
        let rows = || keys.iter().zip(results.iter()).filter_map(|(key, result)| Some((key, result?)));
        for (key, bytes) in rows() {
            self.hold(function, key, at_ms, bytes);
        }
        if let Some(disk) = self.tier.disk().filter(|_| Price::is_worth_writing(cost)) {
            disk.keep(rows().map(|(key, bytes)| Entry::new(&function.secret, key, at_ms, bytes)));
        }
    }

    fn hold(&self, function: &Arc<Function>, key: &Key, at_ms: u64, bytes: &[u8]) {
        let held = Held { function: function.clone(), at_ms, bytes: Bytes::new(bytes) };
        held.count(1);
        let dropped = self.shard(key).insert((function.generation, *key), held, self.most_young);
        count_evictions(dropped);
    }
}

impl Function {
    fn counters(&self) -> Counters {
        let positive = |number: &AtomicI64| u64::try_from(number.load(Relaxed)).unwrap_or(0);
        Counters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            disk_hits: self.disk_hits.load(Relaxed),
            results: positive(&self.held),
            bytes: positive(&self.bytes),
            evictions: self.evictions.load(Relaxed),
            is_too_cheap: self.is_too_cheap.load(Relaxed),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts results that make room for others, and drops them.
fn count_evictions(dropped: Option<Generation>) {
    dropped.iter().flat_map(HashMap::values).for_each(|held| {
        held.function.evictions.fetch_add(1, Relaxed);
    });
}

/// A number that no earlier store has begun with.
fn random_number() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests;
