//! What all chains of a process share: the journal, opened when it is first needed, the overlaps, and what is measured.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::super::journal::entry::{Entry, Seq};
use super::super::journal::{self, Bounds, Journal, OpenError, Recovered, Refused, Waiting};
use super::overlaps::Noticed;
use crate::domain::attempt::Attempt;
use crate::domain::clock::Clock;
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::overlap::{Overlap, Overlaps};
use crate::domain::record::Key;
use crate::domain::spool::{Spool, SpoolStatus};
use crate::domain::tenant::AppKey;
use crate::telemetry::metrics::outage::{OutageMetrics, Policy};

/// The journal of a process, and what is made known of it.
pub struct Keeper {
    folder: PathBuf,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
    journal: OnceCell<Journal>,
    /// What the journal held when it was opened, until the chain that it is of takes it.
    found: Mutex<Vec<(Seq, Entry)>>,
    noticed: Noticed,
    metrics: OutageMetrics,
    /// Whether the journal did not take what it was last handed, which the log has been told of.
    told: AtomicBool,
}

impl Keeper {
    /// A keeper whose journal is in the folder of what a gateway must not lose. Touches nothing yet.
    pub fn new(data_dir: &Path, bounds: Bounds, clock: Arc<dyn Clock>) -> Self {
        Self {
            folder: data_dir.join(journal::FOLDER),
            bounds,
            clock,
            journal: OnceCell::new(),
            found: Mutex::default(),
            noticed: Noticed::default(),
            metrics: OutageMetrics::default(),
            told: AtomicBool::new(false),
        }
    }

    /// A keeper of a journal that is open already, and in no folder.
    #[cfg(any(test, feature = "test-util"))]
    pub fn over(journal: Journal, recovered: Recovered, clock: Arc<dyn Clock>) -> Self {
        let keeper = Self {
            journal: OnceCell::new_with(Some(journal)),
            ..Self::new(Path::new(""), Bounds { bytes: 0, app_bytes: 0 }, clock)
        };
        keeper.take_in(recovered);
        keeper
    }

    /// Whether there is a journal, of this process or of an earlier one.
    pub fn is_there(&self) -> bool {
        self.folder.is_dir()
    }

    /// Opens the journal and reads it, if that has not been done.
    ///
    /// # Errors
    /// What is wrong with its folder, and what to do.
    pub async fn open(&self) -> Result<(), OpenError> {
        self.opened().await.map(drop)
    }

    /// Checks that an earlier run has left a journal.
    ///
    /// # Errors
    /// There is none.
    pub fn check_left_behind(&self) -> Result<(), OpenError> {
        if self.is_there() { Ok(()) } else { Err(OpenError::Absent(self.folder.clone())) }
    }

    async fn opened(&self) -> Result<&Journal, OpenError> {
        let open = async || {
            let (folder, bounds) = (self.folder.clone(), self.bounds);
            let opened = tokio::task::spawn_blocking(move || Journal::open(&folder, bounds)).await;
            let lost = |error| OpenError::Io { path: self.folder.clone(), source: std::io::Error::other(error) };
            let (journal, recovered) = opened.map_err(lost)??;
            self.take_in(recovered);
            self.show(&journal);
            Ok(journal)
        };
        self.journal.get_or_try_init(open).await
    }

    fn take_in(&self, recovered: Recovered) {
        let Recovered { entries, overlaps, damaged } = recovered;
        if let Some((count, aside)) = damaged {
            self.metrics.journal_failed();
            tracing::error!(
                journal.entries_damaged = count,
                journal.copy = %aside.display(),
                "entries of the journal were damaged on the disk and cannot be delivered; look at the copy of its file"
            );
        }
        if !entries.is_empty() {
            tracing::info!(
                journal.entries = entries.len(),
                "what an earlier run answered in a store's place waits for it"
            );
        }
        for overlap in overlaps {
            self.noticed.add(overlap);
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// Takes out what the journal held of a chain when it was opened, oldest first.
    pub(super) fn found_of(&self, chain: &str) -> Vec<(Seq, Entry)> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let (of_chain, others) = found.drain(..).partition(|(_, entry)| &*entry.chain == chain);
        *found = others;
        of_chain
    }

    /// The chains that nobody has taken the entries of: the configuration has them no more.
    pub fn chains_left(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chains: Vec<_> = found.iter().map(|(_, entry)| entry.chain.to_string()).collect();
        chains.sort_unstable();
        chains.dedup();
        chains
    }

    /// What the journal held and no chain has taken.
    pub fn left(&self) -> Vec<Entry> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().map(|(_, entry)| entry.clone()).collect()
    }

