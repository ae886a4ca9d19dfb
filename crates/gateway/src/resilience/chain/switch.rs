//! Switching a chain, by one gateway for all: closing is written to every engine, and gateways that read it grant nothing. After
//! the time in which all read it, open is written to the new engine, and only then it is used.

use futures_util::future::join_all;
use oncegate_core::engine::EngineError;
use tokio::time::sleep;

use super::core::Core;
use super::state::ChainState;
use super::status::{ChainSwitchError, Phase, Switched};
use crate::resilience::retry::RetryRule;

impl Core {
    /// Switches the chain to the engine of this name.
    pub(super) async fn switch(&self, to: &str) -> Result<Switched, ChainSwitchError> {
        let Ok(_only) = self.switching.try_lock() else {
            return Err(ChainSwitchError::InProgress(self.view().state.active.clone()));
        };
        let Some(target) = self.members.iter().position(|member| member.name == to) else {
            let engines = self.members.iter().map(|member| member.name.clone()).collect();
            return Err(ChainSwitchError::UnknownEngine { to: to.to_owned(), engines });
        };
        if !self.is_switchable() {
            return Err(ChainSwitchError::AlreadyActive(to.to_owned()));
        }
        let closing = self.close(target).await?;
        // The time begins once the new engine has stored the state; during that time it is copied to the others.
        tokio::join!(sleep(self.times.closing), self.refresh_all());
        self.open(target, &closing).await?;
        self.refresh_all().await;
        Ok(Switched { from: closing.previous, to: to.to_owned(), epoch: closing.epoch })
    }

    /// Closes the chain, if it may be switched. Returns its state.
    async fn close(&self, target: usize) -> Result<ChainState, ChainSwitchError> {
        let to = self.members[target].name.clone();
        let unavailable = |why| ChainSwitchError::Unavailable { to: to.clone(), why };
        let others = (0..self.members.len()).filter(|at| *at != target);
        join_all(others.map(|at| self.refresh(at))).await;
        // Last, since this state is replaced.
        let stored = self.members[target].read(&self.record).await.map_err(unavailable)?;
        if let Some(found) = stored.as_ref().map(ChainState::read).transpose().map_err(unavailable)? {
            self.adopt(found);
        }
        let view = self.view();
        let known = &view.state;
        let age = self.clock.monotonic().saturating_sub(view.since);
        match known.phase {
            Phase::Open if known.active == to => return Err(ChainSwitchError::AlreadyActive(to)),
            // A switch that cannot be completed must not block others for ever.
            Phase::Closing if age < self.times.abandoned => {
                return Err(ChainSwitchError::InProgress(known.active.clone()));
            }
            Phase::Open | Phase::Closing => {}
        }
        let closing = ChainState::closing(known, &to, self.entropy.bits());
        match self.write_state(target, stored.as_ref(), &closing).await {
            Ok(true) => {
                self.adopt(closing.clone());
                Ok(closing)
            }
            Ok(false) => {
                let _ = self.refresh(target).await;
                Err(ChainSwitchError::Conflict(self.view().state.active.clone()))
            }
            Err(why @ EngineError::Determinate(_)) => Err(unavailable(why)),
            Err(why @ EngineError::Indeterminate(_)) => Err(ChainSwitchError::Incomplete { to, why }),
        }
    }

    /// Opens the chain on its new engine.
    async fn open(&self, target: usize, closing: &ChainState) -> Result<(), ChainSwitchError> {
        let opened = closing.opened();
        let incomplete = |why| ChainSwitchError::Incomplete { to: closing.active.clone(), why };
        let stored = closing.to_metadata().map_err(incomplete)?;
        let started = self.clock.monotonic();
        loop {
            let view = self.view();
            if view.state.version() > opened.version() {
                return Err(ChainSwitchError::Conflict(view.state.active.clone()));
            }
            // No freeze for claims that are unknown there: the operator has accepted their loss.
            let is_stored = match self.mark_as_kept(&self.members[target]).await {
                Ok(()) => self.write_state(target, Some(&stored), &opened).await,
                Err(why) => Err(why),
            };
            let why = match is_stored {
                Ok(true) => {
                    self.adopt(opened);
                    return Ok(());
                }
                // Another state is stored there, or none, because the store lost its data: then this one is stored again.
                Ok(false) => {
                    let _ = self.refresh(target).await;
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
        join_all((0..self.members.len()).map(|at| self.refresh(at))).await;
    }
}
