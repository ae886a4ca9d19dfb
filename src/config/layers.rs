//! Layers of settings with their origins, merged key by key: a later layer replaces values of an earlier one. Tables
//! are merged; lists and values are replaced.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::file::File;
use super::path::{Item, KeyPath};

/// Settings of one source.
pub(super) struct Layer {
    table: Table,
    source: Source,
    /// Origins of the values that were read from separate files.
    from_files: BTreeMap<KeyPath, String>,
}

/// Origin of settings.
pub(super) enum Source {
    /// A file, which knows the line of each key.
    File(File),
    /// The environment or the flags: the variable or flag of each key.
    Each(BTreeMap<KeyPath, String>),
}

/// All layers, lowest first. The first one holds the embedded defaults.
pub(super) struct Layers(Vec<Layer>);

impl Layer {
    pub(super) fn of_file(file: File, table: Table) -> Self {
        Self { table, source: Source::File(file), from_files: BTreeMap::new() }
    }

    pub(super) fn empty() -> Self {
        Self { table: Table::new(), source: Source::Each(BTreeMap::new()), from_files: BTreeMap::new() }
    }

    /// Sets a key, and creates missing tables above it.
    pub(super) fn set(&mut self, key: KeyPath, value: Value, set_by: impl Into<String>) {
        insert(&mut self.table, key.names(), value);
        if let Source::Each(origins) = &mut self.source {
            origins.insert(key, set_by.into());
        }
    }

    /// Sets a key to the content of a file that another key names.
    pub(super) fn set_from_file(&mut self, key: KeyPath, value: Value, origin: String) {
        insert(&mut self.table, key.names(), value);
        self.from_files.insert(key, origin);
    }

    /// Removes a key.
    pub(super) fn take(&mut self, key: &KeyPath) -> Option<Value> {
        let (last, tables) = key.names().split_last()?;
        let table = tables.iter().try_fold(&mut self.table, |table, name| table.get_mut(name)?.as_table_mut())?;
        table.remove(last)
    }

    /// Returns the settings.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns a key's value, or the table below it.
    pub(super) fn get(&self, key: &KeyPath) -> Option<&Value> {
        get(&self.table, key.names())
    }

    /// Returns the origin of a key, or of something below it.
    pub(super) fn origin(&self, key: &KeyPath) -> Option<String> {
        self.get(key)?;
        if let Some(origin) = self.from_files.get(key) {
            return Some(origin.clone());
        }
        match &self.source {
            Source::File(file) => Some(file.origin(key)),
            Source::Each(origins) => {
                let set_by = origins.iter().find(|(set, _)| {
                    let shorter = set.names().len().min(key.names().len());
                    set.names()[..shorter] == key.names()[..shorter]
                });
                set_by.map(|(_, set_by)| set_by.clone())
            }
        }
    }

    /// Returns the origin of a place inside a list.
    fn origin_of_item(&self, list: &KeyPath, item: &Item) -> Option<String> {
        match &self.source {
            Source::File(file) if self.get(list).is_some() && !self.from_files.contains_key(list) => {
                Some(file.origin_of_item(list, item))
            }
            _ => self.origin(list),
        }
    }
}

impl Layers {
    /// Returns the embedded defaults with no layers above them.
    pub(super) fn of_defaults(defaults: Layer) -> Self {
        Self(vec![defaults])
    }

    /// Adds a layer on top.
    pub(super) fn push(&mut self, layer: Layer) {
        self.0.push(layer);
    }

    /// Returns the merged settings.
    pub(super) fn merged(&self) -> Table {
        self.0.iter().fold(Table::new(), |mut merged, layer| {
            merge(&mut merged, &layer.table);
            merged
        })
    }

    /// Returns the origin of a key's effective value.
    pub(super) fn origin(&self, key: &KeyPath) -> Option<String> {
        self.0.iter().rev().find_map(|layer| layer.origin(key))
    }

    /// Returns the origin of a place inside a list.
    pub(super) fn origin_of_item(&self, list: &KeyPath, item: &Item) -> Option<String> {
        self.0.iter().rev().find_map(|layer| layer.origin_of_item(list, item))
    }

    /// Returns the topmost value of a key.
    pub(super) fn value(&self, key: &KeyPath) -> Option<&Value> {
        self.0.iter().rev().find_map(|layer| layer.get(key))
    }

    /// Reports whether a key has its embedded default.
    pub(super) fn is_default(&self, key: &KeyPath) -> bool {
        self.0.iter().rposition(|layer| layer.get(key).is_some()) == Some(0)
    }

