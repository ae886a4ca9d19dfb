//! Follows the registry of apps in a database: each change reaches this process within seconds. While the registry is
//! unavailable, the last copy stays in use.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::tenant::AppKey;
use oncegate_database::DatabaseError;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Registry;
use super::postgres::{Database, Session};
use super::secret::SecretDigest;
use super::stored::StoredApp;

/// Interval between two checks of the registry's version.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which everything is read although the version is unchanged: a registry restored from a backup may have
/// reached the same version with other content.
const FULL_READ_INTERVAL: Duration = Duration::from_mins(1);

/// Receives the reads of a follower.
pub trait RegistryObserver: Send + Sync + 'static {
    /// Receives all apps, after a change.
    fn apps_changed(&self, apps: Vec<StoredApp>);
    /// Receives the result of each check: whether the registry answered, and the age of the copy.
    fn checked(&self, up: bool, copy_age: Duration);
}

/// Keeps a process's copy of the registry up to date.
pub struct Follower {
    database: Database,
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    observer: Box<dyn RegistryObserver>,
    poll_now: Arc<Notify>,
}

/// State of a follower.
#[derive(Default)]
struct Progress {
    version: Option<i64>,
    read_at: Duration,
    /// Last time at which the copy was known to be current.
    current_at: Duration,
    /// Last uses as the registry has stored them.
    recorded: HashMap<(AppKey, SecretDigest), Timestamp>,
    /// True if the current outage has been logged.
    outage_logged: bool,
}

impl Follower {
    /// Returns a follower that starts with [`run`](Follower::run) and reads everything whenever `poll_now` is notified.
    pub fn new(
        database: Database,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        observer: Box<dyn RegistryObserver>,
        poll_now: Arc<Notify>,
    ) -> Self {
        Self { database, registry, clock, observer, poll_now }
    }

    /// Returns the registry, for changes.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Reads everything soon, after a change by this process; other gateways see it at their next check.
    pub fn poll_now(&self) {
        self.poll_now.notify_one();
    }

    /// Follows until the task is dropped.
    pub async fn run(&self) {
        let mut progress = Progress { current_at: self.clock.monotonic(), ..Progress::default() };
        loop {
            let failed = match self.database.open().await {
                Ok(session) => self.follow(session, &mut progress).await,
                Err(refused) => refused,
            };
            self.checked(false, self.clock.monotonic().saturating_sub(progress.current_at));
            // The next connection may lead to another server, and an equal version of that server has no meaning.
            progress.version = None;
            if !progress.outage_logged {
                progress.outage_logged = true;
                let (registry, error) = (self.database.name(), failed.to_string());
                if self.registry.is_loading() {
                    tracing::error!(registry, error, "Registry of apps does not answer; not in service until it does");
                } else {
                    tracing::error!(registry, error, "Registry of apps does not answer; using the last copy");
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Records whether the registry has answered, and the age of the copy.
    fn checked(&self, up: bool, copy_age: Duration) {
        self.registry.checked(up);
        self.observer.checked(up, copy_age);
    }

    /// Follows over one connection until it fails.
    async fn follow(&self, mut session: Session, progress: &mut Progress) -> DatabaseError {
        loop {
            if let Err(refused) = self.poll(&mut session, progress).await {
                return refused;
            }
            self.checked(true, Duration::ZERO);
            if progress.outage_logged {
                progress.outage_logged = false;
                tracing::info!(registry = self.database.name(), "Registry of apps answers again");
            }
            if timeout(POLL_INTERVAL, self.poll_now.notified()).await.is_ok() {
                progress.version = None;
            }
        }
    }

    async fn poll(&self, session: &mut Session, progress: &mut Progress) -> Result<(), DatabaseError> {
        let now = self.clock.monotonic();
        let version = session.version().await?;
        if progress.version != Some(version) || now.saturating_sub(progress.read_at) >= FULL_READ_INTERVAL {
            let snapshot = session.read().await?;
            // The version of the snapshot: it may be newer than the one read first.
            progress.version = Some(snapshot.version);
            progress.read_at = now;
            self.observer.apps_changed(snapshot.apps);
        }
        progress.current_at = now;
        self.record_uses(session, progress).await
    }

    /// Stores the last use of each secret, so that operators see unused ones. They change once a minute at
    /// most.
    async fn record_uses(&self, session: &mut Session, progress: &mut Progress) -> Result<(), DatabaseError> {
        let mut uses: Vec<(AppKey, SecretDigest, Timestamp)> = Vec::new();
        for app in self.registry.apps() {
            for secret in &app.secrets {
                uses.extend(app.usage.last_use(secret).map(|at| (app.key.clone(), secret.clone(), at)));
            }
        }
        let recorded = uses.iter().map(|(key, secret, at)| ((key.clone(), secret.clone()), *at)).collect();
        uses.retain(|(key, secret, at)| progress.recorded.get(&(key.clone(), secret.clone())) != Some(at));
        if !uses.is_empty() {
            session.record_uses(&uses).await?;
        }
        progress.recorded = recorded;
        Ok(())
    }
}
