//! `oncegate recent`: recent calls at a gateway, except plain grants and successes.

use clap::Args;
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_web::recent::Kind;
use serde_json::Value;

use super::admin_client::{QueryArgs, filters};
use super::arguments::Page;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate recent
  oncegate recent --app shop --kind duplicate --limit 1000 --output json
  oncegate recent --global-id 569479f3c1b2a39f7d2c11e840d6e2aa

Each gateway lists what it has answered itself, in memory: the newest 20000 events. DETAIL is the state of the claim, the code
of the answer or the outage policy. The logs of your services have the REQUEST.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RecentArgs {
    /// List only those of this kind
    #[arg(long, value_parser = Kind::ALL.map(Kind::name))]
    kind: Option<String>,
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List only those of this operation, where the answer has it
    #[arg(long)]
    operation: Option<Operation>,
    /// List only those of this claim
    #[arg(long)]
    global_id: Option<GlobalId>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("ID", |event| cell(&event["id"])),
    ("AT", |event| cell(&event["at"])),
    ("KIND", |event| cell(&event["kind"])),
    ("DETAIL", |event| cell(&event["detail"])),
    ("APP", |event| cell(&event["app"])),
    ("OPERATION", |event| cell(&event["operation"])),
    ("GLOBAL ID", |event| cell(&event["global_id"])),
    ("ATTEMPT", |event| cell(&event["attempt_hash"])),
    ("REQUEST", |event| cell(&event["request_id"])),
];

pub(super) fn run(args: RecentArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let RecentArgs { kind, app, operation, global_id, page: Page { after, limit }, query } = args;
    let filters = filters([
        ("kind", kind),
        ("app", app.map(|app| app.to_string())),
        ("operation", operation.map(|operation| operation.to_string())),
        ("global_id", global_id.map(|id| id.to_string())),
        ("after", after.map(|after| after.to_string())),
    ]);
    query.show(&format!("/admin/v1/recent?limit={limit}{filters}"), out, show)
}

fn show(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let events = rows(answer, "events");
    if events.is_empty() {
        writeln!(out, "Nothing but plain grants and successes.")?;
    } else {
        output::table(events, COLUMNS, out)?;
    }
    if let Some(next) = answer["next"].as_u64() {
        writeln!(out, "There are older ones: --after {next}.")?;
    }
    if answer["lost"].as_u64().is_some_and(|lost| lost > 0) {
        writeln!(out, "Since the start {} events were lost: too many came at once.", cell(&answer["lost"]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_rows() {
        let shown = |answer: &Value| output::text(|out| show(answer, out));
        let event = json!({
            "id": 7, "at": "2026-10-20T09:30:15.124000Z", "kind": "duplicate", "detail": "succeeded", "app": "shop",
            "operation": "order.submit", "global_id": "28", "attempt_hash": "fde3b169", "request_id": "8bc65c02",
        });
        assert_snapshot!(shown(&json!({ "events": [event], "next": 7, "lost": 3 })), @r"
        ID  AT                           KIND       DETAIL     APP   OPERATION     GLOBAL ID  ATTEMPT   REQUEST
        7   2026-10-20T09:30:15.124000Z  duplicate  succeeded  shop  order.submit  28         fde3b169  8bc65c02
        There are older ones: --after 7.
        Since the start 3 events were lost: too many came at once.
        ");
        let empty = json!({ "events": [], "next": null, "lost": 0 });
        assert_eq!(shown(&empty), "Nothing but plain grants and successes.\n");
    }
}
