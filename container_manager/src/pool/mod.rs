//! Which replicas run, and who may use them: starts on demand, keeps some warm, stops the idle, replaces the lost.

mod adopt;
mod greet;
mod keep;
mod lease;
mod pause;
mod silence;
mod start;
mod state;
mod stop;

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Semaphore;
use udf_client::control::{CircuitInfo, ReplicaInfo};
use udf_types::{Error, Kind, Result};

use crate::blocking::blocking;
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::folders::Folders;
use crate::kept_logs::KeptLogs;
use crate::metrics::Metrics;
use crate::replica::Holder;
use crate::runtime::container_runtime::ContainerRuntime;
use crate::sandbox::ServerUsers;
use crate::users::MOST_QUESTIONS;
use state::PoolState;
#[cfg(test)]
pub(crate) use stop::tests::unwell_pool;

/// All replicas of this manager.
pub struct Pool {
    config: Arc<Config>,
    containers: Arc<dyn ContainerRuntime>,
    /// What is known of the images of replicas.
    catalogue: Arc<Catalogue>,
    server_users: ServerUsers,
    folders: Folders,
    kept_logs: KeptLogs,
    metrics: Metrics,
    /// Those who judge replicas ask the runtime so many things at a time.
    questions: Semaphore,
    state: Mutex<PoolState>,
}

impl Pool {
    /// An empty pool.
    pub fn new(
        config: Arc<Config>,
        containers: Arc<dyn ContainerRuntime>,
        catalogue: Arc<Catalogue>,
    ) -> Result<Arc<Pool>> {
        let server_users = ServerUsers::of(containers.name(), &config.allowed_uids);
        let paths = &config.host.paths;
        let (are_processes, owner) = (containers.name() == "process", containers.owner()?);
        let folders = Folders::new(&paths.run_dir, &paths.shm_dir, config.segment_bytes, are_processes, owner)?;
        let kept_logs = KeptLogs::new(&paths.state_dir);
        let (metrics, questions, state) = (Metrics::default(), Semaphore::new(MOST_QUESTIONS), Mutex::default());
        Ok(Arc::new(Pool {
            config,
            containers,
            catalogue,
            server_users,
            folders,
            kept_logs,
            metrics,
            questions,
            state,
        }))
    }

    /// The runtime's name.
    pub fn runtime_name(&self) -> &str {
        self.containers.name()
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The sum of the memory limits of all containers, in megabytes.
    pub fn reserved_memory_mb(&self) -> u64 {
        let state = self.lock();
        state.replicas.values().chain(state.leaving.values()).map(|replica| replica.memory_mb).sum()
    }

    /// Whether a replica of the image with that digest is there for those who ask, now or soon.
    pub fn serves(&self, digest: &str) -> bool {
        self.lock().replicas.values().any(|replica| replica.digest == digest && replica.is_usable())
    }

    /// Whether there is a replica of the image with that digest, even one that is being stopped.
    pub fn has_replica(&self, digest: &str) -> bool {
        let state = self.lock();
        state.replicas.values().chain(state.leaving.values()).any(|replica| replica.digest == digest)
    }

    /// Forgets how the replicas of an image ended that was removed.
    pub fn forget_endings(&self, digest: &str) {
        self.lock().circuits.remove(digest);
    }

    /// One entry per replica, by name; of those who have leases, some may be shown.
    pub fn list(&self, is_shown: impl Fn(&Holder) -> bool) -> Vec<ReplicaInfo> {
        let state = self.lock();
        let all = state.replicas.values().chain(state.leaving.values());
        let mut replicas: Vec<ReplicaInfo> = all.map(|replica| replica.info(&is_shown)).collect();
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        replicas
    }

    /// The images whose replicas ended of late, with what the last ones wrote only for operators.
    pub fn circuits(&self, is_operator: bool) -> Vec<CircuitInfo> {
        let state = self.lock();
        let mut circuits: Vec<CircuitInfo> = state
            .circuits
            .iter()
            .map(|(digest, circuit)| circuit.info(&self.catalogue.name(digest), digest, is_operator))
            .collect();
        circuits.sort_by(|a, b| (&a.image, &a.digest).cmp(&(&b.image, &b.digest)));
        circuits
    }

    /// The last lines that a replica wrote; it may have ended.
    pub async fn logs(self: &Arc<Pool>, name: String) -> Result<String> {
        if self.lock().replicas.contains_key(&name) {
            return self.blocking(move |pool| pool.containers.logs(&name)).await;
        }
        self.kept_logs.read(&name).ok_or_else(|| {
            Error::new(Kind::InvalidDefinition, format!("there is no replica \"{name}\""))
                .with_hint("The logs of the last replicas that ended are kept; \"transship ps\" lists those that run.")
        })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect("no holder panics")
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Pool>,
        work: impl FnOnce(&Pool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = self.clone();
        blocking(move || work(&pool)).await
    }
}
