//! Segments in the host's memory, as this session has them mapped.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use pgrx::pg_sys;
use shared_tables::segment::{Digest, Segment};
use shared_tables::store::{Begun, FORMAT, Store};
use udf_types::{Error, Kind, Result};

use super::Table;
use super::rows::{self, Row};
use crate::{session, settings, single_call};

/// A session that waits for its next transaction keeps no more bytes mapped, or this part of the memory for shared tables if that is more:
/// they would stay in memory after they were removed. Mapping a segment again takes some 20 µs.
const MOST_KEPT_BYTES: u64 = 64 << 20;
const MOST_KEPT_PART: u64 = 4;
/// What an index takes for each row, at most: two slots for each key, up to the next power of two, and the row.
const INDEX_BYTES: u64 = 40;
/// Between two looks for a segment that another session puts into memory.
const PAUSE: Duration = Duration::from_millis(5);
/// How long exchanges that have ended for this session may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// What a session has mapped: segments of earlier queries stay mapped for the next.
#[derive(Default)]
struct Mapped {
    /// With the capacity that it was opened for.
    store: Option<(u64, Rc<Store>)>,
    /// With their bytes.
    segments: HashMap<Digest, (u64, Arc<Segment>)>,
    /// All that are mapped, with those that scans alone hold; and what they take with their indexes, at most.
    live: HashMap<Digest, (u64, Weak<Segment>)>,
}

impl Mapped {
    fn live_bytes(&mut self) -> u64 {
        self.live.retain(|_, (_, segment)| segment.strong_count() > 0);
        self.live.values().map(|(bytes, _)| bytes).sum()
    }

    /// Whether so many bytes more fit, if need be without what no scan holds.
    fn has_room(&mut self, bytes: u64, room: u64) -> bool {
        if self.live_bytes().saturating_add(bytes) > room {
            self.segments.clear();
        }
        self.live_bytes().saturating_add(bytes) <= room
    }
}

thread_local! {
    static MAPPED: RefCell<Mapped> = RefCell::default();
}

/// Has segments let go of when a transaction ends.
pub(crate) fn install() {
    // SAFETY: the callback is a static function and takes no argument.
    unsafe { pg_sys::RegisterXactCallback(Some(forget_many), std::ptr::null_mut()) };
}

extern "C-unwind" fn forget_many(_: pg_sys::XactEvent::Type, _: *mut std::ffi::c_void) {
    MAPPED.with_borrow_mut(|mapped| {
        let capacity = mapped.store.as_ref().map_or(0, |(capacity, _)| *capacity);
        let most = MOST_KEPT_BYTES.max(capacity / MOST_KEPT_PART);
        if mapped.segments.values().map(|(bytes, _)| bytes).sum::<u64>() > most {
            mapped.segments.clear();
        }
    });
}

/// Where the segments of all servers of this user lie: equal ones have equal names. The second is for where another user has taken
/// the name of the first, or there is no /dev/shm; a server's processes work in its data directory.
fn directories() -> [PathBuf; 2] {
    let name = format!("transship-tables.{FORMAT}");
    [PathBuf::from(format!("/dev/shm/{name}.{}", Uid::effective())), PathBuf::from(format!("pg_stat_tmp/{name}"))]
}

fn store() -> Result<Rc<Store>> {
    let capacity = settings::tables_bytes();
    let known = MAPPED.with_borrow(|mapped| mapped.store.clone());
    if let Some((_, store)) = known.filter(|(of, store)| *of == capacity && store.is_there()) {
        return Ok(store);
    }
    let [first, second] = directories();
    let store = Rc::new(Store::open(&first, capacity).or_else(|_| Store::open(&second, capacity))?);
    MAPPED.with_borrow_mut(|mapped| mapped.store = Some((capacity, store.clone())));
    Ok(store)
}

/// Lets go of what was removed from memory elsewhere, and must not stay there because of this session.
pub(super) fn forget_removed() {
    MAPPED.with_borrow_mut(|mapped| {
        let Some((_, store)) = mapped.store.clone() else { return };
        mapped.segments.retain(|_, (_, segment)| store.is_current(segment));
    });
}

/// What a segment takes with its index, at most.
fn bytes_of(row: &Row, table: &Table) -> u64 {
    let index_bytes = if table.key.is_empty() { 0 } else { row.rows.saturating_mul(INDEX_BYTES) };
    row.bytes.saturating_add(index_bytes)
}

/// An error if all segments of several tables do not fit into memory together.
pub(super) fn check_room_together<'a>(mut tables: impl Iterator<Item = (&'a [Row], &'a Table)>) -> Result<()> {
    let room = store()?.capacity();
    let (mut needed, mut seen) = (0_u64, HashSet::new());
    tables.try_for_each(|(segments, table)| {
        check_room(segments, table)?;
        // Equal segments are one in memory.
        for row in segments.iter().filter(|row| seen.insert(row.digest)) {
            needed = needed.saturating_add(bytes_of(row, table));
        }
        if needed <= room { Ok(()) } else { Err(no_room_together()) }
    })
}

