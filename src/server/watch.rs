//! Detects changes of the configuration's files by their contents: neither coarse timestamps nor the swapped links of a
//! mounted volume hide a change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::config::Fingerprint;

/// Interval between two checks. A change counts once two checks in a row agree. A file may be half written, and half a
/// file may be a valid configuration with half of the apps.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watch of the configuration's files.
pub(super) struct Watch {
    read: Arc<dyn Fn() -> Fingerprint + Send + Sync>,
    ticks: Interval,
    /// Last reported fingerprint, or the initial one.
    known: Fingerprint,
    /// Result of the last check.
    last: Fingerprint,
}

impl Watch {
    /// Watches the results of `read`; `known` is the initial one.
    pub(super) fn new(known: Fingerprint, read: Box<dyn Fn() -> Fingerprint + Send + Sync>) -> Self {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { read: read.into(), ticks, known, last: known }
    }

    /// Takes the current contents as known, because the files are about to be read.
    pub(super) async fn catch_up(&mut self) {
        self.known = self.current().await;
        self.last = self.known;
    }

    /// Waits for a change. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            self.ticks.tick().await;
            let current = self.current().await;
            if current == self.last && current != self.known {
                self.known = current;
                return;
            }
            self.last = current;
        }
    }

    /// Reads the current fingerprint; a failed read changes nothing.
    async fn current(&self) -> Fingerprint {
        let read = self.read.clone();
        tokio::task::spawn_blocking(move || read()).await.unwrap_or(self.last)
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
        let read = move || flags.fingerprint([]);
        Watch::new(read(), Box::new(read))
    }

    async fn unchanged(watch: &mut Watch) -> bool {
        tokio::time::timeout(CHECK_INTERVAL * 4, watch.changed()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_reported_once_even_behind_a_swapped_link() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, link, file] = ["old", "new", "link", "file"].map(|name| folder.path().join(name));
        // Like a ConfigMap in Kubernetes: the file is a link into a folder that is a link.
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
        assert!(unchanged(&mut watch).await, "once, however long it is missing");
        fs::write(&file, "read again for another reason").unwrap();
        watch.catch_up().await;
        assert!(unchanged(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_not_read_while_it_is_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut watch = watch(Some(file.clone()));
        let writing = async {
            for part in 1..20 {
                fs::write(&file, "part ".repeat(part)).unwrap();
                tokio::time::sleep(CHECK_INTERVAL / 2).await;
            }
        };
        tokio::select! {
            () = watch.changed() => panic!("reported too early"),
            () = writing => {}
        }
        watch.changed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_file_is_no_change() {
        assert!(unchanged(&mut watch(None)).await);
    }
}
