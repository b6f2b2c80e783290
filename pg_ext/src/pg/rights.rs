//! Rights and owners: what the current user may do. What is not allowed is raised as PostgreSQL's own error.

use pgrx::pg_sys;

use super::catalog::{ProcRow, current_user};

/// `pg_language` (catalog/pg_language.h), which pgrx leaves out.
#[cfg(not(feature = "pg15"))]
const LANGUAGE_RELATION: u32 = 2612;

/// Raises an error unless the user may use the foreign server.
///
/// # Safety
/// `server` is valid.
pub unsafe fn check_server_usage(server: *const pg_sys::ForeignServer, user: pg_sys::Oid) {
    // SAFETY: lookups in the system cache; the name is palloc'd and outlives the error.
    unsafe {
        let oid = (*server).serverid;
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_foreign_server_aclcheck(oid, user, pg_sys::ACL_USAGE);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::ForeignServerRelationId, oid, user, pg_sys::ACL_USAGE.into());
        if result != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(result, pg_sys::ObjectType::OBJECT_FOREIGN_SERVER, (*server).servername);
        }
    }
}

/// Raises an error unless the current user may write functions in the language of container functions.
pub fn check_language_usage() {
    let user = current_user();
    // SAFETY: lookups in the system cache; the name is static.
    unsafe {
        let name = c"container".as_ptr();
        let oid = pg_sys::get_language_oid(name, false);
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_language_aclcheck(oid, user, pg_sys::ACL_USAGE);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(LANGUAGE_RELATION.into(), oid, user, pg_sys::ACL_USAGE.into());
        if result != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(result, pg_sys::ObjectType::OBJECT_LANGUAGE, name);
        }
    }
}

/// Whether the current user may execute the function.
pub fn may_execute(oid: pg_sys::Oid) -> bool {
    execute_right(oid) == pg_sys::AclResult::ACLCHECK_OK
}

/// Raises an error unless the current user may execute the function, as the executor does for every call that it makes
/// itself (execExpr.c, ExecInitFunc).
pub fn check_execute(oid: pg_sys::Oid) {
    let result = execute_right(oid);
    // SAFETY: lookups in the system cache; the name is palloc'd and outlives the error.
    unsafe {
        if result != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(result, pg_sys::ObjectType::OBJECT_FUNCTION, pg_sys::get_func_name(oid));
        }
        // InvokeFunctionExecuteHook, which a security module such as sepgsql listens to.
        if (&raw const pg_sys::object_access_hook).read().is_some() {
            pg_sys::RunFunctionExecuteHook(oid);
        }
    }
}

/// Raises an error unless the current user owns the function, which exists.
pub fn check_owner(oid: pg_sys::Oid) {
    if !is_owner(oid) {
        // SAFETY: the name is palloc'd and outlives the error.
        unsafe {
            let (not_owner, function) = (pg_sys::AclResult::ACLCHECK_NOT_OWNER, pg_sys::ObjectType::OBJECT_FUNCTION);
            pg_sys::aclcheck_error(not_owner, function, pg_sys::get_func_name(oid));
        }
    }
}

/// Raises an error unless the current user owns the relation.
pub fn check_relation_owner(oid: pg_sys::Oid) {
    let user = current_user();
    // SAFETY: lookups in the system cache; the name is palloc'd and outlives the error.
    unsafe {
        #[cfg(feature = "pg15")]
        let is_owner = pg_sys::pg_class_ownercheck(oid, user);
        #[cfg(not(feature = "pg15"))]
        let is_owner = pg_sys::object_ownercheck(pg_sys::RelationRelationId, oid, user);
        if !is_owner {
            raise_about_relation(pg_sys::AclResult::ACLCHECK_NOT_OWNER, oid);
        }
    }
}

