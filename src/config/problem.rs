//! Problems of a configuration: origin, key and what to do. Values that may be secret are never included.

use std::fmt;

use super::path::KeyPath;

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
