//! The store: what several processes publish, what is removed when there is no more room, and which directories are refused.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use shared_tables::keys::Probe;
use shared_tables::segment::{Digest, Finished, MOST_BYTES, Segment, SegmentWriter};
use shared_tables::store::{Begun, Incoming, Store};
use tempfile::TempDir;
use udf_types::error::{Kind, Result};

/// The directory that a child of a test works in.
const CHILD: &str = "SHARED_TABLES_CHILD";
const PLENTY: u64 = 1 << 30;

/// A segment whose keys are `first` and the numbers after it, each of which comes twice.
fn segment(first: i64, rows: i64) -> Finished<Vec<u8>> {
    let keys: ArrayRef = Arc::new((0..rows).map(|row| first + row / 2).collect::<Int64Array>());
    let batch = RecordBatch::try_from_iter([("id", keys)]).unwrap();
    let mut writer = SegmentWriter::new(Vec::new(), &batch.schema(), &[0]).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap()
}

/// Begins to load a segment that nobody else loads.
fn begin(store: &Store, digest: &Digest, bytes: u64) -> Result<Incoming> {
    match store.begin(digest, bytes)? {
        Begun::Incoming(incoming) => Ok(incoming),
        Begun::Loading => panic!("somebody else loads it"),
    }
}

/// Reserves room for a segment of a name of its own.
fn begin_any(store: &Store, bytes: u64) -> Result<Incoming> {
    begin(store, &Digest::of(&bytes.to_le_bytes()), bytes)
}

fn load(store: &Store, segment: &Finished<Vec<u8>>) -> Result<Segment> {
    let mut incoming = begin(store, &segment.digest, segment.bytes)?;
    incoming.append(&segment.out)?;
    incoming.finish()
}

/// When a segment was last used.
fn used(folder: &Path, digest: &Digest) -> SystemTime {
    fs::metadata(folder.join(format!("{digest}.arrow"))).unwrap().modified().unwrap()
}

fn set_used(folder: &Path, digest: &Digest, time: SystemTime) {
    File::open(folder.join(format!("{digest}.arrow"))).unwrap().set_modified(time).unwrap();
}

fn find(segment: &Segment, key: i64) -> Vec<u32> {
    let mut probe = Probe::default();
    probe.push(|bytes| bytes.extend(key.to_le_bytes()));
    segment.find(&probe).to_vec()
}

/// A folder that only this user can look into, whatever the umask is.
fn folder() -> TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.retain(|name| name != "lock");
    names
}

/// Runs a test of this file as another process, in a directory.
fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(CHILD, folder);
    command
}

#[test]
fn a_segment_is_found_once_it_is_published() {
    let folder = folder();
    let path = folder.path().join("tables");
    let store = Store::open(&path, PLENTY).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    let bytes = segment(5, 100_000);
    assert!(store.get(&bytes.digest).unwrap().is_none());
    let mut incoming = begin(&store, &bytes.digest, bytes.bytes).unwrap();
    incoming.write_all(&bytes.out).unwrap();
    assert!(store.get(&bytes.digest).unwrap().is_none());
    let loaded = incoming.finish().unwrap();
    let other = Store::open(&path, PLENTY).unwrap();
    let found = other.get(&bytes.digest).unwrap().unwrap();
    for segment in [&loaded, &found] {
        assert_eq!((segment.rows(), segment.index().unwrap().distinct()), (100_000, 50_000));
        assert_eq!(segment.index().unwrap().seed(), bytes.digest.seed());
        assert_eq!((find(segment, 5), find(segment, 50_004)), (vec![0, 1], vec![99_998, 99_999]));
        assert!(find(segment, 4).is_empty());
        assert!(store.is_current(segment));
        assert_eq!(segment.digest(), Some(&bytes.digest));
    }
    assert_eq!(names(&path), [format!("{}.arrow", bytes.digest), format!("{}.index", bytes.digest)]);
    let size_of = |name: &String| fs::metadata(path.join(name)).map(|found| found.len().max(found.blocks() * 512));
    let sizes = names(&path).iter().map(|name| size_of(name).unwrap()).sum::<u64>();
    assert_eq!(store.bytes().unwrap(), sizes);
    // A removed segment may be read on.
    store.remove(&bytes.digest).unwrap();
    store.remove(&bytes.digest).unwrap();
    assert!(store.get(&bytes.digest).unwrap().is_none());
    assert!(!store.is_current(&found));
    assert_eq!(find(&found, 6), [2, 3]);
    let again = load(&store, &bytes).unwrap();
    assert!(store.is_current(&again) && !store.is_current(&found));
}

