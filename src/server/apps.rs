//! Creates the gateway's apps from a configuration.

use std::sync::Arc;

use anyhow::Context as _;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_gateway::tenants::{App, Registry};

use crate::config::{AppOptions, Config, OperationOptions};

/// App key of an open gateway.
const OPEN_APP: &str = "default";

/// Returns the registry of a configuration's apps.
pub(super) fn registry(config: &Config) -> anyhow::Result<Registry> {
    Ok(if config.registry.is_set() {
        Registry::loading()
    } else if config.apps.is_empty() {
        Registry::open(open_app(config)?)
    } else {
        Registry::of(of_config(config)?)
    })
}

/// Returns the only app of an open gateway.
pub(super) fn open_app(config: &Config) -> anyhow::Result<App> {
    Ok(App {
        key: OPEN_APP.parse()?,
        chain: config.chain_of(None).to_owned(),
        disabled: false,
        secrets: Vec::new(),
        terms: config.terms_of(None, None),
        operations: config.proxy_operations(None).collect(),
        retention_max: config.retention_max_of(None),
        quota: config.quota_of(None),
        console_mask: Vec::new(),
        console_find: Vec::new(),
        usage: Arc::default(),
    })
}

/// Returns the apps of a configuration.
pub(super) fn of_config(config: &Config) -> anyhow::Result<Vec<App>> {
    config.apps.iter().map(|(key, options)| app(config, key, options)).collect()
}

/// Returns an app of a configuration.
pub(super) fn app(config: &Config, key: &AppKey, options: &AppOptions) -> anyhow::Result<App> {
    let secrets = options.secrets.iter().map(|secret| secret.parse()).collect::<Result<_, _>>();
    let find = |(operation, options): (&Operation, &OperationOptions)| {
        Some((operation.clone(), options.console_find.clone()?))
    };
    let own = |operation| (Clone::clone(operation), config.terms_of(Some(key), Some(operation)));
    Ok(App {
        key: key.clone(),
        chain: config.chain_of(Some(key)).to_owned(),
        disabled: options.disabled,
        secrets: secrets.with_context(|| format!("apps.{key}.secrets"))?,
        terms: config.terms_of(Some(key), None),
        operations: options.operations.keys().map(own).chain(config.proxy_operations(Some(key))).collect(),
        retention_max: config.retention_max_of(Some(key)),
        quota: config.quota_of(Some(key)),
        console_mask: options.console_mask.clone(),
        console_find: options.operations.iter().filter_map(find).collect(),
        usage: Arc::default(),
    })
}
