//! The C interface's shared tables. The rules are those of `ffi.rs`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow_array::{Array, StructArray};
use udf_types::error::Result;

use crate::ffi::{Failure, OK, PulledWork, borrowed, columns, entry, give, text};
use crate::open_table::{OpenTable, failed};
use crate::tables::{Given, Offer, Table, offers, serve_on};

/// Gives a table that was found.
///
/// # Safety
/// `to` is memory for the result, or NULL.
unsafe fn give_table(found: Result<Arc<Table>>, to: *mut *mut OpenTable) -> std::result::Result<i32, Failure> {
    let table = Box::into_raw(Box::new(OpenTable::new(found.map_err(failed)?)));
    // SAFETY: the caller of this function vouches for it. A table that nobody takes is closed.
    unsafe { give(to, table, "table is NULL").inspect_err(|_| drop(Box::from_raw(table)))? };
    Ok(OK)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_table(
    work: *const PulledWork,
    name: *const c_char,
    table: *mut *mut OpenTable,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, for work that has not ended, or NULL, and for a text that ends with a zero.
        unsafe {
            give(table, std::ptr::null_mut(), "table is NULL")?;
            let (work, name) = (borrowed(work, "work is NULL")?, text(name, "name is NULL")?);
            give_table(work.work.tables.table(&name), table)
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_has_tables(work: *const PulledWork) -> i32 {
    // SAFETY: the header asks for work that has not ended, or NULL.
    unsafe { work.as_ref() }.map_or(0, |work| i32::from(!matches!(work.work.tables, Given::Nothing)))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_tables_serve(listener: c_int) -> i32 {
    entry(|| {
        if listener < 0 {
            return Err(Failure::Invalid("listener is not a descriptor"));
        }
        // SAFETY: the header asks for a descriptor that stays open meanwhile.
        let listener = unsafe { BorrowedFd::borrow_raw(listener) };
        serve_on(listener).map_err(failed)?;
        Ok(OK)
    })
}

/// `transship_offer`.
pub struct OpenOffer {
    name: String,
    offer: Arc<Offer>,
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_offer_open(name: *const c_char, offer: *mut *mut OpenOffer) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, and for a text that ends with a zero.
        let name = unsafe {
            give(offer, std::ptr::null_mut(), "offer is NULL")?;
            text(name, "name is NULL")?.into_owned()
        };
        let found =
            offers().find(&name).ok_or_else(|| Failure::Failed("there is no offer of this name".to_string()))?;
        let opened = Box::into_raw(Box::new(OpenOffer { name, offer: found }));
        // SAFETY: as above: the memory is not NULL.
        unsafe { give(offer, opened, "offer is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_offer_is_there(offer: *const OpenOffer) -> i32 {
    // SAFETY: the header asks for an offer that is open, or NULL.
    let Some(opened) = (unsafe { offer.as_ref() }) else { return 0 };
    let is_it = |found: Arc<Offer>| Arc::ptr_eq(&found, &opened.offer);
    let is_there = || offers().find(&opened.name).is_some_and(is_it);
    i32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(is_there)).unwrap_or(false))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_offer_table(
    offer: *const OpenOffer,
    name: *const c_char,
    table: *mut *mut OpenTable,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, for an offer that is open, or NULL, and for a text that ends with a zero.
        unsafe {
            give(table, std::ptr::null_mut(), "table is NULL")?;
            let (opened, name) = (borrowed(offer, "offer is NULL")?, text(name, "name is NULL")?);
            give_table(Given::Offer(opened.offer.clone()).table(&name), table)
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_offer_close(offer: *mut OpenOffer) {
    if !offer.is_null() {
        entry(|| {
            // SAFETY: the header asks for an offer that is open, and that is closed once.
            drop(unsafe { Box::from_raw(offer) });
            Ok(OK)
        });
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_rows(table: *const OpenTable) -> i64 {
    // SAFETY: the header asks for a table that is open, or NULL.
    unsafe { table.as_ref() }.map_or(0, |table| table.table.rows() as i64)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_batches(table: *const OpenTable) -> usize {
    // SAFETY: the header asks for a table that is open, or NULL.
    unsafe { table.as_ref() }.map_or(0, |table| table.table.batch_count())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_schema(table: *const OpenTable, schema: *mut FFI_ArrowSchema) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, and for a table that is open, or NULL.
        let table = unsafe {
            give(schema, FFI_ArrowSchema::empty(), "schema is NULL")?;
            borrowed(table, "table is NULL")?
        };
        let its_schema = FFI_ArrowSchema::try_from(table.table.batch_schema().as_ref()).map_err(failed)?;
        // SAFETY: as above.
        unsafe { give(schema, its_schema, "schema is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_batch(
    table: *const OpenTable,
    number: usize,
    rows: *mut FFI_ArrowArray,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for memory for the result, and for a table that is open, or NULL.
        let table = unsafe {
            give(rows, FFI_ArrowArray::empty(), "rows is NULL")?;
            borrowed(table, "table is NULL")?
        };
        let batch = table.table.batch(number).ok_or(Failure::Invalid("there is no batch of this number"))?;
        // SAFETY: as above.
        unsafe { give_array(&StructArray::from(batch), rows)? };
        Ok(OK)
    })
}

/// Gives an array.
///
/// # Safety
/// `to` is memory for the result, or NULL.
unsafe fn give_array(array: &dyn Array, to: *mut FFI_ArrowArray) -> std::result::Result<(), Failure> {
    let (array, _) = to_ffi(&array.to_data()).map_err(failed)?;
    // SAFETY: the caller of this function vouches for it.
    unsafe { give(to, array, "the memory for the result is NULL") }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_lookup(
    table: *const OpenTable,
    keys: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
    positions: *mut FFI_ArrowArray,
    rows: *mut FFI_ArrowArray,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for keys that are handed over, for memory for the results, and for a table that is open, or NULL. The keys
        // are taken first, so that they are released whatever else is wrong.
        let (keys, table) = unsafe {
            let keys = columns(keys, schema);
            if !positions.is_null() {
                give(positions, FFI_ArrowArray::empty(), "positions is NULL")?;
            }
            give(rows, FFI_ArrowArray::empty(), "rows is NULL")?;
            (keys, borrowed(table, "table is NULL")?)
        };
        let keys = keys.map_err(Failure::Failed)?;
        if positions.is_null() {
            let found = table.table.lookup(&keys).map_err(failed)?;
            // SAFETY: as above.
            unsafe { give_array(&found, rows)? };
            return Ok(OK);
        }
        let (numbers, found) = table.table.matches(&keys).map_err(failed)?;
        // SAFETY: as above.
        unsafe {
            give_array(&StructArray::from(found), rows)?;
            give_array(&numbers, positions)?;
        }
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_table_close(table: *mut OpenTable) {
    if !table.is_null() {
        entry(|| {
            // SAFETY: the header asks for a table that is open, and that is closed once.
            drop(unsafe { Box::from_raw(table) });
            Ok(OK)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::ffi::transship_message;
    use crate::tables::tests::offering::{Offering, numbers};

    #[test]
    fn a_server_without_the_library_takes_offers_on_a_socket_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tables.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // SAFETY: the listener is not closed before the process ends.
        std::thread::spawn(move || unsafe {
            transship_tables_serve(std::mem::ManuallyDrop::new(listener).as_raw_fd())
        });
        let client = Offering::connect(&path);
        let offer = "fedcba98765432100123456789abcdef";
        client.offer(offer, "numbers", &[numbers(&[(1, "one")])]);
        let find = |name: &str| {
            let (name, mut found) = (CString::new(name).unwrap(), std::ptr::null_mut());
            // SAFETY: the text ends with a zero, and there is memory for the offer.
            let status = unsafe { transship_offer_open(name.as_ptr(), &mut found) };
            (status, found)
        };
        let (status, found) = find("x");
        assert!(status < 0 && found.is_null());
        let (status, found) = find(offer);
        assert_eq!(status, OK);
        let open = |name: &str| {
            let (name, mut table) = (CString::new(name).unwrap(), std::ptr::null_mut());
            // SAFETY: the offer is open until it is closed below, the text ends with a zero, and there is memory for the table.
            let status = unsafe { transship_offer_table(found, name.as_ptr(), &mut table) };
            (status, table)
        };
        let check = || {
            let (status, table) = open("numbers");
            assert_eq!(status, OK);
            // SAFETY: the table is open until it is closed here.
            unsafe {
                assert_eq!((transship_table_rows(table), transship_table_batches(table)), (1, 1));
                transship_table_close(table);
            }
        };
        check();
        let (status, table) = open("letters");
        assert!(status < 0 && table.is_null());
        // SAFETY: the message lives until the next call.
        let message = unsafe { std::ffi::CStr::from_ptr(transship_message()) }.to_string_lossy();
        assert!(message.starts_with("no shared table \"letters\""), "{message}");
        // SAFETY: the offer is open.
        let is_there = || unsafe { transship_offer_is_there(found) };
        assert_eq!(is_there(), 1);
        drop(client);
        while find(offer).0 == OK {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // A call that has opened the offer before has its tables, and no other of the same name is mistaken for it.
        check();
        let again = Offering::connect(&path);
        again.offer(offer, "numbers", &[numbers(&[(1, "one"), (2, "two")])]);
        assert_eq!(is_there(), 0);
        check();
        // SAFETY: the offer is open, and closed once.
        unsafe { transship_offer_close(found) };
    }
}
