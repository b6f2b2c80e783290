//! Replicas as sandboxed child processes, for machines without a container engine and for debugging a handler.
//!
//! An image is a folder `images/<digest>` of the state folder with what a container's `/opt/transship` would hold, and
//! a link to an environment that images with equal requirements share; `tags/<name>/<version>` names a digest.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use udf_client::control::ImageInfo;
use udf_project::manifest::{Limits, Manifest};
use udf_project::reference::{ImageReference, is_digest};
use udf_types::{Error, Kind, Result};

use super::program::{run, run_within};
use super::{
    BuildOptions, DESCRIBE_TIMEOUT, FoundReplica, ReplicaSpec, ReplicaStatus, Runtime, image_not_found, last_lines,
};
use crate::cancel::Cancel;
use crate::config::HostConfig;
use crate::context::content_of;
use crate::folders;
use crate::kept_logs::KEPT_LOG_BYTES;
use crate::make_dir::{make_closed_dir, make_dir};
use crate::sandbox::{REPLICA_ID, process_prefix};
use crate::template::{ProcessTemplate, Template};

/// Time between asking a process to end and killing it.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Between two looks at whether another build has made an environment.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// A longer log of a running replica loses all but its end, which is looked at every second.
const MOST_LOG_BYTES: u64 = 16 << 20;

/// The process runtime.
#[derive(Debug)]
pub struct ProcessRuntime {
    state_dir: PathBuf,
    /// Longest that each of a build's programs may take.
    build_timeout: Duration,
    is_root: bool,
    can_unshare: bool,
    children: Mutex<HashMap<String, Child>>,
}

/// What is written down of a running replica, so that a manager started later finds it again.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    /// Start time in clock ticks since boot: tells the process from a later one with its number.
    started: u64,
    digest: String,
    socket_dir: PathBuf,
}

impl ProcessRuntime {
    /// A runtime that keeps its images and logs in the state folder.
    pub fn new(host: &HostConfig) -> Result<ProcessRuntime> {
        let is_root = Uid::effective().is_root();
        let probe = process_prefix(&Limits::default(), is_root, true);
        let can_unshare =
            Command::new(&probe[0]).args(&probe[1..]).arg("true").output().is_ok_and(|out| out.status.success());
        let (state_dir, children) = (host.paths.state_dir.clone(), Mutex::default());
        Ok(ProcessRuntime { state_dir, build_timeout: host.builds.timeout, is_root, can_unshare, children })
    }

    /// Closes the state folder to all but replicas, which pass through it.
    fn close_state_dir(&self) -> Result<()> {
        make_closed_dir(&self.state_dir)?;
        let failed = |cause: std::io::Error| io_error(&self.state_dir, &cause);
        // A manager of another user closes its own.
        match fs::metadata(&self.state_dir).map_err(failed)?.uid() == Uid::effective().as_raw() {
            true => folders::close(&self.state_dir, true).map_err(failed),
            false => Ok(()),
        }
    }

    fn image_dir(&self, digest: &str) -> PathBuf {
        self.state_dir.join("images").join(digest.trim_start_matches("sha256:"))
    }

    fn tag_file(&self, image: &ImageReference) -> PathBuf {
        let version = image.tag.as_deref().unwrap_or("latest");
        self.state_dir.join("tags").join(image.repository.replace('/', "%")).join(version)
    }

    fn replica_dir(&self, name: &str) -> PathBuf {
        self.state_dir.join("replicas").join(name)
    }

    fn read_image(&self, digest: &str, image: &str) -> Result<ImageInfo> {
        if !is_digest(digest) {
            return Err(image_not_found(image));
        }
        let path = self.image_dir(digest).join("label.json");
        let label = fs::read_to_string(path).map_err(|_| image_not_found(image))?;
        Ok(ImageInfo { digest: digest.to_string(), manifest: Manifest::from_label(&label)? })
    }

