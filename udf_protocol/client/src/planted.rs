//! Faults that `simulation/` plants in client and manager, to prove that it would find such. There are none in any other program.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A batch of a VOLATILE function is sent again.
    RepeatedVolatile,
    /// Some replies do not reach the engine.
    LostReply,
    /// Replies come in whatever order they were received.
    DisorderedReplies,
    /// An error is told of the row behind the one that is to blame.
    ShiftedErrorRow,
    /// An engine waits without a deadline.
    NoDeadline,
    /// A lease is not given back.
    LeakedLease,
    /// A replica is forgotten, and its container goes on.
    ForgottenContainer,
    /// More containers run than may.
    TooManyContainers,
}

impl Planted {
    /// Every one of them.
    pub const ALL: [Planted; 8] = [
        Planted::RepeatedVolatile,
        Planted::LostReply,
        Planted::DisorderedReplies,
        Planted::ShiftedErrorRow,
        Planted::NoDeadline,
        Planted::LeakedLease,
        Planted::ForgottenContainer,
        Planted::TooManyContainers,
    ];
}

/// Whether this fault is planted.
#[cfg(not(feature = "simulation"))]
pub const fn is_planted(_: Planted) -> bool {
    false
}

#[cfg(feature = "simulation")]
static PLANTED: std::sync::OnceLock<Planted> = std::sync::OnceLock::new();

/// Whether this fault is planted.
#[cfg(feature = "simulation")]
pub fn is_planted(fault: Planted) -> bool {
    PLANTED.get() == Some(&fault)
}

/// Plants a fault for as long as the program runs.
#[cfg(feature = "simulation")]
pub fn plant(fault: Planted) {
    // The first one stays.
    let _ = PLANTED.set(fault);
}
