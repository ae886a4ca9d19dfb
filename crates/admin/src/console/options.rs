//! The table `[console]` of the configuration.

use axum::http::Uri;
use serde::{Deserialize, Serialize};

/// Table `[console]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleOptions {
    /// Serves the console on the admin listener.
    pub enabled: bool,
    /// Its origin, if it is reachable by a name that is not loopback, such as `https://og-a.ops.example`; empty for none.
    pub origin: String,
}

impl ConsoleOptions {
    /// Checks the origin.
    ///
    /// # Errors
    /// It is not `https://` and a host.
    pub fn check(&self) -> Result<(), InvalidOrigin> {
        if self.origin.is_empty() || self.authority().is_some() { Ok(()) } else { Err(InvalidOrigin) }
    }

    /// Returns the host of the origin, with its port if that is not 443.
    pub(super) fn authority(&self) -> Option<&str> {
        let authority = self.origin.strip_prefix("https://")?;
        let uri: Uri = self.origin.parse().ok()?;
        let is_whole = uri.authority().is_some_and(|parsed| parsed.as_str() == authority && !authority.contains('@'));
        let is_port = uri.host() == Some(authority) || uri.port_u16().is_some();
        let is_lower = !authority.bytes().any(|byte| byte.is_ascii_uppercase());
        (is_whole && is_port && is_lower && !authority.ends_with(":443") && !authority.ends_with(':'))
            .then_some(authority)
    }
}

/// Text that is not the origin of a console.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the console's origin is https:// and a host in small letters, with a port if that is not 443, and no path: \
     \"https://og-a.ops.example\""
)]
pub struct InvalidOrigin;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_https_and_a_host() {
        let check = |origin: &str| ConsoleOptions { enabled: true, origin: origin.to_owned() }.check();
        for good in ["", "https://og-a.ops.example", "https://og.example:8443", "https://10.0.0.1", "https://[::2]:9"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "og.example",
            "http://og.example",
            "https://",
            "https://og.example/",
            "https://og.example/x",
            "https://og.example?x",
            "https://u@og.example",
            "https://og.example:443",
            "https://og.example:",
            "https://OG.example",
            "https://a b",
            "https://og.example:x",
        ] {
            assert_eq!(check(bad), Err(InvalidOrigin), "{bad}");
        }
    }
}
