//! Problems of a configuration: origin, key and what to do. Values that may be secret are never included.

use std::fmt;

use super::path::KeyPath;

/// Origin of settings that nothing has set.
pub(super) const DEFAULTS_NAME: &str = "the embedded defaults";

/// Problem of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Origin: a file and line, an environment variable, a flag.
    pub source: Option<String>,
    /// Key.
    pub key: Option<KeyPath>,
    /// Description, and what to do.
    pub message: String,
}

impl Problem {
    /// Returns a problem of a key's value. The origin is filled in later.
    pub(super) fn of_key(key: KeyPath, message: impl Into<String>) -> Self {
        Self { source: None, key: Some(key), message: message.into() }
    }

    /// Returns a problem of a source as a whole.
    pub(super) fn of_source(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self { source: Some(source.into()), key: None, message: message.into() }
    }

    /// Returns its place in the order of problems: those without a line first, those of the defaults last.
    fn place(&self) -> (bool, Option<usize>) {
        let source = self.source.as_deref().unwrap_or_default();
        let line = source.split_once(", line ").and_then(|(_, line)| {
            let digits = line.split(|character: char| !character.is_ascii_digit()).next()?;
            digits.parse().ok()
        });
        (source.starts_with(DEFAULTS_NAME), line)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Returns these problems in the order of their lines.
    pub(super) fn in_order(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::place);
        Self(problems)
    }
}

impl fmt::Display for Problems {
    /// Writes one line per problem.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => write!(f, "the configuration cannot be used\n  {only}"),
            all => {
                write!(f, "the configuration cannot be used: {} problems", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for Problems {}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}
