//! `transship.share` and `transship.append`: the rows of a query or a file become segments.

use std::ffi::{CStr, CString};

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{PgTupleDesc, pg_guard, pg_sys};
use shared_tables::segment::ROWS_PER_BATCH;
use udf_codec::batch::BatchBuilder;
use udf_types::signature::{Argument, Signature};
use udf_types::types::Type;
use udf_types::{Error, Kind};

use super::follow::{self, Definition};
use super::followed::{self, Following};
use super::new_segment::NewSegment;
use super::rows::{self, Row};
use super::source::Source;
use super::{SHARE_AGAIN, Table, compact, dictionary, may_be_key, memory, storable};
use crate::pg::{catalog, rights, text};
use crate::query::QueryColumn;
use crate::{report, server};

/// Bytes of values after which a builder's rows are written.
const BUILDER_BYTES: usize = 8 << 20;

/// `transship.share(name text, source text, key text, dictionary text, follow boolean) RETURNS bigint`: makes a shared table of the rows of
/// a query or a file, or replaces the rows of one; how many there are. If it is to follow the query, it gets what changes later, too.
#[pg_guard]
pub unsafe extern "C-unwind" fn share(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with five arguments.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(5);
        if arguments[0].isnull || arguments[1].isnull {
            let message = "transship.share needs a name, and a query or a file";
            report::raise_error(&Error::invalid_definition(message), None);
        }
        forbid_where_nothing_is_written(c"transship.share()");
        let names = pg_sys::textToQualifiedNameList(arguments[0].value.cast_mut_ptr());
        let range = pg_sys::makeRangeVarFromNameList(names);
        let key =
            (!arguments[2].isnull).then(|| text::from_c(pg_sys::text_to_cstring(arguments[2].value.cast_mut_ptr())));
        let key = key.map_or(Vec::new(), |names| report::unwrap(server::column_names(&names)));
        let dictionary = dictionary::named(arguments[3]);
        let source = pg_sys::text_to_cstring(arguments[1].value.cast_mut_ptr());
        let follows = !arguments[4].isnull && arguments[4].value.value() != 0;
        // Before the shared table, as statements that write to the source have it.
        let definition = follows.then(|| Definition::open(source));
        let no_lock = pg_sys::NoLock as i32;
        let missing_ok = pg_sys::RVROption::RVR_MISSING_OK;
        // Others may read, and nobody append; from before the query begins, which may read the table, and so sees what was appended
        // meanwhile.
        let lock = pg_sys::ShareRowExclusiveLock as i32;
        let nothing = std::ptr::null_mut();
        let known = pg_sys::RangeVarGetRelidExtended(range, lock, missing_ok, Some(check_owner), nothing);
        let followed = definition.map(|definition| follow_by(&definition, range, known));
        let plain = followed.is_none().then(|| Source::open(source, "transship.share"));
        let of_view = followed.as_ref().map_or(Vec::new(), |(_, following)| follow::columns_of(following.view));
        let columns = plain.as_ref().map_or(of_view.as_slice(), Source::columns);
        let oid = match known {
            pg_sys::InvalidOid => create(range, columns, &key, &dictionary),
            known => known,
        };
        let relation = pg_sys::table_open(oid, lock);
        let table = Table::of(relation);
        check_columns(&table, columns);
        check_key(&table, &key);
        dictionary::check(&table, &dictionary);
        let count = match &followed {
            Some((_, following)) => follow::with_all_rows(*following, &table.name, |rows| replace_rows(&table, rows)),
            None => plain.map_or(0, |source| replace_rows(&table, source)),
        };
        let before = followed.as_ref().and_then(|(before, _)| *before).or(follow::forget(oid));
        if let Some((_, following)) = followed {
            followed::insert(Following { table: oid, ..following });
        }
        if let Some(before) = before {
            follow::drop_unused_triggers(before);
        }
        pg_sys::table_close(relation, no_lock);
        analyze(table.relation);
        pg_sys::Datum::from(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// Makes what a shared table needs to follow a query, in place of what it has: which table it has followed, and how it follows now.
unsafe fn follow_by(
    definition: &Definition,
    range: *mut pg_sys::RangeVar,
    known: pg_sys::Oid,
) -> (Option<pg_sys::Oid>, Following) {
    // SAFETY: the table is locked if there is one.
    unsafe {
        let (name, schema) = match known {
            pg_sys::InvalidOid => ((*range).relname.cast_const(), pg_sys::RangeVarGetCreationNamespace(range)),
            known => {
                // The query runs as the owner.
                rights::check_exact_owner(known);
                (pg_sys::get_rel_name(known).cast_const(), pg_sys::get_rel_namespace(known))
            }
        };
        let before = follow::forget(known);
        let view = definition.create(name, schema);
        (before, Following { table: known, view, source: definition.source })
    }
}

/// Replaces the rows of a table, which nobody else can append to, by those of a source with its columns; how many there are.
pub(super) unsafe fn replace_rows(table: &Table, mut source: Source) -> u64 {
    // SAFETY: the table is open, and locked.
    unsafe {
        let (written, count) = write(table, &mut source);
        source.close();
        // The source has read what there was.
        if rows::list_latest(table.relation).is_none() {
            raise_changed(table);
        }
        rows::delete_all(table.relation);
        rows::insert_segments(table.relation, &written);
        followed::note_shared_again(table.relation);
        report::unwrap(memory::places().and_then(|places| places.check_room(&written, table)));
        count
    }
}

/// Raises an error unless the user owns the table that is about to be locked.
#[pg_guard]
unsafe extern "C-unwind" fn check_owner(
    _name: *const pg_sys::RangeVar,
    found: pg_sys::Oid,
    _before: pg_sys::Oid,
    _argument: *mut std::ffi::c_void,
) {
    if found != pg_sys::InvalidOid {
        rights::check_relation_owner(found);
    }
}

/// Has PostgreSQL gather the statistics of a table, which nothing else does for foreign tables.
unsafe fn analyze(table: pg_sys::Oid) {
    // SAFETY: the table exists; what PostgreSQL returns is palloc'd.
    unsafe {
        let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table));
        let name = text::from_c(pg_sys::quote_qualified_identifier(schema, pg_sys::get_rel_name(table)));
        let statement = CString::new(format!("ANALYZE {name}")).unwrap_or_default();
        pg_sys::SPI_connect();
        pg_sys::SPI_execute(text::to_server(&statement), false, 0);
        pg_sys::SPI_finish();
    }
}

