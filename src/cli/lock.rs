//! `oncegate lock`: shows and lists locks, and ends holds, through the admin API. `run` is a caller of the API.

mod run;

use clap::Subcommand;
use oncegate_admin::bodies::{Reason, ReleaseLock, ShowLock};
use oncegate_core::lock::LockName;
use oncegate_core::tenant::AppKey;
use serde_json::Value;

use super::admin_client::QueryArgs;
use super::output::{Column, Out, cell, record, rows, table};

const EXAMPLES: &str = "\
Examples:
  oncegate lock run nightly-report --if-held skip -- /usr/local/bin/report
  oncegate lock show --app shop nightly-report
  oncegate lock list --app shop
  oncegate lock release --app shop nightly-report --reason \"INC-44: its host has failed\"";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Run a command while holding a lock
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArgs),
    /// Show a lock: its holders, and the requests that queue for it
    Show {
        /// Key of the app, such as shop
        #[arg(long)]
        app: AppKey,
        /// Name of the lock
        name: LockName,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// List the first locks of an app that are held or waited for, at most 100
    List {
        /// Key of the app, such as shop
        #[arg(long)]
        app: AppKey,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// End the holds of a lock, so that it can be granted to others
    ///
    /// It does not stop a holder that still runs: the next one runs at the same time.
    Release {
        /// Key of the app, such as shop
        #[arg(long)]
        app: AppKey,
        /// Name of the lock
        name: LockName,
        /// End only the hold with this hash; `oncegate lock show` prints it
        #[arg(long, value_name = "HASH")]
        holder: Option<String>,
        /// Reason for the audit trail: one line, such as "INC-44: its host has failed"
        #[arg(long)]
        reason: Reason,
        #[command(flatten)]
        query: QueryArgs,
    },
}

const LOCKS: &[Column] = &[
    ("LOCK", |lock| cell(&lock["name"])),
    ("MODE", |lock| cell(&lock["mode"])),
    ("HOLDERS", |lock| lock["holders"].as_array().map_or(0, Vec::len).to_string()),
    ("WAITING", |lock| cell(&lock["waiting"])),
];

const HOLDERS: &[Column] = &[
    ("HOLDER", |holder| cell(&holder["hash"])),
    ("MODE", |holder| cell(&holder["mode"])),
    ("SINCE", |holder| cell(&holder["claimed_at"])),
    ("LEASE_MS", |holder| cell(&holder["lease_ms"])),
    ("CALLER", |holder| cell(&holder["caller"])),
];

const QUEUE: &[Column] = &[
    ("POSITION", |ticket| cell(&ticket["position"])),
    ("REQUEST", |ticket| cell(&ticket["hash"])),
    ("MODE", |ticket| cell(&ticket["mode"])),
    ("QUEUED AT", |ticket| cell(&ticket["queued_at"])),
    ("AGE_MS", |ticket| cell(&ticket["age_ms"])),
    ("WAITS", |ticket| if ticket["waits"] == true { "yes".to_owned() } else { "no".to_owned() }),
];

/// Returns the exit code: that of the command that was run, or 0.
pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<u8> {
    match action {
        Action::Run(args) => return run::run(args),
        Action::Show { app, name, query } => {
            let body = ShowLock { app, name: name.to_string() };
            query.post("/admin/v1/locks/show", &body, out, |lock, out| {
                let fields = ["name", "mode", "fence", "limit", "waiting"].map(|field| (field, cell(&lock[field])));
                record(&fields, out)?;
                table(rows(lock, "holders"), HOLDERS, out)?;
                let queue = rows(lock, "queue");
                if queue.is_empty() {
                    return Ok(());
                }
                writeln!(out)?;
                table(queue, QUEUE, out)
            })
        }
        Action::List { app, query } => query.show(&format!("/admin/v1/locks?app={app}&limit=100"), out, |page, out| {
            table(rows(page, "locks"), LOCKS, out)
        }),
        Action::Release { app, name, holder, reason, query } => {
            let body = ReleaseLock { app, name: name.to_string(), holder, reason };
            query.post("/admin/v1/locks/release", &body, out, |done: &Value, out| {
                Ok(writeln!(out, "Ended {} holds of {}", cell(&done["released"]), cell(&done["name"]))?)
            })
        }
    }?;
    Ok(0)
}
