//! Commands of images, which run sandboxed as far as this user may.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::Uid;
use udf_project::manifest::Limits;

use crate::sandbox::process_prefix;
use crate::template::ProcessTemplate;

/// How far child processes are sandboxed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sandbox {
    pub(super) is_root: bool,
    can_unshare: bool,
}

impl Sandbox {
    /// As far as it can be here.
    pub(super) fn here() -> Sandbox {
        let is_root = Uid::effective().is_root();
        let probe = process_prefix(&Limits::default(), is_root, true);
        let can_unshare =
            Command::new(&probe[0]).args(&probe[1..]).arg("true").output().is_ok_and(|out| out.status.success());
        Sandbox { is_root, can_unshare }
    }

    /// What it keeps processes from, in a line.
    pub(super) fn describe(&self) -> String {
        let network =
            if self.can_unshare { "without network" } else { "WITH the host's network (unshare is not permitted)" };
        let user = if self.is_root { "as user nobody" } else { "as this user" };
        format!("child processes {user}, {network}")
    }

    /// A command in the sandbox.
    pub(super) fn command(&self, limits: &Limits, words: &[String]) -> Command {
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
}

/// The words of a template's command, for an image's folder and environment.
pub(super) fn substitute(words: &[String], root: &Path, environment: &Path) -> Vec<String> {
    let replace = |word: &String| {
        word.replace("{root}", &root.to_string_lossy()).replace("{env}", &environment.to_string_lossy())
    };
    words.iter().map(replace).collect()
}

pub(super) fn set_environment(command: &mut Command, template: &ProcessTemplate, root: &Path, environment: &Path) {
    for (key, value) in &template.environment {
        command.env(key, &substitute(std::slice::from_ref(value), root, environment)[0]);
    }
}
