//! A loaded extension: each exported function as a method that takes safe values.
//!
//! Strings are passed as the host does: UTF-8, with a NUL that the length does not count, in memory that is gone after the
//! call.
//!
//! All `unsafe` calls here are of one kind, so they are argued for here once: [`Extension::call`] finds the function under
//! the name whose type the API fixes; what is passed is kept by `strings`, or is a local variable, until it returns.

use std::cell::RefCell;
use std::ffi::c_void;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use nix::sys::signal::{Signal, raise};

use crate::abi::{self, Guid, HostCallbacks, SQL_NULL_DATA, SQL_SUCCESS};
use crate::buffers::{Buffer, Kind};
use crate::readings::Readings;
use crate::types::ApiType;

/// Events that the extension has logged: level, code, message.
static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A call of the API, `NAME` or `NAME:NUMBER` if it is not the first of its name.
#[derive(Debug, Clone)]
pub struct Moment {
    name: String,
    number: u32,
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "1"));
        let number = number.parse().map_err(|cause| format!("{number:?} is no number: {cause}"))?;
        Ok(Moment { name: name.to_string(), number })
    }
}

/// An extension.
pub struct Extension {
    library: Option<Library>,
    readings: Readings,
    kind: Kind,
    /// When this process is killed, and how many calls of that name there were.
    kill_at: Option<Moment>,
    calls: AtomicU32,
    /// Memory of the call at hand.
    strings: RefCell<Vec<Buffer>>,
}

/// What a call said that was not success.
#[derive(Debug)]
pub struct Refused {
    pub function: &'static str,
    pub code: i16,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} returned {}", self.function, self.code)
    }
}

pub type Outcome<T> = Result<T, Refused>;

/// A result column, as the extension describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescribedResult {
    pub ty: ApiType,
    pub nullable: i16,
}

/// Results, where the extension keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawResults {
    pub rows: u64,
    pub data: *const *const u8,
    pub indicators: *const *const i32,
}

// SAFETY: the pointers are only numbers until the host reads them, on one thread at a time.
unsafe impl Send for RawResults {}

unsafe extern "C" fn log_event(
    name: *const u8,
    name_length: u64,
    _: Guid,
    _: u16,
    level: u16,
    code: i32,
    message: *const u8,
    length: u64,
) {
    // SAFETY: the extension passes texts as long as it says.
    let (name, message) = unsafe {
        (std::slice::from_raw_parts(name, name_length as usize), std::slice::from_raw_parts(message, length as usize))
    };
    let line = format!("{} {level} {code} {}", String::from_utf8_lossy(name), String::from_utf8_lossy(message));
    if let Ok(mut events) = EVENTS.lock() {
        events.push(line);
    }
}

/// Events since the last time.
pub fn take_events() -> Vec<String> {
    EVENTS.lock().map(|mut events| std::mem::take(&mut *events)).unwrap_or_default()
}

impl Extension {
    /// Loads a shared object. The process is killed once it has made the call that `kill_at` names.
    pub fn load(path: &Path, readings: Readings, kind: Kind, kill_at: Option<Moment>) -> Result<Extension, String> {
        // SAFETY: an extension has no initialisers worth the name; it is what this program is for to load it.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|cause| format!("could not load {}: {cause}", path.display()))?;
        let (calls, strings) = Default::default();
        let extension = Extension { library: Some(library), readings, kind, kill_at, calls, strings };
        for name in REQUIRED {
            if extension.find::<*const c_void>(name).is_none() {
                return Err(format!("{} does not export {name}", path.display()));
            }
        }
        Ok(extension)
    }

    fn find<T>(&self, name: &str) -> Option<Symbol<T>> {
        // SAFETY: the caller names the type that the API gives to the function of that name.
        unsafe { self.library.as_ref()?.get(name).ok() }
    }

    /// Calls a function, on a thread of its own if the host works so, and lets go of what was passed.
    fn call<T: Copy + Send, R: Send>(&self, name: &'static str, call: impl FnOnce(T) -> R + Send) -> R {
        let function: T = *self.find::<T>(name).unwrap_or_else(|| panic!("{name} is not exported"));
        let answer = if self.readings.is_one_thread {
            call(function)
        } else {
            std::thread::scope(|scope| scope.spawn(move || call(function)).join().expect("the call does not unwind"))
        };
        self.strings.borrow_mut().clear();
        if let Some(moment) = self.kill_at.as_ref().filter(|moment| moment.name == name)
            && self.calls.fetch_add(1, Relaxed) + 1 == moment.number
        {
            let _ = raise(Signal::SIGKILL);
        }
        answer
    }

