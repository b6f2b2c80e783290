//! Whose turn it is to build. A few builds run side by side, each of another image; a user has a bounded number that run or wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};
use udf_types::{Error, Kind, Result};

use crate::cancel::Cancel;

/// Most builds of one user that run or wait.
const MOST_OF_USER: usize = 16;

/// The turns of a manager's builds.
#[derive(Debug)]
pub(super) struct Turns {
    /// One permit per build that may run.
    running: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Builds that run or wait, by user.
    counts: HashMap<u32, usize>,
    /// Locks of the images that are being looked at, built or removed, by name.
    images: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

/// What a caller has of an image: no other looks at it meanwhile in order to build or to remove it.
pub(super) type ImageLock = OwnedMutexGuard<()>;

impl Turns {
    /// Builds of which `most` run side by side.
    pub(super) fn new(most: usize) -> Turns {
        Turns { running: Semaphore::new(most), state: Mutex::default() }
    }

    /// The image's lock, unless somebody has it.
    pub(super) fn try_lock(&self, image: &str) -> Option<ImageLock> {
        self.image(image).try_lock_owned().ok()
    }

    /// A place among a user's builds.
    pub(super) fn enter(&self, user: u32) -> Result<Place<'_>> {
        let mut state = self.state.lock().expect("no holder panics");
        let count = state.counts.entry(user).or_default();
        if *count >= MOST_OF_USER {
            let message = format!("could not build an image: {MOST_OF_USER} builds of user {user} run or wait already");
            return Err(Error::new(Kind::Busy, message).with_hint("Try again once they have ended."));
        }
        *count += 1;
        Ok(Place { turns: self, user })
    }

    /// Of the builds, of which `most` may run: how many run, and how many wait.
    pub(super) fn running_and_waiting(&self, most: usize) -> (usize, usize) {
        let running = most.saturating_sub(self.running.available_permits());
        let all: usize = self.state.lock().expect("no holder panics").counts.values().sum();
        (running, all.saturating_sub(running))
    }

    fn image(&self, image: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state.lock().expect("no holder panics");
        state.images.retain(|_, lock| Arc::strong_count(lock) > 1);
        state.images.entry(image.to_string()).or_default().clone()
    }
}

/// One of a user's builds, until this is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    turns: &'a Turns,
    user: u32,
}

impl Place<'_> {
    /// Waits for the image's lock.
    pub(super) async fn lock(&self, image: &str, cancel: &Cancel) -> Result<ImageLock> {
        cancel.bound(&what(image), self.turns.image(image).lock_owned()).await
    }

    /// Waits until the build may run.
    pub(super) async fn turn(&self, image: &str, cancel: &Cancel) -> Result<SemaphorePermit<'_>> {
        let turn = cancel.bound(&what(image), self.turns.running.acquire()).await?;
        Ok(turn.expect("the semaphore is never closed"))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock().expect("no holder panics");
        if let Some(count) = state.counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                state.counts.remove(&self.user);
            }
        }
    }
}

fn what(image: &str) -> String {
    format!("build image \"{image}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::cancel;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn a_user_has_so_many_builds() {
        let turns = Turns::new(1);
        let places: Vec<_> = (0..MOST_OF_USER).map(|_| turns.enter(1).unwrap()).collect();
        assert_eq!(turns.enter(1).unwrap_err().kind(), Kind::Busy);
        assert!(turns.enter(2).is_ok());
        drop(places);
        assert!(turns.enter(1).is_ok());
        assert!(turns.state.lock().unwrap().counts.is_empty());
    }

    #[test]
    fn who_waits_can_be_cancelled() {
        let turns = Turns::new(1);
        block_on(async {
            let (canceller, cancelled) = cancel();
            let (first, second) = (turns.enter(1).unwrap(), turns.enter(1).unwrap());
            let _lock = first.lock("a:1", &Cancel::default()).await.unwrap();
            let _turn = first.turn("a:1", &Cancel::default()).await.unwrap();
            assert!(turns.try_lock("a:1").is_none());
            assert_eq!(turns.running_and_waiting(1), (1, 1));
            // Another image's lock is free, but its build waits.
            let _other = second.lock("b:1", &cancelled).await.unwrap();
            let (turn, ()) = tokio::join!(second.turn("b:1", &cancelled), async { canceller.cancel() });
            assert_eq!(turn.unwrap_err().kind(), Kind::Cancelled);
            assert_eq!(second.lock("a:1", &cancelled).await.unwrap_err().kind(), Kind::Cancelled);
        });
        assert!(turns.try_lock("a:1").is_some() && turns.try_lock("b:1").is_some());
        assert!(turns.state.lock().unwrap().images.len() <= 1);
    }
}
