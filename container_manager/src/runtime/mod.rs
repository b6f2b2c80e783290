//! What runs replicas and keeps images, behind one trait. Its methods block; the manager calls them off its event loop.

mod docker_api;
pub mod docker_cli;
mod docker_daemon;
mod docker_pull;
pub mod process;
pub mod program;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use udf_client::control::ImageInfo;
use udf_project::manifest::{Limits, Manifest};
use udf_types::{Error, Kind, Result};

use crate::cancel::Cancel;
use crate::config::{HostConfig, RuntimeName};
use crate::sandbox::Owner;
use crate::template::Template;
use docker_cli::DockerCli;
use process::ProcessRuntime;

/// Longest that a handler may take to say what its functions are.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// How an image is built.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Whether the build's output goes to standard error.
    pub shows_progress: bool,
    /// Ends the build.
    pub cancel: Cancel,
}

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

/// A runtime.
pub trait Runtime: Send + Sync {
    /// docker, podman or process.
    fn name(&self) -> &str;
    /// Whether it works, in a line for `transship doctor`.
    fn check(&self) -> Result<String>;
    /// What replicas and builds are not kept from here, though they should be, in sentences without a period.
    fn doubts(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    /// Whose processes replicas are, on this host.
    fn owner(&self) -> Result<Owner> {
        Ok(Owner::UNSHIFTED)
    }
    /// The image that a name or digest stands for.
    fn resolve(&self, image: &str) -> Result<ImageInfo>;
    /// The UDF images that have a name; a rebuilt image takes the name from the one before.
    fn images(&self) -> Result<Vec<ImageInfo>>;
    /// Whether this host's state folder says that the image was built here: its labels could be anybody's.
    fn was_built_here(&self, digest: &str) -> bool;
    /// Builds a staged context into the image `manifest.image()`. A build that fails, or is cancelled, leaves no image.
    fn build(
        &self,
        context: &Path,
        manifest: &Manifest,
        template: &Template,
        options: &BuildOptions,
    ) -> Result<ImageInfo>;
    /// Removes what builds have left that were killed, together with the program that had started them.
    fn remove_leftovers(&self) -> Result<()> {
        Ok(())
    }
    /// Removes an image, with the names that its build gave it.
    fn remove_image(&self, image: &ImageInfo) -> Result<()>;
    /// Sends an image to a registry under `reference`; the reference by which the registry knows its content.
    fn push(&self, image: &str, reference: &str) -> Result<String>;
    /// Gets an image from a registry, and gives it the name that its manifest says. Whoever pushed it chose that name, so one
    /// that stands for another image here is taken from it only if it `replaces` that.
    fn pull(&self, reference: &str, replaces: bool) -> Result<ImageInfo>;
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

/// The runtime of that name, or the one that works here.
pub fn choose(host: &HostConfig) -> Result<Arc<dyn Runtime>> {
    match host.runtime.name {
        RuntimeName::Docker => Ok(Arc::new(DockerCli::new("docker", host))),
        RuntimeName::Podman => Ok(Arc::new(DockerCli::new("podman", host))),
        RuntimeName::Process => Ok(Arc::new(ProcessRuntime::new(host)?)),
        RuntimeName::Auto if is_installed("docker") => {
            let docker = DockerCli::new("docker", host);
            // A daemon that is only late must not make replicas less isolated.
            docker.check().map_err(|error| {
                error.with_hint("Start the docker daemon, or choose --runtime process, which isolates replicas less.")
            })?;
            Ok(Arc::new(docker))
        }
        RuntimeName::Auto => Ok(Arc::new(ProcessRuntime::new(host)?)),
    }
}

/// Whether a program is found where programs are.
fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// There is no such image.
pub(crate) fn image_not_found(image: &str) -> Error {
    Error::new(Kind::ImageNotFound, format!("image \"{image}\" does not exist"))
        .with_hint("Build it with \"transship build\", or pull it.")
}

/// The image lacks what makes it a UDF image.
pub(crate) fn not_a_udf_image(image: &str) -> Error {
    Error::new(Kind::InvalidDefinition, format!("image \"{image}\" is not a UDF image"))
        .with_detail(format!("It has no label \"{}\".", udf_project::manifest::MANIFEST_LABEL))
        .with_hint("Build it with \"transship build\".")
}

/// 128 random bits.
pub(crate) fn random_hex() -> Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|cause| Error::new(Kind::ContainerFailed, format!("could not read random bytes: {cause}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
