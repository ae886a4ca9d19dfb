//! Answers of a gateway.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Cause, Error, Kind, Rejected};

/// The members of all answers; unknown ones are ignored.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Body {
    pub(crate) status: Option<u16>,
    pub(crate) global_id: Option<String>,
    /// Of a lock.
    pub(crate) name: Option<String>,
    pub(crate) attempt: Option<String>,
    pub(crate) fence: Option<i64>,
    pub(crate) state: Option<String>,
    pub(crate) repeated: Option<bool>,
    pub(crate) taken_over: Option<bool>,
    pub(crate) would_be: Option<String>,
    pub(crate) claimed_at: Option<String>,
    pub(crate) expires_at: Option<String>,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) degraded: Option<String>,
    pub(crate) late: Option<bool>,
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) contents_verified: Option<bool>,
    pub(crate) code: Option<String>,
    pub(crate) detail: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) waited_ms: Option<u64>,
    pub(crate) items: Option<Vec<Box<RawValue>>>,
    pub(crate) mode: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) holds: Option<i64>,
    pub(crate) waiting: Option<u64>,
}

/// An answer, with the gateway and the time of its request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) text: Bytes,
    /// The lease counts from here: the answer may take long.
    pub(crate) sent: Instant,
    /// Position of the gateway.
    pub(crate) at: usize,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        self.status < 300
    }

    pub(crate) fn code(&self) -> &str {
        self.body.code.as_deref().unwrap_or_default()
    }

    /// Returns the end of the lease. The gateway counts it from the end of its wait, which was not longer than the call.
    pub(crate) fn lease_ends(&self, now: Instant) -> Instant {
        let waited = Duration::from_millis(self.body.waited_ms.unwrap_or(0));
        // Longer leases count as a century.
        let lease = Duration::from_millis(self.body.lease_ms.unwrap_or(0).min(100 * 365 * 86_400_000));
        self.sent + waited.min(now.saturating_duration_since(self.sent)) + lease
    }

    pub(crate) fn retry_after(&self) -> Duration {
        self.body.retry_after_ms.map_or(Duration::from_secs(1), Duration::from_millis)
    }

    pub(crate) fn rejected(&self) -> Rejected {
        Rejected {
            status: self.status,
            code: self.code().to_owned(),
            detail: self.body.detail.clone().unwrap_or_default(),
            request_id: self.body.request_id.clone(),
            retry_after: self.body.retry_after_ms.map(Duration::from_millis),
        }
    }

    pub(crate) fn rejection(&self) -> Error {
        Error::Rejected(self.rejected())
    }

    /// Returns the cause of a 429 or 5xx answer.
    pub(crate) fn cause(&self, url: &str) -> Cause {
        let detail = self.body.detail.as_deref().unwrap_or_default();
        let detail = format!("{} {:.100}: {detail:.300}", self.status, self.code());
        Cause {
            status: Some(self.status),
            code: self.body.code.clone(),
            request_id: self.body.request_id.clone(),
            ..Cause::of(url, Kind::Answer, detail)
        }
    }
}
