//! The only door engines use: a blocking facade over one background thread.
//!
//! The thread runs all I/O, with every signal blocked, and never calls the engine; the engine's own thread forms
//! batches meanwhile. They meet in queues, and in one doorbell (an eventfd) that wakes the engine's thread. The
//! engine's thread waits through [`Host::wait`] only, so that it can be cancelled, and never without a deadline.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::arena::{self, Arenas};
use crate::batch::CallBatch;
use crate::control::{self, ImageInfo, Request, Response};
use crate::dispatch::{Call, Connections, Target};
use crate::doorbell::Doorbell;
use crate::duplicates::{Folded, Folding};
use crate::error::{Error, Kind, Result};
use crate::host::Host;
use crate::manifest::TransportName;
use crate::signature::{FunctionKind, Signature};
use crate::transport::{Event, Inbox, Outbox, Reply};

/// Longest single wait before the deadline is looked at again.
const WAIT_SLICE: Duration = Duration::from_millis(500);

/// What the thread does.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session's client. Dropping it ends its thread, its exchanges and its leases.
#[derive(Debug)]
pub struct Client {
    /// Closing it ends the thread.
    tasks: mpsc::UnboundedSender<Task>,
    waiter: Waiter,
    connections: Arc<Connections>,
    /// Since the last release.
    has_prepared: AtomicBool,
    arenas: Arc<Arenas>,
    thread: thread::JoinHandle<()>,
}

impl Client {
    /// Starts the background thread. What the thread itself lacks, such as file descriptors, fails what is asked of it.
    pub fn start() -> Result<Client> {
        let doorbell = Doorbell::new().map_err(|cause| not_started(&cause))?;
        let waiter = Waiter { doorbell: Arc::new(doorbell), failure: Arc::default() };
        let (tasks, queue) = mpsc::unbounded_channel();
        // The thread inherits the mask: signals are the engine's business and reach its own thread alone.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(|cause| not_started(&cause))?;
        let threads_waiter = waiter.clone();
        let thread =
            thread::Builder::new().name("transship".to_string()).spawn(move || run_tasks(queue, &threads_waiter));
        mask.thread_set_mask().map_err(|cause| not_started(&cause))?;
        let thread = thread.map_err(|cause| not_started(&cause))?;
        let (connections, arenas, has_prepared) = Default::default();
        Ok(Client { tasks, waiter, connections, has_prepared, arenas, thread })
    }

    /// Whether its thread runs. If not, another client may have more luck.
    pub fn is_running(&self) -> bool {
        !self.tasks.is_closed()
    }

    /// Ends the client and waits until its thread has ended, which takes no longer than the step it is at.
    pub fn stop(self) {
        drop(self.tasks);
        // The thread ends by itself; if it panicked, it has ended too.
        let _ = self.thread.join();
    }

    /// Opens an exchange, and begins to reach who answers: a replica may be started before the first batch is sent.
    pub fn open(&self, call: Arc<Call>) -> Exchange {
        let (sender, outbox) = Outbox::new();
        let (inbox, receiver, room) = Inbox::new(self.waiter.doorbell.clone());
        let connections = self.connections.clone();
        let task_call = call.clone();
        let cancel = self.spawn(async move { connections.run(&task_call, outbox, &inbox).await });
        Exchange {
            call,
            arenas: self.arenas.clone(),
            directory: None,
            waiter: self.waiter.clone(),
            sender: Some(sender),
            receiver,
            room,
            cancel: Some(cancel),
            early: BTreeMap::new(),
            sent_at: HashMap::new(),
            folded: HashMap::new(),
            folding: Folding::default(),
            next_number: 0,
            untaken: 0,
            attempts: 0,
            transport: None,
            ready_at: None,
            failure: None,
        }
    }

    /// The signature that `target` offers for `function`.
    pub fn signature(
        &self,
        host: &dyn Host,
        target: &Target,
        transport: TransportName,
        function: &str,
        timeout: Duration,
    ) -> Result<Signature> {
        let connections = self.connections.clone();
        let (target, name) = (target.clone(), function.to_string());
        let what = format!("the container of function \"{function}\"");
        self.block_on(host, &what, timeout, async move { connections.signature(&target, transport, &name).await })
    }

