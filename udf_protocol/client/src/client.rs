//! The only door engines use: a blocking facade over one background thread.
//!
//! The thread runs all I/O, with every signal blocked, and never calls the engine; the engine's own thread forms
//! batches meanwhile. They meet in queues, and in one doorbell (an eventfd) that wakes the engine's thread. The
//! engine's thread waits through [`Host::wait`] only, so that it can be cancelled, and never without a deadline.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, mpsc, oneshot};
use udf_project::body::FunctionBody;
use udf_project::manifest::FunctionEntry;
use udf_types::signature::Signature;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::arena::Arenas;
use crate::budget::{Budget, DEFAULT_REPLY_BYTES};
use crate::cache::{self, CacheUse, Caching};
use crate::control::{self, ImageInfo, Request, Response};
use crate::dispatch::{Call, Connections, Target};
use crate::doorbell::Doorbell;
use crate::exchange::{Exchange, ReportTimeout};
use crate::foreground::{Foreground, Runner, Task};
use crate::host::Host;
use crate::inbox::{Asides, Inbox};
use crate::outbox::Outbox;
use crate::trace::{Observation, Recorder, Report, Span};
use crate::waiter::Waiter;

/// How long a thread that has encoded a large batch is kept for the next one.
const SPARE_THREAD_LIFE: Duration = Duration::from_secs(1);

/// How long leases last in which nothing happens: a session that calls now and then does not pay for one each time.
pub const LINGER: Duration = Duration::from_secs(1);

/// Bytes of segments that last as long, for the next small queries.
const LINGERING_BYTES: usize = 1 << 20;

/// Reports of spans that may be under way at a time, and how long each may take.
const MOST_REPORTS: usize = 16;
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A session's client. Dropping it ends its thread, its exchanges and its leases.
#[derive(Debug)]
pub struct Client {
    /// Closing it ends the thread.
    tasks: mpsc::UnboundedSender<Task>,
    waiter: Waiter,
    /// Of the thread's runtime, once it runs.
    runtime: Arc<OnceLock<Handle>>,
    connections: Arc<Connections>,
    lingering: Arc<Mutex<Lingering>>,
    arenas: Arc<Arenas>,
    cache: Arc<cache::Session>,
    max_reply_bytes: AtomicUsize,
    /// For reports of spans that are under way.
    reports: Arc<Semaphore>,
    /// None where somebody else runs the tasks.
    thread: Option<thread::JoinHandle<()>>,
}

/// What becomes of leases that nobody uses.
#[derive(Debug, Default)]
struct Lingering {
    /// Since when nobody does; none while somebody may.
    since: Option<Instant>,
    /// Whether the thread will look.
    is_watched: bool,
}

impl Client {
    /// Starts the background thread. What the thread itself lacks, such as file descriptors, fails what is asked of it.
    pub fn start() -> Result<Client> {
        let (mut client, queue) = Client::without_thread()?;
        // The thread inherits the mask: signals are the engine's business and reach its own thread alone.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(|cause| not_started(&cause))?;
        let (waiter, runtime) = (client.waiter.clone(), client.runtime.clone());
        let thread =
            thread::Builder::new().name("transship".to_string()).spawn(move || run_tasks(queue, &waiter, &runtime));
        mask.thread_set_mask().map_err(|cause| not_started(&cause))?;
        client.thread = Some(thread.map_err(|cause| not_started(&cause))?);
        Ok(client)
    }

    /// A client, and the tasks for its thread.
    fn without_thread() -> Result<(Client, mpsc::UnboundedReceiver<Task>)> {
        let doorbell = Doorbell::new().map_err(|cause| not_started(&cause))?;
        let waiter = Waiter { doorbell: Arc::new(doorbell), failure: Arc::default() };
        let (tasks, queue) = mpsc::unbounded_channel();
        let (runtime, connections, arenas, lingering, cache) = Default::default();
        let max_reply_bytes = DEFAULT_REPLY_BYTES.into();
        let reports = Arc::new(Semaphore::new(MOST_REPORTS));
        let client = Client {
            tasks,
            waiter,
            runtime,
            connections,
            lingering,
            arenas,
            cache,
            max_reply_bytes,
            reports,
            thread: None,
        };
        Ok((client, queue))
    }