/// A relation's owner; none if it does not exist.
pub fn owner_of(oid: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: a tuple of the cache RELOID holds a FormData_pg_class, and stays valid until it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return None;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

/// Raises an error unless the current user is the relation's owner itself, and no member of it, nor a superuser.
pub fn check_exact_owner(oid: pg_sys::Oid) {
    if owner_of(oid) != Some(current_user()) {
        // SAFETY: the relation's name is looked up, if there is one.
        unsafe { raise_about_relation(pg_sys::AclResult::ACLCHECK_NOT_OWNER, oid) };
    }
}

/// Raises an error unless the current user has a privilege on the relation.
pub fn check_relation(oid: pg_sys::Oid, privilege: u32) {
    check_relation_for(current_user(), oid, privilege);
}

/// The same of another user.
pub fn check_relation_for(user: pg_sys::Oid, oid: pg_sys::Oid, privilege: u32) {
    let result = relation_right(user, oid, privilege);
    if result != pg_sys::AclResult::ACLCHECK_OK {
        // SAFETY: as in check_relation_owner.
        unsafe { raise_about_relation(result, oid) }
    }
}

/// Raises an error unless the current user may read these columns of a relation, or any if there are none.
pub fn check_columns(oid: pg_sys::Oid, numbers: &[i16]) {
    let (user, any) = (current_user(), pg_sys::AclMaskHow::ACLMASK_ANY);
    if may_read(oid) {
        return;
    }
    #[cfg(feature = "pg15")]
    let privilege = pg_sys::ACL_SELECT;
    #[cfg(not(feature = "pg15"))]
    let privilege = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
    // SAFETY: lookups in the system cache; the name is palloc'd and outlives the error.
    unsafe {
        let is_allowed = |result| result == pg_sys::AclResult::ACLCHECK_OK;
        let may_read = match numbers {
            [] => is_allowed(pg_sys::pg_attribute_aclcheck_all(oid, user, privilege, any)),
            numbers => {
                numbers.iter().all(|number| is_allowed(pg_sys::pg_attribute_aclcheck(oid, *number, user, privilege)))
            }
        };
        if !may_read {
            raise_about_relation(pg_sys::AclResult::ACLCHECK_NO_PRIV, oid);
        }
    }
}

/// Whether the current user may read the relation.
pub fn may_read(oid: pg_sys::Oid) -> bool {
    relation_right(current_user(), oid, pg_sys::ACL_SELECT) == pg_sys::AclResult::ACLCHECK_OK
}

fn relation_right(user: pg_sys::Oid, oid: pg_sys::Oid, privilege: u32) -> pg_sys::AclResult::Type {
    // SAFETY: a lookup in the system cache.
    unsafe {
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_class_aclcheck(oid, user, privilege);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::pg_class_aclcheck(oid, user, privilege.into());
        result
    }
}

unsafe fn raise_about_relation(result: pg_sys::AclResult::Type, oid: pg_sys::Oid) {
    // SAFETY: lookups in the system cache; the name is palloc'd and outlives the error.
    unsafe {
        let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(oid));
        pg_sys::aclcheck_error(result, kind, pg_sys::get_rel_name(oid));
    }
}

fn execute_right(oid: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let user = current_user();
    // SAFETY: a lookup in the system cache.
    unsafe {
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_proc_aclcheck(oid, user, pg_sys::ACL_EXECUTE);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, oid, user, pg_sys::ACL_EXECUTE.into());
        result
    }
}

/// Whether the current user owns the function.
fn is_owner(oid: pg_sys::Oid) -> bool {
    let user = current_user();
    // SAFETY: lookups in the system cache.
    unsafe {
        #[cfg(feature = "pg15")]
        let is_owner = pg_sys::pg_proc_ownercheck(oid, user);
        #[cfg(not(feature = "pg15"))]
        let is_owner = pg_sys::object_ownercheck(pg_sys::ProcedureRelationId, oid, user);
        is_owner
    }
}

/// Whether the function's row was written by this transaction, and belongs to the current user.
pub fn is_being_created(row: &ProcRow) -> bool {
    // SAFETY: a look at this transaction's own numbers.
    is_owner(row.oid) && unsafe { pg_sys::TransactionIdIsCurrentTransactionId(row.version.0.into()) }
}
