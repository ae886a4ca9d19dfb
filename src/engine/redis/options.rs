//! What a Redis engine is told: its URL, taken apart, and the options that have no place in a URL.
//! No message of this file repeats a URL: it holds a password.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::IntoConnectionInfo;
use tokio::runtime::Handle;

use super::certificates::Certificates;

/// How a Redis engine goes about its connections.
#[derive(Clone)]
pub struct Options {
    /// How long a connection may take, from the first packet until the server is known to be fit.
    pub connect_timeout: Duration,
    /// How long replies may take; then their calls are uncertain, and the connection is replaced.
    pub response_timeout: Duration,
    /// How often the server's configuration is looked at again.
    pub health_every: Duration,
    /// How often a connection is made to answer and to tell whether the server still has its data, so that one that broke or
    /// went silent is replaced before somebody needs it, and a loss is noticed.
    pub beat_every: Duration,
    /// The runtimes that connections live on, in turn; without any, the one in which the engine is opened.
    pub cores: Vec<Handle>,
    /// Called when the store came back without its data.
    pub on_data_lost: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            health_every: Duration::from_secs(5),
            beat_every: Duration::from_millis(500),
            cores: Vec::new(),
            on_data_lost: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("health_every", &self.health_every)
            .field("beat_every", &self.beat_every)
            .finish_non_exhaustive()
    }
}

/// A Redis URL, taken apart.
#[derive(Clone)]
pub(super) struct Address {
    client: redis::Client,
    certificates: Certificates,
    pub(super) prefix: String,
    pub(super) allow_eviction: bool,
    /// Unless told: one for each core, within [`CONNECTIONS`].
    pub(super) connections: Option<usize>,
}

/// A URL that names no Redis store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the URL of a Redis store: {0}")]
pub struct InvalidUrl(String);

impl InvalidUrl {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

const SHAPE: &str = "expected redis://[user[:password]@]host[:port][/db], or rediss:// for TLS, with special characters \
                     in user and password percent-encoded";
const QUERY_KEYS: [&str; 6] = ["prefix", "allow_eviction", "connections", "ca", "client_certificate", "client_key"];
const CONNECTIONS_MAX: usize = 64;

/// The fewest and the most connections that are opened without being told how many: a store serves many gateways.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 2..=8;

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let refuse = |why: &str| Err(InvalidUrl(why.into()));
        let Some(url) = redis::parse_redis_url(text) else { return refuse(SHAPE) };
        if !matches!(url.scheme(), "redis" | "rediss") || url.host_str().is_none_or(str::is_empty) {
            return refuse(SHAPE);
        }
        if url.fragment().is_some() {
            return refuse("it must not have a part after `#`; a `#` in the password is written %23");
        }
        let db = url.path().trim_start_matches('/');
        if !db.is_empty() && db.parse::<u16>().is_err() {
            return refuse("what follows the host's `/` is the number of a database, such as /0");
        }

        let tls = url.scheme() == "rediss";
        let mut address = Self {
            client: client(text, tls)?,
            certificates: Certificates::default(),
            prefix: String::new(),
            allow_eviction: false,
            connections: None,
        };
        for (key, value) in url.query_pairs() {
            match &*key {
                "prefix" if is_prefix(&value) => address.prefix = value.into_owned(),
                "prefix" => return refuse("a prefix is up to 64 of A-Z a-z 0-9 . _ : / -, such as ?prefix=shop:"),
                "allow_eviction" => {
                    let Ok(allow) = value.parse() else { return refuse("allow_eviction is `true` or `false`") };
                    address.allow_eviction = allow;
                }
                "connections" => {
                    let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
                    let Some(count) = count else { return refuse("connections is a number from 1 to 64") };
                    address.connections = Some(count);
                }
                "ca" => address.certificates.ca = Some(value.as_ref().into()),
                "client_certificate" => address.certificates.client_certificate = Some(value.as_ref().into()),
                "client_key" => address.certificates.client_key = Some(value.as_ref().into()),
                unknown => return Err(unknown_key(unknown)),
            }
        }
        address.certificates.check(tls)?;
        Ok(address)
    }

    /// What makes connections, with the certificates that stand in their files by now. Blocks while it reads them.
    pub(super) fn client(&self) -> Result<redis::Client, InvalidUrl> {
        if !self.certificates.are_named() {
            return Ok(self.client.clone());
        }
        let info = self.client.get_connection_info().clone();
        let refused = |_| InvalidUrl::new("its ca, client_certificate or client_key cannot be used");
        redis::Client::build_with_tls(info, self.certificates.read()?).map_err(refused)
    }
}

