//! Servers that run elsewhere: `CREATE SERVER ... FOREIGN DATA WRAPPER transship OPTIONS (endpoint ..., dialect ..., ca ..., ...)`,
//! and what they ask for: `CREATE USER MAPPING ... OPTIONS (token ..., headers ..., certificate ..., key ...)`. So that no secret stands in a
//! function's body. Certificates and keys are given as text, in PEM: no option names a file of the server's.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};

use pgrx::{pg_guard, pg_sys};
use udf_client::dispatch::Target;
use udf_client::transport::credentials::{Authorities, Headers, Identity};
use udf_client::transport::credentials::{Credentials, Token};
use udf_client::transport::proxy::Proxy;
use udf_project::dialect::Dialect;
use udf_project::remote::Remote;
use udf_types::{Error, Result};

use crate::pg::{catalog, list, rights, text};
use crate::report;

/// The option that lets secrets cross networks as plain text.
const PLAINTEXT_SECRETS: &str = "plaintext_secrets";
/// The option of a shared table that names its key columns.
pub const TABLE_KEY: &str = "key";
/// The option of a shared table that names its columns with dictionaries.
pub const TABLE_DICTIONARY: &str = "dictionary";
/// The foreign-data wrapper's name.
const WRAPPER: &CStr = c"transship";

/// Where a server listens, and what it speaks.
pub fn remote(name: &str) -> Result<Remote> {
    // SAFETY: the options are those of a server that was found.
    unsafe {
        let server = find(name)?;
        let endpoint = option((*server).options, "endpoint")
            .ok_or_else(|| Error::invalid_definition(format!("server \"{name}\" has no option \"endpoint\"")))?;
        let dialect = option((*server).options, "dialect").map(|name| Dialect::from_name(&name)).transpose()?;
        Remote::parse(&endpoint, dialect.unwrap_or_default())
    }
}

/// The key columns of a shared table, by name; none if the relation is no foreign table of the wrapper.
pub fn table_key(relation: pg_sys::Oid) -> Option<Vec<String>> {
    // SAFETY: lookups in the catalogs; what they return is palloc'd.
    unsafe {
        if pg_sys::get_rel_relkind(relation) as u8 != pg_sys::RELKIND_FOREIGN_TABLE {
            return None;
        }
        let table = pg_sys::GetForeignTable(relation);
        let server = pg_sys::GetForeignServer((*table).serverid);
        let wrapper = pg_sys::GetForeignDataWrapper((*server).fdwid);
        if CStr::from_ptr((*wrapper).fdwname) != WRAPPER {
            return None;
        }
        Some(option((*table).options, TABLE_KEY).map_or(Vec::new(), |names| report::unwrap(column_names(&names))))
    }
}

/// The columns of a shared table that have dictionaries, by name.
pub fn table_dictionary(relation: pg_sys::Oid) -> Vec<String> {
    // SAFETY: lookups in the catalogs; what they return is palloc'd.
    let names = unsafe { option((*pg_sys::GetForeignTable(relation)).options, TABLE_DICTIONARY) };
    names.map_or(Vec::new(), |names| report::unwrap(column_names(&names)))
}

/// The columns that an option names, separated by commas, as SQL writes names.
pub fn column_names(names: &str) -> Result<Vec<String>> {
    let malformed = || Error::invalid_definition(format!("\"{names}\" is not a list of columns"));
    let text = CString::new(names).map_err(|_| malformed())?;
    let mut found = std::ptr::null_mut();
    // SAFETY: the function changes the copy that it is given, to which the list's elements point.
    unsafe {
        let copy = pg_sys::pstrdup(text::to_server(&text));
        if !pg_sys::SplitIdentifierString(copy, b',' as std::ffi::c_char, &mut found) {
            return Err(malformed().with_hint("Write names of columns, separated by commas."));
        }
        Ok(list::elements::<std::ffi::c_char>(found).into_iter().map(|name| text::from_c(name)).collect())
    }
}

