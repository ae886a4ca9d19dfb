//! The table of engines, and the lookup of an engine by its URL: `memory:`, `disk:PATH`, `redis://…`, `rediss://…`, `postgres://…`,
//! `etcd://…`, `zookeeper://…`. Errors say what to write instead, and never repeat a password or the content of a file.

use std::io::Read;
use std::sync::Arc;

use oncegate_core::clock::Clock;
use oncegate_core::engine::Capabilities;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
pub use oncegate_driver::backup::{Summary, verify as verify_backup};
pub use oncegate_driver::scheme::OpenError;
use oncegate_driver::scheme::{Host, Inspect, Opened, Promise, Scheme, no_files, no_servers};
use tokio::runtime::Handle;

/// The engines of this build. A new engine is one more row.
static SCHEMES: &[&Scheme] = &[
    &MEMORY,
    #[cfg(feature = "disk")]
    &oncegate_disk::SCHEME,
    #[cfg(feature = "redis")]
    &oncegate_redis::SCHEME,
    #[cfg(feature = "postgres")]
    &oncegate_postgres::SCHEME,
    #[cfg(feature = "etcd")]
    &oncegate_etcd::SCHEME,
    #[cfg(feature = "zookeeper")]
    &oncegate_zookeeper::SCHEME,
];

/// The scheme of the memory engine, which is part of `core`.
static MEMORY: Scheme = Scheme {
    names: &["memory"],
    forms: &["memory:"],
    parse: |url| bytes_max(url).map(drop),
    check_files: no_files,
    addresses: no_servers,
    capabilities: Memory::CAPABILITIES,
    promise: |_| Promise::new("Keeps nothing when the gateway ends: for tests."),
    restore: None,
    inspect: None,
    open: |url, host| Ok(Arc::new(Memory::new(host.clock, bytes_max(url)?))),
};

/// The names of the engines that a build may leave out.
const OPTIONAL: &[&str] = &[
    "disk",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "postgres",
    "postgresql",
    "etcd",
    "etcds",
    "zookeeper",
    "zookeepers",
];

/// Checks that [`open`] would accept a URL. Opens nothing, and connects to no server.
pub fn check(url: &str) -> Result<(), OpenError> {
    (scheme_of(url)?.parse)(url)
}

/// Returns an address that two URLs have in common: they name one server. URLs without one may name one server all the same.
pub fn common_address(one: &str, other: &str) -> Option<String> {
    let scheme = scheme_of(one).ok()?;
    let is_other = !std::ptr::eq(scheme, scheme_of(other).ok()?);
    let others = if is_other { Vec::new() } else { (scheme.addresses)(other) };
    (scheme.addresses)(one).into_iter().find(|address| others.contains(address))
}

/// Checks the certificate and key files that a URL names. Blocks.
pub fn check_files(url: &str) -> Result<(), OpenError> {
    (scheme_of(url)?.check_files)(url)
}

/// Opens the engine of a URL; see [`Scheme::open`] and [`Host`].
pub fn open(url: &str, clock: Arc<dyn Clock>, cores: Vec<Handle>) -> Opened {
    (scheme_of(url)?.open)(url, Host { clock, cores })
}

/// Restores a backup into the store of a URL, which must be empty: completely, or not at all. Blocks.
pub fn restore(url: &str, backup: &mut dyn Read) -> Result<Summary, OpenError> {
    check(url)?;
    let restore = scheme_of(url)?.restore.ok_or_else(|| {
        let able = SCHEMES.iter().filter(|scheme| scheme.restore.is_some()).flat_map(|scheme| scheme.forms).copied();
        let able: Vec<_> = able.collect();
        OpenError::new(format_args!(
            "a backup is restored into {}; restore another store with its own tools",
            able.join(", ")
        ))
    })?;
    restore(url, backup)
}

/// Returns what the engine of a URL promises at best. Opens nothing.
pub fn capabilities_of(url: &str) -> Result<Capabilities, OpenError> {
    scheme_of(url).map(|scheme| scheme.capabilities)
}

/// Returns what the engine of a URL survives. Opens nothing.
pub fn promise_of(url: &str) -> Result<Promise, OpenError> {
    check(url)?;
    scheme_of(url).map(|scheme| (scheme.promise)(url))
}

/// Returns how the servers of a URL are checked; `None` if opening and probing its engine is the check.
pub fn inspection_of(url: &str) -> Result<Option<Inspect>, OpenError> {
    check(url)?;
    scheme_of(url).map(|scheme| scheme.inspect)
}

