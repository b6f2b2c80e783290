//! The C interface's plain columns: pointers to values, for languages without an Arrow library. The rules are those of `ffi.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, PrimitiveArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use crate::error::CallError;
use crate::ffi::{Failure, Lent, OK, PulledWork, UNWANTED, borrowed, ended, entry, give, take_batch};
use crate::lent_column::{LentColumn, PlainColumn};
use crate::work::Reply;

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_columns(work: *const PulledWork) -> usize {
    // SAFETY: the header asks for work that has not ended, or NULL.
    let work = unsafe { work.as_ref() };
    work.map_or(0, |work| match work.lent.lock() {
        Ok(lent) => lent.batch.as_ref().unwrap_or(&work.work.batch).num_columns(),
        Err(_) => 0,
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_column(
    work: *const PulledWork,
    number: usize,
    column: *mut PlainColumn,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL.
        let work = unsafe { borrowed(work, "work is NULL")? };
        let mut lent = work.lent.lock().map_err(|_| Failure::Failed("an earlier call failed".to_string()))?;
        let Lent { batch, columns: lent } = &mut *lent;
        let batch = batch.as_ref().unwrap_or(&work.work.batch);
        if number >= batch.num_columns() {
            return Err(Failure::Invalid("there is no column of this number"));
        }
        let lending = LentColumn::new(batch.column(number)).map_err(Failure::Invalid)?;
        // SAFETY: the header asks for memory for the result. What it points to stays where it is while the list of columns grows.
        unsafe { give(column, lending.pointers(), "column is NULL")? };
        lent.push(lending);
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_next_columns(
    work: *const PulledWork,
    timeout_ms: i64,
    rows: *mut usize,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, and for memory for the result.
        let work = unsafe {
            give(rows, 0, "rows is NULL")?;
            borrowed(work, "work is NULL")?
        };
        let (status, batch) = take_batch(work, timeout_ms)?;
        let mut lent = work.lent.lock().map_err(|_| Failure::Failed("an earlier call failed".to_string()))?;
        if let Some(batch) = batch {
            // SAFETY: as above.
            unsafe { give(rows, batch.num_rows(), "rows is NULL")? };
            *lent = Lent { batch: Some(batch), columns: Vec::new() };
        }
        Ok(status)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_part_columns(
    work: *mut PulledWork,
    rows: usize,
    columns: *const PlainColumn,
    count: usize,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, and for so many columns of so many rows.
        let (work, columns) = unsafe { (borrowed(work, "work is NULL")?, copied(rows, columns, count)) };
        Ok(if work.work.give_part(columns.map_err(Failure::Failed)?) { OK } else { UNWANTED })
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_answer_columns(
    work: *mut PulledWork,
    rows: usize,
    columns: *const PlainColumn,
    count: usize,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, which this call ends, and for so many columns of so many rows. The
        // work is taken first: it ends with an error even if the columns are such that copying them panics.
        let (work, columns) = unsafe { (ended(work)?, copied(rows, columns, count)) };
        match columns {
            Ok(columns) => {
                work.work.end(Reply::Last(columns));
                Ok(OK)
            }
            Err(fact) => {
                work.work.end(Reply::Failed(CallError::bad_result(format!("Its reply cannot be read: {fact}."))));
                Err(Failure::Failed(fact))
            }
        }
    })
}

/// Copies columns of a language.
///
/// # Safety
/// There are so many columns, and each has so many rows, as the header says.
pub(crate) unsafe fn copied(rows: usize, columns: *const PlainColumn, count: usize) -> Result<Vec<ArrayRef>, String> {
    let columns = match (columns.is_null(), count) {
        (_, 0) => &[][..],
        (true, _) => return Err("columns is NULL".to_string()),
        // SAFETY: the caller vouches for so many columns.
        (false, _) => unsafe { std::slice::from_raw_parts(columns, count) },
    };
    // SAFETY: the caller vouches for each column.
    columns.iter().map(|column| unsafe { copied_column(rows, column) }).collect()
}

/// Copies so many values, which may lie at any address.
///
/// # Safety
/// `from` is NULL, or leads to so many values.
unsafe fn values<T: Copy + Default>(from: *const c_void, count: usize) -> Result<Vec<T>, String> {
    let mut values = vec![T::default(); count];
    if count == 0 {
        return Ok(values);
    }
    if from.is_null() {
        return Err("a column has no values".to_string());
    }
    // SAFETY: the caller vouches for so many values to read, and the vector has room for them.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), values.as_mut_ptr().cast::<u8>(), count * size_of::<T>())
    };
    Ok(values)
}

/// Copies a column of a language.
///
/// # Safety
/// It has so many rows, as the header says.
unsafe fn copied_column(rows: usize, column: &PlainColumn) -> Result<ArrayRef, String> {
    let bits = |from: *const c_void| {
        // SAFETY: the caller vouches for the bits of so many rows.
        let bytes = unsafe { values::<u8>(from, rows.div_ceil(8)) };
        bytes.map(|bytes| BooleanBuffer::new(Buffer::from_vec(bytes), 0, rows))
    };
    let nulls = match column.validity.is_null() {
        true => None,
        false => Some(NullBuffer::new(bits(column.validity.cast())?)),
    };
    Ok(match column.format as u8 {
        b'b' => Arc::new(BooleanArray::new(bits(column.values)?, nulls)),
        b'l' => {
            // SAFETY: the caller vouches for a value per row.
            let values = unsafe { values::<i64>(column.values, rows)? };
            Arc::new(PrimitiveArray::<Int64Type>::new(ScalarBuffer::from(values), nulls))
        }
        b'g' => {
            // SAFETY: the caller vouches for a value per row.
            let values = unsafe { values::<f64>(column.values, rows)? };
            Arc::new(PrimitiveArray::<Float64Type>::new(ScalarBuffer::from(values), nulls))
        }
        b'z' => {
            let offsets = match (rows, column.values.is_null()) {
                (0, true) => vec![0],
                // SAFETY: the caller vouches for one more offset than rows.
                _ => unsafe { values::<i32>(column.values, rows + 1)? },
            };
            let first = offsets[0];
            if first < 0 || !offsets.is_sorted() {
                return Err("the offsets of a column do not ascend".to_string());
            }
            let offsets: Vec<i32> = offsets.iter().map(|offset| offset - first).collect();
            let size = offsets.last().copied().unwrap_or(0) as usize;
            let start = if size == 0 { std::ptr::null() } else { column.bytes.wrapping_add(first as usize) };
            if size > 0 && column.bytes.is_null() {
                return Err("a column has no bytes".to_string());
            }
            // SAFETY: the caller vouches for the bytes up to the last offset, and none is read from before the first.
            let bytes = unsafe { values::<u8>(start.cast(), size)? };
            Arc::new(BinaryArray::new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(bytes), nulls))
        }
        _ => return Err("a column is of no known format".to_string()),
    })
}
