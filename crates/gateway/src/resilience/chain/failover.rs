//! Failover of a chain with a witness. This gateway writes its view of the stores at the witness, and reads the views
//! of the others. It switches the chain once most gateways see the active engine out. `decision` decides, and `views`
//! has the shared record.

mod decision;
mod views;

use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::Entropy;
use oncegate_core::backoff::jittered;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_core::hex;
use oncegate_telemetry::metrics::chain::FailoverMetrics;
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) use self::decision::Seen;
use self::decision::{Decision, Majority, OtherView, Refusal, Situation, WitnessState};
use self::views::{GatewayView, Views};
use super::core::{Core, Member};
use super::setup::{FailoverSetup, SwitchRecorder};
use super::status::{FailoverMode, FailoverStatus, LastSwitch, Phase, ViewStatus, WitnessStatus};
use super::switch::Order;
use crate::roster::Known;

/// Time between two writes of a view while every store answers.
const QUIET: Duration = Duration::from_secs(10);

/// The same while one is out.
const ALERT: Duration = Duration::from_secs(1);

/// Time after an automatic switch that failed until this gateway tries again.
const RETRY: Duration = Duration::from_secs(5);

/// Writes of a view that lose against those of other gateways, before the next try waits for its turn.
const WRITES_MAX: usize = 4;

/// The failover of one chain at this gateway.
pub(super) struct Failover {
    /// Random name of this process.
    pub(super) gateway: String,
    pub(super) witness: Member,
    pub(super) metrics: FailoverMetrics,
    mode: FailoverMode,
    after: Duration,
    recorder: Arc<dyn SwitchRecorder>,
    /// Name of the record of views.
    record: String,
    /// Digest of the chain in this gateway's configuration.
    digest: String,
    /// Epoch of the record at the witness.
    epoch_at_witness: AtomicU64,
    /// Number of the last written view.
    number: AtomicU64,
    views: Mutex<Views>,
}

