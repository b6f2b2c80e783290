//! Every flag of both programs, defined once; help and parser derive from here.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};

use udf_protocol::reference::ImageReference;

use crate::deploy;

/// The container manager of Transship.
#[derive(Debug, Parser)]
#[command(name = "transshipd", version)]
pub struct DaemonFlags {
    /// What both programs need to know.
    #[command(flatten)]
    pub place: PlaceFlags,
    /// A user, by name or number, who may do what an engine needs: build code that it has, lease replicas, and ask about those
    /// that it leases. May be given again.
    #[arg(long = "allow-user", value_name = "USER")]
    pub allow_users: Vec<String>,
    /// A user, by name or number, who may do everything, as root and the manager's own user may. May be given again.
    #[arg(long = "operator", value_name = "USER")]
    pub operators: Vec<String>,
    /// Patterns, separated by commas, of the images that users who are no operators may use, as in transship.allowed_images;
    /// inline:TEMPLATE stands for inline code, library for projects that an engine sends. All if left out.
    #[arg(long, value_name = "PATTERNS")]
    pub allow_images: Option<String>,
    /// Seconds without a lease after which a replica is stopped; 1 to 86400.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout_s: u64,
    /// Seconds that a replica may take to answer after it was started; 1 to 3600.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub start_timeout_s: u64,
    /// Megabytes of segments that a replica may share with engines; half of them are left to others. 16 to 1048576.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub segments_mb: u64,
    /// Seconds that a replica may leave its greeting unanswered before it is stopped, which it is once nobody has a lease on
    /// it; new leases go to others meanwhile; 1 to 86400.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub silent_timeout_s: u64,
    /// Seconds for which a replica that an earlier manager started is neither stopped nor paused for want of leases: whoever
    /// had one may be at work; 0 to 86400.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub adopted_grace_s: u64,
    /// Most containers at a time, of all images together; 8 per processor, but at least 32, if left out.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub max_containers: Option<u64>,
    /// Write a line for each lease that is taken and that ends: its user and process, the replica and the image.
    #[arg(long)]
    pub log_leases: bool,
    /// Most memory, in megabytes, that the limits of all containers may add up to; the host's if left out. One container is
    /// always started.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_memory_mb: Option<u64>,
}

/// Where images, sockets and templates are, and what runs containers.
#[derive(Debug, Clone, Args)]
pub struct PlaceFlags {
    /// Socket on which the manager listens.
    #[arg(long, env = "TRANSSHIP_SOCKET", default_value = "/run/transship/transshipd.sock", global = true)]
    pub socket: PathBuf,
    /// Folder of images and logs.
    #[arg(long, env = "TRANSSHIP_STATE_DIR", default_value = "/var/lib/transship", global = true)]
    pub state_dir: PathBuf,
    /// Folder of the replicas' sockets; a short path, since a socket's path has at most 107 bytes.
    #[arg(long, env = "TRANSSHIP_RUN_DIR", default_value = "/run/transship/replicas", global = true)]
    pub run_dir: PathBuf,
    /// Folder in memory, for the segments that engines and replicas share; /dev/shm is one everywhere.
    #[arg(long, env = "TRANSSHIP_SHM_DIR", default_value = "/dev/shm", global = true)]
    pub shm_dir: PathBuf,
    /// Folder of the templates.
    #[arg(long, env = "TRANSSHIP_TEMPLATES", default_value = "/usr/share/transship/templates", global = true)]
    pub templates: PathBuf,
    /// The network of docker's and podman's builds, as their own option takes it; theirs if left out.
    #[arg(long, env = "TRANSSHIP_BUILD_NETWORK", value_name = "NETWORK", global = true)]
    pub build_network: Option<String>,
    /// The network of containers whose manifest asks for one, as docker's and podman's own option takes it; if left out, such
    /// containers are not started. Docker's network "transship" is made where it is missing, and its containers do not reach each
    /// other. Containers of any network may reach this host, and what it reaches, unless a firewall keeps them from it.
    #[arg(long, env = "TRANSSHIP_NETWORK", value_name = "NETWORK", global = true)]
    pub network: Option<String>,
    /// The control group in which docker and podman make those of containers, as their own option takes it; theirs if left out.
    #[arg(long, env = "TRANSSHIP_CGROUP_PARENT", value_name = "GROUP", global = true)]
    pub cgroup_parent: Option<String>,
    /// An image for docker and podman to build on in place of another that templates name, such as
    /// debian:bookworm-slim=debian@sha256:..., or =sha256:... for one that is here. May be given again, or with commas.
    #[arg(
        long = "base-image",
        env = "TRANSSHIP_BASE_IMAGES",
        value_name = "NAME=REFERENCE",
        value_delimiter = ',',
        global = true
    )]
    pub base_images: Vec<BaseImage>,
    /// What runs containers.
    #[arg(long, env = "TRANSSHIP_RUNTIME", value_enum, default_value_t = RuntimeName::Auto, global = true)]
    pub runtime: RuntimeName,
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

