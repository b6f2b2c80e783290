//! Files of the state folder.

use std::fs::{self, File};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use udf_types::{Error, Kind, Result};

use crate::make_dir::make_dir;

/// Copies a folder so that the replica's user may read all of it.
pub(super) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    make_dir(to)?;
    for entry in fs::read_dir(from).map_err(|cause| io_error(from, &cause))?.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(|cause| io_error(&source, &cause))?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o644))
                .map_err(|cause| io_error(&target, &cause))?;
        }
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(|cause| io_error(to, &cause))
}

/// Makes a file for appending that is not there, so that no link leads elsewhere, and that nobody else may read.
pub(super) fn make_file(path: &Path) -> Result<File> {
    let made = File::options().append(true).create_new(true).mode(0o600).open(path);
    made.map_err(|cause| io_error(path, &cause))
}

/// Writes a file whole or not at all.
pub(super) fn write_file(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text).and_then(|()| fs::rename(&partial, path)).map_err(|cause| io_error(path, &cause))
}

pub(super) fn io_error(path: &Path, cause: &std::io::Error) -> Error {
    Error::new(Kind::ContainerFailed, format!("could not use \"{}\": {cause}", path.display()))
}
