//! Opens an engine by its URL: `memory:`, `disk:PATH`, `redis://…`, `rediss://…`,
//! `postgres://…`.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{Capabilities, Engine, memory};
use crate::domain::clock::Clock;

/// Whether [`open`] would understand this URL. Opens nothing and asks nobody.
///
/// # Errors
/// What is wrong with the URL, and what to write instead. Never repeats a password.
pub fn check(url: &str) -> Result<(), OpenError> {
    match parse(url)? {
        Parsed::Memory { .. } => Ok(()),
        Parsed::Disk { .. } if cfg!(feature = "disk") => Ok(()),
        Parsed::Disk { .. } => Err(OpenError(LEFT_OUT.into())),
        Parsed::Redis => check_redis(url),
        Parsed::Postgres => check_postgres(url),
    }
}

/// Whether the certificates and keys are any good that this URL names. Blocks.
///
/// # Errors
/// What is wrong with the URL or with which file. Never repeats a password, or what a file holds.
pub fn check_files(url: &str) -> Result<(), OpenError> {
    match parse(url)? {
        Parsed::Redis => check_redis_files(url),
        _ => Ok(()),
    }
}

/// Opens the engine that a URL names. The store need not be up, unless it is a folder of this machine. Reads that
/// folder, so it may block for a while. Connections to the store live on the runtimes of `cores` in turn, so that calls from
/// there find one beside them; without any, on the current one.
///
/// # Errors
/// What is wrong with the URL or the folder, and what to write instead. Never repeats a password.
pub fn open(url: &str, clock: Arc<dyn Clock>, cores: Vec<Handle>) -> Result<Arc<dyn Engine>, OpenError> {
    match parse(url)? {
        Parsed::Memory { bytes_max } => Ok(Arc::new(memory::Memory::new(clock, bytes_max))),
        Parsed::Disk { path } => open_disk(path, clock),
        Parsed::Redis => open_redis(url, cores),
        Parsed::Postgres => open_postgres(url, cores),
    }
}

/// What the engine of this URL promises at best; one that is asked while it runs may promise less. Opens nothing and asks
/// nobody.
///
/// # Errors
/// As of [`check`].
pub fn capabilities_of(url: &str) -> Result<Capabilities, OpenError> {
    let none = Capabilities { strict_fence: false, durable: false, shared: false, forever: false, lists: false };
    Ok(match parse(url)? {
        Parsed::Memory { .. } => Capabilities { strict_fence: true, lists: true, ..none },
        Parsed::Disk { .. } => Capabilities { strict_fence: true, durable: true, forever: true, lists: true, ..none },
        // Whether it is durable depends on how the server is configured.
        Parsed::Redis => Capabilities { durable: true, shared: true, forever: true, ..none },
        Parsed::Postgres => {
            Capabilities { strict_fence: true, durable: true, shared: true, forever: true, lists: true }
        }
    })
}

/// What a URL says, as far as this file reads it.
enum Parsed<'a> {
    Memory { bytes_max: u64 },
    Disk { path: &'a str },
    Redis,
    Postgres,
}

fn parse(url: &str) -> Result<Parsed<'_>, OpenError> {
    let how_to_write = || OpenError(HOW_TO_WRITE.into());
    let (scheme, rest) = url.split_once(':').ok_or_else(how_to_write)?;
    match scheme {
        "memory" => Ok(Parsed::Memory { bytes_max: memory_bytes_max(rest)? }),
        "disk" if !rest.is_empty() => Ok(Parsed::Disk { path: rest }),
        "redis" | "rediss" => Ok(Parsed::Redis),
        "postgres" | "postgresql" => Ok(Parsed::Postgres),
        _ => Err(how_to_write()),
    }
}

#[cfg(feature = "disk")]
fn open_disk(path: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    let disk = super::disk::Disk::open(path.as_ref(), clock, super::disk::Options::default());
    disk.map(|disk| Arc::new(disk) as Arc<dyn Engine>).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "disk"))]
