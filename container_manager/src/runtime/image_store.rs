//! What keeps images.

use std::path::Path;
use std::time::Duration;

use udf_client::control::ImageInfo;
use udf_client::registry_login::RegistryLogin;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use crate::cancel::Cancel;
use crate::progress::Progress;
use crate::template::Template;

/// Longest that a handler may take to say what its functions are.
pub(super) const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// How an image is built.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Where the build's output goes.
    pub progress: Progress,
    /// Ends the build.
    pub cancel: Cancel,
}

/// How an image goes to a registry, or comes from there.
#[derive(Debug, Clone, Default)]
pub struct TransferOptions {
    /// The only login that is used.
    pub login: Option<RegistryLogin>,
    /// Ends the transfer.
    pub cancel: Cancel,
}

/// The images of a host: gets and builds them, and says what is in them. Its methods block.
pub trait ImageStore: Send + Sync {
    /// What builds are not kept from here, though they should be, in sentences without a period.
    fn doubts(&self) -> Vec<String> {
        Vec::new()
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
    fn push(&self, image: &str, reference: &str, options: &TransferOptions) -> Result<String>;
    /// Gets an image from a registry, and gives it the name that its manifest says. Whoever pushed it chose that name, so one
    /// that stands for another image here is taken from it only if it `replaces` that.
    fn pull(&self, reference: &str, replaces: bool, options: &TransferOptions) -> Result<ImageInfo>;
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
