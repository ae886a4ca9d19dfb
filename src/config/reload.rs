//! The part of a changed configuration that a running gateway takes over: the apps, the terms they have by default, the
//! tokens of operators and the log level. Certificates are followed elsewhere. Everything else needs a restart.

use super::path::KeyPath;
use super::problem::{Problem, Problems};
use super::{Config, RegistryOptions};
use crate::telemetry::logging::LogOptions;

/// The tables that take effect while the gateway runs.
const LIVE: [&str; 3] = ["admin", "apps", "defaults"];

impl Config {
    /// This configuration with what may change of `new`, checked against everything else as it stands here.
    ///
    /// # Errors
    /// What is wrong with them on a gateway that runs on the rest of this configuration.
    pub fn with_live_of(&self, new: &Self) -> Result<Self, Problems> {
        let (admin, apps, defaults) = (new.admin.clone(), new.apps.clone(), new.defaults.clone());
        let log = LogOptions { level: new.log.level.clone(), ..self.log.clone() };
        let merged = Self { admin, defaults, apps, log, ..self.clone() };
        let mut problems = merged.validate();
        if new.apps.is_empty() && !self.apps.is_empty() {
            // Taken literally this would open the gateway; it is much more likely a mistake.
            let message = "the last app is gone; a running gateway neither opens nor locks everybody out. Set \
                           `disabled = true` for an app that may no longer call, or restart the gateway to open it";
            problems.push(Problem::of_key(KeyPath::of(["apps"]), message));
        }
        if problems.is_empty() { Ok(merged) } else { Err(Problems(problems)) }
    }

    /// The tables in which `new` differs and that take effect with a restart only, by name.
    pub fn restart_needed_for(&self, new: &Self) -> Vec<String> {
        let tables = |config: &Self| toml::Table::try_from(config).unwrap_or_default();
        let mut own = self.clone();
        own.log.level.clone_from(&new.log.level);
        // Certificates may move; that there are any may not change.
        for (own, new) in [(&mut own.server.tls, &new.server.tls), (&mut own.server.admin_tls, &new.server.admin_tls)] {
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
    /// Whether the apps are in a database, and not in the configuration.
    pub fn is_set(&self) -> bool {
        !self.url.is_empty()
    }
}
