//! The process's limit of open files, which also bounds its connections.

use rustix::process::{Resource, getrlimit};

/// Warns if the process may have fewer open files than connections.
pub(super) fn check(connections: usize) {
    let Some(files) = getrlimit(Resource::Nofile).current else { return };
    if u64::try_from(connections).unwrap_or(u64::MAX) >= files {
        tracing::warn!(
            connections,
            files,
            "limits.connections is not below the number of files that this process may open, so connections will fail \
             before that limit is reached. Raise the limit of open files (`ulimit -n`, LimitNOFILE= of systemd), or lower \
             limits.connections"
        );
    }
}
