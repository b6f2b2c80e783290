//! Every flag of both programs, defined once; help and parser derive from here.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nix::unistd::{Uid, User};
use udf_types::{Error, Result};

use crate::config::{BaseImage, BuildConfig, Config, HostConfig, Paths, RuntimeConfig, RuntimeName};
use crate::deploy::{self, DeployTarget};
use crate::log::LogFormat;
use crate::otlp_endpoint::OtlpEndpoint;

/// `run_dir` + `/` + a replica's folder + `/flight.sock` must fit into a socket address.
pub const MAX_RUN_DIR_BYTES: usize = 107 - 60;

/// Without `--max-containers`.
const CONTAINERS_PER_PROCESSOR: usize = 8;
const LEAST_CONTAINERS: usize = 32;

/// The container manager of Transship.
#[derive(Debug, Parser)]
#[command(name = "transshipd", version)]
pub struct DaemonFlags {
    /// What both programs need to know.
    #[command(flatten)]
    pub paths: PathFlags,
    /// What the manager needs to know of the host.
    #[command(flatten)]
    pub host: HostFlags,
    /// User, by name or number, that may do what an engine needs: build code that it has, lease replicas, and ask about the
    /// replicas that it leases. May be repeated.
    #[arg(long = "allow-user", value_name = "USER")]
    pub allow_users: Vec<String>,
    /// User, by name or number, that may make every request, as root and the manager's own user may. May be repeated.
    #[arg(long = "operator", value_name = "USER")]
    pub operators: Vec<String>,
    /// Patterns, separated by commas, of the images that engines may use, as in transship.allowed_images. inline:TEMPLATE
    /// stands for inline code, library for projects that an engine sends. Default: all.
    #[arg(long, value_name = "PATTERNS")]
    pub allow_images: Option<String>,
    /// Seconds without a lease after which a replica is stopped, 1 to 86400.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout_s: u64,
    /// Seconds within which a started replica must answer, 1 to 3600.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub start_timeout_s: u64,
    /// Megabytes of segments that a replica may share with engines, 16 to 1048576. Engines leave half of them unused.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub segments_mb: u64,
    /// Seconds for which a replica may fail to answer its greeting, 1 to 86400. It is then stopped as soon as it has no lease.
    /// New leases go to other replicas meanwhile.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub silent_timeout_s: u64,
    /// Seconds for which replicas of an earlier manager are neither stopped nor paused for lack of leases, because sessions may
    /// still use them, 0 to 86400.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub adopted_grace_s: u64,
    /// Maximum number of containers of all images together. Default: 8 per processor, at least 32.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub max_containers: Option<u64>,
    /// Maximum number of builds for engines that run side by side, 1 to 64. Further builds wait.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub max_builds: u64,
    /// Write a line for each lease that is acquired and that ends: its user and process, the replica and the image.
    #[arg(long)]
    pub log_leases: bool,
    /// Form of the log on standard error.
    #[arg(long, env = "TRANSSHIP_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Base address of a collector that takes OpenTelemetry's traces over HTTP, such as http://127.0.0.1:4318. Spans of calls that
    /// sessions trace are sent there. Default: they are left out.
    #[arg(long, value_name = "URL", env = "TRANSSHIP_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Most GPUs that one container gets, if its manifest asks for some, 0 to 64. Containers share GPUs.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub max_gpus: u32,
    /// Maximum sum of the memory limits of all containers, in megabytes, and so the most that one container gets. Default: the
    /// host's memory.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_memory_mb: Option<u64>,
    /// Megabytes of results that are kept for functions whose body has cache = true, 16 to 1048576, or 0 to keep none. A process
    /// of its own keeps them in memory.
    #[arg(long = "cache-size", value_name = "MB", default_value_t = 256, value_parser = cache_size)]
    pub cache_size_mb: u64,
    /// Folder on a local disk in which results are kept as well, so that they survive a restart. Only the manager's user may have
    /// rights to it. With --cache-size 0, nothing is kept there either. Default: results are kept in memory alone.
    #[arg(long, value_name = "DIR", env = "TRANSSHIP_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Megabytes of results that are kept in --cache-dir, 16 to 262144. Another size forgets those that are there.
    #[arg(long = "cache-dir-size", value_name = "MB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(16..=262_144))]
    pub cache_dir_size_mb: u64,
    /// Address and port on which Prometheus metrics (/metrics) and a status page (/) are served over HTTP, such as
    /// 127.0.0.1:9187. They name images and replicas to everybody who reaches the address, and ask nobody for a password.
    /// Default: they are not served.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Name of this host by which clients may ask for metrics and status page, besides its address and localhost. May be
    /// repeated.
    #[arg(long = "metrics-host", value_name = "NAME", requires = "metrics_listen")]
    pub metrics_hosts: Vec<String>,
}

