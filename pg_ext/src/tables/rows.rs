//! The rows of `transship.table_segments` and `transship.table_chunks`, in which the database has its shared tables. They are read
//! and written below SQL, as PostgreSQL does with its catalogs: nobody has rights on them, and no code of a user's runs.

use std::ffi::CStr;
use std::io::{self, Write};

use pgrx::pg_sys;
use shared_tables::segment::Digest;
use udf_types::{Error, Kind};

use crate::pg::memory::OwnedContext;
use crate::report;

const SCHEMA: &CStr = c"transship";
const SEGMENTS: &CStr = c"table_segments";
const SEGMENTS_KEY: &CStr = c"table_segments_pkey";
const CHUNKS: &CStr = c"table_chunks";
const CHUNKS_KEY: &CStr = c"table_chunks_pkey";

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1 << 20;

/// A segment's name in the database: when it was made, and something random.
pub(super) type Id = [u8; 16];

/// A row of `table_segments`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub id: Id,
    pub digest: Digest,
    pub rows: u64,
    /// About how many keys are among them.
    pub keys: u64,
    pub bytes: u64,
}

/// Two processes that make segments at the same moment make different ones.
pub(super) fn new_id() -> Id {
    let micros =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let mut id = [0; 16];
    id[..8].copy_from_slice(&u64::try_from(micros).unwrap_or(0).to_be_bytes());
    // SAFETY: the bytes are written to the rest of the array.
    let is_random = unsafe { pg_sys::pg_strong_random(id[8..].as_mut_ptr().cast(), 8) };
    if !is_random {
        report::raise_error(&Error::new(Kind::OutOfMemory, "could not generate random values"), None);
    }
    id
}

/// A relation of ours.
pub(super) fn find(name: &CStr) -> pg_sys::Oid {
    // SAFETY: lookups in the catalogs.
    let found = unsafe { pg_sys::get_relname_relid(name.as_ptr(), pg_sys::get_namespace_oid(SCHEMA.as_ptr(), false)) };
    if found == pg_sys::InvalidOid {
        let error = Error::invalid_definition("extension \"transship\" has no shared tables in this database");
        report::raise_error(&error.with_hint("Run ALTER EXTENSION transship UPDATE."), None);
    }
    found
}

/// Reads what an index finds, in its order.
pub(super) struct Reader {
    relation: pg_sys::Relation,
    index: pg_sys::Relation,
    scan: pg_sys::SysScanDesc,
}

impl Reader {
    /// Rows of a relation whose first column of the index is `key`.
    ///
    /// # Safety
    /// The snapshot is registered or active; `equals` compares values of the column's type.
    pub(super) unsafe fn open(
        (name, index): (&CStr, &CStr),
        equals: u32,
        key: pg_sys::Datum,
        attribute: i16,
        snapshot: pg_sys::Snapshot,
        lock: u32,
    ) -> Reader {
        // SAFETY: the caller says so. What stays open when an error ends the statement, PostgreSQL closes.
        unsafe {
            let relation = pg_sys::table_open(find(name), lock as i32);
            let index = pg_sys::index_open(find(index), pg_sys::AccessShareLock as i32);
            let mut condition = pg_sys::ScanKeyData::default();
            pg_sys::ScanKeyInit(&mut condition, attribute, pg_sys::BTEqualStrategyNumber as u16, equals.into(), key);
            let scan = pg_sys::systable_beginscan_ordered(relation, index, snapshot, 1, &mut condition);
            Reader { relation, index, scan }
        }
    }

    /// The next row, which is there until the one after is asked for.
    pub(super) fn next(&mut self) -> Option<pg_sys::HeapTuple> {
        // SAFETY: the scan is open.
        let tuple = unsafe { pg_sys::systable_getnext_ordered(self.scan, pg_sys::ScanDirection::ForwardScanDirection) };
        (!tuple.is_null()).then_some(tuple)
    }

    /// The values of a row, none of which is NULL.
    pub(super) unsafe fn values<const N: usize>(&self, tuple: pg_sys::HeapTuple) -> [pg_sys::Datum; N] {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(0usize); N], [false; N]);
        // SAFETY: the caller passes a row of the relation.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            if usize::try_from((*descriptor).natts) != Ok(N) {
                report::raise_error(&damaged(), None);
            }
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        if nulls.contains(&true) {
            report::raise_error(&damaged(), None);
        }
        values
    }

    /// Deletes a row that it has found.
    pub(super) unsafe fn delete(&self, tuple: pg_sys::HeapTuple) {
        // SAFETY: the caller passes a row of the relation, which is locked for that.
        unsafe { pg_sys::CatalogTupleDelete(self.relation, &raw mut (*tuple).t_self) }
    }

    /// Ends it; the lock is let go of if nothing was written.
    pub(super) fn close(self, lock: u32) {
        // SAFETY: they are open.
        unsafe {
            pg_sys::systable_endscan_ordered(self.scan);
            pg_sys::index_close(self.index, pg_sys::AccessShareLock as i32);
            pg_sys::table_close(self.relation, lock as i32);
        }
    }
}