/// Raises the error of a transaction that would change what it does not see.
fn raise_changed(table: &Table) {
    let message = format!("could not serialize access to shared table \"{}\" due to concurrent update", table.name);
    pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE, message);
}

/// Raises an error unless the table has that key.
fn check_key(table: &Table, key: &[String]) {
    let names: Vec<&str> = table.key.iter().map(|position| table.columns[*position].name.as_str()).collect();
    if names == key {
        return;
    }
    let message = format!("shared table \"{}\" has another key", table.name);
    let hint = match names.as_slice() {
        [] => "It has none.".to_string(),
        names => format!("Its key is {}.", names.join(", ")),
    };
    report::raise_error(&Error::new(Kind::SignatureMismatch, message).with_hint(hint), None);
}

/// `transship.append(name regclass, source text) RETURNS bigint`: adds the rows of a query or a file to a shared
/// table; how many.
#[pg_guard]
pub unsafe extern "C-unwind" fn append(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with two arguments, which are not NULL, since the function is STRICT.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(2);
        forbid_where_nothing_is_written(c"transship.append()");
        let oid = pg_sys::Oid::from(arguments[0].value.value() as u32);
        rights::check_relation(oid, pg_sys::ACL_INSERT);
        let relation = pg_sys::table_open(oid, pg_sys::RowExclusiveLock as i32);
        let table = Table::of(relation);
        if followed::of_table(oid).is_some() {
            let message = format!("shared table \"{}\" follows its source", table.name);
            let hint = "Insert the rows there, or share the table's rows again without following.";
            report::raise_error(&Error::new(Kind::InvalidDefinition, message).with_hint(hint), None);
        }
        let source = pg_sys::text_to_cstring(arguments[1].value.cast_mut_ptr());
        let source = Source::open(source, "transship.append");
        check_columns(&table, source.columns());
        let count = append_rows(&table, source);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        pg_sys::Datum::from(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// Adds the rows of a source with a table's columns; how many.
pub(super) unsafe fn append_rows(table: &Table, mut source: Source) -> u64 {
    // SAFETY: the table is open, and locked for writing.
    unsafe {
        let (written, count) = write(table, &mut source);
        source.close();
        rows::insert_segments(table.relation, &written);
        let segments = check_version(table, &written);
        let left = compact::compact(table, &segments);
        if left > compact::MOST_SEGMENTS && left >= segments.len() {
            report::raise_error(&too_many(table, left), None);
        }
        count
    }
}

/// Raises an error if the table's segments, those that were just written among them, do not fit each other, or not into memory together;
/// which they are.
unsafe fn check_version(table: &Table, written: &[Row]) -> Vec<Row> {
    // SAFETY: the snapshot is registered while it is used.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let found = rows::list(table.relation, snapshot);
        report::unwrap(memory::places().and_then(|places| places.check_room(&found, table)));
        // The columns of one that was there are those of all. Without room for it, somebody else will see.
        let smallest = found.iter().filter(|row| !written.contains(row)).min_by_key(|row| row.bytes);
        if let Some(Ok(segment)) = smallest.map(|row| memory::open(row, table, snapshot)) {
            report::unwrap(table.check(&segment));
        }
        pg_sys::UnregisterSnapshot(snapshot);
        found
    }
}

/// The error of an append for which nothing could be merged.
fn too_many(table: &Table, segments: usize) -> Error {
    let message = format!("shared table \"{}\" would have {segments} segments, more than are read", table.name);
    Error::new(Kind::OutOfRange, message)
        .with_detail("They are too large to be merged, or this transaction does not see all of them.")
        .with_hint("Append again later, and more rows at a time, or share the table's rows again.")
}

/// Raises an error where a transaction may not write.
unsafe fn forbid_where_nothing_is_written(function: &'static CStr) {
    // SAFETY: the name is static.
    unsafe {
        pg_sys::PreventCommandIfReadOnly(function.as_ptr());
        pg_sys::PreventCommandIfParallelMode(function.as_ptr());
        pg_sys::PreventCommandDuringRecovery(function.as_ptr());
    }
}

/// Creates the foreign table, as its user would.
unsafe fn create(
    range: *mut pg_sys::RangeVar,
    columns: &[QueryColumn],
    key: &[String],
    dictionary: &[String],
) -> pg_sys::Oid {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    for column in columns {
        report::unwrap(storable(&column.name, column.declared));
    }
    let positions = report::unwrap(super::positions_of("key", key, &names));
    for position in &positions {
        let column = &columns[*position];
        report::unwrap(may_be_key(&column.name, column.declared, column.collation));
    }
    let known: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.declared)).collect();
    report::unwrap(dictionary::positions(dictionary, &known, &positions));
    // SAFETY: lookups in the catalogs; what PostgreSQL returns is palloc'd.
    unsafe {
        let schema = pg_sys::RangeVarGetCreationNamespace(range);
        if pg_sys::isTempNamespace(schema) {
            report::raise_error(&super::temporary(), None);
        }
        let schema = pg_sys::get_namespace_name(schema);
        let name = pg_sys::quote_qualified_identifier(schema, (*range).relname);
        let quoted = |name: &str| {
            let name = CString::new(name).unwrap_or_default();
            text::from_c(pg_sys::quote_identifier(text::to_server(&name)))
        };
        let declared = columns.iter().map(|column| {
            let flags = (pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY) as u16;
            let ty = text::from_c(pg_sys::format_type_extended(column.declared, column.typmod, flags));
            let collation = match column.collation {
                pg_sys::InvalidOid => String::new(),
                collation => {
                    let (schema, name) = catalog::collation_name(collation);
                    format!(" COLLATE {}.{}", quoted(&schema), quoted(&name))
                }
            };
            format!("{} {ty}{collation}", quoted(&column.name))
        });
        let declared: Vec<String> = declared.collect();
        let named = [(server::TABLE_KEY, key), (server::TABLE_DICTIONARY, dictionary)];
        let options = named.into_iter().filter(|(_, names)| !names.is_empty()).map(|(option, names)| {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            let list = CString::new(names.join(", ")).unwrap_or_default();
            let literal = pg_sys::quote_literal_cstr(text::to_server(&list));
            format!("{option} {}", text::from_c(literal))
        });
        let options = match options.collect::<Vec<_>>().join(", ") {
            options if options.is_empty() => options,
            options => format!(" OPTIONS ({options})"),
        };
        let statement = format!(
            "CREATE FOREIGN TABLE {} ({}) SERVER transship_tables{options}",
            text::from_c(name),
            declared.join(", ")
        );
        let statement = CString::new(statement).unwrap_or_default();
        pg_sys::SPI_connect();
        pg_sys::SPI_execute(text::to_server(&statement), false, 0);
        pg_sys::SPI_finish();
        let found = pg_sys::get_relname_relid((*range).relname, pg_sys::get_namespace_oid(schema, false));
        // Nothing is left of a table that was dropped, unless nobody was told of that.
        rows::delete_all(found);
        found
    }
}

