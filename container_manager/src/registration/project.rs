//! A project on its way to the manager: `transship build` reads its files as the user who called it, so that the manager opens
//! no path that somebody else names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use udf_client::control::{Connection, ImageInfo, MAX_PIECE_BYTES, Request, Response, unexpected};
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};

/// Sends the files that a project's manifest names, and has them built; `tell` gets what the build says.
pub async fn build_project(socket: &Path, project: &Path, tell: impl FnMut(&str)) -> Result<ImageInfo> {
    let path = project.join("transship.toml");
    let text = std::fs::read_to_string(&path).map_err(|cause| could_not_read(&path, &cause))?;
    let manifest = Manifest::parse(&text)?;
    let mut connection = Connection::open(socket).await?;
    send_piece(&mut connection, "transship.toml", text.as_bytes(), false).await?;
    // Each once: what is sent again is added.
    let mut files: BTreeSet<&String> = manifest.files.iter().chain([&manifest.handler]).collect();
    files.retain(|file| *file != "transship.toml");
    for file in files {
        send_file(&mut connection, project, file).await?;
    }
    match connection.request_telling(&Request::BuildProject, tell).await? {
        Response::Image(image) => Ok(image),
        other => Err(unexpected(&format!("It answered {other:?} instead of an image."))),
    }
}

async fn send_file(connection: &mut Connection, project: &Path, file: &str) -> Result<()> {
    let path = project.join(file);
    let failed = |cause| could_not_read(&path, &cause);
    let mut source = File::open(&path).map_err(failed)?;
    let is_program = source.metadata().map_err(failed)?.permissions().mode() & 0o100 != 0;
    let mut piece = Vec::new();
    let mut is_first = true;
    loop {
        piece.clear();
        source.by_ref().take(MAX_PIECE_BYTES as u64).read_to_end(&mut piece).map_err(failed)?;
        // An empty file has one empty piece.
        if piece.is_empty() && !is_first {
            return Ok(());
        }
        is_first = false;
        send_piece(connection, file, &piece, is_program).await?;
    }
}

async fn send_piece(connection: &mut Connection, path: &str, piece: &[u8], is_program: bool) -> Result<()> {
    let (path, content) = (path.to_string(), BASE64.encode(piece));
    connection.request(&Request::AddToFile { path, content, is_program }).await.map(drop)
}

fn could_not_read(path: &Path, cause: &std::io::Error) -> Error {
    Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", path.display()))
}
