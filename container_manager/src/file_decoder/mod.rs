//! Files that become shared tables are decoded here: each by a process of its own, which has no right but to read that file and to
//! write to the client who asked (`udf_client::file_rows`).

mod decode;
mod lock_down;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::hash::RandomState;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::dup2_stderr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use udf_client::channel::{Channel, MOST_BYTES};
use udf_client::file_rows::Message;
use udf_codec::wire::shorten;
use udf_types::{Error, Kind, Result};

use self::decode::Positioned;
use crate::helper_process::{bind_socket, command, give_up};
use crate::log;

/// The first argument of the manager's program when it is to decode a file.
pub const COMMAND: &str = "decode-file";
/// Files that are decoded at a time; further clients wait. A decoder is there until its client has read all rows.
const MOST_DECODERS: usize = 4;
/// Clients that wait, for a place or with their files.
const MOST_WAITING: usize = 64;
/// One in so many places of either kind is for the others, where there are several users.
const PART_OF_OTHERS: usize = 4;
/// Longest wait for a client's file.
const MOST_SILENCE: Duration = Duration::from_secs(10);
/// Memory of a decoder.
const MOST_MEMORY_BYTES: u64 = 1 << 30;
/// Its addresses, among them those of the program.
const MOST_ADDRESSES: u64 = 3 << 29;
/// Its descriptors. It has half a dozen, but the kernel does not let it send more while so many of its user's are on their way.
const MOST_DESCRIPTORS: u64 = 64;

/// The socket to which clients come with files.
#[derive(Debug)]
pub struct FileDecoder {
    socket: PathBuf,
}

impl FileDecoder {
    /// Takes files of these users, until the process ends. The socket is there until this is dropped.
    ///
    /// # Errors
    /// The socket cannot be bound, or there can be no thread.
    pub fn start(socket: PathBuf, users: HashSet<u32>) -> Result<FileDecoder> {
        let listener = bind_socket(&socket)?;
        let failed = |cause| Error::new(Kind::InvalidDefinition, format!("could not start a thread: {cause}"));
        let decoder = FileDecoder { socket };
        thread::Builder::new()
            .name("files".to_string())
            .spawn(move || take_clients(&listener, &users))
            .map_err(failed)?;
        Ok(decoder)
    }
}

impl Drop for FileDecoder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Places for clients, each of whom takes one. One user does not get all of them.
#[derive(Debug)]
struct Places {
    most: usize,
    most_of_user: usize,
    /// By user.
    taken: Mutex<HashMap<u32, usize>>,
    freed: Condvar,
}

