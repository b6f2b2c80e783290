//! The tables that clients have offered, by the names of their offers (`docs/protocol.md` §10.1).
//!
//! A table is opened when it is offered, so that a malformed file is the error of whoever offers it. Offers of the same files share
//! one map of them. A segment stays mapped while an offer or a handler has it, and for [`KEPT`] after it was last offered: clients that
//! offer tables again and again, for one query after the other, pay for the map once. No longer than that, because the memory of a
//! segment that was replaced is free only when it is unmapped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use serde::Deserialize;
use shared_tables::segment::Segment;
use shared_tables::table::Table;
use udf_types::error::{Error, Kind};

use crate::error::CallError;

/// Most descriptors of a line.
pub(super) const MOST_DESCRIPTORS: usize = 240;
/// Most tables of an offer.
const MOST_TABLES: usize = 64;
/// Most offers of a connection.
const MOST_OFFERS: usize = 64;
/// Most segments of all tables of all offers: a bound of the memory that lists of them take.
const MOST_LISTED: usize = 1 << 20;
/// Most segments that are mapped, each with its index: the system bounds the maps of a process by 65530, and memory takes maps too.
const MOST_MAPPED: usize = 1 << 14;
/// How long a segment stays mapped after it was last offered.
const KEPT: Duration = Duration::from_secs(10);
/// Most segments that stay mapped only because they were offered lately.
const MOST_KEPT: usize = 256;
/// How often segments are looked at for those whose time is over.
pub(super) const SWEEP: Duration = Duration::from_secs(1);
/// Hexadecimal digits of an offer's name.
const NAME_DIGITS: usize = 32;

/// The offers of this process.
pub(crate) fn offers() -> &'static Offers {
    static OFFERS: LazyLock<Offers> = LazyLock::new(Offers::default);
    &OFFERS
}

/// Tables under the names of their offers.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    listed: Mutex<Listed>,
    segments: Mutex<Segments>,
}

#[derive(Debug, Default)]
struct Listed {
    offers: HashMap<String, Owned>,
    /// How many segments all tables of all offers have, those of several tables counted for each.
    segments: usize,
}

/// An offer, and the connection that made it.
#[derive(Debug)]
struct Owned {
    owner: u64,
    offer: Arc<Offer>,
    segments: usize,
}

/// The tables of an offer, by name.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    tables: Mutex<HashMap<String, Arc<Table>>>,
}

impl Offer {
    pub(super) fn table(&self, name: &str) -> Option<Arc<Table>> {
        self.tables.lock().expect("no holder panics").get(name).cloned()
    }
}

/// A line that offers a table.
#[derive(Debug, Deserialize)]
struct Line {
    offer: String,
    table: String,
    /// Of each segment.
    files: Vec<u8>,
}

