//! Remaining times in answers, corrected for the fsync between the transition and the answer: none is longer than what is
//! left.

use std::time::Duration;

use oncegate_core::claim::{ClaimResponse, Grant, OutcomeResponse, RenewalResponse};
use oncegate_core::engine::{ChangeResponse, RecordView};
use oncegate_core::operator::{ListedClaim, LockPage, ReleaseResponse};
use oncegate_core::record::LiveClaim;

/// An answer, which may contain remaining times.
pub(super) trait Aging: Sized {
    /// Returns the answer as it is this much later.
    fn aged(self, _: Duration) -> Self {
        self
    }
}

impl Aging for () {}

/// A view is true of its own instant.
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
            Self::Done { state, left, late } => Self::Done { state, left: left.aged(by), late },
            Self::Superseded { state, left } => Self::Superseded { state, left: left.aged(by) },
            Self::AlreadySucceeded | Self::Expired => self,
        }
    }
}

impl Aging for RenewalResponse {
    fn aged(self, by: Duration) -> Self {
        match self {
            Self::Renewed { left } => Self::Renewed { left: left.saturating_sub(by) },
            Self::Superseded { state, left } => Self::Superseded { state, left: left.aged(by) },
            Self::LeaseLost | Self::AlreadySucceeded => self,
        }
    }
}
