//! The numbers that users may set for calls, whichever engine makes them: defaults and bounds. Each engine has its own names for
//! them, and its own units where it says so.

/// A number that users may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOption {
    /// Its value where nobody sets it.
    pub default: u64,
    /// Its lowest value.
    pub min: u64,
    /// Its highest value.
    pub max: u64,
}

/// A day, the longest wait, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// Most rows in one batch.
pub const BATCH_ROWS: NumberOption = NumberOption { default: 10_000, min: 1, max: 1_000_000 };
/// Bytes at which a batch is sent, however few rows it has.
pub const BATCH_BYTES: NumberOption = NumberOption { default: 8 << 20, min: 1 << 10, max: 1 << 30 };
/// Most batches of one exchange that are out at a time.
pub const BATCH_WINDOW: NumberOption = NumberOption { default: 8, min: 1, max: 64 };
/// Longest that a container should compute at one batch, in milliseconds; 0 for no such bound.
pub const BATCH_TIME_MS: NumberOption = NumberOption { default: 1000, min: 0, max: DAY_MS };
/// Most memory for a reply to one batch while it is read, in bytes.
pub const REPLY_BYTES: NumberOption = NumberOption { default: 256 << 20, min: 64 << 10, max: 1 << 30 };
/// Longest wait for the answer to one batch, in milliseconds.
pub const BATCH_TIMEOUT_MS: NumberOption = NumberOption { default: 300_000, min: 1, max: DAY_MS };
/// Longest wait for the kept result of one row, in milliseconds.
pub const CACHE_TIMEOUT_MS: NumberOption = NumberOption { default: 10, min: 1, max: 1000 };
/// Longest wait for a container to start, in milliseconds.
pub const START_TIMEOUT_MS: NumberOption = NumberOption { default: 120_000, min: 1, max: DAY_MS };
/// Longest wait for code to be built into an image, in milliseconds.
pub const BUILD_TIMEOUT_MS: NumberOption = NumberOption { default: 1_800_000, min: 1, max: DAY_MS };

impl NumberOption {
    /// Whether the option may have this value.
    pub fn allows(&self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    /// The default as a size.
    pub const fn default_size(&self) -> usize {
        self.default as usize
    }

    /// Default, lowest and highest value in a unit of `unit`, as an engine of 32-bit settings has them. Each is a multiple of the
    /// unit, and fits.
    pub const fn in_unit(&self, unit: u64) -> [i32; 3] {
        const fn divided(value: u64, unit: u64) -> i32 {
            assert!(value.is_multiple_of(unit) && value / unit <= i32::MAX as u64, "an option does not fit its unit");
            (value / unit) as i32
        }
        [divided(self.default, unit), divided(self.min, unit), divided(self.max, unit)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_allow_their_defaults_and_bounds_and_no_more() {
        let all = [
            BATCH_ROWS,
            BATCH_BYTES,
            BATCH_WINDOW,
            BATCH_TIME_MS,
            REPLY_BYTES,
            BATCH_TIMEOUT_MS,
            CACHE_TIMEOUT_MS,
            START_TIMEOUT_MS,
            BUILD_TIMEOUT_MS,
        ];
        for option in all {
            assert!(
                [option.default, option.min, option.max].into_iter().all(|value| option.allows(value)),
                "{option:?}"
            );
            assert!(!option.allows(option.max + 1), "{option:?}");
            assert!(option.min == 0 || !option.allows(option.min - 1), "{option:?}");
        }
        assert_eq!(BATCH_BYTES.in_unit(1024), [8192, 1, 1 << 20]);
    }
}
