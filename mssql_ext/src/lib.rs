//! SQL Server's language extension: `sp_execute_external_script` to functions in containers.
//!
//! The exported functions of Microsoft's API, in the order in which the host calls them. Each turns the host's pointers
//! into references ([`mod@guard`]) and makes one safe call: a [`session::Session`] binds the input columns to a function's
//! arguments ([`binding`]), sends the rows of each Execute as batches through `udf_protocol` ([`execution`]), and keeps the
//! results for the host to read ([`results`]). `docs/sqlserver.md` tells what the API says, and what is not known of it.

mod abi;
mod binding;
mod columns;
mod execution;
mod feed;
mod function;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod library;
mod process;
mod report;
mod results;
mod script;
mod session;
mod settings;
mod telemetry;

use std::path::{Path, PathBuf};

use abi::{
    CALLBACKS_WITH_LOG_BYTES, HostCallbacks, SQL_ERROR, SQL_NULL_DATA, SQL_PARAM_INPUT, SQL_SUCCESS, SqlGuid,
    SqlReturn, code, level,
};
use binding::{InputColumn, Parameter};
use columns::ServerType;
use columns::decimal;
use columns::raw::RawColumn;
use columns::to_arrow::refuse;
use guard::{Failure, broken, element, guard, guard_and_tell, host_owned_text, out, required_text, text};
use process::{Process, with_session};
use script::Script;
use session::Session;
use settings::Settings;
use udf_types::{Error, Result};

/// Which version of the interface the extension speaks.
#[unsafe(no_mangle)]
pub extern "C" fn GetInterfaceVersion() -> u16 {
    std::panic::catch_unwind(settings::interface_version).unwrap_or(2)
}

/// Starts the process: settings, and where libraries are.
///
/// # Safety
/// Strings are NULL or as long as they say. So for all functions below; what they write to is NULL or theirs to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Init(
    parameters: *const u8,
    parameters_length: u64,
    _extension_path: *const u8,
    _extension_path_length: u64,
    public_path: *const u8,
    public_path_length: u64,
    private_path: *const u8,
    private_path_length: u64,
) -> SqlReturn {
    guard("Init", None, || {
        // SAFETY: the host passes strings as long as it says.
        let (parameters, public, private) = unsafe {
            (
                text(parameters, parameters_length as usize, "ExtensionParams")?,
                text(public_path, public_path_length as usize, "PublicLibraryPath")?,
                text(private_path, private_path_length as usize, "PrivateLibraryPath")?,
            )
        };
        // Hosts may count a terminating NUL.
        let settings = Settings::read(std::env::vars_os().filter_map(utf8_pair), parameters.trim_end_matches('\0'))?;
        let folders = [private, public].into_iter().map(|path| path.trim_end_matches('\0'));
        let library_folders = folders.filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        guard::keep_freed_memory();
        process::start(Process { settings, library_folders });
        Ok(())
    })
}

fn utf8_pair((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// Takes the host's function for extended events.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SetHostCallbacks(callbacks: *const HostCallbacks) -> SqlReturn {
    guard("SetHostCallbacks", None, || {
        if callbacks.is_null() {
            return Err(broken("SetHostCallbacks was given NULL").into());
        }
        // SAFETY: a structure of any version starts with its version and its size.
        let (version, size) = unsafe { ((*callbacks).version, (*callbacks).size_in_bytes) };
        // A size of 0 is what hosts of the first version leave.
        if version < 1 || (size != 0 && size < CALLBACKS_WITH_LOG_BYTES) {
            return Err(broken(&format!("callbacks of version {version} and {size} bytes are impossible")).into());
        }
        // SAFETY: the structure has the field, as its size says.
        let callback = unsafe { (*callbacks).log_xevent };
        report::set_log(callback);
        let text = format!("transship {} was loaded", env!("CARGO_PKG_VERSION"));
        report::log_event(None, level::INFORMATION, 0, &text);
        Ok(())
    })
}

/// Installs a library: `CREATE EXTERNAL LIBRARY`.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InstallExternalLibrary(
    session: SqlGuid,
    name: *const u8,
    name_length: i32,
    file: *const u8,
    file_length: i32,
    directory: *const u8,
    directory_length: i32,
    error: *mut *mut u8,
    error_length: *mut i32,
) -> SqlReturn {
    // SAFETY: the host passes strings as long as it says, and places to write to.
    unsafe {
        with_library_error("InstallExternalLibrary", session, error, error_length, || {
            let name = library_text(name, name_length, "LibraryName")?;
            let file = library_text(file, file_length, "LibraryFile")?;
            let directory = library_text(directory, directory_length, "LibraryInstallDirectory")?;
            library::install(&*process::current()?, name, Path::new(file), Path::new(directory))
        })
    }
}

