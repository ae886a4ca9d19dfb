//! How often the quotas of an app have refused calls since the start of this process, from its metrics.

use std::collections::BTreeMap;

use crate::exposition::{label, lines};

/// Returns the number of refused requests and batch items of an app by quota, from the text of the metrics.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
pub fn refusals(text: &str, app: &str) -> BTreeMap<String, u64> {
    let of_app = lines(text, "oncegate_quota_exceeded_total").filter(|(labels, _)| label(labels, "app") == app);
    of_app.map(|(labels, value)| (label(labels, "quota").to_owned(), value as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_quota() {
        let text = "oncegate_quota_exceeded_total{app=\"shop\",quota=\"requests_per_second\"} 7\n\
                    oncegate_quota_exceeded_total{app=\"bank\",quota=\"requests_in_flight\"} 3\n";
        assert_eq!(refusals(text, "shop"), BTreeMap::from([("requests_per_second".to_owned(), 7)]));
        assert!(refusals(text, "other").is_empty());
    }
}