/// Returns the bound of a URL: `memory:`, or `memory:?max_bytes=N`.
fn bytes_max(url: &str) -> Result<u64, OpenError> {
    let query = url.split_once(':').map_or("", |(_, query)| query);
    if query.is_empty() {
        return Ok(BYTES_MAX_DEFAULT);
    }
    let bytes = query.strip_prefix("?max_bytes=").and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| OpenError::new("a memory engine is written as memory: or memory:?max_bytes=1073741824"))
}

fn scheme_of(url: &str) -> Result<&'static Scheme, OpenError> {
    let name = url.split_once(':').map_or("", |(name, _)| name);
    let scheme = SCHEMES.iter().copied().find(|scheme| scheme.names.contains(&name));
    scheme.ok_or_else(|| {
        if OPTIONAL.contains(&name) {
            return OpenError::new("this build leaves out this engine; build with its feature, or use another engine");
        }
        // A name without the rest of its form.
        let form = SCHEMES.iter().find(|scheme| scheme.names.contains(&url)).and_then(|scheme| scheme.forms.first());
        if let Some(form) = form {
            return OpenError::new(format_args!("write {form} in place of {url}"));
        }
        let forms: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.forms).copied().collect();
        OpenError::new(format_args!("an engine is written as {}", forms.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::capability::Capability;

    use super::*;

    #[test]
    fn the_promises_of_a_url_are_those_of_its_engine() {
        let clock = Arc::new(oncegate_core::clock::SystemClock::new());
        let folder = tempfile::tempdir().unwrap();
        for url in ["memory:".to_owned(), format!("disk:{}", folder.path().join("claims").display())] {
            let Ok(engine) = open(&url, clock.clone(), Vec::new()) else { continue };
            let (promised, actual) = (capabilities_of(&url).unwrap(), engine.capabilities());
            for capability in [Capability::Durable, Capability::StrictFence, Capability::Forever, Capability::Shared] {
                assert_eq!(capability.is_in(promised), capability.is_in(actual), "{url}: {capability:?}");
            }
        }
        assert!(capabilities_of("memry:").is_err());
    }

    #[test]
    fn the_files_that_a_url_names_are_checked() {
        assert!(check_files("memory:").is_ok() && check_files("memry:").is_err());
        if cfg!(feature = "redis") {
            let refused = check_files("rediss://h?ca=no-such-file.pem").unwrap_err().to_string();
            assert!(refused.contains("no-such-file.pem"), "{refused}");
        }
    }

    #[test]
    fn an_unknown_url_is_rejected_with_the_forms_of_all_engines() {
        for good in ["memory:", "memory:?max_bytes=1000"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for wrong in ["", "memory", "memry:", "disk:", "memory:?max_bytes=0", "memory:?max=1", "http://x"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        for (name, part) in
            [("memory", "write memory: in place of memory"), ("disk", "write disk:PATH"), ("redis", "write redis://")]
        {
            let error = check(name).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part) || !SCHEMES.iter().any(|scheme| scheme.names.contains(&name)), "{error}");
        }
        let error = check("http://x").unwrap_err().to_string();
        assert!(SCHEMES.iter().flat_map(|scheme| scheme.forms).all(|form| error.contains(form)), "{error}");
    }

    #[test]
    fn every_optional_engine_is_in_the_table_or_left_out_of_the_build() {
        for name in OPTIONAL {
            let error = scheme_of(&format!("{name}:")).err();
            assert!(error.is_none_or(|error| error.to_string().contains("leaves out")), "{name}");
        }
    }

    #[test]
    fn urls_of_one_server_have_an_address_in_common() {
        for (one, other) in [
            ("redis://h", "rediss://u:p@H:6379/1?prefix=b"),
            ("postgres://u:p@h/a", "postgresql://h:5432/b?connections=7"),
            ("etcd://e1,e2,e3/a", "etcds://x:y@e3:2379"),
            ("zookeeper://z1", "zookeeper://z2,z1:2181/shop"),
            ("redis+sentinel://s1/main", "redis+sentinel://s2,s1:26379/main?prefix=a"),
            ("redis://[::1]", "redis://[::1]:6379"),
        ] {
            assert!(common_address(one, other).is_some() || scheme_of(one).is_err(), "{one} {other}");
        }
        for (one, other) in [
            ("redis://h", "redis://h:6380"),
            ("redis://h:2379", "etcd://h:2379"),
            ("redis+sentinel://s1/main", "redis+sentinel://s1/other"),
            ("memory:", "memory:"),
            ("disk:./a", "disk:./a"),
        ] {
            assert_eq!(common_address(one, other), None, "{one} {other}");
        }
    }

    #[test]
    fn errors_do_not_repeat_a_password() {
        let secret = "redis://user:hunter2@host?prefx=a";
        assert!(!check(secret).unwrap_err().to_string().contains("hunter2"));
    }
}
