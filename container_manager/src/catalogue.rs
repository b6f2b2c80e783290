//! The images that were named since the manager started: what their manifests say, and which image a name stands for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;

/// The images.
#[derive(Debug, Default)]
pub struct Catalogue(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// What images are, by digest.
    manifests: HashMap<String, Arc<Manifest>>,
    /// The digest for which an image's name stood when somebody last looked.
    names: HashMap<String, String>,
}

impl Catalogue {
    /// Notes an image, for which its name stands now if it `is_named`.
    pub fn note(&self, image: &ImageInfo, is_named: bool) {
        let mut seen = self.lock();
        if is_named {
            seen.names.insert(image.manifest.image(), image.digest.clone());
        }
        seen.manifests.insert(image.digest.clone(), Arc::new(image.manifest.clone()));
    }

    /// Forgets an image that was removed, and its name.
    pub fn forget(&self, image: &ImageInfo) {
        let mut seen = self.lock();
        seen.manifests.remove(&image.digest);
        seen.names.remove(&image.manifest.image());
    }

    /// The manifest of the image with that digest.
    pub fn manifest(&self, digest: &str) -> Option<Arc<Manifest>> {
        self.lock().manifests.get(digest).cloned()
    }

    /// The image with that digest.
    pub fn image(&self, digest: &str) -> Option<ImageInfo> {
        let manifest = self.manifest(digest)?;
        Some(ImageInfo { digest: digest.to_string(), manifest: Manifest::clone(&manifest) })
    }

    /// What people call the image with that digest: its name, if that is known.
    pub fn name(&self, digest: &str) -> String {
        self.manifest(digest).map_or_else(|| digest.to_string(), |manifest| manifest.image())
    }

    /// Whether an image's name stands for no other.
    pub fn is_current(&self, digest: &str, manifest: &Manifest) -> bool {
        self.lock().names.get(&manifest.image()).is_none_or(|named| named == digest)
    }

    /// All images, by digest.
    pub fn all(&self) -> Vec<(String, Arc<Manifest>)> {
        self.lock().manifests.iter().map(|(digest, manifest)| (digest.clone(), manifest.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_the_image_that_was_named_last() {
        let catalogue = Catalogue::default();
        let text = "name = 'a'\nversion = '1'\ntemplate = 'python'\nfunctions = [{ name = 'f' }]";
        let image = |digest: &str| ImageInfo { digest: digest.to_string(), manifest: Manifest::parse(text).unwrap() };
        let (first, second) = (image("sha256:1"), image("sha256:2"));
        let is_current = |image: &ImageInfo| catalogue.is_current(&image.digest, &image.manifest);
        catalogue.note(&first, false);
        assert!(is_current(&first) && is_current(&second));
        catalogue.note(&first, true);
        catalogue.note(&second, true);
        assert!(!is_current(&first) && is_current(&second));
        assert_eq!((catalogue.name("sha256:1").as_str(), catalogue.name("sha256:3").as_str()), ("a:1", "sha256:3"));
        catalogue.forget(&second);
        assert_eq!((catalogue.image("sha256:2"), catalogue.image("sha256:1")), (None, Some(first.clone())));
        assert!(is_current(&first));
    }
}
