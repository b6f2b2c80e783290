//! What SQL sees of images, functions' bodies and replicas, as JSON that the extension's views take apart.

use pgrx::{pg_guard, pg_sys};
use serde_json::json;
use udf_client::control::{CircuitInfo, ImageInfo, ReplicaInfo, Request, Response};
use udf_project::body::FunctionBody;
use udf_project::ddl;
use udf_types::{Error, Kind};

use crate::host::Backend;
use crate::pg::{catalog, rights, text};
use crate::{allowed, report, session, settings};

/// `transship.image_ddl(image text, schema text, previous text) RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn image_ddl(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with three texts, none of them NULL, since the function is STRICT.
    let [image, schema, previous] = unsafe { [0, 1, 2].map(|i| argument((*fcinfo).args.as_slice(3)[i].value)) };
    let info = resolve(&image);
    let previous = Some(previous).filter(|digest| !digest.is_empty());
    // The name of an image may stand for another content by now than the digest that is asked for.
    let digest = image.starts_with("sha256:").then(|| info.digest.clone());
    let statements = ddl::postgres(&info.manifest, &schema, &ddl::Pin { digest, previous });
    report::json_datum(&json!(report::unwrap(statements)))
}

/// `transship.image_info(image text) RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn image_info(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with a text that is not NULL, since the function is STRICT.
    let info = resolve(&unsafe { argument((*fcinfo).args.as_slice(1)[0].value) });
    report::json_datum(&json!({"name": info.manifest.name, "version": info.manifest.version, "digest": info.digest}))
}

/// Asks the manager, for those who may have a use for it.
fn resolve(image: &str) -> ImageInfo {
    rights::check_language_usage();
    report::unwrap(allowed::ask(image))
}

/// `transship.function_body(oid) RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn function_body(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with one oid, which is not NULL, since the function is STRICT.
    unsafe {
        let oid = pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32);
        // Whatever plan asks for it: what another function's source says is not a body.
        let language = catalog::proc_version(oid).map(|(language, _)| language);
        let source =
            catalog::read_proc(oid).filter(|_| language.is_some() && language == catalog::container_language());
        let body = source.and_then(|row| FunctionBody::parse(&row.source).ok());
        (*fcinfo).isnull = body.is_none();
        body.map_or(pg_sys::Datum::from(0usize), |body| report::json_datum(&json!(body)))
    }
}

/// `transship.manager_replicas() RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn manager_replicas(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    report::json_datum(&json!(ask_for_replicas().0))
}

/// `transship.manager_circuits() RETURNS json`.
#[pg_guard]
pub unsafe extern "C-unwind" fn manager_circuits(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    report::json_datum(&json!(ask_for_replicas().1))
}

fn ask_for_replicas() -> (Vec<ReplicaInfo>, Vec<CircuitInfo>) {
    let (manager, timeout) = (settings::manager_socket(), settings::start_timeout());
    match report::unwrap(session::client().ask_manager(&Backend, &manager, Request::Replicas, timeout)) {
        Response::Replicas { replicas, circuits } => (replicas, circuits),
        _ => {
            report::raise_error(&Error::new(Kind::ProtocolViolation, "the container manager gave another answer"), None)
        }
    }
}

unsafe fn argument(datum: pg_sys::Datum) -> String {
    // SAFETY: the caller passes a text.
    unsafe { text::from_c(pg_sys::text_to_cstring(datum.cast_mut_ptr())) }
}