/// Braces are left out: the first pair in a key decides where a cluster keeps it, and that is to be the global ID.
fn is_prefix(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    text.len() <= 64 && text.bytes().all(allowed)
}

fn unknown_key(key: &str) -> InvalidUrl {
    let nearest = QUERY_KEYS.into_iter().max_by(|a, b| strsim::jaro(key, a).total_cmp(&strsim::jaro(key, b)));
    let key: String = key.chars().filter(|char| !char.is_control()).take(40).collect();
    InvalidUrl(format!("it has no key `{key}`; did you mean `{}`?", nearest.unwrap_or_default()))
}

fn client(url: &str, tls: bool) -> Result<redis::Client, InvalidUrl> {
    if tls {
        // The redis crate brings rustls without a provider. An error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    // The query is for us; the client has keys of its own there.
    let without_query = url.split_once('?').map_or(url, |(url, _)| url);
    let refused = |_| InvalidUrl(SHAPE.into());
    let info = without_query.into_connection_info().map_err(refused)?;
    // RESP2 on purpose: nothing may arrive that was not asked for.
    let protocol = redis::ProtocolVersion::RESP2;
    let settings = info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    redis::Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp)).map_err(refused)
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("server", &self.to_string())
            .field("prefix", &self.prefix)
            .field("allow_eviction", &self.allow_eviction)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Address {
    /// Host, port and database; nobody's name or password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.client.get_connection_info();
        write!(f, "{}/{}", info.addr(), info.redis_settings().db())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let address = Address::parse("redis://me:s%23cret@store.example:7000/3?prefix=a:&connections=8").unwrap();
        assert_eq!(address.to_string(), "store.example:7000/3");
        assert_eq!((&*address.prefix, address.connections, address.allow_eviction), ("a:", Some(8), false));
        let settings = address.client.get_connection_info().redis_settings().clone();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s#cret")));
        assert!(Address::parse("redis://h?allow_eviction=true").unwrap().allow_eviction);
        assert_eq!(Address::parse("rediss://h").unwrap().to_string(), "h:6379/0");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_told_without_repeating_it() {
        let wrong = [
            ("", "expected redis://"),
            ("hunter2", "expected redis://"),
            ("unix:///hunter2", "expected redis://"),
            ("redis://", "expected redis://"),
            ("redis://u:hunter2@h:port", "expected redis://"),
            ("redis://u:hunter2@h#insecure", "%23"),
            ("redis://u:hunter2@h/one", "database"),
            ("redis://u:hunter2@h?prefix={x}", "prefix is"),
            ("redis://u:hunter2@h?allow_eviction=yes", "`true` or `false`"),
            ("redis://u:hunter2@h?connections=0", "1 to 64"),
            ("redis://u:hunter2@h?connections=65", "1 to 64"),
            ("redis://u:hunter2@h?alow_evictoin=true", "did you mean `allow_eviction`"),
            ("redis://u:hunter2@h?prefx=a", "did you mean `prefix`"),
            ("redis://u:hunter2@h?protocol=3", "has no key `protocol`"),
            ("redis://u:hunter2@h?ca=ca.pem", "for rediss://"),
            ("rediss://u:hunter2@h?client_key=a", "go together"),
            ("rediss://u:hunter2@h?cert=a", "did you mean `c"),
        ];
        for (url, hint) in wrong {
            let error = Address::parse(url).map(|_| ()).expect_err(url);
            assert!(error.to_string().contains(hint), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let address = Address::parse("redis://me:hunter2@h").unwrap();
        assert!(!format!("{address:?} {address}").contains("hunter2"));
    }
}
