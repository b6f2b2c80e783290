//! The store's process, which has nothing but the socket on which it listens, and a file, if results are also kept on disk. It is
//! started when a client first knocks: where no function has its results kept, there is none.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::oneshot;
use udf_client::channel::MOST_BYTES;
use udf_types::Result;

use super::clock::Clock;
use super::disk::{Disk, MOST_READERS, Tier};
use super::folder::open_file;
use super::server::{MOST_CONNECTIONS, serve};
use super::store::Store;
use crate::helper_process::{bind_socket, command, give_up};
use crate::log;

/// The first argument of the manager's program when it is to be the store.
pub const COMMAND: &str = "cache-store";
/// How long a store that has ended stays so, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// One that ran for so long has not failed at once.
const LONG_RUN: Duration = Duration::from_secs(60);
/// Memory beside the results: stacks, messages, the program.
const BESIDE_BYTES: u64 = 512 << 20;
/// How long the disk may take to be opened.
const LONGEST_OPEN: Duration = Duration::from_secs(10);
/// Descriptors, of which the connections that it serves may have a third.
const MOST_DESCRIPTORS: u64 = 3 * MOST_CONNECTIONS as u64;

/// The manager's end of the store.
#[derive(Debug)]
pub struct StoreProcess {
    listener: OwnedFd,
    socket: PathBuf,
    bytes: u64,
    disk: Option<(PathBuf, u64)>,
    users: Vec<u32>,
}

impl StoreProcess {
    /// Binds the store's socket, in place of one that a dead manager left; for so many bytes in memory, so many on disk in that folder, and
    /// these users. The caller listens on the manager's own socket already, so that no other manager is alive here.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn bind(
        socket: PathBuf,
        bytes: u64,
        disk: Option<(PathBuf, u64)>,
        users: impl IntoIterator<Item = u32>,
    ) -> Result<StoreProcess> {
        let listener = bind_socket(&socket)?;
        let mut users: Vec<u32> = users.into_iter().collect();
        users.sort_unstable();
        users.dedup();
        Ok(StoreProcess { listener, socket, bytes, disk, users })
    }

    /// Starts the store when a client knocks, and again after it has ended.
    pub async fn keep(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Err(cause) = self.wait_for_client().await {
                log::warning("store_not_watched").write(format_args!("no results are kept: {cause}"));
                return std::future::pending().await;
            }
            let started = tokio::time::Instant::now();
            let ended = match self.run().await {
                Ok(status) => format!("ended with {status}"),
                Err(cause) => format!("could not be started: {cause}"),
            };
            log::warning("store_ended").write(format_args!("the store of cached results {ended}"));
            pause = if started.elapsed() > LONG_RUN { FIRST_PAUSE } else { pause };
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn wait_for_client(&self) -> std::io::Result<()> {
        let listener = self.listener.try_clone()?;
        let wait = move || loop {
            match poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        };
        in_thread(wait).await
    }

    /// Runs it until it ends, or the thread that calls this does: the kernel kills it then.
    async fn run(&self) -> std::io::Result<ExitStatus> {
        let disk_bytes = self.disk.as_ref().map_or(0, |(_, bytes)| *bytes);
        let arguments = [self.bytes, disk_bytes].into_iter().chain(self.users.iter().copied().map(u64::from));
        let mut command = command(COMMAND, arguments.map(|number| number.to_string()), self.listener.try_clone()?);
        if let Some((folder, _)) = self.disk.clone() {
            let opened = folder.clone();
            let file = tokio::time::timeout(LONGEST_OPEN, in_thread(move || open_file(&opened))).await;
            match file.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
                Ok(file) => {
                    command.stdout(file);
                }
                Err(cause) => log::warning("no_cache_dir").write(format_args!(
                    "results are kept in memory alone: could not use \"{}\": {cause}",
                    folder.display()
                )),
            }
        }
        let mut child = command.spawn()?;
        // With the file, which is the store's alone from here on.
        drop(command);
        in_thread(move || child.wait()).await
    }
}

/// Does something that waits, in a thread of its own, which the end of the manager does not wait for.
async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let (sender, done) = oneshot::channel();
    let work = move || {
        // The manager may have ended the wait.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("store".to_string()).spawn(work)?;
    done.await.unwrap_or_else(|_| Err(std::io::Error::other("nobody waits for it")))
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// The store's main, given the arguments behind [`COMMAND`]. Its standard input is the socket on which it listens, and its standard
/// output the file in which it keeps results, if the manager could open it.
///
/// # Errors
/// If it cannot be what it should be, or the socket fails.
pub fn run_store(arguments: impl Iterator<Item = String>) -> std::io::Result<()> {
    let invalid = |fact: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, fact);
    let numbers: Vec<u64> = arguments.map_while(|argument| argument.parse().ok()).collect();
    let [manager, bytes, disk_bytes, users @ ..] = numbers.as_slice() else {
        return Err(invalid("only transshipd starts the store of cached results"));
    };
    // What is read from the disk for an answer is there up to four times.
    let readers = if *disk_bytes == 0 { 0 } else { MOST_READERS as u64 * 4 * MOST_BYTES as u64 };
    let most = bytes.saturating_mul(2).saturating_add(BESIDE_BYTES + readers);
    let listener = give_up(*manager, most)?;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(soft.max(MOST_DESCRIPTORS)), hard)?;
    let users: HashSet<u32> = users.iter().filter_map(|user| u32::try_from(*user).ok()).collect();
    let tier = open_disk(*disk_bytes)?;
    serve(&listener, &users, &Arc::new(Store::new(*bytes, Clock::of_host(), tier)))
}

/// Where results are kept beside memory.
fn open_disk(bytes: u64) -> std::io::Result<Tier> {
    if bytes == 0 {
        return Ok(Tier::Memory);
    }
    let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    if !file.metadata()?.is_file() {
        // The manager has said why.
        return Ok(Tier::Unusable);
    }
    // A file that grew beyond this would end the process.
    let is_too_large = getrlimit(Resource::RLIMIT_FSIZE)?.0 < bytes;
    let opened = match is_too_large {
        true => Err(std::io::ErrorKind::FileTooLarge.into()),
        false => {
            // A disk that hangs keeps nobody from the results in memory.
            let (sender, opened) = mpsc::channel();
            let open = move || {
                // Nobody may wait for it any more.
                let _ = sender.send(Disk::open(file, bytes, Clock::of_host(), Clock::of_day()).map(Arc::new));
            };
            std::thread::Builder::new().name("disk".to_string()).spawn(open)?;
            opened.recv_timeout(LONGEST_OPEN).unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        }
    };
    match opened.and_then(|disk| disk.start_writer().map(|()| disk)) {
        Ok(disk) => Ok(Tier::Disk(disk)),
        Err(cause) => {
            log::warning("no_cache_file").write(format_args!(
                "results are kept in memory alone: could not use the file in --cache-dir: {cause}"
            ));
            Ok(Tier::Unusable)
        }
    }
}
