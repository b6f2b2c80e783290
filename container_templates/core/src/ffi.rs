//! The C interface. `include/transship_core.h` is its documentation and its contract: what each function takes, gives and owns.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow_data::ArrayData;
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::batches::Taken;
use crate::error::{CallError, words_of};
use crate::lent_column::LentColumn;
use crate::plain::plain_type;
use crate::pulled_server::PulledServer;
use crate::queue::Found;
use crate::work::{Reply, Work};

const VERSION: u32 = 1;
pub(crate) const OK: i32 = 0;
const NOTHING: i32 = 1;
const ENDED: i32 = 2;
pub(crate) const UNWANTED: i32 = 3;
const INVALID: i32 = -1;
const FAILED: i32 = -2;
const FAULT: i32 = -3;

/// `transship_server`.
pub struct Server {
    server: PulledServer,
    functions: Vec<FunctionTexts>,
}

/// What a `transship_function` points to.
struct FunctionTexts {
    name: CString,
    kind: CString,
    batch: CString,
    result: CString,
    result_format: CString,
    arguments: Vec<CString>,
}

/// `transship_work`.
pub struct PulledWork {
    pub(crate) work: Arc<Work>,
    pub(crate) lent: Mutex<Lent>,
}

impl Drop for PulledWork {
    /// Work that is not answered, because its reply could not be read, ends with an error: its client does not wait for ever.
    fn drop(&mut self) {
        if !self.work.is_answered() {
            self.work.end(Reply::Failed(CallError::bad_result("Its reply cannot be read.")));
        }
    }
}

/// What the language reads by pointers.
#[derive(Default)]
pub(crate) struct Lent {
    /// The batch that `transship_work_next_columns` has taken.
    pub(crate) batch: Option<RecordBatch>,
    /// What `transship_work_column` has made.
    pub(crate) columns: Vec<LentColumn>,
}

/// `transship_function`.
#[repr(C)]
pub struct FunctionInfo {
    name: *const c_char,
    kind: *const c_char,
    batch: *const c_char,
    result: *const c_char,
    result_format: *const c_char,
    arguments: usize,
}

/// `transship_work_info`.
#[repr(C)]
pub struct WorkInfo {
    function: usize,
    step: i32,
    row_errors: i32,
    exchange: u64,
    rows: usize,
}

