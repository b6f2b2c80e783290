use std::os::unix::fs::FileExt;

use super::*;

const BYTES: u64 = 1 << 20;
const FUNCTION: Namespace = [1; 16];
const MOST: usize = 1 << 20;

/// A clock that tests set, in milliseconds.
fn clock(ms: &Arc<AtomicU64>) -> Clock {
    let ms = ms.clone();
    Clock(Box::new(move || Duration::from_millis(ms.load(Relaxed))))
}

/// A file, and the clocks of its host.
struct Place {
    file: File,
    host: Arc<AtomicU64>,
    day: Arc<AtomicU64>,
}

impl Place {
    fn new() -> Place {
        let (host, day) = (Arc::new(5_000.into()), Arc::new(1_000_000_000.into()));
        Place { file: tempfile::tempfile().unwrap(), host, day }
    }

    /// The next store.
    fn open(&self) -> Disk {
        Disk::open(self.file.try_clone().unwrap(), BYTES, clock(&self.host), clock(&self.day)).unwrap()
    }

    fn pass(&self, ms: u64) {
        self.host.fetch_add(ms, Relaxed);
        self.day.fetch_add(ms, Relaxed);
    }
}

fn key(number: u8) -> Key {
    [number; 16]
}

fn keep(disk: &Disk, number: u8) {
    disk.keep([Entry::new(&disk.secret_of(1, &FUNCTION), &key(number), disk.now_ms(), &[number; 3])]);
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// How old a result is.
fn age_of(disk: &Disk, number: u8) -> Option<u64> {
    let mut found = disk.read(&disk.secret_of(1, &FUNCTION), [key(number)].iter(), MOST, in_time());
    let record = found.remove(0)?;
    assert_eq!(record.bytes, [number; 3]);
    Some(disk.now_ms() - record.at_ms)
}

#[test]
fn results_have_their_age_after_a_restart() {
    let place = Place::new();
    let disk = place.open();
    keep(&disk, 1);
    assert_eq!(age_of(&disk, 1), None);
    disk.write_queued().unwrap();
    place.pass(100);
    assert_eq!(age_of(&disk, 1), Some(100));
    // The host starts anew: one clock begins again, and the other has gone on.
    place.host.store(10, Relaxed);
    place.day.fetch_add(400, Relaxed);
    let disk = place.open();
    assert_eq!(age_of(&disk, 1), Some(500));
    place.pass(7);
    assert_eq!(age_of(&disk, 1), Some(507));
    // To set the time of day changes nothing while a store runs.
    place.day.store(3, Relaxed);
    assert_eq!(age_of(&disk, 1), Some(507));
}

#[test]
fn results_are_too_old_after_the_clock_was_set_back() {
    let place = Place::new();
    let disk = place.open();
    keep(&disk, 1);
    disk.write_queued().unwrap();
    // It is killed before it can note when it wrote this one.
    place.pass(50_000);
    keep(&disk, 2);
    let queued = std::mem::take(&mut lock(&disk.queue).entries);
    disk.ring.put(&queued[0].name, queued[0].at_ms, &queued[0].bytes).unwrap();
    place.day.store(999_000_000, Relaxed);
    let disk = place.open();
    for number in [1, 2] {
        assert!(age_of(&disk, number).unwrap() >= FIRST_TIME_MS, "{number}");
    }
    keep(&disk, 3);
    disk.write_queued().unwrap();
    place.pass(60_000);
    let ages = |disk: &Disk| [1, 2, 3].map(|number| age_of(disk, number).filter(|age| *age < FIRST_TIME_MS));
    assert_eq!(ages(&disk)[..2], [None; 2]);
    assert_eq!(ages(&disk)[2], Some(60_000));
    // The next store knows that as well, and has the right time again.
    let disk = place.open();
    assert_eq!(ages(&disk)[0], None);
    assert_eq!(ages(&disk)[2], Some(60_000));
}

#[test]
fn a_clock_that_is_set_while_a_store_runs_makes_nothing_younger() {
    let place = Place::new();
    let disk = place.open();
    keep(&disk, 1);
    disk.write_queued().unwrap();
    let mut saved = disk.clock.now();
    place.pass(1_000_000);
    place.day.fetch_sub(900_000, Relaxed);
    // The thread that writes looks at the clock now and then.
    disk.write(&[], &mut saved).unwrap();
    place.pass(1_000);
    assert_eq!(age_of(&place.open(), 1), Some(1_001_000));
}

#[test]
fn what_is_forgotten_does_not_come_back() {
    let place = Place::new();
    let disk = place.open();
    let before = disk.secret_of(1, &FUNCTION);
    keep(&disk, 1);
    disk.write_queued().unwrap();
    keep(&disk, 2);
    assert!(disk.forget(1, &FUNCTION));
    // A call that began before.
    disk.keep([Entry::new(&before, &key(3), disk.now_ms(), &[3; 3])]);
    disk.write_queued().unwrap();
    let others = disk.secret_of(2, &FUNCTION);
    for disk in [disk, place.open()] {
        assert_eq!([1, 2, 3].map(|number| age_of(&disk, number)), [None; 3]);
        keep(&disk, 4);
        disk.write_queued().unwrap();
        assert_eq!(age_of(&disk, 4), Some(0));
        assert_eq!(disk.secret_of(2, &FUNCTION), others);
    }
    let disk = place.open();
    assert!(disk.forget(1, &FUNCTION) && age_of(&disk, 4).is_none());
    assert_eq!(age_of(&place.open(), 4), None);
}

#[test]
fn a_reset_brings_nothing_back_that_was_kept_after_one_that_the_disk_did_not_take() {
    let place = Place::new();
    let disk = place.open();
    let which = disk.ring.epoch_of(1, &FUNCTION);
    let not_taken = disk.ring.next_epoch(lock(&disk.epochs)[which]);
    lock(&disk.epochs)[which] = not_taken;
    keep(&disk, 1);
    disk.write_queued().unwrap();
    assert_eq!(age_of(&disk, 1), Some(0));
    let disk = place.open();
    assert_eq!(age_of(&disk, 1), None);
    assert!(disk.forget(1, &FUNCTION));
    assert_eq!(age_of(&disk, 1), None);
}

#[test]
fn resets_that_wait_for_the_disk_are_bounded() {
    let disk = Place::new().open();
    disk.waiting_resets.store(MOST_RESETS, Relaxed);
    keep(&disk, 1);
    disk.write_queued().unwrap();
    // It is not known whether the disk forgets; memory does.
    assert!(!disk.forget(1, &FUNCTION));
    assert_eq!(age_of(&disk, 1), None);
    assert_eq!(disk.waiting_resets.load(Relaxed), MOST_RESETS);
}

#[test]
fn what_waits_is_bounded() {
    let disk = Place::new().open();
    let (secret, large) = (disk.secret_of(1, &FUNCTION), vec![0; 1 << 20]);
    for number in 0..100 {
        disk.keep([Entry::new(&secret, &key(number), 0, &large)]);
    }
    let queue = lock(&disk.queue);
    assert!(queue.bytes <= MOST_QUEUED_BYTES && queue.entries.len() == 15, "{}", queue.entries.len());
}

#[test]
fn what_is_used_again_stays() {
    let disk = Place::new().open();
    let secret = disk.secret_of(1, &FUNCTION);
    let entry =
        |number: u64| Entry::new(&secret, &[number.to_le_bytes(); 2].concat().try_into().unwrap(), 1, &[0; 400]);
    disk.keep([entry(0)]);
    for number in 1..5_000 {
        disk.keep([entry(number), Entry { is_known: true, ..entry(0) }]);
        if number % 100 == 0 {
            disk.write_queued().unwrap();
        }
    }
    let found = |number: u64| disk.ring.get(&entry(number).name).unwrap().is_some();
    assert!(found(0) && !found(1) && !found(2000));
    // It is not written each time.
    let count = (0..5000).filter(|number| found(*number)).count();
    assert!(count > 1800, "{count}");
}

#[test]
fn reading_ends_at_its_deadline_and_has_few_threads() {
    let disk = Place::new().open();
    keep(&disk, 1);
    disk.write_queued().unwrap();
    let secret = disk.secret_of(1, &FUNCTION);
    assert!(disk.read(&secret, [key(1)].iter(), MOST, Instant::now()).is_empty());
    assert_eq!(disk.read(&secret, [key(1), key(2)].iter(), MOST, in_time()).len(), 2);
    assert_eq!(disk.read(&secret, [key(1), key(2)].iter(), 2, in_time()).len(), 1);
    disk.readers.store(MOST_READERS, Relaxed);
    assert!(disk.read(&secret, [key(1)].iter(), MOST, in_time()).is_empty());
    assert_eq!(disk.readers.load(Relaxed), MOST_READERS);
}

#[test]
fn a_disk_that_fails_gives_nothing() {
    let place = Place::new();
    let disk = place.open();
    keep(&disk, 1);
    disk.write_queued().unwrap();
    // As if it could not be read.
    place.file.set_len(100).unwrap();
    assert!(disk.read(&disk.secret_of(1, &FUNCTION), [key(1)].iter(), MOST, in_time()).is_empty());
    // A file that can only be read.
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results");
    std::fs::write(&path, "").unwrap();
    let mut disk = place.open();
    disk.ring = Ring::open(File::options().read(true).write(true).open(&path).unwrap(), BYTES).unwrap().0;
    disk.ring = disk.ring.with_file(File::open(&path).unwrap());
    keep(&disk, 1);
    assert!(disk.write_queued().is_err());
    assert!(!disk.forget(1, &FUNCTION));
    assert!(disk.has_warned_of_reset.load(Relaxed));
    assert!(Disk::open(File::open(&path).unwrap(), BYTES, Clock::of_host(), Clock::of_day()).is_err());
    let mut bytes = [0; 8];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"transshi");
}

#[test]
fn reading_must_take_less_than_calls() {
    let price = Price::default();
    let cost = |ns| CallCost { ns, known_by: 1000 };
    assert!(price.is_worth_reading(CallCost::default()));
    assert!(price.is_worth_reading(cost(5_000_000)) && !price.is_worth_reading(cost(1_000)));
    assert!(!Price::is_worth_writing(cost(1_000)) && Price::is_worth_writing(cost(20_000)));
    // 10 ms per row, as of a slow disk.
    (0..100).for_each(|_| price.note(10, Duration::from_millis(100)));
    assert!(price.is_worth_reading(cost(30_000_000)));
    let tried = (0..1280).filter(|_| price.is_worth_reading(cost(5_000_000))).count();
    assert_eq!(tried, 20);
    (0..100).for_each(|_| price.note(10, Duration::from_micros(100)));
    assert!(price.is_worth_reading(cost(5_000_000)) && price.is_worth_reading(cost(50_000)));
}
