//! The configuration of the manager: checked, and free of how it was given.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use udf_project::reference::ImageReference;

use crate::otlp_endpoint::OtlpEndpoint;

/// The manager's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// What it knows of the host.
    pub host: HostConfig,
    /// Users who may connect.
    pub allowed_uids: HashSet<u32>,
    /// Those of them who may do everything; the others may do what an engine needs.
    pub operator_uids: HashSet<u32>,
    /// The images that all but operators may use; none given means all.
    pub allowed_images: Option<String>,
    /// How long a replica may be without a lease.
    pub idle_timeout: Duration,
    /// How long a replica may take to answer.
    pub start_timeout: Duration,
    /// Bytes of segments that a replica may share with engines.
    pub segment_bytes: u64,
    /// How long one that has answered may be silent.
    pub silent_timeout: Duration,
    /// How long one that an earlier manager started is taken to be in use.
    pub adopted_grace: Duration,
    /// Whether leases are logged.
    pub log_leases: bool,
    /// Most containers at a time.
    pub max_containers: usize,
    /// Most builds for engines at a time.
    pub max_builds: usize,
    /// Most memory that they may use together, in megabytes.
    pub max_memory_mb: u64,
    /// Most GPUs of one container.
    pub max_gpus: u32,
    /// Where spans are sent; nowhere if left out.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Bytes of results that are kept for functions that want it; nothing is kept if it is 0.
    pub cache_bytes: u64,
    /// Where such results are kept on disk as well, and how many bytes of them; nowhere if left out.
    pub cache_dir: Option<(PathBuf, u64)>,
    /// Where metrics and the status page are served; nowhere if left out.
    pub metrics_listen: Option<SocketAddr>,
    /// By which names of this host they may be asked for, besides its address.
    pub metrics_hosts: Vec<String>,
}

/// What the manager knows of the host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Where things are.
    pub paths: Paths,
    /// What runs containers.
    pub runtime: RuntimeConfig,
    /// What builds of images may use.
    pub builds: BuildConfig,
}

/// Where things are. All paths are absolute: replicas run elsewhere than the manager.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Socket on which the manager listens.
    pub socket: PathBuf,
    /// Folder of images and logs.
    pub state_dir: PathBuf,
    /// Folder of the replicas' sockets.
    pub run_dir: PathBuf,
    /// Folder in memory for the segments that engines and replicas share.
    pub shm_dir: PathBuf,
    /// Folder of the templates.
    pub templates: PathBuf,
}

/// What runs containers.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// The program.
    pub name: RuntimeName,
    /// Network of containers whose manifest asks for one; without it, they are not started.
    pub network: Option<String>,
    /// Control group in which docker and podman create those of containers; that of docker or podman if left out.
    pub cgroup_parent: Option<String>,
}

/// A program that runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuntimeName {
    /// Docker if it is installed, otherwise sandboxed child processes.
    Auto,
    /// The docker command line.
    Docker,
    /// The podman command line.
    Podman,
    /// Sandboxed child processes, without a container engine; for development.
    Process,
}

/// What builds of images may use.
#[derive(Debug, Clone)]
pub struct BuildConfig {
    /// Network of docker's and podman's builds; that of docker or podman if left out.
    pub network: Option<String>,
    /// Memory of each step of docker's and podman's builds, in megabytes, swap included.
    pub memory_mb: u64,
    /// Processors of each step of docker's and podman's builds.
    pub cpus: u64,
    /// Longest that each program of a build may take.
    pub timeout: Duration,
    /// Images that docker and podman use in place of those that templates name.
    pub base_images: Vec<BaseImage>,
}

/// What builds use in place of an image that templates name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseImage {
    /// As the template's Dockerfile names it.
    pub name: String,
    /// What is used.
    pub reference: String,
}

impl FromStr for BaseImage {
    type Err = String;

    fn from_str(text: &str) -> Result<BaseImage, String> {
        let (name, reference) = text.split_once('=').ok_or("expected NAME=REFERENCE")?;
        for image in [name, reference] {
            ImageReference::parse(image).map_err(|error| error.message().to_string())?;
        }
        Ok(BaseImage { name: name.to_string(), reference: reference.to_string() })
    }
}
