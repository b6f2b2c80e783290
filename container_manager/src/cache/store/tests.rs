use super::*;

const A: Namespace = [1; 16];
const B: Namespace = [2; 16];
const TIMEOUT: Duration = Duration::from_secs(1);

/// A store, and a clock that tests set.
fn store(bytes: u64) -> (Store, Arc<AtomicU64>) {
    let seconds = Arc::new(AtomicU64::new(0));
    let clock = seconds.clone();
    (Store::new(bytes, Clock(Box::new(move || Duration::from_secs(clock.load(Relaxed)))), Tier::Memory), seconds)
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
    let max_age = age.map(Duration::from_secs);
    match store.answer(user, Request::LookUp { namespace, max_age, timeout: TIMEOUT, keys }) {
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
    let Counters { hits, misses, results, bytes, evictions, is_too_cheap, disk_hits } = counters(&store, 10, A);
    assert_eq!((hits, misses, disk_hits, results, evictions, is_too_cheap), (4, 4, 0, 3, 0, false));
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
    let response = store.answer(1, Request::LookUp { namespace: A, max_age: None, timeout: TIMEOUT, keys });
    assert!(response.to_bytes().len() <= MOST_BYTES);
    assert_eq!(look_up(&store, 1, A, None, &(0..20).collect::<Vec<_>>()).1.iter().flatten().count(), 15);
}

/// A store with a file, whose results the caller has written.
fn store_on(file: &std::fs::File, bytes: u64) -> (Store, Arc<Disk>) {
    let disk = Disk::open(file.try_clone().unwrap(), 4 << 20, Clock::of_host(), Clock::of_day()).unwrap();
    let disk = Arc::new(disk);
    (Store::new(bytes, Clock::of_host(), Tier::Disk(disk.clone())), disk)
}

/// Keys are hashes.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes()
}

/// Keeps results of a function whose calls take so long.
fn insert_at(store: &Store, namespace: Namespace, ns: u64, rows: &[(u64, &[u8])]) {
    let generation = look_up(store, 1, namespace, None, &[]).0;
    let (mut keys, mut results) = (Vec::new(), Results::default());
    for (number, bytes) in rows {
        keys.push(key(*number));
        results.push(Some(bytes));
    }
    let cost = CallCost { ns, known_by: 1000 };
    let request = Request::Insert { namespace, generation, cost, is_too_cheap: false, keys, results };
    assert_eq!(store.answer(1, request), Response::Done);
}

const DEAR_NS: u64 = 5_000_000;

#[test]
fn what_memory_drops_is_found_on_disk_also_by_the_next_store() {
    let file = tempfile::tempfile().unwrap();
    let (store, disk) = store_on(&file, RESULT_BYTES * 100);
    let numbers: Vec<u64> = (0..1000).map(spread).collect();
    for number in &numbers {
        insert_at(&store, A, DEAR_NS, &[(*number, &number.to_le_bytes())]);
    }
    disk.write_queued().unwrap();
    let is_whole = |store: &Store| {
        let found = look_up(store, 1, A, None, &numbers).1;
        assert!(numbers.iter().zip(found).all(|(number, bytes)| bytes == Some(number.to_le_bytes().to_vec())));
    };
    is_whole(&store);
    let Counters { hits, disk_hits, misses, results, .. } = counters(&store, 1, A);
    assert!(hits == 1000 && misses == 0 && disk_hits > 900 && results <= 100, "{disk_hits} of {hits}, {results} there");
    drop((store, disk));
    let (store, _) = store_on(&file, 1 << 20);
    is_whole(&store);
    assert_eq!(counters(&store, 1, A).disk_hits, 1000);
    // They are in memory from then on.
    is_whole(&store);
    assert_eq!((counters(&store, 1, A).disk_hits, counters(&store, 1, A).hits), (1000, 2000));
    // Nobody else's.
    assert_eq!(look_up(&store, 2, A, None, &numbers[..1]).1, [None]);
    assert_eq!(look_up(&store, 1, B, None, &numbers[..1]).1, [None]);
    assert_eq!(
        look_up(&store, 1, A, None, &[7, numbers[0], 8]).1[..],
        [None, Some(numbers[0].to_le_bytes().to_vec()), None]
    );
}

