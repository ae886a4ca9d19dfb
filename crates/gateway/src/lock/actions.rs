//! Requests to a lock as its task works on them, and their answers.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::caller::Caller;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::lock::{
    AcquireRequest, AcquireResponse, LockRecord, LockState, RenewLockResponse, ShortHash, UnlockResponse,
};
use tokio::sync::oneshot;

/// A request to a lock.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Acquire(AcquireRequest),
    Release(Attempt),
    Withdraw(ShortHash),
    Renew(Attempt, Duration),
    /// Ends all holds, or those whose hash is shown as this, for an operator.
    Evict(Option<String>),
    View,
}

/// The table's answer to a request.
#[derive(Clone, Debug)]
pub(super) enum LockResponse {
    Acquire(AcquireResponse),
    Unlock(UnlockResponse),
    Renew(RenewLockResponse),
    Evicted(usize),
    View(Box<LockRecord>),
}

/// An answer, and the known state of the lock.
#[derive(Clone, Debug)]
pub(super) struct LockReply {
    pub(super) response: LockResponse,
    /// The store's instant of the answer.
    pub(super) now: Timestamp,
    /// Most that the store's clock gains on real time.
    pub(super) clock_gain: Duration,
    /// Start of the call to the store, by this gateway's monotonic clock.
    pub(super) sent_at: Duration,
    /// An earlier try of the change may have been stored, and may have ended the hold that is now absent.
    pub(super) is_uncertain: bool,
    pub(super) lock: Summary,
}

/// State of a lock, for callers that do not get it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) mode: Option<oncegate_core::lock::LockMode>,
    pub(super) holders: usize,
    pub(super) waiting: usize,
    /// Time after which waiting requests read the lock again.
    pub(super) ask_again_in: Option<Duration>,
}

/// A request and its reply channel.
pub(super) struct Pending {
    pub(super) action: Action,
    /// Start of its call, by the monotonic clock.
    pub(super) since: Duration,
    /// End of its wait, by the monotonic clock; its call is answered at once after that.
    pub(super) waits_until: Duration,
    /// True if it does not wait, and may request the lock again.
    pub(super) polls: bool,
    /// Deadline of each call to the store.
    pub(super) deadline: Duration,
    /// An earlier change with this request may have been stored.
    pub(super) is_uncertain: bool,
    /// Notified once it waits.
    pub(super) begins: Option<oneshot::Sender<()>>,
    pub(super) reply: oneshot::Sender<Result<LockReply, EngineError>>,
}

impl LockReply {
    /// Returns the replies to requests, from their responses and whether an earlier try is uncertain.
    pub(super) fn of_lock(
        now: Timestamp,
        clock_gain: Duration,
        sent_at: Duration,
        lock: Summary,
    ) -> impl Fn(LockResponse, bool) -> Self {
        move |response, is_uncertain| Self { response, now, clock_gain, sent_at, is_uncertain, lock }
    }
}

impl Pending {
    /// Returns the nonce of the ticket that it may have in the queue.
    pub(super) fn ticket(&self) -> Option<ShortHash> {
        match &self.action {
            Action::Acquire(request) if request.fair => Some(ShortHash::of_nonce(request.attempt.nonce())),
            _ => None,
        }
    }
}

impl Action {
    /// Applies the request to a lock.
    pub(super) fn apply(&self, lock: &mut LockState) -> LockResponse {
        match self {
            Self::Acquire(request) => LockResponse::Acquire(lock.acquire(request)),
            Self::Release(attempt) => LockResponse::Unlock(lock.release(attempt)),
            Self::Withdraw(nonce) => LockResponse::Unlock(lock.withdraw(*nonce)),
            Self::Renew(attempt, lease) => LockResponse::Renew(lock.renew(attempt, *lease)),
            Self::Evict(None) => LockResponse::Evicted(lock.evict(|_| true)),
            Self::Evict(Some(shown)) => LockResponse::Evicted(lock.evict(|hold| hold.nonce.shown() == *shown)),
            Self::View => LockResponse::View(Box::new(lock.record().clone())),
        }
    }