    fn done(function: &'static str, code: i16) -> Outcome<()> {
        if code == SQL_SUCCESS { Ok(()) } else { Err(Refused { function, code }) }
    }

    /// A string for the call at hand.
    fn string(&self, text: &str) -> Address {
        let mut content = text.as_bytes().to_vec();
        content.push(0);
        self.memory(&content)
    }

    fn memory(&self, content: &[u8]) -> Address {
        let buffer = Buffer::new(self.kind, content);
        let address = Address(buffer.as_ptr() as usize);
        self.strings.borrow_mut().push(buffer);
        address
    }

    pub fn has(&self, name: &str) -> bool {
        self.find::<*const c_void>(name).is_some()
    }

    pub fn get_interface_version(&self) -> u16 {
        // SAFETY: so for all calls below: the function has the API's type, and what is passed lives during the call.
        self.call("GetInterfaceVersion", |f: abi::GetInterfaceVersion| unsafe { f() })
    }

    pub fn init(&self, parameters: &str, path: &str, public: &str, private: &str) -> Outcome<()> {
        let lengths = [parameters, path, public, private].map(|text| text.len() as u64);
        let texts = [parameters, path, public, private].map(|text| self.string(text));
        // SAFETY: the header argues for all calls.
        let code = self.call("Init", |f: abi::Init| unsafe {
            f(
                texts[0].get(),
                lengths[0],
                texts[1].get(),
                lengths[1],
                texts[2].get(),
                lengths[2],
                texts[3].get(),
                lengths[3],
            )
        });
        Extension::done("Init", code)
    }

    /// As `version` of the structure and with the size that Microsoft's tests leave, 0, or its own.
    pub fn set_host_callbacks(&self, version: u16, size: u32) -> Outcome<()> {
        let code = self.call("SetHostCallbacks", |f: abi::SetHostCallbacks| {
            let callbacks = HostCallbacks {
                version,
                reserved0: 0,
                size_in_bytes: size,
                log_xevent: Some(log_event),
                reserved1: std::ptr::null_mut(),
                reserved2: std::ptr::null_mut(),
            };
            // SAFETY: the header argues for all calls.
            unsafe { f(&raw const callbacks) }
        });
        Extension::done("SetHostCallbacks", code)
    }

    #[allow(clippy::too_many_arguments, reason = "as many as the API has")]
    pub fn init_session(
        &self,
        id: Guid,
        task: u16,
        tasks: u16,
        script: &str,
        columns: usize,
        parameters: usize,
    ) -> Outcome<()> {
        let (length, script) = (script.len() as u64, self.string(script));
        let (input, output) = (self.string("InputDataSet"), self.string("OutputDataSet"));
        // SAFETY: the header argues for all calls.
        let code = self.call("InitSession", |f: abi::InitSession| unsafe {
            f(
                id,
                task,
                tasks,
                script.get(),
                length,
                columns as u16,
                parameters as u16,
                input.get(),
                12,
                output.get(),
                13,
            )
        });
        Extension::done("InitSession", code)
    }

    #[allow(clippy::too_many_arguments, reason = "as many as the API has")]
    pub fn init_column(
        &self,
        id: Guid,
        task: u16,
        number: usize,
        name: &str,
        ty: ApiType,
        is_nullable: bool,
        partition: i16,
        order: i16,
    ) -> Outcome<()> {
        let (length, name) = (name.len() as i16, self.string(name));
        // SAFETY: the header argues for all calls.
        let code = self.call("InitColumn", |f: abi::InitColumn| unsafe {
            f(
                id,
                task,
                number as u16,
                name.get(),
                length,
                ty.code,
                ty.size,
                ty.digits,
                i16::from(is_nullable),
                partition,
                order,
            )
        });
        Extension::done("InitColumn", code)
    }

