//! Which replicas run, and who may use them: starts on demand, keeps some warm, stops the idle, replaces the lost.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use udf_client::client::LINGER;
use udf_client::control::{CircuitInfo, ImageInfo, LeaseInfo, ReplicaInfo, STILL_RUNNING};
use udf_client::names::random_name;
use udf_client::transport::connect;
use udf_client::transport::credentials::Credentials;
use udf_client::transport::unix;
use udf_codec::wire::ServerInfo;
use udf_project::allow_list::allows;
use udf_project::endpoint::Endpoint;
use udf_project::manifest::{Limits, Manifest};
use udf_project::reference::ImageReference;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

use crate::builds::Builds;
use crate::cancel::Cancel;
use crate::circuit::{Circuit, LONGEST_WAIT};
use crate::config::Config;
use crate::engine_images::{is_built_for_engines, listed_name};
use crate::folders::{self, Folders, Opened};
use crate::kept_logs::KeptLogs;
use crate::registration::build::{build_inline, find_built, name_inline};
use crate::registration::library::{Upload, build_library, name_library};
use crate::replica::{Holder, Replica, State, flight_endpoint, json_endpoint};
use crate::runtime::ContainerEngine;
use crate::runtime::container_runtime::{ReplicaSpec, ReplicaStatus};
use crate::runtime::image_store::{BuildOptions, ImageStore};
use crate::runtime::program::{end_builds, last_lines};
use crate::sandbox::ServerUsers;

/// Digits that begin the names of a lease's segments, of 32.
const PREFIX_DIGITS: usize = 16;
/// Between two looks at whether a starting replica answers.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for a running replica to say that it is well.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks for idle, dead and missing replicas.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A replica that is to be paused when nobody uses it has been unused for that long.
const PAUSE_AFTER: Duration = Duration::from_secs(5);
/// A replica that nobody uses is asked for its greeting that often.
const ASK_INTERVAL: Duration = Duration::from_secs(15);
/// Between two times that a replica is asked which did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A silent replica has missed at least so many greetings before it is stopped.
const LEAST_MISSED: u32 = 3;
/// Longest wait for the end of leases that nobody uses.
const LEASE_PATIENCE: Duration = LINGER.saturating_mul(2);
/// Longest wait for all replicas to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The use of an image is noted on disk that often.
const USE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// All replicas of this manager.
pub struct Pool {
    config: Config,
    engine: ContainerEngine,
    server_users: ServerUsers,
    folders: Folders,
    kept_logs: KeptLogs,
    state: Mutex<PoolState>,
    builds: Builds,
}

#[derive(Default)]
struct PoolState {
    replicas: HashMap<String, Replica>,
    /// Replicas that are being stopped.
    leaving: HashMap<String, Replica>,
    /// Images that were named since the manager started, by digest.
    images: HashMap<String, Manifest>,
    /// The digest for which an image's name stood when somebody last looked.
    names: HashMap<String, String>,
    /// Replicas that are being started, those that were taken out meanwhile included.
    starting: usize,
    /// How the replicas of an image ended of late, by digest.
    circuits: HashMap<String, Circuit>,
    /// When the use of an image was last noted on disk, by digest.
    noted_uses: HashMap<String, Instant>,
    is_shutting_down: bool,
}

impl PoolState {
    /// Notes an image, for which its name stands now if it `is_named`.
    fn note_image(&mut self, image: &ImageInfo, is_named: bool) {
        if is_named {
            self.names.insert(image.manifest.image(), image.digest.clone());
        }
        self.images.insert(image.digest.clone(), image.manifest.clone());
    }

    /// Notes that a replica ended that nobody had stopped.
    fn note_ending(&mut self, digest: &str, lived: Option<Duration>, was_in_use: bool, last: &str) {
        self.circuits.entry(digest.to_string()).or_default().note_ending(lived, was_in_use, last);
    }

    /// What a container of an image may use: no container gets more memory than all together.
    fn limits_of(&self, config: &Config, digest: &str) -> Limits {
        let limits = self.images.get(digest).map(|manifest| manifest.limits.clone()).unwrap_or_default();
        Limits { memory_mb: limits.memory_mb.min(config.max_memory_mb), ..limits }
    }

    /// Whether `more` megabytes for another container are within the limits.
    fn has_room(&self, config: &Config, more: u64) -> bool {
        let all = || self.replicas.values().chain(self.leaving.values());
        let used: u64 = all().map(|replica| replica.memory_mb).sum();
        all().count() < config.max_containers && used.saturating_add(more) <= config.max_memory_mb
    }

    /// The replica that has been unused for longest.
    fn longest_unused(&self) -> Option<String> {
        let unused = self.replicas.values().filter(|replica| {
            matches!(replica.state(), State::Ready | State::Paused) && replica.is_unused_for(Duration::ZERO)
        });
        unused.min_by_key(|replica| replica.used).map(|replica| replica.name.clone())
    }

    /// The replica of an image with the fewest leases, among those that may get one more.
    fn least_used(&mut self, digest: &str, may_serve: impl Fn(&Replica) -> bool) -> Option<&mut Replica> {
        let replicas = self.replicas.values_mut();
        let candidates =
            replicas.filter(|replica| replica.digest == digest && !replica.is_reported && may_serve(replica));
        candidates.min_by_key(|replica| (replica.leases, replica.state() != State::Ready))
    }

