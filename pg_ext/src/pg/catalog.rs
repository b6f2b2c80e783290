//! Rows of the catalogs: functions, relations, types and roles.

use std::ffi::{CStr, CString, c_int};

use pgrx::pg_sys;

use super::{list, text};

/// What we read of a function's row. `version` changes whenever the row does.
#[derive(Debug)]
pub struct ProcRow {
    pub oid: pg_sys::Oid,
    pub version: (u32, u32, u16),
    pub name: String,
    /// The name in the database's encoding.
    pub name_in_database: CString,
    pub owner: pg_sys::Oid,
    pub source: String,
    pub argument_types: Vec<pg_sys::Oid>,
    pub argument_names: Vec<String>,
    pub result_type: pg_sys::Oid,
    pub kind: u8,
    pub volatility: u8,
    pub is_strict: bool,
    pub is_set: bool,
}

/// A function's language and row version; none if it does not exist.
pub fn proc_version(oid: pg_sys::Oid) -> Option<(pg_sys::Oid, (u32, u32, u16))> {
    // SAFETY: a tuple of the cache PROCOID holds a FormData_pg_proc, and stays valid until it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return None;
        }
        let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
        let found = ((*row).prolang, version_of(tuple));
        pg_sys::ReleaseSysCache(tuple);
        Some(found)
    }
}

/// Whether a function is SECURITY DEFINER or has a SET clause.
pub fn changes_context(oid: pg_sys::Oid) -> bool {
    // SAFETY: as in proc_version; a column that may be NULL is asked for by its number.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return false;
        }
        let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
        let mut has_no_settings = false;
        pg_sys::SysCacheGetAttr(cache, tuple, pg_sys::Anum_pg_proc_proconfig as i16, &mut has_no_settings);
        let changes = (*row).prosecdef || !has_no_settings;
        pg_sys::ReleaseSysCache(tuple);
        changes
    }
}

/// The conditions of a table's CHECK constraints, palloc'd; none if more happens before a row is written: triggers are called, or
/// another session is changing the table, so that nobody can say.
///
/// The table is locked while it is looked at, and no longer: of a table with thousands of partitions a statement may lock few.
pub fn checks_of_rows(table: pg_sys::Oid) -> Option<Vec<*mut pg_sys::Node>> {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: the table is locked while its entry of the relation cache is read. A lock that raises an error is let go with the
    // transaction.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(table, lock) {
            return None;
        }
        let relation = pg_sys::RelationIdGetRelation(table);
        let mut found = None;
        if !relation.is_null() {
            if !has_row_triggers_before(relation) {
                found = Some(check_constraints(relation));
            }
            pg_sys::RelationClose(relation);
        }
        pg_sys::UnlockRelationOid(table, lock);
        found
    }
}

/// Whether a table has triggers that are called before each row, or in its place.
///
/// # Safety
/// The table is open, and locked.
unsafe fn has_row_triggers_before(relation: pg_sys::Relation) -> bool {
    // SAFETY: the caller says so.
    unsafe { (*relation).trigdesc.as_ref() }.is_some_and(|triggers| {
        [
            triggers.trig_insert_before_row,
            triggers.trig_insert_instead_row,
            triggers.trig_update_before_row,
            triggers.trig_update_instead_row,
            triggers.trig_delete_before_row,
            triggers.trig_delete_instead_row,
        ]
        .contains(&true)
    })
}

/// The conditions of a table's CHECK constraints, palloc'd.
///
/// # Safety
/// The table is open, and locked.
unsafe fn check_constraints(relation: pg_sys::Relation) -> Vec<*mut pg_sys::Node> {
    // SAFETY: the caller says so. A constraint's text is that of an expression.
    unsafe {
        let Some(constraints) = (*(*relation).rd_att).constr.as_ref() else { return Vec::new() };
        let checks = (0..usize::from(constraints.num_check)).map(|i| constraints.check.add(i));
        checks.map(|check| pg_sys::stringToNode((*check).ccbin).cast()).collect()
    }
}

