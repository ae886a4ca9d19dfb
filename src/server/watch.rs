//! Notices that the configuration file has changed: by what is in it, so that neither coarse file times nor the swapped
//! links of a mounted volume hide a change.

use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Between two looks. A change counts once two looks in a row have seen the same, since whoever writes the file may not
/// be done: half a file may well be a configuration, with half of the apps.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is in the file, or that it cannot be read.
type Seen = Option<[u8; 32]>;

/// The configuration file, if there is one.
pub(super) struct Watch {
    path: Option<PathBuf>,
    looks: Interval,
    /// What was last told as a change, or was there at the start.
    known: Seen,
    /// What the last look saw.
    last: Seen,
}

impl Watch {
    /// Watches a file; for ever nothing changes where there is none.
    pub(super) async fn new(path: Option<PathBuf>) -> Self {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let known = look(path.clone()).await;
        Self { path, looks, known, last: known }
    }

    /// The file is about to be read for another reason: what is in it now is no news.
    pub(super) async fn catch_up(&mut self) {
        self.known = look(self.path.clone()).await;
        self.last = self.known;
    }

    /// Waits for a change. May be dropped and called again without missing one.
    pub(super) async fn changed(&mut self) {
        loop {
            self.looks.tick().await;
            if self.path.is_none() {
                std::future::pending::<()>().await;
            }
            let seen = look(self.path.clone()).await;
            if seen == self.last && seen != self.known {
                self.known = seen;
                return;
            }
            self.last = seen;
        }
    }
}

/// What is in the file now.
async fn look(path: Option<PathBuf>) -> Seen {
    let content = tokio::fs::read(path?).await.ok()?;
    Some(Sha256::digest(content).into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn unchanged(watch: &mut Watch) -> bool {
        tokio::time::timeout(LOOK_EVERY * 4, watch.changed()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_once_and_a_swapped_link_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, link, file] = ["old", "new", "link", "file"].map(|name| folder.path().join(name));
        // As Kubernetes mounts a ConfigMap: the file is a link into a folder that is a link.
        for (version, text) in [(&old, "old"), (&new, "new")] {
            fs::create_dir(version).unwrap();
            fs::write(version.join("file"), text).unwrap();
        }
        std::os::unix::fs::symlink(&old, &link).unwrap();
        std::os::unix::fs::symlink(link.join("file"), &file).unwrap();
        let mut watch = Watch::new(Some(file.clone())).await;
        assert!(unchanged(&mut watch).await);
        let swapped = folder.path().join("swapped");
        std::os::unix::fs::symlink(&new, &swapped).unwrap();
        fs::rename(&swapped, &link).unwrap();
        watch.changed().await;
        assert!(unchanged(&mut watch).await);

        fs::remove_file(&file).unwrap();
        watch.changed().await;
        assert!(unchanged(&mut watch).await, "once, however long it is gone");
        fs::write(&file, "read again for another reason").unwrap();
        watch.catch_up().await;
        assert!(unchanged(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_file_nothing_changes() {
        assert!(unchanged(&mut Watch::new(None).await).await);
    }
}