/// Removes a library: `DROP EXTERNAL LIBRARY`.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn UninstallExternalLibrary(
    session: SqlGuid,
    name: *const u8,
    name_length: i32,
    directory: *const u8,
    directory_length: i32,
    error: *mut *mut u8,
    error_length: *mut i32,
) -> SqlReturn {
    // SAFETY: as above.
    unsafe {
        with_library_error("UninstallExternalLibrary", session, error, error_length, || {
            let name = library_text(name, name_length, "LibraryName")?;
            let directory = library_text(directory, directory_length, "LibraryInstallDirectory")?;
            library::uninstall(&*process::current()?, name, Path::new(directory))
        })
    }
}

/// A string of the library functions, which must be there and not be empty.
unsafe fn library_text<'a>(pointer: *const u8, length: i32, what: &str) -> Result<&'a str> {
    let length = usize::try_from(length).map_err(|_| broken(&format!("the length of {what} is below zero")))?;
    // SAFETY: the caller says so.
    let text = unsafe { required_text(pointer, length, what)? }.trim_end_matches('\0');
    if text.is_empty() { Err(broken(&format!("{what} is empty"))) } else { Ok(text) }
}

/// Runs the body of a library function; what it says goes to the DBA, who sees nothing else.
unsafe fn with_library_error(
    function: &str,
    session: SqlGuid,
    error: *mut *mut u8,
    error_length: *mut i32,
    body: impl FnOnce() -> Result<()>,
) -> SqlReturn {
    let said = guard_and_tell(function, Some((session, 0)), || Ok(body()?));
    let (text, length) = said.as_deref().map_or((std::ptr::null_mut(), 0), host_owned_text);
    // SAFETY: each is NULL or a place to write to.
    let (error, error_length) = unsafe { (error.as_mut(), error_length.as_mut()) };
    match error {
        Some(place) => *place = text,
        // SAFETY: nobody else will free what malloc gave.
        None => unsafe { libc::free(text.cast()) },
    }
    if let Some(place) = error_length {
        *place = length;
    }
    if said.is_none() { SQL_SUCCESS } else { SQL_ERROR }
}

/// Starts a session: reads the script.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitSession(
    session: SqlGuid,
    task: u16,
    tasks: u16,
    script: *const u8,
    script_length: u64,
    columns: u16,
    parameters: u16,
    input_name: *const u8,
    input_name_length: u16,
    output_name: *const u8,
    output_name_length: u16,
) -> SqlReturn {
    let key = (session, task);
    guard("InitSession", Some(key), || {
        let process = process::current()?;
        // SAFETY: the host passes strings as long as it says.
        let script = unsafe {
            required_text(input_name, usize::from(input_name_length), "InputDataName")?;
            required_text(output_name, usize::from(output_name_length), "OutputDataName")?;
            required_text(script, script_length as usize, "Script")?
        };
        let script = Script::parse(script.trim_end_matches('\0'), |name| {
            let installed = library::find(&process, name)?;
            Ok((installed.image, installed.digest))
        })?;
        let session = Session::new(process, script, tasks, usize::from(columns), usize::from(parameters));
        Ok(process::add_session(key, session)?)
    })
}

