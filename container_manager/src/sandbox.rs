//! Limits and isolation: what a replica may not do, for each kind of runtime (design decision 9: locked down by
//! default, and opening anything is a visible option of the manifest).

use std::collections::HashSet;

use nix::unistd::Uid;
use udf_project::manifest::Limits;

/// The unprivileged user and group of every replica: "nobody".
pub const REPLICA_ID: u32 = 65534;

/// The user and the group of this host that a replica's processes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

impl Owner {
    /// [`REPLICA_ID`] as it is.
    pub const UNSHIFTED: Owner = Owner { user: REPLICA_ID, group: REPLICA_ID };
}

/// The users that a replica's server may run as. Whoever else answers on its socket is not the replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUsers {
    /// This one.
    Only(u32),
    /// Whatever user the container engine makes of [`REPLICA_ID`] (a user namespace has numbers of its own), but none of these.
    AnyBut(HashSet<u32>),
}

impl ServerUsers {
    /// Those of a runtime's replicas, given the users who may talk to the manager.
    pub fn of(runtime: &str, allowed: &HashSet<u32>) -> ServerUsers {
        let me = Uid::effective();
        if runtime == "process" {
            return ServerUsers::Only(if me.is_root() { REPLICA_ID } else { me.as_raw() });
        }
        let others = allowed.iter().copied().chain([0, me.as_raw()]);
        ServerUsers::AnyBut(others.filter(|user| *user != REPLICA_ID).collect())
    }

    /// Whether a user is one of them.
    pub fn contains(&self, user: u32) -> bool {
        match self {
            ServerUsers::Only(only) => user == *only,
            ServerUsers::AnyBut(others) => !others.contains(&user),
        }
    }
}

/// Arguments of `run` of docker or podman, whichever the program is; `network` is for a container that may have one, the
/// program's own if left out.
pub fn container_arguments(program: &str, limits: &Limits, network: Option<&str>) -> Vec<String> {
    let memory = format!("{}m", limits.memory_mb);
    let mut arguments: Vec<String> = [
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--tmpfs=/tmp:rw,noexec,nosuid,nodev,size=64m",
        // Nobody else's shared memory, and its own counts to its limit.
        "--ipc=private",
        "--shm-size=64m",
        "--ulimit=core=0",
        "--ulimit=nofile=4096:4096",
        // An image is called by its digest, and what is not here was never looked at.
        "--pull=never",
        // The image's author says how often a check runs, and the engine starts it outside of the container's limits.
        "--no-healthcheck",
        "--log-opt=max-size=10m",
    ]
    .map(String::from)
    .into();
    arguments.push(format!("--user={REPLICA_ID}:{REPLICA_ID}"));
    arguments.push(format!("--memory={memory}"));
    // Equal to --memory: no swap on top.
    arguments.push(format!("--memory-swap={memory}"));
    arguments.push(format!("--cpus={}", limits.cpus));
    arguments.push(format!("--pids-limit={}", limits.pids));
    let own: &[&str] = match program {
        // What a handler leaves behind is reaped. podman may have no init of its own.
        "docker" => &["--init", "--log-driver=local", "--log-opt=max-file=2"],
        _ => &["--log-driver=k8s-file"],
    };
    arguments.extend(own.iter().map(|argument| argument.to_string()));
    let network = if limits.network { network } else { Some("none") };
    if !limits.network {
        arguments.extend(without_proxies(program));
    }
    arguments.extend(network.map(|network| format!("--network={network}")));
    match (program, limits.gpus) {
        // Where NVIDIA's runtime is the engine's default, an image asks for GPUs in its own environment.
        (_, 0) => arguments.push("--env=NVIDIA_VISIBLE_DEVICES=void".to_string()),
        ("docker", gpus) => arguments.push(format!("--gpus={gpus}")),
        // podman knows GPUs by the names that NVIDIA's CDI specification has for them.
        (_, gpus) => arguments.extend((0..gpus).map(|number| format!("--device=nvidia.com/gpu={number}"))),
    }
    arguments
}

