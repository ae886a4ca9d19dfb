//! The URL of an etcd engine, parsed. No message of this module repeats a URL: it may hold a password.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use oncegate_core::terms::Span;
use percent_encoding::percent_decode_str;

use super::tls::Certificates;

/// The forms of a URL.
pub(super) const FORM: &str = "etcd://[USER:PASSWORD@]HOST:2379,HOST:2379,HOST:2379[/PREFIX]";

const PORT: u16 = 2379;
const PREFIX: &str = "/oncegate";
const PREFIX_BYTES_MAX: usize = 128;
const MEMBERS_MAX: usize = 15;
const TICK: Duration = Duration::from_millis(100);
const TICKS: RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_millis(150);
const KEYS: [&str; 8] =
    ["prefix", "tick", "members", "grant_until", "ca", "client_certificate", "client_key", "server_name"];

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Url {
    /// Members of the cluster, in the order of the URL.
    pub(super) members: Vec<Address>,
    pub(super) credentials: Option<Credentials>,
    /// Beginning of all keys, without a slash at its end.
    pub(super) prefix: String,
    /// How often the clock is advanced.
    pub(super) tick: Duration,
    /// No other members are used than those of the URL.
    pub(super) are_members_fixed: bool,
    /// Grants end at this many bytes in use, if the URL names a number.
    pub(super) grant_until: Option<u64>,
    /// `Some` for TLS.
    pub(super) tls: Option<Certificates>,
}

/// A user and its password.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

/// Host and port of a member.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Address {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

/// What is wrong with a URL.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

impl InvalidUrl {
    pub(super) fn new(why: impl fmt::Display) -> Self {
        Self(format!("the URL of an etcd engine is wrong: {why}"))
    }
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let (rest, is_tls) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(shape()),
        };
        if rest.contains('#') {
            return Err(InvalidUrl::new("it must not have a part after `#`; a `#` in the password is written %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, hosts) = servers.rsplit_once('@').map_or((None, servers), |(user, hosts)| (Some(user), hosts));
        let mut url = Self {
            members: members(hosts)?,
            credentials: user.map(Credentials::parse).transpose()?,
            prefix: PREFIX.into(),
            tick: TICK,
            are_members_fixed: false,
            grant_until: None,
            tls: is_tls.then(Certificates::default),
        };
        let path = path.trim_end_matches('/');
        if !path.is_empty() {
            url.prefix = prefix(path)?;
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            url.set(key, &decode(value)?, !path.is_empty())?;
        }
        if let Some(tls) = &url.tls {
            tls.check()?;
        }
        Ok(url)
    }

    /// Takes over one key of the query.
    fn set(&mut self, key: &str, value: &str, has_path: bool) -> Result<(), InvalidUrl> {
        match key {
            "prefix" if has_path => return Err(InvalidUrl::new("write the prefix once: as its path, or as ?prefix=")),
            "prefix" => self.prefix = prefix(value)?,
            "tick" => {
                let tick = value.parse::<Span>().ok().map(|Span(tick)| tick).filter(|tick| TICKS.contains(tick));
                self.tick = tick.ok_or_else(|| InvalidUrl::new("tick is 50ms to 150ms, such as tick=100ms"))?;
            }
            "members" if value == "fixed" => self.are_members_fixed = true,
            "members" => return Err(InvalidUrl::new("members is `fixed`; leave it out to learn of other members")),
            "grant_until" => {
                let shape =
                    || InvalidUrl::new("grant_until is a size from 1MiB on, such as grant_until=1600MiB or 6GiB");
                self.grant_until = Some(size(value).ok_or_else(shape)?);
            }
            "ca" | "client_certificate" | "client_key" | "server_name" => {
                let Some(tls) = &mut self.tls else {
                    return Err(InvalidUrl::new(format_args!("{key} is for etcds://, which is TLS")));
                };
                match key {
                    "ca" => tls.ca = Some(PathBuf::from(value)),
                    "client_certificate" => tls.client_certificate = Some(PathBuf::from(value)),
                    "client_key" => tls.client_key = Some(PathBuf::from(value)),
                    _ => tls.server_name = Some(value.to_owned()),
                }
            }
            unknown => return Err(unknown_key(unknown)),
        }
        Ok(())
    }
}

impl Credentials {
    fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let (user, password) = text.split_once(':').ok_or_else(shape)?;
        if user.is_empty() {
            return Err(InvalidUrl::new("it has a password and no user; write etcd://USER:PASSWORD@HOST"));
        }
        Ok(Self { user: decode(user)?, password: decode(password)? })
    }
}

