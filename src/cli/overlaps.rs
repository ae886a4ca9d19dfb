//! `oncegate overlaps`: operations that two attempts were allowed to run because a store was unavailable.

use clap::Args;
use serde_json::Value;

use super::admin_client::QueryArgs;
use super::output::{self, Column, Out, cell, rows};
use crate::domain::tenant::AppKey;

const EXAMPLES: &str = "\
Examples:
  oncegate overlaps
  oncegate overlaps --app shop --limit 1000 --output json

Each gateway lists the overlaps that it found itself. OURS is the attempt that this gateway granted, THEIRS the one in the
store; both are shown as hash and timestamp. Look up whether both had an effect.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct OverlapsArgs {
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List only those older than the one with this ID
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    after: Option<u64>,
    /// List at most this many, from 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    query: QueryArgs,
}

/// The columns of an overlap, here and after a delivery of the spool.
pub(super) const COLUMNS: &[Column] = &[
    ("ID", |overlap| cell(&overlap["id"])),
    ("NOTICED AT", |overlap| cell(&overlap["noticed_at"])),
    ("APP", |overlap| cell(&overlap["app"])),
    ("OPERATION", |overlap| cell(&overlap["operation"])),
    ("REALM", |overlap| cell(&overlap["realm"])),
    ("GLOBAL ID", |overlap| cell(&overlap["global_id"])),
    ("POLICY", |overlap| cell(&overlap["policy"])),
    ("STATE", |overlap| cell(&overlap["state"])),
    ("OURS", |overlap| attempt(&overlap["ours"])),
    ("THEIRS", |overlap| attempt(&overlap["theirs"])),
];

pub(super) fn run(args: OverlapsArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let OverlapsArgs { app, after, limit, query } = args;
    let app = app.map(|app| format!("&app={app}")).unwrap_or_default();
    let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
    query.show(&format!("/admin/v1/overlaps?limit={limit}{app}{after}"), out, |answer, out| {
        let overlaps = rows(answer, "overlaps");
        if overlaps.is_empty() {
            return Ok(writeln!(out, "There are no overlaps.")?);
        }
        output::table(overlaps, COLUMNS, out)?;
        if !answer["next"].is_null() {
            writeln!(out, "\nThere are more: --after {}", cell(&answer["next"]))?;
        }
        Ok(())
    })
}

fn attempt(attempt: &Value) -> String {
    format!("{} {}", cell(&attempt["attempt_hash"]), cell(&attempt["timestamp"]))
}
