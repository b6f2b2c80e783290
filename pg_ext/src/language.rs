//! LANGUAGE container: call handler and validator.

use pgrx::{pg_guard, pg_sys};

use udf_project::body::FunctionBody;
use udf_types::signature::FunctionKind;
use udf_types::{Error, Kind};

use crate::function::{Function, Role};
use crate::pg::{catalog, rights};
use crate::result_set::ResultSet;
use crate::{aggregate, allowed, function, report, single_call};

/// The call handler: calls a container function for one row, or as a part of an aggregate.
#[pg_guard]
pub unsafe extern "C-unwind" fn handle_call(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo whose flinfo names the function, with nargs arguments behind it.
    unsafe {
        let oid = (*(*fcinfo).flinfo).fn_oid;
        let count = usize::try_from((*fcinfo).nargs).unwrap_or(0);
        let arguments = (*fcinfo).args.as_slice(count);
        let function = report::unwrap(function::lookup_to_call(oid));
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

/// The validator: checks a function, and pins its image when it is created. Whoever may execute a function may also have it
/// checked, but not changed.
#[pg_guard]
pub unsafe extern "C-unwind" fn validate(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    let nothing = pg_sys::Datum::from(0usize);
    // SAFETY: PostgreSQL passes a valid fcinfo; a validator has one argument, the function's oid.
    let (oid, may_access, is_called_by_sql) = unsafe {
        let info = (*fcinfo).flinfo;
        let oid = pg_sys::Oid::from((*fcinfo).args.as_slice(1)[0].value.value() as u32);
        // CREATE FUNCTION calls it without an expression.
        (oid, pg_sys::CheckFunctionValidatorAccess((*info).fn_oid, oid), !(*info).fn_expr.is_null())
    };
    if !may_access {
        return nothing;
    }
    let row = report::unwrap(catalog::read_proc(oid).ok_or_else(|| {
        Error::new(Kind::FunctionNotFound, format!("function with oid {} does not exist", oid.to_u32()))
    }));
    let body = FunctionBody::parse(&row.source);
    // SAFETY: reads a setting and the user's privileges.
    let (checks_body, is_superuser) = unsafe { (pg_sys::check_function_bodies, pg_sys::superuser()) };
    // Permission does not depend on a setting; what cannot be read cannot be called either.
    if let (Ok(body), false) = (&body, is_superuser) {
        report::unwrap(allowed::check_create(body));
    }
    let may_change = !is_called_by_sql && rights::is_being_created(&row);
    if !checks_body {
        if let (Ok(function), true) = (Function::from_row(row), may_change) {
            warn_of_calls(&function, None);
        }
        return nothing;
    }
    let source = row.source.clone();
    let function = report::unwrap(Function::from_row(row));
    report::unwrap(function.check_cache());
    report::unwrap(function.check_tables());
    let digest = report::unwrap(function.check());
    if may_change {
        warn_of_calls(&function, digest.as_deref());
    }
    if let (Some(digest), None, true) = (digest, &function.body.digest, may_change) {
        catalog::update_source(oid, &FunctionBody::pin_digest(&source, &digest));
    }
    nothing
}

/// Says of a function that is being created if nobody will be able to call it: its owner's list counts then, and not what the
/// creator or this session may do.
fn warn_of_calls(function: &Function, digest: Option<&str>) {
    let Err(refusal) = function.check_allowed(digest) else { return };
    if refusal.kind() != Kind::NotAllowed {
        return;
    }
    let message = format!("calls of function \"{}\" will be refused", function.name);
    let warning = Error::new(Kind::NotAllowed, message);
    let warning = refusal.detail().into_iter().fold(warning, |warning, detail| warning.with_detail(detail));
    report::warn(&report::hint_of(&refusal).into_iter().fold(warning, |warning, hint| warning.with_hint(hint)));
}
