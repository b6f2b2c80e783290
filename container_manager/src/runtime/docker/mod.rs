//! docker and podman: their images and their containers, through the command line that both share.

mod api;
mod build;
mod built;
mod cli;
mod containers;
mod daemon;
mod images;
mod inspected;
mod pull;
mod registry;
mod settings;

use std::sync::Arc;

use super::container_runtime::ContainerRuntime;
use super::image_store::ImageStore;
use crate::config::HostConfig;
use cli::DockerCli;
use containers::DockerContainers;
use images::DockerImages;

/// The images and the containers of `program`, which is docker or podman.
pub(super) fn open(program: &'static str, host: &HostConfig) -> (Arc<dyn ImageStore>, Arc<dyn ContainerRuntime>) {
    let cli = Arc::new(DockerCli::new(program, host));
    (Arc::new(DockerImages::new(&cli, host)), Arc::new(DockerContainers::new(&cli, host)))
}
