//! Histories of locks: the calls for a lock, the answers and their times. `oracle` checks them against the rules of locks.

#[cfg(feature = "gateway")]
pub mod http_service;
pub mod oracle;
#[cfg(test)]
mod tests;
pub mod workload;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::clock::Clock;
use oncegate_core::lock::LockMode;

pub use self::oracle::{Oracle, Rule, Violation};

/// A call for a lock.
#[derive(Clone, Debug)]
pub enum LockCall {
    /// Requests a hold.
    Acquire(Acquire),
    /// Ends the hold of an attempt.
    Release(Attempt),
    /// Ends hold and ticket of a nonce.
    Withdraw(Nonce),
    /// Extends the lease of a hold.
    Renew(Attempt, Duration),
}

/// A request for a hold.
#[derive(Clone, Debug)]
pub struct Acquire {
    pub nonce: Nonce,
    /// Without one, the hold is its own owner.
    pub owner: Option<Nonce>,
    pub mode: LockMode,
    pub lease: Duration,
    pub wait: Duration,
    pub fair: bool,
}

/// Answer to a call for a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// 201. `lease` is the rest of the lease, counted from the end of the wait.
    Granted { attempt: Attempt, fence: u64, holds: usize, lease: Duration, repeated: bool, waited: Duration },
    /// 409 `lock_held`.
    Held { position: Option<usize>, waited: Duration },
    /// 409 `upgrade_refused`.
    UpgradeRefused,
    /// 409 `withdrawn`.
    Withdrawn,
    /// 200 to a release or a withdrawal.
    Released { holds: usize, late: Option<bool> },
    /// 409 `not_held`.
    NotHeld,
    /// 200 to a renewal. `lease` is the rest of the lease, counted from the call.
    Renewed { lease: Duration },
}

/// Result of a call for a lock, as its caller sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockReply {
    /// Answer of the store.
    Answered(LockAnswer),
    /// The call may have taken effect, or may do so later.
    Unknown,
    /// The call certainly took no effect, and never will.
    Refused,
}

/// One call for a lock and its result.
#[derive(Clone, Debug)]
pub struct LockEvent {
    /// Number of the caller.
    pub caller: usize,
    /// Number of the service that was called.
    pub service: usize,
    /// Time of the call.
    pub started: Duration,
    /// Time of the answer, or when the caller gave up.
    pub answered: Duration,
    pub call: LockCall,
    pub reply: LockReply,
}

/// Calls for every lock, as the callers saw them. Cheap to clone; all clones share the records.
#[derive(Clone)]
pub struct LockHistory {
    clock: Arc<dyn Clock>,
    locks: Arc<Mutex<BTreeMap<String, Vec<LockEvent>>>>,
}

impl LockHistory {
    /// Creates an empty history with times by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, locks: Arc::default() }
    }

    /// Waits for the reply to a call and records both.
    pub async fn record(
        &self,
        (caller, service): (usize, usize),
        lock: &str,
        call: LockCall,
        reply: impl Future<Output = LockReply>,
    ) -> LockReply {
        let started = self.clock.monotonic();
        let reply = reply.await;
        let answered = self.clock.monotonic();
        let event = LockEvent { caller, service, started, answered, call, reply: reply.clone() };
        self.locks.lock().expect("no panic").entry(lock.to_owned()).or_default().push(event);
        reply
    }

    /// Returns the events of each lock, in the order in which the calls ended.
    pub fn locks(&self) -> BTreeMap<String, Vec<LockEvent>> {
        self.locks.lock().expect("no panic").clone()
    }

    /// Returns the number of answered calls for which this holds.
    pub fn count(&self, matches: impl Fn(&LockAnswer) -> bool) -> usize {
        let is_match = |event: &&LockEvent| matches!(&event.reply, LockReply::Answered(answer) if matches(answer));
        self.locks().values().flatten().filter(is_match).count()
    }

    /// Checks the events of every lock.
    ///
    /// # Errors
    /// Returns the first violation, after the name of its lock.
    pub fn check(&self, oracle: &Oracle) -> Result<(), (String, Violation)> {
        for (lock, events) in self.locks() {
            oracle.check(&events).map_err(|violation| (lock, violation))?;
        }
        Ok(())
    }
}
