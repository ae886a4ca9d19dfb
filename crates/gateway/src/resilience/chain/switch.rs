//! Switching a chain, by one gateway for all: closing is written to every engine, and gateways that read it grant
//! nothing. All gateways read it within a fixed time. After that time, open is written to the new engine, and only then
//! that engine is used. A chain with a witness writes it there first: of several switches at the same time the witness
//! takes one.

use futures_util::future::join_all;
use oncegate_core::engine::{Determinate, EngineError, Metadata};
use tokio::time::sleep;

use super::core::Core;
use super::failover::Failover;
use super::member::Member;
use super::state::{ChainState, SwitchNote};
use super::status::{ChainSwitchError, Phase, SwitchCause, Switched};
use crate::resilience::retry::RetryRule;

/// Order to switch, with its cause.
pub(super) enum Order {
    /// An operator.
    Operator,
    /// The gateways, which decided it for this epoch.
    Automatic {
        epoch: u64,
        reason: String,
        /// Length of the grant freeze on the new engine, in milliseconds.
        freeze_ms: u64,
    },
}

impl Core {
    /// Switches the chain to the engine of this name.
    pub(super) async fn switch(&self, to: &str, order: Order) -> Result<Switched, ChainSwitchError> {
        let Ok(_only) = self.switching.try_lock() else {
            return Err(ChainSwitchError::InProgress(self.view().state.active.clone()));
        };
        let Some(target) = self.members.iter().position(|member| member.name == to) else {
            let engines = self.members.iter().map(|member| member.name.clone()).collect();
            return Err(ChainSwitchError::UnknownEngine { to: to.to_owned(), engines });
        };
        self.check_fit(target).await?;
        if !self.is_switchable() {
            return Err(ChainSwitchError::AlreadyActive(to.to_owned()));
        }
        let closing = self.close(target, order).await?;
        // The time begins once the new engine has stored the state; during that time it is copied to the others.
        tokio::join!(sleep(self.times.closing), self.refresh_all());
        self.open(target, &closing).await?;
        self.count_switch(&closing);
        self.refresh_all().await;
        Ok(Switched { from: closing.previous, to: to.to_owned(), epoch: closing.epoch })
    }

    /// Checks that the engines of a chain with a witness are two servers, and that an engine has what the chain requires. Otherwise the chain would grant nothing after the switch.
    async fn check_fit(&self, target: usize) -> Result<(), ChainSwitchError> {
        if let Some(why) = self.one_server() {
            return Err(ChainSwitchError::Unfit(EngineError::incompatible(why)));
        }
        let (Some(requirement), Some(next)) = (&self.requirement, self.members.get(target)) else { return Ok(()) };
        requirement.check(&*next.engine).await.map_err(|why| match why {
            EngineError::Determinate(Determinate::Incompatible(_)) => ChainSwitchError::Unfit(why),
            why => ChainSwitchError::Unavailable { to: next.name.clone(), why },
        })
    }

    /// Closes the chain, if it may be switched. Returns its state.
    async fn close(&self, target: usize, order: Order) -> Result<ChainState, ChainSwitchError> {
        let next = &self.members[target];
        let to = next.name.clone();
        let unavailable = |why| ChainSwitchError::Unavailable { to: to.clone(), why };
        let others = self.places().filter(|place| place.name != to);
        join_all(others.map(|place| self.refresh(place))).await;
        // Last, since this state is replaced.
        let stored = next.read(&next.record).await.map_err(unavailable)?;
        if let Some(found) = stored.as_ref().map(ChainState::read).transpose().map_err(unavailable)? {
            self.adopt(found);
        }
        let view = self.view();
        let known = &view.state;
        let age = self.clock.monotonic().saturating_sub(view.since);
        match known.phase {
            Phase::Open if known.active == to => return Err(ChainSwitchError::AlreadyActive(to)),
            // A switch that cannot be completed must not block later ones.
            Phase::Closing if age < self.times.abandoned => {
                return Err(ChainSwitchError::InProgress(known.active.clone()));
            }
            Phase::Open | Phase::Closing => {}
        }
        let closing = ChainState::closing(known, &to, self.entropy.bits());
        let Some(failover) = &self.failover else { return self.close_next(target, stored.as_ref(), closing).await };
        if matches!(order, Order::Automatic { epoch, .. } if epoch != known.epoch) {
            return Err(ChainSwitchError::Conflict(known.active.clone()));
        }
        let closing = self.noted(closing, failover, order);
        self.close_witness(failover, &closing).await?;
        self.close_after_witness(target, closing).await
    }

    /// Writes closing to the new engine, which has to accept it: it is going to serve.
    async fn close_next(
        &self,
        target: usize,
        stored: Option<&Metadata>,
        closing: ChainState,
    ) -> Result<ChainState, ChainSwitchError> {
        let (next, to) = (&self.members[target], closing.active.clone());
        let written = self.write_state(next, stored, &closing).await;
        self.closed(next, written, &closing, |why| ChainSwitchError::Unavailable { to, why }).await?;
        Ok(closing)
    }

