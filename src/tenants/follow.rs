//! Follows the registry of apps in a database: every change reaches this process within seconds. While the registry does
//! not answer, the last copy serves.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Registry;
use super::postgres::{Database, Session};
use super::secret::SecretDigest;
use super::stored::StoredApp;
use crate::database::Refused;
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::tenant::AppKey;

/// Between two looks at the registry's version.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// By when everything is read again although the version is the same: it would be, after a registry was put back from a
/// backup and changed as often as before.
const READ_EVERY: Duration = Duration::from_mins(1);

/// What the follower is told to do with what it finds, by those who know how apps are made and measured.
pub trait RegistryObserver: Send + Sync + 'static {
    /// These are the apps now.
    fn apps(&self, apps: Vec<StoredApp>);
    /// Whether the registry has just answered, and how old the copy is.
    fn asked(&self, up: bool, copy_age: Duration);
}

/// A process's copy of the registry, and how it is kept.
pub struct Follower {
    database: Database,
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    observer: Box<dyn RegistryObserver>,
    look_now: Arc<Notify>,
}

/// How far a follower has come.
#[derive(Default)]
struct Progress {
    version: Option<i64>,
    read_at: Duration,
    /// When the copy was last known to be right.
    right_at: Duration,
    /// The last uses that the registry has been told of.
    recorded: HashMap<(AppKey, SecretDigest), Timestamp>,
    /// Whether the log has told that the registry is out.
    told: bool,
}

impl Follower {
    /// Follows this registry; nothing happens before [`run`](Follower::run). Everything is read again whenever `look_now`
    /// says so.
    pub fn new(
        database: Database,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        observer: Box<dyn RegistryObserver>,
        look_now: Arc<Notify>,
    ) -> Self {
        Self { database, registry, clock, observer, look_now }
    }

    /// The registry, for changes.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Everything is to be read again now: something has changed here, and other gateways will see it soon enough.
    pub fn look_now(&self) {
        self.look_now.notify_one();
    }

    /// Follows for ever.
    pub async fn run(&self) {
        let mut progress = Progress { right_at: self.clock.monotonic(), ..Progress::default() };
        loop {
            let failed = match self.database.open().await {
                Ok(session) => self.follow(session, &mut progress).await,
                Err(refused) => refused,
            };
            self.observer.asked(false, self.clock.monotonic().saturating_sub(progress.right_at));
            // What was read next may be another server's: nothing is taken to be the same.
            progress.version = None;
            if !progress.told {
                progress.told = true;
                let (registry, error) = (self.database.name(), failed.to_string());
                if self.registry.is_loading() {
                    tracing::error!(
                        registry,
                        error,
                        "the registry of apps does not answer; not in service until it does"
                    );
                } else {
                    tracing::error!(
                        registry,
                        error,
                        "the registry of apps does not answer; the last copy of it serves"
                    );
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Follows over one connection until that fails.
    async fn follow(&self, mut session: Session, progress: &mut Progress) -> Refused {
        loop {
            if let Err(refused) = self.look(&mut session, progress).await {
                return refused;
            }
            self.observer.asked(true, Duration::ZERO);
            if progress.told {
                progress.told = false;
                tracing::info!(registry = self.database.name(), "the registry of apps answers again");
            }
            if timeout(LOOK_EVERY, self.look_now.notified()).await.is_ok() {
                progress.version = None;
            }
        }
    }

    async fn look(&self, session: &mut Session, progress: &mut Progress) -> Result<(), Refused> {
        let now = self.clock.monotonic();
        let version = session.version().await?;
        if progress.version != Some(version) || now.saturating_sub(progress.read_at) >= READ_EVERY {
            let snapshot = session.read().await?;
            // Not the version asked for first: what was read may be newer.
            progress.version = Some(snapshot.version);
            progress.read_at = now;
            self.observer.apps(snapshot.apps);
        }
        progress.right_at = now;
        self.record_uses(session, progress).await
    }

    /// Tells the registry which secrets were used, so that an operator sees which one nobody uses any more. What is recorded of
    /// a secret changes once a minute at most, and so does what is written.
    async fn record_uses(&self, session: &mut Session, progress: &mut Progress) -> Result<(), Refused> {
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
