//! The settings with which docker or podman gives an image to a registry or gets it from there: of logins, only the caller's.
//! That is kept in memory, in a file that has no name and goes with its last descriptor.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::{Value, json};
use tempfile::TempDir;
use udf_client::registry_login::RegistryLogin;
use udf_types::{Error, Kind, Result};

use super::api::{DEFAULT_CONTEXT, current_context, settings_folder};
use crate::registry_name::keys_of;

/// Settings of one command, which has ended when this is dropped.
pub(super) struct Settings {
    /// With a link to the file.
    folder: TempDir,
    _file: File,
}

impl Settings {
    /// With this login, and no other, at the registry of a reference.
    pub(super) fn with(login: Option<&RegistryLogin>, reference: &str) -> Result<Settings> {
        let of_manager = settings_folder();
        let context = of_manager.as_deref().and_then(current_context).filter(|context| context != DEFAULT_CONTEXT);
        let text = describe(login, reference, context.as_deref()).to_string();
        Settings::make(&text, of_manager.as_deref()).map_err(|cause| {
            Error::new(Kind::ContainerFailed, format!("could not write the settings of a transfer: {cause}"))
        })
    }

    fn make(text: &str, of_manager: Option<&Path>) -> std::io::Result<Settings> {
        // Programs that run beside get no descriptor of it.
        let mut file = File::from(memfd_create(c"transship-settings", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(text.as_bytes())?;
        let folder = tempfile::tempdir()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        std::os::unix::fs::symlink(path, folder.path().join("config.json"))?;
        // How to reach daemons elsewhere stays as it is.
        if let Some(contexts) = of_manager.map(|folder| folder.join("contexts")).filter(|folder| folder.is_dir()) {
            std::os::unix::fs::symlink(contexts, folder.path().join("contexts"))?;
        }
        Ok(Settings { folder, _file: file })
    }

    /// Has a command of docker or podman use them.
    pub(super) fn apply(&self, command: &mut Command) {
        command.env("DOCKER_CONFIG", self.folder.path());
        command.env("REGISTRY_AUTH_FILE", self.folder.path().join("config.json"));
        // Docker looks for certificates beside its settings, unless they are somewhere else.
        if std::env::var_os("DOCKER_CERT_PATH").is_none() {
            command.envs(settings_folder().map(|folder| ("DOCKER_CERT_PATH", folder)));
        }
    }
}

fn describe(login: Option<&RegistryLogin>, reference: &str, context: Option<&str>) -> Value {
    let mut settings = json!({"auths": {}});
    if let Some(context) = context {
        settings["currentContext"] = json!(context);
    }
    if let Some(RegistryLogin { user, secret, is_token }) = login {
        let entry = match is_token {
            true => json!({"auth": BASE64.encode(format!("{user}:")), "identitytoken": secret}),
            false => json!({"auth": BASE64.encode(format!("{user}:{secret}"))}),
        };
        for key in keys_of(reference) {
            settings["auths"][key] = entry.clone();
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(is_token: bool) -> RegistryLogin {
        RegistryLogin { user: "founder".to_string(), secret: "s3:cret".to_string(), is_token }
    }

    #[test]
    fn a_login_is_for_its_registry_alone() {
        let auth = BASE64.encode("founder:s3:cret");
        assert_eq!(
            describe(Some(&login(false)), "registry.example:5000/team/a:1", Some("other")),
            json!({"auths": {"registry.example:5000": {"auth": auth}}, "currentContext": "other"})
        );
        let token = json!({"auth": BASE64.encode("founder:"), "identitytoken": "s3:cret"});
        assert_eq!(
            describe(Some(&login(true)), "team/a:1", None),
            json!({"auths": {"https://index.docker.io/v1/": token, "docker.io": token}})
        );
        assert_eq!(describe(None, "registry.example/a", None), json!({"auths": {}}));
    }

    #[test]
    fn settings_are_read_by_a_program_and_lie_on_no_disk() {
        let text = describe(Some(&login(false)), "registry.example/a", None).to_string();
        let settings = Settings::make(&text, None).unwrap();
        let mut command = Command::new("sh");
        settings.apply(command.args([
            "-c",
            "cat \"$DOCKER_CONFIG/config.json\" && cmp -s \"$REGISTRY_AUTH_FILE\" \"$DOCKER_CONFIG/config.json\"",
        ]));
        let output = command.output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        let folder = settings.folder.path().to_path_buf();
        let kept = std::fs::read_dir(&folder).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_file());
        assert_eq!(kept.count(), 0);
        drop(settings);
        assert!(!folder.exists());
    }
}