#[test]
fn nothing_stays_of_what_is_not_published() {
    let folder = folder();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    let bytes = segment(0, 1000);
    let fails = |written: &[u8], expected: &Digest| {
        let mut incoming = begin(&store, expected, bytes.bytes).unwrap();
        let error = incoming.append(written).and_then(|()| incoming.finish()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidDefinition);
        error
    };
    let short = fails(&bytes.out[1..], &bytes.digest);
    assert_eq!(short.message(), "the stored bytes of a segment of a shared table are damaged");
    let mut damaged = bytes.out.clone();
    damaged[100] ^= 1;
    assert!(fails(&damaged, &bytes.digest).detail().unwrap().contains("digest"));
    // Bytes that are what they should be, and no segment.
    let other = vec![7; bytes.out.len()];
    assert_eq!(fails(&other, &Digest::of(&other)).message(), "invalid segment of a shared table");
    let long = fails(&[&bytes.out[..], &[0]].concat(), &bytes.digest);
    assert_eq!(long.detail().unwrap(), format!("They are more than {} bytes.", bytes.bytes));
    assert!(begin_any(&store, 10).unwrap().write_all(&[0; 11]).is_err());
    assert!(names(folder.path()).is_empty());
    assert_eq!(store.begin(&bytes.digest, MOST_BYTES + 1).unwrap_err().kind(), Kind::OutOfRange);
}

#[test]
fn what_is_not_whole_is_replaced() {
    let folder = folder();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    let bytes = segment(0, 1000);
    let (arrow, index) = (format!("{}.arrow", bytes.digest), format!("{}.index", bytes.digest));
    for (lost, length) in
        [(&arrow, None), (&index, None), (&arrow, Some(500)), (&arrow, Some(0)), (&index, Some(64)), (&index, Some(1))]
    {
        store.remove(&bytes.digest).unwrap();
        load(&store, &bytes).unwrap();
        let path = folder.path().join(lost);
        match length {
            None => fs::remove_file(&path).unwrap(),
            Some(length) => {
                // Nobody maps it.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
                File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            }
        }
        assert!(store.get(&bytes.digest).unwrap().is_none(), "{lost} {length:?}");
        assert_eq!(find(&load(&store, &bytes).unwrap(), 3), [6, 7]);
        assert_eq!(find(&store.get(&bytes.digest).unwrap().unwrap(), 3), [6, 7]);
    }
}

