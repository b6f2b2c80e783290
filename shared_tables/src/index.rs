//! The hash index over the keys of one segment: a flat file that is mapped and read in place.
//!
//! `docs/protocol.md` §10.5 gives the format. Equal segments have equal indexes.

use std::ops::{Deref, Range};

use arrow_buffer::{Buffer, ScalarBuffer};
use udf_types::error::Result;

use crate::bounds::{MOST_ROWS, ROWS_PER_BATCH};
use crate::error;
use crate::keys::Keys;

const MAGIC: [u8; 8] = *b"TSHPIDX1";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
/// What a row has instead of a key's number if its key has a NULL.
const NO_KEY: u32 = u32::MAX;
/// Slots at the start of a build, at most.
const FIRST_SLOTS: usize = 1 << 13;
/// Bounds how many slots a build may look at. Only keys that somebody chose for their hashes need so many, and the seed keeps
/// them from being chosen.
const MOST_STEPS_PER_ROW: usize = 64;
const MOST_STEPS: usize = 1 << 20;

/// An index, read in place. If its content is corrupt, a lookup misses; it never fails.
#[derive(Debug, Clone)]
pub struct Index {
    seed: u64,
    segment_rows: u32,
    distinct: usize,
    slots: ScalarBuffer<u64>,
    /// Missing if every key has one row.
    offsets: Option<ScalarBuffer<u32>>,
    /// Missing if each row has a key of its own.
    rows: Option<ScalarBuffer<u32>>,
}

/// The rows of a key, ascending.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// One row.
    One([u32; 1]),
    /// Any number of rows.
    Many(&'a [u32]),
}

impl Rows<'_> {
    /// No rows.
    pub fn none() -> Self {
        Rows::Many(&[])
    }
}

impl Deref for Rows<'_> {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Rows::One(row) => row,
            Rows::Many(rows) => rows,
        }
    }
}

impl Index {
    /// Builds the index of a segment whose batches have these keys: all but the last one have [`ROWS_PER_BATCH`] rows.
    ///
    /// Takes time in proportion to the rows. Takes memory of at most 2.5 times the size of the index, the index included, and 4
    /// bytes for each row whose key has a NULL, and 128 KiB: together at most 192 MiB, for [`MOST_ROWS`] rows.
    ///
    /// # Errors
    /// More than [`MOST_ROWS`] rows, too little memory (of kind `OutOfMemory`), or keys whose hashes were chosen to collide.
    pub fn build(batches: &[Keys], seed: u64) -> Result<Vec<u8>> {
        let rows: usize = batches.iter().map(Keys::rows).sum();
        if rows > MOST_ROWS {
            return Err(error::too_many_rows());
        }
        let mut table = Table::new(batches, rows)?;
        let mut key_of_row = with_room(rows)?;
        for keys in batches {
            for row in 0..keys.rows() {
                let number = match keys.hash(row, seed) {
                    Some(hash) => table.number(hash, keys, row, key_of_row.len())?,
                    None => NO_KEY,
                };
                key_of_row.push(number);
            }
        }
        let distinct = table.hashes.len();
        table.resize((2 * distinct).next_power_of_two())?;
        write(seed, &table.into_slots(), distinct, &key_of_row)
    }

