//! The images of the process runtime.
//!
//! An image is a folder `images/<digest>` of the state folder with what a container's `/opt/transship` would hold, and
//! a link to an environment that images with equal requirements share; `tags/<name>/<version>` names a digest.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;
use udf_project::reference::{ImageReference, is_digest};
use udf_types::{Error, Kind, Result};

use super::environments::{Environments, remove_folder};
use super::files::{copy_folder, io_error, write_file};
use super::sandboxed::{Sandbox, set_environment, substitute};
use crate::config::HostConfig;
use crate::context::content_of;
use crate::folders;
use crate::make_dir::{make_closed_dir, make_dir};
use crate::runtime::image_store::{BuildOptions, DESCRIBE_TIMEOUT, ImageStore, TransferOptions, image_not_found};
use crate::runtime::program::run_within;
use crate::template::{ProcessTemplate, Template};

/// The images.
#[derive(Debug)]
pub(super) struct ProcessImages {
    state_dir: PathBuf,
    sandbox: Sandbox,
    environments: Environments,
}

/// What a replica of an image runs.
pub(super) struct Served {
    /// The image's folder.
    pub(super) root: PathBuf,
    pub(super) template: ProcessTemplate,
    pub(super) environment: PathBuf,
}

impl ProcessImages {
    pub(super) fn new(host: &HostConfig, sandbox: Sandbox) -> ProcessImages {
        let state_dir = host.paths.state_dir.clone();
        let environments = Environments { folder: state_dir.join("envs"), sandbox, timeout: host.builds.timeout };
        ProcessImages { state_dir, sandbox, environments }
    }

    /// Closes the state folder to all but replicas, which pass through it.
    fn close_state_dir(&self) -> Result<()> {
        make_closed_dir(&self.state_dir)?;
        let failed = |cause: std::io::Error| io_error(&self.state_dir, &cause);
        // A manager of another user closes its own.
        match fs::metadata(&self.state_dir).map_err(failed)?.uid() == Uid::effective().as_raw() {
            true => folders::close(&self.state_dir, true).map_err(failed),
            false => Ok(()),
        }
    }

    fn tag_file(&self, image: &ImageReference) -> PathBuf {
        let version = image.tag.as_deref().unwrap_or("latest");
        self.state_dir.join("tags").join(image.repository.replace('/', "%")).join(version)
    }

    fn read_image(&self, digest: &str, image: &str) -> Result<ImageInfo> {
        if !is_digest(digest) {
            return Err(image_not_found(image));
        }
        let path = image_dir(&self.state_dir, digest).join("label.json");
        let label = fs::read_to_string(path).map_err(|_| image_not_found(image))?;
        Ok(ImageInfo { digest: digest.to_string(), manifest: Manifest::from_label(&label)? })
    }

    /// The images, by digest, that have a name, and the files of their names.
    fn tags(&self) -> Vec<(PathBuf, String)> {
        let names = fs::read_dir(self.state_dir.join("tags")).into_iter().flatten().flatten();
        let tags = names.flat_map(|name| fs::read_dir(name.path()).into_iter().flatten().flatten());
        tags.map(|tag| (tag.path(), fs::read_to_string(tag.path()).unwrap_or_default().trim().to_string())).collect()
    }

    /// Makes the folder of an image.
    fn build_root(
        &self,
        context: &Path,
        root: &Path,
        manifest: &Manifest,
        template: &ProcessTemplate,
        options: &BuildOptions,
    ) -> Result<()> {
        copy_folder(context, root)?;
        let environment = self.environments.prepare(root, template, options)?;
        let link = root.join("env");
        std::os::unix::fs::symlink(&environment, &link).map_err(|cause| io_error(&link, &cause))?;
        let mut describe = self.sandbox.command(&manifest.limits, &substitute(&template.describe, root, &environment));
        set_environment(&mut describe, template, root, &environment);
        let what = format!("load the functions of image \"{}\"", manifest.image());
        let text = run_within(&mut describe, Kind::BuildFailed, &what, DESCRIBE_TIMEOUT, &options.cancel)?;
        let described = manifest.with_described(&text)?;
        // The label comes last: an image without one is not there.
        let template_text = serde_json::to_string(template).expect("a template is plain strings");
        write_file(&root.join("template.json"), &template_text)?;
        write_file(&root.join("label.json"), &described.to_label())
    }
}

