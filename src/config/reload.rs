//! The part of a changed configuration that applies without a restart: apps, defaults, admin tokens and the log level.
//! Certificates are reloaded elsewhere.

use oncegate_telemetry::logging::LogOptions;

use super::path::KeyPath;
use super::problem::{Problem, Problems};
use super::{Config, RegistryOptions};

/// Tables that apply without a restart.
const LIVE: [&str; 3] = ["admin", "apps", "defaults"];

/// Reports whether a change of this key applies without a restart.
pub(super) fn is_live(key: &KeyPath) -> bool {
    match key.names() {
        [table, name] if table == "log" => name == "level",
        [table, ..] => LIVE.contains(&table.as_str()),
        [] => false,
    }
}

impl Config {
    /// Returns this configuration with the reloadable part of `new`, checked against the rest.
    pub fn with_live_of(&self, new: &Self) -> Result<Self, Problems> {
        let (admin, apps, defaults) = (new.admin.clone(), new.apps.clone(), new.defaults.clone());
        let log = LogOptions { level: new.log.level.clone(), ..self.log.clone() };
        let merged = Self { admin, defaults, apps, log, ..self.clone() };
        let mut problems = merged.validate();
        if new.apps.is_empty() && !self.apps.is_empty() {
            // Taken literally, this would open the gateway; a mistake is much more likely.
            let message = "no app is left, and a running gateway does not become open. Set `disabled = true` for an app \
                           that may no longer call, or restart the gateway to open it";
            problems.push(Problem::of_key(KeyPath::of(["apps"]), message));
        }
        if problems.is_empty() { Ok(merged) } else { Err(Problems(problems)) }
    }

    /// Returns the names of the changed tables in `new` that need a restart.
    pub fn restart_needed_for(&self, new: &Self) -> Vec<String> {
        let tables = |config: &Self| toml::Table::try_from(config).unwrap_or_default();
        let mut own = self.clone();
        own.log.level.clone_from(&new.log.level);
        // Certificate files may change; switching TLS on or off needs a restart.
        for (own, new) in [
            (&mut own.server.tls, &new.server.tls),
            (&mut own.server.admin_tls, &new.server.admin_tls),
            (&mut own.proxy.tls, &new.proxy.tls),
        ] {
            if own.is_on() && new.is_on() {
                own.clone_from(new);
            }
        }
        let (own, new) = (tables(&own), tables(new));
        let differs = |name: &&String| !LIVE.contains(&name.as_str()) && own.get(*name) != new.get(*name);
        let mut names: Vec<_> = own.keys().filter(differs).cloned().collect();
        names.sort_unstable();
        names
    }
}

impl RegistryOptions {
    /// Reports whether the apps are in a database instead of the configuration.
    pub fn is_set(&self) -> bool {
        !self.url.is_empty()
    }
}
