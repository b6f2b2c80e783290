//! What the requests of one user have together: connections, long requests, files that were sent, and questions to the container
//! engine. Each is bounded by user, so that a user whose questions wait for a slow engine keeps no other from the manager.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use udf_types::{Error, Kind, Result};

use crate::cancel::Cancel;
use crate::places::{Full, Place, Places};
use crate::registration::upload::Room;
use crate::request::{MOST_PERMITS, PERMIT_BYTES, SHORT_BYTES};

/// Longer requests of a user have the length of two of the longest together, so that they fill no memory; so have longer responses that
/// it does not read.
const MOST_OF_LONG_REQUESTS: usize = 2 * MOST_PERMITS as usize;
/// Where there are several users, one may have so many times the connections that are free. One that comes alone thus gets 8 of 9,
/// and all of them get equal parts.
const MOST_OF_FREE: usize = 8;
/// Questions of a user to the container engine at a time. Each takes one of the runtime's 512 threads, and up to two minutes.
pub(crate) const MOST_QUESTIONS: usize = 32;
/// Between two lines in the log about cut-off requests of a user.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// What the connections of a user share.
pub(crate) struct OfUser {
    long_requests: Arc<Semaphore>,
    long_responses: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    uploads: Arc<Room>,
    cut_off: Mutex<CutOff>,
}

/// The requests that were cut off since the log has said so.
#[derive(Default)]
struct CutOff {
    count: usize,
    said: Option<Instant>,
}

impl OfUser {
    pub(crate) fn new(is_operator: bool) -> Arc<OfUser> {
        Arc::new(OfUser {
            long_requests: Arc::new(Semaphore::new(MOST_OF_LONG_REQUESTS)),
            long_responses: Arc::new(Semaphore::new(MOST_OF_LONG_REQUESTS)),
            questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            uploads: Arc::new(Room::new(is_operator)),
            cut_off: Mutex::default(),
        })
    }

    pub(crate) fn long_requests(&self) -> &Arc<Semaphore> {
        &self.long_requests
    }

    /// Room for a response until it is read; an error if too much of the user's is unread.
    pub(crate) fn room_for_response(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let permits = if bytes > SHORT_BYTES { bytes.div_ceil(PERMIT_BYTES) } else { 0 };
        let permits = u32::try_from(permits)
            .ok()
            .and_then(|permits| self.long_responses.clone().try_acquire_many_owned(permits).ok());
        permits.ok_or_else(|| {
            Error::new(Kind::Busy, "the container manager has too many responses that their user does not read")
        })
    }

    pub(crate) fn uploads(&self) -> Arc<Room> {
        self.uploads.clone()
    }

    /// Counts a request that was cut off. How many there are of which the log is to say something by now.
    pub(crate) fn count_cut_off(&self) -> Option<usize> {
        let mut cut_off = self.cut_off.lock().unwrap_or_else(PoisonError::into_inner);
        cut_off.count += 1;
        if cut_off.said.is_some_and(|said| said.elapsed() < LOG_INTERVAL) {
            return None;
        }
        cut_off.said = Some(Instant::now());
        Some(std::mem::take(&mut cut_off.count))
    }
}

/// The connections of all users of a kind.
pub(crate) struct Connections(Arc<Places>);

impl Connections {
    pub(crate) fn new(most: usize, users: usize) -> Connections {
        Connections(Places::new(most, MOST_OF_FREE, users))
    }

    /// A place for one more of a user; an error if there is none, or others need those that are free.
    pub(crate) fn take(&self, user: u32, of_user: &Arc<OfUser>) -> Result<Connection> {
        let place = self.0.take_free(user).map_err(|Full { has, most, free }| {
            let fact = format!("the container manager has no room for another connection of user {user}");
            let fact = format!("{fact}, who has {has} of {most}; {free} are free");
            Error::new(Kind::ContainerFailed, fact).with_hint(
                "Raise LimitNOFILE of transshipd: the manager serves a third as many connections, at most 8192.",
            )
        })?;
        Ok(Connection { of_user: of_user.clone(), _place: place })
    }
}

