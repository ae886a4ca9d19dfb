//! The URL of an etcd engine.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

pub use oncegate_coordination::url::InvalidUrl;
use oncegate_coordination::url::{self, Address, Dialect};
use oncegate_core::terms::Span;

/// The forms of a URL.
pub(super) const FORM: &str = "etcd://[USER:PASSWORD@]HOST:2379,HOST:2379,HOST:2379[/PREFIX]";

const PREFIX: &str = "/oncegate";
const PORT: u16 = 2379;
const COMPACT: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(24);

/// The URLs of the engine.
pub(super) static DIALECT: Dialect =
    Dialect { engine: "an etcd engine", scheme: "etcd", form: FORM, port: PORT, own_keys: &["grant_until", "compact"] };

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Url {
    /// Part that all engines of this kind have.
    pub(super) common: url::Url,
    /// Beginning of all keys, without a slash at its end.
    pub(super) prefix: String,
    /// Grants end at this many bytes in use, if the URL names a number.
    pub(super) grant_until: Option<u64>,
    /// Gateways compact history that is older than this, if the URL names a time.
    pub(super) compact: Option<Duration>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let mut common = url::Url::parse(text, &DIALECT)?;
        let path = Some(std::mem::take(&mut common.path)).filter(|path| !path.is_empty());
        let prefix = match (path, common.prefix.take()) {
            (Some(_), Some(_)) => return Err(DIALECT.error("write the prefix once: as its path, or as ?prefix=")),
            (path, prefix) => path.or(prefix).unwrap_or_else(|| PREFIX.into()),
        };
        let (mut grant_until, mut compact) = (None, None);
        for (key, value) in &common.own {
            if *key == "compact" {
                let span = value.parse::<Span>().ok().map(|Span(span)| span).filter(|span| COMPACT.contains(span));
                let shape = || DIALECT.error("compact is 10s to 24h, such as compact=1m: older history is removed");
                compact = Some(span.ok_or_else(shape)?);
            } else {
                let shape = || DIALECT.error("grant_until is a size from 1MiB on, such as grant_until=1600MiB or 6GiB");
                grant_until = Some(url::size(value).ok_or_else(shape)?);
            }
        }
        Ok(Self { common, prefix, grant_until, compact })
    }
}

/// Parses the address of a member as the cluster lists it: `http://host:port`.
pub(super) fn listed(url: &str) -> Option<Address> {
    let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    Address::parse(address.trim_end_matches('/'), PORT)
}

impl fmt::Display for Url {
    /// Writes hosts, ports and prefix, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.common.addresses(), self.prefix)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let url = Url::parse("etcd://me:s%23cret@e1,e2:2380,[::1]:2379/shop/gate?tick=50ms&members=fixed").unwrap();
        assert_eq!(url.to_string(), "e1:2379,e2:2380,[::1]:2379/shop/gate");
        let credentials = url.common.credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("me", "s#cret"));
        assert_eq!((url.common.tick, url.common.are_members_fixed), (Duration::from_millis(50), true));
        assert_eq!(url.common.response_timeout, None);
        let url = Url::parse("etcd://e1?response_timeout=2s").unwrap();
        assert_eq!(url.common.response_timeout, Some(Duration::from_secs(2)));
        let url = Url::parse("etcds://e1?ca=a.pem&server_name=etcd.internal&prefix=x").unwrap();
        assert_eq!(
            (url.prefix.as_str(), url.common.tick, url.common.are_members_fixed),
            ("/x", Duration::from_millis(100), false)
        );
        assert_eq!(url.common.tls.unwrap().server_name.as_deref(), Some("etcd.internal"));
        assert_eq!(Url::parse("etcd://e1/").unwrap().prefix, "/oncegate");
        let grant_until = |size| Url::parse(&format!("etcd://e1?grant_until={size}")).unwrap().grant_until;
        assert_eq!((grant_until("16MiB"), grant_until("6GiB")), (Some(16 << 20), Some(6 << 30)));
        let compact = |span| Url::parse(&format!("etcd://e1?grant_until=6GiB&compact={span}")).unwrap().compact;
        assert_eq!((compact("1m"), compact("24h")), (Some(Duration::from_mins(1)), Some(Duration::from_hours(24))));
        assert_eq!(Url::parse("etcd://e1").unwrap().compact, None);
    }

    #[test]
    fn errors_say_what_to_write_and_do_not_repeat_the_url() {
        for (url, hint) in [
            ("", "expected etcd://"),
            ("http://hunter2", "expected etcd://"),
            ("etcd://", "expected etcd://"),
            ("etcd://u:hunter2@", "expected etcd://"),
            ("etcd://hunter2@e1", "expected etcd://"),
            ("etcd://:hunter2@e1", "no user"),
            ("etcd://u:hunter2@e1:port", "expected etcd://"),
            ("etcd://u:hunter2@e1:0", "expected etcd://"),
            ("etcd://u:hunter2@e1,", "expected etcd://"),
            ("etcd://u:hunter2@e1,e1:2379", "e1:2379 twice"),
            ("etcd://u:hunter2@e1#x", "%23"),
            ("etcd://u:hunter2@e1/a b", "a prefix is"),
            ("etcd://u:hunter2@e1/a?prefix=b", "write the prefix once"),
            ("etcd://u:hunter2@e1?tick=1s", "50ms to 150ms"),
            ("etcd://u:hunter2@e1?response_timeout=50ms", "100ms to 10s"),
            ("etcd://u:hunter2@e1?response_timeout=11s", "100ms to 10s"),
            ("etcd://u:hunter2@e1?members=all", "`fixed`"),
            ("etcd://u:hunter2@e1?grant_until=80%25", "1600MiB"),
            ("etcd://u:hunter2@e1?grant_until=+1GiB", "1600MiB"),
            ("etcd://u:hunter2@e1?compact=9s", "10s to 24h"),
            ("etcd://u:hunter2@e1?compact=25h", "10s to 24h"),
            ("etcd://u:hunter2@e1?compact=true", "compact=1m"),
            ("etcd://u:hunter2@e1?compact=", "compact=1m"),
            ("etcd://u:hunter2@e1?ca=a.pem", "for etcds://"),
            ("etcds://u:hunter2@e1?client_key=a", "go together"),
            ("etcd://u:hunter2@e1?tik=50ms", "did you mean `tick`"),
            ("etcd://u:hunter2@e1?tls=true", "the scheme asks for TLS: write etcds://"),
        ] {
            let error = Url::parse(url).expect_err(url).to_string();
            assert!(error.contains(hint), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = Url::parse("etcd://me:hunter2@e1").unwrap();
        assert!(!format!("{url:?} {url}").contains("hunter2"));
    }

    #[test]
    fn a_listed_address_is_read() {
        let listed = |url| listed(url).map(|address| address.to_string());
        assert_eq!(listed("http://127.0.0.1:2379"), Some("127.0.0.1:2379".into()));
        assert_eq!(listed("https://e1.internal:2379/"), Some("e1.internal:2379".into()));
        assert_eq!((listed("unix://x"), listed("http://")), (None, None));
    }
}