impl Places {
    fn new(most: usize, users: usize) -> Arc<Places> {
        let most_of_user = if users > 1 { most - most / PART_OF_OTHERS } else { most };
        Arc::new(Places { most, most_of_user, taken: Mutex::default(), freed: Condvar::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, and takes it.
    fn take(self: &Arc<Places>, user: u32) -> Place {
        let mut taken = self.lock();
        loop {
            if let Some(place) = self.take_of(&mut taken, user) {
                return place;
            }
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a place, if there is one.
    fn take_free(self: &Arc<Places>, user: u32) -> Option<Place> {
        self.take_of(&mut self.lock(), user)
    }

    fn take_of(self: &Arc<Places>, taken: &mut HashMap<u32, usize>, user: u32) -> Option<Place> {
        let all: usize = taken.values().sum();
        let of_user = taken.entry(user).or_default();
        (all < self.most && *of_user < self.most_of_user).then(|| {
            *of_user += 1;
            Place { places: self.clone(), user }
        })
    }
}

#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    user: u32,
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

fn take_clients(listener: &OwnedFd, users: &HashSet<u32>) {
    let [seats, decoders] = [MOST_WAITING, MOST_DECODERS].map(|most| Places::new(most, users.len()));
    loop {
        let client = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(cause) => {
                log::warning("no_client_of_files").write(format_args!("no client with a file could be taken: {cause}"));
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let user = socket_peercred(&client).ok().map(|peer| peer.uid.as_raw());
        let Some(user) = user.filter(|user| users.contains(user)) else { continue };
        let Some(seat) = seats.take_free(user) else {
            let fact = "Too many clients of the manager wait for their files to be decoded.".to_string();
            // The socket has room for it, since nothing was sent before.
            let _ = Channel::from(client).send(&Message::Failed { kind: Kind::Busy, fact }.to_bytes());
            continue;
        };
        let decoders = decoders.clone();
        // The kernel kills a decoder when the thread ends that has started it.
        let work = move || {
            if let Err(cause) = serve(&client, seat, &decoders) {
                log::warning("decoder_failed").write(format_args!("a file could not be decoded: {cause}"));
            }
        };
        // Without a thread the client is told by the end of its connection.
        let _ = thread::Builder::new().name("file".to_string()).spawn(work);
    }
}

/// Waits for the client's file, and for a place among the decoders, which clients without a file do not take.
fn serve(client: &OwnedFd, seat: Place, decoders: &Arc<Places>) -> std::io::Result<()> {
    if !has_spoken(client)? {
        return Ok(());
    }
    let _place = decoders.take(seat.user);
    drop(seat);
    decode_for(client)
}

/// Waits for the client's message, but not for long; whether there is one, and the client.
fn has_spoken(client: &OwnedFd) -> std::io::Result<bool> {
    let deadline = Instant::now() + MOST_SILENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.try_into().map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let mut said = [PollFd::new(client, PollFlags::IN)];
        match poll(&mut said, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| said[0].revents() == PollFlags::IN).map_err(Into::into),
        }
    }
}

/// Runs a decoder until it ends or its client is gone.
fn decode_for(client: &OwnedFd) -> std::io::Result<()> {
    let mut child = command(COMMAND, [], client.try_clone()?).spawn()?;
    // Whether it has ended, and its client has not.
    let wait = || -> std::io::Result<bool> {
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::NotFound)?;
        let child = pidfd_open(id, PidfdFlags::empty())?;
        let mut ends = [PollFd::new(client, PollFlags::empty()), PollFd::new(&child, PollFlags::IN)];
        loop {
            match poll(&mut ends, None) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map(|_| ends[0].revents().is_empty()).map_err(Into::into),
            }
        }
    };
    let waited = wait();
    let _ = child.kill();
    let status = child.wait()?;
    if let (true, Some(signal)) = (waited?, status.signal()) {
        let name = Signal::try_from(signal).map_or("a signal of real time", Signal::as_str);
        log::warning("decoder_died").write(format_args!("a decoder of a file died of {name}"));
    }
    Ok(())
}

/// The decoder's main, given the arguments behind [`COMMAND`]. Its standard input is the connection to its client.
///
/// # Errors
/// It cannot be what it should be, or the client says nothing that can be read.
pub fn run_decoder(mut arguments: impl Iterator<Item = String>) -> std::io::Result<()> {
    let invalid = |fact: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, fact);
    let manager = arguments.next().and_then(|manager| manager.parse().ok());
    let manager = manager.ok_or_else(|| invalid("only transshipd decodes files"))?;
    let channel = Channel::from(give_up(manager, MOST_MEMORY_BYTES)?);
    channel.bound_unread()?;
    let Some((_, file)) = channel.receive_with_file()? else { return Ok(()) };
    let file = Positioned::new(File::from(file))?;
    // Long messages are memory, which is a file here.
    setrlimit(Resource::RLIMIT_FSIZE, MOST_BYTES as u64, MOST_BYTES as u64)?;
    setrlimit(Resource::RLIMIT_AS, MOST_ADDRESSES, MOST_ADDRESSES)?;
    setrlimit(Resource::RLIMIT_NOFILE, MOST_DESCRIPTORS, MOST_DESCRIPTORS)?;
    std::panic::set_hook(Box::new(|_| ()));
    // The first table's keys may be read from a file, where the kernel has no call for them.
    let _ = RandomState::new();
    // Standard error is the manager's log, and what the library says may be of the file.
    let log = std::io::stderr().as_fd().try_clone_to_owned()?;
    dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    if let Err(cause) = lock_down::lock_down() {
        dup2_stderr(log)?;
        return Err(cause);
    }
    drop(log);
    let send = |message: Message| {
        channel
            .send(&message.to_bytes())
            .map_err(|cause| Error::new(Kind::Cancelled, format!("the client is gone: {cause}")))
    };
    if let Err(error) = decode::decode(file, send) {
        let mut fact = match error.detail() {
            Some(detail) => format!("{} {detail}", error.message()),
            None => error.message().to_string(),
        };
        shorten(&mut fact);
        let _ = send(Message::Failed { kind: error.kind(), fact });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_has_all_places() {
        let places = Places::new(4, 2);
        let mut first: Vec<_> = (0..3).map(|_| places.take(1)).collect();
        assert!(places.take_free(1).is_none());
        let other = places.take(2);
        assert!(places.take_free(2).is_none());
        drop(first.pop());
        // Of those who wait, the one who may goes on.
        let waiting = [1, 2].map(|user| {
            let places = places.clone();
            thread::spawn(move || places.take(user))
        });
        drop((first, other));
        assert!(waiting.map(|thread| thread.join().unwrap()).iter().map(|place| place.user).eq([1, 2]));
        assert!(places.lock().values().all(|taken| *taken == 0));
        let places = Places::new(4, 1);
        assert_eq!(std::iter::from_fn(|| places.take_free(1)).collect::<Vec<_>>().len(), 4);
    }
}
