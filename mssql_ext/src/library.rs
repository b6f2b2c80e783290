//! `CREATE EXTERNAL LIBRARY`: a zip with a UDF project is unpacked, built by the container manager, and found again by
//! `library = "name"` in scripts.
//!
//! In: the path of a staged copy, whose name says nothing. Out: a folder of the library's own in the install directory,
//! with a record of its image. The archive is hostile until unpacked: no path leaves the folder, no links, no more bytes
//! than a bound. An installation appears whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use udf_client::client::Client;
use udf_client::control::ImageInfo;
use udf_client::host::PlainHost;
use udf_project::manifest::Manifest;
use udf_types::{Error, Kind, Result};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::function::check_listed;
use crate::process::Process;

/// Most files and folders of a project.
const MAX_FILES: usize = 10_000;
/// Most folders above a file, with its own name, and most bytes of its path.
const MAX_DEPTH: usize = 32;
const MAX_PATH_BYTES: usize = 1024;
/// Most bytes of a project.
const MAX_BYTES: u64 = 2 << 30;
/// Bytes that any archive may unpack to; beyond, [`MAX_RATIO`] counts.
const FREE_BYTES: u64 = 64 << 20;
/// How many times its own size a large archive may unpack to.
const MAX_RATIO: u64 = 200;
/// Most bytes of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

const MANIFEST: &str = "transship.toml";
/// Where the project lies in the library's folder, and where its record.
const PROJECT: &str = "project";
const RECORD: &str = "library.json";
/// What the name of a library's lock has before that of its folder.
const LOCK: &str = ".lock-";
/// The same of a folder that is not in its place yet; behind it are a "-" and so many letters and digits.
const STAGED: &str = ".staged-";
const STAGED_RANDOM: usize = 12;
const LOCK_POLL: Duration = Duration::from_millis(20);

/// What is known of an installed library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The library's name in SQL.
    pub library: String,
    /// Its image, `name:tag`.
    pub image: String,
    /// The image's digest.
    pub digest: String,
}

/// Installs a library, in place of an earlier one of that name, if scripts may name it: building it runs its code.
pub fn install(process: &Process, name: &str, archive: &Path, directory: &Path) -> Result<()> {
    check_listed(&process.settings.allowed, &[format!("library:{name}")], None)?;
    fs::create_dir_all(directory).map_err(|cause| failed(name, &cause))?;
    let _lock = lock(process, name, directory)?;
    let staged = stage(name, directory).map_err(|cause| failed(name, &cause))?;
    let project = staged.path().join(PROJECT);
    unpack(name, archive, &project)?;
    check_project(name, &project)?;
    let client = Client::start()?;
    let built = build(process, &client, name, &project);
    client.stop();
    let image = built.map_err(crate::function::add_advice)?;
    let record = Installed { library: name.to_string(), image: image.manifest.image(), digest: image.digest };
    let text = serde_json::to_string_pretty(&record).expect("a record holds nothing that JSON cannot");
    fs::write(staged.path().join(RECORD), text).map_err(|cause| failed(name, &cause))?;
    let old = replace(staged, &directory.join(folder_name(name))).map_err(|cause| failed(name, &cause))?;
    old.map_or(Ok(()), TempDir::close).map_err(|cause| failed(name, &cause))
}

/// A new folder for a library, whose lock is held. What installations have left there that were killed goes.
fn stage(name: &str, directory: &Path) -> io::Result<TempDir> {
    let prefix = format!("{STAGED}{}-", folder_name(name));
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let random = file_name.to_str().and_then(|name| name.strip_prefix(&prefix));
        // Names of other libraries may begin alike, and have more behind that.
        if random.is_some_and(|random| random.len() == STAGED_RANDOM) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    tempfile::Builder::new().prefix(&prefix).rand_bytes(STAGED_RANDOM).tempdir_in(directory)
}

/// Puts a staged folder into its place. What was there goes in the same moment, since others may be looking; it is given back
/// if it is still to be removed.
fn replace(staged: TempDir, target: &Path) -> io::Result<Option<TempDir>> {
    let exchange = RenameFlags::RENAME_EXCHANGE;
    match renameat2(AT_FDCWD, staged.path(), AT_FDCWD, target, exchange) {
        // The temporary folder is the old one now.
        Ok(()) => return Ok(Some(staged)),
        Err(Errno::ENOENT) => fs::rename(staged.keep(), target)?,
        // A file system that cannot exchange.
        Err(_) => fs::remove_dir_all(target).and_then(|()| fs::rename(staged.keep(), target))?,
    }
    Ok(None)
}

