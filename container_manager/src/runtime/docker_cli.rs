//! Replicas as containers, through the command line that docker and podman share.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use nix::unistd::Uid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use udf_client::control::ImageInfo;
use udf_project::manifest::{Limits, MANIFEST_LABEL, Manifest};
use udf_project::reference::{ImageReference, is_digest};
use udf_types::terminal::quoted;
use udf_types::{Error, Kind, Result};

use super::docker_api::{DockerApi, Found, Object};
use super::docker_daemon::Daemon;
use super::docker_pull;
use super::program::{run, run_for_tail, run_within};
use super::{
    BuildOptions, DESCRIBE_TIMEOUT, FoundReplica, ReplicaSpec, ReplicaStatus, Runtime, image_not_found,
    not_a_udf_image, random_hex,
};
use crate::config::{BaseImage, BuildConfig, HostConfig};
use crate::context::{code_of, content_of};
use crate::engine_images::is_built_for_engines;
use crate::kept_logs::KEPT_LOG_BYTES;
use crate::make_dir::make_dir;
use crate::sandbox::{Owner, container_arguments};
use crate::template::Template;

const MANAGER_LABEL: &str = "org.transship.manager";
/// The files that an image was built of.
const CONTENT_LABEL: &str = "org.transship.content";
/// Those of them that the functions' signatures depend on.
const CODE_LABEL: &str = "org.transship.code";
/// So many digits of the content are a tag.
const CONTENT_TAG_DIGITS: usize = 16;
const SOCKET_DIR_INSIDE: &str = "/run/transship";
const SEGMENT_DIR_INSIDE: &str = "/run/transship-segments";
/// A network for docker's containers which the manager makes.
const NETWORK: &str = "transship";
/// Its containers do not reach each other (docker-network-create(1)).
const NETWORK_OPTION: &str = "--opt=com.docker.network.bridge.enable_icc=false";
/// How a volume of an image's is mounted.
const VOLUME_OPTIONS: &str = "rw,noexec,nosuid,nodev,size=16m";
/// Seconds between asking a container to end and killing it.
const STOP_PATIENCE_S: &str = "3";
const CLIENT_BUILD_ENVIRONMENT: [&str; 3] = ["http_proxy", "https_proxy", "no_proxy"];

/// The repository of images while they are built. Their tags are the time, in seconds since 1970, at which the build has certainly
/// ended, and random digits.
const BUILDING_REPOSITORY: &str = "transship-build";
/// Microseconds in which a build may use so many processors for the whole time, 0.1 s as usual.
const CPU_PERIOD: u64 = 100_000;

/// The docker or podman command line.
#[derive(Debug)]
pub struct DockerCli {
    pub(super) program: &'static str,
    /// The daemon, if it can be asked without the command line.
    api: Option<DockerApi>,
    /// Tells this manager's containers from another's.
    manager: String,
    builds: BuildConfig,
    /// That of containers which ask for one.
    network: Option<String>,
    cgroup_parent: Option<String>,
    /// What Docker said of itself.
    daemon: OnceLock<Daemon>,
    /// Folder with a [`Record`] of each container that this manager has started, under its name.
    records: PathBuf,
    /// Folder with a [`Built`] of each image that was built here, under the digits of its digest.
    built: PathBuf,
}

/// What is written down of a container. Its labels could be anybody's.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    digest: String,
    socket_dir: PathBuf,
}

/// What is written down of an image that was built here.
#[derive(Debug, Serialize, Deserialize)]
struct Built {
    /// The files that it was built of.
    content: String,
    /// Those of them that the functions' signatures depend on.
    code: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedImage {
    pub(super) id: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    /// `repository@digest` for each registry that it was pushed to or pulled from.
    #[serde(default)]
    repo_digests: Option<Vec<String>>,
    #[serde(default)]
    config: InspectedConfig,
}

impl InspectedImage {
    pub(super) fn udf_image(&self, name: &str) -> Result<ImageInfo> {
        let labels = self.config.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(MANIFEST_LABEL)).ok_or_else(|| not_a_udf_image(name))?;
        Ok(ImageInfo { digest: self.digest(), manifest: Manifest::from_label(label)? })
    }

