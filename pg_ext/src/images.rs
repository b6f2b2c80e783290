//! What SQL sees of images, functions' bodies and replicas, as JSON that the extension's views take apart.

use std::ffi::CStr;

use pgrx::{pg_guard, pg_sys};
use serde_json::json;
use udf_protocol::control::{Request, Response};
use udf_protocol::manifest::FunctionBody;
use udf_protocol::{Error, Kind, ddl};

use crate::host::Backend;
use crate::pg::catalog;
use crate::{report, session, settings};

/// `transship.image_ddl(image text, schema text) RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn image_ddl(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with two texts, neither of them NULL, since the function is STRICT.
    let [image, schema] = unsafe { [0, 1].map(|i| text((*fcinfo).args.as_slice(2)[i].value)) };
    let manager = settings::manager_socket();
    let found = session::client().resolve_image(&Backend, &manager, &image, settings::start_timeout());
    let statements = report::unwrap(found.and_then(|info| ddl::postgres(&info.manifest, &schema)));
    report::json_datum(&json!(statements))
}

/// `transship.function_body(oid) RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn function_body(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one oid, which is not NULL, since the function is STRICT.
    unsafe {
        let oid = pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32);
        let body = catalog::read_proc(oid).and_then(|row| FunctionBody::parse(&row.source).ok());
        (*fcinfo).isnull = body.is_none();
        body.map_or(pg_sys::Datum::from(0usize), |body| report::json_datum(&json!(body)))
    }
}

/// `transship.manager_replicas() RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn manager_replicas(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    let (manager, timeout) = (settings::manager_socket(), settings::start_timeout());
    match report::unwrap(session::client().ask_manager(&Backend, &manager, Request::Replicas, timeout)) {
        Response::Replicas { replicas } => report::json_datum(&json!(replicas)),
        _ => {
            report::raise_error(&Error::new(Kind::ProtocolViolation, "the container manager gave another answer"), None)
        }
    }
}

unsafe fn text(datum: pg_sys::Datum) -> String {
    // SAFETY: the caller passes a text.
    unsafe { CStr::from_ptr(pg_sys::text_to_cstring(datum.cast_mut_ptr())).to_string_lossy().into_owned() }
}
