//! The outage journal of a process, which all its chains share: the journal itself, opened when it is first needed, the
//! suspects, and metrics.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oncegate_core::clock::Clock;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::spool::{SpoolFilter, SpoolStatus, SpooledEntry};
use oncegate_core::suspect::{Cause, Check, Suspect, SuspectFilter, UncheckedSuspects};
use oncegate_core::tenant::AppKey;
use oncegate_telemetry::metrics::outage::{OutageMetrics, Policy};
use tokio::sync::OnceCell;

use super::journal::{self, Bounds, Journal, JournalError, JournalOpenError, Recovered, Waiting};
use super::suspects::{Added, Suspects};
use oncegate_core::outage::entry::{Entry, Seq};

/// The outage journal of a process, with its suspects and metrics.
pub struct OutageJournal {
    folder: PathBuf,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
    journal: OnceCell<Journal>,
    /// Entries that the journal held when it was opened, until their chain takes them.
    recovered: Mutex<Vec<(Seq, Entry)>>,
    suspects: Suspects,
    /// Number of the latest suspect that is in no journal.
    unwritten: AtomicU64,
    metrics: OutageMetrics,
    /// True if the last write failed. Only the first failure in a row is logged.
    is_failing: AtomicBool,
}

impl OutageJournal {
    /// Returns the journal of a data folder. Touches no file yet.
    pub fn new(data_dir: &Path, bounds: Bounds, clock: Arc<dyn Clock>) -> Self {
        Self {
            folder: data_dir.join(journal::FOLDER),
            bounds,
            clock,
            journal: OnceCell::new(),
            recovered: Mutex::default(),
            suspects: Suspects::default(),
            unwritten: AtomicU64::new(0),
            metrics: OutageMetrics::default(),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Returns an outage journal over a journal that is open, and in no folder.
    #[cfg(any(test, feature = "test-util"))]
    pub fn over(journal: Journal, recovered: Recovered, clock: Arc<dyn Clock>) -> Self {
        let journal = Self {
            journal: OnceCell::new_with(Some(journal)),
            ..Self::new(Path::new(""), Bounds { bytes: 0, app_bytes: 0 }, clock)
        };
        journal.take_recovered(recovered);
        journal
    }

    /// Reports whether the journal's folder exists, from this process or from an earlier one.
    pub fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Opens the journal and reads it, if that has not been done.
    ///
    /// # Errors
    /// The folder cannot be used; the error says why, and what to do.
    pub async fn open(&self) -> Result<(), JournalOpenError> {
        self.opened_journal().await.map(drop)
    }

    /// Checks that an earlier run has left a journal.
    ///
    /// # Errors
    /// There is none.
    pub fn check_exists(&self) -> Result<(), JournalOpenError> {
        if self.exists() { Ok(()) } else { Err(JournalOpenError::Absent(self.folder.clone())) }
    }

    async fn opened_journal(&self) -> Result<&Journal, JournalOpenError> {
        let open = async || {
            let (folder, bounds) = (self.folder.clone(), self.bounds);
            let opened = tokio::task::spawn_blocking(move || Journal::open(&folder, bounds)).await;
            let lost = |error| JournalOpenError::Io { path: self.folder.clone(), source: std::io::Error::other(error) };
            let (journal, recovered) = opened.map_err(lost)??;
            self.take_recovered(recovered);
            self.set_gauges(&journal);
            Ok(journal)
        };
        self.journal.get_or_try_init(open).await
    }

    fn take_recovered(&self, recovered: Recovered) {
        let Recovered { entries, suspects, damaged } = recovered;
        if let Some((count, aside)) = damaged {
            self.metrics.journal_failed();
            tracing::error!(
                journal.entries_damaged = count,
                journal.copy = %aside.display(),
                "The journal has damaged entries, which cannot be delivered; look at the copy of its file"
            );
        }
        if !entries.is_empty() {
            tracing::info!(
                journal.entries = entries.len(),
                "The journal has entries of an earlier run; they will be delivered to their stores"
            );
        }
        for suspect in suspects {
            self.suspects.add(suspect);
        }
        *self.recovered.lock().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    /// Takes the recovered entries of a chain, oldest first.
    pub(super) fn take_entries_of(&self, chain: &str) -> Vec<(Seq, Entry)> {
        let mut recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let (of_chain, others) = recovered.drain(..).partition(|(_, entry)| &*entry.chain == chain);
        *recovered = others;
        of_chain
    }

    /// Returns the chains whose recovered entries were not taken: the configuration does not have them.
    pub fn unconfigured_chains(&self) -> Vec<String> {
        let recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chains: Vec<_> = recovered.iter().map(|(_, entry)| entry.chain.to_string()).collect();
        chains.sort_unstable();
        chains.dedup();
        chains
    }

    /// Returns up to `limit` of the recovered entries that no chain has taken, oldest first.
    pub fn unconfigured_entries(&self, filter: &SpoolFilter, limit: usize) -> Vec<SpooledEntry> {
        let recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let passing = recovered.iter().filter(|(seq, entry)| filter.passes(*seq, entry.app()));
        passing.take(limit).map(|(seq, entry)| entry.shown(*seq, None)).collect()
    }

    /// Appends an entry. Once this returns, it is on the disk.
    pub(super) async fn append(&self, entry: &Entry) -> Result<Seq, JournalError> {
        let appended = match self.opened_journal().await {
            Ok(journal) => journal.append(entry).await,
            Err(error) => Err(JournalError::Broken(error.to_string())),
        };
        self.note_failure(appended.as_ref().err());
        self.update_gauges();
        appended
    }

    /// Removes delivered entries, and reports the suspects that their delivery found.
    pub(super) async fn remove_delivered(&self, seqs: Vec<Seq>, suspects: Vec<Suspect>) {
        // Only entries of the journal are delivered.
        let Some(journal) = self.journal.get() else { return };
        self.write_suspects(journal, seqs, suspects).await;
    }

    /// Reports a suspect, and keeps it. Once this returns, it is on the disk, unless the data folder cannot be used. The work goes
    /// on if the caller gives up.
    pub async fn report(self: &Arc<Self>, suspect: Suspect) {
        let this = self.clone();
        let work = tokio::spawn(async move {
            // The process has locked the data folder at its start. Without a folder, suspects are kept in memory.
            let has_folder = this.journal.initialized() || this.folder.parent().is_some_and(Path::is_dir);
            let opened = if has_folder {
                this.opened_journal().await
            } else {
                Err(JournalOpenError::Absent(this.folder.clone()))
            };
            match opened {
                Ok(journal) => this.write_suspects(journal, Vec::new(), vec![suspect]).await,
                Err(error) => {
                    this.note_failure(has_folder.then(|| JournalError::Broken(error.to_string())).as_ref());
                    this.add_suspect(&Suspect { id: this.number_without_journal(), ..suspect });
                }
            }
        });
        // A panic in it is logged by the runtime.
        drop(work.await);
    }

    /// Adds suspects to the list and to the journal, and removes delivered entries.
    async fn write_suspects(&self, journal: &Journal, seqs: Vec<Seq>, suspects: Vec<Suspect>) {
        let (mut new, mut outdated) = (Vec::new(), Vec::new());
        for suspect in suspects {
            let suspect = Suspect { id: journal.next_number(), ..suspect };
            if let Added::New(gone) = self.add_suspect(&suspect) {
                new.push(suspect);
                outdated.extend(gone.map(|gone| gone.id));
            }
        }
        if seqs.is_empty() && new.is_empty() {
            return;
        }
        let written = journal.remove_delivered(seqs, new, outdated).await;
        self.note_failure(written.as_ref().err());
        self.update_gauges();
    }

    /// Adds a suspect to the list, and reports it if it is new.
    fn add_suspect(&self, suspect: &Suspect) -> Added {
        let added = self.suspects.add(suspect.clone());
        if let Added::New(gone) = &added {
            self.log_suspect(suspect);
            if let Some(gone) = gone.as_ref().filter(|gone| gone.checked.is_none()) {
                self.metrics.suspect_dropped(gone.app.as_ref());
            }
        }
        added
    }

    /// Returns a number for a suspect while no journal gives numbers.
    fn number_without_journal(&self) -> u64 {
        let now = self.clock.wall().as_micros();
        let next = |latest: u64| now.max(latest + 1);
        self.unwritten.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| Some(next(latest))).map_or(now, next)
    }

    fn log_suspect(&self, suspect: &Suspect) {
        if let (Cause::Overlap(policy), Some(theirs)) = (suspect.cause, suspect.theirs) {
            self.metrics.overlapped(suspect.app.as_ref(), label(policy));
            tracing::warn!(
                app.key = %suspect.app,
                claim.global_id = %suspect.global_id,
                policy = policy.name(),
                ours.timestamp = suspect.ours.timestamp.as_micros(),
                ours.hash = %suspect.ours.hash,
                theirs.timestamp = theirs.timestamp.as_micros(),
                theirs.hash = %theirs.hash,
                "Two attempts were granted the same operation while its store was unavailable"
            );
        } else {
            self.metrics.suspected(suspect.app.as_ref());
            tracing::warn!(
                app.key = %suspect.app,
                claim.global_id = %suspect.global_id,
                attempt.hash = %suspect.ours.hash,
                "An attempt that did not hold its claim reported that it ran: a suspected double execution; `oncegate \
                 suspects list` has all of them"
            );
        }
    }

    /// Returns up to `limit` suspects, in the order of the filter.
    pub fn suspects(&self, filter: &SuspectFilter, limit: usize) -> Vec<Suspect> {
        self.suspects.find(filter, limit)
    }

    /// Counts the suspects that no operator has checked, by app and kind.
    pub fn unchecked_suspects(&self) -> Vec<UncheckedSuspects> {
        self.suspects.unchecked()
    }

    /// Returns the suspect of a number.
    pub fn suspect(&self, id: u64) -> Option<Suspect> {
        self.suspects.get(id)
    }

    /// Sets the findings of an operator who has looked a suspect up. Once this returns, they are on the disk, unless the suspect
    /// is in memory only. Returns the suspect with them; `None` if there is none of this number.
    ///
    /// # Errors
    /// They could not be written, and may be lost with this process.
    pub async fn check_suspect(&self, id: u64, check: Check) -> Result<Option<Suspect>, JournalError> {
        let Some(checked) = self.suspects.check(id, check) else { return Ok(None) };
        if let Some(journal) = self.journal.get() {
            let written = journal.remove_delivered(Vec::new(), vec![checked.clone()], Vec::new()).await;
            self.note_failure(written.as_ref().err());
            written?;
        }
        Ok(Some(checked))
    }

    pub(super) fn count_answer(&self, app: &AppKey, policy: OutagePolicy) {
        self.metrics.answered(app.as_ref(), label(policy));
    }

    /// Updates the gauges of waiting entries: at every change, and at intervals because the oldest entry ages.
    pub fn update_gauges(&self) {
        if let Some(journal) = self.journal.get() {
            self.set_gauges(journal);
        }
    }

    fn set_gauges(&self, journal: &Journal) {
        let waiting = journal.waiting();
        self.metrics.waiting(waiting.entries, waiting.bytes, waiting.oldest_age(self.clock.wall()));
    }

    /// Returns the entries that wait for stores.
    pub fn status(&self) -> SpoolStatus {
        let Waiting { entries, bytes, oldest } = self.journal.get().map(Journal::waiting).unwrap_or_default();
        let takes = !self.is_failing.load(Ordering::Relaxed);
        SpoolStatus { entries, bytes, bytes_max: self.bounds.bytes, oldest_at: oldest, takes }
    }

    /// Closes the journal and unlocks its folder. Later entries are refused.
    pub async fn close(&self) {
        if let Some(journal) = self.journal.get() {
            journal.close().await;
        }
    }

    /// Counts a failure, and logs the first one in a row and the first success after it.
    fn note_failure(&self, failure: Option<&JournalError>) {
        let Some(failure) = failure else {
            if self.is_failing.load(Ordering::Relaxed) && self.is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("The journal takes entries again");
            }
            return;
        };
        self.metrics.journal_failed();
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::error!(error = %failure, "The journal cannot take entries, so outage policies refuse calls; check the disk of server.data_dir");
        }
    }
}

/// Returns the metric label of a policy.
fn label(policy: OutagePolicy) -> Policy {
    match policy {
        OutagePolicy::Local => Policy::Local,
        OutagePolicy::FailOpen => Policy::FailOpen,
        OutagePolicy::Spool => Policy::Spool,
    }
}
