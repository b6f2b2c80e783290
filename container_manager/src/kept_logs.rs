//! The logs of replicas that have ended: the last of them, in a folder of the state folder, bounded in number and size.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::log;

/// Logs of so many replicas are kept.
const MOST_LOGS: usize = 100;
/// So much of the end of each log is kept.
pub const KEPT_LOG_BYTES: usize = 64 << 10;

/// The folder.
#[derive(Debug)]
pub struct KeptLogs(PathBuf);

impl KeptLogs {
    /// The logs that are kept in a state folder.
    pub fn new(state_dir: &Path) -> KeptLogs {
        KeptLogs(state_dir.join("logs"))
    }

    /// Keeps a log, and forgets the oldest.
    pub fn keep(&self, name: &str, text: &str) {
        let Some(path) = self.path_of(name).filter(|_| !text.trim().is_empty()) else { return };
        let start = text.ceil_char_boundary(text.len().saturating_sub(KEPT_LOG_BYTES));
        if let Err(cause) = self.write(&path, &text[start..]) {
            let fact = format_args!("could not keep the log of replica \"{name}\": {cause}");
            log::warning("log_not_kept").replica(name).write(fact);
        }
        let written_at =
            |entry: &fs::DirEntry| entry.metadata().and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut kept: Vec<fs::DirEntry> = fs::read_dir(&self.0).into_iter().flatten().flatten().collect();
        kept.sort_by_key(written_at);
        for old in kept.iter().take(kept.len().saturating_sub(MOST_LOGS)) {
            let _ = fs::remove_file(old.path());
        }
    }

    /// Handlers print what they are called with, which is nobody else's to read.
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        // An earlier version made it.
        fs::set_permissions(&self.0, Permissions::from_mode(0o700))?;
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    }

    /// The log of a replica that has ended, if it is kept.
    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path_of(name)?).ok()
    }

    fn path_of(&self, name: &str) -> Option<PathBuf> {
        let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_plain.then(|| self.0.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_logs_are_kept_up_to_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let logs = KeptLogs::new(folder.path());
        let long = "ü".repeat(KEPT_LOG_BYTES);
        logs.keep("first", &long);
        assert!(logs.read("first").unwrap().len() <= KEPT_LOG_BYTES);
        let mode = |path: &str| folder.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("logs"), mode("logs/first")), (0o700, 0o600));
        fs::File::open(folder.path().join("logs/first")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        for number in 0..MOST_LOGS {
            logs.keep(&format!("later-{number}"), "text");
        }
        assert_eq!(fs::read_dir(folder.path().join("logs")).unwrap().count(), MOST_LOGS);
        assert_eq!((logs.read("first"), logs.read("later-0").as_deref()), (None, Some("text")));
        fs::write(folder.path().join("secret"), "x").unwrap();
        assert_eq!(logs.read("../secret"), None);
    }
}
