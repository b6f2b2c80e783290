//! Building images with docker or podman: once to ask the handler what its functions are, and once more to label the image with
//! what it said. Until then an image has a name of its own, which says when its build has certainly ended.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use udf_client::control::ImageInfo;
use udf_project::manifest::{Limits, MANIFEST_LABEL, Manifest};
use udf_types::{Error, Kind, Result};

use super::built::{Built, BuiltRecords};
use super::cli::{DockerCli, says_missing};
use super::inspected::{CONTENT_LABEL, CONTENT_TAG_DIGITS};
use crate::config::{BaseImage, BuildConfig};
use crate::context::{code_of, content_of};
use crate::engine_images::is_built_for_engines;
use crate::log;
use crate::progress::Progress;
use crate::runtime::image_store::{BuildOptions, DESCRIBE_TIMEOUT};
use crate::runtime::program::{run, run_telling, run_within};

/// Those of the files that an image was built of that the functions' signatures depend on.
const CODE_LABEL: &str = "org.transship.code";
const CLIENT_BUILD_ENVIRONMENT: [&str; 3] = ["http_proxy", "https_proxy", "no_proxy"];

/// The repository of images while they are built. Their tags are the time, in seconds since 1970, at which the build has certainly
/// ended, and random digits.
const BUILDING_REPOSITORY: &str = "transship-build";
/// Microseconds in which a build may use so many processors for the whole time, 0.1 s as usual.
const CPU_PERIOD: u64 = 100_000;

/// Builds images.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) cli: Arc<DockerCli>,
    /// What builds may use.
    pub(super) config: BuildConfig,
    pub(super) built: BuiltRecords,
}