fn open_disk(_path: &str, _clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

#[cfg(feature = "redis")]
fn open_redis(url: &str, cores: Vec<Handle>) -> Result<Arc<dyn Engine>, OpenError> {
    let redis = super::redis::Redis::open(url, super::redis::Options { cores, ..Default::default() });
    redis.map(|redis| Arc::new(redis) as Arc<dyn Engine>).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "redis"))]
fn open_redis(_url: &str, _cores: Vec<Handle>) -> Result<Arc<dyn Engine>, OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

#[cfg(feature = "redis")]
fn check_redis(url: &str) -> Result<(), OpenError> {
    super::redis::Redis::check(url).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "redis"))]
fn check_redis(_url: &str) -> Result<(), OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

#[cfg(feature = "postgres")]
fn open_postgres(url: &str, cores: Vec<Handle>) -> Result<Arc<dyn Engine>, OpenError> {
    let postgres = super::postgres::Postgres::open(url, super::postgres::Options { cores, ..Default::default() });
    postgres.map(|postgres| Arc::new(postgres) as Arc<dyn Engine>).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "postgres"))]
fn open_postgres(_url: &str, _cores: Vec<Handle>) -> Result<Arc<dyn Engine>, OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

#[cfg(feature = "postgres")]
fn check_postgres(url: &str) -> Result<(), OpenError> {
    super::postgres::Postgres::check(url).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "postgres"))]
fn check_postgres(_url: &str) -> Result<(), OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

#[cfg(feature = "redis")]
fn check_redis_files(url: &str) -> Result<(), OpenError> {
    super::redis::Redis::check_files(url).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "redis"))]
fn check_redis_files(_url: &str) -> Result<(), OpenError> {
    Err(OpenError(LEFT_OUT.into()))
}

const LEFT_OUT: &str = "this build leaves out the feature of this engine; build with it, or use another engine";

const HOW_TO_WRITE: &str = "an engine is written as memory:, disk:PATH, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or \
     postgres://USER:PASSWORD@HOST:PORT/DATABASE, such as disk:./claims";

/// The part of `memory:` after the colon: nothing, or `?max_bytes=N`.
fn memory_bytes_max(rest: &str) -> Result<u64, OpenError> {
    match rest.strip_prefix("?max_bytes=") {
        None if rest.is_empty() => Ok(memory::BYTES_MAX_DEFAULT),
        Some(bytes) if bytes.parse::<u64>().is_ok_and(|bytes| bytes > 0) => Ok(bytes.parse().unwrap_or_default()),
        _ => Err(OpenError("a memory engine is written as memory: or memory:?max_bytes=1073741824".into())),
    }
}

/// An engine that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::capability::Capability;

    #[test]
    fn what_a_url_promises_is_what_its_engine_promises() {
        let clock = Arc::new(crate::domain::clock::SystemClock::new());
        let folder = tempfile::tempdir().unwrap();
        for url in ["memory:".to_owned(), format!("disk:{}", folder.path().join("claims").display())] {
            let Ok(engine) = open(&url, clock.clone(), Vec::new()) else { continue };
            let (told, promised) = (capabilities_of(&url).unwrap(), engine.capabilities());
            for capability in [Capability::Durable, Capability::StrictFence, Capability::Forever, Capability::Shared] {
                assert_eq!(capability.is_in(told), capability.is_in(promised), "{url}: {capability:?}");
            }
        }
        assert!(capabilities_of("memry:").is_err());
    }

    #[test]
    fn urls_that_name_no_engine_are_told_how_to_write_one() {
        for good in ["memory:", "memory:?max_bytes=1000", "disk:./claims"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for wrong in ["", "memory", "memry:", "disk:", "memory:?max_bytes=0", "memory:?max=1", "http://x"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        let secret = "redis://user:hunter2@host?prefx=a";
        assert!(!check(secret).unwrap_err().to_string().contains("hunter2"));
    }
}
