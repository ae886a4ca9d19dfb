//! Reference of a store, written a second time from the contract's tables, as simply as possible. The simulated store is
//! compared with it, call by call, in the order in which the calls took effect.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Mismatch, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::Timestamp;
use oncegate_core::operator::{ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimState, LiveClaim, Sha256Digest};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use crate::clock::{instant, micros};

/// A broken promise, with its rule.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: &'static str,
    pub(crate) how: String,
}

/// Fails with a rule unless the condition holds.
pub(crate) fn ensure(holds: bool, rule: &'static str, how: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { rule, how: how() }) }
}

/// Expected state of one key.
#[derive(Default)]
pub(crate) struct Reference {
    standing: Option<Standing>,
    /// Highest fence of a grant.
    fence: u64,
}

struct Standing {
    attempt: Attempt,
    state: ClaimState,
    /// By the store's clock, in microseconds; `None` if it has no end.
    ends: Option<u64>,
    fence: Option<u64>,
    fingerprint: Option<Sha256Digest>,
    terms: Terms,
    result: Option<Box<str>>,
    late: bool,
    taken_over: bool,
}

/// State of a record at a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Now {
    pub(crate) state: ClaimState,
    /// Rest of its time; `None` if it has no end.
    pub(crate) left: Option<Duration>,
    /// End of its time; `None` likewise.
    ends: Option<u64>,
}

impl Reference {
    /// Removes the record, as a loss of data does.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns true if a record has ended between two times.
    pub(crate) fn ended_between(&self, earlier: u64, now: u64) -> bool {
        self.standing.as_ref().is_some_and(|standing| {
            standing.ends.is_some_and(|ends| (earlier..=now).contains(&ends)) && standing.at(now).is_none()
        })
    }

    /// Returns the live record.
    pub(crate) fn at(&self, now: u64) -> Option<(Now, &Attempt)> {
        self.standing.as_ref().and_then(|standing| Some((standing.at(now)?, &standing.attempt)))
    }

    fn standing(&mut self, now: u64) -> Option<(Now, &mut Standing)> {
        self.standing.as_mut().and_then(|standing| Some((standing.at(now)?, standing)))
    }

    /// Claim call.
    pub(crate) fn claim(&mut self, now: u64, request: &ClaimRequest, answer: &ClaimResponse) -> Result<(), Broken> {
        let fence_before = self.fence;
        let taken_over = match self.standing(now) {
            None => false,
            Some((_, standing)) if !standing.late && standing.fingerprint != request.fingerprint => {
                return ensure(*answer == ClaimResponse::Mismatch(Mismatch::Fingerprint), "S7", || {
                    format!("the record has another fingerprint, and the store answered {answer:?}")
                });
            }
            Some((Now { state: ClaimState::InProgress, left, ends }, standing))
                if standing.attempt.nonce() == request.attempt.nonce() =>
            {
                let ClaimResponse::Granted(grant) = answer else {
                    return broken("S5", format!("a repeated claim was answered {answer:?}"));
                };
                let is_same = grant.attempt == standing.attempt && grant.taken_over == standing.taken_over;
                ensure(is_same, "S5", || {
                    format!(
                        "a repeat of {:?} (taken over: {}) was granted {grant:?}",
                        standing.attempt, standing.taken_over
                    )
                })?;
                ensure(grant.repeated == (grant.attempt != request.attempt), "S5", || {
                    format!("`repeated` is {}", grant.repeated)
                })?;
                ensure(grant.lease_left == left, "S10", || {
                    format!("{left:?} is left, and the store answered {:?}", grant.lease_left)
                })?;
                ensure_end(grant.lease_ends_at, ends)?;
                return ensure(grant.fence == standing.fence, "S11", || {
                    format!("the fence {:?} became {:?}", standing.fence, grant.fence)
                });
            }
            Some((Now { state: ClaimState::Unknown, .. }, standing))
                if request.take_over && standing.attempt.nonce() != request.attempt.nonce() =>
            {
                true
            }
            // The very attempt gets its lease back, unless it was reported as unknown.
            Some((Now { state: ClaimState::Unknown, left: None, .. }, standing))
                if request.take_over && standing.attempt == request.attempt =>
            {
                standing.taken_over
            }
            Some((at, standing)) => {
                let rule = if at.state == ClaimState::Succeeded { "S3" } else { "S1" };
                let ClaimResponse::Duplicate(held) = answer else {
                    let attempt = &standing.attempt;
                    return broken(
                        rule,
                        format!("the record is {at:?} by {attempt:?}, and the store answered {answer:?}"),
                    );
                };
                return standing.compare(at, held);
            }
        };
        let ClaimResponse::Granted(grant) = answer else {
            return broken("S4", format!("the key is free, and the store answered {answer:?}"));
        };
        ensure(grant.attempt == request.attempt && !grant.repeated && grant.taken_over == taken_over, "S2", || {
            format!("{:?} was granted as {grant:?}", request.attempt)
        })?;
        ensure(grant.lease_left.is_none_or(|left| left == request.terms.lease), "S10", || {
            format!("a lease of {:?} was granted as {:?}", request.terms.lease, grant.lease_left)
        })?;
        ensure_end(grant.lease_ends_at, Some(now + micros(request.terms.lease)))?;
        ensure(grant.fence.is_none_or(|fence| fence > fence_before), "S11", || {
            format!("the fence {fence_before} is followed by {:?}", grant.fence)
        })?;
        self.fence = grant.fence.unwrap_or(fence_before);
        self.standing = Some(Standing {
            attempt: request.attempt.clone(),
            state: ClaimState::InProgress,
            ends: Some(now + micros(request.terms.lease)),
            fence: grant.fence,
            fingerprint: request.fingerprint,
            terms: request.terms,
            result: None,
            late: false,
            taken_over,
        });
        Ok(())
    }