    fn digest(&self) -> String {
        // podman leaves the algorithm out.
        format!("sha256:{}", self.id.trim_start_matches("sha256:"))
    }

    /// The name that its build made of its files, if it says so rightly: anybody may have written the label.
    pub(super) fn content_name(&self, manifest: &Manifest) -> Option<String> {
        let digits = self.config.labels.as_ref()?.get(CONTENT_LABEL)?.get(..CONTENT_TAG_DIGITS)?;
        let is_right = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_right.then(|| format!("{}:{digits}", manifest.name))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
    /// Folders for which the engine would make volumes on the host's disk, as keys.
    #[serde(default)]
    volumes: Option<HashMap<String, serde_json::Value>>,
}

impl InspectedConfig {
    /// Small file systems in memory in the place of the image's volumes, which would be writable, executable and without a bound
    /// on the host's disk.
    fn mounts(&self) -> Result<Vec<String>> {
        let mut paths: Vec<&str> = self.volumes.iter().flatten().map(|(path, _)| path.as_str()).collect();
        paths.sort_unstable();
        let mounts = paths.into_iter().map(|path| {
            // It goes onto a command line, where these characters mean nothing else.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
            if !path.starts_with('/') || !path.chars().all(is_plain) || path.split('/').any(|part| part == "..") {
                return Err(Error::new(Kind::InvalidDefinition, format!("the image has a volume at \"{path}\""))
                    .with_hint("Build it without VOLUME, or with one whose path is absolute and plain."));
            }
            Ok(format!("--tmpfs={path}:{VOLUME_OPTIONS}"))
        });
        mounts.collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedContainer {
    name: String,
    state: InspectedState,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    #[serde(default)]
    running: bool,
    #[serde(default)]
    exit_code: i64,
    #[serde(default)]
    paused: bool,
    #[serde(rename = "OOMKilled", default)]
    oom_killed: bool,
}

impl DockerCli {
    /// The command line `program`, which is docker or podman.
    pub fn new(program: &'static str, host: &HostConfig) -> DockerCli {
        let state_dir = &host.paths.state_dir;
        DockerCli {
            program,
            api: if program == "docker" { DockerApi::of_environment() } else { None },
            manager: state_dir.to_string_lossy().into_owned(),
            builds: host.builds.clone(),
            network: host.runtime.network.clone(),
            cgroup_parent: host.runtime.cgroup_parent.clone(),
            daemon: OnceLock::new(),
            records: state_dir.join("containers"),
            built: state_dir.join("built"),
        }
    }

    /// What Docker says of itself, asked once; nothing of podman, which has no daemon.
    fn daemon(&self) -> Result<&Daemon> {
        if let Some(daemon) = self.daemon.get() {
            return Ok(daemon);
        }
        let daemon = match self.program {
            "docker" => {
                let mut command = self.command(["info", "--format", "{{json .}}"]);
                parse(&run(&mut command, Kind::ContainerFailed, "ask Docker how it isolates containers")?)?
            }
            _ => Daemon::default(),
        };
        Ok(self.daemon.get_or_init(|| daemon))
    }

    fn read_record(&self, name: &str) -> Option<Record> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let text = is_plain.then(|| fs::read_to_string(self.records.join(name)).ok())??;
        serde_json::from_str(&text).ok()
    }

    fn write_record(&self, spec: &ReplicaSpec) -> Result<()> {
        make_dir(&self.records)?;
        let record = Record { digest: spec.digest.clone(), socket_dir: spec.socket_dir.clone() };
        let text = serde_json::to_string(&record).expect("a record is plain data");
        let path = self.records.join(&spec.name);
        fs::write(&path, text).map_err(|cause| {
            Error::new(Kind::ContainerFailed, format!("could not write \"{}\": {cause}", path.display()))
        })
    }

    fn built_file(&self, digest: &str) -> Option<PathBuf> {
        is_digest(digest).then(|| self.built.join(digest.trim_start_matches("sha256:")))
    }

    fn read_built(&self, digest: &str) -> Option<Built> {
        serde_json::from_str(&fs::read_to_string(self.built_file(digest)?).ok()?).ok()
    }

    /// Who may build, but not write to the state folder, has the next build ask the builder's cache.
    fn write_built(&self, digest: &str, built: &Built) {
        let Some(path) = self.built_file(digest).filter(|_| make_dir(&self.built).is_ok()) else { return };
        let text = serde_json::to_string(built).expect("a record is plain data");
        let _ = fs::write(path, text);
    }

    pub(super) fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(self.program);
        command.args(arguments);
        command
    }

