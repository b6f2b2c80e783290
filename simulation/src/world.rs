//! A run of the simulation: a manager, sessions, what goes wrong while they run, and what must hold all the time and at the end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use clap::Parser;
use container_manager::adoption::adopt;
use container_manager::api;
use container_manager::blocking;
use container_manager::catalogue::Catalogue;
use container_manager::config::Config;
use container_manager::flags::DaemonFlags;
use container_manager::folders;
use container_manager::images::Images;
use container_manager::make_dir::make_closed_dir;
use container_manager::pool::Pool;
use container_manager::traces;
use fastrand::Rng;
use udf_client::client::Client;
use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;
use udf_types::Result;

use crate::containers::{Containers, Image, Trouble};
use crate::kernel::{self, ENGINE_USER, Unrest};
use crate::model::Model;
use crate::scheduler::{Scheduler, sleep, soon};
use crate::session::{self, Plan};
use crate::trace;

/// So long things go wrong, of which the last begins in the first half.
const TROUBLE_S: u64 = 60;
/// Everything has ended by then.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Turns that a run takes at most: who goes round in circles takes no time.
const MOST_TURNS: u64 = 3_000_000;
/// After the last fault, the pauses of circuits are over by then (`circuit.rs`).
const RECOVERY: Duration = Duration::from_secs(400);
const LEAST_RECOVERY: Duration = Duration::from_secs(30);
/// So long a container may run that the manager does not know, and somebody have a lease on one that has ended.
const DEADLINE: Duration = Duration::from_secs(150);
/// Between two looks at what must hold.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Once nobody uses anything, and besides what the manager is told to wait, everything is given back after so long.
const SETTLING: Duration = Duration::from_secs(60);
/// So much memory, in megabytes, and so many descriptors are enough for a world.
const MOST_MEMORY_MB: f32 = 200.0;
const LEAST_DESCRIPTORS: usize = 40;
const DESCRIPTORS_OF_CONTAINER: usize = 10;
/// Between a manager's end and the next one's start.
const RESTART_MS: u64 = 5_000;

type ManagersPool = Arc<Mutex<Option<Arc<Pool>>>>;

/// What may go wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillContainer,
    PauseContainer,
    KillManager,
    KillSession,
    FullDisk,
    FrozenEngine,
    LeapOfTime,
    LeapOfWallClock,
    UnwellContainers,
}

impl Fault {
    /// Every one of them, those more than once that break most.
    const ALL: [Fault; 12] = [
        Fault::KillContainer,
        Fault::KillContainer,
        Fault::KillContainer,
        Fault::PauseContainer,
        Fault::KillManager,
        Fault::KillManager,
        Fault::KillSession,
        Fault::FullDisk,
        Fault::FrozenEngine,
        Fault::LeapOfTime,
        Fault::LeapOfWallClock,
        Fault::UnwellContainers,
    ];
}

/// The engine's containers, for the manager's blocking work, which knows no world.
static ENGINE: OnceLock<Containers> = OnceLock::new();
static IS_FROZEN: AtomicBool = AtomicBool::new(false);

/// Waits as long as a container engine takes for what it is asked.
fn engines_pause() -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async {
        sleep(ENGINE.get().map(Containers::delay).unwrap_or_default()).await;
        while IS_FROZEN.load(Relaxed) {
            sleep(Duration::from_millis(100)).await;
        }
    })
}

struct World {
    rng: RefCell<Rng>,
    model: Model,
    containers: Containers,
    config: Arc<Config>,
    images: Vec<Image>,
    pool: ManagersPool,
    manager: Cell<Option<usize>>,
    /// Whether it has ended by itself.
    has_manager_ended: Arc<AtomicBool>,
    manager_since: Cell<Duration>,
    /// The processes of the sessions that have not ended; none of one that has yet to start.
    sessions: RefCell<BTreeMap<String, Option<usize>>>,
    is_calm: bool,
    /// Since when something is as it must not stay.
    doubts: RefCell<BTreeMap<String, Duration>>,
}

/// Runs a seed in a folder: an error says what was wrong.
pub fn run(seed: u64, folder: &Path) -> std::result::Result<(), String> {
    kernel::begin(seed);
    let mut scheduler = Scheduler::new(seed ^ 0x5eed_0001);
    let world = Rc::new(World::new(seed, folder).map_err(|error| format!("the world cannot be made: {error:?}"))?);
    let outcome = world.clone().live(&mut scheduler);
    // What is left ends before this thread does.
    for number in 0..10_000 {
        scheduler.kill(number);
    }
    outcome
}

