//! The command line, run to its end.

use std::path::Path;
use std::process::{Command, Stdio};

/// Result of a command.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs `oncegate` with these words in that folder, without settings from the environment.
pub(crate) fn oncegate(folder: &Path, words: &[&str]) -> Ended {
    oncegate_with(folder, words, &[])
}

/// The same, with these variables.
pub(crate) fn oncegate_with(folder: &Path, words: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).env_clear().envs(environment.iter().copied());
    let output = command.output().expect("oncegate runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
