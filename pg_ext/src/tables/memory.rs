//! Segments in the host's memory, or on disk ([`places`](super::places)), as this session has them mapped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pgrx::pg_sys;
use shared_tables::segment::{Digest, Segment};
use shared_tables::store::{Begun, Store};
use udf_types::{Error, Kind, Result};

use super::Table;
use super::places::{Place, Places, ROOM_HINT, attempts, bytes_of, fits_nowhere};
use super::rows::{self, Row};
use crate::pg::bus_error;
use crate::{session, single_call};

/// A session that waits for its next transaction keeps no more bytes mapped, or this part of the memory for shared tables if that is more:
/// they would stay in memory after they were removed. Mapping a segment again takes some 20 µs.
const MOST_KEPT_BYTES: u64 = 64 << 20;
const MOST_KEPT_PART: u64 = 4;
/// Between two looks for a segment that another session puts into memory.
const PAUSE: Duration = Duration::from_millis(5);
/// How long exchanges that have ended for this session may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// What a session has mapped: segments of earlier queries stay mapped for the next.
#[derive(Default)]
struct Mapped {
    places: Option<Rc<Places>>,
    /// With their bytes.
    segments: HashMap<Digest, (u64, Arc<Segment>)>,
    /// All that are mapped, with those that scans alone hold: where they lie, and what they take with their indexes, at most.
    live: HashMap<Digest, (Place, u64, Weak<Segment>)>,
}

impl Mapped {
    fn live_bytes(&mut self, place: Place) -> u64 {
        self.live.retain(|_, (_, _, segment)| segment.strong_count() > 0);
        self.live.values().filter(|(of, ..)| *of == place).map(|(_, bytes, _)| bytes).sum()
    }

    /// Whether so many bytes more fit, if need be without what no scan holds.
    fn has_room(&mut self, place: Place, bytes: u64, room: u64) -> bool {
        if self.live_bytes(place).saturating_add(bytes) > room {
            let live = &self.live;
            self.segments.retain(|digest, _| live.get(digest).is_some_and(|(of, ..)| *of != place));
        }
        self.live_bytes(place).saturating_add(bytes) <= room
    }
}

thread_local! {
    static MAPPED: RefCell<Mapped> = RefCell::default();
    /// Segments that go once the transaction has committed.
    static DROPPED: RefCell<Vec<Digest>> = RefCell::default();
}

/// Has segments let go of when a transaction ends.
pub(crate) fn install() {
    // SAFETY: the callback is a static function and takes no argument.
    unsafe { pg_sys::RegisterXactCallback(Some(forget_many), std::ptr::null_mut()) };
}

extern "C-unwind" fn forget_many(event: pg_sys::XactEvent::Type, _: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => remove(&DROPPED.take()),
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            DROPPED.with_borrow_mut(Vec::clear)
        }
        _ => {}
    }
    MAPPED.with_borrow_mut(|mapped| {
        let capacity = mapped.places.as_ref().map_or(0, |places| places.memory_bytes());
        let most = MOST_KEPT_BYTES.max(capacity / MOST_KEPT_PART);
        if mapped.segments.values().map(|(bytes, _)| bytes).sum::<u64>() > most {
            mapped.segments.clear();
        }
    });
}

/// Where this session finds segments.
pub(super) fn places() -> Result<Rc<Places>> {
    let known = MAPPED.with_borrow(|mapped| mapped.places.clone());
    if let Some(places) = known.filter(|places| places.are_there()) {
        return Ok(places);
    }
    bus_error::install();
    let places = Rc::new(Places::open()?);
    MAPPED.with_borrow_mut(|mapped| mapped.places = Some(places.clone()));
    Ok(places)
}

/// Lets go of what was removed from memory elsewhere, and must not stay there because of this session.
pub(super) fn forget_removed() {
    MAPPED.with_borrow_mut(|mapped| {
        let Some(places) = mapped.places.clone() else { return };
        mapped.segments.retain(|_, (_, segment)| places.store_of(segment).is_some());
    });
}