    /// A client whose tasks run on a runtime of the caller's, as long as the future that comes with it is polled there.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub fn on_runtime(runtime: Handle) -> Result<(Client, impl Future<Output = ()> + Send)> {
        let (client, queue) = Client::without_thread()?;
        // Nobody else sets it.
        let _ = client.runtime.set(runtime);
        Ok((client, spawn_tasks(queue)))
    }

    /// Whether its thread runs. If not, another client may have more luck.
    pub fn is_running(&self) -> bool {
        !self.tasks.is_closed()
    }

    /// Bounds what exchanges that are opened from now on may hold of one reply, in bytes.
    pub fn limit_replies(&self, bytes: usize) {
        self.max_reply_bytes.store(bytes, Relaxed);
    }

    /// Ends the client and waits until its thread has ended, which takes no longer than the step it is at.
    pub fn stop(self) {
        drop(self.tasks);
        // The thread ends by itself; if it panicked, it has ended too.
        let _ = self.thread.map(thread::JoinHandle::join);
    }

    /// Opens an exchange, and begins to reach who answers: a replica may be started before the first batch is sent.
    pub fn open(&self, call: Arc<Call>) -> Exchange {
        self.open_observed(call, Observation::default())
    }

    /// The same for an engine that wants to know more than results.
    pub fn open_observed(&self, call: Arc<Call>, observation: Observation) -> Exchange {
        let Observation { trace, wants_lines } = observation;
        let spans = trace.map(|(parent, manager)| (parent, parent.child(), manager));
        let asides = Asides { trace: spans.as_ref().map(|(_, span, _)| *span), wants_lines, offer: None };
        let recorder = spans.filter(|(parent, ..)| parent.is_sampled).map(|(parent, span, manager)| {
            let report = self.reporter(manager);
            Box::new(Recorder::new(span, parent.span_id, &call.signature.function, report))
        });
        self.note_use();
        let (sender, outbox) = Outbox::new();
        let (inbox, receiver, room) = Inbox::new(self.waiter.doorbell.clone());
        let budget = Budget::new(self.max_reply_bytes.load(Relaxed));
        let inbox = inbox.within(budget.clone()).asking(asides);
        let connections = self.connections.clone();
        let task_call = call.clone();
        let (task, cancel) = cancellable(async move { connections.run(&task_call, outbox, &inbox).await });
        let foreground = match self.runtime.get().filter(|_| self.connections.is_near(&call)) {
            Some(runtime) => Some(Foreground::new(task, runtime.clone())),
            None => {
                self.hand_over(task);
                None
            }
        };
        let (connections, tasks, target) = (self.connections.clone(), self.tasks.downgrade(), call.target.clone());
        let report_timeout = ReportTimeout(Box::new(move || {
            // If the thread has ended, so have its leases.
            if let Some(tasks) = tasks.upgrade()
                && let Some(report) = connections.report_timeout(&target)
            {
                let _ = tasks.send(Box::pin(report));
            }
        }));
        let runner = Runner { foreground, tasks: self.tasks.downgrade(), cancel: Some(cancel) };
        Exchange::new(
            call,
            self.arenas.clone(),
            self.waiter.clone(),
            sender,
            (receiver, room, budget),
            (runner, report_timeout),
        )
        .recorded(recorder)
    }

    /// The same, with results looked up before calls are sent, if the function's results may be kept.
    pub fn open_with_cache(&self, call: Arc<Call>, observation: Observation, usage: Option<CacheUse>) -> Exchange {
        let caching = usage.and_then(|usage| Caching::new(self.cache.clone(), usage, &call));
        let mut exchange = self.open_observed(call, observation);
        if let Some(caching) = caching {
            exchange.look_up_with(caching);
        }
        exchange
    }

    /// Hands spans to the manager, which exports them, without waiting. They are left out if it is slow to take those before.
    pub fn report_spans(&self, manager: PathBuf, spans: Vec<Span>) {
        self.reporter(manager)(spans);
    }

    fn reporter(&self, manager: PathBuf) -> Report {
        let (tasks, reports) = (self.tasks.downgrade(), self.reports.clone());
        Box::new(move |spans| {
            let (Some(tasks), Ok(permit)) = (tasks.upgrade(), reports.clone().try_acquire_owned()) else { return };
            let manager = manager.clone();
            let _ = tasks.send(Box::pin(async move {
                let _permit = permit;
                let reporting = control::report_spans(&manager, spans);
                // Nobody's query depends on it.
                let _ = tokio::time::timeout(REPORT_TIMEOUT, reporting).await;
            }));
        })
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

    /// The name by which lists of allowed images know an image whose digest somebody has chosen, and called `name`: that, if
    /// the image gives itself the name or is what the name stands for now, and its own where `name` is empty. None if the digest
    /// is another image's.
    pub fn listed_name(
        &self,
        host: &dyn Host,
        manager: &Path,
        name: &str,
        image: &ImageInfo,
        timeout: Duration,
    ) -> Result<Option<String>> {
        if name.is_empty() {
            return Ok(Some(image.manifest.listed_name()));
        }
        let is_its_own = image.manifest.is_named(name)
            || match self.resolve_image(host, manager, name, timeout) {
                Ok(found) => found.digest == image.digest,
                Err(error) if [Kind::ImageNotFound, Kind::InvalidDefinition].contains(&error.kind()) => false,
                Err(error) => return Err(error),
            };
        Ok(is_its_own.then(|| name.to_string()))
    }

    /// Asks the manager which image a name or digest stands for.
    pub fn resolve_image(&self, host: &dyn Host, manager: &Path, image: &str, timeout: Duration) -> Result<ImageInfo> {
        self.ask_for_image(host, manager, Request::Resolve { image: image.to_string() }, timeout)
    }

    /// Finds the image that a function's body stands for: the one it was pinned to, or the one that its name stands for now, within
    /// `start_timeout`; or has the manager build it from inline code, which may take minutes the first time, within `build_timeout`.
    /// Of inline code, `entry` says what is known of its function.
    pub fn find_image(
        &self,
        host: &dyn Host,
        manager: &Path,
        body: &FunctionBody,
        entry: FunctionEntry,
        start_timeout: Duration,
        build_timeout: Duration,
    ) -> Result<ImageInfo> {
        let no_image = || Error::invalid_definition("the function body names no image");
        if let Some(wanted) = body.digest.as_ref().or(body.image.as_ref()) {
            match self.resolve_image(host, manager, wanted, start_timeout) {
                // It can be built again, as after a restore elsewhere.
                Err(error) if error.kind() == Kind::ImageNotFound && body.source.is_some() => {}
                found => return found,
            }
        }
        let manifest = Box::new(body.inline_manifest(entry).ok_or_else(no_image)?);
        let source = body.source.clone().ok_or_else(no_image)?;
        self.ask_for_image(host, manager, Request::BuildInline { manifest, source }, build_timeout)
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

    /// Takes shared tables back from the servers that no exchange is calling.
    pub fn forget_offers(&self) {
        self.connections.forget_offers(|_| true);
    }

    /// Connects to the manager, in the background, for a lease that is likely to be wanted before [`Client::release`]; there is
    /// nothing to do while a lease is held.
    pub fn prepare(&self, manager: PathBuf) {
        self.note_use();
        if self.connections.is_empty() {
            let connections = self.connections.clone();
            self.spawn(async move { connections.prepare(&manager).await });
        }
    }

    fn note_use(&self) {
        self.lingering.lock().expect("no holder panics").since = None;
    }

    /// Ends the leases that no exchange is using, and lets their segments go, unless they are used again within [`LINGER`]; for the end of a transaction.
    pub fn release(&self) {
        self.arenas.shrink(LINGERING_BYTES);
        self.connections.close_idle();
        // A session that goes on calling something else keeps nothing for that.
        if let Some(unused) = self.connections.take_unused(LINGER) {
            self.arenas.clear();
            self.spawn(async move { drop(unused) });
        }
        let is_watched = {
            let mut lingering = self.lingering.lock().expect("no holder panics");
            if lingering.since.is_some() {
                // Nobody has called since the last time, which keeps nothing for longer.
                return;
            }
            lingering.since = Some(Instant::now());
            std::mem::replace(&mut lingering.is_watched, true)
        };
        if !is_watched {
            let (connections, arenas) = (self.connections.clone(), self.arenas.clone());
            let lingering = self.lingering.clone();
            self.spawn(async move { release_unused(&connections, &arenas, &lingering).await });
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
        let (task, cancel) = cancellable(work);
        self.hand_over(task);
        cancel
    }

    fn hand_over(&self, task: Task) {
        // If the thread has ended, the task is dropped with its end of a queue, and who waits for it is told.
        let _ = self.tasks.send(task);
    }
}

/// Work that a message through what comes with it ends early.
fn cancellable(work: impl Future<Output = ()> + Send + 'static) -> (Task, oneshot::Sender<()>) {
    let (cancel, mut cancelled) = oneshot::channel();
    let task = async move {
        tokio::select! {
            () = work => {}
            Ok(()) = &mut cancelled => {}
        }
    };
    (Box::pin(task), cancel)
}

/// Ends leases once nobody has used them for [`LINGER`]. If somebody does, the next [`Client::release`] has them watched again.
async fn release_unused(connections: &Connections, arenas: &Arenas, lingering: &Mutex<Lingering>) {
    loop {
        let left = {
            let mut lingering = lingering.lock().expect("no holder panics");
            match lingering.since {
                Some(since) if since.elapsed() < LINGER => LINGER - since.elapsed().min(LINGER),
                since => {
                    lingering.is_watched = false;
                    // Under the lock, so that nobody who begins now is given what ends.
                    if since.is_some() {
                        connections.release();
                        arenas.clear();
                    }
                    return;
                }
            }
        };
        tokio::time::sleep(left).await;
    }
}

/// Spawns tasks, until the client is dropped.
async fn spawn_tasks(mut tasks: mpsc::UnboundedReceiver<Task>) {
    while let Some(task) = tasks.recv().await {
        tokio::spawn(task);
    }
}

/// What the thread runs, until the client is dropped.
fn run_tasks(tasks: mpsc::UnboundedReceiver<Task>, waiter: &Waiter, handle: &OnceLock<Handle>) {
    match Builder::new_current_thread().enable_all().thread_keep_alive(SPARE_THREAD_LIFE).build() {
        Ok(runtime) => {
            // Nobody else sets it.
            let _ = handle.set(runtime.handle().clone());
            runtime.block_on(spawn_tasks(tasks));
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