    /// Outcome call.
    pub(crate) fn settle(
        &mut self,
        now: u64,
        request: &OutcomeRequest,
        answer: &OutcomeResponse,
    ) -> Result<(), Broken> {
        let answered = |expected: &OutcomeResponse, rule| {
            ensure(answer == expected, rule, || {
                format!(
                    "{:?} by {:?} must be {expected:?}, and the store answered {answer:?}",
                    request.outcome, request.attempt
                )
            })
        };
        let Some((at, standing)) = self.standing(now) else { return self.settle_absent(now, request, answer) };
        if standing.attempt != request.attempt {
            return answered(&OutcomeResponse::Superseded { state: at.state, left: at.left }, "S2");
        }
        let late = Some(standing.late);
        match (&request.outcome, at.state) {
            (Outcome::Success { .. }, ClaimState::Succeeded) => {
                answered(&done(ClaimState::Succeeded, at.left, at.ends, late), "S5")
            }
            (_, ClaimState::Succeeded) => answered(&OutcomeResponse::AlreadySucceeded, "S3"),
            (Outcome::Success { result, retention }, _) => {
                let retention = retention.unwrap_or(standing.terms.retention);
                standing.settle(now, ClaimState::Succeeded, retention, result.clone());
                answered(&done(ClaimState::Succeeded, retention.duration(), standing.ends, late), "S6")
            }
            (Outcome::Failure, _) => {
                self.standing = None;
                answered(&OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) }, "S6")
            }
            (Outcome::Unknown, ClaimState::Unknown) => {
                answered(&done(ClaimState::Unknown, at.left, at.ends, late), "S5")
            }
            (Outcome::Unknown, ClaimState::InProgress) => {
                let retention = standing.terms.unknown_retention;
                standing.settle(now, ClaimState::Unknown, retention, None);
                answered(&done(ClaimState::Unknown, retention.duration(), standing.ends, late), "S6")
            }
        }
    }

    /// Outcome call without a record: the row "nothing".
    fn settle_absent(&mut self, now: u64, request: &OutcomeRequest, answer: &OutcomeResponse) -> Result<(), Broken> {
        let (state, retention, result) = match (&request.outcome, &request.late) {
            (Outcome::Failure, _) => {
                let expected = OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(true) };
                return ensure(*answer == expected, "S6", || format!("a late failure was answered {answer:?}"));
            }
            (_, None) => {
                return ensure(*answer == OutcomeResponse::Expired, "S6", || {
                    format!("too late, and answered {answer:?}")
                });
            }
            (Outcome::Success { result, retention }, Some(late)) => {
                (ClaimState::Succeeded, retention.unwrap_or(late.terms.retention), result.clone())
            }
            (Outcome::Unknown, Some(late)) => (ClaimState::Unknown, late.terms.unknown_retention, None),
        };
        let ends = retention.duration().map(|retention| now + micros(retention));
        let expected = done(state, retention.duration(), ends, Some(true));
        ensure(*answer == expected, "S6", || format!("late: must be {expected:?}, and the store answered {answer:?}"))?;
        let terms = request.late.as_ref().map(|late| late.terms).expect("checked above");
        let mut standing = Standing {
            attempt: request.attempt.clone(),
            state,
            ends: None,
            fence: None,
            fingerprint: None,
            terms,
            result: None,
            late: true,
            taken_over: false,
        };
        standing.settle(now, state, retention, result);
        self.standing = Some(standing);
        Ok(())
    }

    /// Renewal.
    pub(crate) fn renew(&mut self, now: u64, request: &RenewalRequest, answer: &RenewalResponse) -> Result<(), Broken> {
        let expected = match self.standing(now) {
            Some((at, standing)) if standing.attempt != request.attempt => {
                RenewalResponse::Superseded { state: at.state, left: at.left }
            }
            None | Some((Now { state: ClaimState::Unknown, .. }, _)) => RenewalResponse::LeaseLost,
            Some((Now { state: ClaimState::Succeeded, .. }, _)) => RenewalResponse::AlreadySucceeded,
            Some((at, standing)) => {
                let left = at.left.unwrap_or_default().max(request.lease.unwrap_or(standing.terms.lease));
                standing.ends = Some(now + micros(left));
                RenewalResponse::Renewed { left, ends_at: standing.ends.map(instant) }
            }
        };
        ensure(*answer == expected, "S2", || {
            format!("a renewal must be {expected:?}, and the store answered {answer:?}")
        })
    }

    /// An operator's release.
    pub(crate) fn release(
        &mut self,
        now: u64,
        request: &ReleaseRequest,
        answer: ReleaseResponse,
    ) -> Result<(), Broken> {
        let expected = match self.at(now) {
            None => ReleaseResponse::Absent,
            Some((_, attempt)) if *attempt == request.attempt => ReleaseResponse::Done,
            Some(_) => ReleaseResponse::Superseded,
        };
        if expected == ReleaseResponse::Done {
            self.standing = None;
        }
        ensure(answer == expected, "S2", || {
            format!("a release must be {expected:?}, and the store answered {answer:?}")
        })
    }

    /// Lookup.
    pub(crate) fn read(&mut self, now: u64, answer: Option<&LiveClaim>) -> Result<(), Broken> {
        match (self.standing(now), answer) {
            (None, None) => Ok(()),
            (Some((at, standing)), Some(held)) => standing.compare(at, held),
            (None, Some(held)) => broken("S4", format!("the key is free, and the store returned {held:?}")),
            (Some((at, standing)), None) => {
                let attempt = &standing.attempt;
                broken("S2", format!("the record is {at:?} by {attempt:?}, and the store returned none"))
            }
        }
    }
}