/// A server, with what the user has for it. Raises an error unless they may use it.
pub fn target(name: &str, user: pg_sys::Oid) -> Result<Target> {
    // SAFETY: lookups of a server that was found.
    unsafe {
        let server = find(name)?;
        rights::check_server_usage(server, user);
        let mapping = catalog::user_mapping((*server).serverid, user);
        let of_user = |name: &str| mapping.and_then(|options| option(options, name));
        let identity = match (of_user("certificate"), of_user("key")) {
            (Some(certificate), Some(key)) => Some(Identity::from_pem(&certificate, &key)?),
            (None, None) => None,
            _ => {
                let message =
                    format!("the user mapping for server \"{name}\" has only one of \"certificate\" and \"key\"");
                return Err(Error::invalid_definition(message));
            }
        };
        let credentials = Credentials {
            token: of_user("token").map(|token| Token::new(&token)).transpose()?,
            authorities: option((*server).options, "ca").map(|pem| Authorities::from_pem(&pem)).transpose()?,
            identity,
            headers: of_user("headers").map(|lines| Headers::new(&lines)).transpose()?.unwrap_or_default(),
            proxy: proxy(name, option((*server).options, "proxy"), of_user("proxy"))?,
            compression: option((*server).options, "compression").map(|name| compression(&name)).transpose()?
                == Some(true),
            server_user: None,
            folder: None,
        };
        let remote = remote(name)?;
        if !option((*server).options, PLAINTEXT_SECRETS).map(|value| switch(&value)).transpose()?.unwrap_or(false) {
            remote.check_secrecy(credentials.has_secrets())?;
        }
        Ok(Target::Remote { remote, credentials })
    }
}

/// The proxy of a server, with the login that a user mapping has for it. Whoever may use a server may write a mapping of their
/// own, which must not say where the database connects to, or who answers what others have asked.
fn proxy(server: &str, of_server: Option<String>, of_user: Option<String>) -> Result<Option<Proxy>> {
    let of_server = of_server.map(|text| Proxy::new(&text)).transpose()?;
    let Some(of_user) = of_user.map(|text| Proxy::new(&text)).transpose()? else { return Ok(of_server) };
    if of_server.is_some_and(|of_server| of_server.is_at(&of_user)) {
        return Ok(Some(of_user));
    }
    let message = format!("the user mapping for server \"{server}\" names another proxy than the server");
    Err(Error::invalid_definition(message).with_hint(
        "A mapping gives the user and password for the proxy that the server's option \"proxy\" names, by the same host and port.",
    ))
}

thread_local! {
    static CHANGES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// How often servers, user mappings, roles and what may be done with them have changed, as far as this backend knows: what
/// [`target`] gave holds while this does.
pub fn changes() -> u64 {
    CHANGES.get().unwrap_or_else(|| {
        use pg_sys::SysCacheIdentifier::*;
        for cache in [FOREIGNSERVEROID, USERMAPPINGOID, AUTHOID, AUTHMEMROLEMEM] {
            // SAFETY: the callback is a static function and takes no argument. It is registered once per process.
            unsafe {
                pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(note_change), pg_sys::Datum::from(0usize));
            }
        }
        CHANGES.set(Some(0));
        0
    })
}

/// Called at any time at which PostgreSQL looks for what others have changed.
unsafe extern "C-unwind" fn note_change(_argument: pg_sys::Datum, _cache: c_int, _hash: u32) {
    CHANGES.set(CHANGES.get().map(|changes| changes.wrapping_add(1)));
}

fn find(name: &str) -> Result<*mut pg_sys::ForeignServer> {
    let unknown =
        || Error::invalid_definition(format!("server \"{name}\" of foreign-data wrapper \"transship\" does not exist"));
    let text = CString::new(name).map_err(|_| unknown())?;
    // SAFETY: lookups in the catalogs; what they return is palloc'd.
    unsafe {
        let server = pg_sys::GetForeignServerByName(text::to_server(&text), true);
        if server.is_null() {
            return Err(unknown());
        }
        let wrapper = pg_sys::GetForeignDataWrapper((*server).fdwid);
        if CStr::from_ptr((*wrapper).fdwname) != WRAPPER {
            return Err(unknown());
        }
        Ok(server)
    }
}

