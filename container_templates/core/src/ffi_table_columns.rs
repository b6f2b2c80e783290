//! The C interface's rows of shared tables as plain columns. The rules are those of `ffi.rs`.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::{Arc, OnceLock};

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use arrow_buffer::Buffer;
use shared_tables::dictionary::decoded;

use crate::ffi::{Failure, OK, borrowed, entry, give};
use crate::ffi_columns::copied;
use crate::lent_column::{LentColumn, PlainColumn, pointer};
use crate::open_table::{OpenTable, TableColumn, failed};
use crate::plain::{from_plain, to_plain};

/// `transship_field`.
#[repr(C)]
pub struct Field {
    name: *const c_char,
    ty: *const c_char,
    format: c_char,
    key: i32,
}

/// `transship_rows_info`.
#[repr(C)]
pub struct RowsInfo {
    rows: usize,
    validity: *const u8,
    positions: *const i32,
}

/// `transship_rows`.
pub struct Rows {
    fields: Arc<[TableColumn]>,
    columns: Vec<ArrayRef>,
    count: usize,
    validity: Option<Buffer>,
    positions: Option<Int32Array>,
    /// The columns that the language reads.
    lent: Vec<OnceLock<LentColumn>>,
}

impl OpenTable {
    /// Keys of a language in the types of the key's columns.
    fn keys_of(&self, columns: Vec<ArrayRef>) -> std::result::Result<Vec<ArrayRef>, Failure> {
        let key = self.table.key();
        if key.len() != columns.len() {
            // The look-up refuses them, in its words.
            return Ok(columns);
        }
        let in_type = |(position, column): (&usize, ArrayRef)| {
            let field = &self.columns()[*position];
            from_plain(field.ty()?, &column).map_err(|misfit| {
                let (table, name) = (self.table.name(), self.table.schema().field(*position).name());
                let (ty, shown) = (field.type_name.to_string_lossy(), misfit.shown);
                Failure::Failed(format!(
                    "the keys do not fit column \"{name}\" of table \"{table}\", which is {ty}: {shown}"
                ))
            })
        };
        key.iter().zip(columns).map(in_type).collect()
    }

    fn rows_of(&self, columns: Vec<ArrayRef>, count: usize) -> Rows {
        let lent = columns.iter().map(|_| OnceLock::new()).collect();
        Rows { fields: self.columns().clone(), columns, count, validity: None, positions: None, lent }
    }

    fn rows_of_batch(&self, batch: &RecordBatch) -> Rows {
        self.rows_of(batch.columns().to_vec(), batch.num_rows())
    }
}

impl Rows {
    fn column(&self, number: usize) -> std::result::Result<&LentColumn, Failure> {
        let missing = Failure::Invalid("there is no column of this number");
        let Some(lent) = self.lent.get(number) else { return Err(missing) };
        if let Some(column) = lent.get() {
            return Ok(column);
        }
        let values = decoded(&self.columns[number]).map_err(failed)?;
        let column = LentColumn::new(&to_plain(self.fields[number].ty()?, &values)).map_err(Failure::Invalid)?;
        // Another thread may have been faster.
        Ok(lent.get_or_init(|| column))
    }
}

/// Gives rows.
///
/// # Safety
/// `to` is memory for the result, or NULL.
unsafe fn give_rows(rows: Rows, to: *mut *mut Rows) -> std::result::Result<i32, Failure> {
    let rows = Box::into_raw(Box::new(rows));
    // SAFETY: the caller of this function vouches for it. Rows that nobody takes are freed.
    unsafe { give(to, rows, "the memory for the result is NULL").inspect_err(|_| drop(Box::from_raw(rows)))? };
    Ok(OK)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_fields(table: *const OpenTable) -> usize {
    // SAFETY: the header asks for a table that is open, or NULL.
    unsafe { table.as_ref() }.map_or(0, |table| table.table.schema().fields().len())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_field(table: *const OpenTable, number: usize, field: *mut Field) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a table that is open, or NULL.
        let table = unsafe { borrowed(table, "table is NULL")? };
        let found = table.columns().get(number).ok_or(Failure::Invalid("there is no column of this number"))?;
        found.ty()?;
        let (name, ty, format) = (found.name.as_ptr(), found.type_name.as_ptr(), found.format as c_char);
        // SAFETY: the header asks for memory for the result.
        unsafe { give(field, Field { name, ty, format, key: found.key }, "field is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_lookup_columns(
    table: *const OpenTable,
    rows: usize,
    keys: *const PlainColumn,
    count: usize,
    all: i32,
    found: *mut *mut Rows,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, for a table that is open, or NULL, and for so many columns of so many keys.
        let (table, keys) = unsafe {
            give(found, std::ptr::null_mut(), "found is NULL")?;
            (borrowed(table, "table is NULL")?, copied(rows, keys, count).map_err(Failure::Failed)?)
        };
        let keys = table.keys_of(keys)?;
        let its_rows = if all == 0 {
            let (_, columns, nulls) = table.table.lookup(&keys).map_err(failed)?.into_parts();
            let validity = nulls.map(|nulls| nulls.inner().sliced());
            Rows { validity, ..table.rows_of(columns, rows) }
        } else {
            let (positions, batch) = table.table.matches(&keys).map_err(failed)?;
            Rows { positions: Some(positions), ..table.rows_of_batch(&batch) }
        };
        // SAFETY: as above.
        unsafe { give_rows(its_rows, found) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_batch_columns(
    table: *const OpenTable,
    number: usize,
    rows: *mut *mut Rows,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, and for a table that is open, or NULL.
        let table = unsafe {
            give(rows, std::ptr::null_mut(), "rows is NULL")?;
            borrowed(table, "table is NULL")?
        };
        let batch = table.table.batch(number).ok_or(Failure::Invalid("there is no batch of this number"))?;
        // SAFETY: as above.
        unsafe { give_rows(table.rows_of_batch(&batch), rows) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_rows_info_of(rows: *const Rows, info: *mut RowsInfo) -> i32 {
    entry(|| {
        // SAFETY: the header asks for rows that are not freed, or NULL.
        let rows = unsafe { borrowed(rows, "rows is NULL")? };
        let positions = rows.positions.as_ref().map_or(std::ptr::null(), |positions| positions.values().as_ptr());
        let told = RowsInfo { rows: rows.count, validity: pointer(rows.validity.as_ref()), positions };
        // SAFETY: the header asks for memory for the result.
        unsafe { give(info, told, "info is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_rows_column(rows: *const Rows, number: usize, column: *mut PlainColumn) -> i32 {
    entry(|| {
        // SAFETY: the header asks for rows that are not freed, or NULL.
        let rows = unsafe { borrowed(rows, "rows is NULL")? };
        // SAFETY: the header asks for memory for the result.
        unsafe { give(column, rows.column(number)?.pointers(), "column is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_rows_free(rows: *mut Rows) {
    if !rows.is_null() {
        entry(|| {
            // SAFETY: the header asks for rows that this library gave, and that are freed once.
            drop(unsafe { Box::from_raw(rows) });
            Ok(OK)
        });
    }
}
