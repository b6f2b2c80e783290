//! A session's connections to the store of results, and what it has learnt of it.
//!
//! The store may be missing, dead, slow, full or hostile: the session goes without it then, for a while, and longer each time. Nobody
//! waits for it longer than the deadline of a look-up, and results are handed over without waiting.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use udf_types::{Error, Kind, Result};

use super::message::{CallCost, Counters, Namespace, Request, Response};
use super::worth::Worth;
use crate::channel::{Channel, path_beside};
use crate::spin;

/// How long a session goes without a store that failed, at first and at most; and at first without one that was late, as it is when
/// the machine is busy.
const FIRST_REST: Duration = Duration::from_secs(1);
const LATE_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(64);
/// Requests to keep results that may be unanswered; further results are not kept.
const MOST_UNANSWERED: usize = 8;
/// Functions of which it is known what calls take.
const MOST_WORTHS: usize = 1024;
/// Longest wait for what a user asks of the store.
const USERS_TIMEOUT: Duration = Duration::from_secs(1);
/// What the name of the store's socket has behind the manager's.
const SUFFIX: &str = ".cache";

/// The socket of the store beside a manager, given the manager's.
pub fn socket_beside(manager: &Path) -> PathBuf {
    path_beside(manager, SUFFIX)
}

fn connect(socket: &Path) -> io::Result<Channel> {
    let manager = socket.to_str().and_then(|path| path.strip_suffix(SUFFIX)).ok_or(ErrorKind::InvalidInput)?;
    Channel::connect_beside(Path::new(manager), SUFFIX)
}

/// A session's connections, which its exchanges share.
#[derive(Debug, Default)]
pub(crate) struct Session(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Where the connections go.
    socket: PathBuf,
    look_ups: Option<Channel>,
    inserts: Option<Channel>,
    /// Requests to keep results that are not answered yet.
    unanswered: usize,
    rests_until: Option<Instant>,
    /// Whether it rests since the store was late, and not since it is missing or wrong.
    was_late: bool,
    /// The last rest.
    rest: Duration,
    worths: HashMap<Namespace, Worth>,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A state whose holder has panicked is as good as any: it holds what is asked anew.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What is known of a function's calls.
    pub(super) fn worth_of(&self, namespace: &Namespace) -> Worth {
        self.lock().worths.get(namespace).copied().unwrap_or_default()
    }

    /// Keeps that for the next exchange.
    pub(super) fn keep_worth(&self, namespace: Namespace, worth: Worth) {
        let mut state = self.lock();
        if state.worths.len() >= MOST_WORTHS {
            state.worths.clear();
        }
        state.worths.insert(namespace, worth);
    }

    /// Waits until a store that was late is asked again, if that is so soon; how long.
    pub(super) fn wait_out_rest(&self, most: Duration) -> Duration {
        let until = {
            let state = self.lock();
            state.rests_until.filter(|_| state.was_late)
        };
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if left > most {
            return Duration::ZERO;
        }
        std::thread::sleep(left);
        left
    }

    /// Asks the store on the way to a call; none if it does not answer in time, or nothing that can be read.
    pub(super) fn look_up(&self, socket: &Path, request: &Request, timeout: Duration) -> Option<Response> {
        let mut state = self.lock();
        state.use_socket(socket);
        if state.is_resting() {
            return None;
        }
        let bytes = request.to_bytes();
        let kept = state.look_ups.take();
        // A connection that was kept may have been ended since.
        let asked =
            kept.and_then(|channel| ask(channel, &bytes, timeout).map(Some).or_else(Failure::unless_ended).transpose());
        let asked = match asked {
            Some(asked) => asked,
            None => match connect(socket) {
                Ok(channel) => ask(channel, &bytes, timeout),
                Err(_) => Err(Failure::Other),
            },
        };
        match asked {
            Ok((channel, response)) => {
                state.look_ups = Some(channel);
                (state.rests_until, state.rest) = (None, Duration::ZERO);
                Some(response)
            }
            Err(failure) => {
                let is_late = failure == Failure::Late;
                state.begin_rest(if is_late { LATE_REST } else { FIRST_REST });
                state.was_late = is_late;
                None
            }
        }
    }

    /// Notes that the store gave something that cannot be right.
    pub(super) fn distrust(&self) {
        let mut state = self.lock();
        state.look_ups = None;
        state.begin_rest(FIRST_REST);
        state.was_late = false;
    }

    /// Hands results over, if the store takes them at once; `waits` says for how long its answer is waited for.
    pub(super) fn insert(&self, socket: &Path, request: &Request, waits: Option<Duration>) {
        let mut state = self.lock();
        state.use_socket(socket);
        state.read_answers(None);
        if state.is_resting() || state.unanswered >= MOST_UNANSWERED {
            return;
        }
        if state.inserts.is_none() {
            state.inserts = connect(socket).ok();
            state.unanswered = 0;
        }
        let Some(channel) = &state.inserts else { return };
        match channel.send(&request.to_bytes()) {
            Ok(()) => {
                state.unanswered += 1;
                if let Some(timeout) = waits {
                    state.read_answers(Some(Instant::now() + timeout));
                }
            }
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
            Err(_) => state.inserts = None,
        }
    }
}

