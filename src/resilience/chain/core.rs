//! What a chain knows: which engine is in use, and since when that was last confirmed. How it gets to know is in `follow`, how
//! it is changed in `switch`; what it knows of losses of data is in `hold`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use super::agreed::Agreed;
use super::hold::{Hold, Losses};
use super::{Setup, Times};
use crate::domain::attempt::Entropy;
use crate::domain::clock::{Clock, micros};
use crate::engine::{Engine, EngineError};
use crate::resilience::chain::{ChainStatus, Phase};
use crate::telemetry::metrics::chain::ActiveMetrics;

/// How long a call waits for the first look at the stores, or for the next one after this process stood still: a little longer
/// than a silent store is waited for.
const LOOK_PATIENCE: Duration = Duration::from_millis(800);

/// One chain, shared by its callers and its tasks.
pub(super) struct Core {
    pub(super) name: String,
    pub(super) note_name: String,
    pub(super) members: Vec<Member>,
    pub(super) times: Times,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// One switch at a time by this process.
    pub(super) switching: tokio::sync::Mutex<()>,
    state: ArcSwap<State>,
    changing: Mutex<()>,
    /// Told after each look.
    looked: Notify,
    pub(super) hold: Hold,
    pub(super) metrics: ActiveMetrics,
}

/// One engine of a chain.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) engine: Arc<dyn Engine>,
    /// Why its note could not be read last time.
    failing: ArcSwapOption<String>,
    /// When the latest look was begun that found something, in microseconds; 0: never.
    looked_at: AtomicU64,
    pub(super) losses: Losses,
}

/// What was agreed on, and what that means here.
pub(super) struct State {
    pub(super) agreed: Agreed,
    /// Which engine calls go to; nothing if this gateway does not have it.
    pub(super) serving: Option<usize>,
    /// Since when, by this gateway's monotonic clock.
    pub(super) since: Duration,
}

impl Core {
    pub(super) fn new(setup: Setup) -> Self {
        let Setup { name, engines, on_data_loss, lease_max, clock, entropy, times } = setup;
        let hold = Hold::new(&name, on_data_loss, lease_max);
        let metrics = ActiveMetrics::new(&name, engines.iter().map(|(name, _)| name.as_str()));
        let first = engines.first().map(|(name, _)| name.clone()).unwrap_or_default();
        let agreed = Agreed::never_switched(&first);
        metrics.set_active(&first, 0);
        let member = |(name, engine): (String, Arc<dyn Engine>)| {
            let losses = Losses::of(&*engine);
            Member { name, engine, failing: ArcSwapOption::empty(), looked_at: AtomicU64::new(0), losses }
        };
        Self {
            note_name: format!("chain.{name}"),
            name,
            members: engines.into_iter().map(member).collect(),
            times,
            state: ArcSwap::from_pointee(State { agreed, serving: Some(0), since: clock.monotonic() }),
            clock,
            entropy,
            switching: tokio::sync::Mutex::default(),
            changing: Mutex::default(),
            looked: Notify::new(),
            hold,
            metrics,
        }
    }

    /// Whether there is anything to agree on.
    pub(super) fn is_shared(&self) -> bool {
        self.members.len() > 1
    }

    /// What is agreed on, as far as is known here.
    pub(super) fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// The engine that calls go to, if this gateway has looked lately whether it still is.
    pub(super) async fn turn(&self) -> Result<Arc<State>, EngineError> {
        if self.is_fresh() {
            return Ok(self.state());
        }
        // Right after the start, or after this process stood still, the next look is at hand. Where no store answers it
        // is not, and nobody waits for it.
        if self.members.iter().any(|member| member.failing.load().is_none()) {
            let looked = async {
                loop {
                    let looked = self.looked.notified();
                    if self.is_fresh() {
                        return;
                    }
                    looked.await;
                }
            };
            let _ = tokio::time::timeout(LOOK_PATIENCE, looked).await;
        }
        if self.is_fresh() { Ok(self.state()) } else { Err(EngineError::unavailable(self.why_not_known())) }
    }