impl Offers {
    /// The offer of a name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Offer>> {
        self.listed().offers.get(name).map(|owned| owned.offer.clone())
    }

    /// Opens the table that a line offers, and adds it to the offer, which belongs to the connection `owner`.
    pub(super) fn add(&self, owner: u64, line: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), CallError> {
        let line: Line = serde_json::from_slice(line)
            .map_err(|cause| CallError::violation(format!("the line is no offer of a table: {cause}")))?;
        if line.offer.len() != NAME_DIGITS || !line.offer.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(CallError::violation("the name of the offer is not 32 hexadecimal digits"));
        }
        if line.files.is_empty() || !line.files.iter().all(|count| matches!(count, 1 | 2)) {
            return Err(CallError::violation("each of the table's segments has 1 file or 2"));
        }
        let files: usize = line.files.iter().map(|count| usize::from(*count)).sum();
        if files != descriptors.len() {
            let count = descriptors.len();
            return Err(CallError::violation(format!("the line tells of {files} files and has {count} descriptors")));
        }
        self.listed().check(owner, &line)?;
        let table = Arc::new(self.open(&line, descriptors)?);
        self.listed().add(owner, line, table)
    }

    /// Forgets the offers of a connection.
    pub(super) fn forget(&self, owner: u64) {
        let forgotten: Vec<Owned> = {
            let mut listed = self.listed();
            let forgotten = listed.offers.extract_if(|_, owned| owned.owner == owner).map(|(_, owned)| owned);
            let forgotten: Vec<Owned> = forgotten.collect();
            listed.segments -= forgotten.iter().map(|owned| owned.segments).sum::<usize>();
            forgotten
        };
        // Files are unmapped while nobody waits.
        drop(forgotten);
    }

    /// Unmaps segments whose time is over; whether others wait for that.
    pub(super) fn sweep(&self) -> bool {
        // Files are unmapped while nobody waits.
        let unused = self.segments().unused(Instant::now(), MOST_KEPT);
        drop(unused);
        let mut segments = self.segments();
        segments.forget_unmapped();
        !segments.kept.is_empty()
    }

    fn open(&self, line: &Line, descriptors: Vec<OwnedFd>) -> Result<Table, CallError> {
        let mut files = descriptors.into_iter().map(File::from);
        let mut segments = Vec::with_capacity(line.files.len());
        for (number, count) in line.files.iter().enumerate() {
            let mut found: Vec<File> = files.by_ref().take(usize::from(*count)).collect();
            let (index, file) = if *count == 2 { (found.pop(), found.pop()) } else { (None, found.pop()) };
            let Some(file) = file else { return Err(CallError::violation("the line has too few descriptors")) };
            let segment = self.segment(&file, index.as_ref());
            segments.push(segment.map_err(|error| refusal(&line.table, number, &error))?);
        }
        Table::new(&line.table, segments).map_err(|error| refusal_of(error.to_string(), &error))
    }

    /// The segment of a file and its index, mapped now or before.
    fn segment(&self, file: &File, index: Option<&File>) -> Result<Arc<Segment>, Error> {
        let failed = |cause| Error::new(Kind::Unreachable, format!("the descriptor cannot be used: {cause}"));
        let number = FileNumbers { segment: FileNumber::of(file).map_err(failed)?, index: None };
        let index_number = index.map(FileNumber::of).transpose().map_err(failed)?;
        let number = FileNumbers { index: index_number, ..number };
        if let Some(segment) = self.segments().find(&number) {
            return Ok(segment);
        }
        let segment = Arc::new(open_segment(file, index)?);
        self.segments().keep(number, segment)
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().expect("no holder panics")
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().expect("no holder panics")
    }
}

#[allow(unsafe_code)]
fn open_segment(file: &File, index: Option<&File>) -> Result<Segment, Error> {
    // SAFETY: §10.3: the client vouches for what it offers. Its files are those of a store, which has checked every value before it
    // gave them their names, and to which nobody writes any more (shared_tables/src/store.rs).
    unsafe { Segment::from_files(file, index) }
}

impl Listed {
    /// Refuses a table that the offer cannot take.
    fn check(&self, owner: u64, line: &Line) -> Result<(), CallError> {
        let Some(owned) = self.offers.get(&line.offer) else {
            let own = self.offers.values().filter(|owned| owned.owner == owner).count();
            return match own < MOST_OFFERS {
                true => self.check_room(line),
                false => Err(CallError::violation(format!("a connection has at most {MOST_OFFERS} offers"))),
            };
        };
        if owned.owner != owner {
            return Err(CallError::violation("the offer belongs to another connection"));
        }
        let tables = owned.offer.tables.lock().expect("no holder panics");
        if tables.contains_key(&line.table) {
            return Err(CallError::violation(format!("the offer has table \"{}\" already", line.table)));
        }
        if tables.len() >= MOST_TABLES {
            return Err(CallError::violation(format!("an offer has at most {MOST_TABLES} tables")));
        }
        self.check_room(line)
    }

    fn check_room(&self, line: &Line) -> Result<(), CallError> {
        match self.segments + line.files.len() <= MOST_LISTED {
            true => Ok(()),
            false => Err(CallError::new("busy", "the server has as many shared tables as it can take")),
        }
    }

