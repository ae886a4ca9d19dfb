//! Registry of apps in a database: turns its rows into apps, and checks operators' changes before they are stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use oncegate_admin::{Lifecycle, Stage};
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::tenant::AppKey;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::follow::{Follower, RegistryObserver};
use oncegate_gateway::tenants::postgres::Database;
use oncegate_gateway::tenants::secret::Secret;
use oncegate_gateway::tenants::stored::{
    Catalog, CatalogError, ListedApp, ListedSecret, RevokeScope, StoredApp, StoredSecret,
};
use oncegate_gateway::tenants::{App, Registry};
use oncegate_telemetry::metrics::tenants::RegistryMetrics;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::apps;
use crate::config::Config;

type Problems = Arc<Mutex<BTreeMap<AppKey, String>>>;

/// Follows the configured registry until it is stopped.
pub(super) fn follow(
    loader: AppLoader,
    config_changed: Arc<Notify>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    stop: CancellationToken,
) -> anyhow::Result<DatabaseCatalog> {
    let AppLoader { config, registry, problems, .. } = &loader;
    let (config, registry, problems) = (config.clone(), registry.clone(), problems.clone());
    let database = Database::at(&config.load().registry.url).context("registry.url")?;
    let follower = Arc::new(Follower::new(database, registry.clone(), clock, Box::new(loader), config_changed));
    let following = follower.clone();
    tokio::spawn(async move { stop.run_until_cancelled(following.run()).await });
    Ok(DatabaseCatalog { follower, config, registry, entropy, problems })
}

/// Updates the process's apps from the registry.
pub(super) struct AppLoader {
    config: Arc<ArcSwap<Config>>,
    registry: Arc<Registry>,
    gateway: Arc<Gateway>,
    lifecycle: Arc<Lifecycle>,
    metrics: RegistryMetrics,
    /// Problems that were logged.
    problems: Problems,
}

impl AppLoader {
    /// Returns a loader that has not loaded anything yet.
    pub(super) fn new(
        config: Arc<ArcSwap<Config>>,
        registry: Arc<Registry>,
        gateway: Arc<Gateway>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let (metrics, problems) = (RegistryMetrics::default(), Problems::default());
        Self { config, registry, gateway, lifecycle, metrics, problems }
    }

    /// Returns the app of a row. An app with invalid settings keeps its old ones, but not revoked secrets, and not its
    /// being enabled.
    fn app(&self, stored: &StoredApp) -> (Option<App>, Option<String>) {
        match parse_app(&self.config.load(), stored) {
            Ok(app) => (Some(app), None),
            Err(problem) => {
                let old = self.registry.app(stored.key.as_ref());
                let secrets = stored.secrets.iter().map(|secret| secret.digest.clone()).collect();
                let kept = old.map(|old| App { secrets, disabled: stored.disabled, ..App::clone(&old) });
                (kept, Some(problem))
            }
        }
    }
}

impl RegistryObserver for AppLoader {
    fn apps_changed(&self, stored: Vec<StoredApp>) {
        let mut problems = BTreeMap::new();
        let mut apps = Vec::with_capacity(stored.len());
        let mut known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for stored in stored {
            let (app, problem) = self.app(&stored);
            if let Some(problem) = problem {
                if known.get(&stored.key) != Some(&problem) {
                    let kept = app.is_some();
                    tracing::error!(app.key = %stored.key, error = problem, app.kept = kept, "App of the registry has invalid settings");
                }
                problems.insert(stored.key, problem);
            }
            apps.extend(app);
        }
        self.metrics.set_apps_refused(u32::try_from(problems.len()).unwrap_or(u32::MAX));
        *known = problems;
        drop(known);
        let (count, first) = (apps.len(), self.registry.is_loading());
        self.registry.replace(apps);
        self.gateway.measure_apps(&self.registry.apps(), self.config.load().limits.metric_operations);
        if first {
            tracing::info!(apps = count, "Registry of apps has answered: in service");
            self.lifecycle.enter(Stage::Ready);
        } else {
            tracing::debug!(apps = count, "Apps loaded from the registry");
        }
    }

    fn checked(&self, up: bool, copy_age: Duration) {
        self.metrics.checked(up, copy_age);
    }
}

