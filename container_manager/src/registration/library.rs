//! Projects that arrive through an engine (`CREATE EXTERNAL LIBRARY` of SQL Server), file by file.
//!
//! Whoever may install a library need not be trusted with the host: the image gets a name of its own, made from the
//! content, and cannot ask for a network.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use udf_client::control::ImageInfo;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use super::build::{build_files, tag_of};
use crate::context::HashWriter;
use crate::engine_images::LIBRARY_REPOSITORY;
use crate::runtime::image_store::{BuildOptions, ImageStore};

/// Most bytes of a project's files together.
const MAX_UPLOAD_BYTES: u64 = 2 << 30;
/// Most files of a project.
const MAX_UPLOAD_FILES: usize = 10_000;
/// Most folders and the file itself in a path.
const MAX_UPLOAD_DEPTH: usize = 32;
/// Most bytes of all the projects that a user's connections have sent and that are not built yet.
const MAX_USER_BYTES: u64 = 4 << 30;
/// What a file or folder takes beside its content.
const ENTRY_BYTES: u64 = 4 << 10;

/// The files of a project that a connection has sent so far.
#[derive(Debug)]
pub struct Upload {
    folder: Option<TempDir>,
    /// Size of each file, by path.
    files: BTreeMap<String, u64>,
    room: Arc<Room>,
    /// What it takes of the room.
    taken: u64,
}

/// What the uploads of a user take together, in bytes.
#[derive(Debug, Default)]
pub struct Room(AtomicU64);