    /// Makes the environment that `root` asks for, unless one with the same requirements exists.
    fn prepare_environment(&self, root: &Path, template: &ProcessTemplate, options: &BuildOptions) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for file in &template.env_files {
            hash.update(fs::read(root.join(file)).map_err(|cause| io_error(&root.join(file), &cause))?);
            hash.update([0]);
        }
        let environment = self.state_dir.join("envs").join(&hex(&hash.finalize())[..16]);
        // Beside it: what is installed there could make the file itself, or a link in its place.
        let complete = environment.with_extension("complete");
        if complete.exists() {
            return Ok(environment);
        }
        make_dir(&self.state_dir.join("envs"))?;
        // Builds side by side may want the same.
        let _lock = lock_file(&environment.with_extension("lock"), &options.cancel)?;
        if complete.exists() {
            return Ok(environment);
        }
        self.remove_folder(&environment)?;
        let installed = self.install(root, &environment, template, options);
        if let Err(error) = installed {
            // What is left of it only takes room; the next build would remove it as well.
            if let Err(error) = self.remove_folder(&environment) {
                eprintln!("transship: {error}");
            }
            return Err(error);
        }
        make_file(&complete)?;
        Ok(environment)
    }

    fn install(
        &self,
        root: &Path,
        environment: &Path,
        template: &ProcessTemplate,
        options: &BuildOptions,
    ) -> Result<()> {
        make_dir(environment)?;
        // Installing a package may run its code, so it happens as the replicas' user, who gets the folder meanwhile.
        self.give_folder(environment, REPLICA_ID, options)?;
        for words in &template.prepare {
            let words = substitute(words, root, environment);
            if options.shows_progress {
                eprintln!("{}", words.join(" "));
            }
            let mut command =
                self.sandboxed(&Limits { network: true, memory_mb: 1 << 20, ..Limits::default() }, &words);
            command.envs(std::env::vars().filter(|(name, _)| is_for_package_clients(name)));
            self.run_for_build(&mut command, "install the requirements", options)?;
        }
        self.give_folder(environment, 0, options)?;
        self.close_folder(environment, options)
    }

    fn run_for_build(&self, command: &mut Command, what: &str, options: &BuildOptions) -> Result<()> {
        run_within(command, Kind::BuildFailed, what, self.build_timeout, &options.cancel).map(drop)
    }

    /// Removes a folder, if it is there, with all that a package has made in it: folders however deep, and links, which are
    /// not followed.
    fn remove_folder(&self, folder: &Path) -> Result<()> {
        let mut command = Command::new("rm");
        command.args(["--recursive", "--force", "--one-file-system", "--"]).arg(folder);
        run(&mut command, Kind::ContainerFailed, &format!("remove \"{}\"", folder.display())).map(drop)
    }

    /// Gives a folder, with all that is in it, to another user, if this one may.
    fn give_folder(&self, folder: &Path, user: u32, options: &BuildOptions) -> Result<()> {
        if !self.is_root {
            return Ok(());
        }
        let mut command = Command::new("chown");
        command.args(["--recursive", "--no-dereference", &format!("{user}:{user}")]).arg(folder);
        self.run_for_build(&mut command, "change the owner of a folder", options)
    }

    /// Takes the right to write in a folder from all but its owner, since what was installed may have given it.
    fn close_folder(&self, folder: &Path, options: &BuildOptions) -> Result<()> {
        let mut command = Command::new("chmod");
        // It changes nothing that a link points to.
        command.args(["--recursive", "go-w"]).arg(folder);
        self.run_for_build(&mut command, "change the mode of a folder", options)
    }

    /// The images, by digest, that have a name, and the files of their names.
    fn tags(&self) -> Vec<(PathBuf, String)> {
        let names = fs::read_dir(self.state_dir.join("tags")).into_iter().flatten().flatten();
        let tags = names.flat_map(|name| fs::read_dir(name.path()).into_iter().flatten().flatten());
        tags.map(|tag| (tag.path(), fs::read_to_string(tag.path()).unwrap_or_default().trim().to_string())).collect()
    }

    /// Makes the folder of an image.
    fn build_root(
        &self,
        context: &Path,
        root: &Path,
        manifest: &Manifest,
        template: &ProcessTemplate,
        options: &BuildOptions,
    ) -> Result<()> {
        copy_folder(context, root)?;
        let environment = self.prepare_environment(root, template, options)?;
        let link = root.join("env");
        std::os::unix::fs::symlink(&environment, &link).map_err(|cause| io_error(&link, &cause))?;
        let mut describe = self.sandboxed(&manifest.limits, &substitute(&template.describe, root, &environment));
        set_environment(&mut describe, template, root, &environment);
        let what = format!("load the functions of image \"{}\"", manifest.image());
        let text = run_within(&mut describe, Kind::BuildFailed, &what, DESCRIBE_TIMEOUT, &options.cancel)?;
        let described = manifest.with_described(&text)?;
        // The label comes last: an image without one is not there.
        let template_text = serde_json::to_string(template).expect("a template is plain strings");
        write_file(&root.join("template.json"), &template_text)?;
        write_file(&root.join("label.json"), &described.to_label())
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let failed = |cause: &dyn std::fmt::Display| {
            Error::new(Kind::ContainerFailed, format!("could not send {signal} to replica \"{name}\": {cause}"))
        };
        if self.status(name)? != ReplicaStatus::Running {
            return Err(failed(&"it has ended"));
        }
        let record = self.record(name).ok_or_else(|| failed(&"it has no record"))?;
        kill(Pid::from_raw(record.pid), signal).map_err(|cause| failed(&cause))
    }

    fn sandboxed(&self, limits: &Limits, words: &[String]) -> Command {
        let prefix = process_prefix(limits, self.is_root, self.can_unshare);
        let mut command = Command::new(&prefix[0]);
        command
            .args(&prefix[1..])
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/tmp")
            .env("LANG", "C.UTF-8");
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn record(&self, name: &str) -> Option<Record> {
        let text = fs::read_to_string(self.replica_dir(name).join("process.json")).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl Runtime for ProcessRuntime {
    fn name(&self) -> &str {
        "process"
    }

    fn check(&self) -> Result<String> {
        let network =
            if self.can_unshare { "without network" } else { "WITH the host's network (unshare is not permitted)" };
        let user = if self.is_root { "as user nobody" } else { "as this user" };
        Ok(format!("child processes {user}, {network}"))
    }

    fn resolve(&self, image: &str) -> Result<ImageInfo> {
        let reference = ImageReference::parse(image)?;
        if let Some(digest) = &reference.digest {
            return self.read_image(digest, image);
        }
        let digest = fs::read_to_string(self.tag_file(&reference)).map_err(|_| image_not_found(image))?;
        self.read_image(digest.trim(), image)
    }

    fn images(&self) -> Result<Vec<ImageInfo>> {
        let mut images = Vec::new();
        for (_, digest) in self.tags() {
            // A tag whose image was deleted names nothing.
            if let Ok(image) = self.read_image(&digest, &digest) {
                images.push(image);
            }
        }
        Ok(images)
    }

    fn build(
        &self,
        context: &Path,
        manifest: &Manifest,
        template: &Template,
        options: &BuildOptions,
    ) -> Result<ImageInfo> {
        let Some(template) = &template.process else {
            return Err(Error::new(
                Kind::BuildFailed,
                format!("template \"{}\" needs a container engine", manifest.template),
            ));
        };
        if !manifest.system_packages.is_empty() {
            return Err(Error::new(Kind::BuildFailed, "the process runtime cannot install system packages")
                .with_hint("Use the docker or podman runtime."));
        }
        self.close_state_dir()?;
        let digest = format!("sha256:{}", content_of(context)?);
        let root = self.image_dir(&digest);
        if !root.join("label.json").exists() {
            self.remove_folder(&root)?;
            if let Err(error) = self.build_root(context, &root, manifest, template, options) {
                let _ = self.remove_folder(&root);
                return Err(error);
            }
        }
        let tag = self.tag_file(&ImageReference::parse(&manifest.image())?);
        make_dir(tag.parent().expect("a tag lies in the folder of its name"))?;
        write_file(&tag, &digest)?;
        self.read_image(&digest, &manifest.image())
    }

    fn was_built_here(&self, _digest: &str) -> bool {
        // There are no others.
        true
    }

    fn remove_image(&self, image: &ImageInfo) -> Result<()> {
        let folder = self.tag_file(&ImageReference::parse(&image.manifest.image())?);
        let folder = folder.parent().expect("a tag lies in the folder of its name");
        let mut has_other_name = false;
        for (tag, _) in self.tags().into_iter().filter(|(_, digest)| *digest == image.digest) {
            match tag.parent() == Some(folder) {
                true => fs::remove_file(&tag).map_err(|cause| io_error(&tag, &cause))?,
                false => has_other_name = true,
            }
        }
        if !is_digest(&image.digest) || has_other_name {
            return Ok(());
        }
        let root = self.image_dir(&image.digest);
        // An image without a label is not there.
        fs::remove_file(root.join("label.json"))
            .and_then(|()| fs::remove_dir_all(&root))
            .map_err(|cause| io_error(&root, &cause))
    }

    fn push(&self, _image: &str, _reference: &str) -> Result<String> {
        Err(no_registry())
    }

    fn pull(&self, _reference: &str, _replaces: bool) -> Result<ImageInfo> {
        Err(no_registry())
    }

    fn start(&self, spec: &ReplicaSpec) -> Result<()> {
        if !is_digest(&spec.digest) {
            return Err(image_not_found(&spec.digest));
        }
        let root = self.image_dir(&spec.digest);
        let text = fs::read_to_string(root.join("template.json")).map_err(|_| image_not_found(&spec.digest))?;
        let template: ProcessTemplate = serde_json::from_str(&text).map_err(|cause| {
            Error::new(Kind::ContainerFailed, format!("image \"{}\" is damaged: {cause}", spec.digest))
        })?;
        let environment = fs::read_link(root.join("env")).map_err(|cause| io_error(&root.join("env"), &cause))?;
        let folder = self.replica_dir(&spec.name);
        make_closed_dir(&folder)?;
        let log_path = folder.join("log");
        let log = make_file(&log_path)?;
        let second = log.try_clone().map_err(|cause| io_error(&log_path, &cause))?;
        let mut command = self.sandboxed(&spec.limits, &substitute(&template.serve, &root, &environment));
        set_environment(&mut command, &template, &root, &environment);
        command.env("TRANSSHIP_SOCKET_DIR", &spec.socket_dir).stdout(log).stderr(second);
        if let Some(directory) = &spec.segment_dir {
            command.env("TRANSSHIP_SEGMENT_DIR", directory);
        }
        let child = command.spawn().map_err(|cause| {
            Error::new(Kind::ContainerFailed, format!("could not start replica \"{}\": {cause}", spec.name))
        })?;
        let pid = i32::try_from(child.id()).expect("process numbers are positive ints");
        let record = Record {
            pid,
            started: start_time(pid).unwrap_or_default(),
            digest: spec.digest.clone(),
            socket_dir: spec.socket_dir.clone(),
        };
        self.children.lock().expect("no holder panics").insert(spec.name.clone(), child);
        write_file(&folder.join("process.json"), &serde_json::to_string(&record).expect("a record is plain data"))
    }

    fn status(&self, name: &str) -> Result<ReplicaStatus> {
        if let Some(child) = self.children.lock().expect("no holder panics").get_mut(name) {
            return match child.try_wait() {
                Ok(Some(status)) => Ok(ReplicaStatus::Ended(ending(status))),
                Ok(None) => Ok(ReplicaStatus::Running),
                Err(cause) => {
                    Err(Error::new(Kind::ContainerFailed, format!("could not look at replica \"{name}\": {cause}")))
                }
            };
        }
        // Adopted from a manager before this one.
        match self.record(name) {
            Some(record) if start_time(record.pid) == Some(record.started) => Ok(ReplicaStatus::Running),
            _ => Ok(ReplicaStatus::Ended("ended".to_string())),
        }
    }

    fn pause(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGSTOP)
    }

    fn resume(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGCONT)
    }

    fn stop(&self, name: &str) -> Result<()> {
        let record = self.record(name);
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let deadline = Instant::now() + STOP_PATIENCE;
            while self.status(name)? == ReplicaStatus::Running && Instant::now() < deadline {
                if let Some(record) = &record {
                    // It may end between the look and the signal; the next look tells.
                    let _ = kill(Pid::from_raw(record.pid), signal);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        if self.status(name)? == ReplicaStatus::Running {
            return Err(Error::new(Kind::ContainerFailed, format!("could not stop replica \"{name}\"")));
        }
        self.children.lock().expect("no holder panics").remove(name);
        let _ = fs::remove_dir_all(self.replica_dir(name));
        Ok(())
    }

    fn logs(&self, name: &str) -> Result<String> {
        let path = self.replica_dir(name).join("log");
        let text = end_of(&path).map_err(|cause| io_error(&path, &cause))?;
        Ok(last_lines(&String::from_utf8_lossy(&text), 200) + "\n")
    }

    fn bound_logs(&self) -> Result<()> {
        for entry in fs::read_dir(self.state_dir.join("replicas")).into_iter().flatten().flatten() {
            let path = entry.path().join("log");
            if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.len() > MOST_LOG_BYTES) {
                shorten(&path).map_err(|cause| io_error(&path, &cause))?;
            }
        }
        Ok(())
    }

    fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
        let mut found = Vec::new();
        let Ok(entries) = fs::read_dir(self.state_dir.join("replicas")) else {
            return Ok(found);
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(record) = self.record(&name) {
                let is_paused = is_stopped(record.pid);
                found.push(FoundReplica { name, digest: record.digest, socket_dir: record.socket_dir, is_paused });
            }
        }
        Ok(found)
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_string(),
    }
}

