//! Shared tables: foreign tables of the wrapper `transship`, whose rows lie in sealed Arrow segments that every process of the host
//! maps.
//!
//! The truth is in the database: `transship.table_segments` has a row per segment, and `transship.table_chunks` its bytes ([`rows`]).
//! So a version of a table is what a snapshot sees of these rows, and transactions, replicas and backups need nothing of ours.
//! [`memory`] puts the bytes into the host's memory when they are first read, or on its disk ([`places`]). [`share`] makes segments, and [`compact`] keeps them few.
//! Tables that follow their source are in `transship.followed_tables` ([`followed`]): [`follow`] says which queries can be followed, and
//! [`follow_trigger`] keeps their tables up, from the rows that a statement has inserted, or from all ([`followed_rows`]).
//! [`scan`] reads segments, for foreign scans ([`fdw`]), samples ([`sample`]) and [`lookup`]. [`given`] has the tables that functions read in
//! their containers.

mod compact;
mod dictionary;
pub mod fdw;
mod follow;
pub mod follow_trigger;
mod followed;
mod followed_rows;
pub(crate) mod given;
pub mod lookup;
pub mod lookup_joins;
pub mod memory;
mod new_segment;
mod places;
pub mod replicated;
mod rows;
mod sample;
mod scan;
pub mod share;
mod source;

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use pgrx::{PgTupleDesc, pg_sys};
use shared_tables::dictionary::{encoded_type, value_type};
use shared_tables::segment::Segment;
use udf_types::{Error, Kind, Result};

use crate::datum::SqlType;
use crate::pg::{catalog, text};
use crate::{report, server};

/// A callback of PostgreSQL's that has the context of errors around a guarded function.
macro_rules! callback {
    ($visibility:vis $name:ident, $work:ident, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        $visibility unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: PostgreSQL calls this, and the function is guarded.
            unsafe { report::with_context(|| $work($($argument),*)) }
        }
    };
}
use callback;

/// What helps where rows and columns do not fit each other.
const SHARE_AGAIN: &str = "Drop the table with transship.unshare, and share its rows again.";

/// The key of a type's modifier in a field's metadata.
const MODIFIER: &str = "transship:typmod";
/// The key that the metadata of a field has whose texts are padded with blanks.
const PADDED: &str = "transship:padded";

/// A shared table as it is declared.
pub(crate) struct Table {
    relation: pg_sys::Oid,
    name: String,
    columns: Vec<Column>,
    /// Of which columns the key is, in the key's order; none if the table has no key.
    key: Vec<usize>,
}

/// One of its columns.
struct Column {
    name: String,
    number: i16,
    declared: pg_sys::Oid,
    typmod: i32,
    collation: pg_sys::Oid,
    sql_type: SqlType,
    /// Whether segments have its distinct values once, and an index of a value for each row.
    has_dictionary: bool,
}

impl Table {
    /// The table that is open, and locked. Raises an error if it is none that is shared, or has columns of types that cannot be.
    ///
    /// # Safety
    /// The relation is open.
    unsafe fn of(relation: pg_sys::Relation) -> Table {
        // SAFETY: the caller says so.
        unsafe {
            let oid = (*relation).rd_id;
            let name = text::from_c((*(*relation).rd_rel).relname.data.as_ptr());
            let Some(key) = server::table_key(oid) else {
                let message = format!("\"{name}\" is not a shared table");
                report::raise_error(&Error::new(Kind::InvalidDefinition, message), None);
            };
            if (*(*relation).rd_rel).relpersistence as u8 != pg_sys::RELPERSISTENCE_PERMANENT {
                report::raise_error(&temporary(), None);
            }
            let mut columns = Vec::new();
            for attribute in PgTupleDesc::from_pg_copy((*relation).rd_att).iter() {
                if !attribute.attisdropped {
                    let name = text::from_c(attribute.attname.data.as_ptr());
                    // PostgreSQL computes it from other columns, whatever the rows have.
                    if attribute.attgenerated as u8 == b'v' {
                        let message = format!("column \"{name}\" of a shared table cannot be virtual");
                        report::raise_error(&Error::new(Kind::InvalidDefinition, message), None);
                    }
                    columns.push(Column {
                        sql_type: report::unwrap(storable(&name, attribute.atttypid)),
                        name,
                        number: attribute.attnum,
                        declared: attribute.atttypid,
                        typmod: attribute.atttypmod,
                        collation: attribute.attcollation,
                        has_dictionary: false,
                    });
                }
            }
            let known: Vec<(&str, pg_sys::Oid)> =
                columns.iter().map(|column| (column.name.as_str(), column.declared)).collect();
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let key = report::unwrap(positions_of("key", &key, &names));
            let encoded = report::unwrap(dictionary::positions(&server::table_dictionary(oid), &known, &key));
            for position in encoded {
                columns[position].has_dictionary = true;
            }
            for position in &key {
                let column = &columns[*position];
                report::unwrap(may_be_key(&column.name, column.declared, column.collation));
            }
            Table { relation: oid, name, columns, key }
        }
    }