/// What both programs need to know.
#[derive(Debug, Clone, Args)]
pub struct PathFlags {
    /// Socket on which the manager listens.
    #[arg(long, env = "TRANSSHIP_SOCKET", default_value = "/run/transship/transshipd.sock", global = true)]
    pub socket: PathBuf,
    /// Folder of the templates.
    #[arg(long, env = "TRANSSHIP_TEMPLATES", default_value = "/usr/share/transship/templates", global = true)]
    pub templates: PathBuf,
}

/// Where images and the replicas' sockets are, and what builds images and runs containers.
#[derive(Debug, Clone, Args)]
pub struct HostFlags {
    /// Folder of images and logs.
    #[arg(long, env = "TRANSSHIP_STATE_DIR", default_value = "/var/lib/transship")]
    pub state_dir: PathBuf,
    /// Folder of the replicas' sockets. Must be short, because the path of a socket has at most 107 bytes.
    #[arg(long, env = "TRANSSHIP_RUN_DIR", default_value = "/run/transship/replicas")]
    pub run_dir: PathBuf,
    /// Folder in memory for the segments that engines and replicas share.
    #[arg(long, env = "TRANSSHIP_SHM_DIR", default_value = "/dev/shm")]
    pub shm_dir: PathBuf,
    /// Network of docker's and podman's builds, in the notation of their own option. Default: that of docker or podman.
    #[arg(long, env = "TRANSSHIP_BUILD_NETWORK", value_name = "NETWORK")]
    pub build_network: Option<String>,
    /// Memory of each step of docker's and podman's builds, in megabytes, swap included, 64 to 1048576.
    #[arg(long, env = "TRANSSHIP_BUILD_MEMORY_MB", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    pub build_memory_mb: u64,
    /// Processors of each step of docker's and podman's builds, 1 to 256.
    #[arg(long, env = "TRANSSHIP_BUILD_CPUS", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=256))]
    pub build_cpus: u64,
    /// Maximum run time of each program of a build, in seconds, 1 to 86400.
    #[arg(long, env = "TRANSSHIP_BUILD_TIMEOUT_S", default_value_t = 1800)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub build_timeout_s: u64,
    /// Network of containers whose manifest asks for one, in the notation of docker's and podman's own option. Without it, such
    /// containers are not started. Docker's network "transship" is created if it is missing, and its containers do not reach
    /// each other. Containers of any network may reach this host, and what it reaches, unless a firewall prevents it.
    #[arg(long, env = "TRANSSHIP_NETWORK", value_name = "NETWORK")]
    pub network: Option<String>,
    /// Control group in which docker and podman create those of containers, in the notation of their own option. Default: that
    /// of docker or podman.
    #[arg(long, env = "TRANSSHIP_CGROUP_PARENT", value_name = "GROUP")]
    pub cgroup_parent: Option<String>,
    /// Image on which docker and podman build in place of one that templates name, such as
    /// debian:bookworm-slim=debian@sha256:... May be repeated; in the environment, separated by commas.
    #[arg(long = "base-image", env = "TRANSSHIP_BASE_IMAGES", value_name = "NAME=REFERENCE", value_delimiter = ',')]
    pub base_images: Vec<BaseImage>,
    /// Program that runs containers.
    #[arg(long, env = "TRANSSHIP_RUNTIME", value_enum, default_value_t = RuntimeName::Auto)]
    pub runtime: RuntimeName,
}

