//! The use cases of locks: acquire, release, withdraw, renew and look up, in the chain of an app. Locks always fail closed: no
//! outage policy answers for a store.

mod actions;
mod calls;
mod known;
mod names;
mod queue;
mod result;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::engine::{EngineError, RecordName, SharedRecord};
use oncegate_core::lock::{
    AcquireRequest, AcquireResponse, LockMode, LockName, LockRecord, RenewLockResponse, ShortHash, UnlockResponse,
};
use oncegate_core::operator::LockListRequest;
use oncegate_telemetry::metrics::locks::LockResult;
use oncegate_telemetry::traces;
use tokio::sync::oneshot;
use tracing::field::Empty;

use self::actions::{Action, LockReply, LockResponse, Summary};
pub use self::calls::{AcquireAnswer, AcquireCall, GrantedLock, HeldLock, LockView, UnlockAnswer};
pub(super) use self::names::Locks;
use self::names::NAMES_MAX;
use self::queue::Queue;
use self::result::{failed, lock_result};
use super::{Failure, Gateway, failure, read_failure, within};
use crate::operator::ListError;
use crate::resilience::deadline_budget;
use crate::tenants::App;

/// Part of a deadline for one call to the store: the rest is for a second call, and for the answer.
const STORE_PART: (u32, u32) = (2, 5);

/// Longest Retry-After for a lock that is held.
const POLL: Duration = Duration::from_secs(1);

/// Retry-After of a fair request at the head of the queue, which loses its place after a second.
const HEAD_POLL: Duration = Duration::from_millis(300);

impl Gateway {
    /// Requests a hold.
    ///
    /// # Errors
    /// There is no answer; a lock that is held is an answer.
    pub async fn acquire_lock(&self, app: &App, call: AcquireCall) -> Result<AcquireAnswer, Failure> {
        self.acquire_lock_or_wait(app, call, oneshot::channel().0).await
    }

