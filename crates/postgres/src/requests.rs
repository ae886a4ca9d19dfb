//! The requests on one key: the work of the first statement for each, and its answer.

use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use oncegate_core::engine::value;
use oncegate_core::operator::{self, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimState, Key, LiveClaim, Record};

use super::arguments::{FirstStep, TOMBSTONE, sweep_after};
use super::call::Request;
use super::row::Written;

impl Request for ClaimRequest {
    type Response = ClaimResponse;

    const SHARES_FINDINGS: bool = true;

    fn key(&self) -> &Key {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.contents.as_str().len().min(self.contents_stored_bytes)
    }

    fn first_step(&self) -> FirstStep {
        let record = self.record();
        let (lease, sweep_after) = (Some(self.terms.lease), Some(sweep_after(&record)));
        FirstStep::put(&self.key, &record, value::encode_claim(self, &record), lease, sweep_after)
    }

    fn may_write(&self) -> bool {
        true
    }

    fn written(&self, written: Written) -> Option<ClaimResponse> {
        Some(claim::granted(self, Some(written.fence), false))
    }

    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, ClaimResponse) {
        claim::claim(found, self, None)
    }

    fn with_fence(mut answer: ClaimResponse, fence: u64) -> ClaimResponse {
        if let ClaimResponse::Granted(grant) = &mut answer {
            grant.fence = Some(fence);
        }
        answer
    }
}

pub(super) struct Outcomes {
    request: OutcomeRequest,
    /// The record to put, since no claim was found that the outcome could settle.
    late: Option<Record>,
}

impl From<OutcomeRequest> for Outcomes {
    fn from(request: OutcomeRequest) -> Self {
        Self { request, late: None }
    }
}

impl Request for Outcomes {
    type Response = OutcomeResponse;

    fn key(&self) -> &Key {
        &self.request.key
    }

    fn bytes(&self) -> usize {
        match &self.request.outcome {
            Outcome::Success { result: Some(result), .. } => result.len(),
            _ => 0,
        }
    }

    fn first_step(&self) -> FirstStep {
        let OutcomeRequest { key, attempt, outcome, .. } = &self.request;
        match (&self.late, outcome) {
            (Some(late), _) => {
                let lifetime = late.settled_retention().duration();
                FirstStep::put(key, late, value::encode(late), lifetime, lifetime.map(|lifetime| lifetime + TOMBSTONE))
            }
            (None, Outcome::Success { result, retention }) => {
                FirstStep::success(key, attempt, result.as_deref(), *retention)
            }
            (None, Outcome::Failure) => FirstStep::failure(key, attempt),
            (None, Outcome::Unknown) => FirstStep::read(key),
        }
    }

    fn may_write(&self) -> bool {
        self.late.is_some() || self.request.outcome != Outcome::Unknown
    }

    fn written(&self, written: Written) -> Option<OutcomeResponse> {
        match (&self.late, &self.request.outcome) {
            (Some(_), _) => Some(claim::settle(None, &self.request).1),
            // A claim in progress was not recorded late.
            (None, Outcome::Success { .. }) => Some(OutcomeResponse::Done {
                state: Some(ClaimState::Succeeded),
                left: written.retention,
                ends_at: None,
                late: Some(false),
            }),
            (None, Outcome::Failure) => {
                Some(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) })
            }
            (None, Outcome::Unknown) => None,
        }
    }

    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, OutcomeResponse) {
        claim::settle(found, &self.request)
    }

    fn begin_again(&mut self, effect: Effect) {
        self.late = match effect {
            Effect::Put(record, _) => Some(record),
            _ => None,
        };
    }
}

impl Request for RenewalRequest {
    type Response = RenewalResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, RenewalResponse) {
        claim::renew(found, self)
    }
}

impl Request for ReleaseRequest {
    type Response = ReleaseResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, ReleaseResponse) {
        operator::release(found, self)
    }
}

/// A lookup: its request is the key.
impl Request for Key {
    type Response = Option<LiveClaim>;

    fn key(&self) -> &Key {
        self
    }

    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, Option<LiveClaim>) {
        (Effect::Keep, found.cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::terms::Retention;

    use super::*;

    const WRITTEN: Written = Written { fence: 7, retention: Some(Duration::from_secs(9)), ends_at: None };

    fn outcome(outcome: Outcome) -> Outcomes {
        let claim = fresh_claim();
        OutcomeRequest { key: claim.key, attempt: claim.attempt, outcome, late: None }.into()
    }

    fn success(result: Option<&str>) -> Outcomes {
        outcome(Outcome::Success { result: result.map(Into::into), retention: Some(Retention::Forever) })
    }

    #[test]
    fn a_request_counts_what_it_stores() {
        let claim = fresh_claim();
        let contents = claim.contents.as_str().len();
        assert!(contents > 1);
        assert_eq!(Request::bytes(&claim), contents);
        assert_eq!(Request::bytes(&ClaimRequest { contents_stored_bytes: 1, ..claim }), 1);
        let bytes = [success(Some("12345")), success(None), outcome(Outcome::Failure), outcome(Outcome::Unknown)];
        assert_eq!(bytes.map(|outcome| outcome.bytes()), [5, 0, 0, 0]);
    }

    #[test]
    fn an_unknown_outcome_only_reads_until_it_is_to_be_recorded_late() {
        for (outcome, may_write) in
            [(success(None), true), (outcome(Outcome::Failure), true), (outcome(Outcome::Unknown), false)]
        {
            assert_eq!(outcome.may_write(), may_write);
            assert_eq!(outcome.written(WRITTEN).is_some(), may_write);
        }
        let mut late = outcome(Outcome::Unknown);
        late.begin_again(Effect::Put(fresh_claim().record(), None));
        assert!(late.may_write());
        late.begin_again(Effect::Keep);
        assert!(!late.may_write());
    }

    #[test]
    fn what_was_written_is_answered_with_its_fence_or_its_retention() {
        let claim = fresh_claim();
        let Some(ClaimResponse::Granted(grant)) = Request::written(&claim, WRITTEN) else { panic!("a grant") };
        assert_eq!((grant.attempt, grant.fence), (claim.attempt.clone(), Some(7)));
        let done = success(None).written(WRITTEN);
        let (state, left, late) = (Some(ClaimState::Succeeded), WRITTEN.retention, Some(false));
        assert_eq!(done, Some(OutcomeResponse::Done { state, left, ends_at: None, late }));
    }

    #[test]
    fn a_late_success_is_put_and_swept_a_minute_after_its_end() {
        let claim = fresh_claim();
        let record = Record { state: ClaimState::Succeeded, ..claim.record() };
        let mut late = success(None);
        late.begin_again(Effect::Put(record.clone(), None));
        let lifetime = record.settled_retention().duration().unwrap();
        let (key, value) = (&late.request.key, value::encode(&record));
        let expected = FirstStep::put(key, &record, value, Some(lifetime), Some(lifetime + TOMBSTONE));
        assert_eq!(late.first_step(), expected);
        let unknown = outcome(Outcome::Unknown);
        assert_eq!(unknown.first_step(), FirstStep::read(unknown.key()));
    }
}