    fn inspect_container(&self, name: &str) -> Result<Option<InspectedContainer>> {
        self.inspect(Object::Container, name)
    }

    pub(super) fn inspect_image(&self, image: &str) -> Result<InspectedImage> {
        self.find_image(image)?.ok_or_else(|| image_not_found(image))
    }

    pub(super) fn find_image(&self, image: &str) -> Result<Option<InspectedImage>> {
        self.inspect(Object::Image, image)
    }

    fn inspect<T: DeserializeOwned>(&self, object: Object, name: &str) -> Result<Option<T>> {
        if let Some(api) = &self.api {
            match api.inspect(object, name)? {
                Found::Is(found) => return Ok(Some(found)),
                Found::Missing => return Ok(None),
                Found::Unclear => {}
            }
        }
        let mut command = self.command([object.name(), "inspect", name]);
        match run(&mut command, Kind::ContainerFailed, &format!("inspect {} \"{name}\"", object.name())) {
            Ok(text) => Ok(parse::<Vec<T>>(&text)?.pop()),
            Err(error) if says_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a container may do.
    fn locks(&self, limits: &Limits, network: Option<&str>) -> Vec<String> {
        let mut arguments = container_arguments(self.program, limits, network);
        arguments.extend(self.cgroup_parent.iter().map(|group| format!("--cgroup-parent={group}")));
        arguments
    }

    /// The network of containers that ask for one; that of docker's which the manager knows is made where it is missing.
    fn open_network(&self) -> Result<Option<&str>> {
        if self.program != "docker" || self.network.as_deref() != Some(NETWORK) {
            return Ok(self.network.as_deref());
        }
        let mut create = self.command(["network", "create", "--driver=bridge", NETWORK_OPTION, NETWORK]);
        match run(&mut create, Kind::ContainerFailed, &format!("make network \"{NETWORK}\"")) {
            Err(error) if error.detail().is_some_and(|fact| fact.contains("already exists")) => Ok(Some(NETWORK)),
            made => made.map(|_| Some(NETWORK)),
        }
    }

    pub(super) fn tag(&self, image: &str, name: &str) -> Result<()> {
        let mut command = self.command(["image", "tag", image, name]);
        run(&mut command, Kind::ContainerFailed, &format!("name image \"{image}\" \"{name}\"")).map(drop)
    }

    /// The manifest with the signatures that the image's handler has.
    fn describe(&self, building: &Building, manifest: &Manifest, options: &BuildOptions) -> Result<Manifest> {
        let mut limits = Limits { network: false, ..manifest.limits.clone() };
        // Who may send a project to be built has no word on what builds take of the host.
        if is_built_for_engines(&manifest.name) {
            limits.memory_mb = limits.memory_mb.min(self.builds.memory_mb);
            limits.cpus = limits.cpus.min(self.builds.cpus as f64);
        }
        // Not by this process's number, which is the same in each container that builds: one that crashed may have left it.
        let name = format!("transship-describe-{}", random_hex()?);
        let mut command = self.command(["run", "--rm", "--name", &name]);
        command.args(self.locks(&limits, None)).args(self.inspect_image(&building.tag)?.config.mounts()?);
        command.args([&building.tag, "describe"]);
        let what = format!("load the functions of image \"{}\"", building.image);
        let described = run_within(&mut command, Kind::BuildFailed, &what, DESCRIBE_TIMEOUT, &options.cancel);
        let described = described.inspect_err(|_| {
            // The command line may have ended before its container.
            let _ = run(&mut self.command(["rm", "--force", &name]), Kind::ContainerFailed, "remove a container");
        })?;
        manifest.with_described(&described)
    }

    /// The arguments by which a context is built on other images than its Dockerfile names.
    fn base_arguments(&self, context: &Path) -> Result<Vec<String>> {
        if self.builds.base_images.is_empty() {
            return Ok(Vec::new());
        }
        let path = context.join("Dockerfile");
        let dockerfile = fs::read_to_string(&path).map_err(|cause| {
            Error::new(Kind::BuildFailed, format!("could not read \"{}\": {cause}", path.display()))
        })?;
        Ok(base_arguments(&dockerfile, &self.builds.base_images))
    }

    /// One `docker build`. The second of a project finds every layer in the cache and only adds the labels.
    fn build_once(
        &self,
        context: &Path,
        building: &Building,
        labels: &[(&str, String)],
        options: &BuildOptions,
    ) -> Result<()> {
        let mut command = self.command(["build", "--force-rm", "--tag", &building.tag]);
        command.args(self.builds.network.iter().map(|network| format!("--network={network}")));
        command.arg(format!("--memory={}m", self.builds.memory_mb));
        // Equal to --memory: no swap on top.
        command.arg(format!("--memory-swap={}m", self.builds.memory_mb));
        command.arg(format!("--cpu-period={CPU_PERIOD}")).arg(format!("--cpu-quota={}", CPU_PERIOD * self.builds.cpus));
        command.arg("--ulimit=core=0");
        for argument in self.base_arguments(context)? {
            command.args(["--build-arg", &argument]);
        }
        for name in CLIENT_BUILD_ENVIRONMENT {
            if std::env::var_os(name).is_some() {
                command.args(["--build-arg", name]);
            }
        }
        for (name, value) in labels {
            command.arg("--label").arg(format!("{name}={value}"));
        }
        command.arg(context);
        let what = format!("build image \"{}\"", building.image);
        if !options.shows_progress {
            return run_within(&mut command, Kind::BuildFailed, &what, self.builds.timeout, &options.cancel).map(drop);
        }
        // Standard output is for the image's digest; the build is talk.
        let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::new(Kind::BuildFailed, format!("could not {what}"))
                .with_detail(format!("{}: {status}.", self.program))),
            Err(cause) => Err(Error::new(Kind::BuildFailed, format!("could not {what}: {}: {cause}", self.program))),
        }
    }
}

impl Runtime for DockerCli {
    fn name(&self) -> &str {
        self.program
    }