#[test]
fn the_segment_unused_for_longest_is_removed_first() {
    let folder = folder();
    let segments: Vec<_> = (0..4).map(|first| segment(first, 2000)).collect();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    load(&store, &segments[0]).unwrap();
    let each = store.bytes().unwrap();
    let store = Store::open(folder.path(), 3 * each + each / 2).unwrap();
    load(&store, &segments[1]).unwrap();
    load(&store, &segments[2]).unwrap();
    for (age, segment) in segments[..3].iter().enumerate() {
        set_used(folder.path(), &segment.digest, SystemTime::now() - Duration::from_secs(100 - age as u64));
    }
    // A use makes the oldest the newest.
    store.get(&segments[0].digest).unwrap().unwrap();
    load(&store, &segments[3]).unwrap();
    let is_there = |segment: &Finished<Vec<u8>>| store.get(&segment.digest).unwrap().is_some();
    assert_eq!(segments.iter().map(is_there).collect::<Vec<_>>(), [true, false, true, true]);
    assert!(store.bytes().unwrap() <= store.capacity());
    // Room that others load into is not given twice.
    let (first, second) = (begin_any(&store, 2 * each).unwrap(), begin_any(&store, each).unwrap_err());
    assert_eq!(second.kind(), Kind::OutOfMemory);
    assert!(second.detail().unwrap().contains("being loaded"));
    drop(first);
    drop(begin_any(&store, each).unwrap());
    let error = begin_any(&store, 4 * each).unwrap_err();
    assert!(error.message().contains("does not fit into the memory for shared tables"), "{error}");
    assert_eq!(error.kind(), Kind::OutOfMemory);
    // The index counts.
    let tight = Store::open(folder.path(), segments[0].bytes + 1).unwrap();
    store.remove(&segments[0].digest).unwrap();
    assert_eq!(load(&tight, &segments[0]).unwrap_err().kind(), Kind::OutOfMemory);
}

#[test]
fn segments_that_were_used_of_late_are_spared() {
    let folder = folder();
    let segments: Vec<_> = (0..4).map(|first| segment(first, 2000)).collect();
    let store = Store::open_on_disk(folder.path(), PLENTY).unwrap();
    load(&store, &segments[0]).unwrap();
    let store = Store::open_on_disk(folder.path(), 3 * store.bytes().unwrap()).unwrap();
    load(&store, &segments[1]).unwrap();
    let (minute, held) = (Duration::from_secs(60), store.bytes().unwrap());
    let begin = |segment: &Finished<Vec<u8>>| store.begin_sparing(&segment.digest, segment.bytes, minute);
    // There is room for one more, and then none.
    let Begun::Incoming(mut incoming) = begin(&segments[2]).unwrap() else { panic!("somebody else loads it") };
    incoming.append(&segments[2].out).unwrap();
    incoming.finish().unwrap();
    let error = begin(&segments[3]).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert_eq!(error.detail(), Some("Segments that were used of late have the room."));
    assert!(error.message().contains("does not fit into the disk space for shared tables"), "{error}");
    assert!(store.bytes().unwrap() > held);
    // One that was not used for a while makes room.
    set_used(folder.path(), &segments[1].digest, SystemTime::now() - 2 * minute);
    assert!(matches!(begin(&segments[3]).unwrap(), Begun::Incoming(_)));
    let is_there = |segment: &Finished<Vec<u8>>| store.get(&segment.digest).unwrap().is_some();
    assert_eq!(segments.iter().map(is_there).collect::<Vec<_>>(), [true, false, true, false]);
}

