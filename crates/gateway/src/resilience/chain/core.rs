//! A chain as one gateway knows it: the active engine, and when that was last confirmed. `follow` learns it, `switch` changes
//! it, `freeze` knows of data loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::{Clock, micros};
use oncegate_core::engine::{Engine, EngineError, Metadata};
use oncegate_telemetry::metrics::chain::ActiveMetrics;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::freeze::{DataLosses, GrantFreeze};
use super::setup::{Setup, Times};
use super::state::ChainState;
use super::status::{ChainStatus, Phase};
use crate::resilience::deadline_budget::{CHAIN_METADATA_TIMEOUT, CHAIN_STATE_WAIT};
use crate::resilience::per_shard::PerShard;
use crate::resilience::requirement::Requirement;

/// One chain, shared by its callers and its tasks.
pub(super) struct Core {
    pub(super) name: String,
    /// Name of the metadata record of its state.
    pub(super) record: String,
    pub(super) members: Vec<Member>,
    pub(super) times: Times,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// Held by a switch of this process.
    pub(super) switching: tokio::sync::Mutex<()>,
    view: ArcSwap<View>,
    adopting: Mutex<()>,
    /// Notified after each read of the state.
    state_read: Notify,
    pub(super) freeze: GrantFreeze,
    pub(super) requirement: Option<Requirement>,
    pub(super) metrics: ActiveMetrics,
}

/// One engine of a chain.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) engine: Arc<dyn Engine>,
    /// Why the last read of the chain state failed.
    failure: ArcSwapOption<String>,
    /// Start of the latest successful read, in microseconds; 0: never.
    read_at: AtomicU64,
    pub(super) losses: PerShard<DataLosses>,
}

/// The state of the chain as this gateway knows it.
pub(super) struct View {
    pub(super) state: ChainState,
    /// The engine that gets the calls; `None` if this gateway does not have it.
    pub(super) serving: Option<usize>,
    /// Start of the state, by this gateway's monotonic clock.
    pub(super) since: Duration,
}

impl Member {
    /// Reads a metadata record.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let late = |_| Err(EngineError::unavailable("the engine does not answer in time"));
        timeout(CHAIN_METADATA_TIMEOUT, self.engine.get_metadata(name)).await.unwrap_or_else(late)
    }

    /// Writes a metadata record. Returns false if it holds another value than expected.
    pub(super) async fn write(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        let late = |_| Err(EngineError::indeterminate("the engine does not answer in time"));
        let write = self.engine.compare_and_set_metadata(name, expected, new);
        timeout(CHAIN_METADATA_TIMEOUT, write).await.unwrap_or_else(late)
    }
}

