//! `oncegate audit`: the audit trail of a gateway, which has every change by an operator.

use clap::Args;
use oncegate_core::global_id::GlobalId;
use oncegate_core::name::Name;
use oncegate_core::tenant::AppKey;

use super::admin_client::{QueryArgs, filters};
use super::arguments::number;
use super::output::{self, Column, Out, cell};

const EXAMPLES: &str = "\
Examples:
  oncegate audit
  oncegate audit --who alice --action claim.settle
  oncegate audit --app shop --global-id 2ca8a31a53ad078ffd0c7c8c80158af7
  oncegate audit --limit 200 --output json

The newest changes come first. Each gateway has its own trail. A change without a RESULT was started, and the gateway ended
before the result was known: look at what it was about.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct AuditArgs {
    /// List only those of this operator: the name of a token
    #[arg(long, value_name = "NAME")]
    who: Option<Name>,
    /// List only those of this action, such as claim.release
    #[arg(long)]
    action: Option<String>,
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List only those about the claim with this global ID
    #[arg(long, value_name = "ID")]
    global_id: Option<GlobalId>,
    /// List only those older than the entry with this ID
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// List at most this many, from 1 to 200
    #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..=200))]
    limit: u32,
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("AT", |entry| cell(&entry["at"])),
    ("WHO", |entry| cell(&entry["who"])),
    ("ACTION", |entry| cell(&entry["action"])),
    ("RESULT", |entry| cell(&entry["result"])),
    ("APP", |entry| cell(&entry["app"])),
    ("OPERATION", |entry| cell(&entry["operation"])),
    ("GLOBAL ID", |entry| cell(&entry["global_id"])),
    ("DETAIL", |entry| cell(&entry["detail"])),
    ("REASON", |entry| cell(&entry["reason"])),
];

pub(super) fn run(args: AuditArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let AuditArgs { who, action, app, global_id, after, limit, query } = args;
    let filters = filters([
        ("who", who.map(|who| who.as_ref().to_owned())),
        ("action", action),
        ("app", app.map(|app| app.to_string())),
        ("global_id", global_id.map(|global_id| global_id.to_string())),
        ("after", after),
    ]);
    query.show(&format!("/admin/v1/audit?limit={limit}{filters}"), out, |answer, out| {
        let such = if filters.is_empty() { "" } else { "such " };
        let empty = format!("There are no {such}changes in the audit trail of this gateway.");
        output::page(answer, "entries", COLUMNS, &empty, out)
    })
}
