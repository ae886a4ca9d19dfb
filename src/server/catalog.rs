//! Catalog of apps for the admin API, by where the apps are. Apps of the configuration can be listed only: they are
//! changed in the file.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use oncegate_admin::Lifecycle;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::tenant::AppKey;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::secret::Secret;
use oncegate_gateway::tenants::stored::{Catalog, CatalogError, ListedApp, ListedSecret, RevokeScope};
use oncegate_gateway::tenants::{App, Registry};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "postgres")]
use super::registry::{self, AppLoader};
use crate::config::Config;

#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only a registry in a database needs all of it"))]
pub(super) struct Dependencies {
    /// The configuration in effect.
    pub(super) config: Arc<ArcSwap<Config>>,
    /// Notified when the configuration has changed.
    pub(super) config_changed: Arc<Notify>,
    pub(super) registry: Arc<Registry>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) stop: CancellationToken,
}

/// Returns the catalog of the configuration or of the registry, and follows the latter from now on.
pub(super) fn start(dependencies: Dependencies) -> anyhow::Result<Arc<dyn Catalog>> {
    if !dependencies.config.load().registry.is_set() {
        return Ok(Arc::new(ConfigCatalog(dependencies.registry)));
    }
    #[cfg(feature = "postgres")]
    {
        let Dependencies { config, config_changed, registry, gateway, lifecycle, clock, entropy, stop } = dependencies;
        let loader = AppLoader::new(config, registry, gateway, lifecycle);
        Ok(Arc::new(registry::follow(loader, config_changed, clock, entropy, stop)?))
    }
    #[cfg(not(feature = "postgres"))]
    anyhow::bail!("registry.url: this program was built without PostgreSQL");
}

/// Catalog of the configuration.
struct ConfigCatalog(Arc<Registry>);

#[async_trait]
impl Catalog for ConfigCatalog {
    fn is_changeable(&self) -> bool {
        false
    }

    async fn list(&self) -> Result<Vec<ListedApp>, CatalogError> {
        let mut apps = self.0.apps();
        apps.sort_by(|a, b| a.key.cmp(&b.key));
        let listed = |app: &Arc<App>| ListedApp {
            key: app.key.clone(),
            chain: app.chain.clone(),
            disabled: app.disabled,
            secrets: app
                .secrets
                .iter()
                .map(|digest| ListedSecret {
                    id: digest.id(),
                    created_at: None,
                    last_used_at: app.usage.last_use(digest),
                })
                .collect(),
            problem: None,
        };
        Ok(apps.iter().map(listed).collect())
    }

    async fn create(&self, _: &AppKey, _: String, _: Option<String>) -> Result<Secret, CatalogError> {
        Err(CatalogError::InConfiguration)
    }

    async fn rotate(&self, _: &AppKey, _: RevokeScope) -> Result<Secret, CatalogError> {
        Err(CatalogError::InConfiguration)
    }

    async fn revoke(&self, _: &AppKey, _: &str) -> Result<ListedApp, CatalogError> {
        Err(CatalogError::InConfiguration)
    }

    async fn set_disabled(&self, _: &AppKey, _: bool) -> Result<ListedApp, CatalogError> {
        Err(CatalogError::InConfiguration)
    }
}
