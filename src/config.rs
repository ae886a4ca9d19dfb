//! Configuration: its options, read in layers (embedded defaults, file, environment, flags) and checked as a whole.
//! `oncegate.default.toml` is the only place with defaults. The options of other modules are declared in those
//! modules.

mod certificates;
mod console;
mod effective;
mod environment;
mod explain;
mod failover;
mod file;
mod fingerprint;
mod flags;
mod layers;
mod load;
mod path;
mod problem;
mod promises;
mod proxy;
mod redact;
mod reload;
mod secret_files;
mod server;
mod stored;
mod terms;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;

use oncegate_admin::ConsoleOptions;
use oncegate_core::engine::capability::Capability;
use oncegate_core::limits::Limits;
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::OnDataLoss;
use oncegate_proxy::options::ProxyOptions;
use oncegate_telemetry::logging::LogOptions;
use oncegate_telemetry::traces::TracesOptions;
use serde::{Deserialize, Serialize};

pub use self::effective::{EffectiveSetting, Loaded, Origins};
pub use self::environment::{ADMIN_URL_VARIABLE, CREDENTIAL_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE};
pub use self::failover::{FailoverModeOption, FailoverOptions};
pub use self::fingerprint::Fingerprint;
pub use self::flags::Flags;
pub use self::path::KeyPath;
pub use self::problem::{Problem, Problems};
pub use self::server::{AdminOptions, RegistryOptions, ServerOptions};
pub use self::terms::{AppOptions, OnOutage, OnOutageOptions, OperationOptions, TermsOptions};

/// All settings. [`Config::load`] returns only checked configurations.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listeners and shutdown.
    pub server: ServerOptions,
    /// Access to the admin API.
    pub admin: AdminOptions,
    /// Pages for operators.
    pub console: ConsoleOptions,
    /// URLs of the stores by name. They may contain passwords.
    pub engines: BTreeMap<String, String>,
    /// Chains of engines by name.
    pub chains: BTreeMap<String, ChainOptions>,
    /// Terms of apps and operations that do not set their own.
    pub defaults: TermsOptions,
    /// Registry of apps, if they are not in this file.
    pub registry: RegistryOptions,
    /// Apps that may call. Without any, and without a registry, the gateway is open.
    pub apps: BTreeMap<AppKey, AppOptions>,
    /// Limits for all apps.
    pub limits: Limits,
    /// The Idempotency-Key proxy.
    pub proxy: ProxyOptions,
    /// Log options.
    pub log: LogOptions,
    /// Trace options.
    pub traces: TracesOptions,
}

/// Chain of engines. One of them is active.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChainOptions {
    /// Names of engines, in order. The first is active until switched.
    pub engines: Vec<String>,
    /// Capabilities that each of them must have.
    #[serde(default)]
    pub requires: Vec<Capability>,
    /// Treatment of claims after its store has lost its data.
    #[serde(default)]
    pub on_data_loss: OnDataLoss,
    /// Automatic switch.
    #[serde(default)]
    pub failover: Option<FailoverOptions>,
}

impl ChainOptions {
    /// Reports whether an engine of this name stores its claims, or is its witness.
    fn has(&self, engine: &str) -> bool {
        let witness = self.failover.as_ref().map(|failover| &failover.witness);
        self.engines.iter().chain(witness).any(|name| name == engine)
    }
}

impl Config {
    /// Returns the engines in no chain: nothing is stored there.
    pub fn unused_engines(&self) -> impl Iterator<Item = &str> {
        let is_unused = move |name: &&String| !self.chains.values().any(|chain| chain.has(name));
        self.engines.keys().filter(is_unused).map(String::as_str)
    }
}
