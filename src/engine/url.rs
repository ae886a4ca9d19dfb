//! Opens an engine by its URL: `memory:`, `disk:PATH`, `redis://…`, `rediss://…`.

use std::sync::Arc;

use super::{Engine, memory};
use crate::domain::clock::Clock;

/// Opens the engine that a URL names. The store need not be up, unless it is a folder of this machine. Reads that
/// folder, so it may block for a while.
///
/// # Errors
/// What is wrong with the URL or the folder, and what to write instead. Never repeats a password.
pub fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    let (scheme, rest) = url.split_once(':').ok_or_else(|| OpenError(HOW_TO_WRITE.into()))?;
    match scheme {
        "memory" => Ok(Arc::new(memory::Memory::new(clock, memory_bytes_max(rest)?))),
        "disk" => open_disk(rest, clock),
        "redis" | "rediss" => open_redis(url),
        "postgres" | "postgresql" => {
            Err(OpenError("this release has no PostgreSQL engine yet; use redis:// or disk:".into()))
        }
        _ => Err(OpenError(HOW_TO_WRITE.into())),
    }
}

#[cfg(feature = "disk")]
fn open_disk(path: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    if path.is_empty() {
        return Err(OpenError(HOW_TO_WRITE.into()));
    }
    let disk = super::disk::Disk::open(path.as_ref(), clock, super::disk::Options::default());
    disk.map(|disk| Arc::new(disk) as Arc<dyn Engine>).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "disk"))]
fn open_disk(_path: &str, _clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    Err(OpenError("this build leaves out the feature `disk`; build with it, or use another engine".into()))
}

#[cfg(feature = "redis")]
fn open_redis(url: &str) -> Result<Arc<dyn Engine>, OpenError> {
    let redis = super::redis::Redis::open(url, super::redis::Options::default());
    redis.map(|redis| Arc::new(redis) as Arc<dyn Engine>).map_err(|why| OpenError(why.to_string()))
}

#[cfg(not(feature = "redis"))]
fn open_redis(_url: &str) -> Result<Arc<dyn Engine>, OpenError> {
    Err(OpenError("this build leaves out the feature `redis`; build with it, or use another engine".into()))
}

const HOW_TO_WRITE: &str =
    "an engine is written as memory:, disk:PATH, redis://HOST:PORT/DB or rediss://HOST:PORT/DB, such as disk:./claims";

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
