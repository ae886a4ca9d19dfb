//! The configuration: what can be set, read in layers (embedded defaults, a file, the environment, flags), checked as a
//! whole. The defaults stand in `oncegate.default.toml` and nowhere else. Here is the shape; options that belong to one
//! floor stand beside what they configure.

mod environment;
mod explain;
mod file;
mod fingerprint;
mod layers;
mod load;
mod path;
mod problem;
mod promises;
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

use serde::{Deserialize, Serialize};

pub use self::environment::TOKEN_VARIABLE;
pub use self::fingerprint::Fingerprint;
pub use self::load::Flags;
pub use self::path::KeyPath;
pub use self::problem::{Problem, Problems};
pub use self::server::{AdminOptions, RegistryOptions, ServerOptions};
pub use self::terms::{AppOptions, OnOutage, OnOutageOptions, OperationOptions, ResolvedTerms, TermsOptions};
use crate::domain::limits::Limits;
use crate::domain::tenant::AppKey;
use crate::domain::terms::OnDataLoss;
use crate::engine::capability::Capability;
use crate::telemetry::logging::LogOptions;
use crate::telemetry::traces::TracesOptions;

/// Everything that can be set. [`Config::load`] makes one; there is none without having been checked.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the gateway listens, and how it ends.
    pub server: ServerOptions,
    /// Who may use the admin API.
    pub admin: AdminOptions,
    /// The stores that keep claims: their URLs by name. They may hold passwords.
    pub engines: BTreeMap<String, String>,
    /// The chains that apps use, by name.
    pub chains: BTreeMap<String, ChainOptions>,
    /// The terms of every app and operation that sets none of its own.
    pub defaults: TermsOptions,
    /// Where the apps are, if not here.
    pub registry: RegistryOptions,
    /// Who may call. With none, and no registry, the gateway is open.
    pub apps: BTreeMap<AppKey, AppOptions>,
    /// The bounds that nobody passes.
    pub limits: Limits,
    /// What is logged, and how.
    pub log: LogOptions,
    /// Which requests are traced, and where their spans go.
    pub traces: TracesOptions,
}

/// A chain: engines that stand in for one another.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChainOptions {
    /// Names of engines, in order. The first is active until switched.
    pub engines: Vec<String>,
    /// What each of them must promise.
    #[serde(default)]
    pub requires: Vec<Capability>,
    /// What becomes of claims after its store came back without its data.
    #[serde(default)]
    pub on_data_loss: OnDataLoss,
}