/// A segment, put into memory or on disk if it is in neither.
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
    let (bytes, places) = (bytes_of(row, table), places()?);
    // A scan may hold one that was let go of otherwise.
    let live = MAPPED.with_borrow(|mapped| mapped.live.get(&row.digest).and_then(|(.., segment)| segment.upgrade()));
    if let Some(segment) = live.filter(|segment| places.store_of(segment).is_some()) {
        return Ok(segment);
    }
    let with_room = || {
        let has_room = |(place, store): &(Place, &Store)| {
            MAPPED.with_borrow_mut(|mapped| mapped.has_room(*place, bytes, store.capacity()))
        };
        places.stores().filter(has_room).collect::<Vec<_>>()
    };
    let mut rooms = with_room();
    if rooms.is_empty() {
        // Kept for calls row by row, and by containers that this session does not call now. Their exchanges may just be ending.
        single_call::forget_exchanges();
        let deadline = Instant::now() + ENDING;
        loop {
            session::forget_offers();
            rooms = with_room();
            if !rooms.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(places.no_room_together());
            }
            pgrx::check_for_interrupts!();
            std::thread::sleep(PAUSE);
        }
    }
    // SAFETY: the caller says so.
    let (place, segment) = unsafe { get_or_load(&rooms, row, snapshot) }.map_err(|error| {
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
        mapped.live.insert(row.digest, (place, bytes, Arc::downgrade(&segment)));
        mapped.segments.insert(row.digest, (bytes, segment.clone()));
    });
    Ok(segment)
}

/// The files of a segment that is mapped, for reading: its rows, and its index if it has a key; none if they were removed.
pub(super) fn files(segment: &Segment) -> Result<Option<Vec<OwnedFd>>> {
    let (places, Some(digest)) = (places()?, segment.digest()) else { return Ok(None) };
    let Some(store) = places.store_of(segment) else { return Ok(None) };
    let Some((file, index)) = store.files(digest)? else { return Ok(None) };
    Ok(Some([Some(file), index].into_iter().flatten().map(OwnedFd::from).collect()))
}

/// Finds a segment in stores, or loads it into the first that has room.
unsafe fn get_or_load(rooms: &[(Place, &Store)], row: &Row, snapshot: pg_sys::Snapshot) -> Result<(Place, Segment)> {
    'anew: loop {
        for (place, store) in rooms {
            if let Some(segment) = store.get(&row.digest)? {
                return Ok((*place, segment));
            }
        }
        // Whoever loads the segment waits for no lock then, of which PostgreSQL would not know that others here wait for it.
        rows::lock_chunks();
        let mut failures = Vec::new();
        for (place, store, spared) in attempts(rooms) {
            // SAFETY: the caller says so.
            match unsafe { load(store, row, spared, snapshot) } {
                Ok(Some(segment)) => return Ok((place, segment)),
                Ok(None) => {
                    pgrx::check_for_interrupts!();
                    std::thread::sleep(PAUSE);
                    continue 'anew;
                }
                Err(error) if error.kind() == Kind::OutOfMemory => failures.push((place, error)),
                Err(error) => return Err(error),
            }
        }
        return Err(fits_nowhere(&failures));
    }
}

/// Loads a segment into a store; none if somebody else does.
unsafe fn load(store: &Store, row: &Row, spared: Duration, snapshot: pg_sys::Snapshot) -> Result<Option<Segment>> {
    match store.begin_sparing(&row.digest, row.bytes, spared)? {
        Begun::Loading => Ok(None),
        Begun::Incoming(mut incoming) => {
            // SAFETY: the caller says so.
            unsafe { rows::read(row, snapshot, |bytes| incoming.append(bytes))? };
            incoming.finish().map(Some)
        }
    }
}

/// Takes segments that no new transaction will read out of memory and off the disk. Whoever maps them goes on reading; for others they are
/// read again.
pub(super) fn remove(segments: &[Digest]) {
    if segments.is_empty() {
        return;
    }
    MAPPED.with_borrow_mut(|mapped| segments.iter().for_each(|digest| drop(mapped.segments.remove(digest))));
    let Ok(places) = places() else { return };
    // They are let go of sooner or later in any case, so nobody waits for a lock again and again.
    let removed = |store: &Store| segments.iter().try_for_each(|digest| store.remove(digest));
    let _ = places.with_files().iter().try_for_each(removed);
}

/// Does the same once the transaction has committed.
pub(super) fn remove_later(segments: impl Iterator<Item = Digest>) {
    DROPPED.with_borrow_mut(|dropped| dropped.extend(segments));
}
