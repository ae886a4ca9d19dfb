//! Settings on the command line, as the flags of its commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use toml::Value;

use super::environment::FILE_VARIABLE;
use super::layers::Layer;
use super::path::KeyPath;

/// Name of a configuration file in all documents. It is read only if it is named, too.
const USUAL_FILE: &str = "oncegate.toml";

/// Settings that have a flag. It is not `Debug`, and types that contain it are not either: the engine's URL may have a
/// password.
#[derive(Args, Clone, Default)]
pub struct Flags {
    /// Configuration file [default: the value of `ONCEGATE_CONFIG`, or none]
    #[arg(short = 'c', long, value_name = "FILE", help = Self::CONFIG_HELP)]
    pub config: Option<PathBuf>,
    /// Address of the API, such as 127.0.0.1:8080
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address of metrics, health checks and the admin API, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// URL of the default chain's store, such as memory: or disk:./claims
    #[arg(long, value_name = "URL")]
    pub engine: Option<String>,
    /// Folder of the default disk engine and of the gateway's own persistent data
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Level of the log: off, error, warn, info, debug or trace, and exceptions such as `info,oncegate_redis=debug`
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

impl Flags {
    /// Help text of the flag that names the configuration file.
    pub const CONFIG_HELP: &str = "Configuration file [default: the value of ONCEGATE_CONFIG, or none]";

    /// Returns the configuration file that the flags or the environment name, and the source of the name.
    pub(super) fn named_file(&self, environment: &[(OsString, OsString)]) -> Option<(PathBuf, &'static str)> {
        // Deployment templates write an empty value for "not set".
        let by_variable = environment.iter().find(|(name, path)| name == FILE_VARIABLE && !path.is_empty());
        match (&self.config, by_variable) {
            (Some(path), _) => Some((path.clone(), "--config")),
            (None, Some((_, path))) => Some((path.into(), FILE_VARIABLE)),
            (None, None) => None,
        }
    }

    /// Returns the file in the current folder that a reader may expect to be read, if no file is named and there is one.
    #[must_use]
    pub fn overlooked_file(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Option<&'static str> {
        let environment: Vec<_> = environment.into_iter().collect();
        (self.named_file(&environment).is_none() && Path::new(USUAL_FILE).is_file()).then_some(USUAL_FILE)
    }

    /// Returns the layer of the flags.
    pub(super) fn layer(&self) -> Layer {
        let mut layer = Layer::empty();
        let mut set = |key: &[&str], value: Value, flag: &str| {
            layer.set(KeyPath::of(key.iter().copied()), value, format!("flag {flag}"));
        };
        for (value, key, flag) in [
            (&self.listen, ["server", "listen"], "--listen"),
            (&self.admin_listen, ["server", "admin_listen"], "--admin-listen"),
            (&self.data_dir, ["server", "data_dir"], "--data-dir"),
            (&self.log_level, ["log", "level"], "--log-level"),
        ] {
            if let Some(value) = value {
                set(&key, value.as_str().into(), flag);
            }
        }
        if let Some(url) = &self.engine {
            set(&["engines", "primary"], url.as_str().into(), "--engine");
            set(&["chains", "default", "engines"], Value::Array(vec!["primary".into()]), "--engine");
            // The file may have made another chain the default; the flag must take effect anyway.
            set(&["defaults", "chain"], "default".into(), "--engine");
        }
        layer
    }
}