    /// Requests a hold. Notifies `begins` when the lock was found held, and the call begins to wait for it.
    ///
    /// # Errors
    /// There is no answer; a lock that is held is an answer.
    pub async fn acquire_lock_or_wait(
        &self,
        app: &App,
        call: AcquireCall,
        begins: oneshot::Sender<()>,
    ) -> Result<AcquireAnswer, Failure> {
        let started = self.clock.monotonic();
        let AcquireCall { name, mode, limit, owner, caller, nonce, lease, wait, fair } = call;
        let attempt = self.issuer.issue(nonce);
        let lease = lease.unwrap_or(app.terms.terms.lease);
        let owner = owner.as_ref().map_or_else(|| ShortHash::of_nonce(attempt.nonce()), ShortHash::of_owner);
        let request = AcquireRequest { attempt: attempt.clone(), owner, mode, limit, caller, lease, fair };
        let deadline = deadline_budget::of_claim(app.terms.deadline, lease);
        let span = traces::child!("lock", oncegate.app = %app.key, oncegate.result = Empty);
        let waiting = self.locks.begin_wait(app, wait);
        let wait = waiting.as_ref().map_or(Duration::ZERO, |_| wait);
        let answer = match self.lock_queue(app, &name, true) {
            Ok(queue) => {
                let store_deadline = deadline * STORE_PART.0 / STORE_PART.1;
                let call = queue.request(Action::Acquire(request), wait, store_deadline, Some(begins));
                match traces::in_span!(span, within(wait + deadline, call)) {
                    Ok(answer) => self.acquired(name, mode, &attempt, lease, &answer, started),
                    Err(error) => Err(failure(error, Some(attempt.nonce().clone()))),
                }
            }
            Err(refused) => Err(refused),
        };
        let result = lock_result(&answer);
        if !span.is_none() {
            span.record("oncegate.result", result.label());
        }
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.lock_acquired(result, self.since(started));
        }
        answer
    }

    /// Ends the hold of an attempt.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn release_lock(&self, app: &App, name: &LockName, attempt: Attempt) -> Result<UnlockAnswer, Failure> {
        self.unlock(app, name, Action::Release(attempt)).await
    }

    /// Ends hold and ticket of a nonce, and refuses it for a while.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn withdraw_lock(&self, app: &App, name: &LockName, nonce: &Nonce) -> Result<UnlockAnswer, Failure> {
        self.unlock(app, name, Action::Withdraw(ShortHash::of_nonce(nonce))).await
    }

    /// Extends the lease of a hold. Returns what is left of it; `None`: the attempt holds nothing.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn renew_lock(
        &self,
        app: &App,
        name: &LockName,
        attempt: Attempt,
        lease: Option<Duration>,
    ) -> Result<Option<(Duration, Timestamp)>, Failure> {
        let lease = lease.unwrap_or(app.terms.terms.lease);
        let answer = self.lock_call(app, name, Action::Renew(attempt, lease)).await;
        let answer = answer.map_err(|error| failure(error, None));
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.lock_called(match &answer {
                Ok(LockReply { response: LockResponse::Renew(RenewLockResponse::Renewed(_)), .. }) => {
                    LockResult::Renewed
                }
                Ok(_) => LockResult::NotHeld,
                Err(failure) => failed(failure),
            });
        }
        let answer = answer?;
        let LockResponse::Renew(RenewLockResponse::Renewed(ends_at)) = answer.response else { return Ok(None) };
        let left = self.left(ends_at, lease, &answer);
        if left.as_millis() == 0 {
            return Err(Failure::OutcomeUnknown(None));
        }
        Ok(Some((left, ends_at)))
    }

    /// Returns a lock; `None` if it is free and no request waits for it.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn view_lock(&self, app: &App, name: &LockName) -> Result<Option<LockView>, Failure> {
        let answer = self.lock_call(app, name, Action::View).await.map_err(read_failure)?;
        let LockResponse::View(record) = answer.response else { return Ok(None) };
        let view = LockView { name: name.clone(), record: *record, now: answer.now.plus(answer.clock_gain) };
        Ok(view.is_used().then_some(view))
    }

    /// Ends holds of a lock for an operator: all, or those whose hash is shown as this. Returns their number.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn evict_lock(&self, app: &App, name: &LockName, holder: Option<String>) -> Result<usize, Failure> {
        let answer = self.lock_call(app, name, Action::Evict(holder)).await.map_err(|error| failure(error, None))?;
        Ok(if let LockResponse::Evicted(ended) = answer.response { ended } else { 0 })
    }

    /// Lists locks of an app that are held or waited for, after a name.
    ///
    /// # Errors
    /// The store does not answer, or cannot list.
    pub async fn list_locks(
        &self,
        app: &App,
        after: Option<LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>, ListError> {
        let engine = self.listing_engine(app)?;
        let call = async {
            let mut found = Vec::new();
            let mut request = LockListRequest { app: app.key.clone(), after, limit };
            while found.len() < limit {
                let page = engine.list_records(&request).await?;
                let is_last = page.records.len() < request.limit;
                request.after = page.records.last().map(|(name, _)| name.clone());
                for (name, stored) in page.records {
                    let view = seen(name, &stored, page.now)?;
                    found.extend(view.is_used().then_some(view));
                }
                if is_last {
                    break;
                }
            }
            found.truncate(limit);
            Ok(found)
        };
        let listed = within(deadline_budget::LIST_TIMEOUT, call).await;
        listed.map_err(|error| ListError::Failed(read_failure(error)))
    }

    async fn unlock(&self, app: &App, name: &LockName, action: Action) -> Result<UnlockAnswer, Failure> {
        let answer = self.lock_call(app, name, action).await.map_err(|error| failure(error, None));
        let mut held_for = None;
        let answer = answer.map(|answer| match answer.response {
            LockResponse::Unlock(UnlockResponse::Done { holds, fence, held_for: lasted }) => {
                held_for = lasted;
                UnlockAnswer::Done { holds, fence: (holds > 0).then_some(fence), late: Some(false) }
            }
            // Absent may mean "ended by the first try": either way nothing is held.
            LockResponse::Unlock(UnlockResponse::NotHeld) if answer.is_uncertain => {
                UnlockAnswer::Done { holds: 0, fence: None, late: None }
            }
            LockResponse::Unlock(UnlockResponse::Full) => UnlockAnswer::Full,
            _ => UnlockAnswer::NotHeld,
        });
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.lock_called(match &answer {
                Ok(UnlockAnswer::Done { .. }) => LockResult::Released,
                Ok(UnlockAnswer::NotHeld) => LockResult::NotHeld,
                Ok(UnlockAnswer::Full) => LockResult::QuotaExceeded,
                Err(failure) => failed(failure),
            });
            if let Some(held_for) = held_for {
                metrics.lock_held_for(held_for);
            }
        }
        answer
    }

    async fn lock_call(&self, app: &App, name: &LockName, action: Action) -> Result<LockReply, EngineError> {
        let deadline = app.terms.deadline;
        let span = traces::child!("lock", oncegate.app = %app.key);
        let queue = self.lock_queue(app, name, false).map_err(|why| EngineError::unavailable(why.to_string()))?;
        let store_deadline = deadline * STORE_PART.0 / STORE_PART.1;
        let call = async {
            // A name beyond the bound gets no record for a nonce that has nothing there.
            if matches!(action, Action::Withdraw(_)) && !queue.is_counted() {
                let seen = queue.request(Action::View, Duration::ZERO, store_deadline, None).await?;
                if matches!(&seen.response, LockResponse::View(record) if record.holds.is_empty() && record.tickets.is_empty())
                {
                    return Ok(LockReply { response: LockResponse::Unlock(UnlockResponse::NotHeld), ..seen });
                }
            }
            queue.request(action, Duration::ZERO, store_deadline, None).await
        };
        traces::in_span!(span, within(deadline, call))
    }

    fn lock_queue(&self, app: &App, name: &LockName, is_new: bool) -> Result<Arc<Queue>, Failure> {
        let chain = &self.named_chain(app).map_err(|why| failure(why, None))?.chain;
        self.locks.queue(&app.key, name, chain, is_new).ok_or(Failure::TooManyLocks(NAMES_MAX))
    }

    fn acquired(
        &self,
        name: LockName,
        mode: LockMode,
        attempt: &Attempt,
        lease: Duration,
        answer: &LockReply,
        started: Duration,
    ) -> Result<AcquireAnswer, Failure> {
        let waited = answer.sent_at.saturating_sub(started);
        let LockResponse::Acquire(response) = &answer.response else {
            return Err(Failure::OutcomeUnknown(Some(attempt.nonce().clone())));
        };
        Ok(match response {
            AcquireResponse::Granted(grant) => {
                let left = self.left(grant.ends_at, lease, answer);
                let lease_ms = millis(left);
                if lease_ms == 0 {
                    return Err(Failure::OutcomeUnknown(Some(attempt.nonce().clone())));
                }
                AcquireAnswer::Granted(GrantedLock {
                    name,
                    mode,
                    attempt: Attempt::new(grant.attempted_at, attempt.nonce().clone()),
                    fence: grant.fence,
                    holds: grant.holds,
                    lease_ms,
                    lease_expires_at: grant.ends_at,
                    repeated: grant.repeated,
                    waited,
                })
            }
            AcquireResponse::Held { position } => {
                let Summary { mode, holders, waiting, ask_again_in } = answer.lock;
                let poll = if *position == Some(1) { HEAD_POLL } else { POLL };
                let retry_after = ask_again_in.unwrap_or(poll).min(poll).max(Duration::from_millis(1));
                AcquireAnswer::Held(HeldLock { mode, holders, waiting, position: *position, retry_after, waited })
            }
            AcquireResponse::UpgradeRefused => AcquireAnswer::UpgradeRefused,
            AcquireResponse::LimitDiffers(used) => AcquireAnswer::LimitDiffers(*used),
            AcquireResponse::Withdrawn => AcquireAnswer::Withdrawn,
            AcquireResponse::NonceReused => AcquireAnswer::NonceReused,
            AcquireResponse::Full(bound) => AcquireAnswer::Full(*bound),
        })
    }

    /// Returns the rest of a lease, counted from before the store was called.
    fn left(&self, ends_at: Timestamp, lease: Duration, answer: &LockReply) -> Duration {
        let left = ends_at.since(answer.now).saturating_sub(self.since(answer.sent_at) + answer.clock_gain);
        // The hold of a repeated request may have a longer lease than is requested now.
        if ends_at <= answer.now.plus(lease + answer.clock_gain * 2) { left.min(lease) } else { left }
    }
}

fn seen(name: LockName, stored: &SharedRecord, now: Timestamp) -> Result<LockView, EngineError> {
    let record = LockRecord::decode(stored.value())?;
    let record = oncegate_core::lock::LockState::at(record, now).record().clone();
    Ok(LockView { name, record, now })
}

/// Returns the lock's record name.
fn record_name(app: &oncegate_core::tenant::AppKey, name: &LockName) -> RecordName {
    RecordName::Lock(app.clone(), name.clone())
}
