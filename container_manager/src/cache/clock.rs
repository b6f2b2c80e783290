//! What time it is.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// What time it is, since some point in the past.
pub struct Clock(pub Box<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The host's clock, which nobody sets, and which goes on while the host sleeps.
    pub fn of_host() -> Clock {
        Clock::of(ClockId::Boottime)
    }

    /// The host's time of day, which goes on while the host is off. Somebody may set it.
    pub fn of_day() -> Clock {
        Clock::of(ClockId::Realtime)
    }

    fn of(id: ClockId) -> Clock {
        Clock(Box::new(move || {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(id);
            Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
        }))
    }

    /// In milliseconds.
    pub fn now_ms(&self) -> u64 {
        milliseconds((self.0)())
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
