//! Quotas of an app, and the charges against them. The layers above decide about charges and their times.

pub mod options;
mod stored_responses;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::rate_limiter::{self, Allowance, RateLimiter};
use serde::Serialize;

pub use self::stored_responses::ResponseKind;
use self::stored_responses::StoredResponses;
use super::App;

/// Debt that settlements may add beyond the burst. It lets callers settle the claims that they were granted.
pub const OVERDRAFT: Duration = Duration::from_secs(10);

/// Retry delay while all permits of an app are taken. Most requests take far less.
const PERMIT_WAIT: Duration = Duration::from_millis(100);

/// Quotas of an app, per gateway process. A quota that is `None` is unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Requests per second; each item of a batch counts.
    pub requests_per_second: Option<NonZeroU32>,
    /// Bytes of contents, fingerprints and results per second, as they are stored.
    pub claim_bytes_per_second: Option<NonZeroU32>,
    /// Time for which an unused rate is saved up.
    pub burst: Duration,
    /// Requests in progress at once.
    pub requests_in_flight: Option<usize>,
    /// Bytes of responses that the proxy has stored for repeats, as they are stored.
    pub response_bytes_total: Option<u64>,
}

impl Default for Quota {
    /// No limits.
    fn default() -> Self {
        let burst = Duration::from_secs(1);
        Self {
            requests_per_second: None,
            claim_bytes_per_second: None,
            burst,
            requests_in_flight: None,
            response_bytes_total: None,
        }
    }
}

/// Name of a quota, serialised as in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaName {
    /// [`Quota::requests_per_second`].
    RequestsPerSecond,
    /// [`Quota::claim_bytes_per_second`].
    ClaimBytesPerSecond,
    /// [`Quota::requests_in_flight`].
    RequestsInFlight,
}

impl QuotaName {
    /// Returns the name as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "requests_per_second",
            Self::ClaimBytesPerSecond => "claim_bytes_per_second",
            Self::RequestsInFlight => "requests_in_flight",
        }
    }
}

/// Purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Starts something: a claim, a lookup.
    New,
    /// Ends or extends a granted claim: an outcome, a renewal. Others wait for it, so it may overdraw by [`OVERDRAFT`]
    /// and has reserved permits.
    Settle,
}

/// Returns how many permits are reserved for [`Purpose::Settle`]: an eighth.
pub fn reserved_permits(permits: usize) -> usize {
    permits / 8
}

/// Exhausted quota of an app.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the app has used up its quota {} = {limit}", quota.as_str())]
pub struct Exceeded {
    /// The exhausted quota.
    pub quota: QuotaName,
    /// Its configured value.
    pub limit: u64,
    /// Time until the request would be accepted if the app sends nothing else.
    pub wait: Duration,
}

/// Charges of an app against its quotas in this process.
#[derive(Debug, Default)]
pub struct Charged {
    requests: RateLimiter,
    claim_bytes: RateLimiter,
    in_flight: AtomicUsize,
    responses: StoredResponses,
}

impl Charged {
    /// Clears the debt, since other quotas now apply. Requests in flight and stored responses stay counted.
    pub(super) fn reset(&self) {
        self.requests.reset();
        self.claim_bytes.reset();
    }
}

