//! The grant freeze after data loss: when it begins and ends, and the metadata record `kept.<chain>`, by which gateways know that
//! a store has its data. The reasons: `docs/adr/0020-switching-a-chain.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::clock::micros;
use oncegate_core::engine::{Engine, EngineError, Metadata};
use oncegate_core::terms::OnDataLoss;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Member, View};

/// Value of the record. Another value is of a later release, and is not overwritten.
const KEPT: &str = "kept";

/// The grant freeze of a chain.
pub(super) struct GrantFreeze {
    is_enabled: bool,
    /// Name of the metadata record of a store that has its data.
    record: String,
    /// Longest lease that may have been granted, in microseconds.
    lease_max: AtomicU64,
    /// End of the freeze, in microseconds.
    until: AtomicU64,
    is_frozen: AtomicBool,
}

/// Losses of one store, as its chain knows them.
pub(super) struct DataLosses {
    /// Losses that were acted on.
    noticed: AtomicU64,
    /// Losses, plus one, when the store was last known to have its data; 0: never.
    kept: AtomicU64,
    /// Losses, plus one, when the last freeze began; 0: never.
    frozen: AtomicU64,
}

impl GrantFreeze {
    pub(super) fn new(chain: &str, on_data_loss: OnDataLoss, lease_max: Duration) -> Self {
        Self {
            is_enabled: on_data_loss == OnDataLoss::Hold,
            record: format!("kept.{chain}"),
            lease_max: AtomicU64::new(micros(lease_max)),
            until: AtomicU64::new(0),
            is_frozen: AtomicBool::new(false),
        }
    }

    /// Returns whether the chain freezes grants after data loss.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Remembers the longest requested lease.
    pub(super) fn requested(&self, lease: Duration) {
        let lease = micros(lease);
        // The common case writes nothing that other threads read.
        if self.is_enabled && self.lease_max.load(Ordering::Relaxed) < lease {
            self.lease_max.fetch_max(lease, Ordering::Relaxed);
        }
    }
}

impl DataLosses {
    /// Returns the losses of an engine that was just opened.
    pub(super) fn of(engine: &dyn Engine) -> Self {
        Self { noticed: losses_of(engine).into(), kept: AtomicU64::new(0), frozen: AtomicU64::new(0) }
    }

    /// Ignores the losses so far: the chain did not use the store.
    pub(super) fn ignore(&self, engine: &dyn Engine) {
        self.noticed.fetch_max(losses_of(engine), Ordering::AcqRel);
    }
}

/// Returns how often an engine's store lost its data, or may have lost the newest of it.
fn losses_of(engine: &dyn Engine) -> u64 {
    engine.data_lost().saturating_add(engine.promotions())
}

/// Begins a freeze when there is reason to, and tells the store when it is over, even if nobody calls.
pub(super) async fn watch(core: Arc<Core>, stop: CancellationToken) {
    let forever = async {
        loop {
            let view = core.view();
            if core.check_grants(&view).is_ok() {
                // After a failure, the next round tries again.
                let _ = core.check_data(&view).await;
            }
            sleep(core.times.poll).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// Checks that the active store has its data, and freezes grants if it has no record: such a store is new, or has lost its
    /// data, and no gateway can distinguish the two.
    pub(super) async fn check_data(&self, view: &View) -> Result<(), EngineError> {
        if !self.freeze.is_enabled {
            return Ok(());
        }
        let member = self.serving(view)?;
        let losses = losses_of(&*member.engine);
        if member.losses.kept.load(Ordering::Acquire) == losses + 1 {
            return Ok(());
        }
        let record = member.read(&self.freeze.record).await?;
        let is_kept = record.is_some_and(|record| record.as_str() == KEPT);
        // The read may have opened a new connection, and that has detected a loss.
        if !is_kept && losses_of(&*member.engine) == losses {
            if member.losses.frozen.load(Ordering::Acquire) != losses + 1 {
                self.begin_freeze(member, losses);
            }
            // Started just now, by this call or another one.
            self.check_freeze()?;
            self.mark_as_kept(member).await?;
        }
        if losses_of(&*member.engine) == losses {
            member.losses.kept.store(losses + 1, Ordering::Release);
        }
        self.check_grants(view)
    }

    /// Records in a store that it has its data: every claim that it does not know has ended, or an operator accepts its loss.
    pub(super) async fn mark_as_kept(&self, member: &Member) -> Result<(), EngineError> {
        if !self.freeze.is_enabled {
            return Ok(());
        }
        let kept = Metadata::new(KEPT).map_err(|error| EngineError::incompatible(error.to_string()))?;
        if member.write(&self.freeze.record, None, &kept).await? {
            return Ok(());
        }
        let name = &self.freeze.record;
        Err(EngineError::incompatible(format!("its metadata record `{name}` cannot be read by this release")))
    }

    /// Begins a freeze if the active store has lost its data since the last call.
    pub(super) fn freeze_on_data_loss(&self, view: &View) {
        let Ok(member) = self.serving(view) else { return };
        let losses = losses_of(&*member.engine);
        if self.freeze.is_enabled && member.losses.noticed.load(Ordering::Acquire) < losses {
            self.begin_freeze(member, losses);
            member.losses.noticed.fetch_max(losses, Ordering::AcqRel);
        }
    }

    fn begin_freeze(&self, member: &Member, losses: u64) {
        let lease_max = self.freeze.lease_max.load(Ordering::Relaxed);
        // In this order: a caller that sees the loss as noticed sees the freeze.
        self.freeze.until.fetch_max(self.now().saturating_add(lease_max), Ordering::AcqRel);
        self.freeze.is_frozen.store(true, Ordering::Release);
        if member.losses.frozen.fetch_max(losses + 1, Ordering::AcqRel) <= losses {
            self.metrics.set_held(true);
            tracing::error!(
                chain.name = self.name,
                engine.name = member.name,
                frozen_ms = lease_max / 1000,
                "Grants are frozen: the store of the chain has lost its data, or is new"
            );
        }
    }

    /// Fails during a freeze.
    pub(super) fn check_freeze(&self) -> Result<(), EngineError> {
        let Some(left) = self.frozen_for() else { return Ok(()) };
        Err(EngineError::paused(format!(
            "the store of chain `{}` has lost its data, or is new; operations that it does not know may be running for {} s more",
            self.name,
            left.as_secs() + 1
        )))
    }

    /// Returns the time that is left of a freeze.
    pub(super) fn frozen_for(&self) -> Option<Duration> {
        let GrantFreeze { is_frozen, until, .. } = &self.freeze;
        if !is_frozen.load(Ordering::Acquire) {
            return None;
        }
        let left = until.load(Ordering::Acquire).saturating_sub(self.now());
        if left == 0 && is_frozen.swap(false, Ordering::AcqRel) {
            self.metrics.set_held(false);
            tracing::info!(chain.name = self.name, "The grant freeze is over");
            // A freeze that has just started has set its end first.
            if until.load(Ordering::Acquire) > self.now() {
                is_frozen.store(true, Ordering::Release);
            }
        }
        (left > 0).then(|| Duration::from_micros(left))
    }
}
