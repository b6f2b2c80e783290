//! A project or inline code to an image: stages the build context, then lets the runtime build it.
//!
//! The context holds the template's folder, the project's files under `function/`, and what the manifest says as the
//! files that a Dockerfile can copy one by one, so that each layer depends on no more than it needs.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use udf_protocol::control::ImageInfo;
use udf_protocol::manifest::Manifest;
use udf_protocol::{Error, Kind, Result};

use super::template::Template;
use crate::runtime::Runtime;

/// Builds the project in a folder.
pub fn build_project(
    runtime: &dyn Runtime,
    templates: &Path,
    project: &Path,
    shows_progress: bool,
) -> Result<ImageInfo> {
    let path = project.join("transship.toml");
    let text = fs::read_to_string(&path).map_err(|cause| {
        Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", path.display()))
    })?;
    build_files(runtime, templates, project, &Manifest::parse(&text)?, shows_progress)
}

/// Builds a manifest's files, which lie in a folder.
pub fn build_files(
    runtime: &dyn Runtime,
    templates: &Path,
    project: &Path,
    manifest: &Manifest,
    shows_progress: bool,
) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let context = stage(&template, manifest)?;
    for file in manifest.files.iter().chain([&manifest.handler]) {
        let target = context.path().join("function").join(file);
        fs::create_dir_all(target.parent().expect("a file lies in a folder")).map_err(staging_failed)?;
        fs::copy(project.join(file), &target).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", project.join(file).display()))
        })?;
    }
    runtime.build(context.path(), manifest, &template, shows_progress)
}

/// Builds inline code, unless its image exists: its tag is made from its content.
pub fn build_inline(runtime: &dyn Runtime, templates: &Path, manifest: &Manifest, source: &str) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let mut hash = Sha256::new();
    hash.update(manifest.to_label());
    hash.update(source);
    let tag = tag_of(hash);
    let manifest = Manifest { name: "transship-inline".to_string(), version: tag, ..manifest.clone() };
    // The label is JSON of the user's making, so it is checked like any other.
    let manifest = Manifest::from_label(&manifest.to_label())?;
    if let Ok(image) = runtime.resolve(&manifest.image()) {
        return Ok(image);
    }
    let context = stage(&template, &manifest)?;
    fs::write(context.path().join("function").join(&manifest.handler), source).map_err(staging_failed)?;
    runtime.build(context.path(), &manifest, &template, false)
}

/// A tag made from the content of an image.
pub fn tag_of(hash: Sha256) -> String {
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn stage(template: &Template, manifest: &Manifest) -> Result<TempDir> {
    let context = tempfile::tempdir().map_err(staging_failed)?;
    for entry in fs::read_dir(&template.folder).map_err(staging_failed)?.flatten() {
        let name = entry.file_name();
        // The project's files take the place of the template's example; tests do not travel.
        if name != "function" && name != "tests" && name != "conformance" {
            copy_tree(&entry.path(), &context.path().join(name)).map_err(staging_failed)?;
        }
    }
    let write = |name: &str, text: String| fs::write(context.path().join(name), text).map_err(staging_failed);
    fs::create_dir(context.path().join("function")).map_err(staging_failed)?;
    write("manifest.json", manifest.to_label())?;
    write("project-requirements.txt", lines(&manifest.requirements))?;
    write("system-packages.txt", lines(&manifest.system_packages))?;
    Ok(context)
}

fn lines(items: &[String]) -> String {
    items.iter().map(|item| format!("{item}\n")).collect()
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    if from.file_name().is_some_and(|name| name == "__pycache__") {
        return Ok(());
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_tree(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn staging_failed(cause: std::io::Error) -> Error {
    Error::new(Kind::BuildFailed, format!("could not stage the build: {cause}"))
}
