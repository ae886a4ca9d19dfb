//! Configuration file: reading, parsing, and the line of a key.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use toml::Table;
use toml::de::{DeTable, DeValue};

use super::path::{Item, KeyPath};
use super::problem::Problem;

/// Text and name of a configuration file.
pub(super) struct File {
    pub(super) name: String,
    text: String,
    /// Lines of all keys, once one is asked for. A file of many apps has many keys.
    lines: OnceLock<Lines>,
}

/// Line of a key or an item, and those below it.
#[derive(Default)]
struct Lines {
    line: usize,
    keys: BTreeMap<String, Lines>,
    items: Vec<Lines>,
}

impl File {
    /// Reads the file that `named_by` names.
    pub(super) fn read(path: &Path, named_by: &str) -> Result<Self, Problem> {
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text, lines: OnceLock::new() }),
            Err(error) => {
                let message = format!("cannot read this file, named by {named_by}: {error}");
                Err(Problem::of_source(name, message))
            }
        }
    }

    /// Returns a file that is embedded in the program.
    pub(super) fn embedded(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned(), lines: OnceLock::new() }
    }

    pub(super) fn parse(&self) -> Result<Table, Problem> {
        self.text.parse().map_err(|error: toml::de::Error| {
            // toml's own message would show the line, which may contain a password.
            let place = error.span().map(|span| self.place(span.start));
            let source = place.map_or_else(
                || self.name.clone(),
                |(line, column)| format!("{}, line {line}, column {column}", self.name),
            );
            let message = error.message().trim().replace('\n', "; ");
            Problem::of_source(source, format!("not valid TOML: {message}"))
        })
    }

    /// Returns file and line of a key, for messages.
    pub(super) fn origin(&self, path: &KeyPath) -> String {
        self.at(self.line_of(path, None))
    }

    /// Returns file and line of a place inside a list.
    pub(super) fn origin_of_item(&self, list: &KeyPath, item: &Item) -> String {
        self.at(self.line_of(list, Some(item)).or_else(|| self.line_of(list, None)))
    }

    fn at(&self, line: Option<usize>) -> String {
        match line {
            Some(line) => format!("{}, line {line}", self.name),
            None => self.name.clone(),
        }
    }

    fn line_of(&self, path: &KeyPath, item: Option<&Item>) -> Option<usize> {
        let mut place = self.lines.get_or_init(|| Lines::of_text(&self.text)).below(path.names())?;
        if let Some(item) = item {
            place = place.items.get(item.index)?.below(&item.names)?;
        }
        // The whole file has none.
        Some(place.line).filter(|line| *line > 0)
    }

    /// Returns the line and column of a byte, counted from 1.
    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

impl Lines {
    /// Returns the lines of a file; none if it is not valid.
    fn of_text(text: &str) -> Self {
        let Ok(document) = DeTable::parse(text) else { return Self::default() };
        let starts: Vec<_> = text.match_indices('\n').map(|(newline, _)| newline + 1).collect();
        let line_at = |offset: usize| starts.partition_point(|start| *start <= offset) + 1;
        Self { keys: Self::of_table(document.get_ref(), &line_at), ..Self::default() }
    }

    fn of_table(table: &DeTable<'_>, line_at: &impl Fn(usize) -> usize) -> BTreeMap<String, Self> {
        let keys = table.iter().map(|(key, value)| {
            (key.get_ref().to_string(), Self::of_value(line_at(key.span().start), value.get_ref(), line_at))
        });
        keys.collect()
    }

    fn of_value(line: usize, value: &DeValue<'_>, line_at: &impl Fn(usize) -> usize) -> Self {
        let keys = value.as_table().map(|table| Self::of_table(table, line_at));
        let items = value.as_array().into_iter().flat_map(|array| array.iter());
        let items = items.map(|item| Self::of_value(line_at(item.span().start), item.get_ref(), line_at));
        Self { line, keys: keys.unwrap_or_default(), items: items.collect() }
    }

    /// Returns what is at this path.
    fn below(&self, names: &[String]) -> Option<&Self> {
        names.iter().try_fold(self, |place, name| place.keys.get(name))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use oncegate_core::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn the_lines_of_many_apps_are_found_in_one_reading() {
        let mut text = String::new();
        for app in 0..20_000 {
            writeln!(text, "[apps.app-{app}]\nsecrets = [\"a\",\n  \"b\"]").unwrap();
        }
        let (file, clock) = (File::embedded("many.toml", &text), SystemClock::new());
        for app in 0..20_000 {
            let line = format!("many.toml, line {}", app * 3 + 2);
            assert_eq!(file.origin(&KeyPath::of(["apps", &format!("app-{app}"), "secrets"])), line);
        }
        // A reading for each of them takes minutes.
        assert!(clock.monotonic() < Duration::from_secs(30), "{:?}", clock.monotonic());
    }

    #[test]
    fn a_key_without_a_line_has_the_name_of_the_file() {
        let file = File::embedded("it.toml", "a = [1,\n 2]\n[b]\nc.d = 1\n");
        let item = |index| Item { index, names: Vec::new() };
        assert_eq!(file.origin(&KeyPath::of(["b", "c", "d"])), "it.toml, line 4");
        assert_eq!(file.origin_of_item(&KeyPath::of(["a"]), &item(1)), "it.toml, line 2");
        assert_eq!(file.origin_of_item(&KeyPath::of(["a"]), &item(2)), "it.toml, line 1", "the list");
        assert_eq!(file.origin(&KeyPath::of(["z"])), "it.toml");
        assert_eq!(file.origin(&KeyPath::of(Vec::<String>::new())), "it.toml");
    }
}