#[test]
fn a_segment_of_the_future_is_removed_first() {
    let folder = folder();
    let segments: Vec<_> = (0..3).map(|first| segment(first, 2000)).collect();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    load(&store, &segments[0]).unwrap();
    let store = Store::open(folder.path(), 2 * store.bytes().unwrap()).unwrap();
    load(&store, &segments[1]).unwrap();
    set_used(folder.path(), &segments[0].digest, SystemTime::now() - Duration::from_secs(1000));
    set_used(folder.path(), &segments[1].digest, SystemTime::now() + Duration::from_secs(1000));
    load(&store, &segments[2]).unwrap();
    let is_there = |segment: &Finished<Vec<u8>>| store.get(&segment.digest).unwrap().is_some();
    assert_eq!(segments.iter().map(is_there).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_segment_in_use_is_touched() {
    let folder = folder();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    let bytes = segment(0, 1000);
    // A load that took long does not count as old.
    let mut incoming = begin(&store, &bytes.digest, bytes.bytes).unwrap();
    incoming.append(&bytes.out).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let before = SystemTime::now() - Duration::from_millis(50);
    let loaded = incoming.finish().unwrap();
    assert!(used(folder.path(), &bytes.digest) > before);
    let seconds = Duration::from_secs;
    for (time, is_touched) in [
        (SystemTime::now() - seconds(5), false),
        (SystemTime::now() - seconds(60), true),
        (SystemTime::now() + seconds(60), true),
    ] {
        set_used(folder.path(), &bytes.digest, time);
        assert!(store.is_current(&loaded));
        let now = used(folder.path(), &bytes.digest);
        assert_eq!(now != time, is_touched);
        assert!(now <= SystemTime::now());
    }
}

#[test]
fn one_process_loads_a_segment() {
    let folder = folder();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    let (one, two) = (segment(0, 1000), segment(1, 1000));
    let mut incoming = begin(&store, &one.digest, one.bytes).unwrap();
    let other = Store::open(folder.path(), PLENTY).unwrap();
    let is_loading = || matches!(other.begin(&one.digest, one.bytes).unwrap(), Begun::Loading);
    assert!(is_loading());
    // Nobody else's segment waits for it.
    load(&other, &two).unwrap();
    incoming.append(&one.out).unwrap();
    assert!(is_loading());
    incoming.finish().unwrap();
    // It has just been loaded.
    assert!(is_loading() && other.get(&one.digest).unwrap().is_some());
    other.remove(&one.digest).unwrap();
    drop(begin(&other, &one.digest, one.bytes).unwrap());
    load(&other, &one).unwrap();
}

#[test]
fn child_waits_while_it_loads() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(Path::new(&folder), PLENTY).unwrap();
    let _incoming = begin(&store, &Digest::of(b"waits"), 1000).unwrap();
    // Its standard output is that of the test.
    std::io::stderr().write_all(b"!").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

#[test]
fn another_process_that_loads_a_segment_is_waited_for_until_it_ends() {
    let folder = folder();
    let store = Store::open(folder.path(), PLENTY).unwrap();
    let mut command = child("child_waits_while_it_loads", folder.path());
    command.arg("--nocapture").stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let digest = Digest::of(b"waits");
    assert!(matches!(store.begin(&digest, 1000).unwrap(), Begun::Loading));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(begin(&store, &digest, 1000).unwrap());
}

#[test]
fn a_directory_that_was_removed_is_noticed() {
    let folder = folder();
    let path = folder.path().join("tables");
    let store = Store::open(&path, PLENTY).unwrap();
    let bytes = segment(0, 1000);
    let loaded = load(&store, &bytes).unwrap();
    assert!(store.is_there());
    fs::remove_dir_all(&path).unwrap();
    assert!(!store.is_there() && !store.is_current(&loaded));
    assert_eq!(load(&store, &bytes).unwrap_err().kind(), Kind::Unreachable);
    let anew = Store::open(&path, PLENTY).unwrap();
    load(&anew, &bytes).unwrap();
    assert!(anew.is_there() && !store.is_there());
}

#[test]
fn directories_that_others_can_reach_are_refused() {
    let folder = folder();
    let refused = |path: &Path| Store::open(path, PLENTY).unwrap_err();
    let make = |name: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    for mode in [0o701, 0o710, 0o777, 0o702] {
        let error = refused(&make(&format!("{mode:o}"), mode));
        assert_eq!(
            (error.kind(), error.detail().unwrap()),
            (Kind::NotAllowed, "Other users may look into it or write to it.")
        );
    }
    let own = make("own", 0o700);
    Store::open(&own, PLENTY).unwrap();
    let link = folder.path().join("link");
    symlink(&own, &link).unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let with_slash = PathBuf::from(format!("{}/", link.display()));
    for path in [&link, &with_slash, &file] {
        assert_eq!(refused(path).detail().unwrap(), "It is a link, or no directory.");
    }
    // Only root may give a directory away, and for everybody else root's is another user's.
    let foreign = make("foreign", 0o700);
    let foreign = if chown(&foreign, Some(1), None).is_ok() { foreign } else { PathBuf::from("/usr") };
    assert_eq!(refused(&foreign).detail().unwrap(), "It belongs to another user.");
    assert!(Store::open(&folder.path().join("no/folder"), PLENTY).is_err());
}

#[test]
fn child_loads_one_segment() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(Path::new(&folder), PLENTY).unwrap();
    for first in 0..20 {
        let bytes = segment(first, 3000);
        // As a session does.
        let segment = loop {
            if let Some(segment) = store.get(&bytes.digest).unwrap() {
                break segment;
            }
            if let Begun::Incoming(mut incoming) = store.begin(&bytes.digest, bytes.bytes).unwrap() {
                incoming.append(&bytes.out).unwrap();
                break incoming.finish().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(find(&segment, first + 7), [14, 15]);
        assert!(store.is_current(&segment));
    }
}

#[test]
fn processes_that_load_the_same_segments_share_them() {
    let folder = folder();
    let children: Vec<_> = (0..4).map(|_| child("child_loads_one_segment", folder.path()).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(names(folder.path()).len(), 40);
    let store = Store::open(folder.path(), PLENTY).unwrap();
    assert_eq!(find(&store.get(&segment(3, 3000).digest).unwrap().unwrap(), 3), [0, 1]);
}

#[test]
fn child_dies_while_it_loads() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(Path::new(&folder), PLENTY).unwrap();
    let mut incoming = begin_any(&store, 1 << 20).unwrap();
    incoming.write_all(&[1; 1000]).unwrap();
    std::process::abort();
}

#[test]
fn a_process_that_dies_leaves_nothing() {
    let folder = folder();
    assert!(!child("child_dies_while_it_loads", folder.path()).output().unwrap().status.success());
    assert_eq!(names(folder.path()).len(), 1);
    // An index alone comes from one that died between two names.
    let stray = format!("{}.index", Digest::of(b""));
    fs::write(folder.path().join(&stray), [0; 4096]).unwrap();
    let bytes = segment(0, 1000);
    let store = Store::open(folder.path(), 3 * bytes.bytes).unwrap();
    let incoming = begin_any(&store, 2 * bytes.bytes).unwrap();
    assert!(!names(folder.path()).contains(&stray));
    drop(incoming);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn child_fills_its_disk() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(&Path::new(&folder).join("tables"), PLENTY).unwrap();
    // Half of 800 KiB is left to others, who take more than that. A segment has 66 KiB, and its index 112 KiB: the second one takes
    // the room of the first.
    assert_eq!(store.capacity(), 400 << 10);
    assert_eq!(Store::open(&Path::new(&folder).join("tables"), 1000).unwrap().capacity(), 1000);
    fs::write(Path::new(&folder).join("others"), vec![1; 520 << 10]).unwrap();
    let (one, two) = (segment(0, 8000), segment(1, 8000));
    drop(load(&store, &one).unwrap());
    drop(load(&store, &two).unwrap());
    assert!(store.get(&one.digest).unwrap().is_none());
    assert_eq!(find(&store.get(&two.digest).unwrap().unwrap(), 4), [6, 7]);
    let error = begin_any(&store, 250 << 10).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert_eq!(error.detail(), Some("The rest of its file system is in use."));
    // What is mapped and has no name any more takes its memory all the same.
    fs::remove_file(Path::new(&folder).join("others")).unwrap();
    let mut mapped = Vec::new();
    let error = loop {
        match load(&store, &segment(10 + mapped.len() as i64, 8000)) {
            Ok(segment) => mapped.push(segment),
            Err(error) => break error,
        }
        assert!(mapped.len() < 10);
    };
    assert_eq!(error.detail(), Some("The rest of its file system is in use."));
    assert!(mapped.len() > 2, "{}", mapped.len());
}

#[test]
fn a_full_disk_is_an_error() {
    let folder = folder();
    // A mount of its own, as root or as the root of a namespace of users.
    let script = "mount -t tmpfs -o size=800k none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(folder.path());
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "child_fills_its_disk"]).env(CHILD, folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}
