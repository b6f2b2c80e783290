//! Which replicas run, and who may use them: starts on demand, keeps some warm, stops the idle, replaces the lost.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use udf_protocol::control::{ImageInfo, LeaseInfo, ReplicaInfo, STILL_RUNNING};
use udf_protocol::manifest::{Manifest, TransportName};
use udf_protocol::reference::ImageReference;
use udf_protocol::transport::{Credentials, Endpoint, ServerInfo, unix};
use udf_protocol::{Error, Kind, Result};

use crate::config::Config;
use crate::folders::{self, Folders, Opened};
use crate::registration::build::build_inline;
use crate::registration::library::{Upload, build_library};
use crate::replica::{Replica, State, flight_endpoint, json_endpoint};
use crate::runtime::program::end_builds;
use crate::runtime::{ReplicaSpec, ReplicaStatus, Runtime, last_lines};
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
/// Longest wait for all replicas to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// After a replica failed to start, none is prewarmed for that long.
const PREWARM_BACK_OFF: Duration = Duration::from_secs(30);

/// All replicas of this manager.
pub struct Pool {
    config: Config,
    runtime: Arc<dyn Runtime>,
    server_users: ServerUsers,
    folders: Folders,
    state: Mutex<PoolState>,
    /// One build at a time: builds share caches and are heavy.
    building: tokio::sync::Mutex<()>,
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
    prewarm_after: HashMap<String, Instant>,
    /// Replicas that are being started, those that were taken out meanwhile included.
    starting: usize,
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

