//! How much of this process an app may take: its quotas, and what it has charged of them. Who is asked when, and what an
//! app is told, is for the floors above.

pub mod bucket;
pub mod options;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;

use self::bucket::{Bucket, Room};
use super::App;

/// What may be owed beyond the burst so that what was granted can be settled.
pub const OVERDRAFT: Duration = Duration::from_secs(10);

/// When to come again to a gateway that has all of an app's places taken. Most requests take far less.
const PERMIT_WAIT: Duration = Duration::from_millis(100);

/// The quotas of an app, for each gateway process by itself. What is left out is not bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Requests in a second; each item of a batch is one.
    pub requests_per_second: Option<NonZeroU32>,
    /// Bytes of contents, fingerprints and results in a second, as they are stored.
    pub claim_bytes_per_second: Option<NonZeroU32>,
    /// For how long a rate that is not used is saved up, to be used at once.
    pub burst: Duration,
    /// Requests that are worked on at once.
    pub requests_in_flight: Option<usize>,
}

impl Default for Quota {
    /// No bound at all.
    fn default() -> Self {
        let burst = Duration::from_secs(1);
        Self { requests_per_second: None, claim_bytes_per_second: None, burst, requests_in_flight: None }
    }
}

/// Which of an app's quotas. Serialised as it is configured.
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
    /// As it is configured.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "requests_per_second",
            Self::ClaimBytesPerSecond => "claim_bytes_per_second",
            Self::RequestsInFlight => "requests_in_flight",
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Something new: a claim, a lookup.
    New,
    /// Something granted: an outcome, a renewal. It frees what others wait for, so it may overdraw by [`OVERDRAFT`], and
    /// has places of its own.
    Settle,
}

/// How many of so many places are kept for [`Purpose::Settle`]: an eighth, and none of a few.
pub fn reserved_permits(places: usize) -> usize {
    places / 8
}

/// A quota that an app has used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the app has used up its quota {} = {limit}", quota.as_str())]
pub struct Exceeded {
    /// Which one.
    pub quota: QuotaName,
    /// What it is set to.
    pub limit: u64,
    /// When there is room again, if nobody else of the app takes it.
    pub wait: Duration,
}

/// What an app has charged of its quotas in this process.
#[derive(Debug, Default)]
pub struct Charged {
    requests: Bucket,
    claim_bytes: Bucket,
    in_flight: AtomicUsize,
}

impl Charged {
    /// Forgets what is owed, because it was counted by other quotas. Requests in flight still are.
    pub(super) fn reset(&self) {
        self.requests.reset();
        self.claim_bytes.reset();
    }
}

/// A place among an app's requests in flight, until it is dropped.
#[derive(Debug)]
pub struct Permit(Arc<App>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.usage.charged.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    /// Takes a place among the app's requests in flight.
    ///
    /// # Errors
    /// All that are for this are taken.
    pub fn acquire_permit(self: &Arc<Self>, purpose: Purpose) -> Result<Permit, Exceeded> {
        let most = self.quota.requests_in_flight.unwrap_or(usize::MAX);
        let open = match purpose {
            Purpose::New => most - reserved_permits(most),
            Purpose::Settle => most,
        };
        let one_more = |taken: usize| if taken < open { taken.checked_add(1) } else { None };
        match self.usage.charged.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Permit(self.clone())),
            Err(_) => Err(Exceeded { quota: QuotaName::RequestsInFlight, limit: most as u64, wait: PERMIT_WAIT }),
        }
    }

    /// Draws a request. `now` is of a monotonic clock, the same one each time, and looked at only where there is a rate.
    ///
    /// # Errors
    /// There is no room for it; nothing was charged.
    pub fn charge_request(&self, purpose: Purpose, now: impl FnOnce() -> Duration) -> Result<(), Exceeded> {
        let rate = self.quota.requests_per_second;
        self.charge(QuotaName::RequestsPerSecond, rate, &self.usage.charged.requests, 1, purpose, now)
    }

    /// Draws the bytes of a claim or a result.
    ///
    /// # Errors
    /// There is no room for them; nothing was charged.
    pub fn charge_bytes(&self, bytes: u64, purpose: Purpose, now: impl FnOnce() -> Duration) -> Result<(), Exceeded> {
        let rate = self.quota.claim_bytes_per_second;
        self.charge(QuotaName::ClaimBytesPerSecond, rate, &self.usage.charged.claim_bytes, bytes, purpose, now)
    }

    /// Gives back bytes that were charged and are not stored.
    pub fn refund_bytes(&self, bytes: u64) {
        if let Some(rate) = self.quota.claim_bytes_per_second.filter(|_| bytes > 0) {
            self.usage.charged.claim_bytes.give_back(bucket::cost(bytes, rate));
        }
    }

    /// What is left of a rate: units that could be charged at once, and when all of it is back. Nothing where there is no
    /// bound, or none by time.
    pub fn left(&self, quota: QuotaName, now: Duration) -> Option<(u64, Duration)> {
        let (rate, bucket) = match quota {
            QuotaName::RequestsPerSecond => (self.quota.requests_per_second?, &self.usage.charged.requests),
            QuotaName::ClaimBytesPerSecond => (self.quota.claim_bytes_per_second?, &self.usage.charged.claim_bytes),
            QuotaName::RequestsInFlight => return None,
        };
        let owed = bucket.owed(now);
        Some((bucket::units(self.quota.burst.saturating_sub(owed), rate), owed))
    }

    fn charge(
        &self,
        quota: QuotaName,
        rate: Option<NonZeroU32>,
        bucket: &Bucket,
        units: u64,
        purpose: Purpose,
        now: impl FnOnce() -> Duration,
    ) -> Result<(), Exceeded> {
        let Some(rate) = rate.filter(|_| units > 0) else { return Ok(()) };
        let burst = self.quota.burst;
        // What is larger than all that could ever be free passes when little is owed, or it could never pass.
        let room = match purpose {
            Purpose::New => Room { most: burst, always_below: Duration::ZERO },
            Purpose::Settle => Room { most: burst.saturating_add(OVERDRAFT), always_below: burst },
        };
        let charged = bucket.draw(bucket::cost(units, rate), room, now());
        charged.map_err(|wait| Exceeded { quota, limit: rate.get().into(), wait })
    }
}

#[cfg(test)]
mod tests;
