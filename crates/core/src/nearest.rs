//! "Did you mean …?": the known name that is most like an unknown one.

/// Below this, a suggestion says more about the words than about what was meant.
const LIKENESS_MIN: f64 = 0.75;

/// The known name that is most like `found`, if any is like it at all.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    let likeness = |name: &&str| strsim::jaro_winkler(&found, name);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.filter(|name| likeness(name) >= LIKENESS_MIN).copied()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["contents", "operation", "lease"];
        assert_eq!(nearest("operaton", &known), Some("operation"));
        assert_eq!(nearest("Lease", &known), Some("lease"));
        assert_eq!(nearest("x", &known), None);
        assert_eq!(nearest("operation", &[]), None);
    }
}
