//! A project or inline code to an image: stages the build context, then lets the image store build it.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use udf_client::control::ImageInfo;
use udf_project::manifest::{INLINE_REPOSITORY, Limits, Manifest};
use udf_types::{Error, Kind, Result};

use super::upload::Upload;
use crate::context::{stage, staging_failed};
use crate::engine_images::is_built_for_engines;
use crate::runtime::image_store::{BuildOptions, ImageStore};
use crate::template::Template;

/// The manifest of a project that an operator has sent.
pub fn read_manifest(upload: &Upload) -> Result<Manifest> {
    let missing = || Error::new(Kind::InvalidDefinition, "the project has no file \"transship.toml\"");
    let manifest = Manifest::parse(&upload.manifest()?.ok_or_else(missing)?)?;
    if !is_built_for_engines(&manifest.name) {
        return Ok(manifest);
    }
    // Whoever asks for one of these takes it for what its name says that it was built of.
    let message = format!("no project may have the name \"{}\"", manifest.name);
    Err(Error::new(Kind::NotAllowed, message).with_hint("Images of inline code and libraries have such names."))
}

/// Builds what was sent, with a manifest that was read of it.
pub fn build_upload(
    images: &dyn ImageStore,
    templates: &Path,
    manifest: &Manifest,
    upload: &Upload,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let folder = upload.folder().expect("its manifest was in it");
    build_files(images, templates, folder, manifest, options)
}

/// Builds a manifest's files, which lie in a folder.
fn build_files(
    images: &dyn ImageStore,
    templates: &Path,
    project: &Path,
    manifest: &Manifest,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let context = stage(&template, manifest)?;
    for file in manifest.files.iter().chain([&manifest.handler]) {
        let target = context.path().join("function").join(file);
        fs::create_dir_all(target.parent().expect("a file lies in a folder")).map_err(staging_failed)?;
        fs::copy(project.join(file), &target).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("could not read file \"{file}\" of the project: {cause}"))
        })?;
    }
    images.build(context.path(), manifest, &template, options)
}

/// The manifest of inline code's image, whose tag is made from its content.
pub fn name_inline(templates: &Path, manifest: &Manifest, source: &str) -> Result<Manifest> {
    // It is JSON of the user's making, and names a folder. Engines of other versions give it another name.
    let manifest = Manifest { name: INLINE_REPOSITORY.to_string(), ..manifest.clone() };
    let manifest = Manifest::from_label(&manifest.to_label())?;
    check_inline(&manifest)?;
    let template = Template::load(templates, &manifest.template)?;
    let mut hash = Sha256::new();
    hash.update(manifest.to_label());
    hash.update(source);
    let tag = tag_of(hash);
    let handler = template.handler().to_string();
    let manifest = Manifest { version: tag, handler, ..manifest };
    Manifest::from_label(&manifest.to_label())
}

/// Refuses what no function's body can say: a role that may write inline code need not be trusted with the host.
fn check_inline(manifest: &Manifest) -> Result<()> {
    let keys = [
        ("limits", manifest.limits != Limits::default()),
        ("replicas", manifest.replicas != 1),
        ("prewarm", manifest.prewarm != 0),
        ("pause", manifest.pause),
        ("system_packages", !manifest.system_packages.is_empty()),
        ("files", !manifest.files.is_empty()),
    ];
    match keys.iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(Error::new(Kind::NotAllowed, format!("inline code may not set \"{key}\""))
            .with_hint("Build a project with \"transship build\" and name its image instead.")),
        None => Ok(()),
    }
}

/// Builds inline code, with the manifest that [`name_inline`] gave.
pub fn build_inline(
    images: &dyn ImageStore,
    templates: &Path,
    manifest: &Manifest,
    source: &str,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let context = stage(&template, manifest)?;
    fs::write(context.path().join("function").join(&manifest.handler), source).map_err(staging_failed)?;
    images.build(context.path(), manifest, &template, options)
}

/// The image of a manifest whose version is made from its content, unless it has to be built. An error if the store does not
/// say whether it is there. An image that was not built here may be anything, whatever its name and labels say.
pub fn find_built(images: &dyn ImageStore, manifest: &Manifest) -> Result<Option<ImageInfo>> {
    match images.resolve(&manifest.image()) {
        Err(error) if error.kind() == Kind::ContainerFailed => Err(error),
        // One that is of no use, or is another in spite of its name, is built over. The handler has said what its functions take.
        found => Ok(found.ok().filter(|found| {
            images.was_built_here(&found.digest)
                && manifest.with_described(&found.manifest.to_label()).is_ok_and(|wanted| wanted == found.manifest)
        })),
    }
}

/// So many bytes of its content's SHA-256 are a tag: nobody finds two contents that have them in common.
const TAG_BYTES: usize = 16;

