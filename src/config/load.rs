//! Loads the configuration: embedded defaults, then the file, the environment and the flags. Every source is a
//! parameter, so that tests need no real environment.

use std::collections::BTreeSet;
use std::ffi::OsString;

use toml::Value;

use super::environment;
use super::explain::{explain, missing_field};
use super::file::File;
use super::layers::{Layer, Layers};
use super::path::{Item, KeyPath};
use super::problem::{DEFAULTS_NAME, Problem, Problems};
use super::{Config, Flags, Loaded, Origins, secret_files};

const DEFAULTS: &str = include_str!("../../oncegate.default.toml");

/// Problems that are reported at most.
const PROBLEMS_MAX: usize = 20;

impl Config {
    /// Loads and checks the configuration for these flags and this environment.
    ///
    /// # Errors
    /// All problems, each with its origin and what to do.
    pub fn load(flags: &Flags, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Problems> {
        Ok(Self::load_with_origins(flags, environment)?.config)
    }

    /// Like [`Config::load`], and also returns where the values were set.
    pub fn load_with_origins(
        flags: &Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, Problems> {
        Self::load_checked(flags, environment, Self::validate)
    }

    /// Like [`Config::load`], and also checks the certificate and key files, which only the server must be able to
    /// read.
    pub fn load_to_serve(
        flags: &Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, Problems> {
        Self::load_checked(flags, environment, |config| {
            let problems = config.validate();
            if problems.is_empty() { config.check_files() } else { problems }
        })
    }

    fn load_checked(
        flags: &Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        check: impl Fn(&Self) -> Vec<Problem>,
    ) -> Result<Loaded, Problems> {
        let environment: Vec<_> = environment.into_iter().collect();
        let (mut layers, mut problems) = layers(flags, &environment)?;
        move_default_engine(&mut layers);
        let config = loop {
            match serde_path_to_error::deserialize(Value::Table(layers.merged())) {
                Ok(config) if problems.is_empty() => break drop_unused_defaults(config, &layers),
                Ok(_) => return Err(Problems::in_order(problems)),
                Err(error) => {
                    let (key, item) = (KeyPath::of_error(error.path()), Item::of_error(error.path()));
                    let message = error.inner().message();
                    if !is_missing_since_removed(&problems, &key, message) {
                        problems.push(misread(&layers, &key, item.as_ref(), message));
                    }
                    // Without this key, further problems can be found in the same run.
                    if problems.len() == PROBLEMS_MAX || !layers.remove(&key) {
                        return Err(Problems::in_order(problems));
                    }
                }
            }
        };
        let mut problems = check(&config);
        for problem in &mut problems {
            problem.source = problem.key.as_ref().and_then(|key| layers.origin(key));
        }
        if !problems.is_empty() {
            return Err(Problems::in_order(problems));
        }
        let origins = Origins::of(&config, &layers);
        Ok(Loaded { config, origins })
    }
}

/// Returns the layer of the embedded defaults.
pub(super) fn defaults() -> Result<Layer, Problem> {
    let defaults = File::embedded(DEFAULTS_NAME, DEFAULTS);
    let table = defaults.parse()?;
    Ok(Layer::of_file(defaults, table))
}

/// Returns all layers, and problems of variable names and of files of single values.
fn layers(flags: &Flags, environment: &[(OsString, OsString)]) -> Result<(Layers, Vec<Problem>), Problem> {
    let mut layers = Layers::of_defaults(defaults()?);

    let mut problems = Vec::new();
    let file = flags.named_file(environment).map(|(path, named_by)| File::read(&path, named_by)).transpose()?;
    if let Some(file) = file {
        let table = file.parse()?;
        let mut layer = Layer::of_file(file, table);
        problems.extend(secret_files::resolve(&mut layer));
        layers.push(layer);
    }

    let known = secret_files::with_file_keys(layers.known_keys());
    let (mut variables, misnamed) = environment::read(environment, &known);
    problems.extend(misnamed);
    problems.extend(secret_files::resolve(&mut variables));
    layers.push(variables);
    layers.push(flags.layer());
    Ok((layers, problems))
}

/// Moves the default engine into `data_dir` if that is set and no engine is.
fn move_default_engine(layers: &mut Layers) {
    let (engine, data_dir) = (default_engine(), KeyPath::of(["server", "data_dir"]));
    if layers.is_default(&engine) && !layers.is_default(&data_dir) {
        let merged = layers.merged();
        let folder = merged.get("server").and_then(|server| server.get("data_dir")).and_then(Value::as_str);
        if let Some(folder) = folder.map(|folder| folder.trim_end_matches('/')) {
            layers.set_default(engine, Value::String(format!("disk:{folder}/claims")));
        }
    }
}

/// Removes the default chain and engine if they are unused: otherwise a gateway with its own stores would still open a
/// folder.
fn drop_unused_defaults(mut config: Config, layers: &Layers) -> Config {
    let used: BTreeSet<_> = config.apps.values().filter_map(|app| app.chain.as_ref()).collect();
    let chain = "default";
    if layers.is_default(&KeyPath::of(["chains", chain]))
        && config.defaults.chain != chain
        && !used.iter().any(|used| *used == chain)
    {
        config.chains.remove(chain);
    }
    let engine = default_engine();
    if layers.is_default(&engine) && !config.chains.values().any(|chain| chain.has(engine.last())) {
        config.engines.remove(engine.last());
    }
    config
}

fn default_engine() -> KeyPath {
    KeyPath::of(["engines", "primary"])
}

/// Reports whether a message is about a key that is missing only because it was removed with its own problem.
fn is_missing_since_removed(problems: &[Problem], table: &KeyPath, message: &str) -> bool {
    missing_field(message).is_some_and(|field| {
        let removed = [table.child(field), table.child(format!("{field}_file"))];
        problems.iter().any(|problem| problem.key.as_ref().is_some_and(|key| removed.contains(key)))
    })
}

/// Describes a value that could not be parsed: that of a key, or a place inside its list.
fn misread(layers: &Layers, key: &KeyPath, item: Option<&Item>, message: &str) -> Problem {
    let message = match item {
        None => {
            let what = explain(message, key, layers.default_of(key));
            what + &unquoted(layers, key, message).unwrap_or_default()
        }
        Some(item) => {
            let inner = KeyPath::of(key.names().iter().chain(&item.names).cloned());
            format!("{}{}", place_of(layers, key, item), explain(message, &inner, None))
        }
    };
    // A key without its table.
    let message = match key.names() {
        [name] => {
            let known = layers.known_keys();
            let meant = known.iter().find(|known| known.names().len() == 2 && known.last() == name);
            meant.map_or(message, |meant| format!("unknown key; {meant} is in the table [{}]", meant.names()[0]))
        }
        _ => message,
    };
    let source = match item {
        None => layers.origin(key),
        Some(item) => layers.origin_of_item(key, item),
    };
    Problem { source, key: Some(key.clone()).filter(|key| !key.names().is_empty()), message }
}

/// Returns how to write a name with a dot, if an unknown table may be the second half of one.
fn unquoted(layers: &Layers, key: &KeyPath, message: &str) -> Option<String> {
    let (tables, half, rest) = match key.names() {
        [apps, app, rest] if apps == "apps" => (1, app, rest),
        [apps, _, operations, operation, rest] if apps == "apps" && operations == "operations" => (3, operation, rest),
        _ => return None,
    };
    let is_table = message.starts_with("unknown field") && layers.value(key).is_some_and(Value::is_table);
    let whole = KeyPath::of(key.names()[..tables].iter().cloned()).child(format!("{half}.{rest}"));
    is_table.then(|| format!(". A name with a dot is written in quotes: [{whole}]"))
}

/// Describes a place inside a list of tables, for the beginning of a message.
fn place_of(layers: &Layers, key: &KeyPath, item: &Item) -> String {
    let value = layers.value(key).and_then(Value::as_array).and_then(|list| list.get(item.index));
    let Some(table) = value.and_then(Value::as_table) else { return String::new() };
    let name = table.get("name").and_then(Value::as_str);
    let name = name.map(|name| format!(" (`{}`)", name.escape_debug())).unwrap_or_default();
    let what = if key.last() == "routes" { "route" } else { "item" };
    let names = item.names.iter().flat_map(|name| name.escape_debug().chain(": ".chars())).collect::<String>();
    format!("{what} {}{name}: {names}", item.index + 1)
}