/// Describes an input column.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitColumn(
    session: SqlGuid,
    task: u16,
    number: u16,
    name: *const u8,
    name_length: i16,
    data_type: i16,
    size: u64,
    digits: i16,
    nullable: i16,
    partition_by: i16,
    _order_by: i16,
) -> SqlReturn {
    let key = (session, task);
    guard("InitColumn", Some(key), || {
        // SAFETY: the host passes a string as long as it says; a column may be without a name.
        let name = unsafe { text(name, usize::try_from(name_length).unwrap_or(0), "ColumnName")? };
        let name = name.trim_end_matches('\0').to_string();
        with_session(key, |session| -> Result<()> {
            let sql = ServerType::from_host(data_type, size, digits).map_err(|what| refuse("column", &name, what))?;
            session.init_column(usize::from(number), InputColumn { name, sql, nullable, partition_by })
        })?;
        Ok(())
    })
}

/// Describes a parameter, and copies its value.
///
/// # Safety
/// As for [`Init`]; a value is as long as its type or its indicator says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitParam(
    session: SqlGuid,
    task: u16,
    number: u16,
    name: *const u8,
    name_length: i16,
    data_type: i16,
    size: u64,
    digits: i16,
    value: *const u8,
    indicator: i32,
    input_output: i16,
) -> SqlReturn {
    let key = (session, task);
    guard("InitParam", Some(key), || {
        // SAFETY: the host passes a string as long as it says.
        let name = unsafe { required_text(name, usize::try_from(name_length).unwrap_or(0), "ParamName")? };
        let name = name.trim_end_matches('\0').trim_start_matches('@').to_string();
        with_session(key, |session| -> Result<()> {
            let sql =
                ServerType::from_host(data_type, size, digits).map_err(|what| refuse("parameter", &name, what))?;
            // The indicator of a fixed-size value is no size.
            let length = match (sql.element_bytes(), usize::try_from(indicator)) {
                (Some(length), _) | (None, Ok(length)) => length,
                (None, Err(_)) if indicator == SQL_NULL_DATA => 0,
                (None, Err(_)) => {
                    return Err(broken(&format!("parameter \"@{name}\" has a length of {indicator} bytes")));
                }
            };
            let is_null = indicator == SQL_NULL_DATA || (value.is_null() && length > 0);
            // SAFETY: the value is not NULL, and so long.
            let bytes = (!is_null).then(|| unsafe { guard::bytes(value, length) }.to_vec());
            let bytes = bytes.filter(|bytes| !(data_type == code::NUMERIC && decimal::is_unset(bytes)));
            let is_output = input_output != SQL_PARAM_INPUT;
            session.init_parameter(usize::from(number), Parameter { name, sql, value: bytes, is_output })
        })?;
        Ok(())
    })
}

/// Calls the function for a chunk of rows.
///
/// # Safety
/// As for [`Init`]; the columns have so many rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Execute(
    session: SqlGuid,
    task: u16,
    rows: u64,
    data: *const *mut u8,
    indicators: *const *mut i32,
    columns: *mut u16,
) -> SqlReturn {
    let key = (session, task);
    guard("Execute", Some(key), || {
        // SAFETY: it is NULL or a place to write to.
        let columns = unsafe { out(columns, "OutputSchemaColumnsNumber")? };
        *columns = 0;
        let rows = usize::try_from(rows).map_err(|_| broken("the number of rows is impossible"))?;
        *columns = with_session(key, |session| -> std::result::Result<u16, Failure> {
            // SAFETY: without rows nothing is read; with rows there are as many pointers as columns, each to a column of so
            // many rows.
            let read = |number: usize, column: &InputColumn| unsafe {
                let (data, indicators) = match rows {
                    0 => (std::ptr::null_mut(), std::ptr::null_mut()),
                    _ => (element(data, number), element(indicators, number)),
                };
                RawColumn::new(column.sql, column.nullable, rows, data, indicators)
                    .map_err(|error| error.with_hint(format!("It is column \"{}\".", column.name)))
            };
            let count = session.execute(rows, |described| {
                described.iter().enumerate().map(|(number, column)| read(number, column)).collect()
            })?;
            u16::try_from(count).map_err(|_| Error::invalid_definition("the result has too many columns").into())
        })?;
        Ok(())
    })
}

