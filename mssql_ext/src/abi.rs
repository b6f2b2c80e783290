//! The C side of Microsoft's language extension API: layouts and constants, as `docs/sqlserver.md` and the public
//! header `sqlexternallanguage.h` give them (LP64, little-endian, System V ABI).

use std::ffi::c_void;

/// SQLRETURN.
pub type SqlReturn = i16;
/// The call did what it was asked.
pub const SQL_SUCCESS: SqlReturn = 0;
/// The call failed; the script stops.
pub const SQL_ERROR: SqlReturn = -1;
/// The indicator of a NULL.
pub const SQL_NULL_DATA: i32 = -1;
/// The column has no NULLs.
pub const SQL_NO_NULLS: i16 = 0;
/// The column may have NULLs.
pub const SQL_NULLABLE: i16 = 1;
/// The parameter is for input alone.
pub const SQL_PARAM_INPUT: i16 = 1;

/// ODBC's C type codes.
pub mod code {
    pub const CHAR: i16 = 1;
    pub const NUMERIC: i16 = 2;
    pub const REAL: i16 = 7;
    pub const DOUBLE: i16 = 8;
    pub const DATE: i16 = 91;
    pub const TIME: i16 = 92;
    pub const TIMESTAMP: i16 = 93;
    pub const BINARY: i16 = -2;
    pub const BIT: i16 = -7;
    pub const WCHAR: i16 = -8;
    pub const GUID: i16 = -11;
    pub const SSHORT: i16 = -15;
    pub const SLONG: i16 = -16;
    pub const SBIGINT: i16 = -25;
    pub const UTINYINT: i16 = -28;
    pub const SS_TIME2: i16 = 0x4000;
    pub const SS_TIMESTAMPOFFSET: i16 = 0x4001;
}

/// SQLGUID: passed by value, in two registers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SqlGuid {
    pub data1: u32,
    pub data2: u16,
    pub data3: u16,
    pub data4: [u8; 8],
}

/// Writes an event to SQL Server's extended events: extension's name, session, task, level, code, message.
pub type LogXEvent = unsafe extern "C" fn(*const u8, u64, SqlGuid, u16, u16, i32, *const u8, u64);

/// The first version's fields of SQLEXTENSION_HOST_CALLBACKS.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HostCallbacks {
    pub version: u16,
    pub reserved0: u16,
    /// Size of the whole structure; Microsoft's own tests leave it 0.
    pub size_in_bytes: u32,
    pub log_xevent: Option<LogXEvent>,
    pub reserved1: *mut c_void,
    pub reserved2: *mut c_void,
}

/// Bytes of [`HostCallbacks`] up to the end of `log_xevent`.
pub const CALLBACKS_WITH_LOG_BYTES: u32 = 16;

/// Levels of events.
pub mod level {
    pub const ERROR: u16 = 2;
    pub const INFORMATION: u16 = 4;
}

const _: () = {
    assert!(size_of::<SqlGuid>() == 16 && align_of::<SqlGuid>() == 4);
    assert!(size_of::<HostCallbacks>() == 32 && std::mem::offset_of!(HostCallbacks, log_xevent) == 8);
};