    fn check(&self) -> Result<String> {
        let mut command = self.command(["version", "--format", "{{.Server.Version}}"]);
        let what = format!("reach {}", self.program);
        let version = run(&mut command, Kind::ContainerFailed, &what)?;
        self.daemon()?.check(Uid::effective().is_root())?;
        Ok(format!("{} {}", self.program, version.trim()))
    }

    fn doubts(&self) -> Result<Vec<String>> {
        let mut doubts = self.daemon()?.doubts();
        let help = self.command(["build", "--help"]).stdin(Stdio::null()).output();
        // BuildKit takes these options, ignores them, and does not list them.
        if !help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--memory-swap")) {
            let program = self.program;
            doubts.push(format!("{program} builds images without limits for memory and processors (docs/security.md)"));
        }
        Ok(doubts)
    }

    fn owner(&self) -> Result<Owner> {
        self.daemon()?.owner()
    }

    fn resolve(&self, image: &str) -> Result<ImageInfo> {
        let reference = ImageReference::parse(image)?;
        // Engines take a name of hexadecimal digits for the beginning of a digest, unless it has a tag.
        let found = match (&reference.tag, &reference.digest) {
            (None, None) => self.find_image(&format!("{image}:latest"))?,
            _ => self.find_image(image)?,
        };
        found.ok_or_else(|| image_not_found(image))?.udf_image(image)
    }

