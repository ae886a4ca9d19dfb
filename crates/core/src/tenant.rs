//! App keys and operations, checked once on input. Who may use an app key is decided elsewhere.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use super::text::checked_text;

/// The name of a business system that calls the gateway: `[a-z0-9][a-z0-9._-]{0,63}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppKey(Arc<str>);

/// The name of an operation within an app: `[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(Arc<str>);

/// Error: the text is not a name. It is not repeated, since it may be a misplaced secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Not an [`AppKey`].
    #[error(
        "an app key is 1 to 64 characters of a-z, 0-9, `.`, `_` and `-`, \
         the first one a letter or a digit, such as `shop`"
    )]
    AppKey,
    /// Not an [`Operation`].
    #[error(
        "an operation is 1 to 128 characters of A-Z, a-z, 0-9, `.`, `_`, `:`, `/` and `-`, \
         the first one a letter or a digit, such as `order.submit`"
    )]
    Operation,
}

impl AppKey {
    const LENGTH_MAX: usize = 64;

    fn is_valid(text: &str) -> bool {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        is_name(text, Self::LENGTH_MAX, alphanumeric, b"._-")
    }
}

impl Operation {
    /// Prefix that is reserved for gateways. Callers cannot use it.
    const GATEWAY_PREFIX: &str = "oncegate:";

    /// Prefix of the operations of the proxy's routes. Callers of the API cannot use it.
    pub const PROXY_PREFIX: &str = "proxy:";

    const LENGTH_MAX: usize = 128;

    /// Returns the prefix of this operation if callers of the API cannot use it.
    pub fn reserved_prefix(&self) -> Option<&'static str> {
        [Self::GATEWAY_PREFIX, Self::PROXY_PREFIX].into_iter().find(|prefix| self.0.starts_with(prefix))
    }

    fn is_valid(text: &str) -> bool {
        is_name(text, Self::LENGTH_MAX, |byte| byte.is_ascii_alphanumeric(), b"._:/-")
    }
}

impl Default for Operation {
    /// Returns the operation of callers that name none: `default`.
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

/// Checks a name. It cannot contain a newline, which separates the parts of a global ID.
fn is_name(text: &str, length_max: usize, alphanumeric: fn(u8) -> bool, marks: &[u8]) -> bool {
    let mut bytes = text.bytes();
    text.len() <= length_max
        && bytes.next().is_some_and(alphanumeric)
        && bytes.all(|byte| alphanumeric(byte) || marks.contains(&byte))
}

checked_text!(AppKey, InvalidName, InvalidName::AppKey);
checked_text!(Operation, InvalidName, InvalidName::Operation);

/// Implements the other traits of both names: conversion without a method, lookup by text, and debugging as text.
macro_rules! name {
    ($name:ident) => {
        impl TryFrom<&str> for $name {
            type Error = InvalidName;

            fn try_from(text: &str) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(AppKey);
name!(Operation);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn app_keys_have_a_strict_grammar() {
        let longest = "a".repeat(64);
        for good in ["shop", "0", "a-very.long_app-key", "a..--__", &longest] {
            assert_eq!(AppKey::try_from(good).map(|key| key.to_string()), Ok(good.to_owned()));
        }
        let too_long = "a".repeat(65);
        let bad = ["", "Shop", ".shop", "-shop", "_shop", "a b", "a\n", "a:b", "a/b", "käse", &too_long];
        for bad in bad {
            assert_eq!(bad.parse::<AppKey>(), Err(InvalidName::AppKey), "{bad:?}");
        }
    }

    #[test]
    fn operations_have_a_strict_grammar() {
        let longest = "Z".repeat(128);
        for good in ["order.submit", "pay/refund:v2", "A", "7-eleven_", &longest] {
            assert_eq!(Operation::try_from(good).map(|it| it.to_string()), Ok(good.to_owned()));
        }
        let too_long = "Z".repeat(129);
        for bad in ["", "/a", ":a", "a b", "a\n", "a\0", "naïve", "a+b", &too_long] {
            assert_eq!(bad.parse::<Operation>(), Err(InvalidName::Operation), "{bad:?}");
        }
    }

    #[test]
    fn operations_of_gateways_and_of_the_proxy_are_reserved() {
        for (text, reserved) in [
            ("oncegate:x", Some("oncegate:")),
            ("proxy:orders", Some("proxy:")),
            ("oncegate.x", None),
            ("my:oncegate:x", None),
        ] {
            assert_eq!(text.parse::<Operation>().map(|operation| operation.reserved_prefix()), Ok(reserved), "{text}");
        }
    }

    #[test]
    fn the_default_operation_is_an_operation() {
        assert_eq!("default".parse(), Ok(Operation::default()));
    }

    #[test]
    fn deserialization_checks_a_name_and_its_error_states_the_rule() -> Result<(), serde_json::Error> {
        let key: AppKey = serde_json::from_str("\"shop\"")?;
        assert_eq!(serde_json::to_string(&key)?, "\"shop\"");

        let apps: HashMap<AppKey, u8> = serde_json::from_str(r#"{"shop": 1}"#)?;
        assert_eq!(apps.get("shop"), Some(&1));

        let refused = serde_json::from_str::<Operation>("\"a b\"").map_err(|e| e.to_string());
        let message = refused.expect_err("a blank is no part of an operation");
        assert!(message.contains("such as `order.submit`"), "{message}");
        assert!(!message.contains("a b"), "{message}");
        Ok(())
    }
}
