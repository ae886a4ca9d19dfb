//! One engine of a chain, or its witness: the reads of the chain state there, and its losses of data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use oncegate_core::clock::micros;
use oncegate_core::engine::capability::Capability;
use oncegate_core::engine::{Engine, EngineError, Metadata};
use tokio::time::timeout;

use crate::resilience::deadline_budget::CHAIN_METADATA_TIMEOUT;
use crate::resilience::per_shard::PerShard;

/// Writes of a record that lose against those of other gateways, before a call fails.
const WRITES_MAX: usize = 4;

/// One engine of a chain, or its witness.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) engine: Arc<dyn Engine>,
    /// Name of the metadata record of the chain state.
    pub(super) record: String,
    pub(super) is_witness: bool,
    /// Capability without which its chain state is neither read nor written.
    requires: Option<Capability>,
    /// Why it is one server with a place before it, if it is.
    pub(super) same_as: ArcSwapOption<String>,
    /// Error of the last read of the chain state.
    failure: ArcSwapOption<String>,
    /// Start of the latest successful read, in microseconds; 0: never.
    read_at: AtomicU64,
    /// Time at which it stopped answering these reads, in microseconds; 0: it answers, or was never read.
    out_since: AtomicU64,
    pub(super) losses: PerShard<DataLosses>,
}

/// Losses of one shard of a store, as its chain knows them.
#[derive(Default)]
pub(super) struct DataLosses {
    /// Losses that were acted on.
    pub(super) noticed: AtomicU64,
    /// Losses, plus one, when the store was last known to have its data; 0: never.
    pub(super) kept: AtomicU64,
    /// Losses, plus one, when the last freeze began; 0: never.
    pub(super) frozen: AtomicU64,
    /// Name under which the record was last found or stored.
    pub(super) record: ArcSwapOption<String>,
}

/// Answers of a store, as one gateway sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The last call was answered.
    Answers,
    /// No call was answered for so long.
    Out(Duration),
}

impl Member {
    /// Returns an engine of a chain.
    pub(super) fn new((name, engine): (String, Arc<dyn Engine>), record: String) -> Self {
        Self {
            name,
            engine,
            record,
            is_witness: false,
            requires: None,
            same_as: ArcSwapOption::empty(),
            failure: ArcSwapOption::empty(),
            read_at: AtomicU64::new(0),
            out_since: AtomicU64::new(0),
            losses: PerShard::default(),
        }
    }

    /// Returns the witness of a chain.
    pub(super) fn witness(named: (String, Arc<dyn Engine>), record: String, requires: Option<Capability>) -> Self {
        Self { is_witness: true, requires, ..Self::new(named, record) }
    }

    /// Returns the reason why the last read of the chain state failed, if it did.
    pub(super) fn failure(&self) -> Option<Arc<String>> {
        self.failure.load_full()
    }

    /// Records that a read of the chain state, started at this time, succeeded.
    pub(super) fn read_succeeded(&self, started: Duration) {
        self.read_at.fetch_max(micros(started).max(1), Ordering::AcqRel);
        self.out_since.store(0, Ordering::Release);
        self.failure.store(None);
    }

    /// Records that a read of the chain state failed; `now` is in microseconds. Returns whether the read before had succeeded.
    pub(super) fn read_failed(&self, why: &EngineError, now: u64) -> bool {
        if why.is_unavailable() {
            let _since = self.out_since.compare_exchange(0, now.max(1), Ordering::AcqRel, Ordering::Acquire);
        } else {
            self.out_since.store(0, Ordering::Release);
        }
        self.failure.swap(Some(Arc::new(why.reason().to_owned()))).is_none()
    }

    /// Returns whether the last read of the chain state failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.load().is_some()
    }

    /// Returns how its reads are answered; `now` is in microseconds. An engine that was never read counts as not
    /// answering.
    pub(super) fn seen(&self, now: u64) -> Seen {
        match (self.out_since.load(Ordering::Acquire), self.read_at.load(Ordering::Acquire)) {
            (0, 0) => Seen::Out(Duration::ZERO),
            (0, _) => Seen::Answers,
            (since, _) => Seen::Out(Duration::from_micros(now.saturating_sub(since))),
        }
    }

    /// Returns whether the last successful read is young enough for a grant.
    pub(super) fn is_read_since(&self, oldest: u64) -> bool {
        let read_at = self.read_at.load(Ordering::Acquire);
        read_at > 0 && read_at >= oldest
    }

    /// Reads a metadata record.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let late = |_| Err(EngineError::unavailable("the engine does not answer in time"));
        let found = timeout(CHAIN_METADATA_TIMEOUT, self.engine.get_metadata(name)).await.unwrap_or_else(late)?;
        // It has connected to its store, so its capabilities are known.
        self.check_fitness().map(|()| found)
    }

    /// Writes a metadata record. Returns false if it holds another value than expected.
    pub(super) async fn write(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.check_fitness()?;
        let late = |_| Err(EngineError::indeterminate("the engine does not answer in time"));
        let write = self.engine.compare_and_set_metadata(name, expected, new);
        timeout(CHAIN_METADATA_TIMEOUT, write).await.unwrap_or_else(late)
    }

    /// Replaces a metadata record by what `new` makes of it; again, if another gateway has written it in between. Returns false if
    /// `new` makes nothing of it.
    pub(super) async fn replace(
        &self,
        name: &str,
        new: impl Fn(Option<&Metadata>) -> Result<Option<Metadata>, EngineError>,
    ) -> Result<bool, EngineError> {
        for _ in 0..WRITES_MAX {
            let stored = self.read(name).await?;
            let Some(new) = new(stored.as_ref())? else { return Ok(false) };
            if self.write(name, stored.as_ref(), &new).await? {
                return Ok(true);
            }
        }
        Err(EngineError::unavailable("other gateways write at the same time"))
    }

    /// Refuses a store that lacks the required capability, and a witness that is lost together with an engine.
    fn check_fitness(&self) -> Result<(), EngineError> {
        if let Some(why) = self.same_as.load_full().filter(|_| self.is_witness) {
            return Err(EngineError::incompatible(why.to_string()));
        }
        match self.requires {
            Some(required) if !required.is_in(self.engine.capabilities()) => {
                let (name, required) = (&self.name, required.as_str());
                Err(EngineError::incompatible(format!("`{name}` is not `{required}` with its present configuration")))
            }
            _ => Ok(()),
        }
    }

    /// Ignores the losses so far: the chain did not use the store.
    pub(super) fn ignore_losses(&self) {
        for shard in self.engine.shards() {
            self.losses.get(shard).noticed.fetch_max(self.engine.losses(shard), Ordering::AcqRel);
        }
    }

    /// Requires the store to show again that grants are allowed on it: it lacks the work that was done on another one.
    pub(super) fn doubt_data(&self) {
        for (_, known) in self.losses.iter() {
            known.kept.store(0, Ordering::Release);
            known.frozen.store(0, Ordering::Release);
        }
    }
}