    /// Asks the manager which image a name or digest stands for.
    pub fn resolve_image(&self, host: &dyn Host, manager: &Path, image: &str, timeout: Duration) -> Result<ImageInfo> {
        self.ask_for_image(host, manager, Request::Resolve { image: image.to_string() }, timeout)
    }

    /// Has the manager build inline code, which may take minutes the first time.
    pub fn build_inline(
        &self,
        host: &dyn Host,
        manager: &Path,
        manifest: crate::manifest::Manifest,
        source: &str,
        timeout: Duration,
    ) -> Result<ImageInfo> {
        let request = Request::BuildInline { manifest: Box::new(manifest), source: source.to_string() };
        self.ask_for_image(host, manager, request, timeout)
    }

    /// Has the manager build a library's project, given as paths inside it and their contents.
    pub fn build_library(
        &self,
        host: &dyn Host,
        manager: &Path,
        library: &str,
        files: impl Iterator<Item = Result<(String, Vec<u8>)>> + Send + 'static,
        timeout: Duration,
    ) -> Result<ImageInfo> {
        let (manager, library) = (manager.to_path_buf(), library.to_string());
        let work = async move { control::build_library(&manager, &library, files).await };
        self.block_on(host, "the container manager", timeout, work)
    }

    fn ask_for_image(&self, host: &dyn Host, manager: &Path, request: Request, timeout: Duration) -> Result<ImageInfo> {
        match self.ask_manager(host, manager, request, timeout)? {
            Response::Image(info) => Ok(info),
            other => Err(control::unexpected(&format!("It answered {other:?} instead of an image."))),
        }
    }

    /// Sends one request to the manager.
    pub fn ask_manager(
        &self,
        host: &dyn Host,
        manager: &Path,
        request: Request,
        timeout: Duration,
    ) -> Result<Response> {
        let manager = manager.to_path_buf();
        self.block_on(host, "the container manager", timeout, async move { control::ask(&manager, &request).await })
    }

    /// Connects to the manager, in the background, for a lease that is likely to be wanted before [`Client::release`].
    pub fn prepare(&self, manager: PathBuf) {
        self.has_prepared.store(true, Relaxed);
        let connections = self.connections.clone();
        self.spawn(async move { connections.prepare(&manager).await });
    }

    /// Ends the leases that no exchange is using; for the end of a transaction.
    pub fn release(&self) {
        self.arenas.clear();
        if self.has_prepared.swap(false, Relaxed) || !self.connections.is_empty() {
            // Connections belong to the runtime's thread, so they are closed there.
            let connections = self.connections.clone();
            self.spawn(async move { connections.release().await });
        }
    }

    fn block_on<T: Send + 'static>(
        &self,
        host: &dyn Host,
        what: &str,
        timeout: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = std_mpsc::channel();
        let doorbell = self.waiter.doorbell.clone();
        let cancel = self.spawn(async move {
            let _ = sender.send(work.await);
            doorbell.ring();
        });
        let answer = self.waiter.wait_for(host, &receiver, Instant::now() + timeout);
        let _ = cancel.send(());
        answer?.unwrap_or_else(|| Err(Error::timeout(what, timeout.as_millis())))
    }

    /// Has the thread do something, which a message through what is returned ends early.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> oneshot::Sender<()> {
        let (cancel, mut cancelled) = oneshot::channel();
        let task = async move {
            tokio::select! {
                () = work => {}
                Ok(()) = &mut cancelled => {}
            }
        };
        // If the thread has ended, the task is dropped with its end of a queue, and who waits for it is told.
        let _ = self.tasks.send(Box::pin(task));
        cancel
    }
}

/// Has the standard library find out what the processor can do, which it does once in a process, when somebody first asks. In
/// a virtual machine that takes 50 µs, since each instruction that tells it leaves the machine: better while the server works
/// than while its answer is waited for.
fn detect_processor() {
    #[cfg(target_arch = "x86_64")]
    let _ = std::arch::is_x86_feature_detected!("avx2");
}

/// What the thread runs, until the client is dropped.
fn run_tasks(mut tasks: mpsc::UnboundedReceiver<Task>, waiter: &Waiter) {
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            runtime.block_on(async {
                while let Some(task) = tasks.recv().await {
                    tokio::spawn(task);
                }
            });
            runtime.shutdown_background();
        }
        Err(cause) => {
            // Nobody else sets it.
            let _ = waiter.failure.set(not_started(&cause));
            drop(tasks);
            waiter.doorbell.ring();
        }
    }
}

