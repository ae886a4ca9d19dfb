//! A chain as one gateway knows it: the active engine, and when that was last confirmed. `follow` learns it, `switch` changes
//! it, `grants` knows of data loss, `failover` of the witness.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::{Clock, micros};
use oncegate_core::engine::EngineError;
use oncegate_telemetry::metrics::chain::ActiveMetrics;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::failover::Failover;
use super::freeze::GrantFreeze;
use super::member::Member;
use super::setup::{Setup, Times};
use super::state::ChainState;
use super::status::Phase;
use crate::resilience::deadline_budget::CHAIN_STATE_WAIT;
use crate::resilience::requirement::Requirement;

/// One chain, shared by its callers and its tasks.
pub(super) struct Core {
    pub(super) name: String,
    pub(super) members: Vec<Member>,
    pub(super) failover: Option<Failover>,
    pub(super) times: Times,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// Held by a switch of this process.
    pub(super) switching: tokio::sync::Mutex<()>,
    pub(super) view: ArcSwap<View>,
    adopting: Mutex<()>,
    /// Notified after each read of the state.
    state_read: Notify,
    pub(super) freeze: GrantFreeze,
    pub(super) requirement: Option<Requirement>,
    pub(super) metrics: ActiveMetrics,
}

/// The state of the chain as this gateway knows it.
pub(super) struct View {
    pub(super) state: ChainState,
    /// The engine that gets the calls; `None` if this gateway does not have it.
    pub(super) serving: Option<usize>,
    /// Start of the state, by this gateway's monotonic clock.
    pub(super) since: Duration,
    /// Time at which the target engine of a switch was first seen to have the state, in microseconds; 0: not yet.
    pub(super) on_target_since: AtomicU64,
}

impl View {
    fn new(state: ChainState, serving: Option<usize>, since: Duration) -> Self {
        Self { state, serving, since, on_target_since: AtomicU64::new(0) }
    }
}

impl Core {
    pub(super) fn new(setup: Setup) -> Self {
        let Setup { name, engines, on_data_loss, lease_max, clock, entropy, times, requirement, failover } = setup;
        let failover = failover.map(|setup| Failover::new(&name, &engines, setup, &*entropy));
        let freeze = GrantFreeze::new(&name, on_data_loss, lease_max, failover.is_some());
        let metrics = ActiveMetrics::new(&name, engines.iter().map(|(name, _)| name.as_str()));
        let first = engines.first().map(|(name, _)| name.clone()).unwrap_or_default();
        metrics.set_active(&first, 0);
        let record = format!("chain.{name}");
        let member = |named| {
            let member = Member::new(named, record.clone());
            member.ignore_losses();
            member
        };
        let state = ChainState::never_switched(&first);
        Self {
            name,
            members: engines.into_iter().map(member).collect(),
            failover,
            times,
            view: ArcSwap::from_pointee(View::new(state, Some(0), clock.monotonic())),
            clock,
            entropy,
            switching: tokio::sync::Mutex::default(),
            adopting: Mutex::default(),
            state_read: Notify::new(),
            freeze,
            requirement,
            metrics,
        }
    }

    /// Returns whether the chain can be switched.
    pub(super) fn is_switchable(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns the present knowledge about the chain.
    pub(super) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Returns the chain if its state was confirmed recently.
    pub(super) async fn fresh_view(&self) -> Result<Arc<View>, EngineError> {
        if self.is_fresh() {
            return Ok(self.view());
        }
        // Right after the start, or after this process was suspended, a read is in progress. No call waits if no engine answers.
        if self.answering().next().is_some() {
            let is_read = async {
                loop {
                    let state_read = self.state_read.notified();
                    if self.is_fresh() {
                        return;
                    }
                    state_read.await;
                }
            };
            let _ = timeout(CHAIN_STATE_WAIT, is_read).await;
        }
        if self.is_fresh() { Ok(self.view()) } else { Err(EngineError::unavailable(self.why_not_fresh())) }
    }

    /// Returns the engines, and the witness if there is one.
    pub(super) fn places(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.failover.as_ref().map(|failover| &failover.witness))
    }

    /// Returns whether every place that answers has confirmed the state recently enough for a grant. The others are
    /// left out: a dead spare must not stop grants. With a witness two of the three must answer: a switch is recorded
    /// at two of them before anything is granted, so a single one may not know of it.
    pub(super) fn is_fresh(&self) -> bool {
        if !self.is_switchable() {
            return true;
        }
        let oldest = self.now().saturating_sub(micros(self.times.fresh));
        let mut confirmed = 0;
        for place in self.answering() {
            if !place.is_read_since(oldest) {
                return false;
            }
            confirmed += 1;
        }
        confirmed >= if self.failover.is_some() { 2 } else { 1 }
    }

    /// Returns whether each engine has confirmed the state recently.
    pub(super) fn engines_are_fresh(&self) -> bool {
        let oldest = self.now().saturating_sub(micros(self.times.fresh));
        self.members.iter().all(|member| !member.has_failed() && member.is_read_since(oldest))
    }

    fn answering(&self) -> impl Iterator<Item = &Member> {
        self.places().filter(|place| !place.has_failed())
    }

    fn why_not_fresh(&self) -> String {
        let failure = self.places().find_map(Member::failure);
        let why = failure.as_ref().map_or("no engine has answered yet", |why| why.as_str());
        let rule = if self.failover.is_some() { "two of its two engines and its witness have to answer; " } else { "" };
        format!("the active engine of chain `{}` is not known: {rule}{why}", self.name)
    }

