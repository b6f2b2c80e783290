//! Projects that arrive at the manager file by file. A path stays inside the project, and what one user sends is bounded.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tempfile::TempDir;
use udf_project::keys::check_length;
use udf_types::{Error, Kind, Result};

/// The file that describes a project.
const MANIFEST: &str = "transship.toml";
/// Most bytes of all the projects that the connections of a user have sent and that are not built yet. One project may have half
/// of them.
const MAX_ENGINE_BYTES: u64 = 4 << 30;
/// The same for an operator, whose projects may have large models.
const MAX_OPERATOR_BYTES: u64 = 64 << 30;
/// Most files of a project.
const MAX_UPLOAD_FILES: usize = 10_000;
/// Most folders and the file itself in a path.
const MAX_UPLOAD_DEPTH: usize = 32;
/// What a file or folder takes beside its content.
const ENTRY_BYTES: u64 = 4 << 10;

/// The files of a project that a connection has sent so far.
#[derive(Debug)]
pub struct Upload {
    folder: Option<TempDir>,
    /// By path.
    files: BTreeMap<String, SentFile>,
    /// Of all files together.
    size: u64,
    room: Arc<Room>,
    /// What it takes of the room.
    taken: u64,
}

/// A file, as far as it was sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct SentFile {
    size: u64,
    is_program: bool,
}

/// What the uploads of a user take together, in bytes.
#[derive(Debug)]
pub struct Room {
    taken: AtomicU64,
    most: u64,
}

impl Room {
    /// An operator's, or an engine's.
    pub fn new(is_operator: bool) -> Room {
        Room { taken: AtomicU64::new(0), most: if is_operator { MAX_OPERATOR_BYTES } else { MAX_ENGINE_BYTES } }
    }