impl World {
    fn new(seed: u64, folder: &Path) -> Result<World> {
        let mut rng = Rng::with_seed(seed ^ 0x0bad_cafe);
        let images = (0..rng.u8(1..=3)).map(|number| make_image(&mut rng, number)).collect::<Result<Vec<Image>>>()?;
        let path = |name: &str| folder.join(name).display().to_string();
        let flags = [
            "transshipd".to_string(),
            format!("--socket={}", path("manager.sock")),
            format!("--templates={}", path("templates")),
            format!("--state-dir={}", path("state")),
            format!("--run-dir={}", path("r")),
            format!("--shm-dir={}", path("m")),
            format!("--allow-user={ENGINE_USER}"),
            format!("--idle-timeout-s={}", rng.u64(5..60)),
            format!("--start-timeout-s={}", rng.u64(3..20)),
            format!("--silent-timeout-s={}", rng.u64(2..10)),
            format!("--adopted-grace-s={}", rng.u64(0..20)),
            format!("--max-containers={}", rng.u64(1..7)),
            "--max-memory-mb=100000".to_string(),
            "--log-leases".to_string(),
        ];
        let config = Arc::new(DaemonFlags::parse_from(flags).into_config()?);
        std::fs::create_dir(&config.host.paths.shm_dir).expect("there is room for a folder");
        let model = Model::default();
        let containers = Containers::new(seed ^ 0x00c0_ffee, model.clone(), images.clone());
        let _ = ENGINE.set(containers.clone());
        blocking::simulation::begin(engines_pause);
        let is_calm = rng.u8(..6) == 0;
        let (pool, manager, has_manager_ended, manager_since, sessions, doubts) = Default::default();
        let rng = RefCell::new(rng);
        Ok(World {
            rng,
            model,
            containers,
            config,
            images,
            pool,
            manager,
            has_manager_ended,
            manager_since,
            sessions,
            is_calm,
            doubts,
        })
    }

    fn live(self: Rc<World>, scheduler: &mut Scheduler) -> std::result::Result<(), String> {
        for Image { info: ImageInfo { manifest, .. }, keep_alive, row_errors, .. } in &self.images {
            let (name, replicas, prewarm, pause) =
                (&manifest.name, manifest.replicas, manifest.prewarm, manifest.pause);
            trace::note(format_args!(
                "{name}: {replicas} replicas, {prewarm} kept, pause {pause}, keep_alive {keep_alive}, row_errors {row_errors}"
            ));
        }
        let Config { idle_timeout, start_timeout, silent_timeout, adopted_grace, max_containers, .. } = &*self.config;
        trace::note(format_args!(
            "manager: idle {idle_timeout:?}, start {start_timeout:?}, silent {silent_timeout:?}, grace {adopted_grace:?}, \
             {max_containers} containers"
        ));
        self.start_manager(scheduler);
        let sessions = self.rng.borrow_mut().u8(1..=5);
        for number in 0..sessions {
            self.clone().start_session(scheduler, &format!("session {}", number + 1));
        }
        self.clone().check_later(scheduler);
        if !self.is_calm {
            self.clone().plan_faults(scheduler);
        } else {
            let cut_percent = self.rng.borrow_mut().u8(..30);
            kernel::set_unrest(Unrest { late_percent: 20, most_late: Duration::from_millis(5), cut_percent });
        }
        let world = self.clone();
        self.until(scheduler, "the sessions end", || world.sessions.borrow().is_empty())?;
        let end_of_trouble = Duration::from_secs(TROUBLE_S);
        self.until(scheduler, "all faults are over", || kernel::now() - kernel::leapt() > end_of_trouble)?;
        trace::note("nothing goes wrong any more");
        kernel::set_unrest(Unrest::default());
        self.containers.set_trouble(Trouble::default());
        if self.manager.get().is_none() {
            self.start_manager(scheduler);
        }
        let (least, most) = (kernel::now() + LEAST_RECOVERY, kernel::now() + RECOVERY);
        self.until(scheduler, "circuits close", || {
            let pool = self.pool.lock().expect("no holder panics").clone();
            let is_closed =
                pool.is_some_and(|pool| pool.circuits(true).iter().all(|circuit| circuit.state == "closed"));
            kernel::now() > most || (is_closed && kernel::now() > least)
        })?;
        let plan = self.plan("last session", true);
        self.clone().start_planned(scheduler, plan);
        self.until(scheduler, "the last session ends", || world.sessions.borrow().is_empty())?;
        self.end(scheduler)
    }

