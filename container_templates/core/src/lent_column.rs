//! Plain columns, as a language without an Arrow library reads them by pointers.

use std::ffi::{c_char, c_void};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::Buffer;
use arrow_schema::DataType;

/// `transship_column`.
#[repr(C)]
pub struct PlainColumn {
    pub(crate) format: c_char,
    pub(crate) validity: *const u8,
    pub(crate) values: *const c_void,
    pub(crate) bytes: *const u8,
}

/// A plain column that a language reads by pointers, as long as this lives.
pub(crate) struct LentColumn {
    array: ArrayRef,
    format: u8,
    validity: Option<Buffer>,
    /// Of bool.
    bits: Option<Buffer>,
}

impl LentColumn {
    /// # Errors
    /// The column is not plain.
    pub(crate) fn new(array: &ArrayRef) -> Result<LentColumn, &'static str> {
        let format = match array.data_type() {
            DataType::Boolean => b'b',
            DataType::Int64 => b'l',
            DataType::Float64 => b'g',
            DataType::Binary => b'z',
            _ => return Err("the server's columns are not plain"),
        };
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        let bits = array.as_boolean_opt().map(|bools| bools.values().sliced());
        Ok(LentColumn { array: array.clone(), format, validity: nulls.map(|nulls| nulls.inner().sliced()), bits })
    }

    pub(crate) fn pointers(&self) -> PlainColumn {
        let (array, mut bytes) = (&self.array, std::ptr::null());
        let values: *const c_void = match self.format {
            b'l' => array.as_primitive::<Int64Type>().values().as_ptr().cast(),
            b'g' => array.as_primitive::<Float64Type>().values().as_ptr().cast(),
            b'z' => {
                bytes = array.as_binary::<i32>().values().as_ptr();
                array.as_binary::<i32>().value_offsets().as_ptr().cast()
            }
            _ => pointer(self.bits.as_ref()).cast(),
        };
        PlainColumn { format: self.format as c_char, validity: pointer(self.validity.as_ref()), values, bytes }
    }
}

/// Where a buffer's bytes lie; NULL if there is none.
pub(crate) fn pointer(buffer: Option<&Buffer>) -> *const u8 {
    buffer.map_or(std::ptr::null(), |buffer| buffer.as_ptr())
}