/// A table, and all its partitions and theirs, which are not locked.
pub fn with_partitions(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: a lookup in the system cache.
    let is_partitioned = unsafe { pg_sys::get_rel_relkind(table) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE };
    if is_partitioned { with_inheritors(table) } else { vec![table] }
}

/// A table, and all that inherit from it, which are not locked.
pub fn with_inheritors(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // pgrx leaves it out (catalog/pg_inherits.h).
    unsafe extern "C-unwind" {
        fn find_all_inheritors(parent: pg_sys::Oid, lock: c_int, parents: *mut *mut pg_sys::List) -> *mut pg_sys::List;
    }
    // SAFETY: looks into the catalogs; the boundary catches PostgreSQL's errors, and its frame holds nothing to be dropped.
    unsafe {
        let no_lock = pg_sys::NoLock as c_int;
        list::oids(pg_sys::ffi::pg_guard_ffi_boundary(|| find_all_inheritors(table, no_lock, std::ptr::null_mut())))
    }
}

/// What tells a plan's cache that a type has changed, with its constraints if it is a domain.
pub fn change_of_type(oid: pg_sys::Oid) -> *mut pg_sys::PlanInvalItem {
    change_of(pg_sys::SysCacheIdentifier::TYPEOID as i32, oid)
}

/// The same of a function.
pub fn change_of_function(oid: pg_sys::Oid) -> *mut pg_sys::PlanInvalItem {
    change_of(pg_sys::SysCacheIdentifier::PROCOID as i32, oid)
}

fn change_of(cache: c_int, oid: pg_sys::Oid) -> *mut pg_sys::PlanInvalItem {
    let none = pg_sys::Datum::from(0usize);
    // SAFETY: the struct belongs to the tag; the hash is that of a key of the system cache.
    unsafe {
        let item = super::nodes::make::<pg_sys::PlanInvalItem>(pg_sys::NodeTag::T_PlanInvalItem);
        (*item).cacheId = cache;
        (*item).hashValue = pg_sys::GetSysCacheHashValue(cache, pg_sys::Datum::from(oid), none, none, none);
        item
    }
}

/// The conditions of a domain's constraints, those of the domains below it included. They live as long as the current memory
/// context.
pub fn domain_constraints(domain: pg_sys::Oid) -> Vec<*mut pg_sys::Node> {
    // SAFETY: a lookup in the type cache, which is told by the context when nobody looks at the constraints any more. So the
    // reference is made there.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let reference = pg_sys::palloc0(size_of::<pg_sys::DomainConstraintRef>()).cast::<pg_sys::DomainConstraintRef>();
        pg_sys::InitDomainConstraintRef(domain, reference, context, false);
        let constraints = list::elements::<pg_sys::DomainConstraintState>((*reference).constraints);
        let conditions = constraints.into_iter().map(|constraint| (*constraint).check_expr.cast::<pg_sys::Node>());
        conditions.filter(|condition| !condition.is_null()).collect()
    }
}

/// Whether there is a database with this oid.
pub fn database_exists(oid: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::DATABASEOID as i32;
    let none = pg_sys::Datum::from(0usize);
    // SAFETY: a lookup in the system cache, which a transaction is open for.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(oid), none, none, none) }
}

/// The user whose privileges count now: who is logged in, or what SET ROLE or a SECURITY DEFINER function made of them.
pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads a process-wide variable.
    unsafe { pg_sys::GetUserId() }
}

/// The name of a role; the oid of one that is gone.
pub fn role_name(role: pg_sys::Oid) -> String {
    // SAFETY: a lookup in the system cache; the name is palloc'd.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() { role.to_u32().to_string() } else { text::from_c(name) }
    }
}

