//! The container engine of this host, or what stands in for one: an [`ImageStore`] and a [`ContainerRuntime`]. Their methods
//! block; the manager calls them off its event loop.

pub mod container_runtime;
mod docker;
pub mod image_store;
mod process;
pub mod program;

use std::sync::Arc;

use udf_types::Result;

use crate::config::{HostConfig, RuntimeName};
use container_runtime::ContainerRuntime;
use image_store::ImageStore;

/// A container engine, or what stands in for one.
#[derive(Clone)]
pub struct ContainerEngine {
    /// What keeps its images.
    pub images: Arc<dyn ImageStore>,
    /// What runs its containers.
    pub containers: Arc<dyn ContainerRuntime>,
}

impl ContainerEngine {
    /// What replicas and builds are not kept from here, though they should be, in sentences without a period.
    pub fn doubts(&self) -> Result<Vec<String>> {
        let mut doubts = self.containers.doubts()?;
        doubts.extend(self.images.doubts());
        Ok(doubts)
    }
}

/// The container engine of that name, or the one that works here.
pub fn choose(host: &HostConfig) -> Result<ContainerEngine> {
    let (images, containers) = match host.runtime.name {
        RuntimeName::Docker => docker::open("docker", host),
        RuntimeName::Podman => docker::open("podman", host),
        RuntimeName::Process => process::open(host),
        RuntimeName::Auto if is_installed("docker") => {
            let (images, containers) = docker::open("docker", host);
            // A daemon that is only late must not make replicas less isolated.
            containers.check().map_err(|error| {
                error.with_hint("Start the docker daemon, or choose --runtime process, which isolates replicas less.")
            })?;
            (images, containers)
        }
        RuntimeName::Auto => process::open(host),
    };
    Ok(ContainerEngine { images, containers })
}

/// Whether a program is found where programs are.
fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}