    /// How many replicas of an image are kept running: none once its name stands for another, which is kept instead.
    fn to_keep(&self, digest: &str, manifest: &Manifest) -> usize {
        let is_current = self.names.get(&manifest.image()).is_none_or(|named| named == digest);
        if is_current { manifest.prewarm as usize } else { 0 }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(config: Config, engine: ContainerEngine) -> Result<Arc<Pool>> {
        let server_users = ServerUsers::of(engine.containers.name(), &config.allowed_uids);
        let paths = &config.host.paths;
        let (are_processes, owner) = (engine.containers.name() == "process", engine.containers.owner()?);
        let folders = Folders::new(&paths.run_dir, &paths.shm_dir, config.segment_bytes, are_processes, owner)?;
        let state = Mutex::default();
        let builds = Builds::new(config.max_builds);
        let kept_logs = KeptLogs::new(&paths.state_dir);
        Ok(Arc::new(Pool { config, engine, server_users, folders, kept_logs, state, builds }))
    }

    /// The runtime's name.
    pub fn runtime_name(&self) -> &str {
        self.engine.containers.name()
    }

    /// Takes over the replicas that an earlier manager left, and stops those that do not answer.
    pub async fn adopt(self: &Arc<Pool>) -> Result<usize> {
        let mut adopted = 0;
        self.remove_leftovers().await;
        let known = self.blocking(|pool| {
            let mut images = pool.engine.images.images()?;
            // Anybody could have made an image with such a label: what nobody here has built or asked for is not kept warm.
            images.retain(|image| {
                pool.engine.images.was_built_here(&image.digest) || pool.use_file(&image.digest).exists()
            });
            Ok(images)
        });
        for image in known.await? {
            self.lock().note_image(&image, true);
        }
        for found in self.blocking(|pool| pool.engine.containers.find_replicas()).await? {
            let name = found.name.clone();
            if found.is_paused {
                let paused = name.clone();
                // One that cannot go on does not answer, either.
                let _ = self.blocking(move |pool| pool.engine.containers.resume(&paused)).await;
            }
            let greeting = greet(&found.socket_dir, &self.server_users).await.ok();
            let image = match self.resolve(found.digest.clone(), true).await {
                // That the engine does not say what it is, does not mean that it is to be stopped.
                Err(error) if error.kind() == Kind::ContainerFailed => return Err(error),
                known => known.ok(),
            };
            if let (Some((server, user)), Some(ImageInfo { manifest, .. })) = (greeting, image) {
                let segment_dir = self.folders.segments_of(&found.socket_dir);
                let mut replica = Replica::new(found.name, manifest.image(), found.digest, found.socket_dir);
                replica.segment_dir = Some(segment_dir).filter(|directory| directory.is_dir());
                replica.server = server;
                replica.user = Some(user);
                replica.memory_mb = manifest.limits.memory_mb.min(self.config.max_memory_mb);
                // The leases on it went with the earlier manager, not so the batches that it runs.
                replica.in_use_until = (!found.is_paused).then(|| Instant::now() + self.config.adopted_grace);
                replica.become_state(State::Ready)?;
                self.lock().replicas.insert(name, replica);
                adopted += 1;
            } else {
                let stop = move |pool: &Pool| {
                    pool.kept_logs.keep(&name, &pool.engine.containers.logs(&name).unwrap_or_default());
                    pool.engine.containers.stop(&name)
                };
                self.blocking(stop).await?;
                self.remove_folders(found.socket_dir).await;
            }
        }
        let known: Vec<PathBuf> = self.lock().replicas.values().map(|replica| replica.socket_dir.clone()).collect();
        self.blocking(move |pool| {
            pool.folders.sweep(&known);
            Ok(())
        })
        .await?;
        Ok(adopted)
    }

    /// The image that a name or digest stands for. All but operators may ask for those of `--allow-images`.
    pub async fn resolve(self: &Arc<Pool>, image: String, is_operator: bool) -> Result<ImageInfo> {
        ImageReference::parse(&image)?;
        let info = self.look_up(image, is_operator).await?;
        self.note_use(&info.digest).await;
        Ok(info)
    }

    async fn look_up(self: &Arc<Pool>, image: String, is_operator: bool) -> Result<ImageInfo> {
        // A name may stand for another image by now, but a digest whose replica runs is there. Asking a container engine
        // takes a while.
        {
            let state = self.lock();
            let runs = state.replicas.values().any(|replica| replica.digest == image && replica.is_usable());
            if let (true, Some(manifest)) = (runs, state.images.get(&image)) {
                let info = ImageInfo { digest: image, manifest: manifest.clone() };
                return self.check_allowed(&info, is_operator).map(|()| info);
            }
        }
        let asked = image.clone();
        let info = self.blocking(move |pool| pool.engine.images.resolve(&asked)).await?;
        // One that is noted may be kept warm.
        self.check_allowed(&info, is_operator)?;
        self.lock().note_image(&info, image == info.manifest.image());
        Ok(info)
    }

    /// What is known of an image that is to be leased. All but operators may lease those of `--allow-images`.
    pub async fn image_of(self: &Arc<Pool>, digest: &str, is_operator: bool) -> Result<ImageInfo> {
        let known = self.lock().images.get(digest).cloned();
        match known {
            Some(manifest) => {
                let info = ImageInfo { digest: digest.to_string(), manifest };
                self.check_allowed(&info, is_operator).map(|()| info)
            }
            None => self.resolve(digest.to_string(), is_operator).await,
        }
    }

    /// Whether an image is one of `--allow-images`, which binds all but operators.
    fn check_allowed(&self, image: &ImageInfo, is_operator: bool) -> Result<()> {
        self.check_name_allowed(&listed_name(&image.manifest), Some(&image.digest), is_operator)
    }

    /// The same by name, with the digest if it is known.
    pub fn check_name_allowed(&self, name: &str, digest: Option<&str>, is_operator: bool) -> Result<()> {
        let Some(patterns) = self.config.allowed_images.as_deref().filter(|_| !is_operator) else { return Ok(()) };
        if allows(patterns, name, None) || allows(patterns, name, digest) {
            return Ok(());
        }
        Err(Error::new(Kind::NotAllowed, format!("the container manager does not allow image \"{name}\""))
            .with_hint("Start transshipd with --allow-images for it."))
    }

    /// Notes that an image is wanted, for [`Pool::prune`].
    async fn note_use(self: &Arc<Pool>, digest: &str) {
        let now = Instant::now();
        {
            let mut state = self.lock();
            let noted = state.noted_uses.get(digest);
            if noted.is_some_and(|noted| now - *noted < USE_INTERVAL) {
                return;
            }
            state.noted_uses.insert(digest.to_string(), now);
        }
        let path = self.use_file(digest);
        let noted = self.blocking(move |_| {
            let folder = path.parent().expect("it lies in a folder");
            fs::create_dir_all(folder).and_then(|()| fs::write(&path, "")).map_err(|cause| {
                Error::new(Kind::ContainerFailed, format!("could not note the use of an image: {cause}"))
            })
        });
        if let Err(error) = noted.await {
            eprintln!("transshipd: {error}");
        }
    }

    /// The file whose time says when an image was last wanted.
    fn use_file(&self, digest: &str) -> PathBuf {
        self.config.host.paths.state_dir.join("used").join(digest.trim_start_matches("sha256:"))
    }

    /// Removes the images that engines had built of sources which they have, and that nobody has used for so long. The names.
    /// One that this manager has not seen in use counts from now.
    pub async fn prune(self: &Arc<Pool>, unused_for: Duration) -> Result<Vec<String>> {
        self.remove_leftovers().await;
        let mut removed = Vec::new();
        for image in self.blocking(|pool| pool.engine.images.images()).await? {
            if !is_built_for_engines(&image.manifest.name) {
                continue;
            }
            // Somebody wants one that is being built or looked for.
            let Some(_lock) = self.builds.try_lock(&image.manifest.image()) else { continue };
            let path = self.use_file(&image.digest);
            let Ok(used) = fs::metadata(&path).and_then(|metadata| metadata.modified()) else {
                self.note_use(&image.digest).await;
                continue;
            };
            let runs = {
                let state = self.lock();
                state.replicas.values().chain(state.leaving.values()).any(|replica| replica.digest == image.digest)
            };
            if runs || used.elapsed().unwrap_or_default() < unused_for {
                continue;
            }
            let name = image.manifest.image();
            let digest = image.digest.clone();
            self.blocking(move |pool| pool.engine.images.remove_image(&image)).await?;
            let mut state = self.lock();
            state.images.remove(&digest);
            state.names.remove(&name);
            state.noted_uses.remove(&digest);
            state.circuits.remove(&digest);
            let _ = fs::remove_file(&path);
            removed.push(name);
        }
        Ok(removed)
    }

    async fn remove_leftovers(self: &Arc<Pool>) {
        if let Err(error) = self.blocking(|pool| pool.engine.images.remove_leftovers()).await {
            eprintln!("transshipd: {error}");
        }
    }

    /// Builds inline code for a user, unless its image exists.
    pub async fn build_inline(
        self: &Arc<Pool>,
        manifest: Manifest,
        source: String,
        user: u32,
        cancel: Cancel,
    ) -> Result<ImageInfo> {
        let source = Arc::new(source);
        let text = source.clone();
        let named = self.blocking(move |pool| name_inline(&pool.config.host.paths.templates, &manifest, &text)).await?;
        self.build(named, user, cancel, move |runtime, templates, manifest, options| {
            build_inline(runtime, templates, manifest, &source, options)
        })
        .await
    }

    /// Builds a project that an engine has sent for a user, unless its image exists.
    pub async fn build_library(
        self: &Arc<Pool>,
        library: String,
        upload: Upload,
        user: u32,
        cancel: Cancel,
    ) -> Result<ImageInfo> {
        let upload = Arc::new(upload);
        let sent = upload.clone();
        let named = self.blocking(move |_| name_library(&library, &sent)).await?;
        self.build(named, user, cancel, move |runtime, templates, manifest, options| {
            build_library(runtime, templates, manifest, &upload, options)
        })
        .await
    }

    async fn build(
        self: &Arc<Pool>,
        manifest: Manifest,
        user: u32,
        cancel: Cancel,
        build: impl FnOnce(&dyn ImageStore, &Path, &Manifest, &BuildOptions) -> Result<ImageInfo> + Send + 'static,
    ) -> Result<ImageInfo> {
        let name = manifest.image();
        // An image that is there waits for no other's build.
        if let Some(_lock) = self.builds.try_lock(&name)
            && let Some(found) = self.find_built(&manifest).await?
        {
            return Ok(found);
        }
        let place = self.builds.enter(user)?;
        let _lock = place.lock(&name, &cancel).await?;
        // Somebody else may have built it meanwhile.
        if let Some(found) = self.find_built(&manifest).await? {
            return Ok(found);
        }
        let _turn = place.turn(&name, &cancel).await?;
        if self.lock().is_shutting_down {
            return Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down"));
        }
        let options = BuildOptions { cancel, ..BuildOptions::default() };
        let built = self
            .blocking(move |pool| {
                build(pool.engine.images.as_ref(), &pool.config.host.paths.templates, &manifest, &options)
            })
            .await
            .inspect_err(|error| {
                if error.kind() == Kind::Cancelled {
                    eprintln!("transshipd: {error}");
                }
            })?;
        self.note_built(&built).await;
        Ok(built)
    }

    async fn find_built(self: &Arc<Pool>, manifest: &Manifest) -> Result<Option<ImageInfo>> {
        let manifest = manifest.clone();
        let found = self.blocking(move |pool| find_built(pool.engine.images.as_ref(), &manifest)).await?;
        if let Some(image) = &found {
            self.note_built(image).await;
        }
        Ok(found)
    }

    async fn note_built(self: &Arc<Pool>, image: &ImageInfo) {
        self.lock().note_image(image, true);
        self.note_use(&image.digest).await;
    }

    /// Leases a replica of an image that [`Pool::image_of`] gave: an idle one, else a new one while the image may have more, else the least used. Beside
    /// silent ones it may have as many again; then those are leased. Every successful call must be followed by one of
    /// [`Pool::release`] with the same connection and prefix.
    pub async fn acquire(self: &Arc<Pool>, digest: &str, holder: Holder) -> Result<(LeaseInfo, Opened)> {
        let connection = holder.connection;
        let mut info = self.find_replica(digest, holder).await?;
        info.prefix = random_name()[..PREFIX_DIGITS].to_string();
        let opened = {
            let state = self.lock();
            let replica = state.replicas.get(&info.replica);
            replica.map(|replica| self.folders.open(&replica.socket_dir, info.segments.as_deref()))
        };
        match opened {
            Some(Ok(opened)) => Ok((info, opened)),
            failed => {
                self.release(&info.replica, connection, &info.prefix);
                let ended = || Error::new(Kind::ContainerFailed, format!("replica \"{}\" has ended", info.replica));
                Err(failed.and_then(Result::err).unwrap_or_else(ended))
            }
        }
    }

    async fn find_replica(self: &Arc<Pool>, digest: &str, holder: Holder) -> Result<LeaseInfo> {
        self.note_use(digest).await;
        let begun = Instant::now();
        loop {
            let choice = match self.choose(digest) {
                // What sessions keep for a moment after their last calls may be about to make room.
                Err(error) if error.kind() == Kind::Busy && begun.elapsed() < LEASE_PATIENCE => {
                    Choice::After(PROBE_INTERVAL)
                }
                choice => choice?,
            };
            let (name, mut watch) = match choice {
                Choice::Replica(name, watch) => (name, watch),
                Choice::After(pause) => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Choice::Without(name) => {
                    eprintln!("transshipd: replica \"{name}\", which nobody uses, makes room for another image");
                    self.discard(name, None).await;
                    continue;
                }
            };
            // The sender lives as long as the replica is in the map; gone means it was taken out.
            let is_settled = |state: &State| !matches!(state, State::Starting | State::Pausing | State::Resuming);
            let reached = watch.wait_for(is_settled).await.map(|state| state.clone());
            match reached {
                Ok(State::Ready | State::Silent) => {
                    if let Some(replica) = self.lock().replicas.get_mut(&name) {
                        replica.holders.push(holder);
                        return Ok(replica.lease_info());
                    }
                }
                Ok(State::Gone(Some(error))) => {
                    // As in `choose`.
                    let mut state = self.lock();
                    let Some(replica) = state.least_used(digest, |replica| replica.state() == State::Ready) else {
                        return Err(error);
                    };
                    replica.leases += 1;
                    replica.holders.push(holder);
                    return Ok(replica.lease_info());
                }
                // It was stopped or paused just now: look again.
                Ok(_) | Err(_) => {}
            }
            self.end_lease(&name);
        }
    }

    /// Whether replicas of an image may be started: an operator has to name the network that it asks for. Processes have the
    /// host's.
    fn may_start(&self, manifest: &Manifest) -> bool {
        !manifest.limits.network
            || self.config.host.runtime.network.is_some()
            || self.engine.containers.name() == "process"
    }

    /// The replica that a new lease is on, or what has to happen first. The lease is counted.
    fn choose(self: &Arc<Pool>, digest: &str) -> Result<Choice> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.is_shutting_down {
            return Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down"));
        }
        let limit = state.images.get(digest).map_or(1, |manifest| manifest.replicas as usize);
        let count = |is_counted: fn(&Replica) -> bool| {
            state.replicas.values().filter(|replica| replica.digest == digest && is_counted(replica)).count()
        };
        let usable = count(Replica::is_usable);
        let silent = count(|replica| replica.state() == State::Silent);
        let may_start = usable < limit && usable + silent < 2 * limit;
        let takes_silent = !may_start && usable == 0;
        let least = state
            .least_used(digest, |replica| replica.is_usable() || (takes_silent && replica.state() == State::Silent));
        if let Some(replica) = least
            && (replica.leases == 0 || !may_start)
        {
            return Ok(self.lease(replica));
        }
        // Whether it hangs is known in a moment; another is started then.
        if state.replicas.values().any(|replica| replica.digest == digest && replica.is_reported) {
            return Ok(Choice::After(PROBE_INTERVAL));
        }
        let refusal = match self.start_another(state, digest) {
            Err(error) => error,
            choice => return choice,
        };
        // Rather than nobody, one that answers serves one more.
        state
            .least_used(digest, |replica| replica.state() == State::Ready)
            .map_or(Err(refusal), |it| Ok(self.lease(it)))
    }

