//! Makes the apps of a configuration into those that the gateway knows, and takes over those of a later one.

use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use hashbrown::HashMap;

use crate::config::{AppOptions, Config, Problems, ResolvedTerms};
use crate::domain::tenant::AppKey;
use crate::gateway::Gateway;
use crate::telemetry::metrics::tenants::ReloadMetrics;
use crate::tenants::{App, OperationTerms, Registry};

/// The app of a gateway that has none configured.
const OPEN_APP: &str = "default";

/// The apps of a gateway in service, and the configuration that they come from.
pub(super) struct Apps {
    registry: Arc<Registry>,
    gateway: Arc<Gateway>,
    /// As the process started, but for what a running gateway takes over.
    config: ArcSwap<Config>,
    metrics: ReloadMetrics,
}

impl Apps {
    /// The apps of a gateway that starts with this configuration.
    pub(super) fn new(config: &Config, registry: Arc<Registry>, gateway: Arc<Gateway>) -> Self {
        let config = ArcSwap::from_pointee(config.clone());
        Self { registry, gateway, config, metrics: ReloadMetrics::new() }
    }

    /// Takes over the apps of a configuration that was read again. Where it cannot be used, the old one stays.
    pub(super) fn reload(&self, read: Result<Config, Problems>) {
        let taken = read.and_then(|new| {
            let running = self.config.load_full();
            Ok((running.restart_needed_for(&new), running.with_apps_of(&new)?))
        });
        let applied = match taken {
            Ok((restart_needed, config)) => self.apply(config).map(|()| restart_needed),
            Err(problems) => Err(problems.into()),
        };
        self.metrics.reloaded(applied.is_ok());
        match applied {
            Ok(restart_needed) => {
                let apps = self.registry.apps().len();
                tracing::info!(apps, "the configuration was read again: its apps are in force");
                if !restart_needed.is_empty() {
                    let tables = restart_needed.join(", ");
                    tracing::warn!(config.tables = tables, "changes of other tables need a restart to take effect");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "the configuration was read again and cannot be used: the apps stay as they were"
                );
            }
        }
    }

    fn apply(&self, config: Config) -> anyhow::Result<()> {
        if config.apps.is_empty() {
            self.registry.replace_open(open_app(&config)?);
        } else {
            self.registry.replace(of_config(&config)?);
        }
        self.gateway.know(&self.registry.apps());
        self.config.store(Arc::new(config));
        Ok(())
    }
}

/// Who may call, by the configuration.
pub(super) fn registry(config: &Config) -> anyhow::Result<Registry> {
    Ok(if config.apps.is_empty() { Registry::open(open_app(config)?) } else { Registry::of(of_config(config)?) })
}

/// The one app of an open gateway.
fn open_app(config: &Config) -> anyhow::Result<App> {
    let terms = config.terms_of(None, None);
    Ok(App {
        key: OPEN_APP.parse()?,
        chain: terms.chain.clone(),
        disabled: false,
        secrets: Vec::new(),
        terms: operation_terms(&terms),
        operations: HashMap::new(),
        usage: Arc::default(),
    })
}

/// The apps of the configuration.
pub(super) fn of_config(config: &Config) -> anyhow::Result<Vec<App>> {
    config.apps.iter().map(|(key, options)| app(config, key, options)).collect()
}

fn app(config: &Config, key: &AppKey, options: &AppOptions) -> anyhow::Result<App> {
    let secrets = options.secrets.iter().map(|secret| secret.parse()).collect::<Result<_, _>>();
    let terms = config.terms_of(Some(key), None);
    let own = |operation| (Clone::clone(operation), operation_terms(&config.terms_of(Some(key), Some(operation))));
    Ok(App {
        key: key.clone(),
        chain: terms.chain.clone(),
        disabled: options.disabled,
        secrets: secrets.with_context(|| format!("apps.{key}.secrets"))?,
        terms: operation_terms(&terms),
        operations: options.operations.keys().map(own).collect(),
        usage: Arc::default(),
    })
}

fn operation_terms(resolved: &ResolvedTerms) -> OperationTerms {
    OperationTerms {
        terms: resolved.terms,
        mode: resolved.mode,
        contents_stored_bytes: resolved.contents_stored_bytes,
        deadline: resolved.deadline,
    }
}