impl State {
    fn use_socket(&mut self, socket: &Path) {
        if self.socket != socket {
            let worths = std::mem::take(&mut self.worths);
            *self = State { socket: socket.to_path_buf(), worths, ..State::default() };
        }
    }

    fn is_resting(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }

    fn begin_rest(&mut self, first: Duration) {
        self.rest = (self.rest * 2).clamp(first, LONGEST_REST);
        self.rests_until = Some(Instant::now() + self.rest);
        // What it has not taken by now would only fill memory.
        (self.inserts, self.unanswered) = (None, 0);
    }

    /// Reads the answers to requests to keep results, those that are there, or all before the deadline.
    fn read_answers(&mut self, deadline: Option<Instant>) {
        while self.unanswered > 0 {
            let Some(channel) = &self.inserts else { return };
            match channel.receive() {
                Ok(Some(bytes)) if Response::from_bytes(&bytes) == Some(Response::Done) => self.unanswered -= 1,
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => match deadline {
                    Some(deadline) if wait(channel, deadline) => {}
                    _ => return,
                },
                Ok(_) | Err(_) => (self.inserts, self.unanswered) = (None, 0),
            }
        }
    }
}

/// Why there is no response.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// The connection has ended.
    Ended,
    /// There was no answer at the deadline. The connection is of no use: what comes next on it may be that answer.
    Late,
    /// Anything else.
    Other,
}

impl Failure {
    /// None if another connection may do.
    fn unless_ended<T>(self) -> std::result::Result<Option<T>, Failure> {
        if self == Failure::Ended { Ok(None) } else { Err(self) }
    }
}

fn ask(channel: Channel, bytes: &[u8], timeout: Duration) -> std::result::Result<(Channel, Response), Failure> {
    let deadline = Instant::now() + timeout;
    channel.send(bytes).map_err(|cause| match cause.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Failure::Ended,
        _ => Failure::Other,
    })?;
    spin::look_for(|| wait(&channel, Instant::now()));
    loop {
        match channel.receive() {
            Ok(Some(bytes)) => {
                let response = Response::from_bytes(&bytes).ok_or(Failure::Other)?;
                return Ok((channel, response));
            }
            Ok(None) => return Err(Failure::Ended),
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                if !wait(&channel, deadline) {
                    return Err(Failure::Late);
                }
            }
            Err(cause) if cause.kind() == ErrorKind::ConnectionReset => return Err(Failure::Ended),
            Err(_) => return Err(Failure::Other),
        }
    }
}

/// Waits until there is something to receive; false if there is nothing at the deadline.
fn wait(channel: &Channel, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last fraction of a millisecond is not a busy loop.
        let milliseconds = left.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(1..) => return true,
            _ if left.is_zero() => return false,
            _ => {}
        }
    }
}

/// Asks the store for a user, who is told if it does not answer.
fn ask_for_user(manager: &Path, request: &Request) -> Result<Response> {
    let failed = |fact: String| {
        Error::new(Kind::Unreachable, "could not ask the store of cached results")
            .with_detail(fact)
            .with_hint("Check that transshipd runs, and that it was not started with --cache-size 0.")
    };
    let socket = socket_beside(manager);
    let channel = connect(&socket).map_err(|cause| failed(format!("\"{}\": {cause}.", socket.display())))?;
    let answer = ask(channel, &request.to_bytes(), USERS_TIMEOUT);
    answer.map(|(_, response)| response).map_err(|_| failed("It did not answer.".to_string()))
}

/// Has the store beside a manager forget the results of a function.
///
/// # Errors
/// If it does not answer, or cannot forget them on disk.
pub fn reset(manager: &Path, namespace: Namespace) -> Result<()> {
    match ask_for_user(manager, &Request::Reset { namespace })? {
        Response::Done => Ok(()),
        Response::NotForgotten => Err(Error::new(Kind::Unreachable, "could not forget cached results on disk")
            .with_detail("They may come back when transshipd starts again.")
            .with_hint(
                "See the log of transshipd. To forget all results on disk, stop it and remove the file in --cache-dir.",
            )),
        _ => {
            Err(Error::new(Kind::ProtocolViolation, "the store of cached results gave another answer than to a reset"))
        }
    }
}

/// What the store beside a manager knows of some functions, in their order.
///
/// # Errors
/// If it does not answer.
pub fn count(manager: &Path, namespaces: Vec<Namespace>) -> Result<Vec<Counters>> {
    let asked = namespaces.len();
    match ask_for_user(manager, &Request::Count { namespaces })? {
        Response::Counters(counters) if counters.len() == asked => Ok(counters),
        _ => Err(Error::new(Kind::ProtocolViolation, "the store of cached results broke the protocol")),
    }
}

/// A request to keep nothing, which says what calls take.
pub(super) fn note(namespace: Namespace, generation: u64, cost: CallCost, is_too_cheap: bool) -> Request {
    let (keys, results) = Default::default();
    Request::Insert { namespace, generation, cost, is_too_cheap, keys, results }
}
