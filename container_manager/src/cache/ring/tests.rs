use super::*;

const BYTES: u64 = 1 << 20;

fn open(file: &File) -> (Ring, Saved) {
    Ring::open(file.try_clone().unwrap(), BYTES).unwrap()
}

fn name(number: u64) -> Name {
    name_of(&[7; 32], &[number.to_le_bytes(); 2].concat().try_into().unwrap())
}

fn get(ring: &Ring, number: u64) -> Option<Vec<u8>> {
    ring.get(&name(number)).unwrap().map(|record| record.bytes)
}

#[test]
fn records_are_found_by_the_next_store() {
    let file = tempfile::tempfile().unwrap();
    let (ring, saved) = open(&file);
    assert!(saved.times.is_none());
    let before: u64 = saved.epochs.iter().fold(0, |sum, epoch| sum.wrapping_add(*epoch));
    let long = vec![9; 50_000];
    for (number, result) in [(1, &b"one"[..]), (2, &b""[..]), (3, &long[..]), (1, &b"two"[..])] {
        ring.put(&name(number), 5 + number, result).unwrap();
    }
    let times = Times { time_ms: 10, wall_ms: 20, unaged_ms: 3 };
    ring.save(times).unwrap();
    ring.write_epoch(17, 4).unwrap();
    drop(ring);
    let (ring, saved) = open(&file);
    assert_eq!((saved.times, saved.epochs[17], saved.epochs.len()), (Some(times), 4, EPOCHS));
    let after: u64 = saved.epochs.iter().fold(0, |sum, epoch| sum.wrapping_add(*epoch));
    assert_ne!(before, after);
    assert_eq!(
        [1, 2, 3, 4].map(|number| get(&ring, number)),
        [Some(b"two".to_vec()), Some(Vec::new()), Some(long), None]
    );
    let record = Record { at_ms: 6, bytes: b"two".to_vec(), is_old: false };
    assert_eq!(ring.get(&name(1)).unwrap(), Some(record));
}

#[test]
fn the_newest_records_stay() {
    let file = tempfile::tempfile().unwrap();
    let (ring, _) = open(&file);
    let count = 20_000_u64;
    for number in 0..count {
        ring.put(&name(number), 0, &vec![1; (number % 150) as usize]).unwrap();
    }
    assert_eq!(file.metadata().unwrap().len(), BYTES);
    let is_there = |number| get(&ring, number).is_some();
    // Of 984 kB of ring, 128 bytes are needed for two records of three, and 192 for others.
    let found: Vec<u64> = (0..count).filter(|number| is_there(*number)).collect();
    assert!(found.iter().all(|number| *number > count - 9000), "{:?}", found.first());
    let newest = (count - 4000..count).filter(|number| is_there(*number)).count();
    assert!(newest > 3900, "{newest}");
    let is_old = |number| ring.get(&name(number)).unwrap().unwrap().is_old;
    assert!(is_old(found[0]) && !ring.seems_young(&name(found[0])).unwrap());
    assert!(!is_old(count - 1) && ring.seems_young(&name(count - 1)).unwrap());
    // What is too large pushes nothing out.
    ring.put(&name(count), 0, &vec![0; 100_000]).unwrap();
    assert!(!is_there(count) && is_there(count - 1));
}

#[test]
fn garbage_is_never_a_result() {
    let file = tempfile::tempfile().unwrap();
    let (ring, _) = open(&file);
    let results: Vec<Vec<u8>> =
        (0..2000_u64).map(|number| vec![(number % 251) as u8; (number % 700) as usize]).collect();
    (0_u64..).zip(&results).for_each(|(number, result)| ring.put(&name(number), 1, result).unwrap());
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Bytes of the index and of the ring are changed, and parts are moved elsewhere.
    for _ in 0..20_000 {
        let place = EPOCHS_AT + random() % (BYTES - EPOCHS_AT - 64);
        let mut bytes = [0; 48];
        if random() % 2 == 0 {
            bytes.iter_mut().for_each(|byte| *byte = random() as u8);
        } else {
            file.read_exact_at(&mut bytes, EPOCHS_AT + random() % (BYTES - EPOCHS_AT - 64)).unwrap();
        }
        file.write_all_at(&bytes[..1 + (random() % 48) as usize], place).unwrap();
    }
    let mut left = 0;
    for (number, result) in (0..).zip(&results) {
        if let Some(found) = get(&ring, number) {
            assert_eq!(found, *result);
            left += 1;
        }
    }
    assert!(left < results.len(), "nothing was damaged");
    // And it can be written again.
    (0_u64..).zip(&results).for_each(|(number, result)| ring.put(&name(number), 1, result).unwrap());
    let again =
        (0_u64..).zip(&results).filter(|(number, result)| get(&ring, *number).as_ref() == Some(*result)).count();
    assert!(again > 1900, "{again}");
}

#[test]
fn a_file_that_is_none_of_this_version_begins_empty() {
    let damages: [&dyn Fn(&File); 8] = [
        &|file| file.set_len(BYTES / 2).unwrap(),
        &|file| file.set_len(3).unwrap(),
        &|file| file.set_len(2 * BYTES).unwrap(),
        // Another version, size, secret, head and checksum.
        &|file| file.write_all_at(b"9", 18).unwrap(),
        &|file| file.write_all_at(b"9", MAGIC_BYTES as u64).unwrap(),
        &|file| file.write_all_at(&[1, 2, 3, 4, 5], MAGIC_BYTES as u64 + 8).unwrap(),
        &|file| file.write_all_at(&[255; 8], MAGIC_BYTES as u64 + 8 + 32).unwrap(),
        &|file| file.write_all_at(&vec![0x5a; BYTES as usize], 0).unwrap(),
    ];
    for damage in damages {
        let file = tempfile::tempfile().unwrap();
        let (ring, _) = open(&file);
        ring.put(&name(1), 0, b"one").unwrap();
        ring.save(Times::default()).unwrap();
        assert!(open(&file).1.times.is_some());
        damage(&file);
        let (ring, saved) = open(&file);
        assert!(saved.times.is_none() && get(&ring, 1).is_none());
        ring.put(&name(1), 0, b"two").unwrap();
        assert_eq!(get(&ring, 1).as_deref(), Some(&b"two"[..]));
        assert!(open(&file).1.times.is_some());
    }
    // Each file has a secret of its own.
    let (one, other) = (open(&tempfile::tempfile().unwrap()).0, open(&tempfile::tempfile().unwrap()).0);
    assert_ne!(one.secret_of(1, &[1; 16], 0), other.secret_of(1, &[1; 16], 0));
}

#[test]
fn a_file_has_a_size_that_can_be() {
    for bytes in [0, 1000, 4096, 1 << 40] {
        assert!(Ring::open(tempfile::tempfile().unwrap(), bytes).is_err(), "{bytes}");
    }
    assert!(Layout::of(262_144 << 20).is_ok());
}

#[test]
fn functions_epochs_and_users_have_secrets_of_their_own() {
    let (ring, _) = open(&tempfile::tempfile().unwrap());
    let secrets = [(1, [1; 16], 0), (2, [1; 16], 0), (1, [2; 16], 0), (1, [1; 16], 1)];
    let secrets: std::collections::HashSet<_> =
        secrets.iter().map(|(user, namespace, epoch)| ring.secret_of(*user, namespace, *epoch)).collect();
    assert_eq!(secrets.len(), 4);
    assert_ne!(ring.next_epoch(0), ring.next_epoch(0));
}