/// Returns the app of a row, or its problems.
fn parse_app(config: &Config, stored: &StoredApp) -> Result<App, String> {
    let config = config.of_stored(stored).map_err(|problems| {
        let lines: Vec<_> = problems.0.iter().map(ToString::to_string).collect();
        lines.join("; ")
    })?;
    let options = config.apps.get(&stored.key).ok_or("it is not there")?;
    apps::app(&config, &stored.key, options).map_err(|error| format!("{error:#}"))
}

pub(super) struct DatabaseCatalog {
    follower: Arc<Follower>,
    config: Arc<ArcSwap<Config>>,
    registry: Arc<Registry>,
    entropy: Arc<dyn Entropy>,
    problems: Problems,
}

#[async_trait]
impl Catalog for DatabaseCatalog {
    fn is_changeable(&self) -> bool {
        true
    }

    async fn list(&self) -> Result<Vec<ListedApp>, CatalogError> {
        let snapshot = self.follower.database().read().await?;
        Ok(snapshot.apps.into_iter().map(|stored| self.listed(stored)).collect())
    }

    async fn create(&self, key: &AppKey, settings: String, chain: Option<String>) -> Result<Secret, CatalogError> {
        let secret = Secret::random(&*self.entropy);
        let digest = secret.digest();
        let first = StoredSecret { digest: digest.clone(), created_at: Timestamp::default(), last_used_at: None };
        let stored = StoredApp { key: key.clone(), settings, chain, disabled: false, secrets: vec![first] };
        parse_app(&self.config.load(), &stored).map_err(CatalogError::Invalid)?;
        self.follower.database().create(key, &stored.settings, stored.chain.as_deref(), &digest).await?;
        self.follower.poll_now();
        Ok(secret)
    }

    async fn rotate(&self, key: &AppKey, revoked: RevokeScope) -> Result<Secret, CatalogError> {
        let secret = Secret::random(&*self.entropy);
        let rotated = self.follower.database().rotate(key, &secret.digest(), revoked).await;
        self.follower.poll_now();
        match rotated {
            Ok(()) => Ok(secret),
            // Otherwise the next rotation would keep an unknown secret, and revoke the one in use.
            Err(CatalogError::Unavailable(why)) => Err(CatalogError::Unavailable(format!(
                "{why}; if the app has the secret {} now, revoke that one before you rotate again",
                secret.digest().id()
            ))),
            Err(other) => Err(other),
        }
    }

    async fn revoke(&self, key: &AppKey, secret_id: &str) -> Result<ListedApp, CatalogError> {
        let snapshot = self.follower.database().read().await?;
        let app = snapshot.apps.into_iter().find(|app| app.key == *key).ok_or(CatalogError::Unknown(key.clone()))?;
        let secret = app.secrets.iter().find(|secret| secret.digest.id() == secret_id).ok_or_else(|| {
            let live: Vec<_> = app.secrets.iter().map(|secret| secret.digest.id()).collect();
            CatalogError::Invalid(format!("`secret_id`: the app has no such secret; it has {}", live.join(", ")))
        })?;
        self.follower.database().revoke(key, &secret.digest).await?;
        self.changed(key).await
    }

    async fn set_disabled(&self, key: &AppKey, disabled: bool) -> Result<ListedApp, CatalogError> {
        self.follower.database().set_disabled(key, disabled).await?;
        self.changed(key).await
    }
}

impl DatabaseCatalog {
    /// Returns an app after a change, and applies the change here at once.
    async fn changed(&self, key: &AppKey) -> Result<ListedApp, CatalogError> {
        self.follower.poll_now();
        let apps = self.list().await?;
        apps.into_iter().find(|app| app.key == *key).ok_or(CatalogError::Unknown(key.clone()))
    }

    fn listed(&self, stored: StoredApp) -> ListedApp {
        let seen = self.registry.app(stored.key.as_ref());
        let secret = |secret: &StoredSecret| ListedSecret {
            id: secret.digest.id(),
            created_at: Some(secret.created_at),
            last_used_at: secret.last_used_at.max(seen.as_ref().and_then(|app| app.usage.last_use(&secret.digest))),
        };
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        ListedApp {
            chain: stored.chain.clone().unwrap_or_else(|| self.config.load().defaults.chain.clone()),
            disabled: stored.disabled,
            secrets: stored.secrets.iter().map(secret).collect(),
            problem: problems.get(&stored.key).cloned(),
            key: stored.key,
        }
    }
}