    /// The schema of its segments.
    fn schema(&self) -> SchemaRef {
        let fields: Vec<Field> = self.columns.iter().map(Column::field).collect();
        Arc::new(Schema::new(fields))
    }

    /// An error unless a segment has this table's columns and key.
    fn check(&self, segment: &Segment) -> Result<()> {
        let (own, found) = (self.schema(), segment.schema());
        let is_same = |(own, found): (&Arc<Field>, &Arc<Field>)| {
            let is_same_type = value_type(own.data_type()) == value_type(found.data_type());
            own.name() == found.name() && is_same_type && own.metadata() == found.metadata()
        };
        let are_same =
            own.fields().len() == found.fields().len() && own.fields().iter().zip(found.fields()).all(is_same);
        let same_dictionaries =
            || own.fields().iter().zip(found.fields()).all(|(own, found)| own.data_type() == found.data_type());
        let what = match are_same {
            false => "columns",
            true if segment.key() != self.key => "key columns",
            true if !same_dictionaries() => "dictionaries",
            true => return Ok(()),
        };
        let message = format!("shared table \"{}\" has other {what} than when its rows were shared", self.name);
        Err(Error::new(Kind::SignatureMismatch, message).with_hint(SHARE_AGAIN))
    }
}

impl Column {
    /// Its field in a segment. The type's modifier is in it, and whether texts are padded, since PostgreSQL alters both without a look at
    /// the rows.
    fn field(&self) -> Field {
        let mut field = self.sql_type.ty.field(&self.name);
        if self.has_dictionary {
            let encoded = encoded_type(field.data_type());
            field = field.with_data_type(encoded);
        }
        let mut metadata = field.metadata().clone();
        if self.typmod >= 0 {
            metadata.insert(MODIFIER.to_string(), self.typmod.to_string());
        }
        if self.sql_type.is_padded() {
            metadata.insert(PADDED.to_string(), true.to_string());
        }
        field.with_metadata(metadata)
    }
}

/// The error of a table that would leave its rows behind when its session ends.
fn temporary() -> Error {
    Error::new(Kind::InvalidDefinition, "a shared table cannot be temporary")
}

/// A type whose values can be in segments.
fn storable(column: &str, declared: pg_sys::Oid) -> Result<SqlType> {
    if let Ok(sql_type) = SqlType::new(declared)
        && sql_type.is_self_contained()
    {
        return Ok(sql_type);
    }
    let message = format!("column \"{column}\" of type {} cannot be shared", catalog::type_name(declared));
    Err(Error::new(Kind::UnsupportedType, message).with_hint(
        "Cast it: a domain to its base type, an enum or xml to text, a composite type, range or vector to its parts or jsonb.",
    ))
}

/// Which columns an option of a table names.
fn positions_of(option: &str, names: &[String], columns: &[&str]) -> Result<Vec<usize>> {
    let mut positions = Vec::new();
    for name in names {
        let position = columns.iter().position(|column| column == name).ok_or_else(|| {
            Error::invalid_definition(format!("{option} column \"{name}\" does not exist"))
                .with_hint(format!("The columns are {}.", columns.join(", ")))
        })?;
        if positions.contains(&position) {
            return Err(Error::invalid_definition(format!("{option} column \"{name}\" is named twice")));
        }
        positions.push(position);
    }
    Ok(positions)
}

