//! Meaning of an upstream's response for the claim, by its status: stored, nothing happened, or unknown.

use std::fmt;

use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A status or a class of them: `201`, `4xx`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusRule {
    /// This status.
    Exact(u16),
    /// All statuses with this first digit.
    Class(u16),
}

/// Meaning of a response for its claim. The names are those that `on_5xx` of a route takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub enum Meaning {
    /// Something may have happened.
    #[serde(rename = "unknown")]
    Unknown,
    /// The operation is done. The response is stored.
    #[serde(rename = "store")]
    Done,
    /// Certainly nothing happened: the key is free again.
    #[serde(rename = "release")]
    NothingHappened,
}

/// Returns the meaning of a status. An exact status beats a class; at the same precision `release` beats `store`.
pub(super) fn meaning(status: StatusCode, store: &[StatusRule], release: &[StatusRule], on_5xx: Meaning) -> Meaning {
    for exact in [true, false] {
        for (rules, meaning) in [(release, Meaning::NothingHappened), (store, Meaning::Done)] {
            if rules.iter().any(|rule| rule.is_exact() == exact && rule.matches(status)) {
                return meaning;
            }
        }
    }
    if status.is_server_error() { on_5xx } else { Meaning::Unknown }
}

impl StatusRule {
    /// Returns these rules, which are known to be valid.
    pub(super) fn list(rules: &[&str]) -> Vec<Self> {
        rules.iter().filter_map(|rule| Self::parse(rule)).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            return class.parse().ok().filter(|class| (2..=5).contains(class)).map(Self::Class);
        }
        text.parse().ok().filter(|status| (200..=599).contains(status)).map(Self::Exact)
    }

    pub(super) fn is_exact(self) -> bool {
        matches!(self, Self::Exact(_))
    }

    fn matches(self, status: StatusCode) -> bool {
        match self {
            Self::Exact(exact) => status.as_u16() == exact,
            Self::Class(class) => status.as_u16() / 100 == class,
        }
    }
}

impl fmt::Display for StatusRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(status) => write!(f, "{status}"),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

impl Serialize for StatusRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StatusRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no status; write one like \"404\", or a class like \"2xx\""))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(status: u16, store: &[&str], release: &[&str], on_5xx: Meaning) -> Meaning {
        let status = StatusCode::from_u16(status).unwrap();
        super::meaning(status, &StatusRule::list(store), &StatusRule::list(release), on_5xx)
    }

    #[test]
    fn an_exact_status_beats_a_class_and_the_rest_is_unknown() {
        let (store, release) = (["2xx", "301", "4xx", "503"], ["409", "429", "307"]);
        for (status, expected) in [
            (200, Meaning::Done),
            (404, Meaning::Done),
            (503, Meaning::Done),
            (429, Meaning::NothingHappened),
            (307, Meaning::NothingHappened),
            (304, Meaning::Unknown),
            (500, Meaning::Unknown),
        ] {
            assert_eq!(meaning(status, &store, &release, Meaning::Unknown), expected, "{status}");
        }
    }

    #[test]
    fn a_server_error_has_the_meaning_of_the_route() {
        for (on_5xx, expected) in
            [("unknown", Meaning::Unknown), ("store", Meaning::Done), ("release", Meaning::NothingHappened)]
        {
            let on_5xx = toml::Value::from(on_5xx).try_into().unwrap();
            assert_eq!(meaning(502, &["2xx"], &[], on_5xx), expected);
        }
    }

    #[test]
    fn a_rule_is_a_status_or_a_class() {
        for wrong in ["", "1xx", "6xx", "xx", "20", "2x", "600", "+2xx", "199", "-1"] {
            assert_eq!(StatusRule::parse(wrong).filter(|_| wrong != "+2xx"), None, "{wrong}");
        }
        assert_eq!(StatusRule::parse("404").unwrap().to_string(), "404");
        assert_eq!(StatusRule::parse("4xx").unwrap().to_string(), "4xx");
    }
}
