//! The process's limit of open files, which also bounds its connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Files besides the connections of callers and upstreams: the admin listener, stores, logs, data.
const OTHERS: usize = 512;

/// Raises the limit of open files to the highest allowed value. Warns if the process may need more.
pub(super) fn check(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If the system refuses, the limit does not change.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    let Some(files) = getrlimit(Resource::Nofile).current else { return };
    let needed = needed(config);
    if u64::try_from(needed).unwrap_or(u64::MAX) > files {
        tracing::warn!(
            needed,
            files,
            "limits.connections, and the exchanges and WebSockets of upstreams, may need more files than this process may open. Then \
             connections fail before these limits are reached, those to stores too. Raise the limit of open files (`ulimit -n`, \
             LimitNOFILE= of systemd), or lower limits.connections"
        );
    }
}

/// Returns the number of files that are open if each bound on connections is reached.
fn needed(config: &Config) -> usize {
    let (listeners, upstreams) = match config.proxy.listen {
        Some(_) => (2, config.proxy.upstreams.values().map(|of| of.exchanges.saturating_add(of.websockets)).sum()),
        None => (1, 0),
    };
    config.limits.connections.saturating_mul(listeners).saturating_add(upstreams).saturating_add(OTHERS)
}
