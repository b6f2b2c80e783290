//! Places of which there are so many, such as connections, shared by users so that none of them keeps the others out.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Places for users, each of whom takes one at a time.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    /// Where there are several users, one may have so many times the places that are free. None if there is one alone.
    most_of_free: Option<usize>,
    /// By user.
    taken: Mutex<HashMap<u32, usize>>,
    freed: Condvar,
}

impl Places {
    /// So many for so many users. One that comes alone gets `most_of_free` of each `most_of_free + 1`, and all of them get equal parts.
    pub(crate) fn new(most: usize, most_of_free: usize, users: usize) -> Arc<Places> {
        let most_of_free = (users > 1).then_some(most_of_free);
        Arc::new(Places { most, most_of_free, taken: Mutex::default(), freed: Condvar::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, and takes it.
    pub(crate) fn take(self: &Arc<Places>, user: u32) -> Place {
        let mut taken = self.lock();
        loop {
            if let Ok(place) = self.take_of(&mut taken, user) {
                return place;
            }
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a place, if there is one.
    ///
    /// # Errors
    /// There is none, or others need those that are free.
    pub(crate) fn take_free(self: &Arc<Places>, user: u32) -> Result<Place, Full> {
        self.take_of(&mut self.lock(), user)
    }

    fn take_of(self: &Arc<Places>, taken: &mut HashMap<u32, usize>, user: u32) -> Result<Place, Full> {
        let free = self.most - taken.values().sum::<usize>();
        let of_user = taken.entry(user).or_default();
        let has_share = self.most_of_free.is_none_or(|most| *of_user < free.saturating_mul(most));
        if free == 0 || !has_share {
            return Err(Full { has: *of_user, most: self.most, free });
        }
        *of_user += 1;
        Ok(Place { places: self.clone(), user })
    }
}

/// Why a user gets no place: how many it has, of how many, and how many are free.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) has: usize,
    pub(crate) most: usize,
    pub(crate) free: usize,
}

/// One that is taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    pub(crate) user: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(of_user) = self.places.lock().get_mut(&self.user) {
            *of_user -= 1;
        }
        // Those who wait are of several users.
        self.places.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn take_all(places: &Arc<Places>, user: u32) -> Vec<Place> {
        std::iter::from_fn(|| places.take_free(user).ok()).collect()
    }

    #[test]
    fn no_user_has_all_places() {
        let places = Places::new(90, 8, 3);
        let first = take_all(&places, 1);
        assert_eq!(first.len(), 80);
        let second = take_all(&places, 2);
        assert_eq!(second.len(), 9);
        assert_eq!(places.take_free(1).unwrap_err(), Full { has: 80, most: 90, free: 1 });
        let third = places.take_free(3).unwrap();
        assert!(take_all(&places, 3).is_empty());
        // What is given back can be had by the others.
        drop(first);
        assert_eq!(take_all(&places, 2).len() + second.len(), 80);
        drop((second, third));
        assert!(places.lock().values().all(|taken| *taken == 0));
    }

    #[test]
    fn the_only_user_has_all_places() {
        assert_eq!(take_all(&Places::new(90, 8, 1), 1).len(), 90);
    }

    #[test]
    fn of_those_who_wait_the_one_who_may_goes_on() {
        let places = Places::new(4, 3, 2);
        let mut first = take_all(&places, 1);
        assert_eq!(first.len(), 3);
        let other = places.take(2);
        assert!(places.take_free(2).is_err());
        drop(first.pop());
        let waiting = [1, 2].map(|user| {
            let places = places.clone();
            thread::spawn(move || places.take(user))
        });
        drop((first, other));
        assert!(waiting.map(|thread| thread.join().unwrap()).iter().map(|place| place.user).eq([1, 2]));
        assert!(places.lock().values().all(|taken| *taken == 0));
    }
}
