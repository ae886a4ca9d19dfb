//! Limits: sizes, counts, time limits, and the bounds of leases and retentions.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::terms::{Retention, Span};

/// Table `[limits]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Maximum size of a request body, in bytes.
    pub body_bytes: usize,
    /// Maximum size of canonical contents, in bytes.
    pub contents_bytes: usize,
    /// Maximum size of a result, in bytes.
    pub result_bytes: usize,
    /// Maximum size of a request head, in bytes: request line and header fields.
    pub header_bytes: usize,
    /// Maximum number of header fields of a request.
    pub headers: usize,
    /// Maximum number of items of a batch.
    pub batch_items: usize,
    /// Maximum memory for results of duplicates in batches, in bytes. An app gets half.
    pub batch_result_bytes: usize,
    /// The shortest lease.
    pub lease_min: Span,
    /// The longest lease.
    pub lease_max: Span,
    /// The shortest retention.
    pub retention_min: Span,
    /// The longest retention that ends.
    pub retention_max: Span,
    /// A retention may be `forever`.
    pub forever_allowed: bool,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of requests in flight.
    pub requests_in_flight: usize,
    /// Maximum size of the outage journal, in bytes.
    pub journal_bytes: usize,
    /// Maximum size of one app's entries in the journal, in bytes.
    pub journal_app_bytes: usize,
    /// Maximum number of calls that wait for a claim in progress; separately, the maximum for locks. An app gets half.
    pub waiting: usize,
    /// The longest wait.
    pub wait_max: Span,
    /// Number of operations of an app that metrics name, in addition to the configured ones.
    pub metric_operations: usize,
    /// Time limit for receiving the head of a request.
    pub header_read_timeout: Span,
    /// Time limit for receiving the body of a request.
    pub body_read_timeout: Span,
    /// Time limit for a client to read an answer.
    pub write_timeout: Span,
    /// Maximum size of unread answers on a listener, in bytes.
    pub unread_answer_bytes: usize,
    /// Time limit of an idle connection.
    pub idle_timeout: Span,
}

impl Limits {
    /// Checks a lease.
    ///
    /// # Errors
    /// It is out of bounds. The error has a valid example.
    pub fn check_lease(&self, lease: Duration) -> Result<(), OutOfBounds> {
        let (min, max) = (self.lease_min.0, self.lease_max.0);
        if (min..=max).contains(&lease) {
            return Ok(());
        }
        Err(OutOfBounds { what: "lease", min, max, forever_allowed: false, example: example(LEASE_USUAL, min, max) })
    }

    /// Checks a retention.
    ///
    /// # Errors
    /// It is out of bounds. The error has a valid example.
    pub fn check_retention(&self, retention: Retention) -> Result<(), OutOfBounds> {
        let (min, max) = (self.retention_min.0, self.retention_max.0);
        let within = match retention {
            Retention::For(duration) => (min..=max).contains(&duration),
            Retention::Forever => self.forever_allowed,
        };
        if within {
            return Ok(());
        }
        let example = example(RETENTION_USUAL, min, max);
        Err(OutOfBounds { what: "retention", min, max, forever_allowed: self.forever_allowed, example })
    }
}

/// Examples in errors, if they are within the bounds.
const LEASE_USUAL: Duration = Duration::from_secs(30);
const RETENTION_USUAL: Duration = Duration::from_hours(24);

/// Returns the duration moved into the bounds. Not `clamp`: that panics if the minimum is above the maximum.
fn example(usual: Duration, min: Duration, max: Duration) -> Duration {
    usual.max(min).min(max)
}

/// Error: a duration is shorter or longer than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct OutOfBounds {
    what: &'static str,
    min: Duration,
    max: Duration,
    forever_allowed: bool,
    example: Duration,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, min, max, forever_allowed, example } = *self;
        let or_forever = if forever_allowed { ", or unlimited" } else { "" };
        let or_never = if forever_allowed { " or \"forever\"" } else { "" };
        let (min, max, example) = (Span(min), Span(max), Span(example));
        write!(f, "a {what} is from {min} to {max}{or_forever}, such as \"{example}\"{or_never}")
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Default for Limits {
    /// Returns the limits of the contract, for tests. A test compares them with the defaults of the configuration.
    fn default() -> Self {
        Self {
            body_bytes: 1024 * 1024,
            contents_bytes: 64 * 1024,
            result_bytes: 64 * 1024,
            header_bytes: 16 * 1024,
            headers: 64,
            batch_items: 1000,
            batch_result_bytes: 128 << 20,
            lease_min: Span(Duration::from_millis(100)),
            lease_max: Span(Duration::from_hours(24)),
            retention_min: Span(Duration::from_secs(1)),
            retention_max: Span(Duration::from_hours(24 * 3650)),
            forever_allowed: true,
            connections: 10_000,
            requests_in_flight: 4096,
            journal_bytes: 64 << 20,
            journal_app_bytes: 32 << 20,
            waiting: 10_000,
            wait_max: Span(Duration::from_secs(30)),
            metric_operations: 100,
            header_read_timeout: Span(Duration::from_secs(5)),
            body_read_timeout: Span(Duration::from_secs(10)),
            write_timeout: Span(Duration::from_secs(10)),
            unread_answer_bytes: 64 << 20,
            idle_timeout: Span(Duration::from_secs(75)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> Duration {
        text.parse::<Span>().unwrap().0
    }

    #[test]
    fn a_lease_is_within_its_bounds_inclusive() {
        let limits = Limits::default();
        for good in ["100ms", "30s", "24h"] {
            assert_eq!(limits.check_lease(span(good)), Ok(()), "{good}");
        }
        for bad in ["99ms", "86401s"] {
            let message = limits.check_lease(span(bad)).unwrap_err().to_string();
            assert_eq!(message, "a lease is from 100ms to 1d, such as \"30s\"");
        }
    }

    #[test]
    fn a_retention_is_within_its_bounds_or_for_ever() {
        let limits = Limits::default();
        for good in ["1s", "30d", "3650d", "forever"] {
            assert_eq!(limits.check_retention(good.parse().unwrap()), Ok(()), "{good}");
        }
        for bad in ["999ms", "3651d"] {
            let message = limits.check_retention(bad.parse().unwrap()).unwrap_err().to_string();
            assert_eq!(message, "a retention is from 1s to 3650d, or unlimited, such as \"1d\" or \"forever\"");
        }
    }

    #[test]
    fn for_ever_can_be_disallowed() {
        let limits = Limits { forever_allowed: false, ..Limits::default() };
        let message = limits.check_retention(Retention::Forever).unwrap_err().to_string();
        assert_eq!(message, "a retention is from 1s to 3650d, such as \"1d\"");
    }

    #[test]
    fn the_example_is_within_the_bounds() {
        let limits = Limits { lease_max: Span(span("10s")), ..Limits::default() };
        let message = limits.check_lease(span("30s")).unwrap_err().to_string();
        assert_eq!(message, "a lease is from 100ms to 10s, such as \"10s\"");
    }
}