    #[allow(clippy::too_many_arguments, reason = "as many as the API has")]
    pub fn init_param(
        &self,
        id: Guid,
        task: u16,
        number: usize,
        name: &str,
        ty: ApiType,
        value: Option<&[u8]>,
        is_output: bool,
    ) -> Outcome<()> {
        let (length, name) = (name.len() as i16, self.string(name));
        let indicator = match value {
            None => SQL_NULL_DATA,
            // Of fixed-size values the number says nothing, so it is 0.
            Some(bytes) => {
                if ty.element_bytes().is_some() {
                    0
                } else {
                    bytes.len() as i32
                }
            }
        };
        let value = value.map_or(Address(0), |bytes| self.memory(bytes));
        let direction = if is_output { 2 } else { 1 };
        // SAFETY: the header argues for all calls.
        let code = self.call("InitParam", |f: abi::InitParam| unsafe {
            f(
                id,
                task,
                number as u16,
                name.get(),
                length,
                ty.code,
                ty.size,
                ty.digits,
                value.get().cast(),
                indicator,
                direction,
            )
        });
        Extension::done("InitParam", code)
    }

    /// The number of result columns. The pointers are the caller's.
    pub fn execute(&self, id: Guid, task: u16, rows: u64, data: &[usize], indicators: &[usize]) -> Outcome<u16> {
        let as_memory = |pointers: &[usize]| {
            let content: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
            if pointers.is_empty() { Address(0) } else { self.memory(&content) }
        };
        let (data, indicators) = (as_memory(data), as_memory(indicators));
        // An extension that forgets to write it is found out.
        let mut columns = 0xdddd;
        // SAFETY: the header argues for all calls.
        let code = self.call("Execute", |f: abi::Execute| unsafe {
            f(id, task, rows, data.get().cast(), indicators.get().cast(), &raw mut columns)
        });
        Extension::done("Execute", code).map(|()| columns)
    }

    pub fn get_result_column(&self, id: Guid, task: u16, number: u16) -> Outcome<DescribedResult> {
        let (mut code, mut size, mut digits, mut nullable) = (0x5ddd, 0xdddd_dddd_dddd_dddd, 0x5ddd, 0x5ddd);
        // SAFETY: the header argues for all calls.
        let outcome = self.call("GetResultColumn", |f: abi::GetResultColumn| unsafe {
            f(id, task, number, &raw mut code, &raw mut size, &raw mut digits, &raw mut nullable)
        });
        Extension::done("GetResultColumn", outcome)?;
        Ok(DescribedResult { ty: ApiType { code, size, digits }, nullable })
    }

    pub fn get_results(&self, id: Guid, task: u16) -> Outcome<RawResults> {
        let results = self.call("GetResults", |f: abi::GetResults| {
            let mut results = RawResults { rows: u64::MAX, data: std::ptr::null(), indicators: std::ptr::null() };
            let code =
                // SAFETY: the header argues for all calls.
                unsafe { f(id, task, &raw mut results.rows, &raw mut results.data, &raw mut results.indicators) };
            (code, results)
        });
        Extension::done("GetResults", results.0).map(|()| results.1)
    }

    /// The bytes of an OUTPUT parameter, copied. Values of fixed size are read as long as their type says.
    pub fn get_output_param(
        &self,
        id: Guid,
        task: u16,
        number: usize,
        ty: ApiType,
    ) -> Outcome<Result<Option<Vec<u8>>, String>> {
        let (code, address, indicator) = self.call("GetOutputParam", |f: abi::GetOutputParam| {
            let (mut value, mut indicator) = (std::ptr::null(), 0x5ddd_dddd);
            // SAFETY: the header argues for all calls.
            let code = unsafe { f(id, task, number as u16, &raw mut value, &raw mut indicator) };
            (code, value as usize, indicator)
        });
        Extension::done("GetOutputParam", code)?;
        if indicator == SQL_NULL_DATA {
            return Ok(Ok(None));
        }
        let Ok(length) = usize::try_from(indicator) else { return Ok(Err(format!("a length of {indicator}"))) };
        if ty.element_bytes().is_some_and(|element| element != length) {
            return Ok(Err(format!("a length of {length} for a value of fixed size")));
        }
        if ty.element_bytes().is_none() && ty.size <= 8000 && length as u64 > ty.size {
            return Ok(Err(format!("a length of {length}, and the parameter has {}", ty.size)));
        }
        if address == 0 {
            return Ok(Err("a NULL pointer to a value that is not NULL".to_string()));
        }
        // SAFETY: the extension says that so many bytes are there.
        Ok(Ok(Some(unsafe { std::slice::from_raw_parts(address as *const u8, length) }.to_vec())))
    }

