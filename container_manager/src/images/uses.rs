//! When images were last wanted, noted on disk, where later managers find it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use udf_types::{Error, Kind};

use crate::blocking::blocking;
use crate::log;

/// The use of an image is noted on disk that often.
const USE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The uses of all images.
#[derive(Debug)]
pub(super) struct Uses {
    /// Folder with a file for each image, whose time says when it was last wanted.
    folder: PathBuf,
    /// When the use of an image was last noted on disk, by digest.
    noted: Mutex<HashMap<String, Instant>>,
}

impl Uses {
    /// Those that are noted in a state folder.
    pub(super) fn new(state_dir: &Path) -> Uses {
        Uses { folder: state_dir.join("used"), noted: Mutex::default() }
    }

    /// Notes that an image is wanted.
    pub(super) async fn note(&self, digest: &str) {
        let now = Instant::now();
        {
            let mut all = self.lock();
            let noted = all.get(digest);
            if noted.is_some_and(|noted| now - *noted < USE_INTERVAL) {
                return;
            }
            all.insert(digest.to_string(), now);
        }
        let path = self.file(digest);
        let noted = blocking(move || {
            let folder = path.parent().expect("it lies in a folder");
            fs::create_dir_all(folder).and_then(|()| fs::write(&path, "")).map_err(|cause| {
                Error::new(Kind::ContainerFailed, format!("could not note the use of an image: {cause}"))
            })
        });
        if let Err(error) = noted.await {
            log::warning("use_not_noted").write(error);
        }
    }

    /// When an image was last wanted; none if it never was.
    pub(super) fn last(&self, digest: &str) -> Option<SystemTime> {
        fs::metadata(self.file(digest)).and_then(|metadata| metadata.modified()).ok()
    }

    /// Forgets an image.
    pub(super) fn forget(&self, digest: &str) {
        self.lock().remove(digest);
        let _ = fs::remove_file(self.file(digest));
    }

    fn file(&self, digest: &str) -> PathBuf {
        self.folder.join(digest.trim_start_matches("sha256:"))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.noted.lock().expect("no holder panics")
    }
}
