//! How a gateway gets to know of a switch, wherever it was made: it looks at the note of every engine of the chain, follows
//! the one that goes before the others, carries it to the engines that lag behind, and finishes what was left half done.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::agreed::Agreed;
use super::core::{Core, State};
use crate::engine::{Determinate, EngineError, Metadata};
use crate::resilience::chain::Phase;

/// How long one call about a note may take. Two of them, and a look is over before what it found has aged: that an engine
/// is slow which nobody uses holds nobody up.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);

/// Looks at one engine, again and again. Each has a task of its own, so that a silent one keeps nobody.
pub(super) async fn follow(core: Arc<Core>, at: usize, stop: CancellationToken) {
    let forever = async {
        loop {
            let begun = core.clock.monotonic();
            // What it cannot tell is kept with the engine, for whoever asks why.
            let _ = core.look(at).await;
            let took = core.clock.monotonic().saturating_sub(begun);
            sleep(jittered(core.times.poll, core.entropy.bits()).saturating_sub(took)).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

/// A tenth less or more, so that gateways do not all look at once.
fn jittered(span: Duration, bits: u64) -> Duration {
    let fifth = u64::try_from(span.as_millis() / 5).unwrap_or(0);
    span * 9 / 10 + Duration::from_millis(bits % (fifth + 1))
}

impl Core {
    /// Looks at one engine, follows what it tells, and carries there what it does not know yet.
    pub(super) async fn look(&self, at: usize) -> Result<(), EngineError> {
        let begun = self.clock.monotonic();
        let found = self.note_at(at).await;
        let agreed = match &found {
            Ok(note) => note.as_ref().map(Agreed::read).transpose(),
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &agreed {
            self.note_failure(at, why);
        }
        let agreed = agreed?;
        if let Some(agreed) = &agreed {
            self.adopt(agreed.clone());
        }
        // Only now: whoever sees that a look was made sees what it has found.
        self.looked(at, begun);
        self.carry(at, found?.as_ref(), agreed.as_ref()).await;
        Ok(())
    }

    /// Looks at the engine that the chain is being switched to. A failure leaves in doubt what was done on the one before.
    pub(super) async fn look_at_next(&self, state: &State) -> Result<(), EngineError> {
        let Some(at) = self.members.iter().position(|member| member.name == state.agreed.active) else { return Ok(()) };
        let in_doubt =
            |why| EngineError::indeterminate(format!("the chain is being switched, and its new engine: {why}"));
        self.look(at).await.map_err(in_doubt)
    }

    pub(super) async fn note_at(&self, at: usize) -> Result<Option<Metadata>, EngineError> {
        let late = |_| Err(EngineError::unavailable("it does not answer in time"));
        timeout(PATIENCE, self.members[at].engine.get_metadata(&self.note_name)).await.unwrap_or_else(late)
    }

    pub(super) async fn swap_at(
        &self,
        at: usize,
        expected: Option<&Metadata>,
        new: &Agreed,
    ) -> Result<bool, EngineError> {
        let late = |_| Err(EngineError::indeterminate("it does not answer in time"));
        let new = new.note()?;
        let swap = self.members[at].engine.compare_and_set_metadata(&self.note_name, expected, &new);
        timeout(PATIENCE, swap).await.unwrap_or_else(late)
    }

    /// Brings an engine up to what is known here, and opens what nobody has opened.
    async fn carry(&self, at: usize, note: Option<&Metadata>, found: Option<&Agreed>) {
        let state = self.state();
        let known = &state.agreed;
        let is_behind = found.map_or(known.epoch > 0, |found| found.rank() < known.rank());
        if is_behind {
            // What fails is done at the next look.
            let _ = self.swap_at(at, note, known).await;
            return;
        }
        let is_target = self.members[at].name == known.active;
        let age = self.clock.monotonic().saturating_sub(state.since);
        if known.phase == Phase::Closing && is_target && found == Some(known) && age >= self.times.abandoned {
            let opened = known.opened();
            if self.say_kept(&self.members[at]).await.is_ok()
                && let Ok(true) = self.swap_at(at, note, &opened).await
            {
                tracing::warn!(chain.name = self.name, "a switch that was left half done is finished");
                self.adopt(opened);
            }
        }
    }

    fn note_failure(&self, at: usize, why: &EngineError) {
        let (chain, engine) = (&self.name, &self.members[at].name);
        let was_fine = self.failed(at, why);
        // That an engine is silent is told by whoever measures it.
        if was_fine && matches!(why, EngineError::Determinate(Determinate::Incompatible(_))) {
            tracing::error!(chain.name = chain, engine.name = engine, reason = %why, "an engine cannot tell of its chain");
        }
    }
}