    /// Removes a key from its topmost layer. Returns false if that would remove the default.
    pub(super) fn remove(&mut self, key: &KeyPath) -> bool {
        match self.0.iter().rposition(|layer| layer.get(key).is_some()) {
            Some(place @ 1..) => self.0[place].take(key).is_some(),
            _ => false,
        }
    }

    /// Replaces a default.
    pub(super) fn set_default(&mut self, key: KeyPath, value: Value) {
        if let Some(defaults) = self.0.first_mut() {
            defaults.set(key, value, "");
        }
    }

    /// Returns the default of a key. Terms of apps and operations default to `[defaults]`.
    pub(super) fn default_of(&self, key: &KeyPath) -> Option<&Value> {
        let defaults = self.0.first()?;
        let names: Vec<&str> = key.names().iter().map(String::as_str).collect();
        match names.as_slice() {
            ["apps", _, "operations", _, term @ ..] | ["apps", _, term @ ..] => {
                defaults.get(&KeyPath::of(["defaults"].iter().chain(term).copied()))
            }
            _ => defaults.get(key),
        }
    }

    /// Returns all keys with a default.
    pub(super) fn known_keys(&self) -> Vec<KeyPath> {
        let mut keys = Vec::new();
        if let Some(defaults) = self.0.first() {
            collect_keys(&defaults.table, &KeyPath::default(), &mut keys);
        }
        keys
    }
}

fn collect_keys(table: &Table, path: &KeyPath, keys: &mut Vec<KeyPath>) {
    for (name, value) in table {
        match value {
            Value::Table(table) => collect_keys(table, &path.child(name), keys),
            _ => keys.push(path.child(name)),
        }
    }
}

fn get<'a>(table: &'a Table, names: &[String]) -> Option<&'a Value> {
    let (first, rest) = names.split_first()?;
    let value = table.get(first)?;
    if rest.is_empty() { Some(value) } else { get(value.as_table()?, rest) }
}

fn insert(table: &mut Table, names: &[String], value: Value) {
    match names {
        [] => {}
        [name] => drop(table.insert(name.clone(), value)),
        [name, rest @ ..] => {
            let place = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
            // A key set both as a value and as a table is reported later by its type; here the table wins.
            if !place.is_table() {
                *place = Value::Table(Table::new());
            }
            if let Some(inner) = place.as_table_mut() {
                insert(inner, rest, value);
            }
        }
    }
}

fn merge(below: &mut Table, above: &Table) {
    for (name, value) in above {
        match (below.get_mut(name), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            _ => drop(below.insert(name.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str) -> Layer {
        let file = File::embedded("test.toml", text);
        let table = file.parse().unwrap();
        Layer::of_file(file, table)
    }

    #[test]
    fn tables_are_merged_and_lists_replaced() {
        let mut layers = Layers::of_defaults(layer("[a]\nx = [1, 2]\ny = 1\n[b]\nz = 1"));
        layers.push(layer("[a]\nx = [3]\n[c]\nw = 1"));
        assert_eq!(layers.merged(), "[a]\nx = [3]\ny = 1\n[b]\nz = 1\n[c]\nw = 1".parse().unwrap());
    }

    #[test]
    fn the_origin_is_the_topmost_layer_with_the_key() {
        let mut layers = Layers::of_defaults(layer("[a]\nx = 1\ny = 2"));
        let mut top = Layer::empty();
        top.set(KeyPath::of(["a", "y"]), Value::Integer(3), "flag --y");
        layers.push(top);
        assert_eq!(layers.origin(&KeyPath::of(["a", "x"])).as_deref(), Some("test.toml, line 2"));
        assert_eq!(layers.origin(&KeyPath::of(["a", "y"])).as_deref(), Some("flag --y"));
        assert_eq!(layers.origin(&KeyPath::of(["a"])).as_deref(), Some("flag --y"));
        assert_eq!(layers.origin(&KeyPath::of(["a", "z"])), None);
        assert!(layers.is_default(&KeyPath::of(["a", "x"])) && !layers.is_default(&KeyPath::of(["a", "y"])));
    }

    #[test]
    fn removing_a_key_uncovers_lower_layers_but_keeps_the_default() {
        let mut layers = Layers::of_defaults(layer("[a]\nx = 1"));
        layers.push(layer("[a]\nx = 2"));
        assert!(layers.remove(&KeyPath::of(["a", "x"])));
        assert_eq!(layers.merged(), "[a]\nx = 1".parse().unwrap());
        assert!(!layers.remove(&KeyPath::of(["a", "x"])));
        assert!(!layers.remove(&KeyPath::default()));
    }
}