fn no_room_together() -> Error {
    let message = "the shared tables of the query do not fit into the memory for shared tables together";
    Error::new(Kind::OutOfMemory, message).with_hint(ROOM_HINT)
}

/// An error if all segments of a version do not fit into memory together.
pub(super) fn check_room(segments: &[Row], table: &Table) -> Result<()> {
    let needed = segments.iter().fold(0, |sum: u64, row| sum.saturating_add(bytes_of(row, table)));
    let room = store()?.capacity();
    if needed <= room {
        return Ok(());
    }
    let message = format!("shared table \"{}\" does not fit into the memory for shared tables", table.name);
    let detail = format!("It needs up to {} kB of {} kB.", needed.div_ceil(1024), room >> 10);
    Err(Error::new(Kind::OutOfMemory, message).with_detail(detail).with_hint(ROOM_HINT))
}

pub(super) const ROOM_HINT: &str = "Raise transship.tables_size, or share fewer rows.";

/// A segment, put into memory if it is not there.
///
/// # Errors
/// If there is no room for it beside those that the session reads, or its bytes are damaged.
///
/// # Safety
/// The snapshot is registered or active, and saw the segment.
pub(super) unsafe fn open(row: &Row, table: &Table, snapshot: pg_sys::Snapshot) -> Result<Arc<Segment>> {
    if let Some((_, segment)) = MAPPED.with_borrow(|mapped| mapped.segments.get(&row.digest).cloned()) {
        return Ok(segment);
    }
    let (bytes, store) = (bytes_of(row, table), store()?);
    // A scan may hold one that was let go of otherwise.
    let live = MAPPED.with_borrow(|mapped| mapped.live.get(&row.digest).and_then(|(_, segment)| segment.upgrade()));
    if let Some(segment) = live.filter(|segment| store.is_current(segment)) {
        return Ok(segment);
    }
    let has_room = || MAPPED.with_borrow_mut(|mapped| mapped.has_room(bytes, store.capacity()));
    if !has_room() {
        // Kept for calls row by row, and by containers that this session does not call now. Their exchanges may just be ending.
        single_call::forget_exchanges();
        let deadline = Instant::now() + ENDING;
        loop {
            session::forget_offers();
            if has_room() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(no_room_together());
            }
            pgrx::check_for_interrupts!();
            std::thread::sleep(PAUSE);
        }
    }
    // SAFETY: the caller says so.
    let segment = unsafe { get_or_load(&store, row, snapshot) }.map_err(|error| {
        let message = format!("rows of shared table \"{}\" cannot be read: {}", table.name, error.message());
        let of_table = Error::new(error.kind(), message);
        let of_table = error.detail().map_or(of_table.clone(), |detail| of_table.with_detail(detail));
        match error.kind() {
            Kind::OutOfMemory => of_table.with_hint(error.hint().unwrap_or(ROOM_HINT)),
            Kind::InvalidDefinition | Kind::OutOfRange | Kind::UnsupportedType => {
                of_table.with_hint(super::SHARE_AGAIN)
            }
            _ => of_table,
        }
    })?;
    let segment = Arc::new(segment);
    MAPPED.with_borrow_mut(|mapped| {
        mapped.live.insert(row.digest, (bytes, Arc::downgrade(&segment)));
        mapped.segments.insert(row.digest, (bytes, segment.clone()));
    });
    Ok(segment)
}

/// The files of a segment that is in memory, for reading: its rows, and its index if it has a key; none if it was removed.
pub(super) fn files(row: &Row) -> Result<Option<Vec<OwnedFd>>> {
    let Some((file, index)) = store()?.files(&row.digest)? else { return Ok(None) };
    Ok(Some([Some(file), index].into_iter().flatten().map(OwnedFd::from).collect()))
}

unsafe fn get_or_load(store: &Store, row: &Row, snapshot: pg_sys::Snapshot) -> Result<Segment> {
    loop {
        if let Some(segment) = store.get(&row.digest)? {
            return Ok(segment);
        }
        // Whoever loads the segment waits for no lock then, of which PostgreSQL would not know that others here wait for it.
        rows::lock_chunks();
        match store.begin(&row.digest, row.bytes)? {
            Begun::Loading => {
                pgrx::check_for_interrupts!();
                std::thread::sleep(PAUSE);
            }
            Begun::Incoming(mut incoming) => {
                // SAFETY: the caller says so.
                unsafe { rows::read(row, snapshot, |bytes| incoming.append(bytes))? };
                return incoming.finish();
            }
        }
    }
}

/// Takes segments that no new transaction will read out of memory. Whoever maps them goes on reading; for others they are read again.
pub(super) fn remove(segments: &[Row]) {
    let store = MAPPED.with_borrow_mut(|mapped| {
        segments.iter().for_each(|row| drop(mapped.segments.remove(&row.digest)));
        mapped.store.clone()
    });
    let Some((_, store)) = store else { return };
    // Memory is let go of sooner or later in any case, so nobody waits for a lock again and again.
    let _ = segments.iter().try_for_each(|row| store.remove(&row.digest));
}