/// The options of a user's mapping to a foreign server, or of everybody's; none if there is neither.
pub fn user_mapping(server: pg_sys::Oid, user: pg_sys::Oid) -> Option<*mut pg_sys::List> {
    // SAFETY: lookups in the system cache; GetUserMapping raises an error only where both were missing.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as i32;
        let exists = [user, pg_sys::InvalidOid].into_iter().any(|user| {
            let (user, server) = (pg_sys::Datum::from(user), pg_sys::Datum::from(server));
            let none = pg_sys::Datum::from(0usize);
            pg_sys::SearchSysCacheExists(cache, user, server, none, none)
        });
        exists.then(|| (*pg_sys::GetUserMapping(user, server)).options)
    }
}

/// Reads a function's row; none if it does not exist.
pub fn read_proc(oid: pg_sys::Oid) -> Option<ProcRow> {
    // SAFETY: as in proc_version; the attributes read with SysCacheGetAttr have the types that pg_proc declares.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return None;
        }
        let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
        let attribute = |number: u32| {
            let mut is_null = false;
            let datum = pg_sys::SysCacheGetAttr(cache, tuple, number as i16, &mut is_null);
            (!is_null).then_some(datum)
        };
        let source = attribute(pg_sys::Anum_pg_proc_prosrc)
            .map(|datum| text::from_c(pg_sys::text_to_cstring(datum.cast_mut_ptr())));
        let count = usize::try_from((*row).pronargs).unwrap_or(0);
        let argument_types = (*row).proargtypes.values.as_slice(count).to_vec();
        let modes = attribute(pg_sys::Anum_pg_proc_proargmodes);
        let mut argument_names = vec![String::new(); count];
        if let Some(names) = attribute(pg_sys::Anum_pg_proc_proargnames) {
            let mut found = std::ptr::null_mut();
            let modes = modes.unwrap_or(pg_sys::Datum::from(0usize));
            let found_count = pg_sys::get_func_input_arg_names(names, modes, &mut found);
            for (i, name) in argument_names.iter_mut().enumerate().take(usize::try_from(found_count).unwrap_or(0)) {
                let text = *found.add(i);
                if !text.is_null() {
                    *name = text::from_c(text);
                }
            }
        }
        let result = ProcRow {
            oid,
            version: version_of(tuple),
            name: text::from_c((*row).proname.data.as_ptr()),
            name_in_database: CStr::from_ptr((*row).proname.data.as_ptr()).to_owned(),
            owner: (*row).proowner,
            source: source.unwrap_or_default(),
            argument_types,
            argument_names,
            result_type: (*row).prorettype,
            kind: (*row).prokind as u8,
            volatility: (*row).provolatile as u8,
            is_strict: (*row).proisstrict,
            is_set: (*row).proretset,
        };
        pg_sys::ReleaseSysCache(tuple);
        Some(result)
    }
}

/// The blessed descriptor of a function's result, if that is composite and known.
pub fn result_descriptor(oid: pg_sys::Oid) -> Option<pg_sys::TupleDesc> {
    let (mut result, mut descriptor) = (pg_sys::InvalidOid, std::ptr::null_mut());
    // SAFETY: lookups of a function that exists; the descriptor is palloc'd.
    unsafe {
        let class = pg_sys::get_func_result_type(oid, &mut result, &mut descriptor);
        let is_composite = class == pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE;
        (is_composite && !descriptor.is_null()).then(|| pg_sys::BlessTupleDesc(descriptor))
    }
}

/// The functions of an aggregate: SFUNC, FINALFUNC.
pub fn aggregate_functions(oid: pg_sys::Oid) -> Option<[pg_sys::Oid; 2]> {
    // Columns aggtransfn and aggfinalfn (catalog/pg_aggregate.h).
    const COLUMNS: [i16; 2] = [4, 5];
    // SAFETY: a tuple of the cache AGGFNOID is a row of pg_aggregate, whose columns are of type oid and never NULL.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::AGGFNOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return None;
        }
        let found = COLUMNS.map(|column| {
            let mut is_null = false;
            pg_sys::Oid::from(pg_sys::SysCacheGetAttr(cache, tuple, column, &mut is_null).value() as u32)
        });
        pg_sys::ReleaseSysCache(tuple);
        Some(found)
    }
}