    /// What must hold once nobody does anything any more.
    fn end(self: &Rc<World>, scheduler: &mut Scheduler) -> std::result::Result<(), String> {
        let idle = kernel::now() + self.config.idle_timeout + self.config.adopted_grace + SETTLING;
        self.until(scheduler, "containers are stopped that nobody uses", || kernel::now() > idle)?;
        let known =
            self.pool.lock().expect("no holder panics").as_ref().map(|pool| pool.list(|_| true)).unwrap_or_default();
        if let Some(leased) = known.iter().find(|replica| replica.leases > 0 || !replica.holders.is_empty()) {
            return Err(format!("nobody has a lease, and the manager says: {leased:?}"));
        }
        let kept: usize = self.images.iter().map(|image| image.info.manifest.prewarm as usize).sum();
        let running = self.containers.running();
        if running.len() > kept {
            return Err(format!(
                "{} containers run that nobody uses, where {kept} are to be kept: {known:?}",
                running.len()
            ));
        }
        if let Some(stray) = running.iter().find(|name| !known.iter().any(|replica| replica.name == **name)) {
            return Err(format!("container {stray} runs, and the manager does not know it"));
        }
        let folders = std::fs::read_dir(&self.config.host.paths.run_dir).into_iter().flatten().flatten();
        let left = folders.filter(|entry| entry.file_name().len() == 32).count();
        if left > running.len() {
            return Err(format!("{left} folders of sockets are left by {} containers", running.len()));
        }
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().count();
        if open > LEAST_DESCRIPTORS + running.len() * DESCRIPTORS_OF_CONTAINER {
            return Err(format!("{open} descriptors are open of a manager and {} containers", running.len()));
        }
        Ok(())
    }

    /// Has time pass until something is so; an error if something is wrong first.
    fn until(
        &self,
        scheduler: &mut Scheduler,
        what: &str,
        is_so: impl Fn() -> bool,
    ) -> std::result::Result<(), String> {
        while !is_so() {
            if !scheduler.step() {
                return Err(format!("nobody can go on before {what}: {:?}", scheduler.names()));
            }
            if let Some(wrong) = self.model.wrong() {
                return Err(wrong);
            }
            if kernel::now() > LIMIT || scheduler.turns() > MOST_TURNS {
                return Err(format!("it took too long until {what}: {:?}", scheduler.names()));
            }
        }
        Ok(())
    }

    fn start_manager(self: &Rc<World>, scheduler: &mut Scheduler) {
        trace::note("the manager starts");
        let (config, containers, pool) = (self.config.clone(), self.containers.clone(), self.pool.clone());
        let has_ended = self.has_manager_ended.clone();
        let main = async move {
            if let Err(error) = manage(config, containers, &pool).await {
                eprintln!("transshipd: {error}");
            }
            *pool.lock().expect("no holder panics") = None;
            // Whoever watches over it starts it again.
            has_ended.store(true, Relaxed);
        };
        let number = scheduler.start("manager", main);
        self.manager.set(Some(number));
        self.manager_since.set(kernel::now() - kernel::leapt());
    }

    fn kill_manager(self: &Rc<World>, scheduler: &mut Scheduler) {
        *self.pool.lock().expect("no holder panics") = None;
        if let Some(number) = self.manager.take() {
            scheduler.kill(number);
        }
    }

    fn plan(&self, name: &str, is_last: bool) -> Plan {
        let mut rng = self.rng.borrow_mut();
        Plan {
            name: name.to_string(),
            seed: rng.u64(..),
            queries: rng.u32(2..16),
            manager: self.config.host.paths.socket.clone(),
            images: self.images.clone(),
            is_calm: self.is_calm,
            is_last,
        }
    }

    fn start_session(self: Rc<World>, scheduler: &mut Scheduler, name: &str) {
        let plan = self.plan(name, false);
        let start = Duration::from_millis(self.rng.borrow_mut().u64(100..2_000));
        self.sessions.borrow_mut().insert(name.to_string(), None);
        scheduler.after(start, move |scheduler| self.start_planned(scheduler, plan));
    }

