//! Whether a chain grants now. After data loss it freezes grants, for each shard separately, and the metadata record
//! `kept.<chain>` shows gateways that a shard has its data. The reasons: `docs/adr/0020-switching-a-chain.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use oncegate_core::engine::{EngineError, Metadata};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::core::{Core, View};
use super::member::Member;
use super::status::Phase;

/// Value of the record of a shard that has its data.
const KEPT: &str = "kept";

/// Value of a record that was written while the shard lost its data: it counts as absent. Another value is of a later release, and is
/// not overwritten.
const LOST: &str = "lost";

/// Begins freezes when there is reason to, and records in the store when they are over, even without calls.
pub(super) async fn watch(core: Arc<Core>, stop: CancellationToken) {
    let forever = async {
        loop {
            let view = core.view();
            let shards = core.serving(&view).map(|member| member.engine.shards()).unwrap_or_default();
            // All at once, so that a shard without an answer delays no other. After a failure, the next round tries
            // again.
            join_all(shards.into_iter().map(|shard| core.watch_shard(&view, shard))).await;
            sleep(core.times.poll).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// Fails if no claims of a shard may be granted now.
    pub(super) fn check_grants(&self, view: &View, shard: u16) -> Result<(), EngineError> {
        if view.state.phase == Phase::Closing {
            let (name, to) = (&self.name, &view.state.active);
            return Err(EngineError::paused(format!("chain `{name}` is being switched to engine `{to}`")));
        }
        self.freeze_on_data_loss(view, shard);
        self.check_freeze(shard)
    }

    /// Returns whether a grant of a shard that began with this view may be delivered, because the view has not changed.
    pub(super) fn is_current(&self, started: &View, shard: u16) -> bool {
        let now = self.view.load();
        now.state == started.state && self.is_fresh() && self.check_grants(&now, shard).is_ok()
    }

    async fn watch_shard(&self, view: &View, shard: u16) {
        if self.check_grants(view, shard).is_ok() && self.check_data(view, shard).await.is_ok() {
            let (Ok(member), Some(record)) = (self.serving(view), self.freeze.evidence(&view.state)) else { return };
            let name = member.engine.metadata_name(shard, &record);
            // Slots have moved, and the record of the shard with them: it needs another one.
            if member.losses.get(shard).record.load().as_deref() != Some(&name) {
                let _ = self.mark_shard_as_kept(member, shard, &record, member.engine.losses(shard)).await;
            }
        }
    }

    /// Checks that a shard of the active store has its data. Freezes its grants if it has no record: the shard is new,
    /// or has lost its data, and a gateway cannot distinguish the two.
    pub(super) async fn check_data(&self, view: &View, shard: u16) -> Result<(), EngineError> {
        if !self.freeze.on_loss && view.state.freeze_ms.is_none() {
            return Ok(());
        }
        let member = self.serving(view)?;
        let (engine, known) = (&member.engine, member.losses.get(shard));
        // Without a freeze after losses, only the switch counts.
        let losses = if self.freeze.on_loss { engine.losses(shard) } else { 0 };
        if known.kept.load(Ordering::Acquire) == losses + 1 {
            return Ok(());
        }
        let Some(evidence) = self.freeze.evidence(&view.state) else { return Ok(()) };
        let name = engine.metadata_name(shard, &evidence);
        let record = member.read(&name).await?;
        let is_kept = record.is_some_and(|record| record.as_str() == KEPT);
        // The read may have opened a new connection, and that has detected a loss.
        let is_same = || !self.freeze.on_loss || engine.losses(shard) == losses;
        if !is_kept && is_same() {
            if known.frozen.load(Ordering::Acquire) != losses + 1 {
                self.begin_freeze(member, shard, losses, view.state.freeze_ms);
            }
            // Started just now, by this call or another one.
            self.check_freeze(shard)?;
            self.mark_shard_as_kept(member, shard, &evidence, losses).await?;
        }
        if is_kept {
            known.record.store(Some(Arc::new(name)));
        }
        if is_same() {
            known.kept.store(losses + 1, Ordering::Release);
        }
        self.check_grants(view, shard)
    }

    /// Records in every shard of a store that it has its data. By then every claim that it does not know has ended, or
    /// an operator has accepted the loss.
    pub(super) async fn mark_as_kept(&self, member: &Member) -> Result<(), EngineError> {
        if self.freeze.on_loss {
            let (shards, record) = (member.engine.shards(), &self.freeze.record);
            let mark = |shard| self.mark_shard_as_kept(member, shard, record, member.engine.losses(shard));
            try_join_all(shards.into_iter().map(mark)).await?;
        }
        Ok(())
    }

    /// Records that a shard has its data, after this many losses.
    async fn mark_shard_as_kept(
        &self,
        member: &Member,
        shard: u16,
        record: &str,
        losses: u64,
    ) -> Result<(), EngineError> {
        let name = member.engine.metadata_name(shard, record);
        set(member, &name, LOST, KEPT).await?;
        // The write may have met the shard after another loss. Then it would let gateways grant that start later.
        if self.freeze.on_loss && member.engine.losses(shard) != losses {
            set(member, &name, KEPT, LOST).await?;
            return Err(EngineError::unavailable("the store has lost its data again"));
        }
        member.losses.get(shard).record.store(Some(Arc::new(name)));
        Ok(())
    }

    /// Begins a freeze if a shard of the active store has lost its data since the last call.
    pub(super) fn freeze_on_data_loss(&self, view: &View, shard: u16) {
        let Ok(member) = self.serving(view) else { return };
        if !self.freeze.on_loss {
            return;
        }
        let (losses, known) = (member.engine.losses(shard), member.losses.get(shard));
        if known.noticed.load(Ordering::Acquire) < losses {
            self.begin_freeze(member, shard, losses, view.state.freeze_ms);
            known.noticed.fetch_max(losses, Ordering::AcqRel);
        }
    }

    /// Begins the freezes that there is reason for, in all shards of the active store.
    pub(super) fn freeze_shards_on_data_loss(&self, view: &View) {
        if let Ok(member) = self.serving(view)
            && self.freeze.on_loss
        {
            member.engine.shards().into_iter().for_each(|shard| self.freeze_on_data_loss(view, shard));
        }
    }

    /// Begins a freeze for the longest lease, or for the longer one that a switch has asked for, in milliseconds.
    fn begin_freeze(&self, member: &Member, shard: u16, losses: u64, freeze_ms: Option<u64>) {
        let lease_max = self.freeze.lease_max.load(Ordering::Relaxed).max(freeze_ms.unwrap_or(0).saturating_mul(1000));
        // In this order: a caller that sees the loss as noticed sees the freeze.
        let until = self.now().saturating_add(lease_max);
        self.freeze.frozen_until.get(shard).fetch_max(until, Ordering::AcqRel);
        if member.losses.get(shard).frozen.fetch_max(losses + 1, Ordering::AcqRel) <= losses {
            self.metrics.set_held(true);
            let why = match freeze_ms {
                Some(_) => {
                    "Grants are frozen: the chain was switched to a store that lacks the claims of the other one"
                }
                None => "Grants are frozen: the store of the chain has lost its data, or is new",
            };
            tracing::error!(
                chain.name = self.name,
                engine.name = member.name,
                engine.shard = self.label(shard),
                frozen_ms = lease_max / 1000,
                "{why}"
            );
        }
    }

    /// Returns the number of a shard, if there are several.
    fn label(&self, shard: u16) -> Option<u16> {
        (!self.freeze.frozen_until.is_one()).then_some(shard)
    }

    /// Fails during a freeze of a shard.
    pub(super) fn check_freeze(&self, shard: u16) -> Result<(), EngineError> {
        let Some(left) = self.shard_frozen_for(shard) else { return Ok(()) };
        let store = self.label(shard).map(|shard| format!("shard {shard} of ")).unwrap_or_default();
        let (chain, seconds) = (&self.name, left.as_secs() + 1);
        let cause = if self.view().state.freeze_ms.is_some() {
            format!(
                "chain `{chain}` was switched automatically, and {store}its store lacks the claims of the other one"
            )
        } else {
            format!("{store}the store of chain `{chain}` has lost its data, or is new")
        };
        let detail = format!("{cause}; operations that it does not know may be running for {seconds} s more");
        Err(EngineError::paused(detail))
    }

    /// Returns the longest time that is left of a freeze of any shard.
    pub(super) fn frozen_for(&self) -> Option<Duration> {
        self.freeze.frozen_until.iter().filter_map(|(shard, _)| self.shard_frozen_for(shard)).max()
    }

    /// Returns the time that is left of the freeze of a shard.
    pub(super) fn shard_frozen_for(&self, shard: u16) -> Option<Duration> {
        let frozen_until = self.freeze.frozen_until.get(shard);
        let until = frozen_until.load(Ordering::Acquire);
        if until == 0 {
            return None;
        }
        let left = until.saturating_sub(self.now());
        // Fails if another caller has ended it, or a freeze has just started.
        if left == 0 && frozen_until.compare_exchange(until, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let is_any = self.freeze.frozen_until.iter().any(|(_, until)| until.load(Ordering::Acquire) > 0);
            self.metrics.set_held(is_any);
            tracing::info!(chain.name = self.name, engine.shard = self.label(shard), "The grant freeze is over");
        }
        (left > 0).then(|| Duration::from_micros(left))
    }
}

/// Sets the record of a shard, if it is absent or has the value `from`.
async fn set(member: &Member, name: &str, from: &str, to: &str) -> Result<(), EngineError> {
    let value = Metadata::new(to).map_err(|error| EngineError::incompatible(error.to_string()))?;
    let change = |stored: Option<&Metadata>| match stored.map(Metadata::as_str) {
        None => Ok(Some(value.clone())),
        Some(stored) if stored == from => Ok(Some(value.clone())),
        Some(stored) if stored == to => Ok(None),
        Some(_) => {
            let why = format!("its metadata record `{name}` cannot be read by this release");
            Err(EngineError::incompatible(why))
        }
    };
    member.replace(name, change).await.map(drop)
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::clock::{Clock, micros};
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::engine::faulty::{Fault, Faulty};
    use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use oncegate_core::engine::sharded::Sharded;
    use oncegate_core::engine::{Engine, RecordName, Topology as _};
    use oncegate_core::record::Key;
    use oncegate_core::terms::OnDataLoss;

    use super::super::Setup;
    use super::super::state::ChainState;
    use super::*;
    use crate::resilience::tests::{PausedClock, metric};

    const SECOND: Duration = Duration::from_secs(1);

    /// A chain of two engines with two shards each.
    fn core(name: &str, on_data_loss: OnDataLoss) -> (Core, Vec<Arc<Faulty>>) {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let memory = || -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
        let store = || Arc::new(Faulty::always(Arc::new(Sharded::new(vec![memory(), memory()])), Fault::None));
        let engines = vec![store(), store()];
        // A loss from before the start is not one of the chain's.
        engines[0].lose_data();
        let named = ["a", "b"].into_iter().zip(&engines).map(|(name, engine)| (name.into(), engine.clone() as _));
        let plain = Setup::plain(name, named.collect(), clock.clone(), Arc::new(SystemEntropy));
        let setup = Setup { on_data_loss, lease_max: SECOND * 30, ..plain };
        (Core::new(setup), engines)
    }

    #[tokio::test(start_paused = true)]
    async fn the_freeze_of_each_shard_ends_by_itself_and_the_metric_with_the_last() {
        let held = || metric("oncegate_chain_grants_frozen{chain=\"frozen\"}");
        held();
        let (core, _engines) = core("frozen", OnDataLoss::Freeze);
        assert_eq!((core.label(0), core.frozen_for(), held()), (None, None, Some(0.0)));
        core.begin_freeze(&core.members[0], 0, 1, None);
        sleep(SECOND * 10).await;
        core.begin_freeze(&core.members[0], 1, 1, None);
        let left = |shard| core.shard_frozen_for(shard);
        assert_eq!((left(0), left(1), core.frozen_for()), (Some(SECOND * 20), Some(SECOND * 30), Some(SECOND * 30)));
        assert_eq!((core.label(0), core.label(1), held()), (Some(0), Some(1), Some(1.0)));
        let refused = core.check_freeze(1).unwrap_err().to_string();
        assert!(refused.contains("shard 1 of the store of chain `frozen`") && refused.contains("31 s"), "{refused}");
        sleep(SECOND * 20).await;
        assert_eq!((left(0), left(1), held()), (None, Some(SECOND * 10), Some(1.0)));
        sleep(SECOND * 10).await;
        assert_eq!((left(0), left(1), held()), (None, None, Some(0.0)));
        let until = |shard| core.freeze.frozen_until.get(shard).load(Ordering::Relaxed);
        assert_eq!((until(0), until(1)), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_freeze_that_begins_again_is_reported_once_for_a_loss() {
        let held = || metric("oncegate_chain_grants_frozen{chain=\"again\"}");
        held();
        let (core, _engines) = core("again", OnDataLoss::Freeze);
        core.begin_freeze(&core.members[0], 0, 1, None);
        core.metrics.set_held(false);
        core.begin_freeze(&core.members[0], 0, 1, None);
        assert_eq!(held(), Some(0.0), "it was reported");
        core.begin_freeze(&core.members[0], 0, 2, None);
        assert_eq!(held(), Some(1.0));
    }

    /// The store may lose its data again while the record is on its way to it.
    #[tokio::test(start_paused = true)]
    async fn a_record_that_met_another_loss_counts_as_absent() {
        let (core, engines) = core("lost-again", OnDataLoss::Freeze);
        let (member, record) = (&core.members[0], core.freeze.record.clone());
        let name = member.engine.metadata_name(0, &record);
        let stored = async || member.read(&name).await.unwrap().map(|record| record.as_str().to_owned());
        let losses = engines[0].losses(0);
        engines[0].lose_data();
        let refused = core.mark_shard_as_kept(member, 0, &record, losses).await;
        assert!(matches!(refused, Err(EngineError::Determinate(_))), "{refused:?}");
        assert_eq!(stored().await.as_deref(), Some(LOST));
        assert!(core.check_data(&core.view(), 0).await.is_err(), "grants are frozen");
        core.mark_shard_as_kept(member, 0, &record, losses + 1).await.unwrap();
        assert_eq!(stored().await.as_deref(), Some(KEPT));
        let other = set(member, &name, KEPT, "newer").await.and(set(member, &name, LOST, KEPT).await);
        assert!(matches!(other, Err(EngineError::Determinate(_))), "a later release has written it");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_chain_that_freezes_counts_leases_and_asks_for_shards() {
        let key = |last| {
            let mut bytes = [0; 16];
            bytes[15] = last;
            Key { global_id: oncegate_core::global_id::GlobalId::from_bytes(bytes), ..fresh_claim().key }
        };
        for (on_data_loss, is_enabled) in [(OnDataLoss::Freeze, true), (OnDataLoss::Resume, false)] {
            let (core, engines) = core("counting", on_data_loss);
            assert_eq!(core.freeze.is_enabled(), is_enabled);
            let name = |shard: u16| RecordName::Metadata(format!("a.at.{shard}").into());
            for shard in [0, 1] {
                let expected = if is_enabled { shard } else { 0 };
                assert_eq!(core.freeze.shard_of_record(&*engines[0], &name(shard)), expected);
                let of_key = core.freeze.shard_of(&*engines[0], &key(u8::try_from(shard).unwrap()));
                assert_eq!(of_key, expected);
            }
            for (lease, longest) in [(10, 30), (60, 60), (50, 60)] {
                core.freeze.requested(SECOND * lease);
                let longest = if is_enabled { longest } else { 30 };
                assert_eq!(core.freeze.lease_max.load(Ordering::Relaxed), micros(SECOND * longest));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn losses_count_while_the_chain_uses_the_engine() {
        let (core, engines) = core("losses", OnDataLoss::Freeze);
        let is_frozen = || {
            core.freeze_shards_on_data_loss(&core.view());
            core.frozen_for().is_some()
        };
        assert!(!is_frozen(), "the loss was before the start");
        engines[1].lose_data();
        assert!(!is_frozen(), "the other engine is not in use");
        let closing = ChainState::closing(&core.view().state, "b", 1);
        core.adopt(closing.clone());
        core.adopt(closing.opened());
        assert!(!is_frozen(), "the loss was before the switch");
        engines[1].lose_data();
        // A state with the same engine in use makes no loss undone.
        core.adopt(ChainState::closing(&core.view().state, "a", 2));
        assert!(is_frozen());
    }
}
