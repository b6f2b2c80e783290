//! What runs containers.

use std::path::PathBuf;

use udf_project::manifest::Limits;
use udf_types::Result;

use crate::sandbox::Owner;

/// What to start.
#[derive(Debug, Clone)]
pub struct ReplicaSpec {
    /// Name, unique on the host.
    pub name: String,
    /// Digest of the image.
    pub digest: String,
    /// Folder in which the server makes its sockets.
    pub socket_dir: PathBuf,
    /// Folder of the segments that it shares with engines, if there is one.
    pub segment_dir: Option<PathBuf>,
    /// What it may use.
    pub limits: Limits,
}

/// A replica that the runtime knows from before the manager started.
#[derive(Debug, Clone)]
pub struct FoundReplica {
    /// Name.
    pub name: String,
    /// Digest of the image.
    pub digest: String,
    /// Folder of its sockets.
    pub socket_dir: PathBuf,
    /// Whether it is paused.
    pub is_paused: bool,
}

/// Whether a replica runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaStatus {
    /// It runs.
    Running,
    /// It has ended; a phrase that follows "The container".
    Ended(String),
}

/// A replica's life: starts it, looks at it, pauses and ends it. Its methods block.
pub trait ContainerRuntime: Send + Sync {
    /// docker, podman or process.
    fn name(&self) -> &str;
    /// Whether it works, in a line for `transship doctor`.
    fn check(&self) -> Result<String>;
    /// What replicas are not kept from here, though they should be, in sentences without a period.
    fn doubts(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    /// Whose processes replicas are, on this host.
    fn owner(&self) -> Result<Owner> {
        Ok(Owner::UNSHIFTED)
    }
    /// Whether those of the image with that digest may have GPUs: anybody may have written its label, unless it was built here.
    fn may_have_gpus(&self, _digest: &str) -> bool {
        true
    }
    /// Starts a replica.
    fn start(&self, spec: &ReplicaSpec) -> Result<()>;
    /// Whether it runs.
    fn status(&self, name: &str) -> Result<ReplicaStatus>;
    /// Takes the processor away from it; its sockets stay, and its memory.
    fn pause(&self, name: &str) -> Result<()>;
    /// Goes on with one that was paused.
    fn resume(&self, name: &str) -> Result<()>;
    /// Asks it to end, makes it end, and removes what is left of it, its log included. It is not paused.
    fn stop(&self, name: &str) -> Result<()>;
    /// The last lines it wrote, of at most [`KEPT_LOG_BYTES`](crate::kept_logs::KEPT_LOG_BYTES).
    fn logs(&self, name: &str) -> Result<String>;
    /// Shortens the logs of running replicas, where nothing else bounds them.
    fn bound_logs(&self) -> Result<()> {
        Ok(())
    }
    /// Replicas that run since before the manager started.
    fn find_replicas(&self) -> Result<Vec<FoundReplica>>;
}
