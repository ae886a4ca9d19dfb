//! A PostgreSQL URL, taken apart: the servers it names, how to talk to them, and our own keys.
//! No message of this file repeats a URL: it holds a password.

use std::fmt;
use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// Where a database is and how to talk to it.
///
/// Where the URL is silent, what `libpq` takes from the environment counts here too: `PGPASSWORD`, `PGSSLMODE`, a password
/// file and so on.
#[derive(Clone)]
pub struct Address {
    /// One for each server of the URL; they differ in host and port only.
    pub(super) nodes: Vec<Node>,
    /// Whether something stands between that gives each transaction any connection.
    pub(super) pooled: bool,
    /// When a missing or old schema is brought up to date.
    pub(super) migrate: Migrate,
    /// How many connections an engine keeps.
    pub connections: usize,
}

/// One server of a URL.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) options: PgConnectOptions,
    /// Host and port, for messages.
    pub(super) name: String,
}

/// When the schema is made or brought up to date by whoever connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Migrate {
    /// Only where there is none at all.
    IfEmpty,
    /// Whenever it is behind.
    Always,
    /// By `oncegate migrate` only.
    Never,
}

/// A URL that names no PostgreSQL database.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the URL of a PostgreSQL database: {0}")]
pub struct InvalidUrl(String);

const SHAPE: &str = "expected postgres://[user[:password]@]host[:port][,host[:port]…]/database, with special characters in user \
                     and password percent-encoded";
const OUR_KEYS: [&str; 3] = ["connections", "migrate", "pooler"];
/// What is left to the client library. Not `password`: it belongs before the `@`, where it is recognised and hidden.
const THEIR_KEYS: [&str; 7] = ["application_name", "host", "options", "sslcert", "sslkey", "sslmode", "sslrootcert"];
/// Not `allow`: the client library would never use TLS.
const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];
const CONNECTIONS_DEFAULT: usize = 3;
const CONNECTIONS_MAX: usize = 32;

/// What every session is told. An answer is given after its commit is durable, whatever the server, the database or the
/// user has as its default. The rest is for statements that are planned once and then used while tables grow from nothing:
/// each key is to be looked up in the index, however small the table looked at first.
const SESSION: [(&str, &str); 6] = [
    ("synchronous_commit", "on"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

impl Address {
    /// Takes a URL apart. Asks no server, but may read a password file.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn parse(url: &str) -> Result<Self, InvalidUrl> {
        let shape = || InvalidUrl(SHAPE.into());
        let (scheme, rest) = url.split_once("://").ok_or_else(shape)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(shape());
        }
        if url.contains('#') {
            return refuse("it must not have a part after `#`; a `#` in the password is written %23");
        }
        let (place, query) = rest.split_once('?').map_or((rest, ""), |(place, query)| (place, query));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        if database.contains('/') || user.contains('@') {
            return Err(shape());
        }

        let mut address =
            Self { nodes: Vec::new(), pooled: false, migrate: Migrate::IfEmpty, connections: CONNECTIONS_DEFAULT };
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "connections" => {
                    let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
                    let Some(count) = count else { return refuse("connections is a number from 1 to 32") };
                    address.connections = count;
                }
                "pooler" => match value {
                    "transaction" => address.pooled = true,
                    _ => return refuse("pooler is `transaction`, or left out"),
                },
                "migrate" => match value {
                    "true" => address.migrate = Migrate::Always,
                    "false" => address.migrate = Migrate::Never,
                    "empty" => address.migrate = Migrate::IfEmpty,
                    _ => return refuse("migrate is `empty`, `true` or `false`"),
                },
                "sslmode" if !SSL_MODES.contains(&value) => {
                    return refuse("sslmode is `disable`, `prefer`, `require`, `verify-ca` or `verify-full`");
                }
                key if THEIR_KEYS.contains(&key) => theirs.push(pair),
                key => return Err(unknown_key(key)),
            }
        }
        if address.pooled {
            // A migration is guarded by a lock of its session, which is whose then?
            if address.migrate == Migrate::Always {
                return refuse(
                    "a pooler cannot carry migrations; run `oncegate migrate` with a URL that has no `pooler`",
                );
            }
            address.migrate = Migrate::Never;
        }
        let theirs = theirs.join("&");
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        for host in hosts.split(',') {
            // The brackets of an IPv6 address belong to the URL, not to the address.
            let whole = format!("postgres://{user}{host}/{database}?{theirs}");
            address.nodes.push(Node::parse(&whole, address.pooled).ok_or_else(shape)?);
        }
        Ok(address)
    }

    /// The URL's servers, for messages: no name of a user, no password.
    pub fn name(&self) -> String {
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let database = self.nodes.first().and_then(|node| node.options.get_database()).unwrap_or_default();
        format!("{}/{database}", names.join(","))
    }

    /// Whether something stands between that gives each transaction any connection, so that nothing may be left behind in
    /// a session.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }
}

