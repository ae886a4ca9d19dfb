//! Configuration file: reading, parsing, and the line of a key.

use std::fs;
use std::path::Path;

use toml::Table;
use toml::de::DeTable;

use super::path::{Item, KeyPath};
use super::problem::Problem;

/// Text and name of a configuration file.
pub(super) struct File {
    pub(super) name: String,
    text: String,
}

impl File {
    /// Reads the file that `named_by` names.
    pub(super) fn read(path: &Path, named_by: &str) -> Result<Self, Problem> {
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => {
                let message = format!("cannot read this file, named by {named_by}: {error}");
                Err(Problem::of_source(name, message))
            }
        }
    }

    /// Returns a file that is embedded in the program.
    pub(super) fn embedded(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned() }
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
        let document = DeTable::parse(&self.text).ok()?;
        let (last, tables) = path.names().split_last()?;
        let mut table = document.get_ref();
        for name in tables {
            table = table.get(name.as_str())?.get_ref().as_table()?;
        }
        let (key, value) = table.get_key_value(last.as_str())?;
        let mut span = key.span();
        if let Some(item) = item {
            let mut place = value.get_ref().get(item.index)?;
            span = place.span();
            for name in &item.names {
                let (key, value) = place.get_ref().as_table()?.get_key_value(name.as_str())?;
                span = key.span();
                place = value;
            }
        }
        Some(self.place(span.start).0)
    }

    /// Returns the line and column of a byte, counted from 1.
    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}
