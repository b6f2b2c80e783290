//! Where segments lie on this host: in memory, and on disk those that do not fit there, if `transship.tables_disk_size` allows it.
//!
//! Files on disk lie among the server's temporary files: the server removes them when it starts, and base backups leave them out.

use std::collections::HashSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Uid;
use shared_tables::segment::Segment;
use shared_tables::store::{FORMAT, Store};
use udf_types::{Error, Kind, Result};

use super::Table;
use super::rows::Row;
use crate::settings;

/// What an index takes for each row, at most: two slots for each key, up to the next power of two, and the row.
const INDEX_BYTES: u64 = 40;
/// Segments that were used within this time stay in memory, where those that come may lie on disk.
const SPARED: Duration = Duration::from_secs(60);
/// The server's temporary files; its processes work in its data directory. What begins with the prefix is removed when the server starts.
const TEMPORARY: &str = "base/pgsql_tmp";
const TEMPORARY_PREFIX: &str = "pgsql_tmp.";

pub(super) const ROOM_HINT: &str = "Raise transship.tables_size or transship.tables_disk_size, or share fewer rows.";

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Memory,
    Disk,
}

/// The stores of this session, as its settings have them.
pub(super) struct Places {
    /// Most bytes in memory, and on disk.
    settings: (u64, u64),
    memory: Store,
    /// None if nothing goes there; or why nothing can.
    disk: Result<Option<Store>>,
}

impl Places {
    pub(super) fn open() -> Result<Places> {
        let settings = (settings::tables_bytes(), settings::tables_disk_bytes());
        let memory =
            Store::open(&in_memory(), settings.0).or_else(|_| open_on_disk(&in_place_of_memory(), settings.0))?;
        let disk = if settings.1 > 0 { on_disk(settings.1).map(Some) } else { Ok(None) };
        Ok(Places { settings, memory, disk })
    }

    /// Whether they are what [`open`](Places::open) would open.
    pub(super) fn are_there(&self) -> bool {
        let is_there = match &self.disk {
            Ok(disk) => disk.as_ref().is_none_or(Store::is_there),
            Err(_) => false,
        };
        let settings = (settings::tables_bytes(), settings::tables_disk_bytes());
        is_there && self.settings == settings && self.memory.is_there()
    }

    /// All stores, that of the memory first.
    pub(super) fn stores(&self) -> impl Iterator<Item = (Place, &Store)> {
        let disk = self.disk.as_ref().ok().and_then(Option::as_ref);
        [(Place::Memory, &self.memory)].into_iter().chain(disk.map(|disk| (Place::Disk, disk)))
    }

    /// The stores that may have files: that on disk also where nothing goes any more.
    pub(super) fn with_files(&self) -> Vec<Store> {
        let disk = match &self.disk {
            Ok(Some(disk)) => Some(disk.clone()),
            _ => folder_on_disk().is_dir().then(|| on_disk(0).ok()).flatten(),
        };
        [Some(self.memory.clone()), disk].into_iter().flatten().collect()
    }

    /// The store that has the file from which a segment was mapped.
    pub(super) fn store_of(&self, segment: &Segment) -> Option<&Store> {
        self.stores().map(|(_, store)| store).find(|store| store.is_current(segment))
    }

    /// How many bytes segments may have together in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory.capacity()
    }

    /// An error if all segments of a version do not fit together.
    pub(super) fn check_room(&self, segments: &[Row], table: &Table) -> Result<()> {
        let mut need = Need::default();
        segments.iter().for_each(|row| need.add(bytes_of(row, table)));
        if self.have_room(&need)? {
            return Ok(());
        }
        let (needed, memory_kb) = (need.bytes.div_ceil(1024), self.memory.capacity() >> 10);
        let (place, detail) = match self.disk.as_ref().ok().and_then(Option::as_ref) {
            None => ("the memory for shared tables", format!("It needs up to {needed} kB of {memory_kb} kB.")),
            Some(disk) => (
                "the memory and the disk space for shared tables",
                format!(
                    "It needs up to {needed} kB, and each segment lies in one of them: {memory_kb} kB of memory, or {} kB on disk.",
                    disk.capacity() >> 10
                ),
            ),
        };
        let message = format!("shared table \"{}\" does not fit into {place}", table.name);
        Err(Error::new(Kind::OutOfMemory, message).with_detail(detail).with_hint(ROOM_HINT))
    }

    /// An error if all segments of several tables do not fit together.
    pub(super) fn check_room_together<'a>(
        &self,
        mut tables: impl Iterator<Item = (&'a [Row], &'a Table)>,
    ) -> Result<()> {
        let (mut need, mut seen) = (Need::default(), HashSet::new());
        tables.try_for_each(|(segments, table)| {
            self.check_room(segments, table)?;
            // Equal segments are one file.
            for row in segments.iter().filter(|row| seen.insert(row.digest)) {
                need.add(bytes_of(row, table));
            }
            if self.have_room(&need)? { Ok(()) } else { Err(self.no_room_together()) }
        })
    }

    pub(super) fn no_room_together(&self) -> Error {
        let place = match self.disk {
            Ok(Some(_)) => "the memory and the disk space for shared tables",
            _ => "the memory for shared tables",
        };
        let message = format!("the shared tables of the query do not fit into {place} together");
        Error::new(Kind::OutOfMemory, message).with_hint(ROOM_HINT)
    }

    /// Whether there is room, beside segments that nobody here reads; an error if it would be on a disk that cannot be used.
    fn have_room(&self, need: &Need) -> Result<bool> {
        if need.bytes <= self.memory.capacity() {
            return Ok(true);
        }
        let Some(disk) = self.disk.as_ref().map_err(Error::clone)? else { return Ok(false) };
        // The last segment that does not fit into memory leaves as much of it unused as it has itself.
        let in_memory = self.memory.capacity().saturating_sub(need.largest);
        Ok(need.bytes.saturating_sub(in_memory) <= disk.capacity())
    }
}

