//! The task of a failover: shares the view, reports obstacles, and switches the chain when that is decided.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::backoff::jittered;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::decision::{Decision, Majority, Refusal, Situation, WitnessState};
use super::{Failover, views};
use crate::resilience::chain::core::Core;
use crate::resilience::chain::member::Seen;
use crate::resilience::chain::switch::Order;

/// Time between two writes of a view while every store answers.
const QUIET: Duration = Duration::from_secs(10);

/// The same while one is out.
const ALERT: Duration = Duration::from_secs(1);

/// Time after an automatic switch that failed until this gateway tries again.
const RETRY: Duration = Duration::from_secs(5);

/// Runs the failover of a chain at this gateway.
pub(in crate::resilience::chain) async fn run(core: Arc<Core>, stop: CancellationToken) {
    let mut rounds = Rounds::default();
    let forever = async {
        loop {
            rounds.round(&core).await;
            sleep(jittered(core.times.poll * 9 / 10, core.times.poll / 5, core.entropy.bits())).await;
        }
    };
    stop.run_until_cancelled(forever).await;
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

/// Returns whether no operator holds switches now. A witness that does not answer allows none either.
async fn is_allowed(core: &Core, failover: &Failover) -> bool {
    failover.read_hold().await.is_ok() && failover.hold_at(core.clock.wall()).is_none()
}

impl Rounds {
    async fn round(&mut self, core: &Arc<Core>) {
        let Some(failover) = &core.failover else { return };
        self.share_views(core, failover).await;
        if failover.hold_at(core.clock.wall()).is_some() {
            // It may have been ended at another gateway. If the witness does not answer, the hold remains.
            let _ = failover.read_hold().await;
        }
        self.report_witness(core, failover);
        let Some(situation) = failover.situation(core) else { return };
        match situation.decide() {
            Decision::Stay(refusal) => self.report_refusal(core, &situation, &refusal),
            Decision::Switch(majority) => {
                if core.clock.monotonic() >= self.retry_at && is_allowed(core, failover).await {
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
