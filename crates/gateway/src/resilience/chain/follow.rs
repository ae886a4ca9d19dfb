//! Following switches that any gateway made: a gateway reads the chain state of every engine, adopts the newest, copies
//! it to engines with an older one, and completes a switch that was abandoned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::clock::micros;
use oncegate_core::engine::{Determinate, EngineError, Metadata};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::core::{Core, View};
use super::member::Member;
use super::state::ChainState;
use super::status::Phase;

/// Reads the chain state of one engine, or of the witness, at intervals. Each engine has its own task, so an engine
/// without an answer delays no other.
pub(super) async fn follow(core: Arc<Core>, at: usize, stop: CancellationToken) {
    let Some(place) = core.places().nth(at) else { return };
    let forever = async {
        loop {
            let started = core.clock.monotonic();
            // A failure is recorded with the place.
            let _ = core.refresh(place).await;
            let took = core.clock.monotonic().saturating_sub(started);
            // The pause varies by a tenth, so that gateways do not all read at the same time.
            let poll = jittered(core.times.poll * 9 / 10, core.times.poll / 5, core.entropy.bits());
            sleep(poll.saturating_sub(took)).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// Reads the chain state at one place, adopts it if it is newer, and updates the place if it lags behind.
    pub(super) async fn refresh(&self, place: &Member) -> Result<(), EngineError> {
        let started = self.clock.monotonic();
        let record = place.read(&place.record).await;
        let found = match &record {
            Ok(None) if place.is_witness => Err(self.begin_record(place).await),
            Ok(record) => record.as_ref().map(ChainState::read).transpose(),
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &found {
            self.report_failure(place, why);
        }
        let found = found?;
        if let Some(found) = &found {
            self.adopt(found.clone());
            if let Some(failover) = self.failover.as_ref().filter(|_| place.is_witness) {
                failover.witness_has(found.epoch);
            }
        }
        // After the state was adopted: a caller that sees the read sees its result.
        self.read_succeeded(place, started);
        self.update(place, record?.as_ref(), found.as_ref()).await;
        Ok(())
    }

    /// Refreshes the engine that the chain is being switched to. After a failure, the effect on the previous engine is
    /// uncertain.
    pub(super) async fn refresh_next(&self, view: &View) -> Result<(), EngineError> {
        let Some(next) = self.members.iter().find(|member| member.name == view.state.active) else { return Ok(()) };
        let uncertain = |why: EngineError| {
            EngineError::indeterminate(format!(
                "the chain is being switched, and its new engine failed: {}",
                why.reason()
            ))
        };
        self.refresh(next).await.map_err(uncertain)
    }

    pub(super) async fn write_state(
        &self,
        place: &Member,
        expected: Option<&Metadata>,
        new: &ChainState,
    ) -> Result<bool, EngineError> {
        place.write(&place.record, expected, &new.to_metadata()?).await
    }

    /// Writes the record at a witness that has none, if both engines have confirmed the state. The witness may have
    /// lost the record of a switch; then one of the engines still has it. Returns why the witness cannot be relied on
    /// yet.
    async fn begin_record(&self, witness: &Member) -> EngineError {
        let lost = "it has no record of the chain, and gets one only while both engines answer";
        if !self.engines_are_fresh() {
            return EngineError::unavailable(lost);
        }
        match self.write_state(witness, None, &self.view().state).await {
            Ok(_) => EngineError::unavailable("its record of the chain was written just now"),
            Err(why) => why,
        }
    }

    /// Copies the known state to a place that lags behind, or completes an abandoned switch.
    async fn update(&self, place: &Member, record: Option<&Metadata>, found: Option<&ChainState>) {
        let view = self.view();
        let known = &view.state;
        let is_behind = found.map_or(known.epoch > 0, |found| found.version() < known.version());
        if is_behind {
            // After a failure, the next read tries again.
            let _ = self.write_state(place, record, known).await;
            return;
        }
        let is_target = !place.is_witness && place.name == known.active;
        if known.phase == Phase::Closing && is_target && found == Some(known) && self.is_abandoned(&view) {
            let opened = known.opened();
            if self.mark_as_kept(place).await.is_ok()
                && let Ok(true) = self.write_state(place, record, &opened).await
            {
                tracing::warn!(chain.name = self.name, "Completed a switch that another gateway had started");
                self.count_switch(&opened);
                self.adopt(opened);
            }
        }
    }

    /// Returns whether a closing chain may be opened by this gateway, which has just seen the state at its target. That may have got
    /// it later than the witness, and each gateway needs the time to read it there.
    fn is_abandoned(&self, view: &View) -> bool {
        let now = self.now().max(1);
        let first = view.on_target_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        let on_target_for = Duration::from_micros(now.saturating_sub(first.unwrap_or_else(|since| since)));
        let age = now.saturating_sub(micros(view.since));
        age >= micros(self.times.abandoned) && (first.is_err() && on_target_for >= self.times.closing)
    }

    fn report_failure(&self, place: &Member, why: &EngineError) {
        let (chain, engine) = (&self.name, &place.name);
        let is_first = self.read_failed(place, why);
        // The call guard logs that an engine does not answer.
        if is_first && matches!(why, EngineError::Determinate(Determinate::Incompatible(_))) {
            tracing::error!(chain.name = chain, engine.name = engine, reason = %why, "Chain state not read");
        }
    }
}