/// Raises an error unless the source's columns are the table's.
pub(super) fn check_columns(table: &Table, columns: &[QueryColumn]) {
    let message = format!("the rows do not match the columns of shared table \"{}\"", table.name);
    let error = |detail: String| {
        report::raise_error(&Error::new(Kind::SignatureMismatch, message.clone()).with_detail(detail), None)
    };
    if columns.len() != table.columns.len() {
        error(format!("The rows have {} columns, the table {}.", columns.len(), table.columns.len()))
    }
    for (column, own) in columns.iter().zip(&table.columns) {
        let is_same = column.declared == own.declared && (own.typmod < 0 || column.typmod == own.typmod);
        if !is_same || column.name != own.name {
            // SAFETY: lookups of types that exist.
            let type_of = |ty, typmod| unsafe { text::from_c(pg_sys::format_type_with_typemod(ty, typmod)) };
            let (found, wanted) = (type_of(column.declared, column.typmod), type_of(own.declared, own.typmod));
            error(format!("Column \"{}\" is {found}, the table has \"{}\" {wanted}.", column.name, own.name))
        }
    }
}

/// Writes a source's rows as segments that are not yet the table's, and how many rows there are.
unsafe fn write(table: &Table, source: &mut Source) -> (Vec<Row>, u64) {
    let arguments =
        source.columns().iter().map(|column| Argument { name: column.name.clone(), ty: column.sql_type.ty.clone() });
    let mut builder = BatchBuilder::new(&Signature::scalar("", arguments.collect(), Type::Bool));
    let mut writing = Writing { table, segment: None, written: Vec::new() };
    let flush_if_full = |builder: &mut BatchBuilder, writing: &mut Writing| {
        if builder.rows() >= ROWS_PER_BATCH || builder.bytes() >= BUILDER_BYTES {
            writing.flush(builder);
        }
    };
    // SAFETY: the builder was made for the columns.
    while unsafe { source.fetch(&mut builder, |builder| flush_if_full(builder, &mut writing)) } > 0 {}
    writing.flush(&mut builder);
    let written = writing.finish();
    let total = written.iter().map(|row| row.rows).sum();
    (written, total)
}

