//! `oncegate suspects`: operations that may have been executed twice. `oncegate overlaps` lists those of one kind.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand, ValueEnum};
use oncegate_admin::bodies::{CheckSuspect, Reason};
use oncegate_core::suspect::Found;
use oncegate_core::tenant::AppKey;
use serde_json::Value;

use super::admin_client::{QueryArgs, filters};
use super::arguments::{Page, number};
use super::output::{self, Column, Out, cell};

const EXAMPLES: &str = "\
Examples:
  oncegate suspects list
  oncegate suspects list --app shop --kind double --limit 1000 --output json
  oncegate suspects list --oldest-first
  oncegate suspects check 42 --found once --reason \"INC-44: one payment in the ledger\"

Each gateway lists the suspects that it found itself: the double executions that it suspects, and the overlaps after an
outage. Look up how often the operation had its effect, then say what you found.";

const OVERLAPS_EXAMPLES: &str = "\
Examples:
  oncegate overlaps
  oncegate overlaps --app shop --limit 1000 --output json

Each gateway lists the overlaps that it found itself. OURS is the attempt that this gateway granted, THEIRS the one in the
store; both are shown as hash and timestamp. Look up whether both had an effect; then `oncegate suspects check`.";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// List unchecked operations that may have been executed twice
    List {
        /// List only those of this kind
        #[arg(long, value_enum)]
        kind: Option<KindName>,
        /// List checked ones, too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        page: SuspectsArgs,
    },
    /// Record what you found about one, with a reason; it then leaves the list
    Check {
        /// ID of the suspect; `oncegate suspects list` prints it
        #[arg(value_parser = number::<u64>(1..=u64::MAX))]
        id: u64,
        /// Number of times that the operation has had its effect
        #[arg(long, value_parser = PossibleValuesParser::new(Found::ALL.map(Found::name)).map(|name| found(&name)))]
        found: Found,
        /// Reason for the audit trail: one line, such as "INC-44: one payment in the ledger"
        #[arg(long)]
        reason: Reason,
        #[command(flatten)]
        query: QueryArgs,
    },
}

#[derive(Args, Debug)]
#[command(after_help = OVERLAPS_EXAMPLES)]
pub(super) struct OverlapsArgs {
    #[command(flatten)]
    page: SuspectsArgs,
}

#[derive(Args, Debug)]
pub(super) struct SuspectsArgs {
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List the oldest first, not the newest
    #[arg(long)]
    oldest_first: bool,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    query: QueryArgs,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
pub(super) enum KindName {
    /// An attempt reported that it ran, while another one held the claim
    Double,
    /// Two attempts were granted, because a store was unavailable
    Overlap,
}

/// The columns of a suspect, here and after a delivery of the spool.
pub(super) const COLUMNS: &[Column] = &[
    ("ID", |suspect| cell(&suspect["id"])),
    ("NOTICED AT", |suspect| cell(&suspect["noticed_at"])),
    ("APP", |suspect| cell(&suspect["app"])),
    ("OPERATION", |suspect| cell(&suspect["operation"])),
    ("REALM", |suspect| cell(&suspect["realm"])),
    ("GLOBAL ID", |suspect| cell(&suspect["global_id"])),
    ("KIND", |suspect| cell(&suspect["kind"])),
    ("CAUSE", |suspect| cell(&suspect["cause"])),
    ("STATE", |suspect| cell(&suspect["state"])),
    ("OURS", |suspect| attempt(&suspect["ours"])),
    ("THEIRS", |suspect| attempt(&suspect["theirs"])),
    ("FOUND", |suspect| cell(&suspect["checked"]["found"])),
];

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::List { kind, all, page } => {
            let kind = match kind {
                Some(KindName::Double) => "&kind=double",
                Some(KindName::Overlap) => "&kind=overlap",
                None => "",
            };
            let (checked, empty) = if all {
                ("", "There are no suspects at this gateway. Each gateway keeps its own list.")
            } else {
                (
                    "&checked=false",
                    "There are no unchecked suspects at this gateway; --all lists the others. Each gateway keeps its own list.",
                )
            };
            list(page, "suspects", &format!("{kind}{checked}"), empty, out)
        }
        Action::Check { id, found, reason, query } => {
            let body = CheckSuspect { found, reason };
            query.post(&format!("/admin/v1/suspects/{id}/check"), &body, out, |suspect, out| {
                let (id, found) = (cell(&suspect["id"]), cell(&suspect["checked"]["found"]));
                Ok(writeln!(out, "Checked {id} ({}): found {found}.", cell(&suspect["global_id"]))?)
            })
        }
    }
}

/// Returns the finding of this name, which is one of the possible ones.
fn found(name: &str) -> Found {
    Found::ALL.into_iter().find(|found| found.name() == name).unwrap_or(Found::Once)
}

/// Lists overlaps.
pub(super) fn run_overlaps(args: OverlapsArgs, out: &mut impl Out) -> anyhow::Result<()> {
    list(args.page, "overlaps", "", "There are no overlaps at this gateway. Each gateway keeps its own list.", out)
}

fn list(args: SuspectsArgs, what: &str, filter: &str, empty: &str, out: &mut impl Out) -> anyhow::Result<()> {
    let SuspectsArgs { app, oldest_first, page: Page { after, limit }, query } = args;
    let filters = filters([
        ("app", app.map(|app| app.to_string())),
        ("oldest_first", oldest_first.then(|| true.to_string())),
        ("after", after.map(|after| after.to_string())),
    ]);
    query.show(&format!("/admin/v1/{what}?limit={limit}{filters}{filter}"), out, |answer, out| {
        output::page(answer, what, COLUMNS, empty, out)
    })
}

fn attempt(attempt: &Value) -> String {
    if attempt.is_null() {
        return cell(attempt);
    }
    format!("{} {}", cell(&attempt["attempt_hash"]), cell(&attempt["timestamp"]))
}
