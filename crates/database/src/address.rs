//! A PostgreSQL URL: its servers, the options of their connections, and our own keys. No message repeats a URL, since it
//! contains a password.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use oncegate_core::nearest;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// The servers of a database, and the options of connections to it.
///
/// Settings that the URL leaves out are taken from the environment, as by `libpq`: `PGPASSWORD`, `PGSSLMODE`, a password file and so
/// on.
#[derive(Clone)]
pub struct Address {
    /// The servers of the URL. They differ only in host and port.
    pub(super) nodes: Vec<Node>,
    /// A pooler may run each transaction on another connection.
    pub(super) pooled: bool,
    /// Rule for migrating a missing or old schema.
    pub(super) migrate: Migrate,
    /// Number of connections of an engine.
    pub connections: usize,
}

/// One server of a URL.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) options: PgConnectOptions,
    /// Host and port, for messages.
    pub(super) name: String,
}

/// Rule for migrating the schema on connecting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Migrate {
    /// If there is none.
    IfEmpty,
    /// If it is too old.
    Always,
    /// Never; `oncegate migrate` does it.
    Never,
}

/// Error in the URL of a PostgreSQL database.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the URL of a PostgreSQL database: {0}")]
pub struct InvalidUrl(String);

const SHAPE: &str = "expected postgres://[user[:password]@]host[:port][,host[:port]…]/database, with special characters in user \
                     and password percent-encoded";
const OUR_KEYS: [&str; 3] = ["connections", "migrate", "pooler"];
/// Keys that the client library handles. Not `password`: it belongs before the `@`, where it is recognised and hidden.
const THEIR_KEYS: [&str; 7] = ["application_name", "host", "options", "sslcert", "sslkey", "sslmode", "sslrootcert"];
/// Not `allow`: the client library would never use TLS.
const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];
const CONNECTIONS_DEFAULT: usize = 3;
const CONNECTIONS_MAX: usize = 32;

/// Settings of every session. A commit is durable before it is answered, with any default of the server, the database
/// or the user. The other settings are for statements that are planned once, while the tables are empty, and are still
/// used when the tables have grown: they look each key up in the index.
const SESSION: [(&str, &str); 6] = [
    ("synchronous_commit", "on"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    // Since it may not scan a table, the server takes even the one-row table of the schema for costly enough to compile.
    ("jit", "off"),
];

/// Returns the SQL that begins a transaction with the settings of every session. Behind a pooler there is no other place for them.
pub fn begin_with_settings() -> &'static str {
    static BEGIN: LazyLock<String> = LazyLock::new(|| {
        SESSION.iter().fold("BEGIN".to_owned(), |sql, (name, value)| format!("{sql}; SET LOCAL {name} = {value}"))
    });
    &BEGIN
}

impl Address {
    /// Parses a URL. Connects to no server, but may read a password file.
    ///
    /// # Errors
    /// The mistake in the URL, without repeating the URL.
    pub fn parse(url: &str) -> Result<Self, InvalidUrl> {
        let shape = || InvalidUrl(SHAPE.into());
        let (scheme, rest) = url.split_once("://").ok_or_else(shape)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(shape());
        }
        if url.contains('#') {
            return refuse("it must not have a part after `#`; write a `#` in the password as %23");
        }
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = location.split_once('/').unwrap_or((location, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
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
            // A migration holds a lock of its session, and a pooler shares sessions.
            if address.migrate == Migrate::Always {
                return refuse(
                    "migrations do not work through a pooler; run `oncegate migrate` with a URL that has no `pooler`",
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

    /// Returns the servers and the database for messages, without user and password.
    pub fn name(&self) -> String {
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let database = self.nodes.first().and_then(|node| node.options.get_database()).unwrap_or_default();
        format!("{}/{database}", names.join(","))
    }

    /// Returns host and port of each server, in lower case, without those behind a Unix socket.
    pub fn servers(&self) -> Vec<String> {
        let remote = self.nodes.iter().filter(|node| node.options.get_socket().is_none());
        remote.map(|node| node.name.to_lowercase()).collect()
    }

    /// Returns whether a pooler may run each transaction on another connection. Then nothing may stay in a session.
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
            // A pooler refuses startup parameters that it does not know. And a statement that one transaction has prepared
            // is unknown to the next.
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
    if key == "tls" || key == "ssl" {
        return InvalidUrl(format!("it has no key `{key}`; write sslmode=verify-full for TLS"));
    }
    let known: Vec<&str> = OUR_KEYS.into_iter().chain(THEIR_KEYS).collect();
    InvalidUrl(nearest::unknown_key(key, &known))
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("servers", &self.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let address = Address::parse("postgres://me:s%23cret@db.example:6000/claims?connections=5").unwrap();
        assert_eq!((address.name(), address.connections, address.pooled), ("db.example:6000/claims".into(), 5, false));
        assert_eq!(address.nodes[0].options.get_username(), "me");
        assert_eq!(address.migrate, Migrate::IfEmpty);
        let pooled = Address::parse("postgresql://me@h/d?pooler=transaction&migrate=false&sslmode=require").unwrap();
        assert!(pooled.is_pooled());
        assert_eq!(pooled.migrate, Migrate::Never);
    }

    #[test]
    fn a_url_may_name_several_servers() {
        let address = Address::parse("postgres://me:x@one:6000,two,[::1]:6001/claims?migrate=true").unwrap();
        assert_eq!(address.name(), "one:6000,two:5432,::1:6001/claims");
        assert!(address.nodes.iter().all(|node| node.options.get_database() == Some("claims")));
    }

    #[test]
    fn errors_name_the_mistake_and_do_not_repeat_the_url() {
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
            ("postgres://u:hunter2@h/d?pooler=transaction&migrate=true", "do not work through a pooler"),
            ("postgres://u:hunter2@h/d?pooller=transaction", "did you mean `pooler`"),
            ("postgres://u:hunter2@h/d?tls=true", "write sslmode=verify-full for TLS"),
            ("postgres://u:hunter2@h/d?zone=1", "no key `zone`; there are: connections, migrate, pooler, "),
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

    #[test]
    fn an_unknown_key_is_named_beside_the_nearest_one() {
        let refused = Address::parse("postgres://me@h/d?poolr=transaction").unwrap_err().to_string();
        assert!(refused.contains("no key `poolr`; did you mean `pooler`?"), "{refused}");
        let refused = Address::parse("postgres://me@h/d?password=x").unwrap_err().to_string();
        assert!(refused.contains("belongs before the host"), "{refused}");
    }

    #[test]
    fn when_to_migrate_is_chosen() {
        for (value, migrate) in [("empty", Migrate::IfEmpty), ("true", Migrate::Always), ("false", Migrate::Never)] {
            let address = Address::parse(&format!("postgres://me@h/d?migrate={value}")).unwrap();
            assert_eq!(address.migrate, migrate);
        }
        assert!(Address::parse("postgres://me@h/d?migrate=no").is_err());
    }
}