/// Removes a library's folder, if there is one. Its image stays: another database may use it.
pub fn uninstall(process: &Process, name: &str, directory: &Path) -> Result<()> {
    let target = directory.join(folder_name(name));
    // The lock's file is there since a library of that name was first installed. One that is being installed is waited for, and removed.
    if !directory.join(lock_name(name)).exists() && !target.exists() {
        return Ok(());
    }
    let _lock = lock(process, name, directory)?;
    remove(name, &target)
}

/// The image of an installed library.
pub fn find(process: &Process, name: &str) -> Result<Installed> {
    find_folder(process, name).map(|(_, installed)| installed)
}

/// Builds an installed library again, for a manager that does not have its image. The script that names it may do so.
pub fn rebuild(process: &Process, client: &Client, name: &str) -> Result<ImageInfo> {
    let (folder, _) = find_folder(process, name)?;
    build(process, client, name, &folder.join(PROJECT))
}

fn find_folder(process: &Process, name: &str) -> Result<(PathBuf, Installed)> {
    for directory in &process.library_folders {
        let folder = directory.join(folder_name(name));
        let record = fs::read_to_string(folder.join(RECORD)).ok().and_then(|text| serde_json::from_str(&text).ok());
        if let Some(record) = record {
            return Ok((folder, record));
        }
    }
    Err(Error::new(Kind::ImageNotFound, format!("external library \"{name}\" is not installed")).with_hint(
        "CREATE EXTERNAL LIBRARY ... WITH (LANGUAGE = ...) makes it known; it is installed at the next call.",
    ))
}

/// Keeps other processes from installing or removing a library of this name, so that whoever began before another ends before it; of several
/// that wait, any may be next. Those of other names go on. It is an error to wait longer than a build may take.
fn lock(process: &Process, name: &str, directory: &Path) -> Result<Flock<File>> {
    let file = OpenOptions::new().create(true).write(true).truncate(false).open(directory.join(lock_name(name)));
    let file = file.map_err(|cause| failed(name, &cause))?;
    lock_within(file, process.settings.build_timeout).map_err(|errno| match errno {
        Errno::EWOULDBLOCK => failed(name, &io::Error::other("another session is installing or removing it")),
        errno => failed(name, &errno.into()),
    })
}

fn lock_name(name: &str) -> String {
    format!("{LOCK}{}", folder_name(name))
}

/// Locks a file that another process may have locked.
fn lock_within(file: File, patience: Duration) -> nix::Result<Flock<File>> {
    let deadline = Instant::now() + patience;
    let mut unlocked = file;
    loop {
        match Flock::lock(unlocked, FlockArg::LockExclusiveNonblock) {
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < deadline => unlocked = file,
            result => return result.map_err(|(_, errno)| errno),
        }
        thread::sleep(LOCK_POLL);
    }
}

fn remove(name: &str, folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed(name, &cause)),
        _ => Ok(()),
    }
}

/// A file name that no other library has: other characters than letters, digits, "-" and "_" are written as "%" and their
/// bytes, and a name that is too long ends in its hash.
fn folder_name(name: &str) -> String {
    let mut text = "transship-".to_string();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    if text.len() > 200 {
        text.truncate(120);
        text.push('.');
        Sha256::digest(name).iter().take(16).for_each(|byte| text.push_str(&format!("{byte:02x}")));
    }
    text
}

/// Unpacks an archive into a new folder.
pub(crate) fn unpack(name: &str, archive: &Path, target: &Path) -> Result<()> {
    let file = File::open(archive).map_err(|cause| failed(name, &cause))?;
    let size = file.metadata().map_err(|cause| failed(name, &cause))?.len();
    let mut zip = ZipArchive::new(file).map_err(|cause| not_a_zip(name, cause))?;
    if zip.len() > MAX_FILES {
        return Err(refused(name, format!("It has {} files, more than {MAX_FILES}.", zip.len())));
    }
    let limit = MAX_BYTES.min(FREE_BYTES.max(size.saturating_mul(MAX_RATIO)));
    let mut left = limit;
    let mut places = MAX_FILES;
    fs::create_dir(target).map_err(|cause| failed(name, &cause))?;
    for number in 0..zip.len() {
        let mut entry = zip.by_index(number).map_err(|cause| not_a_zip(name, cause))?;
        let path = entry.name().to_string();
        let kind = entry.unix_mode().unwrap_or(0) & 0o170_000;
        if !is_safe(&path) {
            return Err(refused(name, format!("The path \"{}\" leaves the project.", path.escape_debug())));
        }
        if !is_short(&path) {
            let fact = format!("A path in it is deeper than {MAX_DEPTH}, or longer than {MAX_PATH_BYTES} bytes.");
            return Err(refused(name, fact));
        }
        // Symbolic links, devices and the like; archives made elsewhere than on Unix have no such bits.
        if !matches!(kind, 0 | 0o100_000 | 0o040_000) {
            return Err(refused(name, format!("\"{}\" is neither a file nor a folder.", path.escape_debug())));
        }
        let place = target.join(&path);
        let write = |cause: io::Error| match cause.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                refused(name, format!("\"{}\" is in it twice.", path.escape_debug()))
            }
            // What the archive's checksums or its compression refuse.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                refused(name, format!("\"{}\" is damaged: {cause}.", path.escape_debug()))
            }
            _ => failed(name, &cause),
        };
        let folder = if entry.is_dir() { Path::new(&path) } else { Path::new(&path).parent().unwrap_or(Path::new("")) };
        let made = make_folders(target, folder).map_err(write)?;
        let taken = made + usize::from(!entry.is_dir());
        places = places
            .checked_sub(taken)
            .ok_or_else(|| refused(name, format!("It has more than {MAX_FILES} files and folders.")))?;
        if entry.is_dir() {
            continue;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&place).map_err(write)?;
        // What an archive says of its sizes need not be true; the bytes are counted.
        let written = io::copy(&mut (&mut entry).take(left + 1), &mut file).map_err(write)?;
        if written > left {
            return Err(refused(name, format!("It unpacks to more than {limit} bytes.")));
        }
        left -= written;
    }
    Ok(())
}