/// Describes a result column.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetResultColumn(
    session: SqlGuid,
    task: u16,
    number: u16,
    data_type: *mut i16,
    size: *mut u64,
    digits: *mut i16,
    nullable: *mut i16,
) -> SqlReturn {
    let key = (session, task);
    guard("GetResultColumn", Some(key), || {
        // SAFETY: each is NULL or a place to write to.
        let (data_type, size, digits, nullable) = unsafe {
            (
                out(data_type, "DataType")?,
                out(size, "ColumnSize")?,
                out(digits, "DecimalDigits")?,
                out(nullable, "Nullable")?,
            )
        };
        let sql = with_session(key, |session| session.result_column(usize::from(number)))?;
        (*data_type, *size, *digits, *nullable) = results::describe(sql);
        Ok(())
    })
}

/// Gives the results of the last call of Execute.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetResults(
    session: SqlGuid,
    task: u16,
    rows: *mut u64,
    data: *mut *mut *mut u8,
    indicators: *mut *mut *mut i32,
) -> SqlReturn {
    let key = (session, task);
    guard("GetResults", Some(key), || {
        // SAFETY: each is NULL or a place to write to.
        let (rows, data, indicators) =
            unsafe { (out(rows, "RowsNumber")?, out(data, "Data")?, out(indicators, "StrLen_or_Ind")?) };
        with_session(key, |session| -> Result<()> {
            let results = session.results()?;
            (*rows, *data, *indicators) = (results.rows() as u64, results.data(), results.indicators());
            Ok(())
        })?;
        Ok(())
    })
}

/// Gives the value of an OUTPUT parameter.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetOutputParam(
    session: SqlGuid,
    task: u16,
    number: u16,
    value: *mut *mut u8,
    indicator: *mut i32,
) -> SqlReturn {
    let key = (session, task);
    guard("GetOutputParam", Some(key), || {
        // SAFETY: each is NULL or a place to write to.
        let (value, indicator) = unsafe { (out(value, "ParamValue")?, out(indicator, "StrLen_or_Ind")?) };
        let found = with_session(key, |session| session.output(usize::from(number)))?;
        (*value, *indicator) = found.unwrap_or((std::ptr::null_mut(), SQL_NULL_DATA));
        Ok(())
    })
}

/// Gives the session's counters.
///
/// # Safety
/// As for [`Init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetTelemetryResults(
    session: SqlGuid,
    task: u16,
    rows: *mut u32,
    names: *mut *mut *mut u8,
    name_lengths: *mut *mut i32,
    values: *mut *mut i64,
) -> SqlReturn {
    let key = (session, task);
    guard("GetTelemetryResults", Some(key), || {
        // SAFETY: each is NULL or a place to write to.
        let (rows, names, name_lengths, values) = unsafe {
            (
                out(rows, "RowsNumber")?,
                out(names, "CounterNames")?,
                out(name_lengths, "CounterNamesLength")?,
                out(values, "CounterValues")?,
            )
        };
        with_session(key, |session| -> Result<()> {
            (*rows, *names, *name_lengths, *values) = session.telemetry.hand_out();
            Ok(())
        })?;
        Ok(())
    })
}

/// Ends a session.
#[unsafe(no_mangle)]
pub extern "C" fn CleanupSession(session: SqlGuid, task: u16) -> SqlReturn {
    let key = (session, task);
    guard("CleanupSession", Some(key), || {
        process::end_session(key);
        Ok(())
    })
}

/// Ends the process's work. It may start again with Init.
#[unsafe(no_mangle)]
pub extern "C" fn Cleanup() -> SqlReturn {
    guard("Cleanup", None, || {
        process::end();
        report::set_log(None);
        Ok(())
    })
}
