//! Quotas at work: who asks for what room, and what is counted when there is none. How much an app may take, and how that
//! is reckoned, is in `tenants`.

use std::sync::Arc;

use super::{Failure, Gateway};
use crate::domain::claim::{Claim, Settle, Settled};
use crate::telemetry::metrics::quota::Quota;
use crate::tenants::App;
use crate::tenants::quota::{Exceeded, Place, Purpose, QuotaName};

impl Gateway {
    /// Takes a place among an app's requests in flight, to be dropped once the answer is known.
    ///
    /// # Errors
    /// All that are for this are taken.
    pub fn enter(&self, app: &Arc<App>, purpose: Purpose) -> Result<Place, Failure> {
        app.enter(purpose).map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws a request, or an item of a batch, which is a request like any other.
    ///
    /// # Errors
    /// There is no room for it; nothing was drawn.
    pub fn draw_request(&self, app: &App, purpose: Purpose) -> Result<(), Failure> {
        let drawn = app.draw_request(purpose, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws what a grant of this claim would keep.
    pub(super) fn draw_claim(&self, app: &App, ask: &Claim) -> Result<(), Failure> {
        let drawn = app.draw_bytes(ask.stored_bytes(), Purpose::Ask, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Draws what this outcome would add to its claim.
    pub(super) fn draw_outcome(&self, app: &App, ask: &Settle) -> Result<(), Failure> {
        let drawn = app.draw_bytes(ask.result_bytes(), Purpose::Settle, || self.clock.monotonic());
        drawn.map_err(|exceeded| self.refused(app, exceeded))
    }

    /// Charges the contents of a record that no claim has drawn, because the outcome came late.
    pub(super) fn charge_late(&self, app: &App, ask: &Settle, settled: &Settled) {
        if let (Settled::Done { state: Some(_), late: Some(true), .. }, Some(late)) = (settled, &ask.late) {
            app.charge_bytes(late.contents.stored_bytes(), self.clock.monotonic());
        }
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
