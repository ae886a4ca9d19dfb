//! Programs on this machine: finding them, and running one to its end.

use std::{env, path::PathBuf, process::Stdio};

use anyhow::{Context as _, bail};
use tokio::process::Command;

/// Returns the path of a program, by `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Runs a program and returns its output.
pub(crate) async fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.kill_on_drop(true).stdin(Stdio::null()).output().await.context("it cannot be started")?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