    fn start_planned(self: Rc<World>, scheduler: &mut Scheduler, plan: Plan) {
        let name = plan.name.clone();
        let (world, model) = (self.clone(), self.model.clone());
        let number = scheduler.start_engine(&name.clone(), |runtime| {
            let (client, tasks) = Client::on_runtime(runtime).expect("there are descriptors for a client");
            let thread: Box<dyn FnOnce(&crate::scheduler::Waiting)> = Box::new(move |waiting| {
                session::run(&plan, client, &model, waiting);
                soon(move |_| {
                    world.sessions.borrow_mut().remove(&plan.name);
                });
            });
            (tasks, thread)
        });
        self.sessions.borrow_mut().insert(name, Some(number));
    }

    fn check_later(self: Rc<World>, scheduler: &mut Scheduler) {
        scheduler.after(CHECK_INTERVAL, move |scheduler| {
            self.check(scheduler);
            self.check_later(scheduler);
        });
    }

    /// What must hold all the time.
    fn check(self: &Rc<World>, scheduler: &mut Scheduler) {
        if self.has_manager_ended.swap(false, Relaxed) {
            self.kill_manager(scheduler);
            self.start_manager(scheduler);
        }
        let used_mb = crate::MEMORY.current_usage_as_mb();
        if used_mb > MOST_MEMORY_MB {
            self.model.note_wrong(format!("{used_mb:.0} MB of memory are used"));
        }
        let running = self.containers.running();
        if running.len() > self.config.max_containers {
            self.model.note_wrong(format!("{} containers run, of {}", running.len(), self.config.max_containers));
        }
        let Some(pool) = self.pool.lock().expect("no holder panics").clone() else { return };
        let known = pool.list(|_| true);
        let mut doubtful = Vec::new();
        for name in &running {
            if !known.iter().any(|replica| replica.name == *name) {
                doubtful.push(format!("container {name} runs, and the manager does not know it"));
            }
        }
        for replica in &known {
            if replica.leases > 0 && replica.state != "starting" && !self.containers.is_running(&replica.name) {
                doubtful.push(format!("{} leases are on replica {}, which has ended", replica.leases, replica.name));
            }
            let is_settled = ["ready", "silent", "paused"].contains(&replica.state.as_str());
            if !is_settled {
                doubtful.push(format!("replica {} is {}", replica.name, replica.state));
            }
        }
        // Who has slept meanwhile is not late.
        let now = kernel::now() - kernel::leapt();
        let mut doubts = self.doubts.borrow_mut();
        doubts.retain(|doubt, _| doubtful.contains(doubt));
        for doubt in doubtful {
            let since = *doubts.entry(doubt.clone()).or_insert(now);
            if now - since.max(self.manager_since.get()) > DEADLINE {
                self.model.note_wrong(format!("for {:?}: {doubt}", now - since));
            }
        }
    }

    fn plan_faults(self: Rc<World>, scheduler: &mut Scheduler) {
        let mut rng = self.rng.borrow_mut();
        let unrest = Unrest {
            late_percent: rng.u8(..60),
            most_late: Duration::from_millis([1, 20, 400, 3_000][rng.usize(..4)]),
            cut_percent: rng.u8(..40),
        };
        kernel::set_unrest(unrest);
        // Few kinds at a time show more than all at once.
        let kinds: Vec<Fault> = (0..rng.usize(1..4)).map(|_| Fault::ALL[rng.usize(..Fault::ALL.len())]).collect();
        trace::note(format_args!("{unrest:?}, {kinds:?}"));
        if rng.u8(..3) > 0 {
            let most_slow = Duration::from_millis([50, 1_000, 10_000][rng.usize(..3)]);
            let trouble = Trouble { slow_percent: rng.u8(..50), most_slow, ..Trouble::default() };
            self.containers.set_trouble(trouble);
        }
        let count = rng.usize(1..30);
        for _ in 0..count {
            let (time, kind) =
                (Duration::from_millis(rng.u64(100..TROUBLE_S * 1_000 / 2)), kinds[rng.usize(..kinds.len())]);
            let world = self.clone();
            scheduler.at(time, move |scheduler| world.do_fault(scheduler, kind));
        }
    }