    /// Returns the engine that gets the calls.
    pub(super) fn serving(&self, view: &View) -> Result<&Member, EngineError> {
        view.serving.and_then(|at| self.members.get(at)).ok_or_else(|| {
            EngineError::incompatible(format!(
                "chain `{}` was switched to engine `{}`, which this gateway does not have in it; give every gateway the same \
                 chains",
                self.name,
                view.state.serving()
            ))
        })
    }

    /// Adopts a state that was read or written, if it is newer than the known one.
    pub(super) fn adopt(&self, state: ChainState) {
        let _adopting = self.adopting.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.view.load();
        if state.version() <= old.state.version() {
            return;
        }
        let serving = self.members.iter().position(|member| member.name == state.serving());
        if let Some(member) = serving.and_then(|at| self.members.get(at)) {
            if old.serving != serving {
                member.ignore_losses();
            }
            if state.freeze_ms.is_some() {
                member.doubt_data();
            }
        }
        self.report(&old.state, &state, serving.is_some());
        self.view.store(Arc::new(View::new(state, serving, self.clock.monotonic())));
    }

    fn report(&self, old: &ChainState, new: &ChainState, is_known: bool) {
        self.metrics.set_active(new.serving(), new.epoch);
        let (chain, from, to, epoch) = (&self.name, old.serving(), &new.active, new.epoch);
        match new.phase {
            Phase::Closing => {
                tracing::warn!(chain.name = chain, chain.epoch = epoch, from, to, "The chain is being switched");
            }
            Phase::Open if is_known => {
                tracing::warn!(chain.name = chain, chain.epoch = epoch, from, to, "The chain was switched");
            }
            Phase::Open => {
                let what = "The chain was switched to an engine that this gateway does not have: it grants nothing";
                tracing::error!(chain.name = chain, chain.epoch = epoch, from, to, "{what}");
            }
        }
    }

    /// Records that a read of the chain state at this place, started at this time, succeeded.
    pub(super) fn read_succeeded(&self, place: &Member, started: Duration) {
        place.read_succeeded(started);
        self.state_read.notify_waiters();
    }

    /// Records that a read of the chain state at this place failed. Returns whether the read before had succeeded.
    pub(super) fn read_failed(&self, place: &Member, why: &EngineError) -> bool {
        let is_first = place.read_failed(why, self.now());
        self.state_read.notify_waiters();
        is_first
    }

    pub(super) fn now(&self) -> u64 {
        micros(self.clock.monotonic())
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::engine::Engine;
    use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use tokio::time::sleep;

    use super::*;
    use crate::resilience::tests::{PausedClock, metric};

    fn core(name: &str, engines: &[&str]) -> Core {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let memory = |name: &&str| -> (String, Arc<dyn Engine>) {
            ((*name).to_owned(), Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)))
        };
        let engines = engines.iter().map(memory).collect();
        Core::new(Setup::plain(name, engines, clock.clone(), Arc::new(SystemEntropy)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_fresh_for_its_time_and_a_failed_engine_is_left_out() {
        let core = core("fresh", &["a", "b"]);
        assert!(!core.is_fresh(), "nothing was read");
        sleep(Duration::from_secs(1)).await;
        let started = core.clock.monotonic();
        core.read_succeeded(&core.members[0], started);
        assert!(!core.is_fresh(), "the other one may know more");
        core.read_succeeded(&core.members[1], started);
        sleep(core.times.fresh).await;
        assert!(core.is_fresh());
        sleep(Duration::from_millis(1)).await;
        assert!(!core.is_fresh());
        let why = EngineError::unavailable("down");
        core.read_succeeded(&core.members[0], core.clock.monotonic());
        assert!(
            core.read_failed(&core.members[1], &why) && !core.read_failed(&core.members[1], &why),
            "the first one in a row"
        );
        assert!(core.is_fresh());
        assert!(core.read_failed(&core.members[0], &why) && !core.is_fresh());
        let refused = core.why_not_fresh();
        assert!(refused.contains("`fresh` is not known") && refused.contains("down"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_state_is_adopted_and_measured() {
        let active = |engine: &str| metric(&format!("oncegate_chain_active{{chain=\"adopted\",engine=\"{engine}\"}}"));
        let epoch = || metric("oncegate_chain_epoch{chain=\"adopted\"}");
        epoch();
        let core = core("adopted", &["a", "b"]);
        assert_eq!((active("a"), active("b"), epoch()), (Some(1.0), Some(0.0), Some(0.0)));
        let closing = ChainState::closing(&core.view().state, "b", 1);
        core.adopt(closing.clone());
        assert_eq!((core.view().serving, active("a"), epoch()), (Some(0), Some(1.0), Some(1.0)));
        core.adopt(closing.opened());
        assert_eq!((core.view().serving, active("a"), active("b")), (Some(1), Some(0.0), Some(1.0)));
        core.adopt(closing);
        assert_eq!(core.view().state.phase, Phase::Open, "an older one is not");
        let elsewhere = ChainState::closing(&core.view().state, "c", 1).opened();
        core.adopt(elsewhere);
        let refused = core.serving(&core.view()).err().unwrap().to_string();
        assert!(refused.contains("engine `c`, which this gateway does not have"), "{refused}");
    }
}
