//! Files that become shared tables are decoded here: each by a process of its own, which has no right but to read that file and to
//! write to the client who asked (`udf_client::file_rows`).

mod decode;
mod lock_down;

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use udf_client::channel::{Channel, MOST_BYTES};
use udf_client::file_rows::Message;
use udf_types::{Error, Kind, Result};

use crate::helper_process::{bind_socket, command, give_up};
use crate::log;

/// The first argument of the manager's program when it is to decode a file.
pub const COMMAND: &str = "decode-file";
/// Files that are decoded at a time; further clients wait.
const MOST_DECODERS: usize = 4;
/// Memory of a decoder.
const MOST_MEMORY_BYTES: u64 = 1 << 30;

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

/// How many decoders there are.
#[derive(Debug, Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, and takes it.
    fn take(places: &Arc<Places>) -> Place {
        let mut taken = places.lock();
        while *taken >= MOST_DECODERS {
            taken = places.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        drop(taken);
        Place(places.clone())
    }
}

struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.freed.notify_one();
    }
}

fn take_clients(listener: &OwnedFd, users: &HashSet<u32>) {
    let places = Arc::new(Places::default());
    loop {
        let place = Places::take(&places);
        let client = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(cause) => {
                log::warning("no_client_of_files").write(format_args!("no client with a file could be taken: {cause}"));
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if !socket_peercred(&client).is_ok_and(|peer| users.contains(&peer.uid.as_raw())) {
            continue;
        }
        // The kernel kills a decoder when the thread ends that has started it.
        let work = move || {
            let _place = place;
            if let Err(cause) = decode_for(&client) {
                log::warning("decoder_failed").write(format_args!("a file could not be decoded: {cause}"));
            }
        };
        // Without a thread the client is told by the end of its connection.
        let _ = thread::Builder::new().name("file".to_string()).spawn(work);
    }
}

/// Runs a decoder until it ends or its client is gone.
fn decode_for(client: &OwnedFd) -> std::io::Result<()> {
    let mut child = command(COMMAND, [], client.try_clone()?).spawn()?;
    let wait = || -> std::io::Result<()> {
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::NotFound)?;
        let child = pidfd_open(id, PidfdFlags::empty())?;
        let mut ends = [PollFd::new(client, PollFlags::empty()), PollFd::new(&child, PollFlags::IN)];
        loop {
            match poll(&mut ends, None) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map(drop).map_err(Into::into),
            }
        }
    };
    let waited = wait();
    let _ = child.kill();
    child.wait()?;
    waited
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
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(invalid("it is no file"));
    }
    // Long messages are memory, which is a file here.
    setrlimit(Resource::RLIMIT_FSIZE, MOST_BYTES as u64, MOST_BYTES as u64)?;
    // What a panic says may be of the file, and standard error is the manager's log.
    std::panic::set_hook(Box::new(|_| ()));
    lock_down::lock_down()?;
    let send = |message: Message| {
        channel
            .send(&message.to_bytes())
            .map_err(|cause| Error::new(Kind::Cancelled, format!("the client is gone: {cause}")))
    };
    if let Err(error) = decode::decode(file, send) {
        let fact = match error.detail() {
            Some(detail) => format!("{} {detail}", error.message()),
            None => error.message().to_string(),
        };
        let _ = send(Message::Failed { kind: error.kind(), fact });
    }
    Ok(())
}