    fn add(&mut self, owner: u64, line: Line, table: Arc<Table>) -> Result<(), CallError> {
        // Somebody else may have made the offer while the table was opened.
        self.check(owner, &line)?;
        let segments = line.files.len();
        self.segments += segments;
        let owned = match self.offers.entry(line.offer) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Owned { owner, offer: Arc::default(), segments: 0 }),
        };
        owned.segments += segments;
        owned.offer.tables.lock().expect("no holder panics").insert(line.table, table);
        Ok(())
    }
}

/// Why a segment is refused.
fn refusal(table: &str, segment: usize, error: &Error) -> CallError {
    let fact = error.detail().map_or(String::new(), |detail| format!(": {detail}"));
    refusal_of(format!("segment {} of table \"{table}\": {}{fact}", segment + 1, error.message()), error)
}

fn refusal_of(message: String, error: &Error) -> CallError {
    let kind = if error.kind() == Kind::OutOfMemory { "busy" } else { "protocol_violation" };
    CallError::new(kind, message)
}

/// The mapped segments.
#[derive(Debug, Default)]
struct Segments {
    mapped: HashMap<FileNumbers, Weak<Segment>>,
    /// Those that were offered lately, and when.
    kept: HashMap<FileNumbers, (Instant, Arc<Segment>)>,
}

/// The files of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileNumbers {
    segment: FileNumber,
    index: Option<FileNumber>,
}

/// Which file it is. No other has its number while it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileNumber {
    device: u64,
    inode: u64,
    bytes: u64,
}

impl FileNumber {
    fn of(file: &File) -> std::io::Result<FileNumber> {
        let found = file.metadata()?;
        Ok(FileNumber { device: found.dev(), inode: found.ino(), bytes: found.len() })
    }
}

impl Segments {
    fn find(&mut self, number: &FileNumbers) -> Option<Arc<Segment>> {
        let segment = self.mapped.get(number)?.upgrade()?;
        self.kept.insert(*number, (Instant::now(), segment.clone()));
        Some(segment)
    }

    /// Keeps a segment that was mapped now. If another thread was faster, its map is taken.
    fn keep(&mut self, number: FileNumbers, segment: Arc<Segment>) -> Result<Arc<Segment>, Error> {
        if let Some(found) = self.find(&number) {
            return Ok(found);
        }
        if self.mapped.len() >= MOST_MAPPED {
            drop(self.unused(Instant::now(), 0));
            self.forget_unmapped();
        }
        if self.mapped.len() >= MOST_MAPPED {
            let message = format!("the server has mapped {MOST_MAPPED} segments of shared tables, and takes no more");
            return Err(Error::new(Kind::OutOfMemory, message));
        }
        self.mapped.insert(number, Arc::downgrade(&segment));
        self.kept.insert(number, (Instant::now(), segment.clone()));
        Ok(segment)
    }

    fn forget_unmapped(&mut self) {
        self.mapped.retain(|_, segment| segment.strong_count() > 0);
    }

    /// Takes out the segments that nobody has offered for long, and those beyond the `most` that were offered last.
    fn unused(&mut self, now: Instant, most: usize) -> Vec<Arc<Segment>> {
        let mut unused: Vec<Arc<Segment>> = Vec::new();
        let is_old = |since: Instant| now.saturating_duration_since(since) >= KEPT;
        unused.extend(self.kept.extract_if(|_, (since, _)| is_old(*since)).map(|(_, (_, segment))| segment));
        if self.kept.len() > most {
            let mut times: Vec<(Instant, FileNumbers)> =
                self.kept.iter().map(|(number, (since, _))| (*since, *number)).collect();
            times.sort_unstable_by_key(|(since, _)| *since);
            let removed = times[..times.len() - most].iter().filter_map(|(_, number)| self.kept.remove(number));
            unused.extend(removed.map(|(_, segment)| segment));
        }
        unused
    }
}