    /// Adopts the closing state once it is written, or returns why it is not. `unavailable` is the error if nothing was written.
    async fn closed(
        &self,
        place: &Member,
        written: Result<bool, EngineError>,
        closing: &ChainState,
        unavailable: impl FnOnce(EngineError) -> ChainSwitchError,
    ) -> Result<(), ChainSwitchError> {
        match written {
            Ok(true) => {
                self.adopt(closing.clone());
                Ok(())
            }
            Ok(false) => {
                let _ = self.refresh(place).await;
                Err(self.conflict())
            }
            Err(why @ EngineError::Determinate(_)) => Err(unavailable(why)),
            Err(why @ EngineError::Indeterminate(_)) => {
                Err(ChainSwitchError::Incomplete { to: closing.active.clone(), why })
            }
        }
    }

    /// Returns the error of a switch that another one has overtaken: the chain is where that one has put it.
    fn conflict(&self) -> ChainSwitchError {
        ChainSwitchError::Conflict(self.view().state.active.clone())
    }

    /// Returns the state with its origin.
    fn noted(&self, closing: ChainState, failover: &Failover, order: Order) -> ChainState {
        let (cause, reason, freeze_ms) = match order {
            Order::Operator => (SwitchCause::Operator, "see the audit trail".to_owned(), None),
            Order::Automatic { reason, freeze_ms, .. } => (SwitchCause::Automatic, reason, Some(freeze_ms)),
        };
        let (gateway, at) = (failover.gateway.clone(), self.clock.wall().as_micros());
        closing.noted(SwitchNote { cause, gateway, at, reason }, freeze_ms)
    }

    /// Writes closing to the witness, which takes one switch at a time.
    async fn close_witness(&self, failover: &Failover, closing: &ChainState) -> Result<(), ChainSwitchError> {
        let witness = &failover.witness;
        let out = |why| ChainSwitchError::WitnessOut { witness: witness.name.clone(), why };
        let stored = witness.read(&witness.record).await.map_err(out)?;
        if let Some(found) = stored.as_ref().map(ChainState::read).transpose().map_err(out)?
            && found.epoch >= closing.epoch
        {
            self.adopt(found);
            return Err(self.conflict());
        }
        let mut written = self.write_state(witness, stored.as_ref(), closing).await;
        if matches!(written, Err(EngineError::Indeterminate(_))) {
            // It finds its own value if the first one was stored.
            written = self
                .write_state(witness, stored.as_ref(), closing)
                .await
                .map_err(|why| EngineError::indeterminate(why.reason()));
        }
        self.closed(witness, written, closing, out).await
    }

    /// Writes closing to the new engine after the witness has it: the switch is under way, even if this fails.
    async fn close_after_witness(&self, target: usize, closing: ChainState) -> Result<ChainState, ChainSwitchError> {
        let (next, started) = (&self.members[target], self.clock.monotonic());
        loop {
            // Copies the state to the engine, as to any that lags behind.
            let refreshed = self.refresh(next).await;
            let stored =
                next.read(&next.record).await.and_then(|record| record.as_ref().map(ChainState::read).transpose());
            let why = match (refreshed, stored) {
                (_, Ok(Some(stored))) if stored == closing => return Ok(closing),
                (Ok(()), Ok(Some(stored))) if stored.version() > closing.version() => {
                    return Err(ChainSwitchError::Conflict(stored.active));
                }
                (Err(why), _) | (_, Err(why)) => why,
                (Ok(()), Ok(_)) => EngineError::unavailable("it does not keep the state of the chain"),
            };
            let elapsed = self.clock.monotonic().saturating_sub(started);
            if !RetryRule::CHAIN_OPEN.allows(&why, elapsed) {
                return Err(ChainSwitchError::Incomplete { to: closing.active, why });
            }
            sleep(RetryRule::CHAIN_OPEN.pause(self.entropy.bits())).await;
        }
    }

    /// Opens the chain on its new engine.
    async fn open(&self, target: usize, closing: &ChainState) -> Result<(), ChainSwitchError> {
        let opened = closing.opened();
        let incomplete = |why| ChainSwitchError::Incomplete { to: closing.active.clone(), why };
        let stored = closing.to_metadata().map_err(incomplete)?;
        let (next, started) = (&self.members[target], self.clock.monotonic());
        loop {
            let view = self.view();
            if view.state.version() > opened.version() {
                return Err(ChainSwitchError::Conflict(view.state.active.clone()));
            }
            // No freeze for claims that are unknown there: the operator has accepted their loss.
            let is_stored = match self.mark_as_kept(next).await {
                Ok(()) => self.write_state(next, Some(&stored), &opened).await,
                Err(why) => Err(why),
            };
            let why = match is_stored {
                Ok(true) => {
                    self.adopt(opened);
                    return Ok(());
                }
                // Another state is stored there, or none, because the store lost its data: then this one is stored again.
                Ok(false) => {
                    let _ = self.refresh(next).await;
                    EngineError::unavailable("it does not keep the state of the chain")
                }
                Err(why) => why,
            };
            let elapsed = self.clock.monotonic().saturating_sub(started);
            if !RetryRule::CHAIN_OPEN.allows(&why, elapsed) {
                return Err(incomplete(why));
            }
            sleep(RetryRule::CHAIN_OPEN.pause(self.entropy.bits())).await;
        }
    }

    async fn refresh_all(&self) {
        join_all(self.places().map(|place| self.refresh(place))).await;
    }

    /// Counts a completed switch of a chain with a witness.
    pub(super) fn count_switch(&self, state: &ChainState) {
        if let (Some(failover), Some(note)) = (&self.failover, &state.note) {
            failover.metrics.switched(&state.active, note.cause.name());
        }
    }
}