    /// Counts a lease on a replica, which goes on if it was paused.
    fn lease(self: &Arc<Pool>, replica: &mut Replica) -> Choice {
        // Counted while it starts, so that it is not given to everybody.
        replica.leases += 1;
        replica.used = Instant::now();
        if replica.become_state(State::Resuming).is_ok() {
            tokio::spawn(self.clone().resume(replica.name.clone()));
        }
        Choice::Replica(replica.name.clone(), replica.watch())
    }

    /// A new replica with a lease, or what has to happen before there is one.
    fn start_another(self: &Arc<Pool>, state: &mut PoolState, digest: &str) -> Result<Choice> {
        let manifest = state.images.get(digest);
        let image = manifest.map_or_else(|| digest.to_string(), Manifest::image);
        if let Some(circuit) = state.circuits.get(digest) {
            match circuit.wait() {
                Some(wait) if wait > LONGEST_WAIT => return Err(circuit.refusal(&image)),
                Some(wait) => return Ok(Choice::After(wait)),
                None => {}
            }
        }
        if manifest.is_some_and(|manifest| !self.may_start(manifest)) {
            let message = format!("image \"{image}\" asks for a network, which the container manager does not give");
            return Err(Error::new(Kind::NotAllowed, message).with_hint(
                "Start transshipd with --network and a network whose containers a firewall keeps from this host, or, where they \
                 may reach it, with --network transship.",
            ));
        }
        let memory_mb = state.limits_of(&self.config, digest).memory_mb;
        if !state.has_room(&self.config, memory_mb) {
            if let Some(unused) = state.longest_unused() {
                return Ok(Choice::Without(unused));
            }
            if !state.leaving.is_empty() {
                return Ok(Choice::After(PROBE_INTERVAL));
            }
            let (count, memory) = (self.config.max_containers, self.config.max_memory_mb);
            let message = format!("could not start a container of image \"{image}\": too many containers are in use");
            return Err(Error::new(Kind::Busy, message)
                .with_detail(format!("The manager's limits are {count} containers and {memory} MB of memory."))
                .with_hint("Try again later, or start transshipd with --max-containers or --max-memory-mb."));
        }
        let mut replica = self.new_replica(state, digest)?;
        replica.leases = 1;
        let choice = Choice::Replica(replica.name.clone(), replica.watch());
        let (pool, name) = (self.clone(), replica.name.clone());
        state.replicas.insert(name.clone(), replica);
        tokio::spawn(async move { pool.start(name).await });
        Ok(choice)
    }