impl ImageStore for ProcessImages {
    fn resolve(&self, image: &str) -> Result<ImageInfo> {
        let reference = ImageReference::parse(image)?;
        if let Some(digest) = &reference.digest {
            return self.read_image(digest, image);
        }
        let digest = fs::read_to_string(self.tag_file(&reference)).map_err(|_| image_not_found(image))?;
        self.read_image(digest.trim(), image)
    }

    fn images(&self) -> Result<Vec<ImageInfo>> {
        let mut images = Vec::new();
        for (_, digest) in self.tags() {
            // A tag whose image was deleted names nothing.
            if let Ok(image) = self.read_image(&digest, &digest) {
                images.push(image);
            }
        }
        Ok(images)
    }

    fn build(
        &self,
        context: &Path,
        manifest: &Manifest,
        template: &Template,
        options: &BuildOptions,
    ) -> Result<ImageInfo> {
        let Some(template) = &template.process else {
            return Err(Error::new(
                Kind::BuildFailed,
                format!("template \"{}\" needs a container engine", manifest.template),
            ));
        };
        if !manifest.system_packages.is_empty() {
            return Err(Error::new(Kind::BuildFailed, "the process runtime cannot install system packages")
                .with_hint("Use the docker or podman runtime."));
        }
        self.close_state_dir()?;
        let digest = format!("sha256:{}", content_of(context)?);
        let root = image_dir(&self.state_dir, &digest);
        if !root.join("label.json").exists() {
            remove_folder(&root)?;
            if let Err(error) = self.build_root(context, &root, manifest, template, options) {
                let _ = remove_folder(&root);
                return Err(error);
            }
        }
        let tag = self.tag_file(&ImageReference::parse(&manifest.image())?);
        make_dir(tag.parent().expect("a tag lies in the folder of its name"))?;
        write_file(&tag, &digest)?;
        self.read_image(&digest, &manifest.image())
    }

    fn was_built_here(&self, _digest: &str) -> bool {
        // There are no others.
        true
    }

    fn remove_image(&self, image: &ImageInfo) -> Result<()> {
        let folder = self.tag_file(&ImageReference::parse(&image.manifest.image())?);
        let folder = folder.parent().expect("a tag lies in the folder of its name");
        let mut has_other_name = false;
        for (tag, _) in self.tags().into_iter().filter(|(_, digest)| *digest == image.digest) {
            match tag.parent() == Some(folder) {
                true => fs::remove_file(&tag).map_err(|cause| io_error(&tag, &cause))?,
                false => has_other_name = true,
            }
        }
        if !is_digest(&image.digest) || has_other_name {
            return Ok(());
        }
        let root = image_dir(&self.state_dir, &image.digest);
        // An image without a label is not there.
        fs::remove_file(root.join("label.json"))
            .and_then(|()| fs::remove_dir_all(&root))
            .map_err(|cause| io_error(&root, &cause))
    }

    fn push(&self, _image: &str, _reference: &str, _options: &TransferOptions) -> Result<String> {
        Err(no_registry())
    }

    fn pull(&self, _reference: &str, _replaces: bool, _options: &TransferOptions) -> Result<ImageInfo> {
        Err(no_registry())
    }
}

/// What a replica of the image with that digest runs.
pub(super) fn served(state_dir: &Path, digest: &str) -> Result<Served> {
    if !is_digest(digest) {
        return Err(image_not_found(digest));
    }
    let root = image_dir(state_dir, digest);
    let text = fs::read_to_string(root.join("template.json")).map_err(|_| image_not_found(digest))?;
    let template: ProcessTemplate = serde_json::from_str(&text)
        .map_err(|cause| Error::new(Kind::ContainerFailed, format!("image \"{digest}\" is damaged: {cause}")))?;
    let environment = fs::read_link(root.join("env")).map_err(|cause| io_error(&root.join("env"), &cause))?;
    Ok(Served { root, template, environment })
}

fn image_dir(state_dir: &Path, digest: &str) -> PathBuf {
    state_dir.join("images").join(digest.trim_start_matches("sha256:"))
}

fn no_registry() -> Error {
    Error::new(Kind::InvalidDefinition, "runtime process has images of its own, which no registry takes")
        .with_hint("Use --runtime docker or podman.")
}
