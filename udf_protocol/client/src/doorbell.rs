//! The doorbell: what wakes the engine's thread once there is something in one of its queues.
//!
//! One doorbell serves every queue of a session. Who puts something into a queue rings afterwards; who waits looks into its
//! queue after each reset. So a ring that was meant for another queue costs a look, and none is lost, whichever thread is
//! faster: the test below tries the orders.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd.
#[derive(Debug)]
pub struct Doorbell(EventFd);

impl Doorbell {
    /// One that nobody has rung.
    pub fn new() -> nix::Result<Doorbell> {
        EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map(Doorbell)
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // Writing fails only when the counter is full, and then it is readable anyway.
        let _ = nix::unistd::write(self.as_fd(), &1u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next ring.
    fn reset(&self) {
        // Reading fails if it was not rung, which is fine.
        let _ = nix::unistd::read(self.as_fd(), &mut [0; 8]);
    }

    /// Looks, and waits while `look` finds nothing. `wait` returns some time after the next ring, and none to give up.
    pub fn wait_for<T, E>(
        &self,
        look: impl FnMut() -> Result<Option<T>, E>,
        mut wait: impl FnMut(BorrowedFd<'_>) -> Result<Option<()>, E>,
    ) -> Result<Option<T>, E> {
        look_again(look, || wait(self.as_fd()), || self.reset())
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn look_again<T, E>(
    mut look: impl FnMut() -> Result<Option<T>, E>,
    mut wait: impl FnMut() -> Result<Option<()>, E>,
    mut reset: impl FnMut(),
) -> Result<Option<T>, E> {
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if wait()?.is_none() {
            return Ok(None);
        }
        reset();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// What an eventfd does, for the model.
    #[derive(Default)]
    struct Bell {
        is_rung: Mutex<bool>,
        ringing: Condvar,
    }

    impl Bell {
        fn ring(&self) {
            *self.is_rung.lock().unwrap() = true;
            self.ringing.notify_all();
        }

        fn wait(&self) {
            let mut is_rung = self.is_rung.lock().unwrap();
            while !*is_rung {
                is_rung = self.ringing.wait(is_rung).unwrap();
            }
        }

        fn reset(&self) {
            *self.is_rung.lock().unwrap() = false;
        }
    }

    type Queue = Mutex<Vec<u32>>;

    fn take(bell: &Bell, queue: &Queue) -> u32 {
        let look = || Ok::<_, Infallible>(queue.lock().unwrap().pop());
        let wait = || {
            bell.wait();
            Ok(Some(()))
        };
        look_again(look, wait, || bell.reset()).unwrap().unwrap()
    }

    #[test]
    fn no_ring_is_lost_whichever_thread_is_faster() {
        // Every order with at most so many switches between threads that could go on, which is where such faults show.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        // A lost ring would leave every thread waiting, which loom reports.
        model.check(|| {
            let (bell, queues) = (Arc::new(Bell::default()), Arc::new([Queue::default(), Queue::default()]));
            let senders: Vec<_> = [(0, 1), (1, 2)]
                .into_iter()
                .map(|(queue, value)| {
                    let (bell, queues) = (bell.clone(), queues.clone());
                    thread::spawn(move || {
                        queues[queue].lock().unwrap().push(value);
                        bell.ring();
                    })
                })
                .collect();
            assert_eq!(take(&bell, &queues[1]), 2);
            assert_eq!(take(&bell, &queues[0]), 1);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
        });
    }

    #[test]
    fn an_eventfd_is_such_a_bell() {
        let doorbell = Doorbell::new().unwrap();
        let is_readable = |doorbell: &Doorbell| {
            let mut fds = [nix::poll::PollFd::new(doorbell.as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, 0u8).unwrap() == 1
        };
        assert!(!is_readable(&doorbell));
        doorbell.ring();
        doorbell.ring();
        assert!(is_readable(&doorbell));
        doorbell.reset();
        assert!(!is_readable(&doorbell));
        doorbell.reset();
        let gives_up = doorbell.wait_for(|| Ok::<_, Infallible>(None::<()>), |_| Ok(None));
        assert_eq!(gives_up, Ok(None));
    }
}
