//! Lines of the metrics of this process, in Prometheus' text format.

/// Factor that makes bounds of buckets whole numbers.
const BOUND_SCALE: f64 = 1e6;

/// Returns the labels and the value of each line of a metric. Labels have no escapes here: names of apps, operations and results.
pub(crate) fn lines<'a>(text: &'a str, metric: &str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| parsed(line.strip_prefix(metric)?.strip_prefix('{')?))
}

/// Returns the labels and the value of a line after its name and brace.
pub(crate) fn parsed(rest: &str) -> Option<(&str, f64)> {
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((labels, value.parse().ok().filter(|value: &f64| value.is_finite())?))
}

/// Returns the value of a label; empty if there is none of this name.
pub(crate) fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let own = labels.split("\",").find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""));
    own.map_or("", |value| value.trim_end_matches('"'))
}

/// Returns the bound of a bucket as a whole number. That of the last one, `+Inf`, is the largest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounds are small and not negative")]
pub(crate) fn bound(labels: &str) -> u64 {
    match label(labels, "le") {
        "+Inf" => u64::MAX,
        bound => bound.parse::<f64>().map_or(u64::MAX, |bound| (bound * BOUND_SCALE).round() as u64),
    }
}

/// Returns the bound of the bucket that this share of the events is in; of the last bucket the bound below it.
#[expect(clippy::cast_precision_loss, reason = "bounds are small")]
pub(crate) fn percentile(buckets: &[(u64, f64)], share: f64) -> Option<f64> {
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let index = buckets.iter().position(|(_, count)| *count >= all * share)?;
    let (bound, _) = buckets[index];
    let bound = if bound == u64::MAX { buckets.get(index.checked_sub(1)?)?.0 } else { bound };
    Some(bound as f64 / BOUND_SCALE)
}