    fn do_fault(self: Rc<World>, scheduler: &mut Scheduler, fault: Fault) {
        let mut rng = Rng::with_seed(self.rng.borrow_mut().u64(..));
        let span = Duration::from_millis(rng.u64(10..15_000));
        trace::note(format_args!("fault: {fault:?}, {span:?}"));
        let world = self.clone();
        match fault {
            Fault::KillContainer => {
                if let Some((name, _)) = self.containers.choose(&mut rng) {
                    self.containers.end(scheduler, &name, "was ended by signal 9");
                }
            }
            Fault::PauseContainer => {
                if let Some((name, process)) = self.containers.choose(&mut rng) {
                    scheduler.pause(process, true);
                    scheduler.after(span, move |scheduler| scheduler.pause(process, world.containers.is_paused(&name)));
                }
            }
            Fault::KillManager => {
                self.kill_manager(scheduler);
                scheduler.after(Duration::from_millis(rng.u64(1..RESTART_MS)), move |scheduler| {
                    if world.manager.get().is_none() {
                        world.start_manager(scheduler);
                    }
                });
            }
            Fault::KillSession => {
                let running = |(name, process): (&String, &Option<usize>)| Some((name.clone(), (*process)?));
                let sessions: Vec<(String, usize)> = self.sessions.borrow().iter().filter_map(running).collect();
                if let Some((name, process)) = sessions.get(rng.usize(..sessions.len().max(1))) {
                    self.sessions.borrow_mut().remove(name);
                    scheduler.kill(*process);
                }
            }
            Fault::FullDisk => {
                kernel::fill_disk(true);
                scheduler.after(span, |_| kernel::fill_disk(false));
            }
            Fault::FrozenEngine => {
                IS_FROZEN.store(true, Relaxed);
                scheduler.after(span, |_| IS_FROZEN.store(false, Relaxed));
            }
            Fault::LeapOfTime => scheduler.leap(span),
            Fault::LeapOfWallClock => kernel::leap_wall_clock(rng.i64(-100_000..100_000)),
            Fault::UnwellContainers => {
                let trouble = Trouble {
                    refused_percent: rng.u8(..50),
                    stillborn_percent: rng.u8(..60),
                    deaf_percent: rng.u8(..40),
                    slow_percent: rng.u8(..50),
                    most_slow: span,
                };
                self.containers.set_trouble(trouble);
                scheduler.after(span, move |_| world.containers.set_trouble(Trouble::default()));
            }
        }
    }
}

fn make_image(rng: &mut Rng, number: u8) -> Result<Image> {
    let replicas = rng.u8(1..4);
    let prewarm = if rng.u8(..3) == 0 { rng.u8(0..=replicas) } else { 0 };
    let text = format!(
        "name = \"image{number}\"\nversion = \"1\"\ntemplate = \"rust\"\nreplicas = {replicas}\nprewarm = {prewarm}\n\
         pause = {}\nfunctions = [{{ name = \"plain\" }}]\n",
        rng.u8(..3) == 0
    );
    let digest = format!("sha256:{}", format!("{number:x}").repeat(64));
    let info = ImageInfo { digest, manifest: Manifest::parse(&text)? };
    Ok(Image { info, salt: i64::from(number) * 17, keep_alive: rng.bool(), row_errors: rng.u8(..3) > 0 })
}

/// A manager's life, as `transshipd` has it.
async fn manage(config: Arc<Config>, containers: Containers, shared: &ManagersPool) -> Result<()> {
    let paths = &config.host.paths;
    make_closed_dir(&paths.state_dir)?;
    make_closed_dir(&paths.run_dir)?;
    let _ = folders::close(&paths.state_dir, false);
    let socket: PathBuf = paths.socket.clone();
    let listener = api::bind(&socket)?;
    let catalogue = Arc::new(Catalogue::default());
    let pool = Pool::new(config.clone(), Arc::new(containers.clone()), catalogue.clone())?;
    let images = Images::new(config.clone(), Arc::new(containers), catalogue, pool.clone());
    adopt(&images, &pool).await?;
    *shared.lock().expect("no holder panics") = Some(pool.clone());
    let (traces, _exporter) = traces::queue(None, pool.clone());
    tokio::select! {
        biased;
        () = api::serve(listener, images, pool.clone(), config, traces) => {}
        () = pool.keep() => {}
    }
    Ok(())
}