    fn images(&self) -> Result<Vec<ImageInfo>> {
        let filter = format!("label={MANIFEST_LABEL}");
        let mut command =
            self.command(["image", "ls", "--quiet", "--no-trunc", "--filter", &filter, "--filter", "dangling=false"]);
        let text = run(&mut command, Kind::ContainerFailed, "list images")?;
        let mut images: Vec<ImageInfo> = Vec::new();
        for digest in text.split_whitespace() {
            if images.iter().any(|image| image.digest == digest) {
                continue;
            }
            // It may have gone meanwhile.
            let Some(inspected) = self.find_image(digest)? else { continue };
            // Whoever made the image wrote the label.
            let image = match inspected.udf_image(digest) {
                Ok(image) => image,
                Err(error) => {
                    eprintln!("transshipd: left image {digest} alone: {}", quoted(&error.to_string()));
                    continue;
                }
            };
            // One that was rebuilt since keeps the tag of its content. podman writes localhost/ before names; under docker, this
            // is a registry.
            let name = image.manifest.image();
            let local = if self.program == "podman" { format!("localhost/{name}") } else { name.clone() };
            if inspected.repo_tags.iter().flatten().any(|tag| *tag == name || *tag == local) {
                images.push(image);
            }
        }
        Ok(images)
    }

    fn build(&self, context: &Path, manifest: &Manifest, _: &Template, options: &BuildOptions) -> Result<ImageInfo> {
        let image = manifest.image();
        // An image on another base is another one.
        let content = with_arguments(content_of(context)?, &self.base_arguments(context)?);
        let code = code_of(context, manifest)?;
        let before = self.find_image(&image)?;
        let label = |name: &str| before.as_ref()?.config.labels.as_ref()?.get(name);
        // What its labels say of its files counts only of an image that was built here.
        let built = before.as_ref().and_then(|before| self.read_built(&before.digest()));
        // What was built of the same files need not even be asked of the builder's cache.
        if built.as_ref().is_some_and(|built| built.content == content) {
            return self.resolve(&image);
        }
        // Where only a model or data changed, the functions are what they were.
        let known = label(MANIFEST_LABEL).filter(|_| built.is_some_and(|built| built.code == code));
        let building = Building::new(self, &image)?;
        let described = match known {
            Some(described) => manifest.with_described(described)?,
            None => {
                self.build_once(context, &building, &[], options)?;
                self.describe(&building, manifest, options)?
            }
        };
        let labels = [
            (MANIFEST_LABEL, described.to_label()),
            (CONTENT_LABEL, content.clone()),
            (CODE_LABEL, code.clone()),
            ("org.opencontainers.image.title", manifest.name.clone()),
            ("org.opencontainers.image.version", manifest.version.clone()),
        ];
        let shows_progress = options.shows_progress && known.is_some();
        self.build_once(context, &building, &labels, &BuildOptions { shows_progress, ..options.clone() })?;
        let digest = self.inspect_image(&building.tag)?.digest();
        self.write_built(&digest, &Built { content: content.clone(), code: code.clone() });
        options.cancel.check(&format!("build image \"{image}\""))?;
        self.tag(&building.tag, &image)?;
        // The same files have the same tag, wherever they are built.
        self.tag(&building.tag, &format!("{}:{}", manifest.name, &content[..CONTENT_TAG_DIGITS]))?;
        drop(building);
        self.resolve(&image)
    }

    fn was_built_here(&self, digest: &str) -> bool {
        self.read_built(digest).is_some()
    }

