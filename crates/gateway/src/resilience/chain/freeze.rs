//! The grant freeze of a chain: what begins one, its record in a store, and its end in each shard. `grants` begins it and waits for
//! its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::clock::micros;
use oncegate_core::engine::{Engine, KEPT_PREFIX, RecordName};
use oncegate_core::record::Key;
use oncegate_core::terms::OnDataLoss;

use super::state::ChainState;
use crate::resilience::per_shard::PerShard;

/// The grant freeze of a chain.
pub(super) struct GrantFreeze {
    /// True if a loss of data begins one.
    pub(super) on_loss: bool,
    /// True if a loss of data or a switch begins one.
    is_enabled: bool,
    /// Name of the metadata record of a store that has its data.
    pub(super) record: String,
    /// Longest lease that may have been granted, in microseconds.
    pub(super) lease_max: AtomicU64,
    /// End of the freeze of each shard, in microseconds; 0: none.
    pub(super) frozen_until: PerShard<AtomicU64>,
}

impl GrantFreeze {
    pub(super) fn new(chain: &str, on_data_loss: OnDataLoss, lease_max: Duration, has_failover: bool) -> Self {
        let on_loss = on_data_loss == OnDataLoss::Freeze;
        Self {
            on_loss,
            is_enabled: on_loss || has_failover,
            record: format!("{KEPT_PREFIX}{chain}"),
            lease_max: AtomicU64::new(micros(lease_max)),
            frozen_until: PerShard::default(),
        }
    }

    /// Returns whether the chain freezes grants, after data loss or after automatic switches.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the shard of a key. Read only if something depends on it.
    pub(super) fn shard_of(&self, engine: &dyn Engine, key: &Key) -> u16 {
        if self.is_enabled { engine.shard_of(key) } else { 0 }
    }

    /// Returns the shard of a shared record, as [`Self::shard_of`] does.
    pub(super) fn shard_of_record(&self, engine: &dyn Engine, name: &RecordName) -> u16 {
        if self.is_enabled { engine.shard_of_record(name) } else { 0 }
    }

    /// Returns the name of the record of a store on which grants are allowed in this state; `None` if they need none. After an
    /// automatic switch it is another one for each switch: the store may have been in use before.
    pub(super) fn evidence(&self, state: &ChainState) -> Option<String> {
        match state.freeze_ms {
            Some(_) => Some(format!("{}.{}", self.record, state.epoch)),
            None => self.on_loss.then(|| self.record.clone()),
        }
    }

    /// Returns the longest lease that this gateway may have granted.
    pub(super) fn lease_max(&self) -> Duration {
        Duration::from_micros(self.lease_max.load(Ordering::Relaxed))
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
