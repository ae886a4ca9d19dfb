//! Values that the history reads from the metrics of this process, in Prometheus' text format.

use std::collections::BTreeMap;

use crate::exposition::{bound, label, parsed, percentile};
use crate::operations::ResultGroup;

/// Counters at one time.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Totals {
    /// By name of the series.
    counts: BTreeMap<String, f64>,
    /// Counts of claims by the highest duration in seconds, for all apps (`""`) and each one.
    buckets: BTreeMap<String, BTreeMap<u64, f64>>,
}

impl Totals {
    /// Returns the counters in this text.
    pub(super) fn of(text: &str) -> Self {
        let mut totals = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("oncegate_claims_total{") {
                totals.add_claims(rest);
            } else if let Some(rest) = line.strip_prefix("oncegate_degraded_answers_total{") {
                let Some((labels, value)) = parsed(rest) else { continue };
                totals.add("degraded".to_owned(), value);
                totals.add(format!("{}/degraded", label(labels, "app")), value);
            } else if let Some(rest) = line.strip_prefix("oncegate_claim_duration_seconds_bucket{") {
                totals.add_bucket(rest);
            }
        }
        totals
    }

    fn add_claims(&mut self, rest: &str) {
        let Some((labels, value)) = parsed(rest) else { return };
        let group = ResultGroup::of(label(labels, "result"));
        self.add(group.name().to_owned(), value);
        self.add(group.series(label(labels, "app"), label(labels, "operation")), value);
    }

    fn add(&mut self, name: String, value: f64) {
        *self.counts.entry(name).or_default() += value;
    }

    fn add_bucket(&mut self, rest: &str) {
        let Some((labels, value)) = parsed(rest) else { return };
        for app in ["", label(labels, "app")] {
            *self.buckets.entry(app.to_owned()).or_default().entry(bound(labels)).or_default() += value;
        }
    }

    /// Returns the rate of each counter since earlier ones, and the latencies. Counters that were set back have none.
    pub(super) fn since(&self, previous: &Self, seconds: f64) -> Vec<(String, f64)> {
        let rate = |(name, now): (&String, &f64)| {
            let before = previous.counts.get(name).copied().unwrap_or_default();
            (*now >= before).then(|| (name.clone(), (now - before) / seconds))
        };
        let mut found: Vec<_> = self.counts.iter().filter_map(rate).collect();
        for (app, buckets) in &self.buckets {
            let before = previous.buckets.get(app);
            let new: Vec<(u64, f64)> = buckets
                .iter()
                .map(|(bound, count)| {
                    (*bound, count - before.and_then(|before| before.get(bound)).copied().unwrap_or_default())
                })
                .collect();
            for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
                let name = if app.is_empty() { name.to_owned() } else { format!("{app}/{name}") };
                found.extend(percentile(&new, share).map(|value| (name, value)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_grouped_by_answer_and_by_operation() {
        let text = "oncegate_claims_total{app=\"shop\",operation=\"a:b/c\",result=\"repeated\"} 3\n\
                    oncegate_claims_total{app=\"bank\",operation=\"a\",result=\"granted\"} 4\n\
                    oncegate_claims_total{app=\"bank\",operation=\"a\",result=\"store_unavailable\"} 5\n\
                    oncegate_degraded_answers_total{app=\"bank\",policy=\"fail_open\"} 6\nbroken{\noncegate_claims_total{x} y\n";
        let totals = Totals::of(text);
        let rates = totals.since(&Totals::default(), 1.0);
        let of = |name: &str| rates.iter().find(|(known, _)| known == name).map(|(_, rate)| *rate);
        assert_eq!((of("granted"), of("shop/a:b/c/granted"), of("bank/a/granted")), (Some(7.0), Some(3.0), Some(4.0)));
        assert_eq!((of("refused"), of("degraded"), of("bank/degraded")), (Some(5.0), Some(6.0), Some(6.0)));
    }

    #[test]
    fn latencies_come_from_the_buckets_of_the_interval() {
        let text = |fast: u32, slow: u32| {
            let line = |bound: &str, count: u32| {
                format!("oncegate_claim_duration_seconds_bucket{{app=\"shop\",le=\"{bound}\"}} {count}\n")
            };
            line("0.0001", 0) + &line("0.001", fast) + &line("1", fast + slow) + &line("+Inf", fast + slow)
        };
        let (first, second) = (Totals::of(&text(1000, 0)), Totals::of(&text(1090, 10)));
        let rates = second.since(&first, 10.0);
        let of = |name: &str| rates.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!((of("p50"), of("p99"), of("shop/p99")), (Some(0.001), Some(1.0), Some(1.0)));
        assert_eq!(second.since(&second, 10.0), [], "no call, no latency");
    }
}