/// The fields of `/proc/PID/stat` behind the command's closing parenthesis (proc(5)): the third and those that follow.
fn stat_of(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_string).collect())
}

/// When a process was started; none for a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let fields = stat_of(pid)?;
    if fields.first()? == "Z" {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// Whether a signal has stopped a process.
fn is_stopped(pid: i32) -> bool {
    stat_of(pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

fn substitute(words: &[String], root: &Path, environment: &Path) -> Vec<String> {
    let replace = |word: &String| {
        word.replace("{root}", &root.to_string_lossy()).replace("{env}", &environment.to_string_lossy())
    };
    words.iter().map(replace).collect()
}

fn set_environment(command: &mut Command, template: &ProcessTemplate, root: &Path, environment: &Path) {
    for (key, value) in &template.environment {
        command.env(key, &substitute(std::slice::from_ref(value), root, environment)[0]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Variables that tell package clients how to reach their registries. Others may be secrets.
fn is_for_package_clients(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.starts_with("pip_") || lower.starts_with("ssl_cert_") || lower.ends_with("_proxy")
}

/// Copies a folder so that the replica's user may read all of it.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
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
fn make_file(path: &Path) -> Result<File> {
    let made = File::options().append(true).create_new(true).mode(0o600).open(path);
    made.map_err(|cause| io_error(path, &cause))
}

/// Waits for a lock on a file, which other processes may have as well.
fn lock_file(path: &Path, cancel: &Cancel) -> Result<Flock<File>> {
    let opened = File::options().create(true).append(true).mode(0o600).open(path);
    let mut file = opened.map_err(|cause| io_error(path, &cause))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EWOULDBLOCK)) => file = same,
            Err((_, cause)) => return Err(io_error(path, &cause.into())),
        }
        cancel.check("install the requirements")?;
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// The last bytes of a log.
fn end_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(KEPT_LOG_BYTES as u64)))?;
    let mut text = Vec::new();
    // It may grow meanwhile.
    file.take(KEPT_LOG_BYTES as u64).read_to_end(&mut text)?;
    Ok(text)
}

/// Leaves the end of a log, to which a process appends meanwhile.
fn shorten(path: &Path) -> std::io::Result<()> {
    let end = end_of(path)?;
    let mut file = File::options().append(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    file.set_len(0)?;
    file.write_all(&end)
}

/// Writes a file whole or not at all.
fn write_file(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text).and_then(|()| fs::rename(&partial, path)).map_err(|cause| io_error(path, &cause))
}

fn io_error(path: &Path, cause: &std::io::Error) -> Error {
    Error::new(Kind::ContainerFailed, format!("could not use \"{}\": {cause}", path.display()))
}

fn no_registry() -> Error {
    Error::new(Kind::InvalidDefinition, "runtime process has images of its own, which no registry takes")
        .with_hint("Use --runtime docker or podman.")
}
