//! The base of the types of problems: a type is the base and the code.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Code;

/// Longest base.
const BYTES_MAX: usize = 200;

/// Base of the types of problems, such as `https://docs.example/problems/`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProblemBase(Box<str>);

impl ProblemBase {
    /// Returns the base of this text.
    ///
    /// # Errors
    /// It is no absolute URI that a code can follow.
    pub fn new(text: &str) -> Result<Self, InvalidBase> {
        let (scheme, rest) = text.split_once(':').ok_or(InvalidBase)?;
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        let in_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
        let may_follow = rest.ends_with(['/', ':', '#', '=']);
        let is_base = is_scheme && may_follow && text.len() <= BYTES_MAX && rest.bytes().all(in_uri);
        if is_base { Ok(Self(text.into())) } else { Err(InvalidBase) }
    }

    /// Returns the type of a code.
    pub(super) fn type_of(&self, code: Code) -> ProblemType<'_> {
        ProblemType { base: &self.0, code: code.name() }
    }
}

/// Type of a problem: the code after the base.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProblemType<'a> {
    pub(super) base: &'a str,
    pub(super) code: &'static str,
}

impl fmt::Display for ProblemType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base)?;
        f.write_str(self.code)
    }
}

impl Serialize for ProblemType<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Default for ProblemBase {
    fn default() -> Self {
        Self("urn:oncegate:problem:".into())
    }
}

impl<'de> Deserialize<'de> for ProblemBase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Error: the text is no base of types.
#[derive(Debug)]
pub struct InvalidBase;

impl fmt::Display for InvalidBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a base of problem types is a URI that ends with `/`, `:`, `#` or `=`, because the code follows it, such as \
             \"https://docs.example/problems/\"",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_an_absolute_uri_that_a_code_can_follow() {
        for good in ["urn:oncegate:problem:", "https://docs.example/problems/", "https://a.example/?code=", "about:x#"]
        {
            assert!(ProblemBase::new(good).is_ok(), "{good}");
        }
        let long = format!("https://a.example/{}/", "a".repeat(BYTES_MAX));
        for bad in [
            "",
            "problems/",
            "/problems/",
            "https://a.example",
            "https://a.example/a b/",
            "1a:x/",
            ":/",
            "a:\"/",
            &long,
        ] {
            assert!(ProblemBase::new(bad).is_err(), "{bad}");
        }
        assert_eq!(ProblemBase::default().type_of(Code::Duplicate).to_string(), "urn:oncegate:problem:duplicate");
    }
}
