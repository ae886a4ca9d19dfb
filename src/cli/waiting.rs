//! `oncegate waiting`: the claims and locks that callers of a gateway wait for.

use clap::Args;
use serde_json::Value;

use super::admin_client::AppListArgs;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate waiting
  oncegate waiting --app shop --limit 1000 --output json

Each gateway lists the calls that wait there. The longest wait comes first. --limit applies to claims and to locks separately. `oncegate
claim show` and `oncegate lock show` name the holders.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct WaitingArgs {
    #[command(flatten)]
    list: AppListArgs,
}

const CLAIMS: &[Column] = &[
    ("SINCE", |claim| cell(&claim["since"])),
    ("CALLERS", |claim| cell(&claim["callers"])),
    ("APP", |claim| cell(&claim["app"])),
    ("OPERATION", |claim| cell(&claim["operation"])),
    ("REALM", |claim| cell(&claim["realm"])),
    ("GLOBAL ID", |claim| cell(&claim["global_id"])),
    ("NAMES", names),
];

const LOCKS: &[Column] = &[
    ("SINCE", |lock| cell(&lock["since"])),
    ("CALLERS", |lock| cell(&lock["callers"])),
    ("APP", |lock| cell(&lock["app"])),
    ("LOCK", |lock| cell(&lock["name"])),
    ("NAMES", names),
];

/// Returns the names that callers have sent.
fn names(row: &Value) -> String {
    let names: Vec<_> = row["names"].as_array().into_iter().flatten().map(cell).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

pub(super) fn run(args: WaitingArgs, out: &mut impl Out) -> anyhow::Result<()> {
    args.list.show("waiting", "", out, show)
}

fn show(waiting: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let lists = [("claims", CLAIMS), ("locks", LOCKS)].map(|(name, columns)| (rows(waiting, name), columns));
    for (found, columns) in lists.into_iter().filter(|(found, _)| !found.is_empty()) {
        output::table(found, columns, out)?;
        writeln!(out)?;
    }
    let more = if waiting["more"] == true { " There are more: --limit." } else { "" };
    Ok(writeln!(out, "Waiting calls: {}.{more}", cell(&waiting["callers"]))?)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_and_locks_are_two_tables() {
        let shown = |waiting: &Value| output::text(|out| show(waiting, out));
        let since = "2026-10-20T09:30:15.124000Z";
        let claim = json!({ "since": since, "callers": 2, "app": "shop", "operation": "a", "realm": "api", "global_id": "28", "names": ["pod/a", "pod/b"] });
        let lock = json!({ "since": since, "callers": 1, "app": "shop", "name": "report", "names": [] });
        assert_snapshot!(shown(&json!({ "callers": 7, "more": true, "claims": [claim], "locks": [lock] })), @r"
        SINCE                        CALLERS  APP   OPERATION  REALM  GLOBAL ID  NAMES
        2026-10-20T09:30:15.124000Z  2        shop  a          api    28         pod/a, pod/b

        SINCE                        CALLERS  APP   LOCK    NAMES
        2026-10-20T09:30:15.124000Z  1        shop  report  -

        Waiting calls: 7. There are more: --limit.
        ");
        assert_eq!(shown(&json!({ "callers": 0, "more": false, "claims": [], "locks": [] })), "Waiting calls: 0.\n");
    }
}