impl Core {
    pub(super) fn new(setup: Setup) -> Self {
        let Setup { name, engines, on_data_loss, lease_max, clock, entropy, times, requirement } = setup;
        let freeze = GrantFreeze::new(&name, on_data_loss, lease_max);
        let metrics = ActiveMetrics::new(&name, engines.iter().map(|(name, _)| name.as_str()));
        let first = engines.first().map(|(name, _)| name.clone()).unwrap_or_default();
        metrics.set_active(&first, 0);
        let member = |(name, engine): (String, Arc<dyn Engine>)| {
            let (failure, read_at) = (ArcSwapOption::empty(), AtomicU64::new(0));
            let member = Member { name, engine, failure, read_at, losses: PerShard::default() };
            member.ignore_losses();
            member
        };
        let state = ChainState::never_switched(&first);
        Self {
            record: format!("chain.{name}"),
            name,
            members: engines.into_iter().map(member).collect(),
            times,
            view: ArcSwap::from_pointee(View { state, serving: Some(0), since: clock.monotonic() }),
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

    /// Returns the chain as it is known now.
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

    /// Returns whether every engine that answers has confirmed the state recently enough for a grant. The others are left out: a
    /// dead spare must not stop grants.
    pub(super) fn is_fresh(&self) -> bool {
        if !self.is_switchable() {
            return true;
        }
        let (now, fresh) = (self.now(), micros(self.times.fresh));
        let mut some = false;
        for member in self.answering() {
            let read_at = member.read_at.load(Ordering::Acquire);
            if read_at == 0 || now.saturating_sub(read_at) > fresh {
                return false;
            }
            some = true;
        }
        some
    }

    fn answering(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.failure.load().is_none())
    }

    fn why_not_fresh(&self) -> String {
        let failure = self.members.iter().find_map(|member| member.failure.load_full());
        let why = failure.as_ref().map_or("no engine has answered yet", |why| why.as_str());
        format!("the active engine of chain `{}` is not known: {why}", self.name)
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

    /// Fails if no claims of a shard may be granted now.
    pub(super) fn check_grants(&self, view: &View, shard: u16) -> Result<(), EngineError> {
        if view.state.phase == Phase::Closing {
            let (name, to) = (&self.name, &view.state.active);
            return Err(EngineError::paused(format!("chain `{name}` is being switched to engine `{to}`")));
        }
        self.freeze_on_data_loss(view, shard);
        self.check_freeze(shard)
    }

    /// Returns whether a grant of a shard that began with this view may be delivered: nothing has changed since.
    pub(super) fn is_current(&self, started: &View, shard: u16) -> bool {
        let now = self.view.load();
        now.state == started.state && self.is_fresh() && self.check_grants(&now, shard).is_ok()
    }

    /// Adopts a state that was read or written, if it is newer than the known one.
    pub(super) fn adopt(&self, state: ChainState) {
        let _adopting = self.adopting.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.view.load();
        if state.version() <= old.state.version() {
            return;
        }
        let serving = self.members.iter().position(|member| member.name == state.serving());
        if old.serving != serving
            && let Some(member) = serving.and_then(|at| self.members.get(at))
        {
            member.ignore_losses();
        }
        self.report(&old.state, &state, serving.is_some());
        self.view.store(Arc::new(View { state, serving, since: self.clock.monotonic() }));
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

    /// Records that a read of an engine's chain state, started at this time, succeeded.
    pub(super) fn read_succeeded(&self, at: usize, started: Duration) {
        self.members[at].read_at.fetch_max(micros(started).max(1), Ordering::AcqRel);
        self.members[at].failure.store(None);
        self.state_read.notify_waiters();
    }

    /// Records that a read of an engine's chain state failed. Returns whether the read before had succeeded.
    pub(super) fn read_failed(&self, at: usize, why: &EngineError) -> bool {
        let is_first = self.members[at].failure.swap(Some(Arc::new(why.to_string()))).is_none();
        self.state_read.notify_waiters();
        is_first
    }

    /// Returns the state, as operators see it.
    pub(super) fn status(&self) -> ChainStatus {
        let view = self.view.load();
        self.freeze_shards_on_data_loss(&view);
        let state = &view.state;
        ChainStatus {
            engines: self.members.iter().map(|member| member.name.clone()).collect(),
            active: state.serving().to_owned(),
            epoch: state.epoch,
            phase: state.phase,
            switching_to: (state.phase == Phase::Closing).then(|| state.active.clone()),
            frozen_for: self.frozen_for(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        micros(self.clock.monotonic())
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use oncegate_core::terms::OnDataLoss;
    use tokio::time::sleep;

    use super::*;
    use crate::resilience::tests::{PausedClock, metric};

    fn core(name: &str, engines: &[&str]) -> Core {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let memory = |name: &&str| -> (String, Arc<dyn Engine>) {
            ((*name).to_owned(), Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)))
        };
        Core::new(Setup {
            name: name.into(),
            engines: engines.iter().map(memory).collect(),
            on_data_loss: OnDataLoss::Resume,
            lease_max: Duration::ZERO,
            clock: clock.clone(),
            entropy: Arc::new(SystemEntropy),
            times: Times::default(),
            requirement: None,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_fresh_for_its_time_and_a_failed_engine_is_left_out() {
        let core = core("fresh", &["a", "b"]);
        assert!(!core.is_fresh(), "nothing was read");
        sleep(Duration::from_secs(1)).await;
        let started = core.clock.monotonic();
        core.read_succeeded(0, started);
        assert!(!core.is_fresh(), "the other one may know more");
        core.read_succeeded(1, started);
        sleep(core.times.fresh).await;
        assert!(core.is_fresh());
        sleep(Duration::from_millis(1)).await;
        assert!(!core.is_fresh());
        let why = EngineError::unavailable("down");
        core.read_succeeded(0, core.clock.monotonic());
        assert!(core.read_failed(1, &why) && !core.read_failed(1, &why), "the first one in a row");
        assert!(core.is_fresh());
        assert!(core.read_failed(0, &why) && !core.is_fresh());
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
