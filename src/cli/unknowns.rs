//! `oncegate unknowns`: the claims whose outcome is unknown.

use clap::Args;
use serde_json::Value;

use super::admin_client::AppListArgs;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate unknowns
  oncegate unknowns --app shop --limit 1000 --output json

The oldest come first. Callers get 409 until each is settled: look its effect up, then `oncegate claim settle`.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct UnknownsArgs {
    #[command(flatten)]
    list: AppListArgs,
}

const COLUMNS: &[Column] = &[
    ("SINCE", |claim| cell(&claim["since"])),
    ("APP", |claim| cell(&claim["app"])),
    ("OPERATION", |claim| cell(&claim["operation"])),
    ("REALM", |claim| cell(&claim["realm"])),
    ("GLOBAL ID", |claim| cell(&claim["global_id"])),
    ("ATTEMPT", |claim| cell(&claim["attempt_hash"])),
    ("CLAIMED AT", |claim| cell(&claim["claimed_at"])),
    ("EXPIRES AT", |claim| cell(&claim["expires_at"])),
];

const FAILED: &[Column] =
    &[("NO ANSWER FOR", |failed| cell(&failed["app"])), ("WHY", |failed| cell(&failed["detail"]))];

pub(super) fn run(args: UnknownsArgs, out: &mut impl Out) -> anyhow::Result<()> {
    args.list.show("unknowns", "", out, show)
}

fn show(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let (found, failed) = (rows(answer, "unknowns"), rows(answer, "failed"));
    if found.is_empty() {
        let where_read = if failed.is_empty() { "." } else { " for the apps that could be read, which are not all:" };
        writeln!(out, "No unknown claims were found{where_read}")?;
    } else {
        output::table(found, COLUMNS, out)?;
    }
    if answer["more"] == true {
        writeln!(out, "\nThere are more: --limit.")?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    output::table(failed, FAILED, out)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn apps_without_an_answer_are_named_beside_the_claims() {
        let shown = |answer: &Value| output::text(|out| show(answer, out));
        let at = "2026-10-20T09:30:15.124000Z";
        let claim = json!({
            "since": at, "app": "shop", "operation": "coupon.redeem", "realm": "api", "global_id": "28",
            "attempt_hash": "190db025", "claimed_at": at, "expires_at": null,
        });
        let failed = json!([{ "app": "bank", "detail": "no answer" }]);
        assert_snapshot!(shown(&json!({ "unknowns": [claim], "more": true, "failed": failed })), @r"
        SINCE                        APP   OPERATION      REALM  GLOBAL ID  ATTEMPT   CLAIMED AT                   EXPIRES AT
        2026-10-20T09:30:15.124000Z  shop  coupon.redeem  api    28         190db025  2026-10-20T09:30:15.124000Z  -

        There are more: --limit.

        NO ANSWER FOR  WHY
        bank           no answer
        ");
        let unread = shown(&json!({ "unknowns": [], "more": false, "failed": failed }));
        assert!(
            unread.starts_with("No unknown claims were found for the apps that could be read, which are not all:\n"),
            "{unread}"
        );
        assert_eq!(shown(&json!({ "unknowns": [], "more": false, "failed": [] })), "No unknown claims were found.\n");
    }
}
