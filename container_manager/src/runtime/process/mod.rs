//! Images as folders and replicas as sandboxed child processes, for machines without a container engine and for debugging a
//! handler.

mod containers;
mod environments;
mod files;
mod images;
mod sandboxed;

use std::sync::Arc;

use super::container_runtime::ContainerRuntime;
use super::image_store::ImageStore;
use crate::config::HostConfig;
use containers::ProcessContainers;
use images::ProcessImages;
use sandboxed::Sandbox;

/// The images and the replicas that are folders and processes of this host.
pub(super) fn open(host: &HostConfig) -> (Arc<dyn ImageStore>, Arc<dyn ContainerRuntime>) {
    let sandbox = Sandbox::here();
    (Arc::new(ProcessImages::new(host, sandbox)), Arc::new(ProcessContainers::new(host, sandbox)))
}
