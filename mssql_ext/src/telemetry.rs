//! What a session counted, for `sys.dm_external_script_execution_stats`.

use std::ffi::CStr;
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A session's counters.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Calls of Execute.
    pub executions: u64,
    /// Input rows.
    pub rows: u64,
    /// Rows given back.
    pub result_rows: u64,
    /// Batches sent.
    pub batches: u64,
    /// Bytes on the wire.
    pub bytes_sent: u64,
    /// Bytes on the wire.
    pub bytes_received: u64,
    /// Processor time spent converting SQL Server's buffers to Arrow.
    pub convert_in: Duration,
    /// Processor time spent converting Arrow to SQL Server's buffers.
    pub convert_out: Duration,
    /// Time spent waiting for answers.
    pub wait: Duration,
    /// Time that the container says it computed, in microseconds.
    pub function_us: u64,
    handed_out: Option<HandedOut>,
}

/// The processor time of this thread: what a piece of work took, however busy the machine is otherwise.
pub fn thread_time() -> Duration {
    // The clock exists on every Linux that the extension loads on.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// What the host reads; it stays until the next time it asks.
#[derive(Debug)]
struct HandedOut {
    names: Vec<AtomicPtr<u8>>,
    lengths: Vec<i32>,
    values: Vec<i64>,
}

/// Names of the counters, with a NUL for hosts that look for one. `script_executions` is the server's own.
const NAMES: [&CStr; 10] = [
    c"transship_executions",
    c"transship_rows",
    c"transship_result_rows",
    c"transship_batches",
    c"transship_bytes_sent",
    c"transship_bytes_received",
    c"transship_convert_in_us",
    c"transship_convert_out_us",
    c"transship_wait_us",
    c"transship_function_us",
];

/// Rows, and the arrays of names, of their lengths and of values.
pub type Counters = (u32, *mut *mut u8, *mut i32, *mut i64);

impl Telemetry {
    fn values(&self) -> [u64; NAMES.len()] {
        [
            self.executions,
            self.rows,
            self.result_rows,
            self.batches,
            self.bytes_sent,
            self.bytes_received,
            self.convert_in.as_micros() as u64,
            self.convert_out.as_micros() as u64,
            self.wait.as_micros() as u64,
            self.function_us,
        ]
    }

    /// The counters as they are now. The pointers are good until the next call.
    pub fn hand_out(&mut self) -> Counters {
        let values = self.values().map(|value| i64::try_from(value).unwrap_or(i64::MAX)).to_vec();
        let handed_out = self.handed_out.insert(HandedOut {
            names: NAMES.iter().map(|name| AtomicPtr::new(name.as_ptr().cast_mut().cast())).collect(),
            lengths: NAMES.iter().map(|name| name.count_bytes() as i32).collect(),
            values,
        });
        (
            NAMES.len() as u32,
            handed_out.names.as_mut_ptr().cast(),
            handed_out.lengths.as_mut_ptr(),
            handed_out.values.as_mut_ptr(),
        )
    }
}
