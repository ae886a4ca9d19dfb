//! Outage policies: answer the calls of a chain while its store is unavailable, as each app chose, and deliver these answers to
//! the store later. While the store is available this costs one atomic read per call.

mod calls;
pub mod crash;
pub mod deadline;
mod decide;
mod deliver;
pub mod journal;
mod key_locks;
mod local_claims;
mod outage_journal;
mod reconcile;
mod shared_nonce;
mod suspects;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::attempt::Entropy;
use oncegate_core::call::{Answered, CallContext};
use oncegate_core::claim::{ClaimRequest, ClaimResponse};
use oncegate_core::clock::Clock;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_core::outage::entry::Entry;
pub use oncegate_core::outage::policy::OutcomeAnswer;
use oncegate_core::record::Key;
use oncegate_core::spool::{SpoolFilter, SpooledEntry};
use oncegate_core::suspect::Suspect;
use oncegate_core::terms::ClaimOnOutage;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::key_locks::KeyLocks;
use self::local_claims::LocalClaims;
pub use self::outage_journal::OutageJournal;
use self::reconcile::Failed;

/// The calls of a chain, under the outage policies of its apps.
pub struct OutagePolicies(Arc<Core>);

/// State shared by the calls of a chain and its background task.
struct Core {
    chain: Arc<str>,
    engine: Arc<dyn Engine>,
    journal: Arc<OutageJournal>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    local_claims: LocalClaims,
    locks: KeyLocks,
    /// The claims whose last delivery failed.
    failures: Mutex<HashMap<Key, Failed>>,
    /// Delivered when something waits for the store.
    wake: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl OutagePolicies {
    /// Starts the policies above the engine of a chain. Entries of the chain in the journal take effect again, and are delivered
    /// as soon as the store answers.
    pub fn start(
        chain: &str,
        engine: Arc<dyn Engine>,
        journal: Arc<OutageJournal>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let core = Arc::new(Core::new(chain, engine, journal, clock, entropy));
        core.recover();
        let working = core.clone();
        core.tasks.spawn(async move { working.reconcile().await });
        Self(core)
    }

    /// Returns policies whose journal takes no entries, for tests of apps without policies. Needs no runtime.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_journal(engine: Arc<dyn Engine>, clock: &Arc<dyn Clock>) -> Self {
        use self::journal::Bounds;
        use oncegate_core::attempt::SystemEntropy;

        let bounds = Bounds { bytes: 0, app_bytes: 0 };
        let journal = Arc::new(OutageJournal::new(std::path::Path::new("no-such-folder"), bounds, clock.clone()));
        Self(Arc::new(Core::new("default", engine, journal, clock.clone(), Arc::new(SystemEntropy))))
    }

    /// Delivers all waiting entries, until none waits or the store has been unavailable for this long.
    ///
    /// # Errors
    /// Entries still wait; the error is the last failure.
    pub async fn deliver_all(&self, timeout: Duration) -> Result<(), EngineError> {
        self.0.deliver_all(timeout).await
    }

    /// Reports an attempt that ran, or may have, while another one held its claim, and keeps it for operators. It is on the disk
    /// once this returns, unless the data folder cannot be used.
    pub async fn suspect(&self, suspect: Suspect) {
        self.0.journal.report(suspect).await;
    }

    /// Returns up to `limit` entries that wait for the store, oldest first.
    pub fn waiting(&self, filter: &SpoolFilter, limit: usize) -> Vec<SpooledEntry> {
        let entries = self.0.local_claims.waiting(filter, limit);
        let failures = self.0.failures();
        let last = |entry: &Entry| failures.get(entry.key()).map(|failed| failed.last.to_string());
        entries.into_iter().map(|(seq, entry)| entry.shown(seq, last(&entry))).collect()
    }

    /// Returns the engine of the chain, for calls without policies.
    pub fn engine(&self) -> &dyn Engine {
        &*self.0.engine
    }

    /// Ends the background task, then closes the chain's engine.
    pub async fn close(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.engine.close().await;
    }
}

/// One claim of a batch.
#[derive(Clone, Copy, Debug)]
pub struct PolicyClaim<'a> {
    /// The claim.
    pub request: &'a ClaimRequest,
    /// The parameters of its call.
    pub context: CallContext<ClaimOnOutage>,
}

/// Receives the answers to the claims of a batch, each with its index in the batch.
pub type AnswerSink<'a> = &'a (dyn Fn(usize, Result<Answered<ClaimResponse>, EngineError>) + Sync);

impl Core {
    fn new(
        chain: &str,
        engine: Arc<dyn Engine>,
        journal: Arc<OutageJournal>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            chain: chain.into(),
            engine,
            journal,
            clock,
            entropy,
            local_claims: LocalClaims::default(),
            locks: KeyLocks::default(),
            failures: Mutex::default(),
            wake: Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Completes the work even if the caller gives up, so that journal and local claims agree.
    async fn uncancelled<Answer: Send + 'static>(
        &self,
        work: impl Future<Output = Result<Answer, EngineError>> + Send + 'static,
    ) -> Result<Answer, EngineError> {
        let done = self.tasks.spawn(work).await;
        done.unwrap_or_else(|_| Err(EngineError::indeterminate("the gateway stopped during this call")))
    }
}
