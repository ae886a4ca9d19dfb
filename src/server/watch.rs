//! Notices that the files of the configuration have changed: by what is in them, so that neither coarse file times nor the
//! swapped links of a mounted volume hide a change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::config::Fingerprint;

/// Between two looks. A change counts once two looks in a row have seen the same, since whoever writes a file may not
/// be done: half a file may well be a configuration, with half of the apps.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The files of the configuration.
pub(super) struct Watch {
    look: Arc<dyn Fn() -> Fingerprint + Send + Sync>,
    looks: Interval,
    /// What was last told as a change, or was there at the start.
    known: Fingerprint,
    /// What the last look saw.
    last: Fingerprint,
}

impl Watch {
    /// Watches what `look` sees; `known` is no news.
    pub(super) fn new(known: Fingerprint, look: Box<dyn Fn() -> Fingerprint + Send + Sync>) -> Self {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { look: look.into(), looks, known, last: known }
    }

    /// The files are about to be read for another reason: what is in them now is no news.
    pub(super) async fn catch_up(&mut self) {
        self.known = self.seen().await;
        self.last = self.known;
    }

    /// Waits for a change. May be dropped and called again without missing one.
    pub(super) async fn changed(&mut self) {
        loop {
            self.looks.tick().await;
            let seen = self.seen().await;
            if seen == self.last && seen != self.known {
                self.known = seen;
                return;
            }
            self.last = seen;
        }
    }

    /// What is in the files now. A look that fails has seen nothing new.
    async fn seen(&self) -> Fingerprint {
        let look = self.look.clone();
        tokio::task::spawn_blocking(move || look()).await.unwrap_or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::path::PathBuf;

    use super::*;
    use crate::config::Flags;

    /// Watches a configuration file.
    fn watch(path: Option<PathBuf>) -> Watch {
        let flags = Flags { config: path, ..Flags::default() };
        let look = move || flags.fingerprint([]);
        Watch::new(look(), Box::new(look))
    }

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
        let mut watch = watch(Some(file.clone()));
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
    async fn a_file_that_is_being_written_is_left_alone_until_it_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut watch = watch(Some(file.clone()));
        let writing = async {
            for part in 1..20 {
                fs::write(&file, "part ".repeat(part)).unwrap();
                tokio::time::sleep(LOOK_EVERY / 2).await;
            }
        };
        tokio::select! {
            () = watch.changed() => panic!("told before it was done"),
            () = writing => {}
        }
        watch.changed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_file_nothing_changes() {
        assert!(unchanged(&mut watch(None)).await);
    }
}