    /// Whether what is known of the chain was confirmed lately enough for a grant, by every engine that answers. One that
    /// does not is left out: that an engine is out which nobody uses is no reason to grant nothing.
    pub(super) fn is_fresh(&self) -> bool {
        if !self.is_shared() {
            return true;
        }
        let (now, fresh) = (self.now(), micros(self.times.fresh));
        let mut some = false;
        for member in self.members.iter().filter(|member| member.failing.load().is_none()) {
            let looked_at = member.looked_at.load(Ordering::Acquire);
            if looked_at == 0 || now.saturating_sub(looked_at) > fresh {
                return false;
            }
            some = true;
        }
        some
    }

    /// The engine that calls go to.
    pub(super) fn serving(&self, state: &State) -> Result<&Member, EngineError> {
        state.serving.and_then(|at| self.members.get(at)).ok_or_else(|| {
            EngineError::incompatible(format!(
                "chain `{}` was switched to engine `{}`, which this gateway does not have in it; give every gateway the same \
                 chains",
                self.name,
                state.agreed.serving()
            ))
        })
    }

    /// Whether claims may be granted now.
    pub(super) fn granting(&self, state: &State) -> Result<(), EngineError> {
        if state.agreed.phase == Phase::Closing {
            let (name, to) = (&self.name, &state.agreed.active);
            return Err(EngineError::paused(format!("chain `{name}` is being switched to engine `{to}`")));
        }
        self.notice_losses(state);
        self.holding()
    }

    /// Whether a grant may be told that was begun on this state: everything still has to be as it was.
    pub(super) fn stands(&self, begun: &State) -> bool {
        let now = self.state.load();
        now.agreed == begun.agreed && self.is_fresh() && self.granting(&now).is_ok()
    }

    /// Follows what somebody has agreed on, if it goes before what is known.
    pub(super) fn adopt(&self, agreed: Agreed) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.state.load();
        if agreed.rank() <= old.agreed.rank() {
            return;
        }
        let serving = self.members.iter().position(|member| member.name == agreed.serving());
        if old.serving != serving
            && let Some(member) = serving.and_then(|at| self.members.get(at))
        {
            member.losses.ignore(&*member.engine);
        }
        self.tell(&old.agreed, &agreed, serving.is_some());
        self.state.store(Arc::new(State { agreed, serving, since: self.clock.monotonic() }));
    }

    /// A look at this engine begun at this time has found what is known now.
    pub(super) fn looked(&self, at: usize, begun: Duration) {
        self.members[at].looked_at.fetch_max(micros(begun).max(1), Ordering::AcqRel);
        self.members[at].failing.store(None);
        self.looked.notify_waiters();
    }

    /// A look at this engine has failed. Tells whether the one before had not.
    pub(super) fn failed(&self, at: usize, why: &EngineError) -> bool {
        let was_fine = self.members[at].failing.swap(Some(Arc::new(why.to_string()))).is_none();
        self.looked.notify_waiters();
        was_fine
    }

    /// How the chain stands.
    pub(super) fn status(&self) -> ChainStatus {
        let state = self.state.load();
        self.notice_losses(&state);
        let agreed = &state.agreed;
        ChainStatus {
            engines: self.members.iter().map(|member| member.name.clone()).collect(),
            active: agreed.serving().to_owned(),
            epoch: agreed.epoch,
            phase: agreed.phase,
            switching_to: (agreed.phase == Phase::Closing).then(|| agreed.active.clone()),
            held_for: self.held_for(),
        }
    }

    fn tell(&self, old: &Agreed, new: &Agreed, known: bool) {
        self.metrics.set_active(new.serving(), new.epoch);
        let (chain, from, to, epoch) = (&self.name, old.serving(), &new.active, new.epoch);
        match new.phase {
            Phase::Closing => {
                tracing::warn!(chain.name = chain, chain.epoch = epoch, from, to, "the chain is being switched");
            }
            Phase::Open if known => {
                tracing::warn!(chain.name = chain, chain.epoch = epoch, from, to, "the chain was switched");
            }
            Phase::Open => {
                let what =
                    "the chain was switched to an engine that this gateway does not have in it: it grants nothing";
                tracing::error!(chain.name = chain, chain.epoch = epoch, from, to, "{what}");
            }
        }
    }

    fn why_not_known(&self) -> String {
        let failing: Vec<_> = self.members.iter().filter_map(|member| member.failing.load_full()).collect();
        let why = failing.first().map_or("no engine has answered yet", |why| why.as_str());
        format!("it is not known which engine of chain `{}` is in use: {why}", self.name)
    }

    pub(super) fn now(&self) -> u64 {
        micros(self.clock.monotonic())
    }
}
