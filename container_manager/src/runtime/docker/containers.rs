//! Replicas as containers of docker or podman.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use udf_types::{Error, Kind, Result};

use super::built::BuiltRecords;
use super::cli::{DockerCli, says_missing};
use crate::config::HostConfig;
use crate::kept_logs::KEPT_LOG_BYTES;
use crate::log;
use crate::make_dir::make_dir;
use crate::runtime::container_runtime::{ContainerRuntime, FoundReplica, ReplicaSpec, ReplicaStatus};
use crate::runtime::image_store::image_not_found;
use crate::runtime::program::{run, run_for_tail};
use crate::sandbox::Owner;

const MANAGER_LABEL: &str = "org.transship.manager";
const SOCKET_DIR_INSIDE: &str = "/run/transship";
const SEGMENT_DIR_INSIDE: &str = "/run/transship-segments";
/// A network for docker's containers which the manager makes.
const NETWORK: &str = "transship";
/// Its containers do not reach each other (docker-network-create(1)).
const NETWORK_OPTION: &str = "--opt=com.docker.network.bridge.enable_icc=false";
/// Seconds between asking a container to end and killing it.
const STOP_PATIENCE_S: &str = "3";

/// The containers of docker or podman that this manager starts.
#[derive(Debug)]
pub(super) struct DockerContainers {
    cli: Arc<DockerCli>,
    /// Tells this manager's containers from another's.
    manager: String,
    /// That of containers which ask for one.
    network: Option<String>,
    /// Says which images were built here.
    built: BuiltRecords,
    /// Folder with a [`Record`] of each container that this manager has started, under its name.
    records: PathBuf,
}

/// What is written down of a container. Its labels could be anybody's.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    digest: String,
    socket_dir: PathBuf,
}

impl DockerContainers {
    pub(super) fn new(cli: &Arc<DockerCli>, host: &HostConfig) -> DockerContainers {
        let state_dir = &host.paths.state_dir;
        DockerContainers {
            cli: cli.clone(),
            manager: state_dir.to_string_lossy().into_owned(),
            network: host.runtime.network.clone(),
            built: BuiltRecords::new(state_dir),
            records: state_dir.join("containers"),
        }
    }

    fn read_record(&self, name: &str) -> Option<Record> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let text = is_plain.then(|| fs::read_to_string(self.records.join(name)).ok())??;
        serde_json::from_str(&text).ok()
    }

    fn write_record(&self, spec: &ReplicaSpec) -> Result<()> {
        make_dir(&self.records)?;
        let record = Record { digest: spec.digest.clone(), socket_dir: spec.socket_dir.clone() };
        let text = serde_json::to_string(&record).expect("a record is plain data");
        let path = self.records.join(&spec.name);
        fs::write(&path, text).map_err(|cause| {
            Error::new(Kind::ContainerFailed, format!("could not write \"{}\": {cause}", path.display()))
        })
    }

    /// The network of containers that ask for one; that of docker's which the manager knows is made where it is missing.
    fn open_network(&self) -> Result<Option<&str>> {
        if self.cli.program != "docker" || self.network.as_deref() != Some(NETWORK) {
            return Ok(self.network.as_deref());
        }
        let mut create = self.cli.command(["network", "create", "--driver=bridge", NETWORK_OPTION, NETWORK]);
        match run(&mut create, Kind::ContainerFailed, &format!("make network \"{NETWORK}\"")) {
            Err(error) if error.detail().is_some_and(|fact| fact.contains("already exists")) => Ok(Some(NETWORK)),
            made => made.map(|_| Some(NETWORK)),
        }
    }
}

impl ContainerRuntime for DockerContainers {
    fn name(&self) -> &str {
        self.cli.program
    }

    fn check(&self) -> Result<String> {
        self.cli.check()
    }

    fn doubts(&self) -> Result<Vec<String>> {
        Ok(self.cli.daemon()?.doubts())
    }

    fn owner(&self) -> Result<Owner> {
        self.cli.daemon()?.owner()
    }

    fn may_have_gpus(&self, digest: &str) -> bool {
        self.built.read(digest).is_some()
    }