/// The command line of Transship.
#[derive(Debug, Parser)]
#[command(name = "transship", version)]
pub struct CliFlags {
    /// What both programs need to know.
    #[command(flatten)]
    pub paths: PathFlags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a UDF project that can be built and called at once.
    New {
        /// Name of the image, and of the new folder.
        name: String,
        /// Template: the language of the handler.
        #[arg(long, default_value = "python")]
        template: String,
    },
    /// Build a UDF project into an image.
    Build {
        /// Folder with transship.toml.
        #[arg(default_value = ".")]
        project: PathBuf,
    },
    /// Push an image to a registry, and print its reference with the digest.
    Push {
        /// Image, as NAME:TAG.
        image: String,
        /// Registry, repository and tag, such as registry.example/team/flights:1.0. Default: the image's own name.
        reference: Option<String>,
    },
    /// Pull an image from a registry, and give it the name in its manifest.
    Pull {
        /// Registry, repository and tag or digest.
        reference: String,
        /// Take the name away from another local image that has it.
        #[arg(long)]
        replace: bool,
        /// Program, with arguments, that first checks the reference's signature, such as "cosign verify --key FILE".
        #[arg(long, env = "TRANSSHIP_VERIFY")]
        verify: Option<String>,
    },
    /// Print the statements that declare an image's functions in an engine.
    Ddl {
        /// Image, as NAME:TAG.
        image: String,
        /// Engine for which to print them.
        #[arg(long, value_enum, default_value_t = Engine::Postgres)]
        engine: Engine,
        /// Schema of the functions. Default: public for PostgreSQL, dbo for SQL Server.
        #[arg(long)]
        schema: Option<String>,
        /// For Spark, which has no manager: address at which a server of the image answers Flight.
        #[arg(long, default_value = "grpcs://localhost:8815")]
        endpoint: String,
    },
    /// Print a file that runs an image as a service on other hosts, for engines that call it by endpoint.
    Deploy {
        /// Image, as NAME:TAG.
        image: String,
        /// System that runs it there.
        #[arg(long, value_enum)]
        target: DeployTarget,
        /// Reference from which the hosts there pull the image, such as registry.example/team/flights:1.0. Default: they already
        /// have it under its own name, and nothing is pulled.
        #[arg(long)]
        reference: Option<String>,
        /// Image of the gateway, an nginx, which requires TLS and a token.
        #[arg(long, default_value = deploy::GATEWAY)]
        gateway: String,
        /// With Compose: address of the host on which the functions are published, 0.0.0.0 for all addresses.
        #[arg(long, default_value = "127.0.0.1")]
        publish: std::net::IpAddr,
        /// With Compose: port of the host that answers Flight. Further replicas use the following ports.
        #[arg(long, default_value_t = deploy::FLIGHT_PORT)]
        flight_port: u16,
        /// With Compose: port of the host that answers JSON. Further replicas use the following ports.
        #[arg(long, default_value_t = deploy::JSON_PORT)]
        json_port: u16,
    },
    /// Create or replace an image's functions in a database and drop those that it no longer has, in one transaction.
    Register {
        /// Image, as NAME:TAG.
        image: String,
        /// Connection string of the database, as for psql. Other users see it in the list of processes: a password belongs in a
        /// password file, or in PGPASSWORD.
        #[arg(long, env = "TRANSSHIP_DSN", hide_env_values = true, default_value = "")]
        dsn: String,
        /// Schema of the functions.
        #[arg(long, default_value = "public")]
        schema: String,
    },
    /// Return to the version of an image that was registered before.
    Rollback {
        /// Name of the image, without its version.
        name: String,
        /// Connection string of the database, as for psql. Other users see it in the list of processes: a password belongs in a
        /// password file, or in PGPASSWORD.
        #[arg(long, env = "TRANSSHIP_DSN", hide_env_values = true, default_value = "")]
        dsn: String,
        /// Schema of the functions.
        #[arg(long, default_value = "public")]
        schema: String,
    },
    /// Test servers against the protocol, case by case.
    Conformance {
        /// Endpoints of servers, or images. A replica of each image is started and tested over every transport.
        #[arg(required = true)]
        servers: Vec<String>,
        /// Token that the servers require.
        #[arg(long, env = "TRANSSHIP_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// File with the certificates, in PEM, of the authorities that may sign a server's certificate. Default: the system's.
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Print only failures and the count.
        #[arg(long)]
        quiet: bool,
    },
    /// List replicas and the sessions that lease them.
    Ps,
    /// Show the last lines of a replica's output, also after it ended.
    Logs {
        /// Name of the replica, as printed by `transship ps`.
        replica: String,
    },
    /// Remove images of inline code and external libraries that have not been used for a long time. They are built again from the
    /// source in the database when they are needed. Images built or pulled by name are never removed.
    Prune {
        /// Days without use. For an image that was never used, the days count from the first time that prune looks at it.
        #[arg(long, value_name = "DAYS", default_value_t = 90)]
        older_than: u64,
    },
    /// Show the manager's metrics: replicas, leases, waits, ends, circuits, builds and memory.
    Stats {
        /// Print them in Prometheus' text format instead of a table.
        #[arg(long, conflicts_with = "dsn")]
        prometheus: bool,
        /// Show what container functions have done in this database instead, as counted by its backends. Connection string, as
        /// for psql.
        #[arg(long)]
        dsn: Option<String>,
    },
    /// Check what the manager and its runtime need, and report what is missing.
    Doctor,
}

