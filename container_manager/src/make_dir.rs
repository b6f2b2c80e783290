//! Makes folders.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use udf_types::{Error, Result};

/// Makes a folder and its parents.
pub fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|cause| could_not_make(path, &cause))
}

/// Makes a folder that nobody else may enter, and its parents as usual. One that is there stays as it is.
pub fn make_closed_dir(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(_) if path.is_dir() => Ok(()),
        made => made.map_err(|cause| could_not_make(path, &cause)),
    }
}

fn could_not_make(path: &Path, cause: &std::io::Error) -> Error {
    Error::invalid_definition(format!("could not make folder \"{}\": {cause}", path.display()))
}
