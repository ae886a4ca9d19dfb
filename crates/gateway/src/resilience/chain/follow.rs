//! Learning of a switch, wherever it was made: a gateway reads the chain state of every engine, adopts the newest, copies it to
//! engines that lag behind, and completes a switch that was abandoned.

use std::sync::Arc;

use oncegate_core::backoff::jittered;
use oncegate_core::engine::{Determinate, EngineError, Metadata};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::core::{Core, View};
use super::state::ChainState;
use super::status::Phase;

/// Reads the chain state of one engine at intervals. Each engine has its own task, so that a silent one delays no other.
pub(super) async fn follow(core: Arc<Core>, at: usize, stop: CancellationToken) {
    let forever = async {
        loop {
            let started = core.clock.monotonic();
            // A failure is recorded with the engine.
            let _ = core.refresh(at).await;
            let took = core.clock.monotonic().saturating_sub(started);
            // A tenth more or less, so that gateways do not all read at the same time.
            let poll = jittered(core.times.poll * 9 / 10, core.times.poll / 5, core.entropy.bits());
            sleep(poll.saturating_sub(took)).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// Reads the chain state of one engine, adopts it if it is newer, and updates the engine if it lags behind.
    pub(super) async fn refresh(&self, at: usize) -> Result<(), EngineError> {
        let started = self.clock.monotonic();
        let record = self.members[at].read(&self.record).await;
        let found = match &record {
            Ok(record) => record.as_ref().map(ChainState::read).transpose(),
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &found {
            self.report_failure(at, why);
        }
        let found = found?;
        if let Some(found) = &found {
            self.adopt(found.clone());
        }
        // After the state was adopted: a caller that sees the read sees its result.
        self.read_succeeded(at, started);
        self.update(at, record?.as_ref(), found.as_ref()).await;
        Ok(())
    }

    /// Refreshes the engine that the chain is being switched to. After a failure, what was done on the previous one is uncertain.
    pub(super) async fn refresh_next(&self, view: &View) -> Result<(), EngineError> {
        let Some(at) = self.members.iter().position(|member| member.name == view.state.active) else { return Ok(()) };
        let uncertain = |why: EngineError| {
            EngineError::indeterminate(format!(
                "the chain is being switched, and its new engine failed: {}",
                why.reason()
            ))
        };
        self.refresh(at).await.map_err(uncertain)
    }

    pub(super) async fn write_state(
        &self,
        at: usize,
        expected: Option<&Metadata>,
        new: &ChainState,
    ) -> Result<bool, EngineError> {
        self.members[at].write(&self.record, expected, &new.to_metadata()?).await
    }

    /// Copies the known state to an engine that lags behind, or completes an abandoned switch.
    async fn update(&self, at: usize, record: Option<&Metadata>, found: Option<&ChainState>) {
        let view = self.view();
        let known = &view.state;
        let is_behind = found.map_or(known.epoch > 0, |found| found.version() < known.version());
        if is_behind {
            // After a failure, the next read tries again.
            let _ = self.write_state(at, record, known).await;
            return;
        }
        let is_target = self.members[at].name == known.active;
        let age = self.clock.monotonic().saturating_sub(view.since);
        if known.phase == Phase::Closing && is_target && found == Some(known) && age >= self.times.abandoned {
            let opened = known.opened();
            if self.mark_as_kept(&self.members[at]).await.is_ok()
                && let Ok(true) = self.write_state(at, record, &opened).await
            {
                tracing::warn!(chain.name = self.name, "Completed a switch that another gateway had started");
                self.adopt(opened);
            }
        }
    }

    fn report_failure(&self, at: usize, why: &EngineError) {
        let (chain, engine) = (&self.name, &self.members[at].name);
        let is_first = self.read_failed(at, why);
        // The call guard logs that an engine does not answer.
        if is_first && matches!(why, EngineError::Determinate(Determinate::Incompatible(_))) {
            tracing::error!(chain.name = chain, engine.name = engine, reason = %why, "Chain state not read");
        }
    }
}
