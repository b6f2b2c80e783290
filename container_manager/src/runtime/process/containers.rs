//! Replicas as sandboxed child processes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use udf_types::{Error, Kind, Result};

use super::files::{io_error, make_file, write_file};
use super::images::{Served, served};
use super::sandboxed::{Sandbox, set_environment, substitute};
use crate::config::HostConfig;
use crate::kept_logs::KEPT_LOG_BYTES;
use crate::make_dir::make_closed_dir;
use crate::runtime::container_runtime::{ContainerRuntime, FoundReplica, ReplicaSpec, ReplicaStatus};
use crate::runtime::program::last_lines;

/// Time between asking a process to end and killing it.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A longer log of a running replica loses all but its end, which is looked at every second.
const MOST_LOG_BYTES: u64 = 16 << 20;

/// The child processes of this manager, and those that an earlier one left.
#[derive(Debug)]
pub(super) struct ProcessContainers {
    state_dir: PathBuf,
    sandbox: Sandbox,
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

impl ProcessContainers {
    pub(super) fn new(host: &HostConfig, sandbox: Sandbox) -> ProcessContainers {
        ProcessContainers { state_dir: host.paths.state_dir.clone(), sandbox, children: Mutex::default() }
    }

    fn replica_dir(&self, name: &str) -> PathBuf {
        self.state_dir.join("replicas").join(name)
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

    fn record(&self, name: &str) -> Option<Record> {
        let text = fs::read_to_string(self.replica_dir(name).join("process.json")).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl ContainerRuntime for ProcessContainers {
    fn name(&self) -> &str {
        "process"
    }

    fn check(&self) -> Result<String> {
        Ok(self.sandbox.describe())
    }

    fn start(&self, spec: &ReplicaSpec) -> Result<()> {
        let Served { root, template, environment } = served(&self.state_dir, &spec.digest)?;
        let folder = self.replica_dir(&spec.name);
        make_closed_dir(&folder)?;
        let log_path = folder.join("log");
        let log = make_file(&log_path)?;
        let second = log.try_clone().map_err(|cause| io_error(&log_path, &cause))?;
        let mut command = self.sandbox.command(&spec.limits, &substitute(&template.serve, &root, &environment));
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