/// One open connection of a user.
pub(crate) struct Connection {
    of_user: Arc<OfUser>,
    _place: Place,
}

impl Connection {
    pub(crate) fn of_user(&self) -> &OfUser {
        &self.of_user
    }
}

/// Who has made a request, until it is answered.
pub struct Asker {
    /// The user.
    pub user: u32,
    /// Whether it may do everything.
    pub is_operator: bool,
    /// Tells that it waits no more.
    pub cancel: Cancel,
    questions: Arc<Semaphore>,
    _long_request: Option<OwnedSemaphorePermit>,
}

impl Asker {
    /// A user; a long request comes with its permits.
    pub(crate) fn new(
        user: u32,
        is_operator: bool,
        of_user: &OfUser,
        cancel: Cancel,
        long_request: Option<OwnedSemaphorePermit>,
    ) -> Asker {
        Asker { user, is_operator, cancel, questions: of_user.questions.clone(), _long_request: long_request }
    }

    /// The manager itself.
    pub fn manager() -> Asker {
        let of_manager = OfUser::new(true);
        Asker::new(nix::unistd::Uid::effective().as_raw(), true, &of_manager, Cancel::default(), None)
    }

    /// Waits until the user may ask the container engine one thing more, or nobody waits for its answer.
    pub(crate) async fn question(&self, what: &str) -> Result<OwnedSemaphorePermit> {
        let turn = self.cancel.bound(what, self.questions.clone().acquire_owned()).await?;
        Ok(turn.expect("the semaphore is never closed"))
    }
}

#[cfg(test)]
mod tests {
    use udf_types::Kind;

    use super::*;
    use crate::cancel::cancel;

    #[test]
    fn no_user_has_all_connections() {
        let (all, users) = (Connections::new(9, 2), [false; 2].map(OfUser::new));
        let taken: Vec<_> = std::iter::from_fn(|| all.take(1, &users[0]).ok()).collect();
        let refusal = all.take(1, &users[0]).err().unwrap();
        assert!(refusal.message().ends_with("who has 8 of 9; 1 are free") && refusal.hint().is_some(), "{refusal}");
        assert!(all.take(2, &users[1]).is_ok());
        drop(taken);
        assert!(all.take(1, &users[0]).is_ok());
    }

    #[test]
    fn cut_off_requests_do_not_fill_the_log() {
        let user = OfUser::new(false);
        assert_eq!(user.count_cut_off(), Some(1));
        assert!((0..100).all(|_| user.count_cut_off().is_none()));
        user.cut_off.lock().unwrap().said = None;
        assert_eq!(user.count_cut_off(), Some(101));
    }

    #[test]
    fn responses_that_are_not_read_are_bounded() {
        let user = OfUser::new(false);
        let unread: Vec<_> = std::iter::from_fn(|| user.room_for_response(1 << 20).ok()).collect();
        assert_eq!(unread.len(), 32);
        assert_eq!(user.room_for_response(1 << 20).unwrap_err().kind(), Kind::Busy);
        assert!(user.room_for_response(1000).is_ok() && user.room_for_response(usize::MAX).is_err());
        drop(unread);
        assert!(user.room_for_response(1 << 20).is_ok());
    }

    #[tokio::test]
    async fn a_user_asks_the_engine_so_many_things_at_a_time() {
        let (first, second) = (OfUser::new(false), OfUser::new(false));
        let (canceller, cancelled) = cancel();
        let asker = Asker::new(1, false, &first, cancelled, None);
        let mut questions = Vec::new();
        for _ in 0..MOST_QUESTIONS {
            questions.push(asker.question("ask").await.unwrap());
        }
        let (refused, ()) = tokio::join!(asker.question("ask"), async { canceller.cancel() });
        assert_eq!(refused.unwrap_err().kind(), Kind::Cancelled);
        let again = Asker::new(1, false, &first, Cancel::default(), None);
        assert!(first.questions.try_acquire().is_err());
        drop(questions.pop());
        assert!(again.question("ask").await.is_ok());
        let other = Asker::new(2, false, &second, Cancel::default(), None);
        assert!(other.question("ask").await.is_ok());
    }
}
