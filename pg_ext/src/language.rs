//! LANGUAGE container: entry points only.

use pgrx::{pg_guard, pg_sys};

use udf_protocol::manifest::FunctionBody;
use udf_protocol::signature::FunctionKind;
use udf_protocol::{Error, Kind};

use crate::function::{Function, Role};
use crate::pg::catalog;
use crate::result_set::ResultSet;
use crate::{aggregate, function, report, single_call};

static CALLING_CONVENTION: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

/// Version-1 calling convention of the call handler.
#[unsafe(no_mangle)]
extern "C-unwind" fn pg_finfo_transship_call_handler() -> &'static pg_sys::Pg_finfo_record {
    &CALLING_CONVENTION
}

/// Version-1 calling convention of the validator.
#[unsafe(no_mangle)]
extern "C-unwind" fn pg_finfo_transship_validator() -> &'static pg_sys::Pg_finfo_record {
    &CALLING_CONVENTION
}

/// Calls a container function for one row.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn transship_call_handler(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL calls this, and handle_call is guarded.
    unsafe { report::with_context(|| handle_call(fcinfo)) }
}

#[pg_guard]
unsafe extern "C-unwind" fn handle_call(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo whose flinfo names the function, with nargs arguments behind it.
    unsafe {
        let oid = (*(*fcinfo).flinfo).fn_oid;
        let count = usize::try_from((*fcinfo).nargs).unwrap_or(0);
        let arguments = (*fcinfo).args.as_slice(count);
        let function = report::unwrap(function::lookup(oid));
        let result = match function.role {
            Role::Direct if function.signature.kind == FunctionKind::Table => {
                let mut results = ResultSet::new(fcinfo, &function.result);
                single_call::call_set(oid, &function, arguments, |reader, row| results.add(reader, row));
                None
            }
            Role::Direct => single_call::call(oid, &function, arguments),
            Role::Map => report::raise_error(&function.not_direct(), None),
            _ => aggregate::call(fcinfo, &function, arguments),
        };
        (*fcinfo).isnull = result.is_none();
        result.unwrap_or(pg_sys::Datum::from(0usize))
    }
}

/// Checks a function when it is created, and pins its image.
#[pg_guard]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn transship_validator(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    let nothing = pg_sys::Datum::from(0usize);
    // SAFETY: PostgreSQL passes a valid fcinfo; a validator has one argument, the function's oid.
    let (oid, is_checked) = unsafe {
        let oid = pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32);
        let may_access = pg_sys::CheckFunctionValidatorAccess((*(*fcinfo).flinfo).fn_oid, oid);
        (oid, may_access && pg_sys::check_function_bodies)
    };
    if !is_checked {
        return nothing;
    }
    let row = report::unwrap(catalog::read_proc(oid).ok_or_else(|| {
        Error::new(Kind::FunctionNotFound, format!("function with oid {} does not exist", oid.to_u32()))
    }));
    let source = row.source.clone();
    let function = report::unwrap(Function::from_row(row));
    let digest = report::unwrap(function.check());
    if let (Some(digest), None) = (digest, &function.body.digest) {
        catalog::update_source(oid, &FunctionBody::pin_digest(&source, &digest));
    }
    nothing
}
