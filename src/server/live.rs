//! What a gateway in service takes over of a configuration that was read again: its apps, the terms they have by default, the
//! tokens of operators, and the log level. Where any of it cannot be used, all stays as it was.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::data_dir::DataDir;
use super::{apps, operators};
use crate::admin::auth::Tokens;
use crate::config::{Config, Problems};
use crate::gateway::Gateway;
use crate::telemetry::logging::Log;
use crate::telemetry::metrics::tenants::ReloadMetrics;
use crate::tenants::Registry;

/// The configuration that a gateway in service is on, and what changes with it.
pub(super) struct Live {
    /// As the process started, but for what a running gateway takes over.
    config: Arc<ArcSwap<Config>>,
    registry: Arc<Registry>,
    gateway: Arc<Gateway>,
    tokens: Arc<Tokens>,
    log: Log,
    metrics: ReloadMetrics,
    /// Told when the apps of a registry are to be made again, since their defaults have changed.
    reread: Arc<Notify>,
}

impl Live {
    /// A gateway that starts with this configuration, which is in force.
    pub(super) fn new(
        config: &Config,
        registry: Arc<Registry>,
        gateway: Arc<Gateway>,
        tokens: Arc<Tokens>,
        log: Log,
    ) -> Self {
        let config = Arc::new(ArcSwap::from_pointee(config.clone()));
        Self { config, registry, gateway, tokens, log, metrics: ReloadMetrics::new(), reread: Arc::default() }
    }

    /// Tells when the apps of a registry are to be read again.
    pub(super) fn reread(&self) -> Arc<Notify> {
        self.reread.clone()
    }

    /// The configuration in force, now and later.
    pub(super) fn config(&self) -> Arc<ArcSwap<Config>> {
        self.config.clone()
    }

    /// Takes over what may change of a configuration that was read again. Where it cannot be used, the old one stays.
    pub(super) async fn reload(&self, read: Result<Config, Problems>, data_dir: &DataDir) {
        let taken = read.and_then(|new| {
            let running = self.config.load_full();
            Ok((running.restart_needed_for(&new), running.with_live_of(&new)?))
        });
        let applied = match taken {
            Ok((restart_needed, config)) => match data_dir.make_ready_for(&config).await {
                Ok(()) => self.apply(config).map(|()| restart_needed),
                Err(unusable) => Err(unusable),
            },
            Err(problems) => Err(problems.into()),
        };
        self.metrics.reloaded(applied.is_ok());
        match applied {
            Ok(restart_needed) => {
                tracing::info!(
                    "the configuration was read again: its apps, defaults, admin tokens and log level are in force"
                );
                if !restart_needed.is_empty() {
                    let tables = restart_needed.join(", ");
                    tracing::warn!(config.tables = tables, "changes of other tables need a restart to take effect");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the configuration was read again and cannot be used: all stays as it was");
            }
        }
    }

    fn apply(&self, config: Config) -> anyhow::Result<()> {
        let tokens = operators::of_config(&config)?;
        if config.apps.is_empty() {
            // Open, or with its apps in a registry, which is then read again with the new defaults.
            self.registry.replace_open(apps::open_app(&config)?);
        } else {
            self.registry.replace(apps::of_config(&config)?);
        }
        self.gateway.know(&self.registry.apps(), config.limits.metric_operations);
        self.tokens.replace(tokens);
        self.log.reload(&config.log)?;
        self.config.store(Arc::new(config));
        self.reread.notify_one();
        Ok(())
    }
}