    /// Returns the longest lease that it begins or extends.
    pub(super) fn lease(&self) -> Duration {
        match self {
            Self::Acquire(request) => request.lease,
            Self::Renew(_, lease) => *lease,
            _ => Duration::ZERO,
        }
    }

    /// Returns the name of the caller that requests a hold, if it has one.
    pub(super) fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Acquire(request) => request.caller.as_ref(),
            _ => None,
        }
    }

    /// Returns whether it can begin the record of a lock.
    pub(super) fn can_begin_record(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Withdraw(_))
    }

    /// Returns whether it requests a hold.
    pub(super) fn is_acquisition(&self) -> bool {
        matches!(self, Self::Acquire(_))
    }
}

impl LockResponse {
    /// Returns whether it grants something new, or queues for it.
    pub(super) fn grants(&self) -> bool {
        match self {
            Self::Acquire(AcquireResponse::Granted(grant)) => !grant.repeated,
            Self::Acquire(AcquireResponse::Held { position }) => position.is_some(),
            _ => false,
        }
    }

    /// Returns whether it grants a hold that an earlier call has stored.
    pub(super) fn repeats_grant(&self) -> bool {
        matches!(self, Self::Acquire(AcquireResponse::Granted(grant)) if grant.repeated)
    }

    /// Returns whether the lock is held by others, so that a request may wait.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Acquire(AcquireResponse::Held { .. }))
    }
}

impl Summary {
    pub(super) fn of(lock: &LockState) -> Self {
        let record = lock.record();
        Self {
            mode: record.mode,
            holders: record.holds.len(),
            waiting: record.waiting(lock.now()),
            ask_again_in: lock.ask_again_in(),
        }
    }
}

/// Answers requests with a failure: an uncertain one if an earlier change with the request may have been stored.
pub(super) fn fail(batch: Vec<Pending>, why: &EngineError) -> Vec<Pending> {
    for pending in batch {
        let why = if pending.is_uncertain { EngineError::indeterminate(why.reason()) } else { why.clone() };
        let _ = pending.reply.send(Err(why));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::lock::{LockGrant, LockMode};

    use super::*;

    const LEASE: Duration = Duration::from_secs(7);

    #[test]
    fn only_requests_and_renewals_have_a_lease() {
        let attempt = fresh_claim().attempt;
        let owner = ShortHash::of_nonce(attempt.nonce());
        let request = AcquireRequest {
            attempt: attempt.clone(),
            owner,
            mode: LockMode::Shared,
            limit: None,
            caller: None,
            lease: LEASE,
            fair: false,
        };
        for (action, lease, is_acquisition) in [
            (Action::Acquire(request), LEASE, true),
            (Action::Renew(attempt.clone(), LEASE), LEASE, false),
            (Action::Release(attempt), Duration::ZERO, false),
            (Action::Withdraw(owner), Duration::ZERO, false),
            (Action::Evict(None), Duration::ZERO, false),
            (Action::View, Duration::ZERO, false),
        ] {
            assert_eq!((action.lease(), action.is_acquisition()), (lease, is_acquisition), "{action:?}");
        }
    }

    /// The others are accepted also while nothing new may be granted.
    #[test]
    fn new_holds_and_places_in_the_queue_are_grants() {
        let granted = |repeated| {
            let (attempted_at, ends_at) = (Timestamp::default(), Timestamp::default());
            AcquireResponse::Granted(LockGrant { attempted_at, fence: 1, holds: 1, ends_at, repeated })
        };
        for (response, grants) in [
            (LockResponse::Acquire(granted(false)), true),
            (LockResponse::Acquire(granted(true)), false),
            (LockResponse::Acquire(AcquireResponse::Held { position: Some(1) }), true),
            (LockResponse::Acquire(AcquireResponse::Held { position: None }), false),
            (LockResponse::Acquire(AcquireResponse::UpgradeRefused), false),
            (LockResponse::Unlock(UnlockResponse::NotHeld), false),
            (LockResponse::Evicted(1), false),
        ] {
            assert_eq!(response.grants(), grants, "{response:?}");
            let repeats = matches!(&response, LockResponse::Acquire(AcquireResponse::Granted(_))) && !grants;
            assert_eq!(response.repeats_grant(), repeats, "{response:?}");
        }
    }
}