impl Standing {
    fn at(&self, now: u64) -> Option<Now> {
        match self.ends {
            Some(ends) if ends <= now => {
                let outlives = self.state == ClaimState::InProgress && self.terms.on_lease_end == LeaseEnd::Unknown;
                outlives.then_some(Now { state: ClaimState::Unknown, left: None, ends: None })
            }
            ends => Some(Now { state: self.state, left: ends.map(|ends| Duration::from_micros(ends - now)), ends }),
        }
    }

    fn settle(&mut self, now: u64, state: ClaimState, retention: Retention, result: Option<Box<str>>) {
        self.state = state;
        self.ends = retention.duration().map(|retention| now + micros(retention));
        self.result = result;
    }

    fn compare(&self, at: Now, held: &LiveClaim) -> Result<(), Broken> {
        let record = &held.record;
        let same = record.attempt == self.attempt && record.state == at.state && record.late == self.late;
        ensure(same && held.left == at.left, "S4", || {
            format!("the record is {at:?} by {:?}, and the store returned {held:?}", self.attempt)
        })?;
        ensure_end(held.ends_at, at.ends)?;
        ensure(record.result == self.result, "S5", || {
            format!("the result {:?} became {:?}", self.result, record.result)
        })
    }
}

/// Returns the expected answer to an outcome.
fn done(state: ClaimState, left: Option<Duration>, ends: Option<u64>, late: Option<bool>) -> OutcomeResponse {
    OutcomeResponse::Done { state: Some(state), left, ends_at: ends.map(instant), late }
}

/// Checks the end that an answer names.
fn ensure_end(answered: Option<Timestamp>, ends: Option<u64>) -> Result<(), Broken> {
    let ends = ends.map(instant);
    ensure(answered == ends, "S10", || format!("the end is {ends:?}, and the store answered {answered:?}"))
}

fn broken(rule: &'static str, how: String) -> Result<(), Broken> {
    Err(Broken { rule, how })
}
