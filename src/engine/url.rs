//! Opens an engine by its URL: `memory:`, `disk:PATH`, `redis://…`, `rediss://…`.

use std::sync::Arc;

use super::{Engine, memory};
use crate::domain::clock::Clock;

/// Opens the engine that a URL names. The store need not be up, unless it is a folder of this machine.
///
/// # Errors
/// What is wrong with the URL or the folder, and what to write instead. Never repeats a password.
pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
    let (scheme, rest) = url.split_once(':').ok_or_else(|| OpenError(HOW_TO_WRITE.into()))?;
    match scheme {
        "memory" => Ok(Arc::new(memory::Memory::new(clock, memory_bytes_max(rest)?))),
        "postgres" | "postgresql" => {
            Err(OpenError("this release has no PostgreSQL engine yet; use redis:// or disk:".into()))
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" => match super::redis::Redis::open(url, super::redis::Options::default()) {
            Ok(redis) => Ok(Arc::new(redis)),
            Err(why) => Err(OpenError(why.to_string())),
        },
        "disk" => Err(OpenError("this build leaves out the feature of `disk:` engines".into())),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" => Err(OpenError(format!("this build leaves out the feature of `{scheme}:` engines"))),
        _ => Err(OpenError(HOW_TO_WRITE.into())),
    }
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
