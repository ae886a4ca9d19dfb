//! The newest entries of all apps, in bounded memory, behind a queue that never waits.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use oncegate_core::tenant::AppKey;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Entries that wait to be kept. Those beyond are counted, and lost.
pub(super) const QUEUED_MAX: usize = 4096;

/// Entries that are kept, of all apps.
pub(super) const KEPT_MAX: usize = 20_000;

/// An entry of an app.
pub(super) trait Entry: Clone {
    /// Returns the app whose share it counts for.
    fn app(&self) -> &AppKey;

    /// Returns its number.
    fn id(&self) -> u64;

    /// Returns it with this number.
    fn numbered(self, id: u64) -> Self;
}

/// The newest entries of a process.
pub(super) struct Newest<E> {
    sender: Sender<E>,
    queued: Mutex<Receiver<E>>,
    kept: Mutex<Kept<E>>,
    lost: AtomicU64,
}

/// Entries by app. If there are too many, the app that has the most loses its oldest.
struct Kept<E> {
    newest: u64,
    count: usize,
    by_app: HashMap<AppKey, VecDeque<E>>,
    /// Number of entries of each app.
    counts: BTreeSet<(usize, AppKey)>,
}

impl<E: Entry> Newest<E> {
    /// Returns a list without an entry.
    pub(super) fn new() -> Self {
        let (sender, queued) = channel(QUEUED_MAX);
        let kept = Kept { newest: 0, count: 0, by_app: HashMap::new(), counts: BTreeSet::new() };
        Self { sender, queued: Mutex::new(queued), kept: Mutex::new(kept), lost: AtomicU64::new(0) }
    }

    /// Adds an entry to the queue, or counts it as lost. Never waits.
    pub(super) fn note(&self, entry: E) {
        if self.sender.try_send(entry).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of entries that were lost, since too many came at once.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns up to `limit` kept entries that are wanted, the newest first.
    pub(super) fn find(&self, app: Option<&AppKey>, is_wanted: impl Fn(&E) -> bool, limit: usize) -> Vec<E> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let lists = kept.by_app.iter().filter(|(of, _)| app.is_none_or(|app| app == *of));
        let mut found: Vec<&E> =
            lists.flat_map(|(_, entries)| entries.iter().rev().filter(|entry| is_wanted(entry)).take(limit)).collect();
        found.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id()));
        found.into_iter().take(limit).cloned().collect()
    }

    /// Keeps what is in the queue. `each` sees each entry before, and may complete it.
    pub(super) fn keep(&self, mut each: impl FnMut(&mut E)) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounded, so that a flood cannot hold the locks.
        for _ in 0..QUEUED_MAX {
            let Ok(mut entry) = queued.try_recv() else { return };
            each(&mut entry);
            kept.push(entry);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).count
    }
}

impl<E: Entry> Kept<E> {
    fn push(&mut self, entry: E) {
        self.newest += 1;
        let app = entry.app().clone();
        let entry = entry.numbered(self.newest);
        self.change(&app, |entries| entries.push_back(entry));
        self.count += 1;
        if self.count > KEPT_MAX
            && let Some((_, most)) = self.counts.last().cloned()
        {
            self.change(&most, |entries| {
                entries.pop_front();
            });
            self.count -= 1;
        }
    }

    /// Changes the entries of an app, and their number.
    fn change(&mut self, app: &AppKey, change: impl FnOnce(&mut VecDeque<E>)) {
        let entries = self.by_app.entry(app.clone()).or_default();
        let before = entries.len();
        change(entries);
        let after = entries.len();
        self.counts.remove(&(before, app.clone()));
        if after == 0 {
            self.by_app.remove(app);
        } else {
            self.counts.insert((after, app.clone()));
        }
    }
}
