//! The name that a caller gives itself, for operators: a pod, a host, a process. Nothing is decided by it.

use std::sync::Arc;

use super::text::checked_text;

/// The name of a caller: `[A-Za-z0-9._:/-]{1,64}`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Caller(Arc<str>);

/// Error: the text is not the name of a caller. It is not repeated, since it may be a misplaced secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name of a caller is 1 to 64 letters, digits, `.`, `_`, `:`, `/` and `-`, such as `pod/shop-7c9`")]
pub struct NotACaller;

impl Caller {
    /// Most bytes of a name.
    pub const BYTES_MAX: usize = 64;

    fn is_valid(text: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        (1..=Self::BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
    }
}

checked_text!(Caller, NotACaller, NotACaller);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_short_and_has_no_blank() {
        for good in ["pod/shop-7c9", "a", "host_1.eu:4242", &"x".repeat(64)] {
            assert_eq!(good.parse::<Caller>().unwrap().as_ref(), good);
        }
        for bad in ["", "two words", "ü", "a\n", "a=b", &"x".repeat(65)] {
            assert_eq!(bad.parse::<Caller>(), Err(NotACaller), "{bad:?}");
        }
    }
}
