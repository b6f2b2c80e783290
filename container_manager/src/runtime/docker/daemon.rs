//! What the Docker daemon says of itself: how it isolates containers on this host.

use std::path::PathBuf;

use serde::Deserialize;
use udf_types::{Error, Kind, Result};

use crate::sandbox::{Owner, REPLICA_ID};

/// The members of `docker info` that count here.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Daemon {
    /// Such as `name=seccomp,profile=default`.
    security_options: Option<Vec<String>>,
    docker_root_dir: PathBuf,
    memory_limit: Option<bool>,
    pids_limit: Option<bool>,
    cpu_cfs_quota: Option<bool>,
}

impl Daemon {
    /// What follows the name of a security option; none if the daemon does not have it.
    fn option(&self, name: &str) -> Option<&str> {
        self.security_options.iter().flatten().find_map(|option| {
            let rest = option.strip_prefix("name=")?.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with(',')).then(|| rest.trim_start_matches(','))
        })
    }

    /// The replicas' user and group on this host. In user namespaces (`userns-remap`) containers have numbers of their own, and
    /// the daemon's folder has a name of the numbers that their root has here.
    pub(super) fn owner(&self) -> Result<Owner> {
        if self.option("userns").is_none() {
            return Ok(Owner::UNSHIFTED);
        }
        let name = self.docker_root_dir.file_name().unwrap_or_default().to_string_lossy();
        let shift = |number: &str| number.parse::<u32>().ok()?.checked_add(REPLICA_ID);
        let owner =
            name.split_once('.').and_then(|(user, group)| Some(Owner { user: shift(user)?, group: shift(group)? }));
        owner.ok_or_else(|| {
            let folder = self.docker_root_dir.display();
            Error::new(Kind::ContainerFailed, "could not tell which users of this host containers have").with_detail(
                format!("Docker has user namespaces, and its folder is \"{folder}\", whose name is not two numbers."),
            )
        })
    }

    /// What containers are not kept from, though the manager asks for it.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        match self.security_options.as_ref().map(|_| self.option("seccomp")) {
            Some(None) => doubts.push("containers may use all system calls: Docker has no seccomp".to_string()),
            Some(Some("profile=unconfined")) => {
                doubts.push(
                    "containers may use all system calls: Docker's seccomp profile is \"unconfined\"".to_string(),
                );
            }
            _ => {}
        }
        let limits =
            [("memory", self.memory_limit), ("processes", self.pids_limit), ("processors", self.cpu_cfs_quota)];
        let missing: Vec<&str> = limits.iter().filter(|(_, has)| *has == Some(false)).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            doubts.push(format!("the limits of containers do not hold: Docker cannot limit {}", missing.join(", ")));
        }
        doubts
    }

    /// An error if replicas could not be what the manager takes them for.
    pub(super) fn check(&self, is_root: bool) -> Result<()> {
        if is_root && self.option("rootless").is_some() {
            return Err(Error::new(
                Kind::InvalidDefinition,
                "the Docker daemon is another user's, and the manager is root",
            )
            .with_detail("The daemon is rootless: containers have numbers of its user's, which it does not tell.")
            .with_hint("Start transshipd as the user of the daemon, or give it a daemon of root's by DOCKER_HOST."));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(text: &str) -> Daemon {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn user_namespaces_shift_the_replicas_user() {
        let shifted = |folder: &str| {
            let options = r#"["name=seccomp,profile=default", "name=userns"]"#;
            daemon(&format!(r#"{{"SecurityOptions": {options}, "DockerRootDir": "{folder}"}}"#)).owner()
        };
        assert_eq!(shifted("/var/lib/docker/100000.200000").unwrap(), Owner { user: 165_534, group: 265_534 });
        for folder in ["/var/lib/docker", "/var/lib/docker/a.b", "/var/lib/docker/4294967295.0", ""] {
            assert!(shifted(folder).is_err(), "{folder}");
        }
        for plain in [
            "{}",
            r#"{"SecurityOptions": null, "DockerRootDir": "/d/1.2"}"#,
            r#"{"SecurityOptions": ["name=usernsx"]}"#,
        ] {
            assert_eq!(daemon(plain).owner().unwrap(), Owner::UNSHIFTED, "{plain}");
        }
    }

    #[test]
    fn what_does_not_hold_is_said() {
        let well = r#"{"SecurityOptions": ["name=seccomp,profile=builtin"], "MemoryLimit": true, "PidsLimit": true}"#;
        for silent in ["{}", well] {
            assert!(daemon(silent).doubts().is_empty(), "{silent}");
        }
        for (text, words) in [
            (r#"{"SecurityOptions": ["name=apparmor"]}"#, "no seccomp"),
            (r#"{"SecurityOptions": ["name=seccomp,profile=unconfined"]}"#, "unconfined"),
            (r#"{"MemoryLimit": false, "PidsLimit": true, "CpuCfsQuota": false}"#, "memory, processors"),
        ] {
            let doubts = daemon(text).doubts();
            assert!(doubts.len() == 1 && doubts[0].contains(words), "{doubts:?}");
        }
    }

    #[test]
    fn root_does_not_take_a_rootless_daemon() {
        let rootless = daemon(r#"{"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}"#);
        assert!(rootless.check(true).unwrap_err().to_string().contains("rootless"));
        assert!(rootless.check(false).is_ok() && Daemon::default().check(true).is_ok());
    }
}