/// Permit for one of an app's requests in flight; released when dropped.
#[derive(Debug)]
pub struct Permit(Arc<App>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.usage.charged.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    /// Acquires a permit for a request in flight, unless all for this purpose are taken.
    pub fn acquire_permit(self: &Arc<Self>, purpose: Purpose) -> Result<Permit, Exceeded> {
        let permits = self.quota.requests_in_flight.unwrap_or(usize::MAX);
        let available = match purpose {
            Purpose::New => permits - reserved_permits(permits),
            Purpose::Settle => permits,
        };
        let one_more = |taken: usize| if taken < available { taken.checked_add(1) } else { None };
        match self.usage.charged.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Permit(self.clone())),
            Err(_) => Err(Exceeded { quota: QuotaName::RequestsInFlight, limit: permits as u64, wait: PERMIT_WAIT }),
        }
    }

    /// Charges a request, or nothing if the quota is exhausted. `now` reads a monotonic clock, and is called only where a rate is configured.
    pub fn charge_request(&self, purpose: Purpose, now: impl FnOnce() -> Duration) -> Result<(), Exceeded> {
        let rate = self.quota.requests_per_second;
        self.charge(QuotaName::RequestsPerSecond, rate, &self.usage.charged.requests, 1, purpose, now)
    }

    /// Charges the bytes of a claim or a result, or nothing if the quota is exhausted.
    pub fn charge_bytes(&self, bytes: u64, purpose: Purpose, now: impl FnOnce() -> Duration) -> Result<(), Exceeded> {
        let rate = self.quota.claim_bytes_per_second;
        self.charge(QuotaName::ClaimBytesPerSecond, rate, &self.usage.charged.claim_bytes, bytes, purpose, now)
    }

    /// Counts a response against the quota of stored responses until its retention ends; `None` has no end. Returns false if the
    /// quota has no room. Client errors get a quarter of it, so that callers without a credential cannot use up the rest. `now` is
    /// monotonic.
    pub fn count_response(&self, kind: ResponseKind, bytes: u64, retention: Option<Duration>, now: Duration) -> bool {
        let limit = self.quota.response_bytes_total;
        limit.is_none_or(|limit| self.usage.charged.responses.add(kind, bytes, limit, retention, now))
    }

    /// Returns the number of requests in flight.
    pub fn requests_in_flight(&self) -> usize {
        self.usage.charged.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the bytes of stored responses that count against their quota. `None` without a quota: nothing is counted
    /// then. `now` is monotonic.
    pub fn stored_response_bytes(&self, now: Duration) -> Option<u64> {
        self.quota.response_bytes_total.map(|_| self.usage.charged.responses.total(now))
    }

    /// Refunds bytes that were charged and not stored.
    pub fn refund_bytes(&self, bytes: u64) {
        if let Some(rate) = self.quota.claim_bytes_per_second.filter(|_| bytes > 0) {
            self.usage.charged.claim_bytes.refund(rate_limiter::cost(bytes, rate));
        }
    }

    /// Returns the units of a rate that are available at once, and the time until all of them are. `None` for a quota
    /// that is unlimited or not a rate.
    pub fn left(&self, quota: QuotaName, now: Duration) -> Option<(u64, Duration)> {
        let (rate, limiter) = match quota {
            QuotaName::RequestsPerSecond => (self.quota.requests_per_second?, &self.usage.charged.requests),
            QuotaName::ClaimBytesPerSecond => (self.quota.claim_bytes_per_second?, &self.usage.charged.claim_bytes),
            QuotaName::RequestsInFlight => return None,
        };
        let debt = limiter.debt(now);
        Some((rate_limiter::units(self.quota.burst.saturating_sub(debt), rate), debt))
    }

    fn charge(
        &self,
        quota: QuotaName,
        rate: Option<NonZeroU32>,
        limiter: &RateLimiter,
        units: u64,
        purpose: Purpose,
        now: impl FnOnce() -> Duration,
    ) -> Result<(), Exceeded> {
        let Some(rate) = rate.filter(|_| units > 0) else { return Ok(()) };
        let burst = self.quota.burst;
        let allowance = match purpose {
            Purpose::New => Allowance::burst(burst),
            Purpose::Settle => Allowance { debt_max: burst.saturating_add(OVERDRAFT), always_below: burst },
        };
        let charged = limiter.charge(rate_limiter::cost(units, rate), allowance, now());
        charged.map_err(|wait| Exceeded { quota, limit: rate.get().into(), wait })
    }
}

#[cfg(test)]
mod tests;