    /// Puts an entry into the journal.
    pub(super) async fn keep(&self, entry: &Entry) -> Result<Seq, Refused> {
        let kept = match self.opened().await {
            Ok(journal) => journal.keep(entry).await,
            Err(error) => Err(Refused::Broken(error.to_string())),
        };
        self.note(kept.as_ref().err());
        self.measure();
        kept
    }

    /// Forgets entries that the store has been told of, and reports the overlaps that came to light.
    pub(super) async fn delivered(&self, seqs: Vec<Seq>, overlaps: Vec<Overlap>) {
        // Nothing is delivered that was not in the journal.
        let Some(journal) = self.journal.get() else { return };
        let (mut new, mut outdated) = (Vec::new(), Vec::new());
        for overlap in overlaps {
            let overlap = Overlap { id: journal.next_number(), ..overlap };
            if let Some(gone) = self.noticed.add(overlap.clone()) {
                self.report(&overlap);
                new.push(overlap);
                outdated.extend(gone);
            }
        }
        let written = journal.delivered(seqs, new, outdated).await;
        self.note(written.as_ref().err());
        self.measure();
    }

    fn report(&self, overlap: &Overlap) {
        self.metrics.overlapped(overlap.app.as_ref(), label(overlap.policy));
        tracing::warn!(
            app.key = %overlap.app,
            claim.global_id = %overlap.global_id,
            policy = overlap.policy.name(),
            ours.timestamp = overlap.ours.timestamp.as_micros(),
            ours.hash = %overlap.ours.hash,
            theirs.timestamp = overlap.theirs.timestamp.as_micros(),
            theirs.hash = %overlap.theirs.hash,
            "two attempts were told to go ahead with one operation, because its store was out"
        );
    }

    /// Reports an attempt whose success or unknown outcome a policy took, and the store refused: another attempt holds the
    /// claim. The gateway reports those that a caller was told of.
    pub(super) fn suspect(&self, key: &Key, attempt: &Attempt) {
        self.metrics.suspected(key.app.as_ref());
        tracing::warn!(
            app.key = %key.app,
            claim.global_id = %key.global_id,
            attempt.hash = %attempt.hash(),
            "an attempt that did not hold its claim when the store was back had reported that it ran: a suspected double \
             execution"
        );
    }

    /// Counts an answer given in a store's place.
    pub(super) fn answered(&self, app: &AppKey, policy: OutagePolicy) {
        self.metrics.answered(app.as_ref(), label(policy));
    }

    /// Keeps the gauges of what waits; at every change, and now and then since the oldest gets older.
    pub fn measure(&self) {
        if let Some(journal) = self.journal.get() {
            self.show(journal);
        }
    }

    fn show(&self, journal: &Journal) {
        let waiting = journal.waiting();
        self.metrics.waiting(waiting.entries, waiting.bytes, waiting.oldest_age(self.clock.wall()));
    }

    /// How many entries wait for stores.
    pub fn waiting(&self) -> usize {
        self.journal.get().map_or(0, |journal| journal.waiting().entries)
    }

    /// Lets go of the journal's folder. What comes later is refused.
    pub async fn close(&self) {
        if let Some(journal) = self.journal.get() {
            journal.close().await;
        }
    }

    /// Counts failures, and tells the first of a row.
    fn note(&self, refused: Option<&Refused>) {
        let Some(refused) = refused else {
            self.told.store(false, Ordering::Relaxed);
            return;
        };
        self.metrics.journal_failed();
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::error!(error = %refused, "the journal does not take what is to be answered in a store's place");
        }
    }
}

/// The policy as it is counted.
fn label(policy: OutagePolicy) -> Policy {
    match policy {
        OutagePolicy::Local => Policy::Local,
        OutagePolicy::FailOpen => Policy::FailOpen,
        OutagePolicy::Spool => Policy::Spool,
    }
}

impl Spool for Keeper {
    fn status(&self) -> SpoolStatus {
        let Waiting { entries, bytes, oldest } = self.journal.get().map(Journal::waiting).unwrap_or_default();
        let takes = !self.told.load(Ordering::Relaxed);
        SpoolStatus { entries, bytes, bytes_max: self.bounds.bytes, oldest_at: oldest, takes }
    }
}

impl Overlaps for Keeper {
    fn newest(&self, app: Option<&AppKey>, before: Option<u64>, limit: usize) -> Vec<Overlap> {
        self.noticed.newest(app, before, limit)
    }
}
