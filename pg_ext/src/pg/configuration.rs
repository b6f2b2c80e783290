//! What a setting is for others than this session: `pg_db_role_setting` and the configuration files.

use std::cell::RefCell;
use std::ffi::CStr;

use pgrx::pg_sys;

use super::text;

/// `pg_db_role_setting` (catalog/pg_db_role_setting.h): its oid, that of its index on the first two columns, and the columns
/// setdatabase, setrole and setconfig.
const RELATION: u32 = 2964;
const INDEX: u32 = 2965;
const COLUMNS: usize = 3;

/// The value of a setting in new sessions of this database that are `role`'s, where `ALTER ROLE` or `ALTER DATABASE` gives
/// one: for the role here, for the role, for everybody here, for everybody, the first that there is.
pub fn of_role(setting: &CStr, role: pg_sys::Oid) -> Option<String> {
    // SAFETY: reads a process-wide variable.
    let (here, any) = (unsafe { pg_sys::MyDatabaseId }, pg_sys::InvalidOid);
    [(here, role), (any, role), (here, any), (any, any)].into_iter().find_map(|key| of_pair(setting, key))
}

fn of_pair(setting: &CStr, (database, role): (pg_sys::Oid, pg_sys::Oid)) -> Option<String> {
    let mut found = None;
    // SAFETY: the relation stays open while it is scanned; its rows have the columns named above, and setconfig is an array of
    // texts, "name=value" each.
    unsafe {
        let relation = pg_sys::table_open(RELATION.into(), pg_sys::AccessShareLock as i32);
        let mut keys: [pg_sys::ScanKeyData; 2] = Default::default();
        for ((key, column), oid) in keys.iter_mut().zip(1..).zip([database, role]) {
            let equals = pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber;
            pg_sys::ScanKeyInit(key, column, equals, pg_sys::F_OIDEQ.into(), pg_sys::Datum::from(oid));
        }
        let snapshot = std::ptr::null_mut();
        let scan = pg_sys::systable_beginscan(relation, INDEX.into(), true, snapshot, 2, keys.as_mut_ptr());
        let tuple = pg_sys::systable_getnext(scan);
        if !tuple.is_null() {
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0usize); COLUMNS], [true; COLUMNS]);
            pg_sys::heap_deform_tuple(tuple, (*relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            if !nulls[COLUMNS - 1] {
                found = value_in(values[COLUMNS - 1], setting);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
    found
}

/// The setting's value in an array of "name=value".
///
/// # Safety
/// `array` is an array of texts.
unsafe fn value_in(array: pg_sys::Datum, setting: &CStr) -> Option<String> {
    let (mut items, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: the caller says what the array is; each of `count` items is a text where it is not NULL.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast();
        let alignment = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        pg_sys::deconstruct_array(array, pg_sys::TEXTOID, -1, false, alignment, &mut items, &mut nulls, &mut count);
        (0..usize::try_from(count).unwrap_or(0)).filter(|i| !*nulls.add(*i)).find_map(|i| {
            let item = CStr::from_ptr(pg_sys::text_to_cstring((*items.add(i)).cast_mut_ptr())).to_bytes();
            let end = item.iter().position(|byte| *byte == b'=')?;
            item[..end].eq_ignore_ascii_case(setting.to_bytes()).then(|| text::to_utf8(&item[end + 1..]).into_owned())
        })
    }
}

/// The server's own value of a setting, whatever databases, roles and sessions have: that of its command line, of its
/// configuration files or the built-in one.
pub fn of_server(setting: &'static CStr) -> Option<String> {
    let variable = find(setting)?;
    // SAFETY: the variable lives as long as the process; PostgreSQL returns a string of its own.
    let (value, is_servers) = unsafe {
        let (source, reset) = ((*variable).source, (*variable).reset_source);
        // A parallel worker has its leader's value, but not what that would have after a RESET.
        let is_known = pg_sys::ParallelWorkerNumber < 0 || source == reset;
        let value = pg_sys::GetConfigOptionResetString(setting.as_ptr());
        ((!value.is_null()).then(|| text::from_c(value)), is_known && reset <= pg_sys::GucSource::PGC_S_ARGV)
    };
    // Where a database, a role or a client has put its own value in place of the server's, only the files know that.
    if is_servers { value } else { of_files(setting) }
}

/// The variable of a setting that this extension has defined.
fn find(setting: &CStr) -> Option<*mut pg_sys::config_generic> {
    // SAFETY: the names of PostgreSQL's variables end in NUL.
    #[cfg(feature = "pg15")]
    let variable = unsafe {
        let count = usize::try_from(pg_sys::GetNumConfigOptions()).unwrap_or(0);
        let variables = std::slice::from_raw_parts(pg_sys::get_guc_variables(), count);
        variables.iter().copied().find(|variable| CStr::from_ptr((**variable).name) == setting)
    };
    // SAFETY: the name ends in NUL; a variable that there is not is NULL.
    #[cfg(not(feature = "pg15"))]
    let variable = unsafe {
        let found = pg_sys::find_option(setting.as_ptr(), false, true, pg_sys::DEBUG2 as i32);
        (!found.is_null()).then_some(found)
    };
    variable
}

/// What the files said of a setting, and when the server had read them before that.
type Read = (&'static CStr, pg_sys::TimestampTz, Option<String>);

thread_local! {
    static FILES: RefCell<Option<Read>> = const { RefCell::new(None) };
}

/// The value that the configuration files give a setting. They are read again when the server has read them again.
fn of_files(setting: &'static CStr) -> Option<String> {
    // SAFETY: reads a process-wide variable.
    let reloaded = unsafe { pg_sys::PgReloadTime };
    let known = FILES.with_borrow(|read| {
        read.as_ref().filter(|(of, at, _)| *of == setting && *at == reloaded).map(|(.., value)| value.clone())
    });
    known.unwrap_or_else(|| {
        let value = read_files(setting);
        FILES.set(Some((setting, reloaded, value.clone())));
        value
    })
}

fn read_files(setting: &CStr) -> Option<String> {
    let (mut first, mut last) = (std::ptr::null_mut::<pg_sys::ConfigVariable>(), std::ptr::null_mut());
    let mut found = None;
    // SAFETY: reads the files as PostgreSQL does (guc-file.l, ProcessConfigFileInternal) into a list that is freed below. What
    // cannot be read is an item without a value.
    unsafe {
        let level = pg_sys::DEBUG2 as i32;
        let nobody = std::ptr::null();
        pg_sys::ParseConfigFile(pg_sys::ConfigFileName, true, nobody, 0, 0, level, &mut first, &mut last);
        let written_by_alter_system = pg_sys::PG_AUTOCONF_FILENAME.as_ptr();
        pg_sys::ParseConfigFile(written_by_alter_system, false, nobody, 0, 0, level, &mut first, &mut last);
        let mut item = first;
        while let Some(variable) = item.as_ref() {
            let is_it = !variable.name.is_null()
                && !variable.value.is_null()
                && CStr::from_ptr(variable.name).to_bytes().eq_ignore_ascii_case(setting.to_bytes());
            if is_it {
                found = Some(text::from_c(variable.value));
            }
            item = variable.next;
        }
        pg_sys::FreeConfigVariables(first);
    }
    found
}

/// Whether a role is a superuser.
pub fn is_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: a lookup in the system cache; a role that is gone is none.
    unsafe { pg_sys::superuser_arg(role) }
}
