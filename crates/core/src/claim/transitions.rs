//! The table of transitions, as pure functions: each takes the live claim of a key and a request, and returns the effect and the
//! response. Engines apply both atomically per key, and decide nothing.

use super::{
    ClaimRequest, ClaimResponse, Effect, Grant, Mismatch, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::record::{ClaimState, LiveClaim, Record};
use crate::terms::Terms;

/// Applies a claim call. `fence` is that of a new attempt.
pub fn claim(live: Option<&LiveClaim>, request: &ClaimRequest, fence: Option<u64>) -> (Effect, ClaimResponse) {
    let grant = |taken_over| {
        let record = Record { taken_over, ..request.record() };
        (Effect::Put(record, Some(request.terms.lease)), granted(request, fence, taken_over))
    };
    let Some(live) = live else { return grant(false) };
    if let Some(mismatch) = mismatch(&live.record, request) {
        return (Effect::Keep, ClaimResponse::Mismatch(mismatch));
    }
    let is_own = || live.record.attempt.nonce() == request.attempt.nonce();
    match live.record.state {
        ClaimState::InProgress if is_own() => {
            let grant = Grant {
                attempt: live.record.attempt.clone(),
                fence: live.fence,
                // The same attempt: an earlier call of this request, whose reply was lost.
                repeated: live.record.attempt != request.attempt,
                taken_over: live.record.taken_over,
                lease_left: live.left,
                lease_ends_at: live.ends_at,
            };
            (Effect::Keep, ClaimResponse::Granted(grant))
        }
        // The attempt that was reported unknown cannot take over: it would undo its own outcome.
        ClaimState::Unknown if request.take_over && !is_own() => grant(true),
        // A lease that ended without an outcome is restored to the same attempt: its gateway had extended it.
        ClaimState::Unknown if request.take_over && request.attempt == live.record.attempt && live.is_ended_lease() => {
            grant(live.record.taken_over)
        }
        ClaimState::InProgress | ClaimState::Succeeded | ClaimState::Unknown => {
            (Effect::Keep, ClaimResponse::Duplicate(live.clone()))
        }
    }
}

/// Returns the response to a claim call whose record was stored.
pub fn granted(request: &ClaimRequest, fence: Option<u64>, taken_over: bool) -> ClaimResponse {
    let attempt = request.attempt.clone();
    let grant = Grant { attempt, fence, repeated: false, taken_over, lease_left: None, lease_ends_at: None };
    ClaimResponse::Granted(grant)
}

/// Returns the difference between a live claim and a request. The operation is compared too, since MD5 may collide.
fn mismatch(record: &Record, request: &ClaimRequest) -> Option<Mismatch> {
    let same_operation = record.operation.as_ref().is_none_or(|operation| *operation == request.operation);
    if !same_operation || !record.contents.matches(&request.contents) {
        Some(Mismatch::Contents)
    } else if !record.late && record.fingerprint != request.fingerprint {
        Some(Mismatch::Fingerprint)
    } else {
        None
    }
}

/// Applies an outcome call.
pub fn settle(live: Option<&LiveClaim>, request: &OutcomeRequest) -> (Effect, OutcomeResponse) {
    let Some(live) = live else { return settle_absent(request) };
    let (record, left) = (&live.record, live.left);
    if record.attempt != request.attempt {
        return (Effect::Keep, OutcomeResponse::Superseded { state: record.state, left });
    }
    let late = Some(record.late);
    let kept = || OutcomeResponse::Done { state: Some(record.state), left, ends_at: live.ends_at, late };
    let settled = |state, left| OutcomeResponse::Done { state: Some(state), left, ends_at: None, late };
    match (&request.outcome, record.state) {
        (Outcome::Success { .. }, ClaimState::Succeeded) | (Outcome::Unknown, ClaimState::Unknown) => {
            (Effect::Keep, kept())
        }
        (Outcome::Failure | Outcome::Unknown, ClaimState::Succeeded) => {
            (Effect::Keep, OutcomeResponse::AlreadySucceeded)
        }
        (Outcome::Success { result, retention }, ClaimState::InProgress | ClaimState::Unknown) => {
            let retention = retention.unwrap_or(record.terms.retention);
            let terms = Terms { retention, ..record.terms };
            let record = Record { state: ClaimState::Succeeded, result: result.clone(), terms, ..record.clone() };
            (Effect::Put(record, retention.duration()), settled(ClaimState::Succeeded, retention.duration()))
        }
        (Outcome::Failure, ClaimState::InProgress | ClaimState::Unknown) => {
            (Effect::Delete, OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) })
        }
        (Outcome::Unknown, ClaimState::InProgress) => {
            let left = record.terms.unknown_retention.duration();
            let record = Record { state: ClaimState::Unknown, ..record.clone() };
            (Effect::Put(record, left), settled(ClaimState::Unknown, left))
        }
    }
}

/// Applies an outcome call without a live claim.
fn settle_absent(request: &OutcomeRequest) -> (Effect, OutcomeResponse) {
    let record = match request.late_record() {
        None if request.outcome == Outcome::Failure => {
            let released = OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(true) };
            return (Effect::Keep, released);
        }
        None => return (Effect::Keep, OutcomeResponse::Expired),
        Some(record) => record,
    };
    let left = record.settled_retention().duration();
    let answer = OutcomeResponse::Done { state: Some(record.state), left, ends_at: None, late: Some(true) };
    (Effect::Put(record, left), answer)
}

/// Applies a renewal. Never shortens a lease.
pub fn renew(live: Option<&LiveClaim>, request: &RenewalRequest) -> (Effect, RenewalResponse) {
    let Some(LiveClaim { record, left, ends_at, .. }) = live else { return (Effect::Keep, RenewalResponse::LeaseLost) };
    if record.attempt != request.attempt {
        return (Effect::Keep, RenewalResponse::Superseded { state: record.state, left: *left });
    }
    match record.state {
        ClaimState::InProgress => {
            let lease = request.lease.unwrap_or(record.terms.lease);
            match *left {
                Some(left) if left < lease => {
                    (Effect::Extend(lease), RenewalResponse::Renewed { left: lease, ends_at: None })
                }
                left => {
                    let left = left.unwrap_or(lease);
                    (Effect::Keep, RenewalResponse::Renewed { left, ends_at: *ends_at })
                }
            }
        }
        ClaimState::Unknown => (Effect::Keep, RenewalResponse::LeaseLost),
        ClaimState::Succeeded => (Effect::Keep, RenewalResponse::AlreadySucceeded),
    }
}
