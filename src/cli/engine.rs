//! `oncegate engine`: the engines of a running gateway, and their health.

use clap::Subcommand;
use serde_json::Value;

use super::admin_client::QueryArgs;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate engine list
  oncegate engine list --admin https://gateway.example:9464 --ca ca.pem --output json";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// List the engines with their health, chains and capabilities
    List(QueryArgs),
}

const COLUMNS: &[Column] = &[
    ("ENGINE", |engine| cell(&engine["name"])),
    ("STATUS", |engine| if engine["up"] == true { "up".to_owned() } else { "down".to_owned() }),
    ("BREAKER", |engine| cell(&engine["breaker"]["state"])),
    ("SINCE", |engine| cell(&engine["breaker"]["since"])),
    ("CHAINS", |engine| joined(rows(engine, "chains").iter().map(cell))),
    ("PROMISES", promises),
    ("URL", |engine| cell(&engine["url"])),
    ("DETAIL", |engine| cell(&engine["detail"])),
];

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    let Action::List(query) = action;
    query.show("/admin/v1/engines", out, |answer, out| {
        output::table(rows(answer, "engines"), COLUMNS, out)?;
        let [entries, bytes, bytes_max] = ["entries", "bytes", "bytes_max"].map(|name| cell(&answer["spool"][name]));
        Ok(writeln!(out, "\nSpool: {entries} entries, {bytes} of {bytes_max} bytes.")?)
    })
}

/// Returns the capabilities of an engine.
fn promises(engine: &Value) -> String {
    let all = engine["capabilities"].as_object().into_iter().flatten();
    joined(all.filter(|(_, has)| **has == true).map(|(name, _)| output::escaped(name)))
}

fn joined(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}
