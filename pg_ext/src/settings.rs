//! Every setting: name, default, bounds, sentence.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::time::Duration;

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use udf_client::cache::{CacheUse, socket_beside};
use udf_client::pace::{Bounds, Pace};
use udf_project::options;
use udf_types::transport_name::TransportName;

use crate::pg::text;

/// Values of `transship.transport`.
#[derive(Debug, Clone, Copy, PostgresGucEnum)]
enum Transport {
    #[name = c"auto"]
    Auto,
    #[name = c"shm"]
    Shm,
    #[name = c"flight"]
    Flight,
    #[name = c"socket"]
    Socket,
    #[name = c"parquet"]
    Parquet,
    #[name = c"json"]
    Json,
}

/// When `transship.allowed_images` is asked, values of `transship.check_allowed_images`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum AllowedImagesCheck {
    /// When a function is created.
    #[name = c"create"]
    Create,
    /// When it is created, and again when it is called.
    #[name = c"call"]
    Call,
}

/// Where lines go that handlers write, values of `transship.log_handlers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum LogHandlers {
    /// To the container's log alone.
    #[name = c"off"]
    Off,
    /// Also to the session's client.
    #[name = c"notice"]
    Notice,
    /// Also to the server's log.
    #[name = c"log"]
    Log,
}

/// What is done with kept results, values of `transship.cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
enum Cache {
    /// They are not looked up.
    #[name = c"off"]
    Off,
    /// They are looked up where that is cheaper than calls.
    #[name = c"auto"]
    Auto,
    /// They are always looked up.
    #[name = c"always"]
    Always,
}

/// The setting that lists images.
pub const ALLOWED_IMAGES_NAME: &CStr = c"transship.allowed_images";
/// The name of the setting in which a leader says which images it calls.
pub const CHOSEN_IMAGES_NAME: &CStr = c"transship.chosen_images";

/// Bytes of a setting's unit.
const KB: u64 = 1024;

static MANAGER_SOCKET: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"/run/transship/transshipd.sock"));
static ALLOWED_IMAGES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ALLOWED_IMAGES_CHECK: GucSetting<AllowedImagesCheck> =
    GucSetting::<AllowedImagesCheck>::new(AllowedImagesCheck::Call);
static CHOSEN_IMAGES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static CACHE: GucSetting<Cache> = GucSetting::<Cache>::new(Cache::Auto);
static CACHE_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(options::CACHE_TIMEOUT_MS.in_unit(1)[0]);
static BATCHING: GucSetting<bool> = GucSetting::<bool>::new(true);
static TABLES_SIZE_MB: GucSetting<i32> = GucSetting::<i32>::new(1024);
static TABLES_DISK_SIZE_MB: GucSetting<i32> = GucSetting::<i32>::new(0);
static FUSION: GucSetting<bool> = GucSetting::<bool>::new(true);
static BATCH_ROWS: GucSetting<i32> = GucSetting::<i32>::new(options::BATCH_ROWS.in_unit(1)[0]);
static BATCH_SIZE_KB: GucSetting<i32> = GucSetting::<i32>::new(options::BATCH_BYTES.in_unit(KB)[0]);
static BATCH_WINDOW: GucSetting<i32> = GucSetting::<i32>::new(options::BATCH_WINDOW.in_unit(1)[0]);
static BATCH_TIME_MS: GucSetting<i32> = GucSetting::<i32>::new(options::BATCH_TIME_MS.in_unit(1)[0]);
static MAX_REPLY_SIZE_KB: GucSetting<i32> = GucSetting::<i32>::new(options::REPLY_BYTES.in_unit(KB)[0]);
static BATCH_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(options::BATCH_TIMEOUT_MS.in_unit(1)[0]);
static START_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(options::START_TIMEOUT_MS.in_unit(1)[0]);
static BUILD_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(options::BUILD_TIMEOUT_MS.in_unit(1)[0]);
static TRANSPORT: GucSetting<Transport> = GucSetting::<Transport>::new(Transport::Auto);
static TRACEPARENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static LOG_HANDLERS: GucSetting<LogHandlers> = GucSetting::<LogHandlers>::new(LogHandlers::Off);

