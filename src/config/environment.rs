//! Settings from environment variables: `ONCEGATE_SERVER__LISTEN` sets `server.listen`. The variables are a parameter;
//! `cli` reads those of the process.

use std::ffi::OsString;

use toml::Value;

use super::layers::Layer;
use super::path::KeyPath;
use super::problem::Problem;

/// Prefix of all variables.
const PREFIX: &str = "ONCEGATE_";

/// Names the configuration file; not a setting.
pub(super) const FILE_VARIABLE: &str = "ONCEGATE_CONFIG";

/// Token of commands for a gateway's admin API; not a setting.
pub const TOKEN_VARIABLE: &str = "ONCEGATE_ADMIN_TOKEN";

/// URL of the API for commands that call it; not a setting.
pub const URL_VARIABLE: &str = "ONCEGATE_URL";

/// URL of the admin listener for commands that call it; not a setting.
pub const ADMIN_URL_VARIABLE: &str = "ONCEGATE_ADMIN_URL";

/// Credential of an app for commands that call the API; not a setting.
pub const CREDENTIAL_VARIABLE: &str = "ONCEGATE_CREDENTIAL";

/// Variables that are no settings.
const NOT_SETTINGS: [&str; 5] = [FILE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE, ADMIN_URL_VARIABLE, CREDENTIAL_VARIABLE];

/// Depth of the deepest key, `apps.<app>.operations.<operation>.on_outage.claim`.
const DEPTH_MAX: usize = 6;

/// Returns the layer of the environment, and the problems of its variables.
pub(super) fn read(variables: &[(OsString, OsString)], known: &[KeyPath]) -> (Layer, Vec<Problem>) {
    let (mut layer, mut problems) = (Layer::empty(), Vec::new());
    let mut ours: Vec<_> = variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value))).collect();
    ours.retain(|(name, _)| name.starts_with(PREFIX) && !NOT_SETTINGS.contains(name));
    // In a fixed order, so that the same environment always gives the same result.
    ours.sort_unstable();
    for (name, value) in ours {
        let mut refuse = |message: String| problems.push(Problem::of_source(origin(name), message));
        let path = &name[PREFIX.len()..];
        if !path.contains("__") {
            // Every key is in a table, so this is not a setting. It may belong to another program, such as the
            // ONCEGATE_PORT that Kubernetes sets for a service; only a likely typing error is reported.
            if let Some(meant) = resembling(path, known) {
                refuse(format!("unknown setting; did you mean {PREFIX}{meant}? Separate tables and keys by `__`"));
            }
            continue;
        }
        let names = path.split("__").map(str::to_lowercase);
        let path = KeyPath::of(names);
        match value.to_str() {
            _ if path.names().len() > DEPTH_MAX => refuse("unknown setting: too many tables".to_owned()),
            None => refuse("not UTF-8".to_owned()),
            Some(text) => layer.set(path, value_of(text), origin(name)),
        }
    }
    (layer, problems)
}

/// Returns the name of a variable in problems.
fn origin(name: &str) -> String {
    format!("environment variable {name}")
}

/// Parses a variable's value: a TOML boolean, integer or array is taken as such, everything else is text, quotes
/// included.
fn value_of(text: &str) -> Value {
    match text.parse() {
        Ok(value @ (Value::Boolean(_) | Value::Integer(_) | Value::Array(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

/// Returns the known variable, without the prefix, that probably was meant by a name without `__`: at most two letters
/// differ, or the tables of a key or the key of a table are missing.
fn resembling(name: &str, known: &[KeyPath]) -> Option<String> {
    let slips = |variable: &str| strsim::osa_distance(&variable.replace("__", "_"), name);
    let variables = known.iter().map(|key| key.names().join("__").to_uppercase());
    let alike = variables.filter(|variable| {
        let is_table = variable.split_once("__").is_some_and(|(table, _)| strsim::osa_distance(table, name) <= 1);
        let is_key = variable.replace("__", "_").strip_suffix(name).is_some_and(|tables| tables.ends_with('_'));
        is_table || is_key || slips(variable) <= 2
    });
    alike.min_by_key(|variable| slips(variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_numbers_and_lists_are_toml_and_all_else_is_text() {
        for (text, value) in [
            ("true", Value::Boolean(true)),
            ("42", Value::Integer(42)),
            (r#"["a", "b"]"#, Value::Array(vec!["a".into(), "b".into()])),
            ("30s", "30s".into()),
            ("1.5", "1.5".into()),
            ("\"quoted\"", "\"quoted\"".into()),
            ("2026-01-01", "2026-01-01".into()),
            ("{ a = 1 }", "{ a = 1 }".into()),
            ("1\nx = 2", "1\nx = 2".into()),
            ("", "".into()),
        ] {
            assert_eq!(value_of(text), value, "{text}");
        }
    }

    #[test]
    fn variables_of_commands_are_no_settings() {
        let known = [KeyPath::of(["registry", "url"])];
        let read = |name: &str| read(&[(name.into(), "http://127.0.0.1:8080".into())], &known).1.len();
        assert_eq!(NOT_SETTINGS.map(read), [0; 5]);
        assert_eq!(read("ONCEGATE_REGISTRY_URL"), 1);
    }

    #[test]
    fn typing_errors_are_distinguished_from_variables_of_other_programs() {
        let known = [["server", "listen"], ["server", "admin_listen"], ["log", "level"], ["engines", "primary"]]
            .map(KeyPath::of);
        for (name, meant) in [
            ("SERVER_LISTEN", Some("SERVER__LISTEN")),
            ("SERVER_LISTN", Some("SERVER__LISTEN")),
            ("LISTEN", Some("SERVER__LISTEN")),
            ("ADMIN_LISTEN", Some("SERVER__ADMIN_LISTEN")),
            ("LOG", Some("LOG__LEVEL")),
            ("ENGINE", Some("ENGINES__PRIMARY")),
            ("PORT", None),
            ("PORT_8080_TCP_ADDR", None),
            ("SERVICE_HOST", None),
            ("SERVICE_PORT_HTTP", None),
            ("REDIS_SERVICE_HOST", None),
            ("CREDENTIAL", None),
            ("TEN", None),
        ] {
            assert_eq!(resembling(name, &known).as_deref(), meant, "{name}");
        }
    }
}
