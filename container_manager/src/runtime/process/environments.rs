//! The environments in which the servers of images run: what a template's commands install. Images with equal requirements share
//! one.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use udf_project::manifest::Limits;
use udf_types::{Kind, Result};

use super::files::{io_error, make_file};
use super::sandboxed::{Sandbox, substitute};
use crate::cancel::Cancel;
use crate::log;
use crate::make_dir::make_dir;
use crate::runtime::image_store::BuildOptions;
use crate::runtime::program::{run, run_within};
use crate::sandbox::REPLICA_ID;
use crate::template::ProcessTemplate;

/// Between two looks at whether another build has made an environment.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// All environments.
#[derive(Debug)]
pub(super) struct Environments {
    pub(super) folder: PathBuf,
    pub(super) sandbox: Sandbox,
    /// Longest that each of a build's programs may take.
    pub(super) timeout: Duration,
}

impl Environments {
    /// Makes the environment that `root` asks for, unless one with the same requirements exists.
    pub(super) fn prepare(&self, root: &Path, template: &ProcessTemplate, options: &BuildOptions) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for file in &template.env_files {
            hash.update(fs::read(root.join(file)).map_err(|cause| io_error(&root.join(file), &cause))?);
            hash.update([0]);
        }
        let environment = self.folder.join(&hex(&hash.finalize())[..16]);
        // Beside it: what is installed there could make the file itself, or a link in its place.
        let complete = environment.with_extension("complete");
        if complete.exists() {
            return Ok(environment);
        }
        make_dir(&self.folder)?;
        // Builds side by side may want the same.
        let _lock = lock_file(&environment.with_extension("lock"), &options.cancel)?;
        if complete.exists() {
            return Ok(environment);
        }
        remove_folder(&environment)?;
        let installed = self.install(root, &environment, template, options);
        if let Err(error) = installed {
            // What is left of it only takes room; the next build would remove it as well.
            if let Err(error) = remove_folder(&environment) {
                log::warning("environment_left").write(error);
            }
            return Err(error);
        }
        make_file(&complete)?;
        Ok(environment)
    }

    fn install(
        &self,
        root: &Path,
        environment: &Path,
        template: &ProcessTemplate,
        options: &BuildOptions,
    ) -> Result<()> {
        make_dir(environment)?;
        // Installing a package may run its code, so it happens as the replicas' user, who gets the folder meanwhile.
        self.give_folder(environment, REPLICA_ID, options)?;
        for words in &template.prepare {
            let words = substitute(words, root, environment);
            options.progress.tell(words.join(" ") + "\n");
            let mut command =
                self.sandbox.command(&Limits { network: true, memory_mb: 1 << 20, ..Limits::default() }, &words);
            command.envs(std::env::vars().filter(|(name, _)| is_for_package_clients(name)));
            self.run_for_build(&mut command, "install the requirements", options)?;
        }
        self.give_folder(environment, 0, options)?;
        self.close_folder(environment, options)
    }

    fn run_for_build(&self, command: &mut Command, what: &str, options: &BuildOptions) -> Result<()> {
        run_within(command, Kind::BuildFailed, what, self.timeout, &options.cancel).map(drop)
    }

    /// Gives a folder, with all that is in it, to another user, if this one may.
    fn give_folder(&self, folder: &Path, user: u32, options: &BuildOptions) -> Result<()> {
        if !self.sandbox.is_root {
            return Ok(());
        }
        let mut command = Command::new("chown");
        command.args(["--recursive", "--no-dereference", &format!("{user}:{user}")]).arg(folder);
        self.run_for_build(&mut command, "change the owner of a folder", options)
    }

    /// Takes the right to write in a folder from all but its owner, since what was installed may have given it.
    fn close_folder(&self, folder: &Path, options: &BuildOptions) -> Result<()> {
        let mut command = Command::new("chmod");
        // It changes nothing that a link points to.
        command.args(["--recursive", "go-w"]).arg(folder);
        self.run_for_build(&mut command, "change the mode of a folder", options)
    }
}

/// Removes a folder, if it is there, with all that a package has made in it: folders however deep, and links, which are
/// not followed.
pub(super) fn remove_folder(folder: &Path) -> Result<()> {
    let mut command = Command::new("rm");
    command.args(["--recursive", "--force", "--one-file-system", "--"]).arg(folder);
    run(&mut command, Kind::ContainerFailed, &format!("remove \"{}\"", folder.display())).map(drop)
}

/// Waits for a lock on a file, which other processes may have as well.
fn lock_file(path: &Path, cancel: &Cancel) -> Result<Flock<File>> {
    let opened = File::options().create(true).append(true).mode(0o600).open(path);
    let mut file = opened.map_err(|cause| io_error(path, &cause))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EWOULDBLOCK)) => file = same,
            Err((_, cause)) => return Err(io_error(path, &cause.into())),
        }
        cancel.check("install the requirements")?;
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// Variables that tell package clients how to reach their registries. Others may be secrets.
fn is_for_package_clients(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.starts_with("pip_") || lower.starts_with("ssl_cert_") || lower.ends_with("_proxy")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
