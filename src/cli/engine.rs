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

/// The newest changes of breakers, of all engines.
const OUTAGES: &[Column] = &[
    ("BREAKER", |change| cell(&change["state"])),
    ("AT", |change| cell(&change["at"])),
    ("ENGINE", |change| cell(&change["engine"])),
    ("SHARD", |change| cell(&change["shard"])),
    ("REASON", |change| cell(&change["reason"])),
];

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    let Action::List(query) = action;
    query.show("/admin/v1/engines", out, |answer, out| {
        output::table(rows(answer, "engines"), COLUMNS, out)?;
        let outages = outages(answer);
        if !outages.is_empty() {
            writeln!(out)?;
            output::table(&outages, OUTAGES, out)?;
        }
        let [entries, bytes, bytes_max] = ["entries", "bytes", "bytes_max"].map(|name| cell(&answer["spool"][name]));
        Ok(writeln!(out, "\nSpool: {entries} entries, {bytes} of {bytes_max} bytes.")?)
    })
}

/// Returns the changes of breakers, each with the name of its engine, the newest first.
fn outages(answer: &Value) -> Vec<Value> {
    let of = |engine: &Value| {
        let named = |change: &Value| {
            let mut change = change.clone();
            change["engine"] = engine["name"].clone();
            change
        };
        rows(engine, "breaker_changes").iter().map(named).collect::<Vec<_>>()
    };
    let mut changes: Vec<Value> = rows(answer, "engines").iter().flat_map(of).collect();
    changes.sort_by(|one, other| other["at"].as_str().cmp(&one["at"].as_str()));
    changes
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_outages_of_all_engines_are_listed_the_newest_first() {
        let change = |second: u8, state| json!({ "at": format!("2026-10-13T12:41:0{second}.000000Z"), "state": state });
        let answer = json!({ "engines": [
            { "name": "primary", "breaker_changes": [change(3, "closed"), change(1, "open")] },
            { "name": "spare", "breaker_changes": [change(2, "open")] },
            { "name": "local", "breaker_changes": [] },
        ] });
        let seen: Vec<_> =
            outages(&answer).iter().map(|change| (cell(&change["engine"]), cell(&change["state"]))).collect();
        let expected = [("primary", "closed"), ("spare", "open"), ("primary", "open")];
        assert_eq!(seen, expected.map(|(engine, state)| (engine.to_owned(), state.to_owned())));
        assert!(outages(&json!({ "engines": [{ "name": "of an earlier release" }] })).is_empty());
    }
}
