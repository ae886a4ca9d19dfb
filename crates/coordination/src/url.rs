//! The URL of an engine on a coordination service, parsed: `scheme://[user:password@]host[:port][,…][/path][?key=value…]`. What differs
//! between engines is in a [`Dialect`]. No message of this module repeats a URL: it may hold a password.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use oncegate_core::nearest;
use oncegate_core::terms::Span;
use percent_encoding::percent_decode_str;

const PREFIX_BYTES_MAX: usize = 128;
const MEMBERS_MAX: usize = 15;
const TICK: Duration = Duration::from_millis(100);
const TICKS: RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_millis(150);
const RESPONSE_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);
const KEYS: [&str; 8] =
    ["prefix", "tick", "response_timeout", "members", "ca", "client_certificate", "client_key", "server_name"];

/// The URLs of one engine.
#[derive(Debug)]
pub struct Dialect {
    /// The engine, for messages: `an etcd engine`.
    pub engine: &'static str,
    /// The scheme without TLS. That with TLS has one more `s`.
    pub scheme: &'static str,
    /// The form of a URL, for messages.
    pub form: &'static str,
    /// Port of members without one.
    pub port: u16,
    /// Keys of the query that only this engine has.
    pub own_keys: &'static [&'static str],
}

/// A parsed URL.
#[derive(Clone)]
pub struct Url {
    /// Members of the cluster, in the order of the URL.
    pub members: Vec<Address>,
    /// The user, if there is one.
    pub credentials: Option<Credentials>,
    /// The path, without a slash at its end; empty if there is none.
    pub path: String,
    /// The key `prefix`, as a path.
    pub prefix: Option<String>,
    /// Interval at which the clock is advanced.
    pub tick: Duration,
    /// Limit of a request, if the URL names one. After it the member is left.
    pub response_timeout: Option<Duration>,
    /// No other members are used than those of the URL.
    pub are_members_fixed: bool,
    /// `Some` for TLS.
    pub tls: Option<Certificates>,
    /// The engine's own keys, with their values.
    pub own: Vec<(&'static str, String)>,
}

/// The certificate and key files of TLS. Without a `ca`, the system's authorities are trusted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificates {
    /// Authorities that are trusted.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub client_certificate: Option<PathBuf>,
    /// Its key.
    pub client_key: Option<PathBuf>,
    /// The name that members' certificates must have, if it is not the host's.
    pub server_name: Option<String>,
}

/// A user and its password.
#[derive(Clone)]
pub struct Credentials {
    /// Name of the user.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// Host and port of a member.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Error of a URL.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

impl Dialect {
    /// Returns the error for a URL with this mistake.
    pub fn error(&self, why: impl fmt::Display) -> InvalidUrl {
        InvalidUrl(format!("the URL of {} is wrong: {why}", self.engine))
    }

    fn shape(&self) -> InvalidUrl {
        self.error(format_args!(
            "expected {}, or {}s:// for TLS, with special characters in user and password percent-encoded",
            self.form, self.scheme
        ))
    }

    fn decode(&self, text: &str) -> Result<String, InvalidUrl> {
        percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| self.shape())
    }