/// A database engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// PostgreSQL.
    Postgres,
    /// SQL Server.
    Mssql,
    /// Spark: a Python module.
    Spark,
}

impl DaemonFlags {
    /// Checks the self.
    pub fn into_config(self) -> Result<Config> {
        let mut operator_uids = HashSet::from([0, Uid::effective().as_raw()]);
        for name in &self.operators {
            operator_uids.insert(uid_of(name)?);
        }
        let mut allowed_uids = operator_uids.clone();
        for name in &self.allow_users {
            allowed_uids.insert(uid_of(name)?);
        }
        let host = self.host.into_config(self.paths)?;
        let cache_dir = self.cache_dir.map(absolute).transpose()?.map(|folder| (folder, self.cache_dir_size_mb << 20));
        if host.paths.run_dir.as_os_str().len() > MAX_RUN_DIR_BYTES {
            return Err(invalid(format!("--run-dir has more than {MAX_RUN_DIR_BYTES} bytes")));
        }
        Ok(Config {
            host,
            allowed_uids,
            operator_uids,
            allowed_images: self.allow_images,
            idle_timeout: Duration::from_secs(self.idle_timeout_s),
            start_timeout: Duration::from_secs(self.start_timeout_s),
            segment_bytes: self.segments_mb << 20,
            silent_timeout: Duration::from_secs(self.silent_timeout_s),
            adopted_grace: Duration::from_secs(self.adopted_grace_s),
            log_leases: self.log_leases,
            max_containers: self.max_containers.map_or_else(default_containers, |count| count as usize),
            max_builds: self.max_builds as usize,
            max_memory_mb: self.max_memory_mb.unwrap_or_else(default_memory_mb),
            max_gpus: self.max_gpus,
            otlp_endpoint: self.otlp_endpoint,
            cache_bytes: self.cache_size_mb << 20,
            cache_dir,
            metrics_listen: self.metrics_listen,
            metrics_hosts: self.metrics_hosts,
        })
    }
}

impl PathFlags {
    /// The same from anywhere.
    pub fn absolute(self) -> Result<PathFlags> {
        Ok(PathFlags { socket: absolute(self.socket)?, templates: absolute(self.templates)? })
    }
}

