//! The URL of a Redis engine, parsed. No message of this module repeats a URL: it holds a password.

mod layout;
mod query;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use oncegate_core::engine::Determinate;
use oncegate_driver::scheme::Promise;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use tokio_rustls::TlsConnector;

pub(super) use self::layout::Layout;
pub(super) use self::query::RESPONSE_TIMEOUT;
use self::query::Together;
use super::acknowledgement::Acknowledgement;
use super::address::Address;
use super::certificates::{self, Certificates};
use super::invalid_url::InvalidUrl;
use super::limit::CallTime;

/// A parsed URL: servers, and how they are used.
#[derive(Clone)]
pub(super) struct Url {
    pub(super) layout: Layout,
    /// Settings of a connection to the first server of the URL.
    info: ConnectionInfo,
    certificates: Certificates,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    pub(super) prefix: String,
    pub(super) allow_eviction: bool,
    /// Number of connections to each server; if not given, one for each core, within [`CONNECTIONS`].
    pub(super) connections: Option<usize>,
    pub(super) response_timeout: Option<Duration>,
    /// Condition that an answer waits for, if there is one.
    pub(super) acknowledgement: Option<Acknowledgement>,
}

const SHAPE: &str = "expected redis://[user[:password]@]host[:port][/db], or rediss:// for TLS, with special characters \
                     in user and password percent-encoded";

/// Limits of the number of connections that is derived from the number of cores: a store serves many gateways.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 2..=8;

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let refuse = |why: &str| Err(InvalidUrl::new(why));
        let (layout, text) = layout::split(text)?;
        let Some(url) = redis::parse_redis_url(&text) else { return refuse(SHAPE) };
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
            layout,
            info: info(&text, tls)?,
            certificates: Certificates::default(),
            sentinel_user: None,
            sentinel_password: None,
            prefix: String::new(),
            allow_eviction: false,
            connections: None,
            response_timeout: None,
            acknowledgement: None,
        };
        let mut together = Together::default();
        for (key, value) in url.query_pairs() {
            address.set(&mut together, &key, &value)?;
        }
        address.certificates.check(tls)?;
        address.acknowledgement = together.acknowledgement(address.response_timeout)?;
        Ok(address)
    }

    /// Returns the addresses of the servers, in lower case. That of a Sentinel has the name of the primary: it may watch several.
    pub(super) fn addresses(&self) -> Vec<String> {
        let lower = |address: &dyn fmt::Display| address.to_string().to_lowercase();
        match &self.layout {
            Layout::Single => vec![lower(self.info.addr())],
            Layout::Sentinel { sentinels, name } => {
                sentinels.iter().map(|sentinel| format!("{}/{name}", lower(sentinel))).collect()
            }
            Layout::Cluster { seeds } => seeds.iter().map(|seed| lower(seed)).collect(),
        }
    }

    /// Returns the losses that a failover may cause, and the shortest deadline that leaves replicas enough time to
    /// answer.
    pub(super) fn promise(&self) -> Promise {
        let Some(asked) = &self.acknowledgement else {
            return Promise::new(match self.layout {
                Layout::Single => {
                    "Survives what the server's persistence survives: power loss only with appendfsync always; a failover behind \
                     one address may lose the newest claims."
                }
                Layout::Sentinel { .. } | Layout::Cluster { .. } => {
                    "An unplanned failover may lose the newest claims, since replication is asynchronous; write replicas= with \
                     the number of attached replicas to lose none."
                }
            });
        };
        let disk = if asked.aof { ", and for the disks of primary and replicas" } else { "" };
        let text = format!(
            "Answers wait for {} replicas{disk}: nothing acknowledged is lost with a primary if that is every attached one, and a \
             killed primary does not come back without its data before the failover.",
            asked.replicas
        );
        Promise { deadline_min: CallTime::deadline_for(asked.timeout), ..Promise::new(text) }
    }

    /// If the server did not answer a connection, adds to the reason that only one side may speak TLS.
    pub(super) fn with_tls_hint(&self, why: Determinate) -> Determinate {
        let hint = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => {
                "; if it has never answered, and its port speaks no TLS, write redis:// in place of rediss://"
            }
            _ => "; if it has never answered, and its port speaks TLS only, write rediss:// in place of redis://",
        };
        match why {
            Determinate::Unavailable(why) if is_wordless(&why) => Determinate::Unavailable(why + hint),
            other => other,
        }
    }

    /// Returns a client that opens connections to a server, or to the first one of the URL, with the present
    /// certificates in their files. Reads them, so it blocks.
    pub(super) fn client(&self, server: Option<&Address>) -> Result<redis::Client, InvalidUrl> {
        self.client_of(self.connection_info(server))
    }

    /// Returns the settings of a connection to a server, or to the first one of the URL.
    pub(super) fn connection_info(&self, server: Option<&Address>) -> ConnectionInfo {
        server.map_or_else(|| self.info.clone(), |server| self.info_of(server))
    }

    /// Returns what opens TLS, with the present certificates in their files. Blocks.
    pub(super) fn tls_connector(&self) -> Result<TlsConnector, InvalidUrl> {
        self.certificates.connector()
    }

    /// Returns a client that opens connections for notifications. Blocks as [`Url::client`] does.
    pub(super) fn listening_client(&self, server: Option<&Address>) -> Result<redis::Client, InvalidUrl> {
        let info = self.connection_info(server);
        // RESP3: the server pushes messages between its replies.
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        self.client_of(info.set_redis_settings(settings))
    }

    /// Returns a client that opens connections to a Sentinel. Blocks as [`Url::client`] does.
    pub(super) fn sentinel_client(&self, sentinel: &Address) -> Result<redis::Client, InvalidUrl> {
        let mut settings = RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP2);
        if let Some(user) = &self.sentinel_user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.sentinel_password {
            settings = settings.set_password(password);
        }
        self.client_of(self.info_of(sentinel).set_redis_settings(settings.set_skip_set_lib_name()))
    }

    fn info_of(&self, server: &Address) -> ConnectionInfo {
        let Address { host, port } = server.clone();
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.info.clone().set_addr(address)
    }

    fn client_of(&self, info: ConnectionInfo) -> Result<redis::Client, InvalidUrl> {
        let refused = |_| certificates::unusable();
        if self.certificates.are_named() {
            return redis::Client::build_with_tls(info, self.certificates.read()?).map_err(refused);
        }
        redis::Client::open(info).map_err(|_| InvalidUrl::new(SHAPE))
    }
}