/// Segments that are being written, one after the other.
struct Writing<'a> {
    table: &'a Table,
    segment: Option<NewSegment>,
    written: Vec<Row>,
}

impl Writing<'_> {
    fn flush(&mut self, builder: &mut BatchBuilder) {
        let batch = builder.finish_batch().columns;
        if batch.num_rows() == 0 {
            return;
        }
        let segment = self.segment.get_or_insert_with(|| NewSegment::new(self.table, rows::new_id()));
        segment.add(&batch);
        if segment.is_full() {
            self.written.extend(self.segment.take().map(NewSegment::finish));
        }
    }

    fn finish(mut self) -> Vec<Row> {
        self.written.extend(self.segment.take().map(NewSegment::finish));
        self.written
    }
}

/// `transship.forget_table(relation oid) RETURNS void`: deletes what a table had that was dropped. The extension's trigger calls it.
#[pg_guard]
pub unsafe extern "C-unwind" fn forget(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one argument, which is not NULL, since the function is STRICT.
    let oid = unsafe { pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32) };
    rows::delete_all(oid);
    // SAFETY: the table is gone.
    unsafe {
        if let Some(source) = follow::forget(oid) {
            follow::drop_unused_triggers(source);
        }
    }
    pg_sys::Datum::from(0usize)
}

/// `transship.check_dropped_column(relation oid, number int, is_named boolean) RETURNS void`: a shared table that has rows with the column
/// that was just dropped may not lose it, since another of that name would show its values. If it was dropped with something else, such
/// rows go. The extension's trigger calls it.
#[pg_guard]
pub unsafe extern "C-unwind" fn check_dropped_column(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with three arguments, which are not NULL, since the function is STRICT. The table was
    // just altered, so it is locked; the snapshot is registered while it is used.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(3);
        let (oid, number) = (pg_sys::Oid::from(arguments[0].value.value() as u32), arguments[1].value.value() as i32);
        let is_named = arguments[2].value.value() != 0;
        let nothing = pg_sys::Datum::from(0usize);
        if server::table_key(oid).is_none() {
            return nothing;
        }
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let found = rows::list(oid, snapshot);
        if let Some(smallest) = found.iter().min_by_key(|row| row.bytes) {
            let name = text::from_c(pg_sys::get_rel_name(oid));
            // Whatever columns and key it has now.
            let table = Table { relation: oid, name, columns: Vec::new(), key: vec![0] };
            let opened = memory::open(smallest, &table, snapshot);
            let relation = pg_sys::table_open(oid, pg_sys::NoLock as i32);
            let columns = PgTupleDesc::from_pg_copy((*relation).rd_att);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            // One that was added after the rows were shared lies behind theirs.
            let is_before =
                |column: &&pg_sys::FormData_pg_attribute| !column.attisdropped && i32::from(column.attnum) < number;
            let before = columns.iter().filter(is_before).count();
            let is_in_rows = opened.as_ref().map_or(true, |segment| before < segment.schema().fields().len());
            if is_named {
                report::unwrap(opened);
            }
            if is_named && is_in_rows {
                let message = format!("cannot drop a column of shared table \"{}\", which has rows", table.name);
                let error = Error::new(Kind::InvalidDefinition, message);
                report::raise_error(&error.with_hint(SHARE_AGAIN), None);
            }
            if is_in_rows {
                rows::delete_all(oid);
                let message = format!("shared table \"{}\" has lost a column, and its rows", table.name);
                report::warn(&Error::new(Kind::InvalidDefinition, message));
            }
        }
        pg_sys::UnregisterSnapshot(snapshot);
        nothing
    }
}