/// Into which of two or fewer stores a segment is loaded: one after another until one takes it. Segments that were used within the time do not
/// make room there.
pub(super) fn attempts<'a>(rooms: &[(Place, &'a Store)]) -> Vec<(Place, &'a Store, Duration)> {
    match rooms {
        // At last, others go from memory, as without a disk.
        [(Place::Memory, memory), (Place::Disk, disk)] => vec![
            (Place::Memory, *memory, SPARED),
            (Place::Disk, *disk, Duration::ZERO),
            (Place::Memory, *memory, Duration::ZERO),
        ],
        one => one.iter().map(|(place, store)| (*place, *store, Duration::ZERO)).collect(),
    }
}

/// The error of a segment that no store has taken.
pub(super) fn fits_nowhere(failures: &[(Place, Error)]) -> Error {
    let of = |place| failures.iter().rev().find(|(of, _)| *of == place).map(|(_, error)| error);
    match (of(Place::Memory), of(Place::Disk)) {
        (Some(memory), Some(disk)) => Error::new(Kind::OutOfMemory, "a segment fits neither into memory nor on disk")
            .with_detail(format!("Memory: {}. Disk: {}.", said(memory), said(disk)))
            .with_hint(disk.hint().unwrap_or(ROOM_HINT)),
        (Some(error), None) | (None, Some(error)) => error.clone(),
        (None, None) => Error::new(Kind::OutOfMemory, "a segment has no place"),
    }
}

fn said(error: &Error) -> String {
    let detail = error.detail().map(|detail| format!(" ({})", detail.trim_end_matches('.')));
    format!("{}{}", error.message(), detail.unwrap_or_default())
}

/// What segments take, at most.
#[derive(Default)]
struct Need {
    bytes: u64,
    largest: u64,
}

impl Need {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest = self.largest.max(bytes);
    }
}

/// What a segment takes with its index, at most.
pub(super) fn bytes_of(row: &Row, table: &Table) -> u64 {
    let index_bytes = if table.key.is_empty() { 0 } else { row.rows.saturating_mul(INDEX_BYTES) };
    row.bytes.saturating_add(index_bytes)
}

/// Where the segments of all servers of this user lie in memory: equal ones have equal names.
fn in_memory() -> PathBuf {
    PathBuf::from(format!("/dev/shm/transship-tables.{FORMAT}.{}", Uid::effective()))
}

/// Where another user has taken that name, or there is no /dev/shm: a disk, so what lies there is handled as on one.
fn in_place_of_memory() -> PathBuf {
    Path::new(TEMPORARY).join(format!("{TEMPORARY_PREFIX}transship-tables.{FORMAT}.memory"))
}

/// The store of this server's segments on disk.
fn on_disk(capacity: u64) -> Result<Store> {
    open_on_disk(&folder_on_disk(), capacity)
}

fn folder_on_disk() -> PathBuf {
    Path::new(TEMPORARY).join(format!("{TEMPORARY_PREFIX}transship-tables.{FORMAT}"))
}

/// Opens a store among the server's temporary files, whose directory the server makes when it first needs it.
fn open_on_disk(folder: &Path, capacity: u64) -> Result<Store> {
    // What is wrong with it shows below.
    let _ = DirBuilder::new().mode(0o700).create(TEMPORARY);
    Store::open_on_disk(folder, capacity)
}
