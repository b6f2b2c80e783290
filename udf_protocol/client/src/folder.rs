//! The folders of a replica's sockets and segments, as a lease opens them. The manager lets nobody else in: their names alone,
//! which other processes may come to see, open nothing.

use std::hash::{Hash, Hasher};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder, by its name, or by a descriptor that was opened for this process. Folders of one name and one lease are equal.
#[derive(Debug, Clone)]
pub struct Folder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: PathBuf,
    descriptor: Option<OwnedFd>,
    /// What the names of files begin with that are made here.
    prefix: String,
}

impl Folder {
    /// One that this process reaches by its name.
    pub fn named(name: impl Into<PathBuf>) -> Folder {
        Folder::leased(name, None, String::new())
    }

    /// One of a lease, by the descriptor that came with it, for files whose names begin with `prefix`. The name is then for
    /// messages.
    pub(crate) fn leased(name: impl Into<PathBuf>, descriptor: Option<OwnedFd>, prefix: String) -> Folder {
        Folder(Arc::new(Inner { name: name.into(), descriptor, prefix }))
    }

    /// Its name.
    pub fn name(&self) -> &Path {
        &self.0.name
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// A path by which it can be used, for as long as this or a clone of it lives.
    pub fn path(&self) -> PathBuf {
        match &self.0.descriptor {
            Some(descriptor) => PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd())),
            None => self.0.name.clone(),
        }
    }

    /// The same of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl PartialEq for Folder {
    fn eq(&self, other: &Folder) -> bool {
        (self.name(), self.prefix()) == (other.name(), other.prefix())
    }
}

impl Eq for Folder {}

impl Hash for Folder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name(), self.prefix()).hash(state);
    }
}
