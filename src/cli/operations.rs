//! `oncegate operations`: what the operations of a gateway have been answered since its start.

use clap::Args;
use oncegate_core::tenant::Operation;
use serde_json::Value;

use super::admin_client::{AppListArgs, filters};
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate operations
  oncegate operations --app shop --limit 1000 --output json

Each gateway counts what it has answered itself, since its start. REPEATS are answers 409: while in progress, after a success, while
unknown. STOPPED is what observe mode has let through; TWICE is how many of these reported success.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct OperationsArgs {
    /// Show only this operation
    #[arg(long)]
    operation: Option<Operation>,
    #[command(flatten)]
    list: AppListArgs,
}

const COLUMNS: &[Column] = &[
    ("APP", |row| cell(&row["app"])),
    ("OPERATION", |row| cell(&row["operation"])),
    ("CLAIMS", |row| cell(&row["claims"])),
    ("PER SECOND", |row| rate(&row["claims_per_second"])),
    ("GRANTED", |row| cell(&row["granted"])),
    ("REPEATS", repeats),
    ("MISMATCHES", |row| cell(&row["mismatches"])),
    ("REFUSED", |row| cell(&row["refused"])),
    ("STOPPED", |row| cell(&row["observed"])),
    ("TWICE", |row| cell(&row["ran_twice"])),
];

fn repeats(row: &Value) -> String {
    ["in_progress", "succeeded", "unknown"].map(|state| cell(&row["duplicates"][state])).join(" / ")
}

fn rate(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"))
}

pub(super) fn run(args: OperationsArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let OperationsArgs { list, operation } = args;
    list.show("operations", &filters([("operation", operation.map(|name| name.to_string()))]), out, show)
}

fn show(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let operations = rows(answer, "operations");
    if operations.is_empty() {
        return Ok(writeln!(out, "No claim call since {}.", cell(&answer["since"]))?);
    }
    output::table(operations, COLUMNS, out)?;
    let more = if answer["more"] == true { " There are more: --limit." } else { "" };
    Ok(writeln!(out, "\nSince {}.{more}", cell(&answer["since"]))?)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_rows() {
        let shown = |answer: &Value| output::text(|out| show(answer, out));
        let since = "2026-10-20T09:30:15.124000Z";
        let operation = json!({
            "app": "shop", "operation": "order.submit", "mode": "enforce", "claims": 20, "granted": 7,
            "duplicates": { "in_progress": 1, "succeeded": 11, "unknown": 0 }, "mismatches": 1, "refused": 0,
            "observed": 0, "ran_twice": 0, "claims_per_second": 0.5, "app_p99_seconds": null,
        });
        assert_snapshot!(shown(&json!({ "since": since, "operations": [operation], "more": true })), @r"
        APP   OPERATION     CLAIMS  PER SECOND  GRANTED  REPEATS     MISMATCHES  REFUSED  STOPPED  TWICE
        shop  order.submit  20      0.50        7        1 / 11 / 0  1           0        0        0

        Since 2026-10-20T09:30:15.124000Z. There are more: --limit.
        ");
        let none = json!({ "since": since, "operations": [], "more": false });
        assert_eq!(shown(&none), "No claim call since 2026-10-20T09:30:15.124000Z.\n");
    }
}
