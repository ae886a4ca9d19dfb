//! Names of locks.

use std::sync::Arc;

use crate::text::checked_text;

/// A lock's name within its app: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockName(Arc<str>);

/// Error: the text is not a name of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a lock's name is 1 to 128 of A-Z a-z 0-9 . _ : -, and begins with a letter or a digit, such as `nightly-report`"
)]
pub struct InvalidLockName;

impl LockName {
    fn is_valid(text: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        begins_well && text.len() <= 128 && text.bytes().all(is_allowed)
    }
}

checked_text!(LockName, InvalidLockName, InvalidLockName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_begins_with_a_letter_or_a_digit() {
        for good in ["a", "0", "nightly-report", "a.b_c:d-e", &"x".repeat(128)] {
            assert_eq!(good.parse::<LockName>().unwrap().as_ref(), good);
        }
        for bad in ["", "-a", ":a", "a b", "a/b", "ü", "a{b}", "a\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<LockName>(), Err(InvalidLockName), "{bad:?}");
        }
    }
}
