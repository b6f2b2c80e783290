//! Files that become shared tables are decoded here: each by a process of its own, which has no right but to read that file and to
//! write to the client who asked (`udf_client::file_rows`).

mod decode;
mod lock_down;

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::RandomState;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::dup2_stderr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use udf_client::channel::{Channel, MOST_BYTES};
use udf_client::file_rows::{MOST_STALL, Message};
use udf_codec::wire::shorten;
use udf_types::{Error, Kind, Result};

use self::decode::Positioned;
use crate::helper_process::{bind_socket, command, give_up};
use crate::log;
use crate::places::{Place, Places};

/// The first argument of the manager's program when it is to decode a file.
pub const COMMAND: &str = "decode-file";
/// Files that are decoded at a time; further clients wait. A decoder is there until its client has read all rows, or stops reading.
const MOST_DECODERS: usize = 4;
/// Clients that wait, for a place or with their files.
const MOST_WAITING: usize = 64;
/// Where there are several users, one may have so many times the places of either kind that are free: three of four.
const MOST_OF_FREE: usize = 3;
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

fn take_clients(listener: &OwnedFd, users: &HashSet<u32>) {
    let [seats, decoders] = [MOST_WAITING, MOST_DECODERS].map(|most| Places::new(most, MOST_OF_FREE, users.len()));
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
        let Ok(seat) = seats.take_free(user) else {
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
    let stall = MOST_STALL.as_secs().to_string();
    let mut child = command(COMMAND, [stall], client.try_clone()?).spawn()?;
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
    let mut number = || arguments.next().and_then(|argument| argument.parse().ok());
    let (Some(manager), Some(stall)) = (number(), number()) else {
        return Err(invalid("only transshipd decodes files"));
    };
    let channel = Channel::from(give_up(manager, MOST_MEMORY_BYTES)?);
    channel.bound_unread()?;
    // One who reads no more keeps a place from others.
    set_socket_timeout(channel.as_fd(), Timeout::Send, Some(Duration::from_secs(stall)))?;
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