/// Schema and name of a collation.
pub fn collation_name(oid: pg_sys::Oid) -> (String, String) {
    // SAFETY: a tuple of the cache COLLOID holds a FormData_pg_collation, and stays valid until it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::COLLOID as i32, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return (String::new(), String::new());
        }
        let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_collation>();
        let schema = pg_sys::get_namespace_name((*row).collnamespace);
        let found = (text::from_c(schema), text::from_c((*row).collname.data.as_ptr()));
        pg_sys::ReleaseSysCache(tuple);
        found
    }
}

/// Replaces a function's body, in the transaction that created the function.
pub fn update_source(oid: pg_sys::Oid, source: &str) {
    let source = CString::new(source).unwrap_or_default();
    // SAFETY: the relation is open and locked while its tuple is changed, as in PostgreSQL's own commands; the arrays
    // have one element per attribute of pg_proc.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::ProcedureRelationId, pg_sys::RowExclusiveLock as i32);
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let none = pg_sys::Datum::from(0usize);
        let tuple = pg_sys::SearchSysCacheCopy(cache, pg_sys::Datum::from(oid), none, none, none);
        if !tuple.is_null() {
            let mut values = [none; pg_sys::Natts_pg_proc as usize];
            let mut nulls = [false; pg_sys::Natts_pg_proc as usize];
            let mut replaces = [false; pg_sys::Natts_pg_proc as usize];
            let position = pg_sys::Anum_pg_proc_prosrc as usize - 1;
            let text = pg_sys::cstring_to_text(text::to_server(&source));
            values[position] = pg_sys::Datum::from(text);
            replaces[position] = true;
            let changed = pg_sys::heap_modify_tuple(
                tuple,
                (*relation).rd_att,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
                replaces.as_mut_ptr(),
            );
            pg_sys::CatalogTupleUpdate(relation, &raw mut (*changed).t_self, changed);
            pg_sys::CommandCounterIncrement();
        }
        pg_sys::table_close(relation, pg_sys::RowExclusiveLock as i32);
    }
}

/// The name of a type as SQL writes it.
pub fn type_name(oid: pg_sys::Oid) -> String {
    // SAFETY: format_type_be takes any oid and returns a palloc'd string.
    unsafe { text::from_c(pg_sys::format_type_be(oid)) }
}

/// The extension that a type belongs to.
pub fn extension_of_type(oid: pg_sys::Oid) -> Option<String> {
    // SAFETY: lookups in the catalogs; the name is palloc'd.
    unsafe {
        let extension = pg_sys::getExtensionOfObject(pg_sys::TypeRelationId, oid);
        if extension == pg_sys::InvalidOid {
            return None;
        }
        let name = pg_sys::get_extension_name(extension);
        (!name.is_null()).then(|| text::from_c(name))
    }
}

/// The oid of LANGUAGE container; none where the extension is not created.
pub fn container_language() -> Option<pg_sys::Oid> {
    // SAFETY: a lookup in the system cache, which a transaction is open for.
    let oid = unsafe { pg_sys::get_language_oid(c"container".as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Transaction and place of a tuple: what PL/pgSQL, too, compares to notice CREATE OR REPLACE.
///
/// # Safety
/// `tuple` is a valid heap tuple.
unsafe fn version_of(tuple: pg_sys::HeapTuple) -> (u32, u32, u16) {
    // SAFETY: the caller says that the tuple is valid.
    unsafe {
        let xmin: u32 = (*(*tuple).t_data).t_choice.t_heap.t_xmin.into();
        let place = (*tuple).t_self;
        let block = (u32::from(place.ip_blkid.bi_hi) << 16) | u32::from(place.ip_blkid.bi_lo);
        (xmin, block, place.ip_posid)
    }
}
