//! Shared tables that a client gives to a call (`docs/protocol.md` §4.13), and which its handler reads by name.
//!
//! Clients offer tables to the `listener`, which opens them; `offers` keeps them under the names that requests carry. A batch is
//! answered on one thread, which holds its tables meanwhile. So no handler sees the tables of another's batch.

mod listener;
mod offers;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::RefCell;
use std::sync::Arc;

pub use shared_tables::table::Table;
use udf_types::error::{Error, Kind};

use crate::error::CallError;
pub(crate) use listener::{Listening, serve_on};
pub(crate) use offers::{Offer, offers};

thread_local! {
    /// What the batch that this thread answers has.
    static GIVEN: RefCell<Given> = const { RefCell::new(Given::Nothing) };
}

/// Opens a shared table of the call whose batch this thread answers. The table may be passed to other threads, and outlives the call.
///
/// # Errors
/// The call has no such table.
pub fn table(name: &str) -> Result<Arc<Table>, Error> {
    GIVEN.with_borrow(|given| given.table(name))
}

/// The tables of a call. They stay there until the call has ended, whatever becomes of their offer.
#[derive(Debug, Clone)]
pub(crate) enum Given {
    Nothing,
    /// The tables of an offer that is not here, or not any more.
    Unknown,
    Offer(Arc<Offer>),
}

impl Given {
    /// The tables of the offer that a request names.
    pub(crate) fn of(name: Option<&str>) -> Given {
        match name {
            None => Given::Nothing,
            Some(name) => offers().find(name).map_or(Given::Unknown, Given::Offer),
        }
    }

    pub(crate) fn table(&self, name: &str) -> Result<Arc<Table>, Error> {
        let fail = |fact: &str| Error::new(Kind::UserCode, format!("no shared table \"{name}\"")).with_detail(fact);
        match self {
            Given::Nothing => Err(fail("The caller gives no tables to this call.")),
            Given::Unknown => Err(fail("The server does not have the offer of tables that the call names.")),
            Given::Offer(offer) => offer.table(name).ok_or_else(|| fail("The caller does not give it to this call.")),
        }
    }
}

/// Refuses the batch that this thread answers if it names an offer that is not here. This is no error of its handler.
pub(crate) fn check() -> Result<(), CallError> {
    GIVEN.with_borrow(|given| match given {
        Given::Unknown => Err(CallError::violation("the server does not have the offer of tables that the call names")),
        Given::Nothing | Given::Offer(_) => Ok(()),
    })
}

/// The tables of the batch that this thread answers.
pub(crate) fn given() -> Given {
    GIVEN.with_borrow(Clone::clone)
}

/// Answers a batch that has these tables.
pub(crate) fn giving<T>(given: Given, answer: impl FnOnce() -> T) -> T {
    struct TakeOnDrop;
    impl Drop for TakeOnDrop {
        fn drop(&mut self) {
            GIVEN.set(Given::Nothing);
        }
    }
    GIVEN.set(given);
    let _take = TakeOnDrop;
    answer()
}
