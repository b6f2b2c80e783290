//! The images of docker or podman.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use udf_client::control::ImageInfo;
use udf_project::manifest::{MANIFEST_LABEL, Manifest};
use udf_types::terminal::quoted;
use udf_types::{Kind, Result};

use super::build::Builder;
use super::built::BuiltRecords;
use super::cli::DockerCli;
use super::{pull, registry};
use crate::config::HostConfig;
use crate::log;
use crate::runtime::image_store::{BuildOptions, ImageStore, TransferOptions};
use crate::runtime::program::{TIMEOUT, run};
use crate::template::Template;

/// The images of docker or podman.
#[derive(Debug)]
pub(super) struct DockerImages {
    cli: Arc<DockerCli>,
    builder: Builder,
}

impl DockerImages {
    pub(super) fn new(cli: &Arc<DockerCli>, host: &HostConfig) -> DockerImages {
        let built = BuiltRecords::new(&host.paths.state_dir);
        let builder = Builder { cli: cli.clone(), config: host.builds.clone(), built };
        DockerImages { cli: cli.clone(), builder }
    }
}

impl ImageStore for DockerImages {
    fn doubts(&self) -> Vec<String> {
        self.builder.doubts()
    }

    fn resolve(&self, image: &str) -> Result<ImageInfo> {
        self.cli.resolve(image)
    }

    fn images(&self) -> Result<Vec<ImageInfo>> {
        let filter = format!("label={MANIFEST_LABEL}");
        let mut command = self.cli.command(["image", "ls", "--quiet", "--no-trunc", "--filter", &filter]);
        command.args(["--filter", "dangling=false"]);
        let text = run(&mut command, Kind::ContainerFailed, "list images")?;
        let mut images: Vec<ImageInfo> = Vec::new();
        for digest in text.split_whitespace() {
            if images.iter().any(|image| image.digest == digest) {
                continue;
            }
            let start = Instant::now();
            let inspected = match self.cli.find_image(digest) {
                Ok(Some(inspected)) => Ok(inspected),
                // It has gone meanwhile.
                Ok(None) => continue,
                // While the engine is well, this is the image's fault. One that does not answer is not well.
                Err(error) => {
                    if start.elapsed() >= TIMEOUT {
                        return Err(error);
                    }
                    self.cli.check()?;
                    Err(error)
                }
            };
            // Whoever made the image wrote the label, and may have made it too large to be read.
            let read = inspected.and_then(|inspected| Ok((inspected.udf_image(digest)?, inspected.repo_tags)));
            let (image, tags) = match read {
                Ok(read) => read,
                Err(error) => {
                    let fact = quoted(&error.to_string());
                    log::warning("image_ignored")
                        .image(digest)
                        .write(format_args!("left image {digest} alone: {fact}"));
                    continue;
                }
            };
            // One that was rebuilt since keeps the tag of its content. podman writes localhost/ before names; under docker, this
            // is a registry.
            let name = image.manifest.image();
            let local = if self.cli.program == "podman" { format!("localhost/{name}") } else { name.clone() };
            if tags.iter().flatten().any(|tag| *tag == name || *tag == local) {
                images.push(image);
            }
        }
        Ok(images)
    }

    fn build(&self, context: &Path, manifest: &Manifest, _: &Template, options: &BuildOptions) -> Result<ImageInfo> {
        self.builder.build(context, manifest, options)
    }

    fn was_built_here(&self, digest: &str) -> bool {
        self.builder.built.read(digest).is_some()
    }

    fn remove_leftovers(&self) -> Result<()> {
        self.builder.remove_leftovers()
    }

    fn remove_image(&self, image: &ImageInfo) -> Result<()> {
        let name = &image.manifest.name;
        let tags = self.cli.inspect_image(&image.digest)?.repo_tags.unwrap_or_default();
        // Whoever gave it another name may use it.
        let is_own = |tag: &&String| {
            let repository = repository_of(tag);
            repository == name || repository.strip_suffix(name).is_some_and(|host| host.ends_with('/'))
        };
        let mut command = self.cli.command(["image", "rm"]);
        command.args(tags.iter().filter(is_own));
        run(&mut command, Kind::ContainerFailed, &format!("remove image \"{}\"", image.manifest.image()))?;
        self.builder.built.remove(&image.digest);
        Ok(())
    }

    fn push(&self, image: &str, reference: &str, options: &TransferOptions) -> Result<String> {
        registry::push(&self.cli, image, reference, options)
    }

    fn pull(&self, reference: &str, replaces: bool, options: &TransferOptions) -> Result<ImageInfo> {
        pull::pull(&self.cli, reference, replaces, options)
    }
}

/// A reference without its tag or digest. A colon before the last slash is a registry's port.
fn repository_of(reference: &str) -> &str {
    let reference = reference.split('@').next().unwrap_or(reference);
    match reference.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => reference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
