//! The language extension API as C sees it, written from its specification and not from the extension's own definitions,
//! so that a mistake there is not repeated here. `tests/` compiles C against unixODBC's headers to check both.

use std::ffi::c_void;

pub const SQL_SUCCESS: i16 = 0;
pub const SQL_NULL_DATA: i32 = -1;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guid {
    pub data1: u32,
    pub data2: u16,
    pub data3: u16,
    pub data4: [u8; 8],
}

pub type GetInterfaceVersion = unsafe extern "C" fn() -> u16;
pub type Init = unsafe extern "C" fn(*const u8, u64, *const u8, u64, *const u8, u64, *const u8, u64) -> i16;
pub type InitSession =
    unsafe extern "C" fn(Guid, u16, u16, *const u8, u64, u16, u16, *const u8, u16, *const u8, u16) -> i16;
pub type InitColumn = unsafe extern "C" fn(Guid, u16, u16, *const u8, i16, i16, u64, i16, i16, i16, i16) -> i16;
pub type InitParam =
    unsafe extern "C" fn(Guid, u16, u16, *const u8, i16, i16, u64, i16, *const c_void, i32, i16) -> i16;
pub type Execute = unsafe extern "C" fn(Guid, u16, u64, *const *const c_void, *const *const i32, *mut u16) -> i16;
pub type GetResultColumn = unsafe extern "C" fn(Guid, u16, u16, *mut i16, *mut u64, *mut i16, *mut i16) -> i16;
pub type GetResults = unsafe extern "C" fn(Guid, u16, *mut u64, *mut *const *const u8, *mut *const *const i32) -> i16;
pub type GetOutputParam = unsafe extern "C" fn(Guid, u16, u16, *mut *const u8, *mut i32) -> i16;
pub type CleanupSession = unsafe extern "C" fn(Guid, u16) -> i16;
pub type Cleanup = unsafe extern "C" fn() -> i16;
pub type InstallExternalLibrary =
    unsafe extern "C" fn(Guid, *const u8, i32, *const u8, i32, *const u8, i32, *mut *mut u8, *mut i32) -> i16;
pub type UninstallExternalLibrary =
    unsafe extern "C" fn(Guid, *const u8, i32, *const u8, i32, *mut *mut u8, *mut i32) -> i16;
pub type LogXEvent = unsafe extern "C" fn(*const u8, u64, Guid, u16, u16, i32, *const u8, u64);
pub type SetHostCallbacks = unsafe extern "C" fn(*const HostCallbacks) -> i16;
pub type GetTelemetryResults =
    unsafe extern "C" fn(Guid, u16, *mut u32, *mut *const *const u8, *mut *const i32, *mut *const i64) -> i16;

#[repr(C)]
pub struct HostCallbacks {
    pub version: u16,
    pub reserved0: u16,
    pub size_in_bytes: u32,
    pub log_xevent: Option<LogXEvent>,
    pub reserved1: *mut c_void,
    pub reserved2: *mut c_void,
}