impl Builder {
    /// Builds a staged context into the image `manifest.image()`.
    pub(super) fn build(&self, context: &Path, manifest: &Manifest, options: &BuildOptions) -> Result<ImageInfo> {
        let image = manifest.image();
        // An image on another base is another one.
        let content = with_arguments(content_of(context)?, &self.base_arguments(context)?);
        let code = code_of(context, manifest)?;
        let before = self.cli.find_image(&image)?;
        let label = |name: &str| before.as_ref()?.config.labels.as_ref()?.get(name);
        // What its labels say of its files counts only of an image that was built here.
        let built = before.as_ref().and_then(|before| self.built.read(&before.digest()));
        // What was built of the same files need not even be asked of the builder's cache.
        if built.as_ref().is_some_and(|built| built.content == content) {
            return self.cli.resolve(&image);
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
        // The second time, a build has nothing new to say.
        let progress = if known.is_some() { options.progress.clone() } else { Progress::default() };
        self.build_once(context, &building, &labels, &BuildOptions { progress, ..options.clone() })?;
        let digest = self.cli.inspect_image(&building.tag)?.digest();
        self.built.write(&digest, &Built { content: content.clone(), code: code.clone() });
        options.cancel.check(&format!("build image \"{image}\""))?;
        self.cli.tag(&building.tag, &image)?;
        // The same files have the same tag, wherever they are built.
        self.cli.tag(&building.tag, &format!("{}:{}", manifest.name, &content[..CONTENT_TAG_DIGITS]))?;
        drop(building);
        self.cli.resolve(&image)
    }

    /// The manifest with the signatures that the image's handler has.
    fn describe(&self, building: &Building, manifest: &Manifest, options: &BuildOptions) -> Result<Manifest> {
        let mut limits = Limits { network: false, gpus: 0, ..manifest.limits.clone() };
        // Who may send a project to be built has no word on what builds take of the host.
        if is_built_for_engines(&manifest.name) {
            limits.memory_mb = limits.memory_mb.min(self.config.memory_mb);
            limits.cpus = limits.cpus.min(self.config.cpus as f64);
        }
        // Not by this process's number, which is the same in each container that builds: one that crashed may have left it.
        let name = format!("transship-describe-{}", random_hex()?);
        let mut command = self.cli.command(["run", "--rm", "--name", &name]);
        command.args(self.cli.locks(&limits, None)).args(self.cli.inspect_image(&building.tag)?.config.mounts()?);
        command.args([&building.tag, "describe"]);
        let what = format!("load the functions of image \"{}\"", building.image);
        let described = run_within(&mut command, Kind::BuildFailed, &what, DESCRIBE_TIMEOUT, &options.cancel);
        let described = described.inspect_err(|_| {
            // The command line may have ended before its container.
            let _ = run(&mut self.cli.command(["rm", "--force", &name]), Kind::ContainerFailed, "remove a container");
        })?;
        manifest.with_described(&described)
    }

    /// The arguments by which a context is built on other images than its Dockerfile names.
    fn base_arguments(&self, context: &Path) -> Result<Vec<String>> {
        if self.config.base_images.is_empty() {
            return Ok(Vec::new());
        }
        let path = context.join("Dockerfile");
        let dockerfile = fs::read_to_string(&path).map_err(|cause| {
            Error::new(Kind::BuildFailed, format!("could not read \"{}\": {cause}", path.display()))
        })?;
        Ok(base_arguments(&dockerfile, &self.config.base_images))
    }

    /// One `docker build`. The second of a project finds every layer in the cache and only adds the labels.
    fn build_once(
        &self,
        context: &Path,
        building: &Building,
        labels: &[(&str, String)],
        options: &BuildOptions,
    ) -> Result<()> {
        let mut command = self.cli.command(["build", "--force-rm", "--tag", &building.tag]);
        command.args(self.config.network.iter().map(|network| format!("--network={network}")));
        command.arg(format!("--memory={}m", self.config.memory_mb));
        // Equal to --memory: no swap on top.
        command.arg(format!("--memory-swap={}m", self.config.memory_mb));
        command.arg(format!("--cpu-period={CPU_PERIOD}")).arg(format!("--cpu-quota={}", CPU_PERIOD * self.config.cpus));
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
        run_telling(&mut command, Kind::BuildFailed, &what, self.config.timeout, &options.cancel, &options.progress)
            .map(drop)
    }

    /// Removes what builds have left that were killed.
    pub(super) fn remove_leftovers(&self) -> Result<()> {
        let mut command = self.cli.command(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]);
        let names = run(&mut command, Kind::ContainerFailed, "list images")?;
        let now = seconds_since_1970();
        for name in names.lines().filter(|name| build_end(name).is_some_and(|end| end < now)) {
            let what = format!("remove image \"{name}\"");
            if let Err(error) = run(&mut self.cli.command(["image", "rm", name]), Kind::ContainerFailed, &what)
                // Another manager may have removed it.
                && !says_missing(&error)
            {
                log::warning("image_left").write(error);
            }
        }
        Ok(())
    }

    /// What builds are not kept from, though they should be.
    pub(super) fn doubts(&self) -> Vec<String> {
        let help = self.cli.command(["build", "--help"]).stdin(Stdio::null()).output();
        // BuildKit takes these options, ignores them, and does not list them.
        if help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--memory-swap")) {
            return Vec::new();
        }
        let program = self.cli.program;
        vec![format!("{program} builds images without limits for memory and processors (docs/security.md)")]
    }
}

/// An image that is being built. Dropping this takes its name away, and with it the image, unless it has another name.
struct Building<'a> {
    builder: &'a Builder,
    tag: String,
    /// The name that it gets in the end.
    image: &'a str,
}

impl<'a> Building<'a> {
    fn new(builder: &'a Builder, image: &'a str) -> Result<Building<'a>> {
        // It is built twice, and described in between.
        let end = seconds_since_1970() + (2 * builder.config.timeout + 2 * DESCRIBE_TIMEOUT).as_secs();
        Ok(Building { builder, image, tag: format!("{BUILDING_REPOSITORY}:{end}-{}", random_hex()?) })
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        let mut command = self.builder.cli.command(["image", "rm", &self.tag]);
        if let Err(error) = run(&mut command, Kind::ContainerFailed, &format!("remove image \"{}\"", self.tag))
            && !says_missing(&error)
        {
            log::warning("image_left").write(error);
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

/// 128 random bits.
fn random_hex() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|cause| Error::new(Kind::ContainerFailed, format!("could not read random bytes: {cause}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
}
