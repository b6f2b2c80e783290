//! The command line that docker and podman share, and what the engine behind it says of images and containers.

use std::process::Command;
use std::sync::OnceLock;

use nix::unistd::Uid;
use serde::de::DeserializeOwned;
use udf_client::control::ImageInfo;
use udf_project::manifest::Limits;
use udf_project::reference::ImageReference;
use udf_types::{Error, Kind, Result};

use super::api::{DockerApi, Found, Object};
use super::daemon::Daemon;
use super::inspected::{InspectedContainer, InspectedImage};
use crate::config::HostConfig;
use crate::runtime::image_store::image_not_found;
use crate::runtime::program::run;
use crate::sandbox::container_arguments;

/// The docker or podman command line.
#[derive(Debug)]
pub(super) struct DockerCli {
    pub(super) program: &'static str,
    /// The daemon, if it can be asked without the command line.
    pub(super) api: Option<DockerApi>,
    cgroup_parent: Option<String>,
    /// What Docker said of itself.
    daemon: OnceLock<Daemon>,
}

impl DockerCli {
    /// The command line `program`, which is docker or podman.
    pub(super) fn new(program: &'static str, host: &HostConfig) -> DockerCli {
        let api = if program == "docker" { DockerApi::of_environment() } else { None };
        DockerCli { program, api, cgroup_parent: host.runtime.cgroup_parent.clone(), daemon: OnceLock::new() }
    }

    /// Whether it works, in a line.
    pub(super) fn check(&self) -> Result<String> {
        let mut command = self.command(["version", "--format", "{{.Server.Version}}"]);
        let what = format!("reach {}", self.program);
        let version = run(&mut command, Kind::ContainerFailed, &what)?;
        self.daemon()?.check(Uid::effective().is_root())?;
        Ok(format!("{} {}", self.program, version.trim()))
    }

    /// What Docker says of itself, asked once; nothing of podman, which has no daemon.
    pub(super) fn daemon(&self) -> Result<&Daemon> {
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

    pub(super) fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(self.program);
        command.args(arguments);
        command
    }

    /// The image that a name or digest stands for.
    pub(super) fn resolve(&self, image: &str) -> Result<ImageInfo> {
        let reference = ImageReference::parse(image)?;
        // Engines take a name of hexadecimal digits for the beginning of a digest, unless it has a tag.
        let found = match (&reference.tag, &reference.digest) {
            (None, None) => self.find_image(&format!("{image}:latest"))?,
            _ => self.find_image(image)?,
        };
        found.ok_or_else(|| image_not_found(image))?.udf_image(image)
    }

    pub(super) fn inspect_container(&self, name: &str) -> Result<Option<InspectedContainer>> {
        self.inspect(Object::Container, name)
    }

    pub(super) fn inspect_image(&self, image: &str) -> Result<InspectedImage> {
        self.find_image(image)?.ok_or_else(|| image_not_found(image))
    }

    pub(super) fn find_image(&self, image: &str) -> Result<Option<InspectedImage>> {
        self.inspect(Object::Image, image)
    }

    /// The id of an image whose description may be too large to be read.
    pub(super) fn image_id(&self, image: &str) -> Result<Option<String>> {
        let mut command = self.command(["image", "inspect", "--format", "{{.Id}}", image]);
        match run(&mut command, Kind::ContainerFailed, &format!("inspect image \"{image}\"")) {
            Ok(id) => Ok(Some(id.trim().to_string())),
            Err(error) if says_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
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
    pub(super) fn locks(&self, limits: &Limits, network: Option<&str>) -> Vec<String> {
        let mut arguments = container_arguments(self.program, limits, network);
        arguments.extend(self.cgroup_parent.iter().map(|group| format!("--cgroup-parent={group}")));
        arguments
    }

    pub(super) fn tag(&self, image: &str, name: &str) -> Result<()> {
        let mut command = self.command(["image", "tag", image, name]);
        run(&mut command, Kind::ContainerFailed, &format!("name image \"{image}\" \"{name}\"")).map(drop)
    }
}

/// Whether docker or podman says that there is no such image or container. That a host, a file or a context was not found says
/// nothing of these.
pub(super) fn says_missing(error: &Error) -> bool {
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
}