/// What runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuntimeName {
    /// Docker where it is installed, else sandboxed child processes.
    Auto,
    /// The docker command line.
    Docker,
    /// The podman command line.
    Podman,
    /// Sandboxed child processes: no container engine needed.
    Process,
}

/// The command line of Transship.
#[derive(Debug, Parser)]
#[command(name = "transship", version)]
pub struct CliFlags {
    /// What both programs need to know.
    #[command(flatten)]
    pub place: PlaceFlags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a new UDF project that builds and answers at once.
    New {
        /// Name of the image, and of the folder that is made.
        name: String,
        /// The template.
        #[arg(long, default_value = "python")]
        template: String,
    },
    /// Build a UDF project into an image.
    Build {
        /// Folder with transship.toml.
        #[arg(default_value = ".")]
        project: PathBuf,
    },
    /// Send an image to a registry, and print the reference by which the registry knows its content.
    Push {
        /// The image.
        image: String,
        /// Registry, repository and tag, such as registry.example/team/flights:1.0; the image's own name if left out.
        reference: Option<String>,
    },
    /// Get an image from a registry, under the name that its manifest says.
    Pull {
        /// Registry, repository and tag or digest.
        reference: String,
        /// Take the name from another image that has it here.
        #[arg(long)]
        replace: bool,
        /// A program, with arguments, that is asked first whether the reference's signature is good, such as "cosign verify --key FILE".
        #[arg(long, env = "TRANSSHIP_VERIFY")]
        verify: Option<String>,
    },
    /// Write the statements that make an image's functions known to an engine.
    Ddl {
        /// The image.
        image: String,
        /// The engine.
        #[arg(long, value_enum, default_value_t = Engine::Postgres)]
        engine: Engine,
        /// The schema of the functions; the engine's usual one if left out.
        #[arg(long)]
        schema: Option<String>,
        /// Where a server of the image answers Flight, for Spark, which knows no manager.
        #[arg(long, default_value = "grpcs://localhost:8815")]
        endpoint: String,
    },
    /// Write a file that runs an image's functions elsewhere, for engines that call them by endpoint.
    Deploy {
        /// The image.
        image: String,
        /// What runs it there.
        #[arg(long, value_enum)]
        target: DeployTarget,
        /// The image as the hosts there can get it, such as registry.example/team/flights:1.0. If left out, they have it already,
        /// under its own name, and none is pulled.
        #[arg(long)]
        reference: Option<String>,
        /// The image of the gateway that asks for TLS and a token: nginx.
        #[arg(long, default_value = deploy::GATEWAY)]
        gateway: String,
        /// With Compose, the address of the host at which the functions are reached; 0.0.0.0 for all.
        #[arg(long, default_value = "127.0.0.1")]
        publish: std::net::IpAddr,
        /// With Compose, the port of the host that answers Flight; further replicas take the next ones.
        #[arg(long, default_value_t = deploy::FLIGHT_PORT)]
        flight_port: u16,
        /// With Compose, the port of the host that answers JSON; further replicas take the next ones.
        #[arg(long, default_value_t = deploy::JSON_PORT)]
        json_port: u16,
    },
    /// Create or replace an image's functions in a database, in one transaction, and drop those that it no longer has.
    Register {
        /// The image.
        image: String,
        /// The database: a connection string, as psql takes it.
        #[arg(long, env = "TRANSSHIP_DSN", default_value = "")]
        dsn: String,
        /// The schema of the functions.
        #[arg(long, default_value = "public")]
        schema: String,
    },
    /// Register the version of an image that was registered before.
    Rollback {
        /// The image's name, without its version.
        name: String,
        /// The database: a connection string, as psql takes it.
        #[arg(long, env = "TRANSSHIP_DSN", default_value = "")]
        dsn: String,
        /// The schema of the functions.
        #[arg(long, default_value = "public")]
        schema: String,
    },
    /// Judge servers against the protocol, case by case.
    Conformance {
        /// Endpoints of servers, or images of which a replica is started; a replica is judged over Flight and over JSON.
        #[arg(required = true)]
        servers: Vec<String>,
        /// A token that the servers ask for.
        #[arg(long, env = "TRANSSHIP_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// File with the certificates, in PEM, of those whose signature on a server's certificate is believed; the
        /// system's if left out.
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Print failures and the count only.
        #[arg(long)]
        quiet: bool,
    },
    /// List replicas.
    Ps,
    /// Show the last lines that a replica wrote.
    Logs {
        /// The replica, as `transship ps` names it.
        replica: String,
    },
    /// Remove images of inline code and of external libraries that nobody has used for long. Who uses one again has it built
    /// again, of the source in the database; images that were built or pulled by name are never removed.
    Prune {
        /// Days without use; an image that was never used counts from the first time that it is looked at.
        #[arg(long, value_name = "DAYS", default_value_t = 90)]
        older_than: u64,
    },
    /// Check what the manager and its runtime need, and say what is missing.
    Doctor,
}

/// What runs containers elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeployTarget {
    /// Docker Compose.
    Compose,
    /// Kubernetes.
    Kubernetes,
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