fn damaged() -> Error {
    Error::new(Kind::InvalidDefinition, "the rows of a shared table are damaged")
        .with_detail("The tables transship.table_segments and table_chunks do not fit each other, or were altered.")
}

/// The bytes of a bytea, in the current memory context if they had to be copied.
unsafe fn bytes_of<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: the caller passes a bytea.
    unsafe { pgrx::varlena::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr())) }
}

/// What a snapshot sees of a table, oldest first.
///
/// # Safety
/// The snapshot is registered or active.
pub(super) unsafe fn list(table: pg_sys::Oid, snapshot: pg_sys::Snapshot) -> Vec<Row> {
    let mut found = Vec::new();
    // SAFETY: the columns are those that the extension's script declares.
    unsafe {
        let key = pg_sys::Datum::from(table);
        let lock = pg_sys::AccessShareLock;
        let mut reader = Reader::open((SEGMENTS, SEGMENTS_KEY), pg_sys::F_OIDEQ, key, 1, snapshot, lock);
        while let Some(tuple) = reader.next() {
            let [_, id, digest, rows, keys, bytes] = reader.values(tuple);
            let Ok(digest) = <[u8; 32]>::try_from(bytes_of(digest)) else { report::raise_error(&damaged(), None) };
            let number = |datum: pg_sys::Datum| u64::try_from(datum.value() as i64).unwrap_or(0);
            let id = *id.cast_mut_ptr::<Id>();
            let (digest, rows, keys, bytes) = (Digest::from(digest), number(rows), number(keys), number(bytes));
            found.push(Row { id, digest, rows, keys, bytes });
        }
        reader.close(lock);
    }
    found
}

/// Locks what [`read`] reads, until the transaction ends.
pub(super) fn lock_chunks() {
    // SAFETY: both relations exist.
    unsafe {
        pg_sys::LockRelationOid(find(CHUNKS), pg_sys::AccessShareLock as i32);
        pg_sys::LockRelationOid(find(CHUNKS_KEY), pg_sys::AccessShareLock as i32);
    }
}

/// Hands over a segment's bytes, in order.
///
/// # Safety
/// The snapshot is registered or active, and saw the segment.
pub(super) unsafe fn read(
    row: &Row,
    snapshot: pg_sys::Snapshot,
    mut take: impl FnMut(&[u8]) -> udf_types::Result<()>,
) -> udf_types::Result<()> {
    // SAFETY: as in list.
    unsafe {
        let memory = OwnedContext::new(pg_sys::CurrentMemoryContext);
        let key = pg_sys::Datum::from(row.id.as_ptr());
        let lock = pg_sys::AccessShareLock;
        let mut reader = Reader::open((CHUNKS, CHUNKS_KEY), pg_sys::F_UUID_EQ, key, 1, snapshot, lock);
        let mut next = 0;
        let mut result = Ok(());
        while let (Some(tuple), Ok(())) = (reader.next(), &result) {
            pgrx::check_for_interrupts!();
            let [_, part, data] = reader.values(tuple);
            if part.value() as i32 != next {
                report::raise_error(&damaged(), None);
            }
            next += 1;
            result = crate::pg::memory::within(memory.as_ptr(), || take(bytes_of(data)));
            memory.reset();
        }
        reader.close(lock);
        result
    }
}

/// Writes the bytes of a segment.
pub(super) struct Inserter {
    id: Id,
    chunks: pg_sys::Relation,
    parts: i32,
    /// What is not written yet.
    buffer: Vec<u8>,
}

impl Inserter {
    /// For a segment of that name, which no other has.
    pub(super) fn new(id: Id) -> Inserter {
        let lock = pg_sys::RowExclusiveLock as i32;
        // SAFETY: PostgreSQL closes it if an error ends the statement.
        let chunks = unsafe { pg_sys::table_open(find(CHUNKS), lock) };
        Inserter { id, chunks, parts: 0, buffer: Vec::with_capacity(CHUNK_BYTES) }
    }

    fn write_chunk(&mut self) {
        pgrx::check_for_interrupts!();
        // SAFETY: the values are of the columns' types; a row is copied, and freed.
        unsafe {
            let data = pgrx::varlena::rust_byte_slice_to_bytea(&self.buffer).into_pg();
            let values =
                [pg_sys::Datum::from(self.id.as_ptr()), pg_sys::Datum::from(self.parts), pg_sys::Datum::from(data)];
            insert(self.chunks, values);
            pg_sys::pfree(data.cast());
        }
        self.buffer.clear();
        self.parts += 1;
    }

    /// Writes the rest of the bytes; the row with which the segment is there is to be inserted.
    pub(super) fn finish(mut self, digest: Digest, rows: u64, keys: u64, bytes: u64) -> Row {
        if !self.buffer.is_empty() {
            self.write_chunk();
        }
        // SAFETY: it is open. The lock is kept until the transaction ends.
        unsafe { pg_sys::table_close(self.chunks, pg_sys::NoLock as i32) };
        Row { id: self.id, digest, rows, keys, bytes }
    }
}

