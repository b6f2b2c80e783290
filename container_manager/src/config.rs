//! Flags to a checked configuration.

use std::collections::HashSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Uid, User};
use udf_types::{Error, Kind, Result};

use crate::flags::{DaemonFlags, PlaceFlags};

/// `run_dir` + `/` + a replica's folder + `/flight.sock` must fit into a socket address.
const MAX_RUN_DIR_BYTES: usize = 107 - 60;

/// Without `--max-containers`.
const CONTAINERS_PER_PROCESSOR: usize = 8;
const LEAST_CONTAINERS: usize = 32;

/// The manager's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where things are.
    pub place: PlaceFlags,
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
}

impl Config {
    /// Checks the daemon's flags and makes its folders.
    pub fn from_flags(flags: DaemonFlags) -> Result<Config> {
        let mut operator_uids = HashSet::from([0, Uid::effective().as_raw()]);
        for name in &flags.operators {
            operator_uids.insert(uid_of(name)?);
        }
        let mut allowed_uids = operator_uids.clone();
        for name in &flags.allow_users {
            allowed_uids.insert(uid_of(name)?);
        }
        let place = absolute_place(flags.place)?;
        if place.run_dir.as_os_str().len() > MAX_RUN_DIR_BYTES {
            return Err(invalid(format!("--run-dir has more than {MAX_RUN_DIR_BYTES} bytes")));
        }
        Ok(Config {
            place,
            allowed_uids,
            operator_uids,
            allowed_images: flags.allow_images,
            idle_timeout: Duration::from_secs(flags.idle_timeout_s),
            start_timeout: Duration::from_secs(flags.start_timeout_s),
            segment_bytes: flags.segments_mb << 20,
            silent_timeout: Duration::from_secs(flags.silent_timeout_s),
            adopted_grace: Duration::from_secs(flags.adopted_grace_s),
            log_leases: flags.log_leases,
            max_containers: flags.max_containers.map_or_else(default_containers, |count| count as usize),
            max_builds: flags.max_builds as usize,
            max_memory_mb: flags.max_memory_mb.unwrap_or_else(default_memory_mb),
        })
    }
}

/// Makes the paths absolute: replicas run elsewhere than the manager.
pub fn absolute_place(mut place: PlaceFlags) -> Result<PlaceFlags> {
    for path in [&mut place.socket, &mut place.state_dir, &mut place.run_dir, &mut place.shm_dir, &mut place.templates]
    {
        let absolute: PathBuf = std::path::absolute(&*path)
            .map_err(|cause| invalid(format!("invalid path \"{}\": {cause}", path.display())))?;
        *path = absolute;
    }
    Ok(place)
}

/// Makes a folder and its parents.
pub fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .map_err(|cause| invalid(format!("could not make folder \"{}\": {cause}", path.display())))
}

/// Makes a folder that nobody else may enter, and its parents as usual. One that is there stays as it is.
pub fn make_closed_dir(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(_) if path.is_dir() => Ok(()),
        made => made.map_err(|cause| invalid(format!("could not make folder \"{}\": {cause}", path.display()))),
    }
}

/// As many as the processors can take turns with.
fn default_containers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors * CONTAINERS_PER_PROCESSOR).max(LEAST_CONTAINERS)
}

/// The host's memory (proc(5)).
fn default_memory_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    total.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).map_or(u64::MAX, |kilobytes| kilobytes >> 10)
}

fn uid_of(name: &str) -> Result<u32> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        _ => Err(invalid(format!("there is no user \"{name}\""))),
    }
}

fn invalid(message: String) -> Error {
    Error::new(Kind::InvalidDefinition, message)
}