fn not_started(cause: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Unreachable, format!("could not start the client of container functions: {cause}"))
}

/// How the engine's thread waits for the client's.
#[derive(Debug, Clone)]
struct Waiter {
    doorbell: Arc<Doorbell>,
    /// Why the client's thread ended, if it did so by itself.
    failure: Arc<OnceLock<Error>>,
}

impl Waiter {
    /// Waits for the next thing in a queue; none when the deadline passed first.
    fn wait_for<T>(&self, host: &dyn Host, receiver: &std_mpsc::Receiver<T>, deadline: Instant) -> Result<Option<T>> {
        let look =
            || match receiver.try_recv() {
                Ok(item) => Ok(Some(item)),
                Err(std_mpsc::TryRecvError::Empty) => Ok(None),
                Err(std_mpsc::TryRecvError::Disconnected) => Err(self.failure.get().cloned().unwrap_or_else(|| {
                    Error::new(Kind::Unreachable, "the client of container functions stopped working")
                })),
            };
        let wait = |doorbell: BorrowedFd<'_>| match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Ok(None),
            left => host.wait(doorbell, left.min(WAIT_SLICE)).map(Some),
        };
        self.doorbell.wait_for(look, wait)
    }
}

/// What a map function's server did.
#[derive(Debug)]
pub enum MapEvent {
    /// It took a batch.
    Taken,
    /// It gave results.
    Results(Reply),
    /// It has no more results.
    End,
}

/// One stream of batches to one function. Dropping it cancels what is still out.
#[derive(Debug)]
pub struct Exchange {
    // for the exchange
    call: Arc<Call>,
    arenas: Arc<Arenas>,
    /// The folder of the server's segments, if columns may be written into those; known once it was reached.
    directory: Option<PathBuf>,
    waiter: Waiter,
    /// None once the engine has closed its side.
    sender: Option<mpsc::UnboundedSender<CallBatch>>,
    receiver: std_mpsc::Receiver<Result<Event>>,
    room: Arc<Semaphore>,
    cancel: Option<oneshot::Sender<()>>,
    // for the batches in flight
    /// Replies and failures that overtook an earlier batch's.
    early: BTreeMap<u64, Result<Reply>>,
    sent_at: HashMap<u64, Instant>,
    /// The batches of which only the distinct rows were sent.
    folded: HashMap<u64, Folded>,
    folding: Folding,
    next_number: u64,
    /// A map function's batches that its server did not take yet.
    untaken: usize,
    /// How often a server was reached.
    attempts: u64,
    transport: Option<TransportName>,
    /// When the server was reached or last answered; before that it had no time for the next batch. None before it was
    /// reached.
    ready_at: Option<Instant>,
    /// Once failed, always failed.
    failure: Option<Error>,
}

impl Exchange {
    /// Sends a batch, without waiting. The caller bounds how many are in flight.
    pub fn send(&mut self, mut batch: CallBatch) {
        if Folding::is_for(&self.call.signature, self.call.volatility)
            && let Some((distinct, folded)) = self.folding.fold(&batch)
        {
            batch.columns = distinct;
            batch.arena = None;
            self.folded.insert(batch.number, folded);
        }
        if self.call.signature.kind == FunctionKind::Map {
            self.untaken += 1;
        } else {
            self.sent_at.insert(batch.number, Instant::now());
        }
        if let Some(arena) = &batch.arena {
            self.arenas.keep(arena);
        }
        // A closed queue means that the exchange has failed; receive says how.
        if let Some(sender) = &self.sender {
            let _ = sender.send(batch);
        }
        detect_processor();
    }

    /// Memory for the columns of a batch, of at least so many bytes: what the server maps, if there is such.
    pub fn arena(&self, bytes: usize) -> arena::Writer {
        self.arenas.writer(self.directory.as_deref(), bytes)
    }

    /// How often the exchange went to another replica.
    pub fn retries(&self) -> u64 {
        self.attempts.saturating_sub(1)
    }

    /// Says that no batch will follow.
    pub fn close(&mut self) {
        self.sender = None;
    }

    /// A map function's batches that its server did not take yet.
    pub fn untaken(&self) -> usize {
        self.untaken
    }