/// A tag made from the content of an image.
pub fn tag_of(hash: Sha256) -> String {
    hash.finalize().iter().take(TAG_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;
    use crate::registration::upload::Room;
    use crate::runtime::image_store::{TransferOptions, image_not_found};

    /// A store that knows one image, or why it cannot say; and whether it was built here.
    struct Known(Result<ImageInfo>, bool);

    impl ImageStore for Known {
        fn resolve(&self, _: &str) -> Result<ImageInfo> {
            self.0.clone()
        }

        fn was_built_here(&self, digest: &str) -> bool {
            assert_eq!(digest, self.0.as_ref().unwrap().digest);
            self.1
        }

        fn images(&self) -> Result<Vec<ImageInfo>> {
            unimplemented!()
        }

        fn build(&self, _: &Path, _: &Manifest, _: &Template, _: &BuildOptions) -> Result<ImageInfo> {
            unimplemented!()
        }

        fn remove_image(&self, _: &ImageInfo) -> Result<()> {
            unimplemented!()
        }

        fn push(&self, _: &str, _: &str, _: &TransferOptions) -> Result<String> {
            unimplemented!()
        }

        fn pull(&self, _: &str, _: bool, _: &TransferOptions) -> Result<ImageInfo> {
            unimplemented!()
        }
    }

    fn manifest_of(more: &str) -> Manifest {
        let functions = "functions = [{ name = 'f', arguments = ['x int8'], returns = 'int8' }, { name = 'g' }]";
        Manifest::parse(&format!("name = 'a'\nversion = '1'\ntemplate = 'python'\n{functions}\n{more}")).unwrap()
    }

    /// What a build makes of `manifest_of`: the handler has said what `g` takes.
    fn described(more: &str) -> Manifest {
        let mut manifest = manifest_of(more);
        (manifest.functions[1].arguments, manifest.functions[1].returns) =
            (Some(vec!["text".to_string()]), Some("text".to_string()));
        manifest
    }

    #[test]
    fn an_image_is_found_if_it_was_built_here_of_this_manifest() {
        let digest = format!("sha256:{}", "5e".repeat(32));
        let find = |manifest: Manifest, is_built: bool| {
            let image = ImageInfo { digest: digest.clone(), manifest };
            find_built(&Known(Ok(image), is_built), &manifest_of("")).unwrap().map(|image| image.manifest)
        };
        assert_eq!(find(described(""), true), Some(described("")));
        // Labels say nothing of an image that came from elsewhere.
        assert_eq!(find(described(""), false), None);
        // One with limits, a network or containers of its own is another, in spite of its name.
        for more in ["replicas = 2", "prewarm = 1", "pause = true", "limits = { network = true }"] {
            assert_eq!(find(described(more), true), None, "{more}");
        }
        for change in [
            |manifest: &mut Manifest| manifest.name = "b".to_string(),
            |manifest: &mut Manifest| manifest.limits.memory_mb *= 2,
            |manifest: &mut Manifest| manifest.requirements.push("numpy".to_string()),
            |manifest: &mut Manifest| manifest.functions[0].name = "h".to_string(),
            |manifest: &mut Manifest| manifest.functions[0].strict = true,
            |manifest: &mut Manifest| manifest.functions.truncate(1),
            |manifest: &mut Manifest| manifest.functions.swap(0, 1),
            |manifest: &mut Manifest| manifest.functions.push(described("").functions[1].clone()),
        ] {
            let mut manifest = described("");
            change(&mut manifest);
            assert_eq!(find(manifest.clone(), true), None, "{manifest:?}");
        }
    }

    #[test]
    fn a_project_says_its_name_but_not_that_of_what_engines_build() {
        let named = |name: &str| {
            let mut upload = Upload::new(Arc::new(Room::new(true)));
            let text = format!("name = '{name}'\ntemplate = 'python'\nfunctions = [{{ name = 'f' }}]");
            upload.add("transship.toml", &BASE64.encode(text), false).unwrap();
            read_manifest(&upload)
        };
        assert_eq!(named("flights").unwrap().image(), "flights:latest");
        for name in ["transship-inline", "transship-library/a"] {
            assert_eq!(named(name).unwrap_err().kind(), Kind::NotAllowed, "{name}");
        }
        let nothing = Upload::new(Arc::new(Room::new(true)));
        assert!(read_manifest(&nothing).unwrap_err().message().contains("has no file"));
    }

    #[test]
    fn an_image_is_missing_only_if_the_engine_says_so() {
        let find = |error: Error| find_built(&Known(Err(error), true), &manifest_of(""));
        assert_eq!(find(image_not_found("a:1")).unwrap(), None);
        // One whose label nobody can read is built over.
        assert_eq!(find(Error::invalid_definition("it is no UDF image")).unwrap(), None);
        assert!(find(Error::new(Kind::ContainerFailed, "the engine hangs")).is_err());
    }
}
