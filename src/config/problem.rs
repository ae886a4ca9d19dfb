//! What is wrong with a configuration: who set it, which key, and what to do. Never the value of what may be a secret.

use std::fmt;

use super::path::KeyPath;

/// One thing to put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Who set it: a file and its line, a variable of the environment, a flag.
    pub source: Option<String>,
    /// The key.
    pub key: Option<KeyPath>,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl Problem {
    /// A problem with the value of a key. Who set it is found out later.
    pub(super) fn of_key(key: KeyPath, message: impl Into<String>) -> Self {
        Self { source: None, key: Some(key), message: message.into() }
    }

    /// A problem with a source as a whole.
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

/// Why there is no configuration: all that was found wrong with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    /// A block of lines, one for each problem.
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
