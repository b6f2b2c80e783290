//! Builds, each only while somebody waits for it: for engines, of sources that these have, once and in turn; and of operators'
//! projects.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;
use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;
use udf_types::{Kind, Result};

use super::Images;
use crate::log;
use crate::registration::build::{build_inline, build_upload, find_built, name_inline, read_manifest};
use crate::registration::library::name_library;
use crate::registration::upload::Upload;
use crate::runtime::image_store::{BuildOptions, ImageStore};
use crate::users::Asker;

/// The work of a build.
trait Build: FnOnce(&dyn ImageStore, &Path, &Manifest, &BuildOptions) -> Result<ImageInfo> + Send + 'static {}

impl<T: FnOnce(&dyn ImageStore, &Path, &Manifest, &BuildOptions) -> Result<ImageInfo> + Send + 'static> Build for T {}

impl Images {
    /// Builds inline code for a user, unless its image exists.
    pub async fn build_inline(
        self: &Arc<Images>,
        manifest: Manifest,
        source: String,
        asker: Asker,
    ) -> Result<ImageInfo> {
        let question = asker.question("look up inline code").await?;
        let source = Arc::new(source);
        let text = source.clone();
        let named =
            self.blocking(move |images| name_inline(&images.config.host.paths.templates, &manifest, &text)).await?;
        self.build(named, asker, question, move |store, templates, manifest, options| {
            build_inline(store, templates, manifest, &source, options)
        })
        .await
    }

    /// Builds a project that an engine has sent for a user, unless its image exists.
    pub async fn build_library(self: &Arc<Images>, library: String, upload: Upload, asker: Asker) -> Result<ImageInfo> {
        let question = asker.question("look up a library").await?;
        let upload = Arc::new(upload);
        let sent = upload.clone();
        let named = self.blocking(move |_| name_library(&library, &sent)).await?;
        self.build(named, asker, question, move |store, templates, manifest, options| {
            build_upload(store, templates, manifest, &upload, options)
        })
        .await
    }

    /// Builds a project that an operator has sent, under the name that its manifest says. It is not kept warm before somebody
    /// names it.
    pub async fn build_project(
        self: &Arc<Images>,
        upload: Upload,
        user: u32,
        options: BuildOptions,
    ) -> Result<ImageInfo> {
        let upload = Arc::new(upload);
        let sent = upload.clone();
        let manifest = self.blocking(move |_| read_manifest(&sent)).await?;
        // No engine's builds keep it waiting: theirs have other names, and take turns of their own.
        let place = self.turns.enter(user)?;
        let _lock = place.lock(&manifest.image(), &options.cancel).await?;
        self.run(manifest, options, move |store, templates, manifest, options| {
            build_upload(store, templates, manifest, &upload, options)
        })
        .await
    }

    async fn build(
        self: &Arc<Images>,
        manifest: Manifest,
        asker: Asker,
        question: OwnedSemaphorePermit,
        build: impl Build,
    ) -> Result<ImageInfo> {
        let name = manifest.image();
        // An image that is there waits for no other's build.
        if let Some(_lock) = self.turns.try_lock(&name)
            && let Some(found) = self.find_built(&manifest).await?
        {
            return Ok(found);
        }
        let place = self.turns.enter(asker.user)?;
        let cancel = asker.cancel.clone();
        // A build may take long, and is one of a few: other requests of the user need not wait for it.
        drop((question, asker));
        let _lock = place.lock(&name, &cancel).await?;
        // Somebody else may have built it meanwhile.
        if let Some(found) = self.find_built(&manifest).await? {
            return Ok(found);
        }
        let _turn = place.turn(&name, &cancel).await?;
        let built = self.run(manifest, BuildOptions { cancel, ..BuildOptions::default() }, build).await?;
        self.note_built(&built).await;
        Ok(built)
    }

    async fn run(
        self: &Arc<Images>,
        manifest: Manifest,
        options: BuildOptions,
        build: impl Build,
    ) -> Result<ImageInfo> {
        self.check_is_open()?;
        let begun = Instant::now();
        let built = self.blocking(move |images| {
            build(images.store.as_ref(), &images.config.host.paths.templates, &manifest, &options)
        });
        let built = built.await.inspect_err(|error| {
            if error.kind() == Kind::Cancelled {
                log::info("build_cancelled").write(error);
            }
        });
        self.pool.metrics().built(begun.elapsed(), &built);
        built
    }

    async fn find_built(self: &Arc<Images>, manifest: &Manifest) -> Result<Option<ImageInfo>> {
        let manifest = manifest.clone();
        let found = self.blocking(move |images| find_built(images.store.as_ref(), &manifest)).await?;
        if let Some(image) = &found {
            self.note_built(image).await;
        }
        Ok(found)
    }

    async fn note_built(self: &Arc<Images>, image: &ImageInfo) {
        self.catalogue.note(image, true);
        self.uses.note(&image.digest).await;
    }
}
