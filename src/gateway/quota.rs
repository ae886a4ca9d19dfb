//! Quotas at work: who asks for what room, and what is counted when there is none. How much an app may take, and how that
//! is reckoned, is in `tenants`.

use std::sync::Arc;

use super::{Failure, Gateway};
use crate::domain::claim::{ClaimRequest, Outcome, OutcomeRequest, OutcomeResponse};
use crate::engine::EngineError;
use crate::resilience::degrade::OutcomeAnswer;
use crate::telemetry::metrics::quota::Quota;
use crate::tenants::App;
use crate::tenants::quota::{Exceeded, Permit, Purpose, QuotaName};

impl Gateway {
    /// Takes a place among an app's requests in flight, to be dropped once the answer is known.
    ///
    /// # Errors
    /// All that are for this are taken.
    pub fn acquire_permit(&self, app: &Arc<App>, purpose: Purpose) -> Result<Permit, Failure> {
        app.acquire_permit(purpose).map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws a request, or an item of a batch, which is a request like any other.
    ///
    /// # Errors
    /// There is no room for it; nothing was drawn.
    pub fn charge_request(&self, app: &App, purpose: Purpose) -> Result<(), Failure> {
        let drawn = app.charge_request(purpose, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws what a grant of this claim would keep.
    pub(super) fn draw_claim(&self, app: &App, request: &ClaimRequest) -> Result<(), Failure> {
        let drawn = app.charge_bytes(request.stored_bytes(), Purpose::New, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws what this outcome may add to the store: its result, and its contents, which no claim has drawn if it is late.
    pub(super) fn draw_outcome(&self, app: &App, request: &OutcomeRequest) -> Result<(), Failure> {
        let bytes = request.result_bytes().saturating_add(late_bytes(request));
        let drawn = app.charge_bytes(bytes, Purpose::Settle, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    fn refused(&self, app: &App, exceeded: Exceeded) -> Failure {
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

/// Gives back what was drawn for the contents of an outcome that was not late, so that they are not counted twice.
pub(super) fn give_back_contents(app: &App, request: &OutcomeRequest, settled: Result<&OutcomeAnswer, &EngineError>) {
    let may_be_stored = match settled {
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

/// Bytes of the contents that are stored if the outcome is late.
fn late_bytes(request: &OutcomeRequest) -> u64 {
    match (&request.outcome, &request.late) {
        (Outcome::Success { .. } | Outcome::Unknown, Some(late)) => late.contents.stored_bytes(),
        (Outcome::Failure, _) | (_, None) => 0,
    }
}
