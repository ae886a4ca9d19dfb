//! Holding after a loss of data: for how long nothing is granted, and how gateways know that a store has its data. The store
//! says so itself, by a note that goes with the data: `docs/adr/0020-switching-a-chain.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::core::{Core, Member, State};
use super::follow::PATIENCE;
use crate::domain::clock::micros;
use crate::domain::terms::OnDataLoss;
use crate::engine::{Engine, EngineError, Metadata};

/// What the note says. Another text is a later release's, and is left alone.
const KEPT: &str = "kept";

/// What a chain knows of losses.
pub(super) struct Hold {
    holds: bool,
    note_name: String,
    /// The longest lease that may have been granted, in microseconds.
    lease_max: AtomicU64,
    /// Until when nothing is granted, in microseconds.
    until: AtomicU64,
    held: AtomicBool,
}

/// What a chain knows of the losses of one of its stores.
pub(super) struct Losses {
    /// How many have been taken note of.
    noticed: AtomicU64,
    /// How many there had been, and one, when the store last said that it has its data; 0: never.
    kept: AtomicU64,
    /// How many there had been, and one, when it was last begun to hold; 0: never.
    waited: AtomicU64,
}

impl Hold {
    pub(super) fn new(chain: &str, on_data_loss: OnDataLoss, lease_max: Duration) -> Self {
        Self {
            holds: on_data_loss == OnDataLoss::Hold,
            note_name: format!("kept.{chain}"),
            lease_max: AtomicU64::new(micros(lease_max)),
            until: AtomicU64::new(0),
            held: AtomicBool::new(false),
        }
    }

    /// Whether losses matter.
    pub(super) fn is_wanted(&self) -> bool {
        self.holds
    }

    /// Remembers the longest lease that was asked for.
    pub(super) fn saw_lease(&self, lease: Duration) {
        let lease = micros(lease);
        // The common case writes nothing that other threads read.
        if self.holds && self.lease_max.load(Ordering::Relaxed) < lease {
            self.lease_max.fetch_max(lease, Ordering::Relaxed);
        }
    }
}

impl Losses {
    /// What is known of the losses of an engine that has just been opened.
    pub(super) fn of(engine: &dyn Engine) -> Self {
        Self { noticed: engine.data_lost().into(), kept: AtomicU64::new(0), waited: AtomicU64::new(0) }
    }

    /// What the store lost while nobody used it was not lost to this chain.
    pub(super) fn ignore(&self, engine: &dyn Engine) {
        self.noticed.fetch_max(engine.data_lost(), Ordering::AcqRel);
    }
}

/// Sees to it, claims or not, that a hold begins when there is reason to, and that its end is told to the store.
pub(super) async fn watch(core: Arc<Core>, stop: CancellationToken) {
    let forever = async {
        loop {
            let state = core.state();
            if core.granting(&state).is_ok() {
                // A store that does not answer is asked again.
                let _ = core.keeps_data(&state).await;
            }
            sleep(core.times.poll).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// That the store in use has its data, where that matters. One that does not know of this chain is held back for: it is
    /// new, or has lost its data, and nobody can tell which.
    pub(super) async fn keeps_data(&self, state: &State) -> Result<(), EngineError> {
        if !self.hold.holds {
            return Ok(());
        }
        let member = self.serving(state)?;
        let losses = member.engine.data_lost();
        if member.losses.kept.load(Ordering::Acquire) == losses + 1 {
            return Ok(());
        }
        let is_kept = self.says_kept(member).await?;
        // The answer may have come over a new connection, and brought a loss to light.
        if !is_kept && member.engine.data_lost() == losses {
            if member.losses.waited.load(Ordering::Acquire) != losses + 1 {
                self.begin_to_hold(member, losses);
            }
            // Begun by somebody else just now, or by this one.
            self.holding()?;
            self.say_kept(member).await?;
        }
        if member.engine.data_lost() == losses {
            member.losses.kept.store(losses + 1, Ordering::Release);
        }
        self.granting(state)
    }

    async fn says_kept(&self, member: &Member) -> Result<bool, EngineError> {
        let late = |_| Err(EngineError::unavailable("it does not answer in time"));
        let note = timeout(PATIENCE, member.engine.get_metadata(&self.hold.note_name)).await.unwrap_or_else(late)?;
        Ok(note.is_some_and(|note| note.as_str() == KEPT))
    }

    /// Tells a store that it has its data: nothing that it does not know of goes on, or nobody minds.
    pub(super) async fn say_kept(&self, member: &Member) -> Result<(), EngineError> {
        if !self.hold.holds {
            return Ok(());
        }
        let late = |_| Err(EngineError::indeterminate("it does not answer in time"));
        let kept = Metadata::new(KEPT).map_err(|error| EngineError::incompatible(error.to_string()))?;
        let put = timeout(PATIENCE, member.engine.compare_and_set_metadata(&self.hold.note_name, None, &kept)).await;
        if put.unwrap_or_else(late)? {
            return Ok(());
        }
        let what = "its note of whether it has its data was written by a release that this one does not know";
        Err(EngineError::incompatible(what))
    }

    /// Begins to hold if the store in use has lost its data since it was last looked at.
    pub(super) fn notice_losses(&self, state: &State) {
        let Ok(member) = self.serving(state) else { return };
        let losses = member.engine.data_lost();
        if self.hold.holds && member.losses.noticed.load(Ordering::Acquire) < losses {
            self.begin_to_hold(member, losses);
            member.losses.noticed.fetch_max(losses, Ordering::AcqRel);
        }
    }

    fn begin_to_hold(&self, member: &Member, losses: u64) {
        let lease_max = self.hold.lease_max.load(Ordering::Relaxed);
        // In this order: whoever sees the loss taken note of sees the hold.
        self.hold.until.fetch_max(self.now().saturating_add(lease_max), Ordering::AcqRel);
        self.hold.held.store(true, Ordering::Release);
        if member.losses.waited.fetch_max(losses + 1, Ordering::AcqRel) <= losses {
            self.metrics.set_held(true);
            tracing::error!(
                chain.name = self.name,
                engine.name = member.name,
                held_ms = lease_max / 1000,
                "the chain grants nothing for a while: its store has lost its data, or is new"
            );
        }
    }

    /// Fails while nothing is granted because of a loss.
    pub(super) fn holding(&self) -> Result<(), EngineError> {
        let Some(left) = self.held_for() else { return Ok(()) };
        Err(EngineError::paused(format!(
            "a store of chain `{}` has lost its data, or is new; for {} s more runs may be going on that it does not know of",
            self.name,
            left.as_secs() + 1
        )))
    }

    /// For how long nothing is granted yet.
    pub(super) fn held_for(&self) -> Option<Duration> {
        let Hold { held, until, .. } = &self.hold;
        if !held.load(Ordering::Acquire) {
            return None;
        }
        let left = until.load(Ordering::Acquire).saturating_sub(self.now());
        if left == 0 && held.swap(false, Ordering::AcqRel) {
            self.metrics.set_held(false);
            tracing::info!(chain.name = self.name, "the chain grants again");
            // A loss noticed meanwhile has set the end anew before it said that it holds.
            if until.load(Ordering::Acquire) > self.now() {
                held.store(true, Ordering::Release);
            }
        }
        (left > 0).then(|| Duration::from_micros(left))
    }
}