    /// Opens an index. Its content beyond the header is looked at by lookups only.
    ///
    /// # Errors
    /// The bytes are not an index, of another version, or of another length than their header says.
    pub fn open(bytes: Buffer) -> Result<Index> {
        let malformed = |fact: &str| error::malformed("index", fact);
        let header = bytes.get(..HEADER_BYTES).ok_or_else(|| malformed("is shorter than its header"))?;
        if header[..8] != MAGIC {
            return Err(malformed("does not begin as an index does"));
        }
        let version = u32::from_le_bytes(header[8..12].try_into().expect("it has 4 bytes"));
        if version != VERSION {
            return Err(malformed(&format!("has version {version}, and not {VERSION}")));
        }
        let number = |place: usize| u64::from_le_bytes(header[place..place + 8].try_into().expect("it has 8 bytes"));
        let [rows, distinct, slots, entries, seed] = [16, 24, 32, 40, 48].map(number);
        let is_possible = distinct <= entries
            && entries <= rows
            && rows <= MOST_ROWS as u64
            && slots.is_power_of_two()
            && slots / 2 >= distinct
            && slots <= bytes.len() as u64;
        if !is_possible {
            return Err(malformed("has a header with impossible numbers"));
        }
        let [rows, distinct, slots, entries] = [rows, distinct, slots, entries].map(|number| number as usize);
        let offsets = if entries == distinct { 0 } else { distinct + 1 };
        let offsets_start = HEADER_BYTES + 8 * slots;
        let rows_start = offsets_start + 4 * offsets;
        let listed = if distinct == rows { 0 } else { entries };
        if bytes.len() != rows_start + 4 * listed {
            return Err(malformed("has another length than its header says"));
        }
        if !bytes.as_ptr().cast::<u64>().is_aligned() {
            return Err(malformed("begins at an odd address"));
        }
        Ok(Index {
            seed,
            segment_rows: u32::try_from(rows).expect("MOST_ROWS fits"),
            distinct,
            slots: ScalarBuffer::new(bytes.clone(), HEADER_BYTES / 8, slots),
            offsets: (offsets > 0).then(|| ScalarBuffer::new(bytes.clone(), offsets_start / 4, offsets)),
            rows: (listed > 0).then(|| ScalarBuffer::new(bytes, rows_start / 4, listed)),
        })
    }

    /// The seed of the hashes of its keys.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of different keys.
    pub fn distinct(&self) -> usize {
        self.distinct
    }

    /// True if every key has one row.
    pub fn is_unique(&self) -> bool {
        self.offsets.is_none()
    }

    /// The number of rows of the segment, with those that have no key.
    pub fn segment_rows(&self) -> usize {
        self.segment_rows as usize
    }

    /// The rows of one key, ascending; empty if the segment does not have it. All of them are rows of the segment.
    ///
    /// `hash` is the key's [hash](Keys::hash) with the [seed](Index::seed) of this index, and `is_equal` says whether a row of the segment has the key.
    pub fn find(&self, hash: u64, mut is_equal: impl FnMut(u32) -> bool) -> Rows<'_> {
        let mask = self.slots.len() - 1;
        let mut place = hash as usize & mask;
        for _ in 0..self.slots.len() {
            let slot = self.slots[place];
            if slot == 0 {
                break;
            }
            if slot >> 32 == hash >> 32
                && let Some(rows) = self.rows_of(slot as u32)
                && is_equal(rows[0])
                && rows.iter().all(|row| *row < self.segment_rows)
            {
                return rows;
            }
            place = (place + 1) & mask;
        }
        Rows::none()
    }

    /// The rows of the key of this number + 1: at least one, the first of which the segment has.
    fn rows_of(&self, number: u32) -> Option<Rows<'_>> {
        let key = (number as usize).checked_sub(1).filter(|key| *key < self.distinct)?;
        let Some(rows) = &self.rows else {
            return (self.distinct == self.segment_rows as usize).then_some(Rows::One([number - 1]));
        };
        let range: Range<usize> = match &self.offsets {
            Some(offsets) => offsets[key] as usize..offsets[key + 1] as usize,
            None => key..key + 1,
        };
        let rows = rows.get(range)?;
        rows.first().is_some_and(|first| *first < self.segment_rows).then_some(Rows::Many(rows))
    }
}

/// The slots of an index that is being built.
struct Table<'a> {
    batches: &'a [Keys],
    slots: Vec<u64>,
    /// Of each key.
    hashes: Vec<u64>,
    first_rows: Vec<u32>,
    /// Slots that may yet be looked at.
    steps_left: usize,
}