    fn unknown_key(&self, key: &str) -> InvalidUrl {
        let scheme = self.scheme;
        if ["tls", "ssl"].contains(&key) {
            let advice = format!("the scheme asks for TLS: write {scheme}s:// in place of {scheme}://");
            return self.error(format_args!("it has no key `{key}`; {advice}"));
        }
        let known: Vec<&str> = KEYS.iter().chain(self.own_keys).copied().collect();
        self.error(format_args!("{}", nearest::unknown_key(key, &known)))
    }
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The error in the URL, without repeating the URL.
    pub fn parse(text: &str, dialect: &Dialect) -> Result<Self, InvalidUrl> {
        let rest = text.strip_prefix(dialect.scheme).ok_or_else(|| dialect.shape())?;
        let (rest, is_tls) = match (rest.strip_prefix("://"), rest.strip_prefix("s://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(dialect.shape()),
        };
        if rest.contains('#') {
            return Err(dialect.error("it must not have a part after `#`; a `#` in the password is written %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, hosts) = servers.rsplit_once('@').map_or((None, servers), |(user, hosts)| (Some(user), hosts));
        let path = path.trim_end_matches('/');
        let mut url = Self {
            members: members(hosts, dialect)?,
            credentials: user.map(|user| Credentials::parse(user, dialect)).transpose()?,
            path: if path.is_empty() { String::new() } else { prefix(path, dialect)? },
            prefix: None,
            tick: TICK,
            response_timeout: None,
            are_members_fixed: false,
            tls: is_tls.then(Certificates::default),
            own: Vec::new(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            url.set(key, dialect.decode(value)?, dialect)?;
        }
        if let Some(tls) = &url.tls {
            tls.check(dialect)?;
        }
        Ok(url)
    }

    /// Takes over one key of the query.
    fn set(&mut self, key: &str, value: String, dialect: &Dialect) -> Result<(), InvalidUrl> {
        match key {
            "prefix" => self.prefix = Some(prefix(&value, dialect)?),
            "tick" => {
                let tick = span_within(&value, &TICKS);
                self.tick = tick.ok_or_else(|| dialect.error("tick is 50ms to 150ms, such as tick=100ms"))?;
            }
            "response_timeout" => {
                let shape = || dialect.error("response_timeout is 100ms to 10s, such as response_timeout=330ms");
                self.response_timeout = Some(span_within(&value, &RESPONSE_TIMEOUTS).ok_or_else(shape)?);
            }
            "members" if value == "fixed" => self.are_members_fixed = true,
            "members" => return Err(dialect.error("members is `fixed`; leave it out to learn of other members")),
            "ca" | "client_certificate" | "client_key" | "server_name" => {
                let Some(tls) = &mut self.tls else {
                    return Err(dialect.error(format_args!("{key} is for {}s://, which is TLS", dialect.scheme)));
                };
                match key {
                    "ca" => tls.ca = Some(PathBuf::from(value)),
                    "client_certificate" => tls.client_certificate = Some(PathBuf::from(value)),
                    "client_key" => tls.client_key = Some(PathBuf::from(value)),
                    _ => tls.server_name = Some(value),
                }
            }
            key => match dialect.own_keys.iter().find(|own| **own == key) {
                Some(own) => self.own.push((own, value)),
                None => return Err(dialect.unknown_key(key)),
            },
        }
        Ok(())
    }

    /// Returns the addresses of the members, for messages.
    pub fn addresses(&self) -> String {
        self.members.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl Certificates {
    /// Checks that the named files fit together.
    fn check(&self, dialect: &Dialect) -> Result<(), InvalidUrl> {
        if self.client_certificate.is_some() == self.client_key.is_some() {
            return Ok(());
        }
        Err(dialect.error("client_certificate and client_key go together; name both or none"))
    }
}

impl Credentials {
    fn parse(text: &str, dialect: &Dialect) -> Result<Self, InvalidUrl> {
        let (user, password) = text.split_once(':').ok_or_else(|| dialect.shape())?;
        if user.is_empty() {
            let scheme = dialect.scheme;
            let why = format_args!("it has a password and no user; write {scheme}://USER:PASSWORD@HOST");
            return Err(dialect.error(why));
        }
        Ok(Self { user: dialect.decode(user)?, password: dialect.decode(password)? })
    }
}

impl Address {
    /// Parses `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
    pub fn parse(text: &str, port: u16) -> Option<Self> {
        let default = port;
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
        let port = port.map_or(Some(default), |port| port.parse().ok()).filter(|port| *port > 0)?;
        is_host.then(|| Self { host: host.to_owned(), port })
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

fn members(hosts: &str, dialect: &Dialect) -> Result<Vec<Address>, InvalidUrl> {
    let mut members: Vec<Address> = Vec::new();
    for host in hosts.split(',') {
        let address = Address::parse(host, dialect.port).ok_or_else(|| dialect.shape())?;
        if members.contains(&address) {
            return Err(dialect.error(format_args!("it names {address} twice")));
        }
        members.push(address);
    }
    if members.len() > MEMBERS_MAX {
        return Err(dialect.error(format_args!("it names more than {MEMBERS_MAX} members")));
    }
    Ok(members)
}

fn span_within(text: &str, bounds: &RangeInclusive<Duration>) -> Option<Duration> {
    text.parse().ok().map(|Span(span)| span).filter(|span| bounds.contains(span))
}

/// Returns a prefix with a slash before it and none after it.
fn prefix(text: &str, dialect: &Dialect) -> Result<String, InvalidUrl> {
    let path = text.trim_matches('/');
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    if path.is_empty() || path.len() > PREFIX_BYTES_MAX || path.contains("//") || !path.bytes().all(is_good) {
        return Err(dialect.error("a prefix is up to 128 of A-Z a-z 0-9 . _ - and /, such as /oncegate"));
    }
    Ok(format!("/{path}"))
}

/// Parses a size in MiB or GiB.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = match (text.strip_suffix("MiB"), text.strip_suffix("GiB")) {
        (Some(number), _) => (number, 1 << 20),
        (None, Some(number)) => (number, 1 << 30),
        (None, None) => return None,
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|number| is_number && *number > 0)?.checked_mul(unit)
}