    /// How many replicas of an image are kept running: none once its name stands for another, which is kept instead.
    fn to_keep(&self, digest: &str, manifest: &Manifest) -> usize {
        let is_current = self.names.get(&manifest.image()).is_none_or(|named| named == digest);
        if is_current { manifest.prewarm as usize } else { 0 }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(config: Config, runtime: Arc<dyn Runtime>) -> Result<Arc<Pool>> {
        let server_users = ServerUsers::of(runtime.name(), &config.allowed_uids);
        let place = &config.place;
        let folders = Folders::new(&place.run_dir, &place.shm_dir, config.segment_bytes, runtime.name() == "process")?;
        let (state, building) = Default::default();
        Ok(Arc::new(Pool { config, runtime, server_users, folders, state, building }))
    }

    /// The runtime's name.
    pub fn runtime_name(&self) -> &str {
        self.runtime.name()
    }

    /// Takes over the replicas that an earlier manager left, and stops those that do not answer.
    pub async fn adopt(self: &Arc<Pool>) -> Result<usize> {
        let mut adopted = 0;
        for image in self.blocking(|pool| pool.runtime.images()).await? {
            self.lock().note_image(&image, true);
        }
        for found in self.blocking(|pool| pool.runtime.find_replicas()).await? {
            let name = found.name.clone();
            if found.is_paused {
                let paused = name.clone();
                // One that cannot go on does not answer, either.
                let _ = self.blocking(move |pool| pool.runtime.resume(&paused)).await;
            }
            let greeting = greet(&found.socket_dir, &self.server_users).await.ok();
            let image = self.resolve(found.digest.clone()).await.ok();
            if let (Some((server, user)), Some(ImageInfo { manifest, .. })) = (greeting, image) {
                let segment_dir = self.folders.segments_of(&found.socket_dir);
                let mut replica = Replica::new(found.name, manifest.image(), found.digest, found.socket_dir);
                replica.segment_dir = Some(segment_dir).filter(|directory| directory.is_dir());
                replica.server = server;
                replica.user = Some(user);
                replica.become_state(State::Ready)?;
                self.lock().replicas.insert(name, replica);
                adopted += 1;
            } else {
                self.blocking(move |pool| pool.runtime.stop(&name)).await?;
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

    /// The image that a name or digest stands for.
    pub async fn resolve(self: &Arc<Pool>, image: String) -> Result<ImageInfo> {
        ImageReference::parse(&image)?;
        // A name may stand for another image by now, but a digest whose replica runs is there. Asking a container engine
        // costs a process.
        {
            let state = self.lock();
            let runs = state.replicas.values().any(|replica| replica.digest == image && replica.is_usable());
            if let (true, Some(manifest)) = (runs, state.images.get(&image)) {
                return Ok(ImageInfo { digest: image, manifest: manifest.clone() });
            }
        }
        let asked = image.clone();
        let info = self.blocking(move |pool| pool.runtime.resolve(&asked)).await?;
        self.lock().note_image(&info, image == info.manifest.image());
        Ok(info)
    }

    /// Builds inline code.
    pub async fn build_inline(self: &Arc<Pool>, manifest: Manifest, source: String) -> Result<ImageInfo> {
        self.build(move |runtime, templates| build_inline(runtime, templates, &manifest, &source)).await
    }

    /// Builds a project that an engine has sent.
    pub async fn build_library(self: &Arc<Pool>, library: String, upload: Upload) -> Result<ImageInfo> {
        self.build(move |runtime, templates| build_library(runtime, templates, &library, &upload)).await
    }

    async fn build(
        self: &Arc<Pool>,
        build: impl FnOnce(&dyn Runtime, &Path) -> Result<ImageInfo> + Send + 'static,
    ) -> Result<ImageInfo> {
        let _turn = self.building.lock().await;
        if self.lock().is_shutting_down {
            return Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down"));
        }
        let info = self.blocking(move |pool| build(pool.runtime.as_ref(), &pool.config.place.templates)).await?;
        self.lock().note_image(&info, true);
        Ok(info)
    }

    /// Leases a replica of the image: an idle one, else a new one while the image may have more, else the least used.
    /// Every successful call must be followed by one of [`Pool::release`].
    pub async fn acquire(self: &Arc<Pool>, digest: &str) -> Result<(LeaseInfo, Opened)> {
        let mut info = self.find_replica(digest).await?;
        info.prefix = random_hex()?[..PREFIX_DIGITS].to_string();
        let opened = {
            let state = self.lock();
            let replica = state.replicas.get(&info.replica);
            replica.map(|replica| self.folders.open(&replica.socket_dir, info.segments.as_deref()))
        };
        match opened {
            Some(Ok(opened)) => Ok((info, opened)),
            failed => {
                self.release(&info.replica, &info.prefix);
                let ended = || Error::new(Kind::ContainerFailed, format!("replica \"{}\" has ended", info.replica));
                Err(failed.and_then(Result::err).unwrap_or_else(ended))
            }
        }
    }

    async fn find_replica(self: &Arc<Pool>, digest: &str) -> Result<LeaseInfo> {
        let known = self.lock().images.contains_key(digest);
        if !known {
            self.resolve(digest.to_string()).await?;
        }
        loop {
            let (name, mut watch) = {
                let mut state = self.lock();
                if state.is_shutting_down {
                    return Err(Error::new(Kind::ContainerFailed, "the container manager is shutting down"));
                }
                let limit = state.images.get(digest).map_or(1, |manifest| manifest.replicas as usize);
                let usable = |replica: &&mut Replica| replica.digest == digest && replica.is_usable();
                let count = state.replicas.values_mut().filter(usable).count();
                let least = state
                    .replicas
                    .values_mut()
                    .filter(usable)
                    .min_by_key(|replica| (replica.leases, replica.state() != State::Ready));
                match least {
                    Some(replica) if replica.leases == 0 || count >= limit => {
                        // Counted while it starts, so that it is not given to everybody.
                        replica.leases += 1;
                        replica.used = Instant::now();
                        if replica.become_state(State::Resuming).is_ok() {
                            tokio::spawn(self.clone().resume(replica.name.clone()));
                        }
                        (replica.name.clone(), replica.watch())
                    }
                    _ => {
                        let mut replica = self.new_replica(&mut state, digest)?;
                        replica.leases = 1;
                        let entry = (replica.name.clone(), replica.watch());
                        state.replicas.insert(entry.0.clone(), replica);
                        let pool = self.clone();
                        let name = entry.0.clone();
                        tokio::spawn(async move { pool.start(name).await });
                        entry
                    }
                }
            };
            // The sender lives as long as the replica is in the map; gone means it was taken out.
            let is_settled = |state: &State| !matches!(state, State::Starting | State::Pausing | State::Resuming);
            let reached = watch.wait_for(is_settled).await.map(|state| state.clone());
            match reached {
                Ok(State::Ready) => {
                    if let Some(replica) = self.lock().replicas.get(&name) {
                        return Ok(replica.lease_info());
                    }
                }
                Ok(State::Gone(Some(error))) => return Err(error),
                // It was stopped or paused just now: look again.
                Ok(_) | Err(_) => {}
            }
            self.end_lease(&name);
        }
    }

    /// Ends one lease on a replica, whose segments' names begin so.
    pub fn release(self: &Arc<Pool>, name: &str, prefix: &str) {
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
        let replica = state.replicas.get_mut(name)?;
        replica.leases = replica.leases.saturating_sub(1);
        replica.used = Instant::now();
        Some((replica.segment_dir.clone()?, replica.leases))
    }

    /// What became of a replica with which an engine lost its connection; one that does not answer is taken out.
    pub async fn judge(self: &Arc<Pool>, name: String) -> Result<String> {
        let Some(socket_dir) = self.lock().replicas.get(&name).map(|replica| replica.socket_dir.clone()) else {
            return Ok("was stopped".to_string());
        };
        let deadline = Instant::now() + PROBE_TIMEOUT;
        // A connection is lost a moment before the process behind it is seen to have ended.
        let fate = loop {
            let asked = name.clone();
            if let ReplicaStatus::Ended(fate) = self.blocking(move |pool| pool.runtime.status(&asked)).await? {
                break fate;
            }
            if greet(&socket_dir, &self.server_users).await.is_ok() {
                return Ok(STILL_RUNNING.to_string());
            }
            if Instant::now() >= deadline {
                break "did not answer and was stopped".to_string();
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        };
        self.discard(name, None).await;
        Ok(fate)
    }

    /// One entry per replica, by name.
    pub fn list(&self) -> Vec<ReplicaInfo> {
        let state = self.lock();
        let mut replicas: Vec<ReplicaInfo> =
            state.replicas.values().chain(state.leaving.values()).map(Replica::info).collect();
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        replicas
    }

    /// The last lines that a replica wrote.
    pub async fn logs(self: &Arc<Pool>, name: String) -> Result<String> {
        if !self.lock().replicas.contains_key(&name) {
            return Err(Error::new(Kind::InvalidDefinition, format!("there is no replica \"{name}\"")));
        }
        self.blocking(move |pool| pool.runtime.logs(&name)).await
    }

    /// Keeps the pool as it should be, for ever.
    pub async fn keep(self: Arc<Pool>) {
        loop {
            tokio::time::sleep(KEEP_INTERVAL).await;
            self.take_out_ended().await;
            self.stop_idle();
            self.pause_unused();
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
        let random = random_hex()?;
        let short: String = image.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
        let name = format!("transship-{short}-{}", &random[..8]);
        let socket_dir = self.config.place.run_dir.join(random);
        Ok(Replica::new(name, image, digest.to_string(), socket_dir))
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
            let limits = state.images.get(&replica.digest).map(|manifest| manifest.limits.clone()).unwrap_or_default();
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
                    let _ = self.blocking(move |pool| pool.runtime.stop(&name)).await;
                    self.remove_folders(kept_dir).await;
                }
                return;
            }
            Err(error) => error,
        };
        let asked = name.clone();
        let log = self.blocking(move |pool| pool.runtime.logs(&asked)).await.unwrap_or_default();
        let error = Error::new(Kind::ContainerFailed, format!("could not start a container of image \"{image}\""))
            .with_detail(format!("{error}\n{}", last_lines(&log, 15)).trim_end().to_string());
        self.lock().prewarm_after.insert(digest, Instant::now() + PREWARM_BACK_OFF);
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
        self.blocking(move |pool| pool.runtime.start(&spec)).await?;
        let mut next_status = Instant::now();
        loop {
            match greet(&socket_dir, &self.server_users).await {
                Ok(found) => return Ok(found),
                Err(error) if error.kind() == Kind::ProtocolViolation => return Err(error),
                Err(_) => {}
            }
            // Asking a container engine costs a process; asking the socket costs nothing.
            if Instant::now() >= next_status {
                next_status = Instant::now() + Duration::from_millis(500);
                let asked = name.clone();
                if let ReplicaStatus::Ended(fate) = self.blocking(move |pool| pool.runtime.status(&asked)).await? {
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
                State::Ready | State::Paused => State::Draining,
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
            let _ = is_paused.then(|| pool.runtime.resume(&asked));
            pool.runtime.stop(&asked)
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
        for name in names {
            let asked = name.clone();
            let idle = {
                let state = self.lock();
                state
                    .replicas
                    .get(&name)
                    .filter(|replica| replica.leases == 0)
                    .map(|replica| (replica.socket_dir.clone(), replica.user))
            };
            // An engine that has a lease asks for the fate itself, and wants to hear it.
            let Some((socket_dir, user)) = idle else { continue };
            // Knocking costs nothing; asking a container engine costs a process.
            if unix::connect(&socket_dir.join("flight.sock"), user).await.is_ok()
                || unix::connect(&socket_dir.join("http.sock"), user).await.is_ok()
            {
                continue;
            }
            if let Ok(ReplicaStatus::Ended(fate)) = self.blocking(move |pool| pool.runtime.status(&asked)).await {
                eprintln!("transshipd: replica \"{name}\" {fate}");
                self.discard_soon(name);
            }
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
                let over = ready
                    .into_iter()
                    .filter(|replica| replica.leases == 0 && replica.used.elapsed() >= self.config.idle_timeout);
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
                    && replica.leases == 0
                    && replica.used.elapsed() >= PAUSE_AFTER
                    && replica.become_state(State::Pausing).is_ok()
            };
            state.replicas.values().filter(is_unused).map(|replica| replica.name.clone()).collect()
        };
        for name in names {
            tokio::spawn(self.clone().pause(name));
        }
    }

    /// Pauses a replica that is in the map as Pausing.
    async fn pause(self: Arc<Pool>, name: String) {
        let asked = name.clone();
        let outcome = self.blocking(move |pool| pool.runtime.pause(&asked)).await;
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
        match self.blocking(move |pool| pool.runtime.resume(&asked)).await {
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
            let may_start = state.prewarm_after.get(digest).is_none_or(|after| *after <= Instant::now());
            if may_start && !state.is_shutting_down {
                missing.extend((count..state.to_keep(digest, manifest)).map(|_| digest.clone()));
            }
        }
        for digest in missing {
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

/// Asks a server whether it is there, with all that it offers; and the user that it runs as, who must be one of `users`.
async fn greet(socket_dir: &Path, users: &ServerUsers) -> Result<(ServerInfo, u32)> {
    let user = find_user(socket_dir).await?;
    if !users.contains(user) {
        let fact = format!("user {user}, who is not a replica's, listens on its socket");
        return Err(Error::unreachable(&socket_dir.to_string_lossy(), fact));
    }
    let say_hello = async |endpoint: Endpoint| {
        let credentials = Credentials { server_user: Some(user), ..Credentials::default() };
        let hello = async { endpoint.transport(&credentials).hello().await };
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
        match connected.and_then(|stream| stream.peer_cred()) {
            Ok(peer) => return Ok(peer.uid()),
            Err(cause) => refusal = refusal.or(Some(Error::unreachable(&path.to_string_lossy(), cause))),
        }
    }
    Err(refusal.expect("a replica has names for its sockets"))
}

/// 128 random bits.
fn random_hex() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open(PathBuf::from("/dev/urandom"))
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|cause| Error::new(Kind::ContainerFailed, format!("could not read random bytes: {cause}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
