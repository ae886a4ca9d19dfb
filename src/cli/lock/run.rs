//! `oncegate lock run`: runs a command while it holds a lock.

use std::time::Duration;

use clap::Args;
use oncegate_core::lock::LockName;

use crate::cli::arguments::number;
use crate::cli::job::{Acquired, JobArgs, stopped, warn};

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
    #[arg(long, value_name = "N", value_parser = number::<u32>(2..=1000))]
    limit: Option<u32>,
    /// Queue: requests are granted in the order in which they first asked
    #[arg(long)]
    fair: bool,
    #[command(flatten)]
    job: JobArgs,
}

pub(super) fn run(args: RunArgs) -> anyhow::Result<u8> {
    let RunArgs { name, shared, limit, fair, job } = args;
    job.run(RELEASE_TIME, async |job, args| {
        let mut lock = job.client().lock(name.as_ref());
        if shared || limit.is_some() {
            lock = lock.shared();
        }
        if let Some(limit) = limit {
            lock = lock.limit(limit);
        }
        if fair {
            lock = lock.fair();
        }
        if let Some(lease) = args.lease() {
            lock = lock.lease(lease);
        }
        let request = Box::pin(lock.acquire(args.wait()));
        let hold = match job.acquire(args, request).await? {
            Acquired::Granted(hold) => hold,
            Acquired::Held => return args.held(&format!("others hold the lock {name}")),
            Acquired::Stopped(signal) => return Ok(stopped(signal)),
        };
        let ended = job.run(args, Some(hold.fence()), hold.until_lost()).await?;
        if let Err(why) = job.report(hold.release()).await {
            warn(format!("the lock was not released, and is held until its lease ends: {why}"));
        }
        ended.code(args)
    })
}
