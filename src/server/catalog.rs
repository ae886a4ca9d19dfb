//! What operators can do to apps, by where those are. The apps of the configuration are here: they can be looked at, and
//! are changed by whoever writes the file.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::admin::health::Lifecycle;
use crate::config::Config;
use crate::domain::attempt::Entropy;
use crate::domain::clock::Clock;
use crate::domain::tenant::AppKey;
use crate::gateway::Gateway;
use crate::tenants::secret::Secret;
use crate::tenants::stored::{Catalog, CatalogError, ListedApp, ListedSecret, RevokeScope};
use crate::tenants::{App, Registry};

/// What a gateway's apps depend on, and what depends on them.
#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only a registry in a database needs all of it"))]
pub(super) struct Around {
    /// The configuration in force.
    pub(super) config: Arc<ArcSwap<Config>>,
    /// Tells when it has changed.
    pub(super) reread: Arc<Notify>,
    pub(super) registry: Arc<Registry>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) stop: CancellationToken,
}

/// The apps, wherever they are. Those in a database are followed from now on.
pub(super) fn start(around: Around) -> anyhow::Result<Arc<dyn Catalog>> {
    if !around.config.load().registry.is_set() {
        return Ok(Arc::new(InConfiguration(around.registry)));
    }
    #[cfg(feature = "postgres")]
    return Ok(Arc::new(super::registry::follow(around)?));
    #[cfg(not(feature = "postgres"))]
    anyhow::bail!("registry.url: this program was built without PostgreSQL");
}

/// The apps of the configuration.
struct InConfiguration(Arc<Registry>);

#[async_trait]
impl Catalog for InConfiguration {
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