    fn take(&self, bytes: u64) -> Result<()> {
        let more = |taken: u64| Some(taken + bytes).filter(|all| *all <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|_| {
            let message = format!("the projects that are being sent take {} GB already", self.most >> 30);
            Error::new(Kind::Busy, message).with_hint("Try again once others are built.")
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (Some(folder), room, taken) = (self.folder.take(), self.room.clone(), self.taken) else { return };
        let remove = move || {
            drop(folder);
            room.taken.fetch_sub(taken, Relaxed);
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
        Upload { folder: None, files: BTreeMap::new(), size: 0, room, taken: 0 }
    }

    /// What was sent so far; further files are of another project.
    pub fn take(&mut self) -> Upload {
        let next = Upload::new(self.room.clone());
        std::mem::replace(self, next)
    }

    /// The folder of the files; none if there are none.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(TempDir::path)
    }

    /// The text of the project's manifest; none if it has none, or that is no text. One that is too long is not read.
    pub(super) fn manifest(&self) -> Result<Option<String>> {
        let (Some(folder), Some(file)) = (self.folder(), self.files.get(MANIFEST)) else { return Ok(None) };
        check_length(MANIFEST, usize::try_from(file.size).unwrap_or(usize::MAX))?;
        Ok(fs::read_to_string(folder.join(MANIFEST)).ok())
    }

    /// Each file's path, size, and whether it can be run, by path.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, u64, bool)> {
        self.files.iter().map(|(path, file)| (path.as_str(), file.size, file.is_program))
    }

    /// Adds bytes, in base64, to a file, which can be run if it `is_program`.
    pub fn add(&mut self, path: &str, content: &str, is_program: bool) -> Result<()> {
        let refuse = |fact: String| Err(Error::new(Kind::InvalidDefinition, fact));
        // A file has one path: by that its size is counted, and the image of a library named.
        if path.split('/').any(|part| ["", ".", ".."].contains(&part)) {
            return refuse(format!("path \"{path}\" does not lie inside the project"));
        }
        let depth = path.split('/').count();
        if depth > MAX_UPLOAD_DEPTH {
            return refuse(format!("path \"{path}\" has more than {MAX_UPLOAD_DEPTH} parts"));
        }
        let Ok(bytes) = BASE64.decode(content) else {
            return refuse(format!("the content of file \"{path}\" is not base64"));
        };
        let (size, most) = (self.size + bytes.len() as u64, self.room.most / 2);
        if size > most || (self.files.len() >= MAX_UPLOAD_FILES && !self.files.contains_key(path)) {
            return refuse(format!("a project has at most {MAX_UPLOAD_FILES} files of {most} bytes in all"));
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
        // Whatever this process gives its files: they are read by another user in the image.
        let mode = if is_program { 0o755 } else { 0o644 };
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        self.size = size;
        let sent = self.files.entry(path.to_string()).or_default();
        sent.size += bytes.len() as u64;
        sent.is_program = is_program;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use udf_types::limits::MAX_TOML_BYTES;

    use super::*;

    fn upload() -> Upload {
        Upload::new(Arc::new(Room::new(false)))
    }

    #[test]
    fn files_arrive_in_pieces_and_stay_inside() {
        let mut upload = upload();
        upload.add("a/b.txt", &BASE64.encode("one "), false).unwrap();
        upload.add("a/b.txt", &BASE64.encode("two"), false).unwrap();
        upload.add("empty", "", true).unwrap();
        let folder = upload.folder().unwrap();
        assert_eq!(fs::read_to_string(folder.join("a/b.txt")).unwrap(), "one two");
        assert_eq!(upload.files().collect::<Vec<_>>(), [("a/b.txt", 7, false), ("empty", 0, true)]);
        let mode = |path: &str| fs::metadata(folder.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a/b.txt"), mode("empty")), (0o644, 0o755));
        for path in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "a/../x",
            ".",
            "./x",
            "x\0",
            &"a/".repeat(40),
            &("a/".repeat(40) + "a"),
            "a//b.txt",
            "a/./b.txt",
            "a/b.txt/",
        ] {
            assert!(upload.add(path, "", false).is_err(), "{path}");
        }
        assert!(upload.add("x", "no base64", false).is_err());
        assert_eq!(upload.files().count(), 2);
    }

    #[test]
    fn what_is_a_file_is_no_folder() {
        let mut upload = upload();
        upload.add("a", "", false).unwrap();
        assert!(upload.add("a/b", "", false).is_err());
        upload.add("c/d", "", false).unwrap();
        assert!(upload.add("c", "", false).is_err());
        // A further project begins with nothing.
        let first = upload.take();
        assert_eq!((first.files().count(), upload.files().count()), (2, 0));
        upload.add("a/b", "", false).unwrap();
    }

    #[test]
    fn a_manifest_that_is_too_long_is_not_read() {
        let mut upload = upload();
        assert_eq!(upload.manifest().unwrap(), None);
        upload.add("transship.toml", &BASE64.encode("name"), false).unwrap();
        assert_eq!(upload.manifest().unwrap().as_deref(), Some("name"));
        upload.add("transship.toml", &BASE64.encode(vec![b' '; MAX_TOML_BYTES]), false).unwrap();
        assert_eq!(upload.manifest().unwrap_err().message(), "transship.toml is too long");
        upload.take();
        upload.add("transship.toml", &BASE64.encode([0xff]), false).unwrap();
        assert_eq!(upload.manifest().unwrap(), None);
    }

    #[test]
    fn a_project_has_so_many_files() {
        let mut upload = upload();
        for number in 0..MAX_UPLOAD_FILES {
            upload.add(&format!("{number}"), "", false).unwrap();
        }
        assert!(upload.add("one more", "", false).unwrap_err().message().contains("at most 10000 files"));
        // Those that are there may go on.
        upload.add("0", &BASE64.encode("x"), false).unwrap();
    }

    #[test]
    fn a_project_and_the_uploads_of_a_user_have_a_limit() {
        let room = Arc::new(Room { taken: AtomicU64::new(0), most: 100 << 10 });
        let (mut first, mut second) = (Upload::new(room.clone()), Upload::new(room.clone()));
        first.add("a/b", &BASE64.encode("text"), false).unwrap();
        assert_eq!(room.taken.load(Relaxed), 4 + 2 * ENTRY_BYTES);
        let half = BASE64.encode(vec![0; 50 << 10]);
        assert_eq!(first.add("a/b", &half, false).unwrap_err().kind(), Kind::InvalidDefinition);
        second.add("c", &half, false).unwrap();
        assert_eq!(first.add("d", &BASE64.encode(vec![0; 40 << 10]), false).unwrap_err().kind(), Kind::Busy);
        first.add("a/b", &BASE64.encode("x"), false).unwrap();
        drop(first);
        assert_eq!(room.taken.load(Relaxed), (50 << 10) + ENTRY_BYTES);
        drop(second);
        assert_eq!(room.taken.load(Relaxed), 0);
        let mosts = [false, true].map(|is_operator| Room::new(is_operator).most);
        assert_eq!(mosts, [MAX_ENGINE_BYTES, MAX_OPERATOR_BYTES]);
    }

    #[test]
    fn what_was_sent_goes_with_its_connection() {
        let mut upload = upload();
        upload.add("a/b", "", false).unwrap();
        let folder = upload.folder().unwrap().to_path_buf();
        drop(upload);
        assert!(!folder.exists());
    }
}
