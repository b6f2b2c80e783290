//! Projects that arrive through an engine (`CREATE EXTERNAL LIBRARY` of SQL Server), file by file.
//!
//! Whoever may install a library need not be trusted with the host: the image gets a name of its own, made from the
//! content, and cannot ask for a network.

use std::fs;

use sha2::{Digest, Sha256};
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

use super::build::tag_of;
use super::upload::Upload;
use crate::context::HashWriter;
use crate::engine_images::LIBRARY_REPOSITORY;

/// The manifest of an uploaded project's image, whose name is made from its content.
pub fn name_library(library: &str, upload: &Upload) -> Result<Manifest> {
    let missing = || {
        Error::new(Kind::InvalidDefinition, format!("library \"{library}\" has no file \"transship.toml\""))
            .with_hint("The archive must hold a UDF project with transship.toml at its root.")
    };
    let folder = upload.folder().ok_or_else(missing)?;
    let manifest = Manifest::parse(&upload.manifest()?.ok_or_else(missing)?)?;
    if manifest.limits.network {
        return Err(Error::new(Kind::NotAllowed, format!("library \"{library}\" may not ask for a network"))
            .with_hint("Build the project with \"transship build\" and name its image instead."));
    }
    if manifest.limits.gpus > 0 {
        return Err(Error::new(Kind::NotAllowed, format!("library \"{library}\" may not ask for GPUs"))
            .with_hint("Build the project with \"transship build\" and name its image instead."));
    }
    let failed = |cause: std::io::Error| {
        Error::new(Kind::BuildFailed, format!("could not read the files of library \"{library}\": {cause}"))
    };
    let mut hash = Sha256::new();
    for (path, size, is_program) in upload.files() {
        let mark = if is_program { "x" } else { "" };
        hash.update(format!("{path}\0{size}{mark}\0"));
        std::io::copy(&mut fs::File::open(folder.join(path)).map_err(failed)?, &mut HashWriter(&mut hash))
            .map_err(failed)?;
    }
    let name = format!("{LIBRARY_REPOSITORY}/{}", manifest.name);
    // Its containers start when they are called.
    let manifest = Manifest { name, version: tag_of(hash), prewarm: 0, ..manifest };
    Manifest::from_label(&manifest.to_label())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;
    use crate::registration::upload::Room;

    #[test]
    fn a_library_has_no_network_and_is_not_kept_warm() {
        let named = |more: &str| {
            let mut upload = Upload::new(Arc::new(Room::new(false)));
            let text = format!("name = 'a'\ntemplate = 'python'\nfunctions = [{{ name = 'f' }}]\n{more}");
            upload.add("transship.toml", &BASE64.encode(text), false).unwrap();
            name_library("l", &upload)
        };
        let manifest = named("replicas = 2\nprewarm = 2").unwrap();
        assert_eq!((manifest.prewarm, manifest.replicas), (0, 2));
        assert!(manifest.name.starts_with("transship-library/"));
        assert_eq!(named("limits = { network = true }").unwrap_err().kind(), Kind::NotAllowed);
    }
}
