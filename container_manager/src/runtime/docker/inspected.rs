//! What docker and podman say of images and containers.

use std::collections::HashMap;

use serde::Deserialize;
use udf_client::control::ImageInfo;
use udf_project::manifest::{MANIFEST_LABEL, Manifest};
use udf_types::{Error, Kind, Result};

use crate::runtime::container_runtime::ReplicaStatus;
use crate::runtime::image_store::not_a_udf_image;

/// The files that an image was built of.
pub(super) const CONTENT_LABEL: &str = "org.transship.content";
/// So many digits of the content are a tag.
pub(super) const CONTENT_TAG_DIGITS: usize = 16;
/// How a volume of an image's is mounted.
const VOLUME_OPTIONS: &str = "rw,noexec,nosuid,nodev,size=16m";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedImage {
    pub(super) id: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    /// `repository@digest` for each registry that it was pushed to or pulled from.
    #[serde(default)]
    pub(super) repo_digests: Option<Vec<String>>,
    #[serde(default)]
    pub(super) config: InspectedConfig,
}

impl InspectedImage {
    pub(super) fn udf_image(&self, name: &str) -> Result<ImageInfo> {
        let labels = self.config.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(MANIFEST_LABEL)).ok_or_else(|| not_a_udf_image(name))?;
        Ok(ImageInfo { digest: self.digest(), manifest: Manifest::from_label(label)? })
    }

    pub(super) fn digest(&self) -> String {
        // podman leaves the algorithm out.
        format!("sha256:{}", self.id.trim_start_matches("sha256:"))
    }

    /// The name that its build made of its files, if it says so rightly: anybody may have written the label.
    pub(super) fn content_name(&self, manifest: &Manifest) -> Option<String> {
        let digits = self.config.labels.as_ref()?.get(CONTENT_LABEL)?.get(..CONTENT_TAG_DIGITS)?;
        let is_right = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_right.then(|| format!("{}:{digits}", manifest.name))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedConfig {
    #[serde(default)]
    pub(super) labels: Option<HashMap<String, String>>,
    /// Folders for which the engine would make volumes on the host's disk, as keys.
    #[serde(default)]
    volumes: Option<HashMap<String, serde_json::Value>>,
}

impl InspectedConfig {
    /// Small file systems in memory in the place of the image's volumes, which would be writable, executable and without a bound
    /// on the host's disk.
    pub(super) fn mounts(&self) -> Result<Vec<String>> {
        let mut paths: Vec<&str> = self.volumes.iter().flatten().map(|(path, _)| path.as_str()).collect();
        paths.sort_unstable();
        let mounts = paths.into_iter().map(|path| {
            // It goes onto a command line, where these characters mean nothing else.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
            if !path.starts_with('/') || !path.chars().all(is_plain) || path.split('/').any(|part| part == "..") {
                return Err(Error::new(Kind::InvalidDefinition, format!("the image has a volume at \"{path}\""))
                    .with_hint("Build it without VOLUME, or with one whose path is absolute and plain."));
            }
            Ok(format!("--tmpfs={path}:{VOLUME_OPTIONS}"))
        });
        mounts.collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedContainer {
    pub(super) state: InspectedState,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedState {
    #[serde(default)]
    running: bool,
    #[serde(default)]
    exit_code: i64,
    #[serde(default)]
    paused: bool,
    #[serde(rename = "OOMKilled", default)]
    oom_killed: bool,
}

impl InspectedState {
    /// Whether it runs, or how it ended. Of a container that is paused, docker says that it runs, and podman that it does not.
    pub(super) fn status(&self) -> ReplicaStatus {
        if self.running || self.paused {
            ReplicaStatus::Running
        } else if self.oom_killed {
            ReplicaStatus::Ended("was killed because it ran out of memory".to_string())
        } else {
            ReplicaStatus::Ended(format!("exited with status {}", self.exit_code))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_container_runs() {
        let ended = |fate: &str| ReplicaStatus::Ended(fate.to_string());
        for (state, status) in [
            (r#"{"Running": true, "Paused": false, "ExitCode": 0, "OOMKilled": false}"#, ReplicaStatus::Running),
            // As docker says it, and podman.
            (r#"{"Running": true, "Paused": true, "ExitCode": 0, "OOMKilled": false}"#, ReplicaStatus::Running),
            (r#"{"Running": false, "Paused": true, "ExitCode": 0, "OOMKilled": false}"#, ReplicaStatus::Running),
            (r#"{"Running": false, "Paused": false, "ExitCode": 7}"#, ended("exited with status 7")),
            (
                r#"{"Running": false, "ExitCode": 137, "OOMKilled": true}"#,
                ended("was killed because it ran out of memory"),
            ),
        ] {
            let text = format!(r#"{{"State": {state}}}"#);
            let container: InspectedContainer = serde_json::from_str(&text).unwrap();
            assert_eq!(container.state.status(), status, "{state}");
        }
    }

    #[test]
    fn volumes_are_mounted_in_memory_or_refused() {
        let config = |path: &str| {
            serde_json::from_str::<InspectedConfig>(&serde_json::json!({"Volumes": {path: {}}}).to_string()).unwrap()
        };
        assert_eq!(config("/data/a_b-1.0").mounts().unwrap(), [format!("--tmpfs=/data/a_b-1.0:{VOLUME_OPTIONS}")]);
        for path in ["data", "/a:rw", "/a,b", "/a b", "/a/../b", "", "/ä"] {
            assert!(config(path).mounts().is_err(), "{path:?}");
        }
        assert!(serde_json::from_str::<InspectedConfig>("{}").unwrap().mounts().unwrap().is_empty());
    }
}
