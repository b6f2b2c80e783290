//! Which images were built here, and of what, written down in the state folder: their labels could be anybody's.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use udf_project::reference::is_digest;

use crate::make_dir::make_dir;

/// What is written down of an image that was built here.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Built {
    /// The files that it was built of.
    pub(super) content: String,
    /// Those of them that the functions' signatures depend on.
    pub(super) code: String,
}

/// Folder with a [`Built`] of each image that was built here, under the digits of its digest.
#[derive(Debug)]
pub(super) struct BuiltRecords(PathBuf);

impl BuiltRecords {
    /// Those in a manager's state folder.
    pub(super) fn new(state_dir: &Path) -> BuiltRecords {
        BuiltRecords(state_dir.join("built"))
    }

    fn file(&self, digest: &str) -> Option<PathBuf> {
        is_digest(digest).then(|| self.0.join(digest.trim_start_matches("sha256:")))
    }

    /// What an image was built of; none if it was not built here.
    pub(super) fn read(&self, digest: &str) -> Option<Built> {
        serde_json::from_str(&fs::read_to_string(self.file(digest)?).ok()?).ok()
    }

    /// Who may build, but not write to the state folder, has the next build ask the builder's cache.
    pub(super) fn write(&self, digest: &str, built: &Built) {
        let Some(path) = self.file(digest).filter(|_| make_dir(&self.0).is_ok()) else { return };
        let text = serde_json::to_string(built).expect("a record is plain data");
        let _ = fs::write(path, text);
    }

    pub(super) fn remove(&self, digest: &str) {
        let _ = self.file(digest).map(fs::remove_file);
    }
}
