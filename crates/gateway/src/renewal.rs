//! The renewal: extends a lease while the operation runs.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::call::Answered;
use oncegate_core::claim::{RenewalRequest, RenewalResponse};
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{ClaimId, Key};
use oncegate_telemetry::traces;

use super::{Failure, Gateway, failure, within};
use crate::tenants::App;

/// The answer to a renewal.
#[derive(Debug)]
pub struct RenewalAnswer {
    /// The claim.
    pub global_id: GlobalId,
    /// The store's answer.
    pub renewed: RenewalResponse,
    /// End of the lease, by the same clock as in [`ClaimView`](super::ClaimView); for display.
    pub expires_at: Option<Timestamp>,
}

impl Gateway {
    /// Extends a lease.
    ///
    /// # Errors
    /// There is no answer; a lost lease is an answer.
    pub async fn renew(
        &self,
        app: &App,
        id: ClaimId,
        attempt: Attempt,
        lease: Option<Duration>,
    ) -> Result<Answered<RenewalAnswer>, Failure> {
        let global_id = id.global_id;
        if attempt.nonce().is_observed() {
            // The attempt holds nothing, but observe mode must not stop its caller.
            let left = lease.unwrap_or(app.terms.terms.lease);
            let expires_at = Some(self.clock.wall().plus(left));
            let renewed = RenewalResponse::Renewed { left, ends_at: None };
            return Ok(Answered::by_store(RenewalAnswer { global_id, renewed, expires_at }));
        }
        let started = self.clock.monotonic();
        let deadline = app.terms.deadline;
        let request = RenewalRequest { key: Key::new(&app.key, id), attempt, lease };
        let call = async { self.policies(app)?.renew(&request, deadline).await };
        let span = traces::child!("renewal", oncegate.app = %app.key, oncegate.global_id = %global_id);
        let answer = traces::in_span!(span, within(deadline, call)).map_err(|error| failure(error, None))?;
        let Answered { answer: mut renewed, policy } = answer;
        let mut expires_at = None;
        if let RenewalResponse::Renewed { left, ends_at } = &mut renewed {
            *left = left.saturating_sub(self.since(started));
            if left.as_millis() == 0 {
                return Err(Failure::OutcomeUnknown(None));
            }
            expires_at = self.expires_at(Some(*left), *ends_at);
        }
        Ok(Answered { answer: RenewalAnswer { global_id, renewed, expires_at }, policy })
    }
}