    fn start(&self, spec: &ReplicaSpec) -> Result<()> {
        let mut command = self.cli.command(["run", "--detach", "--name", &spec.name]);
        let network = if spec.limits.network { self.open_network()? } else { None };
        command.args(self.cli.locks(&spec.limits, network));
        command.args(self.cli.inspect_image(&spec.digest)?.config.mounts()?);
        command.arg(format!("--volume={}:{SOCKET_DIR_INSIDE}", spec.socket_dir.display()));
        command.arg(format!("--env=TRANSSHIP_SOCKET_DIR={SOCKET_DIR_INSIDE}"));
        if let Some(directory) = &spec.segment_dir {
            command.arg(format!("--volume={}:{SEGMENT_DIR_INSIDE}", directory.display()));
            command.arg(format!("--env=TRANSSHIP_SEGMENT_DIR={SEGMENT_DIR_INSIDE}"));
        }
        command.arg(format!("--label={MANAGER_LABEL}={}", self.manager));
        command.arg(&spec.digest);
        self.write_record(spec)?;
        run(&mut command, Kind::ContainerFailed, &format!("start container \"{}\"", spec.name)).map(drop).map_err(
            |error| {
                if says_missing(&error) { image_not_found(&spec.digest) } else { error }
            },
        )
    }

    fn status(&self, name: &str) -> Result<ReplicaStatus> {
        let Some(container) = self.cli.inspect_container(name)? else {
            return Ok(ReplicaStatus::Ended("was removed".to_string()));
        };
        Ok(container.state.status())
    }

    fn pause(&self, name: &str) -> Result<()> {
        run(&mut self.cli.command(["pause", name]), Kind::ContainerFailed, &format!("pause container \"{name}\""))
            .map(drop)
    }

    fn resume(&self, name: &str) -> Result<()> {
        // A call waits for this one, and starting the command line takes longer than resuming.
        if let Some(api) = &self.cli.api
            && api.unpause(name)?
        {
            return Ok(());
        }
        let mut command = self.cli.command(["unpause", name]);
        run(&mut command, Kind::ContainerFailed, &format!("resume container \"{name}\"")).map(drop)
    }

    fn stop(&self, name: &str) -> Result<()> {
        let mut stop = self.cli.command(["stop", "--time", STOP_PATIENCE_S, name]);
        let mut remove = self.cli.command(["rm", "--force", "--volumes", name]);
        for command in [&mut stop, &mut remove] {
            match run(command, Kind::ContainerFailed, &format!("stop container \"{name}\"")) {
                Err(error) if !says_missing(&error) => return Err(error),
                _ => {}
            }
        }
        let _ = fs::remove_file(self.records.join(name));
        Ok(())
    }

    fn logs(&self, name: &str) -> Result<String> {
        let mut command = self.cli.command(["logs", "--tail", "200", name]);
        run_for_tail(&mut command, &format!("read the log of \"{name}\""), KEPT_LOG_BYTES)
    }

    fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
        let filter = format!("label={MANAGER_LABEL}={}", self.manager);
        let format = "{{.Names}} {{.Status}}";
        // The list says all that is needed: a container that cannot be inspected hides no other, and is stopped if it is broken.
        let mut command = self.cli.command(["container", "ls", "--all", "--filter", &filter, "--format", format]);
        let mut found = Vec::new();
        for line in run(&mut command, Kind::ContainerFailed, "list containers")?.lines() {
            let (name, status) = line.split_once(' ').unwrap_or((line, ""));
            let (name, is_paused) = (name.to_string(), says_paused(status));
            let Some(Record { digest, socket_dir }) = self.read_record(&name) else {
                let fact =
                    format_args!("left container \"{name}\" alone: it has this manager's label, but not its record");
                log::warning("container_ignored").replica(&name).write(fact);
                continue;
            };
            found.push(FoundReplica { name, digest, socket_dir, is_paused });
        }
        Ok(found)
    }
}

/// Whether a container is paused, by its status in a list: `Up 2 hours (Paused)` of docker's, `Paused` of podman's.
fn says_paused(status: &str) -> bool {
    status.to_ascii_lowercase().contains("paused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_tells_paused_containers() {
        for status in ["Up 2 hours (Paused)", "Paused", "paused"] {
            assert!(says_paused(status), "{status}");
        }
        for status in ["Up 2 hours", "Exited (0) 3 seconds ago", "Created", ""] {
            assert!(!says_paused(status), "{status}");
        }
    }
}
