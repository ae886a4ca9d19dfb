//! Switching a chain, by one gateway for all. First every store is told that the chain is closing, and whoever sees it
//! grants nothing; when all have had time to see it, the new engine is told that it is open, and only then is it used.

use futures_util::future::join_all;
use tokio::time::sleep;

use super::agreed::Agreed;
use super::core::Core;
use crate::engine::EngineError;
use crate::resilience::chain::{NotSwitched, Phase, Switched};

/// How long the new engine may be silent before somebody is told so who waits.
const OPENING: std::time::Duration = std::time::Duration::from_secs(5);
/// Between two tries to open.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(250);

impl Core {
    /// Switches the chain to the engine of this name.
    pub(super) async fn switch(&self, to: &str) -> Result<Switched, NotSwitched> {
        let Ok(_only) = self.switching.try_lock() else {
            return Err(NotSwitched::UnderWay(self.state().agreed.active.clone()));
        };
        let Some(target) = self.members.iter().position(|member| member.name == to) else {
            let engines = self.members.iter().map(|member| member.name.clone()).collect();
            return Err(NotSwitched::Unknown { to: to.to_owned(), engines });
        };
        if !self.is_shared() {
            return Err(NotSwitched::AlreadyActive(to.to_owned()));
        }
        let (before, closing) = self.begin(target).await?;
        // Time for all to see it, counted from when the new engine has told it; meanwhile the others are told as well.
        tokio::join!(sleep(self.times.closing), self.look_at_all());
        self.open(target, &closing).await?;
        self.look_at_all().await;
        Ok(Switched { from: before, to: to.to_owned(), epoch: closing.epoch })
    }

    /// Closes the chain, if nothing speaks against it. Returns what was in use, and what was agreed on.
    async fn begin(&self, target: usize) -> Result<(String, Agreed), NotSwitched> {
        let to = self.members[target].name.clone();
        let silent = |why| NotSwitched::Silent { to: to.clone(), why };
        let mut looks = self.look_at_all().await;
        looks.swap_remove(target).map_err(silent)?;
        let stands = self.note_at(target).await.map_err(silent)?;
        let state = self.state();
        let known = &state.agreed;
        let age = self.clock.monotonic().saturating_sub(state.since);
        match known.phase {
            Phase::Open if known.active == to => return Err(NotSwitched::AlreadyActive(to)),
            // One that cannot be finished must not stand in the way for ever.
            Phase::Closing if age < self.times.abandoned => return Err(NotSwitched::UnderWay(known.active.clone())),
            Phase::Open | Phase::Closing => {}
        }
        if let Some(found) = stands.as_ref().map(Agreed::read).transpose().map_err(silent)?
            && found.rank() > known.rank()
        {
            return Err(NotSwitched::Overtaken(found.active));
        }
        let closing = Agreed::closing(known, &to, self.entropy.bits());
        match self.swap_at(target, stands.as_ref(), &closing).await {
            Ok(true) => {
                self.adopt(closing.clone());
                Ok((closing.was.clone(), closing))
            }
            Ok(false) => {
                let _ = self.look(target).await;
                Err(NotSwitched::Overtaken(self.state().agreed.active.clone()))
            }
            Err(why @ EngineError::Determinate(_)) => Err(silent(why)),
            Err(why @ EngineError::Indeterminate(_)) => Err(NotSwitched::Unfinished { to, why }),
        }
    }

    /// Opens the chain on its new engine.
    async fn open(&self, target: usize, closing: &Agreed) -> Result<(), NotSwitched> {
        let opened = closing.opened();
        let give_up = self.clock.monotonic() + OPENING;
        loop {
            let known = self.state();
            if known.agreed.rank() > opened.rank() {
                return Err(NotSwitched::Overtaken(known.agreed.active.clone()));
            }
            let stands = closing.note().map_err(|why| self.unfinished(target, why))?;
            // Nobody holds back for what is not known there: whoever has switched has accepted that.
            let told = match self.say_kept(&self.members[target]).await {
                Ok(()) => self.swap_at(target, Some(&stands), &opened).await,
                Err(why) => Err(why),
            };
            match told {
                Ok(true) => {
                    self.adopt(opened);
                    return Ok(());
                }
                Ok(false) => {
                    // Somebody else's stands there, or nothing, because the store lost its data: then it is told anew.
                    let _ = self.look(target).await;
                }
                Err(why) if self.clock.monotonic() >= give_up => return Err(self.unfinished(target, why)),
                Err(_) => {}
            }
            if self.clock.monotonic() >= give_up {
                let why = EngineError::unavailable("it does not keep what it is told");
                return Err(self.unfinished(target, why));
            }
            sleep(AGAIN).await;
        }
    }

    fn unfinished(&self, target: usize, why: EngineError) -> NotSwitched {
        NotSwitched::Unfinished { to: self.members[target].name.clone(), why }
    }

    async fn look_at_all(&self) -> Vec<Result<(), EngineError>> {
        join_all((0..self.members.len()).map(|at| self.look(at))).await
    }
}
