//! Results in a file of a fixed size: a ring of records, in which new records replace the oldest, and an index into it.
//!
//! Nothing in the file is believed. A record has the name of its function and row, and a checksum; both are keyed with a secret of the
//! file. A slot of the index only says where a record may be. So writes need neither an order nor a journal: a record is whole and the one
//! that is asked for, or it is not there.
//!
//! ```text
//! header | epochs | index: buckets of slots | ring of records
//! ```

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::io::{ReadWriteFlags, pwritev2};
use udf_client::cache::message::{Key, Namespace};
use udf_client::channel::MOST_BYTES;

use crate::log;

/// What a record is found by: a keyed hash of its user, function, epoch and row.
pub type Name = [u8; 16];
/// The secret of a function's names.
pub type Secret = [u8; 32];

/// Files of other versions are not read: what results look like may have changed.
const MAGIC: &[u8] = concat!("transship results 1 of ", env!("CARGO_PKG_VERSION")).as_bytes();
const MAGIC_BYTES: usize = 40;
const _: () = assert!(MAGIC.len() <= MAGIC_BYTES);
const HEADER_BYTES: usize = MAGIC_BYTES + 8 + 32 + 4 * 8 + CHECKSUM_BYTES;
const EPOCHS_AT: u64 = 4096;
/// Functions share epochs. To forget one function is to forget those that share its epoch, after the next start.
pub const EPOCHS: usize = 4096;
const INDEX_AT: u64 = EPOCHS_AT + 8 * EPOCHS as u64;
const SLOT_BYTES: usize = 8;
const BUCKET_BYTES: usize = 64 * SLOT_BYTES;
/// One part of so many is the index: a slot for every 128 bytes of records.
const INDEX_PART: u64 = 16;
/// Records begin at multiples of this.
const UNIT_BYTES: u64 = 64;
const CHECKSUM_BYTES: usize = 16;
/// The name, the time, the length and the checksum.
const RECORD_BYTES: usize = 16 + 8 + 4 + CHECKSUM_BYTES;
/// Most records are read at once.
const FIRST_BYTES: usize = 512;
/// Larger records would replace too many others at a time.
const LARGEST_PART: u64 = 16;

/// Where the parts of a file are.
#[derive(Debug, Clone, Copy)]
struct Layout {
    bytes: u64,
    buckets: u64,
    ring_at: u64,
    units: u64,
}

impl Layout {
    fn of(bytes: u64) -> io::Result<Layout> {
        let buckets = bytes / INDEX_PART / BUCKET_BYTES as u64;
        let ring_at = INDEX_AT + buckets * BUCKET_BYTES as u64;
        let units = bytes.saturating_sub(ring_at) / UNIT_BYTES;
        if buckets == 0 || units == 0 || u32::try_from(units).is_err() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a file of results cannot have this size"));
        }
        Ok(Layout { bytes, buckets, ring_at, units })
    }
}

/// The time when the file was last written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// By the file's own clock, which never goes back, in milliseconds.
    pub time_ms: u64,
    /// By the host's clock, which somebody may set.
    pub wall_ms: u64,
    /// The age of records that were written up to then is not known, by the file's own clock.
    pub unaged_ms: u64,
}

/// A file of results. One thread at a time may write records.
#[derive(Debug)]
pub struct Ring {
    file: File,
    layout: Layout,
    key: [u8; 32],
    /// The unit at which the next record begins.
    head: AtomicU64,
}

/// A result.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// When it came, by the file's own clock.
    pub at_ms: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it makes room for others before long.
    pub is_old: bool,
}

/// What an earlier store left in the file.
#[derive(Debug)]
pub struct Saved {
    /// When; none if it left nothing.
    pub times: Option<Times>,
    /// Its functions' epochs.
    pub epochs: Vec<u64>,
}