    fn remove_leftovers(&self) -> Result<()> {
        let mut command = self.command(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]);
        let names = run(&mut command, Kind::ContainerFailed, "list images")?;
        let now = seconds_since_1970();
        for name in names.lines().filter(|name| build_end(name).is_some_and(|end| end < now)) {
            let what = format!("remove image \"{name}\"");
            if let Err(error) = run(&mut self.command(["image", "rm", name]), Kind::ContainerFailed, &what)
                // Another manager may have removed it.
                && !says_missing(&error)
            {
                eprintln!("transshipd: {error}");
            }
        }
        Ok(())
    }

    fn remove_image(&self, image: &ImageInfo) -> Result<()> {
        let name = &image.manifest.name;
        let tags = self.inspect_image(&image.digest)?.repo_tags.unwrap_or_default();
        // Whoever gave it another name may use it.
        let is_own = |tag: &&String| {
            let repository = repository_of(tag);
            repository == name || repository.strip_suffix(name).is_some_and(|host| host.ends_with('/'))
        };
        let mut command = self.command(["image", "rm"]);
        command.args(tags.iter().filter(is_own));
        run(&mut command, Kind::ContainerFailed, &format!("remove image \"{}\"", image.manifest.image()))?;
        let _ = self.built_file(&image.digest).map(fs::remove_file);
        Ok(())
    }

    fn push(&self, image: &str, reference: &str) -> Result<String> {
        let repository = parse_reference(reference)?.repository;
        self.resolve(image)?;
        if image != reference {
            self.tag(image, reference)?;
        }
        let what = format!("push image \"{reference}\"");
        run(&mut self.command(["push", reference]), Kind::Unreachable, &what)
            .map_err(|error| advise_login(error, self.program))?;
        let digests = self.inspect_image(reference)?.repo_digests.unwrap_or_default();
        let found = digests.into_iter().find(|digest| digest.split('@').next() == Some(repository.as_str()));
        found.ok_or_else(|| Error::new(Kind::Unreachable, format!("could not {what}: the registry gave no digest")))
    }

    fn pull(&self, reference: &str, replaces: bool) -> Result<ImageInfo> {
        docker_pull::pull(self, reference, replaces)
    }

    fn start(&self, spec: &ReplicaSpec) -> Result<()> {
        let mut command = self.command(["run", "--detach", "--name", &spec.name]);
        let network = if spec.limits.network { self.open_network()? } else { None };
        command.args(self.locks(&spec.limits, network));
        command.args(self.inspect_image(&spec.digest)?.config.mounts()?);
        command.arg(format!("--volume={}:{SOCKET_DIR_INSIDE}", spec.socket_dir.display()));
        command.arg(format!("--env=TRANSSHIP_SOCKET_DIR={SOCKET_DIR_INSIDE}"));
        if let Some(directory) = &spec.segment_dir {
            command.arg(format!("--volume={}:{SEGMENT_DIR_INSIDE}", directory.display()));
            command.arg(format!("--env=TRANSSHIP_SEGMENT_DIR={SEGMENT_DIR_INSIDE}"));
        }
        command.arg(format!("--label={MANAGER_LABEL}={}", self.manager));
        command.arg(&spec.digest);
        self.write_record(spec)?;
        run(&mut command, Kind::ContainerFailed, &format!("start container \"{}\"", spec.name)).map(drop).map_err(
            |error| {
                if says_missing(&error) { image_not_found(&spec.digest) } else { error }
            },
        )
    }

    fn status(&self, name: &str) -> Result<ReplicaStatus> {
        let Some(container) = self.inspect_container(name)? else {
            return Ok(ReplicaStatus::Ended("was removed".to_string()));
        };
        if container.state.running {
            return Ok(ReplicaStatus::Running);
        }
        if container.state.oom_killed {
            return Ok(ReplicaStatus::Ended("was killed because it ran out of memory".to_string()));
        }
        Ok(ReplicaStatus::Ended(format!("exited with status {}", container.state.exit_code)))
    }

    fn pause(&self, name: &str) -> Result<()> {
        run(&mut self.command(["pause", name]), Kind::ContainerFailed, &format!("pause container \"{name}\"")).map(drop)
    }

    fn resume(&self, name: &str) -> Result<()> {
        // A call waits for this one, and starting the command line takes longer than resuming.
        if let Some(api) = &self.api
            && api.unpause(name)?
        {
            return Ok(());
        }
        let mut command = self.command(["unpause", name]);
        run(&mut command, Kind::ContainerFailed, &format!("resume container \"{name}\"")).map(drop)
    }

    fn stop(&self, name: &str) -> Result<()> {
        let mut stop = self.command(["stop", "--time", STOP_PATIENCE_S, name]);
        let mut remove = self.command(["rm", "--force", "--volumes", name]);
        for command in [&mut stop, &mut remove] {
            match run(command, Kind::ContainerFailed, &format!("stop container \"{name}\"")) {
                Err(error) if !says_missing(&error) => return Err(error),
                _ => {}
            }
        }
        let _ = fs::remove_file(self.records.join(name));
        Ok(())
    }

    fn logs(&self, name: &str) -> Result<String> {
        let mut command = self.command(["logs", "--tail", "200", name]);
        run_for_tail(&mut command, &format!("read the log of \"{name}\""), KEPT_LOG_BYTES)
    }

    fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
        let filter = format!("label={MANAGER_LABEL}={}", self.manager);
        let mut command = self.command(["container", "ls", "--all", "--quiet", "--filter", &filter]);
        let mut found = Vec::new();
        for id in run(&mut command, Kind::ContainerFailed, "list containers")?.split_whitespace() {
            let Some(container) = self.inspect_container(id)? else { continue };
            let name = container.name.trim_start_matches('/').to_string();
            let Some(Record { digest, socket_dir }) = self.read_record(&name) else {
                eprintln!(
                    "transshipd: left container \"{name}\" alone: it has this manager's label, but not its record"
                );
                continue;
            };
            found.push(FoundReplica { name, digest, socket_dir, is_paused: container.state.paused });
        }
        Ok(found)
    }
}

