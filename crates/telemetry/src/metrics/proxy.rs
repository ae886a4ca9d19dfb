//! Metrics of the proxy, by route. A key is never a label.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use super::{
    Counters, PROXY_BOUNDS, PROXY_OFF_ROUTE, PROXY_PRIVATE, PROXY_REQUESTS, PROXY_STORED_BYTES, PROXY_TOMBSTONES,
    PROXY_UPSTREAM_DURATION,
};
use crate::metrics::labels;

labels! {
    /// Answer to a request.
    ProxyResult {
        Forwarded = "forwarded",
        Unprotected = "unprotected",
        Replayed = "replayed",
        InProgress = "in_progress",
        Unknown = "unknown",
        NotStored = "not_stored",
        Mismatch = "mismatch",
        NoKey = "no_key",
        Refused = "refused",
        Unavailable = "unavailable",
    }
}

labels! {
    /// A bound on what requests and responses on their way take.
    Bound {
        RequestBytes = "request_bytes",
        Exchanges = "exchanges",
        WebSockets = "websockets",
        BodyRate = "body_rate",
    }
}

/// Counts how often a bound was reached.
#[derive(Clone)]
pub struct BoundMetrics(Counter);

impl BoundMetrics {
    /// Returns the metrics of a bound.
    pub fn new(bound: Bound) -> Self {
        Self(counter!(PROXY_BOUNDS, "bound" => Bound::LABELS[bound as usize]))
    }

    /// Counts a request or response that the bound has refused or cut.
    pub fn reached(&self) {
        self.0.increment(1);
    }
}

labels! {
    /// Reason why no route takes a request in its present form.
    OffRoute {
        AmbiguousTarget = "ambiguous_target",
        NoRouteForKey = "no_route_for_key",
        NoRoute = "no_route",
    }
}

/// Counts a request that is refused for this reason, or forwarded without protection in spite of it.
pub fn off_route(reason: OffRoute, is_forwarded: bool) {
    let result = if is_forwarded { "forwarded" } else { "refused" };
    counter!(PROXY_OFF_ROUTE, "reason" => reason.label(), "result" => result).increment(1);
}

/// Metrics of a route.
pub struct RouteMetrics {
    route: String,
    requests: Counters<{ ProxyResult::LABELS.len() }>,
    upstream_duration: Histogram,
    stored_bytes: Counter,
    tombstones: Counter,
    private: Counter,
}

impl RouteMetrics {
    /// Returns the metrics of the route of this name.
    pub fn new(route: &str) -> Self {
        let route = route.to_owned();
        Self {
            requests: Counters::new(),
            upstream_duration: histogram!(PROXY_UPSTREAM_DURATION, "route" => route.clone()),
            stored_bytes: counter!(PROXY_STORED_BYTES, "route" => route.clone()),
            tombstones: counter!(PROXY_TOMBSTONES, "route" => route.clone()),
            private: counter!(PROXY_PRIVATE, "route" => route.clone()),
            route,
        }
    }

    /// Counts a request by its answer.
    pub fn answered(&self, answered: ProxyResult) {
        self.requests.increment(answered as usize, || {
            let result = ProxyResult::LABELS[answered as usize];
            counter!(PROXY_REQUESTS, "route" => self.route.clone(), "result" => result)
        });
    }

    /// Measures the time until an upstream has answered.
    pub fn upstream_answered(&self, took: Duration) {
        self.upstream_duration.record(took.as_secs_f64());
    }

    /// Counts a stored response of this many bytes, or the tombstone of a response that was not stored.
    pub fn stored(&self, with_body: bool, bytes: usize) {
        self.stored_bytes.increment(bytes as u64);
        self.tombstones.increment(u64::from(!with_body));
    }

    /// Counts a response that was not stored because of `Cache-Control: no-store`.
    pub fn private(&self) {
        self.private.increment(1);
    }
}