/// Defines the settings.
pub fn define() {
    GucRegistry::define_string_guc(
        c"transship.manager_socket",
        c"Unix socket of the container manager.",
        c"",
        &MANAGER_SOCKET,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        ALLOWED_IMAGES_NAME,
        c"Images that those who are not superusers may name in container functions.",
        c"Patterns such as \"flights:*, models/*@sha256:...\", separated by commas; inline code is \"inline:TEMPLATE\".",
        &ALLOWED_IMAGES,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        CHOSEN_IMAGES_NAME,
        c"Images that the leader of this parallel worker calls.",
        c"",
        &CHOSEN_IMAGES,
        GucContext::Suset,
        GucFlags::NO_SHOW_ALL | GucFlags::NO_RESET_ALL | GucFlags::DISALLOW_IN_FILE,
    );
    GucRegistry::define_enum_guc(
        c"transship.check_allowed_images",
        c"When transship.allowed_images is asked: when functions are created, or also when they are called.",
        c"When a function is called, the list of its owner counts.",
        &ALLOWED_IMAGES_CHECK,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"transship.batching",
        c"Sends calls of container functions in batches where the plan allows it.",
        c"Off, every call is sent by itself.",
        &BATCHING,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"transship.fusion",
        c"Hands results of container functions to the calls around them as columns.",
        c"Off, an SQL value is made of each result first.",
        &FUSION,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"transship.tables_size",
        c"Most memory for shared tables, of all servers of this user together.",
        c"What was not used for the longest time is read again from the database when it is next used.",
        &TABLES_SIZE_MB,
        1,
        1 << 24,
        GucContext::Suset,
        GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"transship.tables_disk_size",
        c"Most disk space for shared tables that do not fit into memory; 0 means that they are an error.",
        c"Their files lie among the server's temporary files.",
        &TABLES_DISK_SIZE_MB,
        0,
        1 << 24,
        GucContext::Suset,
        GucFlags::UNIT_MB,
    );
    let define_int = |name, sentence, setting, [_, min, max]: [i32; 3], flags| {
        GucRegistry::define_int_guc(name, sentence, c"", setting, min, max, GucContext::Userset, flags);
    };
    define_int(
        c"transship.batch_rows",
        c"Most rows in one batch of calls.",
        &BATCH_ROWS,
        options::BATCH_ROWS.in_unit(1),
        GucFlags::default(),
    );
    define_int(
        c"transship.batch_size",
        c"Size at which a batch of calls is sent, however few rows it has.",
        &BATCH_SIZE_KB,
        options::BATCH_BYTES.in_unit(KB),
        GucFlags::UNIT_KB,
    );
    define_int(
        c"transship.batch_window",
        c"Most batches of one plan node that are out at a time.",
        &BATCH_WINDOW,
        options::BATCH_WINDOW.in_unit(1),
        GucFlags::default(),
    );
    define_int(
        c"transship.batch_time",
        c"Longest that a container should compute at one batch; slower calls have smaller batches. 0 for no such bound.",
        &BATCH_TIME_MS,
        options::BATCH_TIME_MS.in_unit(1),
        GucFlags::UNIT_MS,
    );
    define_int(
        c"transship.max_reply_size",
        c"Most memory for a container's reply to one batch while it is read.",
        &MAX_REPLY_SIZE_KB,
        options::REPLY_BYTES.in_unit(KB),
        GucFlags::UNIT_KB,
    );
    define_int(
        c"transship.batch_timeout",
        c"Longest wait for the answer to one batch.",
        &BATCH_TIMEOUT_MS,
        options::BATCH_TIMEOUT_MS.in_unit(1),
        GucFlags::UNIT_MS,
    );
    define_int(
        c"transship.start_timeout",
        c"Longest wait for a container to start.",
        &START_TIMEOUT_MS,
        options::START_TIMEOUT_MS.in_unit(1),
        GucFlags::UNIT_MS,
    );
    define_int(
        c"transship.build_timeout",
        c"Longest wait for CREATE FUNCTION to build inline code into an image.",
        &BUILD_TIMEOUT_MS,
        options::BUILD_TIMEOUT_MS.in_unit(1),
        GucFlags::UNIT_MS,
    );
    define_int(
        c"transship.cache_timeout",
        c"Longest wait for kept results of one row; the rows of a batch add to it.",
        &CACHE_TIMEOUT_MS,
        options::CACHE_TIMEOUT_MS.in_unit(1),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_enum_guc(
        c"transship.cache",
        c"Whether results are looked up of functions whose body has cache = true: never, where that is cheaper than calls, or always.",
        c"",
        &CACHE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"transship.transport",
        c"How batches travel, for functions that do not say it.",
        c"",
        &TRANSPORT,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// Defines the settings of those who watch their calls.
pub fn define_observation() {
    GucRegistry::define_string_guc(
        c"transship.traceparent",
        c"Span to which calls of container functions belong, as W3C Trace Context's field of that name has it.",
        c"Empty, or with a value of another form, calls are not traced.",
        &TRACEPARENT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"transship.log_handlers",
        c"Where lines go that a handler writes while it answers this session, besides the container's log.",
        c"Servers whose greeting has \"lines\" send them with their replies.",
        &LOG_HANDLERS,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// The span to which calls belong, if they are traced.
pub fn traceparent() -> Option<String> {
    let text = TRACEPARENT.get()?;
    (!text.is_empty()).then(|| text.to_string_lossy().into_owned())
}

/// Where lines go that handlers write.
pub fn log_handlers() -> LogHandlers {
    LOG_HANDLERS.get()
}

/// The manager's socket.
pub fn manager_socket() -> PathBuf {
    PathBuf::from(MANAGER_SOCKET.get().unwrap_or_default().to_string_lossy().into_owned())
}

/// Images that those who are not superusers may name.
pub fn allowed_images() -> String {
    text::to_utf8(ALLOWED_IMAGES.get().unwrap_or_default().to_bytes()).into_owned()
}

/// Which images the leader of this worker calls, as `function=digest,...`.
pub fn chosen_images() -> String {
    text::to_utf8(CHOSEN_IMAGES.get().unwrap_or_default().to_bytes()).into_owned()
}

/// When that list is asked.
pub fn allowed_images_check() -> AllowedImagesCheck {
    ALLOWED_IMAGES_CHECK.get()
}

/// How kept results are used, those that are no older.
pub fn cache_use(max_age: Option<Duration>) -> Option<CacheUse> {
    let is_forced = match CACHE.get() {
        Cache::Off => return None,
        Cache::Auto => false,
        Cache::Always => true,
    };
    Some(CacheUse {
        socket: socket_beside(&manager_socket()),
        max_age,
        timeout: to_duration(CACHE_TIMEOUT_MS.get()),
        is_forced,
    })
}

/// Bytes of memory for shared tables.
pub fn tables_bytes() -> u64 {
    u64::try_from(TABLES_SIZE_MB.get()).unwrap_or(1) << 20
}

/// Most disk space for shared tables that do not fit into memory; 0 if they are an error.
pub fn tables_disk_bytes() -> u64 {
    u64::try_from(TABLES_DISK_SIZE_MB.get()).unwrap_or(0) << 20
}

/// Whether calls in arguments of calls are fused with them.
pub fn is_fusing() -> bool {
    FUSION.get()
}

/// Whether calls are batched.
pub fn is_batching() -> bool {
    BATCHING.get()
}

/// Most rows per batch.
pub fn batch_rows() -> usize {
    to_usize(BATCH_ROWS.get())
}

/// Longest that a container should compute at one batch of a parallel plan: whoever takes rows last has so much left to do
/// when the others are done.
const PARALLEL_BATCH_TIME: Duration = Duration::from_millis(60);

/// The pace of an exchange that has not begun, whose batches may have so many rows, and the first one `first_rows` if that is given.
pub fn pace(max_rows: usize, first_rows: Option<usize>, is_parallel: bool) -> Pace {
    let mut time = batch_time();
    if is_parallel {
        time = time.min(PARALLEL_BATCH_TIME);
    }
    let (bytes, reply_bytes, window) = (batch_bytes(), reply_bytes(), batch_window());
    Pace::new(Bounds { rows: max_rows, bytes, reply_bytes, window, time }).starting_with(first_rows)
}

/// The pace of an exchange that is given one row, and the next when its result was used.
pub fn stepwise_pace() -> Pace {
    let (bytes, reply_bytes) = (batch_bytes(), reply_bytes());
    Pace::new(Bounds { rows: 1, bytes, reply_bytes, window: 1, time: Duration::ZERO })
}

/// Longest that a container should compute at one batch; zero for no such bound.
pub fn batch_time() -> Duration {
    Duration::from_millis(u64::try_from(BATCH_TIME_MS.get()).unwrap_or(0))
}

/// Bytes at which a batch is cut.
pub fn batch_bytes() -> usize {
    to_usize(BATCH_SIZE_KB.get()) * 1024
}

/// Bytes that reading a reply should need.
pub fn reply_bytes() -> usize {
    Bounds::reply_bytes(batch_bytes(), max_reply_bytes())
}

/// Most batches in flight.
pub fn batch_window() -> usize {
    to_usize(BATCH_WINDOW.get())
}

/// What a reply may take while it is read.
pub fn max_reply_bytes() -> usize {
    to_usize(MAX_REPLY_SIZE_KB.get()) * 1024
}

/// Longest wait for one batch.
pub fn batch_timeout() -> Duration {
    to_duration(BATCH_TIMEOUT_MS.get())
}

/// Longest wait for a container.
pub fn start_timeout() -> Duration {
    to_duration(START_TIMEOUT_MS.get())
}

/// Longest wait for a build.
pub fn build_timeout() -> Duration {
    to_duration(BUILD_TIMEOUT_MS.get())
}

/// The transport of functions that name none.
pub fn transport() -> TransportName {
    match TRANSPORT.get() {
        Transport::Auto => TransportName::Auto,
        Transport::Shm => TransportName::Shm,
        Transport::Flight => TransportName::Flight,
        Transport::Socket => TransportName::Socket,
        Transport::Parquet => TransportName::Parquet,
        Transport::Json => TransportName::Json,
    }
}

// The bounds above keep every integer setting positive.
fn to_usize(value: i32) -> usize {
    usize::try_from(value).unwrap_or(1)
}

fn to_duration(milliseconds: i32) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(1))
}