#[test]
fn results_of_cheap_calls_are_not_written() {
    let file = tempfile::tempfile().unwrap();
    let (store, disk) = store_on(&file, 1 << 20);
    insert_at(&store, A, 2_000, &[(1, b"one")]);
    insert_at(&store, B, DEAR_NS, &[(1, b"one")]);
    disk.write_queued().unwrap();
    let (store, _) = store_on(&file, 1 << 20);
    assert_eq!(look_up(&store, 1, A, None, &[1]).1, [None]);
    assert_eq!(look_up(&store, 1, B, None, &[1]).1, [Some(b"one".to_vec())]);
}

#[test]
fn a_reset_forgets_what_is_on_disk_and_what_waits_to_be_written() {
    let file = tempfile::tempfile().unwrap();
    let (store, disk) = store_on(&file, 1 << 20);
    let generation = look_up(&store, 1, A, None, &[]).0;
    insert_at(&store, A, DEAR_NS, &[(1, b"old")]);
    insert_at(&store, B, DEAR_NS, &[(1, b"other")]);
    disk.write_queued().unwrap();
    insert_at(&store, A, DEAR_NS, &[(2, b"waits")]);
    assert_eq!(store.answer(1, Request::Reset { namespace: A }), Response::Done);
    insert(&store, 1, A, generation, &[(3, b"late")]);
    disk.write_queued().unwrap();
    assert_eq!(look_up(&store, 1, A, None, &[1, 2, 3]).1, [None, None, None]);
    let (next, _) = store_on(&file, 1 << 20);
    for store in [store, next] {
        assert_eq!(look_up(&store, 1, A, None, &[1, 2, 3]).1, [None, None, None]);
        assert_eq!(look_up(&store, 1, B, None, &[1]).1, [Some(b"other".to_vec())]);
    }
    // Without the disk, nobody can say that they do not come back.
    let store = Store::new(1 << 20, Clock::of_host(), Tier::Unusable);
    assert_eq!(store.answer(1, Request::Reset { namespace: A }), Response::NotForgotten);
}

#[test]
fn results_on_disk_have_an_age() {
    let file = tempfile::tempfile().unwrap();
    let (host, day) = (Arc::new(AtomicU64::new(100)), Arc::new(AtomicU64::new(1_000_000)));
    let clock = |seconds: &Arc<AtomicU64>| {
        let seconds = seconds.clone();
        Clock(Box::new(move || Duration::from_secs(seconds.load(Relaxed))))
    };
    let store_now = || {
        let disk = Disk::open(file.try_clone().unwrap(), 4 << 20, clock(&host), clock(&day)).unwrap();
        let disk = Arc::new(disk);
        (Store::new(1 << 20, Clock::of_host(), Tier::Disk(disk.clone())), disk)
    };
    let (store, disk) = store_now();
    insert_at(&store, A, DEAR_NS, &[(1, b"one")]);
    disk.write_queued().unwrap();
    host.store(3, Relaxed);
    day.fetch_add(60, Relaxed);
    let is_there = |store: &Store, age| look_up(store, 1, A, age, &[1]).1[0].is_some();
    let (store, _) = store_now();
    assert!(!is_there(&store, Some(59)) && is_there(&store, Some(60)));
    // Also once it is in memory.
    host.fetch_add(10, Relaxed);
    assert!(!is_there(&store, Some(69)) && is_there(&store, Some(70)) && is_there(&store, None));
    // The clock was set back: it may have any age.
    day.fetch_sub(1000, Relaxed);
    let (store, _) = store_now();
    for _ in 0..2 {
        assert!(!is_there(&store, Some(1_000_000_000)) && is_there(&store, None));
    }
}