    /// Ends one lease of a connection on a replica, whose segments' names begin so.
    pub fn release(self: &Arc<Pool>, name: &str, connection: u64, prefix: &str) {
        if let Some(replica) = self.lock().replicas.get_mut(name)
            && let Some(position) = replica.holders.iter().position(|holder| holder.connection == connection)
        {
            replica.holders.remove(position);
        }
        let (Some((folder, leases)), prefix) = (self.end_lease(name), prefix.to_string()) else { return };
        // A folder may hold many files. At the manager's end they go with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn_blocking(move || {
            folders::remove_segments(&folder, &prefix);
            if leases == 0 {
                folders::remove_left(&folder);
            }
        });
    }

    /// Counts a lease less; the folder of the replica's segments, if it has one, and the leases that are left.
    fn end_lease(&self, name: &str) -> Option<(PathBuf, usize)> {
        let mut state = self.lock();
        let state = &mut *state;
        let replica = state.replicas.get_mut(name)?;
        replica.leases = replica.leases.saturating_sub(1);
        replica.used = Instant::now();
        // It served somebody to the end.
        if replica.state() == State::Ready {
            state.circuits.remove(&replica.digest);
        }
        Some((replica.segment_dir.clone()?, replica.leases))
    }

    /// What became of a replica with which an engine lost its connection; one that has ended is taken out. One that does not
    /// answer may be busy for somebody else: it becomes Silent.
    pub async fn judge(self: &Arc<Pool>, name: String) -> Result<String> {
        let Some(socket_dir) = self.lock().replicas.get(&name).map(|replica| replica.socket_dir.clone()) else {
            return Ok("was stopped".to_string());
        };
        let deadline = Instant::now() + PROBE_TIMEOUT;
        // A connection is lost a moment before the process behind it is seen to have ended.
        loop {
            let asked = name.clone();
            if let ReplicaStatus::Ended(fate) = self.blocking(move |pool| pool.engine.containers.status(&asked)).await?
            {
                self.discard_ended(name, &fate).await;
                return Ok(fate);
            }
            if greet(&socket_dir, &self.server_users).await.is_ok() {
                return Ok(STILL_RUNNING.to_string());
            }
            if Instant::now() >= deadline {
                self.doubt(&name);
                return Ok("does not answer".to_string());
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Asks a replica whether it answers at all; it `is_reported` if somebody has waited for it in vain.
    pub fn examine(self: &Arc<Pool>, name: String, is_reported: bool) {
        let socket_dir = {
            let mut state = self.lock();
            let Some(replica) = state.replicas.get_mut(&name) else { return };
            if replica.state() != State::Ready {
                return;
            }
            replica.is_reported |= is_reported;
            // Many sessions may wait for one replica, but it is asked once.
            if replica.is_being_asked {
                return;
            }
            replica.is_being_asked = true;
            replica.socket_dir.clone()
        };
        let pool = self.clone();
        tokio::spawn(async move {
            let greeting = tokio::time::timeout(PROBE_TIMEOUT, greet(&socket_dir, &pool.server_users)).await;
            if !greeting.is_ok_and(|greeting| greeting.is_ok()) {
                pool.doubt(&name);
            }
            if let Some(replica) = pool.lock().replicas.get_mut(&name) {
                (replica.is_being_asked, replica.is_reported) = (false, false);
                replica.asked = Instant::now();
            }
        });
    }

    /// A replica did not answer: gives no new leases on it, and asks on until it answers, or has been silent for too long and
    /// nobody has a lease any more. A busy one keeps its query.
    fn doubt(self: &Arc<Pool>, name: &str) {
        let socket_dir = {
            let state = self.lock();
            let Some(replica) = state.replicas.get(name) else { return };
            if replica.become_state(State::Silent).is_err() {
                return;
            }
            replica.socket_dir.clone()
        };
        eprintln!("transshipd: replica \"{name}\" does not answer");
        let (pool, name) = (self.clone(), name.to_string());
        tokio::spawn(async move {
            let (since, mut missed) = (Instant::now(), 1);
            loop {
                tokio::time::sleep(ASK_AGAIN).await;
                if greet(&socket_dir, &pool.server_users).await.is_ok() {
                    if let Some(replica) = pool.lock().replicas.get(&name) {
                        let _ = replica.become_state(State::Ready);
                    }
                    return;
                }
                missed += 1;
                let asked = name.clone();
                if let Ok(ReplicaStatus::Ended(fate)) =
                    pool.blocking(move |pool| pool.engine.containers.status(&asked)).await
                {
                    return pool.discard_ended(name, &fate).await;
                }
                let is_unused = match pool.lock().replicas.get(&name) {
                    Some(replica) => replica.is_unused_for(Duration::ZERO),
                    None => return,
                };
                if is_unused && missed >= LEAST_MISSED && since.elapsed() >= pool.config.silent_timeout {
                    let seconds = since.elapsed().as_secs();
                    eprintln!("transshipd: replica \"{name}\" did not answer for {seconds} s and is stopped");
                    return pool.discard_ended(name, &format!("did not answer for {seconds} s")).await;
                }
            }
        });
    }

    /// Takes out a replica that ended, or has to, without being asked to.
    async fn discard_ended(self: &Arc<Pool>, name: String, fate: &str) {
        let asked = name.clone();
        let log = self.blocking(move |pool| pool.engine.containers.logs(&asked)).await.unwrap_or_default();
        {
            let mut state = self.lock();
            // Several may have seen it end.
            let Some(replica) = state.replicas.get(&name) else { return };
            let (digest, lived, was_in_use) = (replica.digest.clone(), replica.since.elapsed(), replica.leases > 0);
            let last = format!("The last one {fate}.\n{}", last_lines(&log, 15));
            state.note_ending(&digest, Some(lived), was_in_use, last.trim_end());
        }
        self.discard(name, None).await;
    }

    /// One entry per replica, by name.
    pub fn list(&self) -> Vec<ReplicaInfo> {
        let state = self.lock();
        let mut replicas: Vec<ReplicaInfo> =
            state.replicas.values().chain(state.leaving.values()).map(Replica::info).collect();
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        replicas
    }

    /// The images whose replicas ended of late, with what the last ones wrote only for operators.
    pub fn circuits(&self, is_operator: bool) -> Vec<CircuitInfo> {
        let state = self.lock();
        let image = |digest: &str| state.images.get(digest).map_or_else(|| digest.to_string(), Manifest::image);
        let mut circuits: Vec<CircuitInfo> =
            state.circuits.iter().map(|(digest, circuit)| circuit.info(&image(digest), digest, is_operator)).collect();
        circuits.sort_by(|a, b| (&a.image, &a.digest).cmp(&(&b.image, &b.digest)));
        circuits
    }

    /// The last lines that a replica wrote; it may have ended.
    pub async fn logs(self: &Arc<Pool>, name: String) -> Result<String> {
        if self.lock().replicas.contains_key(&name) {
            return self.blocking(move |pool| pool.engine.containers.logs(&name)).await;
        }
        self.kept_logs.read(&name).ok_or_else(|| {
            Error::new(Kind::InvalidDefinition, format!("there is no replica \"{name}\""))
                .with_hint("The logs of the last replicas that ended are kept; \"transship ps\" lists those that run.")
        })
    }

    /// Keeps the pool as it should be, for ever.
    pub async fn keep(self: Arc<Pool>) {
        // What waits for replicas keeps nothing else from its time.
        let take_out = async {
            loop {
                tokio::time::sleep(KEEP_INTERVAL).await;
                self.take_out_ended().await;
            }
        };
        let ((), ()) = tokio::join!(take_out, self.keep_count());
    }

    /// Keeps as many replicas as there should be, and their logs bounded.
    async fn keep_count(self: &Arc<Pool>) {
        loop {
            tokio::time::sleep(KEEP_INTERVAL).await;
            if let Err(error) = self.blocking(|pool| pool.engine.containers.bound_logs()).await {
                eprintln!("transshipd: {error}");
            }
            self.stop_idle();
            self.pause_unused();
            self.ask_unused();
            self.prewarm();
        }
    }

    /// Stops every replica.
    pub async fn shut_down(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let mut state = self.lock();
            state.is_shutting_down = true;
            state.replicas.keys().cloned().collect()
        };
        end_builds();
        for name in names {
            self.discard_soon(name);
        }
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while Instant::now() < deadline {
            {
                let state = self.lock();
                if state.replicas.is_empty() && state.leaving.is_empty() && state.starting == 0 {
                    return;
                }
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        eprintln!("transshipd: some replicas could not be stopped");
    }

    fn new_replica(&self, state: &mut PoolState, digest: &str) -> Result<Replica> {
        let image = state.images.get(digest).map_or_else(|| digest.to_string(), Manifest::image);
        let random = random_name();
        let short: String = image.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
        let name = format!("transship-{short}-{}", &random[..8]);
        let socket_dir = self.config.host.paths.run_dir.join(random);
        let mut replica = Replica::new(name, image, digest.to_string(), socket_dir);
        replica.memory_mb = state.limits_of(&self.config, digest).memory_mb;
        Ok(replica)
    }

    /// Starts a replica that is in the map as Starting, and sees it to Ready or Gone.
    async fn start(self: Arc<Pool>, name: String) {
        self.lock().starting += 1;
        self.start_counted(name).await;
        self.lock().starting -= 1;
    }

    async fn start_counted(self: &Arc<Pool>, name: String) {
        let (digest, image, socket_dir, limits) = {
            let state = self.lock();
            let Some(replica) = state.replicas.get(&name) else { return };
            let limits = state.limits_of(&self.config, &replica.digest);
            (replica.digest.clone(), replica.image.clone(), replica.socket_dir.clone(), limits)
        };
        let kept_dir = socket_dir.clone();
        let segment_dir = self.folders.make_segments(&socket_dir);
        let spec = ReplicaSpec {
            name: name.clone(),
            digest: digest.clone(),
            socket_dir,
            segment_dir: segment_dir.clone(),
            limits,
        };
        let error = match self.start_and_wait(spec).await {
            Ok((server, user)) => {
                let is_kept = {
                    let mut state = self.lock();
                    state.replicas.get_mut(&name).is_some_and(|replica| {
                        replica.segment_dir = segment_dir;
                        replica.server = server;
                        replica.user = Some(user);
                        replica.become_state(State::Ready).is_ok()
                    })
                };
                if !is_kept {
                    // It was discarded while it started; what has come up since must not stay.
                    let _ = self.blocking(move |pool| pool.engine.containers.stop(&name)).await;
                    self.remove_folders(kept_dir).await;
                }
                return;
            }
            Err(error) => error,
        };
        let asked = name.clone();
        let log = self.blocking(move |pool| pool.engine.containers.logs(&asked)).await.unwrap_or_default();
        let detail = format!("{error}\n{}", last_lines(&log, 15)).trim_end().to_string();
        let is_missing = error.kind() == Kind::ImageNotFound;
        let kind = if is_missing { Kind::ImageNotFound } else { Kind::ContainerFailed };
        let error =
            Error::new(kind, format!("could not start a container of image \"{image}\"")).with_detail(detail.clone());
        // Where the image is missing, nothing was started, and may be as soon as it is there.
        if !is_missing {
            self.lock().note_ending(&digest, None, false, &detail);
        }
        self.discard(name, Some(error)).await;
    }

    async fn remove_folders(self: &Arc<Pool>, socket_dir: PathBuf) {
        let removed = self.blocking(move |pool| {
            pool.folders.remove(&socket_dir);
            Ok(())
        });
        // It never fails.
        let _ = removed.await;
    }

    /// What the replica's server, which answers now, says of itself, and the user that it runs as.
    async fn start_and_wait(self: &Arc<Pool>, spec: ReplicaSpec) -> Result<(ServerInfo, u32)> {
        self.folders.make_sockets(&spec.socket_dir)?;
        let (name, socket_dir) = (spec.name.clone(), spec.socket_dir.clone());
        let deadline = Instant::now() + self.config.start_timeout;
        self.blocking(move |pool| pool.engine.containers.start(&spec)).await?;
        let mut next_status = Instant::now();
        loop {
            match greet(&socket_dir, &self.server_users).await {
                Ok(found) => return Ok(found),
                Err(error) if error.kind() == Kind::ProtocolViolation => return Err(error),
                Err(_) => {}
            }
            // Asking a container engine takes longer than asking the socket.
            if Instant::now() >= next_status {
                next_status = Instant::now() + Duration::from_millis(500);
                let asked = name.clone();
                if let ReplicaStatus::Ended(fate) =
                    self.blocking(move |pool| pool.engine.containers.status(&asked)).await?
                {
                    return Err(Error::new(Kind::ContainerFailed, format!("the container {fate}")));
                }
            }
            if Instant::now() >= deadline {
                let seconds = self.config.start_timeout.as_secs();
                return Err(Error::new(Kind::Timeout, format!("the container did not answer within {seconds} s")));
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Takes a replica out and stops it. Whoever waits for it learns `error`.
    async fn discard(self: &Arc<Pool>, name: String, error: Option<Error>) {
        // What is being paused is so in a moment, and is not stopped meanwhile.
        let watch = self.lock().replicas.get(&name).map(Replica::watch);
        if let Some(mut watch) = watch {
            let _ = watch.wait_for(|state| *state != State::Pausing).await;
        }
        let (socket_dir, is_paused) = {
            let mut state = self.lock();
            let Some(replica) = state.replicas.remove(&name) else { return };
            // A replica that was still starting, or failed, is simply gone; for a ready one this is the end of its work.
            let next = match replica.state() {
                State::Ready | State::Silent | State::Paused => State::Draining,
                _ => State::Gone(error),
            };
            let is_paused = replica.state() == State::Paused;
            let _ = replica.become_state(next);
            let socket_dir = replica.socket_dir.clone();
            state.leaving.insert(name.clone(), replica);
            (socket_dir, is_paused)
        };
        let asked = name.clone();
        let stop = move |pool: &Pool| {
            // One that cannot go on may be stopped all the same.
            let _ = is_paused.then(|| pool.engine.containers.resume(&asked));
            pool.kept_logs.keep(&asked, &pool.engine.containers.logs(&asked).unwrap_or_default());
            pool.engine.containers.stop(&asked)
        };
        if let Err(error) = self.blocking(stop).await {
            eprintln!("transshipd: {error}");
        }
        self.remove_folders(socket_dir).await;
        if let Some(replica) = self.lock().leaving.remove(&name) {
            let _ = replica.become_state(State::Gone(None));
        }
    }

    /// The same, on a task of its own: whoever asks may be cancelled, the stop must not be.
    fn discard_soon(self: &Arc<Pool>, name: String) {
        let pool = self.clone();
        tokio::spawn(async move { pool.discard(name, None).await });
    }

    async fn take_out_ended(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            state
                .replicas
                .values()
                .filter(|replica| replica.state() == State::Ready)
                .map(|replica| replica.name.clone())
                .collect()
        };
        // One that does not let itself be connected to delays no other.
        let mut looks = tokio::task::JoinSet::new();
        for name in names {
            let pool = self.clone();
            looks.spawn(async move { pool.take_out_if_ended(name).await });
        }
        looks.join_all().await;
    }

    async fn take_out_if_ended(self: &Arc<Pool>, name: String) {
        let idle = {
            let state = self.lock();
            let unused = state.replicas.get(&name).filter(|replica| replica.leases == 0);
            unused.map(|replica| (replica.socket_dir.clone(), replica.user))
        };
        // An engine that has a lease asks for the fate itself, and wants to hear it.
        let Some((socket_dir, user)) = idle else { return };
        // Knocking costs less than asking a container engine.
        let knocks = async {
            unix::connect(&socket_dir.join("flight.sock"), user).await.is_ok()
                || unix::connect(&socket_dir.join("http.sock"), user).await.is_ok()
        };
        if tokio::time::timeout(PROBE_TIMEOUT, knocks).await.unwrap_or(false) {
            return;
        }
        let asked = name.clone();
        if let Ok(ReplicaStatus::Ended(fate)) = self.blocking(move |pool| pool.engine.containers.status(&asked)).await {
            eprintln!("transshipd: replica \"{name}\" {fate}");
            let pool = self.clone();
            tokio::spawn(async move { pool.discard_ended(name, &fate).await });
        }
    }

    fn stop_idle(self: &Arc<Pool>) {
        let idle: Vec<String> = {
            let state = self.lock();
            let mut idle = Vec::new();
            for (digest, manifest) in &state.images {
                let ready: Vec<&Replica> = state
                    .replicas
                    .values()
                    .filter(|replica| {
                        replica.digest == *digest && matches!(replica.state(), State::Ready | State::Paused)
                    })
                    .collect();
                let surplus = ready.len().saturating_sub(state.to_keep(digest, manifest));
                let over = ready.into_iter().filter(|replica| replica.is_unused_for(self.config.idle_timeout));
                idle.extend(over.take(surplus).map(|replica| replica.name.clone()));
            }
            idle
        };
        for name in idle {
            self.discard_soon(name);
        }
    }

    fn pause_unused(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            let is_unused = |replica: &&Replica| {
                state.images.get(&replica.digest).is_some_and(|manifest| manifest.pause)
                    && replica.is_unused_for(PAUSE_AFTER)
                    && replica.become_state(State::Pausing).is_ok()
            };
            state.replicas.values().filter(is_unused).map(|replica| replica.name.clone()).collect()
        };
        for name in names {
            tokio::spawn(self.clone().pause(name));
        }
    }

    /// Asks replicas that nobody uses, so that one that hangs is found before somebody waits for it.
    fn ask_unused(self: &Arc<Pool>) {
        let names: Vec<String> = {
            let state = self.lock();
            let is_due = |replica: &&Replica| replica.leases == 0 && replica.asked.elapsed() >= ASK_INTERVAL;
            state.replicas.values().filter(is_due).map(|replica| replica.name.clone()).collect()
        };
        for name in names {
            self.examine(name, false);
        }
    }

    /// Pauses a replica that is in the map as Pausing.
    async fn pause(self: Arc<Pool>, name: String) {
        let asked = name.clone();
        let outcome = self.blocking(move |pool| pool.engine.containers.pause(&asked)).await;
        if let Some(replica) = self.lock().replicas.get_mut(&name) {
            let next = if outcome.is_ok() { State::Paused } else { State::Ready };
            let _ = replica.become_state(next);
            // Not tried again at once.
            replica.used = Instant::now();
        }
        if let Err(error) = outcome {
            eprintln!("transshipd: {error}");
        }
    }

    /// Goes on with a replica that is in the map as Resuming. One that cannot is taken out; whoever waits gets another.
    async fn resume(self: Arc<Pool>, name: String) {
        let asked = name.clone();
        match self.blocking(move |pool| pool.engine.containers.resume(&asked)).await {
            Ok(()) => {
                if let Some(replica) = self.lock().replicas.get(&name) {
                    let _ = replica.become_state(State::Ready);
                }
            }
            Err(error) => {
                eprintln!("transshipd: {error}");
                self.discard(name, None).await;
            }
        }
    }

    fn prewarm(self: &Arc<Pool>) {
        let mut state = self.lock();
        let state = &mut *state;
        let mut missing = Vec::new();
        for (digest, manifest) in &state.images {
            let count = state.replicas.values().filter(|replica| replica.digest == *digest).count();
            let may_start = state.circuits.get(digest).is_none_or(Circuit::may_prewarm);
            if may_start && self.may_start(manifest) && !state.is_shutting_down {
                missing.extend((count..state.to_keep(digest, manifest)).map(|_| digest.clone()));
            }
        }
        for digest in missing {
            let memory_mb = state.limits_of(&self.config, &digest).memory_mb;
            if !state.has_room(&self.config, memory_mb) {
                return;
            }
            let Ok(replica) = self.new_replica(state, &digest) else { return };
            let name = replica.name.clone();
            state.replicas.insert(name.clone(), replica);
            let pool = self.clone();
            tokio::spawn(async move { pool.start(name).await });
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect("no holder panics")
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Pool>,
        work: impl FnOnce(&Pool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = self.clone();
        match tokio::task::spawn_blocking(move || work(&pool)).await {
            Ok(result) => result,
            Err(cause) => Err(Error::new(Kind::ContainerFailed, format!("the container manager failed: {cause}"))),
        }
    }
}

/// What a new lease needs.
enum Choice {
    /// That this replica is ready.
    Replica(String, tokio::sync::watch::Receiver<State>),
    /// Some time.
    After(Duration),
    /// That this replica, which nobody uses, is stopped.
    Without(String),
}

/// Asks a server whether it is there, with all that it offers; and the user that it runs as, who must be one of `users`.
/// Only what a lease tells is kept: a greeting may have megabytes.
async fn greet(socket_dir: &Path, users: &ServerUsers) -> Result<(ServerInfo, u32)> {
    let (info, user) = greet_in_full(socket_dir, users).await?;
    let offered = TransportName::ALL.into_iter().filter(|transport| info.offers(*transport));
    let transports = Some(offered.map(|transport| transport.name().to_string()).collect());
    // By name, so that what a greeting says anew is not lost here.
    let ServerInfo { protocol, pipelining, constants, keep_alive, row_errors, server: _, functions: _, transports: _ } =
        info;
    let (server, functions) = Default::default();
    let kept = ServerInfo { protocol, server, functions, transports, pipelining, constants, keep_alive, row_errors };
    Ok((kept, user))
}

async fn greet_in_full(socket_dir: &Path, users: &ServerUsers) -> Result<(ServerInfo, u32)> {
    let user = find_user(socket_dir).await?;
    if !users.contains(user) {
        let fact = format!("user {user}, who is not a replica's, listens on its socket");
        return Err(Error::unreachable(&socket_dir.to_string_lossy(), fact));
    }
    let say_hello = async |endpoint: Endpoint| {
        let credentials = Credentials { server_user: Some(user), ..Credentials::default() };
        let hello = async { connect::to_endpoint(&endpoint, &credentials).hello().await };
        tokio::time::timeout(PROBE_TIMEOUT, hello).await.unwrap_or_else(|_| {
            Err(Error::unreachable(&endpoint.to_string(), format!("no answer within {PROBE_TIMEOUT:?}")))
        })
    };
    let no_flight = match say_hello(flight_endpoint(socket_dir)).await {
        // One socket may be there before the other.
        Ok(info) if info.offers(TransportName::Shm) || info.offers(TransportName::Socket) => {
            return Ok((say_hello(json_endpoint(socket_dir)).await?, user));
        }
        Ok(info) => return Ok((info, user)),
        Err(error) if error.kind() == Kind::ProtocolViolation => return Err(error),
        Err(error) => error,
    };
    // A server with both may have opened one socket only so far.
    let info = say_hello(json_endpoint(socket_dir)).await?;
    if info.offers(TransportName::Flight) { Err(no_flight) } else { Ok((info, user)) }
}

/// The user who listens on a replica's sockets.
async fn find_user(socket_dir: &Path) -> Result<u32> {
    let mut refusal = None;
    for name in ["http.sock", "flight.sock"] {
        let path = socket_dir.join(name);
        let connecting = tokio::time::timeout(PROBE_TIMEOUT, unix::connect(&path, None));
        let connected = connecting.await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        match connected.and_then(|stream| unix::user_of_peer(&stream)) {
            Ok(user) => return Ok(user),
            Err(cause) => refusal = refusal.or(Some(Error::unreachable(&path.to_string_lossy(), cause))),
        }
    }
    Err(refusal.expect("a replica has names for its sockets"))
}
