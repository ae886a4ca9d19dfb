//! Fields with one of a few words, and an error that lists them.

use std::fmt;

use oncegate_core::claim::Outcome;
use oncegate_core::nearest::nearest;
use oncegate_core::terms::Retention;
use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, Expected, Visitor};

use super::problem::Problem;

/// Deserializes one of a few words. The error lists them.
pub fn one_of<'de, D: Deserializer<'de>, T: Copy>(deserializer: D, words: &[(&str, T)]) -> Result<T, D::Error> {
    deserializer.deserialize_str(OneOf(words))
}

struct OneOf<'a, T>(&'a [(&'a str, T)]);

impl<T: Copy> Visitor<'_> for OneOf<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(|(word, _)| format!("`{word}`")).collect();
        f.write_str(&words.join(" or "))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let found = self.0.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
            let meant = nearest(text, &words).map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
            E::custom(format_args!("expected {}{meant}", &self as &dyn Expected))
        })
    }
}

/// Outcome that a caller or an operator reports.
#[derive(Clone, Copy, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeName {
    /// Done.
    Success,
    /// Certainly not done.
    Failure,
    /// Possibly done.
    Unknown,
}

impl OutcomeName {
    /// Returns the outcome with its result and retention, which only a success may have.
    pub fn with(self, result: Option<Box<str>>, retention: Option<Retention>) -> Result<Outcome, Problem> {
        match self {
            Self::Success => Ok(Outcome::Success { result, retention }),
            _ if result.is_some() || retention.is_some() => {
                Err(Problem::invalid("`result` and `retention` go with the outcome `success` only; leave them out."))
            }
            Self::Failure => Ok(Outcome::Failure),
            Self::Unknown => Ok(Outcome::Unknown),
        }
    }
}

impl<'de> Deserialize<'de> for OutcomeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = [("success", Self::Success), ("failure", Self::Failure), ("unknown", Self::Unknown)];
        one_of(deserializer, &words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_another_word_lists_the_right_ones_and_another_type_is_no_syntax_error() {
        let read = |json: &str| serde_json::from_str::<OutcomeName>(json).err().map(|error| error.to_string());
        assert_eq!(read("\"success\""), None);
        let wrong = read("\"succes\"").unwrap();
        assert!(wrong.starts_with("expected `success` or `failure` or `unknown`; did you mean `success`?"), "{wrong}");
        for json in ["null", "5", "{}", "[\"success\"]"] {
            let error = serde_json::from_str::<OutcomeName>(json).err().unwrap();
            assert!(error.is_data() && error.to_string().contains("expected `success`"), "{json}: {error}");
        }
    }

    #[test]
    fn a_result_and_a_retention_go_with_success_only() {
        let retention = Some(Retention::Forever);
        for name in [OutcomeName::Failure, OutcomeName::Unknown] {
            assert!(name.with(None, None).is_ok());
            assert!(name.with(Some("null".into()), None).is_err() && name.with(None, retention).is_err());
        }
        assert!(OutcomeName::Success.with(Some("1".into()), retention).is_ok());
    }
}
