//! The headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers): the quotas of an app and
//! their rest, on the responses to its requests.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use oncegate_gateway::tenants::App;
use oncegate_gateway::tenants::quota::QuotaName;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

/// Writes the rates of an app, if it has any, and the quota that it has just exceeded.
pub(super) fn write(headers: &mut HeaderMap, app: &App, exceeded: Option<QuotaName>, now: impl Fn() -> Duration) {
    let (mut policy, mut left) = (String::new(), String::new());
    let quota = &app.quota;
    let window = seconds(quota.burst).max(1);
    for (name, rate, unit) in [
        (QuotaName::RequestsPerSecond, quota.requests_per_second, ""),
        (QuotaName::ClaimBytesPerSecond, quota.claim_bytes_per_second, ";qu=\"content-bytes\""),
    ] {
        let Some(rate) = rate else { continue };
        let Some((units, until)) = app.left(name, now()) else { continue };
        let most = u64::from(rate.get()).saturating_mul(window);
        item(&mut policy, name, format_args!("q={most};w={window}{unit}"));
        item(&mut left, name, format_args!("r={units};t={}", seconds(until)));
    }
    // Permits say nothing about the next request, so they are shown only if they are the reason for the refusal.
    if let (Some(QuotaName::RequestsInFlight), Some(most)) = (exceeded, quota.requests_in_flight) {
        item(&mut policy, QuotaName::RequestsInFlight, format_args!("q={most};qu=\"concurrent-requests\""));
        item(&mut left, QuotaName::RequestsInFlight, format_args!("r=0"));
    }
    for (name, value) in [(POLICY, policy), (LEFT, left)] {
        if !value.is_empty() {
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        }
    }
}

/// Appends an item to a structured list.
fn item(list: &mut String, name: QuotaName, parameters: std::fmt::Arguments<'_>) {
    let comma = if list.is_empty() { "" } else { ", " };
    // Writing to a string cannot fail.
    let _ = write!(list, "{comma}\"{}\";{parameters}", name.as_str());
}

/// Returns whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
