//! The bounds that nothing passes: sizes, counts, and how short or long a lease or a retention may be. What is within
//! them may still be refused for other reasons.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::terms::{Retention, Span};

/// The table `[limits]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// The longest canonical contents of a claim, in bytes.
    pub contents_bytes: usize,
    /// The longest result that an outcome may carry, in bytes.
    pub result_bytes: usize,
    /// The longest head of a request, in bytes: its request line and its header fields.
    pub header_bytes: usize,
    /// How many header fields a request may have.
    pub headers: usize,
    /// How many items a batch may have.
    pub batch_items: usize,
    /// Bytes that the results of duplicates take in memory while batches are answered, in all. An app gets half.
    pub batch_result_bytes: usize,
    /// The shortest lease.
    pub lease_min: Span,
    /// The longest lease.
    pub lease_max: Span,
    /// The shortest retention.
    pub retention_min: Span,
    /// The longest retention that ends.
    pub retention_max: Span,
    /// Whether a retention may be `forever`.
    pub forever_allowed: bool,
    /// How many connections are open at once.
    pub connections: usize,
    /// How many requests are worked on at once.
    pub requests_in_flight: usize,
    /// How much waits on this gateway's disk for stores that are out, in bytes.
    pub journal_bytes: usize,
    /// How much of that may be of one app, in bytes.
    pub journal_app_bytes: usize,
    /// Operations of an app that metrics show by name, beside those that are configured.
    pub metric_operations: usize,
    /// How long a client may take to send its headers.
    pub header_read_timeout: Span,
    /// How long a client may take to send its body.
    pub body_read_timeout: Span,
    /// How long a client may take to read an answer.
    pub write_timeout: Span,
    /// How much of all answers on a listener may wait for its clients to read it, in bytes.
    pub unread_answer_bytes: usize,
    /// How long a connection may be open with no request on it.
    pub idle_timeout: Span,
}

impl Limits {
    /// Whether a lease is within its bounds.
    ///
    /// # Errors
    /// The bounds, and a lease that keeps to them.
    pub fn check_lease(&self, lease: Duration) -> Result<(), OutOfBounds> {
        let (min, max) = (self.lease_min.0, self.lease_max.0);
        if (min..=max).contains(&lease) {
            return Ok(());
        }
        Err(OutOfBounds { what: "lease", min, max, forever_allowed: false, example: example(LEASE_USUAL, min, max) })
    }

    /// Whether a retention is within its bounds.
    ///
    /// # Errors
    /// The bounds, and a retention that keeps to them.
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

/// What an example shows, unless the bounds leave it out.
const LEASE_USUAL: Duration = Duration::from_secs(30);
const RETENTION_USUAL: Duration = Duration::from_hours(24);

/// The usual duration moved within the bounds. Not `clamp`: that panics where the bounds are the wrong way round.
fn example(usual: Duration, min: Duration, max: Duration) -> Duration {
    usual.max(min).min(max)
}

/// A duration that is shorter or longer than the gateway takes.
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
        let or_forever = if forever_allowed { ", or for ever" } else { "" };
        let or_never = if forever_allowed { " or \"forever\"" } else { "" };
        let (min, max, example) = (Span(min), Span(max), Span(example));
        write!(f, "a {what} is from {min} to {max}{or_forever}, such as \"{example}\"{or_never}")
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Default for Limits {
    /// The limits of the contract, for tests. The gateway takes its own from the configuration alone, whose embedded
    /// defaults a test holds to these.
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
    fn a_lease_keeps_to_its_bounds_both_included() {
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
    fn a_retention_keeps_to_its_bounds_or_is_for_ever() {
        let limits = Limits::default();
        for good in ["1s", "30d", "3650d", "forever"] {
            assert_eq!(limits.check_retention(good.parse().unwrap()), Ok(()), "{good}");
        }
        for bad in ["999ms", "3651d"] {
            let message = limits.check_retention(bad.parse().unwrap()).unwrap_err().to_string();
            assert_eq!(message, "a retention is from 1s to 3650d, or for ever, such as \"1d\" or \"forever\"");
        }
    }

    #[test]
    fn for_ever_can_be_switched_off() {
        let limits = Limits { forever_allowed: false, ..Limits::default() };
        let message = limits.check_retention(Retention::Forever).unwrap_err().to_string();
        assert_eq!(message, "a retention is from 1s to 3650d, such as \"1d\"");
    }

    #[test]
    fn the_example_keeps_to_the_bounds_too() {
        let limits = Limits { lease_max: Span(span("10s")), ..Limits::default() };
        let message = limits.check_lease(span("30s")).unwrap_err().to_string();
        assert_eq!(message, "a lease is from 100ms to 10s, such as \"10s\"");
    }
}