/// docker gives containers the proxies of its settings, and podman those of its environment, with their passwords. Without a
/// network, there is no use for them.
fn without_proxies(program: &str) -> Vec<String> {
    if program != "docker" {
        return vec!["--http-proxy=false".to_string()];
    }
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"];
    let both = names.iter().flat_map(|name| [name.to_string(), name.to_ascii_lowercase()]);
    both.map(|name| format!("--env={name}=")).collect()
}

/// The command prefix of a plain process: programs of util-linux that each drop something and then become the next.
/// A process shares the host's file system; only a container engine gives it one of its own.
pub fn process_prefix(limits: &Limits, is_root: bool, can_unshare: bool) -> Vec<String> {
    let mut prefix = Vec::new();
    let mut push = |words: &[&str]| prefix.extend(words.iter().map(|word| word.to_string()));
    if !limits.network && can_unshare {
        match is_root {
            true => push(&["unshare", "--net", "--ipc", "--"]),
            false => push(&["unshare", "--user", "--map-current-user", "--net", "--ipc", "--"]),
        }
    }
    push(&["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]);
    if is_root {
        let id = REPLICA_ID.to_string();
        push(&["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    let data = format!("--data={}", limits.memory_mb << 20);
    push(&["--", "prlimit", &data, "--core=0", "--nofile=4096", "--"]);
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_locked_down_unless_the_manifest_opens_them() {
        let arguments = container_arguments("docker", &Limits::default(), Some("transship"));
        for expected in [
            "--network=none",
            "--read-only",
            "--cap-drop=ALL",
            "--user=65534:65534",
            "--memory=1024m",
            "--ipc=private",
            "--pull=never",
            "--no-healthcheck",
            "--init",
        ] {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected}");
        }
        let open = Limits { network: true, ..Limits::default() };
        for (network, expected) in [(None, None), (Some("transship"), Some("--network=transship".to_string()))] {
            let mut arguments = container_arguments("docker", &open, network).into_iter();
            assert_eq!(arguments.find(|argument| argument.starts_with("--network")), expected);
        }
    }

    #[test]
    fn containers_without_a_network_get_no_proxies() {
        for (program, expected) in [("docker", "--env=https_proxy="), ("podman", "--http-proxy=false")] {
            for network in [false, true] {
                let arguments = container_arguments(program, &Limits { network, ..Limits::default() }, None);
                assert_eq!(arguments.iter().any(|argument| argument == expected), !network, "{program}");
            }
        }
    }

    #[test]
    fn containers_have_the_gpus_that_they_may_have() {
        let gpus_of = |program: &str, gpus: u32| {
            let arguments = container_arguments(program, &Limits { gpus, ..Limits::default() }, None);
            let found = arguments.into_iter().filter(|it| it.contains("gpu") || it.contains("NVIDIA"));
            found.collect::<Vec<_>>()
        };
        for program in ["docker", "podman"] {
            assert_eq!(gpus_of(program, 0), ["--env=NVIDIA_VISIBLE_DEVICES=void"]);
        }
        assert_eq!(gpus_of("docker", 2), ["--gpus=2"]);
        assert_eq!(gpus_of("podman", 2), ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]);
    }

    #[test]
    fn the_managers_own_users_are_no_replicas() {
        let allowed = HashSet::from([26, REPLICA_ID]);
        let in_containers = ServerUsers::of("docker", &allowed);
        assert!(in_containers.contains(REPLICA_ID) && in_containers.contains(165_534));
        assert!(!in_containers.contains(0) && !in_containers.contains(26));
        assert!(!in_containers.contains(Uid::effective().as_raw()));
        let processes = ServerUsers::of("process", &allowed);
        assert!(!processes.contains(26) && !processes.contains(165_534));
    }

    #[test]
    fn processes_become_nobody() {
        let prefix = process_prefix(&Limits::default(), true, true).join(" ");
        assert!(prefix.starts_with("unshare --net --ipc -- setpriv --no-new-privs"));
        assert!(prefix.contains("--reuid 65534"));
    }
}