/// Inserts the rows of segments whose bytes were written: they are the table's from the next command on.
pub(super) fn insert_segments(table: pg_sys::Oid, segments: &[Row]) {
    let number = |number: u64| pg_sys::Datum::from(i64::try_from(number).unwrap_or(i64::MAX));
    // SAFETY: the values are of the columns' types; a row is copied. The lock is kept until the transaction ends.
    unsafe {
        let relation = pg_sys::table_open(find(SEGMENTS), pg_sys::RowExclusiveLock as i32);
        for Row { id, digest, rows, keys, bytes } in segments {
            let digest = pgrx::varlena::rust_byte_slice_to_bytea(digest.as_bytes()).into_pg();
            let (table, id) = (pg_sys::Datum::from(table), pg_sys::Datum::from(id.as_ptr()));
            insert(relation, [table, id, pg_sys::Datum::from(digest), number(*rows), number(*keys), number(*bytes)]);
        }
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        pg_sys::CommandCounterIncrement();
    }
}

impl Write for Inserter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == CHUNK_BYTES {
            self.write_chunk();
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Inserts a row.
///
/// # Safety
/// The relation is open, and the values are of its columns' types.
pub(super) unsafe fn insert<const N: usize>(relation: pg_sys::Relation, mut values: [pg_sys::Datum; N]) {
    let mut nulls = [false; N];
    // SAFETY: the caller passes an open relation, and values of its columns' types.
    unsafe {
        if usize::try_from((*(*relation).rd_att).natts) != Ok(N) {
            report::raise_error(&damaged(), None);
        }
        let tuple = pg_sys::heap_form_tuple((*relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::CatalogTupleInsert(relation, tuple);
        pg_sys::heap_freetuple(tuple);
    }
}

/// Whether a relation is `table_segments`.
pub(super) fn are_segments(relation: pg_sys::Oid) -> bool {
    relation == find(SEGMENTS)
}

/// The segments that a table has now, whoever sees them.
pub(super) fn list_now(table: pg_sys::Oid) -> Vec<Row> {
    // SAFETY: the snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let found = list(table, snapshot);
        pg_sys::UnregisterSnapshot(snapshot);
        found
    }
}

/// The segments that a table has now, if those that the transaction sees are these; none if another transaction has changed them
/// since this one took its snapshot.
pub(super) fn list_latest(table: pg_sys::Oid) -> Option<Vec<Row>> {
    let found = list_now(table);
    // SAFETY: the snapshot is registered while it is used.
    unsafe {
        let is_fixed = (&raw const pg_sys::XactIsoLevel).read() >= pg_sys::XACT_REPEATABLE_READ as i32;
        if is_fixed {
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
            let seen = list(table, snapshot);
            pg_sys::UnregisterSnapshot(snapshot);
            // A segment into which others were merged has the name of the oldest.
            if seen != found {
                return None;
            }
        }
    }
    Some(found)
}

/// Deletes all segments that a table has, whoever sees them.
pub(super) fn delete_all(table: pg_sys::Oid) {
    // SAFETY: the snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let found = list(table, snapshot);
        let ids: Vec<_> = found.iter().map(|row| row.id).collect();
        delete(table, &ids, snapshot);
        super::memory::remove_later(found.iter().map(|row| row.digest));
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

/// Deletes these segments of a table.
///
/// # Safety
/// The snapshot is registered or active, and saw them.
pub(super) unsafe fn delete(table: pg_sys::Oid, ids: &[Id], snapshot: pg_sys::Snapshot) {
    // SAFETY: the rows are those that the scan has found.
    unsafe {
        let delete_all = |mut reader: Reader, is_one: &dyn Fn(&Reader, pg_sys::HeapTuple) -> bool| {
            while let Some(tuple) = reader.next() {
                pgrx::check_for_interrupts!();
                if is_one(&reader, tuple) {
                    reader.delete(tuple);
                }
            }
            reader.close(pg_sys::NoLock);
        };
        let lock = pg_sys::RowExclusiveLock;
        for id in ids {
            let key = pg_sys::Datum::from(id.as_ptr());
            let chunks = Reader::open((CHUNKS, CHUNKS_KEY), pg_sys::F_UUID_EQ, key, 1, snapshot, lock);
            delete_all(chunks, &|_, _| true);
        }
        let key = pg_sys::Datum::from(table);
        let segments = Reader::open((SEGMENTS, SEGMENTS_KEY), pg_sys::F_OIDEQ, key, 1, snapshot, lock);
        delete_all(segments, &|reader, tuple| {
            let [_, id, ..]: [pg_sys::Datum; 6] = reader.values(tuple);
            ids.contains(&*id.cast_mut_ptr::<Id>())
        });
        pg_sys::CommandCounterIncrement();
    }
}
