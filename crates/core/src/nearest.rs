//! "Did you mean …?": the known name that is most similar to an unknown one.

/// Minimum similarity of a suggestion.
const SIMILARITY_MIN: f64 = 0.75;

/// Returns the known name that is most similar to `found`, if one is similar enough.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    let similarity = |name: &&str| strsim::jaro_winkler(&found, name);
    let nearest = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    nearest.filter(|name| similarity(name) >= SIMILARITY_MIN).copied()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_typo_is_recognised_and_another_word_is_not() {
        let known = ["contents", "operation", "lease"];
        assert_eq!(nearest("operaton", &known), Some("operation"));
        assert_eq!(nearest("Lease", &known), Some("lease"));
        assert_eq!(nearest("x", &known), None);
        assert_eq!(nearest("operation", &[]), None);
    }
}
