//! What this gateway knows of its chain for the decision, and for operators: the stores as it sees them, the witness, and the views
//! of the other gateways.

use std::sync::atomic::Ordering;

use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::engine::{EngineError, Metadata};

use super::Failover;
use super::decision::{self, Decision, OtherView, Situation, WitnessState};
use super::views::GatewayView;
use crate::resilience::chain::core::Core;
use crate::resilience::chain::member::{Member, Seen};
use crate::resilience::chain::status::{FailoverStatus, LastSwitch, Phase, ViewStatus, WitnessStatus};
use crate::roster::Known;

impl Failover {
    /// Returns the state as operators see it.
    pub(in crate::resilience::chain) fn status(&self, core: &Core) -> FailoverStatus {
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
            hold: self.hold_at(core.clock.wall()).map(|hold| (*hold).clone()),
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
    pub(super) fn situation(&self, core: &Core) -> Option<Situation> {
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
            hold: self.hold_at(core.clock.wall()).map(|hold| hold.to_string()),
            after: self.after,
            is_closing: view.state.phase == Phase::Closing,
            is_preferred: active < next,
            changed_for: (view.state.epoch > 0).then(|| now.saturating_sub(view.since)),
            witness: self.witness_state(core),
            one_server: core.one_server(),
            active: core.members[active].seen(core.now()),
            next: core.members[next].seen(core.now()),
            next_unfit: unfit(core, &core.members[next]),
            others: views.others(&self.gateway).map(other).collect(),
        })
    }

    pub(super) fn witness_state(&self, core: &Core) -> WitnessState {
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
    pub(super) async fn write_view(&self, core: &Core) -> Result<bool, EngineError> {
        self.number.fetch_add(1, Ordering::Relaxed);
        let add = |stored: Option<&Metadata>| {
            let (own, now) = (self.own_view(core), core.clock.monotonic());
            let mut views = self.views();
            views.read(stored, now)?;
            views.with(&own, now)
        };
        self.witness.replace(&self.record, add).await
    }

    pub(super) async fn read_views(&self, core: &Core) -> Result<(), EngineError> {
        let stored = self.witness.read(&self.record).await?;
        self.views().read(stored.as_ref(), core.clock.monotonic())
    }

    /// Returns the longest lease that any gateway may have granted, in milliseconds.
    pub(super) fn lease_ms(&self, core: &Core) -> u64 {
        let others = self.views();
        let others = others.others(&self.gateway).map(|known| known.entry.lease_ms);
        others.chain([millis(core.freeze.lease_max())]).max().unwrap_or_default()
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
