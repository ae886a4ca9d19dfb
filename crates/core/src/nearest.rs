//! "Did you mean …?": the known name that is most similar to an unknown one.

/// Minimum similarity of a suggestion.
const SIMILARITY_MIN: f64 = 0.75;

/// Returns the known name that is most similar to `found`, if one is similar enough. Names that have it as one of their words
/// come first.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&found, name);
    let most_similar = |names: &[&'a str]| names.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let with_word: Vec<&str> = known.iter().copied().filter(|name| has_word(name, &found)).collect();
    most_similar(&with_word)
        .or_else(|| most_similar(known).filter(|name| similarity(name) >= SIMILARITY_MIN && may_be_meant(&found, name)))
}

/// Returns the problem of a URL with an unknown key: the known key that may be meant, else all of them. Shows at most 40
/// characters of the key.
pub fn unknown_key(key: &str, known: &[&str]) -> String {
    let nearest = known.iter().copied().max_by(|a, b| strsim::jaro(key, a).total_cmp(&strsim::jaro(key, b)));
    let nearest = nearest.filter(|name| may_be_meant(key, name));
    let key: String = key.chars().filter(|char| !char.is_control()).take(40).collect();
    match nearest {
        Some(nearest) => format!("it has no key `{key}`; did you mean `{nearest}`?"),
        None => format!("it has no key `{key}`; there are: {}", known.join(", ")),
    }
}

/// Reports whether a name may be meant by an unknown one: both begin with the same letter, or share most letters.
fn may_be_meant(found: &str, name: &str) -> bool {
    let same_start = !found.is_empty() && found.chars().next() == name.chars().next();
    let longest = found.chars().count().max(name.chars().count());
    same_start || 2 * strsim::osa_distance(found, name) < longest
}

/// Reports whether a name has this word: `attempt_nonce` has `nonce`.
fn has_word(name: &str, word: &str) -> bool {
    !word.is_empty() && name.split(['_', '-', '.']).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::{may_be_meant, nearest, unknown_key};

    #[test]
    fn a_typo_is_recognised_and_another_word_is_not() {
        let known = ["contents", "operation", "lease"];
        assert_eq!(nearest("operaton", &known), Some("operation"));
        assert_eq!(nearest("Lease", &known), Some("lease"));
        assert_eq!(nearest("x", &known), None);
        assert_eq!(nearest("operation", &[]), None);
    }

    #[test]
    fn a_name_with_the_word_comes_before_one_that_looks_like_it() {
        let known = ["contents", "attempt_nonce", "lease"];
        assert_eq!(nearest("nonce", &known), Some("attempt_nonce"));
        assert_eq!(nearest("", &["_x"]), None);
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_one_that_may_be_meant_or_with_all() {
        let known = ["prefix", "sentinel_password"];
        assert_eq!(unknown_key("prefx", &known), "it has no key `prefx`; did you mean `prefix`?");
        assert_eq!(unknown_key("db\n", &known), "it has no key `db`; there are: prefix, sentinel_password");
    }

    #[test]
    fn a_name_with_another_beginning_and_other_letters_is_not_meant() {
        assert!(!may_be_meant("tls", "sentinel_password") && !may_be_meant("version", "operations"));
        assert!(may_be_meant("pooller", "pooler") && may_be_meant("isten", "listen") && may_be_meant("cert", "ca"));
        assert!(!may_be_meant("", "ca"));
    }
}
