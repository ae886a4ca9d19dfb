//! `oncegate restore`: restores a backup into the folder of a new disk engine, or only checks it.

use std::fs::File;
use std::io::Seek as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde_json::json;

use super::failure::usage;
use super::output::{Out, OutputArgs, cell};
use super::progress;
use crate::engines;

const EXAMPLES: &str = "\
Examples:
  oncegate restore claims.backup --engine disk:./oncegate-data/claims
  oncegate restore claims.backup --check

The gateway must not run, and the folder must be empty or absent. The store does not know what was done after the backup: grants
since then can be granted again. So treat it as a store that has lost data: with on_data_loss = \"freeze\" the gateway grants nothing for
the longest lease; with \"resume\" wait for as long before you start it.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RestoreArgs {
    /// File that `oncegate backup` has written
    file: PathBuf,
    /// URL of the new engine, such as `disk:./oncegate-data/claims`
    #[arg(long, value_name = "URL", required_unless_present = "check")]
    engine: Option<String>,
    /// Read the whole file, check that it is complete, and restore nothing
    #[arg(long, conflicts_with = "engine")]
    check: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: RestoreArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let RestoreArgs { file, engine, check: _, output } = args;
    let shown = file.display().to_string();
    let mut backup = File::open(&file).with_context(|| format!("cannot read {shown}"))?;
    let progress = progress::spinner(format!("Reading {shown}"));
    if let Some(url) = &engine {
        engines::check(url).map_err(|error| usage(format!("--engine: {error}")))?;
    }
    // Also before a restore: a damaged file is named as such, and nothing is written.
    let summary = engines::verify_backup(&backup).with_context(|| format!("{shown} cannot be restored"))?;
    if let Some(url) = &engine {
        backup.rewind().with_context(|| format!("cannot read {shown}"))?;
        engines::restore(url, &mut backup).map_err(|why| anyhow!("{shown} is not restored: {why}"))?;
    }
    drop(progress);
    let read = json!({ "file": shown, "engine": engine, "made_at": summary.made_at, "rows": summary.rows });
    output.print(&read, out, |read, out| {
        let [file, engine, at, rows] = ["file", "engine", "made_at", "rows"].map(|name| cell(&read[name]));
        if read["engine"].is_null() {
            return Ok(writeln!(out, "{file} is complete: {rows} rows, as they were at {at}.")?);
        }
        writeln!(out, "Restored {engine}: {rows} rows, as they were at {at}.")?;
        Ok(writeln!(
            out,
            "What was done since is not known there. Before you start the gateway, read its chain's on_data_loss: \"freeze\" \
             grants nothing for the longest lease; with \"resume\" wait for as long."
        )?)
    })
}
