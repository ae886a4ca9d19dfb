//! The part of the configuration that can change while the gateway runs: apps, defaults, admin tokens and the log
//! level. It is applied as a whole or not at all.

use std::sync::Arc;

use arc_swap::ArcSwap;
use oncegate_admin::{Reloads, Setting, Tokens};
use oncegate_core::clock::Clock;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::Registry;
use oncegate_proxy::identities;
use oncegate_telemetry::logging::Log;
use oncegate_telemetry::metrics::tenants::ReloadMetrics;
use tokio::sync::Notify;

use super::data_dir::DataDir;
use super::{apps, operators};
use crate::config::{Config, EffectiveSetting, Loaded, Origins, Problems};

/// Most changes of identities that a reload logs.
const CHANGES_LOGGED: usize = 20;

/// Configuration in effect, and what depends on it.
pub(super) struct Live {
    /// As at the start of the process, with the reloadable parts of later versions.
    pub(super) config: Arc<ArcSwap<Config>>,
    registry: Arc<Registry>,
    gateway: Arc<Gateway>,
    tokens: Arc<Tokens>,
    log: Log,
    clock: Arc<dyn Clock>,
    metrics: ReloadMetrics,
    /// The settings in effect and the last reload, for operators.
    pub(super) reloads: Arc<Reloads>,
    origins: ArcSwap<Origins>,
    /// Notified when the apps of a registry must be rebuilt because their defaults have changed.
    pub(super) config_changed: Arc<Notify>,
}

impl Live {
    /// Returns the state of a gateway that starts with this configuration.
    pub(super) fn new(
        config: &Config,
        registry: Arc<Registry>,
        gateway: Arc<Gateway>,
        tokens: Arc<Tokens>,
        log: Log,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let config = Arc::new(ArcSwap::from_pointee(config.clone()));
        Self {
            config,
            registry,
            gateway,
            tokens,
            log,
            clock,
            metrics: ReloadMetrics::default(),
            reloads: Arc::default(),
            origins: ArcSwap::default(),
            config_changed: Arc::default(),
        }
    }

    /// Sets where the values of the configuration were set.
    pub(super) fn set_origins(&self, origins: Origins) {
        self.origins.store(Arc::new(origins));
        let settings = self.config.load().settings(&self.origins.load());
        self.reloads.set_settings(settings.into_iter().map(shown).collect());
    }

    /// Applies the reloadable parts of a configuration. If it is invalid, nothing changes.
    pub(super) async fn reload(&self, read: Result<Loaded, Problems>, data_dir: &DataDir) {
        let taken = read.and_then(|Loaded { config: new, origins }| {
            let running = self.config.load_full();
            let mut changes = identities::changes(&running.proxy, &new.proxy);
            changes.truncate(CHANGES_LOGGED);
            let origins = self.origins.load().with_live_of(&origins);
            Ok(((running.restart_needed_for(&new), changes, origins), running.with_live_of(&new)?))
        });
        let applied = match taken {
            Ok((at_restart, config)) => match data_dir.make_ready_for(&config).await {
                Ok(()) => self.apply(config).map(|()| at_restart),
                Err(unusable) => Err(unusable),
            },
            Err(problems) => Err(problems.into()),
        };
        self.metrics.reloaded(applied.is_ok());
        let at = self.clock.wall();
        match applied {
            Ok((restart_needed, changes, origins)) => {
                self.set_origins(origins);
                self.reloads.reloaded(at, Ok(restart_needed.clone()));
                tracing::info!("Configuration reloaded: apps, defaults, admin tokens and log level are in effect");
                if !restart_needed.is_empty() {
                    let tables = restart_needed.join(", ");
                    tracing::warn!(config.tables = tables, "Changes of other tables need a restart to take effect");
                }
                for change in changes {
                    tracing::warn!(change, "The next restart changes identities of requests behind the proxy");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                self.reloads.reloaded(at, Err(&error));
                tracing::error!(error, "Configuration not reloaded: it cannot be used, so nothing changes");
            }
        }
    }

    fn apply(&self, config: Config) -> anyhow::Result<()> {
        let tokens = operators::of_config(&config)?;
        if config.apps.is_empty() {
            // An open gateway, or one whose registry will be read again with the new defaults.
            self.registry.replace_open(apps::open_app(&config)?);
        } else {
            self.registry.replace(apps::of_config(&config)?);
        }
        self.gateway.measure_apps(&self.registry.apps(), config.limits.metric_operations);
        self.tokens.replace(tokens);
        self.log.reload(&config.log)?;
        self.config.store(Arc::new(config));
        self.config_changed.notify_one();
        Ok(())
    }
}

/// Returns a setting as operators see it.
fn shown(setting: EffectiveSetting) -> Setting {
    let EffectiveSetting { key, value, origin, needs_restart } = setting;
    Setting { key, value, origin, needs_restart }
}
