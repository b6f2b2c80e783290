//! The child's rows, kept until their results are there: of each only the columns that the node hands on.

use pgrx::pg_sys;

use crate::pg::raw;

/// A column of the child that is kept.
#[derive(Debug)]
pub struct KeptColumn {
    /// Its place in the child's row.
    position: usize,
    is_by_value: bool,
    length: i32,
}

impl KeptColumn {
    /// The child's column at `position`, as its descriptor describes it.
    pub fn new(position: usize, attribute: &pg_sys::FormData_pg_attribute) -> KeptColumn {
        KeptColumn { position, is_by_value: attribute.attbyval, length: i32::from(attribute.attlen) }
    }

    /// Its place in the child's row.
    pub fn position(&self) -> usize {
        self.position
    }
}

/// The rows of one batch.
#[derive(Debug, Default)]
pub struct KeptRows {
    /// How many there are, also if no column is kept.
    pub count: usize,
    /// Row by row.
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
}

impl KeptRows {
    /// Keeps a row; gives its size in bytes. Values that do not fit into a Datum are copied into the current memory context.
    ///
    /// # Safety
    /// As for all that calls [`raw`]. The columns are those of the slot's row, which is deformed up to the last of them.
    pub unsafe fn push(&mut self, columns: &[KeptColumn], slot: *mut pg_sys::TupleTableSlot) -> usize {
        let mut bytes = 0;
        self.count += 1;
        for column in columns {
            // SAFETY: the caller says that the slot has them.
            unsafe {
                let is_null = *(*slot).tts_isnull.add(column.position);
                let mut value = *(*slot).tts_values.add(column.position);
                bytes += size_of::<pg_sys::Datum>();
                if !is_null && !column.is_by_value {
                    bytes += raw::datum_get_size(value, false, column.length);
                    value = raw::datum_copy(value, false, column.length);
                }
                self.values.push(value);
                self.nulls.push(is_null);
            }
        }
        bytes
    }

    /// Puts a row where a slot has its values.
    ///
    /// # Safety
    /// There are more than `row` rows, of these columns; the slot's arrays have a place for each.
    pub unsafe fn load(&self, columns: &[KeptColumn], row: usize, values: *mut pg_sys::Datum, nulls: *mut bool) {
        let first = row * columns.len();
        for (i, column) in columns.iter().enumerate() {
            // SAFETY: the caller says so.
            unsafe {
                *values.add(column.position) = *self.values.get_unchecked(first + i);
                *nulls.add(column.position) = *self.nulls.get_unchecked(first + i);
            }
        }
    }
}
