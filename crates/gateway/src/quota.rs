//! The charge of each call against the quotas of its app, and the metrics of exceeded quotas. The quotas themselves are
//! in `tenants`.

use std::sync::Arc;

use oncegate_core::claim::{ClaimRequest, Outcome, OutcomeRequest, OutcomeResponse};
use oncegate_core::engine::EngineError;
use oncegate_telemetry::metrics::quota::Quota;

use super::{Failure, Gateway};
use crate::tenants::App;
use crate::tenants::quota::{Exceeded, Permit, Purpose, QuotaName};
use oncegate_outage::OutcomeAnswer;

impl Gateway {
    /// Takes a permit for one of the app's requests in flight. Drop it once the answer is known.
    ///
    /// # Errors
    /// All permits for this purpose are taken.
    pub fn acquire_permit(&self, app: &Arc<App>, purpose: Purpose) -> Result<Permit, Failure> {
        app.acquire_permit(purpose).map_err(|exceeded| self.quota_exceeded(app, exceeded))
    }

    /// Charges a request, or an item of a batch.
    ///
    /// # Errors
    /// The quota is used up; nothing was charged.
    pub fn charge_request(&self, app: &App, purpose: Purpose) -> Result<(), Failure> {
        let charged = app.charge_request(purpose, || self.clock.monotonic());
        charged.map_err(|exceeded| self.quota_exceeded(app, exceeded))
    }

    /// Charges the bytes that a grant of this claim stores.
    pub(super) fn charge_claim(&self, app: &App, request: &ClaimRequest) -> Result<(), Failure> {
        let charged = app.charge_bytes(request.stored_bytes(), Purpose::New, || self.clock.monotonic());
        charged.map_err(|exceeded| self.quota_exceeded(app, exceeded))
    }

    /// Charges the bytes that this outcome may store: its result and its contents. If the outcome is late, no claim has
    /// paid for the contents.
    pub(super) fn charge_outcome(&self, app: &App, request: &OutcomeRequest) -> Result<(), Failure> {
        let bytes = request.result_bytes().saturating_add(late_bytes(request));
        let charged = app.charge_bytes(bytes, Purpose::Settle, || self.clock.monotonic());
        charged.map_err(|exceeded| self.quota_exceeded(app, exceeded))
    }

    fn quota_exceeded(&self, app: &App, exceeded: Exceeded) -> Failure {
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.quota_exceeded(match exceeded.quota {
                QuotaName::RequestsPerSecond => Quota::RequestsPerSecond,
                QuotaName::ClaimBytesPerSecond => Quota::ClaimBytesPerSecond,
                QuotaName::RequestsInFlight => Quota::RequestsInFlight,
            });
        }
        Failure::QuotaExceeded(exceeded)
    }
}

/// Refunds the contents of an outcome that was not late: its claim has paid for them.
pub(super) fn refund_contents(app: &App, request: &OutcomeRequest, answer: Result<&OutcomeAnswer, &EngineError>) {
    let may_be_stored = match answer {
        Ok(OutcomeAnswer::Response(OutcomeResponse::Done { state, late, .. })) => {
            state.is_some() && *late != Some(false)
        }
        Ok(OutcomeAnswer::Spooled) | Err(EngineError::Indeterminate(_)) => true,
        Ok(OutcomeAnswer::Response(
            OutcomeResponse::AlreadySucceeded | OutcomeResponse::Superseded { .. } | OutcomeResponse::Expired,
        ))
        | Err(EngineError::Determinate(_)) => false,
    };
    if !may_be_stored {
        app.refund_bytes(late_bytes(request));
    }
}

/// Returns the bytes of contents that are stored if the outcome is late.
fn late_bytes(request: &OutcomeRequest) -> u64 {
    match (&request.outcome, &request.late) {
        (Outcome::Success { .. } | Outcome::Unknown, Some(late)) => late.contents.stored_bytes(),
        (Outcome::Failure, _) | (_, None) => 0,
    }
}
