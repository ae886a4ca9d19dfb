//! The table `[console]` of the configuration.

use axum::http::Uri;
use serde::{Deserialize, Serialize};

use super::find::templates::is_find_template;

/// Table `[console]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleOptions {
    /// Serves the console on the admin listener.
    pub enabled: bool,
    /// Its origin, if it is reachable by a name that is not loopback, such as `https://og-a.ops.example`; empty for none.
    pub origin: String,
    /// Addresses of the logs of your services.
    pub links: ConsoleLinks,
}

/// Table `[console.links]`: addresses with a place for a value. Empty ones are not shown.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleLinks {
    /// Of a request, with `{request_id}`.
    pub request: String,
    /// Of an attempt, with `{attempt_hash}`.
    pub attempt: String,
}

/// A link of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// To the logs of a request.
    Request,
    /// To the logs of an attempt.
    Attempt,
}

impl Link {
    /// All links.
    const ALL: [Self; 2] = [Self::Request, Self::Attempt];

    /// Returns its key in the configuration.
    fn key(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Attempt => "attempt",
        }
    }

    /// Returns the text in its place.
    fn place(self) -> &'static str {
        match self {
            Self::Request => "{request_id}",
            Self::Attempt => "{attempt_hash}",
        }
    }
}

impl ConsoleLinks {
    /// Returns the address of a link for an escaped value, if the configuration has one.
    pub(super) fn address(&self, link: Link, escaped: &str) -> Option<String> {
        let template = self.template(link);
        (!template.is_empty()).then(|| template.replace(link.place(), escaped))
    }

    /// Checks a link.
    ///
    /// # Errors
    /// It is not `http://` or `https://`, or has no place for the value.
    fn check(&self, link: Link) -> Result<(), InvalidLink> {
        let template = self.template(link);
        let has_place = template.matches(link.place()).count() == 1;
        let filled = template.replace(link.place(), "0");
        let uri =
            filled.parse::<Uri>().ok().filter(|uri| uri.authority().is_some_and(|host| !host.as_str().contains('@')));
        let is_web = uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        // The value is escaped for a path or a query, so the host cannot come from it.
        let is_after_host =
            template.split(link.place()).next().is_some_and(|before| before.splitn(4, '/').count() == 4);
        if template.is_empty() || (has_place && is_web && is_after_host) {
            Ok(())
        } else {
            Err(InvalidLink(link.place()))
        }
    }

    fn template(&self, link: Link) -> &str {
        match link {
            Link::Request => &self.request,
            Link::Attempt => &self.attempt,
        }
    }
}

/// Text that is not the address of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a link is http:// or https://, a host, and {0} once, in its path or query: \"https://logs.example/?q={0}\"")]
pub struct InvalidLink(&'static str);

impl ConsoleOptions {
    /// Reports whether this is a template of *Find*: JSON with one place for a text or a number.
    pub fn is_find_template(template: &str) -> bool {
        is_find_template(template)
    }

    /// Checks the origin.
    ///
    /// # Errors
    /// It is not `https://` and a host.
    pub fn check(&self) -> Result<(), InvalidOrigin> {
        if self.origin.is_empty() || self.authority().is_some() { Ok(()) } else { Err(InvalidOrigin) }
    }

    /// Returns the problems of the links, each with its key below `links`.
    pub fn check_links(&self) -> Vec<(&'static str, InvalidLink)> {
        let problem = |link: Link| self.links.check(link).err().map(|problem| (link.key(), problem));
        Link::ALL.into_iter().filter_map(problem).collect()
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
        let check = |origin: &str| {
            ConsoleOptions { enabled: true, origin: origin.to_owned(), links: ConsoleLinks::default() }.check()
        };
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

    #[test]
    fn a_link_has_a_host_and_one_place_after_it() {
        let of = |request: &str| ConsoleLinks { request: request.to_owned(), ..ConsoleLinks::default() };
        for good in ["", "https://logs.example/?q={request_id}", "http://10.0.0.1:5601/app/{request_id}/x?y=%20#z"] {
            assert_eq!(of(good).check(Link::Request), Ok(()), "{good}");
        }
        for bad in [
            "logs.example/{request_id}",
            "javascript:alert({request_id})",
            "data:text/html,{request_id}",
            "https://{request_id}/",
            "https://logs.example?{request_id}",
            "https://u@logs.example/{request_id}",
            "https://logs.example/",
            "https://logs.example/{attempt_hash}",
            "https://logs.example/{request_id}{request_id}",
            "https://logs.example/ {request_id}",
        ] {
            assert!(of(bad).check(Link::Request).is_err(), "{bad}");
        }
        let links = of("https://logs.example/?q={request_id}");
        assert_eq!(links.address(Link::Request, "a%26b").as_deref(), Some("https://logs.example/?q=a%26b"));
        assert_eq!(links.address(Link::Attempt, "a"), None);
    }
}