fn is_safe(path: &str) -> bool {
    let is_plain = !path.is_empty() && !path.contains(['\\', '\0']) && !path.contains(char::is_control);
    is_plain && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn is_short(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES && Path::new(path).components().count() <= MAX_DEPTH
}

/// Makes the folders of a path below `target` that are not there; how many.
fn make_folders(target: &Path, path: &Path) -> io::Result<usize> {
    let (mut place, mut made) = (target.to_path_buf(), 0);
    for part in path.components() {
        place.push(part);
        match fs::create_dir(&place) {
            Ok(()) => made += 1,
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && place.is_dir() => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(made)
}

/// Refuses a project that cannot be built, before anything is sent.
pub(crate) fn check_project(name: &str, project: &Path) -> Result<()> {
    let mut text = String::new();
    let read =
        File::open(project.join(MANIFEST)).and_then(|file| file.take(MAX_MANIFEST_BYTES).read_to_string(&mut text));
    if read.is_err() {
        return Err(refused(name, format!("It has no readable {MANIFEST} at its root.")));
    }
    let manifest = Manifest::parse(&text)?;
    for file in manifest.files.iter().chain([&manifest.handler]) {
        if !project.join(file).is_file() {
            return Err(refused(name, format!("{MANIFEST} names \"{file}\", which is not in it.")));
        }
    }
    Ok(())
}

fn build(process: &Process, client: &Client, name: &str, project: &Path) -> Result<ImageInfo> {
    let mut paths = Vec::new();
    list_files(project, Path::new(""), &mut paths).map_err(|cause| failed(name, &cause))?;
    let (folder, library) = (project.to_path_buf(), name.to_string());
    let files = paths.into_iter().map(move |path| {
        let bytes = fs::read(folder.join(&path)).map_err(|cause| failed(&library, &cause))?;
        Ok((path, bytes))
    });
    let settings = &process.settings;
    client.build_library(&PlainHost, &settings.socket, name, files, settings.build_timeout)
}

/// Paths of the files in a folder, relative to it. Names that are not UTF-8 cannot come from an archive.
fn list_files(root: &Path, inside: &Path, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(inside))? {
        let entry = entry?;
        let path = inside.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list_files(root, &path, paths)?;
        } else {
            paths.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn failed(name: &str, cause: &io::Error) -> Error {
    Error::new(Kind::BuildFailed, format!("could not install external library \"{name}\": {cause}"))
}

fn refused(name: &str, fact: String) -> Error {
    Error::invalid_definition(format!("the archive of external library \"{name}\" is refused"))
        .with_detail(fact)
        .with_hint(format!("It must be a zip of a UDF project, with {MANIFEST} at its root."))
}

fn not_a_zip(name: &str, cause: ZipError) -> Error {
    match cause {
        ZipError::Io(cause) => failed(name, &cause),
        other => refused(name, format!("It is not a zip that can be read: {other}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    /// An archive of these files, and the folder that holds it.
    fn archive(files: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7_1_staged.zip");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        for (name, bytes) in files {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        (folder, path)
    }

    fn refusal(path: &Path, folder: &Path) -> String {
        unpack("lib", path, &folder.join("out")).unwrap_err().to_string()
    }

    const PROJECT_TOML: &[u8] = b"name = 'p'\ntemplate = 'python'\nfunctions = [{ name = 'f' }]";

    #[test]
    fn projects_are_unpacked() {
        let (folder, path) =
            archive(&[("transship.toml", PROJECT_TOML), ("handler.py", b"def f(): pass"), ("a/b", b"")]);
        let target = folder.path().join("out");
        unpack("lib", &path, &target).unwrap();
        check_project("lib", &target).unwrap();
        let mut paths = Vec::new();
        list_files(&target, Path::new(""), &mut paths).unwrap();
        paths.sort();
        assert_eq!(paths, ["a/b", "handler.py", "transship.toml"]);
    }

    #[test]
    fn paths_that_leave_are_refused() {
        for name in ["../x", "/etc/x", "a/../../x", "a\\..\\x", "a/\u{7}"] {
            let (folder, path) = archive(&[(name, b"x")]);
            assert!(refusal(&path, folder.path()).contains("leaves the project"), "{name}");
        }
        assert!(!is_safe("") && !is_safe("C:\\x") && !is_safe("a\0b") && is_safe("a/b.c"));
    }

    #[test]
    fn folders_count_and_have_an_end() {
        let nested = |depth: usize| "a/".repeat(depth - 1) + "x";
        let long = format!("{}/x", ["a".repeat(200).as_str(); 6].join("/"));
        for path in [nested(MAX_DEPTH + 1), nested(1000), long] {
            let (folder, archive) = archive(&[(&path, b"x")]);
            assert!(refusal(&archive, folder.path()).contains("A path in it is deeper"), "{path}");
            assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 0);
        }
        let (folder, path) = archive(&[(&nested(MAX_DEPTH), b"x"), (&(nested(MAX_DEPTH) + "y"), b"y"), ("b", b"")]);
        unpack("lib", &path, &folder.path().join("out")).unwrap();
        // Each file is alone in many folders.
        let names: Vec<String> = (0..MAX_FILES / 10).map(|i| format!("{i}/{}", nested(10))).collect();
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
        let (folder, path) = archive(&files);
        assert!(refusal(&path, folder.path()).contains("more than 10000 files and folders"));
        // A file where a folder is to be.
        let (folder, path) = archive(&[("a", b""), ("a/b", b"")]);
        assert!(refusal(&path, folder.path()).contains("in it twice"));
    }

    #[test]
    fn a_lock_is_waited_for_but_not_for_ever() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let held = lock_within(open(), Duration::ZERO).unwrap();
        let begun = Instant::now();
        assert_eq!(lock_within(open(), Duration::from_millis(100)).unwrap_err(), Errno::EWOULDBLOCK);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        let waiting = open();
        let waiter = thread::spawn(move || lock_within(waiting, Duration::from_secs(60)).is_ok());
        drop(held);
        assert!(waiter.join().unwrap());
    }

    #[test]
    fn links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.zip");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        zip.finish().unwrap();
        assert!(refusal(&path, folder.path()).contains("neither a file nor a folder"));
        assert!(!folder.path().join("out/link").exists());
    }

    #[test]
    fn bombs_are_stopped_early() {
        let zeros = vec![0; FREE_BYTES as usize + 1];
        let (folder, path) = archive(&[("a", &zeros)]);
        assert!(path.metadata().unwrap().len() < FREE_BYTES / MAX_RATIO);
        assert!(refusal(&path, folder.path()).contains("unpacks to more than"));
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [b"".as_slice(), b"\x1f\x8b not a zip", b"PK\x03\x04 cut off", &[0; 4096]] {
            let path = folder.path().join("x.zip");
            fs::write(&path, bytes).unwrap();
            let said = refusal(&path, folder.path());
            assert!(said.contains("not a zip"), "{said}");
        }
        let (folder, path) = archive(&[("a", b"some text that is long enough to be damaged")]);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.windows(4).position(|window| window == b"text").unwrap_or(35);
        bytes[middle] ^= 0xff;
        fs::write(&path, bytes).unwrap();
        assert!(refusal(&path, folder.path()).contains("damaged"));
    }

    #[test]
    fn wrong_projects_are_refused_by_name() {
        for (files, word) in [
            (vec![("x", b"".as_slice())], "no readable transship.toml"),
            (vec![("p/transship.toml", PROJECT_TOML)], "no readable transship.toml"),
            (vec![("transship.toml", PROJECT_TOML)], "handler.py"),
            (vec![("transship.toml", b"name = 'P p'".as_slice())], "not valid"),
            (vec![("transship.toml", b"\xff\xfe".as_slice())], "no readable"),
        ] {
            let (folder, path) = archive(&files);
            let target = folder.path().join("out");
            unpack("lib", &path, &target).unwrap();
            let said = check_project("lib", &target).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn folders_are_named_after_any_name() {
        assert_eq!(folder_name("flights-1_0"), "transship-flights-1_0");
        assert_eq!(folder_name("../ü"), "transship-%2e%2e%2f%c3%bc");
        let (one, two) = (folder_name(&"ü".repeat(128)), folder_name(&"ü".repeat(127)));
        assert!(one.len() < 200 && two.len() < 200 && one != two);
    }
}