impl Node {
    fn parse(url: &str, pooled: bool) -> Option<Self> {
        let mut options = PgConnectOptions::from_str(url).ok()?.disable_statement_logging();
        let bare = options.get_host().trim_matches(['[', ']']).to_owned();
        if bare.is_empty() {
            return None;
        }
        options = options.host(&bare);
        if options.get_application_name().is_none() {
            options = options.application_name("oncegate");
        }
        options = if pooled {
            // A pooler passes on what it knows of a session's start, and refuses the rest. And a statement that one
            // transaction has prepared is unknown to the next.
            options.extra_float_digits(None).statement_cache_capacity(0)
        } else {
            options.options(SESSION)
        };
        let name = match options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        Some(Self { options, name })
    }
}

fn refuse<T>(why: &str) -> Result<T, InvalidUrl> {
    Err(InvalidUrl(why.into()))
}

fn unknown_key(key: &str) -> InvalidUrl {
    if key == "password" || key == "user" {
        return InvalidUrl(format!("`{key}` belongs before the host: postgres://user:password@host/database"));
    }
    let known = OUR_KEYS.into_iter().chain(THEIR_KEYS);
    let nearest = known.max_by(|a, b| strsim::jaro(key, a).total_cmp(&strsim::jaro(key, b)));
    let key: String = key.chars().filter(|char| !char.is_control()).take(40).collect();
    InvalidUrl(format!("it has no key `{key}`; did you mean `{}`?", nearest.unwrap_or_default()))
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("servers", &self.name())
            .field("pooled", &self.pooled)
            .field("migrate", &self.migrate)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let address = Address::parse("postgres://me:s%23cret@db.example:6000/claims?connections=5").unwrap();
        assert_eq!((address.name(), address.connections, address.pooled), ("db.example:6000/claims".into(), 5, false));
        assert_eq!(address.nodes[0].options.get_username(), "me");
        assert_eq!(address.migrate, Migrate::IfEmpty);
        let pooled = Address::parse("postgresql://me@h/d?pooler=transaction&migrate=false&sslmode=require").unwrap();
        assert!(pooled.is_pooled());
        assert_eq!(pooled.migrate, Migrate::Never);
    }

    #[test]
    fn several_servers_may_be_named() {
        let address = Address::parse("postgres://me:x@one:6000,two,[::1]:6001/claims?migrate=true").unwrap();
        assert_eq!(address.name(), "one:6000,two:5432,::1:6001/claims");
        assert!(address.nodes.iter().all(|node| node.options.get_database() == Some("claims")));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_told_without_repeating_it() {
        let wrong = [
            ("", "expected postgres://"),
            ("mysql://u:hunter2@h", "expected postgres://"),
            ("postgres://u:hunter2@", "expected postgres://"),
            ("postgres://u:hunter2@h,,i/d", "expected postgres://"),
            ("postgres://u:hunter2@h:port/d", "expected postgres://"),
            ("postgres://u:hun@ter2@h/d", "expected postgres://"),
            ("postgres://u:hunter2@h/d/e", "expected postgres://"),
            ("postgres://u:hunter2@h/d#x", "%23"),
            ("postgres://u:hunter2@h/d?connections=0", "1 to 32"),
            ("postgres://u:hunter2@h/d?connections=33", "1 to 32"),
            ("postgres://u:hunter2@h/d?pooler=session", "`transaction`"),
            ("postgres://u:hunter2@h/d?migrate=yes", "`empty`, `true` or `false`"),
            ("postgres://u:hunter2@h/d?pooler=transaction&migrate=true", "cannot carry migrations"),
            ("postgres://u:hunter2@h/d?pooller=transaction", "did you mean `pooler`"),
            ("postgres://u@h/d?password=hunter2", "before the host"),
            ("postgres://u:hunter2@h/d?sslmode=maybe", "`prefer`, `require`, `verify-ca` or `verify-full`"),
            ("postgres://u:hunter2@h/d?sslmode=allow", "sslmode is `disable`"),
        ];
        for (url, hint) in wrong {
            let error = Address::parse(url).map(|_| ()).expect_err(url);
            assert!(error.to_string().contains(hint), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let address = Address::parse("postgres://me:hunter2@h/d").unwrap();
        let shown = format!("{address:?} {}", address.name());
        assert!(!shown.contains("hunter2") && !shown.contains("me"), "{shown}");
    }
}
