//! A local claim, and how what this process learns of it changes it.

use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Effect};
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, LiveClaim, Record};
use oncegate_core::terms::LeaseEnd;

use super::app::CLAIM_BYTES;

/// A claim, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct LocalClaim {
    pub(super) record: Record,
    pub(super) ends_at: Option<Duration>,
    /// The policy that granted it, until the grant is delivered.
    pub(crate) granted_by: Option<OutagePolicy>,
    /// Instant since which this is known: an answer to a call that was sent earlier may be older.
    pub(super) known_since: Duration,
}

impl LocalClaim {
    /// Creates a claim that ends at this instant, or has no end. The claims of its app set since when it is known.
    pub(crate) fn new(record: Record, ends_at: Option<Duration>, granted_by: Option<OutagePolicy>) -> Self {
        Self { record, ends_at, granted_by, known_since: Duration::ZERO }
    }

    pub(super) fn live(&self, now: Duration) -> Option<LiveClaim> {
        let left = self.ends_at.map(|ends_at| ends_at.saturating_sub(now));
        // Its end is named by this gateway's clock: the store may have changed the claim since.
        LiveClaim::of_stored(self.record.clone(), left, None, None)
    }

    /// Reports whether the claim may be in progress in the store. This is so if it is in progress here, or if its lease
    /// has ended here: another gateway may have extended it. An unknown outcome that was reported has an end.
    pub(super) fn is_in_progress_elsewhere(&self) -> bool {
        let Record { state, terms, .. } = &self.record;
        let lease_ended =
            *state == ClaimState::Unknown && terms.on_lease_end == LeaseEnd::Unknown && self.ends_at.is_none();
        *state == ClaimState::InProgress || lease_ended
    }

    /// Reports whether this stays although the store answered a claim call with another record. Answers arrive out of order, and one
    /// from before a grant, a renewal or an outcome must not hide it.
    pub(super) fn outlives(&self, answer: &ClaimAnswer, now: Duration) -> bool {
        let Some(known) = self.live(now) else { return false };
        if known.record.attempt == answer.record.attempt {
            return match (known.record.state, answer.record.state) {
                // An outcome that was reported stays, and so does a success.
                (ClaimState::Succeeded, state) => state != ClaimState::Succeeded,
                (_, ClaimState::InProgress) => !self.is_in_progress_elsewhere() || known.left > answer.left,
                _ => false,
            };
        }
        // What this process has learned while the call was under way counts for more than the claim of another attempt; but a grant of
        // the store always counts.
        !answer.is_grant && answer.sent_at <= self.known_since
    }

    pub(super) fn bytes(&self) -> usize {
        let result = self.record.result.as_ref().map_or(0, |result| result.len());
        CLAIM_BYTES + usize::try_from(self.record.contents.stored_bytes()).unwrap_or(usize::MAX / 2) + result
    }
}

/// The claim that the store answered a claim call with.
pub(super) struct ClaimAnswer {
    pub(super) record: Record,
    pub(super) left: Option<Duration>,
    is_grant: bool,
    sent_at: Duration,
}

impl ClaimAnswer {
    pub(super) fn new(request: &ClaimRequest, answer: &ClaimResponse, sent_at: Duration) -> Option<Self> {
        Some(match answer {
            ClaimResponse::Granted(grant) => {
                let record = Record { attempt: grant.attempt.clone(), ..request.record() };
                let left = Some(grant.lease_left.unwrap_or(request.terms.lease));
                Self { record, left, is_grant: true, sent_at }
            }
            ClaimResponse::Duplicate(held) => {
                Self { record: held.record.clone(), left: held.left, is_grant: false, sent_at }
            }
            ClaimResponse::Mismatch(_) => return None,
        })
    }
}

/// The effect of an entry on a local claim.
#[derive(Debug)]
pub(crate) enum LocalEffect {
    /// Puts this claim.
    Put(Box<LocalClaim>),
    /// Sets the end of the claim.
    EndAt(Duration),
    /// Removes the claim.
    Remove,
    /// Changes nothing.
    Keep,
}

impl LocalEffect {
    /// Returns the change of the local claims by a transition. `granted_by` is the policy of a grant, and `ends_at` returns the end
    /// of what lasts for some time.
    pub(crate) fn of(
        effect: Effect,
        granted_by: Option<OutagePolicy>,
        ends_at: impl FnOnce(Duration) -> Duration,
    ) -> Self {
        match effect {
            // No policy answers an operator who replaces a result.
            Effect::Keep | Effect::Replace(_) => Self::Keep,
            Effect::Put(record, lasts) => Self::Put(Box::new(LocalClaim::new(record, lasts.map(ends_at), granted_by))),
            Effect::Extend(lasts) => Self::EndAt(ends_at(lasts)),
            Effect::Delete => Self::Remove,
        }
    }
}
