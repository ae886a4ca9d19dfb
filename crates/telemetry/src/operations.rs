//! What each operation has been answered since the start of this process, from its metrics.

use std::collections::BTreeMap;

use crate::exposition::{label, lines};

/// Answers to the claim calls of an operation, since the start of this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OperationTotals {
    /// Granted, repeated with their nonce, or taken over.
    pub granted: u64,
    /// Repeats while in progress, after a success, and while unknown.
    pub duplicates: [u64; 3],
    /// Repeats with other contents, or another fingerprint.
    pub mismatches: u64,
    /// Refused because of a store.
    pub refused: u64,
    /// Let through in observe mode, which enforcing would have stopped.
    pub observed: u64,
    /// Of these, duplicates that have reported success: they ran twice.
    pub ran_twice: u64,
}

/// A group of results of claim calls. The history has a series of each operation for each group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultGroup {
    /// Granted, repeated with their nonce, or taken over.
    Granted,
    /// Repeats.
    Duplicate,
    /// Repeats with other contents, or another fingerprint.
    Mismatch,
    /// Refused because of a store.
    Refused,
    /// Let through in observe mode.
    Observed,
}

impl ResultGroup {
    /// All groups.
    pub const ALL: [Self; 5] = [Self::Granted, Self::Duplicate, Self::Mismatch, Self::Refused, Self::Observed];

    /// Returns the name at the end of its series.
    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Duplicate => "duplicate",
            Self::Mismatch => "mismatch",
            Self::Refused => "refused",
            Self::Observed => "observed",
        }
    }

    /// Returns the name of its series of an operation.
    pub fn series(self, app: &str, operation: &str) -> String {
        format!("{app}/{operation}/{}", self.name())
    }

    /// Returns the group of a result, by its label.
    pub(crate) fn of(result: &str) -> Self {
        match result {
            "granted" | "repeated" | "taken_over" => Self::Granted,
            result if result.starts_with("duplicate") => Self::Duplicate,
            result if result.starts_with("observed") => Self::Observed,
            result if result.ends_with("mismatch") => Self::Mismatch,
            _ => Self::Refused,
        }
    }
}

impl OperationTotals {
    /// Returns the number of claim calls.
    pub fn claims(&self) -> u64 {
        self.granted + self.duplicates.iter().sum::<u64>() + self.mismatches + self.refused + self.observed
    }
}

/// Returns the totals by app and operation, from the text of the metrics. Operations without a label of their own share `other`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
pub fn totals(text: &str) -> BTreeMap<(String, String), OperationTotals> {
    let mut found: BTreeMap<(String, String), OperationTotals> = BTreeMap::new();
    let key = |labels| (label(labels, "app").to_owned(), label(labels, "operation").to_owned());
    for (labels, value) in lines(text, "oncegate_claims_total") {
        let own = found.entry(key(labels)).or_default();
        let result = label(labels, "result");
        let count = match ResultGroup::of(result) {
            ResultGroup::Granted => &mut own.granted,
            ResultGroup::Duplicate => match result {
                "duplicate_in_progress" => &mut own.duplicates[0],
                "duplicate_succeeded" => &mut own.duplicates[1],
                _ => &mut own.duplicates[2],
            },
            ResultGroup::Mismatch => &mut own.mismatches,
            ResultGroup::Refused => &mut own.refused,
            ResultGroup::Observed => &mut own.observed,
        };
        *count += value as u64;
    }
    for (labels, value) in lines(text, "oncegate_observed_outcomes_total") {
        if label(labels, "outcome") == "success" && label(labels, "would_be").starts_with("duplicate") {
            found.entry(key(labels)).or_default().ran_twice += value as u64;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_operation() {
        let line = |operation: &str, result: &str, count: u32| {
            format!("oncegate_claims_total{{app=\"shop\",operation=\"{operation}\",result=\"{result}\"}} {count}\n")
        };
        let results = [
            ("granted", 1),
            ("repeated", 2),
            ("taken_over", 4),
            ("duplicate_in_progress", 8),
            ("duplicate_succeeded", 16),
            ("duplicate_unknown", 32),
            ("contents_mismatch", 64),
            ("store_full", 128),
            ("observed_duplicate", 256),
        ];
        let text: String = results.iter().map(|(result, count)| line("a", result, *count)).collect();
        let text = text
            + &line("b", "granted", 3)
            + "oncegate_claims_total 7\noncegate_observed_outcomes_total{app=\"shop\",operation=\"a\",outcome=\"success\",would_be=\"duplicate_succeeded\"} 5\n\
               oncegate_observed_outcomes_total{app=\"shop\",operation=\"a\",outcome=\"failure\",would_be=\"duplicate_succeeded\"} 9\n";
        let found = totals(&text);
        let of = |operation: &str| &found[&("shop".to_owned(), operation.to_owned())];
        let expected = OperationTotals {
            granted: 7,
            duplicates: [8, 16, 32],
            mismatches: 64,
            refused: 128,
            observed: 256,
            ran_twice: 5,
        };
        assert_eq!((of("a"), of("a").claims()), (&expected, 511));
        assert_eq!((of("b").granted, of("b").claims(), found.len()), (3, 3, 2));
    }
}
