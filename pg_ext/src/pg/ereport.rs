//! `ereport(ERROR)` with every field, context included, which pgrx's own report cannot carry.

use std::ffi::{CString, c_char, c_int};

use pgrx::pg_sys;

/// The fields of an error report.
#[derive(Debug)]
pub struct Report {
    pub sqlstate: pg_sys::errcodes::PgSqlErrorCode,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub context: Option<String>,
}

unsafe extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn errcontext_msg(fmt: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// Raises the error. It unwinds the Rust frames above, whose destructors run.
pub fn raise(report: Report) -> ! {
    let message = to_c(&report.message);
    let detail = report.detail.as_deref().map(to_c);
    let hint = report.hint.as_deref().map(to_c);
    let context = report.context.as_deref().map(to_c);
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let (detail, hint, context) = (pointer(&detail), pointer(&hint), pointer(&context));
    let (message, sqlstate, percent_s) = (message.as_ptr(), report.sqlstate as c_int, c"%s".as_ptr());
    // SAFETY: the closure holds calls into PostgreSQL only and owns nothing with a destructor; the strings outlive it,
    // and PostgreSQL copies them. errstart(ERROR) returns true, so errfinish does not return.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if errstart(pg_sys::elog::PgLogLevel::ERROR as c_int, std::ptr::null()) {
                errcode(sqlstate);
                errmsg_internal(percent_s, message);
                if !detail.is_null() {
                    errdetail_internal(percent_s, detail);
                }
                if !hint.is_null() {
                    errhint(percent_s, hint);
                }
                if !context.is_null() {
                    pg_sys::set_errcontext_domain(std::ptr::null());
                    errcontext_msg(percent_s, context);
                }
                errfinish(c"transship".as_ptr(), 0, std::ptr::null());
            }
        });
    }
    unreachable!("an error report does not return")
}

/// Foreign text may hold NUL bytes, which C strings cannot.
fn to_c(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}
