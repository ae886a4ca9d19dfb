//! The URL of a Redis engine, parsed. No message of this file repeats a URL: it holds a password.

use std::fmt;
use std::ops::RangeInclusive;

use redis::IntoConnectionInfo;

use super::certificates::Certificates;

/// A parsed URL: a server, and how it is used.
#[derive(Clone)]
pub(super) struct Url {
    client: redis::Client,
    certificates: Certificates,
    pub(super) prefix: String,
    pub(super) allow_eviction: bool,
    /// Number of connections; if not given, one for each core, within [`CONNECTIONS`].
    pub(super) connections: Option<usize>,
}

/// The URL is not one of a Redis store.
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

/// Limits of the number of connections that is derived from the number of cores: a store serves many gateways.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 2..=8;

impl Url {
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

    /// Returns a client that opens connections, with the certificates that are in their files now. Reads them, so it blocks.
    pub(super) fn client(&self) -> Result<redis::Client, InvalidUrl> {
        if !self.certificates.are_named() {
            return Ok(self.client.clone());
        }
        let info = self.client.get_connection_info().clone();
        let refused = |_| InvalidUrl::new("its ca, client_certificate or client_key cannot be used");
        redis::Client::build_with_tls(info, self.certificates.read()?).map_err(refused)
    }
}

/// Braces are not allowed: the first pair in a key is its hash tag, and that must be the global ID.
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
    // The client would read keys of its own from the query.
    let without_query = url.split_once('?').map_or(url, |(url, _)| url);
    let refused = |_| InvalidUrl(SHAPE.into());
    let info = without_query.into_connection_info().map_err(refused)?;
    // RESP2: the server pushes no messages, so every reply belongs to a command.
    let protocol = redis::ProtocolVersion::RESP2;
    let settings = info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    redis::Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp)).map_err(refused)
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url")
            .field("server", &self.to_string())
            .field("prefix", &self.prefix)
            .field("allow_eviction", &self.allow_eviction)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Url {
    /// Writes host, port and database, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.client.get_connection_info();
        write!(f, "{}/{}", info.addr(), info.redis_settings().db())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let address = Url::parse("redis://me:s%23cret@store.example:7000/3?prefix=a:&connections=8").unwrap();
        assert_eq!(address.to_string(), "store.example:7000/3");
        assert_eq!((&*address.prefix, address.connections, address.allow_eviction), ("a:", Some(8), false));
        let settings = address.client.get_connection_info().redis_settings().clone();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s#cret")));
        assert!(Url::parse("redis://h?allow_eviction=true").unwrap().allow_eviction);
        assert_eq!(Url::parse("rediss://h").unwrap().to_string(), "h:6379/0");
    }

    #[test]
    fn errors_do_not_repeat_the_url() {
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
            let error = Url::parse(url).map(|_| ()).expect_err(url);
            assert!(error.to_string().contains(hint), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let address = Url::parse("redis://me:hunter2@h").unwrap();
        assert!(!format!("{address:?} {address}").contains("hunter2"));
    }
}
