//! The open streams of the console, which are limited, and what one of them saw last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_gateway::tenants::secret::SecretDigest;

/// Streams of the gateway, and of one session. A browser has six connections for a host.
const STREAMS_MAX: usize = 32;
const STREAMS_OF_SESSION_MAX: usize = 4;

/// The open streams, and the last seen state.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<String, usize>>,
    pub(super) seen: tokio::sync::Mutex<Seen>,
}

/// The digests of the regions. One look serves all streams.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) at: Option<Duration>,
    pub(super) digests: Vec<Option<SecretDigest>>,
}

impl Streams {
    fn open(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream of this session, unless there are too many.
    pub(super) fn enter(&self, key: &str) -> bool {
        let mut open = self.open();
        let (all, own) = (open.values().sum::<usize>(), open.get(key).copied().unwrap_or_default());
        let has_room = all < STREAMS_MAX && own < STREAMS_OF_SESSION_MAX;
        if has_room {
            open.insert(key.to_owned(), own + 1);
        }
        has_room
    }

    /// Removes a stream of this session from the count.
    pub(super) fn leave(&self, key: &str) {
        let mut open = self.open();
        match open.get_mut(key) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(open.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_limited_for_a_session_and_for_all() {
        let streams = Streams::default();
        let entered = |key: &str| streams.enter(key);
        assert!((0..STREAMS_OF_SESSION_MAX).all(|_| entered("a")) && !entered("a"));
        streams.leave("a");
        assert!(entered("a") && !entered("a"));
        let others = (0..STREAMS_MAX).filter(|number| entered(&format!("s{number}"))).count();
        assert_eq!(others, STREAMS_MAX - STREAMS_OF_SESSION_MAX);
        (0..STREAMS_OF_SESSION_MAX).for_each(|_| streams.leave("a"));
        assert!(!streams.open().contains_key("a"));
    }
}
