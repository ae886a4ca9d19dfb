//! Names that operators give to engines, chains and tokens. They occur in labels, paths and logs.

use super::text::checked_text;

/// A name: `[A-Za-z0-9._-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Box<str>);

/// Error: the text is not a name. It is not repeated, since it may be a misplaced secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name is 1 to 64 letters, digits, `.`, `_` and `-`, such as `primary`")]
pub struct NotAName;

impl Name {
    fn is_valid(text: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_allowed)
    }
}

checked_text!(Name, NotAName, NotAName);

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
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