/// Reports whether a server was reached, but did not answer like a Redis server.
fn is_wordless(why: &str) -> bool {
    let lost = ["broken pipe", "unexpected end of file", "reset by peer", "InvalidContentType", "corrupt message"];
    why.starts_with("no connection to the Redis server within") || lost.iter().any(|lost| why.contains(lost))
}

fn info(url: &str, tls: bool) -> Result<ConnectionInfo, InvalidUrl> {
    if tls {
        // The redis crate brings rustls without a provider. An error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    // The client would read other keys from the query.
    let without_query = url.split_once('?').map_or(url, |(url, _)| url);
    let info = without_query.into_connection_info().map_err(|_| InvalidUrl::new(SHAPE))?;
    // RESP2: the server pushes no messages, so every reply belongs to a command.
    let protocol = redis::ProtocolVersion::RESP2;
    let settings = info.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
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
    /// Writes hosts, ports and database, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let db = self.info.redis_settings().db();
        match &self.layout {
            Layout::Single => write!(f, "{}/{db}", self.info.addr()),
            Layout::Sentinel { sentinels, name } => write!(f, "{}/{name}/{db}", list(sentinels)),
            Layout::Cluster { seeds } => write!(f, "{}", list(seeds)),
        }
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
        let settings = address.info.redis_settings().clone();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s#cret")));
        assert!(Url::parse("redis://h?allow_eviction=true").unwrap().allow_eviction);
        assert_eq!(Url::parse("rediss://h").unwrap().to_string(), "h:6379/0");
    }

    #[test]
    fn what_a_url_may_say_depends_on_its_servers() {
        for (url, is_fit) in [
            ("redis+sentinel://h/m?sentinel_user=u&sentinel_password=p", true),
            ("redis://h?sentinel_user=u&sentinel_password=p", false),
            ("redis://h?replicas=1&aof=1", true),
            ("redis://h?replicas=1&aof=0", true),
            ("redis://h?replicas=1&aof=2", false),
            ("redis:///1", false),
            ("http://h", false),
        ] {
            assert_eq!(Url::parse(url).is_ok(), is_fit, "{url}");
        }
        assert!(!Url::parse("redis://h?replicas=1&aof=0").unwrap().acknowledgement.unwrap().aof);
    }

    #[test]
    fn each_combination_says_what_a_failover_costs_and_which_deadline_it_needs() {
        let promise = |url: &str| Url::parse(url).unwrap().promise();
        for (url, expected, deadline_ms) in [
            ("redis://h", "behind one address may lose the newest claims", 0),
            ("redis+sentinel://h/name", "write replicas=", 0),
            ("redis+cluster://h", "write replicas=", 0),
            (
                "redis+cluster://h?replicas=2&replica_timeout=300ms",
                "wait for 2 replicas: nothing acknowledged is lost",
                400,
            ),
            (
                "redis://h?replicas=1&aof=1&replica_timeout=1500ms&response_timeout=2s",
                "1 replicas, and for the disks of primary and replicas",
                2000,
            ),
        ] {
            let promise = promise(url);
            assert!(promise.text.contains(expected), "{url}: {}", promise.text);
            assert_eq!(promise.deadline_min, Duration::from_millis(deadline_ms), "{url}");
        }
    }

    #[test]
    fn an_acknowledgement_has_defaults() {
        let asked = |query: &str| Url::parse(&format!("redis+cluster://h{query}")).unwrap().acknowledgement;
        let timeout = Duration::from_millis(100);
        assert_eq!(asked(""), None);
        assert_eq!(asked("?replicas=2"), Some(Acknowledgement { replicas: 2, timeout, aof: false }));
        let timeout = Duration::from_millis(1500);
        assert_eq!(
            asked("?replicas=1&replica_timeout=1500ms&response_timeout=2s&aof=1"),
            Some(Acknowledgement { replicas: 1, timeout, aof: true })
        );
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
            ("redis://u:hunter2@h?tls=true", "the scheme asks for TLS: write rediss://"),
            ("redis://u:hunter2@h?db=1", "has no key `db`; there are: prefix, allow_eviction, "),
            ("redis://u:hunter2@h?ca=ca.pem", "for rediss://"),
            ("rediss://u:hunter2@h?client_key=a", "go together"),
            ("rediss://u:hunter2@h?cert=a", "did you mean `c"),
            ("redis://u:hunter2@h1,h2:7", "redis+cluster://h1:6379,h2:6379"),
            ("redis+clutser://u:hunter2@h", "redis+cluster"),
            ("redis+cluster://u:hunter2@h1:7000,", "expected redis+cluster://"),
            ("redis+cluster://u:hunter2@h1:port", "expected redis+cluster://"),
            ("redis+cluster://u:hunter2@h1,h1:6379", "h1:6379 twice"),
            ("redis+cluster://u:hunter2@h/1", "database 0 only"),
            ("redis+cluster://u:hunter2@h/mymaster", "database 0 only"),
            ("redis+cluster://u:hunter2@h#x", "%23"),
            ("redis+cluster://u:hunter2@h?sentinel_user=a", "for redis+sentinel://"),
            ("redis+sentinel://u:hunter2@s1,s2", "NAME"),
            ("redis+sentinel://u:hunter2@s1,s2/", "NAME"),
            ("redis+sentinel://u:hunter2@s1/a b", "NAME"),
            ("redis+sentinel://u:hunter2@s1/mymaster/one", "database"),
            ("redis+cluster://u:hunter2@h?ca=x", "for rediss://"),
            ("redis://u:hunter2@h?replicas=0", "1 to 15"),
            ("redis://u:hunter2@h?replicas=two", "1 to 15"),
            ("redis://u:hunter2@h?replica_timeout=100ms", "write ?replicas=1"),
            ("redis://u:hunter2@h?aof=1", "write ?replicas=1"),
            ("redis://u:hunter2@h?replicas=1&aof=yes", "`1` or `0`"),
            ("redis://u:hunter2@h?replicas=1&replica_timeout=0ms", "replica_timeout=250ms"),
            ("redis://u:hunter2@h?replicas=1&replica_timeout=500ms", "write response_timeout=1s"),
            ("redis://u:hunter2@h?replicas=1&response_timeout=100ms", "must be longer"),
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
