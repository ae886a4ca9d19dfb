//! The settings in effect as operators see them: each value with its origin, and secrets by their ID.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::Config;
use super::layers::Layers;
use super::path::KeyPath;
use super::reload::is_live;

/// A setting in effect.
#[derive(Clone, PartialEq, Debug)]
pub struct EffectiveSetting {
    /// Its key, such as `defaults.lease`.
    pub key: String,
    /// Its value, without secrets.
    pub value: serde_json::Value,
    /// Place where it was set, such as `oncegate.toml, line 7`; `default` if it was not.
    pub origin: String,
    /// A change takes effect only at a restart.
    pub needs_restart: bool,
}

/// The origin of a value that no file, variable or flag has set.
const DEFAULT: &str = "default";

/// A checked configuration, and where its values were set.
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The origins of its values.
    pub origins: Origins,
}

/// Places where the values of a configuration were set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origins(BTreeMap<KeyPath, String>);

impl Origins {
    /// Returns the origins of the values of a configuration that was loaded from these layers.
    pub(super) fn of(config: &Config, layers: &Layers) -> Self {
        let set = config.leaves().into_iter().filter_map(|(key, _)| {
            let origin = layers.origin(&key).filter(|_| !layers.is_default(&key))?;
            Some((key, origin))
        });
        Self(set.collect())
    }

    /// Returns these origins, with those of the reloadable part of `new`.
    #[must_use]
    pub fn with_live_of(&self, new: &Self) -> Self {
        let own = self.0.iter().filter(|(key, _)| !is_live(key));
        let live = new.0.iter().filter(|(key, _)| is_live(key));
        Self(own.chain(live).map(|(key, origin)| (key.clone(), origin.clone())).collect())
    }
}

impl Config {
    /// Returns every setting with its origin, in the order of the keys.
    pub fn settings(&self, origins: &Origins) -> Vec<EffectiveSetting> {
        let setting = |(key, value): (KeyPath, Value)| EffectiveSetting {
            origin: origins.0.get(&key).map_or(DEFAULT, String::as_str).to_owned(),
            needs_restart: !is_live(&key),
            value: serde_json::to_value(value).unwrap_or_default(),
            key: key.to_string(),
        };
        self.leaves().into_iter().map(setting).collect()
    }

    /// Returns the keys and values, without secrets.
    fn leaves(&self) -> Vec<(KeyPath, Value)> {
        let table = Table::try_from(self.with_secret_ids()).unwrap_or_default();
        let mut leaves = Vec::new();
        collect(table, &KeyPath::default(), &mut leaves);
        leaves
    }
}

fn collect(table: Table, path: &KeyPath, leaves: &mut Vec<(KeyPath, Value)>) {
    for (name, value) in table {
        match value {
            Value::Table(table) => collect(table, &path.child(name), leaves),
            value => leaves.push((path.child(name), value)),
        }
    }
}
