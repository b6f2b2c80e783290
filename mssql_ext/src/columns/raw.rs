//! The host's buffers: for each column a pointer to its values and one to its indicators, valid during one call.
//!
//! Fixed-size values lie one after the other; the others are packed without padding, where a NULL has no bytes, so that a
//! row's place is the sum of the lengths before it. Here the pointers become slices of exactly the bytes that are there;
//! nothing behind this file knows a pointer.

use std::ops::Range;

use arrow_buffer::NullBuffer;
use udf_types::Result;

use super::ServerType;
use crate::abi::{SQL_NO_NULLS, SQL_NULL_DATA};
use crate::guard::{broken, bytes};

/// A column of one call.
#[derive(Debug, Clone, Copy)]
pub struct RawColumn<'a> {
    /// Its type.
    pub sql: ServerType,
    data: &'a [u8],
    /// Four bytes per row: a length, or -1 for NULL. None if no row is NULL.
    indicators: Option<&'a [u8]>,
}

impl<'a> RawColumn<'a> {
    /// The column that the host describes.
    ///
    /// # Safety
    /// Unless they are NULL, `indicators` points to `rows` int32 and `data` to the values that they and `sql` tell of,
    /// and neither changes for as long as `'a`.
    pub unsafe fn new(
        sql: ServerType,
        nullable: i16,
        rows: usize,
        data: *const u8,
        indicators: *const i32,
    ) -> Result<RawColumn<'a>> {
        let indicator_bytes = rows.checked_mul(4).ok_or_else(|| broken("the number of rows is impossible"))?;
        // SAFETY: the caller says so.
        let found: &[u8] = unsafe { bytes(indicators.cast(), indicator_bytes) };
        let (data_bytes, indicators) = match sql.element_bytes() {
            Some(element) => {
                let indicators = (!indicators.is_null() && nullable != SQL_NO_NULLS).then_some(found);
                (rows.checked_mul(element), indicators)
            }
            None => {
                let mut total = Some(0usize);
                for (row, indicator) in found.as_chunks::<4>().0.iter().enumerate() {
                    let length = i32::from_le_bytes(*indicator);
                    match usize::try_from(length) {
                        Ok(length) => total = total.and_then(|total| total.checked_add(length)),
                        Err(_) if length == SQL_NULL_DATA => {}
                        Err(_) => return Err(broken(&format!("row {} has a length of {length} bytes", row + 1))),
                    }
                }
                // Without lengths there are no values.
                (total, (!indicators.is_null() || rows > 0).then_some(found))
            }
        };
        let data_bytes = data_bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let data_bytes = data_bytes.ok_or_else(|| broken("the size of a column is impossible"))?;
        // SAFETY: the caller says so.
        let data = unsafe { bytes(data, data_bytes) };
        let column = RawColumn { sql, data, indicators };
        if data.len() < data_bytes && (0..rows).any(|row| !column.is_null(row)) {
            return Err(broken("a column has rows and no data"));
        }
        Ok(column)
    }

    /// A column of one value that was kept.
    pub fn of_value(sql: ServerType, value: Option<&'a [u8]>, indicator: &'a [u8; 4]) -> RawColumn<'a> {
        RawColumn { sql, data: value.unwrap_or_default(), indicators: Some(indicator) }
    }

    /// Whether a row is NULL.
    pub fn is_null(&self, row: usize) -> bool {
        self.indicators.is_some_and(|_| self.length(row).is_none())
    }

    /// The length of a row's value, as far as its indicator tells; none if it is NULL. Of fixed-size types the number
    /// itself says nothing.
    pub fn length(&self, row: usize) -> Option<usize> {
        match self.indicators {
            None => Some(0),
            // A column of variable length without indicators is all NULL.
            Some(indicators) => {
                let indicator = indicators.get(row * 4..row * 4 + 4)?;
                usize::try_from(i32::from_le_bytes(*indicator.first_chunk()?)).ok()
            }
        }
    }

    /// The bytes of fixed-size values.
    pub fn fixed(&self, rows: &Range<usize>) -> &'a [u8] {
        let element = self.sql.element_bytes().unwrap_or(0);
        // A column that is all NULL may have no data.
        self.data.get(rows.start * element..rows.end * element).unwrap_or_default()
    }

    /// `length` bytes of packed values.
    pub fn packed(&self, start: usize, length: usize) -> &'a [u8] {
        &self.data[start..start + length]
    }

    /// Which rows are NULL, if any are.
    pub fn nulls(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        self.indicators?;
        let nulls = NullBuffer::from_iter(rows.clone().map(|row| !self.is_null(row)));
        (nulls.null_count() > 0).then_some(nulls)
    }

    /// The lengths of rows of a packed column; a NULL has none.
    pub fn lengths(&self, rows: &Range<usize>) -> Vec<usize> {
        rows.clone().map(|row| self.length(row).unwrap_or(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_wrong_are_told() {
        // SAFETY: three bytes and one length are there.
        let odd = unsafe { RawColumn::new(ServerType::Char(5), 1, 1, b"abc".as_ptr(), [-3].as_ptr()) };
        assert!(odd.unwrap_err().message().contains("-3"));
        // SAFETY: nothing is there, and nothing is read.
        let missing = unsafe { RawColumn::new(ServerType::Int, 1, 2, std::ptr::null(), std::ptr::null()) };
        assert!(missing.unwrap_err().message().contains("no data"));
        let nothing = std::ptr::null();
        // SAFETY: as above.
        let endless = unsafe { RawColumn::new(ServerType::Guid, 1, usize::MAX / 2, nothing, std::ptr::null()) };
        assert!(endless.is_err());
    }
}
