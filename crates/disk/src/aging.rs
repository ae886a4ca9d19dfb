//! Remaining times in answers, corrected for the fsync between the transition and the answer: none is longer than the
//! real rest.

use std::time::Duration;

use oncegate_core::claim::{ClaimResponse, Grant, OutcomeResponse, RenewalResponse};
use oncegate_core::engine::{ChangeResponse, RecordView};
use oncegate_core::operator::{ListedClaim, LockPage, ReleaseResponse};
use oncegate_core::record::LiveClaim;

/// An answer, which may contain remaining times.
pub(super) trait Aging: Sized {
    /// Returns the answer that is right this much later.
    fn aged(self, _: Duration) -> Self {
        self
    }
}

impl Aging for () {}

/// A view names its instant, so it stays right.
impl Aging for RecordView {}

impl Aging for ChangeResponse {}

impl Aging for LockPage {}

impl Aging for ReleaseResponse {}

impl Aging for Option<Duration> {
    fn aged(self, by: Duration) -> Self {
        self.map(|left| left.saturating_sub(by))
    }
}

impl Aging for LiveClaim {
    fn aged(self, by: Duration) -> Self {
        Self { left: self.left.aged(by), ..self }
    }
}

impl Aging for Option<LiveClaim> {
    fn aged(self, by: Duration) -> Self {
        self.map(|live| live.aged(by))
    }
}

impl Aging for ListedClaim {
    fn aged(self, by: Duration) -> Self {
        Self { claim: self.claim.aged(by), ..self }
    }
}

impl Aging for Vec<ListedClaim> {
    fn aged(self, by: Duration) -> Self {
        self.into_iter().map(|listed| listed.aged(by)).collect()
    }
}

impl Aging for ClaimResponse {
    fn aged(self, by: Duration) -> Self {
        match self {
            Self::Granted(grant) => Self::Granted(Grant { lease_left: grant.lease_left.aged(by), ..grant }),
            Self::Duplicate(live) => Self::Duplicate(live.aged(by)),
            Self::Mismatch(_) => self,
        }
    }
}

impl Aging for OutcomeResponse {
    fn aged(self, by: Duration) -> Self {
        match self {
            Self::Done { state, left, ends_at, late } => Self::Done { state, left: left.aged(by), ends_at, late },
            Self::Superseded { state, left } => Self::Superseded { state, left: left.aged(by) },
            Self::AlreadySucceeded | Self::Expired => self,
        }
    }
}

impl Aging for RenewalResponse {
    fn aged(self, by: Duration) -> Self {
        match self {
            Self::Renewed { left, ends_at } => Self::Renewed { left: left.saturating_sub(by), ends_at },
            Self::Superseded { state, left } => Self::Superseded { state, left: left.aged(by) },
            Self::LeaseLost | Self::AlreadySucceeded => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::clock::Timestamp;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::record::{ClaimState, Record};

    use super::*;

    const MIN: Duration = Duration::from_mins(1);
    const END: Option<Timestamp> = Some(Timestamp::from_micros(1_700_000_000_000_000));

    #[test]
    fn every_remaining_time_is_shortened_and_nothing_else_is_changed() {
        let live = |left| LiveClaim { record: record(), left: Some(left), ends_at: END, fence: Some(7) };
        let grant = |lease_left| {
            let attempt = record().attempt;
            let (fence, lease_ends_at) = (Some(7), END);
            let grant = Grant { attempt, fence, repeated: true, taken_over: false, lease_left, lease_ends_at };
            ClaimResponse::Granted(grant)
        };
        let listed = |left| vec![ListedClaim { global_id: fresh().key.global_id, claim: live(left) }];
        let state = ClaimState::Unknown;
        assert_eq!(grant(Some(3 * MIN)).aged(MIN), grant(Some(2 * MIN)));
        assert_eq!(grant(None).aged(MIN), grant(None));
        assert_eq!(ClaimResponse::Duplicate(live(3 * MIN)).aged(MIN), ClaimResponse::Duplicate(live(2 * MIN)));
        assert_eq!(Some(live(3 * MIN)).aged(4 * MIN), Some(live(Duration::ZERO)), "at least zero");
        assert_eq!(listed(3 * MIN).aged(MIN), listed(2 * MIN));
        let done = |left| OutcomeResponse::Done { state: Some(state), left, ends_at: END, late: Some(false) };
        assert_eq!(done(Some(3 * MIN)).aged(MIN), done(Some(2 * MIN)));
        let superseded = |left| OutcomeResponse::Superseded { state, left };
        assert_eq!(superseded(Some(3 * MIN)).aged(MIN), superseded(Some(2 * MIN)));
        let renewed = |left| RenewalResponse::Renewed { left, ends_at: END };
        assert_eq!(renewed(3 * MIN).aged(MIN), renewed(2 * MIN));
        let superseded = |left| RenewalResponse::Superseded { state, left };
        assert_eq!(superseded(Some(3 * MIN)).aged(MIN), superseded(Some(2 * MIN)));
    }

    fn fresh() -> &'static oncegate_core::claim::ClaimRequest {
        static REQUEST: std::sync::LazyLock<oncegate_core::claim::ClaimRequest> = std::sync::LazyLock::new(fresh_claim);
        &REQUEST
    }

    fn record() -> Record {
        fresh().record()
    }
}
