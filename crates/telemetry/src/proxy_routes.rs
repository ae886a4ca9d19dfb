//! What each route of the proxy has answered since the start of this process, from its metrics.

use std::collections::BTreeMap;

use crate::exposition::{bound, label, lines, percentile};

/// Histogram of the time until an upstream answered.
const UPSTREAM_DURATION: &str = "oncegate_proxy_upstream_duration_seconds";

/// Answers of a route, since the start of this process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RouteTotals {
    /// Number of requests by their answer.
    pub answers: BTreeMap<String, u64>,
    /// Bytes of responses that were stored.
    pub stored_bytes: u64,
    /// Responses that were not stored, because they are too long or private.
    pub tombstones: u64,
    /// 99 of 100 protected requests were answered by their upstream within this time.
    pub upstream_p99_seconds: Option<f64>,
}

/// Returns the totals by route, from the text of the metrics.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
pub fn totals(text: &str) -> BTreeMap<String, RouteTotals> {
    let mut found: BTreeMap<String, RouteTotals> = BTreeMap::new();
    let mut add = |metric: &str, change: fn(&mut RouteTotals, &str, u64)| {
        for (labels, value) in lines(text, metric) {
            let own = found.entry(label(labels, "route").to_owned()).or_default();
            change(own, labels, value as u64);
        }
    };
    add("oncegate_proxy_requests_total", |own, labels, value| {
        *own.answers.entry(label(labels, "result").to_owned()).or_default() += value;
    });
    add("oncegate_proxy_stored_bytes_total", |own, _, value| own.stored_bytes += value);
    add("oncegate_proxy_tombstones_total", |own, _, value| own.tombstones += value);
    let mut buckets: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
    for (labels, value) in lines(text, &format!("{UPSTREAM_DURATION}_bucket")) {
        buckets.entry(label(labels, "route").to_owned()).or_default().push((bound(labels), value));
    }
    for (route, mut buckets) in buckets {
        buckets.sort_unstable_by_key(|(bound, _)| *bound);
        found.entry(route).or_default().upstream_p99_seconds = percentile(&buckets, 0.99);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_route() {
        let text = "oncegate_proxy_requests_total{route=\"orders\",result=\"forwarded\"} 7\n\
                    oncegate_proxy_requests_total{route=\"orders\",result=\"replayed\"} 3\n\
                    oncegate_proxy_requests_total{route=\"pay\",result=\"refused\"} 1\n\
                    oncegate_proxy_stored_bytes_total{route=\"orders\"} 4096\n\
                    oncegate_proxy_tombstones_total{route=\"orders\"} 2\n";
        let bucket = |bound: &str, count: u32| {
            format!("{UPSTREAM_DURATION}_bucket{{route=\"orders\",le=\"{bound}\"}} {count}\n")
        };
        let buckets = bucket("0.1", 6) + &bucket("0.5", 7) + &bucket("+Inf", 7);
        let found = totals(&(text.to_owned() + &buckets));
        let orders = &found["orders"];
        assert_eq!((orders.answers["forwarded"], orders.answers["replayed"]), (7, 3));
        assert_eq!((orders.stored_bytes, orders.tombstones, orders.upstream_p99_seconds), (4096, 2, Some(0.5)));
        assert_eq!((found["pay"].answers["refused"], found["pay"].upstream_p99_seconds), (1, None));
    }
}