/// An error unless a column may be in a key: values of its type are equal, as SQL has it, only if their bytes are.
fn may_be_key(column: &str, declared: pg_sys::Oid, collation: pg_sys::Oid) -> Result<()> {
    let has_bytes = matches!(
        declared,
        pg_sys::BOOLOID
            | pg_sys::INT2OID
            | pg_sys::INT4OID
            | pg_sys::INT8OID
            | pg_sys::TEXTOID
            | pg_sys::VARCHAROID
            | pg_sys::BYTEAOID
            | pg_sys::UUIDOID
            | pg_sys::DATEOID
            | pg_sys::TIMEOID
            | pg_sys::TIMESTAMPOID
            | pg_sys::TIMESTAMPTZOID
    );
    if has_bytes && is_deterministic(collation) {
        return Ok(());
    }
    let what = match has_bytes {
        true => "has a collation in which different texts are equal".to_string(),
        false => format!("is of type {}", catalog::type_name(declared)),
    };
    Err(Error::new(Kind::UnsupportedType, format!("column \"{column}\" cannot be in a key: it {what}")).with_hint(
        "Keys are of the types boolean, smallint, integer, bigint, text, varchar, bytea, uuid, date, time, timestamp and timestamptz.",
    ))
}

/// Whether texts are equal in a collation only if their bytes are.
fn is_deterministic(collation: pg_sys::Oid) -> bool {
    // SAFETY: a lookup of a collation that exists.
    collation == pg_sys::InvalidOid || unsafe { pg_sys::get_collation_isdeterministic(collation) }
}

/// The segments that a snapshot sees of a table, mapped, oldest first.
///
/// # Errors
/// They cannot be mapped, or are not this table's.
///
/// # Safety
/// The snapshot is registered, or active.
unsafe fn open_segments(table: &Table, snapshot: pg_sys::Snapshot) -> Result<Vec<Arc<Segment>>> {
    // SAFETY: the caller says so.
    let found = unsafe { rows::list(table.relation, snapshot) };
    memory::places()?.check_room(&found, table)?;
    memory::forget_removed();
    let mut segments = Vec::with_capacity(found.len());
    for row in &found {
        pgrx::check_for_interrupts!();
        // SAFETY: as above.
        let segment = unsafe { memory::open(row, table, snapshot)? };
        table.check(&segment)?;
        segments.push(segment);
    }
    Ok(segments)
}

fn is_integer(oid: pg_sys::Oid) -> bool {
    matches!(oid, pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID)
}

/// An integer as one of another type; none if that cannot hold it.
fn to_integer(value: pg_sys::Datum, given: pg_sys::Oid, wanted: pg_sys::Oid) -> Option<pg_sys::Datum> {
    let value = match given {
        pg_sys::INT2OID => i64::from(value.value() as i16),
        pg_sys::INT4OID => i64::from(value.value() as i32),
        _ => value.value() as i64,
    };
    Some(match wanted {
        pg_sys::INT2OID => pg_sys::Datum::from(i16::try_from(value).ok()?),
        pg_sys::INT4OID => pg_sys::Datum::from(i32::try_from(value).ok()?),
        _ => pg_sys::Datum::from(value),
    })
}

/// Calls `work` with the snapshot of the statement, or a new one where there is none.
unsafe fn with_snapshot<T>(work: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
    // SAFETY: a snapshot is registered while it is used.
    unsafe {
        let is_set = pg_sys::ActiveSnapshotSet();
        let snapshot = if is_set { pg_sys::GetActiveSnapshot() } else { pg_sys::GetLatestSnapshot() };
        let snapshot = pg_sys::RegisterSnapshot(snapshot);
        let result = work(snapshot);
        pg_sys::UnregisterSnapshot(snapshot);
        result
    }
}
