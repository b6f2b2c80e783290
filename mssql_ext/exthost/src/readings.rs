//! The open questions of the API: what only a real server could settle. The host answers each one way, and the other way
//! if it is asked to; an extension must do with either.

/// How the host answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readings {
    /// 1: the host speaks interface version 3; flipped, 2 at most.
    pub speaks_version_3: bool,
    /// 2: GetResultColumn is called after the first Execute only; flipped, after each.
    pub describes_once: bool,
    /// 3: GetResults is not called when there are no result columns; flipped, it is.
    pub skips_empty_results: bool,
    /// 4: the stream ends with its last rows; flipped, with an Execute of no rows.
    pub ends_with_rows: bool,
    /// 5: the buffers of Execute live until after GetResults; flipped, they are gone when Execute returns.
    pub buffers_live_on: bool,
    /// 6: sizes are 2^31-1 for (max) and the structure's for times; flipped, 65535, what
    /// ODBC shows, and characters for the wide text of parameters.
    pub sizes_are_exact: bool,
    /// 7: results may be SQL_C_GUID; flipped, not.
    pub takes_guids: bool,
    /// 8: char data is UTF-8; flipped, in the code page 1252.
    pub sends_utf8: bool,
    /// 9: CleanupSession and Cleanup are called after an error; flipped, not.
    pub cleans_after_error: bool,
    /// 10: the library stays loaded at exit; flipped, it is unloaded.
    pub stays_loaded: bool,
    /// 11: all calls come from one thread; flipped, each comes from a new one.
    pub is_one_thread: bool,
    /// 12: the process shares the host's network; flipped, it has an empty one of its own, as the sandbox does.
    pub has_network: bool,
}

impl Readings {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// The usual answers, but for those whose numbers are given.
    pub fn flipped(numbers: &[usize]) -> Readings {
        let usual = |number: usize| !numbers.contains(&number);
        Readings {
            speaks_version_3: usual(1),
            describes_once: usual(2),
            skips_empty_results: usual(3),
            ends_with_rows: usual(4),
            buffers_live_on: usual(5),
            sizes_are_exact: usual(6),
            takes_guids: usual(7),
            sends_utf8: usual(8),
            cleans_after_error: usual(9),
            stays_loaded: usual(10),
            is_one_thread: usual(11),
            has_network: usual(12),
        }
    }
}