impl Ring {
    /// The results in a file, which becomes so large. Whatever is no file of results of this version and size is replaced.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(file: File, bytes: u64) -> io::Result<(Ring, Saved)> {
        let layout = Layout::of(bytes)?;
        let length = file.metadata()?.len();
        if length == bytes
            && let Ok(Some((key, head, times))) = read_header(&file, layout)
        {
            let mut epochs = vec![0; 8 * EPOCHS];
            if file.read_exact_at(&mut epochs, EPOCHS_AT).is_ok() {
                let saved = Saved { times: Some(times), epochs: epochs_of(&epochs) };
                return Ok((Ring { file, layout, key, head: head.into() }, saved));
            }
        }
        if length > 0 {
            log::warning("cache_file_replaced").write(
                "the file of cached results is damaged, or of another version or size: the results in it are forgotten",
            );
        }
        // No epoch is 0, which damage may leave.
        let (mut key, mut epochs) = ([0; 32], vec![0; 8 * EPOCHS]);
        let mut random = File::open("/dev/urandom")?;
        random.read_exact(&mut key)?;
        random.read_exact(&mut epochs)?;
        file.set_len(0)?;
        file.set_len(bytes)?;
        // A disk that is full later can still be told to forget.
        file.write_all_at(&epochs, EPOCHS_AT)?;
        let ring = Ring { file, layout, key, head: 0.into() };
        ring.save(Times::default())?;
        ring.file.sync_data()?;
        Ok((ring, Saved { times: None, epochs: epochs_of(&epochs) }))
    }

    /// Says that the records before the head were written by then.
    pub fn save(&self, times: Times) -> io::Result<()> {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let numbers = [self.head.load(SeqCst), times.time_ms, times.wall_ms, times.unaged_ms];
        let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
        let fields = self.layout.bytes.to_le_bytes().into_iter().chain(self.key).chain(numbers);
        bytes[MAGIC_BYTES..].iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        let (fields, checksum) = bytes.split_at_mut(HEADER_BYTES - CHECKSUM_BYTES);
        checksum.copy_from_slice(&checksum_of(&self.key, &[fields]));
        self.file.write_all_at(&bytes, 0)
    }

    /// Which epoch a function has.
    pub fn epoch_of(&self, user: u32, namespace: &Namespace) -> usize {
        let [first, second, ..] = *hash(&self.key, &[&user.to_le_bytes(), namespace]).as_bytes();
        usize::from(u16::from_le_bytes([first, second])) % EPOCHS
    }

    /// An epoch behind one, and none that an earlier store had behind the same: it may have kept results in one that it could not
    /// write.
    pub fn next_epoch(&self, epoch: u64) -> u64 {
        let salt = RandomState::new().hash_one(epoch);
        let hash = hash(&self.key, &[b"epoch", &epoch.to_le_bytes(), &salt.to_le_bytes()]);
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }

    /// Writes an epoch, and waits until the disk has it.
    pub fn write_epoch(&self, which: usize, epoch: u64) -> io::Result<()> {
        let (bytes, place) = (epoch.to_le_bytes(), EPOCHS_AT + 8 * which as u64);
        // Not all that other threads have written before.
        if pwritev2(&self.file, &[IoSlice::new(&bytes)], place, ReadWriteFlags::DSYNC) == Ok(bytes.len()) {
            return Ok(());
        }
        self.file.write_all_at(&bytes, place)?;
        self.file.sync_data()
    }

    /// The secret of a function's names in an epoch.
    pub fn secret_of(&self, user: u32, namespace: &Namespace, epoch: u64) -> Secret {
        *hash(&self.key, &[b"names", &user.to_le_bytes(), namespace, &epoch.to_le_bytes()]).as_bytes()
    }

    /// The result of that name.
    pub fn get(&self, name: &Name) -> io::Result<Option<Record>> {
        for slot in self.read_bucket(name)?.as_chunks().0 {
            if let Some(unit) = self.unit_in(*slot, name)
                && let Some(record) = self.read_record(unit, name)?
            {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Whether a result of that name seems to be there, and will be for long.
    pub fn seems_young(&self, name: &Name) -> io::Result<bool> {
        for slot in self.read_bucket(name)?.as_chunks().0 {
            if let Some(unit) = self.unit_in(*slot, name).filter(|unit| !self.is_old(*unit)) {
                // Another record may have taken its place.
                let mut found = Name::default();
                self.file.read_exact_at(&mut found, self.place_of(unit))?;
                if found == *name {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Writes a result over the oldest ones.
    pub fn put(&self, name: &Name, at_ms: u64, result: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(RECORD_BYTES + result.len());
        record.extend(name);
        record.extend(at_ms.to_le_bytes());
        let Ok(length) = u32::try_from(result.len()) else { return Ok(()) };
        record.extend(length.to_le_bytes());
        record.extend(checksum_of(&self.key, &[&record, result]));
        record.extend(result);
        let units = (record.len() as u64).div_ceil(UNIT_BYTES);
        if units > self.layout.units / LARGEST_PART {
            return Ok(());
        }
        let head = self.head.load(SeqCst);
        let unit = if head + units > self.layout.units { 0 } else { head };
        self.file.write_all_at(&record, self.place_of(unit))?;
        self.write_slot(name, unit)?;
        self.head.store(unit + units, SeqCst);
        Ok(())
    }

    /// The same, by another descriptor.
    #[cfg(test)]
    pub fn with_file(self, file: File) -> Ring {
        Ring { file, ..self }
    }

    fn place_of(&self, unit: u64) -> u64 {
        self.layout.ring_at + unit * UNIT_BYTES
    }

    /// How far a record is behind the head. The head has yet to come to those that are farthest.
    fn age_of(&self, unit: u64) -> u64 {
        (self.head.load(SeqCst) + self.layout.units - unit) % self.layout.units
    }

    fn is_old(&self, unit: u64) -> bool {
        self.age_of(unit) > self.layout.units / 2
    }

    fn bucket_at(&self, name: &Name) -> u64 {
        let number = u64::from_le_bytes(*name.first_chunk().expect("a name has 16 bytes"));
        INDEX_AT + number % self.layout.buckets * BUCKET_BYTES as u64
    }

    fn read_bucket(&self, name: &Name) -> io::Result<[u8; BUCKET_BYTES]> {
        let mut bucket = [0; BUCKET_BYTES];
        self.file.read_exact_at(&mut bucket, self.bucket_at(name))?;
        Ok(bucket)
    }

    /// Where the record of that name may be, if a slot says so.
    fn unit_in(&self, slot: [u8; SLOT_BYTES], name: &Name) -> Option<u64> {
        let (fingerprint, unit) = read_slot(slot);
        (fingerprint == fingerprint_of(name) && unit < self.layout.units).then_some(unit)
    }

    fn write_slot(&self, name: &Name, unit: u64) -> io::Result<()> {
        let bucket = self.read_bucket(name)?;
        let is_own = |slot: &[u8; SLOT_BYTES]| self.unit_in(*slot, name).is_some();
        // The slot of this name before, one without a record, or that of the oldest record.
        let age = |slot: &[u8; SLOT_BYTES]| match read_slot(*slot) {
            (0, _) => u64::MAX,
            (_, unit) if unit >= self.layout.units => u64::MAX,
            (_, unit) => self.age_of(unit),
        };
        let slots = bucket.as_chunks().0;
        let oldest = || (0..slots.len()).max_by_key(|index| age(&slots[*index]));
        let index = slots.iter().position(is_own).or_else(oldest).unwrap_or(0);
        let [a, b, c, d] = fingerprint_of(name).to_le_bytes();
        let [e, f, g, h, ..] = unit.to_le_bytes();
        self.file.write_all_at(&[a, b, c, d, e, f, g, h], self.bucket_at(name) + (index * SLOT_BYTES) as u64)
    }

    /// The record at that place, if it has that name and is whole.
    fn read_record(&self, unit: u64, name: &Name) -> io::Result<Option<Record>> {
        let place = self.place_of(unit);
        let room = usize::try_from(self.layout.bytes - place).unwrap_or(usize::MAX);
        let mut bytes = vec![0; FIRST_BYTES.min(room)];
        self.file.read_exact_at(&mut bytes, place)?;
        let Some((header, _)) = bytes.split_first_chunk::<RECORD_BYTES>() else { return Ok(None) };
        let (fields, checksum) = header.split_at(RECORD_BYTES - CHECKSUM_BYTES);
        let (fields, checksum) = (fields.to_vec(), checksum.to_vec());
        let (found, rest) = fields.split_first_chunk::<16>().expect("a name comes first");
        let (at, length) = rest.split_first_chunk::<8>().expect("a time comes next");
        let length = u32::from_le_bytes(*length.first_chunk().expect("a length comes last")) as usize;
        if found != name || length > MOST_BYTES || RECORD_BYTES + length > room {
            return Ok(None);
        }
        let read = bytes.len();
        bytes.resize(RECORD_BYTES + length, 0);
        if let Some(rest) = bytes.get_mut(read..) {
            self.file.read_exact_at(rest, place + read as u64)?;
        }
        bytes.drain(..RECORD_BYTES);
        let is_whole = checksum_of(&self.key, &[&fields, &bytes]) == *checksum;
        let at_ms = u64::from_le_bytes(*at);
        Ok(is_whole.then(|| Record { at_ms, bytes, is_old: self.is_old(unit) }))
    }
}

/// The name of a row of a function.
pub fn name_of(secret: &Secret, key: &Key) -> Name {
    *hash(secret, &[key]).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

fn epochs_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// The secret, the head and the times; none if the file has no header, or is that of another layout.
fn read_header(file: &File, layout: Layout) -> io::Result<Option<([u8; 32], u64, Times)>> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let mut magic = [0; MAGIC_BYTES];
    magic[..MAGIC.len()].copy_from_slice(MAGIC);
    let (fields, checksum) = bytes.split_at(HEADER_BYTES - CHECKSUM_BYTES);
    let (found, rest) = fields.split_at(MAGIC_BYTES);
    let (size, rest) = rest.split_first_chunk().expect("a size comes next");
    let (key, numbers) = rest.split_first_chunk::<32>().expect("a secret comes next");
    if found != magic || u64::from_le_bytes(*size) != layout.bytes || checksum_of(key, &[fields]) != *checksum {
        return Ok(None);
    }
    let [head, time_ms, wall_ms, unaged_ms] =
        [0, 1, 2, 3].map(|index| u64::from_le_bytes(numbers.as_chunks().0[index]));
    Ok((head <= layout.units).then_some((*key, head, Times { time_ms, wall_ms, unaged_ms })))
}

fn read_slot(slot: [u8; SLOT_BYTES]) -> (u32, u64) {
    let [a, b, c, d, e, f, g, h] = slot;
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]).into())
}

/// Never 0, which slots without a record have.
fn fingerprint_of(name: &Name) -> u32 {
    let [.., a, b, c, d] = *name;
    u32::from_le_bytes([a, b, c, d]) | 1
}

fn checksum_of(key: &[u8; 32], parts: &[&[u8]]) -> [u8; CHECKSUM_BYTES] {
    *hash(key, parts).as_bytes().last_chunk().expect("a hash has 32 bytes")
}

/// The parts must have lengths by which they are told apart.
fn hash(key: &[u8; 32], parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    hasher.finalize()
}

#[cfg(test)]
mod tests;
