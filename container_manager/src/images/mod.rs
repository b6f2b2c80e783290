//! The images of this host, as engines and operators ask for them: what a name stands for, who may use it, what is built for
//! engines and operators, what goes to registries and comes from there, and what is removed again.

mod build;
mod prune;
mod transfer;
mod turns;
mod uses;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use udf_client::control::{CheckInfo, ImageInfo};
use udf_project::allow_list::allows;
use udf_project::reference::ImageReference;
use udf_types::{Error, Kind, Result};

use crate::blocking::blocking;
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::doctor::examine;
use crate::engine_images::listed_name;
use crate::log;
use crate::pool::Pool;
use crate::runtime::image_store::ImageStore;
use crate::runtime::program::end_long_work;
use crate::setup_checks::doubt_of_users;
use crate::users::Asker;
use turns::Turns;
use uses::Uses;

/// The images.
pub struct Images {
    config: Arc<Config>,
    store: Arc<dyn ImageStore>,
    /// Those that were named since the manager started.
    catalogue: Arc<Catalogue>,
    /// Says which of them have replicas.
    pool: Arc<Pool>,
    uses: Uses,
    turns: Turns,
    /// Whoever pulls an image has this.
    pulling: tokio::sync::Mutex<()>,
    is_shutting_down: AtomicBool,
}

impl Images {
    /// The images of a store, of which the pool has replicas.
    pub fn new(
        config: Arc<Config>,
        store: Arc<dyn ImageStore>,
        catalogue: Arc<Catalogue>,
        pool: Arc<Pool>,
    ) -> Arc<Images> {
        let (uses, turns) = (Uses::new(&config.host.paths.state_dir), Turns::new(config.max_builds));
        let (pulling, is_shutting_down) = Default::default();
        Arc::new(Images { config, store, catalogue, pool, uses, turns, pulling, is_shutting_down })
    }

    /// Notes the images that an earlier manager knew.
    pub async fn note_known(self: &Arc<Images>) -> Result<()> {
        self.remove_leftovers().await;
        let known = self.blocking(|images| {
            let mut known = images.store.images()?;
            // Anybody could have made an image with such a label: what nobody here has built or asked for is not kept warm.
            known.retain(|image| {
                images.store.was_built_here(&image.digest) || images.uses.last(&image.digest).is_some()
            });
            Ok(known)
        });
        for image in known.await? {
            self.catalogue.note(&image, true);
        }
        Ok(())
    }

    /// The image that a name or digest stands for. All but operators may ask for those of `--allow-images`.
    pub async fn resolve(self: &Arc<Images>, image: String, asker: &Asker) -> Result<ImageInfo> {
        ImageReference::parse(&image)?;
        let info = self.look_up(image, asker).await?;
        self.uses.note(&info.digest).await;
        Ok(info)
    }

    async fn look_up(self: &Arc<Images>, image: String, asker: &Asker) -> Result<ImageInfo> {
        // A name may stand for another image by now, but a digest whose replica runs is there. Asking a container engine
        // takes a while.
        if self.pool.serves(&image)
            && let Some(info) = self.catalogue.image(&image)
        {
            return self.check_allowed(&info, asker.is_operator).map(|()| info);
        }
        let _question = asker.question(&format!("look up image \"{image}\"")).await?;
        let asked = image.clone();
        let info = self.blocking(move |images| images.store.resolve(&asked)).await?;
        // One that is noted may be kept warm.
        self.check_allowed(&info, asker.is_operator)?;
        self.catalogue.note(&info, image == info.manifest.image());
        Ok(info)
    }

    /// What is known of an image that is to be leased. All but operators may lease those of `--allow-images`.
    pub async fn image_of(self: &Arc<Images>, digest: &str, asker: &Asker) -> Result<ImageInfo> {
        match self.catalogue.image(digest) {
            Some(info) => {
                self.check_allowed(&info, asker.is_operator)?;
                self.uses.note(digest).await;
                Ok(info)
            }
            None => self.resolve(digest.to_string(), asker).await,
        }
    }

    /// Whether an image is one of `--allow-images`, which binds all but operators.
    fn check_allowed(&self, image: &ImageInfo, is_operator: bool) -> Result<()> {
        self.check_name_allowed(&listed_name(&image.manifest), Some(&image.digest), is_operator)
    }

    /// The same by name, with the digest if it is known.
    pub fn check_name_allowed(&self, name: &str, digest: Option<&str>, is_operator: bool) -> Result<()> {
        let Some(patterns) = self.config.allowed_images.as_deref().filter(|_| !is_operator) else { return Ok(()) };
        if allows(patterns, name, None) || allows(patterns, name, digest) {
            return Ok(());
        }
        Err(Error::new(Kind::NotAllowed, format!("the container manager does not allow image \"{name}\""))
            .with_hint("Start transshipd with --allow-images for it."))
    }

    /// How many builds for engines run, and how many wait.
    pub fn builds(&self) -> (usize, usize) {
        self.turns.running_and_waiting(self.config.max_builds)
    }

    async fn remove_leftovers(self: &Arc<Images>) {
        if let Err(error) = self.blocking(|images| images.store.remove_leftovers()).await {
            log::warning("leftovers_remain").write(error);
        }
    }

    /// What the container engine lacks on this host, and the templates; and what replicas and builds are not kept from.
    pub async fn examine(self: &Arc<Images>) -> Result<(Vec<CheckInfo>, Vec<String>)> {
        self.blocking(|images| {
            let (checks, mut doubts) = examine(&images.config.host, images.pool.runtime_name());
            doubts.extend(doubt_of_users(&images.config.allowed_uids));
            Ok((checks, doubts))
        })
        .await
    }

    /// Ends the builds and transfers that run, and begins no other.
    pub fn shut_down(&self) {
        self.is_shutting_down.store(true, SeqCst);
        end_long_work();
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Images>,
        work: impl FnOnce(&Images) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let images = self.clone();
        blocking(move || work(&images)).await
    }
}
