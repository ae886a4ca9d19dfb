//! `oncegate audit`: the audit trail of a gateway, which has every change by an operator.

use clap::Args;

use super::admin_client::QueryArgs;
use super::arguments::number;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate audit
  oncegate audit --limit 200 --output json

The newest changes come first. Each gateway has its own trail. A change without a RESULT was started, and the gateway ended
before the result was known: look at what it was about.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct AuditArgs {
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
    let AuditArgs { limit, query } = args;
    query.show(&format!("/admin/v1/audit?limit={limit}"), out, |answer, out| match rows(answer, "entries") {
        [] => Ok(writeln!(out, "There are no changes in the audit trail of this gateway.")?),
        entries => output::table(entries, COLUMNS, out),
    })
}