/// Runs the failover of a chain at this gateway.
pub(super) async fn run(core: Arc<Core>, stop: CancellationToken) {
    let mut rounds = Rounds::default();
    let forever = async {
        loop {
            rounds.round(&core).await;
            sleep(jittered(core.times.poll * 9 / 10, core.times.poll / 5, core.entropy.bits())).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Failover {
    pub(super) fn new(
        chain: &str,
        engines: &[(String, Arc<dyn Engine>)],
        setup: FailoverSetup,
        entropy: &dyn Entropy,
    ) -> Self {
        let FailoverSetup { witness, mode, after, recorder } = setup;
        let names: Vec<_> = engines.iter().map(|(name, _)| name.as_str()).collect();
        let digest = hex::encode(&Sha256::digest(format!("{} {}", names.join(" "), after.as_millis())));
        let gateway = format!("{:016x}", entropy.bits());
        Self {
            gateway: gateway[..8].to_owned(),
            witness: Member::new(witness, format!("failover.{chain}"), true),
            metrics: FailoverMetrics::new(chain),
            mode,
            after,
            recorder,
            record: format!("views.{chain}"),
            digest: digest[..8].to_owned(),
            epoch_at_witness: AtomicU64::new(0),
            number: AtomicU64::new(0),
            views: Mutex::default(),
        }
    }

    /// Returns whether gateways switch the chain automatically.
    pub(super) fn is_automatic(&self) -> bool {
        self.mode == FailoverMode::Automatic
    }

    /// Remembers the epoch of the witness's record.
    pub(super) fn witness_has(&self, epoch: u64) {
        self.epoch_at_witness.store(epoch, Ordering::Release);
    }

    /// Returns the state as operators see it.
    pub(super) fn status(&self, core: &Core) -> FailoverStatus {
        let witness = self.witness_state(core);
        let is_up = !matches!(witness, WitnessState::Out(_));
        let detail = match witness {
            WitnessState::Out(why) => why,
            WitnessState::Agrees | WitnessState::Differs => "answers".to_owned(),
        };
        let next_switch = match self.situation(core).map(|situation| situation.decide()) {
            Some(Decision::Stay(refusal)) => refusal.to_string(),
            Some(Decision::Switch(_)) => "due".to_owned(),
            None => "this gateway does not have the active engine".to_owned(),
        };
        let state = &core.view().state;
        FailoverStatus {
            mode: self.mode,
            after_ms: millis(self.after),
            gateway: self.gateway.clone(),
            witness: WitnessStatus { engine: self.witness.name.clone(), up: is_up, detail },
            next_switch,
            views: self.shown_views(core),
            last_switch: state.note.as_ref().map(|note| LastSwitch {
                from: state.previous.clone(),
                to: state.active.clone(),
                cause: note.cause,
                gateway: note.gateway.clone(),
                at: Timestamp::from_micros(note.at),
                reason: note.reason.clone(),
            }),
        }
    }

    fn shown_views(&self, core: &Core) -> Vec<ViewStatus> {
        let now = core.clock.monotonic();
        let names = |view: &GatewayView| -> Vec<_> {
            let engines = core.members.iter().enumerate();
            engines.filter(|(at, _)| view.seen(*at) != Seen::Answers).map(|(_, member)| member.name.clone()).collect()
        };
        let own = self.own_view(core);
        let own = ViewStatus { gateway: own.gateway.clone(), age_ms: 0, out: names(&own) };
        let views = self.views();
        let others = views.others(&self.gateway).map(|known| (now.saturating_sub(known.at), &known.entry));
        let others = others.filter(|(age, _)| *age <= decision::RUNNING).map(|(age, view)| ViewStatus {
            gateway: view.gateway.clone(),
            age_ms: millis(age),
            out: names(view),
        });
        std::iter::once(own).chain(others).collect()
    }

    /// Returns what the decision depends on; `None` if this gateway does not have the active engine.
    fn situation(&self, core: &Core) -> Option<Situation> {
        let (view, now) = (core.view(), core.clock.monotonic());
        let active = view.serving?;
        let next = (0..core.members.len()).find(|at| *at != active)?;
        let views = self.views();
        let other = |known: &Known<GatewayView>| OtherView {
            age: now.saturating_sub(known.at),
            has_changed: known.has_changed,
            same_chain: known.entry.chain == self.digest,
            active: known.entry.seen(active),
            next: known.entry.seen(next),
        };
        Some(Situation {
            is_automatic: self.is_automatic(),
            after: self.after,
            is_closing: view.state.phase == Phase::Closing,
            is_preferred: active < next,
            changed_for: (view.state.epoch > 0).then(|| now.saturating_sub(view.since)),
            witness: self.witness_state(core),
            active: core.members[active].seen(core.now()),
            next: core.members[next].seen(core.now()),
            next_unfit: unfit(core, &core.members[next]),
            others: views.others(&self.gateway).map(other).collect(),
        })
    }

    fn witness_state(&self, core: &Core) -> WitnessState {
        if let Some(why) = self.witness.failure() {
            return WitnessState::Out(why.to_string());
        }
        if self.witness.seen(core.now()) != Seen::Answers {
            return WitnessState::Out("it has not answered yet".to_owned());
        }
        let is_same = self.epoch_at_witness.load(Ordering::Acquire) == core.view().state.epoch;
        if is_same { WitnessState::Agrees } else { WitnessState::Differs }
    }

    /// Returns how this gateway sees the stores now.
    fn own_view(&self, core: &Core) -> GatewayView {
        let out_ms = |member: &Member| match member.seen(core.now()) {
            Seen::Answers => None,
            Seen::Out(out_for) => Some(millis(out_for)),
        };
        GatewayView {
            gateway: self.gateway.clone(),
            number: self.number.load(Ordering::Relaxed),
            chain: self.digest.clone(),
            lease_ms: millis(core.freeze.lease_max()),
            out_ms: core.members.iter().map(out_ms).collect(),
        }
    }

    /// Writes this gateway's view, and reads the others. Returns false if the record has no room for it.
    async fn write_view(&self, core: &Core) -> Result<bool, EngineError> {
        self.number.fetch_add(1, Ordering::Relaxed);
        for _ in 0..WRITES_MAX {
            let stored = self.witness.read(&self.record).await?;
            let (own, now) = (self.own_view(core), core.clock.monotonic());
            let new = {
                let mut views = self.views();
                views.read(stored.as_ref(), now)?;
                views.with(&own, now)?
            };
            let Some(new) = new else { return Ok(false) };
            if self.witness.write(&self.record, stored.as_ref(), &new).await? {
                return Ok(true);
            }
        }
        Err(EngineError::unavailable("other gateways write at the same time"))
    }

    async fn read_views(&self, core: &Core) -> Result<(), EngineError> {
        let stored = self.witness.read(&self.record).await?;
        self.views().read(stored.as_ref(), core.clock.monotonic())
    }

    /// Returns the longest lease that any gateway may have granted, in milliseconds.
    fn lease_ms(&self, core: &Core) -> u64 {
        let others = self.views();
        let others = others.others(&self.gateway).map(|known| known.entry.lease_ms);
        others.chain([millis(core.freeze.lease_max())]).max().unwrap_or_default()
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the task between its rounds.
#[derive(Default)]
struct Rounds {
    /// Time of the next write of the view.
    write_at: Duration,
    /// The engines that were out when it was written.
    written: Vec<bool>,
    /// Consecutive rounds in which the witness was out.
    witness_out: u32,
    /// The obstacle that was logged in this outage.
    logged: Option<Discriminant<Refusal>>,
    /// True while the record of views has no room.
    is_full: bool,
    /// It was logged that the next engine lacks what the chain requires.
    is_next_unfit: bool,
    /// No automatic switch before.
    retry_at: Duration,
}

impl Rounds {
    async fn round(&mut self, core: &Arc<Core>) {
        let Some(failover) = &core.failover else { return };
        self.share_views(core, failover).await;
        self.report_witness(core, failover);
        let Some(situation) = failover.situation(core) else { return };
        match situation.decide() {
            Decision::Stay(refusal) => self.report_refusal(core, &situation, &refusal),
            Decision::Switch(majority) => {
                if core.clock.monotonic() >= self.retry_at {
                    self.switch(core, failover, &situation, majority).await;
                }
            }
        }
    }

    /// Writes the view when it is due. Otherwise reads the views of the others while a store is out.
    async fn share_views(&mut self, core: &Core, failover: &Failover) {
        let now = core.clock.monotonic();
        let out: Vec<_> = core.members.iter().map(|member| member.seen(core.now()) != Seen::Answers).collect();
        let is_any_out = out.contains(&true);
        if now < self.write_at && out == self.written {
            if is_any_out {
                // A failure is one of the witness, which is reported.
                let _ = failover.read_views(core).await;
            }
            return;
        }
        // After a failure the next round tries again.
        let Ok(has_room) = failover.write_view(core).await else { return };
        if !has_room && !self.is_full {
            let (chain, max) = (&core.name, views::VIEWS_MAX);
            tracing::warn!(
                chain.name = chain,
                gateways_max = max,
                "Too many gateways: this one has no vote in the chain"
            );
        }
        self.is_full = !has_room;
        self.written = out;
        self.write_at = now + if is_any_out { ALERT } else { QUIET };
    }

    fn report_witness(&mut self, core: &Core, failover: &Failover) {
        let (chain, witness) = (&core.name, &failover.witness.name);
        if let WitnessState::Out(why) = failover.witness_state(core) {
            failover.metrics.set_witness_up(false);
            self.witness_out = self.witness_out.saturating_add(1);
            // It may not have been read yet, or have got its record just now.
            if self.witness_out == 4 {
                let what = "The witness is out: the chain is not switched automatically";
                tracing::error!(chain.name = chain, engine.name = witness, reason = why, "{what}");
            }
            return;
        }
        failover.metrics.set_witness_up(true);
        if self.witness_out >= 4 {
            tracing::info!(chain.name = chain, engine.name = witness, "The witness answers again");
        }
        self.witness_out = 0;
    }

    fn report_refusal(&mut self, core: &Core, situation: &Situation, refusal: &Refusal) {
        let chain = &core.name;
        if matches!(refusal, Refusal::NextUnfit(_)) {
            if !std::mem::replace(&mut self.is_next_unfit, true) {
                let what = "The chain would not be switched automatically";
                tracing::warn!(chain.name = chain, reason = %refusal, "{what}");
            }
        } else if situation.next_unfit.is_none() {
            self.is_next_unfit = false;
        }
        let Seen::Out(out_for) = situation.active else {
            self.logged = None;
            return;
        };
        if out_for < situation.after || *refusal == Refusal::Closing || self.logged == Some(discriminant(refusal)) {
            return;
        }
        self.logged = Some(discriminant(refusal));
        tracing::warn!(chain.name = chain, reason = %refusal, "The active engine is out, and the chain is not switched automatically");
    }

    async fn switch(&mut self, core: &Arc<Core>, failover: &Failover, situation: &Situation, majority: Majority) {
        let view = core.view();
        let (from, Majority { votes, gateways }) = (view.state.active.clone(), majority);
        let Some(to) = core.members.iter().map(|member| member.name.clone()).find(|name| *name != from) else { return };
        let Seen::Out(out_for) = situation.active else { return };
        let reason = format!("`{from}` is out for {} s, seen by {votes} of {gateways} gateways", out_for.as_secs());
        let (epoch, freeze_ms) = (view.state.epoch, failover.lease_ms(core));
        let detail = format!("chain: {}, from: {from}, to: {to}, epoch: {}, automatic", core.name, epoch + 1);
        let chain = &core.name;
        tracing::warn!(chain.name = chain, from, to, reason, "The chain switches automatically");
        let action = {
            let (core, reason) = (core.clone(), reason.clone());
            Box::pin(async move { core.switch(&to, Order::Automatic { epoch, reason, freeze_ms }).await })
        };
        if let Err(why) = failover.recorder.record(detail, reason, action).await {
            self.retry_at = core.clock.monotonic() + RETRY;
            tracing::warn!(chain.name = chain, reason = why, "This gateway did not complete the automatic switch");
        }
    }
}

/// Returns why an engine that answers would grant nothing: its chain state cannot be read, or it lacks what the chain requires.
fn unfit(core: &Core, member: &Member) -> Option<String> {
    if let Some(why) = member.failure() {
        return Some(why.to_string());
    }
    let required = core.requirement.as_ref()?;
    required.missing(&*member.engine).map(|missing| required.reason(missing))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