impl HostFlags {
    fn into_config(self, paths: PathFlags) -> Result<HostConfig> {
        let paths = paths.absolute()?;
        Ok(HostConfig {
            paths: Paths {
                socket: paths.socket,
                state_dir: absolute(self.state_dir)?,
                run_dir: absolute(self.run_dir)?,
                shm_dir: absolute(self.shm_dir)?,
                templates: paths.templates,
            },
            runtime: RuntimeConfig { name: self.runtime, network: self.network, cgroup_parent: self.cgroup_parent },
            builds: BuildConfig {
                network: self.build_network,
                memory_mb: self.build_memory_mb,
                cpus: self.build_cpus,
                timeout: Duration::from_secs(self.build_timeout_s),
                base_images: self.base_images,
            },
        })
    }
}

fn cache_size(text: &str) -> std::result::Result<u64, String> {
    match text.parse() {
        Ok(size @ (0 | 16..=1_048_576)) => Ok(size),
        _ => Err("not 0, and not from 16 to 1048576".to_string()),
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf> {
    std::path::absolute(&path).map_err(|cause| invalid(format!("invalid path \"{}\": {cause}", path.display())))
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
    Error::invalid_definition(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Config> {
        DaemonFlags::parse_from(["transshipd"].iter().chain(arguments)).into_config()
    }

    #[test]
    fn paths_become_absolute_and_units_are_the_managers() {
        let config = read(&["--state-dir=s", "--build-timeout-s=7", "--segments-mb=16", "--max-containers=3"]).unwrap();
        assert_eq!(config.host.paths.state_dir, std::env::current_dir().unwrap().join("s"));
        assert_eq!(config.host.builds.timeout, Duration::from_secs(7));
        assert_eq!((config.segment_bytes, config.max_containers), (16 << 20, 3));
    }

    #[test]
    fn the_cache_has_a_size_or_none() {
        assert_eq!(read(&[]).unwrap().cache_bytes, 256 << 20);
        assert_eq!(read(&["--cache-size=0"]).unwrap().cache_bytes, 0);
        assert_eq!(read(&["--cache-size=16"]).unwrap().cache_bytes, 16 << 20);
        assert_eq!(read(&[]).unwrap().cache_dir, None);
        assert_eq!(read(&["--cache-dir=/c"]).unwrap().cache_dir, Some(("/c".into(), 4096 << 20)));
        assert_eq!(read(&["--cache-dir=/c", "--cache-dir-size=16"]).unwrap().cache_dir, Some(("/c".into(), 16 << 20)));
        for wrong in ["--cache-size=15", "--cache-size=1048577", "--cache-size=x", "--cache-size=-1"] {
            assert!(DaemonFlags::try_parse_from(["transshipd", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn metrics_are_served_only_where_an_address_is_given() {
        assert_eq!(read(&[]).unwrap().metrics_listen, None);
        let config = read(&["--metrics-listen=127.0.0.1:9187", "--metrics-host=db.example"]).unwrap();
        assert!(config.metrics_listen.unwrap().ip().is_loopback());
        assert_eq!(config.metrics_hosts, ["db.example"]);
        for wrong in ["--metrics-listen=9187", "--metrics-listen=localhost", "--metrics-host=db.example"] {
            assert!(DaemonFlags::try_parse_from(["transshipd", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn operators_may_connect_and_users_have_names_or_numbers() {
        let config = read(&["--operator=4321", "--allow-user=nobody"]).unwrap();
        assert!(config.operator_uids.contains(&4321) && config.allowed_uids.contains(&4321));
        let nobody = User::from_name("nobody").unwrap().unwrap().uid.as_raw();
        assert!(config.allowed_uids.contains(&nobody) && !config.operator_uids.contains(&nobody));
        assert!(read(&["--allow-user=no such user"]).is_err());
        let long = format!("--run-dir=/{}", "r".repeat(MAX_RUN_DIR_BYTES));
        assert!(read(&[&long]).is_err());
    }
}
