//! Results in memory: bounded, by user and function, with the time at which each came.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use udf_client::cache::message::{CallCost, Counters, Key, Namespace, Request, Response, Results};
use udf_client::channel::MOST_BYTES;

/// What a short result needs, and a long one beside its own bytes: an entry of 65 bytes in a table that is half full on average.
const RESULT_BYTES: u64 = 128;
/// Functions that are known at a time. Of others, those that were asked for longest ago are forgotten.
const MOST_NAMESPACES: usize = 4096;
/// Parts of the results, each of which one thread uses at a time.
const SHARDS: usize = 16;
/// Results up to this length are kept in place.
const SHORT_BYTES: usize = 22;

/// The results of all users' functions.
pub struct Store {
    shards: Vec<Mutex<Shard>>,
    /// Bytes of the younger results of each shard.
    most_young: u64,
    namespaces: Mutex<HashMap<(u32, Namespace), Arc<Function>>>,
    clock: Clock,
    /// The generation of the next namespace. No two have the same, not even after the store was started anew.
    next_generation: AtomicU64,
    uses: AtomicU64,
}

/// What time it is, since any point in the past.
pub struct Clock(pub Box<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The host's clock, which nobody sets, and which goes on while the host sleeps.
    pub fn of_host() -> Clock {
        Clock(Box::new(|| {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
            Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
        }))
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
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
    fn get(&mut self, key: &(u64, Key), most_young: u64) -> (Option<&Held>, Option<Generation>) {
        let mut dropped = None;
        if !self.young.contains_key(key) {
            let Some(held) = self.old.remove(key) else { return (None, None) };
            dropped = self.insert(*key, held, most_young);
        }
        (self.young.get(key), dropped)
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
    /// An empty one, for so many bytes.
    pub fn new(bytes: u64, clock: Clock) -> Store {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        // The older results need as much.
        let most_young = bytes / SHARDS as u64 / 2;
        let next_generation = random_number().into();
        Store { shards, most_young, namespaces: Mutex::default(), clock, next_generation, uses: AtomicU64::new(0) }
    }

    /// Answers a request of a user.
    pub fn answer(&self, user: u32, request: Request) -> Response {
        match request {
            Request::LookUp { namespace, max_age, keys } => self.look_up(user, namespace, max_age, &keys),
            Request::Insert { namespace, generation, cost, is_too_cheap, keys, results } => {
                let function = self.function(user, namespace);
                if function.generation == generation {
                    *lock(&function.cost) = cost;
                    function.is_too_cheap.store(is_too_cheap, Relaxed);
                    self.insert(&function, keys, &results);
                }
                Response::Done
            }
            Request::Reset { namespace } => {
                // What is held of it has a generation that nobody asks for any more, and makes room when room is wanted.
                lock(&self.namespaces).remove(&(user, namespace));
                Response::Done
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
        let function = Arc::new(Function { generation, last_use: now.into(), ..Function::default() });
        known.insert((user, namespace), function.clone());
        function
    }

    fn look_up(&self, user: u32, namespace: Namespace, max_age: Option<Duration>, keys: &[Key]) -> Response {
        let function = self.function(user, namespace);
        let now_ms = self.now_ms();
        let max_age_ms = max_age.map(milliseconds);
        let mut results = Results::default();
        // A response has a length for each row as well.
        let most = MOST_BYTES.saturating_sub(64 + 4 * keys.len());
        let mut hits = 0;
        for key in keys {
            let mut shard = self.shard(key);
            let (held, dropped) = shard.get(&(function.generation, *key), self.most_young);
            let held =
                held.filter(|held| max_age_ms.is_none_or(|max_age| now_ms.saturating_sub(held.at_ms) <= max_age));
            let bytes = held.map(|held| held.bytes.as_slice());
            let bytes = bytes.filter(|bytes| results.bytes() + bytes.len() <= most);
            hits += u64::from(bytes.is_some());
            results.push(bytes);
            drop(shard);
            count_evictions(dropped);
        }
        function.hits.fetch_add(hits, Relaxed);
        function.misses.fetch_add(keys.len() as u64 - hits, Relaxed);
        let cost = *lock(&function.cost);
        Response::Found { generation: function.generation, cost, results }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(key[0]) % SHARDS])
    }

    fn now_ms(&self) -> u64 {
        milliseconds((self.clock.0)())
    }

    fn insert(&self, function: &Arc<Function>, keys: Vec<Key>, results: &Results) {
        let at_ms = self.now_ms();
        for (key, bytes) in keys.into_iter().zip(results.iter()) {
            let Some(bytes) = bytes else { continue };
            let held = Held { function: function.clone(), at_ms, bytes: Bytes::new(bytes) };
            held.count(1);
            let dropped = self.shard(&key).insert((function.generation, key), held, self.most_young);
            count_evictions(dropped);
        }
    }
}

impl Function {
    fn counters(&self) -> Counters {
        let positive = |number: &AtomicI64| u64::try_from(number.load(Relaxed)).unwrap_or(0);
        Counters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            results: positive(&self.held),
            bytes: positive(&self.bytes),
            evictions: self.evictions.load(Relaxed),
            is_too_cheap: self.is_too_cheap.load(Relaxed),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
mod tests {
    use super::*;

    const A: Namespace = [1; 16];
    const B: Namespace = [2; 16];

    /// A store, and a clock that tests set.
    fn store(bytes: u64) -> (Store, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let clock = seconds.clone();
        (Store::new(bytes, Clock(Box::new(move || Duration::from_secs(clock.load(Relaxed))))), seconds)
    }

    fn key(number: u64) -> Key {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    }

    fn look_up(
        store: &Store,
        user: u32,
        namespace: Namespace,
        age: Option<u64>,
        keys: &[u64],
    ) -> (u64, Vec<Option<Vec<u8>>>) {
        let keys = keys.iter().map(|number| key(*number)).collect();
        match store.answer(user, Request::LookUp { namespace, max_age: age.map(Duration::from_secs), keys }) {
            Response::Found { generation, results, .. } => {
                (generation, results.iter().map(|result| result.map(<[u8]>::to_vec)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn insert(store: &Store, user: u32, namespace: Namespace, generation: u64, rows: &[(u64, &[u8])]) {
        let (mut keys, mut results) = (Vec::new(), Results::default());
        for (number, bytes) in rows {
            keys.push(key(*number));
            results.push(Some(bytes));
        }
        let cost = CallCost { ns: 5, known_by: 7 };
        let request = Request::Insert { namespace, generation, cost, is_too_cheap: false, keys, results };
        assert_eq!(store.answer(user, request), Response::Done);
    }

    fn counters(store: &Store, user: u32, namespace: Namespace) -> Counters {
        match store.answer(user, Request::Count { namespaces: vec![namespace] }) {
            Response::Counters(counters) => counters[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_are_found_by_their_user_and_function_alone() {
        let (store, _) = store(1 << 20);
        let (generation, nothing) = look_up(&store, 10, A, None, &[1, 2]);
        assert_eq!(nothing, [None, None]);
        let long = vec![7; 1000];
        insert(&store, 10, A, generation, &[(1, b"one"), (3, &long), (4, b"")]);
        let found = look_up(&store, 10, A, None, &[3, 2, 1, 4, 1]).1;
        assert_eq!(found, [Some(long), None, Some(b"one".to_vec()), Some(Vec::new()), Some(b"one".to_vec())]);
        assert_eq!(look_up(&store, 11, A, None, &[1]).1, [None]);
        assert_eq!(look_up(&store, 10, B, None, &[1]).1, [None]);
        // Nor can another user write there, whatever generation it guesses.
        insert(&store, 11, A, generation, &[(2, b"bad")]);
        assert_eq!(look_up(&store, 10, A, None, &[2]).1, [None]);
        let Counters { hits, misses, results, bytes, evictions, is_too_cheap } = counters(&store, 10, A);
        assert_eq!((hits, misses, results, evictions, is_too_cheap), (4, 4, 3, 0, false));
        assert_eq!(bytes, 3 * RESULT_BYTES + 1000);
        assert_eq!(counters(&store, 12, A), Counters::default());
    }

    #[test]
    fn results_have_an_age() {
        let (store, clock) = store(1 << 20);
        let generation = look_up(&store, 1, A, None, &[]).0;
        insert(&store, 1, A, generation, &[(1, b"a")]);
        clock.store(10, Relaxed);
        insert(&store, 1, A, generation, &[(2, b"b")]);
        let is_there = |age| look_up(&store, 1, A, age, &[1, 2]).1.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(is_there(Some(10)), [true, true]);
        assert_eq!(is_there(Some(9)), [false, true]);
        clock.store(21, Relaxed);
        assert_eq!(is_there(Some(10)), [false, false]);
        assert_eq!(is_there(None), [true, true]);
        // A result that came again is as young as that.
        insert(&store, 1, A, generation, &[(1, b"c")]);
        assert_eq!(look_up(&store, 1, A, Some(10), &[1]).1, [Some(b"c".to_vec())]);
        assert_eq!(counters(&store, 1, A).results, 2);
    }

    #[test]
    fn what_was_called_before_a_reset_is_not_kept_after_it() {
        let (store, _) = store(1 << 20);
        let generation = look_up(&store, 1, A, None, &[]).0;
        insert(&store, 1, A, generation, &[(1, b"old")]);
        insert(&store, 1, B, look_up(&store, 1, B, None, &[]).0, &[(1, b"other")]);
        assert_eq!(store.answer(1, Request::Reset { namespace: A }), Response::Done);
        assert_eq!(counters(&store, 1, A), Counters::default());
        insert(&store, 1, A, generation, &[(2, b"late")]);
        let (next, found) = look_up(&store, 1, A, None, &[1, 2]);
        assert_eq!(found, [None, None]);
        assert_ne!(next, generation);
        assert_eq!(look_up(&store, 1, B, None, &[1]).1, [Some(b"other".to_vec())]);
    }

    #[test]
    fn memory_is_bounded_and_what_makes_room_is_counted() {
        let (store, _) = store(RESULT_BYTES * 1000);
        let generation = look_up(&store, 1, A, None, &[]).0;
        // Keys are hashes.
        let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
        for number in 0..10_000 {
            insert(&store, 1, A, generation, &[(spread(number), b"x")]);
            // Results that are asked for stay.
            assert_eq!(look_up(&store, 1, A, None, &[spread(7)]).1[0].is_some(), number >= 7);
        }
        let Counters { results, bytes, evictions, .. } = counters(&store, 1, A);
        assert!(results <= 1000 && results > 100 && bytes <= RESULT_BYTES * 1000, "{results} results, {bytes} bytes");
        assert_eq!(results + evictions, 10_000);
        // What is larger than all is not kept, and pushes nothing out.
        insert(&store, 1, A, generation, &[(10_000, &vec![0; 1 << 20])]);
        assert_eq!(look_up(&store, 1, A, None, &[10_000]).1, [None]);
    }

    #[test]
    fn functions_are_bounded_and_the_oldest_are_forgotten() {
        let (store, _) = store(1 << 20);
        let namespace = |number: usize| key(number as u64);
        let generation = look_up(&store, 1, namespace(0), None, &[]).0;
        insert(&store, 1, namespace(0), generation, &[(1, b"x")]);
        for number in 1..=MOST_NAMESPACES {
            look_up(&store, 1, namespace(number), None, &[]);
        }
        assert_eq!(lock(&store.namespaces).len(), MOST_NAMESPACES);
        assert_eq!(look_up(&store, 1, namespace(0), None, &[1]).1, [None]);
    }

    #[test]
    fn a_response_is_never_too_long() {
        let (store, _) = store(1 << 30);
        let generation = look_up(&store, 1, A, None, &[]).0;
        let result = vec![0; 1 << 20];
        (0..20).for_each(|number| insert(&store, 1, A, generation, &[(number, &result)]));
        let keys = (0..20).map(key).collect();
        let response = store.answer(1, Request::LookUp { namespace: A, max_age: None, keys });
        assert!(response.to_bytes().len() <= MOST_BYTES);
        assert_eq!(look_up(&store, 1, A, None, &(0..20).collect::<Vec<_>>()).1.iter().flatten().count(), 15);
    }
}