/// A dialect in which an address may have a path, if it may have one at all.
fn any_dialect(address: &str) -> Dialect {
    if address.trim().starts_with("http://") || address.trim().starts_with("https://") {
        Dialect::Array
    } else {
        Dialect::Transship
    }
}

/// Whether that is a compression, and not none.
fn compression(name: &str) -> Result<bool> {
    match name {
        "gzip" => Ok(true),
        "none" => Ok(false),
        _ => Err(Error::invalid_definition(format!("unrecognized compression \"{name}\""))
            .with_hint("A compression is gzip or none.")),
    }
}

/// Whether something is switched on.
fn switch(value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => {
            Err(Error::invalid_definition(format!("unrecognized value \"{value}\" of option \"{PLAINTEXT_SECRETS}\""))
                .with_hint("It is on or off."))
        }
    }
}

/// # Safety
/// `options` is a list of DefElems with string values.
unsafe fn option(options: *mut pg_sys::List, name: &str) -> Option<String> {
    // SAFETY: the caller says so.
    unsafe {
        let found = list::elements::<pg_sys::DefElem>(options).into_iter();
        let mut found = found.filter(|element| CStr::from_ptr((**element).defname).to_bytes() == name.as_bytes());
        found.next().map(|element| text::from_c(pg_sys::defGetString(element)))
    }
}

/// The wrapper's validator: `fdw_validator(options text[], catalog oid)`.
#[pg_guard]
pub unsafe extern "C-unwind" fn validate_options(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL passes a valid fcinfo with options, as it stores them, and a catalog's oid.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(2);
        let catalog = pg_sys::Oid::from(arguments[1].value.value() as u32);
        let known: &[&str] = match catalog {
            pg_sys::ForeignServerRelationId => {
                &["endpoint", "dialect", "ca", "proxy", "compression", PLAINTEXT_SECRETS]
            }
            pg_sys::ForeignTableRelationId => &[TABLE_KEY, TABLE_DICTIONARY],
            pg_sys::UserMappingRelationId => &["token", "headers", "certificate", "key", "proxy"],
            _ => &[],
        };
        for element in list::elements::<pg_sys::DefElem>(pg_sys::untransformRelOptions(arguments[0].value)) {
            let name = text::from_c((*element).defname);
            if !known.contains(&name.as_str()) {
                let error = Error::invalid_definition(format!("unrecognized option \"{name}\""));
                let names: Vec<String> = known.iter().map(|name| format!("\"{name}\"")).collect();
                let hint = match names.as_slice() {
                    [] => "There are no options here.".to_string(),
                    names => format!("The options here are {}.", names.join(", ")),
                };
                report::raise_error(&error.with_hint(hint), None);
            }
            let value = text::from_c(pg_sys::defGetString(element));
            report::unwrap(match name.as_ref() {
                // Together with its dialect, when it is used: the path of an address depends on it.
                "endpoint" => {
                    value.split(',').try_for_each(|address| Remote::parse(address, any_dialect(address)).map(drop))
                }
                "dialect" => Dialect::from_name(&value).map(drop),
                "headers" => Headers::new(&value).map(drop),
                "token" => Token::new(&value).map(drop),
                "proxy" => Proxy::new(&value).map(drop),
                "compression" => compression(&value).map(drop),
                PLAINTEXT_SECRETS => switch(&value).map(drop),
                TABLE_KEY | TABLE_DICTIONARY if catalog == pg_sys::ForeignTableRelationId => {
                    column_names(&value).map(drop)
                }
                // A key is looked at together with its certificate, when it is used.
                "key" => Ok(()),
                _ => Authorities::from_pem(&value).map(drop),
            });
        }
    }
    pg_sys::Datum::from(0usize)
}
