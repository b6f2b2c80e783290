//! What the requests of one user have together: connections, long requests, files that were sent, and questions to the container
//! engine. Each is bounded by user, so that a user whose questions wait for a slow engine keeps no other from the manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use udf_types::Result;

use crate::cancel::Cancel;
use crate::registration::upload::Room;

/// Longer requests of a user take turns, so that all of them together fill no memory.
const MOST_LONG_REQUESTS: usize = 2;
/// A user may have so many times the connections that are free. One user alone thus gets 8 of 9, and several get equal parts.
const MOST_OF_FREE: usize = 8;
/// Questions of a user to the container engine at a time. Each takes one of the runtime's 512 threads, and up to two minutes.
const MOST_QUESTIONS: usize = 32;

/// What the connections of a user share.
pub(crate) struct OfUser {
    /// Those that are open.
    connections: AtomicUsize,
    long_requests: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    uploads: Arc<Room>,
}

impl OfUser {
    pub(crate) fn new(is_operator: bool) -> Arc<OfUser> {
        Arc::new(OfUser {
            connections: AtomicUsize::new(0),
            long_requests: Arc::new(Semaphore::new(MOST_LONG_REQUESTS)),
            questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            uploads: Arc::new(Room::new(is_operator)),
        })
    }

    pub(crate) fn long_requests(&self) -> &Arc<Semaphore> {
        &self.long_requests
    }

    pub(crate) fn uploads(&self) -> Arc<Room> {
        self.uploads.clone()
    }
}

/// One open connection of a user.
pub(crate) struct Place {
    of_user: Arc<OfUser>,
    _of_all: OwnedSemaphorePermit,
}

impl Place {
    /// A place for one more, of all that users of its kind may have; none if others need those that are free.
    pub(crate) fn take(of_user: &Arc<OfUser>, of_all: &Arc<Semaphore>) -> Option<Place> {
        let most = of_all.available_permits().saturating_mul(MOST_OF_FREE);
        let has_share = of_user.connections.load(Relaxed) < most;
        let of_all = of_all.clone().try_acquire_owned().ok().filter(|_| has_share)?;
        of_user.connections.fetch_add(1, Relaxed);
        Some(Place { of_user: of_user.clone(), _of_all: of_all })
    }

    pub(crate) fn of_user(&self) -> &OfUser {
        &self.of_user
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of_user.connections.fetch_sub(1, Relaxed);
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
    /// A user; a long request comes with its turn.
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

    /// The same, who waits to the end.
    pub(crate) fn staying(self) -> Asker {
        Asker { cancel: Cancel::default(), ..self }
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
        let (all, users) = (Arc::new(Semaphore::new(90)), [false; 3].map(OfUser::new));
        let take_all = |user| std::iter::from_fn(|| Place::take(user, &all)).collect::<Vec<_>>();
        let first = take_all(&users[0]);
        assert_eq!((first.len(), all.available_permits()), (80, 10));
        let second = take_all(&users[1]);
        assert_eq!((second.len(), all.available_permits()), (9, 1));
        assert!(Place::take(&users[0], &all).is_none());
        let third = Place::take(&users[2], &all).unwrap();
        assert!(take_all(&users[2]).is_empty());
        // What is given back can be had by the others.
        drop(first);
        assert_eq!(take_all(&users[1]).len() + second.len(), 80);
        drop((second, third));
        assert_eq!(all.available_permits(), 90);
        assert!(users.iter().all(|user| user.connections.load(Relaxed) == 0));
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
