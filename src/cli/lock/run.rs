//! `oncegate lock run`: runs a command while it holds a lock.

use std::time::Duration;

use clap::Args;
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::lock::LockName;
use serde_json::json;

use crate::cli::arguments::number;
use crate::cli::failure::{Cause, because};
use crate::cli::job::{Acquired, Job, JobArgs, Lease, nonce, stopped, warn};

/// Longest time for a release: without one, the lease ends.
const RELEASE_TIME: Duration = Duration::from_secs(10);

pub(super) const EXAMPLES: &str = "\
Examples:
  oncegate lock run nightly-report --if-held skip -- /usr/local/bin/report --all
  oncegate lock run thumbnails --limit 4 --wait 10m -- ./make-thumbnails
  oncegate lock run migration --wait 10m --fair -- sh -c './migrate --fence \"$ONCEGATE_FENCE\"'

The lock is renewed while the command runs, and released after it. If the lease is lost, the command gets SIGTERM.
ONCEGATE_FENCE is a number that rises with each holder.

Exit codes: that of the command, or 128 and the number of the signal that ended it; and
    0  Others hold the lock, with --if-held skip
    2  The command line is wrong
   75  Others hold the lock
  124  The lease was lost while the command ran
  125  No gateway answers, or it refuses the call
  126  The command cannot be executed
  127  The command does not exist";

#[derive(Args, Debug)]
pub(in crate::cli) struct RunArgs {
    /// Name of the lock
    name: LockName,
    /// Share the lock with others that do
    #[arg(long)]
    shared: bool,
    /// Share the lock with at most so many holders at once, 2 to 1000; all of them must name the same number
    #[arg(long, value_name = "N", value_parser = number::<u64>(2..=1000))]
    limit: Option<u64>,
    /// Queue: requests are granted in the order in which they first asked
    #[arg(long)]
    fair: bool,
    #[command(flatten)]
    job: JobArgs,
}

pub(super) fn run(args: RunArgs) -> anyhow::Result<u8> {
    let RunArgs { name, shared, limit, fair, job } = args;
    job.run(async |job, args| {
        let nonce = nonce(&SystemEntropy);
        let path = |call: &str| format!("/v1/locks/{name}/{call}");
        let mode = if shared || limit.is_some() { "shared" } else { "exclusive" };
        let mut body = json!({ "mode": mode, "fair": fair, "attempt_nonce": nonce });
        if let Some(limit) = limit {
            body["limit"] = limit.into();
        }
        if let Some(lease) = args.lease {
            body["lease"] = lease.to_string().into();
        }
        let is_held = |response: &crate::cli::gateway_client::Response| response.code() == "lock_held";
        let acquired = job.acquire(&path("holds"), &body, args.wait(), is_held).await;
        let (granted, began_at) = match acquired {
            Ok(Acquired::Granted(granted, began_at)) => (granted, began_at),
            Ok(Acquired::Refused(response)) => return Err(response.refusal()),
            given_up => {
                // A ticket in the queue, or a hold whose answer was lost, would block others.
                let withdrawn = json!({ "attempt_nonce": nonce });
                let _ = job.report(&path("release"), &withdrawn, Duration::from_secs(1)).await;
                return match given_up? {
                    Acquired::Stopped(signal) => Ok(stopped(signal)),
                    _ => args.held(&format!("others hold the lock {name}")),
                };
            }
        };
        let attempt = granted.text("attempt")?.to_owned();
        let lease = Lease::new(&granted, began_at, path("renewal"), args.lease)?;
        let ended = job.run(args, lease).await?;
        release(job, &path("release"), &attempt).await;
        ended.code(args)
    })
}

async fn release(job: &mut Job, path: &str, attempt: &str) {
    let released = job.report(path, &json!({ "attempt": attempt }), RELEASE_TIME).await;
    let why = match released {
        Ok(response) if response.is_success() || response.code() == "not_held" => return,
        Ok(response) => response.refusal(),
        Err(error) => error,
    };
    let why = because(Cause::Gateway, format!("the lock was not released, and is held until its lease ends: {why:#}"));
    warn(why.to_string());
}