impl Room {
    fn take(&self, bytes: u64) -> Result<()> {
        let more = |taken: u64| Some(taken + bytes).filter(|all| *all <= MAX_USER_BYTES);
        self.0.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|_| {
            let message = format!("the projects that are being sent take {} GB already", MAX_USER_BYTES >> 30);
            Error::new(Kind::Busy, message).with_hint("Try again once others are built.")
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (Some(folder), room, taken) = (self.folder.take(), self.room.clone(), self.taken) else { return };
        let remove = move || {
            drop(folder);
            room.0.fetch_sub(taken, Relaxed);
        };
        // Many files take a while.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl Upload {
    /// No files yet; those that come take this room.
    pub fn new(room: Arc<Room>) -> Upload {
        Upload { folder: None, files: BTreeMap::new(), room, taken: 0 }
    }

    /// What was sent so far; further files are of another project.
    pub fn take(&mut self) -> Upload {
        let next = Upload::new(self.room.clone());
        std::mem::replace(self, next)
    }

    /// Adds bytes, in base64, to a file.
    pub fn add(&mut self, path: &str, content: &str) -> Result<()> {
        let refuse = |fact: String| Err(Error::new(Kind::InvalidDefinition, fact));
        let is_inside =
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside {
            return refuse(format!("path \"{path}\" does not lie inside the project"));
        }
        let depth = Path::new(path).components().count();
        if depth > MAX_UPLOAD_DEPTH {
            return refuse(format!("path \"{path}\" has more than {MAX_UPLOAD_DEPTH} parts"));
        }
        let Ok(bytes) = BASE64.decode(content) else {
            return refuse(format!("the content of file \"{path}\" is not base64"));
        };
        let size = self.files.values().sum::<u64>() + bytes.len() as u64;
        if size > MAX_UPLOAD_BYTES || (self.files.len() >= MAX_UPLOAD_FILES && !self.files.contains_key(path)) {
            return refuse(format!(
                "a project has at most {MAX_UPLOAD_FILES} files of {MAX_UPLOAD_BYTES} bytes in all"
            ));
        }
        let entries = if self.files.contains_key(path) { 0 } else { depth as u64 };
        let more = bytes.len() as u64 + entries * ENTRY_BYTES;
        self.room.take(more)?;
        self.taken += more;
        let failed =
            |cause: std::io::Error| Error::new(Kind::BuildFailed, format!("could not keep file \"{path}\": {cause}"));
        if self.folder.is_none() {
            self.folder = Some(tempfile::tempdir().map_err(failed)?);
        }
        let folder = self.folder.as_ref().expect("it was just made").path();
        let target = folder.join(path);
        fs::create_dir_all(target.parent().expect("a file lies in a folder")).map_err(failed)?;
        let mut file = OpenOptions::new().append(true).create(true).open(&target).map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        *self.files.entry(path.to_string()).or_default() += bytes.len() as u64;
        Ok(())
    }
}

/// The manifest of an uploaded project's image, whose name is made from its content.
pub fn name_library(library: &str, upload: &Upload) -> Result<Manifest> {
    let missing = || {
        Error::new(Kind::InvalidDefinition, format!("library \"{library}\" has no file \"transship.toml\""))
            .with_hint("The archive must hold a UDF project with transship.toml at its root.")
    };
    let folder = upload.folder.as_ref().ok_or_else(missing)?.path();
    let text = fs::read_to_string(folder.join("transship.toml")).map_err(|_| missing())?;
    let manifest = Manifest::parse(&text)?;
    if manifest.limits.network {
        return Err(Error::new(Kind::NotAllowed, format!("library \"{library}\" may not ask for a network"))
            .with_hint("Build the project with \"transship build\" and name its image instead."));
    }
    let failed = |cause: std::io::Error| {
        Error::new(Kind::BuildFailed, format!("could not read the files of library \"{library}\": {cause}"))
    };
    let mut hash = Sha256::new();
    for (path, size) in &upload.files {
        hash.update(format!("{path}\0{size}\0"));
        std::io::copy(&mut fs::File::open(folder.join(path)).map_err(failed)?, &mut HashWriter(&mut hash))
            .map_err(failed)?;
    }
    let name = format!("{LIBRARY_REPOSITORY}/{}", manifest.name);
    // Its containers start when they are called.
    let manifest = Manifest { name, version: tag_of(hash), prewarm: 0, ..manifest };
    Manifest::from_label(&manifest.to_label())
}

/// Builds what was uploaded, with the manifest that [`name_library`] gave.
pub fn build_library(
    images: &dyn ImageStore,
    templates: &Path,
    manifest: &Manifest,
    upload: &Upload,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let folder = upload.folder.as_ref().expect("its manifest was in it").path();
    build_files(images, templates, folder, manifest, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_arrive_in_pieces_and_stay_inside() {
        let mut upload = Upload::new(Arc::default());
        upload.add("a/b.txt", &BASE64.encode("one ")).unwrap();
        upload.add("a/b.txt", &BASE64.encode("two")).unwrap();
        upload.add("empty", "").unwrap();
        let folder = upload.folder.as_ref().unwrap().path();
        assert_eq!(fs::read_to_string(folder.join("a/b.txt")).unwrap(), "one two");
        assert_eq!(upload.files, BTreeMap::from([("a/b.txt".to_string(), 7), ("empty".to_string(), 0)]));
        for path in ["", "/etc/passwd", "../x", "a/../../x", ".", &"a/".repeat(40)] {
            assert!(upload.add(path, "").is_err(), "{path}");
        }
        assert!(upload.add("x", "no base64").is_err());
    }

    #[test]
    fn the_uploads_of_a_user_have_a_limit() {
        let room: Arc<Room> = Arc::default();
        let (mut first, mut second) = (Upload::new(room.clone()), Upload::new(room.clone()));
        first.add("a/b", &BASE64.encode("text")).unwrap();
        assert_eq!(room.0.load(Relaxed), 4 + 2 * ENTRY_BYTES);
        room.0.fetch_add(MAX_USER_BYTES - room.0.load(Relaxed) - 1, Relaxed);
        assert_eq!(second.add("c", &BASE64.encode("text")).unwrap_err().kind(), Kind::Busy);
        first.add("a/b", &BASE64.encode("x")).unwrap();
        drop((first, second));
        assert_eq!(room.0.load(Relaxed), MAX_USER_BYTES - 5 - 2 * ENTRY_BYTES);
    }

    #[test]
    fn a_library_has_no_network_and_is_not_kept_warm() {
        let named = |more: &str| {
            let mut upload = Upload::new(Arc::default());
            let text = format!("name = 'a'\ntemplate = 'python'\nfunctions = [{{ name = 'f' }}]\n{more}");
            upload.add("transship.toml", &BASE64.encode(text)).unwrap();
            name_library("l", &upload)
        };
        let manifest = named("replicas = 2\nprewarm = 2").unwrap();
        assert_eq!((manifest.prewarm, manifest.replicas), (0, 2));
        assert!(manifest.name.starts_with("transship-library/"));
        assert_eq!(named("limits = { network = true }").unwrap_err().kind(), Kind::NotAllowed);
    }
}