thread_local! {
    /// Why this thread's last call failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Why a call fails.
pub(crate) enum Failure {
    Invalid(&'static str),
    Failed(String),
}

/// A text for C, up to its first zero.
pub(crate) fn c_text(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

fn say(text: &str) {
    MESSAGE.set(c_text(text));
}

/// The frame of each function: a panic does not cross the border.
pub(crate) fn entry(work: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(|| {
        say("");
        work()
    }));
    match done {
        Ok(Ok(status)) => status,
        Ok(Err(Failure::Invalid(fact))) => {
            say(fact);
            INVALID
        }
        Ok(Err(Failure::Failed(fact))) => {
            say(&fact);
            FAILED
        }
        Err(cause) => {
            say(words_of(cause.as_ref()));
            FAULT
        }
    }
}

/// What a pointer of the caller leads to.
///
/// # Safety
/// It is NULL, or the caller holds what it leads to for the whole call.
pub(crate) unsafe fn borrowed<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: the caller of this function vouches for it.
    unsafe { pointer.as_ref() }.ok_or(Failure::Invalid(name))
}

/// A text of the caller.
///
/// # Safety
/// It is NULL, or ends with a zero and does not change during the call.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<std::borrow::Cow<'a, str>, Failure> {
    if pointer.is_null() {
        return Err(Failure::Invalid(name));
    }
    // SAFETY: it is not NULL, and the caller of this function vouches for the rest.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy())
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `to` is NULL, or memory for a `T` that nothing else uses, and which may hold anything.
pub(crate) unsafe fn give<T>(to: *mut T, value: T, name: &'static str) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::Invalid(name));
    }
    // SAFETY: it is not NULL, and the caller of this function vouches for the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// Takes over the columns of a reply. Both structs are released whatever happens.
///
/// # Safety
/// Both are NULL, or follow the Arrow C data interface.
pub(crate) unsafe fn columns(
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> Result<Vec<ArrayRef>, String> {
    if array.is_null() && schema.is_null() {
        return Ok(Vec::new());
    }
    if array.is_null() || schema.is_null() {
        return Err("the columns or their schema are NULL".to_string());
    }
    // SAFETY: neither is NULL, and the caller hands both over; from_raw marks them as released, so nothing is released twice.
    let (array, schema) = unsafe { (FFI_ArrowArray::from_raw(array), FFI_ArrowSchema::from_raw(schema)) };
    if array.is_released() || schema.release().is_none() {
        return Err("the columns or their schema are released already".to_string());
    }
    // SAFETY: the caller vouches that they follow the C data interface; the values are checked below.
    let data: ArrayData = unsafe { from_ffi(array, &schema) }.map_err(|cause| cause.to_string())?;
    data.validate_full().map_err(|cause| cause.to_string())?;
    if data.null_count() > 0 || !matches!(data.data_type(), arrow_schema::DataType::Struct(_)) {
        return Err("the columns are no array of structs".to_string());
    }
    Ok(StructArray::from(data).columns().to_vec())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn transship_core_version() -> u32 {
    VERSION
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn transship_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_new(config: *const c_char, server: *mut *mut Server) -> i32 {
    entry(|| {
        // SAFETY: the header asks the caller for texts that end with a zero, and for memory for the result.
        let config = unsafe {
            give(server, std::ptr::null_mut(), "server is NULL")?;
            text(config, "config is NULL")?
        };
        let made = PulledServer::new(&config).map_err(Failure::Failed)?;
        let functions = made.entries.iter().map(|entry| FunctionTexts {
            name: c_text(&entry.name),
            kind: c_text(entry.kind.name()),
            batch: c_text(entry.form.name()),
            result: c_text(&entry.signature.result.to_string()),
            result_format: result_format(&made, &entry.signature.result),
            arguments: entry.signature.arguments.iter().map(|argument| c_text(&argument.ty.to_string())).collect(),
        });
        let made = Server { functions: functions.collect(), server: made };
        // SAFETY: as above.
        unsafe { give(server, Box::into_raw(Box::new(made)), "server is NULL")? };
        Ok(OK)
    })
}

fn result_format(server: &PulledServer, ty: &udf_types::types::Type) -> CString {
    let arrow = if server.is_plain() { plain_type(ty) } else { ty.data_type() };
    FFI_ArrowSchema::try_from(&arrow).map(|schema| c_text(schema.format())).unwrap_or_default()
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_functions(server: *const Server) -> usize {
    // SAFETY: the header asks for a server that lives, or NULL.
    unsafe { server.as_ref() }.map_or(0, |server| server.functions.len())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_function(
    server: *const Server,
    number: usize,
    function: *mut FunctionInfo,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a server that lives, or NULL.
        let server = unsafe { borrowed(server, "server is NULL")? };
        let texts = server.functions.get(number).ok_or(Failure::Invalid("there is no function of this number"))?;
        let info = FunctionInfo {
            name: texts.name.as_ptr(),
            kind: texts.kind.as_ptr(),
            batch: texts.batch.as_ptr(),
            result: texts.result.as_ptr(),
            result_format: texts.result_format.as_ptr(),
            arguments: texts.arguments.len(),
        };
        // SAFETY: the header asks for memory for the result.
        unsafe { give(function, info, "function is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_argument(
    server: *const Server,
    number: usize,
    argument: usize,
) -> *const c_char {
    // SAFETY: the header asks for a server that lives, or NULL.
    let server = unsafe { server.as_ref() };
    let texts = server.and_then(|server| server.functions.get(number));
    texts.and_then(|texts| texts.arguments.get(argument)).map_or(std::ptr::null(), |text| text.as_ptr())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_concurrency(server: *const Server, number: usize) -> usize {
    // SAFETY: the header asks for a server that lives, or NULL.
    let server = unsafe { server.as_ref() };
    server.and_then(|server| server.server.entries.get(number)).map_or(1, |entry| entry.concurrency)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_describe(
    server: *const Server,
    merging: *const usize,
    count: usize,
    text: *mut *mut c_char,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a server that lives, or NULL.
        let server = unsafe { borrowed(server, "server is NULL")? };
        let merging = match (merging.is_null(), count) {
            (_, 0) => &[][..],
            (true, _) => return Err(Failure::Invalid("merging is NULL")),
            // SAFETY: the header asks for so many numbers.
            (false, _) => unsafe { std::slice::from_raw_parts(merging, count) },
        };
        let described = c_text(&server.server.describe(merging)).into_raw();
        // SAFETY: the header asks for memory for the result. A text that nobody takes is freed.
        unsafe { give(text, described, "text is NULL").inspect_err(|_| drop(CString::from_raw(described)))? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the header asks for a text that transship_server_describe gave, and which is freed once.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_start(server: *mut Server) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a server that lives, or NULL.
        let server = unsafe { borrowed(server, "server is NULL")? };
        let prepare = || {
            // Programs in Rust ignore SIGPIPE from the start: a client that goes away would end the process otherwise. A runtime's own
            // handlers of the others, such as Node's, would run as well, and end the process or raise the signal again.
            let changes = [
                (Signal::SIGPIPE, SigHandler::SigIgn),
                (Signal::SIGTERM, SigHandler::SigDfl),
                (Signal::SIGINT, SigHandler::SigDfl),
            ];
            for (number, handler) in changes {
                // SAFETY: no handler is installed, so nothing runs within the signal.
                unsafe { signal(number, handler) }.map_err(|cause| cause.to_string())?;
            }
            Ok(())
        };
        server.server.start(prepare).map_err(Failure::Failed)?;
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_descriptor(server: *const Server) -> c_int {
    // SAFETY: the header asks for a server that lives, or NULL.
    unsafe { server.as_ref() }.map_or(-1, |server| server.server.descriptor())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_stop(server: *mut Server) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a server that lives, or NULL.
        let server = unsafe { borrowed(server, "server is NULL")? };
        server.server.stop();
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_server_free(server: *mut Server) {
    if !server.is_null() {
        entry(|| {
            // SAFETY: the header asks for a server that transship_server_new gave, that no thread uses and that is freed once.
            drop(unsafe { Box::from_raw(server) });
            Ok(OK)
        });
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_next(server: *mut Server, timeout_ms: i64, work: *mut *mut PulledWork) -> i32 {
    entry(|| {
        // SAFETY: the header asks for a server that lives, or NULL, and for memory for the result.
        let server = unsafe {
            give(work, std::ptr::null_mut(), "work is NULL")?;
            borrowed(server, "server is NULL")?
        };
        let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        match server.server.next(patience) {
            Found::Nothing => Ok(NOTHING),
            Found::Ended => Ok(ENDED),
            Found::Work(found) => {
                // SAFETY: as above.
                unsafe {
                    give(
                        work,
                        Box::into_raw(Box::new(PulledWork { work: found, lent: Mutex::default() })),
                        "work is NULL",
                    )?
                };
                Ok(OK)
            }
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_info_of(work: *const PulledWork, info: *mut WorkInfo) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL.
        let work = &unsafe { borrowed(work, "work is NULL")? }.work;
        let told = WorkInfo {
            function: work.function,
            step: work.step as i32,
            row_errors: i32::from(work.row_errors),
            exchange: work.exchange,
            rows: work.batch.num_rows(),
        };
        // SAFETY: the header asks for memory for the result.
        unsafe { give(info, told, "info is NULL")? };
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_batch(
    work: *const PulledWork,
    columns: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL.
        let work = &unsafe { borrowed(work, "work is NULL")? }.work;
        if columns.is_null() || schema.is_null() {
            return Err(Failure::Invalid("columns or schema is NULL"));
        }
        // SAFETY: neither is NULL, and the header asks for memory for the results.
        unsafe { give_batch(&work.batch, columns, schema)? };
        Ok(OK)
    })
}

/// Gives the columns of a batch as an array of structs, and its schema.
///
/// # Safety
/// Both are memory for the results, or NULL, that nothing else uses, and which may hold anything.
unsafe fn give_batch(
    batch: &RecordBatch,
    columns: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> Result<(), Failure> {
    let fields = batch.schema().fields().clone();
    let rows = StructArray::try_new_with_length(fields, batch.columns().to_vec(), None, batch.num_rows());
    let rows = rows.map_err(|cause| Failure::Failed(cause.to_string()))?;
    let (array, its_schema) = to_ffi(&rows.to_data()).map_err(|cause| Failure::Failed(cause.to_string()))?;
    // SAFETY: the caller of this function vouches for it.
    unsafe {
        give(columns, array, "columns is NULL")?;
        give(schema, its_schema, "schema is NULL")
    }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_next(
    work: *const PulledWork,
    timeout_ms: i64,
    columns: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, and for memory for the results.
        let work = unsafe {
            give(columns, FFI_ArrowArray::empty(), "columns is NULL")?;
            give(schema, FFI_ArrowSchema::empty(), "schema is NULL")?;
            borrowed(work, "work is NULL")?
        };
        let (status, batch) = take_batch(work, timeout_ms)?;
        if let Some(batch) = batch {
            // SAFETY: as above.
            unsafe { give_batch(&batch, columns, schema)? };
        }
        Ok(status)
    })
}

/// The next batch of a stream, and what to tell the language.
pub(crate) fn take_batch(work: &PulledWork, timeout_ms: i64) -> Result<(i32, Option<RecordBatch>), Failure> {
    let take = work.work.stream.as_ref().ok_or(Failure::Invalid("the work has no stream"))?;
    let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    Ok(match take(patience) {
        Ok(Taken::Batch(batch)) => (OK, Some(batch)),
        Ok(Taken::Ended) => (ENDED, None),
        Ok(Taken::Nothing) => (NOTHING, None),
        Err(error) => {
            say(&error.message);
            (UNWANTED, None)
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_is_cancelled(work: *const PulledWork) -> i32 {
    // SAFETY: the header asks for work that has not ended, or NULL.
    unsafe { work.as_ref() }.map_or(0, |work| i32::from(work.work.is_cancelled()))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_is_behind(work: *const PulledWork) -> i32 {
    // SAFETY: the header asks for work that has not ended, or NULL.
    unsafe { work.as_ref() }.map_or(0, |work| i32::from(work.work.is_behind()))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_wants_lines(work: *const PulledWork) -> i32 {
    // SAFETY: the header asks for work that has not ended, or NULL.
    unsafe { work.as_ref() }.map_or(0, |work| i32::from(work.work.wants_lines))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_line(work: *const PulledWork, line: *const c_char) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, and for a text that ends in NUL.
        let (work, line) = unsafe { (borrowed(work, "work is NULL")?, text(line, "line is NULL")?) };
        work.work.add_line(&line);
        Ok(OK)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_part(
    work: *mut PulledWork,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, and for columns that are handed over.
        let (work, columns) = unsafe { (borrowed(work, "work is NULL"), columns(array, schema)) };
        let (work, columns) = (&work?.work, columns.map_err(Failure::Failed)?);
        Ok(if work.give_part(columns) { OK } else { UNWANTED })
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_answer(
    work: *mut PulledWork,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, which this call ends, and for columns that are handed over. The work
        // is taken first: it ends with an error even if the columns are such that reading them panics.
        let (work, columns) = unsafe { (ended(work), columns(array, schema)) };
        let work = work?;
        match columns {
            Ok(columns) => {
                work.work.end(Reply::Last(columns));
                Ok(OK)
            }
            Err(fact) => {
                work.work.end(Reply::Failed(CallError::bad_result(format!("Its reply cannot be read: {fact}."))));
                Err(Failure::Failed(fact))
            }
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transship_work_fail(
    work: *mut PulledWork,
    kind: *const c_char,
    message: *const c_char,
    traceback: *const c_char,
    row: i64,
) -> i32 {
    entry(|| {
        // SAFETY: the header asks for work that has not ended, or NULL, which this call ends.
        let work = unsafe { ended(work)? };
        // SAFETY: the header asks for texts that end with a zero, or NULL.
        let texts = unsafe { [text(kind, "kind is NULL"), text(message, "message is NULL"), text(traceback, "")] };
        let [kind, message, traceback] = texts;
        let known = ["user_code", "bad_result", "out_of_range", "protocol_violation"];
        let found = kind.as_ref().ok().and_then(|kind| known.iter().find(|known| **known == kind.as_ref()));
        let words = message.as_ref().map_or("", |message| message.as_ref());
        let mut error = CallError::new(found.copied().unwrap_or("user_code"), words);
        error.traceback = traceback.ok().map(|text| text.into_owned());
        error.row = usize::try_from(row).ok();
        work.work.end(Reply::Failed(error));
        message?;
        kind?;
        found.map(|_| OK).ok_or(Failure::Invalid("kind is no kind of error"))
    })
}

/// Takes back work that ends.
///
/// # Safety
/// It is NULL, or work that transship_next gave and that has not ended.
pub(crate) unsafe fn ended(work: *mut PulledWork) -> Result<Box<PulledWork>, Failure> {
    if work.is_null() {
        return Err(Failure::Invalid("work is NULL"));
    }
    // SAFETY: transship_next made it of a box, and the caller of this function vouches that it has not ended.
    Ok(unsafe { Box::from_raw(work) })
}

#[cfg(test)]
mod tests {
    use arrow_array::Int32Array;
    use arrow_schema::{DataType, Field, Fields};

    use super::*;
    use crate::queue::Queue;
    use crate::work::Step;

    #[test]
    fn a_reply_that_cannot_be_read_ends_its_call() {
        let queue = Arc::new(Queue::new(false).unwrap());
        let pulled = queue.clone();
        let language = std::thread::spawn(move || {
            let Found::Work(work) = pulled.next(None) else { panic!("no work") };
            let work = Box::into_raw(Box::new(PulledWork { work, lent: Mutex::default() }));
            // A column where the schema says that there are two.
            let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1]));
            let rows = StructArray::from(vec![(Arc::new(Field::new("a", DataType::Int32, true)), numbers)]);
            let (mut array, _) = to_ffi(&rows.to_data()).unwrap();
            let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int32, true));
            let two = DataType::Struct(Fields::from(fields.to_vec()));
            let mut schema = FFI_ArrowSchema::try_from(&two).unwrap();
            // SAFETY: the work has not ended, and both structs are handed over.
            unsafe { transship_work_answer(work, &mut array, &mut schema) }
        });
        let call = Work::without_rows(0, Step::Call, 0);
        let error = queue.run(call, &|| false, &mut |_, _| Ok(())).unwrap_err();
        assert!(error.message.starts_with("Its reply cannot be read"), "{error:?}");
        assert_eq!(language.join().unwrap(), FAULT);
    }
}