    /// Waits until a map function's server took a batch, or gave results, or ended.
    pub fn receive_from_map(&mut self, host: &dyn Host) -> Result<MapEvent> {
        loop {
            let deadline = Instant::now() + self.call.start_timeout + self.call.batch_timeout;
            match self.waiter.wait_for(host, &self.receiver, deadline)?.transpose()? {
                Some(Event::Reached(transport, _)) => self.note_reached(transport),
                Some(Event::Taken) => {
                    self.untaken = self.untaken.saturating_sub(1);
                    return Ok(MapEvent::Taken);
                }
                Some(Event::Reply(reply)) => {
                    self.room.add_permits(1);
                    return Ok(MapEvent::Results(reply));
                }
                Some(Event::End) => return Ok(MapEvent::End),
                Some(Event::Failure(_, error)) => return Err(error),
                None => return Err(self.timeout()),
            }
        }
    }

    fn timeout(&self) -> Error {
        let what = format!("container function \"{}\"", self.call.signature.function);
        Error::timeout(&what, self.call.batch_timeout.as_millis())
            .with_hint("Raise transship.batch_timeout, or timeout_ms in the function body.")
    }

    fn note_reached(&mut self, transport: TransportName) {
        self.attempts += 1;
        self.transport = Some(transport);
    }

    /// How batches travel; known once a server was reached.
    pub fn transport(&self) -> Option<TransportName> {
        self.transport
    }

    /// Batches sent and not yet received.
    pub fn in_flight(&self) -> usize {
        self.sent_at.len()
    }

    /// Waits for the reply to the oldest batch in flight, or for the next part of it.
    pub fn receive(&mut self, host: &dyn Host) -> Result<Reply> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let outcome = self.wait_for_next(host).and_then(|reply| self.unfold(reply)).map_err(|error| self.place(error));
        match &outcome {
            Ok(reply) => {
                self.room.add_permits(1);
                if reply.is_last {
                    self.sent_at.remove(&reply.number);
                    self.next_number += 1;
                }
                self.ready_at = Some(Instant::now());
            }
            Err(error) => self.failure = Some(error.clone()),
        }
        outcome
    }

    /// The reply for all rows of its batch.
    fn unfold(&mut self, mut reply: Reply) -> Result<Reply> {
        let rows = reply.columns.num_rows();
        self.folding.note(rows, reply.compute_us);
        if let Some(folded) = self.folded.remove(&reply.number) {
            let function = &self.call.signature.function;
            reply.columns = folded.unfold(&reply.columns).map_err(|fact| Error::bad_result(function, fact))?;
            reply.repeated = reply.columns.num_rows() - rows;
        }
        Ok(reply)
    }

    /// An error whose row is one of the batch that the engine sent.
    fn place(&self, error: Error) -> Error {
        let folded = self.folded.get(&self.next_number);
        match (error.row(), folded) {
            (Some(row), Some(folded)) => match folded.first(row) {
                Some(first) => error.with_row(first),
                None => error,
            },
            _ => error,
        }
    }

    fn wait_for_next(&mut self, host: &dyn Host) -> Result<Reply> {
        let timeout = self.call.batch_timeout;
        loop {
            if let Some(outcome) = self.early.remove(&self.next_number) {
                return outcome;
            }
            let sent_at = self.sent_at.get(&self.next_number).copied().unwrap_or_else(Instant::now);
            let deadline = match self.ready_at {
                Some(ready_at) => sent_at.max(ready_at) + timeout,
                // Starting a replica has a deadline of its own in dispatch; this one is behind it.
                None => sent_at + self.call.start_timeout + timeout,
            };
            match self.waiter.wait_for(host, &self.receiver, deadline)?.transpose()? {
                Some(Event::Reached(transport, directory)) => {
                    self.note_reached(transport);
                    self.directory = directory;
                    self.ready_at = Some(Instant::now());
                }
                // Parts of one answer come one after the other.
                Some(Event::Reply(reply)) if reply.number == self.next_number => return Ok(reply),
                Some(Event::Reply(reply)) => {
                    self.early.insert(reply.number, Ok(reply));
                }
                Some(Event::Failure(number, error)) => {
                    self.early.insert(number, Err(error));
                }
                Some(Event::Taken | Event::End) => {}
                None => return Err(self.timeout()),
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // With nothing in flight, closing the queue ends the stream in good order.
        if (!self.sent_at.is_empty() || self.call.signature.kind == FunctionKind::Map)
            && let Some(cancel) = self.cancel.take()
        {
            let _ = cancel.send(());
        }
    }
}