impl<'a> Table<'a> {
    fn new(batches: &'a [Keys], rows: usize) -> Result<Table<'a>> {
        let steps_left = MOST_STEPS_PER_ROW * rows + MOST_STEPS;
        let (slots, hashes, first_rows) = (Vec::new(), Vec::new(), Vec::new());
        let mut table = Table { batches, slots, hashes, first_rows, steps_left };
        table.resize((2 * rows).next_power_of_two().min(FIRST_SLOTS))?;
        Ok(table)
    }

    /// The number of a key, which is that of `keys` in `row`, and of the segment in `segment_row`.
    fn number(&mut self, hash: u64, keys: &Keys, row: usize, segment_row: usize) -> Result<u32> {
        let mask = self.slots.len() - 1;
        let mut place = hash as usize & mask;
        while self.slots[place] != 0 {
            let slot = self.slots[place];
            if slot >> 32 == hash >> 32 {
                let number = slot as u32 - 1;
                let first = self.first_rows[number as usize] as usize;
                if self.batches[first / ROWS_PER_BATCH].equals(first % ROWS_PER_BATCH, keys, row) {
                    return Ok(number);
                }
            }
            place = (place + 1) & mask;
            self.step()?;
        }
        let number = self.hashes.len() as u32;
        self.slots[place] = slot_of(hash, number);
        self.hashes.push(hash);
        self.first_rows.push(segment_row as u32);
        if 2 * self.hashes.len() > self.slots.len() {
            self.resize(2 * self.slots.len())?;
        }
        Ok(number)
    }

    /// Inserts all keys again, in order, into so many slots. Makes room for the keys that these slots hold, and one more.
    fn resize(&mut self, slots: usize) -> Result<()> {
        if slots == self.slots.len() {
            return Ok(());
        }
        // The memory of the old slots is free before the new ones take theirs.
        self.slots = Vec::new();
        let room = (slots / 2 + 1).saturating_sub(self.hashes.len());
        reserve(&mut self.hashes, room)?;
        reserve(&mut self.first_rows, room)?;
        self.slots = zeros(slots)?;
        for number in 0..self.hashes.len() {
            let hash = self.hashes[number];
            let mut place = hash as usize & (slots - 1);
            while self.slots[place] != 0 {
                place = (place + 1) & (slots - 1);
                self.step()?;
            }
            self.slots[place] = slot_of(hash, number as u32);
        }
        Ok(())
    }

    /// The slots alone. The memory of all else is free then.
    fn into_slots(self) -> Vec<u64> {
        self.slots
    }

    fn step(&mut self) -> Result<()> {
        self.steps_left = self
            .steps_left
            .checked_sub(1)
            .ok_or_else(|| error::invalid_key("has too many values with nearly the same hash"))?;
        Ok(())
    }
}

fn slot_of(hash: u64, number: u32) -> u64 {
    hash >> 32 << 32 | u64::from(number + 1)
}

/// Makes room in a vector for so many more items.
fn reserve<T>(items: &mut Vec<T>, more: usize) -> Result<()> {
    items.try_reserve_exact(more).map_err(|_| error::no_memory_for_index())
}

fn with_room<T>(room: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    reserve(&mut items, room)?;
    Ok(items)
}

fn zeros<T: Clone + Default>(length: usize) -> Result<Vec<T>> {
    let mut items = with_room(length)?;
    items.resize(length, T::default());
    Ok(items)
}

/// The bytes of an index.
fn write(seed: u64, slots: &[u64], distinct: usize, key_of_row: &[u32]) -> Result<Vec<u8>> {
    // First how many rows each key has, then where its next row goes.
    let mut next: Vec<u32> = zeros(distinct + 1)?;
    let keyed = || key_of_row.iter().enumerate().filter(|(_, key)| **key != NO_KEY);
    keyed().for_each(|(_, key)| next[*key as usize + 1] += 1);
    for key in 0..distinct {
        next[key + 1] += next[key];
    }
    let entries = next[distinct] as usize;
    let offsets = if entries == distinct { 0 } else { distinct + 1 };
    let listed = if distinct == key_of_row.len() { 0 } else { entries };
    let rows_start = HEADER_BYTES + 8 * slots.len() + 4 * offsets;
    let mut bytes = with_room(rows_start + 4 * listed)?;
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 4]);
    for number in [key_of_row.len(), distinct, slots.len(), entries] {
        bytes.extend((number as u64).to_le_bytes());
    }
    bytes.extend(seed.to_le_bytes());
    bytes.resize(HEADER_BYTES, 0);
    slots.iter().for_each(|slot| bytes.extend(slot.to_le_bytes()));
    next[..offsets].iter().for_each(|offset| bytes.extend(offset.to_le_bytes()));
    if listed == 0 {
        return Ok(bytes);
    }
    bytes.resize(rows_start + 4 * listed, 0);
    let (rows, _) = bytes[rows_start..].as_chunks_mut();
    for (row, key) in keyed() {
        let place = &mut next[*key as usize];
        rows[*place as usize] = (row as u32).to_le_bytes();
        *place += 1;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use arrow_array::{ArrayRef, Int64Array};

    use super::*;

    const SEED: u64 = 0x0123_4567_89ab_cdef;

    /// The batches of a segment with these keys.
    fn batches(values: &[Option<i64>]) -> Vec<Keys> {
        let keys = |part: &[Option<i64>]| Keys::new(&[Arc::new(Int64Array::from(part.to_vec())) as ArrayRef]).unwrap();
        values.chunks(ROWS_PER_BATCH).map(keys).collect()
    }

    fn open(bytes: &[u8]) -> Result<Index> {
        let mut aligned = arrow_buffer::MutableBuffer::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        Index::open(aligned.into())
    }

    fn find(index: &Index, batches: &[Keys], value: i64) -> Vec<u32> {
        let probe = &self::batches(&[Some(value)])[0];
        let found = index.find(probe.hash(0, index.seed()).unwrap(), |row| {
            batches[row as usize / ROWS_PER_BATCH].equals(row as usize % ROWS_PER_BATCH, probe, 0)
        });
        found.to_vec()
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let keys = batches(&[Some(7), None, Some(9), Some(7)]);
        let bytes = Index::build(&keys, SEED).unwrap();
        let index = open(&bytes).unwrap();
        assert_eq!((index.distinct(), index.is_unique(), index.segment_rows()), (2, false, 4));
        assert_eq!((find(&index, &keys, 7), find(&index, &keys, 9)), (vec![0, 3], vec![2]));
        assert!(find(&index, &keys, 8).is_empty());
        let mut expected = b"TSHPIDX1\x02\0\0\0\0\0\0\0".to_vec();
        [4_u64, 2, 4, 3, SEED, 0].iter().for_each(|number| expected.extend(number.to_le_bytes()));
        let mut slots = [0_u64; 4];
        for (key, row) in [(1_u64, 0), (2, 2)] {
            let hash = keys[0].hash(row, SEED).unwrap();
            let mut place = hash as usize % 4;
            while slots[place] != 0 {
                place = (place + 1) % 4;
            }
            slots[place] = hash & 0xffff_ffff_0000_0000 | key;
        }
        slots.iter().for_each(|slot| expected.extend(slot.to_le_bytes()));
        [0_u32, 2, 3, 0, 3, 2].iter().for_each(|number| expected.extend(number.to_le_bytes()));
        assert_eq!(bytes, expected);
    }

    #[test]
    fn keys_of_one_row_need_neither_offsets_nor_rows() {
        let values: Vec<Option<i64>> = (0..100_000).map(Some).collect();
        let keys = batches(&values);
        let bytes = Index::build(&keys, SEED).unwrap();
        assert_eq!(bytes.len(), HEADER_BYTES + 8 * 262_144);
        let index = open(&bytes).unwrap();
        assert!(index.is_unique());
        assert!((0..100_000).all(|value| find(&index, &keys, value) == [value as u32]));
        assert!((100_000..200_000).all(|value| find(&index, &keys, value).is_empty()));
    }

    #[test]
    fn a_key_of_very_many_rows_takes_no_longer() {
        let start = Instant::now();
        let values: Vec<Option<i64>> =
            (0..500_000).map(|row| (row % 5 > 0).then_some(i64::from(row % 100_000 == 1))).collect();
        let keys = batches(&values);
        let bytes = Index::build(&keys, SEED).unwrap();
        let index = open(&bytes).unwrap();
        assert_eq!(index.distinct(), 2);
        assert_eq!(find(&index, &keys, 1), [1, 100_001, 200_001, 300_001, 400_001]);
        let rows = find(&index, &keys, 0);
        assert_eq!(rows.len(), 399_995);
        assert!(rows.is_sorted());
        assert_eq!(bytes.len(), HEADER_BYTES + 8 * 4 + 4 * (3 + 400_000));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_segment_without_keys_has_an_empty_index() {
        for values in [&[][..], &[None, None]] {
            let keys = batches(values);
            let index = open(&Index::build(&keys, SEED).unwrap()).unwrap();
            assert_eq!((index.distinct(), find(&index, &keys, 0)), (0, vec![]));
        }
    }

    #[test]
    fn keys_chosen_for_their_hashes_are_an_error() {
        let keys = batches(&[Some(1), Some(2)]);
        let mut table = Table::new(&keys, 2).unwrap();
        table.steps_left = 1000;
        // As if every key hashed to one slot.
        let refused = (0..1000).find_map(|key| table.number(key << 32, &keys[0], 0, 0).err());
        assert_eq!(refused.unwrap().kind(), udf_types::error::Kind::InvalidDefinition);
    }

    #[test]
    fn keys_that_collide_with_one_seed_do_not_with_another() {
        let place = |value: i64, seed: u64| batches(&[Some(value)])[0].hash(0, seed).unwrap() % 1024;
        let chosen: Vec<i64> = (0..100_000).filter(|value| place(*value, 0) == 5).take(50).collect();
        assert_eq!(chosen.len(), 50);
        let mut places: Vec<u64> = chosen.iter().map(|value| place(*value, SEED)).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 40, "{places:?}");
    }

    #[test]
    fn too_many_rows_and_too_little_memory_are_errors() {
        let batch = batches(&[Some(7); 8]).remove(0);
        let error = Index::build(&vec![batch; MOST_ROWS / 8 + 1], SEED).unwrap_err();
        assert_eq!(error.kind(), udf_types::error::Kind::OutOfRange);
        assert_eq!(zeros::<u64>(1 << 60).unwrap_err().kind(), udf_types::error::Kind::OutOfMemory);
    }

    #[test]
    fn an_index_of_another_form_is_refused() {
        let bytes = Index::build(&batches(&[Some(7), Some(9), Some(7)]), SEED).unwrap();
        for length in 0..bytes.len() {
            assert!(open(&bytes[..length]).is_err());
        }
        let changed = |place: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[place] = value;
            open(&changed)
        };
        for place in [0, 8, 23, 24, 31, 32, 39, 40, 47] {
            assert!(changed(place, 0x55).is_err(), "{place}");
        }
        assert!(open(&[&bytes[..], &[0]].concat()).is_err());
        let mut shifted = arrow_buffer::MutableBuffer::new(0);
        shifted.extend_from_slice(&[&[0; 4], &bytes[..]].concat());
        assert!(Index::open(Buffer::from(shifted).slice(4)).is_err());
    }

    #[test]
    fn lookups_in_a_corrupt_index_end() {
        let values: Vec<Option<i64>> = (0..300).map(|row| Some(row % 40)).collect();
        let keys = batches(&values);
        let bytes = Index::build(&keys, SEED).unwrap();
        let content = HEADER_BYTES..bytes.len();
        for (place, value) in content.clone().flat_map(|place| [0, 1, 0x80, 0xff].map(|value| (place, value))) {
            let mut changed = bytes.clone();
            changed[place] = value;
            let index = open(&changed).unwrap();
            for probe in [0, 17, 39, 77] {
                assert!(find(&index, &keys, probe).iter().all(|row| *row < 300));
            }
        }
        // No slot is empty.
        let mut full = bytes.clone();
        full[content].fill(0xff);
        assert!(find(&open(&full).unwrap(), &keys, 7).is_empty());
    }
}