impl Address {
    /// Parses `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let is_host = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte))
            && (text.starts_with('[') || !host.contains(':'));
        let port = port.map_or(Some(PORT), |port| port.parse().ok()).filter(|port| *port > 0)?;
        is_host.then(|| Self { host: host.to_owned(), port })
    }

    /// Parses the address of a member as the cluster lists it: `http://host:port`.
    pub(super) fn of_listed(url: &str) -> Option<Self> {
        let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        Self::parse(address.trim_end_matches('/'))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    /// Writes hosts, ports and prefix, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        write!(f, "{}{}", members.join(","), self.prefix)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

fn shape() -> InvalidUrl {
    InvalidUrl::new(format_args!(
        "expected {FORM}, or etcds:// for TLS, with special characters in user and password percent-encoded"
    ))
}

fn members(hosts: &str) -> Result<Vec<Address>, InvalidUrl> {
    let mut members: Vec<Address> = Vec::new();
    for host in hosts.split(',') {
        let address = Address::parse(host).ok_or_else(shape)?;
        if members.contains(&address) {
            return Err(InvalidUrl::new(format_args!("it names {address} twice")));
        }
        members.push(address);
    }
    if members.len() > MEMBERS_MAX {
        return Err(InvalidUrl::new(format_args!("it names more than {MEMBERS_MAX} members")));
    }
    Ok(members)
}

/// Returns a prefix with a slash before it and none after it.
fn prefix(text: &str) -> Result<String, InvalidUrl> {
    let path = text.trim_matches('/');
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    if path.is_empty() || path.len() > PREFIX_BYTES_MAX || path.contains("//") || !path.bytes().all(is_good) {
        return Err(InvalidUrl::new("a prefix is up to 128 of A-Z a-z 0-9 . _ - and /, such as /oncegate"));
    }
    Ok(format!("/{path}"))
}

/// Parses a size in MiB or GiB.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match (text.strip_suffix("MiB"), text.strip_suffix("GiB")) {
        (Some(number), _) => (number, 1 << 20),
        (None, Some(number)) => (number, 1 << 30),
        (None, None) => return None,
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|number| is_number && *number > 0)?.checked_mul(unit)
}

fn decode(text: &str) -> Result<String, InvalidUrl> {
    percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| shape())
}

fn unknown_key(key: &str) -> InvalidUrl {
    let nearest = KEYS.into_iter().max_by(|a, b| strsim::jaro(key, a).total_cmp(&strsim::jaro(key, b)));
    let key: String = key.chars().filter(|char| !char.is_control()).take(40).collect();
    InvalidUrl::new(format_args!("it has no key `{key}`; did you mean `{}`?", nearest.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let url = Url::parse("etcd://me:s%23cret@e1,e2:2380,[::1]:2379/shop/gate?tick=50ms&members=fixed").unwrap();
        assert_eq!(url.to_string(), "e1:2379,e2:2380,[::1]:2379/shop/gate");
        let credentials = url.credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("me", "s#cret"));
        assert_eq!((url.tick, url.are_members_fixed), (Duration::from_millis(50), true));
        let url = Url::parse("etcds://e1?ca=a.pem&server_name=etcd.internal&prefix=x").unwrap();
        assert_eq!((url.prefix.as_str(), url.tick, url.are_members_fixed), ("/x", TICK, false));
        assert_eq!(url.tls.unwrap().server_name.as_deref(), Some("etcd.internal"));
        assert_eq!(Url::parse("etcd://e1/").unwrap().prefix, "/oncegate");
        let grant_until = |size| Url::parse(&format!("etcd://e1?grant_until={size}")).unwrap().grant_until;
        assert_eq!((grant_until("16MiB"), grant_until("6GiB")), (Some(16 << 20), Some(6 << 30)));
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
            ("etcd://u:hunter2@e1?members=all", "`fixed`"),
            ("etcd://u:hunter2@e1?grant_until=80%25", "1600MiB"),
            ("etcd://u:hunter2@e1?grant_until=+1GiB", "1600MiB"),
            ("etcd://u:hunter2@e1?ca=a.pem", "for etcds://"),
            ("etcds://u:hunter2@e1?client_key=a", "go together"),
            ("etcd://u:hunter2@e1?tik=50ms", "did you mean `tick`"),
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
        let listed = |url| Address::of_listed(url).map(|address| address.to_string());
        assert_eq!(listed("http://127.0.0.1:2379"), Some("127.0.0.1:2379".into()));
        assert_eq!(listed("https://e1.internal:2379/"), Some("e1.internal:2379".into()));
        assert_eq!((listed("unix://x"), listed("http://")), (None, None));
    }
}