/// An image that is being built. Dropping this takes its name away, and with it the image, unless it has another name.
struct Building<'a> {
    cli: &'a DockerCli,
    tag: String,
    /// The name that it gets in the end.
    image: &'a str,
}

impl<'a> Building<'a> {
    fn new(cli: &'a DockerCli, image: &'a str) -> Result<Building<'a>> {
        // It is built twice, and described in between.
        let end = seconds_since_1970() + (2 * cli.builds.timeout + 2 * DESCRIBE_TIMEOUT).as_secs();
        Ok(Building { cli, image, tag: format!("{BUILDING_REPOSITORY}:{end}-{}", random_hex()?) })
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        let mut command = self.cli.command(["image", "rm", &self.tag]);
        if let Err(error) = run(&mut command, Kind::ContainerFailed, &format!("remove image \"{}\"", self.tag))
            && !says_missing(&error)
        {
            eprintln!("transship: {error}");
        }
    }
}

/// When the build that made this name has certainly ended; none for other names.
fn build_end(name: &str) -> Option<u64> {
    let (repository, tag) = name.rsplit_once(':')?;
    // podman writes localhost/ before names.
    if repository.trim_start_matches("localhost/") != BUILDING_REPOSITORY {
        return None;
    }
    let (end, random) = tag.split_once('-')?;
    let is_random = random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_random.then(|| end.parse().ok())?
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Build arguments that set those of a Dockerfile's whose value is an image which is to be another.
fn base_arguments(dockerfile: &str, base_images: &[BaseImage]) -> Vec<String> {
    let arguments = dockerfile.lines().filter_map(|line| line.trim().strip_prefix("ARG ")?.trim().split_once('='));
    let replaced = arguments.filter_map(|(name, value)| {
        let base = base_images.iter().find(|base| base.name == value)?;
        Some(format!("{name}={}", base.reference))
    });
    replaced.collect()
}

/// What tells a content that is built with arguments from the same without.
fn with_arguments(content: String, arguments: &[String]) -> String {
    if arguments.is_empty() {
        return content;
    }
    let digest = Sha256::digest(format!("{content}\n{}", arguments.join("\n")));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parts of a reference by which a registry knows an image.
pub(super) fn parse_reference(reference: &str) -> Result<ImageReference> {
    let parsed = ImageReference::parse(reference)?;
    if !parsed.repository.is_empty() {
        return Ok(parsed);
    }
    Err(Error::new(Kind::InvalidDefinition, format!("\"{reference}\" names no repository"))
        .with_hint("Write registry/repository:tag, such as registry.example/team/flights:1.0."))
}

/// A reference without its tag or digest. A colon before the last slash is a registry's port.
fn repository_of(reference: &str) -> &str {
    let reference = reference.split('@').next().unwrap_or(reference);
    match reference.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => reference,
    }
}

pub(super) fn advise_login(error: Error, program: &str) -> Error {
    error.with_hint(format!(
        "Log in with \"{program} login\" if the registry asks for a user; {program} must trust its certificate."
    ))
}

/// Whether docker or podman says that there is no such image or container. That a host, a file or a context was not found says
/// nothing of these.
fn says_missing(error: &Error) -> bool {
    let said = error.detail().unwrap_or_default().to_ascii_lowercase();
    ["no such image", "no such container", "no such object", "image not known", "unable to find image"]
        .iter()
        .any(|words| said.contains(words))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|cause| {
        Error::new(Kind::ContainerFailed, format!("could not read what the container engine said: {cause}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_replaced_where_a_dockerfile_names_them() {
        let bases: Vec<BaseImage> =
            ["debian:bookworm-slim=debian@sha256:".to_string() + &"0".repeat(64), "golang:1=mine/golang:2".to_string()]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
        let dockerfile =
            "# ARG BASE=golang:1\nARG COMPILER=golang:1\nARG BASE=debian:bookworm-slim\nARG OTHER=x\nFROM ${BASE}\n";
        let arguments = base_arguments(dockerfile, &bases);
        assert_eq!(arguments, ["COMPILER=mine/golang:2".to_string(), format!("BASE={}", bases[0].reference)]);
        assert!(base_arguments("FROM debian:bookworm-slim", &bases).is_empty());
        assert_eq!(with_arguments("abc".to_string(), &[]), "abc");
        assert_eq!(with_arguments("abc".to_string(), &arguments).len(), 64);
        for wrong in ["debian", "debian=", "=debian", "debian=--x", "debian=a b", "a=b=c"] {
            assert!(wrong.parse::<BaseImage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn volumes_are_mounted_in_memory_or_refused() {
        let config =
            |path: &str| parse::<InspectedConfig>(&serde_json::json!({"Volumes": {path: {}}}).to_string()).unwrap();
        assert_eq!(config("/data/a_b-1.0").mounts().unwrap(), [format!("--tmpfs=/data/a_b-1.0:{VOLUME_OPTIONS}")]);
        for path in ["data", "/a:rw", "/a,b", "/a b", "/a/../b", "", "/ä"] {
            assert!(config(path).mounts().is_err(), "{path:?}");
        }
        assert!(parse::<InspectedConfig>("{}").unwrap().mounts().unwrap().is_empty());
    }

    #[test]
    fn only_the_engines_words_for_it_mean_missing() {
        for (said, is_missing) in [
            ("[]\nError: No such image: a:1", true),
            ("Error response from daemon: No such container: c", true),
            ("docker: Error response from daemon: No such image: sha256:00.", true),
            ("Error: a:1: image not known", true),
            ("Error: no container with name or ID \"c\" found: no such container", true),
            (
                "error during connect: Get \"http://x:2375/v1.41/images/a/json\": dial tcp: lookup x: no such host",
                false,
            ),
            ("unable to resolve docker endpoint: context \"x\": context not found", false),
            ("unable to resolve docker endpoint: open /home/x/.docker/ca.pem: no such file or directory", false),
            ("Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?", false),
        ] {
            let error = Error::new(Kind::ContainerFailed, "could not").with_detail(said);
            assert_eq!(says_missing(&error), is_missing, "{said}");
        }
    }

    #[test]
    fn only_names_of_builds_are_taken_for_leftovers() {
        let random = "0123456789abcdef0123456789abcdef";
        assert_eq!(build_end(&format!("transship-build:17-{random}")), Some(17));
        assert_eq!(build_end(&format!("localhost/transship-build:17-{random}")), Some(17));
        for name in ["transship-build:17", "transship-build:17-0", "transship-build:latest", "<none>:<none>", ""] {
            assert_eq!(build_end(name), None, "{name}");
        }
        assert_eq!(build_end(&format!("registry.example/transship-build:17-{random}")), None);
        assert_eq!(build_end(&format!("transship-build:x-{random}")), None);
    }

    #[test]
    fn repositories_are_told_from_tags() {
        for (reference, repository) in [
            ("flights:1.0", "flights"),
            ("flights", "flights"),
            ("localhost:5000/team/flights", "localhost:5000/team/flights"),
            ("localhost:5000/team/flights:1.0", "localhost:5000/team/flights"),
            ("localhost:5000/flights@sha256:00", "localhost:5000/flights"),
            ("localhost:5000/flights:1@sha256:00", "localhost:5000/flights"),
        ] {
            assert_eq!(repository_of(reference), repository);
        }
        for reference in ["", "-x", "--all-tags", "a b", "a\n", &format!("sha256:{}", "0".repeat(64))] {
            assert!(parse_reference(reference).is_err(), "{reference:?}");
        }
    }
}
