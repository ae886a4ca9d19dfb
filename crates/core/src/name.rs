//! Names that operators give to engines, chains and tokens. They occur in labels, paths and logs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::text;

/// A name: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Box<str>);

/// Error: the text is not a name. It is not repeated, since it may be a misplaced secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name is 1 to 64 letters, digits, `.`, `_` and `-`, such as `primary`")]
pub struct NotAName;

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=64).contains(&text.len()) && text.bytes().all(is_allowed);
        if is_name { Ok(Self(text.into())) } else { Err(NotAName) }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer, "a string")
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_has_no_special_characters() {
        for good in ["primary", "a", "Redis-1.eu_west", &"x".repeat(64)] {
            let name: Name = good.parse().unwrap();
            assert_eq!((name.as_ref(), name.to_string()), (good, good.to_owned()));
            assert_eq!(String::from(name), good);
        }
        for bad in ["", "two words", "ü", "a/b", "a\n", &"x".repeat(65)] {
            assert_eq!(bad.parse::<Name>(), Err(NotAName), "{bad:?}");
        }
    }
}