    /// Names and values of the counters.
    pub fn get_telemetry(&self, id: Guid, task: u16) -> Outcome<Vec<(String, i64)>> {
        let (code, counters) = self.call("GetTelemetryResults", |f: abi::GetTelemetryResults| {
            let (mut rows, mut names, mut lengths, mut values) =
                (0, std::ptr::null(), std::ptr::null(), std::ptr::null());
            // SAFETY: the header argues for all calls.
            let code = unsafe { f(id, task, &raw mut rows, &raw mut names, &raw mut lengths, &raw mut values) };
            let mut counters = Vec::new();
            for i in 0..if code == SQL_SUCCESS { rows as usize } else { 0 } {
                // SAFETY: the extension says that so many counters are there.
                unsafe {
                    let name = std::slice::from_raw_parts(*names.add(i), *lengths.add(i) as usize);
                    counters.push((String::from_utf8_lossy(name).into_owned(), *values.add(i)));
                }
            }
            (code, counters)
        });
        Extension::done("GetTelemetryResults", code).map(|()| counters)
    }

    pub fn cleanup_session(&self, id: Guid, task: u16) -> Outcome<()> {
        // SAFETY: the header argues for all calls.
        let code = self.call("CleanupSession", |f: abi::CleanupSession| unsafe { f(id, task) });
        Extension::done("CleanupSession", code)
    }

    pub fn cleanup(&self) -> Outcome<()> {
        // SAFETY: the header argues for all calls.
        let code = self.call("Cleanup", |f: abi::Cleanup| unsafe { f() });
        Extension::done("Cleanup", code)
    }

    /// Installs a library, or removes it if there is no file; the message is the extension's, freed as the host does.
    pub fn change_library(&self, id: Guid, name: &str, file: Option<&str>, folder: &str) -> Result<(), String> {
        let (name_length, name) = (name.len() as i32, self.string(name));
        let (folder_length, folder) = (folder.len() as i32, self.string(folder));
        let (code, message, length) = if let Some(file) = file {
            let (file_length, file) = (file.len() as i32, self.string(file));
            self.call("InstallExternalLibrary", |f: abi::InstallExternalLibrary| {
                let (mut message, mut length) = (std::ptr::null_mut(), 0);
                let (at, bytes) = (&raw mut message, &raw mut length);
                // SAFETY: the header argues for all calls.
                let code = unsafe {
                    f(id, name.get(), name_length, file.get(), file_length, folder.get(), folder_length, at, bytes)
                };
                (code, message as usize, length)
            })
        } else {
            self.call("UninstallExternalLibrary", |f: abi::UninstallExternalLibrary| {
                let (mut message, mut length) = (std::ptr::null_mut(), 0);
                let (at, bytes) = (&raw mut message, &raw mut length);
                // SAFETY: the header argues for all calls.
                let code = unsafe { f(id, name.get(), name_length, folder.get(), folder_length, at, bytes) };
                (code, message as usize, length)
            })
        };
        let mut text = String::new();
        if message != 0 {
            // SAFETY: the extension says that the message has so many bytes and a NUL, and that malloc made it.
            unsafe {
                let bytes = std::slice::from_raw_parts(message as *const u8, length as usize + 1);
                text = String::from_utf8_lossy(&bytes[..length as usize]).into_owned();
                assert_eq!(bytes[length as usize], 0, "LibraryError ends in NUL");
                libc::free(message as *mut c_void);
            }
        }
        match (code, text.is_empty()) {
            (SQL_SUCCESS, true) => Ok(()),
            (SQL_SUCCESS, false) => Err(format!("contract: success with the message {text}")),
            _ => Err(text),
        }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        if self.readings.stays_loaded {
            std::mem::forget(self.library.take());
        }
    }
}

/// An address on its way to another thread.
#[derive(Clone, Copy)]
struct Address(usize);

impl Address {
    fn get(self) -> *const u8 {
        self.0 as *const u8
    }
}

/// What every extension exports.
const REQUIRED: [&str; 11] = [
    "GetInterfaceVersion",
    "Init",
    "InitSession",
    "InitColumn",
    "InitParam",
    "Execute",
    "GetResultColumn",
    "GetResults",
    "GetOutputParam",
    "CleanupSession",
    "Cleanup",
];
